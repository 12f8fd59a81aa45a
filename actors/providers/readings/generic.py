"""What any service may send: Retry-After in all its forms, reset headers, and common phrases.

Where a header's unit is not in its name, the rule is written in its row; none is guessed from the
value except a reset's, whose three uses do not overlap. Other readings are made from these rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import tzinfo

from ..durations import spelled_duration
from ..grammar import (
    Milliseconds,
    duration,
    epoch,
    http_date,
    instant,
    number,
    rfc3339,
)
from ..stated import WaitKind, WaitScope
from .phrases import stated_times
from .response import Response, Statement, after
from .table import Reading, UntilRow, named

_IETF_FIELD = re.compile(r";\s{0,8}([rt])\s{0,8}=\s{0,8}([0-9]+)(?![0-9.])")
_IETF_FIELDS = re.compile(
    r"\bremaining\s*=\s*([0-9]+)\b[^;]{0,200}?\breset\s*=\s*([0-9]+)\b", re.IGNORECASE
)
_REMAINING = "x-ratelimit-remaining-"

FIELD_UNITS_MS = {
    "retry_after": 1_000,
    "retryAfter": 1_000,
    "retry_after_seconds": 1_000,
    "retryAfterSeconds": 1_000,
    "retry-after": 1_000,
    "Retry-After": 1_000,
    "retry_after_secs": 1_000,
    "resets_in_seconds": 1_000,
    "reset_in_seconds": 1_000,
    "reset_after_seconds": 1_000,
    "retry_after_ms": 1,
    "retryAfterMs": 1,
}
FIELD_INSTANTS = ("resets_at", "reset_at", "resetsAt", "resetAt", "retry_at", "retryAt")


_DATE_COMMA = r"(?<!\bmon)(?<!\btue)(?<!\bwed)(?<!\bthu)(?<!\bfri)(?<!\bsat)(?<!\bsun)(?<!day)"
_MERGED = re.compile(rf"{_DATE_COMMA},(?:[ \t]+|(?![0-9]{{1,3}}(?![0-9])))", re.IGNORECASE)


def each_of(value: str, read: Callable[[str], Statement | None]) -> Iterator[Statement]:
    """What a line states: as one, or as the several that a proxy merged into it (RFC 9110 5.3).

    Nothing where one of them cannot be read: it may be the longest. A comma with no blank and up to
    three digits behind it may stand for a point, or in a number; any other separates.
    """
    whole = read(value)
    if whole is not None:
        yield whole
        return
    parts = _MERGED.split(value[:10_000])
    stated = [part for part in map(read, parts) if part is not None]
    if len(stated) == len(parts):
        yield from stated


def spent(value: str) -> bool:
    """Whether a header of what remains says that nothing does; of merged lines, that one does."""
    return any(duration(part.strip(" \t"), unit_ms=1_000) == 0 for part in value.split(","))


def full(percent: object) -> bool:
    """Whether a percentage says that a window is used up. 99.6 is not 100."""
    used = number(percent, unit_ms=1_000)
    return used is not None and used >= 100_000


def reset_value(response: Response, value: str, name: str, **whose: object) -> Iterator[Statement]:
    """What the value of a reset header states: see the row of `x-ratelimit-reset`."""
    source, raw = f"header:{name}", f"{name}: {value}"

    def read(part: str) -> Statement | None:
        count = duration(part, unit_ms=1_000)
        wait_ms = count if count is not None and count < 1e12 else spelled_duration(part)
        if wait_ms is not None:
            return after(response, wait_ms, source, raw, **whose)  # type: ignore[arg-type]
        at_ms: Milliseconds | None
        if count is None:
            at_ms = rfc3339(part) or http_date(part, received_ms=response.received_ms)
        else:
            at_ms = epoch(part, unit_ms=1_000 if count < 1e15 else 1)
        return None if at_ms is None else Statement(at_ms, source, raw, **whose)  # type: ignore[arg-type]

    yield from each_of(value, read)


def in_header(name: str, *, unit_ms: int, how: str = "") -> UntilRow:
    """A row for a header that holds a number of `unit_ms` to wait."""

    def read(response: Response) -> Iterator[Statement]:
        for value in response.values(name):

            def part_of(part: str, value: str = value) -> Statement | None:
                wait_ms = duration(part, unit_ms=unit_ms)
                if wait_ms is None:
                    return None
                return after(response, wait_ms, f"header:{name}", f"{name}: {value}")

            yield from each_of(value, part_of)

    unit = "milliseconds" if unit_ms == 1 else "seconds"
    return UntilRow("header", f"`{name}`", how or unit, read, standing=True)


def _retry_after(response: Response) -> Iterator[Statement]:
    for value in response.values("retry-after"):

        def part_of(part: str, value: str = value) -> Statement | None:
            source, raw = "header:retry-after", f"retry-after: {value}"
            wait_ms = duration(part, unit_ms=1_000)
            if wait_ms is None:
                wait_ms = spelled_duration(part)
            if wait_ms is not None:
                return after(response, wait_ms, source, raw)
            at_ms = http_date(part, received_ms=response.received_ms) or rfc3339(part)
            return None if at_ms is None else Statement(at_ms, source, raw)

        yield from each_of(value, part_of)


def _ratelimit_reset(response: Response) -> Iterator[Statement]:
    if spent(response.value("ratelimit-remaining")):
        yield from in_header("ratelimit-reset", unit_ms=1_000).read(response)


def _ratelimit_items(response: Response) -> Iterator[Statement]:
    for value in response.values("ratelimit"):
        for item in value[:10_000].split(","):
            stated = dict(_IETF_FIELD.findall(item[:1_000]))
            if stated.get("r", "1").strip("0") or "t" not in stated:
                continue
            wait_ms = duration(stated["t"], unit_ms=1_000)
            if wait_ms is not None:
                yield after(response, wait_ms, "header:ratelimit", f"ratelimit: {item.strip()}")
        fields = _IETF_FIELDS.search(value[:1_000])
        if fields is not None and not fields[1].strip("0"):
            wait_ms = duration(fields[2], unit_ms=1_000)
            if wait_ms is not None:
                yield after(response, wait_ms, "header:ratelimit", f"ratelimit: {fields[0]}")


def _x_ratelimit_reset(response: Response) -> Iterator[Statement]:
    for name in ("x-ratelimit", "x-rate-limit"):
        if spent(response.value(f"{name}-remaining")):
            for value in response.values(f"{name}-reset"):
                yield from reset_value(response, value, f"{name}-reset")


def _x_ratelimit_reset_after(response: Response) -> Iterator[Statement]:
    left = response.value("x-ratelimit-remaining")
    if not left or spent(left):
        yield from in_header("x-ratelimit-reset-after", unit_ms=1_000).read(response)


def spent_windows(response: Response, only: str = "") -> Iterator[Statement]:
    """When each window of `x-ratelimit-reset-…` that is used up ends; or that of one name."""
    for name in response.headers:
        what = name.removeprefix(_REMAINING)
        if what != name and only in ("", what) and spent(response.value(name)):
            reset = f"x-ratelimit-reset-{what}"
            for value in response.values(reset):
                yield from reset_value(response, value, reset, window=what)


def objects_of(response: Response) -> Iterator[Mapping[str, object]]:
    """Every object of every error, each once."""
    seen = set[int]()
    for fault in response.faults:
        for each in fault.objects:
            if id(each) not in seen:
                seen.add(id(each))
                yield each


def quoted(name: str, value: object) -> str:
    return f"{name}: {str(value)[:200] if isinstance(value, str) else _short(value)}"


def _short(value: object) -> str:
    # Never `str()` of a number that may have a thousand digits.
    big = isinstance(value, int) and value.bit_length() > 200
    return "a large number" if big else repr(value)[:200]


def _fields(response: Response) -> Iterator[Statement]:
    for each in objects_of(response):
        for name, unit_ms in FIELD_UNITS_MS.items():
            value = each.get(name)
            wait_ms = number(value, unit_ms=unit_ms)
            if wait_ms is None and isinstance(value, str):
                wait_ms = spelled_duration(value.strip())
            if wait_ms is not None:
                yield after(response, wait_ms, f"body:{name}", quoted(name, value))
        for name in FIELD_INSTANTS:
            at_ms = instant(each.get(name))
            if at_ms is not None:
                yield Statement(at_ms, f"body:{name}", quoted(name, each[name]))


RETRY_AFTER = UntilRow(
    "header",
    "`retry-after`",
    "seconds (a decimal is honoured), a spelled duration, an HTTP date on our clock, or RFC 3339; "
    "of several in one line the longest. Anything else, also as one of several, states nothing. "
    "Negative, or a date that passed: already over",
    _retry_after,
    standing=True,
)
EXPLICIT: tuple[UntilRow, ...] = (
    in_header("x-amz-retry-after", unit_ms=1),
    in_header("x-ms-retry-after-ms", unit_ms=1),
    in_header("retry-after-ms", unit_ms=1),
    RETRY_AFTER,
)
"""Statements in their own right, on any response that failed."""


def said(what: str, how: str, *, zone: Callable[[Response], tzinfo | None]) -> UntilRow:
    """A row for all that the words say of a wait, as one: a part that is unreadable spoils it."""
    return UntilRow(
        "words",
        "`try again in …`, `retry after …`, `wait …`, `reset(s) in …`, `not before …`, " + what,
        "a spelled duration: `20s`, `634ms`, `7m12s`, `PT1M30S`, `4 days 20 hours 9 minutes`, "
        "`about an hour`, `over 2 hours`, `1:30 hours`, `1,200 seconds`; of a range (`10-20 "
        "seconds`, `between 5 and 10 minutes`) the far end; a negative one is over. "
        + how + ". Of alternatives and conditions (`or in 24 hours`, `but not before 13:00 UTC`) "
        "the longest. Nothing is stated where a part cannot be read: where more time follows than "
        "is read (`and a half`, a month), where it is multiplied (`10 seconds x 60`, "
        "`20s per request`) or a part is how often (`or once a day`), a number without a unit, a "
        "comma for a point (`1,5 hours`), `next Friday`, `or tomorrow`",
        lambda response: stated_times(
            response, zone=zone(response), within_ms=7 * 86_400_000
        ),
    )  # fmt: skip


SAID = said(
    "`resets at …`, `try again at …`, `limited until …`",
    "A moment that names its zone; one without cannot be read",
    zone=lambda _response: None,
)
FIELDS = UntilRow(
    "error",
    ", ".join(f"`{name}`" for name in (*FIELD_UNITS_MS, *FIELD_INSTANTS)),
    "by the name: milliseconds where it says so, else seconds (the longer reading); an `…at` is "
    "epoch seconds (of thirteen digits, milliseconds) or RFC 3339",
    _fields,
)
X_RATELIMIT_WINDOWS = UntilRow(
    "header",
    "`x-ratelimit-reset-<what>`",
    "only where `x-ratelimit-remaining-<what>` is 0. A spelled duration, or as "
    "`x-ratelimit-reset`. It says when the window is full again, which may be later than when the "
    "next call would go through; the longer is kept",
    spent_windows,
)
WINDOWS: tuple[UntilRow, ...] = (
    UntilRow(
        "header",
        "`ratelimit-reset`",
        "seconds to go (older IETF drafts), only where `ratelimit-remaining` is 0",
        _ratelimit_reset,
    ),
    UntilRow(
        "header",
        '`ratelimit: "<name>";r=0;t=<seconds>`, or `limit=…, remaining=0, reset=<seconds>`',
        "the drafts' structured forms: r, or remaining, is what remains; t, or reset, the seconds "
        "to go",
        _ratelimit_items,
    ),
    UntilRow(
        "header",
        "`x-ratelimit-reset`, `x-rate-limit-reset`",
        "only where `x-ratelimit-remaining` (`x-rate-limit-remaining`) is 0. Below 1e9 seconds to "
        "go, below 1e12 epoch seconds, else epoch milliseconds; or a spelled duration, RFC 3339, "
        "or an HTTP date",
        _x_ratelimit_reset,
    ),
    UntilRow(
        "header",
        "`x-ratelimit-reset-after`",
        "seconds, unless `x-ratelimit-remaining` says that something is left",
        _x_ratelimit_reset_after,
    ),
    X_RATELIMIT_WINDOWS,
)
"""Statements only beside a refusal: on any other response they are telemetry."""

UNTILS = (SAID, FIELDS, *WINDOWS, *EXPLICIT)

NO_CREDIT = named(
    "insufficient_quota",
    "billing_hard_limit_reached",
    "billing_not_active",
    "credit_balance_exhausted",
    "organization_spend_limit_exceeded",
    "project_spend_limit_exceeded",
    "quota_exceeded",
    kind=WaitKind.QUOTA_EXHAUSTED,
    scope=WaitScope.ACCOUNT,
)
BUSY_NAMES = named(
    "server_overloaded",
    "server_is_overloaded",
    "overloaded_error",
    "slow_down",
    "resource_unavailable",
    "service_unavailable",
    "capacity_exceeded",
    kind=WaitKind.OVERLOADED,
)
RATE_NAMES = named(
    "rate_limit_exceeded",
    "rate_limit_error",
    "rate_limit_reached_error",
    "rate_limited",
    "too_many_requests",
    kind=WaitKind.RATE_LIMITED,
)

READING = Reading(
    "generic",
    "Any other service",
    kinds=(NO_CREDIT, BUSY_NAMES, RATE_NAMES),
    untils=UNTILS,
    notes="By status, and by the error codes that many services took over from OpenAI. Words "
    "never decide what kind of refusal it is here; beside a refusal they may say how long.",
)
