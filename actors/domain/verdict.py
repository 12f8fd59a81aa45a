"""What a failed provider call comes to: what is recorded, what pauses, whether it is final. Pure.

Every failure passes here, wherever it came from: thrown when the call began, told by an event of
the stream, or thrown out of the middle of it.

Invariants:
    I1  What was stated goes to the ledger whatever else is decided; what was not, never does.
    I2  A host's hook or policy that raises, or answers nonsense, decides nothing.

Runs in: the task of the turn, or of the auxiliary call, that the call was for.
"""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple, TypeGuard

from abeyance.actors.core.logs import Log
from abeyance.actors.providers.failures import understood
from abeyance.actors.providers.port import Permit, ProviderError
from abeyance.actors.providers.stated import StatedWait, WaitEnds, WaitKind
from abeyance.storage.tables.fields import INSTANT_MS_MAX

from .foreign import text_of, told
from .ingress import clean_text
from .pauses import Pause, pause_of
from .policy import (
    COOLDOWN_FLOOR_MS,
    Backoff,
    CallFailure,
    Decision,
    ErrorPolicy,
    GiveUp,
    Pacing,
    ProviderHold,
    Retry,
)

REASON_CHARS: Final = 300
_DEFAULT_POLICY: Final = Backoff()
_logger = Log(__name__)

Purpose = Literal["turn", "auxiliary"]


class Streak:
    """Failed calls in a row that came to an agent's policy, and how often its hooks failed."""

    def __init__(self) -> None:
        self.failed = 0
        self.hook_failures = 0

    def clear(self) -> None:
        self.failed = 0


class Verdict(NamedTuple):
    """What is to be done about one failed call."""

    failure: CallFailure
    text: str
    """The provider's own words where it gave any; one line, bounded."""
    states: tuple[int | None, str] | None
    """What is for the ledger: (deadline or None, reason)."""
    pauses: tuple[Pause, ...]
    """What pauses the whole agent."""
    quota: bool
    quota_is_unknown: bool
    """Exhausted, and nobody said until when."""

    @property
    def scope(self) -> str | None:
        """What the provider stated it of."""
        stated = self.failure.error.stated
        return stated.scope if isinstance(stated, StatedWait) else None

    @property
    def account_ms(self) -> int | None:
        """Until when it stated of the account, beside a longer wait of less."""
        stated = self.failure.error.stated
        until = stated.account_deadline_ms if isinstance(stated, StatedWait) else None
        return math.ceil(until) if _is_instant(until) else None

    @property
    def window(self) -> str | None:
        """The account's window that is used up, where the provider named one."""
        stated = self.failure.error.stated
        window = stated.window if isinstance(stated, StatedWait) and self.quota else None
        return window if isinstance(window, str) else None

    @property
    def can_wait(self) -> bool:
        """Whether the same call may succeed when what holds it has ended."""
        return self.failure.error.retryable or self.quota


def judge(
    error: BaseException,
    permit: Permit,
    *,
    purpose: Purpose,
    failures: int,
    streak: Streak,
    pacing: Pacing,
    provider_hold: ProviderHold | None,
    now_ms: int,
) -> Verdict:
    """Read a failed call's error, and ask the host's hook."""
    failed = understood(error, received_at=now_ms / 1_000) or _unexpected(error, permit)
    # What a person reads beside a wait are the provider's words, where it gave any.
    text = clean_text(_words(failed), REASON_CHARS)
    # An adapter that a host wrote may hand over anything here.
    stated = failed.stated if isinstance(failed.stated, StatedWait) else None
    quota = stated is not None and stated.kind is WaitKind.QUOTA_EXHAUSTED
    failure = CallFailure(
        agent=permit.agent,
        model=permit.model,
        purpose=purpose,
        error=failed,
        attempt=streak.failed + 1,
        failures=failures,
        at_ms=now_ms,
    )
    pauses = (_cooldown(failure, stated, pacing, text), _host_pause(failure, provider_hold, streak))
    return Verdict(
        failure,
        text,
        None if stated is None else _states(stated, text),
        tuple(pause for pause in pauses if pause is not None),
        quota,
        quota and stated is not None and stated.ends is WaitEnds.UNKNOWN,
    )


def used_nothing(verdict: Verdict) -> bool:
    """Whether a failed call surely used no tokens: it did not leave, or a status refused it."""
    error = verdict.failure.error
    return not error.sent or (isinstance(error.status, int) and error.status >= 400)


def decide(policy: ErrorPolicy | None, failure: CallFailure, streak: Streak) -> Decision:
    """Ask the host's policy; where it fails, the default one."""
    if policy is not None:
        try:
            decision: object = policy.decide(failure)
        except (Exception, SystemExit):
            streak.hook_failures += 1
            _logger.exception(
                "the error policy of %r raised; the default decides",
                failure.agent,
                agent=failure.agent,
            )
        else:
            if isinstance(decision, Retry | GiveUp):
                return decision
            streak.hook_failures += 1
            _logger.error(
                "the error policy of %r answered a %s, which is no decision; the default decides",
                failure.agent,
                type(decision).__name__,
                agent=failure.agent,
            )
    return _DEFAULT_POLICY.decide(failure)


def _cooldown(
    failure: CallFailure, stated: StatedWait | None, pacing: Pacing, text: str
) -> Pause | None:
    """The agent's own pacing, where an organisation's usage grew too fast."""
    error = failure.error
    # A class of another copy of this library may be of an older one.
    if not (error.retryable and getattr(error, "acceleration", False) is True):
        return None
    now_ms, jitter_ms = failure.at_ms, pacing.jitter_ms()
    guess_ms = pacing.guess_ms(jitter_ms)
    stated_ms = _stated_ms(stated, now_ms)
    length_ms = guess_ms if stated_ms is None else max(COOLDOWN_FLOOR_MS, stated_ms) + jitter_ms
    return pause_of("cooldown", failure.model, now_ms, length_ms, text, own_ms=guess_ms)


def _stated_ms(stated: StatedWait | None, now_ms: int) -> float | None:
    """How long was stated; None where nothing was. What is over already is a stated 0."""
    if stated is None:
        return None
    match stated.ends:
        case WaitEnds.UNTIL if _is_instant(stated.deadline_ms):
            return stated.deadline_ms - now_ms
        case WaitEnds.UNTIL_RELEASED:
            return math.inf
        case WaitEnds.ALREADY_OVER:
            return 0
        case _:
            return None


def _host_pause(failure: CallFailure, hook: ProviderHold | None, streak: Streak) -> Pause | None:
    if hook is None:
        return None
    try:
        pause_s = hook(failure)
    except (Exception, SystemExit):
        streak.hook_failures += 1
        _logger.exception(
            "the provider hold of %r raised; it pauses nothing", failure.agent, agent=failure.agent
        )
        return None
    if pause_s is None:
        return None
    number = isinstance(pause_s, int | float) and not isinstance(pause_s, bool)
    if not number or not pause_s >= 0:
        streak.hook_failures += 1
        _logger.error(
            "the provider hold of %r answered %.100r, which is no number of seconds; it pauses "
            "nothing",
            failure.agent,
            pause_s,
            agent=failure.agent,
        )
        return None
    if pause_s == 0:
        return None
    length_ms = _ms(pause_s)
    how_long = "until its process ends" if length_ms == math.inf else f"for {pause_s:g} s"
    reason = f"the host holds this agent {how_long}"
    return pause_of("host", failure.model, failure.at_ms, length_ms, reason)


def policy_pause(failure: CallFailure, after_s: float, text: str) -> Pause:
    """The pause of a policy that is too long for a turn to keep its slot. A release leaves it."""
    return pause_of("cooldown", failure.model, failure.at_ms, _ms(after_s), text)


def _ms(seconds: float) -> float:
    try:
        return float(seconds) * 1_000
    except OverflowError:  # A whole number past every float.
        return math.inf


def _unexpected(error: BaseException, permit: Permit) -> ProviderError:
    """An adapter raised what the port does not name: terminal, and nothing is assumed of it."""
    return ProviderError(told(error), retryable=False, sent=permit.used)


def _words(error: ProviderError) -> str:
    """What an error says; one of a host's making may say nothing, or raise instead."""
    said = getattr(error, "said", "")
    return said if isinstance(said, str) and said else text_of(error)


def _is_instant(value: object) -> TypeGuard[float]:
    """Only a number is an instant; text, None and a truth value state nothing."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value <= INSTANT_MS_MAX  # type: ignore[operator]


def _states(stated: StatedWait, text: str) -> tuple[int | None, str] | None:
    """What of a statement is for the ledger: an instant, or a wait without end; else nothing."""
    match stated.ends:
        case WaitEnds.UNTIL if _is_instant(stated.deadline_ms):
            return math.ceil(stated.deadline_ms), text
        case WaitEnds.UNTIL_RELEASED:
            return None, text
        case _:
            return None
