"""What the kernel hands to whoever embeds it. The kernel itself keeps all of it in memory only.

Each is called with one frozen record and must not block; what it raises is counted and logged, and
the kernel goes on. Dead letters are recorded on the thread on which they end, the rest on the loop
thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from .deadletters import DeadLetter, Quarantined


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened to an actor or a supervisor.

    Attributes:
        kind: `started`, `crashed`, `restarted`, `stopped`, `parked`, `unparked` or `escalated`.
        subject: The actor's or supervisor's name.
        incarnation: The actor's incarnation, from 1; 0 for a supervisor.
        error: What ended the incarnation or the group, if anything did.
        detail: More, by name.
    """

    kind: str
    subject: str
    incarnation: int = 0
    error: BaseException | None = None
    detail: dict[str, Any] = field(default_factory=dict)


class DeadLetterSink(Protocol):
    """Where dead letters go to be kept."""

    def __call__(self, letter: DeadLetter, /) -> object: ...


class QuarantineSink(Protocol):
    """Where quarantined messages go to be kept."""

    def __call__(self, entry: Quarantined, /) -> object: ...


class EventSink(Protocol):
    """Who looks at what happens."""

    def __call__(self, event: Event, /) -> object: ...
