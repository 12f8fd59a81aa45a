"""GitHub Copilot: a header or a code says which limit; the words say how long, sometimes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

from ..durations import leading_duration
from ..grammar import duration, instant, percent
from ..stated import WaitKind, WaitScope
from ..windows import UsageWindow
from . import openai
from .generic import UNTILS, in_header
from .response import Response, Statement, usage_window
from .table import KindRow, Reading, UntilRow, line_of_a_limit, named, says_reached, worded

_USAGE = "x-usage-ratelimit-"
_WAIT = re.compile(r"\b(?:wait|try again in) {1,3}", re.IGNORECASE)
_USAGE_WORDS = re.compile(r"\bexceeded your copilot\b", re.IGNORECASE)
_RATE_WORDS = re.compile(r"your request was rate-limited\. please wait", re.IGNORECASE)
_HOUR_MS = 3_600_000


def _quota_header(response: Response) -> bool:
    return response.failing in (402, 403, 429) and (
        "quota" in response.value("x-ratelimit-exceeded").lower()
        or "x-ratelimit-quota-exceeded-retry-after" in response.headers
    )


def _hours(response: Response) -> bool:
    """Whether the words state an hour or more: as long is a usage window, never a rate."""
    words = response.words
    return ("rate-limit" in words.lower() or says_reached(words)) and any(
        (found := leading_duration(words, lead.end())) is not None and found[0] >= _HOUR_MS
        for lead in _WAIT.finditer(words)
    )


def usage_headers(response: Response) -> Iterator[tuple[str, dict[str, str]]]:
    """The fields of each `x-usage-ratelimit-<window>` header: `ent=0&rem=35.3&rst=2026-…`."""
    for name in response.headers:
        if name.startswith(_USAGE):
            pairs = (pair.partition("=") for pair in response.value(name)[:2_000].split("&"))
            yield (
                name.removeprefix(_USAGE),
                {key: unquote(value) for key, _equals, value in pairs},
            )


def usage_windows(response: Response) -> Iterator[UsageWindow]:
    """The windows of those headers, by what remains of each; `ent` says nothing of its share."""
    for name, fields in usage_headers(response):
        left = percent(fields.get("rem", ""))
        used = None if left is None or left > 100 else 100.0 - left
        yield from usage_window(name, used, instant(fields.get("rst")))


def _usage_resets(response: Response) -> Iterator[Statement]:
    for window, fields in usage_headers(response):
        if duration(fields.get("rem", ""), unit_ms=1_000) == 0:
            name = f"{_USAGE}{window}"
            raw = f"{name}: {response.value(name)}"
            at_ms = instant(fields.get("rst"))
            yield Statement(
                at_ms or 0, f"header:{name}", raw, window=window, unstated=at_ms is None
            )


def recognises(response: Response) -> bool:
    return (
        any(
            name.startswith((_USAGE, "x-ratelimit-user-retry-after", "x-ratelimit-quota-exceeded"))
            or name == "x-ratelimit-exceeded"
            for name in response.headers
        )
        or _RATE_WORDS.search(response.words) is not None
        or _USAGE_WORDS.search(response.words) is not None
    )


_QUOTA = WaitKind.QUOTA_EXHAUSTED
READING = Reading(
    "github-copilot",
    "GitHub Copilot",
    (
        named("user_weekly_rate_limited", kind=_QUOTA, scope=WaitScope.ACCOUNT, window="weekly"),
        named(
            "quota_exceeded",
            "session_quota_exceeded",
            "additional_spend_limit_reached",
            "user_monthly_rate_limited",
            "user_session_rate_limited",
            "quota",
            kind=_QUOTA,
            scope=WaitScope.ACCOUNT,
        ),
        KindRow(
            "header",
            "`x-ratelimit-exceeded: quota_exceeded`, `x-ratelimit-quota-exceeded-retry-after`",
            _QUOTA,
            _quota_header,
            WaitScope.ACCOUNT,
        ),
        worded(
            r"\bquota exceeded\b|(?:exceeded|reached) your (?:[\w-]+ ){0,2}(?:weekly|monthly"
            r"|session|premium|copilot|usage) (?:[\w-]+ ){0,3}(?:limit|allowance|quota|usage)"
            r"|you(?:'ve| have) exhausted your (?:[\w-]+ ){0,4}(?:quota|allowance)",
            "quota exceeded; exceeded your weekly (monthly, session, premium) limit; exhausted "
            "your … quota",
            kind=_QUOTA,
            scope=WaitScope.ACCOUNT,
        ),
        worded(
            r"(?:hit|reached|exceeded) the rate limit for this model",
            "hit the rate limit for this model",
            kind=WaitKind.RATE_LIMITED,
            scope=WaitScope.MODEL,
        ),
        KindRow(
            "words",
            "rate-limited, with a wait of an hour or more (no rate lasts as long)",
            _QUOTA,
            _hours,
            WaitScope.ACCOUNT,
        ),
        named("user_model_rate_limited", kind=WaitKind.RATE_LIMITED, scope=WaitScope.MODEL),
        named(
            "user_global_rate_limited",
            "integration_rate_limited",
            "rate_limited",
            "rate_limit",
            kind=WaitKind.RATE_LIMITED,
        ),
        worded(
            r"request was rate-limited|you(?:'ve| have) been rate-limited|\brate limit exceeded"
            r"|you(?:'ve| have) exhausted (?:this|the) (?:[\w'.-]+ ){1,3}rate limit",
            "your request was rate-limited, rate limit exceeded, exhausted this model's rate limit",
            kind=WaitKind.RATE_LIMITED,
        ),
        *openai.KINDS,
        line_of_a_limit(WaitKind.RATE_LIMITED),
    ),
    (
        *UNTILS,
        in_header("x-ratelimit-user-retry-after", unit_ms=1_000),
        in_header("x-ratelimit-quota-exceeded-retry-after", unit_ms=1_000),
        UntilRow(
            "header",
            "`x-usage-ratelimit-<window>: rem=0&rst=…`",
            "RFC 3339, only where `rem` is 0; on a call that went through it is telemetry",
            _usage_resets,
        ),
    ),
    recognises,
    aliases=("copilot",),
    windows=usage_windows,
    windows_how="`x-usage-ratelimit-<window>`: `rem` (the percentage that remains) and `rst`",
)
