"""What ends a group's going on: its intensity, a message past its deliveries, a directive.

The children are stopped in reverse, their mailboxes stand. Then a group that is to park parks, also
for a message past its deliveries; it escalates otherwise, and always by a directive, which hands
its parent the child's own error. One that shuts itself down ends for good, and nobody is told.

Runs on the loop thread, in the task of the operation on the group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from .children import ActorChild
from .errors import IntensityExceededError
from .events import GroupEscalated, GroupParked, GroupShutDown
from .logs import Log
from .restarts import Fall
from .rounds import halt_all

if TYPE_CHECKING:
    from .supervisor import Supervisor

logger = Log("abeyance.core")


async def exhaust(supervisor: Supervisor, fall: Fall) -> None:
    """Stop the children, then park or escalate. Raises where there is nobody to escalate to."""
    failure = await come_to_rest(supervisor, fall)
    if failure is None:
        return
    if supervisor.parent is None:
        raise failure
    supervisor.parent._supervisor_failed(supervisor, failure)


async def come_to_rest(supervisor: Supervisor, fall: Fall) -> BaseException | None:
    """Stop the children and park; or return the error to escalate with."""
    failure = supervisor.last_error = failure_of(supervisor, fall)
    supervisor._failed_ms = supervisor.system.clock.now_ms()
    supervisor._halted = True
    await halt_all(supervisor._children.values())
    supervisor._falls.clear()
    parks = supervisor.spec.on_exhausted == "park" or fall.exit.poison
    if parks and not fall.escalates:
        _park(supervisor, failure)
        return None
    logger.error("group %s escalates: %s", supervisor, failure, actor=supervisor.spec.id)
    supervisor.system.emit(GroupEscalated, subject=supervisor.spec.id, error=failure)
    return failure


def failure_of(supervisor: Supervisor, fall: Fall) -> BaseException:
    """Return the error that a fall which no restart answers is to its group."""
    outcome = fall.exit
    if fall.escalates and outcome.error is not None:
        return outcome.error
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


def look_after_significant(supervisor: Supervisor) -> None:
    """End the group, for good, if enough of its significant children have ended by themselves.

    Not a checkpoint: it ends in a task of the system, and starts nothing from now on.
    """
    if not (supervisor._missed and supervisor._complete) or supervisor._ending:
        return
    children = supervisor._children.values()
    if supervisor.spec.auto_shutdown == "any_significant" or not any(
        isinstance(child, ActorChild) and child.significant for child in children
    ):
        supervisor._stopping.set()  # At once: another significant child may end in this instant.
        supervisor.system.emit(GroupShutDown, subject=supervisor.spec.id)
        supervisor._end_soon()


def _park(supervisor: Supervisor, failure: BaseException) -> None:
    supervisor.state = "parked"
    logger.error(
        "group %s is parked until it is unparked: %s", supervisor, failure, actor=supervisor.spec.id
    )
    supervisor.system.emit(GroupParked, subject=supervisor.spec.id, error=failure)
    supervisor.take_pills()
    if supervisor.spec.on_parked is not None:
        try:
            supervisor.spec.on_parked(supervisor, failure)
        except Exception:
            logger.exception(
                "on_parked of %s failed; the group is parked", supervisor, actor=supervisor.spec.id
            )
