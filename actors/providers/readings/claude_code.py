"""Claude Code: its status line, the events and results of its SDK, and what its terminal says.

Its words change with every few versions, so they are matched by shape: a verb of reaching, whose
limit, up to three words, `limit`. Clock times without a zone are the terminal's own.

Invariants:
    I1  Talk about limits is none: what a model says is not read, an approaching limit or one that
        is only spoken of does not match.
    I2  A clock time that lies farther off than its window can reach has passed: it was seen late.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ..clocks import DAY_MS
from ..grammar import instant, percent
from ..stated import WaitKind, WaitScope
from ..windows import UsageWindow
from . import anthropic
from .generic import full, quoted
from .phrases import stated_times
from .response import Response, Statement, usage_window
from .table import KindRow, Reading, UntilRow, worded

_SUBJECT = (
    r"(?:5[ -]?hour|five[ -]hour|session|weekly|daily|monthly|opus(?: weekly)?|sonnet(?: weekly)?"
    r"|weekly (?:opus|sonnet)|usage|spend|fast)"
)
_OF_A_MODEL = r"\ ?(?:for|on|of|with)\ (?:all\ )?(?:claude\ )?(?:opus|sonnet|haiku)\b"
_LIMIT = re.compile(
    rf"""
      claude\ (?:ai\ )?(?:pro\ |max\ )?usage\ limit\ reached(?:\|(?P<epoch>[0-9]{{1,20}}))?
    | (?<!\bif\ )(?<!\bonce\ )(?<!\bwhen\ )\byou(?:'ve|\ have)?\ (?:hit|reached|exceeded)
      \ (?:your|the)\ (?:[\w.-]+\ ){{0,3}}limit\b(?:{_OF_A_MODEL})?
    | \b{_SUBJECT}(?:\ usage)?\ limit\ (?:{_OF_A_MODEL}\ )?(?:has\ been\ )?(?:reached|exceeded)\b
      (?:{_OF_A_MODEL})?
    | (?<![\w-]\ )\blimit\ reached(?=\ [·∙•]\ resets\ )   # Of no limit in particular.
    | (?<!\bif\ )(?<!\bonce\ )(?<!\bwhen\ )\byou(?:'re|\ are)\ (?:now\ )?out\ of
      \ (?:extra\ usage|usage\ credits|usage|credits)\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
_WINDOWS = (
    (re.compile(r"\bopus\b", re.IGNORECASE), "seven_day_opus", 7 * DAY_MS),
    (re.compile(r"\bsonnet\b", re.IGNORECASE), "seven_day_sonnet", 7 * DAY_MS),
    (re.compile(r"\bweekly\b.*\bhaiku\b", re.IGNORECASE), "seven_day_haiku", 7 * DAY_MS),
    (re.compile(r"\bweekly\b", re.IGNORECASE), "seven_day", 7 * DAY_MS),
    (
        re.compile(r"5[ -]?hour|five[ -]hour|\bsession\b", re.IGNORECASE),
        "five_hour",
        5 * DAY_MS // 24,
    ),
    (re.compile(r"\bdaily\b", re.IGNORECASE), "day", DAY_MS),
    (re.compile(r"\bmonthly\b|\bspend\b", re.IGNORECASE), "month", 31 * DAY_MS),
)
_WITHIN_MS = 180 * DAY_MS
_SLACK_MS = 10 * 60_000
"""A window may start, and a clock be, some minutes off."""
_REACH_CHARS = 300
"""How far behind the words of a limit its reset stands."""


def limits_in(words: str) -> Iterator[re.Match[str]]:
    """The places where words say that a limit was reached."""
    return _LIMIT.finditer(words)


def _window(words: str) -> tuple[str | None, int]:
    return next(
        ((window, span) for pattern, window, span in _WINDOWS if pattern.search(words)),
        (None, _WITHIN_MS),
    )


def _said(response: Response) -> str:
    """The terminal's words, and those of results that say themselves to be errors."""
    parts = [response.words]
    for _event, data in response.documents:
        if data.get("is_error") is True and isinstance(data.get("result"), str):
            parts.append(data["result"])
        message = data.get("message")
        if isinstance(data.get("error"), str) and isinstance(message, dict):
            content = message.get("content")
            parts += [
                block["text"]
                for block in (content[:64] if isinstance(content, list) else ())
                if isinstance(block, dict) and isinstance(block.get("text"), str)
            ]
    words = "\n".join(parts)[:200_000].replace("\u2019", "'")
    return " ".join(words.split())  # A terminal breaks lines where it likes.


def _first(response: Response) -> tuple[WaitScope | None, str | None]:
    for limit in limits_in(_said(response)):
        window, _span = _window(limit[0])
        return anthropic.scope_of(window or ""), window
    return None, None


def _told(response: Response) -> Iterator[Statement]:
    words = _said(response)
    found = list(limits_in(words))
    for place, limit in enumerate(found):
        window, span = _window(limit[0])
        scope = anthropic.scope_of(window or "")
        if limit["epoch"]:
            # Seconds so far; thirteen digits of them are a year that nobody means.
            at_ms = instant(limit["epoch"], unit_ms=1 if len(limit["epoch"]) >= 13 else 1_000)
            if at_ms is not None:
                yield Statement(at_ms, "text:limit reached|<epoch>", limit[0], False, window, scope)
        end = min(limit.end() + _REACH_CHARS, len(words))
        if place + 1 < len(found):
            end = min(end, found[place + 1].start())
        rest = words[limit.end() : end]
        for statement in stated_times(
            response, zone=response.zone, text=rest, within_ms=span + _SLACK_MS
        ):
            yield Statement(
                statement.at_ms, statement.source, f"{limit[0]} … {statement.raw}",
                statement.over, window, scope,
            )  # fmt: skip


def status_windows(response: Response) -> Iterator[tuple[str, Mapping[str, object]]]:
    """The windows of a status line."""
    for _event, data in response.documents:
        limits = data.get("rate_limits")
        for name, window in limits.items() if isinstance(limits, dict) else ():
            if isinstance(window, dict) and "used_percentage" in window:
                yield name[:128], window


def _status_resets(response: Response) -> Iterator[Statement]:
    for name, window in status_windows(response):
        if full(window.get("used_percentage")):
            at_ms = instant(window.get("resets_at"))
            source = f"rate_limits.{name}.resets_at"
            yield Statement(
                at_ms or 0, source, quoted(source, window.get("resets_at")), False, name,
                anthropic.scope_of(name), at_ms is None,
            )  # fmt: skip


def _rejections(response: Response) -> Iterator[tuple[str, object]]:
    """The claim and the reset of each event that says a call was turned down."""
    for _event, data in response.documents:
        info = data.get("rate_limit_info")
        if not isinstance(info, dict) or info.get("status") != "rejected":
            continue
        claim = info.get("rateLimitType", info.get("rate_limit_type"))
        resets = info.get("resetsAt", info.get("resets_at"))
        if claim == "overage":
            resets = info.get("overageResetsAt", info.get("overage_resets_at", resets)) or resets
        yield claim[:128] if isinstance(claim, str) else "", resets


def _event_resets(response: Response) -> Iterator[Statement]:
    for claim, resets in _rejections(response):
        at_ms = instant(resets)
        yield Statement(
            at_ms or 0, "rate_limit_info.resetsAt", quoted("resetsAt", resets), False,
            claim or None, anthropic.scope_of(claim), at_ms is None,
        )  # fmt: skip


def _turned_down(response: Response) -> tuple[WaitScope | None, str | None]:
    for claim, _resets in _rejections(response):
        return anthropic.scope_of(claim), claim or None
    return None, None


def _assistant_error(response: Response, name: str) -> bool:
    return any(data.get("error") == name for _event, data in response.documents)


def usage_windows(response: Response) -> Iterator[UsageWindow]:
    """The windows of a status line, and those of events, rejected or not; overage is none."""
    for name, stated in status_windows(response):
        yield from usage_window(
            name,
            percent(stated.get("used_percentage")),
            instant(stated.get("resets_at")),
            anthropic.scope_of(name),
        )
    for _event, data in response.documents:
        info = data.get("rate_limit_info")
        if not isinstance(info, dict):
            continue
        claim = info.get("rateLimitType", info.get("rate_limit_type"))
        if not isinstance(claim, str) or claim == "overage":
            continue
        used = percent(info.get("utilization"), whole=1)
        # What was turned down is used up, whatever share is told beside it.
        rejected = info.get("status") == "rejected"
        yield from usage_window(
            claim,
            max(used or 0.0, 100.0) if rejected else used,
            instant(info.get("resetsAt", info.get("resets_at"))),
            anthropic.scope_of(claim),
        )
    yield from anthropic.usage_windows(response)


def recognises(response: Response) -> bool:
    if any(
        data.get("type") == "rate_limit_event" or "rate_limit_info" in data
        for _event, data in response.documents
    ) or any(True for _ in status_windows(response)):
        return True
    if response.transport not in ("text", "agent_sdk"):
        return False
    words = _said(response)
    # Codex says `try again` where Claude Code says `resets`.
    others = "try again" in words.lower()
    return "(not your usage limit)" in words or any(
        limit["epoch"] or not others for limit in limits_in(words)
    )


_QUOTA = WaitKind.QUOTA_EXHAUSTED
KINDS = (
    KindRow(
        "status line",
        "`rate_limits.<window>.used_percentage` of 100 or more",
        _QUOTA,
        lambda response: any(
            full(window.get("used_percentage")) for _name, window in status_windows(response)
        ),
        WaitScope.ACCOUNT,
    ),
    KindRow(
        "event",
        "`rate_limit_event` with status `rejected` (`overageStatus` alone is none)",
        _QUOTA,
        lambda response: any(True for _ in _rejections(response)),
        WaitScope.ACCOUNT,
        refined=_turned_down,
    ),
    worded(
        r"temporarily limiting requests|not your usage limit",
        "temporarily limiting requests (not your usage limit)",
        kind=WaitKind.RATE_LIMITED,
    ),
    KindRow(
        "words",
        "`You've hit your … limit`, `… limit reached`, `Limit reached · resets …`, "
        "`You're out of extra usage`",
        _QUOTA,
        lambda response: any(True for _ in limits_in(_said(response))),
        WaitScope.ACCOUNT,
        refined=_first,
    ),
    KindRow(
        "event",
        "an assistant message with error `billing_error`",
        _QUOTA,
        lambda response: _assistant_error(response, "billing_error"),
        WaitScope.ACCOUNT,
    ),
    KindRow(
        "event",
        "an assistant message with error `rate_limit`",
        WaitKind.RATE_LIMITED,
        lambda response: _assistant_error(response, "rate_limit"),
    ),
    worded(
        r"\bAPI Error\b.{0,40}\b(?:529|overloaded)",
        "API Error: 529, Overloaded",
        kind=WaitKind.OVERLOADED,
    ),
    worded(
        r"\bAPI Error\b.{0,40}\b429\b|429 too many requests",
        "API Error: 429",
        kind=WaitKind.RATE_LIMITED,
    ),
    *anthropic.KINDS,
)

READING = Reading(
    "claude-code",
    "Claude Code",
    KINDS,
    (
        UntilRow(
            "words",
            "`limit reached|1762952400`, `resets 3am`, `resets Feb 4, 9pm (Africa/Johannesburg)`, "
            "`resets in 2h 5m`",
            "epoch seconds; a moment in the zone it names, else in the caller's `zone` (UTC unless "
            "given), the next one within the window (5 hours for a session, 7 days for a week, "
            "31 for a month, else 180); a duration. An unknown zone, or a time that must have "
            "passed, states nothing",
            _told,
        ),
        UntilRow(
            "status line",
            "`rate_limits.<window>.resets_at`",
            "epoch seconds, of each window that is full; the latest binds",
            _status_resets,
        ),
        UntilRow(
            "event",
            "`rate_limit_info.resetsAt` (for `overage`: `overageResetsAt`)",
            "epoch seconds",
            _event_resets,
        ),
        *anthropic.UNTILS[1:],  # Words are read above.
    ),
    recognises,
    aliases=("claude-agent-sdk", "claude_code"),
    notes="The status line, the SDK's events and its results are read; a reply is not, whatever "
    "it says about limits.",
    windows=usage_windows,
    windows_how="`rate_limits.<window>` of a status line (`used_percentage`, `resets_at`); "
    "`rate_limit_info` of an event (`utilization`, `resetsAt`)",
)
