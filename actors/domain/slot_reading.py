"""Whether a message was read: whether a request that carried it was really sent. Pure.

`carried` has, of each request, exactly which rows it carries, and whether it was sent; the head of
the slot has the union of those that were. Whoever would take a message out of a slot asks
`reading`, and nobody else answers.

Invariants:
    I1  A place is in `Lease.read` if and only if a request that carried it was sent, or may have
        been: its task or its process died before it said.
    I2  While a turn lives, its last request may leave at any instant: what it carries counts as
        read before that request is settled. So nothing can come between joining and counting.
    I3  No place is given twice. So what a rewind took out stays read, what it left unread stays
        unread, and an undo finds both as they were.
    I4  What a fork took over counts as read: it is in another transcript, too.
    I5  What was read never becomes unread.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Literal, TypeAlias

from abeyance.storage.store import Key, Row, Store
from abeyance.storage.tables.slots import Carried, Lease

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Places of a slot, as inclusive ranges in order that do not touch."""
Reading: TypeAlias = Literal["unread", "in_flight", "read", "forked"]
"""`in_flight`: a live turn's request carries it, and is not settled. `forked`: a conversation
began with it. Only what is `unread` may be taken out."""

EVERY_PLACE: Final = 2**64


def reading(lease: Lease, carried: Carried | None, forked: int, seq: int) -> Reading:
    """How far the message at a place was read.

    Args:
        lease: The slot's head.
        carried: The slot's last request; None before the first.
        forked: The last place that a conversation took over; 0 where there is none.
    """
    if covers(lease.read, seq):
        return "read"
    if seq <= forked:
        return "forked"
    if lease.turn is not None and carried is not None and covers(carried.rows, seq):
        return "in_flight"
    return "unread"


def read_reading(store: Store, slot: str, seq: int) -> Reading:
    """The same, as it is stored now."""
    return stored_reading(store, slot)(seq)


def stored_reading(store: Store, slot: str) -> Callable[[int], Reading]:
    """How far each place of a slot was read, as it is stored now."""
    head, forked = store.get("leases", (slot,)), read_forked(store, slot)
    if head is None:
        return lambda seq: "forked" if seq <= forked else "unread"
    lease: Lease = head.record
    row = store.get("carried", (slot, lease.request_next - 1))
    return partial(reading, lease, None if row is None else row.record, forked)


def read_forked(store: Store, slot: str) -> int:
    """The last place of a slot that a conversation took over, or is about to; 0 for none.

    One that cannot be read may have taken over anything.
    """
    forked = 0
    for _, row in scan_forks(store, slot):
        forked = max(forked, row.record.base_seq if isinstance(row, Row) else EVERY_PLACE)
    return forked


def scan_forks(store: Store, slot: str) -> Iterator[tuple[Key, Row | Exception | None]]:
    """The conversations of every agent that speaks, or spoke, in a slot."""
    yield from store.scan("conversations", (slot,))
    for key, _ in store.scan("sharers", (slot,)):
        yield from store.scan("conversations", (key[-1],))


def covers(ranges: Ranges, seq: int) -> bool:
    """Whether a place is in one of the ranges."""
    at = bisect_right(ranges, (seq, EVERY_PLACE))
    return at > 0 and ranges[at - 1][1] >= seq


def joined(ranges: Ranges, more: Ranges) -> Ranges:
    """The places of both."""
    found: list[tuple[int, int]] = []
    for first, last in sorted((*ranges, *more)):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)
