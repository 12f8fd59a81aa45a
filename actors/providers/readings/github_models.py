"""GitHub Models: the type names whose limit it is and how long its window; the wait is exact."""

from __future__ import annotations

import re

from ..stated import WaitKind, WaitScope
from . import openai
from .generic import UNTILS, in_header
from .response import Response
from .table import KindRow, Reading, named

_WORDS = re.compile(r"\brate limit of [0-9]+ per [0-9]+s exceeded for User", re.IGNORECASE)
_TYPE = re.compile(r"exceeded for (\w{1,64})", re.IGNORECASE)


def _type(response: Response) -> str:
    found = _TYPE.search(response.words)
    return (response.value("x-ratelimit-type") or (found[1] if found else "")).lower()


def _whose(response: Response) -> tuple[WaitScope | None, str | None]:
    limit = _type(response)
    return WaitScope.MODEL if "bymodel" in limit else None, None


def _limited(response: Response) -> bool:
    return (
        "ratelimitreached" in response.names
        or response.failing == 429
        or _WORDS.search(response.words) is not None
    )


def recognises(response: Response) -> bool:
    return _type(response).startswith("user") and _limited(response)


READING = Reading(
    "github-models",
    "GitHub Models",
    (
        KindRow(
            "header",
            "`x-ratelimit-type` (or the words) `…ByDay`; `…ByModel…`: that model's",
            WaitKind.QUOTA_EXHAUSTED,
            lambda response: _limited(response) and "byday" in _type(response),
            refined=_whose,
            window="day",
        ),
        KindRow(
            "header",
            "`x-ratelimit-type` (or the words) otherwise",
            WaitKind.RATE_LIMITED,
            lambda response: _limited(response) and bool(_type(response)),
            refined=_whose,
        ),
        named("RateLimitReached", kind=WaitKind.RATE_LIMITED),
        *openai.KINDS,
    ),
    (in_header("x-ratelimit-timeremaining", unit_ms=1_000), *UNTILS),
    recognises,
)
