"""The alarm: one task that sleeps to the earliest deadline of any kind.

Invariants:
    I1  Nothing fires before the wall clock reads its instant.
    I2  The wall clock is looked at at least every 30 s, so that a clock that stepped, or a machine
        that slept, neither oversleeps a deadline nor fires one early.
    I3  What fires is only a message: whoever gets it asks again whether it may go on.

Runs in: the loop thread. Registrations live in the cell.
"""

from __future__ import annotations

import heapq
from contextlib import suppress
from typing import Any, ClassVar, Final

import trio
from trio_util import AsyncValue

from abeyance.actors.core import TrioActor
from abeyance.actors.core.clock import Clock
from abeyance.actors.core.errors import ActorDeadError

from .protocol import Due, ForgetInstant, WatchInstant

LOOK_EVERY_S: Final = 30.0


class AlarmKept:
    """Registrations, and the earliest of them as a value to wait on."""

    def __init__(self) -> None:
        self.instants: dict[str, tuple[int, Any]] = {}
        self.order: list[tuple[int, str]] = []
        """A heap by instant. An entry that `instants` does not hold as it says is out of date."""
        self.earliest: AsyncValue[int | None] = AsyncValue(None)

    def add(self, key: str, deadline_ms: int, ref: Any) -> None:
        self.instants[key] = (deadline_ms, ref)
        heapq.heappush(self.order, (deadline_ms, key))
        self.settle()

    def forget(self, key: str) -> None:
        self.instants.pop(key, None)
        self.settle()

    def settle(self) -> None:
        """Drop what is out of date from the heap's top; publish the earliest instant."""
        order = self.order
        while order and self.instants.get(order[0][1], (None,))[0] != order[0][0]:
            heapq.heappop(order)
        self.earliest.value = order[0][0] if order else None


class Alarm(TrioActor):
    """Turns instants into messages."""

    role: ClassVar[str] = "alarm"
    max_deliveries: ClassVar[int] = 3  # Both messages are idempotent, and nobody sends them again.
    kept: AlarmKept

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    @classmethod
    def make_kept(cls) -> AlarmKept:
        return AlarmKept()

    def on_start(self) -> None:
        self.spawn(self._watch, name="alarm")

    def on_receive(self, message: Any) -> None:
        match message:
            case WatchInstant(key, deadline_ms, ref):
                self.kept.add(key, deadline_ms, ref)
            case ForgetInstant(key):
                self.kept.forget(key)
            case _:
                raise TypeError(f"the alarm takes no {type(message).__name__}")

    async def _watch(self) -> None:
        earliest = self.kept.earliest
        while True:
            now_ms = self._clock.now_ms()
            self._fire(now_ms)
            next_ms = earliest.value
            pause_s = LOOK_EVERY_S
            if next_ms is not None:
                pause_s = min((next_ms - now_ms) / 1_000, LOOK_EVERY_S)
            with trio.move_on_after(pause_s):
                await earliest.wait_value(lambda value, known=next_ms: value != known)

    def _fire(self, now_ms: int) -> None:
        kept = self.kept
        while kept.order and kept.order[0][0] <= now_ms:
            key = kept.order[0][1]
            _, ref = kept.instants.pop(key)
            kept.settle()
            with suppress(ActorDeadError):  # Nobody is left to be told.
                ref.tell_internal(Due(key))
