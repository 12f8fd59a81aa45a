"""Reading a slot as a person would: messages in order, oldest first."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import trio

from abeyance.storage.store import Store
from abeyance.storage.tables.blocks import Block, TextBlock

from .errors import InvalidInputError, UnknownMessageError
from .ingress import check_name
from .slot_messages import PlacedRow, Receipt
from .slot_rows import read_cuts, read_placed, read_span

PAGE_ROWS = 64
"""Rows read before the loop gets a turn."""


@dataclass(frozen=True, slots=True)
class TranscriptMessage:
    """One row of a slot.

    `role` is user, assistant, results (of tools) or marker (a note of the runtime that no provider
    is sent).
    """

    id: str
    """The message's id, as `Receipt.id`: what `transcript(after=...)` and `rewind` take."""
    seq: int
    """Its place in the transcript, counted from 1: what `transcript(after=...)` and `rewind` take.
    It is not `Receipt.seq`, which is `entry` here."""
    entry: int
    """The number the slot gave the message when it was accepted: what `Receipt.seq` is. Messages
    that wait, and what a rewind takes out, make it differ from the place."""
    author: str
    role: Literal["user", "assistant", "results", "marker"]
    blocks: tuple[Block, ...]
    at_ms: int
    channel: str | None = None
    """Of a message, the channel it was sent on. Of a reply, where it belongs: the channel of the
    latest message its turn answered by then that names one."""
    turn: int | None = None
    """Of a reply, results or a marker: the turn."""
    round: int | None = None
    """Of a reply and results: the round, counted from 1."""

    @property
    def text(self) -> str:
        """The text blocks, joined by line ends."""
        return "\n".join(block.text for block in self.blocks if isinstance(block, TextBlock))


async def read_transcript(
    store: Store, slot: str, *, after: int = 0, limit: int | None = None
) -> AsyncGenerator[TranscriptMessage, None]:
    """Yield a slot's rows behind a place. A checkpoint a page; a page is of one state."""
    left = limit
    while left is None or left > 0:
        page = PAGE_ROWS if left is None else min(PAGE_ROWS, left)
        rows = read_placed(store, slot, after + 1, limit=page)
        for row in rows:
            yield _message(row)
        if len(rows) < page:
            return
        after = rows[-1].seq
        left = None if left is None else left - len(rows)
        await trio.lowlevel.checkpoint()


async def read_rewound(store: Store, slot: str) -> AsyncGenerator[TranscriptMessage, None]:
    """Yield the rows that rewinds took out and that are still kept. A checkpoint a page."""
    reached = 0
    for cut in sorted(read_cuts(store, slot), key=lambda cut: cut.first):
        at = max(cut.first, reached + 1)
        while at <= cut.last:
            rows = read_span(store, slot, at, cut.last, limit=PAGE_ROWS)
            for row in rows:
                yield _message(row)
            at = rows[-1].seq + 1 if len(rows) == PAGE_ROWS else cut.last + 1
            await trio.lowlevel.checkpoint()
        reached = max(reached, cut.last)


After: TypeAlias = TranscriptMessage | Receipt | str | int
"""Behind which message to read: itself, its receipt, its id, or its place (0: from the start)."""


async def place_after(store: Store, slot: str, after: After | None) -> int:
    """The place that `transcript(after=...)` names. A checkpoint a page. Raises as `find_place`."""
    if after is None:
        return 0
    if isinstance(after, TranscriptMessage):
        return after.seq
    return await find_place(
        store, slot, after.id if isinstance(after, Receipt) else after, field="after"
    )


def last_place(store: Store, slot: str) -> int:
    """The place of a slot's last row, whether a rewind took it out or not; 0 for none."""
    for key, _ in store.scan("slots", (slot,), reverse=True, limit=1):
        return int(key[-1])
    return 0


async def find_place(store: Store, slot: str, to: object, *, field: str = "to") -> int:
    """The place that a message's id, or a place itself, names. A checkpoint a page.

    Raises:
        InvalidInputError: It is neither; nothing was done.
        UnknownMessageError: No message of that id in the slot; nothing was done.
    """
    if isinstance(to, int) and not isinstance(to, bool):
        if to < 0 or to >= 2**63:
            raise InvalidInputError(field, f"must be a message's id or a place from 0, not {to}")
        return to
    if not isinstance(to, str):
        kind = type(to).__name__
        raise InvalidInputError(field, f"must be a message's id or a place, not {kind}")
    check_name(to, field, reserved=False)
    known = store.get("ids", (slot, to))
    if known is not None and known.record.seq is not None:
        place: int = known.record.seq
        return place
    before: tuple[str, int] | None = None
    while known is None:
        # Only what came in by `send` has a row by its id; replies and results are looked for.
        seq = None
        for key, row in store.scan("slots", (slot,), after=before, limit=PAGE_ROWS, reverse=True):
            seq = int(key[-1])
            if isinstance(row, Exception):
                if any(cut.first <= seq <= cut.last for cut in read_cuts(store, slot)):
                    continue
                raise row
            if row.record.message == to:
                return seq
        if seq is None:
            break
        before = (slot, seq)
        await trio.lowlevel.checkpoint()
    raise UnknownMessageError(
        f"the transcript of {slot!r} has no message {to!r}; nothing was done; see the transcript "
        "for what there is",
        slot=slot,
    )


def _message(row: PlacedRow) -> TranscriptMessage:
    entry = row.entry
    return TranscriptMessage(
        entry.message,
        row.seq,
        entry.entry,
        entry.author,
        entry.role,
        row.blocks,
        entry.at_ms,
        entry.channel,
        entry.turn,
        entry.round,
    )
