"""Events: what happened to actors and groups, as frozen records; `hub` takes them to who looks.

Invariants:
    I1. Each class has a kind of its own, which stays the same over versions.

Any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from .specs import Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something happened.

    Attributes:
        kind: What, by a name that stays the same over versions. One for each class.
        at_ms: When it was noticed, in epoch milliseconds.
    """

    kind: ClassVar[str] = "event"
    at_ms: int

    def as_json(self) -> dict[str, Any]:
        """Return it as what `json.dumps` takes: `kind`, then the fields by name.

        An error becomes its class name and its text.
        """
        return {"kind": self.kind} | {
            field.name: _plain(getattr(self, field.name)) for field in fields(self)
        }


def kinds_known() -> set[str]:
    """The kinds of all classes of events that there are."""
    found, left = {Event}, [Event]
    while left:
        more = left.pop().__subclasses__()
        left += more
        found.update(more)
    return {each.kind for each in found}


def _plain(value: Any) -> Any:
    if isinstance(value, BaseException):
        failure = Failure.of(value, 0)
        return failure and {"type": failure.type, "text": failure.text}
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsDropped(Event):
    """In this place the reader was too slow, and so many events are missing.

    Attributes:
        count: How many.
    """

    kind: ClassVar[str] = "events_dropped"
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorEvent(Event):
    """Something happened to an actor.

    Attributes:
        subject: The actor's name.
        incarnation: Which of its incarnations, from 1; 0 where none ever ran.
    """

    subject: str
    incarnation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorStarted(ActorEvent):
    """The first incarnation of an actor runs: its `on_start` has returned."""

    kind: ClassVar[str] = "started"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorRestarted(ActorEvent):
    """A later incarnation of an actor runs."""

    kind: ClassVar[str] = "restarted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorCrashed(ActorEvent):
    """An incarnation crashed or was killed.

    Attributes:
        error: With what.
    """

    kind: ClassVar[str] = "crashed"
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorResumed(ActorEvent):
    """A handler failed and, by a directive, its incarnation goes on.

    Attributes:
        error: What it failed with.
    """

    kind: ClassVar[str] = "resumed"
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSuspended(ActorEvent):
    """An actor handles no messages from now on, until `ref.resume()`."""

    kind: ClassVar[str] = "suspended"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorUnsuspended(ActorEvent):
    """A suspended actor handles messages again."""

    kind: ClassVar[str] = "unsuspended"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorStopped(ActorEvent):
    """An actor has ended for good.

    Attributes:
        error: What its last incarnation ended with; None for a stop.
    """

    kind: ClassVar[str] = "stopped"
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxHigh(ActorEvent):
    """A mailbox filled past its high mark.

    Attributes:
        depth: How many messages waited when it was noticed.
        capacity: The bound.
    """

    kind: ClassVar[str] = "mailbox_high"
    depth: int
    capacity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxLow(ActorEvent):
    """A mailbox that was past its high mark emptied below its low mark.

    Attributes:
        depth: How many messages waited when it was noticed.
        capacity: The bound.
    """

    kind: ClassVar[str] = "mailbox_low"
    depth: int
    capacity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEvent(Event):
    """Something happened to a supervisor and its children.

    Attributes:
        subject: The supervisor's id.
    """

    subject: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupParked(GroupEvent):
    """A group is stopped until it is unparked; its mailboxes take messages.

    Attributes:
        error: Why.
    """

    kind: ClassVar[str] = "parked"
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUnparked(GroupEvent):
    """A parked group starts again."""

    kind: ClassVar[str] = "unparked"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShutDown(GroupEvent):
    """A group ends because its significant children have ended."""

    kind: ClassVar[str] = "shut_down"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEscalated(GroupEvent):
    """A group gave up and handed its failure to its parent.

    Attributes:
        error: The failure.
    """

    kind: ClassVar[str] = "escalated"
    error: BaseException
