"""What operators changed in a slot's transcript, and what of the rest was written before it.

Bodies are never written again: an edit writes the new words under a number of its own, which the
row of the slot names, and keeps the row as it was. So whatever names the earlier words, a fork's
rows among them, goes on finding them.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from ..store import Record
from .fields import Instant, Name, Seq
from .slots import Entry

By: TypeAlias = Annotated[str, Meta(max_length=300)]


class Edit(Record, frozen=True, kw_only=True):
    """One edit of one row. Its number is one of the slot's entry numbers, that of the new words."""

    KIND = "edit"
    seq: Seq
    """The place of the row."""
    row: Entry
    """The row as it was; its content is kept for as long as this is."""
    removes: bool
    """Whether the row was taken out; else it has other words since."""
    act: Name
    by: By
    at_ms: Instant
    undone_act: Name | None = None
    undone_by: By | None = None
    undone_ms: Instant | None = None


class Revision(Record, frozen=True, kw_only=True):
    """Which rows of a slot were written behind other words than stand there now.

    Pairs of a place and a number: a row behind the place whose own number is smaller. Of two pairs
    one may stand for both where it is of the smaller place and the larger number; a pair is never
    taken out, for an undo brings the words back, and not what was said meanwhile.
    """

    KIND = "revision"
    recast: tuple[tuple[Seq, Seq], ...]
