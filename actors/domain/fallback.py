"""A chain of models: the first that has capacity is called, and what is exhausted is remembered.

No actor: pure but for the awaited call. Its order is the host's policy; nothing here reorders it.

Invariants:
    I1  A model whose quota is exhausted is not called again before its window starts anew, in the
        same call or in a later one. One that starts anew while others are tried is tried again,
        once, before the chain is called out.
    I2  Exhausted with no known end stays so until somebody reopens it; it adds nothing to when the
        chain can go on. So does a model that the provider does not have.
    I3  Errors that are not about capacity are the caller's: nothing falls back on them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from abeyance.actors.providers.capacity import (
    NO_INSTANT,
    CapacityExhaustedError,
    Exhaustion,
    exhaustion_of,
    is_instant,
)
from abeyance.actors.providers.windows import UsageReading
from abeyance.storage.tables.fields import Name

from .errors import InvalidInputError
from .ingress import check_model, check_name

CHOICES_MAX = 16
T = TypeVar("T")


class ModelChoice(msgspec.Struct, frozen=True):
    """One link of a chain: a provider as the host named it, and one of its models.

    Raises:
        InvalidNameError: Names the field that is no name.
    """

    provider: Name
    model: Name

    def __post_init__(self) -> None:
        check_name(self.provider, "provider")
        check_model(self.model, "model")


def _check_sequence(field: str, given: object) -> None:
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise InvalidInputError(field, f"must be a sequence, not {type(given).__name__}")


class FallbackChain:
    """Which model to call next, over many calls. One task at a time, or one actor.

    Durability: none of its own. `exhausted` is what to store and to hand to the next process.
    """

    def __init__(
        self, choices: Sequence[ModelChoice], exhausted: Sequence[Exhaustion] = ()
    ) -> None:
        """Make a chain.

        Args:
            choices: 1 to 16 different ones, in the order they are to be tried.
            exhausted: What an earlier chain remembered. Of other models it is ignored.
        Raises:
            InvalidInputError: There is none, too many, one twice, or a malformed name; or what is
                remembered of a model has no instant.
        """
        _check_sequence("choices", choices)
        _check_sequence("exhausted", exhausted)
        if not 1 <= len(choices) <= CHOICES_MAX:
            raise InvalidInputError("choices", f"1 to {CHOICES_MAX} models make a chain")
        for place, choice in enumerate(choices):
            if not isinstance(choice, ModelChoice):
                raise InvalidInputError(f"choices[{place}]", "must be a ModelChoice")
            if choice in choices[:place]:
                raise InvalidInputError(f"choices[{place}]", "is in the chain already")
        self.choices = tuple(choices)
        self._exhausted: dict[ModelChoice, Exhaustion] = {}
        for place, fact in enumerate(exhausted):
            if not isinstance(fact, Exhaustion):
                raise InvalidInputError(f"exhausted[{place}]", "must be an Exhaustion")
            try:
                self.remember(fact)
            except InvalidInputError as problem:
                raise problem.within(f"exhausted[{place}]") from None

    @property
    def exhausted(self) -> tuple[Exhaustion, ...]:
        """What is remembered, in the chain's order; windows that have started anew included."""
        return tuple(self._exhausted[each] for each in self.choices if each in self._exhausted)

    def usable(self, now_ms: int) -> tuple[ModelChoice, ...]:
        """The models that may be called at an instant, in order."""
        return tuple(each for each in self.choices if not self._is_out(each, now_ms))

    def pick(self, now_ms: int) -> ModelChoice:
        """Return the model to call.

        Raises:
            CapacityExhaustedError: None may be. Its `retry_at_ms` is the soonest known instant.
        """
        for choice in self.choices:
            if not self._is_out(choice, now_ms):
                return choice
        raise CapacityExhaustedError(self.exhausted)

    def remember(self, fact: Exhaustion) -> None:
        """Pass a model over until its instant; for one of another chain nothing happens.

        Raises:
            InvalidInputError: Its `retry_at_ms` is no instant; nothing was remembered.
        """
        if not is_instant(fact.retry_at_ms):
            raise InvalidInputError("retry_at_ms", NO_INSTANT)
        choice = ModelChoice(fact.provider, fact.model)
        if choice in self.choices:
            self._exhausted[choice] = fact

    def reopen(self, choice: ModelChoice) -> bool:
        """Try a model again, whatever was remembered of it. Whether anything was."""
        return self._exhausted.pop(choice, None) is not None

    async def call(
        self,
        function: Callable[[ModelChoice], Awaitable[T]],
        *,
        now_ms: Callable[[], int],
        reading: Callable[[ModelChoice], tuple[UsageReading | None, str | None]] = (
            lambda _choice: (None, None)
        ),
    ) -> T:
        """Call a model of the chain, and the next one where its quota is exhausted.

        A checkpoint as the function is one. Cancelled: as the function is; what was learnt before
        is kept. No timer and no task is left behind.

        Args:
            function: Makes one call. It is awaited at most once a model, and once more for one
                whose window starts anew while others are tried and found out.
            now_ms: The wall clock.
            reading: The newest usage reading of a model's account, and that account's fingerprint.
        Returns:
            What the function returned.
        Raises:
            CapacityExhaustedError: All are out.
            BaseException: What the function raised for another reason, and for a model that does
                not exist where no other was left.
        """
        failure: BaseException | None = None
        for place, choice in enumerate(self.choices * 2):
            is_second = place >= len(self.choices)
            if self._is_out(choice, now_ms()) or (is_second and self._none_exists):
                continue
            try:
                result = await function(choice)
            except Exception as error:
                told, credential = reading(choice)
                fact = exhaustion_of(
                    error,
                    provider=choice.provider,
                    model=choice.model,
                    now_ms=now_ms(),
                    reading=told,
                    credential=credential,
                )
                if fact is None:
                    raise
                self.remember(fact)
                failure = error
            else:
                self._exhausted.pop(choice, None)
                return result
        if failure is not None and all(fact.missing for fact in self.exhausted):
            raise failure
        raise CapacityExhaustedError(self.exhausted) from failure

    def _is_out(self, choice: ModelChoice, now_ms: int) -> bool:
        fact = self._exhausted.get(choice)
        if fact is None or self._none_exists:
            return False
        return fact.retry_at_ms is None or fact.retry_at_ms > now_ms

    @property
    def _none_exists(self) -> bool:
        """Whether every model is missing. No time brings one back: they are asked again, so that
        who calls is told what is wrong, and does not wait."""
        facts = self.exhausted
        return len(facts) == len(self.choices) and all(fact.missing for fact in facts)
