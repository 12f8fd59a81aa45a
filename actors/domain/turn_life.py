"""The task of an agent's live turn, from its start to what it came to. A part of the agent actor.

Invariants:
    I1  Whatever ends it, whoever looks sees it end: between two events, one of each.
    I2  A turn that is cut off is ended in its row by its own task: cancelled by a person, taken
        out by a rewind, or put off by a stop or a quiesce, whose wakes go on later.

Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from abeyance.actors.core import TrioActor

from . import events
from .agent_acts import AgentKept
from .agent_limits import AgentRoom
from .cancelling import Cancelling
from .rewinding import REWOUND_MARKER, Rewinding
from .turn import TurnEnded, TurnHeld, TurnTask
from .turn_spans import ended

QUIESCED_MARKER: Final = "this turn was ended by a quiesce; its wakes go on when the host resumes"
STOPPED_MARKER: Final = "this turn was ended by a stop; its wakes go on at the next start"


class TurnLife:
    """The task of the turn that lives, of which there is one or none.

    Args:
        actor: The agent.
        room: How many turns its host has at once.
        starts_none: Whether no turn is to live now.
    """

    def __init__(
        self,
        actor: TrioActor,
        kept: AgentKept,
        room: AgentRoom,
        rewinding: Rewinding,
        cancelling: Cancelling,
        starts_none: Callable[[], bool],
    ) -> None:
        self._actor = actor
        self._kept = kept
        self._room = room
        self._rewinding = rewinding
        self._cancelling = cancelling
        self._starts_none = starts_none
        self._scope: trio.CancelScope | None = None

    def cut(self) -> bool:
        """Cut the task off; False where there is none yet, or none any more."""
        if self._scope is None:
            return False
        self._scope.cancel()
        return True

    def over(self) -> None:
        """The task has ended, and its agent knows what it came to."""
        self._scope = None

    async def run(self, turn: TurnTask) -> TurnEnded | TurnHeld:
        """Run a turn's task between its two events."""
        agent, number = turn.start.agent, turn.start.turn
        self._actor.emit(
            events.TurnStarted,
            agent=agent,
            turn=number,
            round=turn.start.round,
            attempts=turn.start.attempts,
            model=turn.model,
        )
        state = "interrupted"
        try:
            with turn.traced() as span:
                outcome = await self._live(turn)
                state = "held" if isinstance(outcome, TurnHeld) else outcome.state
                ended(span, state)
            return outcome
        finally:
            self._actor.emit(
                events.TurnEnded, agent=agent, turn=number, round=turn.round, state=state
            )

    async def _live(self, turn: TurnTask) -> TurnEnded | TurnHeld:
        with trio.CancelScope() as scope:
            self._scope = scope
            is_cancelled = self._cancelled_by(turn) is not None
            if self._starts_none() or self._rewinding.ends_turn is not None or is_cancelled:
                scope.cancel()
            async with self._room.turn():
                return await turn.run()
        return await self._cut_off(turn)

    async def _cut_off(self, turn: TurnTask) -> TurnEnded:
        rewind, stops = self._rewinding.ends_turn, self._starts_none()
        by = self._cancelled_by(turn)
        if by is not None:
            return TurnEnded("cancelled", await turn.cancel(by, rewind))
        marker = STOPPED_MARKER if self._kept.stopping else QUIESCED_MARKER
        receipt = await turn.end(
            "cancelled",
            marker if rewind is None else REWOUND_MARKER,
            give_back=stops or rewind is None or self._rewinding.gives_back,
            rewind=rewind,
        )
        return TurnEnded("cancelled", receipt)

    def _cancelled_by(self, turn: TurnTask) -> str | None:
        return self._cancelling.by(turn.start.turn) or turn.start.cancelled_by
