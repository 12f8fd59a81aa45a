"""Schedules in a store that no host serves: read from their rows, and decided on by an operator.

A schedule is its row, whoever runs: what is decided here is what a host would have recorded, by the
same rules, and each host that starts later, or lives and serves no socket, goes by it.

Invariants:
    I1  The commit guards the row it was decided by, so that a process which decides an occurrence
        meanwhile makes it decide again.
    I2  Pressed twice, an act changes something once.

Blocking; the thread that made it.
"""

from __future__ import annotations

from typing import Any, Final

from abeyance.actors.domain.run_rows import check_key
from abeyance.actors.domain.schedule_acts import ACTS, ScheduleVerb, line_of
from abeyance.actors.domain.schedule_rows import change
from abeyance.actors.scheduling import ScheduleReading
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Committed, NotStored

from .connection import this_requester
from .errors import ControlError
from .schedule_reports import ScheduleActReport, SchedulesReport, report_schedules

ATTEMPTS_MAX: Final = 10


class ScheduleContestedError(ControlError):
    """A schedule kept changing while an act on it was recorded. Nothing was done."""

    code = "schedule_contested"


class StoppedSchedules:
    """The part of a stopped store that is about schedules."""

    _store: LmdbStore
    _clock: Any

    def schedules(
        self, schedule: str | None = None, *, before: int | None = None, limit: int = 100
    ) -> SchedulesReport:
        """The schedules of the store, or one with its occurrences.

        Raises:
            InvalidScheduleError, InvalidRunError, InvalidNameError: Names the field.
            UnknownScheduleError: There is none of that name.
        """
        reading = ScheduleReading(self._store)
        if schedule is None:
            return report_schedules(reading.listing(), None, None)
        status = reading.status(check_key(schedule, "name"))
        return report_schedules([status], reading.occurrences(schedule, before, limit), None)

    def act_on_schedule(self, schedule: str, act: ScheduleVerb) -> ScheduleActReport:
        """Pause a schedule, have it due again, or end it. As `Runtime.pause_schedule`.

        Durable: on return.

        Raises:
            InvalidRunError, InvalidNameError: Names the field; nothing was done.
            UnknownScheduleError: There is none of that name; nothing was done.
            UnreadableRecordError: It cannot be read; nothing was done.
            ScheduleContestedError, StorageError: It was not recorded.
        """
        check_key(schedule, "name")
        by = this_requester()
        for _ in range(ATTEMPTS_MAX):
            row = self._store.get("schedules", (schedule,))
            before = None if row is None else row.record
            new = ACTS[act](schedule, before, self._clock.now_ms())
            if new is None:
                assert before is not None
                return ScheduleActReport(name=schedule, state=before.state, changed=False)
            line = line_of(schedule, before, new, by)
            (outcome,) = self._store.commit(change(schedule, row, new, line=line))
            if isinstance(outcome, Committed):
                return ScheduleActReport(name=schedule, state=new.state, changed=True)
            if isinstance(outcome, NotStored):
                raise outcome.error
        raise ScheduleContestedError(
            f"schedule {schedule!r} changed {ATTEMPTS_MAX} times while this was recorded; nothing "
            "was done; see how it stands, then try again"
        )
