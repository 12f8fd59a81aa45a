"""What an operator decides of a schedule, on its row: for a host and a stopped store alike. Pure.

Invariants:
    I1  Pressed twice, an act changes something once: the second finds the schedule as it left it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from msgspec.structs import replace

from abeyance.storage.tables.schedules import Schedule
from abeyance.storage.tables.waits import LogLine

from .run_rows import bounded
from .schedule_errors import UnknownScheduleError
from .timetable import timetable_of

ScheduleVerb: TypeAlias = Literal["pause", "resume", "remove"]


def paused(name: str, record: Schedule | None, now_ms: int) -> Schedule | None:
    """The record of a schedule that starts nothing until it is resumed; None where it is paused.

    Raises:
        UnknownScheduleError: There is none of that name; nothing was done.
    """
    found = _found(name, record)
    if found.state == "paused":
        return None
    return replace(found, state="paused", next_ms=None, changed_ms=now_ms)


def resumed(name: str, record: Schedule | None, now_ms: int) -> Schedule | None:
    """The record of a schedule that is due again, by its timetable from now on; None where it is.

    Raises:
        UnknownScheduleError: There is none of that name; nothing was done.
    """
    found = _found(name, record)
    if found.state == "active":
        return None
    next_ms = timetable_of(found).after(now_ms)
    return replace(found, state="active", next_ms=next_ms, changed_ms=now_ms)


def removed(name: str, record: Schedule | None, now_ms: int) -> Schedule | None:
    """The record of a schedule that has ended; None where it has.

    Raises:
        UnknownScheduleError: There was never one of that name; nothing was done.
    """
    if record is None:
        raise unknown_schedule(name)
    if record.state == "removed":
        return None
    return replace(record, state="removed", next_ms=None, changed_ms=now_ms)


ACTS: Final[dict[ScheduleVerb, Callable[[str, Schedule | None, int], Schedule | None]]] = {
    "pause": paused,
    "resume": resumed,
    "remove": removed,
}


def line_of(name: str, before: Schedule | None, after: Schedule, by: str) -> LogLine:
    """What the log says of a change."""
    was = "new" if before is None else before.state
    return LogLine(
        event="schedule",
        text=bounded(f"{name}: {was} to {after.state} by {by}"),
        at_ms=after.changed_ms,
    )


def unknown_schedule(name: str) -> UnknownScheduleError:
    return UnknownScheduleError(
        f"there is no schedule {name!r}; nothing was done; list those there are", schedule=name
    )


def _found(name: str, record: Schedule | None) -> Schedule:
    if record is None or record.state == "removed":
        raise unknown_schedule(name)
    return record
