"""How an agent's next turn is asked for, and by which model it goes. A part of the agent actor.

Invariants:
    I1  The slot is asked for one turn at a time, and its answer decides what the agent does next.
    I2  A model that was chosen is gone by from the next turn on, and its gate is told ahead.
    I3  A start that the store refuses is asked for again until it is made, and says so meanwhile.

Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from abeyance.actors.core import Answer, TrioActor
from abeyance.actors.core.spans import NO_SPAN

from .agent_acts import AgentKept, AgentView
from .chosen_model import ChosenModel, UseAccount
from .context import Summary
from .mode import HostMode, Quiesced
from .pairs import Pairs
from .persistence import PAUSE_MAX_S, may_land_later
from .protocol import TurnBegan
from .slot_messages import NothingToDo, StartTurn, TurnStart, WithdrawStart
from .turn import TurnSeams, TurnSettings, TurnTask
from .turn_spans import turn_span

START_AGAIN_S: Final = 0.1
"""Until a slot is asked again that knew less of a resume than its agent."""

_START: Final = "the start of a turn"
"""What the store may refuse of an agent that no turn's task asks for."""


class StartAgain(NamedTuple):
    """To itself: ask the slot for a turn again; the last ask could not be stored."""


class StartingSeams(NamedTuple):
    """What a start tells its agent."""

    ask_slot: Callable[[Any, Callable[[Answer], None]], None]
    """Asks the slot, and hands the answer to a function."""
    is_lost: Callable[[BaseException | None], bool]
    """Whether an answer says that another process has the agent, which it then goes by."""
    begins: Callable[[TurnTask], None]
    """The turn is there: its task is to be run."""
    nothing: Callable[[], None]
    """There is no turn to begin."""


class Starting:
    """What an agent's turns go by, and the asks for the next one.

    Args:
        actor: The agent.
        settings, seams: As it was added; `choice` has what an operator chose since.
        pairs: Go by the same model from then on.
    """

    def __init__(
        self,
        actor: TrioActor,
        settings: TurnSettings,
        seams: TurnSeams,
        choice: ChosenModel | None,
        view: AgentView,
        kept: AgentKept,
        mode: HostMode,
        pairs: Pairs,
        agent: StartingSeams,
    ) -> None:
        self._actor = actor
        self.settings = settings
        self._seams = seams
        self._choice = choice
        self._view = view
        self._kept = kept
        self._mode = mode
        self._pairs = pairs
        self._agent = agent
        self._chosen: Summary | None = None
        self._span = NO_SPAN
        self.settle()

    # -- the model ---------------------------------------------------------------------------

    def use_choice(self) -> None:
        """Go by the model that was chosen, if it is another: no turn lives."""
        choice = self._choice
        if choice is not None and choice.settings is not self.settings:
            self.settings = choice.settings
            self._seams = replace(self._seams, usage=choice.usage)
            self._pairs.use(choice.settings)
            self._go_by(choice)

    def use_new_choice(self) -> None:
        """Tell whom it concerns where the agent begins with a model that was chosen for it."""
        if self._choice is not None and self._choice.is_new:
            self._go_by(self._choice)

    def _go_by(self, choice: ChosenModel) -> None:
        # Ahead of whatever the agent asks its gate by it.
        self._seams.gate.tell(UseAccount(choice.account, choice.usage))
        choice.apply()

    # -- the turn ----------------------------------------------------------------------------

    def withhold(self) -> None:
        """Ask for none: the agent stops, or its host is quiesced."""
        self.settle()
        if self._view.held is None:
            self._view.activity = "resting"
        self._agent.nothing()

    def ask(self) -> None:
        """Ask for a turn."""
        self.use_choice()
        settings, context = self.settings, self._seams.context
        self._view.activity = "starting"
        self._chosen = None if context is None else context.choose()
        # It never ends where there turns out to be nothing to do: nobody sees one that has not.
        self._span = turn_span(self._seams.spans, settings)
        start = StartTurn(
            agent=settings.name,
            provider=type(settings.provider).__name__,
            model=settings.model,
            carries_injections=settings.provider.carries_injections,
            at_ms=self._seams.clock.now_ms(),
            context=None if self._chosen is None else self._chosen.last,
            seen=None if self._seams.spending is None else self._seams.spending.turn,
            system=settings.system if isinstance(settings.system, str) else None,
            asks_system=callable(settings.system),
            trace=self._span.place,
        )
        self._agent.ask_slot(start, self.answered)

    def answered(self, answer: Answer) -> None:
        """The slot has said what there is to do."""
        if self._agent.is_lost(answer.error):
            return
        if may_land_later(answer.error):
            # Nothing is wrong with the turn: the disk is full, or the store briefly out of reach.
            assert answer.error is not None
            self._view.recording.refuse(_START, _START, answer.error)
            self._actor.after(PAUSE_MAX_S, StartAgain())
            return
        self.settle()
        start: TurnStart | NothingToDo | Quiesced = answer.unwrap()
        match start:
            case Quiesced():
                self._refused()
            case NothingToDo():
                # A wake that became durable since is told behind this answer.
                self._kept.draining = False
                self._agent.nothing()
            case _:
                self._begin(start)

    def _begin(self, start: TurnStart) -> None:
        if self._seams.context is not None:
            self._seams.context.tell(TurnBegan())
        if start.unreadable is not None and self._seams.alerts is not None:
            name, slot = self.settings.name, self._seams.slot_name
            self._seams.alerts.context(
                name, slot, start.unreadable, "a turn was compiled behind it"
            )
        chosen, self._chosen = self._chosen, None
        streak = self._kept.streak
        turn = TurnTask(start, self.settings, self._seams, streak, chosen, self._span)
        self._view.turn, self._view.activity = turn, "running"
        self._agent.begins(turn)

    def _refused(self) -> None:
        """The slot starts no turn: the host is quiesced, as far as the slot or the store knows."""
        self._kept.draining = False
        if self._mode.notice():
            self._view.activity = "resting"
            self._agent.nothing()
        else:
            self._actor.after(START_AGAIN_S, StartAgain())

    def settle(self) -> None:
        """The store takes the start, or it is not asked for any more."""
        self._view.recording.settle(_START)

    def withdraw(self) -> None:
        """A start that waits for another agent's turn on the same slot waits no more."""
        if self._view.activity == "starting":
            self._seams.slot.tell(WithdrawStart(self.settings.name))
