"""Which window of its account a run waits for, where an agent met the wall for it."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from abeyance.actors import AgentSpec, RunContext
from abeyance.actors.run_verbs import BUFFER_S
from abeyance.actors.testing import fail, reply
from abeyance.actors.testing.scripted import Step

from .test_auxiliary import ask
from .test_run_turns import asks
from .test_runs import HOUR
from .world import World, until

UNIFIED = "anthropic-ratelimit-unified"


def five_hours(world: World, **others: str) -> Step:
    """A refusal because the account's five hours are used up, for another two."""
    ends_s = world.clock.now_ms() // 1_000 + 7_200
    headers = {
        f"{UNIFIED}-status": "rejected",
        f"{UNIFIED}-representative-claim": "five_hour",
        f"{UNIFIED}-reset": str(ends_s),
        f"{UNIFIED}-5h-status": "rejected",
        f"{UNIFIED}-5h-reset": str(ends_s),
        **others,
    }
    return fail(429, headers=headers, provider="anthropic")


def ends_ms(world: World) -> int:
    return (world.clock.now_ms() // 1_000 + 7_200) * 1_000


@pytest.mark.behaviour("S-009", "S-026")
async def test_run_that_waits_for_a_held_turn_names_the_window_that_is_used_up(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        until_ms = ends_ms(world)
        ana = await world.add([five_hours(world), reply("said")])
        await ana.send("hello")
        await ana.wait_idle()
        (wait,) = world.rows("waits")
        assert (wait.window, wait.of_quota) == ("five_hour", True)
    async with world.open() as runtime:
        # What binds is read from its row here.
        await world.add([reply("said")])
        runtime.add_workflow("asks", asks("first"))
        run = await runtime.start_run("k", "asks")
        await until(lambda: run.status().state == "waiting_for_capacity")
        status = run.status()
        assert (status.window, status.retry_at_ms) == ("five_hour", until_ms)
        # It goes on when the turn has ended, which is taken up when the hold is over.
        assert status.resume_after_ms == until_ms
        assert status.title.endswith(" capacity (five_hour)")
        assert (await run.wait()).state == "completed"


@pytest.mark.behaviour("S-027")
@pytest.mark.parametrize("asked", ["used once", "auxiliary"])
async def test_run_whose_call_was_refused_for_a_quota_clears_the_edge_of_its_window(
    world: World, virtual_time: MockClock, asked: str
) -> None:
    async with world.open() as runtime:
        until_ms = ends_ms(world)
        provider = world.provider([five_hours(world), reply("said"), reply("and more")])

        async def body(run: RunContext, _params: Any) -> Any:
            if asked == "used once":
                spec = AgentSpec(name="scribe", provider=provider, model="m")
                return await run.ask("first", spec, "?")
            return await run.do("first", auxiliary)

        async def auxiliary() -> str:
            # Behind the turn's refusal: the wait that was recorded then refuses this one.
            await runtime.agent("ana").auxiliary_call(ask())
            return "said"

        if asked == "auxiliary":
            ana = await world.add(provider)
            await ana.send("hello")
            await ana.wait_idle()
        runtime.add_workflow("asks", body)
        run = await runtime.start_run("k", "asks")
        await until(lambda: run.status().state == "waiting_for_capacity")
        status = run.status()
        assert (status.window, status.retry_at_ms) == ("five_hour", until_ms)
        assert status.resume_after_ms == until_ms + BUFFER_S * 1_000
        assert (await run.wait()).result == "said"


@pytest.mark.behaviour("S-049")
async def test_wall_of_an_account_tells_its_window_to_the_runs_of_all_its_agents(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open(account_waits=True) as runtime:
        until_ms = ends_ms(world)
        ana = await world.add(world.provider([five_hours(world), reply("said")], key="k"))
        await ana.send("hello")
        await ana.wait_idle()
        await world.add(world.provider([reply("said")], key="k"), name="bea")
        runtime.add_workflow("asks", asks("first", agent="bea"))
        run = await runtime.start_run("k", "asks")
        await until(lambda: run.status().state == "waiting_for_capacity")
        assert (run.status().window, run.status().retry_at_ms) == ("five_hour", until_ms)


async def test_limit_of_so_many_calls_a_minute_is_no_window_and_has_no_edge(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        began = world.clock.now_ms()
        provider = world.provider([fail(429, retry_after=HOUR // 1_000), reply("said")])
        spec = AgentSpec(name="scribe", provider=provider, model="m")
        runtime.add_workflow("asks", asks("first", agent=spec))
        run = await runtime.start_run("k", "asks")
        await until(lambda: run.status().state == "waiting_for_capacity")
        status = run.status()
        assert (status.window, status.resume_after_ms) == (None, began + HOUR)
