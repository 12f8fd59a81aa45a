"""OpenAI: headers, Go durations, and words that carry the wait where a stream has no headers.

A 429 is three things: a limit, an exhausted account, and a request that never fits.
"""

from __future__ import annotations

import re

from ..stated import WaitKind, WaitScope
from .generic import BUSY_NAMES, NO_CREDIT, UNTILS
from .response import Response
from .table import KindRow, Reading, named, worded

_OF_A_MODEL = re.compile(r"rate limit reached for (?:model )?\S", re.IGNORECASE)
_BUCKETS = {"tokens", "requests", "images", "input-images"}
_RATE_NAMES = {"rate_limit_exceeded", "rate_limit_error"}

NO_QUOTA_WORDS = worded(
    r"exceeded your current quota|insufficient (?:balance|credits|funds)"
    r"|used all available credits",
    "exceeded your current quota, insufficient balance, used all available credits",
    kind=WaitKind.QUOTA_EXHAUSTED,
    scope=WaitScope.ACCOUNT,
)
GATEWAY_QUOTA = worded(
    r"out of (?:call volume|bandwidth) quota",
    "Out of call volume quota, Out of bandwidth quota (of a gateway in front of Azure, with 403)",
    kind=WaitKind.QUOTA_EXHAUSTED,
)
TOO_LARGE = worded(
    r"\brequest too large for\b",
    "request too large for … (it never fits: no limit that ends)",
    kind=WaitKind.OTHER,
)
BUSY = worded(
    r"\b(?:currently|temporarily|is) overloaded|over ?capacity|experiencing high (?:demand|traffic)"
    r"|\bcapacity (?:temporarily )?exceeded|no capacity",
    "overloaded, over capacity, experiencing high demand",
    kind=WaitKind.OVERLOADED,
)


def _names_a_model(response: Response) -> bool:
    bucket = response.names & _BUCKETS
    return bool(bucket and _limited(response) and _OF_A_MODEL.search(response.words))


def _limited(response: Response) -> bool:
    return bool(_RATE_NAMES & response.names) or response.failing == 429


RATE_OF_A_MODEL = KindRow(
    "error",
    "type `tokens`, `requests`, `images` or `input-images`, beside the words `Rate limit reached "
    "for <model>`",
    WaitKind.RATE_LIMITED,
    _names_a_model,
    WaitScope.MODEL,
)
RATE = named("rate_limit_exceeded", "rate_limit_error", kind=WaitKind.RATE_LIMITED)
RATE_WORDS = worded(
    r"\brate limit (?:reached|exceeded) for\b|\b429 too many requests\b",
    "Rate limit reached for …, 429 Too Many Requests",
    kind=WaitKind.RATE_LIMITED,
)
KINDS = (
    NO_CREDIT,
    NO_QUOTA_WORDS,
    GATEWAY_QUOTA,
    TOO_LARGE,
    BUSY_NAMES,
    BUSY,
    RATE_OF_A_MODEL,
    RATE,
    RATE_WORDS,
)


def recognises(response: Response) -> bool:
    return any(
        name in response.headers
        for name in (
            "openai-organization",
            "openai-processing-ms",
            "openai-version",
            "x-ratelimit-remaining-requests",
            "x-ratelimit-remaining-tokens",
        )
    )


READING = Reading(
    "openai",
    "OpenAI",
    KINDS,
    UNTILS,
    recognises,
    notes="A day's limit (`RPD`, `TPD`) rolls: it is a rate limit with the wait that is stated, "
    "not a used-up quota.",
)
