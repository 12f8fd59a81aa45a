"""The two ends of a reply: the handle of one that is owed, and the target of an actor's own ask.

Invariants:
    I1. A handle names its envelope, not an incarnation.
    I2. An outcome reaches the asker by its internal lane, once, or is counted as dropped.

A handle is settled on the loop thread; a target on any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from .asks import Link
from .envelope import ANSWER, Answer
from .future import Failure, Target
from .hand import release
from .settling import drop_internal

if TYPE_CHECKING:
    from .cell import Cell


class Reply:
    """The handle of a reply that is owed. Names its envelope, not an incarnation.

    It settles while the envelope is owed, being handled again, or queued again after a crash; a
    queued one then leaves the queue. On the loop thread only.
    """

    __slots__ = ("_cell", "_over", "_target")

    def __init__(self, cell: Cell, target: Target, over: bool) -> None:
        self._cell = cell
        self._target = target
        self._over = over

    @property
    def settled(self) -> bool:
        """Whether the asker has a reply, or an error in its place."""
        return self._over or self._target.settled

    def set(self, value: Any = None) -> bool:
        """Reply. Return whether this was the reply; False if there was one, or it came too late.

        Not a checkpoint.
        """
        cell, target = self._cell, self._target
        if get_ident() != cell.box.ident:
            raise RuntimeError("a reply handle is settled on the loop thread")
        if cell.inflight is None and cell.idle is None and cell.state == "running":
            # As `release`, without the call, of what is owed by an actor that handles nothing else.
            if cell.owed.pop(target, None) is not None:
                cell.handled += 1
            elif not release(cell, target):
                return False
        elif not release(cell, target):
            return False
        # As `target._settle`, without the call.
        try:
            del target._claim
        except AttributeError:
            cell.late += 1
            return False
        else:
            target._outcome = value
        if target._watched:
            target._settled()
        return True

    def set_exception(self, error: BaseException) -> bool:
        """Reply with an exception. As `set`."""
        return self.set(Failure(error, error.__traceback__))


class Request(Target):
    """The target of an actor's own ask: its outcome comes back on the actor's internal lane."""

    _carried: Callable[[Any], Any] | None = None

    def __init__(
        self, cell: Cell, tag: Any, message: Any, fact: bool, chain: tuple[Link, ...]
    ) -> None:
        super().__init__()
        self._watched = True
        self._asker = cell
        self._tag = tag
        self._message = message
        self._incarnation = 0 if fact else cell.present
        # The ring ends where the asker itself waits: the answer is handled in the asker's chain.
        self._chain = chain
        if cell.system.tracing is not None:
            self._carried = cell.system.tracing.keeping()

    def _settled(self) -> None:
        super()._settled()
        error = self.error
        value = self._outcome if error is None else None
        answer = Answer(self._tag, value, error, self._message)
        cell = self._asker
        payload: Any = (self._chain[:-1], answer)
        if self._carried is not None:
            payload = self._carried(payload)
        if not cell.box.put_internal((ANSWER, payload, self._incarnation, 0)):
            drop_internal(cell, ANSWER, payload, self._incarnation)
