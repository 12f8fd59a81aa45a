"""What ends a group's going on: its intensity is exceeded, or a message is past its deliveries.

The children are stopped in reverse, their mailboxes stand; then the group parks or escalates.

Runs on the loop thread, in the task of the operation on the group.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from .errors import IntensityExceededError
from .rounds import halt_all
from .settling import Exit

if TYPE_CHECKING:
    from .supervisor import Supervisor

logger = logging.getLogger("abeyance.core")


async def exhaust(supervisor: Supervisor, outcome: Exit) -> None:
    """Stop the children, then park or escalate. Raises where there is nobody to escalate to."""
    failure = await come_to_rest(supervisor, outcome)
    if failure is None:
        return
    if supervisor.parent is None:
        raise failure
    supervisor.parent._supervisor_failed(supervisor, failure)


async def come_to_rest(supervisor: Supervisor, outcome: Exit) -> IntensityExceededError | None:
    """Stop the children and park; or return the error to escalate with."""
    failure = supervisor.last_error = exceeded(supervisor, outcome)
    supervisor._halted = True
    await halt_all(supervisor._children.values())
    supervisor._falls.clear()
    if supervisor.spec.on_exhausted == "park" or outcome.poison:
        _park(supervisor, failure)
        return None
    supervisor.system.emit("escalated", supervisor.spec.id, error=failure)
    return failure


def exceeded(supervisor: Supervisor, outcome: Exit) -> IntensityExceededError:
    if outcome.poison:
        what = "a message went past its deliveries"
    else:
        what = f"more than {supervisor.spec.intensity} restarts in {supervisor.spec.period_s} s"
    failure = IntensityExceededError(
        f"supervisor {supervisor}: {what}; its children are stopped, their mailboxes stand; "
        "the last error is the cause",
        supervisor=supervisor.spec.id,
        restarts=supervisor._restarts.recent(supervisor.spec, trio.current_time()),
        period_s=supervisor.spec.period_s,
    )
    failure.__cause__ = outcome.error
    return failure


def _park(supervisor: Supervisor, failure: IntensityExceededError) -> None:
    supervisor.state = "parked"
    supervisor.system.emit("parked", supervisor.spec.id, error=failure)
    if supervisor.spec.on_parked is not None:
        try:
            supervisor.spec.on_parked(supervisor, failure)
        except Exception:
            logger.exception("on_parked of %s failed; the group is parked", supervisor)
