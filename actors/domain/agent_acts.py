"""What an agent is asked, what it shows of itself, and what it remembers past a crash. No actor.

Runs in: the loop thread; the view and what is kept are written by the agent actor only.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from .persistence import Recording
from .turn import TurnTask
from .verdict import Streak
from .wait_book import Deferral

Activity: TypeAlias = Literal[
    "resting", "starting", "running", "held", "quiesced", "stopping", "lost"
]


class WaitIdle(NamedTuple):
    """Ask: answered when no turn lives and nothing is to do but what is held."""


class StopTurns(NamedTuple):
    """Ask: start no more turns and end the live one, its wakes given back. Answered when done."""


class FinishTurns(NamedTuple):
    """Ask: start no more turns; the live one runs to its end, or is held. Answered when it has."""


class AgentView:
    """What the agent is doing, for whoever looks; written by the agent actor only.

    Args:
        recording: What of it the store refuses for now; written by whoever asks for a commit.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.activity: Activity = "starting"
        self.turn: TurnTask | None = None
        self.held: Deferral | None = None


class AgentKept:
    """Survives a crash of the agent actor: that it was told to stop, and how its calls fail."""

    def __init__(self) -> None:
        self.stopping = False
        self.draining = False
        """The host is quiesced, and the turn that lived then may run to its end."""
        self.streak = Streak()
        self.cancels: dict[str, int] = {}
        """Which turn each cancellation is of that is under way."""
