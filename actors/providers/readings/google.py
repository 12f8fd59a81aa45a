"""What Google's APIs share: `google.rpc` details. Not a provider of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ..clocks import next_midnight
from ..durations import spelled_duration
from ..grammar import Milliseconds, instant, number
from ..stated import WaitKind, WaitScope
from .generic import EXPLICIT, SAID, WINDOWS, objects_of, quoted
from .response import Response, Statement, after
from .table import KindRow, UntilRow, line_of_a_limit, worded

_LIMIT_VALUE = re.compile(r"\blimit: ([0-9]+)")
_TYPE = "type.googleapis.com/google.rpc."
_PER_DAY = re.compile(r"PerDay|per_day", re.IGNORECASE)
_PER_MODEL = re.compile(r"PerModel|per_base_model|per_model", re.IGNORECASE)
_CLIENT = re.compile(
    r"\b429 (?:resource (?:has been )?exhausted|you exceeded your current quota)", re.IGNORECASE
)
_RETRY_DELAY = re.compile(
    r"\bretry_delay:? ?\{\s{0,20}(?:seconds: ([0-9]+)\s{0,20})?(?:nanos: ([0-9]+)\s{0,20})?\}"
)
_WORDS_MAX = 20_000
PACIFIC = "America/Los_Angeles"


def details(response: Response, kind: str) -> Iterator[Mapping[str, object]]:
    """The error's details of one `google.rpc` type."""
    for each in objects_of(response):
        if each.get("@type") == _TYPE + kind:
            yield each


def violations(response: Response) -> Iterator[str]:
    """The ids of the quotas that were exceeded."""
    for failure in details(response, "QuotaFailure"):
        found = failure.get("violations")
        for violation in found[:64] if isinstance(found, list) else ():
            if isinstance(violation, dict):
                for key in ("quotaId", "quotaMetric", "subject"):
                    if isinstance(violation.get(key), str):
                        yield violation[key][:400]


def reasons(response: Response) -> set[str]:
    return {str(each["reason"]) for each in details(response, "ErrorInfo")
            if isinstance(each.get("reason"), str)}  # fmt: skip


def proto_duration(value: object) -> Milliseconds | None:
    """`"34.07s"`, or the object form with seconds and nanoseconds. A negative one is over."""
    if isinstance(value, str):
        said = value.strip()
        if said.startswith("-"):
            return None if spelled_duration(said[1:]) is None else 0
        return spelled_duration(said)
    if isinstance(value, dict):
        seconds = number(value.get("seconds", 0), unit_ms=1_000)
        nanos = number(value.get("nanos", 0), unit_ms=1)
        return None if seconds is None or nanos is None else seconds + -(-nanos // 1_000_000)
    return None


def per_day(response: Response) -> bool:
    return any(_PER_DAY.search(each) for each in violations(response))


def never(response: Response) -> bool:
    """Whether every quota that the words name is zero: there is nothing to wait for."""
    limits = _LIMIT_VALUE.findall(response.words[:20_000])
    return bool(limits) and not any(limit.strip("0") for limit in limits)


def words_of_client(response: Response) -> bool:
    """Whether the words are those of Google's older client library."""
    return _CLIENT.search(response.words[:_WORDS_MAX]) is not None


def _retry_delay(response: Response) -> Iterator[Statement]:
    if never(response):
        return
    for said in _RETRY_DELAY.finditer(response.words):
        seconds, nanos = (number(each or "0", unit_ms=1) for each in said.groups())
        wait_ms = (seconds or 0) * 1_000 + -(-(nanos or 0) // 1_000_000)
        yield after(response, wait_ms, "text:retry_delay", " ".join(said[0].split()))


def _scope(response: Response) -> WaitScope | None:
    ids = list(violations(response))
    per_model = bool(ids) and any(_PER_MODEL.search(each) for each in ids)
    return WaitScope.MODEL if per_model else None


def _retry_info(response: Response) -> Iterator[Statement]:
    if never(response):
        return
    for info in details(response, "RetryInfo"):
        wait_ms = proto_duration(info.get("retryDelay", info.get("retry_delay")))
        if wait_ms is not None:
            raw = quoted("retryDelay", info.get("retryDelay"))
            yield after(response, wait_ms, "body:RetryInfo", raw, scope=_scope(response))


def _midnight(response: Response) -> Iterator[Statement]:
    at_ms = next_midnight(response.received_ms, PACIFIC) if per_day(response) else None
    if at_ms is not None and not never(response):
        raw = next(each for each in violations(response) if _PER_DAY.search(each))
        yield Statement(at_ms, "doc:midnight Pacific", raw, window="PerDay", scope=_scope(response))


def _quota_reset(response: Response) -> Iterator[Statement]:
    for info in details(response, "ErrorInfo"):
        metadata = info.get("metadata")
        if not isinstance(metadata, dict):
            continue
        delay, stamp = metadata.get("quotaResetDelay"), metadata.get("quotaResetTimeStamp")
        wait_ms, at_ms = proto_duration(delay), instant(stamp)
        wait = None
        if wait_ms is not None:
            wait = after(
                response, wait_ms, "body:quotaResetDelay", quoted("quotaResetDelay", delay)
            )
            yield wait
        # The time stamp is the same instant in whole seconds, rounded up.
        if at_ms is not None and (wait is None or at_ms > wait.at_ms + 1_000):
            raw = quoted("quotaResetTimeStamp", stamp)
            yield Statement(at_ms, "body:quotaResetTimeStamp", raw)


def has_details(response: Response) -> bool:
    return any(str(each.get("@type", ""))[:80].startswith(_TYPE) for each in objects_of(response))


NEVER = KindRow(
    "words",
    "every quota that is named has `limit: 0` (there is nothing to wait for)",
    WaitKind.QUOTA_EXHAUSTED,
    never,
    WaitScope.MODEL,
)
DAILY = KindRow(
    "error",
    "`QuotaFailure` with a `…PerDay…` quota id, also beside one per minute",
    WaitKind.QUOTA_EXHAUSTED,
    per_day,
    refined=lambda response: (_scope(response), "PerDay"),
)
NO_CREDIT = worded(
    r"(?:prepayment )?credits are depleted|billing account .{0,40}disabled|spending cap",
    "credits are depleted, spending cap",
    kind=WaitKind.QUOTA_EXHAUSTED,
    scope=WaitScope.ACCOUNT,
)
BUSY = worded(
    r"\boverloaded\b|experiencing high demand|no capacity available",
    "overloaded, high demand, no capacity",
    kind=WaitKind.OVERLOADED,
)
RATE = KindRow(
    "error",
    "`RESOURCE_EXHAUSTED` otherwise, also as the words `429 Resource (has been) exhausted`",
    WaitKind.RATE_LIMITED,
    lambda response: (
        "resource_exhausted" in response.names
        or response.failing == 429
        or words_of_client(response)
    ),
)
UNAVAILABLE = KindRow(
    "error",
    "`UNAVAILABLE`",
    WaitKind.OVERLOADED,
    lambda response: "unavailable" in response.names,
)
ERRORS = (NEVER, DAILY, NO_CREDIT, BUSY, RATE, UNAVAILABLE)
LINE = line_of_a_limit(WaitKind.RATE_LIMITED)
KINDS = (*ERRORS, LINE)
_SAID = UntilRow(
    SAID.where,
    SAID.what,
    SAID.how + ". Not where every quota named is 0",
    lambda response: () if never(response) else SAID.read(response),
)
MIDNIGHT = UntilRow(
    "error",
    "`QuotaFailure` with a `…PerDay…` quota id",
    "the next midnight in America/Los_Angeles, where daily quotas are documented to reset; a "
    "short `retryDelay` beside it does not end the day",
    _midnight,
)
UNTILS = (
    _SAID,
    *WINDOWS,
    *EXPLICIT,
    UntilRow(
        "error",
        "`ErrorInfo`: `quotaResetDelay`, `quotaResetTimeStamp`",
        "a spelled duration; RFC 3339. A time stamp within a second of the delay is the same "
        "instant rounded up, and the delay is read",
        _quota_reset,
    ),
    UntilRow(
        "error",
        "`RetryInfo.retryDelay`",
        "a protobuf duration: seconds with a fraction and an `s`, or an object",
        _retry_info,
    ),
    UntilRow(
        "words",
        "`retry_delay { seconds: 34 }`",
        "the same as the older client library prints it",
        _retry_delay,
    ),
    MIDNIGHT,
)
