"""Mistral: one header says when a window resets; the code tells a limit from a lack of capacity."""

from __future__ import annotations

from collections.abc import Iterator

from ..grammar import duration
from ..stated import WaitKind, WaitScope
from . import openai
from .generic import UNTILS, in_header, spent
from .response import Response, Statement
from .table import KindRow, Reading, UntilRow, named, worded


def _month_spent(response: Response) -> bool:
    return response.failing == 429 and any(
        name.startswith(("x-ratelimit-remaining", "ratelimitbysize-remaining"))
        and name.endswith("-month")
        and spent(response.value(name))
        for name in response.headers
    )


def _by_size(response: Response) -> Iterator[Statement]:
    left, cost = (
        duration(response.value(f"ratelimitbysize-{what}"), unit_ms=1_000)
        for what in ("remaining", "query-cost")
    )
    if left is not None and (left == 0 or (cost is not None and left < cost)):
        yield from in_header("ratelimitbysize-reset", unit_ms=1_000).read(response)


def recognises(response: Response) -> bool:
    return (
        bool({"service_tier_capacity_exceeded", "request_tier_capacity_exceeded"} & response.names)
        or any(
            name == "mistral-correlation-id" or name.startswith("x-ratelimit-remaining-req-")
            for name in response.headers
        )
        or any(
            data.get("object") == "error" and "raw_status_code" in data
            for _event, data in response.documents
        )
    )


READING = Reading(
    "mistral",
    "Mistral",
    (
        named(
            "3505",
            "service_tier_capacity_exceeded",
            "request_tier_capacity_exceeded",
            kind=WaitKind.OVERLOADED,
            scope=WaitScope.MODEL,
        ),
        worded(
            r"\b(?:service )?tier capacity exceeded",
            "service tier capacity exceeded",
            kind=WaitKind.OVERLOADED,
            scope=WaitScope.MODEL,
        ),
        KindRow(
            "header",
            "429 with `x-ratelimit-remaining-…-month: 0`",
            WaitKind.QUOTA_EXHAUSTED,
            _month_spent,
            WaitScope.ACCOUNT,
            "month",
        ),
        named("1300", "rate_limited", kind=WaitKind.RATE_LIMITED),
        *openai.KINDS,
    ),
    (
        *UNTILS,
        UntilRow(
            "header",
            "`ratelimitbysize-reset`",
            "seconds, where `ratelimitbysize-remaining` is 0 or less than `…-query-cost`",
            _by_size,
        ),
    ),
    recognises,
)
