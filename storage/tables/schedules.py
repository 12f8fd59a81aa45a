"""Schedules: what starts runs, when next, and what became of each occurrence."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from ..store import Record
from .fields import Instant, Name, Seq
from .runs import RUN_KEY_BYTES_MAX, Packed, Text

EVERY_MS_MIN: Final = 1_000
EVERY_MS_MAX: Final = 366 * 86_400_000
CRON_CHARS_MAX: Final = 200
ACCOUNTS_MAX: Final = 16
KEPT_MAX: Final = 1_000
"""So many occurrences of a schedule are kept; the next one takes the oldest one's place."""

ScheduleState = Literal["active", "paused", "removed"]
Outcome = Literal["started", "skipped", "missed"]


class DrawsOn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An account and a model of it that a schedule's runs call."""

    credential: Name | None
    """The account's fingerprint; None: it cannot be told, so nothing is known of it."""
    model: Name


class Schedule(Record, frozen=True, kw_only=True):
    """One schedule. The row stays when it is removed, so that its counter never comes round."""

    KIND = "schedule"
    workflow: Name
    run_key: Annotated[str, Meta(min_length=1, max_length=RUN_KEY_BYTES_MAX)]
    params: Packed
    every_ms: Annotated[int, Meta(ge=EVERY_MS_MIN, le=EVERY_MS_MAX)] | None = None
    anchor_ms: Instant
    """What intervals are counted from."""
    cron: Annotated[str, Meta(min_length=1, max_length=CRON_CHARS_MAX)] | None = None
    zone: Name | None = None
    late_ms: Seq | None = None
    """How late an occurrence may start; None: however late."""
    draws_on: Annotated[tuple[DrawsOn, ...], Meta(max_length=ACCOUNTS_MAX)] = ()
    state: ScheduleState = "active"
    next_ms: Instant | None = None
    """When it is due next; None: not while it is paused or removed, or never again."""
    number: Seq = 0
    """How many occurrences were recorded."""
    last_ms: Instant | None = None
    """The wall clock when the newest of them was."""
    by: Annotated[str, Meta(max_length=300)]
    added_ms: Instant
    changed_ms: Instant


class ScheduleIndexed(Record, frozen=True, kw_only=True):
    """Where a schedule is found, by the instant it is due. The key says it all."""

    KIND = "schedule_indexed"


class Occurrence(Record, frozen=True, kw_only=True):
    """What became of an occurrence, or of several in a row that were missed. History."""

    KIND = "occurrence"
    due_ms: Instant
    until_ms: Instant | None = None
    """Of `missed`: all from `due_ms` up to here, which is not among them. Of `skipped` for
    capacity: until when there is none."""
    outcome: Outcome
    cause: Literal["run_open", "capacity", "late"] | None = None
    run: Annotated[str, Meta(max_length=200)] | None = None
    """The run that was started, or that kept it from starting."""
    reason: Text = ""
    at_ms: Instant
