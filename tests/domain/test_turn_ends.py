"""However a turn's task ends: its events are a pair, and nothing that was sent is left behind."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import GiveUp, Retry
from abeyance.actors.core.hub import Subscription
from abeyance.actors.domain.protocol import Admit, RecordWait
from abeyance.actors.domain.turn import TurnTask
from abeyance.actors.domain.wait_book import Deferral
from abeyance.actors.events import TurnEnded, TurnStarted
from abeyance.actors.testing import Gate, call_tool, fail, reply, stall

from .test_error_policy import Policy
from .world import World, shown, texts, until


class Typing:
    """Shows that an agent writes for as long as a turn of it runs, as a chat would."""

    def __init__(self, looking: Subscription) -> None:
        self._looking = looking
        self.writes = False
        self.seen: list[str] = []

    async def watch(self) -> None:
        async for event in self._looking:
            match event:
                case TurnStarted():
                    assert not self.writes, "a turn starts before the last one's end"
                    self.writes = True
                    self.seen.append("start")
                case TurnEnded(state=state):
                    assert self.writes, "a turn ends that did not start"
                    self.writes = False
                    self.seen.append(state)


ENDS: dict[str, tuple[list[Any], dict[str, Any], list[str]]] = {
    "done": ([reply("x")], {}, ["start", "done"]),
    "held by a wait": ([fail(429, retry_after=60)], {}, ["start", "held"]),
    "held by a quota": ([fail(402)], {}, ["start", "held"]),
    "held by a policy": ([fail(500)], {"error_policy": Policy(Retry(600))}, ["start", "held"]),
    "held by a host": ([fail(500)], {"provider_hold": lambda _: 60}, ["start", "held"]),
    "final": ([fail(400)], {}, ["start", "failed"]),
    "given up": ([fail(500)], {"error_policy": Policy(GiveUp())}, ["start", "failed"]),
    "too many rounds": ([call_tool("none")], {"rounds_max": 1}, ["start", "failed"]),
}


@pytest.mark.behaviour("W-074")
@pytest.mark.parametrize("end", ENDS, ids=str)
async def test_whoever_brackets_a_turn_by_its_events_sees_it_end(
    world: World, virtual_time: MockClock, end: str
) -> None:
    script, spec, expected = ENDS[end]
    async with world.open() as runtime, trio.open_nursery() as nursery:
        typing = Typing(runtime.events(kinds=["turn_started", "turn_ended"]))
        nursery.start_soon(typing.watch)
        ana = await world.add(list(script), **spec)
        await ana.send("go")
        await ana.wait_idle()
        await until(lambda: typing.seen == expected)
        assert not typing.writes
        nursery.cancel_scope.cancel()


@pytest.mark.behaviour("W-074")
async def test_a_turn_held_after_its_compile_is_seen_to_end_and_to_start_again(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime, trio.open_nursery() as nursery:
        typing = Typing(runtime.events(kinds=["turn_started", "turn_ended"]))
        nursery.start_soon(typing.watch)
        ana = await world.add([reply("x")])
        wait_ms = world.clock.now_ms() + 60_000
        await world.ref("ledger").ask(RecordWait("ana", "m", wait_ms, "stated elsewhere"))
        await ana.send("go")
        await ana.wait_idle()
        await until(lambda: typing.seen == ["start", "held"])
        assert not typing.writes
        await trio.sleep(61)
        await ana.wait_idle()
        await until(lambda: typing.seen == ["start", "held", "start", "done"])
        nursery.cancel_scope.cancel()


@pytest.mark.behaviour("W-074")
@pytest.mark.parametrize("how", ["stop", "crash"])
async def test_a_turn_that_is_cut_off_is_seen_to_end(
    world: World, virtual_time: MockClock, how: str
) -> None:
    async with trio.open_nursery() as nursery:
        async with world.open() as runtime:
            typing = Typing(runtime.events(kinds=["turn_started", "turn_ended"]))
            nursery.start_soon(typing.watch)
            ana = await world.add([stall(None), reply("again")])
            await ana.send("go")
            await until(lambda: len(world.providers[0].requests) == 1)
            if how == "crash":
                world.ref("agent").kill()
                await until(lambda: typing.seen == ["start", "interrupted", "start", "done"])
        expected = ["start", "cancelled"] if how == "stop" else typing.seen
        await until(lambda: typing.seen == expected)
        assert not typing.writes


@pytest.mark.behaviour("X-003")
async def test_what_waited_for_the_end_of_a_turn_that_is_held_is_stored_before_the_hold_waits(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(then=fail(429, retry_after=60))
    async with world.open() as runtime:
        looking = runtime.events(kinds=["turn_ended", "hold_began"])
        ana = await world.add([gate, reply("later")])
        await ana.send("go")
        await gate.wait_entered()
        receipt = await ana.send("mine", author="ana")
        assert receipt.state == "accepted", "it waits for the turn's end"
        gate.release()
        ended = await anext(looking)
        assert isinstance(ended, TurnEnded)
        assert ended.state == "held"
        assert await shown(ana) == ["user: go", "assistant: mine"]
        await ana.wait_idle()
        assert world.state().inbox == 0
        await trio.sleep(61)
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: later"


@pytest.mark.behaviour("X-001")
async def test_messages_deferred_while_a_turn_was_being_held_keep_their_order_and_channels(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go, hold = trio.Event(), trio.Event(), TurnTask._hold

    async def slow(turn: TurnTask, deferral: Deferral) -> Any:
        entered.set()
        await go.wait()
        return await hold(turn, deferral)

    monkeypatch.setattr(TurnTask, "_hold", slow)
    async with world.open():
        ana = await world.add([fail(429, retry_after=60), reply("to b")])
        await ana.send("go", channel="home")
        await entered.wait()
        first = await ana.send("A", author="ann", channel="a")
        second = await ana.send("B", author="bo", channel="b")
        assert (first.state, second.state) == ("accepted", "accepted")
        go.set()
        await ana.wait_idle()
        rows = [(entry.entry, entry.channel) for entry in world.rows("slots", "ana")]
        assert rows[1:] == [(first.seq, "a"), (second.seq, "b")]
        await trio.sleep(61)
        await ana.wait_idle()
        assert texts(world.providers[0].requests[1]) == ["user: go", "user: A", "user: B"]
        (turn,) = world.turns()
        assert turn.answers[-1] == second.seq, "the latest chat is what the turn answers last"
        replied = [message async for message in ana.transcript()][-1]
        assert (replied.text, replied.channel) == ("to b", "b")


@pytest.mark.behaviour("X-006")
async def test_one_statement_is_one_row_one_held_turn_and_one_resume_whoever_else_reads_it(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        looking = runtime.events(kinds=["hold_began", "hold_ended", "wait_recorded"])
        ana = await world.add([fail(429, retry_after=3_600), reply("once")])
        await ana.send("go")
        await ana.wait_idle()
        (wait,) = world.rows("waits")
        for _ in range(3):
            # Another reader of the same (agent, model): it is told of the same row.
            refused = await world.ref("gate").ask(Admit("m", "auxiliary"))
            assert isinstance(refused, Deferral)
            assert (refused.deadline_ms, refused.cause) == (wait.deadline_ms, "wait")
        await trio.sleep(3_601)
        await ana.wait_idle()
        assert world.rows("waits") == [wait]
        assert len(world.providers[0].requests) == 2
        assert len(world.turns()) == 1
    kinds = [event.kind async for event in looking]
    assert kinds == ["wait_recorded", "hold_began", "hold_ended"]


@pytest.mark.behaviour("W-065")
async def test_a_wake_that_comes_twice_during_a_hold_is_retained_once_and_one_turn_answers_all(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([fail(429, retry_after=60), reply("all")])
        await ana.send("go")
        await ana.wait_idle()
        for text in ("one", "one more", "and one"):
            await ana.send(text, author="ann", channel="c")
        same = [await ana.send("the same", author="bo", id="known") for _ in range(3)]
        assert len({receipt.seq for receipt in same}) == 1
        await ana.send("elsewhere", author="ann", channel="d")
        await ana.wait_idle()
        assert len(world.providers[0].requests) == 1
        assert world.state().wakes == 3
        await trio.sleep(61)
        await ana.wait_idle()
        assert len(world.providers[0].requests) == 2
        assert len(world.providers[0].requests[1].messages) == 6
        assert len(world.turns()) == 1
        assert world.state().wakes == 0
