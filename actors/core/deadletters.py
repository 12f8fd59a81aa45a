"""Where envelopes end that were accepted and not handled: dead letters and the quarantine.

Both keep the newest entries in memory, bounded, and count all of them. A sink that a host or the
domain supplies makes them durable; one that raises is counted and logged, and the kernel goes on.

Invariants:
    I1. `total` is the sum of `counts`, and never falls.

Entries are recorded on the thread on which the envelope ends, which may be a host's.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from traceback import format_exception
from typing import Any, Generic, TypeVar

KEPT_MAX = 1_000

logger = logging.getLogger("abeyance.core")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An accepted message that was not handled.

    Attributes:
        actor: Whose mailbox it was in.
        message: What was sent.
        reason: `stopped`, `overflow`, `expired`, `outcome_unknown`, `system_ended`, or
            `fact_undelivered` for an answer that was a fact and found no actor.
        at_ms: When, in epoch milliseconds.
    """

    actor: str
    message: Any
    reason: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A message whose handler ended the incarnation.

    Attributes:
        actor: Whose mailbox it was in.
        message: What was sent.
        error: What ended the incarnation.
        incarnation: Which incarnation, from 1.
        deliveries: How often a handler was started with it.
        at_ms: When, in epoch milliseconds.
    """

    actor: str
    message: Any
    error: BaseException
    incarnation: int
    deliveries: int
    at_ms: int

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
        sink: Called with each entry, on the thread that recorded it.
        kept_max: How many entries are kept.
    """

    def __init__(self, sink: Callable[[E], object] | None, kept_max: int = KEPT_MAX) -> None:
        self._entries: deque[E] = deque(maxlen=kept_max)
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()
        self._sink: Callable[[E], object] | None = sink
        self.sink_failures = 0

    def record(self, entry: E) -> None:
        """Keep an entry and hand it to the sink. Any thread; does not raise."""
        with self._lock:
            self._entries.append(entry)
            self._counts[entry.reason] = self._counts.get(entry.reason, 0) + 1
        if self._sink is None:
            return
        try:
            self._sink(entry)
        except Exception:
            with self._lock:
                self.sink_failures += 1
            logger.exception("a sink failed; the entry is kept in memory")

    @property
    def entries(self) -> tuple[E, ...]:
        """The newest entries, oldest first."""
        with self._lock:
            return tuple(self._entries)

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
