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
_IN_FRONT = re.compile(
    r"(?:\A|(?<=[.!?:;,(·—–\n-])|(?<=[.!?:;,·—–-]\s)|(?<=\bplease\s)|(?<=\band\s)|(?<=\bbut\s)"
    r"|(?<=\bor\s)|(?<=\bthen\s))(?:in|after)[ \t\n]{1,3}"
    r"(?=[0-9~½¼¾a-z])",
    re.IGNORECASE,
)
_WHAT_FOR = re.compile(
    rf""",?{_GAP}(?:please{_GAP})?
    (?: (?:(?:you|we|it|they|requests?|calls?|messages?|access|service
          |(?:your|the){_GAP}(?:[\w-]{{1,20}}{_GAP}){{0,2}}[\w-]{{1,20}}){_GAP})
        (?:(?:can|may|will|should|could|is|are)(?:{_GAP}(?:then|be|once|now|able|to)){{0,4}}{_GAP})?
    )?
    (?: (?:re)?try(?:{_GAP}(?:again|(?:your|the|this){_GAP}request)){{0,2}}
      | send(?:{_GAP}\w{{1,12}}){{0,2}}{_GAP}again | continue | resume[sd]?
      | resets? | renews? | refreshe?s? | restored | replenished | lifted | unlocked | unblocked
      | (?:available|allowed|accepted|possible)(?:{_GAP}again)? )
    (?=[ \t]{{0,3}}(?:[.,;:!?)\n]|\Z|(?:or|and|but|unless|otherwise)\b))
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""Behind a duration that stands in front: `in 2 hours you can try again`. What has a time of its
own behind it is told by that."""
_FROM_NOW = re.compile(rf"{_GAP}(?:from{_GAP}now|later|hence)\b", re.IGNORECASE)
_QUEUED = r"(?:queued?|pending|waiting|ahead|in[ ]line|before[ ]you)"
_MULTIPLIED = re.compile(
    rf"\bmultipl(?:y|ied)\b"
    rf"|\b(?:per|for[ ](?:each|every))[ ](?:\w{{1,12}}[ ]){{0,3}}?{_QUEUED}\b"
    rf"|\bfor[ ](?:each|every)[ ][^.!?\n]{{1,40}}[,:][ ](?:please[ ])?\Z",
    re.IGNORECASE,
)
"""Words that make of a wait one for each of so many: how many is not told."""
_ANOTHER = re.compile(
    rf"(?:yet{_GAP})?(?:an?{_GAP})?(?:another|additional|further|extra|more)\b", re.IGNORECASE
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
            wait = leading_duration(words, start)
            if wait is not None and (now := _FROM_NOW.match(words, wait[1])) is not None:
                raw = words[lead.start() : now.end()].strip()
                return after(response, wait[0], source, raw), now.end()
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
    for lead in _IN_FRONT.finditer(words):
        wait = leading_duration(words, lead.end())
        if wait is not None and (what := _WHAT_FOR.match(words, wait[1])) is not None:
            leads.append(lead)
            raw = words[lead.start() : what.end()]
            stated.append(after(response, wait[0], f"text:{lead[0].strip().lower()}", raw))
            told.append((lead.end(), wait[1]))
    leads.sort(key=lambda lead: lead.start())
    told.sort()
    if not leads or _multiplied(words, leads) or _added(words, told):
        return
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
        if time.tie is Tie.ADDED:
            return
        if found[0].at_ms > longest:
            if time.tie is Tie.LOOSE:
                return
            longest = found[0].at_ms
            stated.append(found[0])
    yield from stated


def _multiplied(words: str, leads: list[re.Match[str]]) -> bool:
    return _MULTIPLIED.search(words) is not None or any(
        _MULTIPLIED.search(words, max(0, lead.start() - 100), lead.start()) for lead in leads
    )


def _added(words: str, told: list[Span]) -> bool:
    """Whether what was read of a wait is more time on top of what was read before it."""
    return any(_ANOTHER.match(words, start) is not None for start, _ in told[1:])


def _passed(words: str, time: Further, received_ms: int | None) -> bool:
    """Whether a time is a date, without a clock, that is over: of a version, or in a log."""
    try:
        day = date.fromisoformat(words[time.start : time.end])
    except ValueError:
        return False
    return received_ms is not None and (day - date(1970, 1, 1)).days < received_ms // DAY_MS
