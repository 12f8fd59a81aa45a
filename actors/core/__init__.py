"""The actor kernel: no disk, no agents."""

from .actor import Reply, TrioActor
from .asks import AskTable, chain, in_chain, in_role
from .cell import ActorStatistics
from .clock import Clock, SystemClock
from .deadletters import DeadLetter, Quarantined
from .envelope import LATER, Answer, Ended, Origin, Reminder
from .errors import (
    AbeyanceError,
    ActorCrashError,
    ActorDeadError,
    ActorKilledError,
    AskCycleError,
    AskTimeoutError,
    ChildStartError,
    DeliveriesSpentError,
    FutureSettledError,
    IntensityExceededError,
    LongAwaitError,
    MailboxClosedError,
    MailboxFullError,
    MessageNotKeptError,
    NameTakenError,
    OutcomeUnknownError,
    ReplaysExceededError,
    UndeclaredAskError,
    UnknownEntryError,
    WouldDeadlockError,
)
from .future import TrioFuture
from .hosted import HostedSystem
from .ports import (
    DeadLetterSink,
    DeliveryCounts,
    Event,
    EventSink,
    QuarantineSink,
    Reminders,
)
from .ref import TrioActorRef
from .specs import Backoff, ChildSpec, SupervisorSpec, SupervisorStatistics
from .supervisor import Supervisor
from .system import ActorSystem, PhaseReport, ShutdownReport, SystemStatistics
from .wheel import Timer

__all__ = [
    "LATER",
    "AbeyanceError",
    "ActorCrashError",
    "ActorDeadError",
    "ActorKilledError",
    "ActorStatistics",
    "ActorSystem",
    "Answer",
    "AskCycleError",
    "AskTable",
    "AskTimeoutError",
    "Backoff",
    "ChildSpec",
    "ChildStartError",
    "Clock",
    "DeadLetter",
    "DeadLetterSink",
    "DeliveriesSpentError",
    "DeliveryCounts",
    "Ended",
    "Event",
    "EventSink",
    "FutureSettledError",
    "HostedSystem",
    "IntensityExceededError",
    "LongAwaitError",
    "MailboxClosedError",
    "MailboxFullError",
    "MessageNotKeptError",
    "NameTakenError",
    "Origin",
    "OutcomeUnknownError",
    "PhaseReport",
    "QuarantineSink",
    "Quarantined",
    "Reminder",
    "Reminders",
    "ReplaysExceededError",
    "Reply",
    "ShutdownReport",
    "Supervisor",
    "SupervisorSpec",
    "SupervisorStatistics",
    "SystemClock",
    "SystemStatistics",
    "Timer",
    "TrioActor",
    "TrioActorRef",
    "TrioFuture",
    "UndeclaredAskError",
    "UnknownEntryError",
    "WouldDeadlockError",
    "chain",
    "in_chain",
    "in_role",
]
