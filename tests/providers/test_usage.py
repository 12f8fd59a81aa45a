"""Usage windows: what providers tell of them, and what may be concluded."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abeyance.actors.providers import (
    CapacityExhaustedError,
    Exhaustion,
    ProviderError,
    StatedWait,
    UsageReading,
    UsageWindow,
    WaitEnds,
    WaitKind,
    WaitScope,
    capacity_error_of,
    exhaustion_of,
    read_usage,
)
from abeyance.actors.providers.failures import refusal
from abeyance.actors.providers.windows import last_of_full, most_used_of

NOW_S = 1_791_374_400
NOW = NOW_S * 1_000
HOUR = 3_600_000
STATUS = {
    "rate_limits": {
        "five_hour": {"used_percentage": 100, "resets_at": 1_786_644_000},
        "seven_day": {"used_percentage": 100, "resets_at": 1_786_721_400},
    }
}


def read(body: Any = None, headers: Any = None, **options: Any) -> UsageReading | None:
    return read_usage(
        status=options.pop("status", 200),
        headers=headers or {},
        body=json.dumps(body) if isinstance(body, dict | list) else body,
        received_at=options.pop("received_at", NOW_S),
        **options,
    )


def windows(*given: tuple[str, float | None, int | None]) -> tuple[UsageWindow, ...]:
    return tuple(
        UsageWindow(name=name, used_percent=used, resets_ms=resets) for name, used, resets in given
    )


def quota(**stated: Any) -> ProviderError:
    return ProviderError(
        "refused",
        retryable=True,
        status=429,
        stated=StatedWait(kind=WaitKind.QUOTA_EXHAUSTED, **stated),
    )


@pytest.mark.behaviour("S-001", "S-002")
def test_status_line_keeps_each_window_with_its_share_and_its_absolute_reset() -> None:
    reading = read(STATUS, transport="statusline", provider="claude-code")
    assert reading is not None
    assert reading.windows == (
        UsageWindow(
            name="five_hour",
            used_percent=100.0,
            resets_ms=1_786_644_000_000,
            scope=WaitScope.ACCOUNT,
        ),
        UsageWindow(
            name="seven_day",
            used_percent=100.0,
            resets_ms=1_786_721_400_000,
            scope=WaitScope.ACCOUNT,
        ),
    )


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        pytest.param(
            {
                "anthropic-ratelimit-unified-status": "allowed",
                "anthropic-ratelimit-unified-5h-utilization": "0.996",
                "anthropic-ratelimit-unified-5h-reset": str(NOW_S + 7_200),
                "anthropic-ratelimit-unified-7d_opus-utilization": "1.0",
                "anthropic-ratelimit-unified-7d_opus-reset": str(NOW_S + 86_400),
                "anthropic-ratelimit-unified-overage-status": "rejected",
                "anthropic-ratelimit-unified-overage-reset": str(NOW_S + 9),
                "anthropic-ratelimit-unified-reset": str(NOW_S + 7_200),
            },
            None,
            {
                "five_hour": (99.6, NOW + 2 * HOUR, "account"),
                "seven_day_opus": (100.0, NOW + 24 * HOUR, "model"),
            },
            id="anthropic's subscription, overage left out",
        ),
        pytest.param(
            {
                "x-codex-primary-used-percent": "42.5",
                "x-codex-primary-window-minutes": "300",
                "x-codex-primary-reset-at": str(NOW_S + 7_200),
                "x-codex-secondary-used-percent": "7",
                "x-codex-secondary-window-minutes": "10080",
                "x-codex-secondary-reset-after-seconds": "3600",
            },
            None,
            {
                "five_hour": (42.5, NOW + 2 * HOUR, None),
                "seven_day": (7.0, NOW + HOUR, None),
            },
            id="codex, a duration counted from the arrival",
        ),
        pytest.param(
            {},
            {
                "type": "codex.rate_limits",
                "rate_limits": {
                    "limit_reached": False,
                    "primary": {
                        "used_percent": 3,
                        "window_minutes": 300,
                        "reset_at": NOW_S + 7_200,
                    },
                },
            },
            {"five_hour": (3.0, NOW + 2 * HOUR, None)},
            id="codex's event, nothing reached",
        ),
        pytest.param(
            {"x-usage-ratelimit-weekly": "ent=0&rem=35.3&rst=2026-10-08T12%3A00%3A00Z"},
            None,
            {"weekly": (64.7, 1_791_460_800_000, None)},
            id="copilot, by what remains",
        ),
        pytest.param(
            {},
            {
                "type": "rate_limit_event",
                "rate_limit_info": {
                    "status": "allowed_warning",
                    "rateLimitType": "seven_day",
                    "utilization": 0.8,
                    "resetsAt": NOW_S + 7_200,
                },
            },
            {"seven_day": (80.0, NOW + 2 * HOUR, "account")},
            id="an event of the SDK that only warns",
        ),
        pytest.param(
            {},
            {
                "type": "rate_limit_event",
                "rate_limit_info": {
                    "status": "rejected",
                    "rateLimitType": "five_hour",
                    "utilization": 0.99,
                    "resetsAt": NOW_S + 7_200,
                },
            },
            {"five_hour": (100.0, NOW + 2 * HOUR, "account")},
            id="an event of the SDK that turned a call down",
        ),
    ],
)
def test_windows_are_read_of_responses_that_were_served(
    headers: Any, body: Any, expected: dict[str, Any]
) -> None:
    reading = read(body, headers)
    assert reading is not None
    assert {
        each.name: (pytest.approx(each.used_percent), each.resets_ms, each.scope)
        for each in reading.windows
    } == expected


@pytest.mark.parametrize(
    ("stated", "used", "resets"),
    [
        ({"used_percentage": 12, "resets_at": None}, 12.0, None),
        ({"used_percentage": 12}, 12.0, None),
        ({"used_percentage": 12, "resets_at": 0}, 12.0, None),
        ({"used_percentage": 12, "resets_at": "soon"}, 12.0, None),
        ({"used_percentage": 12, "resets_at": 1e300}, 12.0, None),
        ({"used_percentage": None, "resets_at": NOW_S}, None, NOW),
        ({"used_percentage": -1, "resets_at": NOW_S}, None, NOW),
        ({"used_percentage": float("nan"), "resets_at": NOW_S}, None, NOW),
        ({"used_percentage": True, "resets_at": NOW_S}, None, NOW),
        ({"used_percentage": "99.99999", "resets_at": NOW_S}, 99.99999, NOW),
        ({"used_percentage": 10**400, "resets_at": NOW_S}, None, NOW),
    ],
)
def test_what_is_missing_or_malformed_of_a_window_is_none_and_the_rest_is_kept(
    stated: dict[str, Any], used: float | None, resets: int | None
) -> None:
    reading = read({"rate_limits": {"five_hour": stated}}, transport="statusline")
    assert reading is not None
    (window,) = reading.windows
    assert (window.used_percent, window.resets_ms) == (used, resets)


@given(body=st.binary(max_size=200) | st.text(max_size=200), at=st.floats() | st.integers())
def test_usage_of_any_bytes_is_none_or_a_reading(body: Any, at: Any) -> None:
    reading = read(body, received_at=at, transport="statusline")
    assert reading is None or isinstance(reading, UsageReading)


def test_response_without_windows_and_one_that_arrived_at_no_instant_are_no_reading() -> None:
    assert read({"rate_limits": {}}, transport="statusline") is None
    assert read(STATUS, transport="statusline", received_at=float("nan")) is None


def test_windows_of_one_response_are_bounded() -> None:
    many = {f"w{i}": {"used_percentage": i, "resets_at": NOW_S} for i in range(200)}
    reading = read({"rate_limits": many}, transport="statusline")
    assert reading is not None
    assert len(reading.windows) == 64


@pytest.mark.behaviour("S-003")
@pytest.mark.parametrize("form", [msgspec.json, msgspec.msgpack], ids=["json", "msgpack"])
def test_windows_with_and_without_a_reset_survive_the_way_to_another_process(form: Any) -> None:
    reading = UsageReading(
        windows=windows(("five_hour", 99.6, NOW), ("seven_day", None, None)),
        read_ms=NOW,
        credential="c",
    )
    packed = form.encode(reading)
    assert form.decode(packed, type=UsageReading) == reading
    assert form.decode(packed)["windows"][1] == {
        "name": "seven_day",
        "used_percent": None,
        "resets_ms": None,
        "scope": None,
    }


# -- until when


@pytest.mark.behaviour("S-011")
def test_wall_at_99_6_percent_ends_with_the_most_used_window() -> None:
    given = windows(("five_hour", 99.6, NOW + 2 * HOUR), ("seven_day", 31.0, NOW + 99 * HOUR))
    assert last_of_full(given, NOW) is None
    assert most_used_of(given, NOW) == given[0]
    told = exhaustion_of(
        quota(ends=WaitEnds.UNKNOWN),
        provider="anthropic",
        model="m",
        now_ms=NOW,
        reading=UsageReading(windows=given, read_ms=NOW, credential="c"),
        credential="c",
    )
    assert told is not None
    assert (told.window, told.retry_at_ms, told.told_by) == (
        "five_hour",
        NOW + 2 * HOUR,
        "windows",
    )


@pytest.mark.behaviour("S-011")
def test_of_several_full_windows_of_a_model_the_latest_reset_counts() -> None:
    given = windows(("five_hour", 100.0, NOW + HOUR), ("seven_day", 101.0, NOW + 9 * HOUR))
    assert last_of_full(given, NOW) == given[1]


@pytest.mark.behaviour("S-012")
@pytest.mark.parametrize(
    "given",
    [
        windows(("five_hour", 100.0, NOW - HOUR)),
        windows(("five_hour", 100.0, NOW)),
        windows(("five_hour", 100.0, None)),
        windows(("five_hour", 100.0, NOW - HOUR), ("seven_day", 100.0, None)),
        windows(("five_hour", 99.0, NOW - HOUR), ("seven_day", 31.0, NOW + HOUR)),
        (),
    ],
    ids=["past", "this instant", "none", "past and none", "another's would be a guess", "nothing"],
)
def test_reset_that_passed_or_is_missing_is_no_time_to_go_on_at(given: Any) -> None:
    assert last_of_full(given, NOW) is None
    assert most_used_of(given, NOW) is None


def test_window_of_one_model_does_not_hold_another() -> None:
    opus = UsageWindow(
        name="seven_day_opus", used_percent=100.0, resets_ms=NOW + HOUR, scope=WaitScope.MODEL
    )
    assert opus.concerns("claude-opus-4-5")
    assert not opus.concerns("claude-haiku-4-5")
    reading = UsageReading(windows=(opus,), read_ms=NOW, credential="c")
    told = [
        exhaustion_of(
            quota(ends=WaitEnds.UNKNOWN),
            provider="p",
            model=model,
            now_ms=NOW,
            reading=reading,
            credential="c",
        )
        for model in ("claude-opus-4-5", "claude-haiku-4-5")
    ]
    assert [each.retry_at_ms for each in told if each is not None] == [NOW + HOUR, None]


def test_most_used_window_is_none_where_no_share_is_known() -> None:
    assert most_used_of(windows(("five_hour", None, NOW + HOUR)), NOW) is None


def told(error: BaseException, **options: Any) -> Exhaustion | None:
    return exhaustion_of(error, provider="anthropic", model="m", now_ms=NOW, **options)


@pytest.mark.behaviour("S-004")
def test_reset_is_taken_from_windows_then_from_fields_then_from_words_and_is_then_unknown() -> None:
    reading = UsageReading(
        windows=windows(("five_hour", 100.0, NOW + 6 * HOUR)), read_ms=NOW, credential="c"
    )
    worded = quota(ends=WaitEnds.UNTIL, deadline_ms=NOW + 5 * HOUR, source="text:resets 5pm")
    fielded = quota(ends=WaitEnds.UNTIL, deadline_ms=NOW + 4 * HOUR, source="body:resets_at")
    ends = [
        told(worded, reading=reading, credential="c"),
        told(fielded),
        told(worded),
        told(quota(ends=WaitEnds.UNKNOWN)),
    ]
    assert [(each.retry_at_ms, each.told_by) for each in ends if each is not None] == [
        (NOW + 6 * HOUR, "windows"),
        (NOW + 4 * HOUR, "error"),
        (NOW + 5 * HOUR, "words"),
        (None, None),
    ]


FULL_5H = ("five_hour", 100.0, NOW + 2 * HOUR)
USED_5H = ("five_hour", 99.6, NOW + 2 * HOUR)
ENDLESS = ("seven_day", 100.0, None)
FIELD, WORDS = "body:resets_at", "text:resets 5pm"


@pytest.mark.behaviour("S-004", "X-007")
@pytest.mark.parametrize(
    ("source", "stated_ms", "given", "ends"),
    [
        (FIELD, 72 * HOUR, [("five_hour", 40.0, NOW + HOUR)], (72 * HOUR, "error")),
        (FIELD, 72 * HOUR, [USED_5H], (72 * HOUR, "error")),
        (FIELD, 72 * HOUR, [FULL_5H], (72 * HOUR, "error")),
        (FIELD, HOUR, [("seven_day", 40.0, NOW + 99 * HOUR)], (HOUR, "error")),
        (FIELD, HOUR, [FULL_5H], (2 * HOUR, "windows")),
        (WORDS, HOUR, [FULL_5H], (2 * HOUR, "windows")),
        (WORDS, 3 * HOUR, [FULL_5H], (2 * HOUR, "windows")),
        (WORDS, HOUR, [USED_5H], (2 * HOUR, "windows")),
        (WORDS, 3 * HOUR, [USED_5H], (2 * HOUR, "windows")),
    ],
    ids=[
        "field behind a window with room",
        "field behind one at 99.6",
        "field behind a full one",
        "field before the end of one with room",
        "field before the end of a full one",
        "words before the end of a full one",
        "words behind it",
        "words before the end of one at 99.6",
        "words behind that",
    ],
)
def test_no_window_shortens_what_a_refusal_states_and_only_a_full_one_lengthens_it(
    source: str, stated_ms: int, given: Any, ends: tuple[int, str]
) -> None:
    reading = UsageReading(windows=windows(*given), read_ms=NOW - HOUR // 3, credential="c")
    fact = told(
        quota(ends=WaitEnds.UNTIL, deadline_ms=NOW + stated_ms, source=source),
        reading=reading,
        credential="c",
    )
    assert fact is not None
    assert (fact.retry_at_ms, fact.told_by) == (NOW + ends[0], ends[1])


@pytest.mark.behaviour("S-010")
@pytest.mark.parametrize(
    ("source", "stated_ms", "given", "ends"),
    [
        (None, None, [FULL_5H, ENDLESS], (None, None, "seven_day")),
        (None, None, [ENDLESS, FULL_5H], (None, None, "seven_day")),
        (FIELD, HOUR, [FULL_5H, ENDLESS], (None, None, "seven_day")),
        (WORDS, 2 * HOUR, [FULL_5H, ENDLESS], (None, None, "seven_day")),
        (FIELD, 72 * HOUR, [FULL_5H, ENDLESS], (72 * HOUR, "error", None)),
        (WORDS, 72 * HOUR, [FULL_5H, ENDLESS], (72 * HOUR, "words", None)),
        (FIELD, HOUR, [ENDLESS], (HOUR, "error", None)),
    ],
    ids=[
        "nothing stated",
        "the other way round",
        "stated before the known end",
        "words of the known end",
        "field behind the known end",
        "words behind it",
        "no end is known",
    ],
)
def test_full_window_without_an_end_leaves_it_unknown_unless_more_is_stated(
    source: str | None, stated_ms: int | None, given: Any, ends: tuple[Any, Any, Any]
) -> None:
    wait: dict[str, Any] = {"ends": WaitEnds.UNKNOWN}
    if stated_ms is not None:
        wait = {"ends": WaitEnds.UNTIL, "deadline_ms": NOW + stated_ms, "source": source}
    reading = UsageReading(windows=windows(*given), read_ms=NOW, credential="c")
    fact = told(quota(**wait), reading=reading, credential="c")
    assert fact is not None
    at_ms, by, window = ends
    assert (fact.retry_at_ms, fact.told_by) == (None if at_ms is None else NOW + at_ms, by)
    assert fact.window == window


@pytest.mark.behaviour("S-005")
@pytest.mark.parametrize("credential", ["b", None], ids=["another account", "not known"])
def test_windows_of_another_account_are_never_consulted(credential: str | None) -> None:
    full = windows(("five_hour", 100.0, NOW + HOUR))
    of_a = UsageReading(windows=full, read_ms=NOW, credential="a")
    of_nobody = UsageReading(windows=full, read_ms=NOW)
    for reading in (of_a, of_nobody):
        fact = told(quota(ends=WaitEnds.UNKNOWN), reading=reading, credential=credential)
        assert fact is not None
        assert fact.retry_at_ms is None


@pytest.mark.parametrize("age_ms", [1_800_001, -1_800_001], ids=["old", "from a clock ahead"])
def test_reading_that_is_not_of_now_counts_as_none(age_ms: int) -> None:
    reading = UsageReading(
        windows=windows(("five_hour", 100.0, NOW + HOUR)), read_ms=NOW - age_ms, credential="c"
    )
    fact = told(quota(ends=WaitEnds.UNKNOWN), reading=reading, credential="c")
    assert fact is not None
    assert fact.retry_at_ms is None


@pytest.mark.behaviour("S-008")
def test_result_that_says_to_be_an_error_is_the_fact_that_the_terminals_words_are() -> None:
    words = "You've hit your weekly limit \u00b7 resets in 2h"
    facts = [
        told(
            refusal(
                provider="claude-code", status=None, headers=None, body=body,
                message="", received_at=NOW_S, transport=transport,
            )
        )
        for body, transport in (
            (words, "text"),
            (json.dumps({"type": "result", "is_error": True, "result": words}), "agent_sdk"),
        )
    ]  # fmt: skip
    assert facts[0] == facts[1]
    assert facts[0] is not None
    assert (facts[0].window, facts[0].retry_at_ms) == ("seven_day", NOW + 2 * HOUR)


@pytest.mark.behaviour("S-009")
def test_exhaustion_carries_provider_model_window_and_instant_and_is_no_throttling() -> None:
    fact = told(
        quota(
            ends=WaitEnds.UNTIL,
            deadline_ms=NOW + 3 * HOUR,
            window="seven_day",
            source="body:resets_at",
        )
    )
    assert fact is not None
    error = CapacityExhaustedError((fact,))
    assert (error.provider, error.model, error.window, error.retry_at_ms) == (
        "anthropic",
        "m",
        "seven_day",
        NOW + 3 * HOUR,
    )
    assert error.is_quota_exhausted
    assert not error.retryable_now
    throttled = ProviderError(
        "slow down",
        retryable=True,
        status=429,
        stated=StatedWait(
            kind=WaitKind.RATE_LIMITED, ends=WaitEnds.UNTIL, deadline_ms=NOW + 3 * HOUR
        ),
    )
    assert told(throttled) is None
    assert told(ValueError("nothing of the kind")) is None


@pytest.mark.behaviour("S-010")
@pytest.mark.parametrize(
    "stated",
    [
        {"ends": WaitEnds.UNKNOWN},
        {"ends": WaitEnds.UNTIL_RELEASED},
        {"ends": WaitEnds.ALREADY_OVER},
        {"ends": WaitEnds.UNTIL, "deadline_ms": NOW},
    ],
    ids=["not said", "until released", "over", "this instant"],
)
def test_exhausted_without_a_time_is_neither_free_nor_given_one(stated: dict[str, Any]) -> None:
    fact = told(quota(**stated))
    assert fact == Exhaustion(provider="anthropic", model="m")
    assert CapacityExhaustedError((fact,)).retry_at_ms is None


@pytest.mark.behaviour("S-018")
def test_error_is_found_through_groups_causes_and_pickling() -> None:
    error = CapacityExhaustedError(
        (Exhaustion(provider="p", model="m", window="five_hour", retry_at_ms=NOW),)
    )
    try:
        try:
            try:
                raise ExceptionGroup("of a nursery", [ValueError("beside it"), error])
            except ExceptionGroup as group:
                raise RuntimeError("the step failed") from group
        except RuntimeError as failure:
            raise ExceptionGroup("of the run", [failure]) from None
    except ExceptionGroup as outer:
        found = capacity_error_of(outer)
    assert found is error
    again = pickle.loads(pickle.dumps(error))
    assert (again.exhausted, again.retry_at_ms, str(again)) == (
        error.exhausted,
        NOW,
        str(error),
    )
    assert (again.model, again.window) == ("m", "five_hour")
    assert capacity_error_of(ValueError("another")) is None


def test_usage_of_every_recorded_response_is_read_without_failing() -> None:
    lines = (Path(__file__).parent / "data").glob("*.jsonl")
    for line in (text for path in lines for text in path.read_text().splitlines()):
        case = json.loads(line)
        reading = read_usage(
            status=case["status"],
            headers=case["headers"],
            body=case["body"],
            received_at=case["received_at"],
            provider=case["provider"],
            transport=case["transport"],
        )
        assert reading is None or reading.windows


def out(at_ms: Any, model: str = "m") -> Exhaustion:
    return Exhaustion(provider="p", model=model, retry_at_ms=at_ms)


@pytest.mark.parametrize(
    ("exhausted", "field"),
    [
        ((), "exhausted:"),
        ([out(NOW)], "exhausted:"),
        ((out(NOW), "m"), "exhausted[1]:"),
        ((out(NOW), out(2**80)), "exhausted[1].retry_at_ms:"),
        ((out(-1),), "exhausted[0].retry_at_ms:"),
        ((out(float("nan")),), "exhausted[0].retry_at_ms:"),
        ((out(1.5),), "exhausted[0].retry_at_ms:"),
        ((out(True),), "exhausted[0].retry_at_ms:"),
    ],
    ids=["none", "list", "text", "huge", "negative", "nan", "float", "bool"],
)
def test_exhaustion_that_is_malformed_is_refused_by_its_field(exhausted: Any, field: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        CapacityExhaustedError(exhausted)
    assert str(caught.value).startswith(field)
