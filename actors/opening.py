"""Opening a runtime and leaving it: the order in which its parts come up and go down.

store, proof of life, actor system, runtime, control socket; and backwards at the end, whatever the
host's block ended with.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

import trio

from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.ownership import Ownership

from .core import ActorSystem, AskTable
from .core.clock import Clock, SystemClock
from .core.ports import FaultHooks
from .domain.alert_book import AlertSink, Webhook
from .domain.asks import ASKS
from .domain.budgets import Budget
from .domain.prices import Prices
from .domain.requesters import Admin
from .domain.retention import Retention
from .ops.control import serve_control
from .ops.failures_log import FailuresLog
from .ops.http.options import HttpApi
from .options import check_options
from .runtime import Runtime


class StoreFaults(FaultHooks, Protocol):
    """What a test kit puts into a runtime: faults of its system, and of its commits."""

    def store(self, store: LmdbStore) -> LmdbStore:
        """Return what stands in for the store where the runtime reads and writes it."""


@asynccontextmanager
async def open_runtime(
    directory: str | os.PathLike[str],
    *,
    clock: Clock | None = None,
    control: bool = True,
    system: ActorSystem | None = None,
    faults: StoreFaults | None = None,
    webhook: Webhook | str | None = None,
    alert_sinks: Sequence[AlertSink] = (),
    trace: bool = False,
    account_waits: bool = False,
    admin: Admin | None = None,
    prices: Prices | None = None,
    budgets: Sequence[Budget] = (),
    retention: Retention | None = None,
    http: HttpApi | None = None,
) -> AsyncIterator[Runtime]:
    """Open a runtime on a state directory; it is created, mode 0700, where it is not there.

    A checkpoint. Cancelled before it has opened: what had come up goes down again, and the store
    is closed. Leaving the block ends live turns (their wakes are given back), flushes and closes
    the store; cancelled, it does the same within 30 s.

    Args:
        directory: The state directory. One runtime a process; other processes may share it.
        clock: The wall clock; the machine's by default.
        control: Whether to serve the control socket for the command line.
        system: A running system to live in; by default the runtime makes its own. Its asks must
            have no deadline of their own (`ask_timeout_s=None`).
        faults: What a test makes go wrong (`abeyance.actors.testing.Faults`); a `system` that is
            handed in must have the same.
        webhook: Where alerts are posted to, beside the failures log and the events: a URL, or a
            `Webhook` with headers and a time limit.
        alert_sinks: Where else alerts are taken to.
        trace: Whether messages carry the OpenTelemetry context they are sent in to their handlers
            (the `otel` extra). Of a `system` that is handed in, its own `trace` decides.
        account_waits: Whether a wait binds every agent here whose provider calls with the same
            credential (`Provider.credential`), and not only the agent it was stated to.
        admin: The host's gate for an operator's acts (releases, rewinds) that come through this
            API: a function of an `OperatorAct`; only True lets it pass. By default every caller
            may. The control socket has its own gate: its mode of 0600.
        prices: What calls cost (docs/usage.md). None: their tokens are kept, and no cost.
        budgets: How much all agents of the directory together may use; an agent's own are in its
            specification.
        retention: For how long history is kept (docs/retention.md); None: `Retention()`.
        http: The HTTP API to serve (docs/http.md; the `http` extra). None: none.
    Raises:
        InvalidSpecError: Names the option: the directory is no path, or empty; the system's asks
            have a deadline, or it has other faults; another option is of another type, a budget in
            cost without prices, or the `http` extra is not installed. Nothing was opened.
        HttpAddressError: The HTTP API cannot listen where it was told to.
        StorageError: The directory is not a store that can be opened here; each kind says why and
            what to do. Nothing was changed.
        StoreLostError: The writer died for good while the runtime was open; raised at the end.
    """
    said = check_options(
        directory,
        clock,
        control,
        system,
        faults,
        webhook,
        alert_sinks,
        trace,
        account_waits,
        admin,
        prices,
        budgets,
        retention,
        http,
    )
    wall = clock if clock is not None else SystemClock()
    # Absolute, so that a later chdir moves nothing and a status says where it is.
    path = Path(directory).absolute()  # noqa: ASYNC240 - asks for the working directory only.
    store = LmdbStore.open(path, clock_ms=wall.now_ms)
    try:
        ownership = Ownership(store, store.directory, host=socket.gethostname(), pid=os.getpid())
        try:
            ownership.forget_dead()
            runs = system if system is not None else _new_system(wall, faults, trace)
            written = store if faults is None else faults.store(store)
            runtime = Runtime(
                path,
                written,
                ownership,
                runs,
                wall,
                (FailuresLog(path), *said.sinks),
                account_waits,
                admin,
                said.prices,
                said.budgets,
                said.retention,
            )
            try:
                runtime._counts.take_over(ownership.is_alive)
                async with _open(runtime, control=control, http=http, enter=system is None):
                    yield runtime
            finally:
                runtime._close_ports()
        finally:
            ownership.close()
    finally:
        store.close()


def _new_system(clock: Clock, faults: StoreFaults | None, trace: bool) -> ActorSystem:
    # Asks have no deadline of their own: what is asked here ends in a commit, and a commit always
    # gets an outcome.
    return ActorSystem(
        asks=AskTable(ASKS), clock=clock, ask_timeout_s=None, faults=faults, trace=trace
    )


@asynccontextmanager
async def _open(
    runtime: Runtime, *, control: bool, http: HttpApi | None, enter: bool
) -> AsyncIterator[None]:
    """Run a runtime around the host's block.

    What the block raises leaves as it is, not in a group of a nursery's making.
    """
    failure: BaseException | None = None
    ended = trio.Event()
    async with trio.open_nursery() as nursery:
        # Shielded, and it waits for nothing: a start that is cancelled keeps its task and waits for
        # it, and this one ends by `ended` alone.
        with trio.CancelScope(shield=True):
            bodies = await nursery.start(_hold_open, runtime._system if enter else None, ended)
        try:
            await runtime._start(bodies)
            if control:
                nonce = runtime._ownership.nonce
                await bodies.start(
                    functools.partial(serve_control, nonce=nonce), runtime, runtime.directory
                )
            if http is not None:
                from .ops.http.server import serve_http  # Its libraries are an extra.

                runtime.http_url = await bodies.start(serve_http, runtime, http)
            with runtime._scope:
                yield
        except BaseException as error:  # noqa: BLE001 - raised again below.
            failure = error
        finally:
            try:
                await runtime._stop()
            finally:
                ended.set()
    if runtime._lost is not None:
        raise runtime._lost from failure
    if failure is not None:
        raise failure


async def _hold_open(
    system: ActorSystem | None,
    ended: trio.Event,
    *,
    task_status: trio.TaskStatus[trio.Nursery] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Hold actors and tool bodies where a cancellation of the host's block does not reach them.

    A cancelled block ends its turns as a stop does, and for that the actors must still run.
    """
    with trio.CancelScope(shield=True):
        async with AsyncExitStack() as stack:
            if system is not None:
                await stack.enter_async_context(system)
            async with trio.open_nursery() as bodies:
                task_status.started(bodies)
                await ended.wait()
                bodies.cancel_scope.cancel()
