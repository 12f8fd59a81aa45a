"""Wall-clock times as people are told them: `3am`, `Feb 4, 9pm (Africa/Lagos)`, `Mon 9:30am`.

A clock time needs a zone, and one without a date needs the instant it was read at. Pure, except
that the zone database is read (and kept by `zoneinfo`).

Invariants:
    I1  No text raises, however long.
    I2  A zone that is named and unknown makes the time unreadable; it is never taken for another.
    I3  A time without a date, or a date without a year, is the next one within what its window can
        span. Farther off it is a time that passed, seen late, and states nothing.
    I4  Where daylight saving makes two instants of one clock time, the later one is read.
    I5  A day may stand before or behind its time, and nothing else names it: of `next Friday`, and
        of midnight on a day, more than one may be meant, and none is read.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from .grammar import http_date, instant

DAY_MS = 86_400_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH_NAMES = (
    "jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    "|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?"
)
_WEEKDAY_NAMES = (
    "mon(?:day)?|tue(?:s|sday)?|wed(?:nesday)?|thu(?:r|rs|rsday)?|fri(?:day)?|sat(?:urday)?"
    "|sun(?:day)?"
)
_GAP = r"(?:,?[ \t]{1,3}(?:at[ \t]{1,3})?)"
_DAY = rf"""
        (?P<relative>today|tomorrow)
      | (?:(?:{_WEEKDAY_NAMES})\.?,?[ \t]{{1,3}})?
        (?P<month>{_MONTH_NAMES})\.?[ \t]{{1,3}}(?P<day>[0-9]{{1,2}})(?:st|nd|rd|th)?\b
        (?:,?[ \t]{{1,3}}(?P<year>[0-9]{{4}})(?![0-9:]))?
      | (?:(?:{_WEEKDAY_NAMES})\.?,?[ \t]{{1,3}})?
        (?P<day2>[0-9]{{1,2}})(?:st|nd|rd|th)?[ \t]{{1,3}}(?P<month2>{_MONTH_NAMES})\b\.?
        (?:,?[ \t]{{1,3}}(?P<year2>[0-9]{{4}})(?![0-9:]))?
      | (?P<weekday>{_WEEKDAY_NAMES})\b\.?
"""
_WHEN = re.compile(
    rf"""
    (?: (?:{_DAY}) {_GAP} )?
    (?: (?P<named>noon|midday|midnight)\b | (?P<hour>[0-9]{{1,2}})
    (?: (?::(?P<minute>[0-9]{{2}}))?(?::(?P<second>[0-9]{{2}}))?[ \t\u202f\u00a0]{{0,2}}
        (?P<half>[ap])\.?m\b\.?
      | :(?P<minute24>[0-9]{{2}})(?::(?P<second24>[0-9]{{2}}))?(?![0-9:])
    ))
    """,
    re.IGNORECASE | re.ASCII | re.VERBOSE,
)
_OBSOLETE = re.compile(
    r"(?:mon|tues|wednes|thurs|fri|satur|sun)day, [0-9]{2}-[a-z]{3}-[0-9]{2} [0-9:]{8}"
    r" (?:GMT|UTC)\b",
    re.IGNORECASE | re.ASCII,
)
"""The HTTP date of RFC 850, in a sentence."""
_DAY_BEHIND = re.compile(
    rf"(?:,?[ \t]{{1,3}}(?:on[ \t]{{1,3}})?)(?:{_DAY})(?![\w:])(?![ \t]{{0,3}}(?:at\b|[0-9]))",
    re.IGNORECASE | re.ASCII | re.VERBOSE,
)
_LOCAL = re.compile(
    r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})(?:[Tt]|[ \t]{1,3}(?:at[ \t]{1,3})?)"
    r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2})"
    r"(?::(?P<second>[0-9]{2})(?:[.,](?P<fraction>[0-9]{1,30}))?)?(?![0-9:])",
    re.ASCII,
)
_ZONE = re.compile(
    r"[ \t]{0,3}\([ \t]{0,3}(?P<named>[A-Za-z0-9_+:/ -]{1,64})\)"
    # As Go prints an instant: `2026-10-07 14:00:00 +0000 UTC`.
    r"|[ \t](?P<go>[+-][0-9]{4})[ \t][A-Z]{3,4}\b"
    # `13:00-14:00 UTC` is a span of time, and its second end no offset.
    r"|[ \t]{0,3}(?P<offset>[+-][0-9]{2}(?::?[0-9]{2})?)(?![0-9:]|[ \t]{0,3}[A-Za-z]{1,5}\b)"
    r"|(?P<zulu>[Zz])(?![A-Za-z0-9])"
    r"|[ \t]{0,3}(?P<bare>[A-Z]{2,5}(?:[+-][0-9]{1,2}(?::?[0-9]{2})?)?"
    r"|[A-Za-z_]{1,32}/[A-Za-z_+0-9/-]{1,48})(?![A-Za-z])"
    # What is told of a zone in other ways names none for sure: such a time is not read.
    r"|[ \t]{1,3}(?P<vague>(?i:[ecmp][sd]t|utc|gmt|bst|ist|jst|kst|ces?t|eest|msk|sgt|hkt"
    r"|a[ec][sd]t|pacific|eastern|central|mountain"
    r"|(?!local\b)[a-z]{3,12}(?:[ \t](?:standard|daylight))?[ \t]time)\b)"
)
_DAY_PARTS = ("year", "month", "month2", "weekday", "relative")
_EPOCH_NUMBER = re.compile(
    r"(?<![\w.])(?:[0-9]{10}(?:\.[0-9]{1,9})?|[0-9]{13})(?=[ \t]{0,3}(?:\Z|[\n;!?)]|[.,](?!\d)))"
)
_OFFSET = re.compile(r"(?:UTC|GMT)?([+-])([0-9]{1,2})(?::?([0-9]{2}))?")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,2}", re.ASCII)


def zone_named(name: str) -> tzinfo | None:
    """Return a zone by its name in the zone database, `UTC`, or an offset as `UTC+2`."""
    name = name.strip()
    if name.upper() in ("UTC", "GMT", "UT", "Z"):
        return UTC
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        minutes = int(offset[2]) * 60 + int(offset[3] or "0")
        minutes = -minutes if offset[1] == "-" else minutes
        return timezone(timedelta(minutes=minutes)) if abs(minutes) < 1_440 else None
    if "/" not in name or _NAME.fullmatch(name) is None:
        # An abbreviation is the name of several zones, and `CST` of three far apart.
        return None
    # Zones are files; on most systems the case of a name counts.
    usual = "/".join("_".join(word.capitalize() for word in part.split("_")) for part in
                     name.split("/"))  # fmt: skip
    for spelling in dict.fromkeys((name, usual, name.upper())):
        try:
            return ZoneInfo(spelling)
        except (KeyError, ValueError, OSError):
            continue
    return None


def leading_moment(
    text: str,
    position: int,
    *,
    received_ms: int | None,
    zone: tzinfo | None,
    within_ms: int = DAY_MS,
) -> tuple[int, int] | None:
    """Read the moment that starts at a position as (epoch milliseconds, where it ends).

    Beside a clock's times that is a number of seconds or milliseconds since 1970, where it ends
    a sentence: `resets at 1791378000.`

    Args:
        received_ms: When the text was read; without it only a whole date is a moment.
        zone: Of a time that names none; None: such a time is no moment.
        within_ms: How far off a moment without a whole date can lie.
    """
    counted = _EPOCH_NUMBER.match(text, position)
    if counted is not None:
        at_ms = instant(counted[0])
        # One that passed may as well be another number.
        known = at_ms is not None and received_ms is not None and at_ms >= received_ms
        return (int(at_ms or 0), counted.end()) if known else None
    if (obsolete := _OBSOLETE.match(text, position)) is not None:
        dated = http_date(obsolete[0], received_ms=received_ms)
        return None if dated is None else (int(dated), obsolete.end())
    match = _LOCAL.match(text, position) or _WHEN.match(text, position)
    if match is None:
        return None
    parts, end = match.groupdict(), match.end()
    zoned, named = zone, _ZONE.match(text, end)
    if named is not None:
        zoned, end = _zone_of(named), named.end()
    if not any(parts.get(part) for part in _DAY_PARTS):
        behind = _DAY_BEHIND.match(text, end)
        if behind is not None:
            parts |= behind.groupdict()
            end = behind.end()
            if named is None and (named := _ZONE.match(text, end)) is not None:
                zoned, end = _zone_of(named), named.end()
    clock = _clock(parts)
    if zoned is None or clock is None:
        return None
    try:
        at_ms = _resolved(parts, clock, zoned, received_ms, within_ms)
    except (ValueError, OverflowError):  # No such day, or none that `datetime` can hold.
        return None
    if at_ms is None:
        return None
    fraction = parts.get("fraction") or "0"
    return at_ms + -(-int(fraction) * 1_000 // 10 ** len(fraction)), end


def _zone_of(named: re.Match[str]) -> tzinfo | None:
    offset = named["go"]
    if offset is not None:
        # Of an offset that a name contradicts neither is believed: it may be the end of a span.
        utc = named[0].endswith(("UTC", "GMT"))
        return None if utc and offset[1:] != "0000" else zone_named(offset)
    return zone_named(
        named["named"] or named["offset"] or named["zulu"] or named["bare"] or named["vague"]
    )


def next_midnight(received_ms: int | None, zone: str) -> int | None:
    """Return the next start of a day in a zone, where daily quotas are documented to reset."""
    place = zone_named(zone)
    if received_ms is None or place is None:
        return None
    try:
        today = _local(received_ms, place).date()
        return _instant(today + timedelta(days=1), (0, 0, 0), place)
    except (ValueError, OverflowError):
        return None


def _clock(parts: dict[str, str | None]) -> tuple[int, int, int] | None:
    named = (parts.get("named") or "").lower()
    if named:
        # Of a day it is its start to some, and its end to others.
        dated = any(parts.get(part) for part in _DAY_PARTS)
        return None if named == "midnight" and dated else (0 if named == "midnight" else 12, 0, 0)
    hour = int(parts["hour"] or "0")
    minute = int(parts["minute"] or parts.get("minute24") or "0")
    second = int(parts["second"] or parts.get("second24") or "0")
    half = (parts.get("half") or "").lower()
    if half:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half == "p" else 0)
    return (hour, minute, second) if hour < 24 and minute < 60 and second < 60 else None


def _resolved(
    parts: dict[str, str | None],
    clock: tuple[int, int, int],
    zone: tzinfo,
    received_ms: int | None,
    within_ms: int,
) -> int | None:
    month_name = parts.get("month") or parts.get("month2") or ""
    month = int(month_name) if month_name.isdigit() else _number(month_name, _MONTHS)
    year, day = parts.get("year") or parts.get("year2"), parts.get("day") or parts.get("day2")
    if year:
        return _instant(date(int(year), month, int(day or "0")), clock, zone)
    if received_ms is None:
        return None
    today = _local(received_ms, zone).date()
    if month:
        days = [date(today.year + later, month, int(day or "0")) for later in (-1, 0, 1)
                if _is_day(today.year + later, month, int(day or "0"))]  # fmt: skip
    elif parts.get("weekday"):
        ahead = (_number(parts["weekday"] or "", _WEEKDAYS) - 1 - today.weekday()) % 7
        days = [today + timedelta(days=ahead), today + timedelta(days=ahead + 7)]
    elif parts.get("relative"):
        days = [today + timedelta(days=(parts["relative"] or "").lower() == "tomorrow")]
    else:
        days = [today, today + timedelta(days=1)]
    for each in days:
        at_ms = _instant(each, clock, zone)
        if received_ms <= at_ms <= received_ms + within_ms:
            return at_ms
    return None


def _number(name: str, names: tuple[str, ...]) -> int:
    """Which of the names it is, counted from 1; 0 for an empty one."""
    return names.index(name[:3].lower()) + 1 if name else 0


def _is_day(year: int, month: int, day: int) -> bool:
    try:
        date(year, month, day)
    except ValueError:
        return False
    return True


def _local(ms: int, zone: tzinfo) -> datetime:
    return (_EPOCH + timedelta(milliseconds=ms)).astimezone(zone)


def _instant(day: date, clock: tuple[int, int, int], zone: tzinfo) -> int:
    hour, minute, second = clock
    return max(
        (datetime(day.year, day.month, day.day, hour, minute, second, tzinfo=zone, fold=fold)
         - _EPOCH) // timedelta(milliseconds=1)
        for fold in (0, 1)
    )  # fmt: skip
