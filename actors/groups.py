"""What is started for an agent: its slot in one group, its gate and itself in another.

Before that the process takes their owner rows, and records what the host said of the agent.

Invariants:
    I1  An agent's actors run only while this process holds the owner rows of agent and slot.
    I3  Agents that share a slot share its actor; it runs for as long as one of them does.
    I2  A start that fails leaves no actor and no name behind.

Runs in: the task of whoever adds the agent, on the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from abeyance.storage.codec import encode
from abeyance.storage.errors import OwnedElsewhereError, UnreadableRecordError
from abeyance.storage.ownership import Ownership
from abeyance.storage.store import Committed, Guard, NotStored, Put, Refused, Request, Store
from abeyance.storage.tables.agents import Agent as AgentRecord
from abeyance.storage.tables.agents import Sharer

from .core import ActorSystem, ChildSpec, Supervisor, SupervisorSpec
from .core.clock import Clock
from .core.errors import ChildStartError
from .domain.accounts import Account, Accounts
from .domain.agent import Agent
from .domain.agent_acts import AgentView
from .domain.agent_limits import AgentRoom, AgentRooms
from .domain.alert_book import AlertDesk
from .domain.auxiliary import Auxiliary
from .domain.chosen_model import ChosenModel
from .domain.context_keeper import ContextKeeper, ContextSeams
from .domain.context_post import ContextPost
from .domain.errors import (
    AgentExistsError,
    AgentOwnedElsewhereError,
    InvalidSpecError,
    not_stored,
)
from .domain.events import RecordingRefused, RecordingResumed
from .domain.gate import Gate
from .domain.mode import HostMode
from .domain.persistence import Recording, Unrecorded
from .domain.slot import Slot
from .domain.slot_messages import AgentKind
from .domain.slot_rows import check_agent_rows
from .domain.slot_view import SlotView
from .domain.spending import SpendBook
from .domain.streaming import Stream
from .domain.tools import ToolRunner
from .domain.turn import TurnSeams, TurnSettings
from .domain.usage_book import AccountUsage, UsageBook
from .domain.wait_book import WaitBook
from .members import Member, Parking, SlotHome
from .providers.credentials import credential_of


class Groups:
    """Owns, records and starts agents of one runtime."""

    def __init__(
        self,
        system: ActorSystem,
        root: Supervisor,
        slots: Supervisor,
        store: Store,
        ownership: Ownership,
        runner: ToolRunner,
        clock: Clock,
        waits: WaitBook,
        desk: AlertDesk,
        accounts: Accounts | None,
        salt: str,
        mode: HostMode,
        over: Callable[[str], object],
        usage: UsageBook,
        spending: SpendBook,
        stirred: Callable[[], object],
    ) -> None:
        self._system = system
        self._root = root
        self._slots = slots
        self._store = store
        self._ownership = ownership
        self._runner = runner
        self._clock = clock
        self._waits = waits
        self._desk = desk
        self._accounts = accounts
        self._salt = salt
        self._mode = mode
        self._over = over
        self._usage = usage
        self._spending = spending
        self._stirred = stirred
        self._homes: dict[str, SlotHome] = {}
        """The slots that run here for agents that were added, by name."""
        self._rooms = AgentRooms()
        self._entering: dict[str, trio.Lock] = {}
        self._journal = root.refs["journal"]
        self._ledger = root.refs["ledger"]
        self._alarm = root.refs["alarm"]

    def _account(self, settings: TurnSettings) -> Account | None:
        """What the provider says its credential is, as a fingerprint; where the host wants that."""
        if self._accounts is None:
            return None
        name = credential_of(settings.provider, self._salt)
        return None if name is None else Account(name, self._accounts)

    def room_of(self, name: str, settings: TurnSettings) -> AgentRoom:
        """The room that an agent shares with what stands for it, under the name they have in
        common."""
        room = self._rooms.of(name, settings.limits)
        self._runner.limit(settings.name, room)
        return room

    def usage_of(self, settings: TurnSettings) -> AccountUsage:
        """Where the usage readings go that an agent's calls bring."""
        return AccountUsage(self._usage, credential_of(settings.provider, self._salt))

    async def own(self, name: str, slot: str | None = None) -> None:
        """Take the owner rows of an agent and its slot, by compare-and-set.

        A slot that this process owns already, for another agent, stays as it is.

        Args:
            slot: None: the agent's own.

        Raises:
            AgentOwnedElsewhereError: A live process owns one of them; nothing was done.
            NotStoredError: Nothing was taken.
        """
        owned = (("agent", name), ("slot", name if slot is None else slot))
        while True:
            try:
                taking = self._ownership.plan(*owned)
            except OwnedElsewhereError as error:
                what = f"agent {name!r}"
                if error.kind == "slot" and slot not in (None, name):
                    what = f"the slot {slot!r} of agent {name!r}"
                raise AgentOwnedElsewhereError(
                    f"{what} is owned by process {error.pid} on {error.host}, which lives; "
                    "nothing was done; stop it there, or use another state directory",
                    agent=name,
                    pid=error.pid,
                    host=error.host,
                ) from error
            outcomes = [await self._journal.ask(request) for request in taking.requests]
            for outcome in outcomes:
                if isinstance(outcome, NotStored):
                    raise not_stored(outcome)
            if all(isinstance(outcome, Committed) for outcome in outcomes):
                break
            # Another process was faster; who it was is read again.
        guard = Guard("owners", owned[0], taking.counters[owned[0]])
        self._runner.own(name, guard)

    async def record(
        self,
        settings: TurnSettings,
        kind: AgentKind = "resident",
        parent: str | None = None,
        *puts: Put,
    ) -> None:
        """Record what a host said of an agent, and in the same commit what else is to be put.

        Raises:
            AgentExistsError: The name is of an agent of another kind; nothing was recorded.
            InvalidSpecError: It speaks in another slot; nothing was recorded.
            NotStoredError: Nothing was recorded.
        """
        provider = type(settings.provider).__name__
        key = (settings.name,)
        while True:
            row = self._store.get("agents", key)
            if row is not None and row.record.kind != kind:
                raise AgentExistsError(
                    f"the name {settings.name!r} is of an agent of kind {row.record.kind!r}; "
                    "nothing was done; choose another name",
                    agent=settings.name,
                )
            if row is not None and row.record.ended_ms is None and row.record.slot != settings.slot:
                raise InvalidSpecError(
                    "slot",
                    f"agent {settings.name!r} speaks in the slot {row.record.slot!r}, and does so "
                    "until it is removed",
                )
            created = self._clock.now_ms() if row is None else row.record.created_ms
            stands = row is not None and row.record.ended_ms is None
            record = AgentRecord(
                kind=kind,
                chosen=row.record.chosen if row is not None and stands else None,
                parent=parent,
                slot=settings.slot,
                provider=provider,
                model=settings.model,
                created_ms=created,
            )
            if row is not None and row.record == record and not puts:
                return
            guards: tuple[Guard, ...] = (Guard("agents", key, 0 if row is None else row.counter),)
            rows: tuple[Put, ...] = (Put("agents", key, encode(record)), *puts)
            shares = (settings.slot, settings.name)
            if settings.slot != settings.name and self._store.get("sharers", shares) is None:
                guards += (Guard("sharers", shares, 0),)
                since = Sharer(since_ms=self._clock.now_ms())
                rows += (Put("sharers", shares, encode(since)),)
            request = Request(guards, rows)
            outcome = await self._journal.ask(request)
            if isinstance(outcome, NotStored):
                raise not_stored(outcome)
            if not isinstance(outcome, Refused):
                return

    async def start(
        self,
        settings: TurnSettings,
        kind: AgentKind = "resident",
        parent: str | None = None,
        spec: TurnSettings | None = None,
    ) -> Member:
        """Start an agent's groups; it goes on with what its rows hold.

        Args:
            spec: What the host said of it, where another model was chosen.

        Raises:
            UnreadableRecordError: A row that it goes on from cannot be read; nothing was started.
        """
        check_agent_rows(self._store, settings.name)
        home, parking = await self._enter(settings)
        try:
            member = await self._start_agent(settings, home, parking)
        except BaseException:
            # What was not added can be added again: its names must be free.
            await self._leave(home, parking)
            raise
        member.kind, member.parent = kind, parent
        member.spec = settings if spec is None else spec
        return member

    def choose(self, member: Member, settings: TurnSettings) -> None:
        """Have an agent go by another model from its next turn on; that is recorded already."""
        member.settings = settings
        member.usage = self.usage_of(settings)
        member.choice.choose(settings, self._account(settings), member.usage)

    async def leave(self, member: Member) -> None:
        """An agent has ended: its slot ends with it, unless others speak there."""
        member.home.view.streams.remove(member.stream)
        member.stream.end()
        await self._spending.end(member.settings.name)
        await self._leave(member.home, member.parking)

    async def _enter(self, settings: TurnSettings) -> tuple[SlotHome, Parking]:
        """Start the agent's slot, or join those who speak in it here."""
        name = settings.slot
        parking = Parking(lambda error: self._desk.parked(settings.name, error))
        async with self._entering.setdefault(name, trio.Lock()):
            home = self._homes.get(name)
            if home is None:
                home = self._homes[name] = await self.start_slot(name)
            home.parkings.append(parking)
        return home, parking

    async def _leave(self, home: SlotHome, parking: Parking) -> None:
        async with self._entering[home.name]:
            home.parkings.remove(parking)
            if home.parkings:
                return
            del self._homes[home.name]
            await home.group.stop()
            home.view.end()

    async def start_slot(self, name: str) -> SlotHome:
        """Start the group of a slot alone."""
        home = SlotHome(name, SlotView(self._stirred))
        slot_spec = ChildSpec(
            "slot",
            Slot,
            (name, self._ownership.nonce, self._store, self._journal, home.view),
            name=f"slot:{name}",
        )
        # A group of its own: a slot that crashes for ever is parked, its siblings run.
        spec = SupervisorSpec(
            id=f"slot:{name}",
            children=(slot_spec,),
            on_exhausted="park",
            on_parked=home.park,
        )
        try:
            home.group = await self._system.start_supervisor(spec, parent=self._slots)
        except ChildStartError as error:
            if isinstance(error.__cause__, UnreadableRecordError):
                raise error.__cause__ from None
            raise
        return home

    async def _start_agent(
        self,
        settings: TurnSettings,
        home: SlotHome,
        parking: Parking,
    ) -> Member:
        name, slot, recording = settings.name, home.group.refs["slot"], self._recording(settings)
        agent_view = AgentView(recording)
        self._runner.show(name, recording)
        account, usage = self._account(settings), self.usage_of(settings)
        choice = ChosenModel(settings, account, usage)
        stream, spender = Stream(), self._spending.of(name)
        room = self.room_of(settings.resident or name, settings)
        await spender.prepare(settings.budgets)
        post = None
        if settings.context is not None:
            post = ContextPost(settings.context, self._store, home.name, name, self._desk)

        def agent_args(refs: Any) -> tuple[Any, ...]:
            seams = TurnSeams(
                slot_name=home.name,
                slot=slot,
                gate=refs["gate"],
                store=self._store,
                runner=self._runner,
                clock=self._clock,
                recording=recording,
                alerts=self._desk,
                context=post,
                stream=stream,
                over=self._over,
                usage=usage,
                spending=spender,
                room=room,
                spans=self._system.spans,
            )
            return (settings, seams, self._alarm, self._ledger, agent_view, self._mode, choice)

        # One for one: a gate that crashes leaves its agent's live call alone, and an agent that
        # crashes leaves its gate's permits in the cell (docs/decisions).
        group = await self._system.start_supervisor(
            SupervisorSpec(
                id=f"agent:{name}",
                children=(
                    ChildSpec(
                        "gate",
                        Gate,
                        (name, self._ledger, self._waits, self._clock, account, usage),
                        name=f"gate:{name}",
                    ),
                    ChildSpec("agent", Agent, agent_args, name=f"agent:{name}"),
                ),
                on_exhausted="park",
                on_parked=parking.park,
            ),
            parent=self._root,
        )
        auxiliary = Auxiliary(
            settings,
            group.refs["gate"],
            self._ledger,
            self._clock,
            account,
            usage,
            spender,
            self._store,
            self._system.spans,
        )
        choice.tell(auxiliary.use)
        keeper = None
        if post is not None:
            try:
                keeper = await self._start_keeper(settings, post, group, agent_view, choice)
            except BaseException:
                await group.stop()
                raise
        home.view.streams.append(stream)
        return Member(
            settings,
            home,
            slot,
            group.refs["agent"],
            agent_view,
            group,
            parking,
            auxiliary,
            stream,
            context_group=keeper,
            choice=choice,
            usage=usage,
            room=room,
        )

    def _recording(self, settings: TurnSettings) -> Recording:
        name, system = settings.name, self._system

        def told(refused: Unrecorded | None) -> None:
            if refused is None:
                system.emit(RecordingResumed, agent=name)
            else:
                system.emit(RecordingRefused, agent=name, **refused._asdict())

        return Recording(self._clock.now_ms, told)

    async def _start_keeper(
        self,
        settings: TurnSettings,
        post: ContextPost,
        group: Supervisor,
        view: AgentView,
        choice: ChosenModel,
    ) -> Supervisor:
        """Start the keeper of an agent's context, in a group of its own that parks: whatever
        becomes of it, turns go on."""
        name, strategy, gate = settings.name, settings.context, group.refs["gate"]
        assert strategy is not None
        account, usage = choice.account, choice.usage
        spender, spans = self._spending.of(name), self._system.spans
        auxiliary = Auxiliary(
            settings, gate, self._ledger, self._clock, account, usage, spender, self._store, spans
        )
        choice.tell(auxiliary.use)
        seams = ContextSeams(
            agent=name,
            slot=settings.slot,
            nonce=self._ownership.nonce,
            strategy=strategy,
            store=self._store,
            journal=self._journal,
            gate=gate,
            alarm=self._alarm,
            clock=self._clock,
            auxiliary=auxiliary,
            post=post,
            activity=view,
        )
        keeper = await self._system.start_supervisor(
            SupervisorSpec(
                id=f"context:{name}",
                children=(ChildSpec("context", ContextKeeper, (seams,), name=f"context:{name}"),),
                on_exhausted="park",
            ),
            parent=group,
        )
        post.attach(keeper.refs["context"])
        return keeper
