"""Where envelopes end that were accepted and not handled: dead letters and the quarantine.

Both keep the newest entries in memory, bounded, and count all of them. A sink that a host or the
domain supplies makes them durable; one that raises is counted and logged, and the kernel goes on.

An entry can be replayed: its message is sent again, as a tell, and the entry counts it. A replayed
message that ends here again is a new entry, which names the one it comes from.

Invariants:
    I1. `total` is the sum of `counts`, and never falls.
    I2. Numbers of entries rise and are not used again.
    I3. A replay is counted before its message is sent, and not counted where it was refused; so of
        several threads that replay one entry no more than allowed succeed.

Entries are recorded on the thread on which the envelope ends, which may be a host's.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from traceback import format_exception
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from .envelope import Origin, Replayed
from .errors import ActorDeadError, ReplaysExceededError, UnknownEntryError
from .logs import Log

if TYPE_CHECKING:
    from .ref import TrioActorRef

KEPT_MAX = 1_000
REPLAYS_MAX: Final = 1
"""How often an entry is replayed where the caller does not say."""

logger = Log("abeyance.core")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An accepted message that was not handled.

    Attributes:
        actor: Whose mailbox it was in.
        message: What was sent.
        reason: `stopped`, `overflow`, `coalesced`, `expired`, `cancelled` (its handler ended with
            the ask's deadline, and may have done a part), `outcome_unknown`, `system_ended`,
            `fact_undelivered` for an answer that was a fact and found no actor, or `fault` where
            a test's fault dropped it.
        at_ms: When, in epoch milliseconds.
        id: Its number among the dead letters.
        origin: Which entry its message was replayed from, if it was.
        replays: How often it was replayed.
    """

    actor: str
    message: Any
    reason: str
    at_ms: int
    id: int = 0
    origin: Origin | None = None
    replays: int = 0


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A message whose handler ended the incarnation, and which is not delivered again.

    Attributes:
        actor: Whose mailbox it was in.
        message: What was sent.
        error: What ended the incarnation.
        incarnation: Which incarnation, from 1.
        deliveries: How often a handler was started with it.
        at_ms: When, in epoch milliseconds.
        id: Its number in the quarantine.
        origin: Which entry its message was replayed from, if it was.
        replays: How often it was replayed.
    """

    actor: str
    message: Any
    error: BaseException
    incarnation: int
    deliveries: int
    at_ms: int
    id: int = 0
    origin: Origin | None = None
    replays: int = 0

    @property
    def reason(self) -> str:
        """The class name of the error."""
        return type(self.error).__name__

    @property
    def traceback(self) -> str:
        """The error's traceback as text, formatted when asked for: it is dearer than a restart."""
        return "".join(format_exception(self.error))


E = TypeVar("E", DeadLetter, Quarantined)


class Ledger(Generic[E]):
    """A bounded list of entries, with counts by reason.

    Args:
        kind: What an entry is called: `dead_letter` or `quarantine`.
        find: Finds the actor of a name, for replays.
        sink: Called with each entry, on the thread that recorded it.
        kept_max: How many entries are kept.
    """

    def __init__(
        self,
        kind: str,
        find: Callable[[str], TrioActorRef[Any] | None],
        sink: Callable[[E], object] | None,
        kept_max: int = KEPT_MAX,
    ) -> None:
        self.kind = kind
        self._find = find
        self._kept_max = kept_max
        self._entries: OrderedDict[int, E] = OrderedDict()
        self._next = 1
        self._counts: dict[str, int] = {}
        self._lock = threading.RLock()  # A message's finalizer may interrupt its holder.
        self._sinks: tuple[Callable[[E], object], ...] = () if sink is None else (sink,)
        self.sink_failures = 0

    def add_sink(self, sink: Callable[[E], object]) -> None:
        """Hand entries to one more sink from now on. Any thread."""
        with self._lock:
            self._sinks += (sink,)

    def remove_sink(self, sink: Callable[[E], object]) -> None:
        """Hand entries to a sink no more. Any thread."""
        with self._lock:
            self._sinks = tuple(known for known in self._sinks if known != sink)

    def record(self, entry: E) -> None:
        """Keep an entry and hand it to the sinks. Any thread; does not raise.

        The entry was made for this, and nobody else has it: it gets its number in place, for
        another one with the number would cost a twelfth of a restart.
        """
        with self._lock:
            object.__setattr__(entry, "id", self._next)
            self._keep(entry)
            reason = entry.reason
            self._counts[reason] = self._counts.get(reason, 0) + 1
        for sink in self._sinks:
            try:
                sink(entry)
            except Exception:
                with self._lock:
                    self.sink_failures += 1
                logger.exception("a sink failed; the entry is kept in memory", actor=entry.actor)

    def restore(self, entry: E) -> E:
        """Keep an entry of an earlier life, under a number of this one. Not counted; any thread."""
        with self._lock:
            entry = replace(entry, id=self._next)
            self._keep(entry)
            return entry

    def _keep(self, entry: E) -> None:
        self._next += 1
        self._entries[entry.id] = entry
        if len(self._entries) > self._kept_max:
            self._entries.popitem(last=False)

    def list(self, *, after: int = 0, limit: int | None = None) -> tuple[E, ...]:
        """Return entries that are kept, oldest first. Any thread.

        Args:
            after: Only those with a greater number.
            limit: At most so many.
        """
        with self._lock:
            found = [entry for entry in self._entries.values() if entry.id > after]
        return tuple(found if limit is None else found[: max(0, limit)])

    def find(self, entry_id: int) -> E | None:
        """Return the entry of that number, if it is kept. Any thread."""
        with self._lock:
            return self._entries.get(entry_id)

    def replay(
        self,
        entry_id: int,
        to: TrioActorRef[Any] | None = None,
        *,
        max_replays: int = REPLAYS_MAX,
    ) -> E:
        """Send an entry's message again, as a tell by the user lane; return the entry as it stands.

        Not a checkpoint; any thread. Blocks only where a `tell` would. The handler sees the message
        as it was sent first. Where it ends as a dead letter or in quarantine again, that is a new
        entry with this one as its `origin`.

        Args:
            entry_id: The entry's number.
            to: Whom to send it to; by default the actor it was for, by name.
            max_replays: How often the entry may be replayed, this time included.

        Raises:
            UnknownEntryError: No such entry is kept; nothing was sent.
            ReplaysExceededError: It was replayed so often already; nothing was sent.
            ActorDeadError: No live actor has that name, or it has ended; nothing was sent, nor
                counted.
            MailboxFullError: The actor takes no more; nothing was sent, nor counted.
        """
        with self._lock:
            entry = self._entries.get(entry_id)
            if entry is None:
                raise self._unknown(entry_id)
            if entry.replays >= max_replays:
                raise ReplaysExceededError(
                    f"{self.kind} {entry_id} was replayed {entry.replays} times and may be "
                    f"{max_replays} times; nothing was sent; see what became of it first",
                    entry=entry_id,
                    replays=entry.replays,
                )
            self._entries[entry_id] = replace(entry, replays=entry.replays + 1)
        try:
            receiver = to if to is not None else self._receiver_of(entry)
            receiver.tell(Replayed(entry.message, Origin(self.kind, entry_id)))
        except BaseException:
            with self._lock:
                counted = self._entries.get(entry_id)
                if counted is not None:
                    self._entries[entry_id] = replace(counted, replays=counted.replays - 1)
            raise
        return replace(entry, replays=entry.replays + 1)

    def check_receiver(self, entry_id: int) -> None:
        """Raise what `replay` would raise of an entry or an actor that is not there. Any thread."""
        entry = self.find(entry_id)
        if entry is None:
            raise self._unknown(entry_id)
        self._receiver_of(entry)

    def _receiver_of(self, entry: E) -> TrioActorRef[Any]:
        receiver = self._find(entry.actor)
        if receiver is None:
            raise ActorDeadError(
                f"no live actor is named {entry.actor!r}; nothing was sent; start it, or name "
                "another",
                actor=entry.actor,
                message=entry.message,
            )
        return receiver

    def discard(self, entry_id: int) -> E:
        """Forget an entry; the counts stand. Returns it. Any thread.

        Raises:
            UnknownEntryError: No such entry is kept.
        """
        with self._lock:
            entry = self._entries.pop(entry_id, None)
        if entry is None:
            raise self._unknown(entry_id)
        return entry

    def _unknown(self, entry_id: int) -> UnknownEntryError:
        return UnknownEntryError(
            f"no {self.kind} {entry_id} is kept; nothing was sent; list those that are",
            entry=entry_id,
        )

    @property
    def entries(self) -> tuple[E, ...]:
        """The newest entries, oldest first."""
        return self.list()

    @property
    def counts(self) -> dict[str, int]:
        """How many there were, by reason."""
        with self._lock:
            return dict(self._counts)

    @property
    def total(self) -> int:
        """How many there were."""
        with self._lock:
            return sum(self._counts.values())

    def __len__(self) -> int:
        return len(self._entries)
