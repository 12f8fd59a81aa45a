"""Items of runs that are an agent's own turn: sent once, joined wherever it stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentSpec, RunContext, StepFailedError
from abeyance.actors.domain.errors import InvalidInputError
from abeyance.actors.domain.run_errors import TurnFailedError
from abeyance.actors.providers.port import ProviderError
from abeyance.actors.testing import Gate, call_tool, fail, reply

from .test_holds import quota
from .test_runs import HOUR, comes, settled, states
from .world import Stop, World, shown, until


def asks(*names: str, agent: Any = "ana", **options: Any) -> Callable[..., Any]:
    """A workflow that asks an agent one question after the other."""

    async def body(run: RunContext, params: Any) -> Any:
        with run.step("ask", total=len(names)):
            return [await run.ask(name, agent, f"{name}?", **options) for name in names]

    return body


async def test_item_that_asks_an_agent_has_the_words_of_the_turn_that_answers_it(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([reply("one"), reply("two")])
        runtime.add_workflow("asks", asks("first", "second"))
        run = await runtime.start_run("k", "asks")
        status = await run.wait()
        assert (status.state, status.result) == ("completed", ["one", "two"])
        assert await shown(ana) == [
            "user: first?",
            "assistant: one",
            "user: second?",
            "assistant: two",
        ]
        assert [message.id async for message in ana.transcript(limit=1)] == ["run:k@1/0"]
        steps = runtime.run_steps("k")
        assert [(step.path, step.agent, step.state) for step in steps] == [
            ("ask/first", "ana", "done"),
            ("ask/second", "ana", "done"),
        ]


async def test_handle_stands_for_its_agent_and_the_last_reply_of_several_rounds_counts(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop("seen")
    stop.go.set()
    async with world.open() as runtime:
        ana = await world.add([call_tool("wait"), reply("done")], tools=[stop.tool()])
        runtime.add_workflow("asks", asks("first", agent=ana, author="cy", channel="c1"))
        status = await (await runtime.start_run("k", "asks")).wait()
        assert status.result == ["done"]
        found = [message async for message in ana.transcript()]
        assert (found[0].author, found[0].channel, found[-1].channel) == ("cy", "c1", "c1")


# -- restarts


@pytest.mark.behaviour("S-044", "R-20")
async def test_turn_that_was_asked_for_before_a_restart_is_joined_and_not_sent_again(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop("seen")
    async with world.open() as runtime:
        await world.add([call_tool("wait")], tools=[stop.tool(in_doubt="retry")])
        runtime.add_workflow("asks", asks("first"))
        await runtime.start_run("k", "asks")
        await stop.entered.wait()
        assert runtime.run("k").state == "running"
    stop.go.set()
    async with world.open() as runtime:
        # The workflow is there before its agent is: the item waits for it.
        runtime.add_workflow("asks", asks("first"))
        await trio.sleep(10)
        assert runtime.run("k").state == "running"
        ana = await world.add([reply("said")], tools=[stop.tool(in_doubt="retry")])
        await until(lambda: runtime.run("k").ended)
        assert (runtime.run("k").state, runtime.run("k").result) == ("completed", ["said"])
        assert [line for line in await shown(ana) if line.startswith("user")] == ["user: first?"]
        assert runtime.run_steps("k")[0].attempts == 1


async def test_turn_that_ended_while_its_run_was_nowhere_is_read_and_not_asked_for(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        gate = Gate(reply("said"))
        await world.add([gate])
        runtime.add_workflow("asks", asks("first"))
        await runtime.start_run("k", "asks")
        await gate.wait_entered()
        world.ref("runs").kill()
        gate.release()
        await until(lambda: runtime.run("k").ended)
        assert runtime.run("k").result == ["said"]
        assert len(world.providers[0].requests) == 1
    async with world.open() as runtime:
        assert runtime.run_steps("k")[0].attempts == 1


async def test_turn_that_a_stop_gave_back_is_answered_by_the_turn_behind_it(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate()
    async with world.open() as runtime:
        await world.add([gate, gate, gate])
        runtime.add_workflow("asks", asks("first"))
        await runtime.start_run("k", "asks")
        await gate.wait_entered()
    async with world.open() as runtime:
        runtime.add_workflow("asks", asks("first"))
        ana = await world.add([reply("said")])
        await until(lambda: runtime.run("k").ended)
        assert runtime.run("k").result == ["said"]
        assert [turn.state for turn in world.turns()] == ["cancelled", "done"]
        assert [turn.given_back for turn in world.turns()] == [True, False]
        assert (await shown(ana))[0] == "user: first?"


async def test_agent_that_nobody_adds_has_the_run_wait_for_an_operator(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        runtime.add_workflow("asks", asks("first"))
        run = await runtime.start_run("k", "asks")
        await comes(lambda: run.status().state == "recovery_required")
        assert "no agent 'ana' is in this runtime" in run.status().reason
        await world.add([reply("said")])
        assert (await runtime.resume_run("k", requester="ops")).changed
        assert (await run.wait()).result == ["said"]


async def test_agent_that_is_parked_has_the_run_wait_for_an_operator(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate()
    async with world.open() as runtime:
        await world.add([gate, gate, gate])
        runtime.add_workflow("asks", asks("first"))
        run = await runtime.start_run("k", "asks")
        await gate.wait_entered()
        incarnation = -1
        while world.state().state != "parked":
            found = world.ref("gate").statistics()
            if found.state == "running" and found.incarnation != incarnation:
                incarnation = found.incarnation
                world.ref("gate").kill("by a test")
            await trio.sleep(0.1)
        await comes(lambda: run.status().state == "recovery_required")
        assert "agent 'ana' is parked" in run.status().reason


# -- holds


@pytest.mark.behaviour("X-006", "X-005")
async def test_held_turn_suspends_its_run_until_it_has_ended_and_each_goes_on_once(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await settled()
        ana = await world.add([fail(429, retry_after=3_600), reply("said")])
        runtime.add_workflow("asks", asks("first"))
        run = await runtime.start_run("k", "asks")
        await until(lambda: run.status().state == "waiting_for_capacity")
        (wait,) = runtime.provider_waits()
        status = run.status()
        assert status.retry_at_ms == status.resume_after_ms == wait.deadline_ms
        assert (status.agent, status.model, status.step) == ("ana", "m", "ask/first")
        await until(lambda: not world.ref("runs")._cell.kept.lives)
        assert (await run.wait()).result == ["said"]
        assert wait.deadline_ms is not None
        assert world.clock.now_ms() >= wait.deadline_ms
        assert len(world.rows("waits")) == 1
        assert [turn.state for turn in world.turns()] == ["done"]
        assert len(world.providers[0].requests) == 2
        assert states(world, "k") == [
            "running",
            "waiting_for_capacity",
            "resuming",
            "running",
            "completed",
        ]
        assert [step.attempts for step in runtime.run_steps("k")] == [2]
        assert len([line for line in await shown(ana) if line.startswith("user")]) == 1


@pytest.mark.behaviour("S-025", "S-031")
async def test_run_that_asks_behind_a_held_turn_waits_as_a_row_until_that_has_ended(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([fail(429, retry_after=3_600), reply("hello"), reply("said")])
        await ana.send("hello")
        await ana.wait_idle()
        runtime.add_workflow("asks", asks("first"))
        run = await runtime.start_run("k", "asks")
        await until(lambda: run.status().state == "waiting_for_capacity")
        await until(lambda: not world.ref("runs")._cell.kept.lives)
        (wait,) = runtime.provider_waits()
        assert (run.status().agent, run.status().retry_at_ms) == ("ana", wait.deadline_ms)
        status = await run.wait()
        assert status.result in (["hello"], ["said"])
        assert [turn.state for turn in world.turns()] in (["done"], ["done", "done"])
        assert states(world, "k").count("resuming") == 1
        assert len([line for line in await shown(ana) if line == "user: first?"]) == 1


async def test_hold_that_an_operator_releases_has_the_run_go_on_when_the_turn_has_ended(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await world.add([fail(429, retry_after=36_000), reply("said")])
        runtime.add_workflow("asks", asks("first"))
        run = await runtime.start_run("k", "asks")
        await until(lambda: run.status().state == "waiting_for_capacity")
        before = world.clock.now_ms()
        await runtime.release_provider_wait("ana", requester="ops")
        assert (await run.wait()).result == ["said"]
        assert world.clock.now_ms() - before < 5_000


async def test_run_on_a_held_turn_that_is_resumed_by_hand_waits_on(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await world.add([fail(429, retry_after=3_600), reply("said")])
        runtime.add_workflow("asks", asks("first"))
        run = await runtime.start_run("k", "asks")
        await until(lambda: run.status().state == "waiting_for_capacity")
        assert (await runtime.resume_run("k", requester="ops")).changed
        await comes(lambda: run.status().walls == 2)
        assert len(world.providers[0].requests) == 1
        assert (await run.wait()).result == ["said"]
        assert len(world.providers[0].requests) == 2


async def test_hold_outlives_the_process_and_its_run_goes_on_in_the_next_one(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await world.add([fail(429, retry_after=3_600)])
        runtime.add_workflow("asks", asks("first"))
        await runtime.start_run("k", "asks")
        await until(lambda: runtime.run("k").state == "waiting_for_capacity")
    async with world.open() as runtime:
        runtime.add_workflow("asks", asks("first"))
        await trio.sleep(60)
        ana = await world.add([reply("said")])
        await settled()
        assert runtime.run("k").state == "waiting_for_capacity"
        await comes(lambda: runtime.run("k").ended)
        assert runtime.run("k").result == ["said"]
        assert len([line for line in await shown(ana) if line.startswith("user")]) == 1


async def test_quota_whose_end_nobody_knows_holds_the_run_until_the_turn_goes_on(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([quota(), reply("said")])
        runtime.add_workflow("asks", asks("first"))
        run = await runtime.start_run("k", "asks")
        await until(lambda: run.status().state == "waiting_for_capacity_unknown")
        world.clock.advance(7 * 86_400_000)
        await trio.sleep(3_600)
        await settled()
        assert run.status().state == "waiting_for_capacity_unknown"
        await runtime.release_provider_wait("ana", requester="ops")
        assert (await run.wait()).result == ["said"]
        await ana.wait_idle()
        assert len(world.providers[0].requests) == 2


# -- turns that come to nothing


def catches(caught: list[BaseException | None], name: str = "first") -> Callable[..., Any]:
    async def body(run: RunContext, params: Any) -> Any:
        try:
            return await run.ask(name, "ana", "well?")
        except StepFailedError as error:
            caught.append(error.__cause__)
            return None

    return body


async def test_turn_that_fails_is_its_items_failure(world: World, virtual_time: MockClock) -> None:
    caught: list[Any] = []
    async with world.open() as runtime:
        await world.add([fail(401)])
        runtime.add_workflow("asks", catches(caught))
        await (await runtime.start_run("k", "asks")).wait()
        assert [step.state for step in runtime.run_steps("k")] == ["failed"]
    (error,) = caught
    assert isinstance(error, TurnFailedError)
    assert (error.agent, error.turn, error.state) == ("ana", 1, "failed")
    assert "this turn failed" in str(error)


@pytest.mark.parametrize("held", [False, True], ids=["running", "held"])
async def test_turn_that_is_cancelled_with_its_agent_is_its_items_failure(
    world: World, virtual_time: MockClock, held: bool
) -> None:
    caught: list[Any] = []
    gate = Gate()
    async with world.open() as runtime:
        await world.add([fail(429, retry_after=3_600) if held else gate])
        runtime.add_workflow("asks", catches(caught))
        run = await runtime.start_run("k", "asks")
        if held:
            await until(lambda: run.status().state == "waiting_for_capacity")
        else:
            await gate.wait_entered()
        await runtime.remove_agent("ana")
        await comes(lambda: run.status().ended)
    (error,) = caught
    assert isinstance(error, TurnFailedError)
    assert error.state == "cancelled"


async def test_message_of_an_item_that_is_taken_back_fails_it(
    world: World, virtual_time: MockClock
) -> None:
    caught: list[Any] = []
    stop = Stop()
    async with world.open() as runtime:
        ana = await world.add([call_tool("wait"), reply("hi")], tools=[stop.tool()])
        await ana.send("first", joins=True)
        await stop.entered.wait()
        runtime.add_workflow("asks", catches(caught))
        run = await runtime.start_run("k", "asks")
        await until(lambda: bool(world.rows("inbox", "ana")))
        await ana.retract("run:k@1/0")
        await comes(lambda: run.status().ended)
        stop.go.set()
        await ana.wait_idle()
    (error,) = caught
    assert isinstance(error, TurnFailedError)
    assert (error.state, error.turn) == ("lost", None)


async def test_run_that_is_cancelled_leaves_the_turn_to_its_agent(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(reply("said"))
    async with world.open() as runtime:
        ana = await world.add([gate])
        runtime.add_workflow("asks", asks("first"))
        run = await runtime.start_run("k", "asks")
        await gate.wait_entered()
        assert (await runtime.cancel_run("k", requester="ops")).state == "cancelled"
        gate.release()
        await ana.wait_idle()
        assert await shown(ana) == ["user: first?", "assistant: said"]
        assert run.status().state == "cancelled"


async def test_message_that_joins_a_live_turn_is_answered_by_it(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    async with world.open() as runtime:
        ana = await world.add([call_tool("wait"), reply("both")], tools=[stop.tool()])
        await ana.send("hello")
        await stop.entered.wait()
        runtime.add_workflow("asks", asks("first"))
        run = await runtime.start_run("k", "asks")
        await until(lambda: bool(world.rows("inbox", "ana")))
        stop.go.set()
        assert (await run.wait()).result == ["both"]
        assert len(world.turns()) == 1


async def test_items_of_several_runs_that_wait_for_one_agent_are_answered_by_one_turn(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(reply("hello"))
    async with world.open() as runtime:
        ana = await world.add([gate, reply("the rest")])
        await ana.send("hello")
        await gate.wait_entered()
        runtime.add_workflow("asks", asks("first"))
        runs = [await runtime.start_run(f"k{number}", "asks") for number in range(3)]
        await until(lambda: len(world.rows("inbox", "ana")) == 3)
        gate.release()
        assert [(await run.wait()).result for run in runs] == [["the rest"]] * 3


# -- agents that are used once


@pytest.mark.behaviour("R-34", "X-005")
async def test_item_that_asks_an_agent_that_is_used_once_waits_for_the_instant_it_is_told(
    world: World, virtual_time: MockClock
) -> None:
    provider = world.provider([fail(429, retry_after=7_200), reply("in short")])
    spec = AgentSpec(name="scribe", provider=provider, model="m")
    async with world.open() as runtime:
        began = world.clock.now_ms()
        runtime.add_workflow("asks", asks("first", agent=spec))
        run = await runtime.start_run("k", "asks")
        await until(lambda: run.status().state == "waiting_for_capacity")
        assert run.status().resume_after_ms == began + 2 * HOUR
        assert (await run.wait()).result == ["in short"]
        assert len(provider.requests) == 2
        assert states(world, "k").count("resuming") == 1


@pytest.mark.parametrize("in_doubt", ["recover", "retry"])
async def test_agent_that_is_used_once_and_that_a_stop_ended_is_in_doubt(
    world: World, virtual_time: MockClock, in_doubt: Any
) -> None:
    gate = Gate()
    spec = AgentSpec(name="scribe", provider=world.provider([gate, reply("in short")]), model="m")
    async with world.open() as runtime:
        runtime.add_workflow("asks", asks("first", agent=spec, in_doubt=in_doubt))
        await runtime.start_run("k", "asks")
        await gate.wait_entered()
    async with world.open() as runtime:
        runtime.add_workflow("asks", asks("first", agent=spec, in_doubt=in_doubt))
        await until(lambda: runtime.run("k").state in ("completed", "recovery_required", "failed"))
        state = "completed" if in_doubt == "retry" else "recovery_required"
        assert runtime.run("k").state == state


async def test_item_that_a_quiesced_host_refuses_is_run_when_it_serves_again(
    world: World, virtual_time: MockClock
) -> None:
    begun, go = trio.Event(), trio.Event()
    tries: list[int] = []
    spec = AgentSpec(name="scribe", provider=world.provider([reply("in short")]), model="m")

    async def late() -> str:
        tries.append(1)
        begun.set()
        await go.wait()
        return await world.runtime.run_ephemeral(spec, "well?")

    async def body(run: RunContext, params: Any) -> Any:
        return await run.do("late", late)

    async with world.open() as runtime:
        runtime.add_workflow("asks", body)
        run = await runtime.start_run("k", "asks")
        await begun.wait()
        await runtime.quiesce(reason="upgrade", requester="ops")
        go.set()
        await until(lambda: [step.state for step in runtime.run_steps("k")] == ["blocked"])
        assert run.status().state == "running"
        await runtime.resume(requester="ops")
        assert (await run.wait()).result == "in short"
    assert len(tries) == 2


# -- malformed


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"agent": ""}, "agent"),
        ({"agent": "*"}, "agent"),
        ({"author": "ana"}, "author"),
        ({"author": "ANA"}, "author"),
        ({"author": ""}, "author"),
    ],
)
async def test_malformed_argument_of_an_ask_is_refused_by_its_field_and_records_nothing(
    world: World, virtual_time: MockClock, options: dict[str, Any], field: str
) -> None:
    caught: list[InvalidInputError] = []

    async def body(run: RunContext, params: Any) -> None:
        try:
            await run.ask("first", options.get("agent", "ana"), "well?", **{
                key: value for key, value in options.items() if key != "agent"
            })  # fmt: skip
        except InvalidInputError as error:
            caught.append(error)

    async with world.open() as runtime:
        runtime.add_workflow("asks", body)
        await (await runtime.start_run("k", "asks")).wait()
        assert runtime.run_steps("k") == ()
    assert [error.field for error in caught] == [field]


async def test_item_that_was_a_call_and_is_a_turn_now_waits_for_an_operator(
    world: World, virtual_time: MockClock
) -> None:
    asked: list[int] = []

    async def act() -> None:
        raise ProviderError("x", retryable=True)

    async def body(run: RunContext, params: Any) -> Any:
        asked.append(1)
        if len(asked) == 1:
            await run.ask("first", "ana", "well?")
        else:
            await run.do("first", act)
        return None

    async with world.open() as runtime:
        await world.add([fail(429, retry_after=3_600), reply("said")])
        runtime.add_workflow("asks", body)
        run = await runtime.start_run("k", "asks")
        await comes(lambda: run.status().state == "recovery_required")
        assert "recorded as 'first', a turn of 'ana'" in run.status().reason
