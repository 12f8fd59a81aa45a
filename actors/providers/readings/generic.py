"""Retry-After in all its forms, and the headers that any service may send.

Where a header's unit is not in its name, the rule is written beside its row; none is guessed from
the value except `x-ratelimit-reset`, whose three uses do not overlap.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from ..grammar import Milliseconds, duration, epoch, http_date, rfc3339, spelled_duration
from ..instants import deadline_ms
from ..stated import WaitKind, WaitScope
from .response import Reading, Response, Signal, Statement, Verdict

KIND_BY_STATUS = {
    402: WaitKind.QUOTA_EXHAUSTED,
    429: WaitKind.RATE_LIMITED,
    503: WaitKind.OVERLOADED,
    529: WaitKind.OVERLOADED,
}
_IETF_ITEM = re.compile(r";\s*r\s*=\s*([0-9]+)\b.*?;\s*t\s*=\s*([0-9]+)\b")


def after(response: Response, wait_ms: Milliseconds, source: str, raw: str) -> Statement:
    """A statement of a duration, counted from the response's arrival.

    Without a usable clock a duration names no instant, so it holds until released.
    """
    if wait_ms <= 0:
        return Statement(response.received_ms or 0, source, raw, over=True)
    if response.received_ms is None:
        return Statement(math.inf, source, raw)
    ends_ms = deadline_ms(response.received_ms, wait_ms)
    return Statement(math.inf if ends_ms is None else ends_ms, source, raw)


def in_header(name: str, *, unit_ms: int) -> Signal:
    """A signal for a header that holds a number of `unit_ms` to wait."""

    def read(response: Response) -> Iterator[Statement]:
        for value in response.values(name):
            wait_ms = duration(value, unit_ms=unit_ms)
            if wait_ms is not None:
                yield after(response, wait_ms, f"header:{name}", f"{name}: {value}")

    return read


def retry_after(response: Response) -> Iterator[Statement]:
    """RFC 9110 10.2.3: seconds (a decimal is honoured), or a date on our clock. Else nothing.

    A server whose `Date` runs ahead of ours states, by our clock, the longer wait; it is kept.
    """
    for value in response.values("retry-after"):
        source, raw = "header:retry-after", f"retry-after: {value}"
        wait_ms = duration(value, unit_ms=1_000)
        if wait_ms is not None:
            yield after(response, wait_ms, source, raw)
            continue
        at_ms = http_date(value, received_ms=response.received_ms)
        if at_ms is not None:
            yield Statement(at_ms, source, raw)


def ratelimit_reset(response: Response) -> Iterator[Statement]:
    """`RateLimit-Reset` of the older IETF drafts: seconds to go, of an exhausted window."""
    if response.value("ratelimit-remaining") != "0":
        return
    yield from in_header("ratelimit-reset", unit_ms=1_000)(response)


def ratelimit_items(response: Response) -> Iterator[Statement]:
    """`RateLimit: "name";r=0;t=30`: the draft's structured form; r is what remains, t seconds."""
    for value in response.values("ratelimit"):
        for item in value.split(","):
            match = _IETF_ITEM.search(item[:1_000])
            if match is None or match[1].strip("0"):
                continue
            wait_ms = duration(match[2], unit_ms=1_000)
            if wait_ms is not None:
                yield after(response, wait_ms, "header:ratelimit", f"ratelimit: {item.strip()}")


def x_ratelimit_reset(response: Response) -> Iterator[Statement]:
    """`X-RateLimit-Reset` of an exhausted window: below 1e9 seconds to go, below 1e12 epoch
    seconds, else epoch milliseconds; or a spelled duration, or an RFC 3339 instant."""
    if response.value("x-ratelimit-remaining") != "0":
        return
    for value in response.values("x-ratelimit-reset"):
        source, raw = "header:x-ratelimit-reset", f"x-ratelimit-reset: {value}"
        number = duration(value, unit_ms=1_000)
        wait_ms = number if number is not None and number < 1e12 else spelled_duration(value)
        if wait_ms is not None:
            yield after(response, wait_ms, source, raw)
            continue
        at_ms = (
            rfc3339(value)
            if number is None
            else epoch(value, unit_ms=1_000 if number < 1e15 else 1)
        )
        if at_ms is not None:
            yield Statement(at_ms, source, raw)


EXPLICIT: tuple[Signal, ...] = (
    retry_after,
    in_header("retry-after-ms", unit_ms=1),
    in_header("x-ms-retry-after-ms", unit_ms=1),
    in_header("x-amz-retry-after", unit_ms=1),
)
"""Statements in their own right, on any response."""

WINDOWS: tuple[Signal, ...] = (ratelimit_reset, ratelimit_items, x_ratelimit_reset)
"""Statements only beside a refusal: on any other response they are telemetry."""


def judge(response: Response) -> Verdict:
    """By status alone: an unknown service's words are not read."""
    kind = KIND_BY_STATUS.get(response.status or 0, WaitKind.OTHER)
    return Verdict(
        kind,
        scope=WaitScope.ACCOUNT if kind is WaitKind.QUOTA_EXHAUSTED else None,
        statements=stated(response, limited=kind is not WaitKind.OTHER),
    )


def stated(
    response: Response, *, limited: bool, windows: tuple[Signal, ...] = WINDOWS
) -> tuple[Statement, ...]:
    """Everything a response states by its headers."""
    signals = EXPLICIT + windows if limited else () if response.served else EXPLICIT
    return tuple(statement for signal in signals for statement in signal(response))


READING = Reading("generic", judge)
