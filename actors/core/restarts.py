"""The decisions of a supervisor, as functions of what it knows: whom to restart, and when.

| the child was | it crashed or was killed | it stopped |
|---|---|---|
| permanent | starts again | starts again |
| transient | starts again | ends |
| temporary | ends | ends |

| strategy | who is stopped and started again with a child that fell |
|---|---|
| one_for_one | nobody |
| rest_for_one | those that were started after it |
| one_for_all | all |

Invariants:
    I1. Every fall of a round is restarted by the round that `plan` returns, or ends the round.
    I2. A fall counts once, and not at all where another's restart covers it.

Awaits nothing and reads no clock. Any thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random

from .settling import Exit
from .specs import Backoff, SupervisorSpec


@dataclass(frozen=True, slots=True)
class Fall:
    """A child that ended and is to start again.

    Attributes:
        id: Which.
        exit: How its incarnation ended.
        spent: Whether it was counted already and exceeded the intensity.
        escalates: Whether a directive has the supervisor fail with its error.
    """

    id: str
    exit: Exit
    spent: bool = False
    escalates: bool = False

    @property
    def exhausts(self) -> bool:
        """Whether no restart answers it."""
        return self.spent or self.escalates or self.exit.poison


@dataclass(frozen=True, slots=True)
class Round:
    """Who is stopped in reverse and started in order, and after which wait.

    Attributes:
        ids: The children, in start order.
        delay_s: How long to wait between the two.
    """

    ids: tuple[str, ...]
    delay_s: float


def starts_again(restart: str, crashed: bool) -> bool:
    """Whether a child of this restart type is started again when it has ended."""
    return restart == "permanent" or (restart == "transient" and crashed)


def affected(strategy: str, ids: Sequence[str], id_: str) -> Sequence[str]:
    """Return whom the strategy restarts when a child falls, in start order.

    Args:
        strategy: The supervisor's.
        ids: All children, in start order.
        id_: The child that fell, one of them.
    """
    if strategy == "one_for_all":
        return ids
    if strategy == "rest_for_one":
        return ids[ids.index(id_) :]
    return (id_,)


def uncovered(falls: Iterable[Fall], ids: Sequence[str], pending: Collection[str]) -> list[Fall]:
    """Return the falls that are still to be decided on, in start order.

    Those of children that are gone are not, nor those of children that wait to be started anyway,
    unless they exhaust the supervisor.
    """
    return sorted(
        (fall for fall in falls if fall.id in ids and (fall.id not in pending or fall.exhausts)),
        key=lambda fall: ids.index(fall.id),
    )


def plan(
    strategy: str,
    ids: Sequence[str],
    pending: Collection[str],
    falls: Sequence[Fall],
    next_wait_s: Callable[[bool], float | None],
) -> Round | Fall:
    """Say which round answers these falls, or which of them exhausts the supervisor.

    Args:
        strategy: The supervisor's.
        ids: All children, in start order.
        pending: Those that wait to be started already; they are in the round.
        falls: What to decide on, in start order.
        next_wait_s: Counts a restart, if it is to count; returns its wait, or None where the
            intensity is exceeded.
    """
    for fall in falls:
        # Before any restart that would cover it: a poisonous message must not be delivered again.
        if fall.exhausts:
            return replace(fall, spent=True)
    answered: set[str] = set()
    delay_s = 0.0
    for fall in falls:
        if fall.id in answered:
            continue
        wait_s = next_wait_s(fall.exit.counts)
        if wait_s is None:
            return replace(fall, spent=True)
        delay_s = max(delay_s, wait_s)
        answered.update(affected(strategy, ids, fall.id))
    answered.update(pending)
    return Round(tuple(id_ for id_ in ids if id_ in answered), delay_s)


class Restarts:
    """The restarts of one supervisor: all of its life are counted, those of a period kept."""

    __slots__ = ("_grown", "_recent", "_until_s", "total")

    def __init__(self) -> None:
        self.total = 0
        self._recent: deque[float] = deque()
        self._grown = 0  # How many counted since the backoff was reset.
        self._until_s = 0.0  # When the last restart's wait ended.

    def recent(self, spec: SupervisorSpec, now_s: float) -> int:
        """How many count towards the intensity now."""
        while self._recent and self._recent[0] <= now_s - spec.period_s:
            self._recent.popleft()
        return len(self._recent)

    def count_recent(self, spec: SupervisorSpec, now_s: float) -> int:
        """As `recent`, and changes nothing. Any thread."""
        return sum(at_s > now_s - spec.period_s for at_s in tuple(self._recent))

    def forget(self) -> None:
        """Let none of those so far count any more."""
        self._recent.clear()
        self._grown = 0

    def next_wait_s(
        self, spec: SupervisorSpec, now_s: float, counts: bool, random: Random
    ) -> float | None:
        """Count a restart; return its wait, or None where the intensity is exceeded."""
        recent = self.recent(spec, now_s)
        if counts and recent >= spec.intensity:
            return None
        reset_after_s = spec.backoff.reset_after_s
        if reset_after_s is None:
            self._grown = recent
        elif now_s - self._until_s >= reset_after_s:
            self._grown = 0
        wait_s = backoff_s(spec.backoff, self._grown, random)
        if counts:
            self._recent.append(now_s)
            self._grown += 1
        self._until_s = now_s + wait_s
        self.total += 1
        return wait_s


def backoff_s(backoff: Backoff, earlier: int, random: Random) -> float:
    """Return how long a restart waits after so many earlier ones of its period."""
    if earlier == 0:
        return 0.0
    try:
        grown_s = backoff.initial_s * backoff.factor ** (earlier - 1)
    except OverflowError:  # 2.0 ** 1024 is, and a group may be allowed more restarts.
        grown_s = backoff.max_s
    # Bounded so that the longest jitter stays within max_s: cutting the jittered wait off instead
    # would have half of a herd come back at one instant.
    wait_s = min(backoff.max_s / (1 + backoff.jitter), grown_s)
    return wait_s * (1 + backoff.jitter * (2 * random.random() - 1))
