"""A chain of models: which is called, what is remembered, and when all are out."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import trio

from abeyance.actors import FallbackChain, ModelChoice
from abeyance.actors.domain.errors import InvalidInputError
from abeyance.actors.providers import (
    CapacityExhaustedError,
    Exhaustion,
    ProviderError,
    StatedWait,
    WaitEnds,
    WaitKind,
    capacity_error_of,
)

NOW = 1_791_374_400_000
HOUR = 3_600_000
OPUS, SONNET, OTHER = (
    ModelChoice("anthropic", "opus"),
    ModelChoice("anthropic", "sonnet"),
    ModelChoice("openai", "gpt"),
)


def wall(resets_ms: int | None) -> ProviderError:
    return ProviderError(
        "used up",
        retryable=True,
        status=429,
        stated=StatedWait(
            kind=WaitKind.QUOTA_EXHAUSTED,
            ends=WaitEnds.UNKNOWN if resets_ms is None else WaitEnds.UNTIL,
            deadline_ms=resets_ms,
            source=None if resets_ms is None else "body:resets_at",
        ),
    )


class Models:
    """Answers with its name, or raises what is set for it; notes each call."""

    def __init__(self, **errors: BaseException) -> None:
        self.errors = errors
        self.called: list[str] = []
        self.now_ms = NOW

    async def __call__(self, choice: ModelChoice) -> str:
        self.called.append(choice.model)
        if choice.model in self.errors:
            raise self.errors[choice.model]
        return choice.model

    async def through(self, chain: FallbackChain) -> str:
        return await chain.call(self, now_ms=lambda: self.now_ms)


@pytest.mark.behaviour("S-015", "S-016")
async def test_chain_calls_an_exhausted_model_once_and_the_next_at_once() -> None:
    chain = FallbackChain([OPUS, SONNET, OTHER])
    models = Models(opus=wall(NOW + HOUR), sonnet=wall(NOW + 2 * HOUR))
    assert await models.through(chain) == "gpt"
    assert models.called == ["opus", "sonnet", "gpt"]
    assert await models.through(chain) == "gpt"
    assert models.called[3:] == ["gpt"]


@pytest.mark.behaviour("S-019", "S-021")
@pytest.mark.parametrize("second", [None, NOW + 100 * HOUR], ids=["unknown", "in 100 h"])
async def test_model_whose_window_starts_anew_while_another_is_tried_is_tried_before_all_are_out(
    second: int | None,
) -> None:
    chain = FallbackChain([OPUS, SONNET])
    called: list[str] = []
    now_ms = NOW

    async def call(choice: ModelChoice) -> str:
        nonlocal now_ms
        called.append(choice.model)
        if choice == SONNET:
            now_ms += 60_000
            raise wall(second)
        if now_ms < NOW + 20_000:
            raise wall(NOW + 20_000)
        return choice.model

    assert await chain.call(call, now_ms=lambda: now_ms) == "opus"
    assert called == ["opus", "sonnet", "opus"]


async def test_model_that_is_out_again_when_its_window_had_started_anew_is_not_tried_thrice() -> (
    None
):
    chain = FallbackChain([OPUS, SONNET])
    called: list[str] = []
    now_ms = NOW

    async def call(choice: ModelChoice) -> str:
        nonlocal now_ms
        called.append(choice.model)
        now_ms += 60_000
        raise wall(now_ms + 1_000)

    with pytest.raises(CapacityExhaustedError):
        await chain.call(call, now_ms=lambda: now_ms)
    assert called == ["opus", "sonnet", "opus", "sonnet"]


@pytest.mark.behaviour("S-019")
async def test_chain_tries_a_model_again_once_its_window_has_started_anew() -> None:
    chain = FallbackChain([OPUS, SONNET])
    models = Models(opus=wall(NOW + HOUR))
    assert await models.through(chain) == "sonnet"
    models.errors.clear()
    models.now_ms = NOW + HOUR - 1
    assert await models.through(chain) == "sonnet"
    models.now_ms = NOW + HOUR
    assert await models.through(chain) == "opus"
    assert chain.exhausted == ()


@pytest.mark.behaviour("S-020")
async def test_chain_passes_an_unknown_end_over_until_somebody_reopens_it() -> None:
    chain = FallbackChain([OPUS, SONNET])
    models = Models(opus=wall(None))
    assert await models.through(chain) == "sonnet"
    models.errors.clear()
    models.now_ms = NOW + 10_000 * HOUR
    assert await models.through(chain) == "sonnet"
    assert models.called == ["opus", "sonnet", "sonnet"]
    assert chain.reopen(OPUS)
    assert not chain.reopen(OPUS)
    assert await models.through(chain) == "opus"


@pytest.mark.behaviour("S-021")
async def test_chain_that_is_out_tells_the_soonest_known_instant_of_its_models() -> None:
    chain = FallbackChain([OPUS, SONNET, OTHER])
    models = Models(opus=wall(NOW + 5 * HOUR), sonnet=wall(NOW + 2 * HOUR), gpt=wall(None))
    with pytest.raises(CapacityExhaustedError) as caught:
        await models.through(chain)
    assert caught.value.retry_at_ms == NOW + 2 * HOUR
    assert caught.value.model == "sonnet"
    assert [each.retry_at_ms for each in caught.value.exhausted] == [
        NOW + 5 * HOUR,
        NOW + 2 * HOUR,
        None,
    ]
    with pytest.raises(CapacityExhaustedError) as again:
        await models.through(chain)
    assert again.value.retry_at_ms == NOW + 2 * HOUR
    assert models.called == ["opus", "sonnet", "gpt"]
    with pytest.raises(CapacityExhaustedError):
        chain.pick(NOW)
    assert chain.pick(NOW + 2 * HOUR) == SONNET
    assert chain.usable(NOW + 5 * HOUR) == (OPUS, SONNET)


@pytest.mark.behaviour("S-021", "S-020")
async def test_chain_in_which_no_end_is_known_tells_none() -> None:
    with pytest.raises(CapacityExhaustedError) as caught:
        await Models(opus=wall(None)).through(FallbackChain([OPUS]))
    assert caught.value.retry_at_ms is None
    assert "choose another model" in str(caught.value)


@pytest.mark.behaviour("S-018")
async def test_instant_of_a_chain_that_is_out_is_readable_behind_three_layers() -> None:
    chain = FallbackChain([OPUS, OTHER])
    models = Models(opus=wall(NOW + 2 * HOUR), gpt=wall(NOW + HOUR))

    async def generates() -> None:
        await models.through(chain)

    async def step() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(generates)

    async def run() -> None:
        try:
            await step()
        except* CapacityExhaustedError as group:
            raise RuntimeError("the step failed") from group

    with pytest.raises((RuntimeError, ExceptionGroup)) as caught:
        await run()
    found = capacity_error_of(caught.value)
    assert found is not None
    assert (found.retry_at_ms, found.provider, found.model) == (NOW + HOUR, "openai", "gpt")
    assert pickle.loads(pickle.dumps(found)).retry_at_ms == NOW + HOUR


@pytest.mark.behaviour("S-022")
async def test_model_that_does_not_exist_is_passed_over_and_gives_no_time() -> None:
    missing = ProviderError("no such model", retryable=False, status=404)
    chain = FallbackChain([OPUS, SONNET])
    models = Models(opus=missing, sonnet=wall(NOW + HOUR))
    with pytest.raises(CapacityExhaustedError) as caught:
        await models.through(chain)
    assert caught.value.retry_at_ms == NOW + HOUR
    assert [each.missing for each in caught.value.exhausted] == [True, False]
    # Configuration, and no window at all where there is nothing else.
    lone = FallbackChain([OPUS])
    for _ in range(2):
        with pytest.raises(ProviderError, match="no such model"):
            await Models(opus=missing).through(lone)
    assert lone.pick(NOW) == OPUS
    assert await Models().through(FallbackChain([OPUS], exhausted=lone.exhausted))


async def test_chain_raises_what_is_not_about_capacity_and_tries_nothing_else() -> None:
    throttled = ProviderError("slow down", retryable=True, status=429)
    models = Models(opus=throttled)
    with pytest.raises(ProviderError, match="slow down"):
        await models.through(FallbackChain([OPUS, SONNET]))
    assert models.called == ["opus"]


async def test_chain_of_another_process_goes_by_what_this_one_remembered() -> None:
    chain = FallbackChain([OPUS, SONNET])
    await Models(opus=wall(NOW + HOUR)).through(chain)
    stranger = Exhaustion(provider="nobody", model="m")
    later = FallbackChain([OPUS, SONNET], exhausted=[*chain.exhausted, stranger])
    assert later.exhausted == chain.exhausted
    assert later.pick(NOW) == SONNET


@pytest.mark.parametrize(
    ("choices", "field"),
    [
        ([], "choices"),
        ([ModelChoice("p", str(i)) for i in range(17)], "choices"),
        ([OPUS, OPUS], "choices[1]"),
        ([OPUS, ("p", "m")], "choices[1]"),
        (OPUS, "choices"),
    ],
    ids=["none", "too many", "twice", "no choice", "no sequence"],
)
def test_malformed_chain_is_refused_by_its_field(choices: Any, field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        FallbackChain(choices)
    assert caught.value.field == field


@pytest.mark.parametrize("at_ms", [2**80, -1, float("nan"), 1.5, True])
def test_chain_remembers_no_model_until_what_is_no_instant(at_ms: Any) -> None:
    fact = Exhaustion(provider="anthropic", model="opus", retry_at_ms=at_ms)
    choice = ModelChoice("anthropic", "opus")
    with pytest.raises(InvalidInputError) as caught:
        FallbackChain([choice], [fact])
    assert caught.value.field == "exhausted[0].retry_at_ms"
    chain = FallbackChain([choice])
    with pytest.raises(InvalidInputError, match="retry_at_ms"):
        chain.remember(fact)
    assert chain.exhausted == ()
