"""The system: the nursery actors run in, its root supervisor, and its ordered end.

Invariants:
    I1. One nursery holds every task of the system; the tree of supervisors is data, not tasks.
    I2. After the end every tell and ask, on any thread, raises `ActorDeadError`; no future is left
        unsettled.
    I3. A phase of the shutdown starts when the one before has ended or its deadline has passed.

Runs on the loop thread; `start` may be called on any thread.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable, Collection
from itertools import islice
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import trio

from .asks import AskTable
from .births import start_all
from .cell import Cell
from .clock import Clock, SystemClock
from .deadletters import DeadLetter, Ledger, Quarantined
from .entering import not_running, start_as
from .errors import NameTakenError
from .events import Event
from .hub import CAPACITY, EventHub, Subscription
from .logs import Log
from .options import check_options
from .ports import (
    DeadLetterSink,
    DeliveryCounts,
    EventSink,
    FaultHooks,
    QuarantineSink,
    Reminders,
)
from .ref import TrioActorRef
from .registry import Names
from .reminders import MemoryReminders
from .shutdown import PHASES, ShutdownReport, shut_down
from .snapshots import ActorStatistics, SystemStatistics, of_system
from .spans import NO_SPANS, Spans
from .specs import Directives, SupervisorSpec
from .supervisor import Supervisor
from .timeouts import bounded
from .tree import DEPTH, NODES, WIDTH, TreeNode, take_tree
from .waits import check_end
from .wheel import Wheel

if TYPE_CHECKING:
    from .actor import TrioActor

logger = Log("abeyance.core")
logger.logger.addHandler(logging.NullHandler())

_running: trio.lowlevel.RunVar[ActorSystem | None] = trio.lowlevel.RunVar("abeyance_system", None)


class ActorSystem:
    """Actors in a trio program: `async with ActorSystem() as system:`.

    Leaving the block shuts the system down. An error that reaches the root supervisor leaves the
    block as an ExceptionGroup.

    Args:
        name: What it is called in texts.
        asks: The declared table of who may ask whom. None allows every ask.
        clock: Where instants come from.
        ask_timeout_s: The time of an ask that states none, from 0. None is without an end, and so
            is `math.inf`, or more than a thread can wait.
        debug: Whether a handler of an actor with a role may suspend once only.
        seed: Of the random numbers that jitter the backoff. None draws one, or takes the one of
            `faults` that are open as a block.
        on_dead_letter: Where dead letters go, on the thread on which they end.
        on_quarantine: Where quarantined messages go.
        on_event: Where events go.
        directives: What the root does about errors that supervisors under it escalate with:
            restarts the supervisor where none matches.
        faults: What a test makes go wrong (`abeyance.actors.testing.Faults`).
        trace: Whether messages carry the OpenTelemetry context they are sent in to their handlers,
            and a runtime on it makes spans. Needs the `otel` extra.
    Raises:
        ValueError: `ask_timeout_s` is below 0, or no number.
        ModuleNotFoundError: `trace=True` and OpenTelemetry's API is not installed.
    """

    def __init__(
        self,
        *,
        name: str = "abeyance",
        asks: AskTable | None = None,
        clock: Clock | None = None,
        ask_timeout_s: float | None = 60.0,
        debug: bool = False,
        seed: int | None = None,
        on_dead_letter: DeadLetterSink | None = None,
        on_quarantine: QuarantineSink | None = None,
        on_event: EventSink | None = None,
        directives: Directives = (),
        faults: FaultHooks | None = None,
        trace: bool = False,
    ) -> None:
        sinks = (on_dead_letter, on_quarantine, on_event)
        check_options(name, asks, clock, debug, seed, directives, trace, sinks)
        self._directives = directives
        self.name = name
        self.asks = asks
        self.clock: Clock = clock or SystemClock()
        if ask_timeout_s is not None:
            ask_timeout_s = bounded("ask_timeout_s", ask_timeout_s)
        self.ask_timeout_s = ask_timeout_s
        self.debug = debug
        self.random = random.Random(seed)
        self.seeded = seed is not None
        self.dead_letters: Ledger[DeadLetter] = Ledger(
            "dead_letter", self._find_by_key, on_dead_letter
        )
        self.quarantine: Ledger[Quarantined] = Ledger(
            "quarantine", self._find_by_key, on_quarantine
        )
        self.deliveries: DeliveryCounts | None = None
        self.reminders: Reminders = MemoryReminders(self)
        self.hub = EventHub(on_event, self.clock.now_ms)
        self.faults = faults
        # What is not asked for is not looked for at each message: another class sends them.
        self.tracing: Any = None
        self.spans: Spans = NO_SPANS
        self.ref_class: type[TrioActorRef[Any]] = TrioActorRef
        if trace:
            from . import tracing  # The door to a library that few hosts have.

            self.tracing, self.ref_class = tracing, tracing.TracedRef
            self.spans = tracing.MadeSpans()
        self.open_calls = 0  # Of host threads, by HostedSystem.run. On the loop thread.
        self.stop_all_on_base_exception = False
        self.stopwatch: Callable[[], float] = time.perf_counter  # Of batches.
        # Of ages: the stopwatch, which trio's own clock is by an offset; another clock is asked.
        self.injected: Callable[[], float] | None = None
        # A finalizer or a signal handler that tells somebody may interrupt whoever holds it.
        self.lock = threading.RLock()
        self.names = Names()
        self.unnamed: set[str] = set()  # Classes of which there were actors that nobody named.
        self.cells: dict[Cell, None] = {}
        # Those that have ended while what their handlers do is shielded: it still counts.
        self.outlasting: dict[Cell, None] = {}
        self.refusing = False
        self.stopping = False
        self.closing = False  # The nursery may take no more tasks.
        self.ended = False
        self._handled = 0
        self._hooks: dict[str, list[Callable[[], Awaitable[object]]]] = {}
        self._report: ShutdownReport | None = None
        self._killed: list[str] = []
        self._down: trio.Event | None = None
        self.ident: int = -1
        self.token: trio.lowlevel.TrioToken
        self.nursery: trio.Nursery
        self.wheel: Wheel
        self.root: Supervisor
        self.user: Supervisor

    def __str__(self) -> str:
        return f"system {self.name}"

    # -- life

    async def __aenter__(self) -> Self:
        if self.ident != -1:
            raise RuntimeError("a system runs once; make a new one")
        self.ident = get_ident()
        self.token = trio.lowlevel.current_trio_token()
        self.wheel = Wheel(trio.lowlevel.current_clock(), self.token, self.ask_timeout_s)
        self.injected = self.wheel.injected
        self._manager = trio.open_nursery()
        self.nursery = await self._manager.__aenter__()
        self._outer = _running.get()
        _running.set(self)
        self._wheel_scope = trio.CancelScope()
        self.nursery.start_soon(self._run_wheel, name=f"{self}: wheel")
        self.root = Supervisor(self, SupervisorSpec("root", directives=self._directives), None)
        self.user = Supervisor(self, SupervisorSpec("user"), self.root)
        self.root._children["user"] = self.user
        if self.faults is not None:
            self.faults.attach(self)
        return self

    async def _run_wheel(self) -> None:
        with self._wheel_scope:
            await self.wheel.run()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        plain = error if isinstance(error, Exception) else None
        passed: tuple[Any, Any, Any] = (None, None, None) if plain else (kind, error, traceback)
        swallowed: bool | None = False
        try:
            if error is None:
                try:
                    await self.shutdown()
                except BaseException as exc:  # noqa: BLE001 - raised again below.
                    passed = (type(exc), exc, exc.__traceback__)
            else:
                with trio.CancelScope(shield=True):
                    await self.shutdown(deadline_s=5.0, drain=False)
            self.stopping = self.closing = True
            self._wheel_scope.cancel()
            swallowed = await self._manager.__aexit__(*passed)
            if passed[1] is not None and passed[1] is not error and not swallowed:
                raise passed[1]
        finally:
            self.ended = self.refusing = self.stopping = True
            _running.set(self._outer)
            for cell in list(self.cells):
                cell._end(None)
            self.hub.end()
        return False if plain is not None else swallowed

    # -- starting

    def start(
        self, actor_class: type[TrioActor], *args: Any, name: str | None = None, **kwargs: Any
    ) -> TrioActorRef[Any]:
        """Start an actor that is not restarted, under the user supervisor.

        Not a checkpoint. Its instance is made on the calling thread, which may be any.

        Args:
            actor_class: The class.
            args: Its arguments.
            name: Its name in the system, unique among the living.
            kwargs: Its keyword arguments.

        Raises:
            NameTakenError: A live actor is known by the name; nothing was started.
            TypeError, ValueError: The name is no text, empty, or has a control character in it;
                nothing was started.
            ActorDeadError: The system is shutting down; nothing was started.
        """
        return self.start_as(actor_class, args, kwargs, name, False)

    start_as = start_as

    async def start_supervisor(
        self, spec: SupervisorSpec, parent: Supervisor | None = None
    ) -> Supervisor:
        """Start a supervisor and its children, in order; return when all have started.

        A checkpoint. Cancelled: those that were started are stopped.

        Args:
            spec: What to start.
            parent: Under which supervisor; None is the root.

        Raises:
            ChildStartError: A child failed to start, those that had started exceeded the intensity
                meanwhile, or the parent restarts; what was started was stopped.
            NameTakenError: The parent has a child of that id.
            ActorDeadError: The system is shutting down.
            RuntimeError: Not on the loop thread; nothing was started.
        """
        self.check_loop()
        parent = parent or self.root
        parent._check_running()
        supervisor = Supervisor(self, spec, parent)
        if parent._children.setdefault(spec.id, supervisor) is not supervisor:
            raise NameTakenError(
                f"supervisor {parent} has a child {spec.id!r}; nothing was started", name=spec.id
            )
        try:
            await start_all(supervisor)
        except BaseException:
            parent._children.pop(spec.id, None)
            raise
        return supervisor

    # -- looking

    def find(self, name: str) -> TrioActorRef[Any] | None:
        """Return the ref of the live actor of that name. Any thread."""
        cell = self.names.find(name)
        return None if cell is None else cell.ref

    def live_names(self) -> tuple[str, ...]:
        """The names of the live actors that have one. On the loop thread."""
        return tuple(cell.name for cell in list(self.cells) if cell.name is not None)

    def _find_by_key(self, key: str) -> TrioActorRef[Any] | None:
        """Return the ref of the live actor that entries know by this key, named or not."""
        cell = self.names.find(key) or next((c for c in list(self.cells) if c.key == key), None)
        return None if cell is None else cell.ref

    def statistics(self) -> SystemStatistics:
        """Return a snapshot. Any thread; costs about a microsecond an actor."""
        return of_system(self)

    def parked_groups(self) -> tuple[Supervisor, ...]:
        """Return the supervisors that are parked, outer before inner, in start order.

        Each has its error in `last_error`, and starts again by `unpark()`.
        """
        return tuple(group for group in self.root.walk() if group.state == "parked")

    def tree(
        self, *, depth_max: int = DEPTH, width_max: int = WIDTH, nodes_max: int = NODES
    ) -> TreeNode:
        """Return the root supervisor and what is below it; `format_tree` makes it text.

        Not a checkpoint. Any thread.

        Args:
            depth_max: How many levels are shown, at most 64.
            width_max: How many children of one supervisor are shown, in start order.
            nodes_max: How many nodes in all, upper levels first; at most 100,000.

        Raises:
            ActorDeadError: The system was not started.
            ValueError: A bound is none.
        """
        if self.ident == -1:
            raise not_running(self)
        return take_tree(self.root, depth_max=depth_max, width_max=width_max, nodes_max=nodes_max)

    def named(self, count_max: int) -> tuple[ActorStatistics, ...]:
        """Return a snapshot of the first so many live actors with a name. Any thread."""
        cells = [cell for cell in map(self.names.find, islice(self.names, count_max)) if cell]
        return tuple(cell.statistics() for cell in cells)

    def actors(self) -> tuple[ActorStatistics, ...]:
        """Return a snapshot of every live actor."""
        return tuple(cell.statistics() for cell in list(self.cells))

    def events(
        self, *, capacity: int = CAPACITY, kinds: Collection[str] | None = None
    ) -> Subscription:
        """Look at what happens from now on: `async for event in system.events():`.

        Not a checkpoint. Any thread; a host thread iterates by a plain `for`, which blocks. Lossy:
        a reader that is slower than what happens gets `EventsDropped` in the place of what it
        missed. Nobody waits for a reader. It ends when the system has ended.

        Args:
            capacity: How many unread events are held.
            kinds: Only events of these kinds. None is all.
        """
        return self.hub.subscribe(capacity, kinds)

    def emit(self, kind: type[Event], **fields: Any) -> None:
        """Hand an event to whoever looks; where nobody does, none is made. Any thread."""
        hub = self.hub
        if hub.watched:
            hub.emit(kind(at_ms=self.clock.now_ms(), **fields))

    def forget(self, cell: Cell, *, outlasts: bool) -> None:
        """Take an ended cell out of the system's books; `settle` follows where its task runs on."""
        if self.cells.pop(cell, 0) is None:
            if outlasts:
                self.outlasting[cell] = None
            else:
                self._handled += cell.handled

    def settle(self, cell: Cell) -> None:
        """Take what a cell has counted whose task has ended."""
        if self.outlasting.pop(cell, 0) is None:
            self._handled += cell.handled

    @property
    def ages(self) -> Callable[[], float]:
        """What ages are told by."""
        return self.injected or self.stopwatch

    def check_loop(self) -> None:
        """Refuse what only the loop thread may do, before any effect.

        Raises:
            RuntimeError: This is another thread.
        """
        if get_ident() != self.ident:
            raise RuntimeError(
                f"this belongs on the loop thread of {self}; nothing was done; "
                "HostedSystem.run() calls it there"
            )

    def on_loop(self, function: Callable[..., object], *args: Any) -> bool:
        """Call a function that does not raise on the loop thread: now, or soon.

        Return False where the run has ended and it will not be called.
        """
        if get_ident() == self.ident:
            function(*args)
            return True
        try:
            self.token.run_sync_soon(function, *args)
        except trio.RunFinishedError:
            return False
        return True

    def stop_everything(self) -> None:
        """Stop every actor after its current message: pykka's rule for a BaseException."""
        for cell in reversed(list(self.cells)):
            cell.ending = True
            cell.stop_now()

    # -- the end

    def add_phase_hook(self, phase: str, hook: Callable[[], Awaitable[object]]) -> None:
        """Run an async function in a phase of the shutdown, after those added before it.

        Args:
            phase: `refuse`, `drain`, `settle`, `stop`, `flush` or `close`.
            hook: Cancelled at the phase's deadline. What it raises is in the report.
        """
        if phase not in PHASES:
            raise ValueError(f"phase must be one of {', '.join(PHASES)}, not {phase!r}")
        self._hooks.setdefault(phase, []).append(hook)

    async def shutdown(
        self,
        *,
        deadline_s: float = 30.0,
        phase_s: dict[str, float] | None = None,
        drain: bool = True,
    ) -> ShutdownReport:
        """Refuse, drain, settle, stop, flush, close; return how it went.

        A checkpoint. Cancelled: actors that were not stopped run on, and hosts stay refused. A
        second call waits for the first and returns its report.

        Args:
            deadline_s: For all phases together. When it has passed, what still runs is killed.
            phase_s: Deadlines of single phases, in place of the defaults.
            drain: Whether to drain and settle; without, what is queued becomes dead letters.

        Raises:
            StopCycleError: An actor of it waits for who would wait here; nothing was done.
        """
        check_end(str(self), lambda cell: cell.system is self)
        return await shut_down(self, deadline_s, phase_s or {}, drain=drain)
