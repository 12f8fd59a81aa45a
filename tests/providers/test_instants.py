"""Deadline arithmetic, and instants as text."""

from __future__ import annotations

import math
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abeyance.actors.providers.instants import deadline_ms, instant_ms, render_instant
from abeyance.storage.tables.fields import INSTANT_MS_MAX


@pytest.mark.behaviour("W-001")
def test_a_deadline_is_now_plus_the_wait():
    assert deadline_ms(1_000, 1_500) == 2_500


@pytest.mark.behaviour("W-002")
@pytest.mark.parametrize("zero", [0, 0.0, -0.0, Decimal(0)])
def test_a_wait_of_zero_ends_now(zero: float):
    assert deadline_ms(1_000, zero) == 1_000


@pytest.mark.behaviour("W-003")
@pytest.mark.parametrize(("wait", "deadline"), [(0.4, 1_001), (1.0, 1_001), (1e-300, 1_001)])
def test_fractions_are_rounded_up(wait: float, deadline: int):
    assert deadline_ms(1_000, wait) == deadline


@pytest.mark.behaviour("W-004", "W-005", "W-008")
@pytest.mark.parametrize(
    "wait", [-1, -1_000, -0.4, -1e20, -sys.float_info.max, -(10**400), -math.inf, Decimal("-inf")]
)
def test_a_negative_wait_ends_now_and_not_before(wait: float):
    assert deadline_ms(1_000, wait) == 1_000


@pytest.mark.behaviour("W-006", "W-007")
@pytest.mark.parametrize(
    "wait", [math.nan, math.inf, Decimal("nan"), Decimal("sNaN"), Decimal("inf")]
)
def test_what_is_no_number_of_milliseconds_holds_until_released(wait: float):
    assert deadline_ms(1_000, wait) is None


@pytest.mark.behaviour("W-009")
@pytest.mark.parametrize("kind", [int, float, Decimal, Fraction])
def test_the_last_instant_is_a_deadline_and_the_next_is_none(kind: type):
    assert deadline_ms(1_000, kind(INSTANT_MS_MAX - 1_000)) == INSTANT_MS_MAX
    assert deadline_ms(1_000, kind(INSTANT_MS_MAX - 999)) is None
    assert deadline_ms(1_000, kind(10**20)) is None


def test_integers_and_decimals_past_every_float_hold_until_released():
    assert deadline_ms(1_000, 10**400) is None
    assert deadline_ms(1_000, Decimal("1e999999")) is None


@pytest.mark.behaviour("W-010")
def test_an_absurd_wait_that_an_instant_can_hold_is_kept_and_rendered():
    now = 1_700_000_000_000
    deadline = deadline_ms(now, 10**15)
    assert deadline == 1_001_700_000_000_000
    assert render_instant(deadline).startswith("+33712-")


@pytest.mark.behaviour("W-011")
@pytest.mark.parametrize("wait", [True, False, "60", None, b"60", 1j])
def test_only_numbers_are_waits(wait: object):
    with pytest.raises(TypeError):
        deadline_ms(1_000, wait)  # type: ignore[arg-type]


@given(
    now=st.integers(0, INSTANT_MS_MAX),
    wait=st.one_of(st.integers(-(10**20), 10**20), st.floats(), st.fractions()),
)
def test_a_deadline_is_never_before_now_nor_before_what_was_stated(now: int, wait: float):
    deadline = deadline_ms(now, wait)
    if deadline is None:
        assert math.isnan(wait) or wait + now > INSTANT_MS_MAX - 1
    else:
        assert now <= deadline <= INSTANT_MS_MAX
        assert wait <= 0 or deadline - now >= wait > deadline - now - 1


@given(st.integers(0, 253_402_300_799_999))
def test_an_instant_is_rendered_as_datetime_would(ms: int):
    expected = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    rendered = render_instant(ms)
    assert datetime.fromisoformat(rendered) == expected
    assert rendered.endswith("Z")


@given(st.integers(-(10**17), 10**17))
def test_rendering_never_raises(ms: int):
    assert "T" in render_instant(ms)


@given(st.integers(0, INSTANT_MS_MAX // 1_000))
def test_an_instant_in_seconds_comes_back_as_the_same_millisecond(ms: int):
    assert instant_ms(ms / 1_000) == ms
    assert instant_ms(ms) == ms * 1_000


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -1, -0.5, 1e300, 10**400, True, "5", None, [], 8.64e12 + 1]
)
def test_what_is_no_instant_is_none(value: object):
    assert instant_ms(value) is None
