"""Exhausted capacity, as a fact and as an error: which model, which window, until when. Pure.

A provider's limit of so many calls a minute is not this: waiting a moment and calling again is what
it asks for. An exhausted quota reopens in hours, or when somebody pays.

Invariants:
    I1  Exhausted with no known end is a state of its own: `retry_at_ms` is None, never a guess and
        never "not exhausted".
    I2  Until when is taken from the account's own usage windows; where they do not tell, from what
        the error states in a field; then from its words; then it is unknown.
    I3  The fact survives exception groups, causes and pickling.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import msgspec

from abeyance.actors.core.errors import AbeyanceError
from abeyance.storage.tables.fields import Instant, Name

from .failures import understood
from .instants import render_instant
from .stated import StatedWait, WaitEnds, WaitKind
from .windows import FULL_PERCENT, UsageReading, UsageWindow, latest_reset_of_full, most_used

READING_MS_MAX = 1_800_000
"""A reading that is older counts as none: usage moves with every call."""
_ERRORS_MAX = 200
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
        error: What the call raised: a `ProviderError`, one that a library raised, a group.
        provider, model: Which were called.
        now_ms: Epoch milliseconds.
        reading: The newest usage reading there is; used only where it is of `credential`'s account
            and not older than half an hour.
        credential: The fingerprint of the account that hit the wall.
    """
    refused = understood(error, received_at=now_ms / 1_000, provider=provider)
    if refused is None:
        return None
    if refused.status == _MISSING:
        return Exhaustion(provider=provider, model=model, missing=True)
    stated = refused.stated
    if stated is None or stated.kind is not WaitKind.QUOTA_EXHAUSTED:
        return None
    window = _constraining(reading, model, credential, now_ms)
    if window is not None:
        return Exhaustion(
            provider=provider,
            model=model,
            window=window.name,
            retry_at_ms=window.resets_ms,
            told_by="windows",
        )
    at_ms = _stated_end(stated, now_ms)
    return Exhaustion(
        provider=provider,
        model=model,
        window=stated.window,
        retry_at_ms=at_ms,
        told_by=None
        if at_ms is None
        else "words"
        if (stated.source or "").startswith("text:")
        else "error",
    )


def capacity_error_of(error: BaseException) -> CapacityExhaustedError | None:
    """Return the error itself, or the one within a group or behind a cause. Raises nothing."""
    return next(
        (each for each in errors_within(error) if isinstance(each, CapacityExhaustedError)), None
    )


def _constraining(
    reading: UsageReading | None, model: str, credential: str | None, now_ms: int
) -> UsageWindow | None:
    """The window whose reset is when calls go through again, by the account's own reading."""
    if reading is None or abs(now_ms - reading.read_ms) > READING_MS_MAX:
        return None
    windows = [each for each in reading.of_account(credential) if each.concerns(model)]
    reset = latest_reset_of_full(windows, now_ms)
    if reset is not None:
        return next(
            each
            for each in windows
            if each.resets_ms == reset and (each.used_percent or 0.0) >= FULL_PERCENT
        )
    window = most_used(windows)
    if window is None or window.resets_ms is None or window.resets_ms <= now_ms:
        return None
    return window


def _stated_end(stated: StatedWait, now_ms: int) -> int | None:
    deadline = stated.deadline_ms
    if stated.ends is not WaitEnds.UNTIL or deadline is None or deadline <= now_ms:
        return None
    return deadline


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
