"""Groq: `retry-after` is the statement; `x-ratelimit-reset-*` say when a window is full again."""

from __future__ import annotations

from dataclasses import replace

from ..stated import WaitKind, WaitScope
from . import openai
from .generic import EXPLICIT, FIELDS, TEXT, X_RATELIMIT_WINDOWS
from .response import Response
from .table import Reading, named


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
        *TEXT,
        FIELDS,
        *EXPLICIT,
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
