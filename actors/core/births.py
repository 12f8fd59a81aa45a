"""First starts: of a whole group, and of one child for a caller who waits for it.

Invariants:
    I1. A child that does not start is no child: it is ended, and forgotten.
    I2. Whoever waits for a start is answered, whatever becomes of it.

Runs on the loop thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from .children import ActorChild
from .errors import ActorDeadError, ChildStartError
from .exhaustion import exhaust, failure_of, look_after_significant
from .future import TrioFuture
from .operations import Operation
from .ref import TrioActorRef
from .restarts import Fall
from .rounds import bring_up, give_up
from .specs import ChildSpec
from .waits import waiting_for

if TYPE_CHECKING:
    from .supervisor import Supervisor


class Birth:
    """A first start that a caller waits for."""

    __slots__ = ("abandoned", "child", "future")

    def __init__(self) -> None:
        self.future: TrioFuture[TrioActorRef[Any]] = TrioFuture()
        self.child: ActorChild | None = None
        self.abandoned = False

    def abandon(self) -> None:
        """Stop the child, as nobody waits for it any more."""
        self.abandoned = True
        if self.child is not None:
            self.child.dismiss()
            self.child.cell.kill("its start was cancelled")


async def start_all(supervisor: Supervisor) -> None:
    """Start the spec's children in order; stop those that were started where one fails.

    The end of a significant child is looked at when all have started: the one that ended first may
    not be the last there is.
    """
    with waiting_for(supervisor):
        await _start_all(supervisor)


async def _start_all(supervisor: Supervisor) -> None:
    async with Operation(supervisor):
        try:
            for spec in supervisor.spec.children:
                child = supervisor._add(spec)
                fall = await bring_up(supervisor, [child], first=child)
                if not child.born or fall is not None:
                    if fall is not None:
                        child.failure = failure_of(supervisor, fall)
                    raise _unstarted(supervisor, child)
        except BaseException:
            supervisor._stopping.set()
            with trio.CancelScope(shield=True):
                for started in reversed(list(supervisor._children.values())):
                    await started.end()
            supervisor.state = "stopped"
            raise
        supervisor._complete = True
        look_after_significant(supervisor)


async def bear(supervisor: Supervisor, spec: ChildSpec, birth: Birth) -> None:
    """Start a child for the first time, for a caller who waits for it."""
    fall: Fall | None = None
    try:
        async with Operation(supervisor):
            if birth.abandoned:
                return
            supervisor._check_running()
            child = birth.child = supervisor._add(spec)
            if supervisor._at_rest:
                child.cell.held = True
                child.cell.box.rest()
            else:
                fall = await bring_up(supervisor, [child], first=child)
                if not child.born or fall is not None:
                    failure = None if fall is None else failure_of(supervisor, fall)
                    await give_up(supervisor, child, failure)
                    birth.future._fail(_unstarted(supervisor, child))
                if fall is not None:
                    await exhaust(supervisor, fall)
        birth.future._answer(child.cell.ref)
    except Exception as exc:
        if not birth.future._fail(exc):
            raise  # The root's escalation, which is to end the run.
    except BaseException:
        birth.future._fail(supervisor._dead())
        raise


def _unstarted(supervisor: Supervisor, child: ActorChild) -> ActorDeadError | ChildStartError:
    """Say why a child that was given up did not start."""
    if supervisor._ending and child.failure is None:
        return supervisor._dead()
    error = ChildStartError(
        f"child {child.id!r} of supervisor {supervisor} failed to start; it is no child; "
        + ("its group was halted" if child.failure is None else "its error is the cause"),
        supervisor=supervisor.spec.id,
        child=child.id,
    )
    error.__cause__ = child.failure
    return error
