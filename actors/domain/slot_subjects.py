"""The removers: how a message that nobody read makes room for a newer one, or is taken back.

No actor, no await. A newer message of the same subject (and author, channel and agent) takes an
unread one's number and place; one that was read stays, and the newer one goes behind. What is taken
back is gone with its content, and with the turn that only it asked for.

Invariants:
    I1  Only what `reading` calls unread is taken out, wherever it is: in the inbox, or in the slot.
    I2  One request accepts the newer message and takes the older one out.
    I3  A turn that was asked for runs, also for the newer message: only taking back withdraws.
    I4  What refuses is asked before anything is planned.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec.structs import replace

from abeyance.storage.codec import encode
from abeyance.storage.store import Chain, Delete, Guard, Put, Request
from abeyance.storage.tables.slots import Entry, Inboxed, MessageId, Wake

from .attachment_rows import NO_USES
from .errors import MessageReadError, UnknownMessageError
from .slot_accepts import Accepts
from .slot_arrivals import remaining
from .slot_book import SlotBook
from .slot_draft import Draft
from .slot_forms import inboxed, placed
from .slot_lost import check_kept
from .slot_messages import Accept, Receipt, Retract, TurnWithdrawn, taken
from .slot_turns import Plan


class Retraction(NamedTuple):
    """What taking a message back came to."""

    receipt: Receipt
    agent: str
    withdrawn: TurnWithdrawn | None
    """For the agent, where its turn has nothing left to answer."""


def plan_accept(
    book: SlotBook, accept: Accept, chain: Chain, into: Accepts
) -> tuple[Request | None, Receipt]:
    """Plan an acceptance: in the place of an unread message of its subject, or behind the others.

    Args:
        into: Takes its rows where it goes behind the others.
    Returns:
        The request that puts it in another's place, or None where its rows are in `into`.
    Raises:
        InboxFullError, RequestTooLargeError: No room for it; nothing is planned.
    """
    if accept.subject is not None:
        older = book.subjects.get(book.subject_of(accept))
        if older is not None and _is_unread(book, older):
            return _replace(book, accept, older, chain)
    entry, seq = book.accept(accept, into)
    return None, taken(accept.message, entry, seq)


def _is_unread(book: SlotBook, entry: int) -> bool:
    """Whether a message is where a newer one may take its place; the slot of a host that is
    quiesced takes none."""
    if entry in book.inbox:
        return True
    seq = book.unread.get(entry, (0, None))[0]
    if book.is_deferring or seq == 0:
        return False
    return not book.is_cut(seq) and book.reading(seq) == "unread"


def _replace(book: SlotBook, accept: Accept, entry: int, chain: Chain) -> tuple[Request, Receipt]:
    book.check_size(accept.body)
    waiting = book.inbox.get(entry)
    if waiting is not None:
        book.check_replaces(waiting, len(accept.body.body))
    uses = book.uses(accept, entry) if accept.named else NO_USES
    book.attach(accept.agent)
    slot, wakes = book.slot, book.wakes[accept.agent]
    older = waiting if waiting is not None else book.unread[entry][1]
    row = replace(inboxed(accept), wake=accept.wake or (waiting is not None and waiting.wake))
    seq = None if waiting is not None else book.unread[entry][0]
    known = MessageId(
        entry=entry,
        state="inbox" if seq is None else "slot",
        seq=seq,
        body_crc=accept.body_crc,
    )
    place = (slot, entry)
    landed = (
        Put("inbox", place, encode(row))
        if seq is None
        else Put("slots", (slot, seq), encode(placed(slot, entry, row)))
    )
    puts: tuple[Put, ...] = (
        Put("ids", (slot, accept.message), encode(known)),
        Put("ids", (slot, older.message), encode(_gone(book, entry, older, accept.message))),
        Put("bodies", place, accept.body),
        landed,
    )
    wake = None
    if entry in wakes or (accept.wake and not _is_answered(book, accept.agent, entry)):
        wake = Wake(
            reason="message",
            author=accept.author,
            message=accept.message,
            channel=accept.channel,
            at_ms=accept.at_ms,
        )
        puts += (Put("wakes", (accept.agent, entry), encode(wake)),)
    # Everything is encoded; from here on nothing refuses.
    known_by = Guard("ids", (slot, accept.message), 0)
    guards: tuple[Guard, ...] = (book.owner, known_by, *uses.guards)
    puts += uses.puts
    if waiting is not None:
        words = book.reworded.get(entry, 1)
        guards = (*guards, Guard("bodies", place, words))
        book.reworded[entry] = words + 1
        book.inbox[entry] = row
        book.inbox_bytes += row.body_bytes - waiting.body_bytes
    else:
        assert seq is not None
        book.unread[entry] = (seq, row)
    if wake is not None:
        wakes[entry] = wake
    book.gone[older.message] = (entry, "replaced")
    state: Any = "accepted" if seq is None else "stored"
    receipt = Receipt(accept.message, entry, state, replaces=older.message)
    return Request(guards, puts, _words_gone(book, entry), (), chain), receipt


def plan_retract(book: SlotBook, retract: Retract, known: MessageId | None, chain: Chain) -> Plan:
    """Plan to take a message back.

    Args:
        known: What its id's row says, or will say; None where there is none.
    Returns:
        The plan; its answer is a `Retraction`, or a `Receipt` where there is nothing to do, or None
        where it is to be planned again once this is in.
    Raises:
        UnknownMessageError: No such message; nothing is planned.
        MessageReadError: It was read, or may be any instant; nothing is planned.
    """
    id_, slot = retract.message, book.slot
    gone = book.gone.get(id_)
    if gone is not None:
        # On its way out already; a barrier comes in behind that.
        return Plan([Request(chain=chain)], 1, Receipt(id_, *gone))
    if known is None:
        raise UnknownMessageError(
            f"nobody sent a message {id_!r} to {slot!r}; nothing was done; see the inbox and the "
            "transcript for what there is",
            slot=slot,
        )
    entry, waiting = known.entry, book.inbox.get(known.entry)
    if entry in book.edits.under_way:
        return Plan([Request(chain=chain)], 1)
    if known.state in ("dead", "rewound", "removed", "replaced", "retracted"):
        state: Any = known.state
        return Plan([], 0, Receipt(id_, entry, state, known.cause, by=known.by))
    check_kept(book.lost, entry)
    if waiting is None and known.state == "inbox" and entry not in book.unread:
        # It joins, lands, or is given up by what is on its way; once that is in, rows say which.
        return Plan([Request(chain=chain)], 1)
    row = waiting if waiting is not None else _unread_row(book, id_, known)
    agent = row.agent or slot
    book.attach(agent)
    draft = Draft()
    if waiting is not None:
        del book.inbox[entry]
        book.inbox_bytes -= waiting.body_bytes
        draft.deletes.append(Delete("inbox", (slot, entry)))
    else:
        seq, _ = book.unread.pop(entry)
        draft.deletes.append(Delete("slots", (slot, seq)))
    draft.deletes += [Delete("bodies", (slot, entry)), *_words_gone(book, entry)]
    draft.put("ids", (slot, id_), _gone(book, entry, row, None))
    if row.subject is not None:
        book.forget_subject(entry, row)
    withdrawn = _withdraw(book, draft, agent, entry, retract.at_ms)
    book.gone[id_] = (entry, "retracted")
    # Rows are deleted: the head says that their numbers were used.
    book.write_lease(draft)
    answer = Retraction(Receipt(id_, entry, "retracted"), agent, withdrawn)
    return Plan([book.request(draft, chain)], 1, answer)


def _unread_row(book: SlotBook, id_: str, known: MessageId) -> Entry | Inboxed:
    """The row of a message in the slot, or a refusal because it was read."""
    seq, row = book.unread.get(known.entry, (known.seq, None))
    reading = "read" if seq is None else book.reading(seq)
    if row is not None and reading == "unread":
        return row
    how = {
        "read": "was carried by a request that was sent",
        "in_flight": "is carried by the request of a turn that lives",
        "forked": "is what a conversation began with",
    }.get(reading, "is out of reach")
    raise MessageReadError(
        f"message {id_!r} {how}, so it cannot be taken back; nothing was done, it stays in the "
        f"transcript of {book.slot!r}; send what corrects it",
        id=id_,
        reading=reading,
    )


def _gone(book: SlotBook, entry: int, row: Entry | Inboxed, by: str | None) -> MessageId:
    """What the id of a message that is taken out says from now on."""
    if isinstance(row, Inboxed):
        crc = row.body_crc
    else:
        known = book.store.get("ids", (book.slot, row.message))
        assert known is not None
        crc = known.record.body_crc
    state: Any = "retracted" if by is None else "replaced"
    return MessageId(entry=entry, state=state, body_crc=crc, by=by)


def _words_gone(book: SlotBook, entry: int) -> tuple[Delete, ...]:
    """The words that edits gave a message that is taken out: they go with it."""
    edits = book.edits.kept.items()
    return tuple(
        Delete("bodies", (book.slot, number))
        for number, edit in edits
        if edit.row.entry == entry and not edit.removes and edit.undone_ms is None
    )


def _is_answered(book: SlotBook, agent: str, entry: int) -> bool:
    """Whether the agent's open turn is to answer this message already."""
    turn = book.open_turn(agent)
    return turn is not None and entry in turn.answers


def _withdraw(
    book: SlotBook, draft: Draft, agent: str, entry: int, at_ms: int
) -> TurnWithdrawn | None:
    """Take back what a message asked for: its wake, or its part in a held turn; with its last part
    that turn has ended, before it made a request that anybody read."""
    wakes = book.wakes[agent]
    if wakes.pop(entry, None) is not None:
        draft.deletes.append(Delete("wakes", (agent, entry)))
    number, row = book.open_number(agent), book.turns.get(agent)
    if number is None or row is None or entry not in row.record.answers:
        return None
    answers = tuple(each for each in row.record.answers if each != entry)
    arrivals = remaining(row.record.arrivals, answers)
    turn = replace(row.record, answers=answers, arrivals=arrivals)
    if answers or wakes or turn.round > 0:
        draft.put_counted("turns", (agent, number), row, turn)
        return None
    head = book.heads[agent]
    ended = replace(
        turn,
        state="cancelled",
        held=None,
        ended_ms=at_ms,
        error="what it was to answer was taken back before a request carried it",
    )
    draft.put_counted("turns", (agent, number), row, ended)
    draft.put_counted("heads", (agent,), head, replace(head.record, open_turn=None))
    del book.turns[agent]
    return TurnWithdrawn(number)
