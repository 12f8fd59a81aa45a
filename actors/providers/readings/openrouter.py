"""OpenRouter: its own limits name a source and an epoch in milliseconds; others are an upstream's.

The error may come with a status of 200, or in the middle of a stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..stated import WaitKind, WaitScope
from . import openai
from .generic import UNTILS, WINDOWS, objects_of, reset_value
from .google import UNTILS as GOOGLE_UNTILS
from .response import Response, Statement
from .table import KindRow, Reading, UntilRow, named, worded

_UPSTREAM = re.compile(r"rate-limited upstream|provider returned error", re.IGNORECASE)
_RETRY_INFO = next(row for row in GOOGLE_UNTILS if "RetryInfo" in row.what)


def _upstream(response: Response) -> bool:
    if response.failing != 429:
        return False
    if any(name.startswith("upstream_provider") for name in response.names):
        return True
    raws = [each.get("raw") for each in objects_of(response)]
    named_source = any("limit_source" in each for each in objects_of(response))
    texts = [response.words, *(raw for raw in raws if isinstance(raw, str))]
    return not named_source and any(_UPSTREAM.search(text[:4_000]) for text in texts)


def _sources(response: Response) -> set[str]:
    found = [each.get("limit_source") for each in objects_of(response)]
    return {source for source in found if isinstance(source, str)}


def _shared_pool(response: Response) -> bool:
    return response.failing == 429 and (
        "upstream_provider_shared_pool" in _sources(response) or _upstream(response)
    )


def _headers_within(response: Response) -> Iterator[Statement]:
    for each in objects_of(response):
        headers = each.get("headers")
        for name, value in headers.items() if isinstance(headers, dict) else ():
            if name.lower() == "x-ratelimit-reset" and isinstance(value, str | int):
                text = value if isinstance(value, str) else format(min(value, 10**30))
                yield from reset_value(response, text.strip(), "x-ratelimit-reset")
            elif name.lower() == "retry-after" and isinstance(value, str | int):
                text = value if isinstance(value, str) else format(min(value, 10**30))
                yield from reset_value(response, text.strip(), "retry-after")


def recognises(response: Response) -> bool:
    return any(
        "limit_source" in each or "provider_name" in each or (
            isinstance(each.get("metadata"), dict) and "headers" in each["metadata"]  # type: ignore[operator]
        )
        for each in objects_of(response)
    )  # fmt: skip


READING = Reading(
    "openrouter",
    "OpenRouter",
    (
        named("402", kind=WaitKind.QUOTA_EXHAUSTED, scope=WaitScope.ACCOUNT),
        worded(
            r"free-models-per-day|insufficient credits|requires more credits|key limit exceeded",
            "free-models-per-day, insufficient credits, key limit exceeded",
            kind=WaitKind.QUOTA_EXHAUSTED,
            scope=WaitScope.ACCOUNT,
        ),
        KindRow(
            "error",
            "`limit_source` `openrouter_free_tier_daily`",
            WaitKind.QUOTA_EXHAUSTED,
            lambda response: "openrouter_free_tier_daily" in _sources(response),
            WaitScope.ACCOUNT,
        ),
        KindRow(
            "error",
            "429 with `limit_source` `upstream_provider_…`, or `rate-limited upstream`",
            WaitKind.OVERLOADED,
            _shared_pool,
            WaitScope.MODEL,
        ),
        worded(
            r"free-models-per-min",
            "free-models-per-min",
            kind=WaitKind.RATE_LIMITED,
            scope=WaitScope.ACCOUNT,
        ),
        *openai.KINDS,
    ),
    (
        *UNTILS[:2],
        *WINDOWS,
        *UNTILS[2 + len(WINDOWS) :],
        _RETRY_INFO,
        UntilRow(
            "error",
            "`metadata.headers`: `X-RateLimit-Reset`, `Retry-After`",
            "as the headers of those names; a reset within an error is of the window that refused",
            _headers_within,
        ),
    ),
    recognises,
)
