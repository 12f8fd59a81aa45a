"""Anthropic: API keys (documented headers) and subscriptions (the undocumented `unified` family).

What tells a subscription's usage window from a per-minute limit is that family with a status of
`rejected`, not the size of Retry-After: the bodies are the same to the byte. Exhausted credit is a
400 whose type is `invalid_request_error`, so its words are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..grammar import Milliseconds, epoch, rfc3339
from ..stated import WaitKind, WaitScope
from .generic import KIND_BY_STATUS, stated
from .response import Reading, Response, Signal, Statement, Verdict

_LIMIT = "anthropic-ratelimit-"
_UNIFIED = "anthropic-ratelimit-unified-"

KIND_BY_TYPE = {
    "rate_limit_error": WaitKind.RATE_LIMITED,
    "overloaded_error": WaitKind.OVERLOADED,
    "billing_error": WaitKind.QUOTA_EXHAUSTED,
    "invalid_request_error": WaitKind.OTHER,
    "authentication_error": WaitKind.OTHER,
    "permission_error": WaitKind.OTHER,
    "not_found_error": WaitKind.OTHER,
    "request_too_large": WaitKind.OTHER,
    "timeout_error": WaitKind.OTHER,
    "api_error": WaitKind.OTHER,
}
_WINDOW_NAMES = {"5h": "five_hour", "7d": "seven_day"}
_EPOCH_MIN_MS = 10**12
"""An epoch below 2001 is a delta that lost its name; it is not read, lest it look past."""

_NO_CREDIT = re.compile(r"credit balance is too low|out of (?:usage )?credits", re.IGNORECASE)
_SPENT = re.compile(r"reached (?:your|its|the) specified (?:\w+ ){0,3}usage limits?", re.IGNORECASE)
_REGAIN = re.compile(
    r"regain access on ([0-9]{4}-[0-9]{2}-[0-9]{2}) at ([0-9]{2}:[0-9]{2}) (?:UTC|GMT)\b"
)
_OF_A_MODEL = re.compile(r"\b(?:tokens|requests) per (?:minute|hour|day)\b", re.IGNORECASE)
_TYPE_IN_TEXT = re.compile(r"\b(rate_limit_error|overloaded_error|billing_error)\b")


def per_minute_windows(response: Response) -> Iterator[Statement]:
    """`anthropic-ratelimit-<what>-reset` (RFC 3339) of each window of which nothing remains.

    Windows of input and of output tokens are a model's; the others do not say whose they are.
    """
    for name in response.headers:
        if not name.startswith(_LIMIT) or name.startswith(_UNIFIED):
            continue
        what, _, field = name.removeprefix(_LIMIT).rpartition("-")
        if field != "remaining" or response.value(name).strip("0"):
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


WINDOWS: tuple[Signal, ...] = (unified_windows, per_minute_windows)


def judge(response: Response) -> Verdict:
    """By the error's type and words first, then by the header family, then by status."""
    errors = list(_errors(response))
    words = " ".join(message for _kind, message in errors)
    if _NO_CREDIT.search(words) or _SPENT.search(words):
        return Verdict(
            WaitKind.QUOTA_EXHAUSTED,
            scope=WaitScope.ACCOUNT,
            statements=(
                *_regained(words),
                *stated(response, limited=True, windows=WINDOWS),
            ),
        )
    kind = _kind(response, [kind for kind, _message in errors])
    scope, window = None, None
    if kind is WaitKind.RATE_LIMITED and _rejected(response):
        kind = WaitKind.QUOTA_EXHAUSTED
        window = response.value(f"{_UNIFIED}representative-claim") or None
        scope = _scope(window or "")
    elif kind is WaitKind.QUOTA_EXHAUSTED:
        scope = WaitScope.ACCOUNT
    elif kind is WaitKind.RATE_LIMITED and _OF_A_MODEL.search(words):
        scope = WaitScope.MODEL
    limited = kind is not WaitKind.OTHER
    return Verdict(
        kind,
        scope=scope,
        window=window,
        statements=stated(response, limited=limited, windows=WINDOWS),
    )


def recognises(response: Response) -> bool:
    """By the header family, or by an error of this wire's shape and one of its own types."""
    if any(name.startswith(_LIMIT) for name in response.headers):
        return True
    return any(
        document.get("type") == "error" and kind in KIND_BY_TYPE
        for document in response.documents
        for kind, _message in _error_of(document)
    )


def _kind(response: Response, types: list[str]) -> WaitKind:
    by_type = [KIND_BY_TYPE[name] for name in types if name in KIND_BY_TYPE]
    limits = [kind for kind in by_type if kind is not WaitKind.OTHER]
    if limits:
        return limits[-1]
    return KIND_BY_STATUS.get(response.status or 0, WaitKind.OTHER)


def _errors(response: Response) -> Iterator[tuple[str, str]]:
    for document in response.documents:
        yield from _error_of(document)
    if not response.documents and response.transport == "text":
        found = _TYPE_IN_TEXT.search(response.text)
        yield (found[1] if found else "", response.text)


def _error_of(document: dict[str, object]) -> Iterator[tuple[str, str]]:
    error = document.get("error")
    if isinstance(error, dict):
        kind, message = error.get("type"), error.get("message")
        yield (
            kind if isinstance(kind, str) else "",
            message if isinstance(message, str) else "",
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
    share = epoch(response.value(f"{_UNIFIED}{short}-utilization"), unit_ms=1_000)
    return share is not None and share >= 1_000


def _reset(response: Response, short: str, window: str | None) -> Iterator[Statement]:
    name = f"{_UNIFIED}{short}-reset" if short else f"{_UNIFIED}reset"
    for value in response.values(name):
        at_ms: Milliseconds | None = epoch(value, unit_ms=1_000)
        if at_ms is None:
            at_ms = rfc3339(value)
        if at_ms is not None and at_ms >= _EPOCH_MIN_MS:
            yield Statement(
                at_ms,
                f"header:{name}",
                f"{name}: {value}",
                window=window,
                scope=_scope(window or ""),
            )


def _window(short: str) -> str:
    """`7d_opus` is `seven_day_opus` where the service names it in a claim."""
    span, _, model = short.partition("_")
    named = _WINDOW_NAMES.get(span, span)
    return f"{named}_{model}" if model else named


def _scope(window: str) -> WaitScope:
    """A span with a model's name behind it is that model's window; any other is the account's."""
    for span in _WINDOW_NAMES.values():
        if window.startswith(f"{span}_"):
            return WaitScope.MODEL
    return WaitScope.ACCOUNT


def _regained(words: str) -> Iterator[Statement]:
    match = _REGAIN.search(words)
    at_ms = None if match is None else rfc3339(f"{match[1]}T{match[2]}:00Z")
    if match is not None and at_ms is not None:
        yield Statement(at_ms, "text:regain access", match[0], scope=WaitScope.ACCOUNT)


READING = Reading("anthropic", judge, recognises)
