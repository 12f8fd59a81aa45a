"""Rewinding a slot, planned: what leaves the transcript, comes back, and is deleted. No actor.

A rewind is one commit that marks a span of rows in the slot's head (a `Cut`); from then on no
compile, boundary or transcript shows them. Their rows are deleted later, a part a commit. An
operator's act: nothing here reads or writes a wait, a wake, an inbox row or an alert.

Invariants:
    I1  Each commit leaves a valid slot: the mark is one, and each part that is deleted writes how
        far that went.
    I2  A slot's number is never given again, though its row was cut or deleted: the head, which
        every one of these commits writes, is past it.
    I3  What is left ends at a boundary: never between a tool call and its results.
    I4  Only rows that the store holds are deleted: a cut is looked at once its mark is stored.
    I5  The last `carried` may name cut rows; a cut is forgotten by a later one only.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from abeyance.storage.codec import encode
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.store import Append, Chain, Delete, Put, Request, Row, Store
from abeyance.storage.tables.blocks import ToolUseBlock
from abeyance.storage.tables.slots import Cut, MessageId
from abeyance.storage.tables.waits import LogLine

from .errors import InvalidInputError, RewindRefusedError, UnknownMessageError
from .slot_book import OPS_RESERVE, SlotBook
from .slot_draft import Draft
from .slot_long import whole
from .slot_messages import CheckRewind, RewindReceipt, RewindSlot, UndoRewind
from .slot_reading import scan_forks
from .slot_rows import read_content, read_cuts, read_standing, speaks

CUTS_MAX: Final = 64
"""Rewinds of one slot that are not pruned yet; one more is refused."""
KEPT_MS: Final = 7 * 24 * 3_600_000
"""For how long what was rewound can be read and put back."""
OPS_A_ROW: Final = 4
"""Deleting one row: itself, its content, what its id says; and the words of an edit."""


def check_rewind(book: SlotBook, check: CheckRewind | RewindSlot) -> bool:
    """Whether something would be left to answer.

    Raises:
        UnknownMessageError: No row of the transcript is at that place.
        InvalidInputError: It lies between a tool call and its results.
        RewindRefusedError: Too many rewinds of this slot are not pruned yet.
    """
    cuts, to = book.lease.cuts, check.to
    if len(cuts) >= CUTS_MAX:
        raise RewindRefusedError(
            f"{CUTS_MAX} rewinds of the slot {book.slot!r} are kept already; nothing was rewound; "
            "wait until the oldest is pruned",
            slot=book.slot,
        )
    if to == 0:
        return False
    row = book.store.get("slots", (book.slot, to))
    if row is None or book.is_cut(to):
        raise UnknownMessageError(
            f"the transcript of {book.slot!r} has no message at place {to}; nothing was rewound; "
            "see the transcript for what there is",
            slot=book.slot,
        )
    body = read_content(book.store, book.slot, row.record)
    if any(isinstance(block, ToolUseBlock) for block in body):
        raise InvalidInputError(
            "to", f"place {to} calls tools, and no transcript may end between a call and its result"
        )
    return leaves_answerable(book, to, check.agent)


def leaves_answerable(book: SlotBook, to: int, agent: str | None) -> bool:
    """Whether the last row that a provider would be sent is anything but the agent's own words."""
    slot = book.slot
    rows = read_standing(book.store, slot, book.lease.cuts, after=(slot, to + 1), reverse=True)
    for _, entry in rows:
        if entry.role != "marker":
            return entry.role != "assistant" or not speaks(agent, entry)
    return False


def plan_rewind(book: SlotBook, rewind: RewindSlot, chain: Chain) -> tuple[list[Request], Any]:
    """Plan a rewind: the request, if there is anything to take out, and the answer.

    Raises:
        RewindRefusedError: A turn lives; nothing is planned.
        UnknownMessageError, InvalidInputError: As `check_rewind`.
    """
    done = find_act(book, rewind.act)
    if done is not None:
        # Its asker died and asks again: it is stored, or on its way.
        return [Request(chain=chain)], done
    if book.is_leased:
        raise RewindRefusedError(
            f"turn {book.lease.turn} of {book.lease.agent!r} lives on the slot {book.slot!r}; "
            "nothing was rewound; end it, then rewind",
            slot=book.slot,
        )
    is_answerable = check_rewind(book, rewind)
    draft = Draft()
    receipt = mark(book, draft, rewind, is_answerable=is_answerable)
    return ([] if receipt.first is None else [whole(book.request(draft, chain))]), receipt


def mark(book: SlotBook, draft: Draft, rewind: RewindSlot, *, is_answerable: bool) -> RewindReceipt:
    """Cut off every row behind a place that was seen to be one to rewind to."""
    first, last = rewind.to + 1, book.seq_next - 1
    if all(book.is_cut(seq) for seq in _ends(book, first, last)):
        return RewindReceipt(None, None)
    kept, rows = _split(book.ranges, rewind.to)
    cut = Cut(
        first=first,
        last=last,
        rows=tuple(rows),
        answerable=is_answerable,
        act=rewind.act,
        by=rewind.by,
        at_ms=rewind.at_ms,
    )
    book.next_rows.keep(kept, rewind.to)
    book.write_lease(draft, cuts=(*book.lease.cuts, cut))
    draft.appends.append(_line("slot_rewound", book.slot, cut, rewind))
    return RewindReceipt(first, last)


def last_cut(book: SlotBook) -> str | None:
    """The act of the rewind that an undo would put back."""
    return book.lease.cuts[-1].act if book.lease.cuts else None


def plan_undo(
    book: SlotBook, undo: UndoRewind, chain: Chain, begun: tuple[str, RewindReceipt] | None
) -> tuple[list[Request], RewindReceipt]:
    """Plan to put back what the last rewind took out.

    Args:
        begun: The rewind that this very undo was planned of before its asker, or the slot, died,
            and what it came to. Where that is cut no more, it is done, or on its way.
    Raises:
        RewindRefusedError: There is none that can be put back; nothing is planned.
    """
    if begun is not None and all(cut.act != begun[0] for cut in book.lease.cuts):
        return [Request(chain=chain)], begun[1]
    cut = book.lease.cuts[-1] if book.lease.cuts else None
    if cut is None or cut.pruned is not None:
        why = "nothing of it is kept that was rewound"
    elif book.is_leased:
        why = f"turn {book.lease.turn} of {book.lease.agent!r} lives on what is left"
    elif cut.last != book.seq_next - 1:
        why = f"the transcript went on since, at place {cut.last + 1}"
    else:
        draft = Draft()
        for first, last in cut.rows:
            book.next_rows.carries(first, last)
        book.write_lease(draft, cuts=book.lease.cuts[:-1])
        draft.appends.append(_line("rewind_undone", book.slot, cut, undo))
        return [whole(book.request(draft, chain))], RewindReceipt(cut.first, cut.last)
    raise RewindRefusedError(
        f"the rewind of the slot {book.slot!r} cannot be undone: {why}; nothing was done; what was "
        "rewound can be read until it is pruned",
        slot=book.slot,
    )


def find_act(book: SlotBook, act: str) -> RewindReceipt | None:
    """What a rewind came to that was stored before its asker died."""
    for cut in book.lease.cuts:
        if cut.act == act:
            return RewindReceipt(cut.first, cut.last)
    return None


# -- pruning ---------------------------------------------------------------------------------


def next_prune_ms(book: SlotBook) -> int | None:
    """When the oldest cut that is not pruned is to be; None where there is none."""
    due = (cut.at_ms + KEPT_MS for cut in book.lease.cuts if not _is_pruned(cut))
    return min(due, default=None)


def plan_prune(book: SlotBook, chain: Chain, now_ms: int) -> list[Request]:
    """Plan to delete what fits one request of the oldest cut that is due; nothing where none is."""
    stored = {cut.act for cut in read_cuts(book.store, book.slot)}
    for place, cut in enumerate(book.lease.cuts):
        if not _is_pruned(cut) and cut.at_ms + KEPT_MS <= now_ms and cut.act in stored:
            return [_prune(book, place, cut, chain)]
    return []


def _prune(book: SlotBook, place: int, cut: Cut, chain: Chain) -> Request:
    slot, store, draft = book.slot, book.store, Draft()
    room = max(1, (store.limits.ops_max - OPS_RESERVE) // OPS_A_ROW)
    done, reached = cut.pruned or cut.first - 1, cut.last
    rows = store.scan("slots", (slot,), after=(slot, done), limit=room)
    found = [(int(key[-1]), row) for key, row in rows if int(key[-1]) <= cut.last]
    if len(found) == room:
        reached = found[-1][0]
    for seq, row in found:
        draft.deletes.append(Delete("slots", (slot, seq)))
        if isinstance(row, Row):
            book.unread.pop(row.record.entry, None)
            _forget(draft, store, slot, row.record)
        # A row that cannot be read goes, too; which content was its own nobody knows any more.
    cuts = list(book.lease.cuts)
    cuts[place] = replace(cut, pruned=reached)
    book.write_lease(draft, cuts=tuple(cuts))
    return whole(book.request(draft, chain))


def _forget(draft: Draft, store: Store, slot: str, entry: Any) -> None:
    if entry.edited is not None and not any(scan_forks(store, slot)):
        draft.deletes.append(Delete("bodies", (slot, entry.edited)))
    if entry.origin is not None:
        return  # A fork's base: its content and its id are the slot's that it was forked from.
    if not any(scan_forks(store, slot)):
        # A slot that was forked keeps its content: a fork may name it.
        draft.deletes.append(Delete("bodies", (slot, entry.entry)))
    try:
        row = store.get("ids", (slot, entry.message))
    except UnreadableRecordError:
        return
    if row is not None and row.record.entry == entry.entry:
        known: MessageId = replace(row.record, state="rewound", seq=None)
        key = (slot, entry.message)
        draft.puts["ids", key] = Put("ids", key, encode(known))


# -- parts -----------------------------------------------------------------------------------


def _is_pruned(cut: Cut) -> bool:
    return cut.pruned == cut.last


def _ends(book: SlotBook, first: int, last: int) -> list[int]:
    """Places of a span of which one is not cut, if any of the span is not."""
    behind = [cut.last + 1 for cut in book.lease.cuts if first <= cut.last + 1 <= last]
    return [first, *behind] if first <= last else []


def _line(event: str, slot: str, cut: Cut, act: RewindSlot | UndoRewind) -> Append:
    text = f"places {cut.first} to {cut.last} by {act.by}"
    return Append("log", encode(LogLine(event=event, agent=slot, text=text, at_ms=act.at_ms)))


def _split(ranges: list[list[int]], to: int) -> tuple[list[list[int]], list[tuple[int, int]]]:
    kept = [[first, min(last, to)] for first, last in ranges if first <= to]
    cut = [(max(first, to + 1), last) for first, last in ranges if last > to]
    return kept, cut
