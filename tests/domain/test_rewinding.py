"""Rewinding an agent that lives: its turn, its hold, its waits, and who waits for it."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors.core import Answer
from abeyance.actors.domain.errors import (
    InvalidInputError,
    InvalidNameError,
    RewindRefusedError,
    UnknownMessageError,
)
from abeyance.actors.domain.rewinding import REWOUND_MARKER
from abeyance.actors.domain.slot_messages import RewindReceipt
from abeyance.actors.domain.slot_rewind import KEPT_MS
from abeyance.actors.domain.turn import NOTHING_MARKER
from abeyance.actors.testing import call_tool, fail, reply, stall

from .slots import accept
from .world import Stop, World, shown, texts, until


async def ids(agent: Any) -> list[str]:
    return [message.id async for message in agent.transcript()]


async def kept(agent: Any) -> list[str]:
    return [message.text async for message in agent.rewound()]


async def test_a_rewind_to_a_reply_by_its_id_is_what_the_next_request_is_compiled_from(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([reply("one"), reply("two"), reply("three")])
        await ana.send("a")
        await ana.wait_idle()
        await ana.send("b")
        await ana.wait_idle()
        receipt = await ana.rewind(to=(await ids(ana))[1], requester="ops")
        assert receipt == RewindReceipt(3, 4)
        assert await kept(ana) == ["b", "two"]
        await ana.send("c")
        await ana.wait_idle()
        assert texts(world.providers[0].requests[-1]) == ["user: a", "agent: one", "user: c"]
    async with world.open():
        ana = await world.add([])
        assert await shown(ana) == ["user: a", "assistant: one", "user: c", "assistant: three"]


async def test_a_rewind_ends_the_live_turn_and_its_open_gap_first_and_keeps_what_came_meanwhile(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    async with world.open():
        ana = await world.add([call_tool("wait"), reply("after")], tools=[stop.tool()])
        first = await ana.send("a")
        await stop.entered.wait()
        await ana.send("meanwhile", wake=False)
        await ana.rewind(to=first.id, requester="ops")
        assert world.turns()[0].state == "cancelled"
        assert REWOUND_MARKER in await kept(ana)
        # The message that woke it is left: it is answered, by a fresh turn on what is left.
        await ana.wait_idle()
        assert await shown(ana) == ["user: a", "user: meanwhile", "assistant: after"]
        assert [turn.state for turn in world.turns()] == ["cancelled", "done"]
        stop.go.set()


async def test_a_turn_whose_question_is_rewound_gives_nothing_back_and_nothing_is_called(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([reply("one"), stall(), reply("never")])
        await ana.send("a")
        await ana.wait_idle()
        await ana.send("b")
        await until(lambda: len(world.providers[0].requests) == 2)
        await ana.rewind(to=2, requester="ops")
        await ana.wait_idle()
        assert await shown(ana) == ["user: a", "assistant: one"]
        assert len(world.providers[0].requests) == 2
        # Nothing was written behind it, so that it can be undone.
        await ana.undo_rewind(requester="ops")
        assert (await shown(ana))[2:] == ["user: b", f"marker: {REWOUND_MARKER}"]


async def test_a_malformed_or_unknown_target_ends_no_turn(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([stall()])
        await ana.send("a")
        await until(lambda: bool(world.providers[0].requests))
        for wrong in (None, "", True, 1.5, -1, 2**63, ["a"], "a\nb", "x" * 200):
            with pytest.raises((InvalidInputError, InvalidNameError)):
                await ana.rewind(to=wrong, requester="ops")  # type: ignore[arg-type]
        for unknown in ("nobody", 7):
            with pytest.raises(UnknownMessageError):
                await ana.rewind(to=unknown, requester="ops")
        for requester in ("", " \n", None, 7):
            with pytest.raises(InvalidInputError, match="requester"):
                await ana.rewind(to=1, requester=requester)  # type: ignore[arg-type]
        assert world.turns()[0].state == "running"
        assert len(world.providers[0].requests) == 1


@pytest.mark.behaviour("W-023")
@pytest.mark.parametrize("to", [0, 2], ids=["before everything", "before the wait"])
async def test_a_rewind_to_before_a_wait_leaves_the_wait_and_the_held_turn_as_they_are(
    world: World, virtual_time: MockClock, to: int
) -> None:
    async with world.open() as runtime:
        ana = await world.add([reply("one"), fail(429, retry_after=7_200)])
        await ana.send("a")
        await ana.wait_idle()
        await ana.send("b")
        await ana.wait_idle()
        before = (runtime.provider_waits("ana"), world.turns(), world.state().held)
        await ana.rewind(to=to, requester="ops")
        assert (runtime.provider_waits("ana"), world.turns(), world.state().held) == before
        await ana.send("c")
        await ana.wait_idle()
    async with world.open() as runtime:
        ana = await world.add([reply("two")])
        await ana.wait_idle()
        assert runtime.provider_waits("ana") == before[0]
        assert world.providers[-1].requests == []
        await runtime.release_provider_wait("ana", requester="ops")
        await ana.wait_idle()
        # One call, on what is left and what came since.
        assert [texts(request) for request in world.providers[-1].requests] == [
            [*["user: a", "agent: one"][:to], "user: c"]
        ]
        assert runtime.provider_waits("ana") == ()


async def test_a_held_turn_whose_question_was_rewound_ends_without_a_call_once_it_is_released(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([fail(429, retry_after=7_200), reply("never")])
        await ana.send("a")
        await ana.wait_idle()
        await ana.rewind(to=0, requester="ops")
        assert world.state().state == "held"
        await runtime.release_provider_wait("ana", requester="ops")
        await ana.wait_idle()
        assert await shown(ana) == [f"marker: {NOTHING_MARKER}"]
        assert len(world.providers[0].requests) == 1
        assert world.turns()[0].state == "cancelled"


async def test_what_was_rewound_is_read_and_put_back_until_it_is_pruned(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([reply("one")])
        sent = await ana.send("a", id="x")
        await ana.wait_idle()
        await ana.rewind(to=0, requester="ops")
        assert await kept(ana) == ["a", "one"]
        assert (await ana.send("a", id="x")) == sent._replace(state="rewound")
        world.clock.advance(KEPT_MS - 7_400_000)
        await trio.sleep(7_300)
        assert await kept(ana) == ["a", "one"]
        await trio.sleep(3_700)
        assert await kept(ana) == []
        assert (await ana.send("a", id="x")) == sent._replace(state="rewound")
        with pytest.raises(RewindRefusedError):
            await ana.undo_rewind(requester="ops")


async def test_what_was_rewound_long_ago_is_pruned_by_the_next_start(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([reply("one")])
        await ana.send("a")
        await ana.wait_idle()
        await ana.rewind(to=0, requester="ops")
    world.clock.advance(KEPT_MS)
    async with world.open():
        ana = await world.add([])
        await trio.sleep(1)
        await until(lambda: not world.rows("slots", "ana"))
        assert world.rows("bodies", "ana") == []


async def test_rewinds_are_in_the_log_with_who_asked_and_are_events(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([reply("one")])
        with runtime.events(kinds=["slot_rewound", "rewind_undone"]) as events:
            await ana.send("a")
            await ana.wait_idle()
            await ana.rewind(to=1, requester="ops\n[admin] forged")
            await ana.undo_rewind(requester="ops")
            seen = [await anext(events), await anext(events)]
        assert [(event.kind, event.agent, event.first, event.last) for event in seen] == [
            ("slot_rewound", "ana", 2, 2),
            ("rewind_undone", "ana", 2, 2),
        ]
        lines = [line for line in world.rows("log") if "rew" in line.event]
        assert [(line.event, line.text) for line in lines] == [
            ("slot_rewound", "places 2 to 2 by api:ops [admin] forged"),
            ("rewind_undone", "places 2 to 2 by api:ops"),
        ]


async def test_rewinds_that_are_asked_for_together_are_done_one_after_the_other(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([reply(str(number)) for number in range(3)])
        for words in "abc":
            await ana.send(words)
            await ana.wait_idle()
        came: dict[int, Any] = {}

        async def one(to: int) -> None:
            try:
                came[to] = await ana.rewind(to=to, requester="ops")
            except UnknownMessageError as error:
                came[to] = error

        async with trio.open_nursery() as nursery:
            for to in (4, 2, 1):
                nursery.start_soon(one, to)
        assert await shown(ana) == ["user: a"]
        assert came[1].last == 6
        for receipt in came.values():
            if isinstance(receipt, RewindReceipt):
                await ana.undo_rewind(requester="ops")
        assert len(await ids(ana)) == 6


async def test_a_rewind_that_finds_a_turn_being_started_ends_it_as_it_starts(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([reply("never"), reply("one")])
        first = await ana.send("a", wake=False)
        agent = world.ref("agent")._cell.actor
        checked = agent._rewinding._checked

        def starts_meanwhile(answer: Answer) -> None:
            agent.ask(world.ref("slot"), accept("b"), tag=lambda _: None)
            agent._start()
            checked(answer)

        agent._rewinding._checked = starts_meanwhile
        await ana.rewind(to=first.id, requester="ops")
        assert [turn.state for turn in world.turns()] == ["cancelled"]
        assert world.providers[0].requests == []
        await ana.wait_idle()
        assert (await shown(ana))[0] == "user: a"


@pytest.mark.parametrize("victim", ["agent", "slot"])
@pytest.mark.parametrize("after", range(0, 40, 4))
async def test_a_rewind_is_done_once_when_an_actor_dies_under_it(
    world: World, virtual_time: MockClock, victim: str, after: int
) -> None:
    stop = Stop()
    async with world.open():
        ana = await world.add([call_tool("wait"), *[reply("after")] * 3], tools=[stop.tool()])
        first = await ana.send("a")
        await stop.entered.wait()
        async with trio.open_nursery() as nursery:

            async def kill() -> None:
                for _ in range(after):
                    await trio.lowlevel.checkpoint()
                world.ref(victim).kill("a test")

            nursery.start_soon(kill)
            await ana.rewind(to=first.id, requester="ops")
        stop.go.set()
        await ana.wait_idle()
        found = await shown(ana)
        assert found[0] == "user: a"
        assert found[-1] == "assistant: after"
        assert not any("<wait>" in row for row in found)


@pytest.mark.parametrize("victim", ["agent", "slot"])
@pytest.mark.parametrize("after", range(0, 24, 2))
async def test_an_undo_is_done_once_when_an_actor_dies_under_it_and_leaves_the_rewind_before_it(
    world: World, virtual_time: MockClock, victim: str, after: int
) -> None:
    async with world.open():
        ana = await world.add([reply("one"), reply("two"), reply("three")])
        for words in "abc":
            await ana.send(words)
            await ana.wait_idle()
        await ana.rewind(to=4, requester="ops")

        async def kill() -> None:
            for _ in range(after):
                await trio.lowlevel.checkpoint()
            world.ref(victim).kill("a test")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill)
            assert await ana.rewind(to=2, requester="ops") == RewindReceipt(3, 6)
        await ana.wait_idle()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill)
            receipt = await ana.undo_rewind(requester="ops")
        assert receipt == RewindReceipt(3, 6)
        assert len(await shown(ana)) == 4
        await ana.undo_rewind(requester="ops")
        assert len(await shown(ana)) == 6
