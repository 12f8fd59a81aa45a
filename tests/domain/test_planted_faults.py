"""The invariant is broken on purpose, and the checker says where.

Each fault is planted in the product, under a turn that gives it room: a message that joins, one
that must wait, and a second turn. What is found in process is the witness's; what is found on the
wire alone, the checker's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from trio.testing import MockClock

from abeyance.actors import AgentHandle, Receipt
from abeyance.actors.domain import turn
from abeyance.actors.domain.slot_book import SlotBook
from abeyance.actors.domain.turn import TurnTask
from abeyance.actors.providers.port import ProviderMessage
from abeyance.actors.testing import call_tool, invariant, reply
from abeyance.actors.testing.witness import Witness
from abeyance.storage.tables.blocks import TextBlock

from .talk import ByHand, say
from .world import Stop, World, texts

Plant = Callable[[pytest.MonkeyPatch], None]


def store_a_row_mid_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message lands in the slot though a turn lives: the slot takes itself for an idle one."""
    accept = SlotBook.accept

    def accepts(book: SlotBook, *args: Any) -> Any:
        lease, inbox = book._lease.record, book.inbox
        book._lease.record, book.inbox = replace(lease, turn=None), {}
        try:
            return accept(book, *args)
        finally:
            book._lease.record, book.inbox = lease, inbox

    monkeypatch.setattr(SlotBook, "accept", accepts)


def skip_a_held_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A boundary takes what may join, wherever it stands."""
    prefix = SlotBook.prefix

    def skips(book: SlotBook, *, injectable: bool = False, **how: Any) -> list[int]:
        taken = prefix(book, **how)
        return [entry for entry in taken if not injectable or book.inbox[entry].injectable]

    monkeypatch.setattr(SlotBook, "prefix", skips)


def reorder_the_blocks_of_what_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    """What joins is told otherwise than a compile tells it."""
    render_all, compiles = turn.render_all, TurnTask._compile
    compiling: list[bool] = []

    def reorders(rows: Iterable[Any], voices: Any) -> list[ProviderMessage]:
        messages = render_all(rows, voices)
        if compiling:
            return messages
        return [ProviderMessage(one.role, one.blocks[::-1]) for one in messages]

    async def compile_in_order(task: TurnTask) -> None:
        compiling.append(True)
        await compiles(task)
        compiling.pop()

    monkeypatch.setattr(turn, "render_all", reorders)
    monkeypatch.setattr(TurnTask, "_compile", compile_in_order)


def compact_mid_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was compacted meanwhile is used by a turn that lives."""
    close_gap = TurnTask._close_gap

    async def compacts(task: TurnTask, calls: Any) -> None:
        await close_gap(task, calls)
        summary = ProviderMessage("user", (TextBlock(text="the story so far"),))
        task._messages[:1] = [summary]

    monkeypatch.setattr(TurnTask, "_close_gap", compacts)


FAULTS: dict[Plant, tuple[str, str]] = {
    store_a_row_mid_turn: (
        "when it went out: call 2",
        "call 3 of ana begins with something else than call 2",
    ),
    skip_a_held_row: (
        "waits, and",
        "stands before one that was accepted earlier",
    ),
    reorder_the_blocks_of_what_joins: (
        "call 2",
        "call 3 of ana begins with something else than call 2",
    ),
    compact_mid_turn: (
        "begins with something else than call 1 and its reply",
        "call 2 of ana begins with something else than call 1 and its reply",
    ),
}
"""Each fault, what the witness says of it, and what the wire and the receipts alone say."""


@pytest.mark.behaviour("D-001")
@pytest.mark.breaks_the_wire("the checker must find it")
async def test_checker_finds_a_summary_that_a_live_turn_begins_to_use(
    world: World,
    virtual_time: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    wire_invariant: Witness,
) -> None:
    close_gap = TurnTask._close_gap

    async def compiles_anew(task: TurnTask, calls: Any) -> None:
        await close_gap(task, calls)
        task.start = task.start._replace(context=4)
        task._messages.clear()
        await task._compile()

    monkeypatch.setattr(TurnTask, "_close_gap", compiles_anew)
    stop, strategy = Stop(), ByHand()
    script = [reply("one"), reply("two"), call_tool("wait"), reply("Done")]
    async with world.open():
        ana = await world.add(script, tools=[stop.tool()], context=strategy)
        await say(world, ana, "a", "b")
        await ana.send("c")
        await stop.entered.wait()
        await strategy.desk.keep("in short", last=4)
        stop.go.set()
        await ana.wait_idle()
    assert texts(world.providers[0].requests[3])[:2] == ["user: in short", "user: c"]
    found = invariant.violations(invariant.read_scripted(*world.providers))
    assert any("something else than call 3 and its reply: at message 1" in line for line in found)
    problems = wire_invariant.problems()
    assert any("something else than call 3 and its reply" in line for line in problems), problems


@asynccontextmanager
async def two_turns(world: World) -> AsyncIterator[tuple[AgentHandle, list[Receipt]]]:
    """A turn with a tool, during which there come one that joins, one that waits, one behind it."""
    stop = Stop()
    receipts = []
    async with world.open():
        ana = await world.add(
            [call_tool("wait"), reply("Done"), reply("heard")], tools=[stop.tool()]
        )
        receipts.append(await ana.send("go"))
        await stop.entered.wait()
        blocks = [TextBlock(text="one"), TextBlock(text="two")]
        receipts.append(await ana.send(blocks, wake=False))
        receipts.append(await ana.send("own", author="Ana"))
        receipts.append(await ana.send("behind"))
        stop.go.set()
        await ana.wait_idle()
        yield ana, receipts


async def on_the_wire(world: World, ana: AgentHandle, receipts: list[Receipt]) -> list[str]:
    found = invariant.violations(invariant.read_scripted(*world.providers))
    rows = [row async for row in ana.transcript()]
    return found + invariant.transcript_violations(rows, receipts)


@pytest.mark.behaviour("D-001", "D-002")
async def test_turns_that_nobody_spoiled_keep_the_invariant(
    world: World, virtual_time: MockClock, wire_invariant: Witness
) -> None:
    async with two_turns(world) as (ana, receipts):
        assert await on_the_wire(world, ana, receipts) == []
    assert wire_invariant.problems() == []
    assert len(wire_invariant.exchanges) == 3


@pytest.mark.behaviour("D-001")
@pytest.mark.breaks_the_wire("the checker must find it")
@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
async def test_checker_finds_a_fault_that_was_planted(
    world: World,
    virtual_time: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    wire_invariant: Witness,
    plant: Plant,
) -> None:
    witnessed, wire = FAULTS[plant]
    plant(monkeypatch)
    async with two_turns(world) as (ana, receipts):
        lines = await on_the_wire(world, ana, receipts)
    assert any(wire in line for line in lines), lines
    problems = wire_invariant.problems()
    assert any(witnessed in line for line in problems), problems
