"""Durations and moments in sentences: `try again in 1m30s`, `will reset at 2026-09-04 19:01:25`.

A duration counts only behind words that say what it is for: `Limit 50 per 86400s` is no wait.

Invariants:
    I1  Of all that the words of one text say of a wait the longest is stated. Where a part of it
        cannot be read they state nothing: that part may be the longest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, tzinfo

from ..clocks import DAY_MS, leading_moment
from ..durations import clocked, leading_duration
from .further_times import Further, Span, Tie, further_times
from .response import Response, Statement, after

_GAP = r"[ \t\n]{1,3}"
_NOT_BEFORE = (
    rf"(?:(?:no|not){_GAP}(?:(?:earlier|sooner){_GAP}than|before|until)"
    rf"|(?:not|n't){_GAP}(?:re)?try(?:{_GAP}again)?{_GAP}(?:before|until))"
)
_LEAD = re.compile(
    rf"""
    (?: \b(?:try|trying|retry|retrying)(?:{_GAP}(?:again|(?:your|the|this){_GAP}request)){{0,2}}
        {_GAP}(?:in|after)
      | \bwait(?:ing)?(?:{_GAP}(?:for|time|period)\b){{0,2}}(?:{_GAP}is)?
      | \b(?:resets?|resetting|renews?|renewed|replenished|refilled|refresh(?:es|ed)?|restored
          |reinstated|resumes?|lifted|lifts|unlocks?|unlocked|unblocked|available
          |allowed|possible|ready|back|again)
        (?:{_GAP}again)?{_GAP}(?:in|after)
      | \b(?:back|hold){_GAP}off(?:{_GAP}for)?
      | \b(?:pause|sleep|slow{_GAP}down|cool{_GAP}down){_GAP}for
      | \b(?:retry[-_ ]?(?:after|delay|in)|cool-?down(?:{_GAP}(?:time|period))?
          |time{_GAP}(?:until|to|before){_GAP}(?:the{_GAP})?(?:next{_GAP})?(?:reset|retry))
        (?:{_GAP}is|{_GAP}of)?[ \t]?[:=](?=\s*\D|\s*\d[\d.,:]*\s*[a-z\u0080-\uffff])
      | \b(?:limited|blocked|throttled|paused|suspended|locked|unavailable){_GAP}for
      | (?<![a-mo-z]){_NOT_BEFORE}
      | 请在 | 请等待 | 请于 | 将在
    )
    :?[ \t\n]{{0,3}}
    """,
    re.IGNORECASE | re.VERBOSE,
)
_RESET = re.compile(
    rf"\b(?:resets?|resetting|renews?|refresh(?:es)?|resumes?|try{_GAP}again|retry"
    rf"|available(?:{_GAP}again)?|continuing{_GAP}automatically|regain{_GAP}access)"
    rf"(?:{_GAP}(?:at|on|after|from))?{_GAP}"
    rf"|\b(?:limited|blocked|throttled|paused|suspended|locked|wait){_GAP}until{_GAP}"
    rf"|(?<![a-mo-z]){_NOT_BEFORE}{_GAP}"
    r"|(?:将在|将于|请在|请于)[ \t]{0,3}",
    re.IGNORECASE,
)
_NO_UNIT = re.compile(r"[0-9][0-9.,]*(?=\s*(?:\Z|[.;!?)]|(?:or|and|but|before)\b))")
"""`try again in 600`. Of what, is not said, and none is guessed."""


def stated_times(
    response: Response,
    *,
    zone: tzinfo | None,
    text: str | None = None,
    within_ms: int = DAY_MS,
) -> Iterator[Statement]:
    """Every duration and moment that the words state as a wait, or none where one is unreadable.

    Args:
        zone: Of moments that name none; None: such a moment is unreadable.
        text: What is read in place of the response's words.
        within_ms: How far off a moment without a whole date can lie.
    """
    words = response.words if text is None else text
    leads: list[re.Match[str]] = []
    told: list[Span] = []
    stated: list[Statement] = []

    def statement(lead: re.Match[str], start: int, kinds: str) -> tuple[Statement, int] | None:
        source = "text:" + " ".join(lead[0].lower().split())
        # `retry after 14:00 hrs` may tell the time of day.
        timed = lead[0].rstrip().endswith("after") and clocked(words, start)
        if "d" in kinds and not timed and (wait := leading_duration(words, start)) is not None:
            raw = words[lead.start() : wait[1]].strip()
            return after(response, wait[0], source, raw), wait[1]
        if "m" in kinds:
            moment = leading_moment(
                words, start, received_ms=response.received_ms, zone=zone, within_ms=within_ms
            )
            if moment is not None:
                raw = words[lead.start() : moment[1]]
                return Statement(max(0, moment[0]), source, raw), moment[1]
        return None

    for pattern, kinds in ((_LEAD, "d"), (_RESET, "m")):
        for lead in pattern.finditer(words):
            leads.append(lead)
            found = statement(lead, lead.end(), kinds)
            if found is not None:
                stated.append(found[0])
                told.append((lead.end(), found[1]))
            elif kinds == "d" and _NO_UNIT.match(words, lead.end()) is not None:
                return
    if not leads:
        return
    leads.sort(key=lambda lead: lead.start())
    told.sort()
    longest = max((one.at_ms for one in stated), default=0)
    last, of = leads[0], iter([*leads[1:], None])
    upcoming, covered = next(of), 0
    for time in further_times(words, [lead.start() for lead in leads], told):
        while upcoming is not None and upcoming.start() < time.start:
            last, upcoming = upcoming, next(of)
        if time.start < covered:
            continue
        found = statement(last, time.start, "dm") if time.readable else None
        if found is None:
            if _passed(words, time, response.received_ms):
                continue
            return
        covered = found[1]
        if found[0].at_ms > longest:
            if time.tie is Tie.LOOSE:
                return
            longest = found[0].at_ms
            stated.append(found[0])
    yield from stated


def _passed(words: str, time: Further, received_ms: int | None) -> bool:
    """Whether a time is a date, without a clock, that is over: of a version, or in a log."""
    try:
        day = date.fromisoformat(words[time.start : time.end])
    except ValueError:
        return False
    return received_ms is not None and (day - date(1970, 1, 1)).days < received_ms // DAY_MS
