"""Vertex AI: a shared pool states nothing; a quota of the project's own names its metric."""

from __future__ import annotations

import re

from ..stated import WaitKind, WaitScope
from . import google
from .response import Response
from .table import KindRow, Reading

_PER_DAY = re.compile(r"\bper_day\b|_per_day_|per day", re.IGNORECASE)
_OF_A_MODEL = re.compile(r"per_base_model|with base model", re.IGNORECASE)


def recognises(response: Response) -> bool:
    return "vertex-ai" in response.words or "aiplatform.googleapis.com" in response.words


READING = Reading(
    "vertex",
    "Vertex AI",
    (
        google.NEVER,
        google.DAILY,
        KindRow(
            "words",
            "a quota metric `…per_day…`",
            WaitKind.QUOTA_EXHAUSTED,
            lambda response: response.failing == 429 and bool(_PER_DAY.search(response.words)),
            WaitScope.MODEL,
        ),
        google.NO_CREDIT,
        google.BUSY,
        KindRow(
            "words",
            "429 with a quota metric `…per_base_model`",
            WaitKind.RATE_LIMITED,
            lambda response: response.failing == 429 and bool(_OF_A_MODEL.search(response.words)),
            WaitScope.MODEL,
        ),
        google.RATE,
        google.UNAVAILABLE,
        google.LINE,
    ),
    google.UNTILS,
    recognises,
    aliases=("vertex-ai", "google-vertex"),
)
