"""When a schedule is due: every so often, or by a cron expression in a named zone. Pure.

Invariants:
    I1  An occurrence is an instant. What a zone's clock does on the days it is changed decides
        which: an hour that is left out delays what is due in it to its end, an hour that comes
        twice has what is due at a stated time once.
    I2  `after` is strictly behind the instant it is asked for, whatever the parser answers.

Any thread. The one door of the cron parser.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim

from abeyance.storage.tables.schedules import CRON_CHARS_MAX, EVERY_MS_MAX, EVERY_MS_MIN, Schedule

from .periods import zone_problem
from .schedule_errors import InvalidScheduleError

_FIELDS: Final = 5
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS: Final = 250_000_000_000_000
"""An instant in the year 9892; dates end soon after, and nothing is due behind it."""
_HOUR_MS: Final = 3_600_000
_ANSWERS_MAX: Final = 100
"""The parser answers an instant of the hour that comes twice again for each minute of it."""


class Timetable(NamedTuple):
    """When a schedule is due."""

    every_ms: int | None
    anchor_ms: int
    cron: str | None
    zone: str | None

    def after(self, at_ms: int) -> int | None:
        """The first occurrence behind an instant; None where there is none within 50 years."""
        if self.every_ms is not None:
            passed = (at_ms - self.anchor_ms) // self.every_ms
            return self.anchor_ms + max(1, passed + 1) * self.every_ms
        return next(self._behind(at_ms), None)

    def _behind(self, at_ms: int) -> Iterator[int]:
        """The occurrences of the expression behind an instant, in order."""
        assert self.cron is not None
        if not 0 <= at_ms < _LAST_MS:
            return
        zone = ZoneInfo(self.zone or "UTC")
        began = _EPOCH + timedelta(milliseconds=at_ms)
        # Of UTC the parser wants its own: another zone of that name has no daylight saving either.
        answers = CronSim(self.cron, began.astimezone(UTC if zone.key == "UTC" else zone))
        last_ms, stale = at_ms, 0
        while stale < _ANSWERS_MAX:
            try:
                found = next(answers)
            except (StopIteration, OverflowError):
                return
            found_ms = round((found - _EPOCH) / timedelta(milliseconds=1))
            if found_ms <= last_ms:
                stale += 1
                continue
            last_ms, stale = found_ms, 0
            yield found_ms

    def last(self, due_ms: int, now_ms: int) -> int:
        """The last occurrence up to `now_ms`, where one is due at `due_ms`, which is not behind it.

        Takes no longer for years that were missed than for days.
        """
        if self.every_ms is not None:
            return due_ms + (now_ms - due_ms) // self.every_ms * self.every_ms
        # From ever further back: what is due each minute is found in the last hour.
        back_ms = _HOUR_MS
        while now_ms - back_ms > due_ms:
            found = self._last_behind(now_ms - back_ms, now_ms)
            if found is not None:
                return max(found, due_ms)
            back_ms *= 4
        return self._last_behind(due_ms, now_ms) or due_ms

    def _last_behind(self, at_ms: int, now_ms: int) -> int | None:
        last = None
        for found_ms in self._behind(at_ms):
            if found_ms > now_ms:
                break
            last = found_ms
        return last


def timetable_of(record: Schedule) -> Timetable:
    """When a stored schedule is due."""
    return Timetable(record.every_ms, record.anchor_ms, record.cron, record.zone)


def check_timetable(every: object, cron: object, zone: object, now_ms: int) -> Timetable:
    """Return a timetable, or refuse the first field that is malformed.

    Args:
        every: Seconds, 1 to 31,622,400 (366 days), rounded to the millisecond; or None.
        cron: Five fields: minute, hour, day, month, weekday; or None.
        zone: A name of the IANA time zone database, with `cron`; None is UTC.
    Raises:
        InvalidScheduleError: Names the field.
    """
    if (every is None) == (cron is None):
        raise InvalidScheduleError("every", "or `cron`, one of them, must be given")
    if every is not None:
        if zone is not None:
            raise InvalidScheduleError("zone", "is for `cron`: an interval has none")
        return Timetable(check_seconds(every, "every"), now_ms, None, None)
    if not isinstance(cron, str) or not 1 <= len(cron) <= CRON_CHARS_MAX:
        raise InvalidScheduleError("cron", f"must be text of 1 to {CRON_CHARS_MAX} characters")
    if len(cron.split()) != _FIELDS:
        raise InvalidScheduleError(
            "cron", "must have five fields: minute, hour, day of the month, month, day of the week"
        )
    _check_zone(zone)
    table = Timetable(None, now_ms, " ".join(cron.split()), "UTC" if zone is None else str(zone))
    try:
        first = table.after(now_ms)
    except Exception as error:  # noqa: BLE001 - whatever the parser trips over is no expression.
        raise InvalidScheduleError("cron", f"is no cron expression ({error})") from None
    if first is None:
        raise InvalidScheduleError("cron", "is never due in the next 50 years")
    return table


def check_seconds(value: object, field: str, least_ms: int = EVERY_MS_MIN) -> int:
    """Return a duration in milliseconds.

    Raises:
        InvalidScheduleError: It is no number, or out of its bounds.
    """
    bounds = f"must be a number of seconds from {least_ms / 1_000:g} to {EVERY_MS_MAX // 1_000:,}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidScheduleError(field, bounds)
    if not least_ms <= value * 1_000 <= EVERY_MS_MAX:
        raise InvalidScheduleError(field, bounds)
    return round(value * 1_000)


def _check_zone(zone: object) -> None:
    if zone is None:
        return
    problem = zone_problem(zone)
    if problem is not None:
        raise InvalidScheduleError("zone", problem)
