"""Runs when the clock steps, a record is stale, or the store refuses what they wait for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import wait_card
from abeyance.actors.domain.events import RunRecordingRefused, RunRecordingResumed
from abeyance.actors.domain.run_rows import RunId
from abeyance.actors.ops.run_reports import report_run
from abeyance.actors.run_status import local_minute
from abeyance.actors.status import UnrecordedStatus
from abeyance.actors.testing import WallClock
from abeyance.storage.codec import encode
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Committed, Put, Request
from abeyance.storage.tables.runs import RunIndexed

from .test_runs import (
    ALL,
    BUFFER,
    HOUR,
    Effects,
    RefusingStore,
    comes,
    five,
    settled,
    states,
    waiting,
    wall,
)
from .world import World, until

DAY = 24 * HOUR
LOOK_S = 30.0
"""How long after a step of the clock it is noticed, at the latest."""


@pytest.fixture
def clock(world: World) -> WallClock:
    assert isinstance(world.clock, WallClock)
    return world.clock


# -- the clock


@pytest.mark.slow
@pytest.mark.behaviour("S-027")
async def test_clock_that_is_turned_back_resumes_no_run_early_and_loses_none(
    world: World, clock: WallClock, virtual_time: MockClock
) -> None:
    effects = Effects()
    async with world.open():
        ends = clock.now_ms() + HOUR
        run = await waiting(world, effects, ends)
        clock.advance(-DAY)
        await trio.sleep(2 * HOUR / 1_000)
        await settled()
        assert run.status().state == "waiting_for_capacity"
        assert run.status().resume_after_ms == ends + BUFFER
        status = await run.wait()
        assert status.state == "completed"
        assert clock.now_ms() >= ends + BUFFER
        assert states(world, run.id).count("resuming") == 1
    assert effects.log == ALL


@pytest.mark.behaviour("S-034")
async def test_clock_that_is_turned_forward_resumes_a_run_once_it_reads_the_instant(
    world: World, clock: WallClock, virtual_time: MockClock
) -> None:
    effects = Effects()
    async with world.open():
        run = await waiting(world, effects, clock.now_ms() + 30 * DAY)
        began = trio.current_time()
        clock.advance(31 * DAY)
        assert (await run.wait()).state == "completed"
        assert trio.current_time() - began <= LOOK_S + 1
        clock.advance(-31 * DAY)
        await trio.sleep(DAY / 1_000)
        assert states(world, run.id).count("resuming") == 1
    assert effects.log == ALL


@pytest.mark.behaviour("S-002")
async def test_clock_that_steps_while_nobody_runs_resumes_an_overdue_run_once(
    world: World, clock: WallClock, virtual_time: MockClock
) -> None:
    effects = Effects()
    async with world.open():
        run = await waiting(world, effects, clock.now_ms() + HOUR)
    clock.advance(-DAY)
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        await trio.sleep(HOUR / 1_000)
        await settled()
        assert runtime.run(run.id).state == "waiting_for_capacity"
    clock.advance(3 * DAY)
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        assert (await runtime.wait_run(run.id)).state == "completed"
        assert states(world, run.id).count("resuming") == 1
    assert effects.log == ALL


# -- stale records


def plant(world: World, run: RunId, at_ms: int) -> None:
    """What an older process might have left: an entry of the index for a run that has ended."""
    store = LmdbStore.open(world.directory, clock_ms=lambda: at_ms)
    (outcome,) = store.commit(
        Request(
            puts=(
                Put("run_index", ("waiting", at_ms, *run), encode(RunIndexed(workflow="report"))),
                Put("run_index", ("live", 0, *run), encode(RunIndexed(workflow="report"))),
            )
        )
    )
    assert isinstance(outcome, Committed)
    store.close()


@pytest.mark.behaviour("R-24")
@pytest.mark.parametrize("ended", ["cancelled", "completed"])
async def test_key_that_is_used_again_takes_up_nothing_of_the_run_before(
    world: World, virtual_time: MockClock, ended: str
) -> None:
    first, second = Effects(), Effects()
    async with world.open() as runtime:
        run = await waiting(world, first, world.clock.now_ms() + HOUR)
        if ended == "cancelled":
            await runtime.cancel_run(run.id, requester="ops")
        assert (await run.wait()).state == ended
    plant(world, RunId("report:1", 1), world.clock.now_ms() + HOUR)
    async with world.open() as runtime:
        second.raising["a"] = [wall(world.clock.now_ms() + 3 * HOUR)]
        runtime.add_workflow("report", five(second))
        again = await runtime.start_run("report:1", "report")
        assert again.id == "report:1@2"
        await until(lambda: again.status().state == "waiting_for_capacity")
        assert [step.path for step in runtime.run_steps(again.id)] == ["gather", "publish/a"]
        before = runtime.run_history(run.id)
        await trio.sleep(2 * HOUR / 1_000)
        await settled()
        assert runtime.run(run.id).state == ended
        assert runtime.run_history(run.id) == before
        assert runtime.run("report:1").state == "waiting_for_capacity"
        assert (await again.wait()).state == "completed"
    assert second.log == ALL
    assert first.log == (["gather", "a"] if ended == "cancelled" else ALL)


# -- many that wait


async def test_run_that_ends_reads_no_more_of_those_that_wait_however_many_there_are(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []
    scan = LmdbStore.scan

    def counted(store: LmdbStore, table: str, prefix: Any = (), **how: Any) -> Any:
        for row in scan(store, table, prefix, **how):
            if table == "run_index" and prefix == ("waiting",):
                read.append(row)
            yield row

    effects = Effects()
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        for number in range(30):
            effects.raising["gather"] = [wall(world.clock.now_ms() + DAY)]
            run = await runtime.start_run(f"waits:{number}", "report")
            await until(lambda run=run: run.status().state == "waiting_for_capacity")
        await settled()
        monkeypatch.setattr(LmdbStore, "scan", counted)
        assert (await (await runtime.start_run("other", "report")).wait()).state == "completed"
        await settled()
    assert 1 <= len(read) <= 8


# -- a store that refuses


@pytest.mark.behaviour("S-030")
async def test_run_whose_failure_the_store_refuses_too_is_said_to_have_failed(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    effects, refusing = Effects(), RefusingStore(monkeypatch)
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        effects.raising["b"] = [wall(world.clock.now_ms() + HOUR)]
        refusing.refuses = lambda request: (
            any(put.table == "runs" for put in request.puts) and "a" in effects.log
        )
        run = await runtime.start_run("report:1", "report")
        await trio.sleep(120)
        status = run.status()
        assert (status.state, status.executed) == ("failed", False)
        assert "could not be recorded" in status.text()
        assert "the store does not take that it failed, either" in status.text()
        assert states(world, run.id)[-1] == "running"
        refusing.refuses = lambda _request: False
        status = await run.wait()
        assert (status.state, "either" in status.reason) == ("failed", False)


@pytest.mark.behaviour("S-030")
@pytest.mark.parametrize("ends_ms", [HOUR, None], ids=["known", "unknown"])
async def test_suspension_that_the_store_refuses_is_failed_for_good_and_wakes_nobody(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch, ends_ms: int | None
) -> None:
    effects, refusing = Effects(), RefusingStore(monkeypatch)
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        ends = None if ends_ms is None else world.clock.now_ms() + ends_ms
        effects.raising["b"] = [wall(ends)]
        refusing.refuses = lambda request: any(
            put.table == "run_index" and put.key[0] in ("waiting", "unknown")
            for put in request.puts
        )
        run = await runtime.start_run("report:1", "report")
        assert (await run.wait()).state == "failed"
        refusing.refuses = lambda _request: False
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        await trio.sleep(2 * HOUR / 1_000)
        await settled()
        status = runtime.run(run.id)
        assert status.state == "failed"
        assert "no capacity: anthropic/opus" in status.reason
        assert "could not be recorded" in status.reason
        assert not any(state.startswith("waiting") for state in states(world, run.id))
        assert runtime.runs(state="open") == ()
        after: Any = await runtime.start_run("report:1", "report")
        await comes(lambda: after.status().ended)
    assert effects.log == ["gather", "a", *ALL]


@pytest.mark.behaviour("S-066")
async def test_run_that_is_due_says_why_the_store_refuses_its_claim_and_goes_on_once_it_does_not(
    world: World,
    virtual_time: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    effects, refusing = Effects(), RefusingStore(monkeypatch)
    async with world.open() as runtime:
        run = await waiting(world, effects, world.clock.now_ms() + HOUR)
        assert run.status().unrecorded is None
        due_ms = world.clock.now_ms() + HOUR + BUFFER
        refusing.refuses = lambda _request: True
        await trio.sleep((HOUR + BUFFER) / 1_000 + 60)
        status = run.status()
        assert status.state == "waiting_for_capacity"
        assert status.unrecorded is not None
        assert (status.unrecorded.what, status.unrecorded.reason) == (
            "that it is taken up",
            "the disk is full",
        )
        assert due_ms <= status.unrecorded.since_ms < due_ms + 30_000
        since = local_minute(status.unrecorded.since_ms, UTC)
        assert status.text(UTC).endswith(
            "goes on once the store records that it is taken up, "
            f"refused since {since}: the disk is full"
        )
        assert [each.text() for each in runtime.runs()] == [status.text()]
        told = [each for each in caplog.records if "cannot be taken up" in each.getMessage()]
        assert len(told) == 1
        refusing.refuses = lambda _request: False
        status = await run.wait()
        assert (status.state, status.unrecorded) == ("completed", None)
        assert states(world, run.id).count("resuming") == 1
    assert effects.log == ALL


def of_item(put: Put, ordinal: int) -> bool:
    return put.table == "run_items" and put.key[-1] == ordinal


UNRECORDED: dict[str, tuple[str, Callable[[Put, list[str]], bool]]] = {
    "start": ("the start of 'publish/b'", lambda put, _log: of_item(put, 2)),
    "result": ("what came of 'publish/b'", lambda put, log: of_item(put, 2) and "b" in log),
    "wait": ("its wait", lambda put, _log: put.table == "run_index" and put.key[0] == "waiting"),
    "end": ("its end", lambda put, _log: put.table == "run_index" and put.key[0] == "completed"),
}


@pytest.mark.behaviour("S-025")
@pytest.mark.parametrize(("what", "is_it"), UNRECORDED.values(), ids=UNRECORDED)
async def test_run_whose_store_refuses_it_says_what_cannot_be_recorded_why_and_since_when(
    world: World,
    virtual_time: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    is_it: Callable[[Put, list[str]], bool],
) -> None:
    effects, refusing = Effects(), RefusingStore(monkeypatch)
    refusing.refuses = lambda request: any(is_it(put, effects.log) for put in request.puts)
    kinds = {"run_recording_refused", "run_recording_resumed"}
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        if what == "its wait":
            effects.raising["b"] = [wall(world.clock.now_ms() + HOUR)]
        with runtime.events(kinds=kinds) as events:
            began_ms = world.clock.now_ms()
            run = await runtime.start_run("report:1", "report")
            await until(lambda: run.status().unrecorded is not None)
            await trio.sleep(30)
            status = run.status()
            assert (status.state, status.executed) == ("unrecorded", True)
            assert status.unrecorded == UnrecordedStatus(what, "the disk is full", began_ms)
            assert status.text(UTC) == (
                f"Unrecorded \u00b7 goes on once the store records {what}, refused since "
                f"{local_minute(began_ms, UTC)}: the disk is full"
            )
            assert [each.state for each in runtime.runs(state="open")] == ["unrecorded"]
            report = report_run(status)
            assert report.unrecorded is not None
            assert (report.state, report.unrecorded.what) == ("unrecorded", what)
            card = wait_card(status)
            assert card is not None
            assert card.text() == f"Waiting for the store: {what} cannot be recorded"
            assert states(world, run.id)[-1] == "running", "its row says what is recorded"
            refusing.refuses = lambda _request: False
            status = await run.wait()
            assert (status.state, status.unrecorded) == ("completed", None)
            refused, resumed = [await anext(aiter(events)) for _ in range(2)]
    assert isinstance(refused, RunRecordingRefused)
    assert isinstance(resumed, RunRecordingResumed)
    assert (refused.run, refused.what, refused.since_ms) == (run.id, what, began_ms)
    assert wait_card(refused) == card
    assert effects.log == ALL
