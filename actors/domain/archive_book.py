"""The archive: what the kernel could not deliver, as rows; and the door to replays of them.

The kernel keeps its newest dead letters and quarantined messages in memory. Here each also becomes
a row, with its cause, so that it is there after the process. A message that is plain data is stored
as it is; any other stays with this process, and its row has it as text.

Invariants:
    I1  An entry that cannot be told to the archive's actor, at the end of a runtime, is written by
        `ArchiveBook.close`.
    I2  Nothing here is recorded by way of itself: what ends in the archive's own mailbox is written
        at the close.

The kernel's sinks are called on any thread, the rest on the loop thread.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from abeyance.actors.core import (
    ActorSystem,
    DeadLetter,
    Quarantined,
    TrioActorRef,
)
from abeyance.actors.core.deadletters import Ledger
from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.core.logs import Log
from abeyance.storage import codec
from abeyance.storage.errors import StorageError
from abeyance.storage.store import Append, Delete, NotStored, Request, Store
from abeyance.storage.tables import kept as rows
from abeyance.storage.tables.fields import REASON_CHARS_MAX

from .errors import InvalidInputError
from .ingress import clean_text
from .protocol import Requests

NAME: Final = "archive"
HAND_OVER_MAX: Final = 64
LIVE_MAX: Final = 1_000
"""As many as the kernel keeps in memory."""
CLOSE_BATCH: Final = 256
PAGE_MAX: Final = 1_000
"""Rows of one listing."""
NUMBER_MAX: Final = 2**63 - 1

Kind: TypeAlias = Literal["dead_letter", "quarantine"]
TABLE_OF: Final[dict[Kind, str]] = {"dead_letter": "dead_letters", "quarantine": "quarantine"}

_logger = Log(__name__)


class Keep(NamedTuple):
    """Tell: append an entry that the kernel recorded."""

    kind: Kind
    entry: DeadLetter | Quarantined


class ForgetDelivery(NamedTuple):
    """Tell: an act that earlier processes died of was handled."""

    actor: str
    act: str


@dataclass(frozen=True, slots=True)
class ArchivedMessage:
    """A row of the dead letters or of the quarantine.

    Attributes:
        id: Its number, for ever.
        kind: `dead_letter` or `quarantine`.
        actor: Whose mailbox the message was in.
        reason: Why it is a dead letter; of a quarantined one the class of the error, and
            `unreadable` where the row cannot be trusted.
        message: The message as text, cut off where it is long.
        replayable: Whether the message itself is there, in the row or in this process.
        error: Of a quarantined one the traceback, else empty; of an unreadable row what is wrong.
        incarnation: Of a quarantined one whose it was, else None.
        deliveries: Of a quarantined one how often it was delivered, else None.
        origin_kind: Of a replayed message the kind of the row it comes from, else None.
        origin: And that row's number.
        replays: How often this one was replayed.
        at_ms: When it ended here, in epoch milliseconds.
    """

    id: int
    kind: Kind
    actor: str
    reason: str
    message: str
    replayable: bool
    error: str
    incarnation: int | None
    deliveries: int | None
    origin_kind: str | None
    origin: int | None
    replays: int
    at_ms: int


def pack_message(message: Any) -> bytes | None:
    """A message as bytes that are the message again when read; None where there are none."""
    try:
        packed = codec.pack(message)
        if len(packed) > rows.MESSAGE_BYTES_MAX or not _same(codec.unpack(packed), message):
            return None
    except (TypeError, ValueError, OverflowError, RecursionError, StorageError):
        return None
    return packed


def _same(one: Any, other: Any) -> bool:
    """Whether plain data came back as it was: a tuple comes back as a list, and is not the same."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return (
            len(one) == len(other)
            and all(map(_same, one, other))
            and all(_same(value, other[key]) for key, value in one.items())
        )
    if isinstance(one, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


def message_text(message: Any) -> str:
    """A message for a person: on one line, bounded. Does not raise."""
    try:
        text = repr(message)
    except Exception as error:  # noqa: BLE001 - anybody may have written it.
        text = f"<{type(message).__name__}, whose repr failed: {type(error).__name__}>"
    return clean_text(text, rows.MESSAGE_CHARS_MAX)


def traceback_text(text: str) -> str:
    """A traceback's lines without control characters, its middle left out where it is long."""
    cleaned = "\n".join(clean_text(line, 1_000) for line in text.splitlines())
    most = rows.TRACEBACK_CHARS_MAX
    if len(cleaned) <= most:
        return cleaned
    head = most // 4
    return f"{cleaned[:head]}\n…\n{cleaned[-(most - head - 3) :]}"


class ArchiveBook:
    """What the archive actor and whoever looks share; outlives the actor.

    Args:
        store: For reading, on the loop thread.
        system: Whose dead letters and quarantine are kept.
    """

    def __init__(self, store: Store, system: ActorSystem) -> None:
        self._store = store
        self._system = system
        self._ref: TrioActorRef[Any] | None = None
        self._live: dict[Kind, OrderedDict[int, int]] = {kind: OrderedDict() for kind in TABLE_OF}
        self._rows: dict[Kind, OrderedDict[int, int]] = {kind: OrderedDict() for kind in TABLE_OF}
        self._left: deque[Request] = deque()
        self._lock = Lock()
        self.handed_over: set[int] = set()
        """Identities of messages that are with the journal, which outlives the archive's actor."""
        self.out: Requests | None = None
        """What stores those."""
        self.lost = 0
        """Entries that are in memory only: the store refused them for good, or may have them."""

    # -- the kernel's sinks, any thread

    def attach(self, ref: TrioActorRef[Any]) -> None:
        """From now on the kernel's entries become rows."""
        self._ref = ref
        self._system.dead_letters.add_sink(self.keep_dead_letter)
        self._system.quarantine.add_sink(self.keep_quarantined)

    def keep_dead_letter(self, entry: DeadLetter) -> None:
        self._tell(Keep("dead_letter", entry), entry.actor, entry.message)

    def keep_quarantined(self, entry: Quarantined) -> None:
        self._tell(Keep("quarantine", entry), entry.actor, entry.message)

    def forget_delivery(self, actor: str, act: str) -> None:
        self._tell(ForgetDelivery(actor, act), "", None)

    def _tell(self, message: Keep | ForgetDelivery, actor: str, content: Any) -> None:
        if actor == NAME:
            if isinstance(content, Keep | ForgetDelivery) and id(content) not in self.handed_over:
                self.leave(self.request_of(content))
            return
        try:
            if self._ref is not None:
                self._ref.tell(message)
                return
        except AbeyanceError:
            pass  # Its end has come, or a flood went past its bound.
        self.leave(self.request_of(message))

    def leave(self, request: Request) -> None:
        """Leave a request to the close. Any thread."""
        with self._lock:
            self._left.append(request)

    def close(self) -> None:
        """Stop taking entries, and write what was left. On the reading thread, without a loop."""
        self._system.dead_letters.remove_sink(self.keep_dead_letter)
        self._system.quarantine.remove_sink(self.keep_quarantined)
        out, self.out = self.out, None
        if out is not None and not out.taken:  # The journal was killed with it in its queue.
            self._left.extendleft(reversed(out))
        while self._left:
            batch = [self._left.popleft() for _ in range(min(CLOSE_BATCH, len(self._left)))]
            try:
                outcomes = self._store.commit(*batch)
            except StorageError as error:  # The store is lost or closed: that is told elsewhere.
                outcomes = [NotStored(error)] * len(batch)
            for outcome in outcomes:
                if isinstance(outcome, NotStored):
                    self.lost += 1
                    _logger.error("an entry is lost with this process: %s", outcome.error)

    # -- rows

    def request_of(self, message: Keep | ForgetDelivery) -> Request:
        """What stores it."""
        if isinstance(message, ForgetDelivery):
            return Request(deletes=(Delete("deliveries", (message.actor, message.act)),))
        entry = message.entry
        common: dict[str, Any] = {
            "actor": clean_text(entry.actor, rows.ACTOR_CHARS_MAX) or "?",
            "reason": clean_text(entry.reason, REASON_CHARS_MAX),
            "message": message_text(entry.message),
            "body": pack_message(entry.message),
            "origin": self._origin_of(entry),
            "at_ms": max(0, entry.at_ms),
        }
        record: rows.DeadLetter | rows.Quarantined
        if isinstance(entry, DeadLetter):
            record = rows.DeadLetter(**common)
        else:
            record = rows.Quarantined(
                **common,
                incarnation=entry.incarnation,
                deliveries=entry.deliveries,
                error=_traceback_of(entry),
            )
        return Request(appends=(Append(TABLE_OF[message.kind], codec.encode(record)),))

    def _origin_of(self, entry: DeadLetter | Quarantined) -> rows.EntryOrigin | None:
        if entry.origin is None:
            return None
        kind: Any = entry.origin.kind
        seq = self._rows[kind].get(entry.origin.id)
        return None if seq is None else rows.EntryOrigin(kind=kind, seq=seq)

    def note_row(self, kind: Kind, entry_id: int, seq: int) -> None:
        """An entry of the kernel has this row."""
        live, known = self._live[kind], self._rows[kind]
        live[seq], known[entry_id] = entry_id, seq
        if len(live) > LIVE_MAX:
            live.popitem(last=False)
        if len(known) > LIVE_MAX:
            known.popitem(last=False)

    def entry_of(self, kind: Kind, seq: int) -> DeadLetter | Quarantined | None:
        """The kernel's entry of a row, if this process has it."""
        entry_id = self._live[kind].get(seq)
        found: Any = None if entry_id is None else self._ledger(kind).find(entry_id)
        return found  # type: ignore[no-any-return]

    def restore(self, kind: Kind, seq: int, record: Any) -> int:
        """Make a row of an earlier life an entry of the kernel's; return its number there.

        Raises:
            LookupError: The row does not hold the message.
        """
        known = self._live[kind].get(seq)
        if known is not None and self._ledger(kind).find(known) is not None:
            return known
        if record.body is None:
            raise LookupError(seq)
        message = codec.unpack(record.body)
        entry: Any
        if kind == "dead_letter":
            entry = DeadLetter(record.actor, message, record.reason, record.at_ms)
        else:
            entry = Quarantined(
                record.actor,
                message,
                RuntimeError(record.reason),
                record.incarnation,
                record.deliveries,
                record.at_ms,
            )
        number: int = self._ledger(kind).restore(entry).id
        self.note_row(kind, number, seq)
        return number

    def _ledger(self, kind: Kind) -> Ledger[Any]:
        system = self._system
        return system.dead_letters if kind == "dead_letter" else system.quarantine

    def check_receiver(self, kind: Kind, entry_id: int) -> None:
        """Raise ActorDeadError where no live actor has the name that an entry is for."""
        self._ledger(kind).check_receiver(entry_id)

    def replay(self, kind: Kind, entry_id: int, to: TrioActorRef[Any] | None = None) -> None:
        """Send the message of a kernel's entry again, however often it was: rows count replays."""
        self._ledger(kind).replay(entry_id, to, max_replays=2**63)

    # -- looking, loop thread

    def listing(self, kind: Kind, *, before: int | None, limit: int) -> tuple[ArchivedMessage, ...]:
        """Rows, the newest first."""
        found = []
        for message in read_archive(self._store, kind, before=before, limit=limit):
            if not message.replayable and self.entry_of(kind, message.id) is not None:
                message = _with_message(message)
            found.append(message)
        return tuple(found)


def _with_message(message: ArchivedMessage) -> ArchivedMessage:
    return replace(message, replayable=True)


def _traceback_of(entry: Quarantined) -> str:
    try:
        return traceback_text(entry.traceback)
    except Exception as error:  # noqa: BLE001 - anybody may have written the error.
        return f"{entry.reason}, whose traceback cannot be printed: {type(error).__name__}"


def read_archive(
    store: Store, kind: Kind, *, before: int | None = None, limit: int = 100
) -> Iterator[ArchivedMessage]:
    """Read rows of the dead letters or the quarantine, the newest first.

    Args:
        before: Only rows with a smaller number.
        limit: At most so many.
    """
    past = None if before is None else (before,)
    for key, row in store.scan(TABLE_OF[kind], after=past, limit=limit, reverse=True):
        number = key[0]
        assert isinstance(number, int)
        yield archived(kind, number, row)


def check_page(before: object, limit: object) -> None:
    """Refuse what is no page of a listing.

    Raises:
        InvalidInputError: Names the argument.
    """
    if before is not None:
        check_number(before, "before")
    if type(limit) is not int or not 1 <= limit <= PAGE_MAX:
        raise InvalidInputError("limit", f"must be 1 to {PAGE_MAX}, not {limit!r:.40}")


def check_number(number: object, field: str) -> int:
    """Return the number of a row, or refuse it.

    Raises:
        InvalidInputError: Names the argument.
    """
    if type(number) is not int or not 1 <= number <= NUMBER_MAX:
        raise InvalidInputError(field, f"must be a number from 1, not {number!r:.40}")
    return number


def archived(kind: Kind, number: int, row: Any) -> ArchivedMessage:
    """A row as whoever looks sees it; one that cannot be trusted says so."""
    if isinstance(row, Exception):
        return ArchivedMessage(
            number,
            kind,
            "?",
            "unreadable",
            "",
            False,
            traceback_text(str(row)),
            None,
            None,
            None,
            None,
            0,
            0,
        )
    record = row.record
    quarantined = kind == "quarantine"
    origin = record.origin
    return ArchivedMessage(
        id=number,
        kind=kind,
        actor=clean_text(record.actor, rows.ACTOR_CHARS_MAX),
        reason=clean_text(record.reason, REASON_CHARS_MAX),
        message=clean_text(record.message, rows.MESSAGE_CHARS_MAX),
        replayable=record.body is not None,
        error=traceback_text(record.error) if quarantined else "",
        incarnation=record.incarnation if quarantined else None,
        deliveries=record.deliveries if quarantined else None,
        origin_kind=None if origin is None else origin.kind,
        origin=None if origin is None else origin.seq,
        replays=record.replays,
        at_ms=record.at_ms,
    )
