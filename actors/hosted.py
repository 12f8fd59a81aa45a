"""A runtime for hosts that do not run trio: its loop has a thread of its own.

Every verb is a blocking call from any thread but the loop's; `block=False` gives a pykka future
instead. Nothing else differs from `open_runtime`: same store, same guarantees.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self, overload

import trio

from .core import AskTable, HostedSystem, TrioFuture
from .core.clock import Clock, SystemClock
from .core.errors import ActorDeadError
from .core.hub import CAPACITY, Subscription
from .core.tree import DEPTH, NODES, WIDTH, TreeNode
from .domain.alert_book import Alert, AlertSink, Webhook
from .domain.archive_book import ArchivedMessage
from .domain.asks import ASKS
from .domain.attaching import AttachmentSource
from .domain.budgets import Budget
from .domain.errors import InvalidSpecError, RuntimeClosedError
from .domain.imports import Source
from .domain.ingress import Content
from .domain.mode import WITHIN_S
from .domain.prices import Prices
from .domain.protocol import ReleaseReceipt
from .domain.requesters import Admin
from .domain.retention import Retention
from .domain.slot_inbox import InboxRow
from .domain.spec import AgentSpec
from .domain.spent_reading import By, UsageReport
from .domain.wait_book import ProviderWait
from .hosted_agents import HostedAgent, HostedConversation, refuse_on_loop
from .hosted_approvals import HostedApprovalVerbs
from .hosted_outboxes import HostedOutboxVerbs
from .hosted_runs import HostedRunVerbs
from .hosted_schedules import HostedScheduleVerbs
from .opening import StoreFaults, open_runtime
from .ops.http.options import HttpApi
from .options import check_options
from .runtime import Runtime
from .status import AgentHealth, RuntimeStatistics, RuntimeStatus
from .wait_verbs import EVERY_MODEL


class HostedRuntime(HostedRunVerbs, HostedScheduleVerbs, HostedApprovalVerbs, HostedOutboxVerbs):
    """`with HostedRuntime("state/") as host:` opens a runtime in a thread named `abeyance-runtime`.

    While it is open it is also the system that `TrioActor.start()` uses from any thread.

    Args:
        directory: The state directory, as for `open_runtime`.
        clock: The wall clock; the machine's by default.
        control: Whether to serve the control socket.
        faults: What a test makes go wrong (`abeyance.actors.testing.Faults`).
        trio_clock: What measures durations in place of the machine's clock, for tests.
        webhook: Where alerts are posted to, as for `open_runtime`.
        alert_sinks: Where else alerts are taken to. They run on the runtime's loop.
        trace: Whether messages carry the OpenTelemetry context, as for `open_runtime`.
        account_waits: As for `open_runtime`.
        admin: The host's gate for operators' acts, as for `open_runtime`; it runs on the loop.
        prices: As for `open_runtime`, as is each of the next.
        budgets: What may be spent.
        retention: What is deleted by age.
        http: Whether there is an HTTP API, and for whom.
    Raises:
        InvalidSpecError: Names the option that is malformed; nothing was started.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        control: bool = True,
        faults: StoreFaults | None = None,
        trio_clock: trio.abc.Clock | None = None,
        webhook: Webhook | str | None = None,
        alert_sinks: Sequence[AlertSink] = (),
        trace: bool = False,
        account_waits: bool = False,
        admin: Admin | None = None,
        prices: Prices | None = None,
        budgets: Sequence[Budget] = (),
        retention: Retention | None = None,
        http: HttpApi | None = None,
    ) -> None:
        said = check_options(
            directory,
            clock,
            control,
            None,
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
        if trio_clock is not None and not isinstance(trio_clock, trio.abc.Clock):
            raise InvalidSpecError("trio_clock", "must be a trio.abc.Clock, or None")
        self._http = http
        self._trace = trace
        self._retention = retention
        self._budgets = said.budgets
        self._prices = prices
        self._admin = admin
        self._webhook = webhook
        self._alert_sinks = tuple(alert_sinks)
        self._account_waits = account_waits
        self._faults = faults
        self._trio_clock = trio_clock
        self._directory = directory
        self._clock = clock if clock is not None else SystemClock()
        self._control = control
        self._host: HostedSystem | None = None
        self._runtime: Runtime | None = None
        # Held for a whole opening and a whole end, so that of two threads one waits for the other;
        # the same thread may come again, as by a signal.
        self._changing = threading.RLock()
        self._opened: TrioFuture[Runtime] = TrioFuture()
        self._ended: TrioFuture[None] | None = None
        self._stop = trio.Event()

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
        """Start the thread and open the runtime in it. Blocks until it is open.

        One that was closed can be opened again; one that is being closed by another thread, once
        that is over.

        Raises:
            StorageError: As `open_runtime`; the thread has ended.
            RuntimeError: It is open; nothing was done.
            WouldDeadlockError: Called on a thread that runs trio; nothing was done.
        """
        refuse_on_loop("open")
        with self._changing:
            self._open()

    def _open(self) -> None:
        if self._host is not None:
            raise RuntimeError("this runtime is open; nothing was done; close it first")
        host = HostedSystem(
            thread_name="abeyance-runtime",
            asks=AskTable(ASKS),
            clock=self._clock,
            ask_timeout_s=None,
            faults=self._faults,
            trio_clock=self._trio_clock,
            trace=self._trace,
        )
        self._host, self._opened, self._stop = host, TrioFuture(), trio.Event()
        try:
            host.open()
            self._ended = host.run_nowait(self._live, host)
            self._runtime = self._opened.get()
        except BaseException:
            self._host = None
            # Interrupted while it opened, or as it had: the system waits for it to end.
            with suppress(trio.RunFinishedError, AttributeError):
                host.system.token.run_sync_soon(self._stop.set)
            host.close()
            raise

    def close(self) -> None:
        """End the runtime and its thread; blocks until the store is closed. Idempotent.

        Raises:
            StoreLostError: The writer died for good while it was open.
            WouldDeadlockError: Called on a thread that runs trio; nothing was done.
            StopCycleError: Called on a thread of an actor's handler or task; nothing was done.
        """
        refuse_on_loop("close")
        with self._changing:
            if self._host is not None:
                self._host.check_close()
            host, self._host, self._runtime = self._host, None, None
            if host is None or self._ended is None:
                return
            try:
                with suppress(trio.RunFinishedError):  # It ended by itself; `_ended` says how.
                    host.system.token.run_sync_soon(self._stop.set)
                self._ended.get()
            finally:
                host.close()

    async def _live(self, host: HostedSystem) -> None:
        try:
            async with open_runtime(
                self._directory,
                clock=self._clock,
                control=self._control,
                system=host.system,
                faults=self._faults,
                webhook=self._webhook,
                alert_sinks=self._alert_sinks,
                account_waits=self._account_waits,
                admin=self._admin,
                prices=self._prices,
                budgets=self._budgets,
                retention=self._retention,
                http=self._http,
            ) as runtime:
                self._opened.set(runtime)
                await self._stop.wait()
        except BaseException as error:
            if not self._opened.settled:
                self._opened.set_exception((type(error), error, error.__traceback__))
                return
            raise

    # -- verbs -------------------------------------------------------------------------------

    @overload
    def add_agent(self, spec: AgentSpec, *, block: Literal[True] = True) -> HostedAgent: ...
    @overload
    def add_agent(self, spec: AgentSpec, *, block: Literal[False]) -> TrioFuture[HostedAgent]: ...
    def add_agent(self, spec: AgentSpec, *, block: bool = True) -> Any:
        """Add an agent. As `Runtime.add_agent`."""

        async def add(runtime: Runtime) -> HostedAgent:
            return HostedAgent(self, await runtime.add_agent(spec))

        return self._call(add, block)

    def agent(self, name: str) -> HostedAgent:
        """The handle of an agent that was added. As `Runtime.agent`."""
        return self._read(lambda runtime: HostedAgent(self, runtime.agent(name)))

    def open_conversation(self, agent: str, *, channel: str, block: bool = True) -> Any:
        """Fork a conversation agent, or take it up again. As `Runtime.open_conversation`."""

        async def fork(runtime: Runtime) -> HostedConversation:
            opened = await runtime.open_conversation(agent, channel=channel)
            return HostedConversation(self, opened)

        return self._call(fork, block)

    def run_ephemeral(
        self, spec: AgentSpec, content: Content, *, author: str = "user", block: bool = True
    ) -> Any:
        """Run one turn of an agent that is used once. As `Runtime.run_ephemeral`."""
        return self._call(
            lambda runtime: runtime.run_ephemeral(spec, content, author=author), block
        )

    def remove_agent(self, name: str, *, requester: str = "host", block: bool = True) -> Any:
        """End an agent. As `Runtime.remove_agent`."""

        async def remove(runtime: Runtime) -> None:
            await runtime.remove_agent(name, requester=requester)

        return self._call(remove, block)

    def quiesce(
        self,
        reason: str,
        within_s: float = WITHIN_S,
        *,
        requester: str = "host",
        block: bool = True,
    ) -> Any:
        """Start no more turns, and wait until none lives. As `Runtime.quiesce`."""
        return self._call(
            lambda runtime: runtime.quiesce(reason, within_s, requester=requester), block
        )

    def resume(self, *, requester: str = "host", block: bool = True) -> Any:
        """Start turns again. As `Runtime.resume`."""
        return self._call(lambda runtime: runtime.resume(requester=requester), block)

    def resume_agent(self, name: str, *, requester: str = "host", block: bool = True) -> Any:
        """Start a parked agent again. As `Runtime.resume_agent`."""
        return self._call(lambda runtime: runtime.resume_agent(name, requester=requester), block)

    def unpark(self, group: str, *, requester: str = "host", block: bool = True) -> Any:
        """Start a parked group of the runtime's own again. As `Runtime.unpark`."""
        return self._call(lambda runtime: runtime.unpark(group, requester=requester), block)

    def attach(
        self,
        source: AttachmentSource,
        *,
        media_type: str | None = None,
        name: str | None = None,
        block: bool = True,
    ) -> Any:
        """Store an image, a sound or a document that messages may name. As `Runtime.attach`."""
        return self._call(
            lambda runtime: runtime.attach(source, media_type=media_type, name=name), block
        )

    def prune(self) -> dict[str, int]:
        """Delete what is old by now. As `Runtime.prune`."""
        found: dict[str, int] = self._call(lambda runtime: runtime.prune(), True)
        return found

    def usage(
        self,
        agent: str | None = None,
        since: int | datetime | None = None,
        *,
        by: By = "model",
        zone: str = "UTC",
    ) -> UsageReport:
        """What agents used. As `Runtime.usage`."""
        found: UsageReport = self._call(
            lambda runtime: runtime.usage(agent, since, by=by, zone=zone), True
        )
        return found

    def provider_waits(self, agent: str | None = None) -> tuple[ProviderWait, ...]:
        """The waits in force. As `Runtime.provider_waits`."""
        return self._read(lambda runtime: runtime.provider_waits(agent))

    @overload
    def release_provider_wait(
        self, agent: str, model: str = EVERY_MODEL, *, requester: str, block: Literal[True] = True
    ) -> ReleaseReceipt: ...
    @overload
    def release_provider_wait(
        self, agent: str, model: str = EVERY_MODEL, *, requester: str, block: Literal[False]
    ) -> TrioFuture[ReleaseReceipt]: ...
    def release_provider_wait(
        self, agent: str, model: str = EVERY_MODEL, *, requester: str, block: bool = True
    ) -> Any:
        """End an agent's waits. As `Runtime.release_provider_wait`."""
        return self._call(
            lambda runtime: runtime.release_provider_wait(agent, model, requester=requester), block
        )

    def alerts(self, *, after: int | None = None, limit: int = 100) -> tuple[Alert, ...]:
        """What operators were told of. As `Runtime.alerts`."""
        return self._read(lambda runtime: runtime.alerts(after=after, limit=limit))

    def inbox(
        self, agent: str | None = None, *, after: int | None = None, limit: int = 100
    ) -> tuple[InboxRow, ...]:
        """What was accepted and is in no transcript yet, and why. As `Runtime.inbox`."""

        async def read(runtime: Runtime) -> tuple[InboxRow, ...]:
            return await runtime.inbox(agent, after=after, limit=limit)

        found: tuple[InboxRow, ...] = self._call(read, True)
        return found

    def import_deferred(
        self,
        source: Source,
        *,
        agent: str | None = None,
        wake: bool = False,
        dry_run: bool = False,
        requester: str = "host",
        block: bool = True,
    ) -> Any:
        """Accept the deferred messages of an older queue. As `Runtime.import_deferred`."""
        return self._call(
            lambda runtime: runtime.import_deferred(
                source, agent=agent, wake=wake, dry_run=dry_run, requester=requester
            ),
            block,
        )

    def dead_letters(
        self, *, before: int | None = None, limit: int = 100
    ) -> tuple[ArchivedMessage, ...]:
        """Messages that were not handled. As `Runtime.dead_letters`."""
        return self._read(lambda runtime: runtime.dead_letters(before=before, limit=limit))

    def quarantine(
        self, *, before: int | None = None, limit: int = 100
    ) -> tuple[ArchivedMessage, ...]:
        """Messages that crashed their actors. As `Runtime.quarantine`."""
        return self._read(lambda runtime: runtime.quarantine(before=before, limit=limit))

    def replay_dead_letter(
        self,
        id: int,  # noqa: A002
        *,
        requester: str,
        block: bool = True,
    ) -> Any:
        """Send a dead letter's message again. As `Runtime.replay_dead_letter`."""
        return self._call(
            lambda runtime: runtime.replay_dead_letter(id, requester=requester), block
        )

    def replay_quarantined(
        self,
        id: int,  # noqa: A002
        *,
        requester: str,
        block: bool = True,
    ) -> Any:
        """Send a quarantined message again. As `Runtime.replay_quarantined`."""
        return self._call(
            lambda runtime: runtime.replay_quarantined(id, requester=requester), block
        )

    def health(self) -> dict[str, AgentHealth]:
        """How each agent stands with its providers. As `Runtime.health`."""
        return self._read(lambda runtime: runtime.health())

    def status(self) -> RuntimeStatus:
        """A snapshot. As `Runtime.status`."""
        return self._read(lambda runtime: runtime.status())

    def statistics(self) -> RuntimeStatistics:
        """Figures of every agent, wait and commit. As `Runtime.statistics`."""
        return self._read(lambda runtime: runtime.statistics())

    @property
    def runtime(self) -> Runtime:
        """The runtime, for what may be called from any thread, as a metrics collector is."""
        return self._check_open()[1]

    @property
    def http_url(self) -> str | None:
        """Where the HTTP API is, such as `http://127.0.0.1:8321`; None where there is none."""
        return self._check_open()[1].http_url

    def tree(
        self, *, depth_max: int = DEPTH, width_max: int = WIDTH, nodes_max: int = NODES
    ) -> TreeNode:
        """The tree of supervisors and actors. As `Runtime.tree`."""
        _, runtime = self._check_open()
        return runtime.tree(depth_max=depth_max, width_max=width_max, nodes_max=nodes_max)

    def events(
        self, *, capacity: int = CAPACITY, kinds: Collection[str] | None = None
    ) -> Subscription:
        """What happens from now on: `for event in host.events():` blocks until the next.

        As `Runtime.events`.
        """
        _, runtime = self._check_open()
        return runtime.events(capacity=capacity, kinds=kinds)

    def _check_open(self) -> tuple[HostedSystem, Runtime]:
        host, runtime = self._host, self._runtime
        if host is None or runtime is None:
            raise _not_open()
        return host, runtime

    def _call(self, afn: Callable[[Runtime], Awaitable[Any]], block: bool) -> Any:
        host, runtime = self._check_open()

        async def call(open_: Runtime) -> Any:
            try:
                return await afn(open_)
            except ActorDeadError as error:
                raise _not_open() from error

        try:
            return host.run(call, runtime) if block else host.run_nowait(call, runtime)
        except ActorDeadError as error:
            raise _not_open() from error


def _not_open() -> RuntimeClosedError:
    return RuntimeClosedError(
        "this runtime is not open; nothing was done; open it, or call inside its block"
    )
