"""Tool pairs that an operator drives: serialised by the slot's lease, side by side, once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors.core.errors import AskCycleError
from abeyance.actors.domain.errors import (
    AdmissionClosedError,
    InvalidInputError,
    InvalidMessageError,
    NotPermittedError,
    QuiescedError,
    RewindRefusedError,
    RuntimeClosedError,
)
from abeyance.actors.domain.pairs import Pairs, RunTool
from abeyance.actors.domain.slot_messages import (
    AttachAgent,
    EndPair,
    NothingToDo,
    PairStart,
    StartPair,
    TurnStart,
)
from abeyance.actors.testing import Gate, call_tool, fail, reply
from abeyance.storage.tables.blocks import ToolUseBlock

from .slots import accept, end, results, start
from .slots import shown as slot_shown
from .test_slot_actor import new_store, open_room
from .world import Stop, World, shown, texts, tool, until


def free(result: str = "found") -> Stop:
    stop = Stop(result)
    stop.go.set()
    return stop


async def into(outcomes: list[Any], agent: Any, *args: Any) -> None:
    try:
        outcomes.append(await agent.run_tool("wait", *args, requester="ops"))
    except Exception as error:
        outcomes.append(error)


@pytest.mark.behaviour("D-085")
async def test_a_pair_lands_side_by_side_and_what_came_meanwhile_behind_it(
    world: World, virtual_time: MockClock
) -> None:
    stop, other, outcomes = Stop("found"), Stop(), []
    async with world.open(), trio.open_nursery() as nursery:
        bo = await world.add([call_tool("wait"), reply("x")], "bo", tools=[other.tool()])
        await bo.send("go")
        await other.entered.wait()
        ana = await world.add([reply("yes")], tools=[stop.tool()])
        await ana.send("before", wake=False)
        nursery.start_soon(into, outcomes, ana, {"at": "door"})
        await stop.entered.wait()
        receipt = await ana.send("meanwhile", id="m1")
        assert receipt.state == "accepted"
        await ana.send("own", author="ana", wake=False)
        await wait_all_tasks_blocked()
        assert not world.providers[1].requests, "no turn starts inside a pair"
        assert await shown(ana) == ["user: before", "assistant: <wait>"]
        stop.go.set()
        await until(lambda: bool(outcomes))
        (done,) = outcomes
        assert (done.text, done.is_error) == ("found", False)
        await ana.wait_idle()
        assert await shown(ana) == [
            "user: before",
            "assistant: <wait>",
            "results: =found",
            "user: meanwhile",
            "assistant: own",
            "assistant: yes",
        ]
        (request,) = world.providers[1].requests
        assert texts(request)[:3] == ["user: before", "agent: <wait>", "user: =found"]
        assert [message.id async for message in ana.transcript()][1] == done.id
        (call,) = [row for row in world.tool_calls() if row.id == done.call_id]
        assert call.state == "done"
        assert ("tool_run", "wait by api:ops") in [
            (line.event, line.text) for line in world.rows("log")
        ]
        other.go.set()
        await bo.wait_idle()


@pytest.mark.behaviour("D-005", "D-085")
async def test_a_pair_waits_behind_the_live_turn_and_lands_behind_its_last_reply(
    world: World, virtual_time: MockClock
) -> None:
    gate, outcomes = Gate(reply("done")), []
    stop = free()
    async with world.open(), trio.open_nursery() as nursery:
        ana = await world.add([gate], tools=[stop.tool()])
        await ana.send("go")
        await gate.wait_entered()
        nursery.start_soon(into, outcomes, ana)
        await wait_all_tasks_blocked()
        assert stop.effects == 0
        gate.release()
        await until(lambda: bool(outcomes))
        assert await shown(ana) == [
            "user: go",
            "assistant: done",
            "assistant: <wait>",
            "results: =found",
        ]


async def test_a_pair_of_a_held_agent_runs_at_once_and_the_turn_stays_held(
    world: World, virtual_time: MockClock
) -> None:
    stop = free()
    async with world.open():
        ana = await world.add([fail(429, retry_after=100), reply("late")], tools=[stop.tool()])
        await ana.send("go")
        await ana.wait_idle()
        done = await ana.run_tool("wait", requester="ops")
        assert done.text == "found"
        assert world.state().state == "held"
        assert [turn.state for turn in world.turns()] == ["held", "done"]
        await trio.sleep(101)
        await ana.wait_idle()
        assert texts(world.providers[0].requests[1]) == [
            "user: go",
            "agent: <wait>",
            "user: =found",
        ]


async def test_pairs_that_are_asked_for_together_are_run_one_after_the_other(
    world: World, virtual_time: MockClock
) -> None:
    live, most = 0, 0

    async def body(**_input: Any) -> str:
        nonlocal live, most
        live += 1
        most = max(most, live)
        await trio.sleep(1)
        live -= 1
        return "x"

    outcomes: list[Any] = []
    async with world.open():
        ana = await world.add([], tools=[tool("wait", body)])
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(into, outcomes, ana, {"n": number})
        assert (len(outcomes), most) == (3, 1)
        assert [line.split(":")[0] for line in await shown(ana)] == ["assistant", "results"] * 3


@pytest.mark.parametrize("policy", ["report", "retry"])
async def test_a_pair_that_a_death_cut_off_is_in_doubt_and_settled_by_its_tool(
    world: World, virtual_time: MockClock, policy: Any
) -> None:
    stop, again, outcomes = Stop(), free("again"), []
    async with trio.open_nursery() as nursery, world.open():
        ana = await world.add([], tools=[stop.tool(in_doubt=policy)])
        nursery.start_soon(into, outcomes, ana)
        await stop.entered.wait()
        await ana.send("meanwhile", wake=False)
        world.runtime._members.clear()  # So that nobody ends the pair, as in a death.
    async with world.open():
        assert [turn.state for turn in world.turns()] == ["running"]
        ana = await world.add([], tools=[again.tool(in_doubt=policy)])
        await ana.wait_idle()
        lines = await shown(ana)
        assert lines[0] == "assistant: <wait>"
        assert lines[1].startswith(
            "results: =again" if policy == "retry" else "results: =!The outcome of this call is unk"
        )
        assert lines[2:] == ["user: meanwhile"]
        assert again.effects == (policy == "retry")
        assert [turn.state for turn in world.turns()] == ["done"]
        assert world.rows("heads")[0].open_pair is None


@pytest.mark.parametrize("actor", ["agent", "slot", "journal", "gate"])
async def test_a_pair_is_run_once_and_answered_when_an_actor_dies_under_it(
    world: World, virtual_time: MockClock, actor: str
) -> None:
    stop, outcomes = Stop("found"), []
    async with world.open(), trio.open_nursery() as nursery:
        ana = await world.add([reply("yes")], tools=[stop.tool()])
        nursery.start_soon(into, outcomes, ana)
        await stop.entered.wait()
        await ana.send("meanwhile")
        world.ref(actor).kill("a test")
        await until(lambda: world.ref(actor).statistics().incarnation == 2)
        stop.go.set()
        await until(lambda: bool(outcomes))
        assert outcomes[0].text == "found"
        await ana.wait_idle()
        assert stop.effects == 1
        assert await shown(ana) == [
            "assistant: <wait>",
            "results: =found",
            "user: meanwhile",
            "assistant: yes",
        ]


async def test_a_pair_that_a_death_cut_off_is_settled_before_any_that_is_asked_for_since(
    world: World, virtual_time: MockClock
) -> None:
    stop, again, outcomes = Stop(), free("again"), []
    async with trio.open_nursery() as nursery, world.open():
        ana = await world.add([], tools=[stop.tool()])
        nursery.start_soon(into, outcomes, ana, {"n": 1})
        await stop.entered.wait()
        world.runtime._members.clear()  # So that nobody ends the pair, as in a death.
    async with world.open():
        ana = await world.add([], tools=[again.tool()])
        # Before the slot has said which one is open.
        receipt = await ana.run_tool("wait", {"n": 2}, requester="ops")
        assert receipt.text == "again"
        assert again.effects == 1
        calls = [
            block.input
            async for row in ana.transcript()
            for block in row.blocks
            if isinstance(block, ToolUseBlock)
        ]
        assert calls == [{"n": 1}, {"n": 2}]
        assert [turn.state for turn in world.turns()] == ["done", "done"]


@pytest.mark.behaviour("D-085")
def test_a_pair_is_not_begun_before_it_is_known_whether_a_death_cut_one_off() -> None:
    asked: list[str] = []
    settings: Any = SimpleNamespace(name="ana", model="m")
    seams: Any = None
    pairs = Pairs(
        settings,
        seams,
        lambda message, _then: asked.append(message.message),
        lambda _run, _start, _then: None,
        lambda: None,
        lambda: None,
        lambda: False,
    )
    reply: Any = None
    call = ToolUseBlock(id="c", name="look", input={})
    pairs.take(RunTool(call, "asked for at once", "ops", 1), reply)
    assert pairs.lives
    assert asked == []
    pairs.found(RunTool(call, "cut off", "", 1))
    assert asked == ["cut off"]


# -- an agent's second life --------------------------------------------------------------------


def pair(message: str = "op") -> StartPair:
    return StartPair("ana", ToolUseBlock(id=message, name="look", input={}), message, "ops", "m", 1)


def over(begun: PairStart) -> EndPair:
    return EndPair("ana", begun.turn, begun.token, "done", results(begun.call.id), 1)


@pytest.mark.behaviour("D-085")
async def test_a_pair_that_is_over_is_not_run_again_for_an_agent_that_asks_again_turns_later() -> (
    None
):
    async with open_room(new_store()) as room:
        begun = await room.slot.ask(pair())
        await room.slot.ask(over(begun))
        await room.slot.ask(accept("go"))
        turn = await room.slot.ask(start())
        # The agent died before it was told of the end, and its next life asks again.
        again = room.slot.ask(pair(), block=False)
        await room.slot.ask(end(turn))
        assert await again == begun._replace(token=0, is_over=True)
        assert await room.slot.ask(pair()) == begun._replace(token=0, is_over=True)
        assert slot_shown(room.store)[:3] == ["assistant: <op>", "results: =op", "user: go"]


@pytest.mark.behaviour("D-085")
@pytest.mark.parametrize("how", ["it asks again", "it does not"])
async def test_a_pair_that_a_dead_life_of_its_agent_waits_for_does_not_take_the_lease(
    how: str,
) -> None:
    async with open_room(new_store(), "ana") as room:
        await room.slot.ask(accept("go"))
        turn = await room.slot.ask(start())
        first = room.slot.ask(pair(), block=False)
        await wait_all_tasks_blocked()
        await room.attach("ana-2")  # Its next life says so, as every life does.
        room.slot.tell(AttachAgent("ana", room.supervisor.refs["agent-ana-2"]))
        second = room.slot.ask(pair(), block=False) if how == "it asks again" else None
        await room.slot.ask(end(turn))
        assert isinstance(await first, NothingToDo)
        if second is not None:
            await room.slot.ask(over(await second))
        await room.slot.ask(accept("and"))
        assert isinstance(await room.slot.ask(start()), TurnStart)


@pytest.mark.parametrize("how", ["stop", "remove", "quiesce"])
@pytest.mark.parametrize("begun", [True, False], ids=["running", "waiting"])
async def test_what_drains_ends_a_pair_that_runs_and_refuses_one_that_waits(
    world: World, virtual_time: MockClock, how: str, begun: bool
) -> None:
    stop, gate, outcomes = Stop(), Gate(), []
    async with trio.open_nursery() as nursery:
        async with world.open() as runtime:
            ana = await world.add([gate], tools=[stop.tool()])
            if not begun:
                await ana.send("go")
                await gate.wait_entered()
            nursery.start_soon(into, outcomes, ana)
            if begun:
                await stop.entered.wait()
            await wait_all_tasks_blocked()
            began = trio.current_time()
            if how == "remove":
                await runtime.remove_agent("ana")
            elif how == "quiesce":
                await runtime.quiesce("upgrade", within_s=0.1)
        assert trio.current_time() - began < 1
        await until(lambda: bool(outcomes))
    (outcome,) = outcomes
    if begun:
        assert outcome.is_error
        assert "unknown" in outcome.text
    elif how == "stop":
        assert isinstance(outcome, RuntimeClosedError | AdmissionClosedError)
    elif how == "quiesce":
        assert isinstance(outcome, QuiescedError)
    else:
        assert isinstance(outcome, AdmissionClosedError)
    assert stop.effects == (1 if begun else 0)
    async with world.open():
        roles = [row.role for row in world.rows("slots", "ana")]
        if begun:
            assert roles[:2] == ["assistant", "results"]
        assert all(lease.turn is None for lease in world.rows("leases"))


async def test_a_pair_runs_on_within_the_window_of_a_quiesce(
    world: World, virtual_time: MockClock
) -> None:
    stop, outcomes = Stop("found"), []
    async with world.open() as runtime, trio.open_nursery() as nursery:
        ana = await world.add([], tools=[stop.tool()])
        nursery.start_soon(into, outcomes, ana)
        await stop.entered.wait()

        async def let_go() -> None:
            await until(lambda: runtime.status().mode.state == "draining")
            stop.go.set()

        nursery.start_soon(let_go)
        began = trio.current_time()
        await runtime.quiesce("upgrade")
        # Nothing else lives, so that its end is the end of the drain, and not the window's.
        assert trio.current_time() - began < 1
        await until(lambda: bool(outcomes))
        assert outcomes[0].text == "found"
        with pytest.raises(QuiescedError):
            await ana.run_tool("wait", requester="ops")


async def test_a_caller_that_gives_up_takes_back_what_has_not_begun_and_nothing_else(
    world: World, virtual_time: MockClock
) -> None:
    gate, stop = Gate(reply("done")), free()
    async with world.open():
        ana = await world.add([gate], tools=[stop.tool()])
        await ana.send("go")
        await gate.wait_entered()
        with trio.move_on_after(1):
            await ana.run_tool("wait", requester="ops")
        gate.release()
        await ana.wait_idle()
        await wait_all_tasks_blocked()
        assert stop.effects == 0
        assert await shown(ana) == ["user: go", "assistant: done"]


async def test_a_rewind_is_refused_while_a_pair_runs(world: World, virtual_time: MockClock) -> None:
    stop, outcomes = Stop("found"), []
    async with world.open(), trio.open_nursery() as nursery:
        ana = await world.add([], tools=[stop.tool()])
        await ana.send("one", id="one", wake=False)
        nursery.start_soon(into, outcomes, ana)
        await stop.entered.wait()
        with pytest.raises(RewindRefusedError):
            await ana.rewind(to="one", requester="ops")
        stop.go.set()
        await until(lambda: bool(outcomes))
        await ana.rewind(to="one", requester="ops")
        assert await shown(ana) == ["user: one"]


async def test_a_pair_is_refused_before_anything_is_done(
    world: World, virtual_time: MockClock
) -> None:
    stop, seen = free(), []

    async def body(**_input: Any) -> str:
        try:
            await ana.run_tool("wait", requester="ops")
        except AskCycleError as error:
            seen.append(error)
        return "x"

    async with world.open(admin=lambda act: act.requester == "api:ops") as runtime:
        script = [call_tool("ask"), reply("x")]
        ana = await world.add(script, tools=[stop.tool(), tool("ask", body)])
        with pytest.raises(NotPermittedError):
            await ana.run_tool("wait", requester="eve")
        for name in ("look", "", None, 7):
            with pytest.raises(InvalidInputError) as refused:
                await ana.run_tool(name, requester="ops")
            assert refused.value.field == "name"
        for given in ({"a": object()}, {1: 2}, {"a": float("nan")}, "text"):
            with pytest.raises(InvalidMessageError):
                await ana.run_tool("wait", given, requester="ops")
        with pytest.raises(InvalidInputError) as blank:
            await ana.run_tool("wait", requester=" ")
        assert blank.value.field == "requester"
        assert stop.effects == 0
        assert not world.turns()
        await ana.send("go")
        await ana.wait_idle()
        assert len(seen) == 1
        assert runtime.status().mode.state == "serving"
