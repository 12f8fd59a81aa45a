"""OpenCode Go: a plan's usage windows, stated as Retry-After and in words."""

from __future__ import annotations

import re

from ..stated import WaitKind, WaitScope
from . import openai
from .generic import UNTILS, objects_of
from .response import Response
from .table import KindRow, Reading, worded

_WINDOWS = (
    (re.compile(r"\b(?:5|five)[ -]?h(?:ou)?rs?\b", re.IGNORECASE), "five_hour"),
    (re.compile(r"\bweekly\b", re.IGNORECASE), "seven_day"),
    (re.compile(r"\bmonthly\b", re.IGNORECASE), "monthly"),
    (re.compile(r"\bdaily\b", re.IGNORECASE), "daily"),
)
_NAMES = {"gousagelimiterror", "freeusagelimiterror", "subscriptionusagelimiterror"}


def window_in(words: str) -> str | None:
    """The usage window that words name, if they name one."""
    return next((window for pattern, window in _WINDOWS if pattern.search(words)), None)


def _window(response: Response) -> tuple[WaitScope | None, str | None]:
    limits = [each.get("limitName") for each in objects_of(response)]
    limits += [
        data["metadata"].get("limitName")
        for _event, data in response.documents
        if isinstance(data.get("metadata"), dict)
    ]
    for name in limits:
        if isinstance(name, str) and (window := window_in(name)):
            return None, window
    return None, window_in(response.words)


def recognises(response: Response) -> bool:
    return bool(_NAMES & response.names)


_USED_UP = worded(
    r"\busage limit (?:has been )?reached|reached your (?:[\w-]+ ){0,3}limit",
    "",
    kind=WaitKind.OTHER,
)

READING = Reading(
    "opencode-go",
    "OpenCode Go",
    (
        KindRow(
            "error",
            "`GoUsageLimitError`, `FreeUsageLimitError`; `usage limit reached`",
            WaitKind.QUOTA_EXHAUSTED,
            lambda response: recognises(response) or _USED_UP.matches(response),
            WaitScope.ACCOUNT,
            refined=_window,
        ),
        *openai.KINDS,
    ),
    UNTILS,
    recognises,
    aliases=("opencode",),
    notes="The window is named by `metadata.limitName` or by the words.",
)
