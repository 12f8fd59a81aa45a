"""Hours, days and months of a named zone, as instants. Pure.

Invariants:
    I1  A period is what the zone's clock says on the days it is changed, too: a day may have 23
        hours or 25, and the hour that comes twice is two hours.

Runs in: any thread.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Final, Literal, NamedTuple, TypeAlias
from zoneinfo import ZoneInfo

ZONE_CHARS_MAX: Final = 64
LAST_MS: Final = 250_000_000_000_000
"""An instant in the year 9892; dates end soon after."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR: Final = timedelta(hours=1)

Per: TypeAlias = Literal["hour", "day", "month", "life"]


class Period(NamedTuple):
    """From an instant on, and until before another; None: it has no end."""

    start_ms: int
    end_ms: int | None

    def has(self, instant_ms: int) -> bool:
        return self.start_ms <= instant_ms and (self.end_ms is None or instant_ms < self.end_ms)


def period_of(per: Per, zone: ZoneInfo, instant_ms: int) -> Period:
    """The period of a kind that an instant is in."""
    if per == "life" or instant_ms > LAST_MS:
        return Period(0, None)
    at = (EPOCH + timedelta(milliseconds=instant_ms)).astimezone(zone)
    if per == "hour":
        # By its offset, so that the hour that comes twice is told apart.
        since = timedelta(minutes=at.minute, seconds=at.second, microseconds=at.microsecond)
        start = at.astimezone(UTC) - since
        return Period(_ms(start), _ms(start + _HOUR))
    if per == "day":
        first, then = at.date(), at.date() + timedelta(days=1)
    else:
        first = at.date().replace(day=1)
        then = (first + timedelta(days=31)).replace(day=1)
    return Period(_midnight(first, zone), _midnight(then, zone))


def day_of(zone: ZoneInfo, instant_ms: int) -> str:
    """The day that an instant is of: `2026-12-01`. One past every calendar is of its last."""
    at = EPOCH + timedelta(milliseconds=min(instant_ms, LAST_MS))
    return at.astimezone(zone).date().isoformat()


def zone_problem(zone: object) -> str | None:
    """Why this is no name of a zone; None where it is one."""
    if not isinstance(zone, str) or not 1 <= len(zone) <= ZONE_CHARS_MAX:
        return f"must be text of 1 to {ZONE_CHARS_MAX} characters"
    try:
        ZoneInfo(zone)
    except Exception:  # noqa: BLE001 - a folder of the database, a path: each raises its own.
        return "is no name of the time zone database, such as Europe/Vienna"
    return None


def _midnight(day: date, zone: ZoneInfo) -> int:
    return _ms(datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC))


def _ms(at: datetime) -> int:
    return (at - EPOCH) // timedelta(milliseconds=1)
