"""Ending the handler of an ask with the time it has.

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

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import trio

from .future import Target
from .settling import give_up

if TYPE_CHECKING:
    from .cell import Cell


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
