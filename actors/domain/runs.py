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

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Final, Literal, NamedTuple

import trio
from msgspec.structs import replace

from abeyance.actors.core import LATER, Reply, TrioActor
from abeyance.actors.core.clock import Clock
from abeyance.actors.core.logs import Log
from abeyance.storage.crashpoints import crashpoint, declare
from abeyance.storage.errors import OwnedElsewhereError, UnreadableRecordError
from abeyance.storage.ownership import Ownership
from abeyance.storage.store import Committed, Guard, NotStored, Put, Refused, Row, Store
from abeyance.storage.tables.runs import Run

from . import events
from .errors import not_stored
from .foreign import failure_of, told
from .ingress import check_name
from .mode import HostMode
from .persistence import PAUSE_MAX_S, may_land_later
from .protocol import Due, ForgetInstant, WatchInstant
from .run_context import THREADS, Life, RunContext, suspend, wall_of
from .run_errors import InvalidRunError, RunEndedError, StepFailedError
from .run_rows import (
    LIVE,
    RunId,
    bounded,
    change,
    check_step_id,
    earliest,
    pack_plain,
    unpacked,
)

declare("run.after_claimed", "a run is claimed and nothing of it is executed")
declare("run.after_running", "a claimed run is recorded as running and its workflow has not begun")
declare("run.before_end", "a run's workflow has returned and its end is not recorded")

NAME: Final = "runs"
LIVES_MAX: Final = 100
"""Runs that are executed at once; what is due beyond that waits for one of them to end."""
LOOK_EVERY_S: Final = 30.0
"""How often runs of dead processes are looked for."""
STOP_S: Final = 10.0
"""How long a stop waits for functions that run, so that what they came to is recorded."""
LOOK_ROWS_MAX: Final = 1_000

_logger = Log(__name__)


class Workflow(NamedTuple):
    """A function that runs are executed by, as the host registered it."""

    name: str
    function: Callable[..., Awaitable[Any]]
    version: int
    finalisers: tuple[tuple[str, Callable[..., Any]], ...]
    buffer_ms: int


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


class RunsKept:
    """Survives a crash: what the host registered. Lives do not: they are found in their rows."""

    def __init__(self) -> None:
        self.workflows: dict[str, Workflow] = {}
        self.lives: dict[RunId, Life] = {}
        self.coming: set[RunId] = set()
        """Runs that somebody of this process is about to commit as live, and to `Begin`."""
        self.given_up: set[RunId] = set()
        """Runs whose life could not be recorded here; only an operator begins them again."""
        self.stopping = False


class Claim(NamedTuple):
    """What became of an attempt to take a run up."""

    state: str
    """The state its row has now."""
    won: bool
    pid: int | None = None
    """Of the live process that owns it, where one does."""
    host: str | None = None


class Claims:
    """Taking runs up, by compare-and-set. For the alarm, a boot and operators alike."""

    def __init__(
        self, store: Store, journal: Any, ownership: Ownership, clock: Clock, mode: HostMode
    ) -> None:
        self._store = store
        self._journal = journal
        self._ownership = ownership
        self._clock = clock
        self._mode = mode

    def owned(
        self, run: RunId, *, force: bool = False
    ) -> tuple[tuple[Guard, ...], tuple[Put, ...]]:
        """What a request needs to hold the run's owner row with this process.

        Raises:
            OwnedElsewhereError: A live process owns it.
        """
        taking = self._ownership.plan(run.owned, force=force)
        if taking.requests:
            return taking.requests[0].guards, taking.requests[0].puts
        return (Guard("owners", run.owned, taking.counters[run.owned]),), ()

    def owner_guard(self, run: RunId) -> Guard | None:
        """What a life of this process writes under; None where the run is another's."""
        row = self._store.get("owners", run.owned)
        if row is None or row.record.nonce != self._ownership.nonce:
            return None
        return Guard("owners", run.owned, row.counter)

    async def move(
        self,
        run: RunId,
        decide: Callable[[Run], Run | None],
        by: str,
        *,
        puts: Callable[[Row], tuple[tuple[Guard, ...], tuple[Put, ...]]] = lambda _row: ((), ()),
    ) -> Claim:
        """Change a run's row as one who owns it, again for as long as others change it too.

        A checkpoint. Durable: on return, where it won.

        Args:
            decide: What the row is to be, or None where nothing is to be done.
            puts: What else is guarded and put.
        Raises:
            LookupError: There is no such run.
            NotStoredError: It cannot be stored; nothing changed.
        """
        while True:
            row = self._store.get("runs", run.row)
            if row is None:
                raise LookupError(str(run))
            record: Run = row.record
            new = decide(record)
            if new is None:
                return Claim(record.state, won=False)
            try:
                guards, owner_puts = self.owned(run)
            except OwnedElsewhereError as error:
                return Claim(record.state, won=False, pid=error.pid, host=error.host)
            more_guards, more_puts = puts(row)
            if new.state in LIVE:
                # A quiesce that is committed first refuses it.
                self._mode.look()
                if self._mode.is_quiesced:
                    return Claim(record.state, won=False)
                more_guards = (*more_guards, self._mode.stored.guard)
            request = change(
                run,
                row,
                new,
                by,
                guards=(*guards, *more_guards),
                puts=(*owner_puts, *more_puts),
            )
            # Once it was asked, its answer decides what is true.
            with trio.CancelScope(shield=True):
                outcome = await self._journal.ask(request)
            if isinstance(outcome, NotStored):
                raise not_stored(outcome)
            if isinstance(outcome, Refused):
                continue
            assert isinstance(outcome, Committed)
            return Claim(new.state, won=True)

    def taken_up(self, record: Run) -> Run:
        """A run's record once somebody has claimed it."""
        return replace(
            record, state="resuming", lives=record.lives + 1, changed_ms=self._clock.now_ms()
        )

    def recovery(self, record: Run, why: str) -> Run:
        return replace(
            record,
            state="recovery_required",
            reason=bounded(why),
            changed_ms=self._clock.now_ms(),
        )


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
        self._limiter = trio.CapacityLimiter(THREADS)
        self._look_wanted = trio.Event()
        self._waiters: dict[RunId, list[Reply]] = {}

    @classmethod
    def make_kept(cls) -> RunsKept:
        return RunsKept()

    def on_start(self) -> None:
        # The lives of the incarnation before have ended with it; their rows still say `live`.
        self.kept.lives.clear()
        self.spawn(self._watch, name="runs")

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
        for bucket in ("waiting", "live"):
            after: Any = None
            while True:
                page = list(
                    self._store.scan("run_index", (bucket,), after=after, limit=LOOK_ROWS_MAX)
                )
                for key, row in page:
                    if len(self.kept.lives) >= LIVES_MAX or self.kept.stopping:
                        return
                    run = RunId(str(key[2]), int(key[3]))
                    if bucket == "waiting" and int(key[1]) > now_ms:
                        page = []
                        break
                    kept = self.kept
                    # A bad row of the index hides nobody: the run's own row says whose it is.
                    known = not isinstance(row, Row) or row.record.workflow in kept.workflows
                    left = run in kept.lives or run in kept.coming or run in kept.given_up
                    if known and not left:
                        await self._claim(run)
                if len(page) < LOOK_ROWS_MAX:
                    break
                after = page[-1][0]
                await trio.lowlevel.checkpoint()

    async def _claim(self, run: RunId) -> None:
        try:
            claim = await self._claims.move(run, self._automatic, "runtime")
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
        if claim.won and claim.state == "resuming":
            self._begin(run)

    def _automatic(self, record: Run) -> Run | None:
        """What becomes of a run that is due, or whose process died."""
        workflow = self.kept.workflows.get(record.workflow)
        waits = record.state == "waiting_for_capacity"
        if workflow is None or not (waits or record.state in LIVE):
            return None
        assert not waits or record.suspension is not None
        if waits and record.suspension.resume_after_ms > self._clock.now_ms():  # type: ignore[union-attr,operator]
            return None
        if workflow.version != record.version:
            return self._claims.recovery(record, other_version(record, workflow))
        return self._claims.taken_up(record)

    # -- living ------------------------------------------------------------------------------

    def _begin(self, run: RunId) -> None:
        kept = self.kept
        if run in kept.lives or kept.stopping or self._mode.is_quiesced:
            return  # Its row says that it is live; whoever looks next takes it up.
        row = self._store.get("runs", run.row)
        workflow = None if row is None else kept.workflows.get(row.record.workflow)
        owner = self._claims.owner_guard(run)
        if row is None or workflow is None or owner is None or row.record.state not in LIVE:
            return
        life = Life(
            run,
            row,
            owner,
            self._store,
            self._journal,
            self._clock,
            workflow.buffer_ms,
            self._limiter,
            self._mode,
        )
        kept.lives[run] = life
        self.spawn(self._live, life, workflow, name=f"run {run}")

    async def _live(self, life: Life, workflow: Workflow) -> None:
        run = life.run
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
            if self.kept.lives.get(run) is life:
                del self.kept.lives[run]
            for reply in self._waiters.pop(run, ()):
                reply.set(None)
            self._look_wanted.set()
        if life.outcome is not None:
            self._tell_of(run, life.outcome.state)

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
            for name, function in workflow.finalisers:
                with context.step("final"):
                    await context.do(name, function, value)
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
            wall = wall_of(error, life, "between steps", 0, None)
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


def other_version(record: Run, workflow: Workflow) -> str:
    return (
        f"it was begun by version {record.version} of {record.workflow!r}, and this host has "
        f"version {workflow.version}"
    )


def check_workflow(
    name: str,
    function: object,
    version: object,
    finalisers: Sequence[tuple[str, Callable[..., Any]]],
    buffer_s: object,
) -> Workflow:
    """Return a workflow, or refuse the first field that is malformed.

    Raises:
        InvalidRunError, InvalidNameError: Names the field; nothing was registered.
    """
    check_name(name, "name")
    if not (callable(function) and inspect.iscoroutinefunction(inspect.unwrap(function))):
        raise InvalidRunError("function", "must be an async function of a run and its parameters")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise InvalidRunError("version", "must be a whole number from 1")
    if (
        isinstance(buffer_s, bool)
        or not isinstance(buffer_s, int | float)
        or not 0 <= buffer_s <= 86_400
    ):
        raise InvalidRunError("buffer_s", "must be a number of seconds, at most a day")
    seen = set[str]()
    for place, (step, final) in enumerate(finalisers):
        check_step_id(step, f"finalisers[{place}][0]")
        if step in seen:
            raise InvalidRunError(f"finalisers[{place}][0]", f"{step!r} is there already")
        if not callable(final):
            raise InvalidRunError(f"finalisers[{place}][1]", "must be a function of the result")
        seen.add(step)
    return Workflow(
        name,
        function,
        version,
        tuple(finalisers),
        round(buffer_s * 1_000),
    )
