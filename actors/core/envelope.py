"""What travels in a mailbox, and what a handler gets besides a message.

An envelope is the tuple `(message, target, deliveries)`: a tuple is built in a fifth of the time of
a slotted object, and the mailbox is the hottest path of the kernel. `target` is who is to be
answered, None for a tell; `deliveries` counts earlier crashes of this envelope's handler.

Invariants:
    I1. An accepted envelope ends in exactly one of handled, dead letter, quarantine.
    I2. A target is settled exactly once, whoever is first.

No thread of its own: envelopes are made by senders on any thread and read on the loop thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from .carried import bare

if TYPE_CHECKING:
    from .future import Target
    from .ref import TrioActorRef

Envelope: TypeAlias = "tuple[Any, Target | None, int]"

SETTLED: Final = -1
"""In the place of an in-flight envelope's deliveries: its reply handle was settled; it is done."""


STASHED: Final = -2
"""In the same place: its handler stashed it, and it is the last in the stash until that returns."""


NEVER: Final = float("inf")


class Cause(NamedTuple):
    """What the last handler of a message that is to be handled again came to.

    Attributes:
        error: What ended the incarnation.
        incarnation: Which, from 1.
        deliveries: How often a handler was started with it until then.
    """

    error: BaseException
    incarnation: int
    deliveries: int


class Aged(int):
    """The deliveries of an envelope that was taken once and is to be handled again.

    An int like any other, which also knows since when its message waits, at most, by the clock of
    ages, and what its handler crashed with, if it did. Those that were never taken carry neither:
    that would be dearer than a tell.
    """

    since: float = NEVER
    cause: Cause | None = None


def aged(envelope: Envelope, since: float, cause: Cause | None = None) -> Envelope:
    """Return an envelope that came after `since` as one that is to be handled again."""
    message, target, deliveries = envelope
    kept = Aged(deliveries)
    kept.since, kept.cause = since, cause
    if isinstance(deliveries, Aged):
        kept.since = deliveries.since
        kept.cause = cause or deliveries.cause
    return (message, target, kept)


def cause_of(deliveries: int) -> Cause | None:
    """What the last handler crashed with, of a message with these deliveries; None if none did."""
    return deliveries.cause if isinstance(deliveries, Aged) else None


def since_of(lane: Iterable[Envelope] | None) -> float:
    """After which instant all came that were taken once; NEVER where there are none."""
    if not lane:
        return NEVER
    return min(
        (entry[2].since for entry in list(lane) if isinstance(entry[2], Aged)), default=NEVER
    )


class Later:
    """The type of `LATER`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "LATER"

    def __reduce__(self) -> str:
        return "LATER"


LATER: Final = Later()
"""What a handler returns whose reply handle, taken by `self.later()`, will be settled later."""


class StopPill(NamedTuple):
    """The message behind `ref.stop()`: in the user lane, after what was sent before it."""


STOP_PILL: Final = StopPill()


class Origin(NamedTuple):
    """Which entry a replayed message comes from.

    Attributes:
        kind: `dead_letter` or `quarantine`.
        id: The entry's number there.
    """

    kind: str
    id: int


class Replayed(NamedTuple):
    """A message that is sent again from an entry. Its handler sees the message alone."""

    message: Any
    origin: Origin


def opened(message: Any) -> tuple[Any, Origin | None]:
    """Return what was sent, and which entry it comes from where it was replayed."""
    message = bare(message)
    if message.__class__ is Replayed:
        return message.message, message.origin
    return message, None


@dataclass(frozen=True, slots=True)
class Reminder:
    """What an actor asked to be told at an instant; arrives in its `on_receive`.

    Attributes:
        actor: The name of the actor it is for.
        name: Its name, one of the actor's.
        due_ms: When, in epoch milliseconds.
        message: What the actor wanted to be told.
        every_ms: Of a periodic one the period, else None.
    """

    actor: str
    name: str
    due_ms: int
    message: Any = None
    every_ms: int | None = None

    @property
    def act_id(self) -> str:
        """Names this one firing: the same in every delivery of it."""
        return f"reminder:{self.name}:{self.due_ms}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What an ask or a piped function came to.

    Attributes:
        tag: What the asker named it.
        value: The reply. None where there is an error.
        error: Why there is no reply, else None.
        request: The message that was asked; for a piped function, the function.
    """

    tag: Any
    value: Any = None
    error: BaseException | None = None
    request: Any = None

    def unwrap(self) -> Any:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(frozen=True, slots=True)
class Ended:
    """An incarnation of a watched actor ended.

    Attributes:
        ref: The watched actor.
        incarnation: Which incarnation, from 1; 0 where none ever ran.
        reason: The error it ended with; None for a stop.
        final: Whether the actor has ended for good.
    """

    ref: TrioActorRef[Any]
    incarnation: int
    reason: BaseException | None
    final: bool


# The kinds of what the internal lane carries: (kind, payload, incarnation, deliveries), where
# incarnation 0 means any.
TELL: Final = 0
ANSWER: Final = 1
TIMER: Final = 2
ENDED: Final = 3
REMIND: Final = 4

Internal: TypeAlias = tuple[int, Any, int, int]
