"""Holds: what a stated wait does to a turn, how a hold ends, and that it outlives the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors.domain.protocol import RecordWait
from abeyance.actors.domain.turn import TurnHeld, TurnTask
from abeyance.actors.providers.port import ModelRequest
from abeyance.actors.testing import Gate, call_tool, fail, reply
from abeyance.actors.testing.scripted import Step
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Row

from .world import Stop, World, shown, texts, until


async def state_wait(world: World, deadline_ms: int | None, agent: str = "ana") -> None:
    await world.ref("ledger").ask(RecordWait(agent, "m", deadline_ms, "stated elsewhere"))


def slow_hold(monkeypatch: pytest.MonkeyPatch) -> tuple[trio.Event, trio.Event]:
    """Stop turns between the wait's record and the hold's; returns (is there, may go on)."""
    entered, go, hold = trio.Event(), trio.Event(), TurnTask._hold

    async def slow(turn: TurnTask, deferred: Any) -> TurnHeld:
        entered.set()
        await go.wait()
        return await hold(turn, deferred)

    monkeypatch.setattr(TurnTask, "_hold", slow)
    return entered, go


@pytest.mark.behaviour("W-063")
async def test_a_stated_wait_holds_the_turn_with_one_call_no_marker_no_lease_and_no_task(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([fail(429, retry_after=7_200)])
        before = trio.current_time()
        await ana.send("go")
        await ana.wait_idle()
        assert trio.current_time() - before < 1, "no pause and no second look at the gate"
        assert len(world.providers[0].requests) == 1
        assert await shown(ana) == ["user: go"]
        state = world.state()
        assert (state.state, state.held.cause) == ("held", "wait")
        assert state.held.deadline_ms == world.rows("waits")[0].deadline_ms
        (turn,) = world.turns()
        assert (turn.state, turn.failures, turn.held.model) == ("held", 1, "m")
        (lease,) = world.rows("leases", "ana")
        assert lease.turn is None
        assert not world.permits_out()
        assert not world.ref("agent")._cell.tasks
        assert not world.rows("wakes", "ana"), "the held turn answers its wake"
        assert world.ref("agent")._cell.kept.streak.failed == 0


@pytest.mark.behaviour("W-071")
async def test_a_hold_counts_the_calls_that_failed_and_not_the_wakes_that_come_to_it(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add(
            [fail(429, retry_after=60), fail(429, retry_after=60), reply("at last")]
        )
        await ana.send("go")
        await ana.wait_idle()
        for failed in (1, 2):
            for number in range(5):
                await ana.send(f"more {number}", channel=f"c{failed}{number}")
                await ana.wait_idle()
            (turn,) = world.turns()
            assert (turn.state, turn.failures) == ("held", failed)
            await trio.sleep(61)
            await ana.wait_idle()
        (turn,) = world.turns()
        assert (turn.state, turn.failures) == ("done", 2)


@pytest.mark.behaviour("W-064", "W-065", "W-022")
async def test_at_the_waits_end_one_fresh_compile_holds_all_that_arrived(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([fail(429, retry_after=60), reply("both")])
        ends_ms = world.clock.now_ms() + 60_000
        await ana.send("one")
        await ana.wait_idle()
        await ana.send("two")
        await ana.send("three")
        await ana.wait_idle()
        assert len(world.providers[0].requests) == 1
        await trio.sleep(59)
        assert len(world.providers[0].requests) == 1
        await trio.sleep(2)
        await ana.wait_idle()
        assert [texts(request) for request in world.providers[0].requests] == [
            ["user: one"],
            ["user: one", "user: two", "user: three"],
        ]
        assert (await shown(ana))[-1] == "assistant: both"
        (turn,) = world.turns()
        assert turn.answers == (1, 2, 3)
        assert turn.started_ms <= ends_ms <= turn.ended_ms


async def test_the_held_turn_runs_at_its_instant_and_not_before(
    world: World, virtual_time: MockClock
) -> None:
    called_ms: list[int] = []

    def script(request: ModelRequest) -> Step:
        called_ms.append(world.clock.now_ms())
        return fail(429, retry_after=100) if len(called_ms) == 1 else reply("now")

    async with world.open():
        ana = await world.add(script)
        await ana.send("go")
        await ana.wait_idle()
        await trio.sleep(200)
        await ana.wait_idle()
        ends_ms = world.rows("waits")[0].deadline_ms
        assert ends_ms <= called_ms[1] < ends_ms + 50


@pytest.mark.behaviour("W-117")
async def test_a_release_runs_the_held_turn_without_waiting_for_a_timer(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([fail(429, retry_after=1_200), reply("free")])
        await ana.send("go")
        await ana.wait_idle()
        before = trio.current_time()
        receipt = await runtime.release_provider_wait("ana", model="m", requester="ops")
        assert [(item.model, item.reach) for item in receipt.released] == [("m", "recorded")]
        await ana.wait_idle()
        assert trio.current_time() - before < 1
        assert (await shown(ana)) == ["user: go", "assistant: free"]
        await trio.sleep(3_000)
        assert len(world.providers[0].requests) == 2, "the alarm's old instant starts nothing"


async def test_a_release_of_another_model_leaves_the_hold(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([fail(429, retry_after=1_200)])
        await ana.send("go")
        await ana.wait_idle()
        await runtime.release_provider_wait("ana", model="other", requester="ops")
        await ana.wait_idle()
        assert world.state().state == "held"
        assert len(world.providers[0].requests) == 1


@pytest.mark.behaviour("W-117")
async def test_a_release_between_the_waits_record_and_the_hold_runs_the_turn(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go = slow_hold(monkeypatch)
    async with world.open() as runtime:
        ana = await world.add([fail(429, retry_after=1_200), reply("free")])
        await ana.send("go")
        await entered.wait()
        await runtime.release_provider_wait("ana", requester="ops")
        go.set()
        before = trio.current_time()
        await ana.wait_idle()
        assert trio.current_time() - before < 1
        assert (await shown(ana))[-1] == "assistant: free"


@pytest.mark.behaviour("W-075")
@pytest.mark.parametrize("ends", [True, False], ids=["an end", "no end"])
async def test_a_longer_wait_stated_meanwhile_extends_the_hold(
    world: World, virtual_time: MockClock, ends: bool
) -> None:
    async with world.open() as runtime:
        ana = await world.add([fail(429, retry_after=10), reply("late")])
        await ana.send("go")
        await ana.wait_idle()
        until_ms = world.clock.now_ms() + 30_000 if ends else None
        await state_wait(world, until_ms)
        await trio.sleep(20)
        await ana.wait_idle()
        assert world.state().held.deadline_ms == until_ms
        assert len(world.providers[0].requests) == 1
        await trio.sleep(15 if ends else 86_400)
        await ana.wait_idle()
        if not ends:
            assert len(world.providers[0].requests) == 1
            await runtime.release_provider_wait("ana", requester="ops")
            await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: late"


@pytest.mark.behaviour("W-022", "W-077", "R-27")
async def test_after_a_reopen_the_wait_binds_and_the_held_turn_runs_once_at_its_deadline(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([fail(429, retry_after=60, body="slow down")])
        await ana.send("go")
        await ana.wait_idle()
        before = world.runtime.provider_waits("ana")
    await trio.sleep(5)
    async with world.open():
        assert world.runtime.provider_waits("ana") == before
        ana = await world.add([reply("after"), reply("never")])
        await ana.wait_idle()
        assert world.state().state == "held"
        await trio.sleep(50)
        await ana.wait_idle()
        assert not world.providers[1].requests
        await trio.sleep(10)
        await ana.wait_idle()
        assert await shown(ana) == ["user: go", "assistant: after"]
        assert len(world.providers[1].requests) == 1
        assert len(world.turns()) == 1


async def test_a_wait_that_ends_while_nobody_runs_lets_the_held_turn_run_at_the_next_start(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([fail(429, retry_after=60)])
        await ana.send("go")
        await ana.wait_idle()
    await trio.sleep(100)
    async with world.open():
        ana = await world.add([reply("after")])
        await ana.wait_idle()
        assert await shown(ana) == ["user: go", "assistant: after"]


@pytest.mark.behaviour("W-066")
async def test_a_failure_that_is_not_retryable_is_terminal_and_its_wait_binds_the_calls_after(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([fail(400, retry_after=60, retryable=False), reply("later")])
        await ana.send("go")
        await ana.wait_idle()
        assert world.turns()[0].state == "failed"
        assert (await shown(ana))[-1].startswith("marker: this turn failed")
        assert world.state().state == "idle"
        await ana.send("again")
        await ana.wait_idle()
        assert world.state().state == "held"
        assert len(world.providers[0].requests) == 1
        assert world.turns()[1].failures == 0
        await trio.sleep(61)
        await ana.wait_idle()
        assert len(world.providers[0].requests) == 2
        assert (await shown(ana))[-1] == "assistant: later"


@pytest.mark.behaviour("W-069")
async def test_a_wait_recorded_while_a_turn_starts_holds_it_before_its_call(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    async with world.open():
        ana = await world.add([call_tool("wait"), reply("later")], tools=[stop.tool()])
        await ana.send("go")
        await stop.entered.wait()
        await state_wait(world, world.clock.now_ms() + 60_000)
        stop.go.set()
        await ana.wait_idle()
        assert world.state().state == "held"
        assert len(world.providers[0].requests) == 1
        await ana.send("more")
        await trio.sleep(61)
        await ana.wait_idle()
        assert texts(world.providers[0].requests[1]) == [
            *("user: go", "agent: <wait>", "user: =done", "user: more"),
        ]
        (turn,) = world.turns()
        assert (turn.round, turn.failures) == (2, 0)


def quota() -> Step:
    """A refusal for an exhausted quota that names no instant."""
    return fail(402)


async def test_a_quota_without_an_instant_holds_until_it_is_released(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([quota(), reply("paid")])
        await ana.send("go")
        await ana.wait_idle()
        state = world.state()
        assert (state.state, state.held.cause, state.held.deadline_ms) == ("held", "quota", None)
        assert not world.rows("waits")
        await ana.send("more")
        await trio.sleep(80_000)
        await ana.wait_idle()
        assert len(world.providers[0].requests) == 1
        await runtime.release_provider_wait("ana", requester="ops")
        await ana.wait_idle()
        assert await shown(ana) == ["user: go", "user: more", "assistant: paid"]


async def test_a_quota_hold_survives_a_restart_and_a_crash_of_its_agent(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([quota()])
        await ana.send("go")
        await ana.wait_idle()
    async with world.open() as runtime:
        ana = await world.add([reply("paid")])
        await ana.wait_idle()
        assert (world.state().state, world.state().held.cause) == ("held", "quota")
        world.ref("agent").kill()
        await until(lambda: world.ref("agent").statistics().incarnation == 2)
        await ana.wait_idle()
        assert world.state().state == "held"
        assert not world.providers[1].requests
        await runtime.release_provider_wait("ana", model="m", requester="ops")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: paid"


async def test_a_release_before_a_quota_was_exhausted_does_not_end_its_hold(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(then=quota())
    async with world.open() as runtime:
        ana = await world.add([gate, reply("paid")])
        await ana.send("go")
        await gate.wait_entered()
        await runtime.release_provider_wait("ana", requester="ops")
        gate.release()
        await ana.wait_idle()
        assert world.state().state == "held"
        assert len(world.providers[0].requests) == 1


@pytest.mark.parametrize("also", [None, "other"], ids=["alone", "then one of another model"])
async def test_a_release_while_a_quota_hold_is_being_recorded_ends_it(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch, also: str | None
) -> None:
    entered, go = slow_hold(monkeypatch)
    async with world.open() as runtime:
        ana = await world.add([quota(), reply("paid")])
        await ana.send("go")
        await entered.wait()
        await runtime.release_provider_wait("ana", model="m", requester="ops")
        if also is not None:
            await runtime.release_provider_wait("ana", model=also, requester="ops")
        go.set()
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: paid"


class Unreadable:
    """Makes the wait rows of one agent unreadable, as a damaged page does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, agent: str) -> None:
        get = LmdbStore.get
        self.on = True

        def bad_get(store: LmdbStore, table: str, key: Any) -> Row | None:
            if self.on and table == "waits" and key[0] == agent:
                raise UnreadableRecordError("bad sum", table=table, key=key, cause="checksum")
            return get(store, table, key)

        monkeypatch.setattr(LmdbStore, "get", bad_get)


async def test_an_unreadable_wait_holds_exactly_its_agent_and_heals_at_the_next_look(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = Unreadable(monkeypatch, "ana")
    async with world.open():
        ana = await world.add([reply("healed")])
        bo = await world.add([reply("fine")], "bo")
        await ana.send("go")
        await bo.send("go")
        await bo.wait_idle()
        assert (await shown(bo))[-1] == "assistant: fine"
        await ana.wait_idle()
        assert (world.state().state, world.state().held.cause) == ("held", "unreadable")
        await trio.sleep(100)
        await ana.wait_idle()
        assert not world.providers[0].requests
        damaged.on = False
        await trio.sleep(31)
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: healed"


@pytest.mark.behaviour("W-045")
async def test_an_unreadable_wait_that_reads_again_as_a_finite_one_holds_to_its_instant(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_ms = world.clock.now_ms() + 300_000
    async with world.open():
        await state_wait(world, ends_ms)
    damaged = Unreadable(monkeypatch, "ana")
    async with world.open():
        ana = await world.add([reply("healed")])
        await ana.send("go")
        await ana.wait_idle()
        assert world.state().held.cause == "unreadable"
        damaged.on = False
        await trio.sleep(31)
        await ana.wait_idle()
        assert (world.state().held.cause, world.state().state) == ("wait", "held")
        assert world.state().held.deadline_ms == ends_ms
        await trio.sleep((ends_ms - world.clock.now_ms()) / 1_000 - 1)
        await ana.wait_idle()
        assert not world.providers[0].requests, "not before"
        await trio.sleep(2)
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: healed"


async def test_wait_idle_takes_a_hold_whose_wait_has_ended_for_work(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([fail(429, retry_after=60), reply("after")])
        await ana.send("go")
        await ana.wait_idle()
        await wait_all_tasks_blocked()
        # The clock steps past the end; the alarm looks at it within 30 s.
        world.clock.advance(61_000)
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: after"


@pytest.mark.behaviour("W-122", "D-034")
async def test_a_stop_during_a_guessed_pause_makes_no_further_call_and_gives_the_wake_back(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([fail(500), reply("never")])
        await ana.send("go")
        await until(lambda: len(world.providers[0].requests) == 1 and not world.permits_out())
        await ana.send("own", author="ana", id="own")
        await ana.send("note", id="note", wake=False)
        before = trio.current_time()
    assert trio.current_time() - before < 1
    assert len(world.providers[0].requests) == 1
    async with world.open():
        assert not world.rows("inbox")
        stored = [row.message for row in world.rows("slots", "ana") if row.turn is None]
        assert stored[1:] == ["own", "note"]
        ana = await world.add([reply("fresh")])
        await ana.wait_idle()
        lines = await shown(ana)
        assert lines[0] == "user: go"
        assert lines[-1] == "assistant: fresh"


async def test_a_stop_during_a_hold_leaves_it_as_it_is(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([fail(429, retry_after=60)])
        await ana.send("go")
        await ana.wait_idle()
        before = trio.current_time()
    assert trio.current_time() - before < 1
    async with world.open():
        (turn,) = world.turns()
        assert (turn.state, turn.failures) == ("held", 1)


async def test_each_of_many_held_agents_runs_at_its_own_instant(
    world: World, virtual_time: MockClock
) -> None:
    resumed: list[tuple[str, int]] = []
    async with world.open():
        start_ms = world.clock.now_ms()

        def script(name: str, seconds: int) -> Callable[[ModelRequest], Step]:
            steps = [fail(429, retry_after=seconds)]

            def choose(request: ModelRequest) -> Step:
                if steps:
                    return steps.pop()
                resumed.append((name, round((world.clock.now_ms() - start_ms) / 1_000)))
                return reply("x")

            return choose

        for seconds in (80, 10, 70, 20, 60, 30, 50, 40):
            agent = await world.add(script(f"a{seconds}", seconds), f"a{seconds}")
            await agent.send("go")
            await agent.wait_idle()
        await trio.sleep(100)
        assert resumed == [(f"a{seconds}", seconds) for seconds in range(10, 90, 10)]


@pytest.mark.behaviour("W-126")
@pytest.mark.parametrize("grouped", [False, True], ids=["alone", "in a group"])
async def test_an_error_of_another_copy_of_the_library_holds_the_turn(
    world: World, virtual_time: MockClock, grouped: bool
) -> None:
    kind = type("ProviderError", (Exception,), {"__module__": "vendored.library"})
    error: Exception = kind("slow down")
    error.retryable, error.retry_after_ms = True, 7_200_000  # type: ignore[attr-defined]

    def script(request: ModelRequest) -> Step:
        raise ExceptionGroup("several", [error]) if grouped else error

    async with world.open():
        ana = await world.add(script)
        stated_ms = world.clock.now_ms()
        await ana.send("go")
        await ana.wait_idle()
        assert len(world.providers[0].requests) == 1
        assert await shown(ana) == ["user: go"]
        state = world.state()
        assert (state.state, state.held.cause) == ("held", "wait")
        assert 0 <= state.held.deadline_ms - (stated_ms + 7_200_000) < 1_000
