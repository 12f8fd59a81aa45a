"""What an error of a child means to its supervisor: resume, restart, stop, or escalate.

| directive | the incarnation | the child | its group |
|---|---|---|---|
| resume | goes on, with its state and tasks; the message is quarantined | lives | goes on |
| restart (default) | ends | starts again, if its restart type says so | by its strategy |
| stop | ends | ends, as a temporary one would | goes on |
| escalate | ends | is stopped with its siblings | fails to its parent with this error |

The first pair whose type the error is an instance of decides; a child's own pairs come before its
supervisor's. An exception group is decided by its members: the most severe directive wins.

Awaits nothing. `decide` runs on any thread, `resumes` in the cell's task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .asks import STANCE
from .errors import DeliveriesSpentError
from .events import ActorResumed
from .logs import Log
from .settling import settle_resumed
from .specs import DIRECTIVES, Directive, Directives

if TYPE_CHECKING:
    from .cell import Cell

logger = Log("abeyance.core")


def decide(error: BaseException, *tables: Directives) -> Directive:
    """Return what the first matching pair of these tables says, `restart` where none matches."""
    if isinstance(error, BaseExceptionGroup):
        said = [decide(member, *tables) for member in error.exceptions]
        return max(said, key=DIRECTIVES.index)
    for table in tables:
        for kind, directive in table:
            if isinstance(error, kind):
                return directive
    return "restart"


def resumes(cell: Cell, error: Exception) -> bool:
    """Settle the message whose handler raised, and say so, if the incarnation is to go on.

    It is not where there is nothing to go on with: it was killed, one of its tasks crashed, or no
    message was in flight. Nor where its class parks on a message that is past its deliveries: that
    error is the kernel's, not the handler's.
    """
    if isinstance(error, DeliveriesSpentError):
        return False
    if cell.scope is None or cell.scope.cancel_called or cell.failure is not None:
        return False
    if cell.inflight is None and cell.inflight_internal is None:
        return False
    if cell.supervisor._directive(cell, error) != "resume":
        return False
    settle_resumed(cell, error)
    # An ask's chain is its handler's alone.
    STANCE.set(cell.base)
    logger.error(
        "Unhandled exception in %s, which goes on:", cell.ref, exc_info=error, actor=cell.key
    )
    cell.system.emit(ActorResumed, subject=cell.key, incarnation=cell.incarnation, error=error)
    return True
