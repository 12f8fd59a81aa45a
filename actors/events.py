"""The events of a runtime, by class; `Runtime.events()` yields them. See their rooms."""

from __future__ import annotations

from .core import (
    ActorCrashed,
    ActorEvent,
    ActorRestarted,
    ActorResumed,
    ActorStarted,
    ActorStopped,
    Event,
    EventsDropped,
    GroupEscalated,
    GroupEvent,
    GroupParked,
    GroupShutDown,
    GroupUnparked,
    MailboxHigh,
    MailboxLow,
    Subscription,
)
from .domain.events import (
    AgentEvent,
    CommitOverdue,
    HoldBegan,
    HoldEnded,
    TurnEnded,
    TurnStarted,
    WaitRecorded,
    WaitReleased,
)

__all__ = [
    "ActorCrashed",
    "ActorEvent",
    "ActorRestarted",
    "ActorResumed",
    "ActorStarted",
    "ActorStopped",
    "AgentEvent",
    "CommitOverdue",
    "Event",
    "EventsDropped",
    "GroupEscalated",
    "GroupEvent",
    "GroupParked",
    "GroupShutDown",
    "GroupUnparked",
    "HoldBegan",
    "HoldEnded",
    "MailboxHigh",
    "MailboxLow",
    "Subscription",
    "TurnEnded",
    "TurnStarted",
    "WaitRecorded",
    "WaitReleased",
]
