"""How many runs are taken up at once, and that none of those that are due waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentSpec, RunContext
from abeyance.actors.domain import run_places
from abeyance.actors.domain.runs import LOOK_EVERY_S
from abeyance.actors.testing import ScriptedProvider, reply

from .test_runs import HOUR, wall
from .world import World, until


class Crowd:
    """Runs that wait until an instant, and then do what a test says."""

    def __init__(self, then: Callable[[RunContext], Any]) -> None:
        self.then = then
        self.walled: set[str] = set()
        self.begun: list[str] = []
        self.living = 0
        self.most = 0

    def workflow(self, ends_ms: int) -> Callable[..., Any]:
        async def body(run: RunContext, _params: Any) -> Any:
            return await run.do("act", self.act, run, ends_ms, in_doubt="retry")

        return body

    async def act(self, run: RunContext, ends_ms: int) -> Any:
        if run.key not in self.walled:
            self.walled.add(run.key)
            raise wall(ends_ms)
        self.begun.append(run.key)
        self.living += 1
        self.most = max(self.most, self.living)
        try:
            return await self.then(run)
        finally:
            self.living -= 1


@pytest.fixture(autouse=True)
def three_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_places, "PLACES", 3)


async def due_at_once(world: World, crowd: Crowd, count: int, wait_ms: int = HOUR) -> None:
    """Have so many runs wait for one instant, which has come."""
    runtime, ends = world.runtime, world.clock.now_ms() + wait_ms
    runtime.add_workflow("crowd", crowd.workflow(ends), buffer_s=0)
    for number in range(count):
        await runtime.start_run(f"r{number}", "crowd")
    await until(lambda: len(runtime.runs(workflow="crowd", state="waiting_for_capacity")) == count)
    await trio.sleep(wait_ms / 1_000)


async def test_runs_that_are_due_at_once_are_taken_up_a_few_at_a_time_and_all_at_last(
    world: World, virtual_time: MockClock
) -> None:
    async def work(_run: RunContext) -> None:
        await trio.sleep(10)

    crowd = Crowd(work)
    async with world.open() as runtime:
        await due_at_once(world, crowd, 10)
        await until(lambda: len(runtime.runs(state="completed")) == 10)
    assert crowd.most == 3
    assert len(crowd.begun) == 10


async def test_run_that_is_due_does_not_wait_for_those_that_were_started(
    world: World, virtual_time: MockClock
) -> None:
    async def forever(run: RunContext, _params: Any) -> None:
        await run.do("wait", trio.sleep_forever)

    async def done(_run: RunContext) -> None:
        await trio.lowlevel.checkpoint()

    async with world.open() as runtime:
        runtime.add_workflow("forever", forever)
        for number in range(4):
            await runtime.start_run(f"f{number}", "forever")
        await due_at_once(world, Crowd(done), 1)
        with trio.fail_after(60):
            await until(lambda: runtime.run("r0").state == "completed")


async def test_runs_that_never_end_keep_others_from_being_taken_up_for_a_bounded_time(
    world: World, virtual_time: MockClock
) -> None:
    async def never(_run: RunContext) -> None:
        await trio.sleep_forever()

    crowd = Crowd(never)
    async with world.open():
        await due_at_once(world, crowd, 7)
        await trio.sleep(run_places.PLACE_S - LOOK_EVERY_S)
        assert len(crowd.begun) == 3
        await trio.sleep(2 * LOOK_EVERY_S)
        assert len(crowd.begun) == 6
        await trio.sleep(run_places.PLACE_S + LOOK_EVERY_S)
        assert len(crowd.begun) == 7


@pytest.mark.parametrize("waits", ["handle", "verb"])
async def test_runs_that_wait_for_runs_give_them_their_places(
    world: World, virtual_time: MockClock, waits: str
) -> None:
    """As many as there are places wait for runs that are due behind them."""

    async def wait_for_child(run: RunContext) -> Any:
        child = f"c{run.key[1:]}"
        if waits == "handle":
            return (await world.runtime._workflows.handle(child).wait()).state
        return (await world.runtime.wait_run(child)).state

    parents = Crowd(wait_for_child)
    children: set[str] = set()

    async def child(run: RunContext, ends_ms: int) -> None:
        await run.do("act", child_act, run.key, ends_ms)

    async def child_act(key: str, ends_ms: int) -> None:
        if key not in children:
            children.add(key)
            raise wall(ends_ms)

    async with world.open() as runtime:
        runtime.add_workflow("child", child, buffer_s=0)
        for number in range(4):
            # Due behind their parents, which take every place.
            await runtime.start_run(f"c{number}", "child", world.clock.now_ms() + HOUR + 1)
        await due_at_once(world, parents, 4)
        began = trio.current_time()
        with trio.fail_after(run_places.PLACE_S):
            await until(lambda: len(runtime.runs(state="completed")) == 8)
        assert trio.current_time() - began < run_places.PLACE_S


async def test_runs_that_ask_agents_give_their_places_to_others(
    world: World, virtual_time: MockClock
) -> None:
    answers = trio.Event()

    class Slow(ScriptedProvider):
        async def call(self, *args: Any, **options: Any) -> Any:
            await answers.wait()
            return await super().call(*args, **options)

    async def asks(run: RunContext, _params: Any) -> str:
        return await run.ask("draft", "ana", "hello")

    async def done(_run: RunContext) -> None:
        await trio.lowlevel.checkpoint()

    async with world.open() as runtime:
        runtime.add_workflow("asks", asks)
        for number in range(3):
            await runtime.start_run(f"a{number}", "asks")
    async with world.open() as runtime:
        # What the process before left behind takes every place.
        await runtime.add_agent(
            AgentSpec(name="ana", provider=Slow([reply("hi")] * 3, clock=world.clock), model="m")
        )
        runtime.add_workflow("asks", asks)
        await until(lambda: len(world.ref("runs")._cell.kept.lives) == 3)
        began = trio.current_time()
        await due_at_once(world, Crowd(done), 1, 20_000)
        with trio.fail_after(60):
            await until(lambda: runtime.run("r0").state == "completed")
        assert trio.current_time() - began < 60
        answers.set()
        await until(lambda: len(runtime.runs(state="completed")) == 4)
