"""The life of a cell: the one task that runs incarnations in it, one after the other.

Invariants:
    I1. Of two incarnations nothing runs at the same time: the tasks of the first have ended.
    I2. Whatever ends an incarnation, what it had in hand is settled, and its supervisor says what
        follows, before anything else happens to the cell.
    I3. When the task ends the cell has ended.

Runs in the cell's task.
"""

from __future__ import annotations

from types import CoroutineType
from typing import TYPE_CHECKING, Any

import trio

from .asks import STANCE
from .directives import resumes
from .errors import ActorKilledError
from .events import ActorCrashed, ActorRestarted, ActorStarted
from .logs import Log
from .mailbox import HALT, KILL
from .reporting import log_error
from .serving import serve
from .settling import CRASHED, HALTED, Exit, abandon, cancels, settle_exit
from .tasks import end_tasks
from .urgent import serve_owed

if TYPE_CHECKING:
    from .actor import TrioActor
    from .cell import Cell

logger = Log("abeyance.core")


async def run(cell: Cell) -> None:
    """Run incarnations until the cell ends. The one task of the cell.

    One coroutine for both: another for each incarnation would be a tenth of an idle actor.
    """
    reason: BaseException | None = None
    cell.task = trio.lowlevel.current_task()
    try:
        while True:
            if cell.held:
                await _wait_while_held(cell)
            if cell.ending:
                break
            how: str | None = None
            left = False
            error: BaseException | None = None
            actor: TrioActor | None = None
            try:
                # Errors are caught outside the scope: a handler's nursery that is killed while
                # a child raises gives a BaseExceptionGroup inside, an ExceptionGroup outside.
                with _begin(cell):
                    actor, served = _appoint(cell)
                    result: Any = served.on_start()
                    if result.__class__ is CoroutineType:
                        await result
                    _begun(cell)
                    while how is None:
                        try:
                            how = await serve(cell, served)
                        except Exception as exc:
                            if not resumes(cell, exc):
                                raise
                            # A queue of failures must not hold all.
                            await trio.lowlevel.checkpoint()
                    await _leave(cell, served, how)
                    left = True
            except Exception as exc:  # noqa: BLE001 - the incarnation's end, and handed on.
                error = exc
            except BaseException as exc:  # noqa: BLE001 - raised again where it ends the run.
                error = _abort(cell, exc)
            outcome = await _conclude(cell, actor, how, left, error)
            reason = outcome.error
            error = None  # An idle actor is not to hold what crashed its last incarnation.
            delay_s = cell.supervisor._child_exited(cell, outcome)
            cell.ending = cell.ending or delay_s is None
            cell._tell_watchers(reason, final=cell.ending)
            if cell.ending:
                break
            cell.settle_pills()
            if delay_s:
                await _pause(cell, delay_s)
    except BaseException as exc:
        reason = reason or exc
        raise
    finally:
        cell.task = None
        cell._end(reason)
        cell.system.settle(cell)


async def _wait_while_held(cell: Cell) -> None:
    while cell.held and not cell.ending:
        cell.state = "held"
        cell.settle_idle()
        cell._nudge = trio.Event()
        cell.take_pills()  # It may have been left behind by a group that has parked since.
        await cell._nudge.wait()
    # What was to end an incarnation before it ran must not end the one that is to run.
    cell.box.control &= ~(KILL | HALT)


async def _pause(cell: Cell, delay_s: float) -> None:
    cell.state = "waiting"
    cell.settle_idle()
    cell._nudge = trio.Event()
    with trio.move_on_after(delay_s):
        await cell._nudge.wait()


def _begin(cell: Cell) -> trio.CancelScope:
    """Begin an incarnation; return the scope it is to run in."""
    STANCE.set(cell.base)
    if cell.system.tracing is not None:
        cell.system.tracing.clear()
    cell.incarnation += 1
    cell.failure = None
    cell.killed_at = None
    scope = cell.scope = trio.CancelScope()
    return scope


def _appoint(cell: Cell) -> tuple[TrioActor, Any]:
    """Return the instance of the incarnation, and what is called in its place."""
    actor = cell.actor if cell.fresh and cell.actor is not None else cell.make()
    cell.fresh = False
    cell.state = "running"
    faults = cell.system.faults
    return actor, actor if faults is None else faults.handlers(cell, actor)


def _begun(cell: Cell) -> None:
    """Say that `on_start` has returned."""
    if cell.box.restarting:
        _set_restarting(cell, False)
    cell.settle_started(None)
    if cell.name is not None:
        cell.system.reminders.started(cell.name)
    system = cell.system
    if system.hub.watched:
        kind = ActorStarted if cell.incarnation == 1 else ActorRestarted
        system.emit(kind, subject=cell.key, incarnation=cell.incarnation)


def _abort(cell: Cell, exc: BaseException) -> BaseException:
    """Return what ended the incarnation, where that does not end the run; else raise it."""
    if cancels(exc) or not cell.system.stop_all_on_base_exception:
        abandon(cell, exc)
        raise exc
    logger.debug("%r in %s. Stopping all actors.", exc, cell.ref, actor=cell.key)
    cell.system.stop_everything()
    return exc


async def _conclude(
    cell: Cell, actor: TrioActor | None, how: str | None, left: bool, error: BaseException | None
) -> Exit:
    """End the incarnation's tasks, settle what it had in hand, and say how it ended."""
    if error is None and not left:
        error = cell.failure or ActorKilledError(
            f"an incarnation of {cell} was killed; its supervisor decides whether another starts",
            actor=cell.key,
            reason=cell.kill_reason,
        )
    else:
        error = _with_failure(cell, error)
    _set_restarting(cell, True)
    if cell.tasks:
        await end_tasks(cell)
    cell.box.control &= ~(KILL | HALT)
    cell.kill_reason = None
    outcome = settle_exit(cell, how, error)
    if outcome.kind == CRASHED:
        await _report_crash(cell, actor, outcome)
        if cell.tasks:  # Which the hook started.
            await end_tasks(cell)
    elif error is not None and not isinstance(error, ActorKilledError):
        log_error(logger, "Unhandled exception in %s:", cell.ref, error)
    cell.settle_started(outcome.error)
    # What was to end this one and came while `on_failure` ran must not end the next.
    cell.box.control &= ~(KILL | HALT)
    cell.scope = None
    return outcome


def _set_restarting(cell: Cell, on: bool) -> None:
    box = cell.box
    if box.restarting is not on:
        box.restarting = on
        if box.terms.fails_restarting:
            box.set_room()


def _with_failure(cell: Cell, error: BaseException | None) -> BaseException | None:
    """Join what a task of the incarnation crashed with to the handler's own error."""
    failure = cell.failure
    if error is None or failure is None or failure is error:
        return error
    return BaseExceptionGroup(f"{cell} crashed", [error, failure])


async def _leave(cell: Cell, actor: TrioActor, how: str) -> None:
    """Serve what is owed, end the tasks, run `on_stop`. Only for a stop, not for a crash."""
    cell.state = "stopping"
    if how != HALTED and cell.supervisor._ends_with(cell):
        cell.stopping = True
        cell.box.set_room()
        cell.box.give_room()
        if cell.registered:  # As pykka, whose `on_stop` runs outside the registry.
            cell.strike()
    if how != HALTED:
        with trio.move_on_after(cell.shutdown_s):
            await serve_owed(cell, actor)
    await end_tasks(cell)
    result: Any = actor.on_stop()
    if result.__class__ is CoroutineType:
        with trio.move_on_after(cell.shutdown_s) as time:
            await result
        if time.cancelled_caught:
            cell.kill("its on_stop took longer than its shutdown time")
            await trio.lowlevel.checkpoint()


async def _report_crash(cell: Cell, actor: TrioActor | None, outcome: Exit) -> None:
    """Log the crash and run `on_failure`, for at most `shutdown_s`."""
    error = outcome.error
    assert error is not None
    info = (type(error), error, error.__traceback__)
    killed = isinstance(error, ActorKilledError)
    if not killed:
        log_error(logger, "Unhandled exception in %s:", cell.ref, error)
    if cell.system.hub.watched:
        cell.system.emit(ActorCrashed, subject=cell.key, incarnation=cell.incarnation, error=error)
    if actor is None:
        return
    try:
        # Pykka's rule: what is no Exception stops the actor, it does not fail it.
        fails = isinstance(error, (Exception, BaseExceptionGroup))
        result: Any = actor.on_failure(*info) if fails else actor.on_stop()
        if result.__class__ is CoroutineType:
            with trio.move_on_after(cell.shutdown_s):
                await result
    except Exception:
        logger.exception(
            "on_failure of %s failed; the incarnation has ended all the same",
            cell,
            actor=cell.key,
        )
