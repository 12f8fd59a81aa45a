"""One grammar of numbers and dates for everything providers state; `durations` are told with it.

Pure functions.

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

Milliseconds: TypeAlias = int | float
"""A whole number, or `math.inf`. A float is never anything else here."""

_DIGITS_MAX = 25
"""Past 10**25 of any unit here, even nanoseconds, lies nothing that `INSTANT_MS_MAX` admits."""

_EPOCH_MIN_MS = 10**12

_NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?)([0-9]+))?")
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
    return scaled(whole + fraction, shift - len(fraction), unit_ms * 1_000_000)


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
    return max(0, seconds * 1_000 + int(scaled(fraction or "0", -len(fraction), 10**9)))


def scaled(digits: str, shift: int, unit_ns: int) -> Milliseconds:
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
