"""The order in which trio runs tasks that are ready at once, by a seed.

Trio shuffles each batch of ready tasks, by a generator of the whole process. While a block of
`Faults` is open, that is another one, which starts from the block's seed on every thread.

Invariants:
    I1. What the process had is back when the last open block is left, in whatever order they are.
    I2. A thread draws from a generator of its own, so a run elsewhere takes nothing from this one.

Blocks are entered and left on any thread.
"""

from __future__ import annotations

import threading
from random import Random
from typing import Any, Final

import trio._core._run as scheduler

# Trio has no public door to either; pytest-trio and Hypothesis set the same two.
_ORDERED: Final = "_ALLOW_DETERMINISTIC_SCHEDULING"
_RANDOM: Final = "_r"

_lock: Final = threading.Lock()
_open: Final[list[TaskOrder]] = []
_own: list[tuple[str, Any]] = []


class TaskOrder(threading.local):
    """What trio draws from in the place of its own generator: one for each thread, by one seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._random, name)


def begin(seed: int) -> TaskOrder | None:
    """Order tasks by this seed until `end`; None where this trio knows no such thing."""
    with _lock:
        if not (hasattr(scheduler, _ORDERED) and hasattr(scheduler, _RANDOM)):
            return None
        if not _open:
            _own[:] = [(name, getattr(scheduler, name)) for name in (_ORDERED, _RANDOM)]
        order = TaskOrder(seed)
        _open.append(order)
        _set(True, order)
        return order


def end(order: TaskOrder) -> None:
    """Order by the block that was entered last and is still open, or as before there was any."""
    with _lock:
        _open[:] = [other for other in _open if other is not order]
        if _open:
            _set(True, _open[-1])
        else:
            _set(*(value for _, value in _own))
            _own.clear()


def _set(ordered: bool, source: Any) -> None:
    setattr(scheduler, _ORDERED, ordered)
    setattr(scheduler, _RANDOM, source)
