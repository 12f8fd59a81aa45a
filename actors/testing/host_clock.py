"""A virtual clock for programs with threads: time jumps only when nobody works outside the loop.

`trio.testing.MockClock(autojump_threshold=0)` sees a loop whose tasks all wait and jumps to the
next deadline, also while a thread works for one of those tasks: a 60 s deadline passes in the
50 ms that the thread takes. This clock stands still while

- a thread that trio started works: `to_thread.run_sync`, and with it every sync tool body;
- a thread works that said so (`with clock.working():`);
- a batch is with the store's writer.

A thread that waits for the loop, in a blocking ask, `get()` or `trio.from_thread.run`, does not
work: what it waits for may need time to pass.

Invariants:
    I1. Time moves only from one deadline of trio's to the next, or by `jump`.
    I2. Between two jumps the loop has looked for what threads and sockets have for it.

`current_time` and `working` on any thread; everything else on the loop thread.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from types import FrameType
from typing import Any, Final

import trio
from trio.testing import active_thread_count

from abeyance.actors.core.future import TrioFuture
from abeyance.actors.core.system import ActorSystem, _running

_POLL_S: Final = 0.001
"""Before a jump: what the selector can wait for at least."""
_LOOK_S: Final = 0.005
"""Between two looks at whether somebody still works outside."""
_BLOCK: Final = TrioFuture._block.__code__
_FROM_THREAD: Final = (trio.from_thread.run.__code__, trio.from_thread.run_sync.__code__)
_WORKERS: Final = trio.to_thread.run_sync.__code__.co_filename


class HostClock(trio.abc.Clock):
    """Time for a `trio.run`; pass it as `clock=`, or as `trio_clock=` to `HostedSystem`.

    With pytest-trio, a fixture that returns one sets it for the test. It starts at 0.0, and goes on
    in a second run after the first. A task in
    `wait_all_tasks_blocked` with a cushion below 1 ms goes on before time does.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._polled = False
        self._watched = False
        self._working: dict[int, int] = {}
        self._lock = threading.Lock()

    # -- trio.abc.Clock

    def start_clock(self) -> None:
        """See `trio.abc.Clock`."""
        self._watched = self._polled = False

    def current_time(self) -> float:
        """Seconds since the run began."""
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """See `trio.abc.Clock`. Trio asks when every task waits: the place to jump."""
        if not self._watched:
            self._watched = True
            trio.lowlevel.add_instrument(_Stir(self))
        if deadline <= self._now:
            return 0.0
        if math.isinf(deadline):
            return math.inf
        if self._is_work_outside():
            self._polled = False
            return _LOOK_S
        if not self._polled:
            self._polled = True
            return _POLL_S
        self._polled = False
        self._now = deadline
        return 0.0

    # -- for tests

    def jump(self, seconds: float) -> None:
        """Move on by so much at once. On the loop thread; deadlines on the way pass together."""
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"time moves forwards, by a finite number of seconds, not {seconds!r}")
        self._now += seconds

    @contextmanager
    def working(self) -> Iterator[None]:
        """Let time stand still while the calling thread is in the block and works.

        For threads that trio did not start: hosts' own. It may be nested.
        """
        ident = get_ident()
        with self._lock:
            self._working[ident] = self._working.get(ident, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                self._working[ident] -= 1
                if not self._working[ident]:
                    del self._working[ident]

    def _is_work_outside(self) -> bool:
        with self._lock:
            working = set(self._working)
        threads = active_thread_count()
        if working or threads:
            hosts, workers = _waiting()
            if working - hosts or threads > workers:
                return True
        system = _running.get(None)
        return system is not None and _is_commit_out(system)


class _Stir(trio.abc.Instrument):
    """Notes that something ran since the loop was polled."""

    def __init__(self, clock: HostClock) -> None:
        self._clock = clock

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        self._clock._polled = False


def _waiting() -> tuple[set[int], int]:
    """The threads that wait for a loop, and how many of those trio started."""
    hosts: set[int] = set()
    workers = 0
    for ident, top in sys._current_frames().items():
        frame: FrameType | None = top
        waits = trios = False
        while frame is not None:
            code = frame.f_code
            if code is _BLOCK:
                waits = not frame.f_locals["self"].settled
            elif code.co_filename == _WORKERS:
                trios = True
                if code in _FROM_THREAD:
                    waits = waits or not _has_answer(top)
            frame = frame.f_back
        if waits:
            hosts.add(ident)
            workers += trios
    return hosts, workers


def _has_answer(frame: FrameType | None) -> bool:
    """Whether what a thread asked of the loop has come, and the thread only has to take it."""
    while frame is not None:
        message: Any = frame.f_locals.get("message_to_trio")
        if message is not None:
            return not message.queue.empty()
        frame = frame.f_back
    return True  # It has not asked yet, or has its answer.


def _is_commit_out(system: ActorSystem) -> bool:
    cell = system.names.find("journal")
    if cell is None or getattr(cell.kept, "out", None) is None:
        return False
    # A commit that a fault delays waits for time itself.
    return not getattr(system.faults, "commits_delayed", 0)
