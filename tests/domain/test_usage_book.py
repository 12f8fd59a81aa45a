"""Usage readings of accounts: kept with the calls that bring them, asked before a run starts."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from abeyance.actors.domain.errors import InvalidInputError
from abeyance.actors.domain.usage_book import AHEAD_MS, UsageBook
from abeyance.actors.providers import ProviderError, UsageReading, UsageWindow, WaitScope
from abeyance.actors.providers.credentials import credential_of
from abeyance.actors.providers.port import Permit
from abeyance.actors.testing import Gate, ScriptedProvider, fail, reply
from abeyance.storage.codec import encode
from abeyance.storage.store import Put, Request
from abeyance.storage.tables.usage import Usage, Window

from .damage import DAMAGES, damage
from .test_auxiliary import ask
from .test_runs import RefusingStore, settled
from .test_schedules import HOUR, MINUTE, Job, passes, told
from .world import World, until

FULL = "five_hour"


def window(used: float | None, resets_ms: int | None, **more: Any) -> UsageWindow:
    return UsageWindow(name=FULL, used_percent=used, resets_ms=resets_ms, **more)


async def call(
    world: World, *windows: UsageWindow, name: str = "ana", key: str | None = "k"
) -> Any:
    """Have an agent make a turn whose one reply tells usage windows; return its provider."""
    provider = world.provider([reply("x", windows=windows)], key=key)
    agent = await world.add(provider, name)
    await agent.send("go")
    await agent.wait_idle()
    return provider


def row(world: World) -> Any:
    (found,) = world.rows("usage")
    return found


async def test_reading_is_a_row_by_the_time_its_turn_is_over(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        now = world.clock.now_ms()
        provider = await call(world, window(12.5, now + HOUR))
        reading = runtime.account_usage(provider)
        assert reading is not None
        assert reading.windows == (window(12.5, now + HOUR),)
        assert (row(world).windows[0].used_percent, row(world).read_ms) == (12.5, reading.read_ms)
    async with world.open() as runtime:
        assert runtime.account_usage(provider) == reading


async def test_reading_of_a_refused_call_and_of_an_auxiliary_one_is_kept_too(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        now_s = world.clock.now_ms() // 1_000
        headers = {
            "anthropic-ratelimit-unified-5h-utilization": "1.0",
            "anthropic-ratelimit-unified-5h-reset": str(now_s + 7_200),
            "anthropic-ratelimit-unified-status": "rejected",
        }
        provider = world.provider(
            [
                fail(429, retry_after=5, headers=headers, provider="anthropic"),
                reply("x", windows=[window(3.0, None)]),
            ],
            key="k",
        )
        ana = await world.add(provider)
        with pytest.raises(ProviderError):
            await ana.auxiliary_call(ask("m"))
        await runtime.release_provider_wait("ana", requester="ops")
        reading = runtime.account_usage(provider)
        assert reading is not None
        assert [(each.used_percent, each.resets_ms) for each in reading.windows] == [
            (100.0, (now_s + 7_200) * 1_000)
        ]
        await passes(world, world.clock.now_ms() + MINUTE)
        await ana.auxiliary_call(ask("m"))
        reading = runtime.account_usage(provider)
        assert reading is not None
        assert reading.windows == (window(3.0, None),)


@pytest.mark.behaviour("S-005")
async def test_reading_is_of_the_account_that_was_asked_and_of_no_other(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        now = world.clock.now_ms()
        await call(world, window(100.0, now + HOUR), name="ana", key="a")
        other = await call(world, window(1.0, now + HOUR), name="bo", key="b")
        same = ScriptedProvider([], key="a")
        nobody = await call(world, window(50.0, now + HOUR), name="cy", key=None)
        assert [runtime.account_usage(each) is None for each in (same, other, nobody)] == [
            False,
            False,
            True,
        ]
        assert len(world.rows("usage")) == 2
        assert {row.windows[0].used_percent for row in world.rows("usage")} == {100.0, 1.0}


# -- a row that only moves forward


def told_by(book: UsageBook, credential: str, read_ms: int, used: float) -> None:
    permit = Permit(1, "ana", "m", "turn")
    permit.reading = UsageReading(windows=(window(used, None),), read_ms=read_ms)
    book.take(credential, permit)


async def test_older_reading_takes_no_newer_ones_place(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        book, now = runtime._usage, world.clock.now_ms()
        told_by(book, "c", now, 50.0)
        told_by(book, "c", now - 1, 10.0)
        told_by(book, "c", now, 20.0)
        known = book.reading("c")
        assert known is not None
        assert known.windows[0].used_percent == 50.0, "before it is a row, too"
        await until(lambda: len(world.rows("usage")) == 1)
        assert (row(world).read_ms, row(world).windows[0].used_percent) == (now, 50.0)
        told_by(book, "c", now + 1, 60.0)
        told_by(book, "c", now + 2, 70.0)
        await until(lambda: row(world).read_ms == now + 2)
        assert row(world).windows[0].used_percent == 70.0
        await until(lambda: book._fresh == {})


async def test_of_two_processes_that_write_a_reading_the_newer_stands(
    world: World, virtual_time: MockClock
) -> None:
    """Another book's write lands between the look and the commit: the row is looked at again."""
    async with world.open() as runtime:
        now = world.clock.now_ms()
        for newer_first, credential in ((True, "c"), (False, "d")):
            one, other = UsageBook(runtime._store, world.clock), runtime._usage
            one.attach(runtime._journal)
            reads = (now + 1, now) if newer_first else (now, now + 1)
            told_by(one, credential, reads[0], 1.0)
            told_by(other, credential, reads[1], 2.0)
            await until(lambda c=credential: runtime._store.get("usage", (c,)) is not None)  # type: ignore[misc]
            await settled()
            await until(lambda b=(one, other): not any(each._fresh for each in b))  # type: ignore[misc]
            found = runtime._store.get("usage", (credential,))
            assert found is not None
            assert found.record.read_ms == now + 1


async def test_reading_of_a_clock_that_was_set_back_gives_way_to_the_next(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        book, now = runtime._usage, world.clock.now_ms()
        ahead = now + 10 * AHEAD_MS
        permit = Permit(1, "ana", "m", "turn")
        permit.reading = UsageReading(windows=(window(100.0, ahead + HOUR),), read_ms=ahead)
        book.take("c", permit)
        await until(lambda: len(world.rows("usage")) == 1)
        assert book.spent("c", "m") is None, "it counts for nothing"
        told_by(book, "c", now, 5.0)
        await until(lambda: row(world).read_ms == now)


async def test_reading_that_tells_the_same_is_not_written_again_within_a_minute(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        book, now = runtime._usage, world.clock.now_ms()
        for read_ms in (now, now + 1_000, now + 59_999):
            told_by(book, "c", read_ms, 50.0)
            await settled()
        await until(lambda: not book._fresh and len(world.rows("usage")) == 1)
        assert row(world).read_ms == now
        told_by(book, "c", now + 60_000, 50.0)
        await until(lambda: row(world).read_ms == now + 60_000)


async def test_accounts_are_bounded_and_the_one_read_longest_ago_makes_room(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("abeyance.actors.domain.usage_book.USAGE_ROWS_MAX", 3)
    async with world.open() as runtime:
        book, now = runtime._usage, world.clock.now_ms()
        for number, credential in enumerate("dacb"):
            told_by(book, credential, now + number, 50.0)
            await until(lambda c=credential: runtime._store.get("usage", (c,)) is not None)  # type: ignore[misc]
        assert [key for key, _ in runtime._store.scan("usage")] == [("a",), ("b",), ("c",)]


async def test_account_is_known_to_be_out_until_the_last_end_that_is_known(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        book, now = runtime._usage, world.clock.now_ms()
        permit = Permit(1, "ana", "m", "turn")
        full = (window(100.0, now + HOUR), window(100.0, None), window(100.0, now + 2 * HOUR))
        permit.reading = UsageReading(windows=full, read_ms=now)
        book.take("c", permit)
        assert book.spent("c", "m") == (FULL, now + 2 * HOUR), "no call goes through before"


async def test_reading_that_a_full_disk_refuses_counts_here_and_is_offered_with_the_next(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RefusingStore(monkeypatch)
    async with world.open() as runtime:
        now = world.clock.now_ms()
        disk.refuses = lambda request: _writes_usage(request)
        provider = world.provider([reply("x", windows=[window(100.0, now + HOUR)])], key="k")
        ana = await world.add(provider)
        assert (await ana.auxiliary_call(ask("m"))).blocks, "the call is none the worse"
        await settled()
        assert world.rows("usage") == []
        reading = runtime.account_usage(provider)
        assert reading is not None
        assert runtime._usage.spent(str(reading.credential), "m") == (FULL, now + HOUR)
        disk.refuses = lambda _request: False
        told_by(runtime._usage, str(reading.credential), reading.read_ms + 1, 99.0)
        await until(lambda: len(world.rows("usage")) == 1)
        assert row(world).windows[0].used_percent == 99.0


def _writes_usage(request: Request) -> bool:
    return any(put.table == "usage" for put in request.puts)


# -- a round and the reading that came with it


def writes(request: Request) -> set[str]:
    return {put.table for put in request.puts}


async def test_reading_is_written_in_the_commit_that_records_its_round(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, committed = RefusingStore(monkeypatch), list[set[str]]()
    async with world.open() as runtime:
        disk.refuses = lambda request: bool(committed.append(writes(request)))
        provider = await call(world, window(12.5, world.clock.now_ms() + HOUR))
        (tables,) = [tables for tables in committed if "usage" in tables]
        assert {"slots", "turns", "usage"} <= tables
        assert runtime._usage._fresh == {}
        assert runtime._usage._out == {}
    # What tells the same within a minute is not written again, and costs its round nothing.
    async with world.open() as runtime:
        committed.clear()
        ana = await world.add(world.provider([reply("y", windows=[row_window(world)])], key="k"))
        await ana.send("more")
        await ana.wait_idle()
        assert not any("usage" in tables for tables in committed)
        assert runtime.account_usage(provider) is not None


def row_window(world: World) -> UsageWindow:
    found = row(world).windows[0]
    return window(found.used_percent, found.resets_ms)


async def test_round_whose_reading_another_process_overtook_is_planned_again_and_recorded_once(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other's newer row lands between the look at the row and the commit of the round."""
    async with world.open() as runtime:
        now = world.clock.now_ms()
        provider = world.provider([reply("x", windows=[window(1.0, now + HOUR)])], key="k")
        ana = await world.add(provider)
        credential = credential_of(provider, runtime._store_id)
        assert credential is not None
        join, joined = UsageBook.join, []

        def overtaken(book: UsageBook, named: str, round_: object) -> Any:
            written = join(book, named, round_)
            joined.append(written is not None)
            if len(joined) == 1:
                other = Usage(windows=(Window(name=FULL, used_percent=9.0),), read_ms=now + 60_001)
                runtime._store.commit(Request(puts=(Put("usage", (named,), encode(other)),)))
            return written

        monkeypatch.setattr(UsageBook, "join", overtaken)
        await ana.send("go")
        await ana.wait_idle()
        assert joined == [True, False], "at first; and again, when it is told already"
        assert [each.text async for each in ana.transcript()] == ["go", "x"]
        assert (row(world).read_ms, len(provider.requests)) == (now + 60_001, 1)
        assert runtime._usage._fresh == runtime._usage._out == {}


async def test_readings_of_agents_that_share_an_account_refuse_nobodys_round(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        now, agents = world.clock.now_ms(), []
        gates = [Gate(reply("x", windows=[window(float(n), now + HOUR)])) for n in range(1, 9)]
        for number, gate in enumerate(gates):
            provider = world.provider([gate], key="k")
            agents.append(await world.add(provider, f"a{number}"))
            await agents[-1].send("go")
        for gate in gates:
            await gate.wait_entered()
        for gate in gates:
            gate.release()
        for agent in agents:
            await agent.wait_idle()
            assert [each.text async for each in agent.transcript()] == ["go", "x"]
        await until(lambda: runtime._usage._fresh == {})
        reading = runtime.account_usage(provider)
        assert reading is not None
        assert row(world).windows[0].used_percent == reading.windows[0].used_percent
        assert runtime._usage._out == {}


@pytest.mark.parametrize("how", DAMAGES)
async def test_bad_row_of_a_reading_is_unknown_and_keeps_nobody_from_anything(
    world: World, virtual_time: MockClock, how: str
) -> None:
    job = Job()
    async with world.open() as runtime:
        provider = await call(world, window(100.0, world.clock.now_ms() + 9 * HOUR))
        (key,) = [key for key, _ in runtime._store.scan("usage")]
    damage(world.directory, world.clock, "usage", key, how)
    async with world.open() as runtime:
        assert runtime.account_usage(provider) is None
        runtime.add_workflow("report", job.body)
        began = world.clock.now_ms()
        await runtime.add_schedule("nightly", "report", every=60, draws_on=[(provider, "m")])
        await passes(world, began + MINUTE)
        await until(lambda: len(job.due) == 1)
        again = await call(world, window(5.0, None))
        reading = runtime.account_usage(again)
        # In this process; where the bad bytes have a counter the row is put over.
        assert reading is not None
        assert reading.windows[0].used_percent == 5.0


# -- the start gate


@pytest.mark.behaviour("S-043")
@pytest.mark.parametrize(
    ("windows", "starts"),
    [
        pytest.param([(100.0, 90)], False, id="full until an instant"),
        pytest.param([(104.0, 90)], False, id="past full"),
        pytest.param([(99.9, 90)], True, id="nearly full"),
        pytest.param([(100.0, None)], True, id="full until nobody knows when"),
        pytest.param([(100.0, 30)], True, id="full until it has begun anew"),
        pytest.param([(None, 90)], True, id="of unknown share"),
        pytest.param([], True, id="nothing known"),
    ],
)
async def test_schedule_starts_no_run_while_its_account_is_known_to_be_out(
    world: World, virtual_time: MockClock, windows: list[Any], starts: bool
) -> None:
    job = Job()
    async with world.open() as runtime:
        began = world.clock.now_ms()
        told_ = [
            window(used, None if minutes is None else began + minutes * MINUTE)
            for used, minutes in windows
        ]
        provider = await call(world, *told_)
    async with world.open() as runtime:
        # The row outlives the process that read it.
        runtime.add_workflow("report", job.body)
        await runtime.add_schedule("nightly", "report", every=3_600, draws_on=[(provider, "m")])
        due = runtime.schedule("nightly").next_ms
        assert due is not None
        await passes(world, due)
        if starts:
            await until(lambda: told(runtime) == [(due, "started", "nightly@1")])
            return
        await until(lambda: told(runtime) == [(due, "skipped", "capacity")])
        assert runtime.runs() == ()
        (skipped,) = runtime.occurrences("nightly")
        assert skipped.until_ms == began + 90 * MINUTE
        assert FULL in skipped.reason
        await passes(world, due + HOUR)
        await until(lambda: job.due == [due + HOUR])


@pytest.mark.behaviour("S-043")
async def test_schedule_starts_while_one_of_the_models_it_may_call_has_room(
    world: World, virtual_time: MockClock
) -> None:
    job = Job()
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        began = world.clock.now_ms()
        one = await call(world, window(100.0, began + 3 * HOUR), name="ana", key="a")
        two = await call(world, window(100.0, began + 2 * HOUR), name="bo", key="b")
        unread, nobody = ScriptedProvider([], key="c"), ScriptedProvider([], key=None)
        for name, draws_on in (
            ("both", [(one, "m"), (two, "m")]),
            ("unread", [(one, "m"), (unread, "m")]),
            ("unknown", [(one, "m"), (nobody, "m")]),
        ):
            await runtime.add_schedule(name, "report", every=3_600, draws_on=draws_on)
        await passes(world, began + HOUR + MINUTE)
        await until(lambda: all(each.occurrences == 1 for each in runtime.schedules()))
        assert told(runtime, "unknown")[0][1] == told(runtime, "unread")[0][1] == "started"
        (skipped,) = runtime.occurrences("both")
        # The soonest of the alternatives is when work can go on.
        assert (skipped.cause, skipped.until_ms) == ("capacity", began + 2 * HOUR)


async def test_window_of_another_model_keeps_no_run_from_starting(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        runtime.add_workflow("report", Job().body)
        began = world.clock.now_ms()
        opus = UsageWindow(
            name="seven_day_opus",
            used_percent=100.0,
            resets_ms=began + 9 * HOUR,
            scope=WaitScope.MODEL,
        )
        provider = await call(world, opus)
        for model in ("claude-opus", "claude-haiku"):
            await runtime.add_schedule(model, "report", every=60, draws_on=[(provider, model)])
        await passes(world, world.clock.now_ms() + MINUTE)
        await until(lambda: all(each.occurrences for each in runtime.schedules()))
        assert told(runtime, "claude-opus")[0][1] == "skipped"
        assert told(runtime, "claude-haiku")[0][1] == "started"


@pytest.mark.parametrize(
    "draws_on", [5, ["m"], [("p",)], [(object(), "")], [(object(), 5)], [(object(), "m")] * 17]
)
async def test_malformed_account_of_a_schedule_is_refused(
    world: World, virtual_time: MockClock, draws_on: Any
) -> None:
    async with world.open() as runtime:
        runtime.add_workflow("report", Job().body)
        with pytest.raises(InvalidInputError) as caught:
            await runtime.add_schedule("n", "report", every=60, draws_on=draws_on)
        assert caught.value.field.startswith("draws_on")
        assert world.rows("schedules") == []
