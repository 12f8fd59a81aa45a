"""Instants as a person reads them, also those that `datetime` cannot hold."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abeyance.actors.ops.instants import duration_text, ends_text, local_text
from abeyance.storage.tables.fields import INSTANT_MS_MAX


@pytest.mark.behaviour("W-010")
@pytest.mark.parametrize(
    ("instant_ms", "text"),
    [
        (0, "1970-01-01 00:00:00"),
        (1_791_374_400_000, "2026-10-07 12:00:00"),
        (1_791_374_400_001, "2026-10-07 12:00:01"),
        (253_402_300_799_000, "9999-12-31 23:59:59"),
        (253_402_300_800_000, "10000-01-01 00:00:00"),
        (1_000_000_000_000_000, "33658-09-27 01:46:40"),
        (INSTANT_MS_MAX, "275760-09-13 00:00:00"),
    ],
)
def test_instant_is_rendered_whatever_its_year(instant_ms: int, text: str) -> None:
    assert local_text(instant_ms, UTC) == f"{text} UTC"


@given(st.integers(0, INSTANT_MS_MAX))
def test_every_instant_is_rendered_in_every_zone(instant_ms: int) -> None:
    for zone in (None, ZoneInfo("Pacific/Kiritimati"), timezone(timedelta(hours=-12))):
        assert local_text(instant_ms, zone)


@pytest.mark.parametrize(
    ("zone", "text"),
    [
        ("Europe/Berlin", "2026-10-07 14:00:00 +02:00"),
        ("Asia/Kolkata", "2026-10-07 17:30:00 +05:30"),
        ("America/Sao_Paulo", "2026-10-07 09:00:00 -03:00"),
        ("Europe/London", "2026-10-07 13:00:00 +01:00"),
        ("Atlantic/Reykjavik", "2026-10-07 12:00:00 UTC"),
    ],
)
def test_instant_says_by_what_clock_it_is_told(zone: str, text: str) -> None:
    assert local_text(1_791_374_400_000, ZoneInfo(zone)) == text
    assert ends_text(1_791_374_400_000, ZoneInfo(zone)) == text


@given(st.integers(0, 253_402_300_799))
def test_instant_within_datetimes_reach_is_rendered_as_datetime_does(second: int) -> None:
    expected = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    assert local_text(second * 1_000, UTC) == expected


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (-5, "0s"),
        (0, "0s"),
        (1, "1s"),
        (59_000, "59s"),
        (61_000, "1m 1s"),
        (3_600_000, "1h"),
        (7_199_000, "1h 59m"),
        (7_200_000, "2h"),
        (273_600_005, "3d 4h"),
        (INSTANT_MS_MAX, "273,785y 28d"),
    ],
)
def test_duration_shows_its_two_largest_units(duration_ms: int, text: str) -> None:
    assert duration_text(duration_ms) == text


def test_wait_without_an_end_says_so() -> None:
    assert ends_text(None) == "until released"
