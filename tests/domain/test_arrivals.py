"""Where a reply belongs: what a turn answers, noted in the order in which it came."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors.domain.slot_arrivals import arrived, remaining, reply_channel
from abeyance.actors.domain.slot_turns import plan_hold
from abeyance.actors.testing.scripted import Gate, call_tool, reply
from abeyance.storage.tables.slots import Arrival

from .desk import DeskStore, rows
from .slots import SLOT, BookDesk, accept, close, hold, record, start
from .test_slot_actor import open_room
from .world import Stop, World


def arrivals(desk: BookDesk) -> list[tuple[str | None, int, int]]:
    turn = list(rows(desk.store, "turns", ("ana",)).values())[-1]
    return [(each.channel, each.first, each.last) for each in turn.arrivals]


def replies(store: Any) -> list[str | None]:
    return [row.channel for row in rows(store, "slots", (SLOT,)).values() if row.turn is not None]


def test_arrivals_are_runs_of_one_channel_in_the_order_they_came() -> None:
    found = arrived((), [(1, "a"), (2, "a"), (4, None), (7, "b")])
    found = arrived(found, [(9, "b"), (10, "a")])
    assert [(each.channel, each.first, each.last) for each in found] == [
        ("a", 1, 2),
        (None, 4, 4),
        ("b", 7, 9),
        ("a", 10, 10),
    ]
    assert remaining(found, (2, 4, 7)) == found[:3]
    assert remaining((Arrival(channel="a", first=1, last=5),), (6,)) == ()


@pytest.mark.behaviour("R-30", "D-057")
def test_arrivals_are_noted_in_the_request_that_has_the_turn_answer_them() -> None:
    desk = BookDesk()
    desk.send("go", channel="home")
    turn = desk.start()
    assert arrivals(desk) == [("home", 1, 1)]
    desk.record(turn, 1, "Moving", "c1")
    # In the order of their numbers, whatever order they stand in; no answer is asked for the last.
    for channel, wake in (("alpha", True), ("beta", True), ("gamma", False)):
        desk.send(channel, channel=channel, wake=wake)
    before = len(desk.store.requests)
    desk.boundary(turn, 1, "c1")
    assert len(desk.store.requests) == before + 1
    assert arrivals(desk) == [("home", 1, 1), ("alpha", 3, 3), ("beta", 4, 4)]
    desk.record(turn, 2, "Done")
    assert replies(desk.store) == ["home", None, "beta"]


@pytest.mark.behaviour("D-057")
def test_the_reply_goes_to_the_latest_chat_that_remains() -> None:
    desk = BookDesk()
    desk.send("a", channel="alpha")
    desk.send("b", channel="beta", known="b")
    desk.run(plan_hold(desk.book, hold(desk.start(), sent=False), desk.chain))
    desk.retract("b")
    assert arrivals(desk) == [("alpha", 1, 1)]
    desk.reload()
    desk.record(desk.start(), 1, "done")
    assert replies(desk.store) == ["alpha"]


def test_a_message_that_names_no_channel_leaves_the_reply_where_it_belonged() -> None:
    desk = BookDesk()
    desk.send("a", channel="alpha")
    desk.send("tick")
    desk.record(desk.start(), 1, "done")
    assert replies(desk.store) == ["alpha"]


def test_the_turn_behind_a_stop_replies_where_the_stopped_one_would_have() -> None:
    desk = BookDesk()
    desk.send("a", channel="alpha")
    desk.end(desk.start(), give_back=True)
    desk.record(desk.start(), 1, "done")
    assert replies(desk.store)[-1] == "alpha"


@pytest.mark.behaviour("D-057")
async def test_a_refused_request_takes_no_arrival_ahead_of_an_earlier_one() -> None:
    store = DeskStore()
    store.own(SLOT)
    async with open_room(store, "ana") as room:
        await room.slot.ask(accept("go"))
        turn = await room.slot.ask(start())
        await room.slot.ask(record(turn, 1, "Moving", "c1"))
        room.store.refuse_next = 1  # type: ignore[attr-defined]
        asked = [
            room.slot.ask(accept("a", channel="alpha")),
            room.slot.ask(accept("b", channel="beta")),
            room.slot.ask(close(turn, 1, "c1")),
        ]
        for each in asked:
            await each
        found = list(rows(store, "turns", ("ana",)).values())[-1]
        assert [each.channel for each in found.arrivals] == [None, "alpha", "beta"]
        assert reply_channel(found) == "beta"


async def test_a_transcript_says_where_each_reply_belongs(
    world: World, virtual_time: MockClock
) -> None:
    stop, gate = Stop(), Gate(then=reply("to b"))
    async with world.open():
        ana = await world.add([call_tool("wait"), gate], tools=[stop.tool()])
        await ana.send("from a", channel="a")
        await stop.entered.wait()
        await ana.send("from b", channel="b")
        stop.go.set()
        await gate.wait_entered()
        gate.release()
        await ana.wait_idle()
        said = [(message.role, message.channel) async for message in ana.transcript()]
        assert said == [
            ("user", "a"),
            ("assistant", "a"),
            ("results", None),
            ("user", "b"),
            ("assistant", "b"),
        ]
        await trio.lowlevel.checkpoint()
