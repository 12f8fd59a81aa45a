"""Errors of the actor kernel, sorted by what is still true when one is raised.

Each has a stable `code`, attributes, and a text of the form: what failed; what is still true; what
to do. All survive pickling.
"""

from __future__ import annotations

import queue
from typing import Any, ClassVar

import pykka

from .carried import bare


class AbeyanceError(Exception):
    """Base of every error that this distribution raises outside `abeyance.storage`.

    Keyword arguments become attributes. `str()` is the text a person reads.
    """

    code: ClassVar[str] = "abeyance"

    def __init__(self, text: str, /, **attributes: Any) -> None:
        super().__init__(text)
        if "message" in attributes:
            attributes["message"] = bare(attributes["message"])
        self.__dict__.update(attributes)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__.copy()))


def _rebuild(
    kind: type[AbeyanceError], args: tuple[Any, ...], state: dict[str, Any]
) -> AbeyanceError:
    error = kind.__new__(kind)
    Exception.__init__(error, *args)
    error.__dict__.update(state)
    return error


class ActorDeadError(AbeyanceError, pykka.ActorDeadError):
    """The actor has ended, or its system has. The message was not accepted, or was not handled.

    Attributes:
        actor: Which actor.
        message: What was sent. None where nothing was.
    """

    code = "actor_dead"
    actor: str
    message: Any


class MailboxClosedError(ActorDeadError):
    """The actor is stopping, or its system no longer takes messages from hosts. Not accepted."""

    code = "mailbox_closed"


class UnknownEntryError(AbeyanceError):
    """There is no such dead letter, or no such message in quarantine. Nothing was sent.

    Attributes:
        entry: The number that was asked for.
    """

    code = "unknown_entry"
    entry: int


class ReplaysExceededError(AbeyanceError):
    """The entry was replayed as often as it may be. Nothing was sent.

    Attributes:
        entry: Its number.
        replays: How often it was.
    """

    code = "replays_exceeded"
    entry: int
    replays: int


class MessageNotKeptError(AbeyanceError):
    """The entry's message could not be stored, and the process that had it has ended.

    Nothing was sent.

    Attributes:
        entry: Its number.
    """

    code = "message_not_kept"
    entry: int


class MailboxFullError(AbeyanceError):
    """The user lane is at its bound. The message was not accepted, or was dropped to make room.

    Attributes:
        actor: Which actor.
        message: What was sent.
        capacity: The bound.
    """

    code = "mailbox_full"
    actor: str
    message: Any
    capacity: int


class MessageCoalescedError(AbeyanceError):
    """A newer message of the same key took the place of this one, which was not handled.

    Attributes:
        actor: Which actor.
        message: What was asked.
    """

    code = "message_coalesced"
    actor: str
    message: Any


class ActorUnavailableError(AbeyanceError):
    """The actor handles no messages now, and its class refuses asks meanwhile. Not accepted.

    Attributes:
        actor: Which actor.
        message: What would have been asked.
        state: `suspended` or `restarting`.
    """

    code = "actor_unavailable"
    actor: str
    message: Any
    state: str


class AskTimeoutError(AbeyanceError, pykka.Timeout):
    """No reply came before the ask's deadline. Whether it was handled is unknown.

    Attributes:
        timeout_s: The time it had.
    """

    code = "ask_timeout"
    timeout_s: float | None


class AskCycleError(AbeyanceError):
    """The asked actor waits, directly or through others, for the one who asks. Nothing was sent.

    Attributes:
        ring: Who waits for whom, the first again at the end.
        message: What would have been sent.
    """

    code = "ask_cycle"
    ring: tuple[str, ...]
    message: Any


class StopCycleError(AskCycleError):
    """What is to be waited for ends only when the one who waits has gone on. It is not waited for.

    Nothing was done, unless the stop was asked for without waiting: then it still comes.

    Attributes:
        ring: Who waits for whom, the first again at the end.
        message: None.
    """

    code = "stop_cycle"


class UndeclaredAskError(AbeyanceError):
    """The declared table of asks does not hold this pair. Nothing was sent.

    Attributes:
        asker: The role that asks.
        asked: The role that was to be asked.
        message: What would have been sent.
    """

    code = "undeclared_ask"
    asker: str
    asked: str
    message: Any


class WouldDeadlockError(AbeyanceError):
    """A blocking call was made on a thread that runs trio. Nothing was waited for."""

    code = "would_deadlock"


class OutcomeUnknownError(AbeyanceError):
    """The incarnation that was to reply ended first. Whether its work took effect is unknown.

    Attributes:
        actor: Which actor.
        message: What was asked.
    """

    code = "outcome_unknown"
    actor: str
    message: Any


class ActorCrashError(AbeyanceError):
    """Raised in a handler, also of an ask, to end the incarnation as a crash. Subclass it."""

    code = "actor_crash"


class DeliveriesSpentError(ActorCrashError):
    """A message whose deliveries ended in a crash or a death of the process, each time.

    It was not delivered again.

    Attributes:
        actor: Which actor.
        act: The message's act id.
        deliveries: How often it was delivered, in all lives of the process.
    """

    code = "deliveries_spent"
    actor: str
    act: str
    deliveries: int


class ActorKilledError(AbeyanceError):
    """The incarnation was killed: the reason a killed incarnation ends with.

    Attributes:
        actor: Which actor.
        reason: What the killer said, or None.
    """

    code = "actor_killed"
    actor: str
    reason: str | None


class LongAwaitError(AbeyanceError):
    """Debug mode: a handler of an actor with a role suspended more than once.

    Attributes:
        actor: Which actor.
    """

    code = "long_await"
    actor: str


class IntensityExceededError(AbeyanceError):
    """A supervisor's children ended more often than its intensity allows. They are stopped.

    Attributes:
        supervisor: Which supervisor.
        restarts: How many restarts fell into the period.
        period_s: The period.
    """

    code = "intensity_exceeded"
    supervisor: str
    restarts: int
    period_s: float


class ChildStartError(AbeyanceError):
    """A child failed to start. Children started before it with the same call are stopped.

    Attributes:
        supervisor: Which supervisor.
        child: The child's id.
    """

    code = "child_start"
    supervisor: str
    child: str


class NameTakenError(AbeyanceError, ValueError):
    """A live actor, or a child, has this name. Nothing was started.

    Attributes:
        name: The name.
    """

    code = "name_taken"
    name: str


class FutureSettledError(AbeyanceError, queue.Full):
    """The future has a result, an exception or a get hook already. It keeps it."""

    code = "future_settled"


REFUSALS: tuple[type[AbeyanceError], ...] = (
    ActorDeadError,
    MailboxFullError,
    ActorUnavailableError,
)
"""What a mailbox refuses a message with."""
