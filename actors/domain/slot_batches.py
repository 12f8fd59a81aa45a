"""Acceptance of several messages in one commit, planned. No actor, no await.

Invariants:
    I1  One request holds every message of a batch that is not known yet: all or none.
    I2  What may refuse is asked of the batch as a whole, before any of it is planned.
    I3  What a batch takes of the loop at once is a small part of it: numbers and receipts. Its ids
        are looked up before it is asked for, and its rows are made in steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from abeyance.storage.codec import spread
from abeyance.storage.store import Chain, Guard, Request
from abeyance.storage.tables.slots import Inboxed, Wake

from .attachment_rows import NO_USES, Uses
from .drafts import too_large
from .slot_accepts import OPS_AN_ACCEPT
from .slot_book import SlotBook
from .slot_forms import accepted_rows, inboxed, wake_of
from .slot_long import LongRequest, Op
from .slot_messages import Accept, AcceptMany, Receipt
from .slot_subjects import plan_accept
from .slot_turns import Plan

ROWS_BYTES_MAX: Final = 2_048
"""What the rows of one message take beside its body, its names as long as they may be."""

Known: TypeAlias = Callable[[Accept], Receipt | None]
"""The receipt of a message that was taken before, on its way or stored; raises where the same id
says other things."""


_Fresh: TypeAlias = tuple[Accept, Inboxed, Wake | None]
_Taken: TypeAlias = tuple[Accept, Inboxed, int, int | None, Wake | None, Uses]


class BatchPlan(NamedTuple):
    plan: Plan
    fresh: Sequence[Accept]
    """What it takes that was not known."""


def plan_accepts(
    book: SlotBook, many: AcceptMany, chain: Chain, known: Known | None, *, in_flight: Known
) -> BatchPlan:
    """Plan a batch's acceptance; what is known already is answered, and not taken again.

    Args:
        known: Of what is stored; None where nothing of it is.
        in_flight: Of what is planned ahead of this.
    Raises:
        MessageConflictError, InboxFullError, BatchTooLargeError: Nothing is planned.
        UnknownAttachmentError, MessageTooLargeError: As `SlotBook.uses`; nothing is planned.
    """
    receipts: dict[str, Receipt | None] = {}
    fresh: list[_Fresh] = []
    taken: list[Accept] = []
    waits = False
    for place, accept in enumerate(many.accepts):
        receipt = in_flight(accept) if accept.known else None
        if receipt is not None:
            waits = True
        elif known is not None:
            receipt = known(accept)
        receipts[accept.message] = receipt
        if receipt is None:
            form = many.forms[place] if many.forms else (inboxed(accept), wake_of(accept))
            fresh.append((accept, *form))
            taken.append(accept)
    check_fits(book, taken)
    for accept in taken:
        if accept.named:
            book.uses(accept)
    if fresh:
        request = _take_in(book, fresh, receipts, chain)
        return BatchPlan(Plan([request], 1, tuple(receipts.values())), taken)
    answer = tuple(receipts.values())
    # What is known but on its way is true once that is in, and a barrier comes in behind it.
    return BatchPlan(Plan([Request(chain=chain)] if waits else [], int(waits), answer), taken)


def check_fits(book: SlotBook, accepts: Sequence[Accept]) -> None:
    """Refuse a batch that one request, or the inbox, has no room for."""
    if not accepts:
        return
    count, size, ops = len(accepts), 0, 1 + OPS_AN_ACCEPT * len(accepts)
    largest = accepts[0].body
    for accept in accepts:
        body = accept.body
        size += len(body.body)
        if len(body.body) > len(largest.body):
            largest = body
        ops += (accept.subject is not None) - (not accept.wake)
    limits = book.store.limits
    if ops > limits.ops_max:
        raise too_large("operations", ops, limits.ops_max, count)
    payload = size + count * ROWS_BYTES_MAX
    if payload > limits.payload_bytes_max:
        raise too_large("bytes", payload, limits.payload_bytes_max, count)
    book.check_size(largest)
    book.check_room(count, size, accepts[0].agent)


def _take_in(
    book: SlotBook, fresh: list[_Fresh], receipts: dict[str, Receipt | None], chain: Chain
) -> LongRequest:
    """Take messages that fit: their numbers and receipts now, their rows later."""
    book.attach(fresh[0][0].agent)
    lands = book.lands_at_once  # Of each: what lands leaves the inbox empty, what waits fills it.
    taken: list[_Taken | Request] = []
    for accept, row, wake in fresh:
        id_ = accept.message
        if accept.subject is None:
            uses = book.uses(accept) if accept.named else NO_USES
            entry, seq = book.take_in(row, wake, lands=lands)
            receipts[id_] = Receipt(id_, entry, "accepted" if seq is None else "stored")
            taken.append((accept, row, entry, seq, wake, uses))
        else:
            into = book.accepts(accept.agent)
            request, receipts[id_] = plan_accept(book, accept, chain, into)
            taken.append(spread(into.request(book.owner, chain)) if request is None else request)
    return LongRequest(chain, book.store.limits, (book.owner,), lambda: _rows(book, taken))


def _rows(book: SlotBook, taken: list[_Taken | Request]) -> Iterator[Op]:
    """What a batch is stored as. Its messages may name one row after the other: the last stands."""
    slot = book.slot
    for each in taken:
        if isinstance(each, Request):
            yield from (guard for guard in each.guards if guard is not book.owner)
            yield from each.puts
            yield from each.deletes
        else:
            accept, row, entry, seq, wake, uses = each
            yield Guard("ids", (slot, accept.message), 0)
            yield from accepted_rows(slot, accept, row, entry, seq, wake)
            yield from uses.guards
            yield from uses.puts
