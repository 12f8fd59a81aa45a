"""The actor kernel: no disk, no agents."""

from .actor import Reply, TrioActor
from .asks import AskTable, chain, in_chain, in_role
from .cell import ActorStatistics
from .clock import Clock, SystemClock
from .deadletters import DeadLetter, Quarantined
from .envelope import LATER, Answer, Ended
from .errors import (
    AbeyanceError,
    ActorCrashError,
    ActorDeadError,
    ActorKilledError,
    AskCycleError,
    AskTimeoutError,
    ChildStartError,
    FutureSettledError,
    IntensityExceededError,
    LongAwaitError,
    MailboxClosedError,
    MailboxFullError,
    NameTakenError,
    OutcomeUnknownError,
    UndeclaredAskError,
    WouldDeadlockError,
)
from .future import TrioFuture
from .hosted import HostedSystem
from .ports import DeadLetterSink, Event, EventSink, QuarantineSink
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
    "Ended",
    "Event",
    "EventSink",
    "FutureSettledError",
    "HostedSystem",
    "IntensityExceededError",
    "LongAwaitError",
    "MailboxClosedError",
    "MailboxFullError",
    "NameTakenError",
    "OutcomeUnknownError",
    "PhaseReport",
    "QuarantineSink",
    "Quarantined",
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
    "WouldDeadlockError",
    "chain",
    "in_chain",
    "in_role",
]
