"""When holds end: by the wall clock, whichever way it steps, and on a cadence of their own."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors.domain.protocol import ReleaseWaits
from abeyance.actors.testing import fail, reply

from .world import World, shown

WAIT_S = 1_200


@pytest.mark.behaviour("R-26")
@pytest.mark.parametrize("day_ms", [-86_400_000, 86_400_000], ids=["back", "forward"])
async def test_a_hold_ends_at_its_instant_by_the_wall_clock_whichever_way_that_steps(
    world: World, virtual_time: MockClock, day_ms: int
) -> None:
    async with world.open():
        ana = await world.add([fail(429, retry_after=WAIT_S), reply("on time")])
        await ana.send("go")
        await ana.wait_idle()
        ends_ms = world.state().held.deadline_ms
        await trio.sleep(10)
        world.clock.advance(day_ms)
        await trio.sleep(31)
        await ana.wait_idle()
        if day_ms < 0:
            assert world.state().held.deadline_ms == ends_ms
            # The clock is set right, as it would be: the hold neither oversleeps nor ends early.
            world.clock.advance(-day_ms)
            await trio.sleep((ends_ms - world.clock.now_ms()) / 1_000 - 1)
            await ana.wait_idle()
            assert len(world.providers[0].requests) == 1
            await trio.sleep(2)
            await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: on time"
        assert world.clock.now_ms() >= ends_ms


@pytest.mark.behaviour("W-075")
async def test_a_hold_is_looked_at_on_its_cadence_though_the_clock_was_turned_back(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([fail(429, retry_after=WAIT_S), reply("seen")])
        await ana.send("go")
        await ana.wait_idle()
        world.clock.advance(-86_400_000)
        # Released by what cannot tell this agent of it.
        ledger = world.ref("ledger")
        ledger._cell.kept.agents.clear()
        await ledger.ask(ReleaseWaits("ana", None, "elsewhere"))
        await trio.sleep(31)
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: seen"


@pytest.mark.behaviour("R-31", "W-072")
async def test_an_agent_whose_retry_is_held_keeps_nobody_elses_events(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([fail(500), fail(429, retry_after=3_600)])
        await ana.send("go")
        await ana.wait_idle()
        assert world.state().held.cause == "wait"
        looking = runtime.events(kinds=["turn_started", "turn_ended"])
        bo = await world.add([reply("at once")], "bo")
        before = trio.current_time()
        await bo.send("go")
        await bo.wait_idle()
        assert trio.current_time() - before < 1
        assert (await shown(bo))[-1] == "assistant: at once"
        assert [(await anext(looking)).agent for _ in range(2)] == ["bo", "bo"]  # type: ignore[attr-defined]
        assert world.turns()[0].failures == 2
