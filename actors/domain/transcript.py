"""Reading a slot as a person would: messages in order, oldest first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

import trio

from abeyance.storage.store import Store
from abeyance.storage.tables.blocks import Block, TextBlock

from .slot_rows import read_placed

PAGE_ROWS = 64
"""Rows read before the loop gets a turn."""


@dataclass(frozen=True, slots=True)
class TranscriptMessage:
    """One row of a slot.

    `seq` is its place in the slot; `role` is user, assistant, results (of tools) or marker (a note
    of the runtime that no provider is sent).
    """

    id: str
    seq: int
    entry: int
    author: str
    role: Literal["user", "assistant", "results", "marker"]
    blocks: tuple[Block, ...]
    at_ms: int

    @property
    def text(self) -> str:
        """The text blocks, joined by line ends."""
        return "\n".join(block.text for block in self.blocks if isinstance(block, TextBlock))


async def read_transcript(
    store: Store, slot: str, *, after: int = 0, limit: int | None = None
) -> AsyncIterator[TranscriptMessage]:
    """Yield a slot's rows behind a place. A checkpoint a page; a page is of one state."""
    left = limit
    while left is None or left > 0:
        page = PAGE_ROWS if left is None else min(PAGE_ROWS, left)
        rows = read_placed(store, slot, after + 1, limit=page)
        for row in rows:
            entry = row.entry
            yield TranscriptMessage(
                entry.message,
                row.seq,
                entry.entry,
                entry.author,
                entry.role,
                row.blocks,
                entry.at_ms,
            )
        if len(rows) < page:
            return
        after = rows[-1].seq
        left = None if left is None else left - len(rows)
        await trio.lowlevel.checkpoint()
