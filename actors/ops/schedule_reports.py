"""What the answers about schedules carry: plain data. Instants are epoch milliseconds.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec


class OccurrenceReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an occurrence. Mirrors `scheduling.ScheduleOccurrence`."""

    number: int
    due_ms: int
    until_ms: int | None
    outcome: str
    cause: str | None
    run: str | None
    reason: str
    at_ms: int


class ScheduleReport(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule. Mirrors `scheduling.ScheduleStatus` but for its parameters."""

    name: str
    workflow: str
    key: str
    every_s: float | None
    cron: str | None
    zone: str | None
    late_s: float | None
    state: str
    next_ms: int | None
    occurrences: int
    last: OccurrenceReport | None
    by: str
    added_ms: int
    changed_ms: int


class SchedulesReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `schedules`: all of them, or one with its occurrences."""

    schedules: tuple[ScheduleReport, ...]
    occurrences: tuple[OccurrenceReport, ...] | None = None
    """Of the one that was asked for, the newest first; None where all were."""
    pid: int | None = None
    """Of the host that answered; None for what a stopped store holds."""


class ScheduleActReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an act on a schedule came to. Mirrors `scheduling.ScheduleReceipt`."""

    name: str
    state: str
    changed: bool
    """Whether this act changed it; pressed twice, the second did not."""
    pid: int | None = None
    """Of the host that did it; None where it was done on a stopped store."""


def report_schedule_act(receipt: Any, pid: int | None) -> ScheduleActReport:
    """Copy a receipt into the shape that travels."""
    return ScheduleActReport(
        name=receipt.name, state=receipt.state, changed=receipt.changed, pid=pid
    )


def report_schedules(
    statuses: Iterable[Any], occurrences: Iterable[Any] | None, pid: int | None
) -> SchedulesReport:
    """Copy schedules into the shape that travels."""
    return SchedulesReport(
        schedules=tuple(map(_report, statuses)),
        occurrences=None if occurrences is None else tuple(map(_occurrence, occurrences)),
        pid=pid,
    )


def _report(status: Any) -> ScheduleReport:
    names = (name for name in ScheduleReport.__struct_fields__ if name != "last")
    last = None if status.last is None else _occurrence(status.last)
    return ScheduleReport(**{name: getattr(status, name) for name in names}, last=last)


def _occurrence(each: Any) -> OccurrenceReport:
    return OccurrenceReport(
        **{name: getattr(each, name) for name in OccurrenceReport.__struct_fields__}
    )
