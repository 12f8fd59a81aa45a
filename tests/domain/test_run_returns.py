"""What a workflow's return is worth: nothing once its life is over, nor where it asked for less
than is recorded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import RunContext

from .test_runs import HOUR, wall
from .world import World, until

Act = Callable[[], Awaitable[Any]]


async def excepts(run: RunContext, first: Act, second: Act) -> list[str]:
    done = []
    try:
        done.append(await run.do("first", first))
        done.append(await run.do("second", second))
    except BaseException:
        pass
    return done


async def suppresses(run: RunContext, first: Act, second: Act) -> list[str]:
    done = []
    for name, act in (("first", first), ("second", second)):
        with suppress(BaseException):
            done.append(await run.do(name, act))
    return done


async def returns(run: RunContext, first: Act, second: Act) -> list[str]:
    done = []
    try:
        done.append(await run.do("first", first))
        done.append(await run.do("second", second))
    finally:
        return done  # noqa: B012


class Acts:
    """Two acts, the second of which is told how often it is to be cut off, and by what."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.final: list[Any] = []
        self.begun = trio.Event()
        self.hangs = False
        self.walls: list[BaseException] = []

    async def first(self) -> str:
        self.done.append("first")
        return "first"

    async def second(self) -> str:
        self.begun.set()
        if self.walls:
            raise self.walls.pop()
        if self.hangs:
            await trio.sleep_forever()
        self.done.append("second")
        return "second"

    def workflow(self, way: Any) -> Callable[..., Any]:
        async def body(run: RunContext, _params: Any) -> Any:
            return await way(run, self.first, self.second)

        return body


each_way = pytest.mark.parametrize("way", [excepts, suppresses, returns])
each_end = pytest.mark.parametrize("is_final", [False, True], ids=["", "with a finaliser"])


@pytest.mark.behaviour("S-024", "S-025", "S-040")
@each_way
@each_end
async def test_workflow_that_keeps_its_wall_to_itself_waits_and_goes_on_all_the_same(
    world: World, virtual_time: MockClock, way: Any, is_final: bool
) -> None:
    acts = Acts()
    finalisers = [("tell", acts.final.append)] if is_final else []
    async with world.open() as runtime:
        acts.walls.append(wall(world.clock.now_ms() + HOUR))
        runtime.add_workflow("w", acts.workflow(way), finalisers=finalisers)
        run = await runtime.start_run("k", "w")
        await until(lambda: runtime.run("k").state != "running")
        assert runtime.run("k").state == "waiting_for_capacity"
        await trio.sleep(60)
        assert runtime.run("k").state == "waiting_for_capacity"
        assert (acts.done, acts.final) == (["first"], [])
        ended = await run.wait()
        assert (ended.state, ended.result) == ("completed", ["first", "second"])
        assert acts.done == ["first", "second"]
        assert acts.final == ([["first", "second"]] if is_final else [])


@pytest.mark.behaviour("S-040")
@each_way
@pytest.mark.parametrize("how", ["stop", "quiesce"])
async def test_workflow_that_keeps_a_stop_to_itself_goes_on_in_the_next_life(
    world: World, virtual_time: MockClock, way: Any, how: str
) -> None:
    acts = Acts()
    acts.hangs = True
    async with world.open() as runtime:
        runtime.add_workflow("w", acts.workflow(way))
        await runtime.start_run("k", "w")
        await acts.begun.wait()
        if how == "quiesce":
            await runtime.quiesce("upgrade", requester="ops")
    async with world.open() as runtime:
        if how == "quiesce":
            await runtime.resume(requester="ops")
        runtime.add_workflow("w", acts.workflow(way))
        await until(lambda: runtime.run("k").state not in ("running", "resuming"))
        assert runtime.run("k").state == "recovery_required", "its second item is in doubt"
        assert [item.state for item in runtime.run_steps("k")] == ["done", "started"]


@pytest.mark.behaviour("S-046")
@pytest.mark.parametrize("cut_off_by", ["a wall", "a stop"])
async def test_workflow_that_returns_ahead_of_an_item_that_is_recorded_waits_for_an_operator(
    world: World, virtual_time: MockClock, cut_off_by: str
) -> None:
    acts = Acts()
    acts.hangs = cut_off_by == "a stop"

    async def long(run: RunContext, _params: Any) -> list[str]:
        return [await run.do("first", acts.first), await run.do("second", acts.second)]

    async def short(run: RunContext, _params: Any) -> list[str]:
        return [await run.do("first", acts.first)]

    async with world.open() as runtime:
        if cut_off_by == "a wall":
            acts.walls.append(wall(world.clock.now_ms() + HOUR))
        runtime.add_workflow("w", long)
        await runtime.start_run("k", "w")
        await acts.begun.wait()
        await until(lambda: acts.hangs or runtime.run("k").state == "waiting_for_capacity")
    async with world.open() as runtime:
        runtime.add_workflow("w", short)
        run = await runtime.start_run("other", "w")
        await trio.sleep(2 * HOUR / 1_000)
        assert (await run.wait()).state == "completed", "one without a record may be short"
        found = runtime.run("k")
        assert found.state == "recovery_required"
        assert "item 1 is recorded as 'second'" in found.reason
        assert acts.done == ["first", "first"]
