"""The time an ask has, and ending the handler it runs for with that.

Only where the ask said so, and only a handler that awaits: the cancellation comes at its next
checkpoint. It is no crash. The incarnation goes on with the next message; what the handler had
started as tasks goes on too; the ask, whose effects nobody can tell, is a dead letter.

Invariants:
    I1. `target._scope` is the scope of the handler that runs for the target, if one does. That of
        a handler which has ended is no longer entered: cancelling it does nothing.
    I2. A kill of the incarnation wins: it is then a crash as any kill is.

Runs in the cell's task; `end_handler` on the loop thread.
"""

from __future__ import annotations

import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

import trio

from .future import Target
from .settling import give_up

if TYPE_CHECKING:
    from .cell import Cell

LONGEST_S: Final = threading.TIMEOUT_MAX
"""What a thread can wait at most, in seconds. An ask has less time, or time without an end."""


def bounded(field: str, timeout_s: float) -> float | None:
    """Return the time of an ask that was stated; None where it has no end that can be kept.

    Raises:
        ValueError: It is below 0, or no number; nothing was sent.
    """
    if not timeout_s >= 0:
        raise ValueError(
            f"{field} must be at least 0, not {timeout_s!r}; nothing was done; "
            "math.inf is without an end"
        )
    return timeout_s if timeout_s < LONGEST_S else None


async def until_expired(cell: Cell, target: Target, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await a handler; end it when its ask has expired. A checkpoint where the handler is one.

    Cancelled by the deadline, the in-flight envelope has been settled on return.
    """
    with trio.CancelScope() as scope:
        target._scope = scope
        return await coroutine
    give_up(cell)
    return None


def end_handler(target: Target) -> None:
    """Cancel the handler that runs for an expired ask, if one does."""
    if target._scope is not None:
        target._scope.cancel(reason="its ask has expired")
