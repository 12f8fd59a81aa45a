"""The ordered end of a system: refuse, drain, settle, stop, flush, close.

Invariants:
    I1. A phase starts when the one before has ended or its deadline has passed.
    I2. Nothing below `stop` ends an actor; what still runs past the deadline of `stop` is killed.

Runs on the loop thread, in the task of whoever shuts the system down.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from .cell import Cell
    from .system import ActorSystem

PHASES = ("refuse", "drain", "settle", "stop", "flush", "close")
PHASE_S = {
    "refuse": 1.0,
    "drain": 5.0,
    "settle": 5.0,
    "stop": 15.0,
    "flush": 5.0,
    "close": 1.0,
}


@dataclass(frozen=True, slots=True)
class PhaseReport:
    """How one phase of a shutdown went.

    Attributes:
        name: Which.
        took_s: How long.
        completed: Whether it ended by itself, rather than by its deadline.
        errors: What its hooks raised.
    """

    name: str
    took_s: float
    completed: bool
    errors: tuple[BaseException, ...]


@dataclass(frozen=True, slots=True)
class ShutdownReport:
    """How a shutdown went.

    Attributes:
        phases: In order.
        left: Per actor that had any, how many messages it did not handle.
        killed: The actors that had to be killed.
        handled: How many messages were handled in the system's life.
        dead_letters: How many dead letters there were in its life.
        quarantined: How many messages were quarantined in its life.
    """

    phases: tuple[PhaseReport, ...]
    left: dict[str, int]
    killed: tuple[str, ...]
    handled: int
    dead_letters: int
    quarantined: int

    @property
    def clean(self) -> bool:
        """Whether every phase completed, no hook failed and nothing was left or killed."""
        return (
            all(phase.completed and not phase.errors for phase in self.phases)
            and not self.left
            and not self.killed
        )


async def shut_down(
    system: ActorSystem, deadline_s: float, phase_s: dict[str, float], *, drain: bool
) -> ShutdownReport:
    """See `ActorSystem.shutdown`."""
    if system._down is not None:
        await system._down.wait()
        if system._report is not None:
            return system._report
    system._down = trio.Event()
    limits = PHASE_S | phase_s
    ends_at = trio.current_time() + deadline_s
    phases: list[PhaseReport] = []
    left: dict[str, int] = {}
    try:
        for phase in PHASES:
            if phase == "stop":
                left = {cell.key: cell.box.held for cell in list(system.cells) if cell.box.held}
            if not drain and phase in ("drain", "settle"):
                continue
            phases.append(await _run_phase(system, phase, limits[phase], ends_at))
        stats = system.statistics()
        system._report = ShutdownReport(
            tuple(phases),
            left,
            tuple(system._killed),
            stats.handled,
            system.dead_letters.total,
            system.quarantine.total,
        )
        return system._report
    finally:
        system._down.set()
        if system._report is None:
            system._down = None


async def _run_phase(
    system: ActorSystem, phase: str, limit_s: float, ends_at: float
) -> PhaseReport:
    began = trio.current_time()
    errors: list[BaseException] = []
    completed = False
    with trio.move_on_at(min(began + limit_s, max(ends_at, began + 0.05))):
        await _WORK[phase](system)
        for hook in system._hooks.get(phase, ()):
            try:
                await hook()
            except Exception as exc:  # noqa: BLE001 - reported; the phases go on.
                errors.append(exc)
        completed = True
    if phase == "stop" and not completed:
        await _kill_all(system)
    return PhaseReport(phase, trio.current_time() - began, completed, tuple(errors))


async def _refuse(system: ActorSystem) -> None:
    # Taking away the fast path is what makes each host tell look at `refusing`.
    system.refusing = True
    for cell in list(system.cells):
        cell.box.set_room()


async def _drain(system: ActorSystem) -> None:
    await _until_none(system, lambda cell: cell.busy)


async def _settle(system: ActorSystem) -> None:
    await _until_none(system, lambda cell: cell.busy or bool(cell.owed and cell.state == "running"))


async def _until_none(system: ActorSystem, waits: Callable[[Cell], bool]) -> None:
    while True:
        await trio.lowlevel.checkpoint()
        # A copy: a start that a host thread had begun before hosts were refused may end now.
        cell = next((cell for cell in list(system.cells) if waits(cell)), None)
        if cell is None:
            return
        await cell.wait_change()


async def _stop(system: ActorSystem) -> None:
    system.stopping = True
    for cell in await system.root.end():
        await cell.wait_ended()


async def _kill_all(system: ActorSystem) -> None:
    system.root.abandon()
    for cell in list(system.cells):
        system._killed.append(cell.key)
        cell.ending = True
        cell.held = False
        cell.nudge()
        cell.kill("the shutdown's deadline passed")
    with trio.move_on_after(1.0):
        await _until_none(system, lambda cell: True)


async def _flush(system: ActorSystem) -> None:
    """Only hooks."""


async def _close(system: ActorSystem) -> None:
    for cell in list(system.cells):
        cell._end(None)
    system._wheel_scope.cancel()


_WORK: Final[dict[str, Callable[[ActorSystem], Awaitable[None]]]] = {
    "refuse": _refuse,
    "drain": _drain,
    "settle": _settle,
    "stop": _stop,
    "flush": _flush,
    "close": _close,
}
