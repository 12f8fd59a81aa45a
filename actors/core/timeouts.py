"""What is a time to wait, and what is none: refused before anything is done.

Awaits nothing. Any thread.
"""

from __future__ import annotations

import threading
from typing import Final

LONGEST_S: Final = threading.TIMEOUT_MAX
"""What a thread can wait at most, in seconds. Whoever says more waits without an end."""


def bounded(field: str, timeout_s: float) -> float | None:
    """Return a time that was stated; None where it has no end that can be kept.

    Raises:
        ValueError: It is below 0, or no number, as a truth value is; nothing was done.
    """
    number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not number or not timeout_s >= 0:
        raise ValueError(
            f"{field} must be at least 0, not {timeout_s!r:.80}; nothing was done; "
            "math.inf is without an end"
        )
    return timeout_s if timeout_s < LONGEST_S else None


def bounded_or_none(field: str, timeout_s: float | None) -> float | None:
    """As `bounded`, where None is without an end, too."""
    return None if timeout_s is None else bounded(field, timeout_s)
