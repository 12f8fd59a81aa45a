"""A runtime for hosts that do not run trio: its loop has a thread of its own.

Every verb is a blocking call from any thread but the loop's; `block=False` gives a pykka future
instead. Nothing else differs from `open_runtime`: same store, same guarantees.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self, overload

import trio
from trio.lowlevel import in_trio_run

from .conversations import Conversation
from .core import AskTable, HostedSystem, TrioFuture, chain, in_chain
from .core.clock import Clock, SystemClock
from .core.errors import ActorDeadError, WouldDeadlockError
from .core.hub import CAPACITY, Subscription
from .core.tree import DEPTH, NODES, WIDTH, TreeNode
from .domain.alert_book import Alert, AlertSink, Webhook
from .domain.archive_book import ArchivedMessage
from .domain.asks import ASKS
from .domain.context import Summary
from .domain.drafts import Draft
from .domain.errors import RuntimeClosedError
from .domain.imports import ImportReport, Source
from .domain.ingress import Content
from .domain.mode import WITHIN_S, QuiesceReceipt, ResumeReceipt
from .domain.protocol import ReleaseReceipt
from .domain.requesters import Admin
from .domain.slot_inbox import InboxRow
from .domain.slot_messages import Receipt, RewindReceipt
from .domain.spec import AgentSpec
from .domain.transcript import After, TranscriptMessage
from .domain.wait_book import ProviderWait
from .handle import AgentHandle
from .opening import StoreFaults, open_runtime
from .providers.port import ModelReply, ModelRequest
from .runtime import EVERY_MODEL, Runtime
from .status import AgentHealth, RuntimeStatus


class HostedRuntime:
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
    ) -> None:
        self._trace = trace
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
        _refuse_on_loop("open")
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
        """
        _refuse_on_loop("close")
        with self._changing:
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

        async def find(runtime: Runtime) -> HostedAgent:
            return HostedAgent(self, runtime.agent(name))

        found: HostedAgent = self._call(find, True)
        return found

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

        async def run(runtime: Runtime) -> str:
            return await runtime.run_ephemeral(spec, content, author=author)

        return self._call(run, block)

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

        async def quiesce(runtime: Runtime) -> QuiesceReceipt:
            return await runtime.quiesce(reason, within_s, requester=requester)

        return self._call(quiesce, block)

    def resume(self, *, requester: str = "host", block: bool = True) -> Any:
        """Start turns again. As `Runtime.resume`."""

        async def resume(runtime: Runtime) -> ResumeReceipt:
            return await runtime.resume(requester=requester)

        return self._call(resume, block)

    def resume_agent(self, name: str, *, requester: str = "host", block: bool = True) -> Any:
        """Start a parked agent again. As `Runtime.resume_agent`."""

        async def resume(runtime: Runtime) -> bool:
            return await runtime.resume_agent(name, requester=requester)

        return self._call(resume, block)

    def provider_waits(self, agent: str | None = None) -> tuple[ProviderWait, ...]:
        """The waits in force. As `Runtime.provider_waits`."""

        async def read(runtime: Runtime) -> tuple[ProviderWait, ...]:
            return runtime.provider_waits(agent)

        found: tuple[ProviderWait, ...] = self._call(read, True)
        return found

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

        async def release(runtime: Runtime) -> ReleaseReceipt:
            return await runtime.release_provider_wait(agent, model, requester=requester)

        return self._call(release, block)

    def alerts(self, *, after: int | None = None, limit: int = 100) -> tuple[Alert, ...]:
        """What operators were told of. As `Runtime.alerts`."""

        async def read(runtime: Runtime) -> tuple[Alert, ...]:
            return runtime.alerts(after=after, limit=limit)

        found: tuple[Alert, ...] = self._call(read, True)
        return found

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
        block: bool = True,
    ) -> Any:
        """Accept the deferred messages of an older queue. As `Runtime.import_deferred`."""

        async def take(runtime: Runtime) -> ImportReport:
            return await runtime.import_deferred(source, agent=agent, wake=wake, dry_run=dry_run)

        return self._call(take, block)

    def dead_letters(
        self, *, before: int | None = None, limit: int = 100
    ) -> tuple[ArchivedMessage, ...]:
        """Messages that were not handled. As `Runtime.dead_letters`."""

        async def read(runtime: Runtime) -> tuple[ArchivedMessage, ...]:
            return runtime.dead_letters(before=before, limit=limit)

        found: tuple[ArchivedMessage, ...] = self._call(read, True)
        return found

    def quarantine(
        self, *, before: int | None = None, limit: int = 100
    ) -> tuple[ArchivedMessage, ...]:
        """Messages that crashed their actors. As `Runtime.quarantine`."""

        async def read(runtime: Runtime) -> tuple[ArchivedMessage, ...]:
            return runtime.quarantine(before=before, limit=limit)

        found: tuple[ArchivedMessage, ...] = self._call(read, True)
        return found

    def replay_dead_letter(
        self,
        id: int,  # noqa: A002
        *,
        requester: str,
        block: bool = True,
    ) -> Any:
        """Send a dead letter's message again. As `Runtime.replay_dead_letter`."""

        async def replay(runtime: Runtime) -> ArchivedMessage:
            return await runtime.replay_dead_letter(id, requester=requester)

        return self._call(replay, block)

    def replay_quarantined(
        self,
        id: int,  # noqa: A002
        *,
        requester: str,
        block: bool = True,
    ) -> Any:
        """Send a quarantined message again. As `Runtime.replay_quarantined`."""

        async def replay(runtime: Runtime) -> ArchivedMessage:
            return await runtime.replay_quarantined(id, requester=requester)

        return self._call(replay, block)

    def health(self) -> dict[str, AgentHealth]:
        """How each agent stands with its providers. As `Runtime.health`."""

        async def read(runtime: Runtime) -> dict[str, AgentHealth]:
            return runtime.health()

        found: dict[str, AgentHealth] = self._call(read, True)
        return found

    def status(self) -> RuntimeStatus:
        """A snapshot. As `Runtime.status`."""

        async def read(runtime: Runtime) -> RuntimeStatus:
            return runtime.status()

        found: RuntimeStatus = self._call(read, True)
        return found

    @property
    def runtime(self) -> Runtime:
        """The runtime, for what may be called from any thread, as a metrics collector is."""
        return self._check_open()[1]

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
        waiting = chain()

        async def call(open_: Runtime) -> Any:
            try:
                # Called from a tool's thread, this must not wait for who waits for that tool.
                with in_chain(*waiting):
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


def _refuse_on_loop(verb: str) -> None:
    if in_trio_run():
        raise WouldDeadlockError(
            f"{verb}() blocks, and this thread runs trio; nothing was done; use open_runtime here, "
            "or call it from another thread"
        )


class HostedAgent:
    """What a threaded host holds of one agent. Usable from any thread but the loop's."""

    def __init__(self, host: HostedRuntime, handle: AgentHandle) -> None:
        self._host = host
        self._handle = handle
        self.name = handle.name

    def send(
        self,
        content: Content,
        author: str = "user",
        *,
        id: str | None = None,  # noqa: A002 - the word hosts use.
        wake: bool = True,
        channel: str | None = None,
        subject: str | None = None,
        joins: bool = True,
        block: bool = True,
    ) -> Any:
        """Accept a message durably. As `AgentHandle.send`; `block=False` gives a future.

        What one thread sends is accepted in its order, also with `block=False`: it is handed over
        before this returns, and a malformed message is refused here.
        """
        self._host._check_open()
        if block:
            _refuse_on_loop("send")
        handed = self._handle.hand_over(
            content, author, id=id, wake=wake, channel=channel, subject=subject, joins=joins
        )
        if block:
            return handed.get()
        return handed

    def send_many(self, drafts: Sequence[Draft], *, block: bool = True) -> Any:
        """Accept messages durably, all or none. As `AgentHandle.send_many`, and as `send`."""
        self._host._check_open()
        if block:
            _refuse_on_loop("send_many")
        handed = self._handle.hand_over_many(drafts)
        return handed.get() if block else handed

    def receipt(self, id: str) -> Receipt:  # noqa: A002 - the word hosts use.
        """What became of a message that was sent. As `AgentHandle.receipt`."""

        async def read(runtime: Runtime) -> Receipt:
            return await self._handle.receipt(id)

        found: Receipt = self._host._call(read, True)
        return found

    def follow(self, id: str) -> Iterator[Receipt]:  # noqa: A002
        """Yield a message's receipt as it changes; blocks until it does. As `AgentHandle.follow`.

        Left before its end, it waits for nothing.
        """
        states = self._handle.follow(id)

        async def read(runtime: Runtime) -> Receipt | None:
            return await anext(states, None)

        async def leave(runtime: Runtime) -> None:
            await states.aclose()

        try:
            while (found := self._host._call(read, True)) is not None:
                yield found
        finally:
            with suppress(RuntimeClosedError):  # Then it has ended there, too.
                self._host._call(leave, True)

    def backfill(
        self, drafts: Sequence[Draft], *, channel: str | None = None, block: bool = True
    ) -> Any:
        """Accept what was said on a channel before. As `AgentHandle.backfill`."""

        async def backfill(runtime: Runtime) -> tuple[Receipt, ...]:
            return await self._handle.backfill(drafts, channel=channel)

        return self._host._call(backfill, block)

    def retract(self, message: str | Receipt, *, block: bool = True) -> Any:
        """Take a message back that was not read. As `AgentHandle.retract`."""

        async def retract(runtime: Runtime) -> Receipt:
            return await self._handle.retract(message)

        return self._host._call(retract, block)

    def auxiliary_call(self, request: ModelRequest, *, block: bool = True) -> Any:
        """Ask the agent's provider something beside its turns. As `AgentHandle.auxiliary_call`."""

        async def call(runtime: Runtime) -> ModelReply:
            return await self._handle.auxiliary_call(request)

        return self._host._call(call, block)

    def wait_idle(self, *, block: bool = True) -> Any:
        """Wait until nothing is to do but what is held. As `AgentHandle.wait_idle`."""

        async def wait(runtime: Runtime) -> None:
            await self._handle.wait_idle()

        return self._host._call(wait, block)

    def transcript(
        self, *, after: After | None = None, limit: int | None = None
    ) -> list[TranscriptMessage]:
        """The slot's messages, oldest first. As `AgentHandle.transcript`."""

        async def read(runtime: Runtime) -> list[TranscriptMessage]:
            return [message async for message in self._handle.transcript(after=after, limit=limit)]

        found: list[TranscriptMessage] = self._host._call(read, True)
        return found

    def rewound(self) -> list[TranscriptMessage]:
        """What rewinds took out of the transcript and is still kept. As `AgentHandle.rewound`."""

        async def read(runtime: Runtime) -> list[TranscriptMessage]:
            return [message async for message in self._handle.rewound()]

        found: list[TranscriptMessage] = self._host._call(read, True)
        return found

    def summaries(self) -> tuple[Summary, ...]:
        """What stands for the older part of the transcript. As `AgentHandle.summaries`."""

        async def read(runtime: Runtime) -> tuple[Summary, ...]:
            return self._handle.summaries()

        found: tuple[Summary, ...] = self._host._call(read, True)
        return found

    def rewind(self, to: str | int, *, requester: str, block: bool = True) -> Any:
        """Take everything behind a message out of the transcript. As `AgentHandle.rewind`."""

        async def rewind(runtime: Runtime) -> RewindReceipt:
            return await self._handle.rewind(to, requester=requester)

        return self._host._call(rewind, block)

    def undo_rewind(self, *, requester: str, block: bool = True) -> Any:
        """Put back what the last rewind took out. As `AgentHandle.undo_rewind`."""

        async def undo(runtime: Runtime) -> RewindReceipt:
            return await self._handle.undo_rewind(requester=requester)

        return self._host._call(undo, block)


class HostedConversation(HostedAgent):
    """What a threaded host holds of a conversation agent. As `Conversation`."""

    def __init__(self, host: HostedRuntime, handle: Conversation) -> None:
        super().__init__(host, handle)
        self._conversation = handle
        self.agent = handle.agent
        self.channel = handle.channel

    def close(self, *, requester: str = "host", block: bool = True) -> Any:
        """Let the turns that are asked for run, then end the agent. As `Conversation.close`."""

        async def close(runtime: Runtime) -> None:
            await self._conversation.close(requester=requester)

        return self._host._call(close, block)
