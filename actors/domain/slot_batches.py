"""Acceptance of several messages in one commit, planned. No actor, no await.

Invariants:
    I1  One request holds every message of a batch that is not known yet: all or none.
    I2  What may refuse is asked of the batch as a whole, before any of it is planned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from abeyance.storage.store import Chain, Delete, Put, Request

from .drafts import too_large
from .slot_book import SlotBook
from .slot_messages import Accept, AcceptMany, Receipt
from .slot_subjects import plan_accept
from .slot_turns import Plan

OPS_AN_ACCEPT: Final = 5
"""Its id's guard, its id, body and place, and its wake; one with a subject may write another's id
besides."""
ROWS_BYTES_MAX: Final = 2_048
"""What the rows of one message take beside its body, its names as long as they may be."""

Known: TypeAlias = Callable[[Accept], Receipt | None]
"""The receipt of a message that was taken before, on its way or stored; raises where the same id
says other things."""


class BatchPlan(NamedTuple):
    plan: Plan
    fresh: tuple[Accept, ...]
    """What it takes that was not known."""


def plan_accepts(
    book: SlotBook, many: AcceptMany, chain: Chain, known: Known, *, in_flight: Known
) -> BatchPlan:
    """Plan a batch's acceptance; what is known already is answered, and not taken again.

    Args:
        known: Of what is stored.
        in_flight: Of what is planned ahead of this.
    Raises:
        MessageConflictError, InboxFullError, BatchTooLargeError: Nothing is planned.
    """
    receipts: dict[str, Receipt | None] = {}
    waits = False
    for accept in many.accepts:
        receipt = in_flight(accept)
        waits = waits or receipt is not None
        receipts[accept.message] = receipt or known(accept)
    fresh = tuple(accept for accept in many.accepts if receipts[accept.message] is None)
    check_fits(book, fresh)
    requests = []
    for accept in fresh:
        request, receipts[accept.message] = plan_accept(book, accept, chain)
        requests.append(request)
    answer = tuple(receipts.values())
    if requests:
        return BatchPlan(Plan([_as_one(book, requests, chain)], 1, answer), fresh)
    # What is known but on its way is true once that is in, and a barrier comes in behind it.
    return BatchPlan(Plan([Request(chain=chain)] if waits else [], int(waits), answer), fresh)


def check_fits(book: SlotBook, accepts: tuple[Accept, ...]) -> None:
    """Refuse a batch that one request, or the inbox, has no room for."""
    if not accepts:
        return
    count, size = len(accepts), sum(len(accept.body.body) for accept in accepts)
    limits = book.store.limits
    ops = 1 + sum(
        OPS_AN_ACCEPT - (not accept.wake) + (accept.subject is not None) for accept in accepts
    )
    if ops > limits.ops_max:
        raise too_large("operations", ops, limits.ops_max, count)
    payload = size + count * ROWS_BYTES_MAX
    if payload > limits.payload_bytes_max:
        raise too_large("bytes", payload, limits.payload_bytes_max, count)
    for accept in accepts:
        book.check_size(accept.body)
    book.check_room(count, size)


def _as_one(book: SlotBook, requests: list[Request], chain: Chain) -> Request:
    """Several requests of one slot as one: they name no key twice but the last row's."""
    puts: dict[tuple[str, Any], Put] = {}
    deletes: dict[tuple[str, Any], Delete] = {}
    for request in requests:
        puts.update(((put.table, put.key), put) for put in request.puts)
        deletes.update(((gone.table, gone.key), gone) for gone in request.deletes)
    owner = book.owner
    guards = [guard for request in requests for guard in request.guards if guard is not owner]
    return Request(
        guards=(owner, *guards),
        puts=tuple(puts.values()),
        deletes=tuple(deletes.values()),
        appends=(),
        chain=chain,
    )
