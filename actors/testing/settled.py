"""Waiting until a system has nothing to do: `settled` in trio, `wait_settled` on a host thread.

Settled is: no message waits in the mailbox of an actor that runs or will run again, no handler
runs, no reply is owed, no call of a host thread is open, no commit is out, no tool body runs, and
no task can go on by itself. Timers, calls to a provider, what was stashed, and what an actor keeps
that is parked or suspended may be waiting.

Runs on the loop thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from trio.testing import wait_all_tasks_blocked

from abeyance.actors.core.hosted import HostedSystem
from abeyance.actors.core.system import ActorSystem
from abeyance.actors.hosted import HostedRuntime
from abeyance.actors.runtime import Runtime

if TYPE_CHECKING:
    from abeyance.actors.core.cell import Cell

_AGAIN_S = 1 / 64
"""How soon open calls of host threads are looked at again: they tell nobody when they end."""


async def settled(where: ActorSystem | Runtime, *, within_s: float | None = None) -> None:
    """Wait until a system, or a runtime's, has nothing to do.

    A checkpoint. Cancelled: nothing happens. Turns may live on: one that waits for a provider is
    settled; `wait_idle` of its agent waits for its end.

    Args:
        where: The system or runtime.
        within_s: In trio's time; None is no limit. Under a `MockClock` that jumps, a commit takes
            longer than any limit: use `HostClock`.
    Raises:
        AssertionError: It was not settled in time; names what is not.
    """
    await _settle(where, 0, within_s)


def wait_settled(where: HostedSystem | HostedRuntime, *, within_s: float | None = None) -> None:
    """Wait until a hosted system or runtime has nothing to do. As `settled`; blocks a host thread.

    Raises:
        WouldDeadlockError: Called on a thread that runs trio; nothing was waited for.
        AssertionError: As `settled`.
    """
    if isinstance(where, HostedRuntime):
        host, runtime = where._check_open()
        # Its own life is a call too.
        host.run(_settle, runtime, 2, within_s)
    else:
        where.run(_settle, where.system, 1, within_s)


async def _settle(where: ActorSystem | Runtime, own_calls: int, within_s: float | None) -> None:
    system = where if isinstance(where, ActorSystem) else where._system
    runtime = None if isinstance(where, ActorSystem) else where
    with trio.move_on_after(float("inf") if within_s is None else within_s) as limit:
        while await _stirs(system, runtime, own_calls):
            pass
    if limit.cancelled_caught:
        raise AssertionError(
            f"{system} was not settled within {within_s} s: " + "; ".join(_said(system, own_calls))
        )


async def _stirs(system: ActorSystem, runtime: Runtime | None, own_calls: int) -> bool:
    """Wait for one thing that is not settled; False where there is none."""
    await wait_all_tasks_blocked()
    busy = next((cell for cell in system.cells if not _is_settled(cell)), None)
    if busy is not None:
        await busy.wait_change()
        return True
    for body in () if runtime is None else tuple(runtime._runner._running.values()):
        await body.done.wait()
        # Its record follows; the entry goes with it.
        await trio.lowlevel.checkpoint()
        return True
    if system.open_calls > own_calls:
        await trio.sleep(_AGAIN_S)
        return True
    return False


def _is_settled(cell: Cell) -> bool:
    if cell.inflight is not None or cell.inflight_internal is not None or cell.owed:
        return False
    if cell.state in ("held", "ended"):
        return True  # Parked: what it keeps is for the life after it is started again.
    box = cell.box
    if box.internal or box.control:
        return False
    return bool(box.suspended) or not (box.user or box.returned)


def _said(system: ActorSystem, own_calls: int) -> list[str]:
    lines = [
        f"{seen.name} ({seen.state}: {seen.queued + seen.internal} queued, {seen.owed} owed"
        f"{', a handler runs' if seen.in_flight else ''})"
        for seen in (cell.statistics() for cell in system.cells if not _is_settled(cell))
    ]
    if system.open_calls > own_calls:
        lines.append(f"{system.open_calls - own_calls} calls of host threads are open")
    return lines or ["a tool body or a task runs"]
