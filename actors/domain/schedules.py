"""Starts the runs of schedules when they are due, and records what became of each occurrence.

Nothing of a schedule lives but its row: the alarm tells the earliest instant there is, and what is
due is decided then. A decision is a commit that guards the schedule's row, so of several processes
that have its workflow one makes it.

Invariants:
    I1  An occurrence starts at most one run, and none while a run of its key may still go on.
    I2  The run, the occurrence and the next instant are one commit; a death before it leaves the
        occurrence due, a death behind it a run that is found among the live ones.
    I3  Of occurrences that passed while no process could start them the last is decided now, late
        as it is; the others are recorded as missed. They never start one run each.
    I4  A schedule whose workflow no process has registered, and every schedule of a quiesced host,
        stays due.
    I5  No run starts while every account that it may draw on is known to be out until an instant
        that is known; what is not known keeps none from starting.
    I6  A bad row of one schedule holds exactly that schedule.

Runs in: the loop thread; looking is a task of the incarnation.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, Final, NamedTuple

import trio
from msgspec.structs import replace

from abeyance.actors.core import TrioActor
from abeyance.actors.core.clock import Clock
from abeyance.actors.core.errors import AbeyanceError, ActorDeadError
from abeyance.actors.core.logs import Log
from abeyance.actors.providers.instants import render_instant
from abeyance.storage.crashpoints import crashpoint, declare
from abeyance.storage.errors import StoreClosedError
from abeyance.storage.store import Committed, Guard, Request, Row, Store
from abeyance.storage.tables.runs import Run
from abeyance.storage.tables.schedules import Occurrence, Schedule

from . import events
from .mode import HostMode
from .persistence import PAUSE_MAX_S, may_land_later
from .protocol import Due, ForgetInstant, WatchInstant
from .run_claims import Claims
from .run_protocol import Begin, News
from .run_rows import RunId, first_request
from .run_workflow import Workflow
from .schedule_rows import change, due, earliest, known, mended, stray
from .timetable import timetable_of
from .usage_book import Spent, UsageBook

declare("schedule.after_occurrence", "an occurrence is recorded and its run has not begun")

NAME: Final = "schedules"
LOOK_EVERY_S: Final = 30.0
"""How often what other processes added, or left due, is looked for."""
LOOK_ROWS_MAX: Final = 1_000
AT_ONCE: Final = 64
"""Schedules that are decided side by side, so that their commits are one."""
STEP_MS_MIN: Final = 60_000
"""A clock that went back by more since the last look was set."""

_logger = Log(__name__)


class LookAtSchedules(NamedTuple):
    """Tell: see what is due, and when the next is."""


class StopSchedules(NamedTuple):
    """Tell: start nothing more."""


class SchedulesKept:
    """Survives a crash."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        """Schedules that could not be decided, and were told of in the log."""
        self.looked_ms: int | None = None
        self.refused = False
        """Whether nothing could be stored at the last look; what is due is looked at again."""
        self.stopping = False


class Schedules(TrioActor):
    """Decides what is due."""

    role: ClassVar[str] = "schedules"
    max_deliveries: ClassVar[int] = 5
    kept: SchedulesKept

    def __init__(
        self,
        store: Store,
        journal: Any,
        alarm: Any,
        runs: Any,
        claims: Claims,
        clock: Clock,
        mode: HostMode,
        workflow: Callable[[str], Workflow | None],
        news: News,
        usage: UsageBook,
    ) -> None:
        super().__init__()
        self._store = store
        self._journal = journal
        self._alarm = alarm
        self._runs = runs
        self._claims = claims
        self._clock = clock
        self._mode = mode
        self._workflow = workflow
        self._news = news
        self._usage = usage
        self._look_wanted = trio.Event()

    @classmethod
    def make_kept(cls) -> SchedulesKept:
        return SchedulesKept()

    def on_start(self) -> None:
        self.spawn(self._watch, name="schedules")

    def on_receive(self, message: Any) -> None:
        match message:
            case Due() | LookAtSchedules():
                self._look_wanted.set()
            case StopSchedules():
                self.kept.stopping = True
            case _:
                raise TypeError(f"schedules take no {type(message).__name__}")

    # -- looking -----------------------------------------------------------------------------

    async def _watch(self) -> None:
        while not self.kept.stopping:
            self._look_wanted = trio.Event()
            self._mode.look()
            await self._mend()
            if not self._mode.is_quiesced:
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
        self.kept.refused = False
        after: tuple[int, str] | None = None
        while True:
            page = due(self._store, self._clock.now_ms(), after, LOOK_ROWS_MAX)
            for place in range(0, len(page), AT_ONCE):
                async with trio.open_nursery() as nursery:
                    for due_ms, name in page[place : place + AT_ONCE]:
                        nursery.start_soon(self._attempt, name, due_ms)
                if self.kept.stopping or self.kept.refused:
                    return
            if len(page) < LOOK_ROWS_MAX:
                return
            after = page[-1]

    async def _mend(self) -> None:
        """After a clock was set back: what is due by the old one only is computed anew."""
        now_ms, looked_ms = self._clock.now_ms(), self.kept.looked_ms
        self.kept.looked_ms = now_ms
        if looked_ms is not None and now_ms > looked_ms - STEP_MS_MIN:
            return
        for name, row in list(known(self._store)):
            if not isinstance(row, Row) or (record := mended(row.record, now_ms)) is None:
                continue
            _logger.warning(
                "schedule %r was last due by a clock that is more than a day ahead of this one; it "
                "is due by this one from now on",
                name,
                actor=NAME,
            )
            with suppress(AbeyanceError):  # Refused or not stored: the next look is as good.
                await self._journal.ask(change(name, row, record))

    # -- deciding ----------------------------------------------------------------------------

    async def _attempt(self, name: str, due_ms: int) -> None:
        """Decide one schedule; whatever becomes of it, the others are decided."""
        try:
            await self._decide(name, due_ms)
        except (ActorDeadError, StoreClosedError):
            raise
        except Exception as error:  # noqa: BLE001 - one bad schedule must not hold the others.
            if may_land_later(error):
                if not self.kept.refused:
                    self.kept.refused = True
                    self.after(PAUSE_MAX_S, LookAtSchedules())
            elif name not in self.kept.held:
                self.kept.held.add(name)
                _logger.error(
                    "schedule %r is due and cannot be decided; it stays due: %s",
                    name,
                    error,
                    actor=NAME,
                )
        else:
            self.kept.held.discard(name)

    async def _decide(self, name: str, due_ms: int) -> None:
        """Decide what becomes of a schedule's occurrence, again for as long as others change it."""
        while True:
            row = self._store.get("schedules", (name,))
            record: Schedule | None = None if row is None else row.record
            if record is None or record.state != "active" or record.next_ms != due_ms:
                counter = 0 if row is None else row.counter
                await self._ask(stray(name, due_ms, counter))
                return
            workflow = self._workflow(record.workflow)
            self._mode.look()
            if workflow is None or self._mode.is_quiesced:
                return
            if await self._occur(name, row, record, workflow):  # type: ignore[arg-type]
                return

    async def _occur(self, name: str, row: Row, record: Schedule, workflow: Workflow) -> bool:
        now_ms = self._clock.now_ms()
        assert record.next_ms is not None
        table = timetable_of(record)
        last_ms = table.last(record.next_ms, now_ms)
        next_ms = table.after(last_ms)
        late = record.late_ms is not None and now_ms - last_ms > record.late_ms
        found: list[Occurrence] = []
        if late or last_ms > record.next_ms:
            found.append(
                Occurrence(
                    due_ms=record.next_ms,
                    until_ms=last_ms + 1 if late else last_ms,
                    outcome="missed",
                    cause="late",
                    at_ms=now_ms,
                )
            )
        run: RunId | None = None
        start, guards = None, tuple[Guard, ...]()
        if not late:
            run, start, guards, occurrence = self._outcome(name, record, workflow, last_ms, now_ms)
            found.append(occurrence)
        request = change(
            name,
            row,
            replace(record, next_ms=next_ms, last_ms=now_ms),
            occurrences=found,
            start=start,
            guards=guards,
        )
        coming = self._runs._cell.kept.coming
        if run is not None:
            coming.add(run)
        try:
            committed = await self._ask(request)
        except BaseException:
            if run is not None:
                coming.discard(run)
            raise
        if not committed:
            if run is not None:
                coming.discard(run)
            return False
        crashpoint("schedule.after_occurrence")
        self._tell_of(name, found, run)
        return True

    def _outcome(
        self, name: str, record: Schedule, workflow: Workflow, due_ms: int, now_ms: int
    ) -> tuple[RunId | None, Request | None, tuple[Guard, ...], Occurrence]:
        """Start a run, or say what keeps one from starting."""
        key = record.run_key
        row = self._store.get("run_keys", (key,))
        if row is not None and row.record.is_open:
            open_run = RunId(key, row.record.generation)
            skipped = Occurrence(
                due_ms=due_ms,
                outcome="skipped",
                cause="run_open",
                run=str(open_run),
                reason=f"a run of key {key!r} may still go on",
                at_ms=now_ms,
            )
            return None, None, (Guard("run_keys", (key,), row.counter),), skipped
        spent = self._spent(record)
        if spent is not None:
            skipped = Occurrence(
                due_ms=due_ms,
                until_ms=spent.until_ms,
                outcome="skipped",
                cause="capacity",
                reason=f"window {spent.window!r} is used up until {render_instant(spent.until_ms)}",
                at_ms=now_ms,
            )
            return None, None, (), skipped
        run = RunId(key, 1 if row is None else row.record.generation + 1)
        first = Run(
            workflow=workflow.name,
            version=workflow.version,
            state="running",
            params=record.params,
            schedule=name,
            due_ms=due_ms,
            started_ms=now_ms,
            changed_ms=now_ms,
        )
        guards, puts = self._claims.owned(run)
        start = first_request(
            run,
            first,
            0 if row is None else row.counter,
            (guards[0], puts[0]),
            f"schedule:{name}",
            self._mode.stored.guard,
        )
        started = Occurrence(due_ms=due_ms, outcome="started", run=str(run), at_ms=now_ms)
        return run, start, (), started

    def _spent(self, record: Schedule) -> Spent | None:
        """Until when every account that the run may draw on is known to be out; the soonest."""
        found: list[Spent] = []
        for each in record.draws_on:
            if each.credential is None:
                return None
            spent = self._usage.spent(each.credential, each.model)
            if spent is None:
                return None
            found.append(spent)
        return min(found, key=lambda spent: spent.until_ms, default=None)

    def _tell_of(self, name: str, found: list[Occurrence], run: RunId | None) -> None:
        for each in found:
            self.emit(
                events.ScheduleOccurred,
                schedule=name,
                due_ms=each.due_ms,
                outcome=each.outcome,
                run=each.run,
            )
        if run is None:
            return
        self.emit(events.RunChanged, run=str(run), state="running")
        self._news.stir()
        try:
            self._runs.tell(Begin(run))
        except AbeyanceError:
            # Its row says that it is live; whoever looks next takes it up.
            self._runs._cell.kept.coming.discard(run)

    async def _ask(self, request: Request) -> bool:
        """Have a request committed; False where a guard refused it."""
        # Once it was asked, its answer decides what is true.
        with trio.CancelScope(shield=True):
            outcome = await self._journal.ask(request)
        return isinstance(outcome, Committed)
