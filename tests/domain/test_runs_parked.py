"""What executes runs, past its intensity: parked alone, and started again by an operator."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import RunContext, RunsParkedError
from abeyance.actors.domain.errors import InvalidInputError, NotPermittedError
from abeyance.actors.testing import reply

from .test_runs import HOUR, Effects, five, wall
from .world import World, shown, until


async def parked(world: World, actor: str = "runs") -> None:
    """Kill what executes runs, or another actor of a group of its own, until that is parked."""
    incarnation = -1
    while not world.runtime.system.parked_groups():
        found = world.ref(actor).statistics()
        if found.state == "running" and found.incarnation != incarnation:
            incarnation = found.incarnation
            world.ref(actor).kill("by a test")
        await trio.sleep(0.1)


async def test_runs_that_crash_for_ever_are_parked_and_agents_go_on(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()
    async with world.open() as runtime:
        ana = await world.add([reply("hello")])
        runtime.add_workflow("report", five(effects))
        effects.gates["a"] = trio.Event()
        run = await runtime.start_run("report:1", "report")
        await until(lambda: run.status().step == "publish/a")
        await parked(world)
        assert [group.id for group in runtime.system.parked_groups()] == ["runs"]
        await ana.send("hi")
        await ana.wait_idle()
        assert await shown(ana) == ["user: hi", "assistant: hello"]
        await until(lambda: any(alert.kind == "runs_parked" for alert in runtime.alerts()))
        (alert,) = [alert for alert in runtime.alerts() if alert.kind == "runs_parked"]
        assert alert.agent == "framework"
        assert "unpark('runs')" in alert.text


async def test_parked_runs_are_told_of_and_go_on_once_they_are_unparked(
    world: World, virtual_time: MockClock
) -> None:
    effects, told = Effects(), []
    async with trio.open_nursery() as nursery, world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        effects.raising["b"] = [wall(world.clock.now_ms() + HOUR)]
        run = await runtime.start_run("report:1", "report")
        await until(lambda: run.status().state == "waiting_for_capacity")

        async def wait() -> None:
            try:
                await run.wait()
            except RunsParkedError as error:
                told.append(error.code)

        nursery.start_soon(wait)
        await parked(world)
        await until(lambda: told == ["runs_parked"])
        for verb in (
            runtime.start_run("other", "report"),
            runtime.resume_run(run.id, requester="ops"),
            runtime.use_fallback(run.id, provider="p", model="m", requester="ops"),
            run.wait(),
        ):
            with pytest.raises(RunsParkedError):
                await verb
        # What is due meanwhile stays due.
        await trio.sleep(2 * 3_600)
        assert run.status().state == "waiting_for_capacity"
        assert [status.id for status in runtime.runs()] == [run.id]
        assert await runtime.unpark("runs", requester="ops")
        assert not await runtime.unpark("runs", requester="ops")
        assert (await run.wait()).state == "completed"
        assert effects.log == ["gather", "a", "b", "c", "close"]


async def test_run_is_cancelled_though_what_executes_runs_is_parked(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        effects.gates["a"] = trio.Event()
        run = await runtime.start_run("report:1", "report")
        await until(lambda: run.status().step == "publish/a")
        await parked(world)
        receipt = await runtime.cancel_run(run.id, requester="ops")
        assert (receipt.state, receipt.changed) == ("cancelled", True)
        await runtime.unpark("runs", requester="ops")
        await trio.sleep(120)
        assert run.status().state == "cancelled"
    assert effects.log == ["gather"]


async def test_cancel_that_waits_for_a_life_is_answered_when_the_runs_are_parked(
    world: World, virtual_time: MockClock
) -> None:
    """A life that does not end at once keeps the cancel waiting; the parking answers it."""
    begun = trio.Event()

    async def stays() -> None:
        begun.set()
        with trio.CancelScope(shield=True):
            await trio.sleep(60)

    async def body(run: RunContext, params: Any) -> None:
        await run.do("stay", stays)

    async with trio.open_nursery() as nursery, world.open() as runtime:
        runtime.add_workflow("stay", body)
        await runtime.start_run("k", "stay")
        await begun.wait()
        answered = []

        async def cancel() -> None:
            answered.append((await runtime.cancel_run("k", requester="ops")).state)

        nursery.start_soon(cancel)
        await until(lambda: runtime.run("k").state == "cancelled")
        await parked(world)
        await until(lambda: answered == ["cancelled"])


async def test_stop_of_a_runtime_whose_runs_are_parked_waits_for_nobody(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        effects.gates["a"] = trio.Event()
        await runtime.start_run("report:1", "report")
        await until(lambda: runtime.run("report:1").step == "publish/a")
        await parked(world)
        before = trio.current_time()
    assert trio.current_time() - before < 1


@pytest.mark.parametrize("group", ["", "slots", "agent:ana", None, 3])
async def test_unpark_refuses_what_is_no_group_of_the_runtimes_own(
    world: World, virtual_time: MockClock, group: Any
) -> None:
    async with world.open() as runtime:
        with pytest.raises(InvalidInputError) as caught:
            await runtime.unpark(group, requester="ops")
        assert caught.value.field == "group"


async def test_unpark_asks_the_admin_gate_and_starts_alerts_again(
    world: World, virtual_time: MockClock
) -> None:
    asked = []

    def admin(act: Any, _door: Any = None) -> bool:
        asked.append((act.verb, act.agent))
        return act.agent != "runs"

    async with world.open(admin=admin) as runtime:
        with pytest.raises(NotPermittedError):
            await runtime.unpark("runs", requester="ops")
        assert not await runtime.unpark("alerts", requester="ops")
    assert asked == [("unpark", "runs"), ("unpark", "alerts")]
