"""What a runtime keeps of each agent: its refs, its groups, and who waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from .core import Supervisor, TrioActorRef, TrioFuture
from .core.errors import OutcomeUnknownError
from .domain.agent import Agent
from .domain.agent_acts import AgentView
from .domain.agent_limits import AgentRoom
from .domain.auxiliary import Auxiliary
from .domain.chosen_model import ChosenModel
from .domain.errors import AgentParkedError
from .domain.ingress import clean_text
from .domain.slot import Slot
from .domain.slot_messages import AgentKind
from .domain.slot_view import SlotView
from .domain.streaming import Stream
from .domain.turn import TurnSettings
from .domain.usage_book import AccountUsage
from .domain.wait_book import WaitBook
from .status import Admission, AgentStatus, HeldStatus, LimitStatus, UnrecordedStatus

WHY_CHARS_MAX: Final = 300


class Parking:
    """Cuts off who waits for an agent when one of its groups parks: nobody would answer.

    Args:
        told: Told of the error that a group parked with.
    """

    def __init__(self, told: Callable[[BaseException], object]) -> None:
        self._told = told
        self._waiting: set[trio.CancelScope] = set()
        self.why: str | None = None
        """What the group parked with that parked last, in one line."""
        self.sends: set[TrioFuture[Any]] = set()
        """Who waits for the slot to accept a message."""

    @contextmanager
    def cut_off(self) -> Iterator[trio.CancelScope]:
        """Wait in this block; its scope is cancelled when a group parks."""
        with trio.CancelScope() as scope:
            self._waiting.add(scope)
            try:
                yield scope
            finally:
                self._waiting.discard(scope)

    def park(self, _parked: object, error: BaseException) -> None:
        """A group parked."""
        self.why = clean_text(f"{type(error).__name__}: {error}", WHY_CHARS_MAX)
        self._told(error)
        for scope in self._waiting:
            scope.cancel()

    def park_slot(self, parked: object, error: BaseException) -> None:
        """The slot's group parked: what was sent to it waits for as long as it is parked."""
        self.park(parked, error)
        for future in list(self.sends):
            # Answered late, it is past its asker, as an ask that has expired.
            future._fail(
                OutcomeUnknownError(
                    "the agent's slot was parked before it answered; whether the message is "
                    "accepted once the agent is resumed is unknown; see the log, mend the cause, "
                    "resume it, and send again under the same id",
                    actor=None,
                )
            )


class SlotHome:
    """A slot that runs here, for the agents that speak in it."""

    def __init__(self, name: str, view: SlotView) -> None:
        self.name = name
        self.view = view
        self.group: Supervisor
        self.parkings: list[Parking] = []
        """Of the agents that speak in it, in the order they came."""

    @property
    def is_shared(self) -> bool:
        return len(self.parkings) > 1

    def park(self, parked: object, error: BaseException) -> None:
        """Its group parked: nobody in it answers any more, whoever waits."""
        for parking in self.parkings:
            parking.park_slot(parked, error)


@dataclass(slots=True)
class Member:
    """What the runtime keeps of one agent."""

    settings: TurnSettings
    home: SlotHome
    slot: TrioActorRef[Slot]
    agent: TrioActorRef[Agent]
    agent_view: AgentView
    group: Supervisor
    parking: Parking
    auxiliary: Auxiliary
    stream: Stream
    choice: ChosenModel
    room: AgentRoom
    kind: AgentKind = "resident"
    parent: str | None = None
    """Of a conversation agent: whose slot its own was forked from."""
    channel: str | None = None
    ending: trio.Event | None = None
    """Somebody ends it; set when that is over."""
    usage: AccountUsage | None = None
    choosing: trio.Lock = field(default_factory=trio.Lock)
    """A model is being chosen."""
    spec: TurnSettings = field(init=False)
    """What the host said of it; `settings` have what an operator chose since."""
    context_group: Supervisor | None = None
    """The group of its context's keeper. Parked, it holds up nothing but compaction."""

    @property
    def slot_name(self) -> str:
        return self.home.name

    @property
    def slot_group(self) -> Supervisor:
        return self.home.group

    @property
    def slot_view(self) -> SlotView:
        return self.home.view

    def _waiting(self) -> tuple[int, int]:
        """How many messages wait for this agent, and their bytes."""
        book, name = self.slot_view.book, self.settings.name
        if book is None:
            return 0, 0
        if not self.home.is_shared:
            return len(book.inbox), book.inbox_bytes
        return book.waiting(name)

    def _limits(self, inbox_bytes: int) -> LimitStatus:
        limits, room = self.settings.limits, self.room
        return LimitStatus(
            inbox_messages_max=limits.inbox_messages_max,
            inbox_bytes=inbox_bytes,
            inbox_bytes_max=limits.inbox_bytes_max,
            message_bytes_max=limits.message_bytes_max,
            turns=room.turns,
            turns_waiting=room.turns_waiting,
            turns_max=limits.turns_max,
            tool_threads=room.threads,
            tool_threads_max=limits.tool_threads_max,
        )

    @property
    def is_parked(self) -> bool:
        return "parked" in (self.group.state, self.slot_group.state)

    @property
    def calls_out(self) -> int:
        """How many provider calls were admitted and not settled yet."""
        return len(self.group.refs["gate"]._cell.kept.permits)

    def status(self, waits: WaitBook) -> AgentStatus:
        """The agent as it stands now; asks no actor."""
        name, view, book = self.settings.name, self.agent_view, self.slot_view.book
        turn, held = view.turn, view.held
        waiting, inbox_bytes = self._waiting()
        open_turn = None if book is None else book.open_turn(name)
        state: Any = "idle" if view.activity == "resting" else view.activity
        if state != "held":
            held = None
        refused = view.recording.refused
        if refused is not None and state in ("idle", "starting", "running"):
            state = "unrecorded"
        return AgentStatus(
            name=name,
            state="parked" if self.is_parked else state,
            model=self.settings.model,
            turn=None if book is None else book.open_number(name),
            round=turn.round if turn is not None else 0 if open_turn is None else open_turn.round,
            attempts=0 if open_turn is None else open_turn.attempts,
            held=None
            if held is None
            else HeldStatus(
                held.model, held.cause, held.deadline_ms, held.reason, held.window, held.of_quota
            ),
            inbox=waiting,
            wakes=0 if book is None else book.wakes_retained(name),
            admission=Admission(
                waits=waits.listing(name),
                pending=sum(act.key[0] == name for act in waits.pending),
                calls=self.calls_out,
            ),
            limits=self._limits(inbox_bytes),
            unrecorded=None if refused is None else UnrecordedStatus(*refused),
            parked=self.parking.why if self.is_parked else None,
        )

    def check_accepts(self) -> None:
        """Raise AgentParkedError where nobody takes messages; a parked agent's slot still does."""
        if self.slot_group.state == "parked":
            raise self.parked_error()

    def check_not_parked(self) -> None:
        """Raise AgentParkedError where nobody would answer."""
        if self.is_parked:
            raise self.parked_error()

    def parked_error(self) -> AgentParkedError:
        name = self.settings.name
        return AgentParkedError(
            f"agent {name!r} crashed too often and is parked; nothing was done, what was accepted "
            f"stays; see the log, mend the cause, and resume_agent({name!r})",
            agent=name,
        )
