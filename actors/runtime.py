"""The composition root: wires kernel, domain, storage and providers into a runtime.

A runtime owns a state directory for as long as it is open: one store, one writer thread, one
actor system, one control socket (`opening`). Opening takes nothing over; adding an agent does.

Runs in: the trio task that opened it and the nurseries below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import trio

from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.ownership import Ownership

from .approval_verbs import ApprovalVerbs
from .archive_verbs import ArchiveVerbs
from .attachment_verbs import AttachmentVerbs
from .conversations import Conversation, Conversations
from .core import ActorSystem, Supervisor, TrioActorRef
from .core.clock import Clock
from .core.logs import Log
from .disposal import end_agent
from .domain.accounts import Accounts
from .domain.alarm import Alarm
from .domain.alert_book import (
    AlertDesk,
    AlertSink,
)
from .domain.alerts import Alerts
from .domain.archive_book import ArchiveBook
from .domain.attaching import Attacher
from .domain.budgets import Budget
from .domain.chosen_model import Providers, chosen_of, with_choice
from .domain.deliveries import DurableCounts
from .domain.errors import (
    AgentExistsError,
    UnknownAgentError,
)
from .domain.ingress import Content, identity
from .domain.journal import CommitFigures, Journal
from .domain.mode import HostMode
from .domain.prices import Prices
from .domain.requesters import Admin, OperatorAct, check_permitted, read_requester
from .domain.retention import Pruner, Retention, check_retention
from .domain.rings import WaitRings
from .domain.spec import AgentSpec, check_spec
from .domain.spending import SpendBook
from .domain.tools import ToolRunner
from .domain.usage_book import UsageBook
from .domain.wait_book import WaitBook
from .domain.waits import Ledger
from .ephemeral import EphemeralRuns
from .groups import Groups
from .handle import AgentHandle
from .host_verbs import HostVerbs
from .lifetime import Lifetime
from .looking import LookVerbs
from .members import Member
from .outbox_verbs import OutboxVerbs
from .outboxes import Outboxes
from .providers.port import Provider
from .quiescence import Quiescence
from .run_agents import RunAgents
from .schedule_verbs import ScheduleVerbs
from .scheduling import Scheduling
from .wait_verbs import WaitVerbs
from .wiring import close_ports, start, stop
from .workflows import Workflows

_logger = Log(__name__)


class Runtime(
    HostVerbs,
    LookVerbs,
    WaitVerbs,
    ArchiveVerbs,
    ScheduleVerbs,
    ApprovalVerbs,
    OutboxVerbs,
    AttachmentVerbs,
):
    """An open runtime. Made by `open_runtime`."""

    def __init__(
        self,
        directory: Path,
        store: LmdbStore,
        ownership: Ownership,
        system: ActorSystem,
        clock: Clock,
        sinks: Sequence[AlertSink] = (),
        account_waits: bool = False,
        admin: Admin | None = None,
        prices: Prices | None = None,
        budgets: Sequence[Budget] = (),
        retention: Retention | None = None,
    ) -> None:
        self.directory = directory
        self.clock = clock
        self.http_url: str | None = None
        """Where the HTTP API is, such as `http://127.0.0.1:8321`, while there is one."""
        self._admin = admin
        self._store = store
        self._ownership = ownership
        self._system = system
        self._store_id: str = store.get("meta", ("store",)).record.store_id  # type: ignore[union-attr]
        self._started_ms = clock.now_ms()
        self._members: dict[str, Member] = {}
        self._adding: set[str] = set()
        self._rings = WaitRings(self._mates, self._system)
        self._commits = CommitFigures()
        self._waits = WaitBook(store, clock)
        self._accounts = Accounts(self._waits, clock) if account_waits else None
        self._sinks = tuple(sinks)
        self._desk = AlertDesk(store.nonce)
        self._waits.episodes.watcher = self._desk
        self._usage = UsageBook(store, clock)
        self._spending = SpendBook(store, clock, self._waits, prices, budgets)
        self._pruner = Pruner(store, clock, check_retention(retention))
        self._attacher = Attacher(store, clock)
        self._archive = ArchiveBook(store, system)
        self._counts = DurableCounts(store, clock, self._archive.forget_delivery)
        self._mode = HostMode(store)
        self._lifetime = Lifetime()
        self._providers = Providers()
        self._outboxes = Outboxes(self)
        self._run_agents = RunAgents(self)
        self._lost: Exception | None = None
        self._root: Supervisor | None = None
        self._own_groups: dict[str, Supervisor] = {}
        """What may park of the runtime's own, by name."""
        self._scope = trio.CancelScope()
        # Of the tree, once it is started (`wiring`):
        self._journal: TrioActorRef[Journal]
        self._ledger: TrioActorRef[Ledger]
        self._alarm: TrioActorRef[Alarm]
        self._alerts: TrioActorRef[Alerts]
        self._conversations: Conversations
        self._runs: EphemeralRuns
        self._runner: ToolRunner
        self._groups: Groups
        self._quiescence: Quiescence
        self._workflows: Workflows
        self._scheduling: Scheduling

    async def _start(self, bodies: trio.Nursery) -> None:
        await start(self, bodies)

    async def _stop(self) -> None:
        await stop(self)

    def _close_ports(self) -> None:
        close_ports(self)

    @property
    def system(self) -> ActorSystem:
        """The system its actors live in."""
        return self._system

    # -- agents ------------------------------------------------------------------------------

    async def add_agent(self, spec: AgentSpec) -> AgentHandle:
        """Add an agent; one that was here before goes on with its slot, wakes and held turn.

        A checkpoint. Cancelled: the agent may be owned by this process, and is added by calling
        again.
        Durable: ownership and settings, on return.

        Raises:
            InvalidSpecError, InvalidNameError, InvalidToolError: Names the field; nothing was done.
            AgentExistsError: Added to this runtime before; nothing was done.
            AgentOwnedElsewhereError: A live process owns it; names its pid and host.
            UnknownProviderError: `set_model` chose a provider for it that was not added; nothing
                was done.
            RuntimeClosedError: The runtime has ended.
        """
        self._check_open()
        said = check_spec(spec)
        name = said.name
        settings = with_choice(said, chosen_of(self._store, name), self._providers)
        self._spending.check_priced(settings)
        if name in self._members or name in self._adding:
            raise AgentExistsError(
                f"agent {name!r} was added before; nothing was done; use its handle "
                f"(runtime.agent({name!r}))",
                agent=name,
            )
        for other in (*self._members, *self._adding):
            if identity(other) == identity(name):
                raise AgentExistsError(
                    f"agent {other!r} is here and {name!r} is the same participant by another "
                    "spelling; nothing was done; choose a name that differs in more than its form",
                    agent=name,
                )
        self._adding.add(name)
        try:
            with self._lifetime.answers():
                await self._groups.own(name, settings.slot)
                await self._groups.record(said)
            async with self._lifetime.starting():
                self._members[name] = await self._groups.start(settings, spec=said)
                await self._quiescence.tell_newcomer(self._members[name])
        finally:
            self._adding.discard(name)
        return AgentHandle(self, name)

    def add_provider(self, name: str, provider: Provider) -> None:
        """Add a provider that `set_model` may name, while the runtime is open.

        Not a checkpoint. Durable: not; it is added at each start, ahead of agents for which it was
        chosen. Under a name that is there, whoever names it from now on gets this one.

        Raises:
            InvalidNameError, InvalidInputError: Names the argument; nothing was done.
            RuntimeClosedError: The runtime has ended.
        """
        self._check_open()
        self._providers.add(name, provider)

    def agent(self, name: str) -> AgentHandle:
        """The handle of an agent that was added.

        Raises:
            UnknownAgentError: No such agent here.
        """
        self._member(name)
        return AgentHandle(self, name)

    async def open_conversation(self, agent: str, *, channel: str) -> Conversation:
        """Fork a conversation agent from a resident's slot, for one channel; or take it up again.

        The fork begins with the resident's transcript as it stands, has a slot, a gate and waits of
        its own, and the resident's provider, model and tools. One that is open is handed out again;
        after a restart it goes on with its slot, its waits and its held turn.

        A checkpoint. Cancelled: what was begun is gone on with by calling again.
        Durable: on return.

        Args:
            agent: A resident that was added here.
            channel: Whose conversation; its answers belong there.
        Raises:
            InvalidNameError: Names the field; nothing was done.
            InvalidInputError: The agent is no resident; nothing was done.
            UnknownAgentError: No such agent here; nothing was done.
            AgentOwnedElsewhereError: A live process has this conversation open.
            NotStoredError: The fork is not complete, and not started; call again.
            RuntimeClosedError: The runtime has ended.
        """
        self._check_open()
        with self._lifetime.answers():
            return await self._conversations.open(agent, channel)

    async def run_ephemeral(
        self, spec: AgentSpec, content: Content, *, author: str = "user"
    ) -> str:
        """Run one turn of an agent that is used once, and return the text of its last reply.

        It has a slot of its own under a name that begins with the specification's; nothing is
        recorded of it among the waits, and waits that cannot be read do not hold it. It sleeps a
        stated wait of up to 10 min in full and goes on; a longer one ends it at once.

        A checkpoint. Cancelled: the turn is ended and stored as such; no further call is made.
        Durable: its transcript, on return or raise. A death of the process ends it for good.

        Raises:
            InvalidSpecError, InvalidNameError, InvalidToolError, InvalidMessageError: Names the
                field; nothing was done.
            RunExhaustedError: A stated wait is longer; has the instant at which it ends.
            RunFailedError: Its turn failed.
            RunInterruptedError: The runtime stopped, or the host was quiesced.
            QuiescedError: The host is quiesced; nothing was done.
            NotStoredError: Its start could not be stored; nothing ran.
            RuntimeClosedError: The runtime has ended.
        """
        self._check_open()
        self._quiescence.check_serving()
        with self._lifetime.answers():
            return await self._runs.run(spec, content, author)

    async def remove_agent(self, name: str, *, requester: str = "host") -> None:
        """End an agent: its live turn is cancelled, and nothing of it runs any more.

        What was queued lands in its slot. A held turn is ended; every wake that no turn answered
        becomes a dead letter, which a replay makes a wake again once the agent is added again. Its
        slot stays, and its waits stay listed: they hold nobody else.

        A checkpoint. Cancelled: it starts no more turns; remove it again.
        Durable: on return.

        Args:
            requester: Who asks, as for `release_provider_wait`.
        Raises:
            UnknownAgentError: No such agent here; nothing was done.
            InvalidInputError: The requester is malformed; nothing was done.
            NotPermittedError: The host's admin gate did not let it pass; nothing was done.
            NotStoredError: Its end could not be stored; it is here, and starts no more turns.
            AgentParkedError: Its slot crashed too often; resume it first.
            RuntimeClosedError: The runtime has ended.
        """
        self._member(name)
        by = self._permitted("remove_agent", name, requester)
        with self._lifetime.answers():
            await end_agent(self, name, by, finish=False)

    async def resume_agent(self, name: str, *, requester: str = "host") -> bool:
        """Start a parked agent, or what compacts for it, again, with everything that was accepted
        for it. An operator's act.

        A checkpoint. Durable: nothing is recorded; an agent is parked in its process only. Who
        asked is logged.

        Args:
            requester: Who asks, as for `release_provider_wait`.
        Returns:
            Whether it was parked.
        Raises:
            UnknownAgentError: No such agent here.
            InvalidInputError: The requester is malformed; nothing was done.
            NotPermittedError: The host's admin gate did not let it pass; nothing was done.
        """
        member = self._member(name)
        by = self._permitted("resume_agent", name, requester)
        groups = (member.slot_group, member.group, member.context_group)
        parked = [group for group in groups if group is not None and group.state == "parked"]
        was_parked = bool(parked)
        if was_parked:
            _logger.info("agent %r is resumed by %s", name, by, agent=name)
            for group in parked:
                group.unpark()
        await trio.lowlevel.checkpoint()
        return was_parked

    # -- for its parts -----------------------------------------------------------------------

    def _store_lost(self, error: Exception) -> None:
        """The writer died twice: nothing can be promised any more, so the runtime ends."""
        self._lost = error
        self._scope.cancel()

    def _permitted(self, verb: str, agent: str, requester: str) -> str:
        """Who asks for an operator's act, as it is recorded; refused where the gate refuses."""
        by, door = read_requester(requester)
        check_permitted(self._admin, OperatorAct(verb, agent, by), door)
        return by

    @property
    def _closed(self) -> bool:
        return not self._lifetime.is_open

    def _check_open(self) -> None:
        self._lifetime.check_open()

    def _mates(self, name: str) -> list[str]:
        """Who shares an agent's slot: its turns wait for theirs."""
        member = self._members.get(name)
        if member is None or not member.home.is_shared:
            return []
        return [
            other
            for other, each in self._members.items()
            if each.home is member.home and other != name
        ]

    def _member(self, name: str) -> Member:
        self._check_open()
        member = self._members.get(name)
        if member is None:
            raise UnknownAgentError(
                f"no agent {name!r} was added to this runtime; nothing was done; add it first",
                agent=name,
            )
        return member
