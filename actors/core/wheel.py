"""One task per system that ends asks past their deadline and fires timers.

An ask carries its deadline, and while it is not answered its envelope is in its actor's lanes, in
flight, or owed. So the wheel does not keep asks: it keeps the mailboxes that were asked, each by
the earliest deadline it may hold, and looks through one when that has come. What is still waiting
there then is kept by its own deadline. An ask that is answered before costs a comparison.

Deadlines fall into slots of 1/64 s. They are never early, and late by a slot at most. Timers are
exact.

Invariants:
    I1. While a mailbox holds an unsettled ask with a deadline that is in no slot, `box.alarm` is at
        or before that deadline, and an entry for the mailbox at or before `alarm` is in a slot or
        on its way to the loop thread. The sender appends, then looks at `alarm`; the wheel clears
        `alarm`, then looks through the lanes: one of them sees the other.
    I2. A target in a slot is unsettled, or about to be discarded by whoever settled it.
    I3. `_slots`, `_ticks` and `_timers` are touched on the loop thread only; targets are taken out
        of a slot on any.

Runs in a task of the system, on the loop thread; `arm` may be called on any thread.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING

import trio

from .expiry import end_handler
from .future import NO_DEADLINE, Target
from .mailbox import Mailbox
from .room import NO_ALARM

if TYPE_CHECKING:
    from .cell import Cell

TICKS_PER_S = 64
_EXPIRED_A_SLICE = 256  # Settling is about 2 us each: half a millisecond, then others run.
_CANCELLED = 64  # So few timers that will not fire are not worth a look.


class Timer:
    """A timer that was set. Fires at most once."""

    __slots__ = ("_fire", "_wheel")

    def __init__(self, wheel: Wheel, fire: Callable[[], object]) -> None:
        self._wheel = wheel
        self._fire: Callable[[], object] | None = fire

    @property
    def active(self) -> bool:
        """Whether it is still to fire."""
        return self._fire is not None

    def cancel(self) -> bool:
        """Unset it. Return whether it was still to fire. Not a checkpoint; on the loop thread."""
        was, self._fire = self._fire is not None, None
        if was:
            self._wheel._unset()
        return was

    def _run(self) -> None:
        fire, self._fire = self._fire, None
        if fire is not None:
            fire()


class Wheel:
    """The deadlines and timers of one system."""

    def __init__(
        self,
        clock: trio.abc.Clock,
        token: trio.lowlevel.TrioToken,
        ask_timeout_s: float | None,
    ) -> None:
        self._trio_now = clock.current_time
        # What deadlines of asks are counted in. Trio's own clock is this one and an offset, behind
        # a call that would be a third of what a deadline costs; another is asked itself.
        real = type(clock).__module__ == "trio._core._run"
        self.injected: Callable[[], float] | None = None if real else clock.current_time
        self.now: Callable[[], float] = self.injected or time.perf_counter
        self._ask_timeout_s = ask_timeout_s
        self._token = token
        self._ident = get_ident()
        # In order of entry: those of one instant expire as they were asked.
        self._slots: dict[int, dict[Target | Mailbox, None]] = {}
        self._ticks: list[int] = []
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._cancelled = 0  # How many of `_timers`, at most, will not fire.
        self._wake_at = math.inf
        self._nudge = trio.Event()

    def now_s(self) -> float:
        """The time of trio's clock. Any thread."""
        return self._trio_now()

    def arm(self, box: Mailbox, when: float) -> None:
        """Look through a mailbox at `when`, for an ask that was put into it. Any thread."""
        box.alarm = when
        if get_ident() == self._ident:
            self._armed(box, when)
            return
        try:
            self._token.run_sync_soon(self._armed, box, when)
        except trio.RunFinishedError:
            return  # The mailbox is closed, and whoever puts something into it buries it.
        except BaseException:  # A KeyboardInterrupt here must not leave asks without a deadline.
            box.alarm = NO_ALARM
            raise

    def _armed(self, box: Mailbox, when: float) -> None:
        if not box.closed:
            self._put(box, when)

    def disarm(self, box: Mailbox) -> None:
        """Forget a mailbox that was closed, so that it is not held until its alarm."""
        slot = self._slots.get(_tick_of(box.alarm)) if box.alarm < NO_ALARM else None
        if slot is not None:
            slot.pop(box, None)

    def _put(self, entry: Target | Mailbox, when: float) -> dict[Target | Mailbox, None]:
        tick = _tick_of(when)
        slot = self._slots.get(tick)
        if slot is None:
            slot = self._slots[tick] = {}
            heapq.heappush(self._ticks, tick)
            if self._ticks[0] == tick:
                self._nudge.set()
        slot[entry] = None
        return slot

    def at(self, delay_s: float, fire: Callable[[], object]) -> Timer:
        """Call `fire` on the loop thread in `delay_s` seconds. It must not raise. Any thread."""
        timer = Timer(self, fire)
        when = self._trio_now() + max(0.0, delay_s)
        if get_ident() == self._ident:
            self._set(when, timer)
        else:  # The constructor of an actor that a host thread starts.
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._set, when, timer)
        return timer

    def _set(self, when: float, timer: Timer) -> None:
        heapq.heappush(self._timers, (when, next(self._order), timer))
        if when < self._wake_at:
            self._nudge.set()

    def _unset(self) -> None:
        """Forget those that were cancelled once they are the more: their time may be far off."""
        if get_ident() != self._ident:
            return  # A constructor's own, on a host thread: it goes when its time comes.
        self._cancelled += 1
        if self._cancelled > max(_CANCELLED, len(self._timers) // 2):
            self._timers = [entry for entry in self._timers if entry[2].active]
            heapq.heapify(self._timers)
            self._cancelled = 0

    async def run(self) -> None:
        """Expire and fire until cancelled."""
        while True:
            await self._expire()
            await self._fire()
            self._nudge = trio.Event()
            self._wake_at = self._next()
            with trio.move_on_at(self._wake_at):
                await self._nudge.wait()
            self._wake_at = math.inf

    def _next(self) -> float:
        when = math.inf
        if self._ticks:
            when = self._trio_now() + self._ticks[0] / TICKS_PER_S - self.now()
        while self._timers and not self._timers[0][2].active:
            heapq.heappop(self._timers)
        return min(when, self._timers[0][0]) if self._timers else when

    async def _expire(self) -> None:
        ended = 0
        while self._ticks and self._ticks[0] / TICKS_PER_S <= self.now():
            slot = self._slots.pop(heapq.heappop(self._ticks))
            for entry in list(slot):
                due = [entry] if isinstance(entry, Target) else self._look_through(entry)
                for target in due:
                    if target._expire(self._ask_timeout_s):
                        end_handler(target)
                    ended += 1
                    if ended % _EXPIRED_A_SLICE == 0:
                        await trio.lowlevel.checkpoint()

    def _look_through(self, box: Mailbox) -> list[Target]:
        """Return the targets of a mailbox that are due, and keep the others by their deadlines."""
        box.alarm = NO_ALARM
        now = self.now()
        due = []
        for target in _waiting(box.cell):
            deadline = target._deadline
            if deadline == NO_DEADLINE or target._slot is not None or target.settled:
                continue
            if deadline <= now:
                due.append(target)
            else:
                self._keep(target, deadline)
        return due

    def _keep(self, target: Target, deadline: float) -> None:
        target._slot = slot = self._put(target, deadline)
        target._listed = target._watched = True
        if target.settled:  # By another thread, meanwhile.
            slot.pop(target, None)

    async def _fire(self) -> None:
        now = self._trio_now()
        fired = 0
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]._run()
            fired += 1
            if fired % _EXPIRED_A_SLICE == 0:
                await trio.lowlevel.checkpoint()


def _tick_of(when: float) -> int:
    return int(when * TICKS_PER_S) + 1


def _waiting(cell: Cell) -> list[Target]:
    """Return whoever waits for a reply of the cell: queued, stashed, in flight and owed."""
    # Copies, because host threads append and drop meanwhile; a list is made of one in one step.
    box = cell.box
    queued = (*list(box.user), *(box.returned or ()), *(box.stashed or ()), cell.inflight)
    waiting = [entry[1] for entry in queued if entry is not None and entry[1] is not None]
    return [*waiting, *cell.owed]
