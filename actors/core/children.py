"""An actor as a supervisor's child: how it is launched, halted and ended.

Invariants:
    I1. A launch that is cancelled leaves no incarnation that is not being killed.
    I2. Halting and ending return after a bounded time, whatever the actor's handlers wait for.

Runs on the loop thread, in the task of the operation on the group.
"""

from __future__ import annotations

from .cell import Cell
from .future import TrioFuture
from .life import run
from .specs import Directives


class ActorChild:
    """An actor under a supervisor."""

    __slots__ = (
        "_start",
        "born",
        "cell",
        "directives",
        "dismissed",
        "failure",
        "launching",
        "restart",
        "significant",
        "started",
    )

    def __init__(
        self,
        cell: Cell,
        restart: str,
        directives: Directives = (),
        significant: bool = False,
    ) -> None:
        self.cell = cell
        self.restart = restart
        self.directives = directives
        self.significant = significant
        self.dismissed = False  # Whether it is its supervisor that ends it.
        self.launching = False  # Whether an operation waits for its start.
        self.started = False  # Whether its task was started.
        self.born = False  # Whether an `on_start` of it has returned.
        self.failure: BaseException | None = None  # Why it was given up before it was born.
        self._start: TrioFuture[None] | None = None  # What a launch waits for.

    @property
    def id(self) -> str:
        return self.cell.child_id

    @property
    def failed_to_start(self) -> bool:
        """Whether a launch that has not returned yet is about to return an error.

        One that is about to return None is none of these: the next incarnations of its child may
        come and fail before its task runs again.
        """
        start = self._start
        return start is not None and start.error is not None

    async def launch(self) -> BaseException | None:
        """Start an incarnation; return why it did not start, if so.

        A checkpoint. Cancelled: the incarnation is being killed, and no other starts until the
        next launch. A child that runs already, or starts by itself, is left alone.
        """
        cell = self.cell
        if self.started and not cell.held:
            return None
        self.launching = True
        try:
            # One that could not be ended in its time runs on until what it waits for has come.
            await cell.wait_unoccupied()
            if cell.state == "ended":
                return None
            self._start = cell.release_hold()
            if not self.started:
                self.started = True
                cell.system.nursery.start_soon(run, cell, name=cell.key)
            await self._start
        except Exception as exc:  # noqa: BLE001 - returned.
            return exc
        except BaseException:
            cell.held = True
            cell.kill("its start was cut short")
            raise
        finally:
            self.launching = False
            self._start = None
        self.born = True
        return None

    def holds(self, cell: Cell) -> bool:
        """Whether it is its actor's, as `Supervisor.holds`."""
        return cell is self.cell

    async def halt(self) -> None:
        """End the incarnation; the mailbox stands. See `Cell.halt`."""
        if self.started:
            await self.cell.halt()

    def dismiss(self) -> None:
        """Have it start nothing any more, as its supervisor is about to end it."""
        self.dismissed = True
        self.cell.ending = True
        self.cell.nudge()

    async def retire(self) -> None:
        """End an actor that is held, for its own error: not dismissed, it ends by itself."""
        self.cell.ending = True
        self.cell.nudge()
        await self.cell.wait_ended()

    async def end(self) -> list[Cell]:
        """End the actor for good; return its cell if it has not ended in its time."""
        self.dismissed = True
        if self.started:
            await self.cell.end()
        else:
            self.cell._end(None)
        return [] if self.cell.state == "ended" else [self.cell]
