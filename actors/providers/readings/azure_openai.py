"""Azure OpenAI: `retry-after-ms` is exact and `retry-after` rounded up; the longer is kept."""

from __future__ import annotations

import re

from ..stated import WaitKind, WaitScope
from . import openai
from .generic import NO_CREDIT, UNTILS, spent
from .response import Response
from .table import KindRow, Reading, named, worded

_TOKENS = re.compile(r"exceeded (?:the )?token rate limit", re.IGNORECASE)
_CALLS = re.compile(
    r"\brequests to the .{1,200}? have exceeded (?:the )?(?:\w+ ){1,2}rate limit", re.IGNORECASE
)
_AZURE = re.compile(r"azure openai|aka\.ms/oai|cognitive services", re.IGNORECASE)


def _of_a_deployment(response: Response) -> bool:
    if response.failing != 429 and _CALLS.search(response.words) is None:
        return False
    tokens = spent(response.value("x-ratelimit-remaining-tokens"))
    return tokens or _TOKENS.search(response.words) is not None


def recognises(response: Response) -> bool:
    return "x-ms-region" in response.headers or (
        "apim-request-id" in response.headers
        or openai.GATEWAY_QUOTA.matches(response)
        or _AZURE.search(response.words) is not None
    )


KINDS = (
    NO_CREDIT,
    openai.NO_QUOTA_WORDS,
    openai.GATEWAY_QUOTA,
    openai.TOO_LARGE,
    named("NoCapacity", "server_overloaded", kind=WaitKind.OVERLOADED),
    worded(
        r"experiencing high demand|maximum usage size allowed during peak load|no capacity",
        "experiencing high demand, peak load",
        kind=WaitKind.OVERLOADED,
    ),
    KindRow(
        "words",
        "429 with `exceeded token rate limit`, or `x-ratelimit-remaining-tokens: 0`",
        WaitKind.RATE_LIMITED,
        _of_a_deployment,
        WaitScope.MODEL,
    ),
    KindRow(
        "words",
        "`Requests to the … have exceeded call rate limit`",
        WaitKind.RATE_LIMITED,
        lambda response: _CALLS.search(response.words) is not None,
    ),
    named(
        "429",
        "too_many_requests",
        "RateLimitReached",
        "rate_limit_exceeded",
        kind=WaitKind.RATE_LIMITED,
    ),
)

READING = Reading(
    "azure-openai",
    "Azure OpenAI",
    KINDS,
    UNTILS,
    recognises,
    aliases=("azure", "azure-ai"),
)
