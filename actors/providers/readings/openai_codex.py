"""OpenAI Codex with a ChatGPT plan: usage windows in headers, in the body, in events, in words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ..grammar import Milliseconds, instant, number, percent
from ..stated import WaitKind, WaitScope
from ..windows import UsageWindow
from . import openai
from .generic import FIELDS, UNTILS, full, quoted, said
from .response import Response, Statement, after, usage_window
from .table import KindRow, Reading, UntilRow, named, worded

_USED = re.compile(r"(x-codex-(?:[a-z0-9_]+-)*(?:primary|secondary))-used-percent")
_LIMIT = (
    r"(?<!\bif )(?<!\bwhen )\byou(?:'ve| have)? (?:hit|reached|exceeded) (?:your|the) "
    r"(?:[\w.-]+ ){0,3}(?:usage )?limit"
)
_OF_A_MODEL = re.compile(rf"{_LIMIT} for \S", re.IGNORECASE)
_MINUTES = {300: "five_hour", 10_080: "seven_day"}
REPEATED_WITHIN_MS = 1_000
"""Two fields of one window differ by so much where one of them is in whole seconds."""


def window_statements(
    response: Response,
    at_ms: float | int | None,
    wait: Statement | None,
    source: str,
    raw: str,
    window: str | None,
) -> Iterator[Statement]:
    """An instant and a duration of one window: within a second of each other they are one."""
    if at_ms is not None:
        yield Statement(at_ms, source, raw, window=window)
    if wait is not None and (at_ms is None or wait.at_ms > at_ms + REPEATED_WITHIN_MS):
        yield wait
    if at_ms is None and wait is None:
        yield Statement(0, source, raw, window=window, unstated=True)


def _header_windows(response: Response) -> Iterator[Statement]:
    for prefix in used_up(response):
        window = _window(response.value(f"{prefix}-window-minutes"), prefix)
        at = response.value(f"{prefix}-reset-at")
        left = response.value(f"{prefix}-reset-after-seconds")
        wait_ms = number(left, unit_ms=1_000)
        name = f"{prefix}-reset-after-seconds"
        wait = (
            after(response, wait_ms, f"header:{name}", f"{name}: {left}", window=window)
            if wait_ms
            else None
        )
        name = f"{prefix}-reset-at"
        yield from window_statements(
            response, instant(at), wait, f"header:{name}", f"{name}: {at}", window
        )


def used_up(response: Response) -> Iterator[str]:
    """The prefix of each window in the headers that is used up."""
    for name in response.headers:
        match = _USED.fullmatch(name[:200])
        if match is not None and full(response.value(name)):
            yield match[1]


def _event_windows(response: Response) -> Iterator[Statement]:
    for name, window in event_windows(response):
        if not full(window.get("used_percent")):
            continue
        at_ms = instant(window.get("reset_at", window.get("resets_at")))
        seconds = window.get("reset_after_seconds", window.get("resets_in_seconds"))
        wait_ms = number(seconds, unit_ms=1_000)
        span = _window(window.get("window_minutes"), name)
        source = f"event:{name}"
        raw = quoted(source, window.get("reset_at"))
        wait = after(response, wait_ms, source, raw, window=span) if wait_ms else None
        yield from window_statements(response, at_ms, wait, source, raw, span)


def event_windows(response: Response) -> Iterator[tuple[str, Mapping[str, object]]]:
    """The windows of a `codex.rate_limits` event that says that a limit was reached."""
    for limits in _events(response):
        if limits.get("limit_reached") is True:
            yield from _windows_of(limits)


def _told_windows(response: Response) -> Iterator[tuple[str, Mapping[str, object]]]:
    for limits in _events(response):
        yield from _windows_of(limits)


def _events(response: Response) -> Iterator[Mapping[str, object]]:
    for _event, data in response.documents:
        limits = data.get("rate_limits") if data.get("type") == "codex.rate_limits" else None
        if isinstance(limits, dict):
            yield limits


def _windows_of(limits: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, object]]]:
    for name in ("primary", "secondary"):
        stated = limits.get(name)
        if isinstance(stated, dict):
            yield name, stated


def usage_windows(response: Response) -> Iterator[UsageWindow]:
    """The windows in the headers and in `codex.rate_limits` events, full or not."""
    for name in response.headers:
        match = _USED.fullmatch(name[:200])
        if match is None:
            continue
        prefix = match[1]
        yield from usage_window(
            _window(response.value(f"{prefix}-window-minutes"), prefix),
            percent(response.value(name)),
            _reset(
                response,
                response.value(f"{prefix}-reset-at"),
                response.value(f"{prefix}-reset-after-seconds"),
            ),
        )
    for name, stated in _told_windows(response):
        yield from usage_window(
            _window(stated.get("window_minutes"), name),
            percent(stated.get("used_percent")),
            _reset(
                response,
                stated.get("reset_at", stated.get("resets_at")),
                stated.get("reset_after_seconds", stated.get("resets_in_seconds")),
            ),
        )


def _reset(response: Response, at: object, left: object) -> Milliseconds | None:
    """The later of an instant and the seconds to go; within a second they are one."""
    at_ms = instant(at)
    wait_ms = number(left, unit_ms=1_000)
    if not wait_ms or response.received_ms is None:
        return at_ms
    ends_ms = response.received_ms + wait_ms
    return ends_ms if at_ms is None or ends_ms > at_ms + REPEATED_WITHIN_MS else at_ms


def _window(minutes: object, name: str) -> str:
    span = number(minutes, unit_ms=1)
    return _MINUTES.get(int(span), name) if span is not None and span < 10**9 else name


def recognises(response: Response) -> bool:
    return (
        any(_USED.fullmatch(name[:200]) for name in response.headers)
        or bool({"usage_limit_reached", "usage_not_included"} & response.names)
        or (response.transport == "text" and _WORDS.matches(response))
        or any(True for _ in event_windows(response))
    )


_QUOTA = WaitKind.QUOTA_EXHAUSTED
_WORDS = worded(_LIMIT, "you've hit your … limit", kind=_QUOTA)


def _model_s(response: Response) -> tuple[WaitScope | None, str | None]:
    return (WaitScope.MODEL if _OF_A_MODEL.search(response.words) else None), None


KINDS = (
    named("usage_not_included", kind=WaitKind.OTHER),
    named(
        "usage_limit_reached", "usage_limit_exceeded", "usageLimitExceeded",
        kind=_QUOTA, scope=WaitScope.ACCOUNT,
    ),
    KindRow("words", "you've hit your … limit (`for <model>`: that model's)", _QUOTA,
            _WORDS.matches, WaitScope.ACCOUNT, refined=_model_s),
    KindRow(
        "header",
        "429 with `x-codex-…-used-percent` of 100 or more",
        _QUOTA,
        lambda response: response.failing == 429 and any(True for _ in used_up(response)),
        WaitScope.ACCOUNT,
    ),
    KindRow(
        "event",
        "`codex.rate_limits` with `limit_reached: true`",
        _QUOTA,
        lambda response: any(True for _ in event_windows(response)),
        WaitScope.ACCOUNT,
    ),
    *openai.KINDS,
)  # fmt: skip

READING = Reading(
    "openai-codex",
    "OpenAI Codex",
    KINDS,
    (
        said(
            "`try again at 7:58 PM`, `try again at Jul 9th, 2026 1:47 AM`",
            "A moment in the caller's `zone` (UTC unless given); without a date the next one. A "
            "date in another language cannot be read",
            zone=lambda response: response.zone,
        ),
        FIELDS,
        UntilRow(
            "header",
            "`x-codex-…-reset-at`, `x-codex-…-reset-after-seconds`",
            "epoch seconds, and seconds to go; of each window whose `used-percent` is 100 or more. "
            "Of two that differ by no more than a second the instant is read",
            _header_windows,
        ),
        UntilRow(
            "event",
            "`codex.rate_limits`: `reset_at`, `reset_after_seconds`",
            "as the headers",
            _event_windows,
        ),
        *UNTILS[2:],
    ),
    recognises,
    aliases=("codex", "chatgpt"),
    windows=usage_windows,
    windows_how="`x-codex-…-used-percent`, `-reset-at` and `-reset-after-seconds`; the same of a "
    "`codex.rate_limits` event",
)
