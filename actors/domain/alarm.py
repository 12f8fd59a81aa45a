"""The alarm: one task that sleeps to the earliest deadline of any kind.

Invariants:
    I1  Nothing fires before the wall clock reads its instant.
    I2  The wall clock is looked at at least every 30 s, so that a clock that stepped, or a machine
        that slept, neither oversleeps a deadline nor fires one early.
    I3  What fires is only a message: whoever gets it asks again whether it may go on.

Runs in: the loop thread. Registrations live in the cell.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar, Final

import trio

from abeyance.actors.core import TrioActor
from abeyance.actors.core.clock import Clock
from abeyance.actors.core.errors import ActorDeadError

from .protocol import Due, ForgetInstant, WatchInstant

LOOK_EVERY_S: Final = 30.0


class AlarmKept:
    def __init__(self) -> None:
        self.instants: dict[str, tuple[int, Any]] = {}
        self.changed = trio.Event()


class Alarm(TrioActor):
    """Turns instants into messages."""

    role: ClassVar[str] = "alarm"
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
                self.kept.instants[key] = (deadline_ms, ref)
            case ForgetInstant(key):
                self.kept.instants.pop(key, None)
            case _:
                raise TypeError(f"the alarm takes no {type(message).__name__}")
        self.kept.changed.set()

    async def _watch(self) -> None:
        kept = self.kept
        while True:
            kept.changed = trio.Event()
            now = self._clock.now_ms()
            due = [(key, ref) for key, (at_ms, ref) in kept.instants.items() if at_ms <= now]
            for key, ref in due:
                del kept.instants[key]
                with suppress(ActorDeadError):  # Nobody is left to be told.
                    ref.tell_internal(Due(key))
            earliest = min((at_ms for at_ms, _ in kept.instants.values()), default=None)
            pause_s = (
                LOOK_EVERY_S if earliest is None else min((earliest - now) / 1000, LOOK_EVERY_S)
            )
            with trio.move_on_after(pause_s):
                await kept.changed.wait()
