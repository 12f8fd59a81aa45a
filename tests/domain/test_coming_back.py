"""What waits behind a turn, from each source, and that it keeps its id, number and place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from abeyance.actors import AgentHandle, Draft
from abeyance.actors.domain.errors import InvalidMessageError, LeaseLostError
from abeyance.actors.domain.slot_messages import NothingToDo
from abeyance.actors.testing.scripted import Gate, call_tool, reply

from .desk import DeskStore, rows
from .slots import (
    SLOT,
    BookDesk,
    accept,
    check,
    close,
    end,
    record,
    shown,
    start,
    waiting,
)
from .test_slot_actor import open_room
from .world import Stop, World, texts
from .world import shown as transcript

PAST = [
    Draft("later", id="c-3", at_ms=3_000),
    Draft("asked before", id="c-1", at_ms=1_000),
    Draft("I answered", "Ana", id="c-2", at_ms=2_000),
]


async def _backfill(ana: AgentHandle) -> None:
    await ana.backfill(PAST, channel="c")


async def _as_itself(ana: AgentHandle) -> None:
    await ana.send("I answered", author="ANA ".strip())


async def _kept(ana: AgentHandle) -> None:
    await ana.send("for later", joins=False, wake=False)


SOURCES = {
    "a channel's history": (
        _backfill,
        ["user: asked before"],
        ["assistant: I answered", "user: later"],
    ),
    "a module that writes as the agent": (_as_itself, [], ["assistant: I answered"]),
    "a host that keeps it from the turn": (_kept, [], ["user: for later"]),
}


@pytest.mark.behaviour("D-005")
@pytest.mark.parametrize(("source", "joined", "held"), SOURCES.values(), ids=SOURCES)
async def test_what_cannot_join_is_stored_behind_the_last_reply_whoever_it_comes_from(
    source: Any, joined: list[str], held: list[str], world: World, virtual_time: MockClock
) -> None:
    stop, last = Stop(), Gate(then=reply("Done"))
    async with world.open():
        ana = await world.add([call_tool("wait"), last], tools=[stop.tool()])
        await ana.send("go")
        await stop.entered.wait()
        await source(ana)
        stop.go.set()
        await last.wait_entered()
        begun = ["user: go", "assistant: <wait>", "results: =done", *joined]
        assert await transcript(ana) == begun
        last.release()
        await ana.wait_idle()
        assert await transcript(ana) == [*begun, "assistant: Done", *held]
        assert len(texts(world.providers[0].requests[1])) == len(begun)
        assert len(world.turns()) == 1, "none of it asks for a turn"


@pytest.mark.behaviour("D-005")
async def test_a_past_is_filled_in_in_the_order_it_was_said_and_once(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([])
        receipts = await ana.backfill(PAST, channel="c")
        assert [receipt.id for receipt in receipts] == ["c-1", "c-2", "c-3"]
        again = await ana.backfill(PAST[:2], channel="c")
        assert [(each.id, each.seq) for each in again] == [("c-1", 1), ("c-3", 3)]
        said = [(each.text, each.at_ms, each.channel) async for each in ana.transcript()]
        assert said == [
            ("asked before", 1_000, "c"),
            ("I answered", 2_000, "c"),
            ("later", 3_000, "c"),
        ]
        await ana.wait_idle()
        assert world.turns() == []


@pytest.mark.parametrize(
    ("drafts", "field"),
    [
        ([PAST[0], Draft("undated")], "drafts[1].at_ms"),
        ([Draft("x", at_ms=True)], "drafts[0].at_ms"),
        ([Draft("x", at_ms=-1)], "drafts[0].at_ms"),
        ("text", "drafts"),
        (["text"], "drafts[0].at_ms"),
    ],
    ids=["undated", "no number", "before time", "no drafts", "no draft"],
)
async def test_a_past_that_does_not_say_when_is_refused_by_its_place(
    drafts: Any, field: str, world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([])
        with pytest.raises(InvalidMessageError) as caught:
            await ana.backfill(drafts)
        assert caught.value.field == field
        assert await transcript(ana) == []


def numbers_of(desk: BookDesk) -> dict[str, int]:
    return {key[1]: row.entry for key, row in rows(desk.store, "ids", (SLOT,)).items()}


@pytest.mark.behaviour("D-019", "D-029")
def test_what_waits_keeps_id_number_and_place_through_a_turn_that_ends_and_one_that_follows() -> (
    None
):
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    for words in ("mine", "plain", "more"):
        desk.send(words, known=words, own=words == "mine")
    waited = {word: numbers_of(desk)[word] for word in ("mine", "plain", "more")}
    # A turn that is ended gives the slot to another, which is in its own tools at once.
    desk.end(turn, give_back=True)
    other = desk.start()
    desk.record(other, 1, "Moving", "c1")
    desk.send("late", known="late", own=True)
    desk.boundary(other, 1, "c1")
    assert waiting(desk.store) == ["late"]
    # An act of the turn that is over stores nothing in the other's gap.
    with pytest.raises(LeaseLostError):
        desk.end(turn)
    desk.record(other, 2, "Done")
    assert shown(desk.store)[-2:] == ["assistant: Done", "assistant: late"]
    assert {word: numbers_of(desk)[word] for word in waited} == waited
    order = [row.message for row in rows(desk.store, "slots").values() if row.message in waited]
    assert order == ["mine", "plain", "more"]


def _landed_by_a_start(desk: BookDesk, turn: Any) -> None:
    # The end is in; what lands the inbox was cut off by a death.
    desk.book.drain_all = lambda chain: []  # type: ignore[method-assign]
    desk.book.prefix = lambda **how: []  # type: ignore[method-assign]
    desk.record(turn, 2, "Done")
    desk.reload()
    desk.start()


WAYS = {
    "a turn's start": _landed_by_a_start,
    "a boundary": lambda desk, turn: (
        desk.record(turn, 2, "On", "c2"),
        desk.boundary(turn, 2, "c2"),
    ),
    "a last reply": lambda desk, turn: desk.record(turn, 2, "Done"),
    "a hold": lambda desk, turn: desk.hold(turn),
    "an end": lambda desk, turn: desk.end(turn),
}


@pytest.mark.behaviour("D-021")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_way_out_of_the_inbox_keeps_the_id_by_which_a_death_finds_it(way: Any) -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    desk.record(turn, 1, "Moving", "c1")
    desk.boundary(turn, 1, "c1")
    desk.send("x", known="x")
    way(desk, turn)
    known = rows(desk.store, "ids", (SLOT,))[SLOT, "x"]
    (placed,) = [key[1] for key, row in rows(desk.store, "slots").items() if row.message == "x"]
    assert (known.state, known.seq) == ("slot", placed)
    desk.reload()
    check(desk.store)


@pytest.mark.behaviour("D-023")
def test_what_comes_back_for_one_agent_keeps_its_place_among_the_messages_for_another() -> None:
    desk = BookDesk(None, "ana", "bob")
    desk.accept("go")
    turn = desk.start()
    for words, agent in (("a1", "ana"), ("b1", "bob"), ("a2", "ana")):
        desk.send(words, agent=agent, joins=agent == "bob")
    desk.record(turn, 1, "Moving", "c1")
    desk.boundary(turn, 1, "c1")
    assert waiting(desk.store) == ["a1", "b1", "a2"]
    desk.record(turn, 2, "Done")
    assert shown(desk.store)[-3:] == ["user: a1", "user: b1", "user: a2"]


@pytest.mark.behaviour("D-028")
@pytest.mark.parametrize("refusals", [1, 2, 3])
async def test_what_a_drain_takes_is_stored_whole_and_in_order_or_waits_whole(
    refusals: int,
) -> None:
    store = DeskStore()
    store.own(SLOT)
    async with open_room(store, "ana", "bob") as room:
        await room.slot.ask(accept("go"))
        turn = await room.slot.ask(start())
        # A turn of another agent waits for the slot; what is on its way is refused at first.
        await room.slot.ask(accept("hey", agent="bob"))
        waits = room.slot.ask(start("bob"))
        room.store.refuse_next = refusals  # type: ignore[attr-defined]
        asked = [room.slot.ask(accept(words, known=words)) for words in ("a", "b", "c")]
        asked.append(room.slot.ask(end(turn)))
        for each in asked:
            await each
        granted = await waits
        assert not isinstance(granted, NothingToDo)
        assert shown(store) == [
            "user: go",
            "marker: over",
            "user: hey",
            "user: a",
            "user: b",
            "user: c",
        ]
        assert waiting(store) == []
        # The next in line is in its tools: what comes now waits them out, in order.
        await room.slot.ask(record(granted, 1, "Moving", "c1"))
        for words in ("d", "e"):
            await room.slot.ask(accept(words))
        assert waiting(store) == ["d", "e"]
        await room.slot.ask(close(granted, 1, "c1"))
        assert shown(store)[-2:] == ["user: d", "user: e"]
        check(store)


ROOT = Path(__file__).parents[2]


def _notices() -> list[tuple[str, list[str]]]:
    page = (ROOT / "docs" / "deferral.md").read_text(encoding="utf-8")
    table = page.partition("## What callers notice")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ") and "tests |" not in line]
    return [(line.split("|")[1].strip(), re.findall(r"`(test_\w+)`", line)) for line in lines]


@pytest.mark.behaviour("D-088")
def test_each_thing_that_callers_notice_is_held_by_a_test_that_is_there() -> None:
    there = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        there |= set(re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8")))
    notices = _notices()
    assert len(notices) >= 11
    assert [what for what, tests in notices if not tests or not there.issuperset(tests)] == []
