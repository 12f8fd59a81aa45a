"""Runs of workflows: begun, suspended on exhausted capacity, and taken up where they stand.

No run that waits is anything but rows: the alarm tells the earliest instant there is, and what is
due is claimed then. A claim is a commit that guards the run's row and takes its owner row, so of
several processes, loops or operators that are at it one wins; the others find it taken.

Invariants:
    I1  A run lives in one task of one process at a time; its life writes under its owner row.
    I2  A claim is recorded before anything of the run is executed. A death behind it leaves a run
        that is found among the live ones, whose owner is dead.
    I3  A run whose workflow is not registered here, or is of another version, is not executed.
    I4  Only an operator takes up a run whose end of waiting nobody knows, or that needs recovery.

Runs in: the loop thread; each life is a task of the incarnation.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Final, Literal, NamedTuple

import trio
from msgspec.structs import replace

from abeyance.actors.core import LATER, Reply, TrioActor
from abeyance.actors.core.clock import Clock
from abeyance.actors.core.logs import Log
from abeyance.storage.crashpoints import crashpoint, declare
from abeyance.storage.errors import StorageError, UnreadableRecordError
from abeyance.storage.ownership import Ownership
from abeyance.storage.store import Row, Store
from abeyance.storage.tables.runs import Bucket, Run

from . import events
from .alert_book import AlertDesk
from .foreign import failure_of, told
from .mode import HostMode
from .persistence import PAUSE_MAX_S, may_land_later
from .protocol import Due, ForgetInstant, WatchInstant
from .run_acts import doubtful
from .run_alerts import alert_of_run
from .run_claims import Claims
from .run_context import RunContext
from .run_errors import InvalidRunError, RunEndedError, StepFailedError
from .run_folders import RunFolders
from .run_life import Life, LifeSeams
from .run_places import Place, Places, place_here
from .run_rows import (
    ENDED,
    LIVE,
    WAITING,
    RunId,
    bounded,
    due,
    earliest,
    pack_plain,
    unpacked,
)
from .run_turns import Agents
from .run_walls import Where, suspend, wall_of
from .run_workflow import Workflow, other_version
from .step_threads import StepThreads

declare("run.after_claimed", "a run is claimed and nothing of it is executed")
declare("run.after_running", "a claimed run is recorded as running and its workflow has not begun")
declare("run.before_end", "a run's workflow has returned and its end is not recorded")

NAME: Final = "runs"
LOOK_EVERY_S: Final = 30.0
"""How often runs of dead processes are looked for."""
STOP_S: Final = 10.0
"""How long a stop waits for functions that run, so that what they came to is recorded."""
HANDED_S: Final = 120.0
"""How long a run that was given up for another process waits for it to take it."""
INEXACT: Final = (
    "it stands inside a provider's session that has no handle, so nothing shows where exactly"
)
LOOK_ROWS_MAX: Final = 1_000

_logger = Log(__name__)


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
        self.given_up: set[RunId] = set()
        """Runs whose life could not be recorded here; only an operator begins them again."""
        self.handed: dict[RunId, Handed] = {}
        """Runs that were given up here for the process that has their agent."""
        self.stopping = False


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
        self._claims = Claims(store, journal, ownership, clock, mode)
        self._threads = threads
        self._agents = agents
        self._desk = desk
        self._seams = LifeSeams(store, journal, clock, mode, threads, agents, folders)
        self._look_wanted = trio.Event()
        self._places = Places(lambda: self._look_wanted.set())
        self._buckets: deque[Bucket] = deque(("waiting", "live", "joined"))
        self._waiters: dict[RunId, list[Reply]] = {}

    @classmethod
    def make_kept(cls) -> RunsKept:
        return RunsKept()

    def on_start(self) -> None:
        # The lives of the incarnation before have ended with it; their rows still say `live`.
        self.kept.lives.clear()
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
                kept.given_up.discard(run)
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
                await self._look()
                self._watch_instant()
            with trio.move_on_after(LOOK_EVERY_S):
                await self._look_wanted.wait()

    def _watch_instant(self) -> None:
        next_ms = earliest(self._store, self._clock.now_ms())
        if next_ms is None:
            self._alarm.tell(ForgetInstant(NAME))
        else:
            self._alarm.tell(WatchInstant(NAME, next_ms, self.actor_ref))

    async def _look(self) -> None:
        """Claim what is due, and what was live in processes that have died."""
        now_ms = self._clock.now_ms()
        # Each is the first in its turn, so that none waits for the others to be empty.
        self._buckets.rotate(-1)
        for bucket in self._buckets:
            # However many wait for later, they are not read for that.
            if bucket == "waiting" and not due(self._store, now_ms, 1):
                continue
            after: Any = None
            while True:
                page = list(
                    self._store.scan("run_index", (bucket,), after=after, limit=LOOK_ROWS_MAX)
                )
                for key, row in page:
                    if self.kept.stopping or not self._places.is_free():
                        return
                    run = RunId(str(key[2]), int(key[3]))
                    if bucket == "waiting" and int(key[1]) > now_ms:
                        page = []
                        break
                    kept = self.kept
                    # A bad row of the index hides nobody: the run's own row says whose it is.
                    known = not isinstance(row, Row) or row.record.workflow in kept.workflows
                    left = run in kept.lives or run in kept.coming or run in kept.given_up
                    left = left or self._is_left_to_another(run)
                    if known and not left:
                        await self._claim(run)
                if len(page) < LOOK_ROWS_MAX:
                    break
                after = page[-1][0]
                await trio.lowlevel.checkpoint()

    async def _claim(self, run: RunId) -> None:
        try:
            handed = self.kept.handed.pop(run, None)
            decide = (
                partial(self._automatic, run)
                if handed is None
                else partial(self._handed_back, run, handed)
            )
            claim = await self._claims.move(run, decide, "runtime")
        except UnreadableRecordError as error:
            # Exactly this run is held; check and the log name it.
            self.kept.given_up.add(run)
            _logger.error("run %s cannot be read: %s", run, error, run=str(run))
            return
        except Exception as error:
            if not may_land_later(error):
                raise
            self.after(PAUSE_MAX_S, LookForRuns())
            return
        if claim.won:
            crashpoint("run.after_claimed")
            self._tell_of(run, claim.state)
            self._alert(run)
        if claim.won and claim.state == "resuming":
            self._begin(run, self._places.take())

    def _is_left_to_another(self, run: RunId) -> bool:
        """Whether the process that has a run's agent is still expected to take it."""
        handed = self.kept.handed.get(run)
        if handed is None:
            return False
        if not self._claims.is_handed_over(run):
            # Somebody took it.
            del self.kept.handed[run]
            return False
        return (
            trio.current_time() < handed.ends_s and self._agents.elsewhere(handed.agent) is not None
        )

    def _handed_back(self, run: RunId, handed: Handed, record: Run) -> Run | None:
        """What becomes of a run that was given up, and that nobody took."""
        where = self._agents.elsewhere(handed.agent)
        if where is None or not self._claims.is_handed_over(run):
            return self._automatic(run, record)
        if record.state not in LIVE:
            return None
        return self._claims.recovery(
            record,
            f"{where}, and no process that has both it and workflow {record.workflow!r} took the "
            f"run up within {HANDED_S:.0f} s: have one process add both",
        )

    def _automatic(self, run: RunId, record: Run) -> Run | None:
        """What becomes of a run that is due, or whose process died."""
        workflow = self.kept.workflows.get(record.workflow)
        if workflow is None or not (record.state in LIVE or self._is_due(record)):
            return None
        if workflow.version != record.version:
            return self._claims.recovery(record, other_version(record, workflow))
        if record.suspension is not None and not record.suspension.exact:
            stands = doubtful(self._store, run)
            return self._claims.recovery(record, INEXACT, None if stands is None else stands[0])
        choice = record.choice
        if choice is not None and not workflow.may_use(choice.provider, choice.model):
            why = f"{choice.provider}/{choice.model} is none of the fallbacks of {workflow.name!r}"
            return replace(self._claims.recovery(record, why), choice=None)
        return self._claims.taken_up(record)

    def _is_due(self, record: Run) -> bool:
        waits = record.suspension
        if record.state not in WAITING or waits is None:
            return False
        if waits.agent is not None and waits.turn is not None:
            # Whatever held the turn: it is over by its agent's own doing, or an operator's.
            if self._agents.is_over(waits.agent, waits.turn):
                return True
            self._agents.await_end(waits.agent)
            return False
        at_ms = waits.resume_after_ms
        return at_ms is not None and at_ms <= self._clock.now_ms()

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
        life = Life(run, row, owner, workflow.buffer_ms, self._seams, place)
        kept.lives[run] = life
        self.spawn(self._live, life, workflow, name=f"run {run}")

    async def _live(self, life: Life, workflow: Workflow) -> None:
        run = life.run
        place_here.set(life.place)
        try:
            with life.scope:
                await self._execute(life, workflow)
            if life.failure is not None:
                await self._end(life, "failed", reason=life.failure)
        except Exception as error:  # noqa: BLE001 - one run's rows must not end the others' lives.
            self.kept.given_up.add(run)
            _logger.error(
                "what run %s came to cannot be recorded, so it is not executed here: %s",
                run,
                error,
                run=str(run),
            )
        finally:
            life.place.give_back()
            if life.left_to is not None:
                self.kept.handed[run] = Handed(life.left_to, trio.current_time() + HANDED_S)
            if self.kept.lives.get(run) is life:
                del self.kept.lives[run]
            for reply in self._waiters.pop(run, ()):
                reply.set(None)
            self._look_wanted.set()
        if life.outcome is not None:
            if life.outcome.state in ENDED:
                self._threads.forget(run)
            self._tell_of(run, life.outcome.state)
            self._alert(run)

    async def _execute(self, life: Life, workflow: Workflow) -> None:
        record = life.record
        if record.state == "resuming":
            running = replace(
                record, state="running", suspension=None, reason="", changed_ms=self._now()
            )
            if not await life.move(running, "runtime"):
                life.end("lost")
                return
            crashpoint("run.after_running")
            self._tell_of(life.run, "running")
        context = RunContext(life)
        try:
            value = await workflow.function(context, unpacked(life.record.params))
            packed = pack_plain(value, "result")
            life.is_final = True
            for name, function, in_doubt in workflow.finalisers:
                with context.step("final"):
                    await context.do(name, function, value, in_doubt=in_doubt)
        except BaseException as error:  # noqa: BLE001 - a workflow's failure is its run's state.
            await self._failed(life, failure_of(error))
            return
        crashpoint("run.before_end")
        await self._end(life, "completed", result=packed)

    async def _failed(self, life: Life, error: BaseException) -> None:
        if life.outcome is not None or life.is_put_down or isinstance(error, RunEndedError):
            return
        wall = None
        if not isinstance(error, StepFailedError | InvalidRunError):
            # Met between two items; there is nothing to run again but what follows.
            wall = wall_of(error, life, Where("between steps", 0, phase="between"))
        if wall is not None:
            await suspend(life, wall)
        else:
            await self._end(life, "failed", reason=told(error))

    async def _end(
        self,
        life: Life,
        state: Literal["completed", "failed"],
        *,
        result: bytes | None = None,
        reason: str = "",
    ) -> None:
        record = replace(
            life.record,
            state=state,
            result=result,
            reason=bounded(reason),
            suspension=None,
            changed_ms=self._now(),
        )
        moved = await life.move(record, "runtime")
        life.end(state if moved else "lost")

    def _now(self) -> int:
        return self._clock.now_ms()

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
