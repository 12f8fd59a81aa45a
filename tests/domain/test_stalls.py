"""Providers that never answer, whatever their adapter does: each turn, call and run has an end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentSpec, GiveUp, RunContext, StepFailedError
from abeyance.actors.domain.bounded_call import CALL_S, GRACE_S
from abeyance.actors.domain.run_errors import TurnFailedError
from abeyance.actors.providers.port import (
    ModelRequest,
    ProviderStalledError,
    ReplyDelta,
    use_permit,
)
from abeyance.actors.testing import fail, reply

from .test_auxiliary import ask
from .test_holds import quota
from .test_runs import comes, settled, states, wall
from .world import World, until, wait_all_tasks_blocked

QUOTA_BODY = (
    '{"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}}'
)


class Silent:
    """A host's own adapter without deadlines: it says a little, and never closes its stream."""

    carries_injections = True

    def __init__(self, call_s: Any = None) -> None:
        if call_s is not None:
            self.call_s = call_s
        self.open = 0
        self.calls = 0

    async def call(self, _request: ModelRequest, on_delta: Any) -> Any:
        use_permit()
        self.calls += 1
        self.open += 1
        try:
            on_delta(ReplyDelta("text", 0, "well"))
            await trio.sleep_forever()
        finally:
            self.open -= 1

    async def aclose(self) -> None:
        """Nothing to close."""


class GivesUp:
    def decide(self, _failure: Any) -> GiveUp:
        return GiveUp()


def silent_spec(provider: Silent, name: str = "ana", **more: Any) -> AgentSpec:
    return AgentSpec(name=name, provider=provider, model="m", error_policy=GivesUp(), **more)


@pytest.mark.behaviour("S-054", "S-055", "R-25")
async def test_turn_whose_stream_never_closes_fails_with_the_stall_as_its_reason(
    world: World, virtual_time: MockClock
) -> None:
    silent = Silent()
    async with world.open() as runtime:
        ana = await runtime.add_agent(silent_spec(silent))
        await ana.send("well?")
        await until(lambda: silent.open == 1)
        began = trio.current_time()
        await ana.wait_idle()
        assert trio.current_time() - began <= CALL_S + GRACE_S + 1
        (turn,) = world.turns()
        assert (turn.state, turn.failure) == ("failed", "provider_stalled")
        assert "neither answered nor failed" in turn.error
        assert (silent.open, world.permits_out()) == (0, {})


@pytest.mark.behaviour("S-055")
async def test_turn_that_is_ended_from_without_is_cancelled_and_no_stall(
    world: World, virtual_time: MockClock
) -> None:
    silent = Silent()
    async with world.open() as runtime:
        ana = await runtime.add_agent(silent_spec(silent))
        await ana.send("well?")
        await until(lambda: silent.open == 1)
    assert silent.open == 0
    async with world.open():
        (turn,) = world.turns()
        assert (turn.state, turn.failure) == ("cancelled", None)


@pytest.mark.parametrize(
    ("call_s", "bound_s"),
    [(10, 10), (7_200, 7_200), (None, CALL_S), (0, CALL_S), ("x", CALL_S), (1e12, CALL_S)],
    ids=["shorter", "longer", "unsaid", "zero", "no number", "absurd"],
)
async def test_call_has_the_bound_that_its_adapter_says_and_a_minute(
    world: World, virtual_time: MockClock, call_s: Any, bound_s: float
) -> None:
    silent = Silent(call_s)
    async with world.open() as runtime:
        ana = await runtime.add_agent(silent_spec(silent))
        began = trio.current_time()
        with pytest.raises(ProviderStalledError):
            await ana.auxiliary_call(ask())
        assert bound_s + GRACE_S <= trio.current_time() - began <= bound_s + GRACE_S + 1
        assert world.permits_out() == {}


@pytest.mark.behaviour("S-048", "S-056")
@pytest.mark.parametrize("how", ["turn", "once", "auxiliary"])
async def test_run_whose_provider_never_closes_its_stream_ends_with_the_reason(
    world: World, virtual_time: MockClock, how: str
) -> None:
    silent, caught = Silent(), []

    async def body(run: RunContext, params: Any) -> Any:
        try:
            if how == "auxiliary":
                await run.do("call", world.runtime.agent("ana").auxiliary_call, ask())
            else:
                agent = "ana" if how == "turn" else silent_spec(silent, "scribe")
                await run.ask("call", agent, "well?")
        except StepFailedError as error:
            caught.append(error.__cause__)
            raise

    async with world.open() as runtime:
        await runtime.add_agent(silent_spec(silent))
        runtime.add_workflow("body", body)
        run = await runtime.start_run("k", "body")
        await comes(lambda: run.status().ended)
        assert run.status().state == "failed"
        assert "neither answered nor failed" in run.status().reason
        assert silent.open == 0
        (error,) = caught
        if how == "turn":
            assert isinstance(error, TurnFailedError)
            assert error.failure == "provider_stalled"
            assert "provider_stalled" in run.status().reason


@pytest.mark.behaviour("S-057")
async def test_typed_error_of_one_agent_releases_nobody_and_the_bound_does(
    world: World, virtual_time: MockClock
) -> None:
    silent = Silent()
    async with world.open() as runtime:
        ana = await runtime.add_agent(silent_spec(silent))
        cy = await world.add([quota()], "cy")
        await ana.send("well?")
        await until(lambda: silent.open == 1)
        await cy.send("well?")
        await cy.wait_idle()
        assert world.state("cy").held.cause == "quota"
        await trio.sleep(600)
        assert world.state("ana").state == "running"
        await comes(lambda: world.state("ana").state == "idle")
        assert [turn.failure for turn in world.turns("ana")] == ["provider_stalled"]


@pytest.mark.behaviour("S-058", "S-054")
@pytest.mark.parametrize("parent", ["silent", "walled", "healthy"])
async def test_five_children_that_fail_at_once_leave_no_turn_of_their_parent_open(
    world: World, virtual_time: MockClock, parent: str
) -> None:
    """Each child's failure is told to its parent, which answers on the same bad provider."""
    silent = Silent()

    async def child(run: RunContext, number: int) -> None:
        spec = AgentSpec(name=f"child{number}", provider=world.provider([fail(401)]), model="m")
        try:
            await run.ask("work", spec, "work")
        except StepFailedError as error:
            await run.ask("notify", "ana", f"child {number} failed: {error.path}")

    async with world.open() as runtime:
        if parent == "silent":
            ana = await runtime.add_agent(silent_spec(silent))
        elif parent == "walled":
            ana = await world.add(lambda _request: fail(401))
        else:
            ana = await world.add(lambda _request: reply("noted"))
        runtime.add_workflow("child", child)
        runs = [await runtime.start_run(f"child{n}", "child", n) for n in range(5)]
        await comes(lambda: all(run.status().ended for run in runs))
        await ana.wait_idle()
        state = "completed" if parent == "healthy" else "failed"
        assert [run.status().state for run in runs] == [state] * 5
        assert {turn.state for turn in world.turns("ana")} <= {"failed", "done"}
        assert world.rows("wakes", "ana") == []
        assert not world.ref("runs")._cell.kept.lives
        assert runtime.runs(state="running") == ()
        assert world.state("ana").state == "idle"
        assert silent.open == 0
        assert world.permits_out() == {}


# -- what is said to be executed


@pytest.mark.behaviour("S-059")
async def test_run_is_said_to_be_executed_where_something_executes_it_and_nowhere_else(
    world: World, virtual_time: MockClock
) -> None:
    silent = Silent()

    async def body(run: RunContext, params: Any) -> None:
        await run.ask("call", "ana", "well?")

    async with world.open() as runtime:
        await runtime.add_agent(silent_spec(silent))
        runtime.add_workflow("body", body)
        run = await runtime.start_run("k", "body")
        assert run.status().executed is True
        await until(lambda: silent.open == 1)
        assert (run.status().state, run.status().executed) == ("running", True)
        assert run.status().text() == "Running"
    async with world.open() as runtime:
        # Its workflow is not here: its row says `running`, and nobody executes it.
        await trio.sleep(120)
        status = runtime.run("k")
        assert (status.state, status.executed) == ("running", False)
        assert status.text().startswith("Interrupted")
        assert [each.executed for each in runtime.runs()] == [False]
        await runtime.cancel_run("k", requester="ops")
        assert runtime.run("k").executed is False


@pytest.mark.behaviour("S-060")
async def test_every_way_a_life_ends_leaves_nothing_that_is_said_to_be_executed(
    world: World, virtual_time: MockClock
) -> None:
    bodies: dict[str, Callable[..., Any]] = {}

    async def body(run: RunContext, params: Any) -> None:
        await bodies[params](run)

    async def fails(_run: RunContext) -> None:
        raise LookupError

    async def waits(run: RunContext) -> None:
        await run.do("wall", raises)

    async def raises() -> None:
        raise ExceptionGroup("", [wall(None)])

    async def asks(run: RunContext) -> None:
        with trio.move_on_after(1):
            await run.do("slow", trio.sleep, 60)

    bodies.update(fails=fails, waits=waits, asks=asks)
    async with world.open() as runtime:
        await settled()
        tasks = trio.lowlevel.current_statistics().tasks_living
        runtime.add_workflow("body", body)
        for name in bodies:
            await runtime.start_run(name, "body", name)
        await comes(lambda: runtime.runs(state="running") == ())
        await wait_all_tasks_blocked()
        assert [status.executed for status in runtime.runs()] == [False] * 3
        assert {name: states(world, name)[-1] for name in bodies} == {
            "fails": "failed",
            "waits": "waiting_for_capacity_unknown",
            "asks": "completed",
        }
        assert trio.lowlevel.current_statistics().tasks_living == tasks
