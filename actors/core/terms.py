"""The terms of a mailbox: what an actor class says of bound, overflow, marks and absence, checked.

Mailboxes of the same terms share one object, and a class keeps its own, so that neither the checks
nor what they come to are paid for by each actor.

Invariants:
    I1. 0 <= low < high <= capacity where there are marks; `high` is 0 where there are none.

Any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .actor import TrioActor

OVERFLOWS: Final = ("reject", "block", "drop_oldest", "drop_newest", "coalesce")
ABSENCES: Final = ("queue", "fail")
PAST_DELIVERIES: Final = ("quarantine", "park")

HIGH_MARK: Final = 0.8
LOW_MARK: Final = 0.5
"""Parts of the capacity: the marks of a class that says nothing."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What mailboxes of one kind have in common.

    Attributes:
        capacity: The bound of the user lane and the stash together.
        overflow: What happens to a message beyond it.
        high: The high mark; 0 where there is none.
        low: The low mark.
        fails_suspended: Whether an ask of a suspended actor fails at once.
        fails_restarting: Whether one between two incarnations does.
        room: How long the user lane of a new mailbox may be for a put to take the fast path.
    """

    capacity: int
    overflow: str
    high: int
    low: int
    fails_suspended: bool
    fails_restarting: bool
    room: int


def terms_of(kind: type[TrioActor]) -> Terms:
    """Return the terms an actor class asks for. They are read when its first actor starts.

    Raises:
        ValueError: Names what is out of its bounds.
    """
    known = kind._terms  # Its own, or those of a class it derives from.
    if known is not None and known[0] is kind:
        return known[1]
    _check_deliveries(kind)
    terms = _terms(
        kind.mailbox_capacity,
        kind.overflow,
        kind.block_timeout_s,
        kind.mailbox_high,
        kind.mailbox_low,
        kind.while_suspended,
        kind.while_restarting,
    )
    kind._terms = (kind, terms)
    return terms


def _check_deliveries(kind: type[TrioActor]) -> None:
    """Refuse at its first start what would show at its first crash."""
    most, past, durably = kind.max_deliveries, kind.past_deliveries, kind.counts_durably
    if type(most) is not int or most < 1:
        raise ValueError(f"max_deliveries must be a whole number of at least 1, not {most!r}")
    if past not in PAST_DELIVERIES:
        raise ValueError(f"past_deliveries must be {' or '.join(PAST_DELIVERIES)}, not {past!r}")
    if type(durably) is not bool:
        raise ValueError(f"counts_durably must be True or False, not {durably!r}")


@lru_cache(maxsize=1024)  # A host may make classes as it goes.
def _terms(
    capacity: int,
    overflow: str,
    block_timeout_s: float | None,
    high: int | None,
    low: int | None,
    while_suspended: str,
    while_restarting: str,
) -> Terms:
    if overflow not in OVERFLOWS:
        raise ValueError(f"overflow must be one of {', '.join(OVERFLOWS)}, not {overflow!r}")
    if capacity < 1:
        raise ValueError(f"mailbox_capacity must be at least 1, not {capacity!r}")
    if block_timeout_s is not None and not block_timeout_s >= 0:
        raise ValueError(f"block_timeout_s must be at least 0, not {block_timeout_s!r}")
    for field, said in (
        ("while_suspended", while_suspended),
        ("while_restarting", while_restarting),
    ):
        if said not in ABSENCES:
            raise ValueError(f"{field} must be queue or fail, not {said!r}")
    high, low = _marks(capacity, high, low)
    # The put that reaches the high mark is to be noticed, at no cost to others.
    room = 0 if overflow == "coalesce" else high - 1 if high else capacity
    return Terms(
        capacity, overflow, high, low, while_suspended == "fail", while_restarting == "fail", room
    )


def _marks(capacity: int, high: int | None, low: int | None) -> tuple[int, int]:
    if high == 0:
        return 0, 0
    if high is None:
        high = max(1, int(capacity * HIGH_MARK))
    if not 1 <= high <= capacity:
        raise ValueError(f"mailbox_high must be within 0 and the capacity, not {high!r}")
    if low is None:
        low = min(high - 1, int(capacity * LOW_MARK))
    if not 0 <= low < high:
        raise ValueError(f"mailbox_low must be at least 0 and below mailbox_high, not {low!r}")
    return high, low
