"""The rows of outboxes: what an agent said behind a place, and where each cursor stands. Pure.

Invariants:
    I1  A reply is a row that one of the agent's own turns stored, with words in it. What a fork
        took over, what a host said in the agent's name, and what a rewind took out is none.
    I2  Replies are read in the order of their slot, and a place is never gone back on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from abeyance.storage.codec import encode
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.store import Delete, Guard, Key, Put, Request, Store
from abeyance.storage.tables.blocks import Block, TextBlock
from abeyance.storage.tables.outboxes import Cursor
from abeyance.storage.tables.slots import Entry

from .ingress import identity
from .slot_rows import read_content, read_cuts, spans
from .transcript import last_place

PAGE_ROWS: Final = 64
"""Rows of a slot that are read before the loop gets a turn."""
ROWS_A_COMMIT: Final = 500
LAG_MAX: Final = 1_000
"""Replies that are counted; there may be more."""


class Line(NamedTuple):
    """One agent in one slot: what one cursor is about."""

    slot: str
    agent: str


class Said(NamedTuple):
    """A reply, and where it is."""

    seq: int
    entry: Entry
    blocks: tuple[Block, ...]

    @property
    def text(self) -> str:
        return "\n".join(block.text for block in self.blocks if isinstance(block, TextBlock))


class Behind(NamedTuple):
    """An agent with replies that an outbox's bridge has not acknowledged, or cannot be given."""

    agent: str
    slot: str
    seq: int | None
    """The place up to which they were acknowledged; None: a row cannot be read."""
    lag: int
    """How many were not, of those that were counted."""
    oldest_ms: int | None
    """When the oldest of them was stored."""


class Page(NamedTuple):
    """A part of a slot, as an outbox reads it."""

    said: list[Said]
    place: int
    """Up to where it reaches."""
    is_last: bool


def read_page(store: Store, line: Line, place: int, *, replies: int = PAGE_ROWS) -> Page:
    """What an agent said in a slot behind a place, up to so many replies, or a page of rows, on.

    Raises:
        UnreadableRecordError: A row in it cannot be trusted; it names the row.
    """
    said, left = list[Said](), PAGE_ROWS
    for begin, end in spans(read_cuts(store, line.slot), place + 1, None):
        for key, row in store.scan("slots", (line.slot,), after=(line.slot, begin - 1), limit=left):
            seq = int(key[-1])
            if end is not None and seq > end:
                break
            if isinstance(row, Exception):
                raise row
            left, place = left - 1, seq
            if (reply := _said(store, line, seq, row.record)) is not None:
                said.append(reply)
                if len(said) == replies:
                    return Page(said, place, is_last=False)
        if left == 0:
            return Page(said, place, is_last=False)
    return Page(said, place, is_last=True)


def _said(store: Store, line: Line, seq: int, entry: Entry) -> Said | None:
    if entry.role != "assistant" or entry.turn is None or entry.origin is not None:
        return None
    if identity(entry.author) != identity(line.agent):
        return None
    said = Said(seq, entry, read_content(store, line.slot, entry))
    return said if said.text.strip() else None


def read_lines(store: Store, agent: str | None) -> Iterator[Line]:
    """Each agent of an outbox, by the slots that it may have spoken in.

    An agent that was removed is among them: what it said is there. An ephemeral one is none, for
    whoever ran it was told.
    """
    if agent is None:
        for key, row in store.scan("agents"):
            if isinstance(row, Exception) or row.record.kind != "ephemeral":
                yield Line(str(key[0]), str(key[0]))
    else:
        yield Line(agent, agent)
    for key, _ in store.scan("sharers"):
        if agent in (None, key[1]):
            yield Line(str(key[0]), str(key[1]))


def line_of(store: Store, table: str, key: Key) -> Line | None:
    """Whom a changed row of `agents` or `sharers` is about, as `read_lines` would name it.

    None: of nobody that is in an outbox.
    """
    if table == "sharers":
        return Line(str(key[0]), str(key[1]))
    try:
        row = store.get("agents", key)
    except UnreadableRecordError:
        return Line(str(key[0]), str(key[0]))
    if row is None or row.record.kind == "ephemeral":
        return None
    return Line(str(key[0]), str(key[0]))


def cursor_key(name: str, line: Line) -> Key:
    return (name, line.slot, line.agent)


def read_place(store: Store, name: str, line: Line) -> int:
    """Up to where an agent's replies were acknowledged.

    Raises:
        UnreadableRecordError: Its cursor cannot be trusted.
    """
    row = store.get("cursors", cursor_key(name, line))
    place: int = 0 if row is None else row.record.seq
    return place


def read_behind(store: Store, name: str, agent: str | None) -> Iterator[Behind | None]:
    """Yield who of an outbox has replies left to acknowledge, counted up to `LAG_MAX` of them all;
    None where the loop may get a turn.

    Args:
        agent: Whose replies it has; None: those of all.
    """
    left = LAG_MAX
    for line in read_lines(store, agent):
        yield None
        lag, oldest_ms = 0, None
        try:
            seq = place = read_place(store, name, line)
            is_last = left == 0
            while not is_last:
                page = read_page(store, line, place, replies=min(left - lag, PAGE_ROWS))
                place, lag = page.place, lag + len(page.said)
                if oldest_ms is None and page.said:
                    oldest_ms = page.said[0].entry.at_ms
                is_last = page.is_last or lag == left
                yield None
        except UnreadableRecordError:
            yield Behind(line.agent, line.slot, None, lag, oldest_ms)
        else:
            if lag:
                yield Behind(line.agent, line.slot, seq, lag, oldest_ms)
        left -= lag


def cursors_at_end(store: Store, name: str, lines: Iterator[Line], at_ms: int) -> list[Put]:
    """Cursors behind what agents said so far."""
    puts = []
    for line in lines:
        place = last_place(store, line.slot)
        if place:
            puts.append(cursor_at(name, line, place, None, at_ms))
    return puts


def cursor_at(name: str, line: Line, seq: int, message: str | None, at_ms: int) -> Put:
    record = Cursor(seq=seq, message=message, at_ms=at_ms)
    return Put("cursors", cursor_key(name, line), encode(record))


def requests_of(guard: Guard, store: Store, changes: list[Put] | list[Delete]) -> list[Request]:
    """Changes in commits that fit, each under the outbox's owner row."""
    size = min(ROWS_A_COMMIT, store.limits.ops_max - 1)
    parts = (changes[at : at + size] for at in range(0, len(changes), size))
    return [
        Request(
            guards=(guard,),
            puts=tuple(each for each in part if isinstance(each, Put)),
            deletes=tuple(each for each in part if isinstance(each, Delete)),
        )
        for part in parts
    ]
