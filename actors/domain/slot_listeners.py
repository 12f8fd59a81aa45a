"""The agents of a slot: whom it tells of a wake, or of a turn that was taken back. No actor.

Invariants:
    I1  An agent is told of wakes once, until it asks for a turn.
    I2  One that has ended is told nothing; its wakes stand, for whoever adds it again. Whoever was
        ended stays so, however often its actor is started before it is stopped.

Runs in: the loop thread; one slot actor's.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from abeyance.actors.core import ActorDeadError

from .slot_acts import SlotKept
from .slot_messages import TurnWithdrawn, Woken


class Listeners:
    """One slot's, of this incarnation; whom there is to tell survives it."""

    def __init__(self, kept: SlotKept) -> None:
        self._kept = kept
        self._told: set[str] = set()

    def attach(self, agent: str, ref: Any) -> None:
        """Take an agent in: one that is added, or whose actor died and was started again."""
        known = self._kept.agents.get(agent)
        if known is None or known.actor_urn != ref.actor_urn:
            # Not another life of the one that has ended, which is yet to be stopped.
            self._kept.ended.discard(agent)
        self._kept.agents[agent] = ref
        self._told.discard(agent)

    def is_here(self, agent: str) -> bool:
        """Whether its actor is there, or is to be started again by itself."""
        ref = self._kept.agents.get(agent)
        return ref is not None and ref.statistics().state not in ("held", "ended")

    def asks(self, agent: str) -> None:
        """It asks for a turn: what it was told of is told again for what comes later."""
        self._told.discard(agent)

    def tell_woken(self, agent: str, entry: int) -> None:
        """Tell an agent of a wake before the receipt is given, so that whoever holds the receipt
        and asks the agent whether it is idle asks behind it."""
        if agent in self._told:
            return
        ref = self._kept.agents.get(agent)
        if ref is None:
            return
        self._told.add(agent)
        try:
            ref.tell_internal(Woken(entry))
        except ActorDeadError:
            del self._kept.agents[agent]

    def tell_withdrawn(self, agent: str, withdrawn: TurnWithdrawn) -> None:
        """What the agent's held turn was to answer was taken back."""
        self.tell(agent, withdrawn)

    def tell(self, agent: str, message: Any) -> None:
        """Tell an agent something of its turn, if it is here."""
        ref = self._kept.agents.get(agent)
        if ref is not None:
            with suppress(ActorDeadError):
                ref.tell_internal(message)
