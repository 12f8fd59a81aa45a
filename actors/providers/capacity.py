"""Exhausted capacity, as a fact and as an error: which model, which window, until when. Pure.

A provider's limit of so many calls a minute is not this: waiting a moment and calling again is what
it asks for. An exhausted quota reopens in hours, or when somebody pays.

Invariants:
    I1  Exhausted with no known end is a state of its own: `retry_at_ms` is None, never a guess and
        never "not exhausted".
    I2  Until when is taken from the account's own usage windows that are used up; where none is,
        from what the error states in a field; then from the most used window; then from the error's
        words; then it is unknown. A field of the error is never shortened by a window: the reading
        is older than the refusal. A used up window that nobody knows the end of leaves it unknown,
        unless the error states an instant behind every end that is known.
    I3  The fact survives exception groups, causes and pickling.
    I4  A failure is about capacity where it is so itself, by the cause it was raised from, or in
        every member of its group. What merely was being handled as it was raised, and what failed
        beside something else, is not what it is about.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Final, Literal, NamedTuple, TypeVar

import msgspec

from abeyance.actors.core.errors import AbeyanceError
from abeyance.storage.tables.fields import INSTANT_MS_MAX, Instant, Name

from .failures import understood_alone
from .instants import render_instant
from .port import HeldError
from .stated import StatedWait, WaitEnds, WaitKind
from .windows import UsageReading, UsageWindow, last_of_full, most_used_of, readable

READING_MS_MAX = 1_800_000
"""A reading that is older counts as none: usage moves with every call."""
NO_INSTANT: Final = (
    f"must be a whole number of epoch milliseconds from 0 to {INSTANT_MS_MAX:,}, or None where "
    "nobody knows until when"
)
_ERRORS_MAX = 200
_DEPTH_MAX = 20
HELD_FOR_CAPACITY: Final = frozenset({"wait", "quota", "account"})
"""What holds a model for want of capacity; anything else is a pause that somebody made."""
T = TypeVar("T")
_MISSING = 404


class Exhaustion(msgspec.Struct, frozen=True, kw_only=True):
    """One model that cannot be called, and until when.

    `retry_at_ms` is an epoch instant in milliseconds, or None where it is not known. `told_by` is
    where it was read: the account's usage windows, a field of the error, or its words. `missing`
    is a model that the provider does not have: no window, and no time will bring it.
    """

    provider: Name
    model: Name
    window: Name | None = None
    retry_at_ms: Instant | None = None
    told_by: Literal["windows", "error", "words"] | None = None
    missing: bool = False


class CapacityExhaustedError(AbeyanceError):
    """No model that was to be tried has capacity. No call is on its way.

    Attributes: `exhausted`, an `Exhaustion` for each model, in the order they were to be tried.
    `retry_at_ms`: the soonest instant known at which one of them can be called again, or None.
    """

    code: ClassVar[str] = "capacity_exhausted"

    exhausted: tuple[Exhaustion, ...]
    retry_at_ms: int | None
    is_quota_exhausted: ClassVar[bool] = True
    retryable_now: ClassVar[bool] = False

    def __init__(self, exhausted: tuple[Exhaustion, ...]) -> None:
        """Say which models are out.

        Raises:
            TypeError, ValueError: `exhausted` names none, or one of them is malformed.
        """
        exhausted = _checked(exhausted)
        retry_at_ms = min(
            (each.retry_at_ms for each in exhausted if each.retry_at_ms is not None), default=None
        )
        named = ", ".join(_named(each) for each in exhausted)
        advice = (
            f"call again at {render_instant(retry_at_ms)}"
            if retry_at_ms is not None
            else "no provider said until when: call again, or choose another model"
        )
        super().__init__(
            f"no capacity: {named}; nothing more was called; {advice}",
            exhausted=exhausted,
            retry_at_ms=retry_at_ms,
        )

    @property
    def provider(self) -> str:
        """Of the model that can be called first, or of the first that was tried."""
        return self.first.provider

    @property
    def model(self) -> str:
        return self.first.model

    @property
    def window(self) -> str | None:
        return self.first.window

    @property
    def first(self) -> Exhaustion:
        """The model that can be called first; of several whose end is unknown the first tried."""
        return next(
            (each for each in self.exhausted if each.retry_at_ms == self.retry_at_ms),
            self.exhausted[0],
        )

    def next(self, now_ms: int) -> Exhaustion:
        """The model that can be called first, of those whose instant is still to come; of several
        whose end is unknown, or has passed, `first`."""
        to_come = [each for each in self.exhausted if still_to_come(each.retry_at_ms, now_ms)]
        return min(to_come, key=lambda each: each.retry_at_ms or 0, default=self.first)


def _checked(exhausted: tuple[Exhaustion, ...]) -> tuple[Exhaustion, ...]:
    if not isinstance(exhausted, tuple) or not exhausted:
        raise ValueError("exhausted: must be a tuple of at least one Exhaustion")
    for number, each in enumerate(exhausted):
        if not isinstance(each, Exhaustion):
            raise TypeError(
                f"exhausted[{number}]: must be an Exhaustion, not {type(each).__name__}"
            )
        if not is_instant(each.retry_at_ms):
            raise ValueError(f"exhausted[{number}].retry_at_ms: {NO_INSTANT}")
    return exhausted


def is_instant(at_ms: object) -> bool:
    """Whether a value is until when a model is out, or None."""
    return at_ms is None or (type(at_ms) is int and 0 <= at_ms <= INSTANT_MS_MAX)


def exhaustion_of(
    error: BaseException,
    *,
    provider: str,
    model: str,
    now_ms: int,
    reading: UsageReading | None = None,
    credential: str | None = None,
) -> Exhaustion | None:
    """Return what an error says of a model's capacity, or None where it is about something else.

    Not a checkpoint; raises nothing; starts nothing.

    Args:
        error: What the call raised: a `ProviderError`, one that a library raised, what this
            runtime raises of a model that is held or a chain that is out; itself, as the cause it
            was raised from, or in every member of a group.
        provider, model: Which were called.
        now_ms: Epoch milliseconds.
        reading: The newest usage reading there is; used only where it is of `credential`'s account
            and not older than half an hour. Without one, that which the error carries.
        credential: The fingerprint of the account that hit the wall.
    """

    def alone(each: BaseException) -> Exhaustion | None:
        return _exhaustion(each, provider, model, now_ms, reading, credential)

    return explained(error, alone, _later)


def _later(one: Exhaustion, other: Exhaustion) -> Exhaustion:
    """Of two that stand in the way of the same call, the one that does so for longer."""
    if one.retry_at_ms is None or other.retry_at_ms is None:
        return one if one.retry_at_ms is None else other
    return other if other.retry_at_ms > one.retry_at_ms else one


def _exhaustion(
    error: BaseException,
    provider: str,
    model: str,
    now_ms: int,
    reading: UsageReading | None,
    credential: str | None,
) -> Exhaustion | None:
    carried = getattr(error, "reading", None)
    if reading is None and isinstance(carried, UsageReading):
        # What this runtime knew of the account when the call failed.
        reading, credential = carried, carried.credential
    if isinstance(error, CapacityExhaustedError):
        soonest = error.next(now_ms)
        at_ms = still_to_come(soonest.retry_at_ms, now_ms)
        return Exhaustion(
            provider=provider,
            model=model,
            window=soonest.window,
            retry_at_ms=at_ms,
            told_by=None if at_ms is None else soonest.told_by,
            missing=all(each.missing for each in error.exhausted),
        )
    if isinstance(error, HeldError):
        if error.cause not in HELD_FOR_CAPACITY:
            return None
        at_ms = still_to_come(error.deadline_ms, now_ms)
        told = _End(error.window, at_ms, None if at_ms is None else "error")
        if at_ms is None and error.cause == "quota" and error.deadline_ms is None:
            told = _end(told, _windows(reading, model, credential, now_ms), now_ms)
        return Exhaustion(provider=provider, model=model, **told._asdict())
    refused = understood_alone(error, received_at=now_ms / 1_000, provider=provider)
    if refused is None:
        return None
    if refused.status == _MISSING:
        return Exhaustion(provider=provider, model=model, missing=True)
    stated = refused.stated
    if stated is None or stated.kind is not WaitKind.QUOTA_EXHAUSTED:
        return None
    end = _end(_stated(stated, now_ms), _windows(reading, model, credential, now_ms), now_ms)
    return Exhaustion(provider=provider, model=model, **end._asdict())


class _End(NamedTuple):
    """Until when a model is out, of which window, and what told so."""

    window: str | None
    retry_at_ms: int | None
    told_by: Literal["windows", "error", "words"] | None


def _end(told: _End, windows: Sequence[UsageWindow], now_ms: int) -> _End:
    """Until when a wall stands, by the account's windows and by what its error told."""
    last, at_ms = last_of_full(windows, now_ms), told.retry_at_ms
    is_behind = at_ms is not None and (last is None or at_ms > (last.resets_ms or 0))
    endless = next((each for each in windows if each.is_full and each.resets_ms is None), None)
    if endless is not None:
        return told if is_behind else _End(endless.name, None, None)
    if told.told_by == "error" and is_behind:
        return told
    window = last or most_used_of(windows, now_ms)
    return told if window is None else _End(window.name, window.resets_ms, "windows")


def still_to_come(at_ms: float | None, now_ms: int) -> int | None:
    """An instant to go on at; None where nobody told one, or what none can be, or it has passed:
    whoever went on at once would be refused again."""
    if isinstance(at_ms, bool) or not isinstance(at_ms, int | float) or not math.isfinite(at_ms):
        return None
    return math.ceil(at_ms) if now_ms < at_ms <= INSTANT_MS_MAX else None


def explained(
    error: BaseException,
    alone: Callable[[BaseException], T | None],
    together: Callable[[T, T], T],
    depth: int = 0,
) -> T | None:
    """What a failure is about, as a function reads single errors; None where it reads nothing, or
    only part of it.

    Args:
        together: What two members of a group come to.
    """
    if depth > _DEPTH_MAX:
        return None
    found: T | None = None
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions[:_ERRORS_MAX]:
            read = explained(each, alone, together, depth + 1)
            if read is None:
                found = None
                break
            found = read if found is None else together(found, read)
    else:
        found = alone(error)
    if found is None and error.__cause__ is not None:
        return explained(error.__cause__, alone, together, depth + 1)
    return found


def capacity_error_of(error: BaseException) -> CapacityExhaustedError | None:
    """Return the error itself, or the one within a group or behind a cause. Raises nothing.

    For looking at what happened, wherever in it; whether a failure is one of capacity says
    `exhaustion_of`.
    """
    return next(
        (each for each in errors_within(error) if isinstance(each, CapacityExhaustedError)), None
    )


def _windows(
    reading: UsageReading | None, model: str, credential: str | None, now_ms: int
) -> list[UsageWindow]:
    """The windows that calls to a model use up, by the account's own reading of late."""
    reading = readable(reading)
    if reading is None or abs(now_ms - reading.read_ms) > READING_MS_MAX:
        return []
    return [each for each in reading.of_account(credential) if each.concerns(model)]


def _stated(stated: StatedWait, now_ms: int) -> _End:
    at_ms = still_to_come(stated.deadline_ms, now_ms)
    if stated.ends is not WaitEnds.UNTIL or at_ms is None:
        return _End(stated.window, None, None)
    worded = (stated.source or "").startswith("text:")
    return _End(stated.window, at_ms, "words" if worded else "error")


def _named(each: Exhaustion) -> str:
    if each.missing:
        return f"{each.provider}/{each.model} (no such model)"
    return f"{each.provider}/{each.model}{f' ({each.window})' if each.window else ''}"


def errors_within(error: BaseException) -> Iterator[BaseException]:
    """An error, the members of a group, and what stands behind each. Bounded; raises nothing."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < _ERRORS_MAX:
        each = waiting.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        inner = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        causes = (each.__cause__, None if each.__suppress_context__ else each.__context__)
        waiting += [one for one in (*inner, *causes) if one is not None]
