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
    I2. A child that ends while an operation runs is held, and looked at when it is over.
    I3. A child's ref and mailbox are the same over all restarts.

Runs on the loop thread. Modelled on OTP's supervisor; differences are in docs/semantics.md.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import trio

from .cell import Cell
from .errors import ActorDeadError, ChildStartError, IntensityExceededError, NameTakenError
from .ref import TrioActorRef
from .settling import CRASHED, Exit

if TYPE_CHECKING:
    from .actor import TrioActor
    from .system import ActorSystem

logger = logging.getLogger("abeyance.core")

RESTARTS = ("permanent", "transient", "temporary")
STRATEGIES = ("one_for_one", "one_for_all", "rest_for_one")


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long restarts after the first in a period wait.

    Attributes:
        initial_s: The second restart's wait.
        max_s: The longest wait.
        factor: From one wait to the next.
        jitter: Up to which part of itself a wait is shortened or lengthened, by the system's
            seeded random numbers.
    """

    initial_s: float = 0.05
    max_s: float = 5.0
    factor: float = 2.0
    jitter: float = 0.1


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What a supervisor starts, and when again.

    Attributes:
        id: What the supervisor knows it as.
        actor_class: The class.
        args: The arguments, or a function from the refs of the children so far, by id, to them.
        kwargs: The keyword arguments.
        restart: `permanent` always, `transient` after a crash, `temporary` never.
        shutdown_s: How long a stop may take before it is a kill.
        name: Its name in the system, unique among the living. None has none.
        register: Whether it enters `pykka.ActorRegistry`.
    """

    id: str
    actor_class: type[TrioActor]
    args: tuple[Any, ...] | Callable[[Mapping[str, TrioActorRef[Any]]], tuple[Any, ...]] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    restart: Literal["permanent", "transient", "temporary"] = "permanent"
    shutdown_s: float = 5.0
    name: str | None = None
    register: bool = False

    def __post_init__(self) -> None:
        if self.restart not in RESTARTS:
            raise ValueError(f"restart must be one of {', '.join(RESTARTS)}, not {self.restart!r}")
        if not self.shutdown_s >= 0:
            raise ValueError(f"shutdown_s must not be negative, and is {self.shutdown_s!r}")


@dataclass(frozen=True, slots=True)
class SupervisorSpec:
    """What a supervisor is.

    Attributes:
        id: What its parent knows it as.
        children: In start order.
        strategy: `one_for_one`, `one_for_all` or `rest_for_one`.
        intensity: How many restarts a period may see.
        period_s: The period.
        backoff: How restarts wait.
        on_exhausted: `escalate` or `park` when the intensity is exceeded.
        on_parked: Called with the supervisor and the error when it parks.
    """

    id: str
    children: tuple[ChildSpec, ...] = ()
    strategy: Literal["one_for_one", "one_for_all", "rest_for_one"] = "one_for_one"
    intensity: int = 5
    period_s: float = 30.0
    backoff: Backoff = Backoff()
    on_exhausted: Literal["escalate", "park"] = "escalate"
    on_parked: Callable[[Supervisor, BaseException], object] | None = None

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(
                f"strategy must be one of {', '.join(STRATEGIES)}, not {self.strategy!r}"
            )
        if self.on_exhausted not in ("escalate", "park"):
            raise ValueError(f"on_exhausted must be escalate or park, not {self.on_exhausted!r}")
        if self.intensity < 0 or not self.period_s > 0:
            raise ValueError("intensity must not be negative, and period_s must be positive")


@dataclass(frozen=True, slots=True)
class SupervisorStatistics:
    """A snapshot of one supervisor.

    Attributes:
        id: Its id.
        state: `running`, `parked` or `stopped`.
        children: How many children it has.
        restarts: How many restarts there were, in its life.
        recent_restarts: How many of them count towards the intensity now.
        last_error: What it last parked or escalated with.
    """

    id: str
    state: str
    children: int
    restarts: int
    recent_restarts: int
    last_error: BaseException | None


class _ActorChild:
    """An actor under a supervisor."""

    __slots__ = ("cell", "launching", "restart", "started")

    def __init__(self, cell: Cell, restart: str) -> None:
        self.cell = cell
        self.restart = restart
        self.launching = False  # Whether an operation waits for its start.
        self.started = False  # Whether its task was started.

    async def launch(self) -> BaseException | None:
        """Start an incarnation; return why it did not start, if so."""
        cell = self.cell
        if cell.state == "ended":
            return None
        self.launching = True
        try:
            future = cell.release_hold()
            if not self.started:
                self.started = True
                cell.system.nursery.start_soon(cell.run, name=cell.key)
            await future
        except Exception as exc:  # noqa: BLE001 - returned.
            return exc
        finally:
            self.launching = False
        return None

    async def halt(self) -> None:
        if self.started:
            await self.cell.halt()

    async def end(self) -> None:
        if self.started:
            await self.cell.end()
        else:
            self.cell._end(None)


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
        self.restarts = 0
        self._children: dict[str, _ActorChild | Supervisor] = {}
        self._recent: deque[float] = deque()
        self._lock = trio.Lock()
        self._operating = False
        self._fallen: list[tuple[str, Exit]] = []
        self._stopping = trio.Event()

    def __str__(self) -> str:
        return self.spec.id

    # -- the handle

    @property
    def refs(self) -> dict[str, TrioActorRef[Any]]:
        """The refs of the actor children by id. A ref stays the same over restarts."""
        return {
            id_: child.cell.ref
            for id_, child in self._children.items()
            if isinstance(child, _ActorChild)
        }

    def statistics(self) -> SupervisorStatistics:
        """Return a snapshot."""
        self._forget_old()
        return SupervisorStatistics(
            self.spec.id,
            self.state,
            len(self._children),
            self.restarts,
            len(self._recent),
            self.last_error,
        )

    async def start_child(self, spec: ChildSpec) -> TrioActorRef[Any]:
        """Start a child after those there are, and return its ref when `on_start` has returned.

        A checkpoint. Cancelled: the child is stopped. In a parked group the child is added and
        starts with the others.

        Raises:
            ChildStartError: It failed to start, and is not a child.
            NameTakenError: A child has its id, or a live actor its name.
            ActorDeadError: The supervisor has stopped.
        """
        async with self._operation():
            self._check_running()
            child = self._add(spec)
            if self.state == "parked":
                child.cell.held = True
                return child.cell.ref
            await self._launch_first(child)
            return child.cell.ref

    async def stop_child(self, id_: str) -> None:
        """Stop a child for good: gracefully within its `shutdown_s`, then by a kill.

        A checkpoint. Cancelled: it is stopping all the same.

        Raises:
            KeyError: There is no such child.
        """
        child = self._children[id_]
        if isinstance(child, _ActorChild):
            child.cell.ending = True
        async with self._operation():
            await child.end()
            self._children.pop(id_, None)

    async def stop(self) -> None:
        """Stop the children in reverse start order, and then the supervisor, for good.

        A checkpoint. Cancelled: what was not stopped goes on.
        """
        if self.state == "stopped":
            return
        self._stopping.set()
        async with self._operation():
            for id_, child in reversed(list(self._children.items())):
                await child.end()
                self._children.pop(id_, None)
            self.state = "stopped"
            if self.parent is not None:
                self.parent._children.pop(self.spec.id, None)

    end = stop

    def unpark(self) -> bool:
        """Start a parked group's children again, in start order. Return whether it was parked.

        Not a checkpoint: they start in a task of the system. The restarts so far are forgotten.
        """
        if self.state != "parked":
            return False
        self.state = "running"
        self._recent.clear()
        self.system.emit("unparked", self.spec.id)
        self.system.nursery.start_soon(self._relaunch, name=f"{self}: unpark")
        return True

    # -- operations

    def _operation(self) -> _Operation:
        return _Operation(self)

    def _check_running(self) -> None:
        if self.state == "stopped" or self._stopping.is_set() or self.system.stopping:
            raise ActorDeadError(
                f"supervisor {self} has stopped; nothing was started",
                actor=self.spec.id,
                message=None,
            )

    def _add(self, spec: ChildSpec) -> _ActorChild:
        if spec.id in self._children:
            raise NameTakenError(
                f"supervisor {self} has a child {spec.id!r}; nothing was started", name=spec.id
            )
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
        self.system.enter(cell, register=spec.register)
        child = _ActorChild(cell, spec.restart)
        self._children[spec.id] = child
        return child

    def adopt(self, cell: Cell) -> None:
        """Take a temporary child whose instance was made already, and start its task."""
        child = _ActorChild(cell, "temporary")
        child.started = True
        self._children[cell.child_id] = child
        self.system.nursery.start_soon(cell.run, name=cell.key)

    async def _launch_first(self, child: _ActorChild) -> None:
        """Start a child for the first time; forget it where it fails."""
        try:
            error = await child.launch()
        except BaseException:
            child.cell.ending = True
            child.cell.kill("its start was cancelled")
            raise
        if error is None:
            return
        with trio.CancelScope(shield=True):
            await child.end()
        self._children.pop(child.cell.child_id, None)
        raise ChildStartError(
            f"child {child.cell.child_id!r} of supervisor {self} failed to start; it is no child; "
            "its error is the cause",
            supervisor=self.spec.id,
            child=child.cell.child_id,
        ) from error

    async def _start_all(self) -> None:
        """Start the spec's children in order; stop those that were started where one fails."""
        async with self._operation():
            try:
                for spec in self.spec.children:
                    await self._launch_first(self._add(spec))
            except BaseException:
                with trio.CancelScope(shield=True):
                    for child in reversed(list(self._children.values())):
                        await child.end()
                self._children.clear()
                self.state = "stopped"
                raise

    async def launch(self) -> BaseException | None:
        """Start the children again, after a parent's restart of this supervisor."""
        self.state = "running"
        self._recent.clear()
        async with self._operation():
            for child in list(self._children.values()):
                error = await child.launch()
                if error is not None:
                    return error
        return None

    async def halt(self) -> None:
        """End the children's incarnations, in reverse start order; they keep their mailboxes."""
        async with self._operation():
            await self._halt_all()

    async def _halt_all(self) -> None:
        for child in reversed(list(self._children.values())):
            await child.halt()

    # -- when a child ends

    def _ends_with(self, cell: Cell) -> bool:
        """Whether a stop of this child is its end."""
        child = self._children.get(cell.child_id)
        return cell.ending or not isinstance(child, _ActorChild) or child.restart != "permanent"

    def _child_exited(self, cell: Cell, outcome: Exit) -> float | None:
        """Say how long the cell is to wait before its next incarnation; None ends it.

        A cell that is held waits, whatever is returned.
        """
        child = self._children.get(cell.child_id)
        if cell.ending or not isinstance(child, _ActorChild) or self.system.stopping:
            return None
        if cell.held:
            return 0.0
        crashed = outcome.kind == CRASHED
        if child.restart == "temporary" or (child.restart == "transient" and not crashed):
            return None
        if child.launching:
            cell.held = True  # Whoever launches it decides.
            return 0.0
        if self._operating or self.state != "running":
            cell.held = True
            self._fallen.append((cell.child_id, outcome))
            return 0.0
        if self.spec.strategy == "one_for_one" and not outcome.poison:
            delay_s = self._restart_delay(outcome.counts)
            if delay_s is not None:
                return delay_s
            cell.held = True
            self._soon(self._exhaust, outcome)
            return 0.0
        cell.held = True
        self._decide(cell.child_id, outcome)
        return 0.0

    def _child_ended(self, cell: Cell) -> None:
        child = self._children.get(cell.child_id)
        if isinstance(child, _ActorChild) and child.cell is cell:
            del self._children[cell.child_id]

    def _supervisor_failed(self, child: Supervisor, error: BaseException) -> None:
        """A child supervisor escalated: it counts as a child that crashed."""
        if self.system.stopping or self._stopping.is_set():
            return
        if self._operating or self.state != "running":
            self._fallen.append((child.spec.id, Exit(CRASHED, error)))
        else:
            self._decide(child.spec.id, Exit(CRASHED, error))

    def _decide(self, id_: str, outcome: Exit) -> None:
        """Restart the group by its strategy, or park or escalate, in a task of the system."""
        delay_s = None if outcome.poison else self._restart_delay(outcome.counts)
        if delay_s is None:
            self._soon(self._exhaust, outcome)
        else:
            self._soon(self._regroup, id_, delay_s)

    def _soon(self, afn: Callable[..., Any], *args: Any) -> None:
        self._operating = True
        self.system.nursery.start_soon(afn, *args, name=f"{self}: {afn.__name__}")

    def _forget_old(self) -> None:
        horizon = trio.current_time() - self.spec.period_s
        while self._recent and self._recent[0] <= horizon:
            self._recent.popleft()

    def _restart_delay(self, counts: bool) -> float | None:
        """Count a restart; return its wait, or None where the intensity is exceeded."""
        self._forget_old()
        earlier = len(self._recent)
        if counts:
            if earlier >= self.spec.intensity:
                return None
            self._recent.append(trio.current_time())
        self.restarts += 1
        if earlier == 0:
            return 0.0
        backoff = self.spec.backoff
        try:
            grown_s = backoff.initial_s * backoff.factor ** (earlier - 1)
        except OverflowError:  # 2.0 ** 1024 is, and a group may be allowed more restarts.
            grown_s = backoff.max_s
        wait_s = min(backoff.max_s, grown_s)
        return wait_s * (1 + backoff.jitter * (2 * self.system.random.random() - 1))

    def _affected(self, id_: str) -> list[_ActorChild | Supervisor]:
        ids = list(self._children)
        if id_ not in ids:
            return []
        if self.spec.strategy == "one_for_all":
            return list(self._children.values())
        if self.spec.strategy == "rest_for_one":
            return list(self._children.values())[ids.index(id_) :]
        return [self._children[id_]]

    async def _regroup(self, id_: str, delay_s: float) -> None:
        """Stop what the strategy says, in reverse order, and start it again in order."""
        async with self._operation():
            await self._restart(self._affected(id_), delay_s)

    async def _relaunch(self) -> None:
        """Start all children, after an unpark."""
        async with self._operation():
            self._fallen.clear()
            await self._restart(list(self._children.values()), 0.0)

    async def _restart(self, affected: list[_ActorChild | Supervisor], delay_s: float) -> None:
        """Stop and start again until all run, the intensity is exceeded, or a stop comes."""
        while self.state == "running":
            for child in reversed(affected):
                if isinstance(child, _ActorChild) and child.restart == "temporary":
                    await child.end()
                else:
                    await child.halt()
            with trio.move_on_after(delay_s):
                await self._stopping.wait()
            if self._stopping.is_set() or self.system.stopping:
                return
            failed = await self._launch_in_order(affected)
            fallen, self._fallen = self._fallen, []
            if failed is None:
                failed = self._first_of(fallen)
            if failed is None:
                return
            id_, outcome = failed
            next_delay_s = None if outcome.poison else self._restart_delay(outcome.counts)
            if next_delay_s is None:
                await self._exhausted(outcome)
                return
            affected, delay_s = self._affected(id_), next_delay_s

    def _first_of(self, fallen: list[tuple[str, Exit]]) -> tuple[str, Exit] | None:
        """Of children that ended during an operation, the one that was started first."""
        order = {id_: place for place, id_ in enumerate(self._children)} if fallen else {}
        known = [item for item in fallen if item[0] in order]
        return min(known, key=lambda item: order[item[0]]) if known else None

    async def _launch_in_order(
        self, children: list[_ActorChild | Supervisor]
    ) -> tuple[str, Exit] | None:
        """Start children in order; return the first that fails to start, and how."""
        for child in children:
            id_ = child.cell.child_id if isinstance(child, _ActorChild) else child.spec.id
            if id_ not in self._children:
                continue
            error = await child.launch()
            if error is not None:
                return id_, Exit(CRASHED, error, unstarted=True)
        return None

    async def _exhaust(self, outcome: Exit) -> None:
        async with self._operation():
            if self.state == "running" and not self._stopping.is_set():
                await self._exhausted(outcome)

    async def _exhausted(self, outcome: Exit) -> None:
        """Stop the children, then park or escalate."""
        if outcome.poison:
            what = "a message went past its deliveries"
        else:
            what = f"more than {self.spec.intensity} restarts in {self.spec.period_s} s"
        failure = IntensityExceededError(
            f"supervisor {self}: {what}; its children are stopped, their mailboxes stand; "
            "the last error is the cause",
            supervisor=self.spec.id,
            restarts=len(self._recent),
            period_s=self.spec.period_s,
        )
        failure.__cause__ = outcome.error
        self.last_error = failure
        await self._halt_all()
        self._fallen.clear()
        if self.spec.on_exhausted == "park" or outcome.poison:
            self.state = "parked"
            self.system.emit("parked", self.spec.id, error=failure)
            if self.spec.on_parked is not None:
                try:
                    self.spec.on_parked(self, failure)
                except Exception:
                    logger.exception("on_parked of %s failed; the group is parked", self)
            return
        self.system.emit("escalated", self.spec.id, error=failure)
        if self.parent is None:
            raise failure
        self.parent._supervisor_failed(self, failure)


class _Operation:
    """Hold the group's lock, and look at who fell meanwhile when it is over."""

    __slots__ = ("_supervisor",)

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    async def __aenter__(self) -> None:
        await self._supervisor._lock.acquire()
        self._supervisor._operating = True

    async def __aexit__(self, *_exc: object) -> None:
        supervisor = self._supervisor
        supervisor._lock.release()
        if supervisor._lock.statistics().tasks_waiting:
            return  # The next operation looks.
        supervisor._operating = False
        fallen, supervisor._fallen = supervisor._fallen, []
        if supervisor.state != "running" or supervisor.system.stopping:
            return
        first = supervisor._first_of(fallen)
        if first is not None:
            supervisor._decide(*first)
