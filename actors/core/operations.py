"""Operations on a group: its start, a restart, an unpark, a child more or less, a stop.

Invariants:
    I1. One at a time: the group's lock is held over every operation that awaits.
    I2. A fall while an operation runs is gone round by it or, when it is over, by another.

Runs on the loop thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .supervisor import Supervisor


class Operation:
    """Hold the group's lock, and have the group go round by who fell when it is over."""

    __slots__ = ("_supervisor",)

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    async def __aenter__(self) -> None:
        await self._supervisor._lock.acquire()
        self._supervisor._operating = True

    async def __aexit__(self, *_exc: object) -> None:
        supervisor = self._supervisor
        supervisor._lock.release()
        if supervisor._lock.locked():
            return  # It was handed over, and the next operation looks.
        supervisor._operating = False
        if supervisor._falls and not supervisor._at_rest:
            supervisor._soon(supervisor._regroup)
