"""One task per system that ends asks past their deadline and fires timers.

Ask deadlines fall into slots of 1/64 s: adding one is a set insertion and settling the ask removes
it, so an answered ask is not held until its deadline. Ask deadlines are never early, and late by a
slot at most. Timers are exact.

Invariants:
    I1. A target is in the slot of its tick, or settled. A slot that was taken out to be expired
        is noticed by the adder, who looks again after adding.
    I2. `_ticks` and `_timers` are touched on the loop thread only.

Runs in a task of the system, on the loop thread; `add` may be called on any thread.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from threading import get_ident
from typing import Any

import trio

from .future import Target

TICKS_PER_S = 64
_EXPIRED_A_SLICE = 256  # Settling is about 2 us each: half a millisecond, then others run.


class Timer:
    """A timer that was set. Fires at most once."""

    __slots__ = ("_fire",)

    def __init__(self, fire: Callable[[], object]) -> None:
        self._fire: Callable[[], object] | None = fire

    @property
    def active(self) -> bool:
        """Whether it is still to fire."""
        return self._fire is not None

    def cancel(self) -> bool:
        """Unset it. Return whether it was still to fire. Not a checkpoint; on the loop thread."""
        was, self._fire = self._fire is not None, None
        return was

    def _run(self) -> None:
        fire, self._fire = self._fire, None
        if fire is not None:
            fire()


class Wheel:
    """The deadlines and timers of one system."""

    def __init__(self, clock: trio.abc.Clock, token: trio.lowlevel.TrioToken) -> None:
        self._now = clock.current_time
        self._token = token
        self._ident = get_ident()
        self._slots: dict[int, set[Target]] = {}
        self._ticks: list[int] = []
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._wake_at = math.inf
        self._nudge = trio.Event()

    def add(self, target: Target, timeout_s: float) -> None:
        """Let `target` expire in `timeout_s` seconds, from any thread."""
        tick = int((self._now() + timeout_s) * TICKS_PER_S) + 1
        target._timeout_s = timeout_s
        slots = self._slots
        slot = slots.get(tick)
        while True:
            fresh = slot is None
            if slot is None:
                slot = slots.setdefault(tick, set())
            target._slot = slot
            slot.add(target)
            if slots.get(tick) is slot:
                break
            tick = int(self._now() * TICKS_PER_S) + 1  # That slot is being expired.
            slot = slots.get(tick)
        if fresh:
            self._announce(tick)

    def at(self, delay_s: float, fire: Callable[[], object]) -> Timer:
        """Call `fire` on the loop thread in `delay_s` seconds. It must not raise."""
        timer = Timer(fire)
        when = self._now() + max(0.0, delay_s)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        if when < self._wake_at:
            self._nudge.set()
        return timer

    def _announce(self, tick: int) -> None:
        if get_ident() == self._ident:
            self._announced(tick)
            return
        try:
            self._token.run_sync_soon(self._announced, tick)
        except trio.RunFinishedError:
            return  # The system's end settles what is left.

    def _announced(self, tick: int) -> None:
        heapq.heappush(self._ticks, tick)
        if tick / TICKS_PER_S < self._wake_at:
            self._nudge.set()

    async def run(self) -> None:
        """Expire and fire until cancelled."""
        while True:
            await self._expire()
            self._fire()
            self._nudge = trio.Event()
            self._wake_at = self._next()
            with trio.move_on_at(self._wake_at):
                await self._nudge.wait()
            self._wake_at = math.inf

    def _next(self) -> float:
        when = self._ticks[0] / TICKS_PER_S if self._ticks else math.inf
        while self._timers and not self._timers[0][2].active:
            heapq.heappop(self._timers)
        return min(when, self._timers[0][0]) if self._timers else when

    async def _expire(self) -> None:
        while self._ticks and self._ticks[0] / TICKS_PER_S <= self._now():
            slot: Any = self._slots.pop(heapq.heappop(self._ticks), ())
            for count, target in enumerate(list(slot), start=1):
                target._expire()
                if count % _EXPIRED_A_SLICE == 0:
                    await trio.lowlevel.checkpoint()

    def _fire(self) -> None:
        now = self._now()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]._run()

    def end(self, error: BaseException) -> None:
        """Fail what is left, at the end of the system: asks that race it in a host thread."""
        for tick in list(self._slots):
            for target in list(self._slots.pop(tick)):
                target._fail(error)
