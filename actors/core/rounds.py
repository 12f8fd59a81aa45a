"""Going round: starting children in order, and again with those that fall meanwhile.

Invariants:
    I1. What is waited for without a bound is an `on_start`, and a fall cuts that short.
    I2. A child that is to start again is pending, running, or restarting by itself.

Runs on the loop thread, in the task of the operation on the group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from .children import ActorChild
from .restarts import Fall, plan, uncovered
from .settling import CRASHED, Exit

if TYPE_CHECKING:
    from .supervisor import Child, Supervisor


async def bring_up(
    supervisor: Supervisor,
    pending: list[Child],
    *,
    first: ActorChild | None = None,
    once: bool = False,
) -> Fall | None:
    """Start children in order, and go round by those that fall meanwhile, until all run.

    Args:
        pending: Whom to start, in start order.
        first: One of them that is given up, uncounted, when it fails to start.
        once: Whether a start that fails ends the operation, unspent, instead of counting.

    Returns:
        None where all run or the group is at rest; else the fall that ended the operation.
    """
    while not supervisor._at_rest:
        falls = _take_falls(supervisor, pending)
        if falls:
            fall, pending = await _go_round(supervisor, falls, pending)
            if fall is not None:
                return fall
            continue
        if not pending:
            return None
        cut, error = await _start(supervisor, pending[0])
        if cut:
            continue
        child = pending.pop(0)
        if error is None:
            continue
        fall = Fall(child.id, Exit(CRASHED, error))
        if once:
            return fall
        if child is first:
            await give_up(supervisor, first, error)
            continue
        match supervisor._directive_of(child, error):
            case "stop" if isinstance(child, ActorChild):
                await child.retire()
            case "stop":
                await child.end()
            case "escalate":
                supervisor._falls.append(replace(fall, escalates=True))
            case _:
                supervisor._falls.append(fall)
    return None


async def _start(supervisor: Supervisor, child: Child) -> tuple[bool, BaseException | None]:
    """Start one child; return whether its start was cut short, and why it failed, if so."""
    with trio.CancelScope() as scope:
        supervisor._launching, supervisor._launched = scope, child
        try:
            return False, await child.launch()
        finally:
            supervisor._launching = supervisor._launched = None
    return True, None


def _take_falls(supervisor: Supervisor, pending: Iterable[Child]) -> list[Fall]:
    if not supervisor._falls:
        return []
    falls, supervisor._falls = supervisor._falls, []
    return uncovered(falls, list(supervisor._children), {child.id for child in pending})


async def _go_round(
    supervisor: Supervisor, falls: list[Fall], pending: list[Child]
) -> tuple[Fall | None, list[Child]]:
    """Stop whom these falls affect; return whom to start, or the fall that is one too many."""
    decision = plan(
        supervisor.spec.strategy,
        list(supervisor._children),
        {child.id for child in pending},
        falls,
        supervisor._next_wait_s,
    )
    if isinstance(decision, Fall):
        return decision, pending
    pending = [supervisor._children[id_] for id_ in decision.ids]
    await halt_all(pending)
    with trio.move_on_after(decision.delay_s):
        await supervisor._stopping.wait()
    return None, pending


async def halt_all(children: Iterable[Child]) -> None:
    """Halt children in reverse, and end the temporary ones among them."""
    for child in reversed(list(children)):
        if child.restart == "temporary":
            await child.end()
        else:
            await child.halt()


async def give_up(supervisor: Supervisor, child: ActorChild, error: BaseException | None) -> None:
    """End a child that was never started, and forget it."""
    child.failure = child.failure or error
    with trio.CancelScope(shield=True):
        await child.end()
    if supervisor._children.get(child.id) is child:
        del supervisor._children[child.id]
