"""How far the guarantee reaches: the runtime's own calls, each made once, and a disk that heals."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
import trio
from trio.testing import MockClock

from abeyance.actors.domain.errors import CallDeferredError
from abeyance.actors.providers import AnthropicProvider
from abeyance.actors.providers.port import PermitError, ProviderError
from abeyance.actors.testing import fail, reply
from abeyance.actors.testing.simulator import Answer

from .test_auxiliary import ask
from .test_failure_sites import on_the_wire
from .world import World, shown

JUMPS_AFTER_S = 0.01
"""Bytes may still be on their way through the loopback when every task is blocked already."""


@pytest.mark.behaviour("W-129")
async def test_an_auxiliary_call_that_is_refused_for_two_hours_reaches_the_wire_once(
    world: World, virtual_time: MockClock
) -> None:
    async with on_the_wire(world, Answer(status=429, headers={"retry-after": "7200"})) as wire:
        with pytest.raises(ProviderError):
            await wire.ana.auxiliary_call(ask())
        assert wire.calls == 1, "the vendor's SDK retries nothing"
        with pytest.raises(CallDeferredError):
            await wire.ana.auxiliary_call(ask())
        assert wire.calls == 1


@pytest.mark.behaviour("W-128")
async def test_while_a_wait_binds_the_runtime_makes_no_call_whatever_an_adapter_does_by_itself(
    world: World, virtual_time: MockClock
) -> None:
    pokes = 0

    async def keep_alive(adapter: AnthropicProvider) -> None:
        """Traffic that the runtime did not ask for, by whatever client the adapter has."""
        nonlocal pokes
        while True:
            await trio.sleep(600)
            with pytest.raises(anthropic.APIConnectionError) as caught:
                await adapter._client.models.list()
            assert isinstance(caught.value.__cause__, PermitError)
            pokes += 1

    limited = Answer(status=429, headers={"retry-after": "7200"})
    async with (
        on_the_wire(world, limited, Answer(text="late")) as wire,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(keep_alive, wire.provider)
        await wire.ana.send("a")
        await wire.ana.wait_idle()
        await trio.sleep(7_000)
        assert pokes > 10
        assert wire.calls == 1
        await trio.sleep(300)
        await wire.ana.wait_idle()
        assert (await shown(wire.ana))[-1] == "assistant: late"
        assert wire.calls == 2
        nursery.cancel_scope.cancel()


async def test_a_clock_that_is_turned_forward_a_day_ends_a_hold_and_back_again_begins_none(
    world: World, virtual_time: MockClock
) -> None:
    day_ms: Any = 24 * 3_600_000
    async with world.open() as runtime:
        ana = await world.add([fail(429, retry_after=7_200), reply("late"), reply("later")])
        await ana.send("a")
        await ana.wait_idle()
        world.clock.advance(day_ms)
        await trio.sleep(31)  # The wall clock is looked at every 30 s.
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: late"
        world.clock.advance(-day_ms)
        # The record says until when: by a clock that is right again, it has not ended.
        assert [wait.model for wait in runtime.provider_waits("ana")] == ["m"]
        await ana.send("b")
        await ana.wait_idle()
        assert world.state().state == "held"
        assert len(world.providers[0].requests) == 2
