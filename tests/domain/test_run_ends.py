"""What an item comes to whose function neither returns nor fails as functions do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import RunContext
from abeyance.actors.testing import Gate, reply

from .test_runs import HOUR, comes, wall
from .world import World, until


class OddError(BaseException):
    """Of no kind that a program knows."""


def in_a_group(error: BaseException) -> BaseException:
    return BaseExceptionGroup("g", [error, BaseExceptionGroup("h", [error]), ValueError("beside")])


class Odd:
    """A workflow whose one item, or which itself, raises what is no Exception."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.begun = 0

    async def act(self) -> None:
        self.begun += 1
        raise self.error

    def sync(self) -> None:
        self.begun += 1
        raise self.error


async def host(world: World, body: Callable[..., Any]) -> None:
    """A host that starts the run, and lives for a minute."""
    async with world.open() as runtime:
        runtime.add_workflow("w", body)
        await runtime.start_run("k", "w")
        await trio.sleep(60)


@pytest.mark.behaviour("S-056")
@pytest.mark.parametrize("where", ["item", "thread", "workflow"])
@pytest.mark.parametrize("wrapped", [False, True], ids=["", "in a group"])
async def test_exception_of_no_known_kind_is_the_outcome_of_its_run_and_ends_one_host(
    world: World, virtual_time: MockClock, where: str, wrapped: bool
) -> None:
    error: BaseException = OddError("odd")
    odd = Odd(in_a_group(error) if wrapped else error)

    async def body(run: RunContext, _params: Any) -> None:
        if where == "workflow":
            await odd.act()
        await run.do("act", odd.act if where == "item" else odd.sync, in_doubt="retry")

    with pytest.raises(BaseException) as caught:
        await host(world, body)
    assert caught.group_contains(OddError)
    async with world.open() as runtime:
        runtime.add_workflow("w", body)
        await trio.sleep(60)
        status = runtime.run("k")
        assert status.state == "failed"
        assert "OddError: odd" in status.reason
        assert [step.state for step in runtime.run_steps("k")] == ["failed"] * (where != "workflow")
        assert odd.begun == 1


@pytest.mark.parametrize("wrapped", [False, True], ids=["", "in a group"])
async def test_interrupt_leaves_its_item_in_doubt(
    world: World, virtual_time: MockClock, wrapped: bool
) -> None:
    error: BaseException = KeyboardInterrupt()
    odd = Odd(in_a_group(error) if wrapped else error)

    async def body(run: RunContext, _params: Any) -> None:
        await run.do("act", odd.act)

    with pytest.raises(BaseException) as caught:
        await host(world, body)
    assert isinstance(caught.value, KeyboardInterrupt) or caught.group_contains(KeyboardInterrupt)
    async with world.open() as runtime:
        runtime.add_workflow("w", body)
        await comes(lambda: runtime.run("k").state == "recovery_required")
        assert runtime.run_steps("k")[0].state == "started"


# -- what a workflow gives up


@pytest.mark.behaviour("S-056")
@pytest.mark.parametrize("ends", ["returns", "asks for another", "fails"])
@pytest.mark.parametrize("of", ["item", "agent"])
async def test_item_that_its_workflow_gives_up_is_recorded_as_cut_off(
    world: World, virtual_time: MockClock, ends: str, of: str
) -> None:
    gate = Gate(reply("late"))

    async def nothing() -> str:
        return "done"

    async def body(run: RunContext, _params: Any) -> str:
        with trio.move_on_after(2):
            if of == "agent":
                await run.ask("slow", "ana", "?")
            else:
                await run.do("slow", trio.sleep_forever)
        if ends == "asks for another":
            return str(await run.do("next", nothing))
        if ends == "fails":
            raise ValueError("gave up")
        return "done"

    async with world.open() as runtime:
        await world.add([gate])
        runtime.add_workflow("w", body)
        run = await runtime.start_run("k", "w")
        status = await run.wait()
        assert status.state == ("failed" if ends == "fails" else "completed")
        found = [(step.path, step.state) for step in runtime.run_steps("k")]
        assert found[0] == ("slow", "cut_off")
        assert found[1:] == [("next", "done")] * (ends == "asks for another")
        assert runtime.run_steps("k")[0].ended_ms is not None
        gate.release()


@pytest.mark.parametrize("in_doubt", ["recover", "retry"])
async def test_item_that_was_cut_off_is_in_doubt_where_a_later_life_asks_for_it(
    world: World, virtual_time: MockClock, in_doubt: Any
) -> None:
    begun: list[int] = []
    walls = [wall(world.clock.now_ms() + HOUR)]

    async def slow() -> None:
        begun.append(world.clock.now_ms())
        await trio.sleep(5)

    async def walled() -> str:
        if walls:
            raise walls.pop()
        return "done"

    async def body(run: RunContext, _params: Any) -> Any:
        with trio.move_on_after(2):
            await run.do("slow", slow, in_doubt=in_doubt)
        return await run.do("walled", walled)

    async with world.open() as runtime:
        runtime.add_workflow("w", body)
        run = await runtime.start_run("k", "w")
        await until(lambda: run.status().state == "waiting_for_capacity")
        await trio.sleep(2 * HOUR / 1_000)
        if in_doubt == "recover":
            assert "'slow' was cut off by its workflow" in run.status().reason
            assert run.status().needs_decision
            await runtime.resume_run("k", in_doubt="done", requester="ops")
        assert (await run.wait()).result == "done"
        assert len(begun) == (2 if in_doubt == "retry" else 1)
