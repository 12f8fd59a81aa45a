"""Durations as words and fields spell them: `1h2m3.5s`, `about an hour`, `1:30 hours`, `PT1M30S`.

Pure functions, on the numbers of `grammar`: whole milliseconds rounded up, or `math.inf`.

Invariants:
    I1  No text raises, however long, and the time is bounded by its length.
    I2  Nothing is read as less than it says: of a range the far end, and nothing where more time
        follows than was read, or where what was read is of each request, or is multiplied.
    I3  Words that bound or blur a duration (`over`, `about`, `up to`, `~`) change nothing: the
        number that was told is read.
    I4  A sign in front of a number makes a duration that is over.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .grammar import Milliseconds, scaled
from .more_time import UNIT, WORD_END, more_time_follows

_SECOND_NS, _MINUTE_NS, _HOUR_NS, _DAY_NS = 10**9, 60 * 10**9, 3_600 * 10**9, 86_400 * 10**9
_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "msec": 1_000_000,
    "millisecond": 1_000_000,
    "毫秒": 1_000_000,
    "s": _SECOND_NS,
    "sec": _SECOND_NS,
    "second": _SECOND_NS,
    "秒": _SECOND_NS,
    "m": _MINUTE_NS,
    "min": _MINUTE_NS,
    "minute": _MINUTE_NS,
    "分钟": _MINUTE_NS,
    "h": _HOUR_NS,
    "hr": _HOUR_NS,
    "hour": _HOUR_NS,
    "小时": _HOUR_NS,
    "d": _DAY_NS,
    "day": _DAY_NS,
    "天": _DAY_NS,
    "week": 7 * _DAY_NS,
}
_UNIT = "|".join(
    name + ("s?" if len(name) > 2 or name == "hr" else "")
    for name in sorted(_UNITS_NS, key=len, reverse=True)
)
_WORDED_UNIT = "(?:msec|millisecond|sec|second|min|minute|hr|hour|day|week)s?"

_SMALL = (
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SPELLED = (
    rf"(?>(?:{'|'.join(_TENS)})(?:[ \u2010-\u2015-](?:{'|'.join(_SMALL[:9])}))?"
    rf"|(?:{'|'.join(reversed(_SMALL))}))\b"
)

_GREATER = re.compile(
    rf"(?:(?:hundred|thousand|million|dozen|{_SPELLED})(?:[ -]and)?[ -]"
    r"|(?:\btimes|\bx|[×✕∗]|[0-9] ?\*) ?)\Z",
    re.IGNORECASE,
)
"""A number whose last part alone would be read: `a hundred and twenty seconds`, `3 x 20 s`."""
_BLANKS = r"[ \t\u00a0\u2000-\u200a\u202f\u205f\u3000]{0,8}"
_GAP = r"[ \t\n\u00a0\u202f]{1,3}"
_SHORTENED = "|".join(f"(?<={name})" for name in ("hr", "hrs", "min", "mins", "sec", "secs"))
_UNIT_END = (
    rf"(?:\(s\))?{WORD_END}"
    # The dot of a shortened unit, where no sentence starts behind it: `1 hr. 30 min.`
    rf"(?:(?:{_SHORTENED})\.(?!{_BLANKS}(?-i:[A-Z])))?"
)
_GROUPED = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})++|[0-9]++)"
"""A whole number, also as `1,200`. Any other comma (`1,5 minutes`) makes none of it."""
_QUALIFIER = re.compile(
    rf"""
    (?:
      (?: (?:just|only|exactly|precisely|still|(?:a{_GAP})?(?:little|bit)|slightly)
        | about | approximately | approx\.? | around | roughly | nearly | almost | circa | ca\.
        | some | over | under | up{_GAP}to | at{_GAP}(?:least|most)
        | (?:(?:no|not|a{_GAP}(?:little|bit)){_GAP})?(?:more|less|fewer|longer){_GAP}than
        | (?:an?{_GAP})?(?:another|additional|further|extra|full)
        | (?:an?{_GAP}|the{_GAP})?(?:total|period|minimum|maximum|min\.?|max\.?)(?:{_GAP}of)?
        | (?:the{_GAP})?next | for
      )(?!\w):?{_GAP}
    | [~\u2248\u2243\u2264\u2265<>=]{{1,2}}{_BLANKS}
    | [("'`*\u201c]{{1,3}}
    ){{0,5}}
    """,
    re.IGNORECASE | re.VERBOSE,
)
# At the start of a line it is the dash of a list.
_SIGNED = re.compile(r"(?<!\n)[-\u2212\ufe63\uff0d](?=[0-9Pp])")
_TERM = re.compile(rf"({_GROUPED})(?:\.([0-9]++))?\+?{_BLANKS}({_UNIT}){_UNIT_END}", re.IGNORECASE)
_WORDED_TERM = re.compile(
    # `a second` is a time only where no word follows that it may count: `a second attempt`.
    rf"(?<![\w-])(?!an?{_GAP}sec(?:ond)?\b(?!\s{{0,3}}\Z|[.,;:!?)]|\s{{1,3}}(?:before|and|or|to)\b))"
    rf"(half{_GAP}an?|an?|{_SPELLED}){_GAP}({_WORDED_UNIT}){_UNIT_END}",
    re.IGNORECASE,
)
_PARTS = {"half": (1, 2), "quarter": (1, 4), "third": (1, 3),
          "¼": (1, 4), "½": (1, 2), "¾": (3, 4), "⅓": (1, 3), "⅔": (2, 3)}  # fmt: skip
_PART = rf"(?:(an?|one|two|three)(?:{_GAP}|-))?(half|quarter|third)s?"
_FRACTION = re.compile(
    # `1½ hours`, `½ h`; `1 1/2 hours`, but no `1/2 hours`, which may be a choice.
    rf"(?:({_GROUPED}){_BLANKS})?([¼½¾⅓⅔]){_BLANKS}(?:of{_GAP}an?{_GAP})?({_UNIT}){_UNIT_END}"
    rf"|({_GROUPED})[ ]([1-9])[/\u2044]([1-9]){_BLANKS}({_UNIT}){_UNIT_END}",
    re.IGNORECASE,
)
_WORDED_FRACTION = re.compile(
    # `two and a half hours`; `a quarter of an hour`, `three quarters of an hour`, `a half hour`.
    rf"(?<![\w-])(?:({_GROUPED}|{_SPELLED}){_GAP}and{_GAP}{_PART}{_GAP}({_WORDED_UNIT})"
    rf"|(?<!and[ ])(?:(an?|one|two|three)(?:{_GAP}|-))?(half|quarter)s?{_GAP}(?:of{_GAP}an?{_GAP})?"
    rf"({_WORDED_UNIT})){_UNIT_END}",
    re.IGNORECASE,
)
_AND_A_PART = re.compile(
    rf"{_GAP}and{_GAP}{_PART}(?!\w)(?!{_GAP}(?:of{_GAP})?(?:an?{_GAP})?{UNIT}{WORD_END})",
    re.IGNORECASE | re.VERBOSE,
)
"""Behind a unit: `an hour and a half`."""
_AND = re.compile(rf"{_BLANKS}(?:,{_BLANKS}and\b|,|and\b)?{_BLANKS}", re.IGNORECASE)
_JOIN = re.compile(
    rf"{_BLANKS}(?:<br ?/?>|\.{{1,3}}|[&+;:/\u2026\u00b7\u2022\u3001\uff0c\u2010-\u2015-]|[零又]"
    r"|,?[ \t]{0,3}(?:and[ \t]{1,3})?(?:then|plus|another)\b)?\s{0,20}(?=[0-9])",
    re.IGNORECASE,
)
"""Between two terms: an odd sign or word, or the end of a line, where a terminal breaks it."""
_CLOCKED = re.compile(r"([0-9]{1,6}):([0-5][0-9]):([0-5][0-9])(?:\.([0-9]++))?(?![0-9:])")
"""As Python writes the rest of a duration behind its days: `1 day, 2:03:04`."""
_HOURS_MINUTES = re.compile(r"([0-9]{1,3}):([0-5][0-9])(?![0-9:])")
"""The same without seconds. Only behind days: by itself it may be minutes and seconds."""
_CLOCKED_UNIT = re.compile(
    rf"([0-9]{{1,6}}):([0-5][0-9])(?::([0-5][0-9]))?(?:\.([0-9]++))?{_BLANKS}"
    rf"(h(?:(?:ou)?rs?)?|min(?:ute)?s?){_UNIT_END}",
    re.IGNORECASE,
)
"""A clock that says what its first number counts: `1:30 hours`."""
_TIMESPAN = re.compile(rf"([0-9]{{1,8}})\.(?={_CLOCKED.pattern})")
"""The days that .NET writes in front of a clock: `1.02:03:04`."""
_BARE_MINUTES = re.compile(rf"([0-5][0-9])(?![\w:.,]|\s{{0,8}}{UNIT})", re.IGNORECASE | re.VERBOSE)
"""`1h30`: minutes that stand right behind hours and name no unit."""
_RANGE = re.compile(
    rf"[ \t]{{0,3}}(?:[\u2010-\u2015-]|\.\.\.?|\u2026|\bto\b|(?:,[ \t]?|\()?\bor\b)[ \t]{{0,3}}"
    rf"(?:{_QUALIFIER.pattern})(?=[0-9]|half\b|an?\b|{_SPELLED})",
    re.IGNORECASE | re.VERBOSE,
)
_GLOSS = re.compile(
    r"[ \t]{0,3}\([ \t]{0,3}(?:about[ \t]|[~=\u2248])?[ \t]{0,3}(?=[0-9])", re.IGNORECASE
)
"""The same told once more, in other units: `5631 seconds (1.5 hours)`."""
_RANGE_START = re.compile(
    rf"(?:({_GROUPED})(?:\.([0-9]++))?|({_SPELLED})){_RANGE.pattern}", re.IGNORECASE | re.VERBOSE
)
_BETWEEN = re.compile(
    rf"(?:between|from)[ \t]{{1,3}}(?:({_GROUPED})(?:\.([0-9]++))?|({_SPELLED}))"
    rf"(?:{_BLANKS}({_UNIT}))?[ \t]{{1,3}}(?:and|to)[ \t]{{1,3}}(?=[0-9]|an?\b|{_SPELLED})",
    re.IGNORECASE,
)
_ISO = r"([0-9]++(?:[.,][0-9]++)?)"
_ISO_DURATION = re.compile(
    rf"P(?:{_ISO}W)?(?:{_ISO}D)?(?:T(?:{_ISO}H)?(?:{_ISO}M)?(?:{_ISO}S)?)?(?![A-Za-z0-9])",
    re.IGNORECASE | re.ASCII,
)
_ISO_UNITS_NS = (7 * _DAY_NS, _DAY_NS, _HOUR_NS, _MINUTE_NS, _SECOND_NS)


class _Term(NamedTuple):
    length: Milliseconds
    unit_ns: int
    end: int


def spelled_duration(text: str) -> Milliseconds | None:
    """Read `1h2m3.5s`, `4 days 20 hours 9 minutes` or `PT1M30S`, and nothing beside it."""
    found = leading_duration(text, 0)
    return found[0] if found is not None and not text[found[1] :].strip(" \t,") else None


def leading_duration(text: str, position: int) -> tuple[Milliseconds, int] | None:
    """Read the spelled, clocked or ISO 8601 duration that starts at a position; say where it ends.

    Of a range, or of two that are both told, the longer. What is followed by more time than was
    read is none: what stands before it is shorter than what is meant. A negative one is 0.
    """
    qualifier = _QUALIFIER.match(text, position)
    position = position if qualifier is None else qualifier.end()
    start = _BETWEEN.match(text, position) or _RANGE_START.match(text, position)
    found = _leading_one(text, position if start is None else start.end())
    if start is not None and found is not None:
        found = max(found[0], _near_end(text, start)), found[1]
    elif found is not None:
        further = _RANGE.match(text, found[1])
        other = None if further is None else _leading_one(text, further.end())
        if other is not None:
            found = max(found[0], other[0]), other[1]
    if found is not None and (gloss := _GLOSS.match(text, found[1])) is not None:
        again = _leading_one(text, gloss.end())
        # What is much shorter is no other name of the same.
        if again is not None and again[0] * 10 >= found[0] * 9 and text[again[1] :][:1] == ")":
            found = max(found[0], again[0]), again[1] + 1
    return None if found is None or more_time_follows(text, found[1]) else found


def clocked(text: str, position: int) -> bool:
    """Whether what stands at a position may be the time of a clock: `13:00:00`, `13:00 hrs`."""
    return _HOURS_MINUTES.match(text, position) is not None or (
        _CLOCKED.match(text, position) is not None
    )


def _near_end(text: str, start: re.Match[str]) -> Milliseconds:
    """The first of a range's ends, in the unit that it names, or else in the other's."""
    whole, fraction, words, unit = (*start.groups(), None)[:4]
    far = None if unit else _term(text, start.end())
    unit_ns = _unit_named(unit) if unit else 0 if far is None else far.unit_ns
    if words:
        return _worded(words, unit_ns)
    fraction = fraction or ""
    return scaled((whole or "").replace(",", "") + fraction, -len(fraction), unit_ns)


def _leading_one(text: str, position: int) -> tuple[Milliseconds, int] | None:
    signed = _SIGNED.match(text, position)
    if signed is not None:
        found = _positive(text, signed.end())
        return None if found is None else (0, found[1])
    return _positive(text, position)


def _positive(text: str, position: int) -> tuple[Milliseconds, int] | None:
    told = _iso(text, position) or _clocked_unit(text, position)
    if told is not None:
        return told
    end, last_ns = position, 0
    total: Milliseconds = 0
    if (days := _TIMESPAN.match(text, position)) is not None:
        total, end = scaled(days[1], 0, _DAY_NS), days.end()
    while (term := _next_term(text, end, last_ns)) is not None:
        total += term.length
        last_ns, end = term.unit_ns, term.end
    rest_ms, end = _clocked_rest(text, end, last_ns)
    return None if end == position else (total + rest_ms, end)


def _iso(text: str, position: int) -> tuple[Milliseconds, int] | None:
    match = _ISO_DURATION.match(text, position)
    if match is None or not any(match.groups()):
        return None
    parts = [(part, unit_ns) for part, unit_ns in
             zip(match.groups(), _ISO_UNITS_NS, strict=True) if part]  # fmt: skip
    total: Milliseconds = 0
    for part, unit_ns in parts:
        whole, _, fraction = part.replace(",", ".").partition(".")
        if fraction and part is not parts[-1][0]:
            return None  # Only the smallest may have one.
        total += scaled(whole + fraction, -len(fraction), unit_ns)
    return total, match.end()


def _clocked_unit(text: str, position: int) -> tuple[Milliseconds, int] | None:
    match = _CLOCKED_UNIT.match(text, position)
    if match is None:
        return None
    first_ns = _unit_named(match[5])
    if match[3] and first_ns != _HOUR_NS:
        return None
    last, fraction = match[3] or match[2], match[4] or ""
    last_ns = first_ns // (3_600 if match[3] else 60)
    total = scaled(match[1], 0, first_ns) + scaled(last + fraction, -len(fraction), last_ns)
    return total + (scaled(match[2], 0, _MINUTE_NS) if match[3] else 0), match.end()


def _clocked_rest(text: str, position: int, last_ns: int) -> tuple[Milliseconds, int]:
    """What a clock tells at a position, behind a term of `last_ns` or none; and where that ends."""
    between = _AND.match(text, position) if last_ns else None
    start = position if between is None else between.end()
    rest = _CLOCKED.match(text, start)
    if rest is None and last_ns == _DAY_NS:
        rest = _HOURS_MINUTES.match(text, start)
    if rest is None and last_ns == _HOUR_NS:
        bare = _BARE_MINUTES.match(text, start)
        return (0, position) if bare is None else (scaled(bare[1], 0, _MINUTE_NS), bare.end())
    if rest is None:
        return 0, position
    seconds, fraction = (*rest.groups(default="")[2:], "", "")[:2]
    told = scaled(rest[1], 0, _HOUR_NS) + scaled(rest[2], 0, _MINUTE_NS)
    return told + scaled(seconds + fraction, -len(fraction), _SECOND_NS), rest.end()


def _next_term(text: str, position: int, last_ns: int) -> _Term | None:
    """The term at a position; behind one of `last_ns`, also over a join, where it goes on in a
    smaller unit."""
    if not last_ns:
        partial = _GREATER.search(text, max(0, position - 24), position) is not None
        return None if partial else _term(text, position)
    for joined, smaller in ((_AND, False), (_JOIN, True)):
        between = joined.match(text, position)
        term = None if between is None else _term(text, between.end())
        if term is not None and not (smaller and term.unit_ns >= last_ns):
            return term
    return None


def _term(text: str, position: int) -> _Term | None:
    """A number, in digits or in words, with its unit; and the part of one that is told behind."""
    term = _whole_term(text, position)
    behind = None if term is None else _AND_A_PART.match(text, term.end)
    # Of `half an hour and a half` nobody knows what is meant.
    if term is None or behind is None or term.length * 1_000_000 % term.unit_ns:
        return term
    part = _part(behind[1], behind[2], term.unit_ns)
    return _Term(term.length + part, term.unit_ns, behind.end())


def _whole_term(text: str, position: int) -> _Term | None:
    match = _TERM.match(text, position)
    if match is not None and (unit_ns := _unit_named(match[3])):
        fraction = match[2] or ""
        length = scaled(match[1].replace(",", "") + fraction, -len(fraction), unit_ns)
        return _Term(length, unit_ns, match.end())
    match = _FRACTION.match(text, position)
    if match is not None:
        unit_ns = _unit_named(match[3] or match[7])
        whole = scaled((match[1] or match[4] or "0").replace(",", ""), 0, unit_ns)
        parts = _PARTS[match[2]] if match[2] else (int(match[5]), int(match[6]))
        return _Term(whole + _share(*parts, unit_ns), unit_ns, match.end())
    match = _WORDED_FRACTION.match(text, position)
    if match is not None:
        number, many, part, unit, many_alone, part_alone, unit_alone = match.groups()
        unit_ns = _unit_named(unit or unit_alone)
        part_ms = _part(many or many_alone, part or part_alone, unit_ns)
        return _Term(_counted(number, unit_ns) + part_ms, unit_ns, match.end())
    match = _WORDED_TERM.match(text, position)
    if match is None:
        return None
    unit_ns = _unit_named(match[2])
    return _Term(_worded(match[1], unit_ns), unit_ns, match.end())


def _counted(number: str | None, unit_ns: int) -> Milliseconds:
    if number is None:
        return 0
    digits = number.replace(",", "")
    return scaled(digits, 0, unit_ns) if digits.isdecimal() else _worded(number, unit_ns)


def _part(many: str | None, part: str, unit_ns: int) -> Milliseconds:
    times = 1 + ("two", "three").index(many.lower()) + 1 if many and many[0] in "tT" else 1
    of, whole = _PARTS[part.lower()]
    return _share(times * of, whole, unit_ns)


def _share(of: int, whole: int, unit_ns: int) -> Milliseconds:
    return -(-of * unit_ns // (whole * 1_000_000))


def _worded(count: str, unit_ns: int) -> Milliseconds:
    words = re.split(r"[^a-z]+", count.lower())
    if words[0] == "half":
        return scaled("5", -1, unit_ns)
    if words[0] in ("a", "an"):
        return scaled("1", 0, unit_ns)
    value = sum(
        10 * (2 + _TENS.index(word)) if word in _TENS else 1 + _SMALL.index(word) for word in words
    )
    return scaled(str(value), 0, unit_ns)


def _unit_named(unit: str) -> int:
    unit = unit.lower()
    return _UNITS_NS.get(unit) or _UNITS_NS.get(unit.removesuffix("s"), 0)
