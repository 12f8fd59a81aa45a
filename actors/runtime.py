"""The composition root: wires kernel, domain, storage and providers into a runtime.

A runtime owns a state directory for as long as it is open: one store, one writer thread, one
actor system, one control socket (`opening`). Opening takes nothing over; adding an agent does.

Runs in: the trio task that opened it and the nurseries below it.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.ownership import Ownership

from .approval_verbs import ApprovalVerbs
from .conversations import Conversation, Conversations
from .core import ActorSystem, ChildSpec, Supervisor, SupervisorSpec, TrioActorRef
from .core.clock import Clock
from .core.errors import ActorDeadError
from .core.hub import CAPACITY, Subscription
from .core.logs import Log
from .core.reminders import MemoryReminders
from .core.tree import DEPTH, NODES, WIDTH, TreeNode
from .disposal import end_agent
from .domain.accounts import Accounts
from .domain.agent import Agent
from .domain.agent_acts import StopTurns
from .domain.alarm import Alarm
from .domain.alert_book import NAME as ALERTS
from .domain.alert_book import (
    Alert,
    AlertDesk,
    AlertSink,
    check_after,
    read_alerts,
)
from .domain.alerts import Alerts, AlertsKept
from .domain.archive import Archive
from .domain.archive_book import NAME as ARCHIVE
from .domain.archive_book import ArchiveBook, ArchivedMessage, Kind
from .domain.chosen_model import Providers, chosen_of, with_choice
from .domain.deliveries import DurableCounts
from .domain.errors import (
    AgentExistsError,
    AgentOwnedElsewhereError,
    InvalidInputError,
    UnknownAgentError,
)
from .domain.events import RunChanged
from .domain.imports import ImportReport, Source
from .domain.ingress import Content, check_name, identity
from .domain.journal import CommitFigures, Journal
from .domain.mode import (
    WITHIN_S,
    HostMode,
    QuiesceReceipt,
    ResumeReceipt,
    read_reason,
    read_window,
)
from .domain.protocol import OfferPending, ReleaseReceipt, ReleaseWaits
from .domain.reminders import NAME as REMINDERS
from .domain.reminders import DurableReminders, Reminders
from .domain.requesters import Admin, Door, OperatorAct, check_permitted, read_requester
from .domain.rings import WaitRings
from .domain.run_claims import Claims
from .domain.run_folders import RunFolders
from .domain.run_protocol import LookForRuns, News
from .domain.runs import NAME as RUNS
from .domain.runs import Runs
from .domain.schedules import NAME as SCHEDULES
from .domain.schedules import Schedules
from .domain.slot_inbox import InboxRow, check_listing, read_inbox
from .domain.spec import AgentSpec, check_spec
from .domain.step_threads import StepThreads
from .domain.tools import ToolRunner
from .domain.usage_book import UsageBook
from .domain.wait_book import ProviderWait, WaitBook
from .domain.waits import Ledger
from .ephemeral import EphemeralRuns
from .groups import Groups
from .handle import AgentHandle
from .importing import import_file
from .lifetime import Lifetime
from .members import Member, Parking
from .outbox_verbs import OutboxVerbs
from .outboxes import Outboxes
from .providers.credentials import credential_of
from .providers.port import Provider
from .providers.windows import UsageReading
from .quiescence import Quiescence
from .replays import actor_of, read_page, replay
from .run_agents import RunAgents
from .schedule_verbs import ScheduleVerbs
from .scheduling import Scheduling
from .status import AgentHealth, RuntimeStatistics, RuntimeStatus
from .workflows import Workflows

STOP_DEADLINE_S: Final = 30.0
"""How long a graceful end may take before what is left is cut off; what is durable stays."""
EVERY_MODEL: Final = "*"
EVERY_AGENT: Final = "*"

_logger = Log(__name__)


class Runtime(ScheduleVerbs, ApprovalVerbs, OutboxVerbs):
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
    ) -> None:
        self.directory = directory
        self.clock = clock
        self._admin = admin
        self._store = store
        self._ownership = ownership
        self._system = system
        self._store_id: str = store.get("meta", ("store",)).record.store_id  # type: ignore[union-attr]
        self._started_ms = clock.now_ms()
        self._members: dict[str, Member] = {}
        self._adding: set[str] = set()
        self._rings = WaitRings(self._mates)
        self._commits = CommitFigures()
        self._waits = WaitBook(store, clock)
        self._accounts = Accounts(self._waits, clock) if account_waits else None
        self._sinks = tuple(sinks)
        self._desk = AlertDesk(store.nonce)
        self._waits.episodes.watcher = self._desk
        self._usage = UsageBook(store, clock)
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

    async def _start(self, bodies: trio.Nursery) -> None:
        """Start what every agent needs: journal, ledger, alarm; then the group of slots."""
        system, store, clock = self._system, self._store, self.clock
        root = await system.start_supervisor(
            SupervisorSpec(
                id="runtime",
                children=(
                    ChildSpec(
                        "journal", Journal, (store, self._store_lost, self._commits), name="journal"
                    ),
                    ChildSpec(
                        ARCHIVE,
                        Archive,
                        lambda refs: (self._archive, refs["journal"]),
                        name=ARCHIVE,
                    ),
                    ChildSpec(
                        "ledger",
                        Ledger,
                        lambda refs: (
                            self._waits,
                            store,
                            refs["journal"],
                            clock,
                            self._accounts,
                        ),
                        name="ledger",
                    ),
                    ChildSpec("alarm", Alarm, (clock,), name="alarm"),
                    ChildSpec(
                        REMINDERS,
                        Reminders,
                        lambda refs: (
                            store,
                            refs["journal"],
                            refs["alarm"],
                            clock,
                            self._archive,
                            system,
                        ),
                        name=REMINDERS,
                    ),
                ),
                on_exhausted="escalate",
            )
        )
        # At once: a start that is cancelled below is to be stopped, too.
        self._root = root
        self._journal: TrioActorRef[Journal] = root.refs["journal"]
        self._usage.attach(self._journal)
        self._ledger: TrioActorRef[Ledger] = root.refs["ledger"]
        self._alarm: TrioActorRef[Alarm] = root.refs["alarm"]
        news = News()
        await self._start_runs(news)
        await self._start_schedules(news)
        self._conversations = Conversations(self)
        self._runs = EphemeralRuns(self)
        slots = await system.start_supervisor(
            SupervisorSpec(id="slots", children=(), on_exhausted="park"), parent=root
        )
        # A group of its own, that parks: whatever becomes of alerts, waits and turns go on.
        alerting = await system.start_supervisor(
            SupervisorSpec(
                id=ALERTS,
                children=(
                    ChildSpec(
                        ALERTS,
                        Alerts,
                        (
                            store,
                            root.refs["journal"],
                            clock,
                            self._waits,
                            self._sinks,
                            self._ownership.is_alive,
                            str(self.directory),
                        ),
                        name=ALERTS,
                    ),
                ),
                on_exhausted="park",
            ),
            parent=root,
        )
        self._own_groups[ALERTS] = alerting
        self._alerts: TrioActorRef[Alerts] = alerting.refs[ALERTS]
        self._desk.attach(self._alerts)
        self._archive.attach(root.refs[ARCHIVE])
        system.deliveries = self._counts
        system.reminders = DurableReminders(root.refs[REMINDERS], self._archive, clock)
        for name in system.live_names():
            system.reminders.started(name)
        self._runner = ToolRunner(bodies, store, self._journal, clock)
        self._groups = Groups(
            system,
            root,
            slots,
            store,
            self._ownership,
            self._runner,
            clock,
            self._waits,
            self._desk,
            self._accounts,
            self._store_id,
            self._mode,
            self._run_agents.turn_over,
            self._usage,
            self._outboxes.stir,
        )
        self._quiescence = Quiescence(self, self._mode)
        bodies.start_soon(self._runs.close_interrupted)
        bodies.start_soon(self._quiescence.watch)
        bodies.start_soon(self._outboxes.watch)

    async def _start_runs(self, news: News) -> None:
        """Start who executes runs, in a group of its own that parks: agents go on without it."""
        system, store, clock = self._system, self._store, self.clock
        threads = StepThreads(f"{self._store_id} {self.directory.resolve()}")

        def parked(error: BaseException) -> None:
            self._desk.parked_runs(error)
            news.stir()

        parking = Parking(parked)
        running = await system.start_supervisor(
            SupervisorSpec(
                id=RUNS,
                children=(
                    ChildSpec(
                        RUNS,
                        Runs,
                        (
                            store,
                            self._journal,
                            self._alarm,
                            self._ownership,
                            clock,
                            news,
                            self._mode,
                            threads,
                            self._run_agents,
                            self._desk,
                            RunFolders(self.directory),
                        ),
                        name=RUNS,
                    ),
                ),
                on_exhausted="park",
                on_parked=parking.park,
            ),
            parent=self._root,
        )
        self._own_groups[RUNS] = running
        self._run_agents.look = lambda: running.refs[RUNS].tell(LookForRuns())
        self._workflows = Workflows(
            store,
            self._ownership,
            self._journal,
            running,
            parking,
            clock,
            news,
            self._mode,
            lambda run, state: system.emit(RunChanged, run=run, state=state),
            threads,
            self._run_agents,
        )

    async def _start_schedules(self, news: News) -> None:
        """Start who starts runs by schedules, in a group of its own that parks, too."""
        store, clock, runs = self._store, self.clock, self._own_groups[RUNS].refs[RUNS]
        group = await self._system.start_supervisor(
            SupervisorSpec(
                id=SCHEDULES,
                children=(
                    ChildSpec(
                        SCHEDULES,
                        Schedules,
                        (
                            store,
                            self._journal,
                            self._alarm,
                            runs,
                            Claims(store, self._journal, self._ownership, clock, self._mode),
                            clock,
                            self._mode,
                            self._workflows.find,
                            news,
                            self._usage,
                        ),
                        name=SCHEDULES,
                    ),
                ),
                on_exhausted="park",
                on_parked=lambda _parked, error: self._desk.parked_schedules(error),
            ),
            parent=self._root,
        )
        self._scheduling = Scheduling(store, self._journal, group.refs[SCHEDULES], clock)
        self._own_groups[SCHEDULES] = group

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

    async def remove_agent(self, name: str, *, requester: str = "host", door: Door = "api") -> None:
        """End an agent: its live turn is cancelled, and nothing of it runs any more.

        What was queued lands in its slot. A held turn is ended; every wake that no turn answered
        becomes a dead letter, which a replay makes a wake again once the agent is added again. Its
        slot stays, and its waits stay listed: they hold nobody else.

        A checkpoint. Cancelled: it starts no more turns; remove it again.
        Durable: on return.

        Args:
            requester: Who asks, as for `release_provider_wait`; so is `door`.
        Raises:
            UnknownAgentError: No such agent here; nothing was done.
            InvalidInputError: The requester is malformed; nothing was done.
            NotPermittedError: The host's admin gate did not let it pass; nothing was done.
            NotStoredError: Its end could not be stored; it is here, and starts no more turns.
            AgentParkedError: Its slot crashed too often; resume it first.
            RuntimeClosedError: The runtime has ended.
        """
        self._member(name)
        by = self._permitted("remove_agent", name, requester, door)
        with self._lifetime.answers():
            await end_agent(self, name, by, finish=False)

    async def resume_agent(self, name: str, *, requester: str = "host", door: Door = "api") -> bool:
        """Start a parked agent, or what compacts for it, again, with everything that was accepted
        for it. An operator's act.

        A checkpoint. Durable: nothing is recorded; an agent is parked in its process only. Who
        asked is logged.

        Args:
            requester: Who asks, as for `release_provider_wait`; so is `door`.
        Returns:
            Whether it was parked.
        Raises:
            UnknownAgentError: No such agent here.
            InvalidInputError: The requester is malformed; nothing was done.
            NotPermittedError: The host's admin gate did not let it pass; nothing was done.
        """
        member = self._member(name)
        by = self._permitted("resume_agent", name, requester, door)
        groups = (member.slot_group, member.group, member.context_group)
        parked = [group for group in groups if group is not None and group.state == "parked"]
        was_parked = bool(parked)
        if was_parked:
            _logger.info("agent %r is resumed by %s", name, by, agent=name)
            for group in parked:
                group.unpark()
        await trio.lowlevel.checkpoint()
        return was_parked

    async def unpark(self, group: str, *, requester: str = "host", door: Door = "api") -> bool:
        """Start a parked group of the runtime's own again, with everything it accepted. An
        operator's act.

        `system.parked_groups()` has those that are parked. An agent's is `resume_agent`'s.

        A checkpoint. Durable: nothing is recorded; a group is parked in its process only. Who
        asked is logged.

        Args:
            group: `runs`, which executes runs, `schedules`, which starts them by schedules, or
                `alerts`, which raises and delivers alerts.
            requester: Who asks, as for `release_provider_wait`; so is `door`.
        Returns:
            Whether it was parked.
        Raises:
            InvalidInputError: The group or the requester is malformed; nothing was done.
            NotPermittedError: The host's admin gate did not let it pass; nothing was done.
            RuntimeClosedError: The runtime has ended.
        """
        self._check_open()
        found = self._own_groups.get(group) if isinstance(group, str) else None
        if found is None:
            raise InvalidInputError("group", f"must be one of {', '.join(self._own_groups)}")
        by = self._permitted("unpark", group, requester, door)
        was_parked = found.unpark()
        if was_parked:
            _logger.info("group %r is unparked by %s", group, by, actor=group)
        await trio.lowlevel.checkpoint()
        return was_parked

    # -- quiescing ---------------------------------------------------------------------------

    async def quiesce(
        self,
        reason: str,
        within_s: float = WITHIN_S,
        *,
        requester: str = "host",
        door: Door = "api",
    ) -> QuiesceReceipt:
        """Start no more turns until `resume`, and wait until none lives. An operator's act.

        Live turns, their tools and ephemeral runs may run to their end within the window. What
        lives then is ended as a stop ends it: its open tool gap is closed first, and its wakes are
        given back as one, for one fresh turn at the resume. A held turn is a row and stays one.
        Meanwhile messages are accepted as ever and wait in the inbox; agents can be added, rewound
        and removed; ephemeral runs are refused. It holds through restarts, and in every process
        that shares the directory: none of them starts a turn from the commit on, and each has
        drained within 30 s and the turns' own time.

        A checkpoint. Cancelled, or ended by a stop: the host is quiesced, and turns that live run
        to their end; quiesce again to wait for them. Called while it is quiesced, it replaces the
        reason, and may shorten the window.
        Durable: that it is quiesced, before anything is drained.

        Args:
            reason: Why, for whoever looks; one line, cut off at 300 characters.
            within_s: How long live turns may run on: from 0 to 86,400 s.
            requester: Who asks, as it is recorded behind the door's name.
            door: The way the request came; `api` asks the host's admin gate.
        Returns:
            Whose turn was ended, and whose is held.
        Raises:
            InvalidInputError: Names the argument; nothing was done.
            NotPermittedError: The host's admin gate did not let it pass; nothing was done.
            NotStoredError: It could not be stored; the host serves.
            ResumedError: It was resumed while turns drained; it serves.
            RuntimeClosedError: The runtime has ended; a quiesce that was stored stands.
        """
        self._check_open()
        why, window_s = read_reason(reason), read_window(within_s)
        by = self._permitted("quiesce", EVERY_AGENT, requester, door)
        with self._lifetime.answers():
            return await self._quiescence.quiesce(why, window_s, by)

    async def resume(self, *, requester: str = "host", door: Door = "api") -> ResumeReceipt:
        """Start turns again; what was accepted meanwhile lands first. An operator's act.

        A checkpoint. Cancelled: the host may serve already; call again to make sure.
        Durable: that it serves, and what landed, on return. Idempotent.

        Args:
            requester: Who asks, as it is recorded behind the door's name.
            door: The way the request came; `api` asks the host's admin gate.
        Raises:
            InvalidInputError: The requester is malformed; nothing was done.
            NotPermittedError: The host's admin gate did not let it pass; nothing was done.
            NotStoredError: It could not be stored; the host is quiesced.
            RuntimeClosedError: The runtime has ended.
        """
        self._check_open()
        by = self._permitted("resume", EVERY_AGENT, requester, door)
        with self._lifetime.answers():
            receipt = await self._quiescence.resume(by)
        self._workflows.look()
        self._scheduling.look()
        return receipt

    # -- waits -------------------------------------------------------------------------------

    def provider_waits(self, agent: str | None = None) -> tuple[ProviderWait, ...]:
        """The waits in force, of one agent or of all, those of agents that are gone included.

        Not a checkpoint.

        Raises:
            InvalidNameError: The filter is no name; it is not read as all.
        """
        self._check_open()
        if agent is not None:
            check_name(agent, "agent")
        return self._waits.listing(agent)

    async def release_provider_wait(
        self, agent: str, model: str = EVERY_MODEL, *, requester: str, door: Door = "api"
    ) -> ReleaseReceipt:
        """End an agent's waits: of one model, or (no model, or `*`) of all.

        A checkpoint. Cancelled: the release may have been recorded; `provider_waits` tells.
        Durable: where the receipt says `recorded`; `pending` binds in this process already.

        Args:
            agent: Whose waits; an agent of this runtime, or one that the listing still shows.
            model: A model's name. Anything else but `*`, None included, is refused.
            requester: Who asks, as it is recorded behind the door's name; one line, cut off at
                200 characters.
            door: The way the request came; `api` asks the host's admin gate.
        Raises:
            InvalidNameError: Agent or model is malformed; nothing was released.
            InvalidInputError: The requester is malformed; nothing was released.
            NotPermittedError: The host's admin gate did not let it pass; nothing was released.
            UnknownAgentError: No such agent here and no wait of one; nothing was released.
            AgentOwnedElsewhereError: A live process owns the agent; release it there, so that
                its held turn learns of it. Nothing was released.
        """
        self._check_open()
        check_name(agent, "agent")
        if model != EVERY_MODEL:
            check_name(model, "model")
        by = self._permitted("release_provider_wait", agent, requester, door)
        known = agent in self._members or any(act.key[0] == agent for act in self._waits.pending)
        if not known and not self.provider_waits(agent):
            raise UnknownAgentError(
                f"no agent {agent!r} here and no wait of one; nothing was released; "
                "list the waits for the names there are",
                agent=agent,
            )
        self._check_not_owned_elsewhere(agent)
        scope = None if model == EVERY_MODEL else model
        with self._lifetime.answers():
            receipt: ReleaseReceipt = await self._ledger.ask(ReleaseWaits(agent, scope, by))
        return receipt

    def _permitted(self, verb: str, agent: str, requester: str, door: Door) -> str:
        """Who asks for an operator's act, as it is recorded; refused where the gate refuses."""
        by = read_requester(requester, door)
        check_permitted(self._admin, OperatorAct(verb, agent, by), door)
        return by

    def _check_not_owned_elsewhere(self, agent: str) -> None:
        row = self._store.get("owners", ("agent", agent))
        if row is None or row.record.nonce == self._ownership.nonce:
            return
        nonce = row.record.nonce
        if self._ownership.is_alive(nonce):
            process = self._store.get("processes", (nonce,))
            pid, host = (0, "?") if process is None else (process.record.pid, process.record.host)
            raise AgentOwnedElsewhereError(
                f"agent {agent!r} is owned by process {pid} on {host}, which lives; nothing was "
                "released; release it through that process, as the command line does",
                agent=agent,
                pid=pid,
                host=host,
            )

    async def inbox(
        self, agent: str | None = None, *, after: int | None = None, limit: int = 100
    ) -> tuple[InboxRow, ...]:
        """What was accepted and is not in a transcript yet, in the order it lands, and why it
        waits; of one agent, or agent by agent.

        A checkpoint a slice of rows. Reads rows; asks no actor. Agents that other processes run are
        told of, too.

        Args:
            after: Only those of a greater number, with an agent: the last one's of a page before.
            limit: 1 to 1,000.
        Raises:
            InvalidInputError, InvalidNameError: Names the argument.
            UnknownAgentError: The store has no such agent.
            RuntimeClosedError: The runtime has ended.
        """
        self._check_open()
        check_listing(agent, after, limit)
        return await read_inbox(self._store, agent, after=after, limit=limit)

    async def import_deferred(
        self,
        source: Source,
        *,
        agent: str | None = None,
        wake: bool = False,
        dry_run: bool = False,
        requester: str = "host",
        door: Door = "api",
    ) -> ImportReport:
        """Accept the deferred messages of an older queue, in its order; docs/import.md has the
        format.

        The whole file is read first. Entries of which it cannot be told what they were are
        dropped; ids, numbers and fields that are not sound are mended; what this runtime does not
        take is refused and is in the file still. Each of these is told of in the report. Imported
        again, a file accepts nothing twice: what was accepted is known by its id.

        A checkpoint. Cancelled, or cut off by a death: the commits so far stand, each agent's
        messages from the first on without a gap; import the file again.
        Durable: on return.

        Args:
            source: A path, or a file that is open for reading; at most 256 MiB.
            agent: For whom entries are that name no target.
            wake: Whether entries that do not say ask for a turn.
            dry_run: Only report what would be done; nobody is asked, and nothing is recorded.
            requester: Who asks, as for `release_provider_wait`; so is `door`. It is recorded ahead
                of the first message.
        Raises:
            InvalidInputError, InvalidNameError: Names the argument, or the place in the file; or it
                cannot be read. Nothing was accepted.
            NotPermittedError: The host's admin gate did not let it pass; nothing was accepted.
            InboxFullError, NotStoredError, AgentParkedError, OwnershipLostError,
                RuntimeClosedError: The commits so far stand; mend the cause, and import again.
        """
        self._check_open()
        by = read_requester(requester, door)
        if not dry_run:
            whom = agent if isinstance(agent, str) else EVERY_AGENT
            by = self._permitted("import_deferred", whom, requester, door)
        return await import_file(self, source, agent, by=by, wake=wake, dry_run=dry_run)

    def alerts(self, *, after: int | None = None, limit: int = 100) -> tuple[Alert, ...]:
        """What operators were told of, oldest first; earlier runs' included.

        Not a checkpoint. One that the store could not take yet is not among them.

        Args:
            after: Only those with a greater number. None: the newest.
            limit: 1 to 1,000.
        Raises:
            InvalidInputError: Names the argument that is out of its bounds.
        """
        self._check_open()
        check_after(after, limit)
        return tuple(read_alerts(self._store, after=after, limit=limit))

    def usage(self, provider: object) -> UsageReading | None:
        """The newest usage reading of the account that a provider calls with, from whatever call of
        whatever process brought it; None where none is known. Not a checkpoint.

        Raises:
            RuntimeClosedError: The runtime has ended.
        """
        self._check_open()
        credential = credential_of(provider, self._store_id)
        return None if credential is None else self._usage.reading(credential)

    # -- what was not handled ----------------------------------------------------------------

    def dead_letters(
        self, *, before: int | None = None, limit: int = 100
    ) -> tuple[ArchivedMessage, ...]:
        """Messages that were accepted and not handled, the newest first; earlier runs' included.

        Not a checkpoint. What this process recorded in the last moments may not be a row yet.

        Args:
            before: Only those with a smaller number: the last one's of the page before.
            limit: 1 to 1,000.
        Raises:
            InvalidInputError: Names the argument that is out of its bounds.
        """
        self._check_open()
        return read_page(self._archive, "dead_letter", before, limit)

    def quarantine(
        self, *, before: int | None = None, limit: int = 100
    ) -> tuple[ArchivedMessage, ...]:
        """Messages whose handlers crashed past their last delivery. As `dead_letters`."""
        self._check_open()
        return read_page(self._archive, "quarantine", before, limit)

    async def replay_dead_letter(
        self,
        id: int,  # noqa: A002
        *,
        requester: str,
        door: Door = "api",
    ) -> ArchivedMessage:
        """Send a dead letter's message to its actor again, as a tell; count it in its row.

        A checkpoint. Cancelled: it may have been counted and sent; the row tells.
        Durable: the count, before the message is sent, so that a death in between sends nothing.

        Args:
            id: The row's number.
            requester: Who asks, as for `release_provider_wait`; so is `door`. The admin gate is
                asked about the row's actor.
        Returns:
            The row as it stands. What becomes of the message shows as a row of its own, if it ends
            so again.
        Raises:
            InvalidInputError: The number is none, or the requester is malformed; nothing was done.
            NotPermittedError: The host's admin gate did not let it pass; nothing was done.
            UnknownEntryError: No such row; nothing was done.
            ReplaysExceededError: It was replayed once already; nothing was done.
            MessageNotKeptError: The message could not be stored; nothing was done.
            ActorDeadError, MailboxFullError: Nobody took it; nothing was sent, nor counted.
            NotStoredError: The count could not be stored; nothing was sent.
        """
        return await self._replay("dead_letter", id, requester, door)

    async def replay_quarantined(
        self,
        id: int,  # noqa: A002
        *,
        requester: str,
        door: Door = "api",
    ) -> ArchivedMessage:
        """Send a quarantined message to its actor again. As `replay_dead_letter`."""
        return await self._replay("quarantine", id, requester, door)

    async def _replay(self, kind: Kind, number: int, requester: str, door: Door) -> ArchivedMessage:
        self._check_open()
        read_requester(requester, door)  # What is malformed is told before what is not there.
        verb = "replay_dead_letter" if kind == "dead_letter" else "replay_quarantined"
        by = self._permitted(verb, actor_of(self._store, kind, number), requester, door)
        with self._lifetime.answers():
            return await replay(
                self._archive, self._store, self._journal, kind, number, by, self.clock.now_ms()
            )

    # -- looking -----------------------------------------------------------------------------

    def status(self) -> RuntimeStatus:
        """A snapshot of every agent and every wait. Not a checkpoint; asks no actor."""
        self._check_open()
        return RuntimeStatus(
            directory=str(self.directory),
            store_id=self._store_id,
            pid=os.getpid(),
            host=socket.gethostname(),
            started_ms=self._started_ms,
            now_ms=self.clock.now_ms(),
            agents=tuple(self._members[name].status(self._waits) for name in sorted(self._members)),
            waits=self.provider_waits(),
            dead_letters=self._system.dead_letters.total,
            quarantine=self._system.quarantine.total,
            mode=self._quiescence.status(),
        )

    def health(self) -> dict[str, AgentHealth]:
        """How each agent stands with its providers, by name. Not a checkpoint; asks no actor.

        Agents that are gone and that a wait is still listed of are not in it: see
        `provider_waits`.
        """
        self._check_open()
        return {name: self._health(self._members[name]) for name in sorted(self._members)}

    def _health(self, member: Member) -> AgentHealth:
        status = member.status(self._waits)
        binding = {wait.model for wait in status.admission.waits}
        return AgentHealth(
            state=status.state,
            model=status.model,
            can_call=status.held is None and not binding & {status.model, EVERY_MODEL},
            held=status.held,
            admission=status.admission,
        )

    @property
    def system(self) -> ActorSystem:
        """The system its actors live in."""
        return self._system

    def statistics(self) -> RuntimeStatistics:
        """Figures of every agent, wait and commit. Not a checkpoint; on the loop thread only.

        Raises:
            RuntimeClosedError: The runtime has ended.
        """
        self._check_open()
        agents = [member.status(self._waits) for member in list(self._members.values())]
        return RuntimeStatistics(
            agents=Counter(agent.state for agent in agents),
            holds=Counter(agent.held.cause for agent in agents if agent.held is not None),
            waits=len(self._waits.listing(None)),
            inbox=sum(agent.inbox for agent in agents),
            wakes=sum(agent.wakes for agent in agents),
            requests=self._commits.requests,
            commits=self._commits.cumulated(),
            commits_s=self._commits.sum_s,
            alert_sinks=self._alerts_kept().figures(),
        )

    def _alerts_kept(self) -> AlertsKept:
        kept: AlertsKept = self._alerts._cell.kept
        return kept

    def tree(
        self, *, depth_max: int = DEPTH, width_max: int = WIDTH, nodes_max: int = NODES
    ) -> TreeNode:
        """The tree of supervisors and actors, bounded. As `ActorSystem.tree`; any thread."""
        self._check_open()
        return self._system.tree(depth_max=depth_max, width_max=width_max, nodes_max=nodes_max)

    def events(
        self, *, capacity: int = CAPACITY, kinds: Collection[str] | None = None
    ) -> Subscription:
        """Look at what happens from now on: `async for event in runtime.events():`.

        For looking: lossy for a slow reader, who is told in place how many it missed. What must be
        acted on is read from its record. Not a checkpoint; any thread; ends with the system. As
        `ActorSystem.events`, with the events of agents beside those of actors; `abeyance.actors.
        events` has the classes.

        Args:
            capacity: How many unread events are held.
            kinds: Only events of these kinds. None is all.
        """
        self._check_open()
        return self._system.events(capacity=capacity, kinds=kinds)

    # -- the end -----------------------------------------------------------------------------

    async def _stop(self) -> None:
        """End every live turn with its wakes given back; what is durable stays where it is."""
        with trio.move_on_after(STOP_DEADLINE_S, shield=True):
            await self._lifetime.end()
            if self._root is None:
                return
            if SCHEDULES in self._own_groups:  # Else the start was cut off before anything worked.
                await self._end_work()
            await self._root.stop()
        for member in self._members.values():
            member.slot_view.end()

    async def _end_work(self) -> None:
        self._workflows.close()
        self._scheduling.stop()
        async with trio.open_nursery() as nursery:
            # Together: an item of a run may wait for an ephemeral one.
            nursery.start_soon(self._workflows.stop)
            nursery.start_soon(self._runs.stop)
        parked = [member for member in self._members.values() if member.is_parked]
        async with trio.open_nursery() as nursery:
            for member in self._members.values():
                if not member.is_parked:
                    nursery.start_soon(_stop_turns, member.agent)
        for member in parked:
            # Nobody in a parked group answers. Who waits for it learns so by its end; a turn that
            # lives is left to the next start, as after a crash.
            await member.slot_group.stop()
            await member.group.stop()
        with suppress(ActorDeadError):
            # The last chance of what could not be recorded when it was stated or released.
            await self._ledger.ask(OfferPending())

    def _close_ports(self) -> None:
        """Every actor has ended: write what came too late for the journal."""
        if isinstance(self._system.reminders, DurableReminders):
            self._system.reminders = MemoryReminders(self._system)
        if self._system.deliveries is self._counts:
            self._system.deliveries = None
        try:
            self._archive.close()
        finally:
            self._counts.close()

    def _store_lost(self, error: Exception) -> None:
        """The writer died twice: nothing can be promised any more, so the runtime ends."""
        self._lost = error
        self._scope.cancel()

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


async def _stop_turns(agent: TrioActorRef[Agent]) -> None:
    with suppress(ActorDeadError):  # It has ended before; there is no turn to end.
        await agent.ask(StopTurns())
