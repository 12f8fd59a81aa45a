"""Operators' edits of a slot's rows, planned: what they change, keep, refuse, and undo. No actor.

An edit gives one row other words, or takes it out, in one commit; the row as it was is kept beside
it, so that an undo puts it back. It is planned while no turn lives, and every request is compiled
from the rows, so the next fresh compile is the first to carry it.

Invariants:
    I1  No edit is planned while a turn or an operator's pair holds the lease.
    I2  A call and its results stay a pair: neither is taken out, and their ids stay, in order.
    I3  Words are never written over. A fork's rows, and the row that is kept, find their own.
    I4  What was read stays read: reading is of a message, not of its words. What is taken out
        unread comes back unread.
    I5  What a model said behind other words is known to be: its reasoning is told to none again,
        and a summary of them stands for nothing.
    I6  What refuses is asked before anything is planned.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from abeyance.storage.codec import encode
from abeyance.storage.store import Append, Chain, Delete, Request
from abeyance.storage.tables.blocks import (
    AttachmentBlock,
    AudioBlock,
    Block,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from abeyance.storage.tables.edits import Edit
from abeyance.storage.tables.slots import Entry, MessageId
from abeyance.storage.tables.waits import LogLine

from .attachment_rows import read_named, uses_of
from .errors import EditRefusedError, InvalidMessageError, UnknownMessageError
from .ingress import is_blank
from .slot_book import SlotBook
from .slot_draft import Draft
from .slot_long import whole
from .slot_messages import EditReceipt, EditSlot, UndoEdit
from .slot_reading import covers, scan_forks
from .slot_rows import read_content, read_standing, speaks
from .slot_turns import Plan

EDITS_MAX: Final = 256
"""Edits of one slot whose earlier words are kept; one more is refused."""
KEPT_MS: Final = 7 * 24 * 3_600_000
"""For how long the earlier words can be read and put back."""


def plan_edit(book: SlotBook, edit: EditSlot, chain: Chain) -> Plan:
    """Plan an edit.

    Returns:
        The plan; its answer is an `EditReceipt`, or None where it is to be planned again once what
        is on its way to the same row is in.
    Raises:
        EditRefusedError, UnknownMessageError, InvalidMessageError: Nothing is planned.
    """
    done = book.edits.find(edit.act)
    if done is not None:
        # Its asker's slot died: it is stored, or on its way.
        return Plan([Request(chain=chain)], 1, _receipt(*done))
    _check_free(book)
    row = _row_at(book, edit.seq)
    if row is not None and _is_moving(book, row):
        return Plan([Request(chain=chain)], 1)
    if row is None or edit.message not in (None, row.message):
        raise UnknownMessageError(
            f"the transcript of {book.slot!r} has no such message at place {edit.seq}; nothing was "
            "changed; see the transcript for what there is",
            slot=book.slot,
        )
    if row.role == "marker":
        raise _refused(book, "marker", f"place {edit.seq} is a note of the runtime's own")
    if edit.blocks is None:
        _check_removable(book, edit.seq, row)
        content = None
    else:
        check_words(row, read_content(book.store, book.slot, row), edit.blocks)
        content = book.encode_content(edit.blocks)
    named = read_named(edit.blocks or (), "blocks")
    uses = uses_of(book.store, named, "entry", book.slot, book.entry_next, edit.at_ms)
    if len(book.edits.kept) >= EDITS_MAX:
        raise _refused(book, "full", f"{EDITS_MAX} edits of it are kept already")
    draft, number = Draft(), book.take_entry()
    draft.use(uses)
    record = Edit(
        seq=edit.seq,
        row=row,
        removes=content is None,
        act=edit.act,
        by=edit.by,
        at_ms=edit.at_ms,
    )
    book.edits.kept[number] = record
    draft.put("edits", (book.slot, number), record)
    if content is None:
        _take_out(book, draft, edit.seq, row)
    else:
        draft.put_value("bodies", (book.slot, number), content)
        _put_row(book, draft, edit.seq, replace(row, edited=number))
    _revise(book, draft, edit.seq, number)
    draft.appends.append(_line("message_edited", book, number, record, edit.by, edit.at_ms))
    book.edits.under_way.add(row.entry)
    return Plan([book.request(draft, chain)], 1, _receipt(number, record))


def plan_undo_edit(book: SlotBook, undo: UndoEdit, chain: Chain) -> Plan:
    """Plan to put a row back as it was before an edit. As `plan_edit`.

    Raises:
        EditRefusedError: Nothing is planned.
    """
    number, edit = undo.edit, book.edits.kept.get(undo.edit)
    if edit is None:
        raise _refused(book, "unknown", f"nothing is kept of an edit {number}")
    row = edit.row
    if edit.undone_act == undo.act:
        return Plan([Request(chain=chain)], 1, _receipt(number, edit))
    _check_free(book)
    if _is_moving(book, row):
        return Plan([Request(chain=chain)], 1)
    if edit.undone_ms is not None:
        raise _refused(book, "undone", f"edit {number} was undone by {edit.undone_by}")
    _check_still(book, number, edit)
    draft = Draft()
    if edit.removes:
        _put_back(book, draft, edit.seq, row)
    elif not _may_be_forked(book, edit.seq):
        draft.deletes.append(Delete("bodies", (book.slot, number)))
    _put_row(book, draft, edit.seq, row)
    undone = replace(edit, undone_act=undo.act, undone_by=undo.by, undone_ms=undo.at_ms)
    book.edits.kept[number] = undone
    draft.put("edits", (book.slot, number), undone)
    _revise(book, draft, edit.seq, book.take_entry())
    draft.appends.append(_line("edit_undone", book, number, edit, undo.by, undo.at_ms))
    book.edits.under_way.add(row.entry)
    return Plan([book.request(draft, chain)], 1, _receipt(number, undone))


def check_words(row: Entry, said: tuple[Block, ...], blocks: tuple[Block, ...]) -> None:
    """Refuse words that a row of this kind may not have in the place of what it says.

    Raises:
        InvalidMessageError: It names the block.
    """
    calls = [(block.id, block.name) for block in said if isinstance(block, ToolUseBlock)]
    results = [block.tool_use_id for block in said if isinstance(block, ToolResultBlock)]
    allowed: tuple[type, ...] = (TextBlock, ImageBlock, AudioBlock, DocumentBlock)
    if row.role == "assistant" and row.turn is not None:
        allowed = (TextBlock, ThinkingBlock, ToolUseBlock)
    elif row.role == "results":
        allowed = (ToolResultBlock,)
    for place, block in enumerate(blocks):
        if not isinstance(block, allowed):
            kinds = "text or attachments"
            if row.role != "user":
                kinds = "tool results" if results else "a reply's kind"
            raise InvalidMessageError(f"blocks[{place}]", f"must be of {kinds} at this place")
        if isinstance(block, ThinkingBlock) and block not in said:
            raise InvalidMessageError(
                f"blocks[{place}]", "is reasoning that the model did not sign; leave it out"
            )
    if calls != [(block.id, block.name) for block in blocks if isinstance(block, ToolUseBlock)]:
        raise InvalidMessageError(
            "blocks", "must have the same tool calls in the same order, for their results follow"
        )
    if results != [block.tool_use_id for block in blocks if isinstance(block, ToolResultBlock)]:
        raise InvalidMessageError(
            "blocks", "must have a result for each of the calls before it, in their order"
        )
    if not calls and not results and not any(map(_says_something, blocks)):
        raise InvalidMessageError("blocks", "must hold text that is not blank, or be None")


# -- pruning ---------------------------------------------------------------------------------


def next_forget_ms(book: SlotBook) -> int | None:
    """When the oldest edit is to be forgotten; None where there is none."""
    return min((edit.at_ms + KEPT_MS for edit in _forgettable(book).values()), default=None)


def plan_forget(book: SlotBook, chain: Chain, now_ms: int) -> list[Request]:
    """Plan to delete the oldest edit that is due, with the earlier words; nothing where none is."""
    for number, edit in _forgettable(book).items():
        if edit.at_ms + KEPT_MS <= now_ms:
            draft, row = Draft(), edit.row
            draft.deletes.append(Delete("edits", (book.slot, number)))
            words = row.entry if row.edited is None else row.edited
            is_own = row.origin is None or row.edited is not None
            if edit.undone_ms is None and is_own and not _may_be_forked(book, edit.seq):
                draft.deletes.append(Delete("bodies", (book.slot, words)))
            del book.edits.kept[number]
            book.write_lease(draft)
            return [whole(book.request(draft, chain))]
    return []


def _forgettable(book: SlotBook) -> dict[int, Edit]:
    """The edits that are no more needed but for an undo."""
    rows = () if book.carried is None else book.carried.rows
    return {
        number: edit
        for number, edit in book.edits.kept.items()
        # What came back to its place is told by its edit alone, until a request carries it.
        if (edit.undone_ms is None or not edit.removes or covers(rows, edit.seq))
        and edit.row.entry not in book.edits.under_way
    }


# -- parts -----------------------------------------------------------------------------------


def _check_free(book: SlotBook) -> None:
    lease = book.lease
    if book.is_leased:
        who = f"turn {lease.turn} of {lease.agent!r}"
        raise _refused(book, "leased", f"{who} lives on it; wait until it has ended or is held")
    # One that cannot be read says so by its name; nothing could be put over it.
    book.store.get("revisions", (book.slot,))


def _row_at(book: SlotBook, seq: int) -> Entry | None:
    row = None if seq == 0 or book.is_cut(seq) else book.store.get("slots", (book.slot, seq))
    entry: Entry | None = None if row is None else row.record
    return entry


def _is_moving(book: SlotBook, row: Entry) -> bool:
    """Whether something on its way writes this row, so that what is stored is not what it is."""
    return row.entry in book.edits.under_way or row.message in book.gone


def _check_removable(book: SlotBook, seq: int, row: Entry) -> None:
    if row.role == "results" or any(
        isinstance(block, ToolUseBlock) for block in read_content(book.store, book.slot, row)
    ):
        raise _refused(book, "pair", f"place {seq} is half of a tool call and its results")
    for agent in {row.agent or book.slot, *book.wakes}:
        book.attach(agent)
        turn = book.open_turn(agent)
        if row.entry in book.wakes[agent] or (turn is not None and row.entry in turn.answers):
            raise _refused(book, "asked", f"a turn of {agent!r} is asked for by place {seq}")
        if book.has_work(agent) and not _is_answerable_without(book, seq, agent):
            raise _refused(book, "asked", f"a turn of {agent!r} is to answer place {seq}")


def _is_answerable_without(book: SlotBook, seq: int, agent: str) -> bool:
    """Whether the last row that would be left is anything but the agent's own words."""
    for place, entry in read_standing(book.store, book.slot, book.lease.cuts, reverse=True):
        if place != seq and entry.role != "marker":
            return entry.role != "assistant" or not speaks(agent, entry)
    return False


def _check_still(book: SlotBook, number: int, edit: Edit) -> None:
    """Refuse to undo an edit that something came behind."""
    now = _row_at(book, edit.seq)
    if book.is_cut(edit.seq):
        raise _refused(book, "superseded", f"a rewind took out what edit {number} was of")
    if edit.removes:
        known = book.store.get("ids", (book.slot, edit.row.message))
        stands = now is None and (known is None or known.record.state == "removed")
    else:
        stands = now is not None and now.edited == number
    if not stands:
        raise _refused(
            book, "superseded", f"what edit {number} was of is something else since; undo that"
        )


def _take_out(book: SlotBook, draft: Draft, seq: int, row: Entry) -> None:
    draft.deletes.append(Delete("slots", (book.slot, seq)))
    _say(book, draft, row, seq=None)
    book.next_rows.drop(seq)
    unread = book.unread.pop(row.entry, None)
    if unread is not None and row.subject is not None:
        book.forget_subject(row.entry, row)


def _put_back(book: SlotBook, draft: Draft, seq: int, row: Entry) -> None:
    _say(book, draft, row, seq=seq)
    book.next_rows.restore(seq)
    if row.turn is None and row.origin is None and book.reading(seq) == "unread":
        book.unread[row.entry] = (seq, row)
        if row.subject is not None and book.subject_of(row) not in book.subjects:
            # A newer one of its subject went behind meanwhile, and is the newest.
            book.remember(row.entry, row)


def _put_row(book: SlotBook, draft: Draft, seq: int, row: Entry) -> None:
    draft.put("slots", (book.slot, seq), row)
    if row.entry in book.unread:
        book.unread[row.entry] = (seq, row)


def _say(book: SlotBook, draft: Draft, row: Entry, *, seq: int | None) -> None:
    """What the message's id says; replies have none, and what a fork took over has it elsewhere."""
    known = book.store.get("ids", (book.slot, row.message))
    if known is not None and known.record.entry == row.entry:
        state: Any = "removed" if seq is None else "slot"
        said: MessageId = replace(known.record, state=state, seq=seq)
        draft.put("ids", (book.slot, row.message), said)


def _revise(book: SlotBook, draft: Draft, seq: int, number: int) -> None:
    draft.put("revisions", (book.slot,), book.edits.revise(seq, number))
    for key, _ in book.store.scan("contexts", (book.slot,)):
        if int(key[-1]) >= seq:
            # It stands for nothing any more, and holds the earlier words.
            draft.deletes.append(Delete("contexts", key))
    book.write_lease(draft)


def _may_be_forked(book: SlotBook, seq: int) -> bool:
    """Whether a fork may name the words at a place."""
    return seq <= book.forked or any(scan_forks(book.store, book.slot))


def _says_something(block: Any) -> bool:
    if isinstance(block, TextBlock):
        return not is_blank(block.text)
    return isinstance(block, AttachmentBlock)


def _receipt(number: int, edit: Edit) -> EditReceipt:
    return EditReceipt(number, edit.row.message, edit.seq)


def _refused(book: SlotBook, reason: Any, why: str) -> EditRefusedError:
    return EditRefusedError(
        f"the transcript of {book.slot!r} was not edited: {why}; nothing was changed; see the "
        "transcript and its edits for what there is",
        slot=book.slot,
        reason=reason,
    )


def _line(event: str, book: SlotBook, number: int, edit: Edit, by: str, at_ms: int) -> Append:
    does = "removed" if edit.removes else "changed"
    text = f"edit {number} of place {edit.seq} ({does}) by {by}"
    return Append("log", encode(LogLine(event=event, agent=book.slot, text=text, at_ms=at_ms)))
