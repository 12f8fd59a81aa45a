"""Listing and replaying what was not handled: the runtime's part between its store and the kernel.

Invariants:
    I1  A replay is counted in its row, by a guarded commit, before its message is sent; so of
        several that race, in this process or another, one sends.
    I2  A replay that nobody took is counted back, under the same guard.

Runs in: the caller's task, on the loop thread.
"""

from __future__ import annotations

from typing import Any

import msgspec
import trio

from abeyance.storage.codec import encode
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.store import Append, Committed, Guard, Put, Request, Store
from abeyance.storage.tables.waits import LogLine

from .core.deadletters import REPLAYS_MAX
from .core.errors import (
    ActorDeadError,
    MailboxFullError,
    MessageNotKeptError,
    ReplaysExceededError,
    UnknownEntryError,
)
from .domain.archive_book import (
    TABLE_OF,
    ArchiveBook,
    ArchivedMessage,
    Kind,
    archived,
    check_number,
    check_page,
)


def read_page(
    archive: ArchiveBook, kind: Kind, before: int | None, limit: int
) -> tuple[ArchivedMessage, ...]:
    """A page of rows, the newest first."""
    check_page(before, limit)
    return archive.listing(kind, before=before, limit=limit)


def actor_of(store: Store, kind: Kind, number: int) -> str:
    """Whose mailbox a row's message was in.

    Raises:
        InvalidInputError: The number is none.
        UnknownEntryError, MessageNotKeptError: No such row, or it cannot be trusted.
    """
    check_number(number, "id")
    actor: str = _read(store, kind, number).record.actor
    return actor


async def replay(
    archive: ArchiveBook,
    store: Store,
    journal: Any,
    kind: Kind,
    number: int,
    by: str,
    now_ms: int,
) -> ArchivedMessage:
    """Count a replay in its row, then send its message. See `Runtime.replay_dead_letter`."""
    key = (check_number(number, "id"),)
    table = TABLE_OF[kind]
    await trio.lowlevel.checkpoint()
    while True:
        row = _read(store, kind, number)
        record = row.record
        if record.replays >= REPLAYS_MAX:
            raise ReplaysExceededError(
                f"{kind} {number} was replayed by {record.replayed_by} already; nothing was sent; "
                "see what became of it",
                entry=number,
                replays=record.replays,
            )
        try:
            entry_id = archive.restore(kind, number, record)
        except LookupError:
            raise MessageNotKeptError(
                f"the message of {kind} {number} could not be stored, and the process that had it "
                "has ended; nothing was sent; its row has it as text",
                entry=number,
            ) from None
        # Before the count, so that a replay to nobody leaves no trace.
        archive.check_receiver(kind, entry_id)
        counted = msgspec.structs.replace(
            record, replays=record.replays + 1, replayed_by=by or None, replayed_ms=now_ms
        )
        line = LogLine(event="replayed", text=f"{kind} {number} by {by}", at_ms=now_ms)
        request = Request(
            guards=(Guard(table, key, row.counter),),
            puts=(Put(table, key, encode(counted)),),
            appends=(Append("log", encode(line)),),
        )
        with trio.CancelScope(shield=True):
            outcome = await journal.ask(request)
            if not isinstance(outcome, Committed):
                continue  # Somebody else was faster; the row says what it is now.
            try:
                archive.replay(kind, entry_id)
            except (ActorDeadError, MailboxFullError):
                await journal.ask(
                    Request(
                        guards=(Guard(table, key, row.counter + 1),),
                        puts=(Put(table, key, encode(record)),),
                    )
                )
                raise
        return archived(kind, number, row._replace(record=counted))


def _read(store: Store, kind: Kind, number: int) -> Any:
    try:
        row = store.get(TABLE_OF[kind], (number,))
    except UnreadableRecordError as error:
        raise MessageNotKeptError(
            f"the row of {kind} {number} cannot be trusted ({error.cause}); nothing was sent; see "
            "'abeyance check'",
            entry=number,
        ) from error
    if row is None:
        raise UnknownEntryError(
            f"there is no {kind} {number}; nothing was sent; list those there are", entry=number
        )
    return row
