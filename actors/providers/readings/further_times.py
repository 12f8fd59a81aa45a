"""Times that words tell behind a wait, or in front of it: `…, or in 24 hours for a daily quota`.

A wait in words may have alternatives and conditions. Which of them holds is not known here, so the
longest is meant; where one is no duration and no moment that can be read, none is known to be the
longest.

Invariants:
    I1  No text raises, and the time is bounded by its length.
    I2  Where in doubt a time counts. What counts can only lengthen a wait, or make it unknown.
    I3  What says how often, how long ago or of which window is no wait: `50 per 1 minute`, `in the
        last 24 hours`, `your 5-hour limit`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from ..more_time import COUNT_WORD, UNIT

Span = tuple[int, int]

_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}"
_LONG_DAY = r"(?:mon|tues|wednes|thurs|fri|satur|sun)days?"
_SPAN = r"(?:minute|hour|day|week|weekend|month|quarter|year|cycle|period|window)"
_GAP = r"[ \t\n]{1,3}"
_TIME = re.compile(
    rf"""
    (?:\b|(?=[^\x00-\x7f])|(?<=[^\x00-\x7f]))(?=\w)(?:     # Most places are none, at one look.
    (?P<moment>
        (?<![\w.-])\d{{4}}-\d\d-\d\d(?=T\d|[^\w-]|\Z)
      | \b{_MONTH}\.?{_GAP}\d{{1,2}}(?!\d)
      | (?<![\w.])\d{{1,2}}(?:{_GAP}de)?{_GAP}{_MONTH}\b
      | (?:(?:mon|tue|wed|thu|fri|sat|sun)[.,]?{_GAP})?
        (?<![\w.:])\d{{1,2}}(?::\d\d)?(?:{_GAP})?[ap]\.?m\b
      | (?<![\w.:])\d{{1,2}}:\d\d(?!\d)
      | \b{_LONG_DAY}\b | \btomorrow\b | \b(?:midnight|midday|noon)\b
    )
  | (?P<described>
        \b(?:until|when|once|after|before|as{_GAP}soon{_GAP}as)\b[^.!?\d\n]{{0,60}}?
        \b(?:resets?|renews?|refresh(?:es)?|ends?|expires?|elapses?|starts?|begins?
          |(?:is|are|has|have|been)(?:{_GAP}been)?{_GAP}
           (?:reset|renewed|refreshed|replenished|restored|lifted|available))\b
    )
  | (?P<worded>
        \b(?:tonight|overnight|later{_GAP}today|weekend)\b
      | \b(?:morgen|übermorgen|demain|mañana|domani|amanhã|завтра)\b | 明天|明日|后天|次日|翌日|내일
      | \b(?:next|following|new|coming){_GAP}(?:(?:calendar|billing|business){_GAP})?
        (?:{_SPAN}s?|{_LONG_DAY}|(?:mon|tues?|wed|thurs?|fri|sat|sun))\b
      | \b(?:or|otherwise|else){_GAP}(?:(?:only|just|at{_GAP}most|up{_GAP}to){_GAP})?(?:
            (?:(?:once|twice|thrice|\w{{1,8}}{_GAP}times){_GAP}(?:(?:per|every|each|an?|in){_GAP}){{0,2}}
              |(?:per|every|each){_GAP})
            (?:\w{{1,8}}{_GAP}){{0,2}}?(?:second|minute|hour|day|week|month|year)s?\b
          | (?:once{_GAP})?(?:hourly|daily|weekly|monthly)(?=\s{{0,3}}(?:[.,;)]|\Z)))
      | \b(?:end|start|beginning|turn|top|rest|remainder){_GAP}of{_GAP}
        (?:\w{{1,12}}{_GAP}){{0,2}}{_SPAN}\b
      | \b(?:in|for|within|takes?|of|several|some|many|few){_GAP}
        (?:minutes|hours|days|weeks|months)\b
      | \b(?:indefinitely|permanently|forever|until{_GAP}further{_GAP}notice)\b
      | \b(?:twice|double|triple|thrice|times){_GAP}(?:that|this|as|the)\b
      | \bhalf{_GAP}an?{_GAP}(?:minute|hour|day|week|month)\b
      | \b(?:another|(?:an?{_GAP})?(?:additional|further|extra)){_GAP}
        (?:second|minute|hour|day|week|month)\b
    )
  | (?P<counted>
        (?<![a-z0-9_.])\d(?:[.,'’]?\d){{0,40}}+[ \t\n\u00a0]{{0,3}}(?:[¼½¾⅐-⅞][ ]?)?-?{UNIT}
      | (?<!\d)(?<!\d[ ])[¼½¾⅐-⅞][ ]?{UNIT}
      | (?:{COUNT_WORD}|(?<![\w.])\d{{1,9}})[ ]and[ ](?:an?|one|two|three)[ ]
        (?:half|quarter|third)s?[ ]{UNIT}
      | \b(?:an?|one|two|three)[ -](?:half|quarter)s?[ ](?:of[ ]an?[ ])?{UNIT}
      | \bPT?\d
      | (?!a[ ]sec|十分(?![钟鐘])){COUNT_WORD}[ \t\n-]{{0,3}}(?=[a-z]{{3}}|[^\x00-\x7f]){UNIT}
    ))
    """,
    re.IGNORECASE | re.VERBOSE,
)
_SENTENCE_END = re.compile(
    r"[.!?](?=\s{1,8}[^a-z\s]|\s*\Z)|[。！？]|\n(?=[ \t]{0,8}(?:\n|[A-Z\[{#*]))"
)
_NO_WAIT_BEFORE = re.compile(
    r"(?:\b(?:per|every|each|since|as of)[ \t\n]{1,3}|(?<=[\w)])[ \t]?/[ \t]{0,3})\Z",
    re.IGNORECASE,
)
_NO_DURATION_BEFORE = re.compile(
    r"(?:\b(?:last|past|previous|took|used|spent|waited|elapsed|rolling"
    r"|sliding|trailing)(?:[ \t\n]{1,3}(?:the|about|around|of))?[ \t\n]{1,3}[~(]?)\Z",
    re.IGNORECASE,
)
_RATE_BEFORE = re.compile(
    r"(?:requests?|calls?|tokens?|messages?|times|images?|quer(?:y|ies)|prompts?|once|twice"
    r"|[$€£]?\d)"
    r"[ \t\n]{1,3}\Z",
    re.IGNORECASE,
)
_NO_WAIT_BEHIND = re.compile(
    r"[ \t\n-]{0,3}(?:ago|old|(?:\w{1,12}[ \t\n]{1,3})?(?:limits?|windows?|quotas?|periods?|rates?"
    r"|trials?|plans?|intervals?|caps?|budgets?|allowances?|usage|sessions?|subscriptions?|buckets?"
    r"|timeouts?|history))\b",
    re.IGNORECASE,
)
_ENDS_WITH_IT = re.compile(
    r"\b(?:until|after|when|once|unless|before)\b[^.!?]{0,40}\Z", re.IGNORECASE
)
_JOINED = re.compile(
    r"(?:\b(?:or|but|and|to|unless|otherwise|else|whichever|also|no|not|least|most|worst|until"
    r"|und|oder|ou|o|y|et|aber|pero|mais)\b|[(/,;:·|–—、，；（或但-])[^.!?。\d]{0,60}\Z",
    re.IGNORECASE,
)
_CHOICE = re.compile(
    r"\b(?:or|but|unless|otherwise|else|whichever|if|and)\b|[;；或否]", re.IGNORECASE
)
_ADDED = re.compile(
    r"\b(?:another|additional(?:ly)?|further|more|extra|plus|then|that|afterwards|thereafter|top"
    r"|added|adds?|followed)\b|\+",
    re.IGNORECASE,
)
_ON_TOP = re.compile(
    r"\b(?:then|plus|and|after (?:that|which)|afterwards|thereafter|followed by)\b[^.!?]{0,20}"
    r"\b(?:another|additional|further|extra)[ ]\Z",
    re.IGNORECASE,
)
_OF_A_WAIT = re.compile(
    r"\A\W{0,8}(?:or|but|if|otherwise|however|unless|else|for|once|when|after|until|in|at|note|on"
    r"|(?:the[ \t])?(?:daily|weekly|monthly|hourly))\b"
    r"|\b(?:or|if|otherwise|unless|until|before|earlier|earliest|least|up to|quota|daily|weekly"
    r"|monthly|hourly|blocked|wait|retry|again|resets?|available|can take|may take)\b|[如若或]",
    re.IGNORECASE,
)
_NO_ADVICE = re.compile(
    r"\b(?:persists?|persisting|continues|still|contact|support|report)\b", re.IGNORECASE
)


class Tie(Enum):
    """How a further time stands to the wait."""

    JOINED = "joined"
    """An alternative or a condition of it: the longer of both is meant."""
    LOOSE = "loose"
    """It may be one. If it is longer, or cannot be read, the wait is not known."""
    ADDED = "added"
    """It is on top of the wait, whose length is not known then."""


class Further(NamedTuple):
    """A time, where it starts, and how it stands to the wait."""

    start: int
    end: int
    tie: Tie
    readable: bool
    """Whether it has the form of a duration or a moment; other times are only words."""


def further_times(words: str, leads: Sequence[int], told: Sequence[Span]) -> Iterator[Further]:
    """Yield the times of a text that may qualify a wait in it, in their order.

    Args:
        leads: Where the words that speak of a wait start, in order; at least one.
        told: What was read behind them, in order.
    """
    ends = [end.end() for end in _SENTENCE_END.finditer(words)]
    sentence = lead = read = known = position = 0
    looked_at, counts = -1, False
    # Not `finditer`: what was read as a whole is stepped over, whatever stands in it.
    while (time := _TIME.search(words, position)) is not None:
        while read < len(told) and told[read][1] <= time.start():
            known = max(known, told[read][1])
            read += 1
        if read < len(told) and told[read][0] <= time.start():
            position = known = told[read][1]
            continue
        position = time.end()
        while sentence < len(ends) and ends[sentence] <= time.start():
            sentence += 1
        while lead < len(leads) and leads[lead] < time.start():
            lead += 1
        start = ends[sentence - 1] if sentence else 0
        end = ends[sentence] if sentence < len(ends) else len(words)
        last_lead = leads[lead - 1] if lead else -1
        next_lead = leads[lead] if lead < len(leads) else len(words)
        between = words[max(known, start, last_lead, time.start() - 100) : time.start()]
        known = time.end()
        if _is_no_wait(words, time, between):
            continue
        readable = time["moment"] is not None or time["counted"] is not None
        if last_lead >= start:
            joined = _JOINED.search(between) is not None and _ADDED.search(between) is None
            if time["described"] is None or _CHOICE.search(between) is not None:
                added = time["counted"] is not None and _ON_TOP.search(between) is not None
                tie = Tie.ADDED if added else Tie.JOINED if joined else Tie.LOOSE
                yield Further(*time.span(), tie, readable)
        elif next_lead < end:
            if _CHOICE.search(words, time.end(), min(next_lead + 1, time.end() + 200)):
                yield Further(*time.span(), Tie.LOOSE, readable)
        elif lead and time["described"] is None:
            if start != looked_at:
                looked_at, whole = start, words[start : min(end, start + 1_000)]
                counts = _OF_A_WAIT.search(whole) is not None and _NO_ADVICE.search(whole) is None
            if counts:
                yield Further(*time.span(), Tie.LOOSE, readable)


def _is_no_wait(words: str, time: re.Match[str], between: str) -> bool:
    before = words[max(0, time.start() - 40) : time.start()]
    if _NO_WAIT_BEFORE.search(before) is not None:
        return True
    if time["counted"] is None:
        return False
    if _NO_DURATION_BEFORE.search(before) is not None:
        return True
    if time[0][:2].lower() in ("a ", "an") and _RATE_BEFORE.search(before) is not None:
        return True
    adjective = _NO_WAIT_BEHIND.match(words, time.end()) is not None
    return adjective and _ENDS_WITH_IT.search(between) is None
