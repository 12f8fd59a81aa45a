"""Adding, ending and looking at schedules: the runtime's part of them.

Each verb is a decision on the schedule's row, by compare-and-set; the actor is told afterwards.

Runs in: the caller's task, on the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import trio
from msgspec.structs import replace

from abeyance.storage.store import Committed, Row, Store
from abeyance.storage.tables.schedules import KEPT_MAX, DrawsOn, Occurrence, Schedule

from .core import TrioActorRef
from .core.clock import Clock
from .core.errors import AbeyanceError
from .domain.run_rows import pack_plain, unpacked
from .domain.schedule_acts import ACTS, ScheduleVerb, line_of, unknown_schedule
from .domain.schedule_errors import InvalidScheduleError
from .domain.schedule_rows import change, known, read_schedule
from .domain.schedules import LookAtSchedules, Schedules, StopSchedules
from .domain.timetable import Timetable, timetable_of

PAGE_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOccurrence:
    """What became of an occurrence of a schedule. Instants are epoch milliseconds.

    `started` names its run. `skipped` says what kept it (`cause`): `run_open`, the run in `run` may
    still go on; or `capacity`, the account is out until `until_ms`. `missed` stands for all that
    were due from `due_ms` on and before `until_ms`, which nobody could start in time.
    """

    number: int
    due_ms: int
    until_ms: int | None
    outcome: Literal["started", "skipped", "missed"]
    cause: Literal["run_open", "capacity", "late"] | None
    run: str | None
    reason: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleStatus:
    """A schedule as its row says. Instants are epoch milliseconds.

    `next_ms` is None while it is paused, and where it is never due again. `occurrences` is how many
    were recorded, `last` the newest of them.
    """

    name: str
    workflow: str
    key: str
    params: Any
    every_s: float | None
    cron: str | None
    zone: str | None
    late_s: float | None
    state: Literal["active", "paused"]
    next_ms: int | None
    occurrences: int
    last: ScheduleOccurrence | None
    by: str
    added_ms: int
    changed_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleReceipt:
    """What a verb came to: the schedule's state, and whether this call changed it."""

    name: str
    state: Literal["active", "paused", "removed"]
    changed: bool


class ScheduleReading:
    """Schedules as their rows say, in a store that a host or nobody has open."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def status(self, name: str) -> ScheduleStatus:
        row = read_schedule(self._store, name)
        if row is None:
            raise unknown_schedule(name)
        return self._status(name, row.record)

    def listing(self) -> tuple[ScheduleStatus, ...]:
        return tuple(
            self._status(name, row.record)
            for name, row in known(self._store)
            if isinstance(row, Row) and row.record.state != "removed"
        )

    def occurrences(
        self, name: str, before: int | None, limit: int
    ) -> tuple[ScheduleOccurrence, ...]:
        for field, value, most in (("before", before, 2**63), ("limit", limit, PAGE_MAX)):
            whole = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
            if not whole and (field, value) != ("before", None):
                raise InvalidScheduleError(field, f"must be a whole number from 1 to {most:,}")
        row = self._store.get("schedules", (name,))
        if row is None:
            raise unknown_schedule(name)
        newest = row.record.number if before is None else min(row.record.number, before - 1)
        found: list[ScheduleOccurrence] = []
        for number in range(newest, max(0, row.record.number - KEPT_MAX), -1):
            if len(found) == limit:
                break
            if (each := self._occurrence(name, number)) is not None:
                found.append(each)
        return tuple(found)

    def _occurrence(self, name: str, number: int) -> ScheduleOccurrence | None:
        """One occurrence; None where its row is gone or cannot be read: it is history."""
        found = list(self._store.scan("occurrences", (name, number), limit=1))
        if not found or not isinstance(found[0][1], Row):
            return None
        each: Occurrence = found[0][1].record
        return ScheduleOccurrence(
            number=number,
            due_ms=each.due_ms,
            until_ms=each.until_ms,
            outcome=each.outcome,
            cause=each.cause,
            run=each.run,
            reason=each.reason,
            at_ms=each.at_ms,
        )

    def _status(self, name: str, record: Schedule) -> ScheduleStatus:
        assert record.state != "removed"
        return ScheduleStatus(
            name=name,
            workflow=record.workflow,
            key=record.run_key,
            params=unpacked(record.params),
            every_s=None if record.every_ms is None else record.every_ms / 1_000,
            cron=record.cron,
            zone=record.zone,
            late_s=None if record.late_ms is None else record.late_ms / 1_000,
            state=record.state,
            next_ms=record.next_ms,
            occurrences=record.number,
            last=self._occurrence(name, record.number),
            by=record.by,
            added_ms=record.added_ms,
            changed_ms=record.changed_ms,
        )


class Plan(NamedTuple):
    """What a schedule is to be, checked."""

    name: str
    workflow: str
    run_key: str
    params: Any
    timetable: Timetable
    late_ms: int | None
    draws_on: tuple[DrawsOn, ...]


class Scheduling(ScheduleReading):
    """The schedules of one runtime."""

    def __init__(
        self,
        store: Store,
        journal: TrioActorRef[Any],
        schedules: TrioActorRef[Schedules],
        clock: Clock,
    ) -> None:
        super().__init__(store)
        self._journal = journal
        self._schedules = schedules
        self._clock = clock

    def look(self) -> None:
        """Have what is due decided."""
        self._tell(LookAtSchedules())

    def stop(self) -> None:
        """Start nothing more."""
        self._tell(StopSchedules())

    def _tell(self, message: Any) -> None:
        # Nobody left to be told: the rows say what is due, and the next life reads them.
        with suppress(AbeyanceError):
            self._schedules.tell(message)

    async def add(self, plan: Plan, by: str) -> ScheduleReceipt:
        packed = pack_plain(plan.params, "params")

        def decide(before: Schedule | None) -> Schedule | None:
            now_ms = self._clock.now_ms()
            table = plan.timetable
            record = Schedule(
                workflow=plan.workflow,
                run_key=plan.run_key,
                params=packed,
                every_ms=table.every_ms,
                anchor_ms=now_ms,
                cron=table.cron,
                zone=table.zone,
                late_ms=plan.late_ms,
                draws_on=plan.draws_on,
                next_ms=table._replace(anchor_ms=now_ms).after(now_ms),
                by=by,
                added_ms=now_ms,
                changed_ms=now_ms,
            )
            if before is None:
                return record
            record = replace(record, number=before.number)
            if before.state == "removed":
                return record
            # What happened to it stays: when it is due next, that it was paused.
            record = replace(record, state=before.state, by=before.by, added_ms=before.added_ms)
            record = replace(record, last_ms=before.last_ms)
            old = timetable_of(before)
            if old._replace(anchor_ms=0) == table._replace(anchor_ms=0):
                record = replace(record, anchor_ms=before.anchor_ms, next_ms=before.next_ms)
            if record.state == "paused":
                record = replace(record, next_ms=None)
            same = replace(record, changed_ms=before.changed_ms) == before
            return None if same else replace(record, by=by)

        return await self._change(plan.name, decide, by)

    async def act(self, verb: ScheduleVerb, name: str, by: str) -> ScheduleReceipt:
        """Pause, resume or remove a schedule."""
        act = ACTS[verb]
        return await self._change(name, lambda row: act(name, row, self._clock.now_ms()), by)

    async def _change(
        self, name: str, decide: Callable[[Schedule | None], Schedule | None], by: str
    ) -> ScheduleReceipt:
        """Change a schedule's row, again for as long as others change it too."""
        while True:
            row = self._store.get("schedules", (name,))
            new = decide(None if row is None else row.record)
            if new is None:
                assert row is not None
                await trio.lowlevel.checkpoint()
                return ScheduleReceipt(name=name, state=row.record.state, changed=False)
            line = line_of(name, None if row is None else row.record, new, by)
            # Once it was asked, its answer decides what is true.
            with trio.CancelScope(shield=True):
                outcome = await self._journal.ask(change(name, row, new, line=line))
            if isinstance(outcome, Committed):
                self.look()
                return ScheduleReceipt(name=name, state=new.state, changed=True)
