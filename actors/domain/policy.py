"""What a host says of failed calls: when to try again, how long to pause, how fast to go.

A failure that states a wait, or that exhausts a quota, is not asked about here: what a provider
stated is kept, whatever a policy would rather do. Nor is a failure that is not worth retrying.

Called on the loop thread, inside the agent's turn; a policy or hook that blocks, blocks the loop.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias, runtime_checkable

from abeyance.actors.providers.port import ProviderError

from .limits import COOLDOWN_MAX_MS

ATTEMPTS_MAX: Final = 4
RETRY_INITIAL_S: Final = 1.0
RETRY_MAX_S: Final = 60.0
"""The pauses after a fault without a stated wait: guesses, so they are capped and kept short."""
JITTER_S: Final = 1.0
PACING_S_MAX: Final = 86_400.0
COOLDOWN_FLOOR_MS: Final = 1_000
"""The shortest cooldown: that of a stated wait which is over already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFailure:
    """A provider call that failed, as a policy or hook sees it.

    Attributes:
        agent: Whose call.
        model: Which model was asked.
        purpose: `turn`, or `auxiliary` for a call beside the agent's turns.
        error: What failed, and what was stated.
        attempt: Failed calls in a row that came to a policy, this one included; from 1 again when a
            call succeeds, a turn ends, or the process starts. Holds do not reset it.
        failures: All calls of this turn that failed, this one included.
        at_ms: When, in epoch milliseconds.
    """

    agent: str
    model: str
    purpose: Literal["turn", "auxiliary"]
    error: ProviderError
    attempt: int
    failures: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Retry:
    """Make the call again.

    Args:
        after_s: Seconds from the failure, 0 or more, uncapped. Up to a minute the turn waits with
            its slot; beyond that it is put down. Infinite: until the runtime stops.
    Raises:
        TypeError, ValueError: It is no number, not a number, or negative.
    """

    after_s: float

    def __post_init__(self) -> None:
        if isinstance(self.after_s, bool) or not isinstance(self.after_s, int | float):
            raise TypeError(f"after_s: must be a number of seconds, not {self.after_s!r:.80}")
        # A whole number past every float is larger than 0 and is compared as it is.
        if not self.after_s >= 0:
            raise ValueError(f"after_s: must be 0 or more, not {self.after_s!r}")


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Fail the turn, with a marker in the transcript."""


Decision: TypeAlias = Retry | GiveUp


def check_pause(field: str, value: object) -> None:
    """Refuse what is no number of seconds from 0 to a day, by the name of its field.

    Raises:
        TypeError, ValueError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{field}: must be a number of seconds, not {value!r:.80}")
    if not 0 <= value <= PACING_S_MAX:
        raise ValueError(f"{field}: must be from 0 to {PACING_S_MAX:g}, not {value!r:.80}")


def check_source(source: object) -> None:
    """Refuse what no jitter can come from.

    Raises:
        TypeError: It is no source of random numbers.
    """
    if not isinstance(source, random.Random):
        raise TypeError(f"source: must be a random.Random, not {source!r:.80}")


@runtime_checkable
class ErrorPolicy(Protocol):
    """What becomes of a failure that is worth retrying and states no wait."""

    def decide(self, failure: CallFailure) -> Decision:
        """Say whether, and when, the call is made again.

        Not a checkpoint; must not block. One that raises, or answers anything but a `Decision`, is
        logged, and the default policy decides.
        """


class ProviderHold(Protocol):
    """A host's own word on a failed call: how long its agent makes no call at all."""

    def __call__(self, failure: CallFailure) -> float | None:
        """Return seconds, infinity for as long as the process lives, or None for no pause.

        Not a checkpoint; must not block. Asked of every failed call, whatever else comes of it. One
        that raises, or returns no such number, is logged and pauses nothing. A release of provider
        waits leaves the pause as it is.
        """


class Backoff:
    """The default policy: a few tries with growing pauses, then the turn fails.

    Args:
        attempts_max: Calls in a row, from 1.
        initial_s: The first pause; each next one is twice as long.
        max_s: The longest pause.
        jitter_s: Up to so much is added to each.
        source: Where the jitter comes from.
    Raises:
        TypeError, ValueError: Names what is no number, or out of its bounds: tries from 1 to
            1,000,000, seconds from 0 to a day.
    """

    def __init__(
        self,
        *,
        attempts_max: int = ATTEMPTS_MAX,
        initial_s: float = RETRY_INITIAL_S,
        max_s: float = RETRY_MAX_S,
        jitter_s: float = JITTER_S,
        source: random.Random | None = None,
    ) -> None:
        if isinstance(attempts_max, bool) or not isinstance(attempts_max, int):
            raise TypeError(f"attempts_max: must be a whole number, not {attempts_max!r:.80}")
        if not 1 <= attempts_max <= 1_000_000:
            raise ValueError("attempts_max: must be from 1 to 1,000,000")
        check_pause("initial_s", initial_s)
        check_pause("max_s", max_s)
        check_pause("jitter_s", jitter_s)
        if source is not None:
            check_source(source)
        self._attempts_max = attempts_max
        self._initial_s = initial_s
        self._max_s = max_s
        self._jitter_s = jitter_s
        self._random = source or random.Random()

    def decide(self, failure: CallFailure) -> Decision:
        if failure.attempt >= self._attempts_max:
            return GiveUp()
        # The exponent is bounded first: a float power overflows where the pause is capped anyway.
        pause_s = self._initial_s * 2 ** min(failure.attempt - 1, 64)
        jitter_s = self._random.uniform(0, self._jitter_s)
        return Retry(min(self._max_s, pause_s + jitter_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """How long an agent pauses where a provider limits the growth of an organisation's usage.

    Such a refusal concerns every model, and mostly states no wait, so the pause is a guess: a
    cooldown of the whole agent. A stated wait takes the guess's place, uncapped.

    Args:
        default_s: The guess, in seconds; with its jitter at most ten minutes.
        jitter_s: Up to so much is added, so that agents of one organisation do not start at once.
        source: Where the jitter comes from.
    Raises:
        TypeError, ValueError: A field is no number from 0 to a day, or `source` no source.
    """

    default_s: float = 60.0
    jitter_s: float = 5.0
    source: random.Random = field(default_factory=random.Random, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_pause("default_s", self.default_s)
        check_pause("jitter_s", self.jitter_s)
        check_source(self.source)

    def jitter_ms(self) -> int:
        """One draw. Never negative."""
        return math.ceil(self.source.uniform(0, self.jitter_s) * 1_000)

    def guess_ms(self, jitter_ms: int) -> int:
        """The pause where nothing was stated."""
        default_ms = max(COOLDOWN_FLOOR_MS, math.ceil(self.default_s * 1_000))
        return min(COOLDOWN_MAX_MS, default_ms + jitter_ms)
