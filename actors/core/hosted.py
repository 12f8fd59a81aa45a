"""A system for programs without trio: it runs in a named background thread.

Invariants:
    I1. `_active` holds exactly the hosted systems that run; it is changed under `_lock`.

Host threads call in; the system's own work runs on its loop thread.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

import trio
from trio.lowlevel import in_trio_run

from .asks import Link, in_chain, links
from .errors import ActorDeadError, OutcomeUnknownError, WouldDeadlockError
from .future import TrioFuture
from .hub import CAPACITY, Subscription
from .shutdown import ShutdownReport
from .snapshots import SystemStatistics
from .specs import SupervisorSpec
from .supervisor import Supervisor
from .system import ActorSystem, _running
from .tree import DEPTH, NODES, WIDTH, TreeNode
from .waits import check_end

T = TypeVar("T")

_active: list[HostedSystem] = []
_lock = threading.Lock()


class HostedSystem:
    """Actors for host threads: `with HostedSystem() as system:`.

    While it is the only one, it is the system that `TrioActor.start()` uses from any thread.

    Args:
        thread_name: The loop thread's name.
        stop_all_on_base_exception: Pykka's rule: an exception that is no Exception, raised by a
            handler, stops all actors. Otherwise it ends the run and is raised by `close`.
        shutdown_s: The deadline of the shutdown when the block is left.
        trio_clock: What measures durations in place of the machine's clock, for tests.
        options: As for `ActorSystem`.
    """

    def __init__(
        self,
        *,
        thread_name: str = "abeyance-loop",
        stop_all_on_base_exception: bool = False,
        shutdown_s: float = 30.0,
        trio_clock: trio.abc.Clock | None = None,
        **options: Any,
    ) -> None:
        self.system = ActorSystem(**options)
        self.system.stop_all_on_base_exception = stop_all_on_base_exception
        self.report: ShutdownReport | None = None
        self._shutdown_s = shutdown_s
        self._trio_clock = trio_clock
        self._stop: trio.Event | None = None
        self._quiet: trio.Event | None = None  # Set at the end of each call, at the end.
        self._ready: TrioFuture[None] = TrioFuture()
        self._error: BaseException | None = None
        self._over = False  # Whether its run has ended.
        self._calls: dict[trio.CancelScope, None] | None = {}  # Of `run`; None once all are cut.
        self._thread = threading.Thread(target=self._main, name=thread_name, daemon=True)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def open(self) -> None:
        """Start the loop thread; return when the system runs. Blocks.

        Raises:
            WouldDeadlockError: Called on a thread that runs trio, which could not leave the block
                either; nothing was started.
            RuntimeError: It was opened before.
        """
        if in_trio_run():
            raise WouldDeadlockError(
                "open() on a thread that runs trio; nothing was started; use ActorSystem here, or "
                "open it on another thread"
            )
        self._thread.start()
        self._ready.get()
        with _lock:
            if not self._over:
                _active.append(self)

    def check_close(self) -> None:
        """Raise what `close` would raise before it does anything. Any thread."""
        if threading.current_thread() is self._thread:
            raise WouldDeadlockError(
                "close() on the loop thread; nothing was done; await shutdown()"
            )
        check_end(str(self.system), lambda cell: cell.system is self.system)

    def close(self) -> ShutdownReport | None:
        """Shut down and end the loop thread; return the report. Blocks.

        Calls that still run when the actors have ended get what is left of `shutdown_s`, and are
        then cancelled: who waits for one gets `OutcomeUnknownError`. One that was never opened has
        nothing to close, and no report.

        Raises:
            WouldDeadlockError: Called on the loop thread.
            StopCycleError: Called on a thread of an actor's handler or task; nothing was done.
            ExceptionGroup: What ended the run, if an error did.
        """
        self.check_close()
        with _lock:
            if self in _active:
                _active.remove(self)
        if self._thread.ident is None:
            return None  # It was never opened.
        with suppress(trio.RunFinishedError, AttributeError):
            self.system.token.run_sync_soon(self._signal_stop)
        self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self.report

    def _signal_stop(self) -> None:
        if self._stop is not None:
            self._stop.set()

    def _main(self) -> None:
        try:
            trio.run(self._run, clock=self._trio_clock)
        except BaseException as exc:  # noqa: BLE001 - raised by close(), in the host's thread.
            self._error = exc
            if not self._ready.settled:
                self._ready._fail(exc)
        finally:
            with _lock:
                self._over = True
                if self in _active:
                    _active.remove(self)

    async def _run(self) -> None:
        self._stop = trio.Event()
        async with self.system:
            self._ready.set(None)
            await self._stop.wait()
            ends_at = trio.current_time() + self._shutdown_s
            self.report = await self.system.shutdown(deadline_s=self._shutdown_s)
            with trio.move_on_at(ends_at):
                while self.system.open_calls:
                    self._quiet = trio.Event()
                    await self._quiet.wait()
            calls, self._calls = self._calls, None
            for scope in calls or ():
                scope.cancel(reason="its system has ended")

    # -- from host threads

    def start(self, actor_class: Any, *args: Any, name: str | None = None, **kwargs: Any) -> Any:
        """Start an actor. As `ActorSystem.start`; any thread."""
        return self.system.start(actor_class, *args, name=name, **kwargs)

    def start_supervisor(
        self, spec: SupervisorSpec, parent: Supervisor | None = None
    ) -> Supervisor:
        """Start a supervisor. As `ActorSystem.start_supervisor`. Blocks a host thread."""
        return self.run(self.system.start_supervisor, spec, parent)

    def find(self, name: str) -> Any:
        """Return the ref of the live actor of that name."""
        return self.system.find(name)

    def statistics(self) -> SystemStatistics:
        """Return a snapshot."""
        return self.system.statistics()

    def tree(
        self, *, depth_max: int = DEPTH, width_max: int = WIDTH, nodes_max: int = NODES
    ) -> TreeNode:
        """Return the tree of supervisors and actors. As `ActorSystem.tree`."""
        return self.system.tree(depth_max=depth_max, width_max=width_max, nodes_max=nodes_max)

    def events(
        self, *, capacity: int = CAPACITY, kinds: Collection[str] | None = None
    ) -> Subscription:
        """Look at what happens from now on: `for event in system.events():` blocks a host thread.

        As `ActorSystem.events`.
        """
        return self.system.events(capacity=capacity, kinds=kinds)

    def run(self, afn: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run an async function on the loop and return its result. Blocks a host thread.

        Called on a thread of a handler, the function is in that handler's chain of asks.

        Raises:
            WouldDeadlockError: Called on a thread that runs trio; nothing was run.
            ActorDeadError: The system has ended; nothing was run.
            OutcomeUnknownError: The system ended while it ran.
        """
        if in_trio_run():
            raise WouldDeadlockError("run() on a thread that runs trio; nothing was run; await it")
        return self.run_nowait(afn, *args).get()

    def run_nowait(self, afn: Callable[..., Awaitable[T]], *args: Any) -> TrioFuture[T]:
        """Run an async function on the loop; return a future of its result. Any thread.

        Raises:
            ActorDeadError: The system has ended; nothing was run.
        """
        system = self.system
        if system.faults is not None and threading.get_ident() != system.ident:
            system.faults.bridge(system, None, afn)
        future: TrioFuture[T] = TrioFuture()
        try:
            system.token.run_sync_soon(self._start_call, future, afn, args, links())
        except (trio.RunFinishedError, AttributeError) as exc:
            raise self._ended() from exc
        return future

    def _start_call(
        self, future: TrioFuture[T], afn: Any, args: tuple[Any, ...], chained: tuple[Link, ...]
    ) -> None:
        if self.system.closing or self._calls is None:
            future._fail(self._ended())
            return
        self.system.open_calls += 1
        self.system.nursery.start_soon(self._call, future, afn, args, chained)

    async def _call(
        self, future: TrioFuture[T], afn: Any, args: tuple[Any, ...], chained: tuple[Link, ...]
    ) -> None:
        scope = trio.CancelScope()
        if self._calls is not None:
            self._calls[scope] = None
        try:
            with scope, in_chain(*chained):
                future._answer(await afn(*args))
            future._fail(self._cut())  # Lost, where it came to its end.
        except Exception as exc:  # noqa: BLE001 - the caller's.
            future._fail(exc)
        except BaseException:
            future._fail(self._cut())
            raise
        finally:
            self.system.open_calls -= 1
            if self._calls is not None:
                self._calls.pop(scope, None)
            if self._quiet is not None:
                self._quiet.set()

    def _cut(self) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"{self.system} ended while the call ran; whether it took effect is unknown; "
            "call again only what may happen twice",
            actor=self.system.name,
            message=None,
        )

    def _ended(self) -> ActorDeadError:
        return ActorDeadError(
            f"{self.system} has ended; nothing was run", actor=self.system.name, message=None
        )


def find_system() -> ActorSystem:
    """Return the system of the trio run on this thread; elsewhere the one active HostedSystem's.

    Raises:
        RuntimeError: There is none, or there are several.
    """
    try:
        system = _running.get()
    except RuntimeError:  # No trio run.
        system = None
    if system is not None:
        return system
    with _lock:
        active = list(_active)
    if len(active) != 1:
        raise RuntimeError(
            f"{len(active)} hosted systems run; start the actor by the one that is meant"
            if active
            else "no actor system runs; open an ActorSystem or a HostedSystem first"
        )
    return active[0].system
