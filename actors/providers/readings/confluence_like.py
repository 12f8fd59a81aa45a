"""Confluence, Jira and services of their kind: Retry-After, and a reset as an instant."""

from __future__ import annotations

from ..stated import WaitKind, WaitScope
from .generic import UNTILS, in_header
from .response import Response
from .table import KindRow, Reading


def _quota(response: Response) -> bool:
    reason = response.value("ratelimit-reason").lower()
    return response.failing == 429 and "quota" in reason


def recognises(response: Response) -> bool:
    return "ratelimit-reason" in response.headers or "x-ratelimit-nearlimit" in response.headers


READING = Reading(
    "confluence-like",
    "Confluence and its like",
    (
        KindRow(
            "header",
            "429 with `ratelimit-reason: …quota…`",
            WaitKind.QUOTA_EXHAUSTED,
            _quota,
            WaitScope.ACCOUNT,
        ),
    ),
    (*UNTILS, in_header("beta-retry-after", unit_ms=1_000)),
    recognises,
    aliases=("confluence", "jira", "atlassian"),
)
