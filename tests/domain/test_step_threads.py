"""Sync functions of items: in threads that nobody can end, and that no later life runs beside."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import RunContext, Runtime, StepFailedError
from abeyance.actors.domain.run_rows import RunId
from abeyance.actors.domain.step_threads import KEPT_MAX, StepThreads

from .test_runs import HOUR, wall
from .world import World, until

REAL_S_MAX = 60.0


class Body:
    """A sync function that waits, in its thread, until a test lets it go on."""

    def __init__(self, outcome: Any = "done") -> None:
        self.outcome = outcome
        self.entered = 0
        self.at_once_max = 0
        self.go = threading.Event()
        self._inside = 0

    def __call__(self) -> Any:
        self.entered += 1
        self._inside += 1
        self.at_once_max = max(self.at_once_max, self._inside)
        try:
            assert self.go.wait(REAL_S_MAX)
        finally:
            self._inside -= 1
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


def workflow(body: Body, in_doubt: Any = "retry") -> Any:
    async def one(run: RunContext, params: Any) -> Any:
        return await run.do("act", body, in_doubt=in_doubt)

    return one


@asynccontextmanager
async def left_in_its_thread(world: World, body: Body) -> AsyncIterator[Runtime]:
    """A runtime that is closed while the function is in its thread; its time jumps all the same."""
    closed = trio.Event()

    async def pass_time() -> None:
        while not closed.is_set():
            await trio.testing.wait_all_tasks_blocked()
            world.time.jump(1)

    async with trio.open_nursery() as nursery:
        async with world.open() as runtime:
            runtime.add_workflow("one", workflow(body))
            await runtime.start_run("k", "one")
            await until(lambda: body.entered == 1)
            yield runtime
            nursery.start_soon(pass_time)
        closed.set()
    assert body._inside == 1


async def out_of_its_thread(body: Body) -> None:
    """Let the function go on, and wait until its thread has no more to do with it."""
    body.go.set()
    await until(lambda: not body._inside)


@pytest.mark.parametrize("in_doubt", ["retry", "recover"])
async def test_life_that_follows_a_crash_joins_the_thread_of_the_item_it_stands_at(
    world: World, virtual_time: MockClock, in_doubt: str
) -> None:
    body = Body()
    async with world.open() as runtime:
        runtime.add_workflow("one", workflow(body, in_doubt))
        run = await runtime.start_run("k", "one")
        await until(lambda: body.entered == 1)
        world.ref("runs").kill()
        await until(lambda: run.status().lives == 2)
        await until(lambda: bool(world.ref("runs")._cell.kept.lives))
        body.go.set()
        status = await run.wait()
    assert (status.state, status.result) == ("completed", "done")
    assert (body.entered, body.at_once_max) == (1, 1)


async def test_runtime_that_is_opened_again_joins_a_thread_of_the_one_before(
    world: World, virtual_time: MockClock
) -> None:
    body = Body()
    async with left_in_its_thread(world, body):
        pass
    async with world.open() as runtime:
        runtime.add_workflow("one", workflow(body))
        await until(lambda: bool(world.ref("runs")._cell.kept.lives))
        body.go.set()
        await until(lambda: runtime.run("k").ended)
        assert runtime.run("k").result == "done"
    assert (body.entered, body.at_once_max) == (1, 1)


@pytest.mark.parametrize("outcome", ["done", LookupError("no such place")], ids=["result", "error"])
async def test_what_a_thread_came_to_between_two_lives_is_its_items_outcome(
    world: World, virtual_time: MockClock, outcome: Any
) -> None:
    body = Body(outcome)
    async with left_in_its_thread(world, body):
        pass
    await out_of_its_thread(body)
    async with world.open() as runtime:
        runtime.add_workflow("one", workflow(body))
        await until(lambda: runtime.run("k").ended)
        status = runtime.run("k")
        assert (status.state, status.result) == (
            ("completed", "done") if outcome == "done" else ("failed", None)
        )
        assert "no such place" in status.reason or outcome == "done"
    assert body.entered == 1
    assert not StepThreads._known


async def test_cancel_tells_of_the_thread_that_it_cannot_end(
    world: World, virtual_time: MockClock
) -> None:
    body = Body()
    async with world.open() as runtime:
        runtime.add_workflow("one", workflow(body))
        run = await runtime.start_run("k", "one")
        await until(lambda: body.entered == 1)
        receipt = await runtime.cancel_run("k", requester="ops")
        assert (receipt.state, receipt.threads) == ("cancelled", 1)
        await out_of_its_thread(body)
        await until(lambda: (StepThreads._known.clear() or True) and run.status().ended)
        assert run.status().result is None
        assert (await runtime.cancel_run("k", requester="ops")).threads == 0


async def test_thread_that_its_workflow_gave_up_is_joined_when_the_item_is_asked_for_again(
    world: World, virtual_time: MockClock
) -> None:
    body, begun = Body(), []

    async def given_up(run: RunContext, params: Any) -> Any:
        begun.append(1)
        if len(begun) > 1:
            done = await run.do("act", body)
            await run.do("wall", nothing)
            return done
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cut, scope)
                await run.do("act", body)
        return await run.do("wall", raises)

    async def cut(scope: trio.CancelScope) -> None:
        await until(lambda: body.entered == 1)
        scope.cancel()

    async def raises() -> None:
        raise wall(world.clock.now_ms() + HOUR)

    async def nothing() -> None:
        pass

    async with world.open() as runtime:
        runtime.add_workflow("one", given_up)
        run = await runtime.start_run("k", "one")
        await until(lambda: run.status().state == "waiting_for_capacity")
        await runtime.resume_run("k", requester="ops")
        await until(lambda: len(begun) == 2)
        body.go.set()
        assert (await run.wait()).result == "done"
    assert (body.entered, body.at_once_max) == (1, 1)


# -- the registry alone


RUN = RunId("k", 1)


async def test_thread_that_had_not_begun_when_it_was_given_up_never_begins() -> None:
    threads, body = StepThreads("s"), Body()
    threads._limiter.total_tokens = 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(threads.call, RUN, 0, body, "first")
        await until_real(lambda: body.entered == 1)
        with trio.CancelScope() as scope:
            nursery.start_soon(cancel_soon, scope)
            await threads.call(RUN, 1, body, "second")
        assert threads.find(RUN, 1) is None
        body.go.set()
    assert body.entered == 1
    assert threads.find(RUN, 0) is None


async def cancel_soon(scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()


async def until_real(condition: Any) -> None:
    while not condition():
        await trio.lowlevel.checkpoint()


async def test_outcomes_that_nobody_asks_for_are_bounded() -> None:
    threads = StepThreads("bounded")
    for number in range(KEPT_MAX + 10):
        await left(threads, number)
    assert len([key for key in StepThreads._known if key[0] == "bounded"]) <= KEPT_MAX
    threads.forget(RUN)
    assert not [key for key in StepThreads._known if key[0] == "bounded"]


async def left(threads: StepThreads, ordinal: int) -> None:
    """Have a thread run to its end whose caller was cut off meanwhile."""
    entered, go = threading.Event(), threading.Event()

    def body() -> int:
        entered.set()
        assert go.wait(REAL_S_MAX)
        return ordinal

    async with trio.open_nursery() as nursery:
        nursery.start_soon(threads.call, RUN, ordinal, body, "left")
        await until_real(entered.is_set)
        nursery.cancel_scope.cancel()
    go.set()
    thread = threads.find(RUN, ordinal)
    assert thread is not None
    await thread.wait()


async def test_item_that_failed_in_its_thread_raises_that_as_its_cause(
    world: World, virtual_time: MockClock
) -> None:
    body, caught = Body(LookupError("no such place")), []
    body.go.set()

    async def one(run: RunContext, params: Any) -> None:
        try:
            await run.do("act", body)
        except StepFailedError as error:
            caught.append(error.__cause__)

    async with world.open() as runtime:
        runtime.add_workflow("one", one)
        await (await runtime.start_run("k", "one")).wait()
    assert caught == [body.outcome]
