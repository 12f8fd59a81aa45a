"""A slot's edits as they will be once what is planned is in. No actor, no await.

Invariants:
    I1  `kept` has the edits whose earlier words are kept, by number; one whose row cannot be read
        is not in it, and costs nothing but its own undo.
    I2  `recast` covers every row that was written before an edit of a place in front of it, and may
        cover more.

Runs in: the loop thread; one slot's book.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.store import Row, Store
from abeyance.storage.tables.edits import Edit, Revision
from abeyance.storage.tables.slots import Entry

from .slot_reading import EVERY_PLACE

RECAST_MAX: Final = 64
"""Pairs of a revision; where there are more, two become one that covers both."""

Recast: TypeAlias = tuple[tuple[int, int], ...]


class EditBook:
    """The edits of one slot. See the module's invariants."""

    def __init__(self, store: Store, slot: str) -> None:
        self.kept: dict[int, Edit] = {}
        for key, row in store.scan("edits", (slot,)):
            if isinstance(row, Row):
                self.kept[int(key[-1])] = row.record
        self.recast: Recast = read_recast(store, slot)
        self.under_way: set[int] = set()
        """Entries of the rows that an edit on its way writes."""

    def settle(self, number: int) -> None:
        """What an edit wrote is stored; it may have been forgotten again by now."""
        edit = self.kept.get(number)
        if edit is not None:
            self.under_way.discard(edit.row.entry)

    def find(self, act: str) -> tuple[int, Edit] | None:
        """The edit that an act made, or undid."""
        for number, edit in reversed(self.kept.items()):
            if act in (edit.act, edit.undone_act):
                return number, edit
        return None

    def revise(self, seq: int, number: int) -> Revision:
        """What is behind a place, and was written before this number, was written behind other
        words."""
        pairs = [(place, until) for place, until in self.recast if place < seq]
        pairs.append((seq, number))
        if len(pairs) > RECAST_MAX:
            # The first covers what the second does, and a little more.
            (first, _), (_, until) = pairs[:2]
            pairs[:2] = [(first, until)]
        self.recast = tuple(pairs)
        return Revision(recast=self.recast)

    def last_words(self, entry: int) -> int:
        """The number of the words that an entry has now."""
        for number, edit in reversed(self.kept.items()):
            if edit.row.entry == entry and edit.undone_ms is None:
                return edit.row.edited or entry if edit.removes else number
        return entry


def read_recast(store: Store, slot: str) -> Recast:
    """What of a slot was written behind other words; all of it where nobody can tell."""
    try:
        row = store.get("revisions", (slot,))
    except UnreadableRecordError:
        return ((0, EVERY_PLACE),)
    recast: Recast = () if row is None else row.record.recast
    return recast


def is_recast(recast: Recast, seq: int, entry: Entry) -> bool:
    """Whether a row was written behind other words than stand before it now."""
    if not recast:
        return False
    if entry.origin is not None:
        # Its number is another slot's; it was there before this slot was.
        return any(place < seq for place, _ in recast)
    return any(place < seq and entry.entry < until for place, until in recast)
