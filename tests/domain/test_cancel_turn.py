"""Cancelling an agent's turn: live, held or waiting, with tools that run, once, and durably."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import CancelReceipt, RunContext, ToolContext
from abeyance.actors.core.errors import AskCycleError
from abeyance.actors.domain.errors import AdmissionClosedError, InvalidInputError
from abeyance.actors.domain.run_errors import TurnFailedError
from abeyance.actors.domain.tool_results import (
    CANCELLED_TEXT,
    CUT_OFF_AGAIN_TEXT,
    CUT_OFF_TEXT,
)
from abeyance.actors.domain.tools import CUT_OFF_S
from abeyance.actors.providers.port import ReplyDelta
from abeyance.actors.testing import Gate, call_tool, fail, reply, stall
from abeyance.storage.check import check
from abeyance.storage.tables.blocks import ToolUseBlock

from ..lives import KILLED, lived
from .children import cancelling
from .test_holds import quota
from .world import Stop, World, shown, texts, tool, until, wait_all_tasks_blocked

MARKER = "marker: this turn was cancelled by api:ops"


def requests(world: World, at: int = -1) -> list[list[str]]:
    return [texts(request) for request in world.providers[at].requests]


def states(world: World, agent: str = "ana") -> list[str]:
    return [turn.state for turn in world.turns(agent)]


# -- where a turn may stand ----------------------------------------------------------------------


async def test_a_live_turn_that_is_cancelled_ends_at_once_and_gives_nothing_back(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([stall(), reply("two")])
        await ana.send("a")
        await until(lambda: len(world.providers[0].requests) == 1)
        began = trio.current_time()
        assert await ana.cancel_turn(requester="ops") == CancelReceipt(1, "cancelled")
        assert trio.current_time() - began < 1
        await ana.wait_idle()
        assert await shown(ana) == ["user: a", MARKER]
        assert len(world.providers[0].requests) == 1
        (turn,) = world.turns()
        assert (turn.state, turn.given_back, turn.failure) == ("cancelled", False, "turn_cancelled")
        assert turn.cancelled_by == "api:ops"
        assert world.permits_out() == {}
        assert world.rows("wakes", "ana") == []
        # What it was to answer is read by the next turn.
        await ana.send("b")
        await ana.wait_idle()
        assert requests(world)[-1] == ["user: a", "user: b"]


async def test_messages_that_wait_land_at_a_cancellation_and_their_wakes_start_the_next_turn(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    async with world.open():
        ana = await world.add([call_tool("wait"), reply("next")], tools=[stop.tool()])
        await ana.send("a")
        await stop.entered.wait()
        await ana.send("aside", wake=False)
        await ana.send("b")
        assert await ana.cancel_turn(requester="ops") == CancelReceipt(1, "cancelled")
        await ana.wait_idle()
        assert await shown(ana) == [
            "user: a",
            "assistant: <wait>",
            f"results: =!{CUT_OFF_TEXT}",
            MARKER,
            "user: aside",
            "user: b",
            "assistant: next",
        ]
        assert states(world) == ["cancelled", "done"]


async def test_a_turn_that_waits_to_be_admitted_is_cancelled_and_makes_no_call(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([reply("never"), reply("two")])
        world.ref("gate").suspend()
        await ana.send("a")
        await until(lambda: states(world) == ["running"])
        await wait_all_tasks_blocked()
        assert await ana.cancel_turn(requester="ops") == CancelReceipt(1, "cancelled")
        world.ref("gate").resume()
        await ana.wait_idle()
        assert world.providers[0].requests == []
        assert world.permits_out() == {}
        assert states(world) == ["cancelled"]


async def test_a_turn_that_sleeps_between_two_tries_is_cancelled(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([fail(500), reply("never")])
        await ana.send("a")
        await until(lambda: len(world.providers[0].requests) == 1)
        await wait_all_tasks_blocked()
        assert await ana.cancel_turn(requester="ops") == CancelReceipt(1, "cancelled")
        await trio.sleep(600)
        assert len(world.providers[0].requests) == 1


@pytest.mark.parametrize("cause", ["wait", "quota"])
async def test_a_held_turn_that_is_cancelled_ends_and_the_wait_it_was_held_by_stands(
    world: World, virtual_time: MockClock, cause: str
) -> None:
    limit = fail(429, retry_after=7_200) if cause == "wait" else quota()
    async with world.open() as runtime:
        ana = await world.add([limit, reply("two")])
        await ana.send("a")
        await ana.wait_idle()
        assert world.state().state == "held"
        waits = runtime.provider_waits("ana")
        with runtime.events(kinds=["hold_ended"]) as events:
            assert await ana.cancel_turn(requester="ops") == CancelReceipt(1, "cancelled")
            assert (await anext(events)).cause == cause
        await ana.wait_idle()
        assert world.state().state == "idle"
        assert await shown(ana) == ["user: a", MARKER]
        assert runtime.provider_waits("ana") == waits
        (turn,) = world.turns()
        assert (turn.state, turn.held, turn.failure) == ("cancelled", None, "turn_cancelled")
        await ana.send("b")
        await ana.wait_idle()
        if cause == "wait":
            # Its own statement binds the next turn: no call goes out before it has ended.
            assert states(world) == ["cancelled", "held"]
            assert len(world.providers[0].requests) == 1
        else:
            assert states(world) == ["cancelled", "done"]
        assert check(runtime._store).findings == ()


async def test_a_cancelled_hold_stays_cancelled_over_a_restart(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([fail(429, retry_after=7_200)])
        await ana.send("a")
        await ana.wait_idle()
        await ana.cancel_turn(requester="ops")
    async with world.open() as runtime:
        ana = await world.add([reply("never")])
        await ana.wait_idle()
        assert world.state().state == "idle"
        await trio.sleep(8_000)
        await ana.wait_idle()
        assert world.providers[-1].requests == []
        assert [wait.agent for wait in runtime.provider_waits()] == []


async def test_a_turn_that_is_being_started_is_cancelled_as_it_starts(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([reply("never")])
        agent = world.ref("agent")._cell.actor
        answers: list[Any] = []
        started, marked = agent._starting.answered, agent._cancelling._answered

        def once_it_is_marked(cancel: Any, answer: Any) -> None:
            marked(cancel, answer)
            while answers:
                started(answers.pop())

        agent._starting.answered = answers.append
        agent._cancelling._answered = once_it_is_marked
        await ana.send("a")
        assert await ana.cancel_turn(requester="ops") == CancelReceipt(1, "cancelled")
        assert world.providers[0].requests == []
        assert states(world) == ["cancelled"]


async def test_nothing_is_done_where_no_turn_is_open(world: World, virtual_time: MockClock) -> None:
    async with world.open() as runtime:
        ana = await world.add([reply("one")])
        assert await ana.cancel_turn(requester="ops") == CancelReceipt(None, "none")
        await ana.send("a")
        await ana.wait_idle()
        assert await ana.cancel_turn(requester="ops") == CancelReceipt(None, "none")
        # One that is over is told of as it ended.
        assert await ana.cancel_turn(turn=1, requester="ops") == CancelReceipt(1, "done")
        assert await shown(ana) == ["user: a", "assistant: one"]
        assert [line.event for line in world.rows("log")].count("turn_cancelled") == 0
        assert check(runtime._store).findings == ()


async def test_a_held_turn_is_cancelled_while_another_agents_turn_has_the_slot(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate()
    async with world.open() as runtime:
        ana = await world.add([fail(429, retry_after=7_200)], slot="room")
        bo = await world.add([gate], "bo", slot="room")
        await ana.send("a")
        await ana.wait_idle()
        await bo.send("b")
        await gate.wait_entered()
        assert await ana.cancel_turn(requester="ops") == CancelReceipt(1, "cancelled")
        await ana.wait_idle()
        # No row of another's enters the slot while a turn lives there; the turn's row tells.
        assert states(world) == ["cancelled"]
        assert states(world, "bo") == ["running"]
        gate.release()
        await bo.wait_idle()
        assert await shown(bo) == ["user: a", "user: b", "assistant: released"]
        assert check(runtime._store).findings == ()


async def test_a_turn_that_waits_in_line_for_a_shared_slot_is_cancelled_at_once(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate()
    async with world.open() as runtime:
        ana = await world.add([fail(429, retry_after=60), reply("never")], slot="room")
        bo = await world.add([gate], "bo", slot="room")
        await ana.send("a")
        await ana.wait_idle()
        await bo.send("b")
        await gate.wait_entered()
        await runtime.release_provider_wait("ana", requester="ops")
        await until(lambda: world.state().state == "starting")
        assert await ana.cancel_turn(requester="ops") == CancelReceipt(1, "cancelled")
        gate.release()
        await bo.wait_idle()
        await ana.wait_idle()
        assert len(world.providers[0].requests) == 1
        assert states(world) == ["cancelled"]


async def test_a_quiesced_host_cancels_its_held_turns_and_writes_nothing_into_their_slots(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([fail(429, retry_after=7_200), reply("two")])
        await ana.send("a")
        await ana.wait_idle()
        await runtime.quiesce("upgrade")
        await ana.send("b")
        before = await shown(ana)
        assert await ana.cancel_turn(requester="ops") == CancelReceipt(1, "cancelled")
        assert (await shown(ana), states(world)) == (before, ["cancelled"])
        await runtime.release_provider_wait("ana", requester="ops")
        await runtime.resume()
        await ana.wait_idle()
        assert requests(world)[-1] == ["user: a", "user: b"]
        assert states(world) == ["cancelled", "done"]


# -- pressed twice -------------------------------------------------------------------------------


async def test_whoever_presses_twice_cancels_one_turn(
    world: World, virtual_time: MockClock
) -> None:
    stop, gate = Stop(), Gate()
    came: list[CancelReceipt] = []
    async with world.open():
        ana = await world.add([call_tool("wait"), gate], tools=[stop.tool()])
        await ana.send("a")
        await stop.entered.wait()
        await ana.send("b")

        async def press() -> None:
            came.append(await ana.cancel_turn(requester="ops"))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(press)
        assert came == [CancelReceipt(1, "cancelled")] * 3
        # By its number it stays one, whatever runs by now.
        await gate.wait_entered()
        again = await ana.cancel_turn(turn=1, requester="ops")
        assert again == CancelReceipt(1, "cancelled")
        assert states(world) == ["cancelled", "running"]
        lines = [line for line in world.rows("log") if line.event == "turn_cancelled"]
        assert [(line.agent, line.turn, line.text) for line in lines] == [("ana", 1, "by api:ops")]
        gate.release()
        await ana.wait_idle()


@pytest.mark.parametrize("named", [None, 1], ids=["whichever", "by its number"])
async def test_a_cancellation_that_comes_as_the_turn_ends_tells_how_it_ended(
    world: World, virtual_time: MockClock, named: int | None
) -> None:
    gate, recorded = Gate(), trio.Event()
    async with world.open():
        ana = await world.add([gate, reply("two")])
        await ana.send("a")
        await gate.wait_entered()
        slot = world.ref("slot")._cell.actor
        plan = slot._planning.plan

        def as_it_ends(act: Any) -> None:
            plan(act)
            if type(act.message).__name__ == "RecordRound":
                recorded.set()

        slot._planning.plan = as_it_ends
        gate.release()
        await recorded.wait()
        # The last round is on its way, and is in no row yet.
        assert states(world) == ["running"]
        receipt = await ana.cancel_turn(turn=named, requester="ops")
        assert receipt == (
            CancelReceipt(None, "none") if named is None else CancelReceipt(1, "done")
        )
        await ana.wait_idle()
        assert await shown(ana) == ["user: a", "assistant: released"]


@pytest.mark.parametrize("wrong", [0, -1, True, "1", 1.5, 2**63], ids=repr)
async def test_a_malformed_turn_or_requester_ends_nothing(
    world: World, virtual_time: MockClock, wrong: Any
) -> None:
    async with world.open():
        ana = await world.add([stall()])
        await ana.send("a")
        await until(lambda: len(world.providers[0].requests) == 1)
        with pytest.raises(InvalidInputError) as caught:
            await ana.cancel_turn(turn=wrong, requester="ops")
        assert caught.value.field == "turn"
        for requester in ("", " \n", None, 7):
            with pytest.raises(InvalidInputError, match="requester"):
                await ana.cancel_turn(requester=requester)  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="no turn of the number 7"):
            await ana.cancel_turn(turn=7, requester="ops")
        assert states(world) == ["running"]


async def test_an_operators_tool_pair_is_no_turn_to_cancel(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([], tools=[tool("look", lambda: "seen")])
        receipt = await ana.run_tool("look", requester="ops")
        with pytest.raises(InvalidInputError, match="no turn of the number"):
            await ana.cancel_turn(turn=receipt.turn, requester="ops")


# -- tools ---------------------------------------------------------------------------------------


async def found_out(context: ToolContext, fields: dict[str, Any]) -> str | None:
    return f"found out of {context.call_id}"


async def nothing_known(context: ToolContext, fields: dict[str, Any]) -> str | None:
    return None


async def failing(context: ToolContext, fields: dict[str, Any]) -> str | None:
    raise ValueError("no line")


async def for_ever(context: ToolContext, fields: dict[str, Any]) -> str | None:
    await trio.sleep_forever()
    return None


@pytest.mark.parametrize(
    ("policy", "told", "state"),
    [
        ("report", f"!{CUT_OFF_TEXT}", "unknown"),
        ("retry", f"!{CUT_OFF_AGAIN_TEXT}", "unknown"),
        (found_out, "found out of ana/1/1/0", "done"),
        (nothing_known, f"!{CUT_OFF_TEXT}", "unknown"),
        (failing, f"!{CUT_OFF_TEXT} Asking failed: ValueError: no line", "unknown"),
        (for_ever, f"!{CUT_OFF_TEXT}", "unknown"),
    ],
    ids=["report", "retry", "reconciled", "not known", "asking fails", "asking hangs"],
)
async def test_an_async_body_is_cut_off_and_its_tools_policy_says_what_is_told(
    world: World, virtual_time: MockClock, policy: Any, told: str, state: str
) -> None:
    stop = Stop()
    async with world.open():
        ana = await world.add([call_tool("wait")], tools=[stop.tool(in_doubt=policy)])
        await ana.send("a")
        await stop.entered.wait()
        began = trio.current_time()
        await ana.cancel_turn(requester="ops")
        assert trio.current_time() - began <= CUT_OFF_S + 1
        assert (await shown(ana))[1:] == ["assistant: <wait>", f"results: ={told}", MARKER]
        assert [call.state for call in world.tool_calls()] == [state]
        assert world.runtime._runner.running == 0
        assert stop.effects == 1


async def test_a_body_in_a_thread_is_left_alone_and_its_late_result_recorded_beside(
    world: World, virtual_time: MockClock
) -> None:
    entered, go = threading.Event(), threading.Event()

    def body() -> str:
        entered.set()
        go.wait(10)
        return "late"

    async with world.open():
        ana = await world.add([call_tool("look")], tools=[tool("look", body)])
        await ana.send("a")
        await trio.to_thread.run_sync(entered.wait, 10)
        await ana.cancel_turn(requester="ops")
        assert (await shown(ana))[2] == f"results: =!{CUT_OFF_TEXT}"
        go.set()
        await until(lambda: world.tool_calls()[0].late is not None)
        assert world.tool_calls()[0].late[0].text == "late"
        assert (await shown(ana))[2] == f"results: =!{CUT_OFF_TEXT}"


async def test_results_that_were_there_stay_and_a_body_that_does_not_end_is_not_waited_for(
    world: World, virtual_time: MockClock
) -> None:
    entered, go = trio.Event(), trio.Event()

    async def stubborn() -> str:
        with trio.CancelScope(shield=True):
            entered.set()
            await go.wait()
        return "after all"

    calls = [ToolUseBlock(id=f"c{at}", name=name, input={}) for at, name in enumerate(("a", "b"))]
    async with world.open():
        ana = await world.add(
            [reply(*calls)], tools=[tool("a", lambda: "there"), tool("b", stubborn)]
        )
        await ana.send("go")
        await entered.wait()
        await until(lambda: world.tool_calls()[0].state == "done")
        began = trio.current_time()
        await ana.cancel_turn(requester="ops")
        assert CUT_OFF_S <= trio.current_time() - began < CUT_OFF_S + 1
        assert (await shown(ana))[2] == f"results: =there =!{CUT_OFF_TEXT}"
        go.set()
        await until(lambda: world.tool_calls()[1].late is not None)


async def test_a_body_that_had_not_begun_is_not_begun(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from abeyance.actors.domain.tools import ToolRunner

    there, go, stop = trio.Event(), trio.Event(), Stop()
    start = ToolRunner._start

    async def slow(self: Any, *args: Any) -> int:
        there.set()
        await go.wait()
        return await start(self, *args)

    monkeypatch.setattr(ToolRunner, "_start", slow)
    async with world.open():
        ana = await world.add([call_tool("wait")], tools=[stop.tool()])
        await ana.send("a")
        await there.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: ana.cancel_turn(requester="ops"))
            await wait_all_tasks_blocked()
            go.set()
        assert (await shown(ana))[2] == f"results: =!{CANCELLED_TEXT}"
        assert stop.effects == 0


async def test_a_tool_that_cancels_its_own_turn_is_refused_and_the_turn_goes_on(
    world: World, virtual_time: MockClock
) -> None:
    """It would wait for the end of the very call that it runs in."""
    handle: list[Any] = []

    async def give_up() -> str:
        with pytest.raises(AskCycleError):
            await handle[0].cancel_turn(requester="model")
        return "refused"

    async with world.open():
        ana = await world.add([call_tool("give_up"), reply("on")], tools=[tool("give_up", give_up)])
        handle.append(ana)
        await ana.send("a")
        await ana.wait_idle()
        assert (await shown(ana))[2:] == ["results: =refused", "assistant: on"]


# -- who waits for the turn ----------------------------------------------------------------------


@pytest.mark.parametrize("where", ["live", "held"])
async def test_an_item_that_waits_for_a_cancelled_turn_fails_by_that_name(
    world: World, virtual_time: MockClock, where: str
) -> None:
    caught: list[TurnFailedError] = []

    async def workflow(run: RunContext, _params: Any) -> None:
        try:
            await run.ask("first", "ana", "well?")
        except Exception as error:
            cause = error.__cause__
            assert isinstance(cause, TurnFailedError)
            caught.append(cause)
            raise

    script = [stall()] if where == "live" else [fail(429, retry_after=60)]
    async with world.open() as runtime:
        ana = await world.add(script)
        runtime.add_workflow("asks", workflow)
        run = await runtime.start_run("k", "asks")
        await until(lambda: states(world) == ["running" if where == "live" else "held"])
        await wait_all_tasks_blocked()
        await ana.cancel_turn(requester="ops")
        status = await run.wait()
        assert status.state == "failed"
        assert [(each.state, each.failure, each.turn) for each in caught] == [
            ("cancelled", "turn_cancelled", 1)
        ]


class Speaks:
    """A step that says half of its reply, and then nothing."""

    async def play(self, call: Any) -> Any:
        call.on_delta(ReplyDelta("text", 0, "half"))
        await trio.sleep_forever()


async def test_a_stream_takes_back_what_a_cancelled_turn_had_shown(
    world: World, virtual_time: MockClock
) -> None:
    items: list[str] = []
    async with world.open():
        ana = await world.add([Speaks()])
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                async for item in ana.stream():
                    items.append(type(item).__name__)  # noqa: PERF401 - looked at meanwhile.

            nursery.start_soon(read)
            await wait_all_tasks_blocked()
            await ana.send("a")
            await until(lambda: "StreamDelta" in items)
            await ana.cancel_turn(requester="ops")
            await until(lambda: items[-1] == "StreamStored" and "StreamSuperseded" in items)
            nursery.cancel_scope.cancel()
    assert items.index("StreamSuperseded") > items.index("StreamDelta")


# -- deaths --------------------------------------------------------------------------------------


Press = Callable[[], Awaitable[CancelReceipt]]


@pytest.mark.parametrize("victim", ["agent", "slot", "gate", "journal"])
@pytest.mark.parametrize(
    "after",
    [pytest.param(n, marks=pytest.mark.slow if n % 12 else ()) for n in range(0, 48, 3)],
)
@pytest.mark.parametrize("where", ["live", "held"])
async def test_a_turn_is_cancelled_once_when_an_actor_dies_under_it(
    world: World, virtual_time: MockClock, where: str, victim: str, after: int
) -> None:
    stop = Stop()
    script = call_tool("wait") if where == "live" else fail(429, retry_after=7_200)
    async with world.open() as runtime:
        ana = await world.add([script, *[reply("next")] * 2], tools=[stop.tool()])
        await ana.send("a")
        if where == "live":
            await stop.entered.wait()
        else:
            await ana.wait_idle()

        async def kill() -> None:
            for _ in range(after):
                await trio.lowlevel.checkpoint()
            world.ref(victim).kill("a test")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill)
            assert await ana.cancel_turn(requester="ops") == CancelReceipt(1, "cancelled")
        await ana.wait_idle()
        assert states(world) == ["cancelled"]
        assert (await shown(ana)).count(MARKER) == 1
        assert world.state().state == "idle"
        if where == "held":
            await runtime.release_provider_wait("ana", requester="ops")
        await ana.send("b")
        await ana.wait_idle()
        assert states(world) == ["cancelled", "done"]
        assert check(runtime._store).findings == ()


async def test_a_turn_that_was_marked_before_a_death_ends_at_the_next_start_without_a_call(
    world: World, virtual_time: MockClock
) -> None:
    """A quiesced host takes no turn up: the mark is all that a cancellation can do there."""
    code, _ = live(world.directory, "live", "turn.after_round:1")
    assert code == KILLED
    async with world.open() as runtime:
        await runtime.quiesce("upgrade")
        ana = await world.add([reply("never")], tools=[tool("wait", lambda: "never")])
        assert states(world) == ["running"]
        with pytest.raises(AdmissionClosedError, match="ends when turns start again"):
            await ana.cancel_turn(requester="ops")
        await runtime.resume()
        await ana.wait_idle()
        assert states(world) == ["cancelled"]
        assert world.providers[-1].requests == []
        assert (await shown(ana))[1:] == [
            "assistant: <wait>",
            f"results: =!{CANCELLED_TEXT}",
            MARKER,
        ]


def live(directory: Path, where: str, point: str) -> tuple[int, list[str]]:
    ended = lived(cancelling.live, directory, where, point)
    return ended.status, ended.out.split("\n")[:-1]


@pytest.mark.drawn(8)
@pytest.mark.parametrize("nth", range(1, 5))
@pytest.mark.parametrize("point", ["writer.before_commit", "writer.after_commit"])
@pytest.mark.parametrize("where", ["live", "tool", "held"])
async def test_a_cancellation_is_whole_or_not_begun_whenever_its_host_is_killed(
    world: World, virtual_time: MockClock, where: str, point: str, nth: int
) -> None:
    code, told = live(world.directory, where, f"{point}:{nth}")
    # The mark, what a tool's call came to, and the end; of a held turn its end alone.
    commits = {"live": 2, "tool": 3, "held": 1}[where]
    assert code == KILLED or nth > commits
    assert told == (["cancelled"] if nth > commits else [])
    begun = nth > 1 or point == "writer.after_commit"
    async with world.open() as runtime:
        ana = await world.add([reply("on")] * 2, tools=[tool("wait", lambda: "again")])
        if where == "held" and not begun:
            await runtime.release_provider_wait("ana", requester="ops")
        await ana.wait_idle()
        if begun:
            assert states(world) == ["cancelled"]
            assert world.providers[-1].requests == []
            assert (await shown(ana)).count(MARKER) == 1
            if where == "tool":
                assert f"results: =!{CUT_OFF_TEXT}" in await shown(ana)
        else:
            assert states(world) == ["done"]
            assert MARKER not in await shown(ana)
        assert check(runtime._store).findings == ()
