"""What the actor of runs is told and asked, and what of it outlives a crash.

Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import trio

from .persistence import Recording, Unrecorded
from .run_life import Life
from .run_rows import RunId
from .run_workflow import Workflow


class WorkflowAdded(NamedTuple):
    """Tell: runs of this workflow can be executed now."""

    workflow: Workflow


class Begin(NamedTuple):
    """Tell: a run that this process owns and that is live in its row is to be executed."""

    run: RunId


class CutOff(NamedTuple):
    """Ask: a run has ended in its row; cut its life off. Answered when nothing of it runs."""

    run: RunId
    state: str


class LookForRuns(NamedTuple):
    """Tell: see what is due, and what is live in its row and nowhere else."""


class StopRuns(NamedTuple):
    """Ask: begin nothing, let what runs be recorded, then end every life. They go on later."""


class News:
    """Wakes whoever waits for a run when one has changed here."""

    def __init__(self) -> None:
        self.changed = trio.Event()

    def stir(self) -> None:
        event, self.changed = self.changed, trio.Event()
        event.set()


class Handed(NamedTuple):
    """A run that was given up here."""

    agent: str
    ends_s: float
    """When nobody is expected to take it any more, by the loop's clock."""


class RunsKept:
    """Survives a crash: what the host registered. Lives do not: they are found in their rows."""

    def __init__(self) -> None:
        self.workflows: dict[str, Workflow] = {}
        self.lives: dict[RunId, Life] = {}
        self.coming: set[RunId] = set()
        """Runs that somebody of this process is about to commit as live, and to `Begin`."""
        self.given_up: dict[RunId, str] = {}
        """Live runs that cannot be read or recorded, and why: only an operator begins them here."""
        self.handed: dict[RunId, Handed] = {}
        """Runs that were given up here for the process that has their agent."""
        self.refused: dict[RunId, Recording] = {}
        """Of which runs the store refuses something for now, and what."""
        self.stopping = False

    def unrecorded(self, run: RunId) -> Unrecorded | None:
        """What of a run the store refuses for now: a commit of its life, or its claim."""
        recording = self.refused.get(run)
        return None if recording is None else recording.refused

    def recording(
        self,
        run: RunId,
        now_ms: Callable[[], int],
        told: Callable[[Unrecorded | None], object],
    ) -> Recording:
        """Where whoever asks for a commit of a run says that the store refuses it."""

        def note(refused: Unrecorded | None) -> None:
            if refused is None:
                self.refused.pop(run, None)
            else:
                self.refused[run] = recording
            told(refused)

        recording = self.refused.get(run) or Recording(now_ms, note)
        return recording
