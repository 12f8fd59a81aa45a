"""A message that the store will not take into its slot: whose fault it is, and how it leaves.

What is malformed is refused before it is accepted, and a full disk refuses every row alike. Left is
a row that is refused by name: one that cannot be read where it is to be written, or that the store
says is none. It would refuse every commit that moves its message, the turn's own among them. So
does content that cannot be read, which every move guards; behind it, no turn could be compiled.

Invariants:
    I1  A message leaves for the dead letters in one commit, once it was refused so often; whatever
        is behind it keeps its order. One whose content cannot be read leaves at its first refusal,
        with every other such of that commit: a damaged page has many.
    I2  Nothing is read or written that could be refused for the same reason.

No actor, no await.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, Final

from abeyance.actors.core.logs import Log
from abeyance.storage import codec
from abeyance.storage.codec import encode
from abeyance.storage.errors import InvalidRequestError, StorageError, UnreadableRecordError
from abeyance.storage.store import Append, Chain, Delete, NotStored, Refused, Request
from abeyance.storage.tables.fields import REASON_CHARS_MAX
from abeyance.storage.tables.kept import MESSAGE_CHARS_MAX, DeadLetter
from abeyance.storage.tables.slots import Inboxed, MessageId

from .archive_book import pack_message
from .ingress import clean_text
from .slot_again import again_message
from .slot_book import SlotBook
from .slot_draft import Draft
from .slot_long import whole
from .slot_rows import find_body, no_body

_logger = Log(__name__)

REFUSALS_MAX: Final = 3
"""So often a message is refused by name before it leaves."""
_OP: Final = re.compile(r"batch\[\d+\]\.(puts|deletes)\[(\d+)\]")


def cause_of(outcome: Refused | NotStored) -> Exception | None:
    """What a request was refused for by name, if it was; the guard of content that is not there
    does not hold."""
    if isinstance(outcome, NotStored):
        return outcome.error
    found = next((each for each in outcome.refusals if each.guard.table == "bodies"), None)
    return None if found is None else no_body(found.guard.key)


def blame(
    book: SlotBook,
    request: Request,
    error: Exception,
    refusals: dict[int, int],
    chain: Chain,
    now_ms: int,
) -> list[Request] | None:
    """Count a refusal against the message that it was for.

    Args:
        book: Read anew since.
        refusals: How often each was refused so far; counted on.
    Returns:
        None where it was for none; else what is to be stored ahead of everything: the end of one
        that was refused so often.
    """
    entry = culprit(book, request, error)
    if entry is None:
        return None
    row = book.inbox[entry]
    refusals[entry] = refusals.get(entry, 0) + 1
    if (
        refusals[entry] == 1
        and isinstance(error, UnreadableRecordError)
        and error.table == "bodies"
    ):
        lost = _without_words(book, request)
        if lost:
            return [_lose(book, each, why, chain, now_ms) for each, why in lost]
    if refusals[entry] > REFUSALS_MAX + 1:
        # Not even its end is taken: then it is the store's fault, and waited out.
        return None
    _logger.warning(
        "%s was refused %d times on its way into slot %r (%d are the most): %s",
        named(row),
        refusals[entry],
        book.slot,
        REFUSALS_MAX,
        error,
        agent=row.agent,
    )
    if refusals[entry] >= REFUSALS_MAX:
        # Once more without the row of its id, where that is what is refused.
        names = refusals[entry] == REFUSALS_MAX
        reason = f"refused {REFUSALS_MAX} times: {error}"
        return [plan_give_up(book, entry, reason, chain, now_ms, names=names)]
    return []


def _without_words(book: SlotBook, request: Request) -> list[tuple[int, StorageError]]:
    """Of what a request was to move or replace, what has no content that can be read; and why."""
    found = [(e, find_body(book.store, book.slot, e)) for e in _waiting_in(book, request)]
    return [(entry, why) for entry, why in found if isinstance(why, StorageError)]


def _lose(book: SlotBook, entry: int, why: StorageError, chain: Chain, now_ms: int) -> Request:
    row, reason = book.inbox[entry], f"its content cannot be read: {why}"
    _logger.warning(
        "%s does not land in slot %r: %s", named(row), book.slot, reason, agent=row.agent
    )
    return plan_give_up(book, entry, reason, chain, now_ms, names=True)


def culprit(book: SlotBook, request: Request, error: Exception) -> int | None:
    """The entry in the inbox that a request was refused for, if it was for one.

    Args:
        book: Read anew since: what the request was to move waits in it again.
        request: What was refused.
    """
    entry: Any = None
    if isinstance(error, UnreadableRecordError):
        entry = _entry_at(book, request, error.table, error.key)
    elif isinstance(error, InvalidRequestError):
        found = _OP.match(error.field)
        if found is not None:
            ops: Any = getattr(request, found[1])
            op = ops[int(found[2])]
            entry = _entry_at(book, request, op.table, op.key)
    return entry if entry in _waiting_in(book, request) else None


def _waiting_in(book: SlotBook, request: Request) -> list[int]:
    """What of the inbox a request was to move, or to replace by something newer."""
    ops: tuple[Any, ...] = (*request.deletes, *request.puts)
    named = sorted({int(op.key[-1]) for op in ops if op.table == "inbox"})
    return [entry for entry in named if entry in book.inbox]


def _entry_at(book: SlotBook, request: Request, table: str, key: Any) -> Any:
    match table:
        case "ids":
            return next((e for e, row in book.inbox.items() if row.message == key[-1]), None)
        case "inbox" | "bodies" | "wakes":
            return key[-1]
        case "slots":
            values = [put.value for put in request.puts if (put.table, put.key) == (table, key)]
            with suppress(ValueError, KeyError, TypeError):
                return codec.unpack(values[0].body)["entry"] if values else None
    return None


def plan_give_up(
    book: SlotBook, entry: int, why: str, chain: Chain, now_ms: int, *, names: bool
) -> Request:
    """Plan the end of a message that cannot land: out of the inbox, among the letters.

    Args:
        names: Whether the row of its id says that it is dead.
    """
    row, draft = book.inbox.pop(entry), Draft()
    book.inbox_bytes -= row.body_bytes
    draft.deletes.append(Delete("inbox", (book.slot, entry)))
    if row.wake:
        # Of an agent that is not added yet, too: nothing of it is read here, nor when it is added
        # ahead of this commit.
        draft.deletes.append(Delete("wakes", (row.agent, entry)))
        book.unwoken |= {entry}
        book.wakes.get(row.agent, {}).pop(entry, None)
    reason = clean_text(why, REASON_CHARS_MAX)
    if names and _is_readable(book, row):
        dead = MessageId(entry=entry, state="dead", body_crc=row.body_crc, cause=reason)
        draft.put("ids", (book.slot, row.message), dead)
    letter = DeadLetter(
        actor=f"slot:{book.slot}",
        reason=reason,
        message=clean_text(named(row), MESSAGE_CHARS_MAX),
        body=_packed(book, entry, row, now_ms),
        at_ms=now_ms,
    )
    draft.appends.append(Append("dead_letters", encode(letter)))
    book.write_lease(draft)
    return whole(book.request(draft, chain))


def named(row: Inboxed) -> str:
    """A message as a log line and a dead letter name it."""
    return f"message {row.message!r} by {row.author!r}"


def _is_readable(book: SlotBook, row: Inboxed) -> bool:
    """Whether the row of its id can be put; one that cannot be read stays, and holds its id."""
    try:
        book.store.get("ids", (book.slot, row.message))
    except StorageError:
        return False
    return True


def _packed(book: SlotBook, entry: int, row: Inboxed, now_ms: int) -> bytes | None:
    blocks = find_body(book.store, book.slot, entry)
    if isinstance(blocks, StorageError):
        return None
    return pack_message(
        again_message(row.agent, row.author, row.channel, blocks, now_ms, wake=row.wake)
    )
