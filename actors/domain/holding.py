"""A held turn: what it waits for, and when that is looked at again. A part of the agent actor.

Invariants:
    I1  The end of a hold is read where what holds it is recorded: of a wait in the ledger, through
        the gate; of a call that a person decides on, in its row. A quota's end is an operator's
        word: no record stands behind it.
    I2  A hold that stands is watched: by the alarm where its end is known, and on a cadence, since
        its row may heal, or be released by a process that cannot tell this one.
    I3  Nobody goes on from a hold while the agent stops.

Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from abeyance.actors.core import Answer, TrioActor

from . import events
from .agent_acts import AgentKept, AgentView
from .approvals import standing
from .chosen_model import ChosenModel
from .protocol import ForgetInstant, HoldByQuota, Peek, Shrink, Shrunk, WatchInstant
from .turn import TurnSeams
from .wait_book import RECHECK_MS, Deferral

SHRINK_S_MAX: Final = 3_600.0
"""How long a turn whose request was too long waits for its agent's strategy."""


class LookAgain(NamedTuple):
    """To itself: whether the hold still stands is asked again on a cadence."""


class Holding:
    """What an agent's turn is held by.

    Args:
        actor: The agent.
        name: Its name.
        choice: The model that was chosen for it, which a hold of another one does not bind.
        go_on: Has the agent go on from its hold.
        stays: Called when a hold was looked at and stands.
    """

    def __init__(
        self,
        actor: TrioActor,
        name: str,
        seams: TurnSeams,
        view: AgentView,
        kept: AgentKept,
        alarm: Any,
        choice: ChosenModel | None,
        go_on: Callable[[], None],
        stays: Callable[[], None],
    ) -> None:
        self._actor = actor
        self._name = name
        self._seams = seams
        self._view = view
        self._kept = kept
        self._alarm = alarm
        self._choice = choice
        self._go_on = go_on
        self._stays = stays
        self._cadence: Any = None
        self._patience: Any = None
        """Until a hold that waits for a strategy is over, whatever the strategy does."""
        self.is_looking = False
        """The gate was asked whether the hold still stands; until it answers, that is work."""
        self.released = False
        """An operator's word came that ends a hold without a record, which may be on its way."""

    def begin(self, deferral: Deferral, turn: int | None = None) -> None:
        """Put the turn down. What it is held by is looked at next."""
        self._view.activity, self._view.held = "held", deferral
        if deferral.cause == "quota":
            self._seams.gate.tell(HoldByQuota(deferral.model, deferral.reason, deferral.window))
        if deferral.cause == "quota" and turn is not None and self._seams.alerts is not None:
            name, at_ms = self._name, self._seams.clock.now_ms()
            key = (name, deferral.model, turn)
            self._seams.alerts.quota(key, deferral.reason, at_ms, deferral.window)
        self._actor.emit(
            events.HoldBegan,
            agent=self._name,
            turn=turn,
            model=deferral.model,
            cause=deferral.cause,
            deadline_ms=deferral.deadline_ms,
            reason=deferral.reason,
            window=deferral.window,
            of_quota=deferral.of_quota,
        )

    def end(self) -> None:
        """The turn goes on, or has ended; nothing is watched any more."""
        held, self._view.held = self._view.held, None
        assert held is not None
        if held.cause == "quota":
            self._seams.gate.tell(HoldByQuota(None))
        self._actor.emit(events.HoldEnded, agent=self._name, model=held.model, cause=held.cause)
        self._alarm.tell(ForgetInstant(self._name))
        self._forget_cadence()
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def look_again(self) -> None:
        """Find out whether what holds the turn still does."""
        if self._view.activity != "held" or self._view.held is None or self._kept.stopping:
            return
        if self._leaves(self._view.held):
            self._go_on()
        elif self._view.held.cause == "quota":
            if self.released:
                self._go_on()
            else:
                self._stays()
        elif self._view.held.cause == "approval":
            self._look_at_approvals(self._view.held)
        elif self._view.held.cause == "context":
            self._look_at_context(self._view.held)
        else:
            self.is_looking = True
            self._actor.ask(self._seams.gate, Peek(self._view.held.model), tag=self._looked)

    def _looked(self, answer: Answer) -> None:
        still: Deferral | None = answer.unwrap()
        self.is_looking = False
        if self._view.activity != "held":
            return
        # What is behind a pause of the agent may be a wait of a model that it left.
        if still is None or self._leaves(still):
            self._go_on()
            return
        self._stands(still)

    def _leaves(self, held: Deferral) -> bool:
        """Whether that is of a model the agent left. Its wait stands, for whoever asks it again."""
        return self._choice is not None and self._choice.leaves(held)

    def _look_at_approvals(self, held: Deferral) -> None:
        """Whether the turn can act on what a person has decided, or not decided in time."""
        found = standing(self._seams.store, self._name, self._seams.clock.now_ms())
        if found.goes_on:
            self._go_on()
            return
        reason = f"a person decides on {', '.join(sorted(set(found.tools)))}"
        self._stands(held._replace(deadline_ms=found.deadline_ms, reason=reason))

    def _look_at_context(self, held: Deferral) -> None:
        """Have the strategy told, or told again: it, or this actor, may have died since."""
        post = self._seams.context
        if post is None or not post.tell(Shrink(self._actor.actor_ref)):
            self._go_on()
            return
        if self._patience is None:
            self._patience = self._actor.after(SHRINK_S_MAX, Shrunk())
        self._stands(held)

    def shrunk(self) -> None:
        """The strategy has looked, or had its time: the turn is compiled anew."""
        held, is_held = self._view.held, self._view.activity == "held"
        if is_held and held is not None and held.cause == "context" and not self._kept.stopping:
            self._go_on()

    def _stands(self, held: Deferral) -> None:
        self._view.held = held
        self._watch(held)
        self._stays()

    def _watch(self, held: Deferral) -> None:
        """Ask again when the wait ends, and on a cadence. That is not the wall clock's: one that
        was turned back a day would put it off by a day."""
        if held.deadline_ms is None:
            self._alarm.tell(ForgetInstant(self._name))
        else:
            watch = WatchInstant(self._name, held.deadline_ms, self._actor.actor_ref)
            self._alarm.tell(watch)
        self._forget_cadence()
        self._cadence = self._actor.after(RECHECK_MS / 1_000, LookAgain())

    def _forget_cadence(self) -> None:
        if self._cadence is not None:
            self._cadence.cancel()
            self._cadence = None
