"""Instants and durations as a person reads them. Any instant that a record may hold is rendered.

`datetime` ends with the year 9999; a stated wait does not. The calendar repeats every 400 years to
the weekday, so a far instant is read in a year that `datetime` knows and moved back.

Pure; the local zone is the process's.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import Final

CYCLE_YEARS: Final = 400
CYCLE_MS: Final = 146_097 * 86_400_000
"""Milliseconds of 400 Gregorian years."""
_FAR_MS: Final = 253_370_764_800_000
"""9999-01-01T00:00:00Z: a year short of `datetime`'s end, so that no zone's offset passes it."""

_UNITS: Final = (("y", 31_557_600), ("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
"""A year here is 365.25 days: far durations are for reading, near ones are exact."""


def local_text(instant_ms: int, zone: tzinfo | None = None) -> str:
    """`2026-12-01 17:00:41 +01:00` in the local zone, or in `zone`, with its offset, which is `UTC`
    where it is none; a year may have up to six digits.

    Args:
        instant_ms: Epoch milliseconds, 0 to 8,640,000,000,000,000. Rounded up to the second: a
            time that is read must not be before the one that binds.
    """
    rounded_ms = -(-instant_ms // 1_000) * 1_000
    cycles = max(0, -((_FAR_MS - rounded_ms) // CYCLE_MS))
    near_s = (rounded_ms - cycles * CYCLE_MS) // 1_000
    when = datetime.fromtimestamp(near_s, UTC).astimezone(zone)
    # As ISO 8601 writes it: the name of a zone may be that of several.
    offset = when.isoformat()[len("2026-12-01T17:00:41") :]
    at = f"{when.year + cycles * CYCLE_YEARS:04d}-{when:%m-%d %H:%M:%S}"
    return f"{at} {'UTC' if offset == '+00:00' else offset}"


def duration_text(duration_ms: int) -> str:
    """The two largest units of a duration: `1h 59m`, `41s`, `3d 4h`, `31,743y`. Rounded up."""
    left = max(0, -(-duration_ms // 1_000))
    parts: list[str] = []
    for unit, length in _UNITS:
        count, rest = divmod(left, length)
        if count or (parts and len(parts) < 2):
            parts.append(f"{count:,}{unit}")
            left = rest
        if len(parts) == 2:
            break
    if len(parts) == 2 and parts[1][:-1] == "0":
        parts.pop()
    return " ".join(parts) or "0s"


def ends_text(deadline_ms: int | None, zone: tzinfo | None = None) -> str:
    """When a wait ends, in local time with its offset, or `until released`."""
    return "until released" if deadline_ms is None else local_text(deadline_ms, zone)
