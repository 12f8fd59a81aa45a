"""When a schedule is due: intervals, and cron expressions in zones whose clocks are changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abeyance.actors.domain.schedule_errors import InvalidScheduleError
from abeyance.actors.domain.timetable import Timetable, check_timetable

NOW = 1_791_374_400_000
VIENNA = "Europe/Vienna"
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def at(text: str, zone: str = "UTC", fold: int = 0) -> int:
    local = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return round(local.timestamp() * 1_000)


def due(cron: str, zone: str, after: int, count: int) -> list[str]:
    """The next occurrences, as they stand in UTC."""
    table, found = Timetable(None, 0, cron, zone), list[str]()
    for _ in range(count):
        next_ms = table.after(after)
        assert next_ms is not None
        assert next_ms > after
        found.append(datetime.fromtimestamp(next_ms / 1_000, UTC).strftime("%m-%d %H:%M"))
        after = next_ms
    return found


def test_interval_is_due_on_a_grid_from_when_it_was_added() -> None:
    table = check_timetable(90, None, None, NOW)
    assert table.after(NOW) == NOW + 90_000
    assert table.after(NOW + 90_000) == NOW + 180_000
    assert table.after(NOW + 179_999) == NOW + 180_000
    assert table.after(NOW - DAY) == NOW + 90_000, "nothing is due before it was added"


@pytest.mark.parametrize(
    ("cron", "zone", "after", "expected"),
    [
        pytest.param(
            "30 2 * * *",
            VIENNA,
            at("2026-03-28 12:00"),
            ["03-29 01:00", "03-30 00:30", "03-31 00:30"],
            id="half past two does not exist on the day the clock goes forward",
        ),
        pytest.param(
            "0,30 2 * * *",
            VIENNA,
            at("2026-03-28 12:00"),
            ["03-29 01:00", "03-30 00:00", "03-30 00:30"],
            id="two that are left out are due at the same instant once",
        ),
        pytest.param(
            "30 2 * * *",
            VIENNA,
            at("2026-10-24 12:00"),
            ["10-25 00:30", "10-26 01:30"],
            id="half past two comes twice on the day the clock goes back",
        ),
        pytest.param(
            "30 2 * * *",
            VIENNA,
            at("2026-10-25 02:10", VIENNA, fold=1),
            ["10-26 01:30"],
            id="asked for between the first and the second half past two",
        ),
        pytest.param(
            "0-59 2 * * *",
            VIENNA,
            at("2026-10-25 02:10", VIENNA, fold=1),
            ["10-26 01:00"],
            id="asked for in the second of two hours that are full of it",
        ),
        pytest.param(
            "30 * * * *",
            VIENNA,
            at("2026-10-24 23:40"),
            ["10-25 00:30", "10-25 01:30", "10-25 02:30"],
            id="each hour is each hour, also when it comes twice",
        ),
        pytest.param(
            "30 * * * *",
            VIENNA,
            at("2026-03-28 23:40"),
            ["03-29 00:30", "03-29 01:30"],
            id="and none is left out",
        ),
        pytest.param(
            "0 9 * * MON-FRI",
            "America/New_York",
            at("2026-03-06 15:00"),
            ["03-09 13:00", "03-10 13:00"],
            id="nine is nine on either side of the change",
        ),
        pytest.param("0 0 31 * *", "UTC", at("2026-02-01"), ["03-31 00:00"], id="month's end"),
        pytest.param(
            "0 0 * * *",
            "Africa/Cairo",
            at("2026-04-23 12:00"),
            ["04-23 22:00", "04-24 21:00"],
            id="midnight is left out",
        ),
    ],
)
def test_cron_expression_is_due_by_the_clock_of_its_zone(
    cron: str, zone: str, after: int, expected: list[str]
) -> None:
    assert due(cron, zone, after, len(expected)) == expected


CRONS = ["* * * * *", "*/7 * * * *", "30 2 * * *", "0 */6 * * *", "0 9 1 * *", "15 3 29 2 *"]


@given(
    cron=st.sampled_from(CRONS),
    zone=st.sampled_from(["UTC", VIENNA, "America/New_York", "Australia/Lord_Howe"]),
    now=st.integers(NOW, NOW + 400 * DAY),
    missed=st.integers(0, 3 * DAY),
)
@settings(deadline=None, max_examples=60)
def test_last_occurrence_is_the_one_that_following_each_leads_to(
    cron: str, zone: str, now: int, missed: int
) -> None:
    table = Timetable(None, 0, cron, zone)
    first = table.after(now - missed)
    assert first is not None
    if first > now:
        return
    followed = first
    while (following := table.after(followed)) is not None and following <= now:
        followed = following
    assert table.last(first, now) == followed


@given(every=st.integers(1_000, 10 * DAY), missed=st.integers(0, 100 * DAY))
def test_last_occurrence_of_an_interval_is_the_latest_of_its_grid(every: int, missed: int) -> None:
    table = Timetable(every, NOW, None, None)
    first = NOW + every
    last = table.last(first, first + missed)
    assert last <= first + missed < last + every
    assert (last - NOW) % every == 0


def test_years_of_missed_minutes_are_passed_over_at_once() -> None:
    table, due_ms = Timetable(None, 0, "* * * * *", VIENNA), at("2006-01-01")
    assert table.last(due_ms, NOW + 30_000) == NOW


@pytest.mark.parametrize(
    ("field", "every", "cron", "zone"),
    [
        ("every", None, None, None),
        ("every", 60, "* * * * *", None),
        ("every", 0.5, None, None),
        ("every", 366 * 86_400 + 1, None, None),
        ("every", float("nan"), None, None),
        ("every", float("inf"), None, None),
        pytest.param("every", 10**400, None, None, id="every-huge"),
        ("every", True, None, None),
        ("every", "60", None, None),
        ("every", timedelta(hours=1), None, None),
        ("zone", 60, None, "UTC"),
        ("cron", None, "", None),
        ("cron", None, 5, None),
        ("cron", None, "* * * *", None),
        ("cron", None, "* * * * * *", None),
        ("cron", None, "@daily", None),
        ("cron", None, "61 * * * *", None),
        ("cron", None, "* * * * 5L/2", None),
        ("cron", None, "* * * * ²L", None),
        ("cron", None, "1" * 201, None),
        ("cron", None, "0 0 30 2 *", None),
        ("cron", None, "* * */20 * 1L", None),
        ("zone", None, "* * * * *", ""),
        ("zone", None, "* * * * *", "Europe"),
        ("zone", None, "* * * * *", "Mars/Olympus"),
        ("zone", None, "* * * * *", "../../etc/passwd"),
        ("zone", None, "* * * * *", "/etc/localtime"),
        ("zone", None, "* * * * *", "\0"),
        ("zone", None, "* * * * *", "x" * 65),
        ("zone", None, "* * * * *", 1),
    ],
)
def test_malformed_timetable_is_refused_by_its_field(
    field: str, every: Any, cron: Any, zone: Any
) -> None:
    with pytest.raises(InvalidScheduleError) as caught:
        check_timetable(every, cron, zone, NOW)
    assert caught.value.field == field
