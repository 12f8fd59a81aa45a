"""What the kernel hands to whoever embeds it. The kernel itself keeps all of it in memory only.

Nothing here may block. What a sink raises is counted and logged, and the kernel goes on. Dead
letters are recorded on the thread on which they end, and delivery counts ended there; events on the
one on which they happen, which is a host's where a full mailbox refuses it; the rest on the loop
thread.

What a port does not supply is kept for the life of the system: dead letters and quarantine by
`deadletters`, reminders by `reminders.MemoryReminders`, counts of deliveries in the envelope.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from .deadletters import DeadLetter, Quarantined
from .envelope import Reminder
from .events import Event

if TYPE_CHECKING:
    from .cell import Cell
    from .mailbox import Mailbox
    from .system import ActorSystem


class DeadLetterSink(Protocol):
    """Where dead letters go to be kept."""

    def __call__(self, letter: DeadLetter, /) -> object: ...


class QuarantineSink(Protocol):
    """Where quarantined messages go to be kept."""

    def __call__(self, entry: Quarantined, /) -> object: ...


class EventSink(Protocol):
    """Who looks at what happens."""

    def __call__(self, event: Event, /) -> object: ...


class DeliveryCounts(Protocol):
    """Counts of deliveries that outlive the process. See `deliveries` for who is counted.

    What `begin` notes is kept if the process is killed the instant it has returned.
    """

    def begin(self, actor: str, act_id: str, deliveries: int, /) -> int:
        """Note that a handler is about to run; return the deliveries of the act before this one.

        Args:
            actor: The actor's name.
            act_id: What the message is known by, the same in every life.
            deliveries: Its crashes so far in this life.
        """

    def end(self, actor: str, act_id: str, /, *, handled: bool) -> None:
        """Take the note back. Any thread.

        Args:
            actor: The actor's name.
            act_id: What the message is known by.
            handled: Its handler returned, so that earlier lives no longer count either.
        """


class Reminders(Protocol):
    """Where reminders are kept, and what fires them (`reminders.fire`). On the loop thread."""

    def set(self, reminder: Reminder, /) -> None:
        """Keep a reminder, in place of one of the same actor and name."""

    def cancel(self, actor: str, name: str, /) -> None:
        """Forget a reminder. One that is in the mailbox already still arrives."""

    def handled(self, reminder: Reminder, /) -> None:
        """Its handler returned, or it went to quarantine: this firing is over.

        Once it is over for good, the system's `deliveries.end(..., handled=True)` is called for it.
        """

    def undelivered(self, reminder: Reminder, /) -> None:
        """No actor of that name took it: it stays due until one starts. Any thread."""

    def started(self, actor: str, /) -> None:
        """An incarnation of a named actor runs."""


class FaultHooks(Protocol):
    """What a test kit puts into a system to make things go wrong at named points.

    A system without them pays for none of this: each is looked at where a cell, an incarnation or
    a host thread's call begins, never where a message is sent or taken.
    """

    def attach(self, system: ActorSystem) -> None:
        """Learn of a system that starts. On its loop thread."""

    def mailbox(self, cell: Cell) -> Mailbox:
        """Make the mailbox of a new cell. On the thread that starts the actor."""

    def handlers(self, cell: Cell, actor: Any) -> Any:
        """Return what is called in the actor's place in one incarnation. On the loop thread.

        It has the actor's hooks and handlers, and its `on_receive` takes proxy calls as well.
        """

    def bridge(self, system: ActorSystem, cell: Cell | None, message: object) -> None:
        """Called on a host thread before it hands a call over to the loop.

        May block that thread. What it raises, the host gets, and nothing was handed over.
        """
