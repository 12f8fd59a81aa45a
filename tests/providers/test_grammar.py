"""Numbers, durations and dates as providers write them."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abeyance.actors.providers.clocks import leading_moment, next_midnight, zone_named
from abeyance.actors.providers.durations import spelled_duration
from abeyance.actors.providers.grammar import (
    duration,
    http_date,
    instant,
    number,
    printable,
    rfc3339,
)

NOON = 1_791_374_400_000  # 2026-10-07T12:00:00Z


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("171", 171_000),
        ("007", 7_000),
        ("1.5", 1_500),
        ("0.0001", 1),
        ("1.0000000000000000000000001", 1_001),
        ("-1", 0),
        ("-0", 0),
        ("-1e999", 0),
        ("1e3", 1_000_000),
        ("1e999", math.inf),
        ("1e" + "9" * 5_000, math.inf),
        ("1e-" + "9" * 5_000, 1),
        ("0e" + "9" * 5_000, 0),
        ("9" * 5_000, math.inf),
        ("0" * 5_000 + "5", 5_000),
        ("0." + "0" * 5_000 + "1", 1),
        ("99999999999999999999", 99_999_999_999_999_999_999_000),
    ],
)
def test_a_plain_number_is_read_exactly_and_rounded_up(text: str, expected: float):
    assert duration(text, unit_ms=1_000) == expected


@pytest.mark.parametrize(
    "text",
    ["", " ", "nan", "inf", "-inf", "+5", "1_000", "１２", "٣", "0x10", "1,5", "1.", ".5", "5s",
     "30, 60", "1e", "e5", "--1", "1 2", "²"],
)  # fmt: skip
def test_what_is_no_plain_number_states_nothing(text: str):
    assert duration(text, unit_ms=1_000) is None


@given(st.integers(0, 10**12), st.integers(0, 999_999))
def test_a_decimal_is_never_read_as_less(whole: int, micros: int):
    read = duration(f"{whole}.{micros:06d}", unit_ms=1_000)
    assert read == whole * 1_000 + -(-micros // 1_000)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1s", 1_000),
        ("6m0s", 360_000),
        ("12ms", 12),
        ("2m59.56s", 179_560),
        ("1h2m3.5s", 3_723_500),
        ("539.477544ms", 540),
        ("34.074824224s", 34_075),
        ("100us", 1),
        ("100µs", 1),
        ("4 days 20 hours 9 minutes", 418_140_000),
        ("587 hours 33 minutes", 2_115_180_000),
        ("1 hour and 5 minutes", 3_900_000),
        ("2 minutes, 5 seconds", 125_000),
        ("1 minute(s) 10 second(s)", 70_000),
        ("2 hour(s), 30 minute(s)", 9_000_000),
        ("1 hr. 30 min.", 5_400_000),
        ("1 day, 2 hrs., 5 mins.", 93_900_000),
        ("1 hour    30 minutes", 5_400_000),
        ("1\u2009hour\u30001\u00a0minute", 3_660_000),
        ("1h:30m", 5_400_000),
        ("1 hour<br>30 minutes", 5_400_000),
        ("1天零2小时", 93_600_000),
        ("01:12:07", 4_327_000),
        ("1.02:30:15", 95_415_000),
        ("10.00:00:00.0000001", 864_000_001),
        ("9" * 5_000 + "s", math.inf),
    ],
)
def test_a_spelled_duration_is_the_sum_of_its_terms(text: str, expected: float):
    assert spelled_duration(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "s", "5", "5 parsecs", "1h soon", "soon 1h", "5mss", "1 month", "5ſ", "--5s", "- 5s"],
)  # fmt: skip
def test_what_is_no_spelled_duration_states_nothing(text: str):
    assert spelled_duration(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "Wed, 07 Oct 2026 14:00:00 GMT",
        "wed, 07 oct 2026 14:00:00 gmt",
        "Wed, 7 Oct 2026 14:00:00 UTC",
        "07 Oct 2026 14:00:00 GMT",
        "Wed, 07 Oct 2026 14:00:00 -0000",
        "Wed, 07 Oct 2026 16:00:00 +0200",
        "Wednesday, 07-Oct-26 14:00:00 GMT",
        "Wed Oct  7 14:00:00 2026",
        "Wed Oct 07 14:00:00 2026",
    ],
)
def test_every_form_of_an_http_date_is_read_as_utc(text: str):
    assert http_date(text, received_ms=NOON) == NOON + 7_200_000


@pytest.mark.parametrize(
    "text",
    [
        "Mon, 30 Feb 2026 14:00:00 GMT",
        "Wed, 07 Oct 2026 24:00:00 GMT",
        "Wed, 07 Oct 2026 14:60:00 GMT",
        "Wed, 07 Oct 2026 14:00:00",
        "Wed, 07 Oct 2026 14:00:00 CEST",
        "Wed, 07 Oct 2026 14:00:00 +9900",
        "Wed, 00 Oct 2026 14:00:00 GMT",
        "Wed, 07 Oct 0000 14:00:00 GMT",
        "2026-10-07T14:00:00Z",
        "Wed, ０７ Oct 2026 14:00:00 GMT",
        "soon",
        "",
    ],
)
def test_an_impossible_or_foreign_date_states_nothing(text: str):
    assert http_date(text, received_ms=NOON) is None


def test_a_leap_second_is_the_second_after():
    assert http_date("Thu, 31 Dec 2026 23:59:60 GMT", received_ms=NOON) == http_date(
        "Fri, 01 Jan 2027 00:00:00 GMT", received_ms=NOON
    )


@pytest.mark.parametrize(("two", "year"), [("26", 2026), ("75", 2075), ("77", 1977), ("99", 1999)])
def test_a_two_digit_year_is_the_one_within_fifty_years(two: str, year: int):
    read = http_date(f"Sunday, 06-Nov-{two} 08:49:37 GMT", received_ms=NOON)
    expected = max(0.0, datetime(year, 11, 6, 8, 49, 37, tzinfo=UTC).timestamp() * 1_000)
    assert read == expected


def test_a_two_digit_year_without_a_clock_states_nothing():
    assert http_date("Sunday, 06-Nov-94 08:49:37 GMT", received_ms=None) is None


INSTANTS = st.integers(0, 253_402_300_799).map(
    lambda seconds: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
)


@given(INSTANTS)
def test_any_date_that_the_standard_library_writes_is_read_back(moment: datetime):
    assert http_date(format_datetime(moment, usegmt=True), received_ms=NOON) == (
        moment - datetime(1970, 1, 1, tzinfo=UTC)
    ) // timedelta(milliseconds=1)


@given(
    INSTANTS.filter(lambda moment: 1971 < moment.year < 9998),
    st.integers(-1_439, 1_439),
    st.integers(0, 999_999),
)
def test_rfc_3339_is_read_in_any_zone_and_rounded_up(moment: datetime, zone: int, micros: int):
    local = moment.replace(microsecond=micros).astimezone(timezone(timedelta(minutes=zone)))
    whole = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert rfc3339(local.isoformat()) == whole + -(-micros // 1_000)


@pytest.mark.parametrize(
    "text",
    ["2026-10-07T12:02:51", "2026-10-07", "2026-W41-3T12:00:00Z", "20261007T120000Z",
     "2026-02-30T00:00:00Z", "2026-13-01T00:00:00Z", "1791374400", "", "２026-10-07T12:02:51Z"],
)  # fmt: skip
def test_an_rfc_3339_text_without_zone_or_sense_states_nothing(text: str):
    assert rfc3339(text) is None


@given(st.text(max_size=200))
def test_no_text_raises(text: str):
    for unit_ms in (1, 1_000):
        duration(text, unit_ms=unit_ms)
        number(text, unit_ms=unit_ms)
    spelled_duration(text)
    instant(text)
    zone_named(text)
    leading_moment(text, 0, received_ms=NOON, zone=UTC)
    http_date(text, received_ms=NOON)
    rfc3339(text)


@pytest.mark.behaviour("W-127")
@given(st.text(st.characters(), max_size=400))
def test_printable_text_is_bounded_one_line_and_encodes(text: str):
    cleaned = printable(text, chars_max=300)
    assert len(cleaned) <= 300
    assert len(cleaned.splitlines()) <= 1
    assert cleaned.isprintable()
    cleaned.encode()


@pytest.mark.behaviour("W-116")
@pytest.mark.parametrize(
    "char", ["\n", "\r", "\x00", "\x7f", "\x85", "\x9b", "\u2028", "\u2029", "\u202e", "\ud800"]
)
def test_control_characters_become_blanks(char: str):
    assert printable(f"a{char}[ops] released", chars_max=300) == "a [ops] released"


@pytest.mark.parametrize("value", [True, False, None, "", "x", [], {}, "1_0", "nan"], ids=repr)
def test_what_is_no_number_in_json_states_nothing(value: object):
    assert number(value, unit_ms=1_000) is None


@given(
    st.one_of(st.integers(), st.floats(), st.text(), st.none(), st.booleans()),
    st.sampled_from([1, 1_000]),
)
def test_any_value_is_read_as_a_whole_number_an_infinity_or_nothing(value: object, unit_ms: int):
    for read in (number(value, unit_ms=unit_ms), instant(value, unit_ms=unit_ms)):
        assert read is None or read == math.inf or (isinstance(read, int) and read >= 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("PT1M30S", 90_000), ("P1DT2H", 93_600_000), ("PT0.5S", 500), ("pt20s", 20_000),
     ("P1W", 604_800_000),
     ("P", None), ("PT", None), ("P1M", None), ("P1Y", None), ("PT1", None), ("20分钟", 1_200_000),
     ("3 hours, 20 minutes and 5 seconds", 12_005_000)],
)  # fmt: skip
def test_iso_and_worded_durations_are_read(text: str, expected: int | None):
    assert spelled_duration(text) == expected


@pytest.mark.parametrize(
    ("zone", "ends"),
    [("UTC", NOON + 43_200_000), ("America/Los_Angeles", NOON + 68_400_000), ("no/where", None)],
)
def test_the_next_midnight_is_the_zone_s_own(zone: str, ends: int | None):
    assert next_midnight(NOON, zone) == ends
    assert next_midnight(None, zone) is None
    assert next_midnight(8_640_000_000_000_000, zone) is None


@pytest.mark.parametrize(
    "name", ["PST", "CST", "", "America", "../etc/passwd", "/etc/localtime", "UTC+99", "a/b/c/d"]
)
def test_a_name_that_is_no_zone_is_none(name: str):
    assert zone_named(name) is None
