"""How a slot's mirror is read from its rows. No actor, no await.

Invariants:
    I1  What is read is what the store holds: nothing is planned on a mirror before it is whole.
    I2  It costs a step of the loop for so many rows, and no row of what is read is looked at twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from abeyance.storage.store import Store
from abeyance.storage.tables.slots import Carried, Lease

from .slot_reading import EVERY_PLACE
from .slot_rows import read_rows, read_standing, spans

if TYPE_CHECKING:
    from .slot_mirror import SlotMirror

STEP_ROWS: Final = 128
"""Rows of a slot that are read before the loop gets a turn: about half a millisecond."""


def read_numbers(store: Store, slot: str, lease: Lease) -> tuple[int, int]:
    """The next entry number and the next place: the larger of the head's and the last rows'."""
    entry_next, seq_next = lease.entry_next, lease.seq_next
    # Only keys are asked: what they hold may be unreadable.
    for key, _ in store.scan("slots", (slot,), reverse=True, limit=1):
        seq_next = max(seq_next, int(key[-1]) + 1)
    for key, _ in store.scan("bodies", (slot,), reverse=True, limit=1):
        # Whatever has an entry number has a body, written in the same commit; a wake without a
        # message has none, but is written with the lease.
        entry_next = max(entry_next, int(key[-1]) + 1)
    return entry_next, seq_next


def read_carried(store: Store, slot: str) -> Carried | None:
    """What the slot's last request carried."""
    for _, row in read_rows(store, "carried", (slot,), reverse=True, limit=1):
        carried: Carried = row
        return carried
    return None


def read_ranges(book: SlotMirror) -> Iterator[None]:
    """What the next request carries: what the last one did, and the sendable rows behind it."""
    cuts, after = book.lease.cuts, 0
    for first, last in () if book.carried is None else book.carried.rows:
        for begin, end in spans(cuts, first, last):
            book.next_rows.carries(begin, last if end is None else end)
        after = last
    for begin, end in spans(cuts, after + 1, None):
        after_begin = (book.slot, begin - 1)
        for seq, entry in read_standing(book.store, book.slot, cuts, after=after_begin):
            if end is not None and seq > end:
                break
            if entry.role != "marker":
                book.next_rows.carries(seq, seq)
            else:
                book.next_rows.skips(seq)
            if seq % STEP_ROWS == 0:
                yield
    for edit in book.edits.kept.values():
        if edit.removes and not book.is_cut(edit.seq):
            # What was taken out is in no request that follows; what came back is in each.
            settle = book.next_rows.drop if edit.undone_ms is None else book.next_rows.restore
            settle(edit.seq)


def read_unread(book: SlotMirror) -> Iterator[None]:
    """The rows that hosts sent and that no request carried which was sent; and the subjects."""
    slot, after = book.slot, book.forked
    for first, last in (*book.lease.read, (EVERY_PLACE, EVERY_PLACE)):
        if first > after + 1:
            for key, found in book.store.scan("slots", (slot,), after=(slot, after)):
                seq = int(key[-1])
                if seq >= first:
                    break
                if isinstance(found, Exception):
                    if book.is_cut(seq):
                        continue
                    raise found
                row = found.record
                if row.turn is None and row.origin is None:
                    book.remember(row.entry, row)
                    book.unread[row.entry] = (seq, row)
                if seq % STEP_ROWS == 0:
                    yield
        after = max(after, last)
    for entry, waiting in book.inbox.items():
        book.remember(entry, waiting)
