"""One grammar of numbers, durations and dates for everything providers state. Pure functions.

Durations are whole milliseconds rounded up, or `math.inf` where they are beyond any instant.
Instants are epoch milliseconds rounded up, or `math.inf` likewise. None: the text is not of this
form, so it states nothing.

Invariants:
    I1  No text raises, however long. `int()` refuses more than 4,300 digits, and takes `1_000`,
        full-width digits and blanks; `float()` takes `nan`. So text is matched first, in ASCII.
    I2  Nothing is guessed: no zone, no instant; an impossible date is none (no 30 February).
    I3  Digits that do not fit are rounded up, never cut.
"""

from __future__ import annotations

import math
import re
from datetime import date
from typing import TypeAlias

from .more_time import UNIT, WORD_END, more_time_follows

Milliseconds: TypeAlias = int | float
"""A whole number, or `math.inf`. A float is never anything else here."""

_DIGITS_MAX = 25
"""Past 10**25 of any unit here, even nanoseconds, lies nothing that `INSTANT_MS_MAX` admits."""

_EPOCH_MIN_MS = 10**12
_DAY_NS = 86_400 * 10**9

_NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?)([0-9]+))?")
_WORD_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "msec": 1_000_000,
    "millisecond": 1_000_000,
    "毫秒": 1_000_000,
    "s": 10**9,
    "sec": 10**9,
    "second": 10**9,
    "秒": 10**9,
    "m": 60 * 10**9,
    "min": 60 * 10**9,
    "minute": 60 * 10**9,
    "分钟": 60 * 10**9,
    "h": 3_600 * 10**9,
    "hr": 3_600 * 10**9,
    "hour": 3_600 * 10**9,
    "小时": 3_600 * 10**9,
    "d": 86_400 * 10**9,
    "day": 86_400 * 10**9,
    "天": 86_400 * 10**9,
    "week": 7 * 86_400 * 10**9,
}
_UNIT_NAMES = "|".join(
    name + ("s?" if len(name) > 2 or name == "hr" else "")
    for name in sorted(_WORD_UNITS_NS, key=len, reverse=True)
)
_BLANKS = r"[ \t\u00a0\u2000-\u200a\u202f\u205f\u3000]{0,8}"
_SHORTENED = "|".join(f"(?<={name})" for name in ("hr", "hrs", "min", "mins", "sec", "secs"))
_GROUPED = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})++|[0-9]++)"
"""A whole number, also as `1,200`. Any other comma (`1,5 minutes`) makes none of it."""
_TERM = re.compile(
    rf"({_GROUPED})(?:\.([0-9]++))?{_BLANKS}({_UNIT_NAMES})(?:\(s\))?{WORD_END}"
    # The dot of a shortened unit, where no sentence starts behind it: `1 hr. 30 min.`
    rf"(?:(?:{_SHORTENED})\.(?!{_BLANKS}(?-i:[A-Z])))?",
    re.IGNORECASE,
)
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
_TIMESPAN = re.compile(rf"([0-9]{{1,8}})\.(?={_CLOCKED.pattern})")
"""The days that .NET writes in front of a clock: `1.02:03:04`."""
_BARE_MINUTES = re.compile(rf"([0-5][0-9])(?![\w:.,]|\s{{0,8}}{UNIT})", re.IGNORECASE | re.VERBOSE)
"""`1h30`: minutes that stand right behind hours and name no unit."""
_RANGE = re.compile(
    r"[ \t]{0,3}(?:[\u2010-\u2015-]|\.\.\.?|\u2026|\bto\b|\bor\b)[ \t]{0,3}(?=[0-9])", re.IGNORECASE
)
_GLOSS = re.compile(
    r"[ \t]{0,3}\([ \t]{0,3}(?:about[ \t]|[~=\u2248])?[ \t]{0,3}(?=[0-9])", re.IGNORECASE
)
"""The same told once more, in other units: `5631 seconds (1.5 hours)`."""
_RANGE_START = re.compile(rf"({_GROUPED})(?:\.([0-9]++))?{_RANGE.pattern}", re.IGNORECASE)
_BETWEEN = re.compile(
    rf"(?:between|from)[ \t]{{1,3}}(?P<whole>{_GROUPED})(?:\.(?P<part>[0-9]++))?"
    rf"(?:{_BLANKS}(?P<unit>{_UNIT_NAMES}))?[ \t]{{1,3}}(?:and|to)[ \t]{{1,3}}(?=[0-9])",
    re.IGNORECASE,
)
_ISO_DURATION = re.compile(
    r"P(?:([0-9]++)W)?(?:([0-9]++)D)?"
    r"(?:T(?:([0-9]++)H)?(?:([0-9]++)M)?(?:([0-9]++)(?:[.,]([0-9]++))?S)?)?(?![A-Za-z0-9])",
    re.IGNORECASE | re.ASCII,
)

_MONTHS = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
        start=1,
    )
}
_MONTH = "(?P<month>" + "|".join(_MONTHS) + ")"
_DAY = "(?P<day>[0-9]{1,2})"
_TIME = r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
_ZONE = r"(?P<zone>GMT|UTC|UT|Z|[+-][0-9]{4})"
_SHORT_DAY = "(?:mon|tue|wed|thu|fri|sat|sun)"
_LONG_DAY = "(?:mon|tues|wednes|thurs|fri|satur|sun)day"
_HTTP_DATES = tuple(
    re.compile(pattern, re.IGNORECASE | re.ASCII)
    for pattern in (
        rf"(?:{_SHORT_DAY}, *)?{_DAY} {_MONTH} (?P<year>[0-9]{{4}}) {_TIME} {_ZONE}",
        rf"{_LONG_DAY}, (?P<day>[0-9]{{2}})-{_MONTH}-(?P<year>[0-9]{{2}}) {_TIME} {_ZONE}",
        rf"{_SHORT_DAY} {_MONTH} (?P<day>[ 0-9][0-9]) {_TIME} (?P<year>[0-9]{{4}})",
    )
)
_RFC3339 = re.compile(
    r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})[Tt ]"
    r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2}))?"
    r"(?:[.,](?P<fraction>[0-9]+))?(?P<zone>[Zz]|[+-][0-9]{2}:?[0-9]{2})"
)


def duration(text: str, *, unit_ms: int) -> Milliseconds | None:
    """Read a plain decimal number of `unit_ms`; a negative one is 0.

    A number with an exponent is a number (`1e999` is beyond any instant); `nan`, `inf`, a sign in
    front of a positive number, grouping and digits other than ASCII's are not.
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    sign, whole, fraction, exponent_sign, exponent = match.groups(default="")
    if sign:
        return 0
    shift = int(exponent[:9] or "0") * (-1 if exponent_sign == "-" else 1)
    if len(exponent.lstrip("0")) > 9:
        shift = -(10**9) if exponent_sign == "-" else 10**9
    return _scaled(whole + fraction, shift - len(fraction), unit_ms * 1_000_000)


def number(value: object, *, unit_ms: int) -> Milliseconds | None:
    """Read a number of `unit_ms` out of JSON: as a number, or as text that is a plain number.

    Unlike text, a JSON value can be NaN or infinite: those are beyond any instant, and minus
    infinity is over. A truth value is no number.
    """
    if isinstance(value, str):
        return duration(value.strip(), unit_ms=unit_ms)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float):
        if value == -math.inf:
            return 0
        return duration(repr(value), unit_ms=unit_ms) if math.isfinite(value) else math.inf
    if value.bit_length() > 4 * _DIGITS_MAX:
        return 0 if value < 0 else math.inf
    return max(0, value * unit_ms)


def percent(value: object, *, whole: int = 100) -> float | None:
    """Read a share as a percentage: a number, or text that is one, of which `whole` is everything.

    None for what is no number, is negative, or lies beyond any share that could be meant.
    """
    negative = value.strip().startswith("-") if isinstance(value, str) else _below_zero(value)
    if negative:
        return None
    # Counted in billionths, so that rounding up turns no 99.99 into a hundred.
    billionths = number(value, unit_ms=10**9)
    if billionths is None or billionths > 10**15:
        return None
    return int(billionths) * 100 / (10**9 * whole)


def _below_zero(value: object) -> bool:
    return isinstance(value, int | float) and value < 0


def spelled_duration(text: str) -> Milliseconds | None:
    """Read `1h2m3.5s`, `4 days 20 hours 9 minutes` or `PT1M30S`, and nothing beside it."""
    found = leading_duration(text, 0)
    return found[0] if found is not None and not text[found[1] :].strip(" \t,") else None


def leading_duration(text: str, position: int) -> tuple[Milliseconds, int] | None:
    """Read the spelled, clocked or ISO 8601 duration that starts at a position; say where it ends.

    Of a range, or of two that are both told, the longer. What is followed by more time than was
    read is none: what stands before it is shorter than what is meant.
    """
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


def _near_end(text: str, start: re.Match[str]) -> Milliseconds:
    """The first of a range's ends, in the unit that it names, or else in the other's."""
    parts = start.groups(default="")
    whole, fraction, unit = (*parts, "")[:3]
    if not unit:
        far = _TERM.match(text, start.end())
        unit = "" if far is None else far[3]
    unit_ns = _unit_named(unit)
    return _scaled(whole.replace(",", "") + fraction, -len(fraction), unit_ns)


def _leading_one(text: str, position: int) -> tuple[Milliseconds, int] | None:
    iso = _ISO_DURATION.match(text, position)
    if iso is not None and any(iso.groups()):
        parts = iso.groups(default="")
        stated = _scaled(parts[4] + parts[5], -len(parts[5]), 10**9)
        for digits, unit_ns in zip(
            parts[:4], (7 * 86_400 * 10**9, 86_400 * 10**9, 3_600 * 10**9, 60 * 10**9), strict=True
        ):
            stated += _scaled(digits, 0, unit_ns)
        return stated, iso.end()
    end, last_ns = position, 0
    total: Milliseconds = 0
    if (days := _TIMESPAN.match(text, position)) is not None:
        total, end = _scaled(days[1], 0, _DAY_NS), days.end()
    while (term := _next_term(text, end, last_ns)) is not None:
        whole, fraction = term.group(1).replace(",", ""), term.group(2) or ""
        last_ns = _unit_ns(term)
        total += _scaled(whole + fraction, -len(fraction), last_ns)
        end = term.end()
    rest_ms, end = _clocked_rest(text, end, last_ns)
    return None if end == position else (total + rest_ms, end)


def _clocked_rest(text: str, position: int, last_ns: int) -> tuple[Milliseconds, int]:
    """What a clock tells at a position, behind a term of `last_ns` or none; and where that ends."""
    between = _AND.match(text, position) if last_ns else None
    start = position if between is None else between.end()
    rest = _CLOCKED.match(text, start)
    if rest is None and last_ns == _DAY_NS:
        rest = _HOURS_MINUTES.match(text, start)
    if rest is None and last_ns == 3_600 * 10**9:
        bare = _BARE_MINUTES.match(text, start)
        return (0, position) if bare is None else (_scaled(bare[1], 0, 60 * 10**9), bare.end())
    if rest is None:
        return 0, position
    seconds, fraction = (*rest.groups(default="")[2:], "", "")[:2]
    told = _scaled(rest[1], 0, 3_600 * 10**9) + _scaled(rest[2], 0, 60 * 10**9)
    return told + _scaled(seconds + fraction, -len(fraction), 10**9), rest.end()


def _next_term(text: str, position: int, last_ns: int) -> re.Match[str] | None:
    """The term at a position; behind one of `last_ns`, also over a join, where it goes on in a
    smaller unit."""
    if not last_ns:
        term = _TERM.match(text, position)
        return term if term is not None and _unit_ns(term) else None
    for joined, smaller in ((_AND, False), (_JOIN, True)):
        between = joined.match(text, position)
        term = None if between is None else _TERM.match(text, between.end())
        if term is not None and _unit_ns(term) and not (smaller and _unit_ns(term) >= last_ns):
            return term
    return None


def _unit_ns(term: re.Match[str]) -> int:
    return _unit_named(term.group(3))


def _unit_named(unit: str) -> int:
    unit = unit.lower()
    return _WORD_UNITS_NS.get(unit) or _WORD_UNITS_NS.get(unit.removesuffix("s"), 0)


def epoch(text: str, *, unit_ms: int) -> Milliseconds | None:
    """Read an instant that is stated as a number of `unit_ms` since 1970. A negative one is 0."""
    return duration(text, unit_ms=unit_ms)


def instant(value: object, *, unit_ms: int = 1_000) -> Milliseconds | None:
    """Read an instant out of JSON or a header: a number of `unit_ms` since 1970, or RFC 3339.

    A number before the year 2001 is a duration that lost its name, or a zero that stands for
    nothing; read as an instant it would be long past, so it states nothing. One of thirteen or
    fourteen digits is milliseconds: as seconds it would be later than the year 33,000.
    """
    at_ms = number(value, unit_ms=unit_ms)
    if unit_ms == 1_000 and at_ms is not None and 1_000 * _EPOCH_MIN_MS <= at_ms < 10**17:
        at_ms = number(value, unit_ms=1)
    if at_ms is None and isinstance(value, str):
        return rfc3339(value.strip())
    return at_ms if at_ms is not None and at_ms >= _EPOCH_MIN_MS else None


def http_date(text: str, *, received_ms: int | None) -> Milliseconds | None:
    """Read an HTTP date: IMF-fixdate, the obsolete RFC 850 form, or asctime's, which is UTC.

    RFC 9110 5.6.7. The two-digit year of RFC 850 is the one within fifty years of `received_ms`;
    without that clock it states nothing. The day's name is not compared with the date.
    """
    for pattern in _HTTP_DATES:
        match = pattern.fullmatch(text)
        if match is not None:
            break
    else:
        return None
    parts = match.groupdict()
    year = int(parts["year"])
    if len(parts["year"]) == 2:
        if received_ms is None:
            return None
        this_year = 1970 + received_ms // 31_556_952_000
        year += this_year - this_year % 100
        if year > this_year + 50:
            year -= 100
        elif year <= this_year - 50:
            year += 100
    return _instant(year, _MONTHS[parts["month"].lower()], parts, "")


def rfc3339(text: str) -> Milliseconds | None:
    """Read an RFC 3339 instant. A text without a zone is none."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        return None
    parts = match.groupdict()
    return _instant(int(parts["year"]), int(parts["month"]), parts, parts["fraction"] or "")


def printable(text: str, *, chars_max: int) -> str:
    """Return text bounded in characters, with everything that cannot be printed turned to blanks.

    Covers C0, DEL, C1, the Unicode line separators, bidirectional controls and lone surrogates: no
    log line can be forged, and the result always encodes.
    """
    head = text[: chars_max + 1]
    cleaned = "".join(char if char.isprintable() else " " for char in head)
    return cleaned if len(cleaned) <= chars_max else cleaned[: chars_max - 1] + "…"


def _instant(
    year: int, month: int, parts: dict[str, str | None], fraction: str
) -> Milliseconds | None:
    hour, minute, second = (int(parts[name] or "0") for name in ("hour", "minute", "second"))
    zone = parts.get("zone") or "GMT"
    offset_minutes = 0
    if zone[0] in "+-":
        offset_minutes = int(zone[1:3]) * 60 + int(zone[-2:])
        if offset_minutes >= 1_440 or int(zone[-2:]) > 59:
            return None
        offset_minutes = -offset_minutes if zone[0] == "-" else offset_minutes
    if hour > 23 or minute > 59 or second > 60:  # 60 is a leap second.
        return None
    try:
        days = date(year, month, int((parts["day"] or "").strip() or "0")).toordinal()
    except ValueError:
        return None
    days -= date(1970, 1, 1).toordinal()
    seconds = days * 86_400 + hour * 3_600 + (minute - offset_minutes) * 60 + second
    return max(0, seconds * 1_000 + int(_scaled(fraction or "0", -len(fraction), 10**9)))


def _scaled(digits: str, shift: int, unit_ns: int) -> Milliseconds:
    """Return `digits` times ten to the `shift` of a unit, in milliseconds rounded up.

    The digits are looked at before they are converted: there may be a million of them.
    """
    digits = digits.lstrip("0")
    if not digits:
        return 0
    if len(digits) + shift > _DIGITS_MAX:
        return math.inf
    if len(digits) + shift < -_DIGITS_MAX:
        return 1
    kept = digits[: 3 * _DIGITS_MAX]
    shift += len(digits) - len(kept)
    value = int(kept) + bool(digits[len(kept) :].strip("0"))
    # `10**n` has no static type that excludes floats; both branches are exact integers.
    up = int(10 ** max(shift, 0))
    down = int(10 ** max(-shift, 0))
    return -(-value * up * unit_ns // (1_000_000 * down))
