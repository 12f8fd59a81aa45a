"""Durations and moments in sentences: `try again in 1m30s`, `will reset at 2026-09-04 19:01:25`.

A duration counts only behind words that say what it is for: `Limit 50 per 86400s` is no wait.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import tzinfo

from ..clocks import DAY_MS, leading_moment
from ..grammar import leading_duration
from .response import Response, Statement, after

_GAP = r"[ \t\n]{1,3}"
_LEAD = re.compile(
    rf"""
    (?: \b(?:try|trying|retry|retrying)(?:{_GAP}(?:again|(?:your|the|this){_GAP}request))?
        {_GAP}(?:in|after)
      | \bwait(?:ing)?(?:{_GAP}for)?
      | \b(?:resets?|resetting|renews?|replenished|refresh(?:es)?|resumes?|available)
        (?:{_GAP}again)?{_GAP}(?:in|after)
      | \bback{_GAP}off(?:{_GAP}for)?
      | 请在 | 请等待 | 请于 | 将在
    )
    (?:{_GAP}(?:about|approximately|around|at{_GAP}least|another|up{_GAP}to))?
    :?[ \t\n]{{0,3}}
    """,
    re.IGNORECASE | re.VERBOSE,
)
_RESET = re.compile(
    rf"\b(?:resets?|resetting|renews?|refresh(?:es)?|resumes?|try{_GAP}again|retry"
    rf"|available(?:{_GAP}again)?|continuing{_GAP}automatically)(?:{_GAP}(?:at|on|after))?{_GAP}"
    rf"|\b(?:limited|blocked|throttled|paused|suspended|locked|wait){_GAP}until{_GAP}"
    r"|(?:将在|将于|请在|请于)[ \t]{0,3}",
    re.IGNORECASE,
)


def stated_durations(response: Response, text: str | None = None) -> Iterator[Statement]:
    """Every duration that the words state, counted from the response's arrival."""
    words = response.words if text is None else text
    for lead in _LEAD.finditer(words):
        found = leading_duration(words, lead.end())
        if found is not None:
            wait_ms, end = found
            source = "text:" + " ".join(lead[0].lower().split())
            yield after(response, wait_ms, source, words[lead.start() : end].strip())


def stated_moments(
    response: Response,
    *,
    zone: tzinfo | None,
    text: str | None = None,
    within_ms: int = DAY_MS,
) -> Iterator[Statement]:
    """Every moment that the words say something resets at."""
    words = response.words if text is None else text
    for lead in _RESET.finditer(words):
        found = leading_moment(
            words, lead.end(), received_ms=response.received_ms, zone=zone, within_ms=within_ms
        )
        if found is not None:
            at_ms, end = found
            source = "text:" + " ".join(lead[0].lower().split())
            yield Statement(max(0, at_ms), source, words[lead.start() : end])
