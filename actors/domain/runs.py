"""Runs of workflows: begun, suspended on exhausted capacity, and taken up where they stand.

No run that waits is anything but rows: the alarm tells the earliest instant there is, and what is
due is claimed then. A claim is a commit that guards the run's row and takes its owner row, so of
several processes, loops or operators that are at it one wins; the others find it taken.

Invariants:
    I1  A run lives in one task of one process at a time; its life writes under its owner row.
    I2  A claim is recorded before anything of the run is executed. A death behind it leaves a run
        that is found among the live ones, whose owner is dead.

Runs in: the loop thread; each life is a task of the incarnation.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar, Final

import trio

from abeyance.actors.core import LATER, Reply, TrioActor
from abeyance.actors.core.clock import Clock
from abeyance.actors.core.logs import Log
from abeyance.storage.errors import StorageError
from abeyance.storage.ownership import Ownership
from abeyance.storage.store import Store

from . import events
from .alert_book import AlertDesk
from .mode import HostMode
from .persistence import PAUSE_MAX_S, Recording, Unrecorded
from .protocol import Due, ForgetInstant, WatchInstant
from .run_alerts import alert_of_run
from .run_claims import Claims
from .run_folders import RunFolders
from .run_life import Life, LifeSeams
from .run_living import live
from .run_places import Place, Places, place_here
from .run_protocol import (
    Begin,
    CutOff,
    LookForRuns,
    News,
    RunsKept,
    StopRuns,
    WorkflowAdded,
)
from .run_rows import (
    ENDED,
    LIVE,
    RunId,
    bounded,
    earliest,
)
from .run_taking import LOOK_ROWS_MAX, Taking, TakingSeams
from .run_turns import Agents
from .run_workflow import Workflow
from .step_threads import StepThreads

NAME: Final = "runs"
LOOK_EVERY_S: Final = 30.0
"""How often runs of dead processes are looked for."""
STOP_S: Final = 10.0
"""How long a stop waits for functions that run, so that what they came to is recorded."""

_logger = Log(__name__)


class Runs(TrioActor):
    """Executes runs, and takes up what is due and what the dead left."""

    role: ClassVar[str] = "runs"
    max_deliveries: ClassVar[int] = 5
    kept: RunsKept

    def __init__(
        self,
        store: Store,
        journal: Any,
        alarm: Any,
        ownership: Ownership,
        clock: Clock,
        news: News,
        mode: HostMode,
        threads: StepThreads,
        agents: Agents,
        desk: AlertDesk,
        folders: RunFolders,
    ) -> None:
        super().__init__()
        self._store = store
        self._journal = journal
        self._alarm = alarm
        self._ownership = ownership
        self._clock = clock
        self._news = news
        self._mode = mode
        self._claims = Claims(store, journal, ownership, clock, mode, threads)
        self._threads = threads
        self._agents = agents
        self._desk = desk
        self._seams = LifeSeams(store, journal, clock, mode, threads, agents, folders)
        self._look_wanted = trio.Event()
        self._waiters: dict[RunId, list[Reply]] = {}

    @classmethod
    def make_kept(cls) -> RunsKept:
        return RunsKept()

    def on_start(self) -> None:
        # The lives of the incarnation before have ended with it; their rows still say `live`.
        self.kept.lives.clear()
        self.kept.refused.clear()
        self._taking = Taking(
            self._store,
            self._claims,
            self._agents,
            self._clock,
            self.kept,
            Places(self._look_soon),
            TakingSeams(self._begin, self._came_to, self._look_later, self._recording),
        )
        self.spawn(self._watch, name="runs")
        self.spawn(self._tell_missed, name="runs alerts")

    def on_receive(self, message: Any) -> Any:
        kept = self.kept
        match message:
            case WorkflowAdded(workflow):
                kept.workflows[workflow.name] = workflow
                self._look_wanted.set()
            case Begin(run):
                kept.coming.discard(run)
                kept.given_up.pop(run, None)
                self._begin(run)
            case CutOff(run, state):
                life = kept.lives.get(run)
                if life is None:
                    return None
                life.end(state)
                self._waiters.setdefault(run, []).append(self.later())
                return LATER
            case Due() | LookForRuns():
                self._look_wanted.set()
            case StopRuns():
                kept.stopping = True
                self.spawn(self._wind_down, self.later(), name="runs stop")
                return LATER
            case _:
                raise TypeError(f"runs take no {type(message).__name__}")
        return None

    # -- alerts ------------------------------------------------------------------------------

    def _alert(self, run: RunId) -> None:
        """Tell an operator of a run, where its row calls for that; once an episode."""
        with suppress(StorageError):
            row = self._store.get("runs", run.row)
            raised = None if row is None else alert_of_run(run, row.record)
            if raised is not None:
                self._desk.tell(raised)

    async def _tell_missed(self) -> None:
        """Tell of runs that wait for somebody, where a death may have come before the alert."""
        for bucket in ("unknown", "recovery"):
            for key, _row in list(self._store.scan("run_index", (bucket,), limit=LOOK_ROWS_MAX)):
                self._alert(RunId(str(key[2]), int(key[3])))
                await trio.lowlevel.checkpoint()

    # -- looking -----------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            self._look_wanted = trio.Event()
            if not (self.kept.stopping or self._mode.is_quiesced) and self.kept.workflows:
                await self._taking.look()
                self._watch_instant()
            with trio.move_on_after(LOOK_EVERY_S):
                await self._look_wanted.wait()

    def _look_soon(self) -> None:
        self._look_wanted.set()

    def _look_later(self) -> None:
        self.after(PAUSE_MAX_S, LookForRuns())

    def _watch_instant(self) -> None:
        next_ms = earliest(self._store, self._clock.now_ms())
        if next_ms is None:
            self._alarm.tell(ForgetInstant(NAME))
        else:
            self._alarm.tell(WatchInstant(NAME, next_ms, self.actor_ref))

    # -- living ------------------------------------------------------------------------------

    def _begin(self, run: RunId, place: Place | None = None) -> None:
        kept = self.kept
        place = place or Place()
        if run in kept.lives or kept.stopping or self._mode.is_quiesced:
            place.give_back()
            return  # Its row says that it is live; whoever looks next takes it up.
        row = self._store.get("runs", run.row)
        workflow = None if row is None else kept.workflows.get(row.record.workflow)
        owner = self._claims.owner_guard(run)
        if row is None or workflow is None or owner is None or row.record.state not in LIVE:
            place.give_back()
            return
        life = Life(run, row, owner, workflow.buffer_ms, self._seams, place, self._recording(run))
        kept.lives[run] = life
        self.spawn(self._live, life, workflow, name=f"run {run}")

    async def _live(self, life: Life, workflow: Workflow) -> None:
        run = life.run
        place_here.set(life.place)
        try:
            await live(life, workflow, lambda: self._tell_of(run, "running"))
        except Exception as error:  # noqa: BLE001 - one run's rows must not end the others' lives.
            self.kept.given_up[run] = bounded(str(error))
            _logger.error(
                "what run %s came to cannot be recorded, so it is not executed here: %s",
                run,
                error,
                run=str(run),
            )
        finally:
            life.place.give_back()
            if life.left_to is not None:
                self._taking.hand_over(run, life.left_to)
            if self.kept.lives.get(run) is life:
                del self.kept.lives[run]
            for reply in self._waiters.pop(run, ()):
                reply.set(None)
            self._look_wanted.set()
        if life.outcome is not None:
            if life.outcome.state in ENDED:
                self._threads.forget(run)
            self._came_to(run, life.outcome.state)

    def _came_to(self, run: RunId, state: str) -> None:
        self._tell_of(run, state)
        self._alert(run)

    def _recording(self, run: RunId) -> Recording:
        def told(refused: Unrecorded | None) -> None:
            if refused is None:
                self.emit(events.RunRecordingResumed, run=str(run))
            else:
                self.emit(events.RunRecordingRefused, run=str(run), **refused._asdict())

        return self.kept.recording(run, self._clock.now_ms, told)

    def _tell_of(self, run: RunId, state: str) -> None:
        self.emit(events.RunChanged, run=str(run), state=state)
        self._news.stir()

    # -- the end -----------------------------------------------------------------------------

    async def _wind_down(self, reply: Reply) -> None:
        lives = list(self.kept.lives.values())
        for life in lives:
            life.put_down()
        with trio.move_on_after(STOP_S):
            for life in lives:
                await life.quiet.wait()
        for life in lives:
            life.scope.cancel()
        while self.kept.lives:
            await trio.lowlevel.checkpoint()
        reply.set(None)
