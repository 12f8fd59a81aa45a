"""Gemini Code Assist: the error's reason tells a quota from a rate limit."""

from __future__ import annotations

from ..stated import WaitKind, WaitScope
from . import google
from .response import Response
from .table import KindRow, Reading, worded


def recognises(response: Response) -> bool:
    return any(
        str(each.get("domain", ""))[:80].endswith("cloudcode-pa.googleapis.com")
        for each in google.details(response, "ErrorInfo")
    )


READING = Reading(
    "gemini-code-assist",
    "Gemini Code Assist",
    (
        KindRow(
            "error",
            "`ErrorInfo.reason` `QUOTA_EXHAUSTED`",
            WaitKind.QUOTA_EXHAUSTED,
            lambda response: "QUOTA_EXHAUSTED" in google.reasons(response),
            WaitScope.MODEL,
        ),
        KindRow(
            "error",
            "`ErrorInfo.reason` `INSUFFICIENT_G1_CREDITS_BALANCE`",
            WaitKind.QUOTA_EXHAUSTED,
            lambda response: "INSUFFICIENT_G1_CREDITS_BALANCE" in google.reasons(response),
            WaitScope.ACCOUNT,
        ),
        KindRow(
            "error",
            "`ErrorInfo.reason` `MODEL_CAPACITY_EXHAUSTED`",
            WaitKind.OVERLOADED,
            lambda response: "MODEL_CAPACITY_EXHAUSTED" in google.reasons(response),
            WaitScope.MODEL,
        ),
        *google.ERRORS,
        worded(
            r"exhausted your (?:daily )?(?:capacity|quota) on this model"
            r"|(?:usage|quota) limit reached for (?!all\b)[\w.-]+",
            "exhausted your capacity on this model, usage limit reached for …",
            kind=WaitKind.QUOTA_EXHAUSTED,
            scope=WaitScope.MODEL,
        ),
        worded(
            r"(?:usage|quota) limit reached for all\b|reached your daily (?:\w+ )?quota",
            "usage limit reached for all … models, reached your daily quota",
            kind=WaitKind.QUOTA_EXHAUSTED,
        ),
        google.LINE,
    ),
    google.UNTILS,
    recognises,
    aliases=("code-assist", "gemini-cli"),
)
