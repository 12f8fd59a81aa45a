"""DeepSeek: statuses only. Its keep-alive comments, up to ten minutes of them, are no wait."""

from __future__ import annotations

from ..stated import WaitKind, WaitScope
from . import openai
from .generic import UNTILS
from .response import Response
from .table import Reading, worded


def recognises(response: Response) -> bool:
    return "x-ds-trace-id" in response.headers


READING = Reading(
    "deepseek",
    "DeepSeek",
    (
        worded(
            r"insufficient balance",
            "insufficient balance",
            kind=WaitKind.QUOTA_EXHAUSTED,
            scope=WaitScope.ACCOUNT,
        ),
        *openai.KINDS,
    ),
    UNTILS,
    recognises,
)
