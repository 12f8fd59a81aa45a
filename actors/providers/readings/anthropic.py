"""Anthropic: API keys (documented headers) and subscriptions (the undocumented `unified` family).

What tells a subscription's usage window from a per-minute limit is that family with a status of
`rejected`, not the size of Retry-After: the bodies are the same to the byte. Exhausted credit is a
400 whose type is `invalid_request_error`, so its words are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..grammar import Milliseconds, duration, instant, percent, rfc3339
from ..stated import WaitKind, WaitScope
from ..windows import UsageWindow
from .generic import EXPLICIT, FIELDS, SAID, spent
from .response import Response, Statement, usage_window
from .table import KindRow, Reading, UntilRow, named, worded

_LIMIT = "anthropic-ratelimit-"
_UNIFIED = "anthropic-ratelimit-unified-"

TYPES = frozenset(
    (
        "rate_limit_error",
        "overloaded_error",
        "billing_error",
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "not_found_error",
        "request_too_large",
        "timeout_error",
        "api_error",
    )
)
_WINDOW_NAMES = {"5h": "five_hour", "7d": "seven_day"}
_REGAIN = re.compile(
    r"regain access on ([0-9]{4}-[0-9]{2}-[0-9]{2}) at ([0-9]{2}:[0-9]{2}) (?:UTC|GMT)\b"
)
_OF_A_MODEL = re.compile(r"\b(?:tokens|requests) per (?:minute|hour|day)\b", re.IGNORECASE)


def per_minute_windows(response: Response) -> Iterator[Statement]:
    """`anthropic-ratelimit-<what>-reset` (RFC 3339) of each window of which nothing remains.

    Windows of input and of output tokens are a model's; the others do not say whose they are.
    """
    for name in response.headers:
        if not name.startswith(_LIMIT) or name.startswith(_UNIFIED):
            continue
        what, _, field = name.removeprefix(_LIMIT).rpartition("-")
        if field != "remaining" or not spent(response.value(name)):
            continue
        reset = f"{_LIMIT}{what}-reset"
        for value in response.values(reset):
            at_ms = rfc3339(value)
            if at_ms is not None:
                model = what in ("input-tokens", "output-tokens")
                yield Statement(
                    at_ms,
                    f"header:{reset}",
                    f"{reset}: {value}",
                    window=what,
                    scope=WaitScope.MODEL if model else None,
                )


def unified_windows(response: Response) -> Iterator[Statement]:
    """`unified-<window>-reset` (epoch seconds) of each window that is used up.

    Overage is not a window: its `rejected` only says that nothing may be bought on top, unless it
    is what the response names as the claim that was turned down.
    """
    if not _rejected(response):
        return
    claim = response.value(f"{_UNIFIED}representative-claim")
    yield from _reset(response, "", claim or None)
    for name in response.headers:
        if not name.startswith(_UNIFIED) or not name.endswith("-reset"):
            continue
        short = name.removeprefix(_UNIFIED).removesuffix("-reset")
        if _used_up(response, short, claim):
            yield from _reset(response, short, _window(short))


def usage_windows(response: Response) -> Iterator[UsageWindow]:
    """Share and reset of each `unified` window, whatever its status. Overage is none."""
    for name in response.headers:
        if not name.startswith(_UNIFIED) or not name.endswith("-reset"):
            continue
        short = name.removeprefix(_UNIFIED).removesuffix("-reset")
        if short not in ("reset", "overage"):
            yield from usage_window(
                _window(short),
                percent(response.value(f"{_UNIFIED}{short}-utilization"), whole=1),
                instant(response.value(name)),
                scope_of(_window(short)),
            )


def _rejected(response: Response) -> bool:
    """Whether the family says that a window turned this call down."""
    overall = response.value(f"{_UNIFIED}status").lower()
    if overall:
        return overall == "rejected"
    return any(
        name.startswith(_UNIFIED)
        and name.endswith("-status")
        and not name.startswith(f"{_UNIFIED}overage")
        and response.value(name).lower() == "rejected"
        for name in response.headers
    )


def _used_up(response: Response, short: str, claim: str) -> bool:
    if _window(short) == claim:
        return True
    if short == "overage":
        return False
    status = response.value(f"{_UNIFIED}{short}-status").lower()
    if status:
        return status == "rejected"
    share = duration(response.value(f"{_UNIFIED}{short}-utilization"), unit_ms=1_000)
    return share is not None and share >= 1_000


def _reset(response: Response, short: str, window: str | None) -> Iterator[Statement]:
    name = f"{_UNIFIED}{short}-reset" if short else f"{_UNIFIED}reset"
    for value in response.values(name):
        at_ms: Milliseconds | None = instant(value)
        if at_ms is not None:
            yield Statement(
                at_ms,
                f"header:{name}",
                f"{name}: {value}",
                window=window,
                scope=scope_of(window or ""),
            )


def _window(short: str) -> str:
    """`7d_opus` is `seven_day_opus` where the service names it in a claim."""
    span, _, model = short.partition("_")
    named = _WINDOW_NAMES.get(span, span)
    return f"{named}_{model}" if model else named


def scope_of(window: str) -> WaitScope:
    """A span with a model's name behind it is that model's window; any other is the account's."""
    for span in _WINDOW_NAMES.values():
        if window.startswith(f"{span}_"):
            return WaitScope.MODEL
    return WaitScope.ACCOUNT


def _regained(response: Response) -> Iterator[Statement]:
    match = _REGAIN.search(response.words)
    at_ms = None if match is None else rfc3339(f"{match[1]}T{match[2]}:00Z")
    if match is not None and at_ms is not None:
        yield Statement(at_ms, "text:regain access", match[0], scope=WaitScope.ACCOUNT)


def _limited(response: Response) -> bool:
    return "rate_limit_error" in response.names or response.failing == 429


def _claimed(response: Response) -> tuple[WaitScope, str | None]:
    claim = response.value(f"{_UNIFIED}representative-claim")
    return scope_of(claim), claim or None


def recognises(response: Response) -> bool:
    """By the header family, or by an error of this wire's shape and one of its own types."""
    if any(name.startswith(_LIMIT) for name in response.headers):
        return True
    return any(
        data.get("type") == "error" and isinstance(error := data.get("error"), dict)
        and isinstance(kind := error.get("type"), str) and kind in TYPES
        for _event, data in response.documents
    )  # fmt: skip


KINDS = (
    worded(
        r"credit balance is too low|out of (?:usage )?credits"
        r"|reached (?:your|its|the) specified (?:\w+ ){0,3}usage limits?"
        r"|(?:extra usage|usage credits) (?:is|are) required|monthly (?:spend|usage) limit",
        "credit balance too low, specified usage limit reached, monthly limit, credits required",
        kind=WaitKind.QUOTA_EXHAUSTED,
        scope=WaitScope.ACCOUNT,
    ),
    named("billing_error", kind=WaitKind.QUOTA_EXHAUSTED, scope=WaitScope.ACCOUNT),
    named("overloaded_error", kind=WaitKind.OVERLOADED),
    KindRow(
        "header",
        "a limit (`rate_limit_error` or 429) with `anthropic-ratelimit-unified-status: rejected`",
        WaitKind.QUOTA_EXHAUSTED,
        lambda response: _limited(response) and _rejected(response),
        WaitScope.ACCOUNT,
        refined=_claimed,
    ),
    KindRow(
        "words",
        "a limit that names tokens or requests per minute, hour or day",
        WaitKind.RATE_LIMITED,
        lambda response: _limited(response) and bool(_OF_A_MODEL.search(response.words)),
        WaitScope.MODEL,
    ),
    named("rate_limit_error", kind=WaitKind.RATE_LIMITED),
)
UNTILS = (
    SAID,
    FIELDS,
    UntilRow(
        "words",
        "`regain access on <date> at <time> UTC`",
        "a moment, in UTC",
        _regained,
    ),
    *EXPLICIT,
    UntilRow(
        "header",
        "`anthropic-ratelimit-unified-<window>-reset`",
        "epoch seconds, of each window that is used up: status `rejected`, a whole share, or the "
        "claim that was turned down. `overage` counts only as that claim. `7d_<model>` is a "
        "model's own week",
        unified_windows,
    ),
    UntilRow(
        "header",
        "`anthropic-ratelimit-<what>-reset`",
        "RFC 3339, only where `…-remaining` is 0. Input and output tokens are a model's",
        per_minute_windows,
    ),
)

READING = Reading(
    "anthropic",
    "Anthropic API",
    KINDS,
    UNTILS,
    recognises,
    aliases=("claude",),
    notes="An error in a stream (`event: error`) is read like one with a status of its own.",
    windows=usage_windows,
    windows_how="`anthropic-ratelimit-unified-<window>-utilization` (a share of 1) and `-reset`",
)
