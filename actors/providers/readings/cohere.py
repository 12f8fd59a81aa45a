"""Cohere: only the words tell a trial key's month from its minute; no wait is stated."""

from __future__ import annotations

from ..stated import WaitKind, WaitScope
from .generic import NO_CREDIT, UNTILS
from .response import Response
from .table import Reading, worded


def recognises(response: Response) -> bool:
    return "trial key" in response.words.lower()[:2_000]


READING = Reading(
    "cohere",
    "Cohere",
    (
        worded(
            r"limited to [0-9,.]+ api calls ?(?:/|per|a) ?(?:month|day|year)",
            "limited to … API calls / month (or day)",
            kind=WaitKind.QUOTA_EXHAUSTED,
            scope=WaitScope.ACCOUNT,
        ),
        NO_CREDIT,
        worded(
            r"limited to [0-9,.]+ api calls ?(?:/|per|a) ?(?:minute|second|hour)"
            r"|token rate limit exceeded|too many requests",
            "limited to … API calls / minute, token rate limit exceeded",
            kind=WaitKind.RATE_LIMITED,
        ),
    ),
    UNTILS,
    recognises,
)
