"""Calls of runs against a wall that the account's last usage reading tells: not made at all."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentSpec, RunContext
from abeyance.actors.domain.fallback import FallbackChain, ModelChoice
from abeyance.actors.providers.failures import refusal
from abeyance.actors.providers.port import note_usage
from abeyance.actors.providers.stated import WaitScope
from abeyance.actors.providers.windows import UsageReading, UsageWindow
from abeyance.actors.testing import reply

from .test_auxiliary import ask
from .test_runs import HOUR, settled, states
from .world import World, shown, until

BUFFER = 300_000


def window(percent: float | None, resets_ms: int | None, **more: Any) -> UsageWindow:
    return UsageWindow(**{
        "name": "five_hour", "used_percent": percent, "resets_ms": resets_ms, **more
    })  # fmt: skip


def steps(world: World, how: str, provider: Any) -> Any:
    async def call(number: int) -> str:
        said = await world.runtime.agent("ana").auxiliary_call(ask(text=f"{number}"))
        return str(said.blocks[0].text)  # type: ignore[union-attr]

    async def body(run: RunContext, params: Any) -> Any:
        found = []
        for number in (1, 2, 3):
            with run.step(f"step{number}"):
                if how == "auxiliary":
                    found.append(await run.do("call", call, number))
                elif how == "turn":
                    found.append(await run.ask("call", "ana", f"{number}?"))
                else:
                    spec = AgentSpec(name="scribe", provider=provider, model="m")
                    found.append(await run.ask("call", spec, f"{number}?"))
        return found

    return body


@pytest.mark.behaviour("S-063", "R-21")
@pytest.mark.parametrize("how", ["auxiliary", "turn", "once"])
async def test_window_that_fills_up_mid_run_suspends_it_before_the_next_steps_first_call(
    world: World, virtual_time: MockClock, how: str
) -> None:
    ends: list[int] = []

    def script(_request: Any) -> Any:
        said = f"said {len(provider.requests)}"
        if len(provider.requests) != 2:
            return reply(said)
        # The reply to the second step's call tells that the window is used up by it.
        ends.append(world.clock.now_ms() + 2 * HOUR)
        return reply(said, windows=[window(100.0, ends[0])])

    provider = world.provider(script, key="key")
    async with world.open() as runtime:
        ana = await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        runtime.add_workflow("steps", steps(world, how, provider))
        run = await runtime.start_run("k", "steps")
        await until(lambda: run.status().state == "waiting_for_capacity")
        status = run.status()
        assert len(provider.requests) == 2
        assert status.step == "step3/call"
        assert (status.retry_at_ms, status.resume_after_ms) == (ends[0], ends[0] + BUFFER)
        assert "five_hour is used up" in status.reason
        assert status.window == "five_hour"
        assert "(five_hour)" in status.text()
        if how == "turn":
            # Nothing was sent, so no turn waits for what its run waits for.
            assert [line for line in await shown(ana) if "3?" in line] == []
        assert (await run.wait()).result == ["said 1", "said 2", "said 3"]
        assert world.clock.now_ms() >= ends[0] + BUFFER
        assert states(world, "k").count("waiting_for_capacity") == 1


@pytest.mark.behaviour("S-063")
@pytest.mark.parametrize(
    "case",
    ["none", "not full", "unknown share", "unknown reset", "past", "another account", "model"],
)
async def test_reading_that_tells_of_no_wall_lets_every_call_by(
    world: World, virtual_time: MockClock, case: str
) -> None:
    async with world.open() as runtime:
        now, later = world.clock.now_ms(), world.clock.now_ms() + HOUR
        told = {
            "none": (),
            "not full": (window(99.9, later),),
            "unknown share": (window(None, later),),
            "unknown reset": (window(100.0, None),),
            "past": (window(100.0, now),),
            "another account": (window(100.0, later),),
            "model": (window(100.0, later, name="seven_day_opus", scope=WaitScope.MODEL),),
        }[case]
        provider = world.provider(lambda _request: reply("said", windows=told), key="key")
        if case == "another account":
            other = world.provider(lambda _request: reply("said", windows=told), key="other")
            provider = world.provider(lambda _request: reply("said"), key="key")
            cy = await world.add(other, "cy")
            await cy.auxiliary_call(ask())
            assert runtime.account_usage(other) is not None
        await world.add(provider)
        runtime.add_workflow("steps", steps(world, "auxiliary", provider))
        assert (await (await runtime.start_run("k", "steps")).wait()).state == "completed"
    assert len(provider.requests) == 3


async def test_full_window_holds_no_turn_and_no_call_of_an_agents_own(
    world: World, virtual_time: MockClock
) -> None:
    ends_ms = world.clock.now_ms() + HOUR
    full = reply("said", windows=[window(100.0, ends_ms)])
    provider = world.provider(lambda _request: full, key="key")
    async with world.open():
        ana = await world.add(provider)
        await ana.auxiliary_call(ask())
        await ana.send("well?")
        await ana.wait_idle()
        await ana.auxiliary_call(ask())
    assert len(provider.requests) == 3


@pytest.mark.parametrize("bad", [10**400, float("nan"), "soon"], ids=["huge", "nan", "text"])
@pytest.mark.parametrize("where", ["resets_ms", "used_percent", "name", "read_ms"])
@pytest.mark.parametrize("how", ["auxiliary", "turn"])
async def test_reading_that_an_adapter_made_malformed_is_unknown_and_stops_nobody(
    world: World, virtual_time: MockClock, bad: Any, where: str, how: str
) -> None:
    later_ms = world.clock.now_ms() + HOUR

    def script(_request: Any) -> Any:
        fine = {"name": "five_hour", "used_percent": 50.0, "resets_ms": later_ms}
        odd = fine if where == "read_ms" else {**fine, where: bad}
        read_ms = bad if where == "read_ms" else world.clock.now_ms()
        told = UsageReading(windows=(UsageWindow(**odd), window(9.0, None)), read_ms=read_ms)
        note_usage(told)
        return reply("said")

    provider = world.provider(script, key="key")
    async with world.open() as runtime:
        await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        runtime.add_workflow("steps", steps(world, how, provider))
        run = await runtime.start_run("k", "steps")
        with trio.fail_after(60):
            assert (await run.wait()).state == "completed"
        reading = runtime.account_usage(provider)
        if where == "read_ms":
            assert reading is None
            return
        assert reading is not None
        *odd, fine = reading.windows
        assert (fine.name, fine.used_percent, fine.resets_ms) == ("five_hour", 9.0, None)
        if (where, bad) != ("name", "soon"):
            assert [getattr(each, where) for each in odd] == [None] * (where != "name")


# -- a wall that states nothing, of an account whose windows are known


def exhausted(world: World) -> Exception:
    """A quota is used up, and nobody says until when."""
    return refusal(
        provider="openai",
        status=429,
        headers={},
        body='{"error": {"code": "insufficient_quota"}}',
        message="You exceeded your current quota",
        received_at=world.clock.now_ms() / 1_000,
    )


@pytest.mark.behaviour("S-005")
@pytest.mark.parametrize("how", ["auxiliary", "once"])
async def test_wall_of_one_account_is_told_by_no_window_of_another(
    world: World, virtual_time: MockClock, how: str
) -> None:
    full = [window(100.0, world.clock.now_ms() + 2 * HOUR)]
    other = world.provider([reply("said", windows=full)], key="other")

    def script(_request: Any) -> Any:
        raise exhausted(world)

    provider = world.provider(script, key="key")
    async with world.open() as runtime:
        cy = await world.add(other, "cy")
        await cy.auxiliary_call(ask())
        assert runtime.account_usage(other) is not None
        await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        runtime.add_workflow("steps", steps(world, how, provider))
        run = await runtime.start_run("k", "steps")
        await until(lambda: run.status().state != "running")
        status = run.status()
        assert status.state == "waiting_for_capacity_unknown"
        assert (status.window, status.retry_at_ms) == (None, None)


@pytest.mark.behaviour("S-004", "S-011")
@pytest.mark.parametrize("how", ["auxiliary", "once"])
async def test_run_whose_call_is_refused_without_an_instant_waits_for_the_accounts_window(
    world: World, virtual_time: MockClock, how: str
) -> None:
    ends_ms = world.clock.now_ms() + 2 * HOUR
    known = [window(99.6, ends_ms), window(31.0, ends_ms + 90 * HOUR, name="seven_day")]

    def script(_request: Any) -> Any:
        if len(provider.requests) != 2:
            return reply("said", windows=known)
        raise exhausted(world)

    provider = world.provider(script, key="key")
    async with world.open() as runtime:
        await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        runtime.add_workflow("steps", steps(world, how, provider))
        run = await runtime.start_run("k", "steps")
        await until(lambda: run.status().state != "running")
        status = run.status()
        assert (status.state, status.step) == ("waiting_for_capacity", "step2/call")
        assert (status.window, status.retry_at_ms) == ("five_hour", ends_ms)
        assert status.resume_after_ms == ends_ms + BUFFER
        assert (await run.wait()).state == "completed"
        assert world.clock.now_ms() >= ends_ms + BUFFER
    assert len(provider.requests) == 4


# -- a fallback that has capacity


@pytest.mark.behaviour("S-017")
async def test_fallback_that_answers_leaves_no_suspension_and_the_run_goes_on(
    world: World, virtual_time: MockClock
) -> None:
    chain = FallbackChain((ModelChoice("anthropic", "opus"), ModelChoice("openai", "gpt")))
    called: list[str] = []

    async def call() -> str:
        async def once(choice: ModelChoice) -> str:
            called.append(choice.provider)
            if choice.provider == "anthropic":
                raise exhausted(world)
            return choice.model

        return await chain.call(once, now_ms=world.clock.now_ms)

    async def body(run: RunContext, params: Any) -> Any:
        return [await run.do("call", call), await run.do("again", call)]

    async with world.open() as runtime:
        runtime.add_workflow("body", body)
        status = await (await runtime.start_run("k", "body")).wait()
        assert (status.state, status.result, status.walls) == ("completed", ["gpt", "gpt"], 0)
        assert states(world, "k") == ["running", "completed"]
        assert [row for row in world.rows("runs") if row.suspension is not None] == []
        assert [key[0] for key, _ in world.runtime._store.scan("run_index")] == ["completed"]
        await settled()
        assert world.ref("alarm")._cell.kept.instants.keys() == set()
    assert called == ["anthropic", "openai", "openai"]
