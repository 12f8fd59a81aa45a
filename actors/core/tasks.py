"""Tasks of an incarnation: they end with it, and their crash is its crash.

They run in the system's nursery, each under a scope of its own, and the cell keeps the scopes: a
nursery for every incarnation would double what an idle actor costs.

Invariants:
    I1. A scope is in `cell.tasks` from before its task starts until the task has ended.
    I2. When `end_tasks` returns, no task of the incarnation runs.

Runs on the loop thread, each task in its own trio task.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import trio

from .asks import STANCE, Link, Owed, Stance, Tied, untied
from .settling import outcome_unknown

if TYPE_CHECKING:
    from .cell import Cell


def start_task(
    cell: Cell,
    afn: Callable[..., Coroutine[Any, Any, Any]],
    args: tuple[Any, ...],
    name: str | None,
    finish: Callable[[Any, BaseException | None], None] | None,
) -> trio.CancelScope:
    """Start a task that ends with the incarnation.

    Not a checkpoint. `finish` is called with its value or error when it has ended.
    """
    if cell.scope is None:
        raise RuntimeError(f"no incarnation of {cell} runs; a task belongs to one")
    cell.system.check_loop()
    scope = trio.CancelScope()
    if cell.tasks is None:
        cell.tasks = {}
    cell.tasks[scope] = None
    # A task is awaited by nobody but those who are owed a reply through it, and by the end of the
    # incarnation, which cuts it off but not its threads.
    chained, role = STANCE.get()
    target = cell.inflight[1] if cell.inflight is not None else None
    waiting: tuple[Link, ...] = (Tied(cell),)
    if target is not None and target in cell.owed:
        waiting = (*untied(chained)[:-1], Owed(cell, target), *waiting)
    cell.system.nursery.start_soon(
        _run_task,
        cell,
        scope,
        (waiting, role),
        afn,
        args,
        finish,
        name=name or f"{cell.key}: {_name_of(afn)}",
    )
    return scope


async def _run_task(
    cell: Cell,
    scope: trio.CancelScope,
    stance: Stance,
    afn: Callable[..., Coroutine[Any, Any, Any]],
    args: tuple[Any, ...],
    finish: Callable[[Any, BaseException | None], None] | None,
) -> None:
    STANCE.set(stance)
    value: Any = None
    error: BaseException | None = None
    ended = False
    try:
        with scope:
            value = await afn(*args)
            ended = True
    except Exception as exc:  # noqa: BLE001 - the incarnation's, or the answer's.
        error = exc
        ended = True
        if finish is None:
            _fail(cell, exc)
    finally:
        tasks = cell.tasks
        if tasks is not None:
            tasks.pop(scope, None)
        if finish is not None:
            finish(value, error if ended else outcome_unknown(cell, afn))
        if not tasks and cell.quiet is not None:
            cell.quiet.set()


async def end_tasks(cell: Cell) -> None:
    """Cancel the incarnation's tasks and wait until they have ended."""
    while cell.tasks:
        for scope in list(cell.tasks):
            scope.cancel(reason="the incarnation ended")
        cell.quiet = trio.Event()
        await cell.quiet.wait()
    cell.quiet = None


def _fail(cell: Cell, error: BaseException) -> None:
    """Crash the incarnation with what one of its tasks raised."""
    if cell.failure is None:
        cell.failure = error
    elif cell.failure is not error:
        cell.failure = BaseExceptionGroup(f"tasks of {cell} failed", [cell.failure, error])
    if cell.scope is not None:
        cell.box.signal(0)
        cell.scope.cancel(reason="a task of the incarnation crashed")


def _name_of(afn: Any) -> str:
    return str(getattr(afn, "__qualname__", afn))
