"""Cloudflare: a page in front of any service, and Workers AI behind it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..clocks import next_midnight
from ..stated import WaitKind, WaitScope
from .generic import UNTILS
from .response import Response, Statement
from .table import KindRow, Reading, UntilRow, named

_LIMITED = re.compile(
    r"(?:error ?code:? ?|errorCode: ?|cf-error-code\">|error )1015\b|you are being rate limited",
    re.IGNORECASE,
)
_ALLOCATION = re.compile(r"used up your (?:daily )?free allocation", re.IGNORECASE)


def _page(response: Response) -> bool:
    bare = response.failing is None and response.transport == "text"
    return (bare or response.failing in (403, 429)) and (
        "1015" in response.names or _LIMITED.search(response.text[:100_000]) is not None
    )


def _allocation(response: Response) -> Iterator[Statement]:
    match = _ALLOCATION.search(response.words)
    at_ms = next_midnight(response.received_ms, "UTC")
    if match is not None and "daily" in match[0].lower() and at_ms is not None:
        yield Statement(at_ms, "doc:midnight UTC", match[0], window="day")


def recognises(response: Response) -> bool:
    return _page(response) or _ALLOCATION.search(response.words) is not None


READING = Reading(
    "cloudflare",
    "Cloudflare",
    (
        KindRow(
            "words",
            "used up your daily free allocation",
            WaitKind.QUOTA_EXHAUSTED,
            lambda response: _ALLOCATION.search(response.words) is not None,
            WaitScope.ACCOUNT,
        ),
        named("3040", kind=WaitKind.OVERLOADED, scope=WaitScope.MODEL),
        KindRow(
            "words",
            "error 1015 (`You are being rate limited`), with 403, 429 or no status",
            WaitKind.RATE_LIMITED,
            _page,
        ),
    ),
    (
        *UNTILS,
        UntilRow(
            "words",
            "used up your daily free allocation",
            "the next midnight in UTC, where the allocation is documented to renew",
            _allocation,
        ),
    ),
    recognises,
)
