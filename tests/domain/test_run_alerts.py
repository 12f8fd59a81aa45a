"""What an operator is told of runs: long waits, waits without a known end, and decisions."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import RunContext
from abeyance.actors.testing import fail, reply

from . import test_alerts as alerts
from .test_run_turns import asks
from .test_runs import BUFFER, HOUR, Effects, comes, five, wall
from .world import World, until


async def waiting(world: World, ends_ms: int | None) -> Any:
    effects = Effects()
    effects.raising["b"] = [wall(ends_ms)]
    world.runtime.add_workflow("report", five(effects))
    run = await world.runtime.start_run("report:1", "report")
    await until(lambda: run.status().state.startswith("waiting"))
    await until(lambda: not world.ref("runs")._cell.kept.lives)
    return run


async def told(world: World) -> list[Any]:
    return [each for each in await alerts.settled(world) if each.kind.startswith("run_")]


@pytest.mark.parametrize(
    ("wait_ms", "raised"), [(HOUR - BUFFER, 0), (HOUR - BUFFER + 1, 1)], ids=["an hour", "more"]
)
async def test_run_that_waits_for_more_than_an_hour_raises_an_alert(
    world: World, virtual_time: MockClock, wait_ms: int, raised: int
) -> None:
    async with world.open():
        ends = world.clock.now_ms() + wait_ms
        run = await waiting(world, ends)
        found = await told(world)
        assert len(found) == raised
        for alert in found:
            assert (alert.kind, alert.agent) == ("run_waiting", "report:1")
            assert alert.deadline_ms == ends + BUFFER
            assert f"Run {run.id} waits for capacity until" in alert.text
            assert f"abeyance resume {world.directory} {run.id}" in alert.text


async def test_run_whose_end_of_waiting_nobody_knows_raises_one_alert_also_after_restarts(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        await waiting(world, None)
        assert len(await told(world)) == 1
        world.ref("runs").kill()
        await trio.sleep(60)
        (alert,) = await told(world)
        assert alert.deadline_ms is None
        assert "nobody said until when" in alert.text
    async with world.open():
        await trio.sleep(60)
        assert len(await told(world)) == 1


async def test_alert_that_died_with_its_process_is_raised_by_the_next_one(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("abeyance.actors.domain.runs.alert_of_run", lambda _run, _record: None)
        async with world.open():
            await waiting(world, None)
            assert await told(world) == []
    async with world.open():
        await trio.sleep(1)
        assert len(await told(world)) == 1


async def test_second_wall_of_a_run_is_another_episode(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()
    effects.raising["b"] = [wall(None), wall(None)]
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        run = await runtime.start_run("report:1", "report")
        await until(lambda: run.status().walls == 1)
        await alerts.settled(world)
        await trio.sleep(1)
        await runtime.resume_run(run.id, requester="ops")
        await comes(lambda: run.status().walls == 2)
        await trio.sleep(1)
        assert len({alert.episode for alert in await told(world)}) == 2


async def test_run_that_needs_an_operator_raises_one_alert(
    world: World, virtual_time: MockClock
) -> None:
    async def body(run: RunContext, params: Any) -> None:
        await run.do("slow", trio.sleep_forever)

    async with world.open() as runtime:
        runtime.add_workflow("body", body)
        run = await runtime.start_run("k", "body")
        await until(lambda: run.status().step == "slow")
        world.ref("runs").kill()
        await comes(lambda: run.status().state == "recovery_required")
        await trio.sleep(1)
        (alert,) = await told(world)
        assert (alert.kind, alert.agent) == ("run_recovery", "k")
        assert "needs an operator" in alert.text
        assert "'slow' was begun" in alert.text


async def test_run_that_waits_for_a_held_turn_raises_none_beside_the_holds(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await world.add([fail(429, retry_after=36_000), reply("said")])
        runtime.add_workflow("asks", asks("first"))
        run = await runtime.start_run("k", "asks")
        await until(lambda: run.status().state == "waiting_for_capacity")
        await trio.sleep(1)
        assert [alert.kind for alert in await alerts.settled(world)] == ["provider_wait"]
        assert await told(world) == []
