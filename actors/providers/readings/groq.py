"""Groq: `retry-after` is the statement; a day's requests that are used up bind until their reset.

Tokens are counted by the minute and come back as time goes on: their reset says when the window is
full, and `retry-after` when enough of it is there. Of a day's requests with none left both count,
and the longer binds: a call before the reset may be refused again.
"""

from __future__ import annotations

from dataclasses import replace

from ..stated import WaitKind, WaitScope
from . import openai
from .generic import EXPLICIT, FIELDS, SAID, X_RATELIMIT_WINDOWS, spent_windows
from .response import Response
from .table import Reading, UntilRow, named


def recognises(response: Response) -> bool:
    return "x-groq-id" in response.headers or "console.groq.com" in response.words


READING = Reading(
    "groq",
    "Groq",
    (
        named("blocked_api_access", kind=WaitKind.QUOTA_EXHAUSTED, scope=WaitScope.ACCOUNT),
        *openai.KINDS,
    ),
    (
        SAID,
        FIELDS,
        *EXPLICIT,
        UntilRow(
            "header",
            "`x-ratelimit-reset-requests`",
            "of a day; a spelled duration, only where `x-ratelimit-remaining-requests` is 0, and "
            "also where something else states a wait",
            lambda response: spent_windows(response, "requests"),
        ),
        replace(
            X_RATELIMIT_WINDOWS,
            how=X_RATELIMIT_WINDOWS.how.partition(". It says")[0]
            + ". Only where nothing else states the wait: it is when the window is full again",
            alone=True,
        ),
    ),
    recognises,
    notes="Requests are counted per day, tokens per minute.",
)
