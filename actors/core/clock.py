"""The wall clock, injected. Durations are measured by trio's clock; instants by this one."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where instants come from."""

    def now_ms(self) -> int:
        """Epoch milliseconds. May step in either direction."""


class SystemClock:
    """The machine's wall clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
