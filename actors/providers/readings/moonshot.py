"""Moonshot (Kimi): the platform's API, and the coding plan, whose walls are a 403."""

from __future__ import annotations

import re

from ..stated import WaitKind, WaitScope
from . import openai
from .generic import UNTILS
from .opencode_go import window_in
from .response import Response
from .table import KindRow, Reading, named

_PLAN = re.compile(
    r"(?<!\bif )(?<!\bwhen )reached your (?:[\w()-]+ ){0,4}(?:usage )?limit"
    r"|usage limit for (?:the|this) (?:billing )?cycle",
    re.IGNORECASE,
)
_RATE = re.compile(
    r"\byour account .{0,200}?\breached (?:max|(?:the |your )?organization) ", re.IGNORECASE
)
_TYPES = {"rate_limit_reached_error", "exceeded_current_quota_error", "engine_overloaded_error"}


def recognises(response: Response) -> bool:
    return (
        bool(_TYPES & response.names)
        or _RATE.search(response.words) is not None
        or (
            "access_terminated_error" in response.names and "kimi" in response.text[:20_000].lower()
        )
    )


READING = Reading(
    "moonshot",
    "Moonshot (Kimi)",
    (
        KindRow(
            "words",
            "reached your … usage limit (the coding plan; also as `access_terminated_error`)",
            WaitKind.QUOTA_EXHAUSTED,
            lambda response: _PLAN.search(response.words) is not None,
            WaitScope.ACCOUNT,
            refined=lambda response: (None, window_in(response.words)),
        ),
        named(
            "exceeded_current_quota_error",
            kind=WaitKind.QUOTA_EXHAUSTED,
            scope=WaitScope.ACCOUNT,
        ),
        named("engine_overloaded_error", kind=WaitKind.OVERLOADED),
        named("rate_limit_reached_error", kind=WaitKind.RATE_LIMITED),
        KindRow(
            "words",
            "`Your account … request reached max request`, `… reached organization … rate limit`",
            WaitKind.RATE_LIMITED,
            lambda response: _RATE.search(response.words) is not None,
        ),
        *openai.KINDS,
    ),
    UNTILS,
    recognises,
    aliases=("kimi", "moonshotai", "kimi-code"),
)
