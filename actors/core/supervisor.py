"""Supervisors: which children run, and what happens when one ends.

Children start in the order of their specs and stop in reverse. When a child ends that is to be
restarted, `one_for_one` restarts it, `one_for_all` stops and restarts all, `rest_for_one` it and
those after it. If more than `intensity` restarts fall into `period_s`, the supervisor stops its
children and escalates: its parent treats it as a child that crashed; the root's escalation ends
the run with an ExceptionGroup. One that parks instead keeps its children's mailboxes open and runs
nothing until `unpark()`.

The first restart in a period is immediate; later ones wait by the backoff. Temporary children are
not restarted, by a sibling's crash neither.

Invariants:
    I1. One operation on the group at a time: `_lock` is held over every one that awaits.
    I2. A child that falls while an operation runs is not forgotten: it restarts by itself, which
        needs nothing of the group, or it is in `_falls` and held, the start in progress is cut
        short, and the operation, or the one that follows, goes round by it.
    I3. No operation waits without a bound for anything but an `on_start`, and what cuts a start
        short, a fall, a halt or a stop, needs no lock.
    I4. A child's ref and mailbox are the same over all restarts.

Runs on the loop thread. Modelled on OTP's supervisor; differences are in docs/semantics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import trio

from .births import Birth, bear
from .cell import Cell, unnamed
from .children import ActorChild
from .directives import decide
from .entering import enter
from .errors import ActorDeadError, NameTakenError
from .events import GroupUnparked
from .exhaustion import come_to_rest, exhaust, look_after_significant
from .exits import child_exited
from .future import TrioFuture
from .life import run
from .operations import Operation
from .ref import TrioActorRef
from .restarts import Fall, Restarts
from .rounds import bring_up, halt_all
from .settling import CRASHED, Exit
from .specs import ChildSpec, Directive, Failure, SupervisorSpec, SupervisorStatistics
from .waits import check_end, waiting_for

if TYPE_CHECKING:
    from .system import ActorSystem

Child: TypeAlias = "ActorChild | Supervisor"


class Supervisor:
    """A running supervisor. Got from `system.start_supervisor`; not constructed."""

    def __init__(
        self, system: ActorSystem, spec: SupervisorSpec, parent: Supervisor | None
    ) -> None:
        self.system = system
        self.spec = spec
        self.parent = parent
        self.restart = "permanent"
        self.state: Literal["running", "parked", "stopped"] = "running"
        self.last_error: BaseException | None = None
        self._failed_ms = 0  # When that was.
        self._children: dict[str, Child] = {}
        self._restarts = Restarts()
        self._lock = trio.Lock()
        self._operating = False  # Whether an operation runs or is about to.
        self._launching: trio.CancelScope | None = None  # Of the start that is waited for.
        self._launched: Child | None = None  # Whose start that is.
        self._falls: list[Fall] = []
        self._halted = False  # Whether the children are held until the group is launched.
        self._awaits_parent = False  # Whether it is the parent that launches it.
        self._complete = False  # Whether all children of the spec have started once.
        self._missed = False  # Whether a significant child has ended by itself.
        self._stopping = trio.Event()

    def __str__(self) -> str:
        return self.spec.id

    # -- the handle

    @property
    def id(self) -> str:
        """What its parent knows it as."""
        return self.spec.id

    @property
    def refs(self) -> dict[str, TrioActorRef[Any]]:
        """The refs of the actor children by id. A ref stays the same over restarts."""
        return {
            id_: child.cell.ref
            for id_, child in self._children.items()
            if isinstance(child, ActorChild)
        }

    @property
    def restarts(self) -> int:
        """How many restarts there were, in its life."""
        return self._restarts.total

    def statistics(self) -> SupervisorStatistics:
        """Return a snapshot. Any thread; costs about a microsecond an actor below it."""
        cells = [
            child.cell
            for group in self.walk()
            for child in list(group._children.values())
            if isinstance(child, ActorChild)
        ]
        return SupervisorStatistics(
            self.spec.id,
            self.state,
            len(self._children),
            self._restarts.total,
            self._restarts.count_recent(self.spec, self.system.wheel.now_s()),
            self.last_error,
            Failure.of(self.last_error, self._failed_ms),
            depth=sum(cell.box.depth for cell in cells),
            handled=sum(cell.handled for cell in cells),
            dropped=sum(cell.dropped for cell in cells),
            dead=sum(cell.dead for cell in cells),
        )

    def walk(self) -> Iterator[Supervisor]:
        """Yield this supervisor and those under it, outer before inner, in start order."""
        yield self
        for child in list(self._children.values()):
            if isinstance(child, Supervisor):
                yield from child.walk()

    async def start_child(self, spec: ChildSpec) -> TrioActorRef[Any]:
        """Start a child after those there are, and return its ref when `on_start` has returned.

        A checkpoint. Cancelled: the child is stopped. In a group that is parked, or that its parent
        has halted to restart it, the child is added, and starts with the others.

        Raises:
            ChildStartError: It failed to start, or the group exceeded its intensity or was halted
                meanwhile. It is not a child.
            NameTakenError: A child has its id, or a live actor its name.
            ActorDeadError: The supervisor has stopped.
            AskCycleError: The group starts a child that waits for the caller; nothing was started.
            ValueError: It is significant, and the supervisor never shuts itself down.
            RuntimeError: Not on the loop thread; nothing was started.
        """
        self.system.check_loop()
        self._check_running()
        self.spec.check_child(spec)
        birth = Birth()
        with waiting_for(self):
            # In a task of the system: should the group have to go round meanwhile, the caller's
            # cancellation must not leave it half started.
            self.system.nursery.start_soon(bear, self, spec, birth, name=f"{self}: start {spec.id}")
            try:
                return await birth.future
            except trio.Cancelled:
                birth.abandon()
                raise

    async def stop_child(self, id_: str) -> None:
        """Stop a child for good: gracefully within its `shutdown_s`, then by a kill.

        A checkpoint. Cancelled: it is stopping all the same. A start of it that is waited for is
        cut short.

        Raises:
            KeyError: There is no such child.
            StopCycleError: It, or one below it, waits for who would wait here; nothing was done.
            AskCycleError: The group starts another that waits for the caller; the one to stop
                starts nothing more.
            RuntimeError: Not on the loop thread; nothing was done.
        """
        self.system.check_loop()
        child = self._children[id_]
        check_end(id_, child.holds)
        if isinstance(child, ActorChild):
            # A sibling whose start holds the group up may wait for it: held, it ends at once.
            child.dismiss()
            if child.launching:
                child.cell.kill("it was stopped while it started")
        # A start of its own that it cuts short is not waited for.
        with nullcontext() if self._launched is child else waiting_for(self):
            async with Operation(self):
                left = await child.end()
                if self._children.get(id_) is child:
                    del self._children[id_]
        await _wait_ended(left)

    async def stop(self) -> None:
        """Stop the children in reverse start order, and then the supervisor, for good.

        A checkpoint. Cancelled: it is stopping all the same. A start that is waited for is cut
        short, and a child that falls from now on ends.

        Raises:
            StopCycleError: An actor below it waits for who would wait here; nothing was done.
            RuntimeError: Not on the loop thread; nothing was done.
        """
        self.system.check_loop()
        if self.state == "stopped" or self.system.closing:
            return
        check_end(self.id, self.holds)
        done: TrioFuture[list[Cell]] = TrioFuture()
        self.system.nursery.start_soon(self._end_for, done, name=f"{self}: stop")
        await _wait_ended(await done)

    def unpark(self) -> bool:
        """Start a parked group's children again, in start order. Return whether it was parked.

        Not a checkpoint: they start in a task of the system. The restarts so far are forgotten.

        Raises:
            RuntimeError: Not on the loop thread; nothing was done.
        """
        self.system.check_loop()
        if self.state != "parked" or self._ending:
            return False
        self.state = "running"
        self._restarts.forget()
        self.system.emit(GroupUnparked, subject=self.spec.id)
        self._soon(self._relaunch)
        return True

    # -- children

    def _check_running(self) -> None:
        if self.state == "stopped" or self._ending:
            raise self._dead()

    def _dead(self) -> ActorDeadError:
        return ActorDeadError(
            f"supervisor {self} has stopped; nothing was started",
            actor=self.spec.id,
            message=None,
        )

    def check_free(self, id_: str) -> None:
        """Refuse the id of a child that there is. Any thread.

        Raises:
            NameTakenError: A child has it.
        """
        if id_ in self._children:
            raise NameTakenError(
                f"supervisor {self} has a child {id_!r}; nothing was started; choose another name",
                name=id_,
            )

    def _add(self, spec: ChildSpec) -> ActorChild:
        self.check_free(spec.id)
        cell = Cell(
            self.system,
            self,
            spec.actor_class,
            spec.args,
            dict(spec.kwargs),
            child_id=spec.id,
            name=spec.name,
            shutdown_s=spec.shutdown_s,
        )
        enter(self.system, cell, register=spec.register)
        child = ActorChild(
            cell, spec.restart, directives=spec.directives, significant=spec.significant
        )
        self._children[spec.id] = child
        return child

    def adopt(self, cell: Cell) -> None:
        """Take a temporary child whose instance was made already, and start its task.

        Raises:
            NameTakenError: A child has its name; nothing was started.
        """
        if cell.name is not None:
            self.check_free(cell.name)
        elif cell.child_id in self._children:
            # Somebody took it while the cell was on its way from a host thread.
            cell.child_id = unnamed(cell.actor_class, self)
        child = ActorChild(cell, "temporary")
        child.started = True
        self._children[cell.child_id] = child
        self.system.nursery.start_soon(run, cell, name=cell.key)

    # -- operations

    def _soon(self, afn: Callable[..., Any]) -> None:
        self._operating = True
        self.system.nursery.start_soon(afn, name=f"{self}: {afn.__name__}")

    @property
    def _ending(self) -> bool:
        """Whether nothing is started any more."""
        return self._stopping.is_set() or self.system.stopping

    @property
    def _at_rest(self) -> bool:
        """Whether no child is to be started now."""
        return self._halted or self._ending or self.state != "running"

    @property
    def rests(self) -> bool:
        """Whether nothing of it runs until somebody unparks it, or a group above it. Any thread."""
        group: Supervisor | None = self
        while group is not None and group.state != "parked":
            group = group.parent
        return group is not None

    def has(self, cell: Cell) -> bool:
        """Whether it is a child's."""
        child = self._children.get(cell.child_id)
        return isinstance(child, ActorChild) and child.cell is cell

    def holds(self, cell: Cell) -> bool:
        """Whether it is of an actor below it, at any depth."""
        group: Supervisor | None = cell.supervisor
        while group is not None and group is not self:
            group = group.parent
        return group is self

    def never_started(self, cell: Cell) -> bool:
        """Whether it is a child that waits for the group to be launched for the first time."""
        child = self._children.get(cell.child_id)
        return isinstance(child, ActorChild) and child.cell is cell and not child.started

    @property
    def starting_cell(self) -> Cell | None:
        """Whose `on_start` it waits for, or a group does whose start it waits for. Any thread."""
        child: Child | None = self._launched
        while isinstance(child, Supervisor):
            child = child._launched
        return child.cell if child is not None and child.cell.starting else None

    def take_pills(self) -> None:
        """Stop those that were told to stop, here and below, now that the group is at rest."""
        for group in self.walk():
            for child in list(group._children.values()):
                if isinstance(child, ActorChild):
                    child.cell.take_pills()

    def _cut(self) -> None:
        """Cut the start short that an operation waits for, if one does."""
        if self._launching is not None:
            self._launching.cancel(reason="its group has to go round")

    def abandon(self) -> None:
        """Start nothing any more, here and below. Not a checkpoint; takes no lock."""
        self._stopping.set()
        self._cut()
        for child in self._children.values():
            if isinstance(child, Supervisor):
                child.abandon()

    async def launch(self) -> BaseException | None:
        """Start the children again, after a parent's restart of this supervisor.

        Return the error of the first that does not start, or that of an exceeded intensity; None
        where all run, where the group parks, or where it stops meanwhile.
        """
        async with Operation(self):
            if self.state == "stopped" or self._ending:
                return None
            self.state = "running"
            self._halted = self._awaits_parent = False
            self._restarts.forget()
            self._falls.clear()
            fall = await bring_up(self, list(self._children.values()), once=True)
            if fall is None:
                return None
            return await come_to_rest(self, fall) if fall.spent else fall.exit.error

    async def halt(self) -> None:
        """End the children's incarnations, in reverse start order; they keep their mailboxes."""
        self._halted = self._awaits_parent = True
        self._cut()
        async with Operation(self):
            await halt_all(self._children.values())
            self._falls.clear()

    async def end(self) -> list[Cell]:
        """Stop the group for good; return the cells that have not ended in their time."""
        if self.state == "stopped":
            return []
        self._stopping.set()
        self._cut()
        left: list[Cell] = []
        async with Operation(self):
            for id_, child in reversed(list(self._children.items())):
                left += await child.end()
                self._children.pop(id_, None)
            self.state = "stopped"
            if self.parent is not None and self.parent._children.get(self.id) is self:
                del self.parent._children[self.id]
        return left

    def _end_soon(self) -> None:
        if not self.system.closing:
            done: TrioFuture[list[Cell]] = TrioFuture()
            self.system.nursery.start_soon(self._end_for, done, name=f"{self}: stop")

    async def _end_for(self, done: TrioFuture[list[Cell]]) -> None:
        """Stop the group for a caller who waits for it, and who may be cancelled."""
        try:
            done._answer(await self.end())
        finally:
            done._answer([])

    async def _regroup(self) -> None:
        """Decide on those that fell."""
        async with Operation(self):
            fall = await bring_up(self, [])
            if fall is not None:
                await exhaust(self, fall)

    async def _relaunch(self) -> None:
        """Start all children, after an unpark."""
        async with Operation(self):
            if self._awaits_parent or self._ending or self.state != "running":
                return
            self._halted = False
            self._falls.clear()
            fall = await bring_up(self, list(self._children.values()))
            if fall is not None:
                await exhaust(self, fall)

    def _next_wait_s(self, counts: bool) -> float | None:
        return self._restarts.next_wait_s(
            self.spec, trio.current_time(), counts, self.system.random
        )

    # -- when a child ends

    def _ends_with(self, cell: Cell) -> bool:
        """Whether a stop of this child is its end."""
        child = self._children.get(cell.child_id)
        return cell.ending or not isinstance(child, ActorChild) or child.restart != "permanent"

    def _child_exited(self, cell: Cell, outcome: Exit) -> float | None:
        """Say how long the cell is to wait before its next incarnation; None ends it.

        A cell that is held waits, whatever is returned.
        """
        child = self._children.get(cell.child_id)
        if cell.ending or not isinstance(child, ActorChild) or self._ending:
            return None
        return child_exited(self, child, outcome)

    def _directive(self, cell: Cell, error: BaseException) -> Directive:
        """What an error of the actor in this cell means."""
        child = self._children.get(cell.child_id)
        return "restart" if child is None else self._directive_of(child, error)

    def _directive_of(self, child: Child, error: BaseException) -> Directive:
        own = child.directives if isinstance(child, ActorChild) else ()
        return decide(error, own, self.spec.directives)

    def _child_ended(self, cell: Cell) -> None:
        child = self._children.get(cell.child_id)
        if isinstance(child, ActorChild) and child.cell is cell:
            del self._children[cell.child_id]
            # One that did not start has not ended by itself: whoever started it is told.
            if child.significant and not (child.dismissed or child.failed_to_start):
                self._missed = True
                look_after_significant(self)

    def _supervisor_failed(self, child: Supervisor, error: BaseException) -> None:
        """A child supervisor escalated: it counts as a child that crashed."""
        directive = self._directive_of(child, error)
        if directive == "stop":
            child._end_soon()
        else:
            self._fall(Fall(child.id, Exit(CRASHED, error), escalates=directive == "escalate"))

    def _fall(self, fall: Fall) -> None:
        """Have the group go round by a child that fell: the operation that runs, or a new one."""
        self._falls.append(fall)
        if self._operating:
            self._cut()
        else:
            self._soon(self._regroup)


async def _wait_ended(cells: Iterable[Cell]) -> None:
    """Wait for what could not be ended in its time."""
    for cell in cells:
        await cell.wait_ended()
