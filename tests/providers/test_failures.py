"""Errors of provider libraries, known by their structure."""

from __future__ import annotations

import math
from datetime import timedelta
from decimal import Decimal
from email.message import Message
from fractions import Fraction
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError

import anthropic
import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abeyance.actors.providers import ProviderError, StatedWait, WaitEnds, WaitKind, WaitScope
from abeyance.actors.providers.failures import refusal, understood
from abeyance.actors.providers.stated import longer

NOW_S = 1_791_374_400
NOW = NOW_S * 1_000
TWO_HOURS_MS = 7_200_000


def foreign(name: str, **attributes: Any) -> Exception:
    """An instance of a class of that name from a module that is not ours."""
    kind = type(name, (Exception,), {"__module__": "vendored.library"})
    error = kind(attributes.get("message", "too many requests"))
    for key, value in attributes.items():
        setattr(error, key, value)
    return error  # type: ignore[no-any-return]


def known(error: BaseException, **parts: Any) -> ProviderError:
    found = understood(error, received_at=NOW_S, **parts)
    assert found is not None
    return found


def ends_of(error: BaseException, **parts: Any) -> tuple[WaitEnds, int | None]:
    stated = known(error, **parts).stated
    assert stated is not None
    return stated.ends, stated.deadline_ms


HELD = (WaitEnds.UNTIL, NOW + TWO_HOURS_MS)
STATED = SimpleNamespace(
    kind="quota_exhausted", ends="until", deadline_ms=NOW + TWO_HOURS_MS, scope="account"
)
HEADERS = {"retry-after": "7200"}


@pytest.mark.parametrize(
    "error",
    [
        foreign("ProviderError", stated=STATED, retryable=True),
        foreign("ProviderError", retry_after_ms=TWO_HOURS_MS, retryable=True),
        foreign("MembraneError", retryAfterMs=float(TWO_HOURS_MS)),
        foreign("RateLimitError", retry_after=7_200),
        foreign("RateLimitError", retry_after=7_200.0),
        foreign("RetryableError", retry_after=timedelta(hours=2)),
        foreign("ApplicationError", next_retry_delay=timedelta(hours=2)),
        foreign("RateLimitError", status_code=429, headers=HEADERS, body={"error": {}}),
        foreign("HTTPStatusError", response=SimpleNamespace(
            status_code=429, headers=HEADERS, text="")),
        foreign("ClientError", response={
            "Error": {"Code": "ThrottlingException", "Message": "slow"},
            "ResponseMetadata": {"HTTPStatusCode": 429, "HTTPHeaders": HEADERS}}),
        foreign("ClientError", code=429, details={"error": {"details": [
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7200s"}]}}),
        foreign("RateLimitError", status_code=429, headers={"retry-after": "5"},
                retry_after=7_200),
        foreign("RateLimitError", status_code=429, headers=HEADERS, retry_after=5),
    ],
    ids=lambda error: f"{type(error).__name__}-{'-'.join(vars(error))}",
)  # fmt: skip
@pytest.mark.parametrize("wrapped", ["alone", "group", "nested", "cause"])
def test_an_error_of_another_copy_of_a_library_is_known_by_its_structure(
    error: Exception, wrapped: str
):
    thrown: Exception = error
    if wrapped == "group":
        thrown = ExceptionGroup("several", [ValueError("other"), error])
    elif wrapped == "nested":
        thrown = ExceptionGroup("outer", [ExceptionGroup("inner", [error]), KeyError("x")])
    elif wrapped == "cause":
        thrown = ConnectionError("wrapped")
        thrown.__cause__ = error
    failed = known(thrown)
    assert ends_of(thrown) == HELD
    assert failed.retryable


def sdk_errors() -> list[Exception]:
    request = httpx2.Request("POST", "http://provider/v1")
    response = httpx2.Response(429, headers=HEADERS, json={"error": {}}, request=request)
    return [
        anthropic.RateLimitError("slow", response=response, body=None),
        openai.RateLimitError("slow", response=response, body={"error": {}}),
        httpx2.HTTPStatusError("slow", request=request, response=response),
    ]


@pytest.mark.parametrize("error", sdk_errors(), ids=lambda error: type(error).__module__)
def test_what_the_official_libraries_raise_is_known(error: Exception):
    assert ends_of(error) == HELD
    assert known(error).status == 429


def test_headers_of_the_standard_librarys_client_are_read_line_by_line():
    headers = Message()
    headers["Retry-After"] = "5"
    headers["Retry-After"] = "7200"
    assert ends_of(HTTPError("http://provider/v1", 429, "slow", headers, None)) == HELD


def test_a_wait_that_only_an_errors_own_words_state_is_read():
    error = foreign("RateLimitError", status_code=429, message="slow; please try again in 2h0m0s")
    assert ends_of(error) == HELD


def test_a_refusal_that_was_being_handled_when_another_error_was_raised_counts():
    refused = foreign("RateLimitError", status_code=429, headers=HEADERS)
    try:
        try:
            raise refused
        except Exception:
            raise RuntimeError("clumsily wrapped")  # noqa: B904 - that is the case.
    except RuntimeError as error:
        thrown = error
    assert ends_of(thrown) == HELD
    try:
        try:
            raise refused
        except Exception:
            raise RuntimeError("hidden") from None
    except RuntimeError as error:
        thrown = error
    assert understood(thrown, received_at=NOW_S) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Decimal("7200"), HELD),
        (Fraction(7_200), HELD),
        (Decimal("7199.9999999999999999999"), HELD),
        (Decimal("-1e400"), (WaitEnds.ALREADY_OVER, None)),
        (Decimal("1e400"), (WaitEnds.UNTIL_RELEASED, None)),
        (Decimal("NaN"), (WaitEnds.UNTIL_RELEASED, None)),
        (Decimal("sNaN"), (WaitEnds.UNTIL_RELEASED, None)),
        (Fraction(10**400), (WaitEnds.UNTIL_RELEASED, None)),
    ],
    ids=str,
)
def test_an_exact_number_states_a_wait_and_is_rounded_up(value: Any, expected: Any):
    assert ends_of(foreign("RateLimitError", retry_after=value)) == expected


@pytest.mark.behaviour("W-011")
@pytest.mark.parametrize("value", ["60", None, True, b"60", [60], {"s": 60}], ids=repr)
def test_only_a_number_states_a_wait_in_a_typed_error(value: Any):
    assert understood(foreign("RateLimitError", retry_after=value), received_at=NOW_S) is None
    error = foreign("RateLimitError", status_code=429, retry_after_ms=value)
    assert ends_of(error) == (WaitEnds.UNKNOWN, None)


@pytest.mark.parametrize(
    ("value", "ends"),
    [
        (0, WaitEnds.ALREADY_OVER),
        (-1, WaitEnds.ALREADY_OVER),
        (-0.4, WaitEnds.ALREADY_OVER),
        (-math.inf, WaitEnds.ALREADY_OVER),
        (math.nan, WaitEnds.UNTIL_RELEASED),
        (math.inf, WaitEnds.UNTIL_RELEASED),
        (10**400, WaitEnds.UNTIL_RELEASED),
        (8.64e15, WaitEnds.UNTIL_RELEASED),
    ],
)
def test_a_typed_wait_that_is_no_instant_is_over_or_holds(value: float, ends: WaitEnds):
    assert ends_of(foreign("RateLimitError", retry_after_ms=value)) == (ends, None)


def test_of_a_group_the_longest_wait_counts():
    group = ExceptionGroup(
        "several",
        [
            foreign("RateLimitError", retry_after=5),
            foreign("RateLimitError", retry_after=7_200),
            foreign("RateLimitError", status_code=429),
        ],
    )
    assert ends_of(group) == HELD


def until(seconds: float, **parts: Any) -> StatedWait:
    kind = parts.pop("kind", WaitKind.RATE_LIMITED)
    deadline_ms = NOW + int(seconds * 1_000)
    return StatedWait(kind=kind, ends=WaitEnds.UNTIL, deadline_ms=deadline_ms, **parts)


def refused(seconds: str = "7200") -> Exception:
    return foreign("RateLimitError", status_code=429, headers={"retry-after": seconds})


def test_an_adapters_own_word_stands_but_for_a_longer_wait_of_what_it_was_made_from():
    mine = ProviderError("no", retryable=False, status=418, said="teapot")
    mine.__cause__ = refused()
    assert understood(mine, received_at=NOW_S) is mine
    assert (mine.retryable, mine.status, mine.said) == (False, 418, "teapot")
    assert ends_of(mine) == HELD
    assert understood(mine, received_at=NOW_S + 60) is mine
    assert ends_of(mine) == HELD, "read again, it says what it said"


@pytest.mark.behaviour("W-126")
@pytest.mark.parametrize("behind", ["cause", "context", "its own attribute", "a cause's cause"])
def test_no_wait_is_lost_on_its_way_up_to_an_adapters_own_error(behind: str):
    mine = ProviderError("no", retryable=True, stated=until(5))
    match behind:
        case "cause":
            mine.__cause__ = refused()
        case "context":
            mine.__context__ = refused()
        case "its own attribute":
            mine.retry_after_ms = TWO_HOURS_MS  # type: ignore[attr-defined]
        case _:
            mine.__cause__ = ProviderError("no", retryable=True)
            mine.__cause__.__cause__ = refused()
    assert ends_of(mine) == HELD


@pytest.mark.parametrize(
    ("own", "behind"),
    [(until(7_200), "5"), (until(7_200), "soon"), (until(7_200), "0")],
    ids=["a shorter", "none", "one that is over"],
)
def test_an_adapters_longer_word_stands(own: StatedWait, behind: str):
    mine = ProviderError("no", retryable=True, stated=own)
    mine.__cause__ = refused(behind)
    assert known(mine).stated is own


def test_what_states_no_wait_behind_an_adapters_error_makes_it_no_limit():
    mine = ProviderError("no", retryable=False)
    mine.__cause__ = foreign("RateLimitError", status_code=429, body={"error": {
        "type": "insufficient_quota"}})  # fmt: skip
    assert known(mine).stated is None


def test_a_fallback_that_fails_does_not_take_over_what_the_first_call_was_told():
    first = ProviderError("no", retryable=True, stated=until(7_200))
    second = ProviderError("nor this one", retryable=True)
    second.__context__ = first
    assert known(second).stated is None


def test_a_refusal_that_was_read_whole_is_not_read_again():
    error = refusal(provider="anthropic", status=429, headers={"retry-after": "5"}, body="",
                    message="", received_at=NOW_S)  # fmt: skip
    error.__cause__ = refused()
    assert ends_of(error) == (WaitEnds.UNTIL, NOW + 5_000)
    body_only = refusal(provider="anthropic", status=429, headers=None, body="", message="",
                        received_at=NOW_S)  # fmt: skip
    body_only.__cause__ = refused()
    assert ends_of(body_only) == HELD


def test_errors_that_stand_behind_one_another_in_a_ring_are_each_looked_at_once():
    one = ProviderError("one", retryable=True)
    two = ProviderError("two", retryable=True, stated=until(7_200))
    one.__cause__, two.__cause__ = two, one
    assert ends_of(one) == HELD


def test_a_copied_statement_does_not_shorten_what_the_response_states():
    copy = SimpleNamespace(kind="rate_limited", ends="until", deadline_ms=NOW + 1_000, scope=None)
    error = foreign("ProviderError", status_code=429, headers=HEADERS, stated=copy)
    assert ends_of(error) == HELD


def test_of_several_errors_the_longest_wait_binds_and_the_accounts_stands_beside_it():
    week = until(500_000, scope=WaitScope.MODEL)
    hours = until(7_200, scope=WaitScope.ACCOUNT)
    mine = ProviderError("no", retryable=True, stated=hours)
    mine.__cause__ = ProviderError("no", retryable=True, stated=week)
    group = ExceptionGroup(
        "several", [ProviderError("no", retryable=True, stated=one) for one in (hours, week)]
    )
    for error in (mine, group):
        stated = known(error).stated
        assert stated is not None
        assert (stated.deadline_ms, stated.scope) == (NOW + 500_000_000, WaitScope.MODEL)
        assert stated.account_deadline_ms == NOW + TWO_HOURS_MS


@pytest.mark.parametrize("flip", [False, True])
def test_of_two_waits_without_an_end_the_accounts_is_the_one_that_is_told(flip: bool):
    ends, kind = WaitEnds.UNTIL_RELEASED, WaitKind.QUOTA_EXHAUSTED
    two = [StatedWait(kind=kind, ends=ends, scope=scope) for scope in WaitScope]
    stated = longer(*(reversed(two) if flip else two))
    assert stated is not None
    assert (stated.ends, stated.scope) == (ends, WaitScope.ACCOUNT)


@pytest.mark.parametrize("stated", ["60", 60, ..., True], ids=repr)
def test_an_adapter_that_states_nonsense_in_a_group_raises_nothing(stated: Any):
    mine = ProviderError("no", retryable=True, stated=stated)
    group = ExceptionGroup("several", [mine, foreign("RateLimitError", retry_after=7_200)])
    assert ends_of(group) == HELD
    deadline: Any = "soon"
    odd = StatedWait(kind=WaitKind.RATE_LIMITED, ends=WaitEnds.UNTIL, deadline_ms=deadline)
    assert known(ExceptionGroup("g", [ProviderError("no", retryable=True, stated=odd)]))


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), KeyError("429"), RuntimeError("rate limit"), foreign("Odd", status_code=200),
     foreign("Odd", code="429"), ExceptionGroup("g", [ValueError("x")])],
    ids=repr,
)  # fmt: skip
def test_an_error_that_is_no_providers_is_left_alone(error: Exception):
    assert understood(error, received_at=NOW_S) is None


class Hostile(Exception):
    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return super().__getattribute__(name)
        raise RuntimeError(name)

    def __str__(self) -> str:
        raise RuntimeError("text")


def test_looking_at_a_hostile_error_raises_nothing():
    assert understood(Hostile(), received_at=NOW_S) is None
    assert known(foreign("RateLimitError", status_code=429, headers=Hostile())).retryable
    looped = ValueError("x")
    looped.__cause__ = KeyError("y")
    looped.__cause__.__cause__ = looped
    assert understood(looped, received_at=NOW_S) is None


ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=8,
)
NAMES = st.sampled_from(
    ["status_code", "status", "code", "headers", "body", "response", "details", "retry_after",
     "retry_after_ms", "next_retry_delay", "stated", "retryable", "message", "said"]
)  # fmt: skip


@given(st.dictionaries(NAMES, ANYTHING, max_size=6), ANYTHING)
def test_no_attribute_of_an_error_raises(attributes: dict[str, Any], received_at: Any):
    failed = understood(foreign("Odd", **attributes), received_at=received_at)
    if failed is not None:
        assert failed.said.isprintable()
        assert len(failed.said) <= 300


@pytest.mark.parametrize("retryable", [True, False])
def test_a_refusal_says_what_can_be_done_in_words_that_an_operator_can_act_on(retryable: bool):
    """Where the provider said nothing it is what is listed beside the wait."""
    failed = refusal(
        provider="p",
        status=429,
        headers={"retry-after": "60"},
        body="",
        message="",
        received_at=NOW_S,
        retryable=retryable,
    )
    assert failed.said == ""
    done = "the call may be made again once nothing holds it"
    assert str(failed).endswith(done) is retryable
    assert "gate" not in str(failed)


@pytest.mark.behaviour("W-127", "W-116")
def test_the_words_of_a_refusal_are_short_and_on_one_line():
    message = "over\n[ops] released\x85\u2028\u202e\x9b\x7f" + "x" * 1_000_000
    failed = refusal(
        provider="p", status=429, headers={}, body=message, message=message, received_at=NOW_S
    )
    assert len(failed.said) <= 300
    assert failed.said.isprintable()
    assert len(str(failed).splitlines()) == 1
    assert isinstance(failed.stated, StatedWait)
    assert failed.stated.kind is WaitKind.RATE_LIMITED
    assert len(failed.stated.raw) <= 300
    assert failed.stated.raw.isprintable()
