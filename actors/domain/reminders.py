"""Reminders as rows, fired by the alarm.

The kernel's port hands over and returns; this actor keeps the book, writes what changed, and puts
what is due into its actor's mailbox. Rows are read when an actor of their name first starts, not
when the store is opened.

Invariants:
    I1  A row is written as what is to be true of its key, without a guard, the last word first: a
        write that is repeated changes nothing.
    I2  A firing is over for the kernel's counts only once that is committed.
    I3  What is not written when this actor ends is left to the archive's close.

`DurableReminders` is called by the kernel on the loop thread; the actor runs there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from abeyance.actors.core import ActorSystem, Answer, Reminder, TrioActor, TrioActorRef
from abeyance.actors.core.clock import Clock
from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.core.logs import Log
from abeyance.actors.core.reminders import ReminderBook, fire
from abeyance.storage import codec
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.store import Committed, Delete, NotStored, Outcome, Put, Request, Store
from abeyance.storage.tables import kept as rows

from .archive_book import ArchiveBook, pack_message
from .errors import InvalidMessageError, not_stored
from .persistence import PAUSE_MAX_S, may_land_later
from .protocol import Due, ForgetInstant, Requests, WatchInstant

NAME: Final = "reminders"
HAND_OVER_MAX: Final = 64

Key: TypeAlias = tuple[str, str]
_logger = Log(__name__)


class SetReminder(NamedTuple):
    """Tell: keep a reminder."""

    reminder: Reminder


class CancelReminder(NamedTuple):
    """Tell: forget one."""

    actor: str
    name: str


class ReminderOver(NamedTuple):
    """Tell: a firing was handled, or went to quarantine."""

    reminder: Reminder


class ReminderBack(NamedTuple):
    """Tell: nobody took a firing."""

    reminder: Reminder


class ActorStarted(NamedTuple):
    """Tell: an incarnation of this actor runs."""

    actor: str


def row_of(reminder: Reminder, now_ms: int) -> Request:
    """What stores a reminder.

    Raises:
        InvalidMessageError: Its message is not plain data, or too large.
    """
    body = pack_message(reminder.message)
    if body is None:
        raise InvalidMessageError(
            "message",
            "of a reminder must be plain data (None, booleans, numbers, text, bytes, lists and "
            f"maps of them) of at most {rows.MESSAGE_BYTES_MAX} bytes",
        )
    record = rows.Reminder(
        due_ms=reminder.due_ms, every_ms=reminder.every_ms, body=body, set_ms=max(0, now_ms)
    )
    key = (reminder.actor, reminder.name)
    return Request(puts=(Put("reminders", key, codec.encode(record)),))


def no_row(actor: str, name: str) -> Request:
    """What deletes a reminder."""
    return Request(deletes=(Delete("reminders", (actor, name)),))


class DurableReminders:
    """The kernel's `Reminders`, over the actor below."""

    def __init__(self, ref: TrioActorRef[Any], archive: ArchiveBook, clock: Clock) -> None:
        self._ref = ref
        self._archive = archive
        self._clock = clock

    def set(self, reminder: Reminder) -> None:
        row = row_of(reminder, self._clock.now_ms())  # Refused before any effect.
        self._tell(SetReminder(reminder), row)

    def cancel(self, actor: str, name: str) -> None:
        self._tell(CancelReminder(actor, name), no_row(actor, name))

    def handled(self, reminder: Reminder) -> None:
        row = no_row(reminder.actor, reminder.name)
        if reminder.every_ms is not None:
            now_ms = self._clock.now_ms()
            row = row_of(following(reminder, now_ms), now_ms)
        self._tell(ReminderOver(reminder), row)

    def undelivered(self, reminder: Reminder) -> None:
        self._tell(ReminderBack(reminder), None)

    def started(self, actor: str) -> None:
        self._tell(ActorStarted(actor), None)

    def _tell(self, message: Any, row: Request | None) -> None:
        try:
            self._ref.tell(message)
        except AbeyanceError:
            # It has ended before the actor that is reminded: the row is still written.
            if row is not None:
                self._archive.leave(row)


def following(reminder: Reminder, now_ms: int) -> Reminder:
    """The first period of a periodic reminder that is not past."""
    assert reminder.every_ms is not None
    missed = max(0, now_ms - reminder.due_ms) // reminder.every_ms
    return replace(reminder, due_ms=reminder.due_ms + (missed + 1) * reminder.every_ms)


class RemindersKept:
    """Survives a crash: the book, and what is not written yet."""

    def __init__(self) -> None:
        self.book = ReminderBook()
        self.loaded: set[str] = set()
        self.waiting: dict[str, list[Reminder]] = {}
        self.dirty: dict[Key, Request] = {}
        self.out: dict[Key, Request] | None = None
        self.unreadable: set[Key] = set()
        """Keys whose rows cannot be read: nothing is put over one before it is deleted."""
        self.over: dict[Key, list[Reminder]] = {}
        """Firings that are over once their key is written."""


class _Again:
    """To itself: what could not be stored may be now."""


class Reminders(TrioActor):
    """Keeps reminders and fires them."""

    role: ClassVar[str] = "reminders"
    mailbox_capacity: ClassVar[int] = 100_000
    max_deliveries: ClassVar[int] = 5
    kept: RemindersKept

    def __init__(
        self,
        store: Store,
        journal: Any,
        alarm: Any,
        clock: Clock,
        archive: ArchiveBook,
        system: ActorSystem,
    ) -> None:
        super().__init__()
        self._store = store
        self._journal = journal
        self._alarm = alarm
        self._clock = clock
        self._archive = archive
        self._system = system
        self._watched: int | None = None

    @classmethod
    def make_kept(cls) -> RemindersKept:
        return RemindersKept()

    def on_start(self) -> None:
        kept = self.kept
        if kept.out is not None:
            # Whether these landed is unknown, and they may be written twice (I1).
            kept.dirty, kept.out = {**kept.out, **kept.dirty}, None
        self._write()
        self._look()

    def on_stop(self) -> None:
        for request in {**(self.kept.out or {}), **self.kept.dirty}.values():
            self._archive.leave(request)

    def on_receive(self, message: Any) -> None:
        kept = self.kept
        match message:
            case SetReminder(reminder):
                kept.book.put(reminder)
                self._change((reminder.actor, reminder.name))
            case CancelReminder(actor, name):
                kept.book.remove(actor, name)
                self._change((actor, name))
            case ReminderOver(reminder):
                self._over(reminder)
            case ReminderBack(reminder):
                if kept.book.give_back(reminder):
                    kept.waiting.setdefault(reminder.actor, []).append(reminder)
            case ActorStarted(actor):
                self._actor_started(actor)
            case Due():
                self._watched = None
            case _Again():
                pass
            case _:
                raise TypeError(f"reminders take no {type(message).__name__}")
        self._write()
        self._look()

    def _over(self, reminder: Reminder) -> None:
        key = (reminder.actor, reminder.name)
        self.kept.book.finish(reminder, self._clock.now_ms())
        self.kept.over.setdefault(key, []).append(reminder)
        self._change(key)

    def _actor_started(self, actor: str) -> None:
        kept = self.kept
        for reminder in kept.waiting.pop(actor, ()):
            kept.book.wake(reminder)
        if actor in kept.loaded:
            return
        kept.loaded.add(actor)
        for key, row in self._store.scan("reminders", (actor,)):
            name = str(key[1])
            known = kept.book.get(actor, name) is not None or (actor, name) in kept.dirty
            if known:
                continue  # Set or cancelled by this life already.
            try:
                if isinstance(row, Exception):
                    raise row
                record: rows.Reminder = row.record
                message = codec.unpack(record.body)
            except Exception as error:  # noqa: BLE001 - one bad row must not hold the others.
                _logger.error(
                    "reminder %r of %s cannot be read: %s", name, actor, error, actor=actor
                )
                continue
            kept.book.put(Reminder(actor, name, record.due_ms, message, record.every_ms))

    # -- firing

    def _look(self) -> None:
        book, now_ms = self.kept.book, self._clock.now_ms()
        for reminder in book.take_due(now_ms):
            fire(self._system, reminder)
        earliest = book.earliest()
        if earliest == self._watched:
            return
        self._watched = earliest
        if earliest is None:
            self._alarm.tell(ForgetInstant(NAME))
        else:
            self._alarm.tell(WatchInstant(NAME, earliest, self.actor_ref))

    # -- writing

    def _change(self, key: Key) -> None:
        """The row of this key is to be what the book says."""
        reminder = self.kept.book.get(*key)
        now_ms = self._clock.now_ms()
        self.kept.dirty[key] = no_row(*key) if reminder is None else row_of(reminder, now_ms)

    def _write(self) -> None:
        kept = self.kept
        if kept.out is not None or not kept.dirty:
            return
        keys = list(kept.dirty)[:HAND_OVER_MAX]
        kept.out = {key: kept.dirty.pop(key) for key in keys}
        gone = [no_row(*key) for key in keys if key in kept.unreadable]
        self.ask(self._journal, Requests((*gone, *kept.out.values())), tag=len(gone))

    def on_answer(self, answer: Answer) -> None:
        kept = self.kept
        out, kept.out = kept.out or {}, None
        outcomes: tuple[Outcome, ...] = (answer.value or ())[answer.tag :]
        again = False
        for place, (key, request) in enumerate(out.items()):
            outcome = outcomes[place] if place < len(outcomes) else None
            if isinstance(outcome, Committed):
                kept.unreadable.discard(key)
                self._written(key)
            elif self._is_unreadable(key, outcome):
                kept.unreadable.add(key)
                kept.dirty.setdefault(key, request)
            elif isinstance(outcome, NotStored) and may_land_later(not_stored(outcome)):
                kept.dirty.setdefault(key, request)
                again = True
            else:
                _logger.error(
                    "reminder %r is in memory only: %s", key, answer.error or outcome, actor=key[0]
                )
        if again:
            self.after(PAUSE_MAX_S, _Again())
        else:
            self._write()

    def _is_unreadable(self, key: Key, outcome: Outcome | None) -> bool:
        """Whether what is there cannot be read, and was not told of yet: it is replaced."""
        refused = isinstance(outcome, NotStored) and isinstance(
            outcome.error, UnreadableRecordError
        )
        return refused and key not in self.kept.unreadable

    def _written(self, key: Key) -> None:
        if key in self.kept.dirty:
            return  # A firing that is over since is not in that commit.
        counts = self._system.deliveries
        for reminder in self.kept.over.pop(key, ()):
            if counts is not None:
                counts.end(reminder.actor, reminder.act_id, handled=True)
