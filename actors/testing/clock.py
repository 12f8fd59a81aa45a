"""A wall clock that tests set."""

from __future__ import annotations

import math

import trio

START_MS = 1_791_374_400_000
"""2026-10-07T12:00:00Z, where a wall clock starts unless told otherwise."""


class WallClock:
    """A settable `Clock`, standing still or moving with trio's clock.

    With `follow_trio=True` every reading adds what `trio.current_time()` has moved since the clock
    was made, so that a `MockClock` which jumps moves both. Reading it is then possible from the
    trio thread only. Not a checkpoint anywhere.

    Args:
        now_ms: Epoch milliseconds to start at.
        follow_trio: Move with trio's clock. Must be made inside `trio.run` then.
    """

    def __init__(self, now_ms: int = START_MS, *, follow_trio: bool = False) -> None:
        self._base_ms = now_ms
        self._origin_s = trio.current_time() if follow_trio else None

    def now_ms(self) -> int:
        """Epoch milliseconds."""
        if self._origin_s is None:
            return self._base_ms
        # To the nearest microsecond first: 3 x 0.1 s must not lose a millisecond to binary.
        elapsed_ms = round((trio.current_time() - self._origin_s) * 1_000, 3)
        return self._base_ms + math.floor(elapsed_ms)

    def advance(self, ms: int) -> None:
        """Step the clock; a negative step turns it back, as an administrator may."""
        self._base_ms += ms

    def set(self, now_ms: int) -> None:
        """Set the clock to an instant, in epoch milliseconds."""
        self._base_ms += now_ms - self.now_ms()
