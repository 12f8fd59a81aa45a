"""What providers stated, read from captured responses and from ones made up."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abeyance.actors.providers import StatedWait, WaitEnds, WaitKind, WaitScope, read_stated_wait
from abeyance.actors.providers.reader import READINGS
from abeyance.storage.tables.fields import INSTANT_MS_MAX, REASON_CHARS_MAX


def rows(name: str) -> list[dict[str, Any]]:
    lines = (Path(__file__).parent / "data" / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


CAPTURED = rows("stated_waits.jsonl")
FURTHER = rows("further_waits.jsonl") + rows("unseen_waits.jsonl")
"""Responses of the same kinds, made up from the providers' documentation; `why` says what for."""


NOW_S = 1_791_374_400
NOW = NOW_S * 1_000


def read(**parts: Any) -> StatedWait | None:
    given_parts: dict[str, Any] = {"status": 429, "headers": {}, "body": "", "received_at": NOW_S}
    return read_stated_wait(**{**given_parts, **parts})


def stated(**parts: Any) -> StatedWait:
    wait = read(**parts)
    assert wait is not None
    return wait


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, id=f"{row['id']}-{row['provider']}") for row in CAPTURED + FURTHER],
)
def test_a_response_reads_as_its_provider_documents(row: dict[str, Any]):
    wait = read_stated_wait(
        status=row["status"],
        headers=row["headers"],
        body=row["body"],
        received_at=row["received_at"],
        provider=row["provider"],
        transport=row["transport"],
    )
    if row["expected_hold"] == "none":
        assert wait is None
        return
    assert wait is not None
    kind = {"not_a_limit": "other"}.get(row["expected_kind"], row["expected_kind"])
    assert (wait.ends, wait.kind, wait.scope) == (row["expected_hold"], kind, row["expected_scope"])
    if row["expected_hold"] == "until":
        assert wait.deadline_ms is not None
        assert abs(wait.deadline_ms - row["expected_reset_at"] * 1_000) <= 1
    else:
        assert wait.deadline_ms is None


@pytest.mark.behaviour("W-012")
@pytest.mark.parametrize(
    "value", ["soon", "nan", "inf", "1_000", "１２", "+5", "30, soon", "1,200", "1,5", "tomorrow"]
)
def test_a_malformed_retry_after_states_nothing(value: str):
    wait = stated(headers={"retry-after": value})
    assert (wait.ends, wait.deadline_ms) == (WaitEnds.UNKNOWN, None)


def test_an_empty_retry_after_is_absent():
    assert read(status=401, headers={"Retry-After": " "}) is None


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": "60"},
        {"RETRY-AFTER": ["5", "60", "30"]},
        {b"Retry-After": b" 60 "},
        {"retry-after": 60},
        [("Retry-After", "60"), ("retry-after", "5")],
        (("retry-after", "5"), ("retry-after-ms", "60000")),
        {"x-ms-retry-after-ms": "60000", "retry-after": "59"},
        {"x-amz-retry-after": "60000"},
        {"ratelimit": '"burst";r=0;t=60, "day";r=5;t=4000'},
        {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "60"},
        {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(NOW_S + 60)},
        {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(NOW + 60_000)},
        {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1m0s"},
        {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "2026-10-07T12:01:00Z"},
    ],
    ids=str,
)
def test_a_minute_is_a_minute_however_it_is_stated(headers: Any):
    assert stated(headers=headers).deadline_ms == NOW + 60_000


@pytest.mark.parametrize(
    "headers",
    [
        {"x-ratelimit-remaining": "5", "x-ratelimit-reset": "60"},
        {"ratelimit-remaining": "5", "ratelimit-reset": "60"},
        {"ratelimit": '"burst";r=5;t=60'},
    ],
    ids=str,
)
def test_a_window_with_something_left_states_nothing(headers: Any):
    assert stated(headers=headers).ends is WaitEnds.UNKNOWN


def test_windows_of_a_call_that_went_through_are_telemetry():
    headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "60"}
    assert read(status=200, headers=headers, body="{}") is None


@pytest.mark.parametrize("status", [200, 202])
def test_a_call_that_went_through_states_nothing(status: int):
    assert read(status=status, headers={"retry-after": "60"}, body="{}") is None


def test_the_lines_of_a_clients_header_class_stay_apart():
    headers = httpx2.Headers([("retry-after", "30"), ("retry-after", "60")])
    assert stated(headers=headers).deadline_ms == NOW + 60_000


def test_a_duration_without_a_clock_holds_until_released():
    assert stated(headers={"retry-after": "5"}, received_at=float("nan")).ends is (
        WaitEnds.UNTIL_RELEASED
    )
    date = {"retry-after": "Wed, 07 Oct 2026 14:00:00 GMT"}
    assert stated(headers=date, received_at=float("nan")).deadline_ms == NOW + 7_200_000


def test_the_source_of_a_wait_is_named_and_quoted():
    wait = stated(headers={"Retry-After": "7200"})
    assert (wait.source, wait.raw) == ("header:retry-after", "retry-after: 7200")


UNIFIED = "anthropic-ratelimit-unified-"


def unified(**fields: str) -> dict[str, str]:
    return {UNIFIED + name.replace("__", "-"): value for name, value in fields.items()}


def test_of_two_exhausted_subscription_windows_the_later_reset_binds():
    headers = unified(
        status="rejected",
        **{"5h-status": "rejected", "5h-reset": str(NOW_S + 100)},
        **{"7d-status": "rejected", "7d-reset": str(NOW_S + 900)},
    )
    wait = stated(headers=headers, provider="anthropic")
    assert (wait.kind, wait.scope) == (WaitKind.QUOTA_EXHAUSTED, WaitScope.ACCOUNT)
    assert (wait.deadline_ms, wait.window) == (NOW + 900_000, "seven_day")


def test_a_models_weekly_window_holds_that_model_only():
    headers = unified(
        status="rejected",
        **{"7d_opus-status": "rejected", "7d_opus-reset": str(NOW_S + 900)},
        **{"7d-status": "allowed", "7d-reset": str(NOW_S + 9_000)},
        **{"representative-claim": "seven_day_opus"},
    )
    wait = stated(headers=headers, provider="anthropic")
    assert (wait.scope, wait.window) == (WaitScope.MODEL, "seven_day_opus")
    assert wait.deadline_ms == NOW + 900_000


def test_a_limited_call_on_a_healthy_subscription_is_a_rate_limit():
    headers = {"retry-after": "30"} | unified(
        status="allowed", **{"5h-status": "allowed", "5h-reset": str(NOW_S + 9_000)}
    )
    wait = stated(headers=headers, provider="anthropic")
    assert (wait.kind, wait.deadline_ms) == (WaitKind.RATE_LIMITED, NOW + 30_000)


def test_the_claim_of_a_healthy_subscription_is_telemetry():
    headers = {"retry-after": "30"} | unified(
        status="allowed",
        **{"5h-reset": str(NOW_S + 9_000), "representative-claim": "five_hour"},
    )
    wait = stated(headers=headers, provider="anthropic")
    assert (wait.kind, wait.deadline_ms) == (WaitKind.RATE_LIMITED, NOW + 30_000)


@pytest.mark.parametrize(("claim", "ends_s"), [("five_hour", 100), ("overage", 900)])
def test_overage_counts_only_as_the_claim_that_was_turned_down(claim: str, ends_s: int):
    headers = unified(
        status="rejected",
        **{"representative-claim": claim, "5h-status": "rejected", "5h-reset": str(NOW_S + 100)},
        **{"overage-status": "rejected", "overage-reset": str(NOW_S + 900)},
    )
    wait = stated(headers=headers, provider="anthropic")
    assert wait.deadline_ms == NOW + ends_s * 1_000


def test_a_window_without_a_status_is_used_up_at_its_whole_share():
    headers = unified(
        status="rejected",
        **{"5h-utilization": "1.0", "5h-reset": str(NOW_S + 100)},
        **{"7d-utilization": "0.99", "7d-reset": str(NOW_S + 900)},
    )
    assert stated(headers=headers, provider="anthropic").deadline_ms == NOW + 100_000


def test_a_per_minute_window_with_something_left_does_not_count():
    prefix = "anthropic-ratelimit-"
    headers = {
        f"{prefix}requests-remaining": "0",
        f"{prefix}requests-reset": "2026-10-07T12:00:20Z",
        f"{prefix}tokens-remaining": "500",
        f"{prefix}tokens-reset": "2026-10-07T12:01:00Z",
    }
    assert stated(headers=headers, provider="anthropic").deadline_ms == NOW + 20_000


def test_an_epoch_that_is_plainly_a_delta_is_not_read_as_past():
    headers = unified(status="rejected", reset="3600")
    wait = stated(headers=headers, provider="anthropic")
    assert (wait.kind, wait.ends) == (WaitKind.QUOTA_EXHAUSTED, WaitEnds.UNKNOWN)


def anthropic_error(kind: str, message: str) -> str:
    return json.dumps({"type": "error", "error": {"type": kind, "message": message}})


def test_exhausted_credit_is_a_quota_whatever_its_status():
    body = anthropic_error(
        "invalid_request_error", "Your credit balance is too low to access the Anthropic API."
    )
    wait = stated(status=400, body=body, provider="anthropic")
    assert (wait.kind, wait.scope) == (WaitKind.QUOTA_EXHAUSTED, WaitScope.ACCOUNT)
    assert (wait.ends, "credit balance" in wait.raw) == (WaitEnds.UNKNOWN, True)


def test_a_spending_limit_states_when_access_comes_back():
    body = anthropic_error(
        "invalid_request_error",
        "You have reached your specified API usage limits. "
        "You will regain access on 2026-11-01 at 00:00 UTC.",
    )
    wait = stated(status=400, body=body, provider="anthropic")
    assert (wait.kind, wait.scope) == (WaitKind.QUOTA_EXHAUSTED, WaitScope.ACCOUNT)
    assert wait.deadline_ms == 1_793_491_200_000


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413])
def test_a_terminal_error_that_states_nothing_is_none(status: int):
    body = anthropic_error("invalid_request_error", "messages: too few")
    assert read(status=status, body=body, provider="anthropic") is None


def test_a_limit_within_a_stream_counts_the_windows_of_its_head():
    headers = {
        "anthropic-ratelimit-input-tokens-remaining": "0",
        "anthropic-ratelimit-input-tokens-reset": "2026-10-07T12:00:40Z",
    }
    body = anthropic_error("rate_limit_error", "slow down")
    wait = stated(status=200, headers=headers, body=body, provider="anthropic", transport="sse")
    assert (wait.kind, wait.scope) == (WaitKind.RATE_LIMITED, WaitScope.MODEL)
    assert (wait.deadline_ms, wait.window) == (NOW + 40_000, "input-tokens")


def test_a_stream_s_error_is_read_whatever_separators_its_words_hold():
    error = {"type": "overloaded_error", "message": "Over\u2028loaded"}
    words = json.dumps({"type": "error", "error": error}, ensure_ascii=False)
    wait = stated(status=200, body=f"event: error\r\ndata: {words}\r\n\r\n", transport="sse")
    assert wait.kind is WaitKind.OVERLOADED


def test_a_stream_that_only_quotes_an_error_is_not_limited():
    said = {"type": "content_block_delta", "delta": {"text": "rate_limit_error"}}
    body = f"event: content_block_delta\ndata: {json.dumps(said)}\n\n"
    assert read(status=200, body=body, provider="anthropic", transport="sse") is None


@pytest.mark.parametrize("provider", [None, "someone else"])
def test_anthropic_is_recognised_where_nobody_named_it(provider: str | None):
    body = anthropic_error("overloaded_error", "Overloaded")
    wait = stated(status=200, body=body, provider=provider, transport="sse")
    assert wait.kind is WaitKind.OVERLOADED


# What follows makes responses up. Hypothesis prints what falsifies, and replays it.

TRANSPORTS = ["http", "sse", "event_stream", "statusline", "agent_sdk", "text"]

KEYS = [
    "error", "errors", "type", "message", "code", "status", "details", "metadata", "reason",
    "@type",
    "retryDelay", "quotaResetDelay", "violations", "quotaId", "retry_after", "resets_at", "headers",
    "raw", "response", "rate_limits", "five_hour", "used_percentage", "rate_limit_info",
    "throttlingException", "X-RateLimit-Reset", "result", "is_error", "content", "text", "primary",
    "used_percent", "limit_reached", "limit_source", "limitName", "x",
]  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=40),
    st.text(st.characters(), max_size=20),
    st.sampled_from([row["body"] for row in FURTHER + CAPTURED if isinstance(row["body"], str)]),
    st.sampled_from(
        [
            "QUOTA_EXHAUSTED",
            "rejected",
            "type.googleapis.com/google.rpc.RetryInfo",
            "34.07s",
            "429",
            "type.googleapis.com/google.rpc.QuotaFailure",
            "usage_limit_reached",
            "codex.rate_limits",
            "type.googleapis.com/google.rpc.ErrorInfo",
            "GenerateRequestsPerDayPerProjectPerModel",
        ]
    ),
    st.sampled_from(["0", "rejected", "five_hour", "1e999", "-5", "nan", str(NOW_S + 60)]),
    st.integers(0, 10**18).map(str),
    st.datetimes().map(lambda moment: moment.isoformat() + "Z"),
)
NAMES = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        [
            "retry-after",
            "retry-after-ms",
            "ratelimit",
            "ratelimit-remaining",
            "ratelimit-reset",
            "x-ratelimit-remaining",
            "x-ratelimit-reset",
            "anthropic-ratelimit-",
            *sorted({name.lower() for row in FURTHER + CAPTURED for name in row["headers"]}),
            "anthropic-ratelimit-tokens-remaining",
            "anthropic-ratelimit-tokens-reset",
            *(
                UNIFIED + name
                for name in (
                    "status",
                    "reset",
                    "-reset",
                    "5h-reset",
                    "5h-utilization",
                    "overage-reset",
                    "representative-claim",
                )
            ),
        ]
    ),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    ),
    max_leaves=16,
)
ANYTHING = st.one_of(JSON, st.binary(max_size=40), st.tuples(TEXTS, TEXTS))
HEADERS = st.one_of(
    ANYTHING,
    st.dictionaries(NAMES, st.one_of(TEXTS, st.lists(TEXTS, max_size=3), ANYTHING), max_size=6),
    st.lists(st.one_of(st.tuples(NAMES, TEXTS), ANYTHING), max_size=6),
)
BODIES = st.one_of(ANYTHING, JSON.map(json.dumps), JSON.map(lambda v: f"data: {json.dumps(v)}\n\n"))


@given(
    status=st.one_of(st.sampled_from([200, 400, 429, 503, 529]), ANYTHING),
    headers=HEADERS,
    body=BODIES,
    received_at=st.one_of(st.floats(), st.integers(), st.just(NOW_S), ANYTHING),
    provider=st.one_of(st.sampled_from([None, *READINGS]), ANYTHING),
    transport=st.one_of(st.sampled_from(TRANSPORTS), ANYTHING),
    zone=st.one_of(st.sampled_from([None, "Europe/Berlin", "Etc/GMT+5", "no/where"]), ANYTHING),
)
def test_no_response_raises_and_every_answer_is_well_formed(**parts: Any):
    wait = read_stated_wait(**parts)
    if wait is None:
        return
    assert (wait.ends is WaitEnds.UNTIL) == (wait.deadline_ms is not None)
    assert wait.deadline_ms is None or 0 <= wait.deadline_ms <= INSTANT_MS_MAX
    assert len(wait.raw) <= REASON_CHARS_MAX
    assert wait.raw == "" or wait.raw.isprintable()
    assert wait.window is None or wait.window.isprintable()


@given(
    waits=st.lists(st.integers(0, 10**9), min_size=1, max_size=4),
    provider=st.sampled_from([*READINGS]),
)
def test_the_longest_of_several_statements_binds(waits: list[int], provider: str):
    headers = [("retry-after", str(wait)) for wait in waits]
    headers += [("retry-after-ms", str(wait * 500)) for wait in waits]
    wait = stated(headers=headers, provider=provider)
    if max(waits) == 0:
        assert wait.ends is WaitEnds.ALREADY_OVER
    else:
        assert wait.deadline_ms == NOW + max(waits) * 1_000


@given(st.binary(max_size=200))
def test_a_body_of_any_bytes_is_read(body: bytes):
    assert stated(body=body).ends is WaitEnds.UNKNOWN


def test_a_number_with_more_digits_than_python_reads_holds_until_released():
    body = '{"error": {"retry_after": ' + "9" * 5_000 + "}}"
    assert stated(body=body).ends is WaitEnds.UNTIL_RELEASED
    body = '{"error": {"retry_after": -' + "9" * 5_000 + "}}"
    assert stated(body=body).ends is WaitEnds.ALREADY_OVER


def test_a_body_nested_past_the_stack_is_read():
    assert stated(body="[" * 200_000).ends is WaitEnds.UNKNOWN
    assert stated(body='{"error":' * 50_000).ends is WaitEnds.UNKNOWN


def test_an_event_whose_data_stands_on_several_lines_is_read_as_one() -> None:
    body = 'event: error\ndata: {"type":"error",\ndata: "error":{"type":"overloaded_error"}}\n\n'
    stated = read_stated_wait(
        status=200, headers={}, body=body, received_at=0, provider="anthropic", transport="sse"
    )
    assert stated is not None
    assert stated.kind == "overloaded"


LIMITS = [row for row in CAPTURED + FURTHER if row["expected_hold"] in ("until", "unknown")]


@given(
    row=st.sampled_from([row for row in LIMITS if row["transport"] == "http"]),
    more_s=st.integers(1, 10**7),
)
def test_a_second_and_longer_statement_never_shortens(row: dict[str, Any], more_s: int):
    def read_row(headers: list[tuple[str, Any]]) -> StatedWait:
        wait = read_stated_wait(
            status=row["status"],
            headers=headers,
            body=row["body"],
            received_at=row["received_at"],
            provider=row["provider"],
        )
        assert wait is not None
        return wait

    headers = list(row["headers"].items())
    alone = read_row(headers)
    if row["status"] is not None and row["status"] < 400 and alone.ends is WaitEnds.UNKNOWN:
        return
    floor_ms = alone.deadline_ms or row["received_at"] * 1_000
    longer_s = (floor_ms // 1_000) - row["received_at"] + more_s
    both = read_row([*headers, ("retry-after", str(int(longer_s)))])
    assert both.deadline_ms is not None
    assert both.deadline_ms >= (alone.deadline_ms or 0)
    assert both.deadline_ms >= (row["received_at"] + int(longer_s)) * 1_000 - 1


@pytest.mark.drawn(10)
@pytest.mark.parametrize("name", ["claude-code", "gemini", "zai"])
@pytest.mark.parametrize(
    "body",
    [
        "try again in " * 80_000,
        "You've hit your limit resets 3am " * 30_000,
        "9" * 1_000_000,
        "{" * 1_000_000,
        '{"a":' * 200_000,
        "try again in " + "9" * 900_000 + "s",
        "2026-09-04 19:01:25" * 50_000,
        "data: {}\n\n" * 90_000,
        "limit: 0" * 120_000,
        b"\x00\x00\x00\x10\x00\x00\x00\x00" * 125_000,
        b"\xff" * 1_000_000,
    ],
    ids=lambda body: repr(body[:12]),
)
def test_a_body_of_a_million_characters_is_read_in_bounded_time(name: str, body: str | bytes):
    started = time.process_time()
    read(body=body, provider=name, transport="text")
    assert time.process_time() - started < 5


@pytest.mark.parametrize("row", LIMITS, ids=lambda row: row["id"])
def test_a_reading_does_not_depend_on_the_order_or_case_of_headers(row: dict[str, Any]):
    def read_row(headers: Any) -> StatedWait | None:
        return read_stated_wait(
            status=row["status"],
            headers=headers,
            body=row["body"],
            received_at=row["received_at"],
            provider=row["provider"],
            transport=row["transport"],
        )

    lines = [
        (name.upper(), value)
        for name, values in reversed(row["headers"].items())
        for value in (values if isinstance(values, list) else [values])
    ]
    one, other = read_row(row["headers"]), read_row(lines)
    assert one is not None
    assert other is not None
    assert (one.kind, one.ends, one.deadline_ms) == (other.kind, other.ends, other.deadline_ms)


@pytest.mark.behaviour("S-006", "S-007")
@pytest.mark.parametrize(
    ("words", "limited"),
    [
        ("You've hit your limit", True),
        ("You've hit your weekly limit · resets Mon 9am (UTC)", True),
        ("you have reached your daily limit", True),
        ("You've exceeded your 5-hour limit", True),
        ("Weekly limit reached", True),
        ("Limit reached · resets Dec 17 at 6am (Europe/Oslo) · /upgrade to Max", True),
        ("⎿ Limit reached ∙ resets 3pm", True),
        ("The recursion limit reached · resets nothing", False),
        ("Limit reached", False),
        ("You've hit your\n  weekly limit · resets Oct 9, 9pm (UTC)", True),
        ("\x1b[31mYou've hit your limit\x1b[0m", True),
        ("we should respect the rate limit here", False),
        ("If you've hit your limit, upgrade", False),
        ("Approaching your weekly limit · resets 3pm", False),
        ("You've used 91% of your session limit · resets 3pm", False),
        ("The tests hit the limit of the parser", False),
    ],
)
def test_limit_wording_is_matched_by_its_shape(words: str, limited: bool):
    wait = read(status=None, body=words, provider="claude-code", transport="text")
    assert (wait is not None) is limited
    assert wait is None or wait.kind is WaitKind.QUOTA_EXHAUSTED


def test_a_clock_time_is_read_in_the_zone_that_the_caller_names():
    def ends(zone: Any) -> int | None:
        words = "5-hour limit reached ∙ resets 3pm"
        return stated(
            status=None, body=words, provider="claude-code", transport="text", zone=zone
        ).deadline_ms

    assert ends(None) == NOW + 3 * 3_600_000
    assert ends("Europe/Berlin") == NOW + 3_600_000
    assert ends("no/where") is None


def test_frames_of_an_event_stream_are_read_as_they_arrive():
    def frame(headers: dict[str, str], payload: bytes) -> bytes:
        block = b"".join(
            bytes([len(name)]) + name.encode() + b"\x07" + len(value).to_bytes(2, "big")
            + value.encode()
            for name, value in headers.items()
        )  # fmt: skip
        total = 16 + len(block) + len(payload)
        head = total.to_bytes(4, "big") + len(block).to_bytes(4, "big") + bytes(4)
        return head + block + payload + bytes(4)

    said = frame({":event-type": "contentBlockDelta"}, b'{"delta":{"text":"hi"}}')
    failed = frame(
        {":message-type": "exception", ":exception-type": "throttlingException"},
        b'{"message":"Too many tokens, please wait before trying again."}',
    )
    parts = {"status": 200, "provider": "bedrock", "transport": "event_stream"}
    wait = stated(body=said + failed, **parts)
    assert (wait.kind, wait.ends, wait.scope) == ("rate_limited", "unknown", "model")
    assert read(body=said, **parts) is None


@pytest.mark.parametrize(
    "row",
    [row for row in CAPTURED + FURTHER if row["expected_hold"] == "until"],
    ids=lambda row: row["id"],
)
def test_a_provider_that_nobody_named_is_not_read_as_a_shorter_wait(row: dict[str, Any]):
    def read_as(provider: str | None) -> StatedWait:
        wait = read_stated_wait(
            status=row["status"],
            headers=row["headers"],
            body=row["body"],
            received_at=row["received_at"],
            provider=provider,
            transport=row["transport"],
        )
        assert wait is not None, "a limit is a limit, whoever reads it"
        return wait

    named, guessed = read_as(row["provider"]), read_as(None)
    assert guessed.deadline_ms is None or guessed.deadline_ms >= (named.deadline_ms or 0)


@pytest.mark.behaviour("R-35")
@pytest.mark.parametrize(
    ("hours", "week", "binding", "beside"),
    [
        (7_200, 500_000, ("model", 500_000), 7_200),
        (7_200, 7_200, ("model", 7_200), 7_200),
        (500_000, 7_200, ("account", 500_000), None),
        (-60, 7_200, ("model", 7_200), None),
    ],
    ids=["the model's is longer", "equally long", "the account's is longer", "one is over"],
)
def test_a_window_of_a_model_and_one_of_the_account_are_both_told(
    hours: int, week: int, binding: tuple[str, int], beside: int | None
):
    now_s = 1_791_374_400
    windows = {"five_hour": hours, "seven_day_opus": week}
    stated = read_stated_wait(
        status=None,
        headers=None,
        body=json.dumps(
            {
                "rate_limits": {
                    name: {"used_percentage": 100, "resets_at": now_s + left}
                    for name, left in windows.items()
                }
            }
        ),
        received_at=now_s,
        provider="claude-code",
        transport="statusline",
    )
    assert stated is not None
    assert stated.deadline_ms is not None
    assert (stated.scope, stated.deadline_ms // 1_000 - now_s) == binding
    assert stated.account_deadline_ms == (None if beside is None else (now_s + beside) * 1_000)
