"""From what was stated to an instant, and from an instant to text. Pure functions.

Invariants:
    I1  The clamp is on the duration, never on the sum: a negative wait ends now, not in the past.
    I2  NaN and infinities are decided before any arithmetic; `max(0, nan)` would bind nothing.
    I3  Rounding is up: no deadline lies before the instant that was stated.
    I4  What lies past `INSTANT_MS_MAX` has no instant (None) and holds until it is released.
"""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from abeyance.storage.tables.fields import INSTANT_MS_MAX

_DAY_MS = 86_400_000
_ERA_DAYS = 146_097  # days in 400 Gregorian years


def deadline_ms(now_ms: int, wait_ms: int | float | Decimal | Fraction) -> int | None:
    """Return the instant a stated wait ends at: `ceil(now_ms + max(0, wait_ms))`.

    Args:
        now_ms: Epoch milliseconds at which the wait was stated.
        wait_ms: Milliseconds. Negative, zero and minus infinity are over.
    Returns:
        Epoch milliseconds; `now_ms` itself where the wait is over, so that a wait binds exactly
        while its deadline is greater than the clock. None where it holds until it is released:
        NaN, plus infinity, and any sum past `INSTANT_MS_MAX`.
    Raises:
        TypeError: `wait_ms` is no number. A bool is none: True would be a wait of one millisecond.
    """
    if isinstance(wait_ms, bool) or not isinstance(wait_ms, int | float | Decimal | Fraction):
        raise TypeError(f"a wait is a number of milliseconds, not {type(wait_ms).__name__}")
    if isinstance(wait_ms, float) and math.isnan(wait_ms):
        return None
    if isinstance(wait_ms, Decimal) and wait_ms.is_nan():
        return None
    if wait_ms <= 0:
        return now_ms
    if wait_ms > INSTANT_MS_MAX - now_ms:
        return (
            None  # Compared before `ceil`, which raises for infinity and is slow for Decimal 1e999.
        )
    return now_ms + math.ceil(wait_ms)


def instant_ms(epoch_s: object) -> int | None:
    """Return epoch seconds as epoch milliseconds, rounded up; None where they are no instant.

    A float is read by its shortest decimal form, so that an instant which was divided by a
    thousand comes back as the same millisecond.
    """
    if isinstance(epoch_s, bool) or not isinstance(epoch_s, int | float):
        return None
    try:
        milliseconds = (
            Decimal(repr(epoch_s)) * 1000 if isinstance(epoch_s, float) else epoch_s * 1000
        )
    except (InvalidOperation, ValueError):
        return None
    if milliseconds != milliseconds or not 0 <= milliseconds <= INSTANT_MS_MAX:
        return None
    return math.ceil(milliseconds)


def render_instant(ms: int) -> str:
    """Return an instant as RFC 3339 text in UTC, to the millisecond, for any year.

    `datetime` ends with the year 9999; a stated wait may not. Years past it carry a plus sign, as
    ISO 8601 has it for expanded years.
    """
    days, within = divmod(ms, _DAY_MS)
    year, month, day = _civil(days)
    seconds, millis = divmod(within, 1000)
    hour, seconds = divmod(seconds, 3600)
    minute, second = divmod(seconds, 60)
    sign = "+" if year > 9999 else "-" if year < 0 else ""
    fraction = f".{millis:03d}" if millis else ""
    time = f"{hour:02d}:{minute:02d}:{second:02d}{fraction}"
    return f"{sign}{abs(year):04d}-{month:02d}-{day:02d}T{time}Z"


def _civil(days: int) -> tuple[int, int, int]:
    """Days since 1970-01-01 to (year, month, day); H. Hinnant's days-to-civil algorithm."""
    era, day_of_era = divmod(days + 719_468, _ERA_DAYS)
    year_of_era = (
        day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153  # 0 is March, so that the leap day ends the year.
    day = day_of_year - (153 * shifted + 2) // 5 + 1
    month = shifted + 3 if shifted < 10 else shifted - 9
    return year_of_era + era * 400 + (month <= 2), month, day
