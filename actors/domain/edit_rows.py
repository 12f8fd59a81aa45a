"""The edits of a slot as an operator reads them, whether or not its host runs.

Runs in: whichever task reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.store import Row, Store
from abeyance.storage.tables.blocks import Block, TextBlock
from abeyance.storage.tables.edits import Edit

from .slot_rows import read_content


@dataclass(frozen=True, slots=True)
class EditRow:
    """One edit of a transcript that is kept."""

    edit: int
    """Its number, which `undo_edit` takes."""
    id: str
    """The message's id."""
    seq: int
    """The message's place in the transcript."""
    does: str
    """`changed` or `removed`."""
    was: tuple[Block, ...] | None
    """What the message said before; None where that cannot be read."""
    by: str
    at_ms: int
    undone_by: str | None
    """Who undid it; None: it stands, or a later edit, a rewind or a newer message came over it."""
    undone_ms: int | None

    @property
    def text(self) -> str:
        """The text blocks of what it said, joined by line ends."""
        return "\n".join(block.text for block in self.was or () if isinstance(block, TextBlock))


def read_edits(store: Store, slot: str) -> Iterator[EditRow]:
    """The edits of a slot, oldest first; what cannot be read is left out."""
    for key, row in store.scan("edits", (slot,)):
        if isinstance(row, Row):
            yield _edit_row(store, slot, int(key[-1]), row.record)


def _edit_row(store: Store, slot: str, number: int, edit: Edit) -> EditRow:
    try:
        was: tuple[Block, ...] | None = read_content(store, slot, edit.row)
    except (LookupError, UnreadableRecordError):
        was = None
    return EditRow(
        edit=number,
        id=edit.row.message,
        seq=edit.seq,
        does="removed" if edit.removes else "changed",
        was=was,
        by=edit.by,
        at_ms=edit.at_ms,
        undone_by=edit.undone_by,
        undone_ms=edit.undone_ms,
    )
