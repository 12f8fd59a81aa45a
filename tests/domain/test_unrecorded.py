"""What whoever looks at an agent sees while the store refuses what it is to record."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentHandle, wait_card
from abeyance.actors.domain.errors import NotStoredError
from abeyance.actors.domain.events import RecordingRefused, RecordingResumed
from abeyance.actors.domain.persistence import Recording
from abeyance.actors.ops.answers import report_status
from abeyance.actors.testing import call_tool, fail, reply
from abeyance.actors.testing.scripted import Script

from .test_faults import NO_ROOM, Disk, disk, full
from .world import World, shown, tool, until

__all__ = ["disk"]

LIMITED = fail(429, retry_after=300)


class Point(NamedTuple):
    """Where the store begins to refuse, and what of the agent is not recorded then."""

    what: str
    script: Callable[[Callable[[], None]], Script]
    """What the provider says; the function has the disk be full from then on."""
    then: str = "idle"


def at(step: Any) -> Callable[[Callable[[], None]], Script]:
    def script(fill: Callable[[], None]) -> Script:
        left = [step, reply("at last")]

        def say(_request: Any) -> Any:
            if len(left) == 2:
                fill()
            return left.pop(0)

        return say

    return script


POINTS = {
    "reply": Point("a reply", at(reply("said"))),
    "hold": Point("the hold of its turn", at(LIMITED), "held"),
    "end": Point("the end of its turn", at(fail(401))),
}


@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS)
async def test_an_agent_whose_store_refuses_it_says_what_cannot_be_recorded_why_and_since_when(
    world: World, virtual_time: MockClock, disk: Disk, point: Point
) -> None:
    async with world.open() as runtime:
        kinds = {"recording_refused", "recording_resumed"}
        with runtime.events(kinds=kinds) as events:
            ana = await world.add(point.script(lambda: setattr(disk, "full", True)))
            began_ms = world.clock.now_ms()
            await ana.send("go")
            await until(lambda: disk.refused > 0)
            await trio.sleep(90)
            state = world.state()
            assert state.state == "unrecorded"
            assert (state.unrecorded.what, state.unrecorded.reason) == (point.what, str(NO_ROOM))
            assert began_ms <= state.unrecorded.since_ms < began_ms + 1_000
            assert runtime.health()["ana"].unrecorded == state.unrecorded
            assert runtime.statistics().agents == {"unrecorded": 1}
            (report,) = report_status(runtime.status()).agents
            assert report.unrecorded.what == point.what
            disk.full = False
            await ana.wait_idle()
            assert (world.state().state, world.state().unrecorded) == (point.then, None)
            refused, resumed = [await anext(aiter(events)) for _ in range(2)]
        assert isinstance(refused, RecordingRefused)
        assert isinstance(resumed, RecordingResumed)
        assert refused.since_ms == state.unrecorded.since_ms
        card = wait_card(refused)
        assert card is not None
        assert card.text() == f"Waiting for the store: {point.what} cannot be recorded"
        assert (card.reason, card.resume_after_ms, card.actions) == (str(NO_ROOM), None, ())
        assert world.ref("agent").statistics().incarnation == 1


async def test_a_hold_that_the_store_refused_past_its_end_goes_on_once_when_it_heals(
    world: World, virtual_time: MockClock, disk: Disk
) -> None:
    async with world.open() as runtime:
        ana = await world.add(POINTS["hold"].script(lambda: setattr(disk, "full", True)))
        await ana.send("go")
        await until(lambda: disk.refused > 0)
        (wait,) = runtime.provider_waits("ana")
        await trio.sleep(400)
        assert world.clock.now_ms() > wait.deadline_ms
        assert world.state().unrecorded.what == "the hold of its turn"
        assert len(world.providers[0].requests) == 1, "no call while it is not recorded"
        disk.full = False
        await ana.wait_idle()
        assert len(world.providers[0].requests) == 2
        assert (await shown(ana))[-1] == "assistant: at last"
        assert world.state().state == "idle"


async def test_a_start_that_the_store_refuses_is_shown_until_it_is_made(
    world: World, virtual_time: MockClock, disk: Disk
) -> None:
    async with world.open():
        ana = await world.add([LIMITED, reply("at last")])
        await ana.send("go")
        await ana.wait_idle()
        with full(disk):
            await trio.sleep(330)
            state = world.state()
            assert (state.state, state.unrecorded.what) == ("unrecorded", "the start of a turn")
        await ana.wait_idle()
        assert (world.state().state, world.state().unrecorded) == ("idle", None)
        assert (await shown(ana))[-1] == "assistant: at last"


async def _by_the_model(ana: AgentHandle) -> None:
    await ana.send("go")


async def _by_an_operator(ana: AgentHandle) -> None:
    await ana.run_tool("pay", {}, requester="ops")


@pytest.mark.parametrize("run", [_by_the_model, _by_an_operator])
async def test_a_tool_call_that_the_store_refuses_is_shown_and_its_body_runs_once(
    world: World,
    virtual_time: MockClock,
    disk: Disk,
    run: Callable[[AgentHandle], Awaitable[None]],
) -> None:
    runs: list[int] = []

    async def pay() -> str:
        runs.append(1)
        disk.full = True
        return "paid"

    async with world.open(), trio.open_nursery() as nursery:
        ana = await world.add([call_tool("pay"), reply("done")], tools=[tool("pay", pay)])
        nursery.start_soon(run, ana)
        await until(lambda: disk.refused > 2)
        state = world.state()
        assert (state.state, state.unrecorded.what) == ("unrecorded", "a tool call")
        disk.full = False
        await until(lambda: world.state().state == "idle")
        assert world.state().unrecorded is None
        assert len(runs) == 1


async def test_an_agent_that_dies_while_the_store_refuses_it_says_so_in_its_next_life(
    world: World, virtual_time: MockClock, disk: Disk
) -> None:
    async with world.open():
        ana = await world.add(POINTS["reply"].script(lambda: setattr(disk, "full", True)))
        await ana.send("go")
        await until(lambda: disk.refused > 0)
        world.ref("agent").kill()
        await until(lambda: world.ref("agent").statistics().incarnation == 2)
        await trio.sleep(20)
        state = world.state()
        assert (state.state, state.unrecorded.what) == ("unrecorded", "the start of a turn")
        disk.full = False
        await ana.wait_idle()
        assert (world.state().state, world.state().unrecorded) == ("idle", None)


async def test_an_agent_that_is_stopped_while_the_store_refuses_it_is_not_kept(
    world: World, virtual_time: MockClock, disk: Disk
) -> None:
    async with world.open():
        ana = await world.add(POINTS["hold"].script(lambda: setattr(disk, "full", True)))
        await ana.send("go")
        await until(lambda: disk.refused > 0)
        began_s = trio.current_time()
    assert trio.current_time() - began_s < 60


def test_the_longest_refused_is_shown_with_its_newest_reason() -> None:
    now_ms, told = 1_000, []
    recording = Recording(lambda: now_ms, told.append)

    def refusal(reason: str) -> NotStoredError:
        error = NotStoredError("the commit failed")
        error.__cause__ = OSError(reason)
        return error

    recording.refuse("a", "a reply", refusal("no room\nhere"))
    now_ms = 2_000
    recording.refuse("b", "a tool call", refusal("no room"))
    recording.refuse("a", "a reply", refusal("x" * 10_000))
    assert recording.refused is not None
    assert recording.refused[0] == "a reply"
    assert recording.refused.since_ms == 1_000
    assert len(recording.refused.reason) <= 500
    recording.settle("a")
    assert recording.refused == ("a tool call", "no room", 2_000)
    recording.settle("b")
    recording.settle("b")
    assert recording.refused is None
    assert [None if each is None else each.reason for each in told] == ["no room here", None]


@pytest.mark.behaviour("W-022")
@pytest.mark.parametrize("refused_s", [0.05, 1, 2, 8, 90])
async def test_a_hold_that_is_stored_after_a_refusal_is_stored_with_its_wait(
    world: World, virtual_time: MockClock, disk: Disk, refused_s: float
) -> None:
    async with world.open():
        ana = await world.add(at(LIMITED)(lambda: setattr(disk, "full", True)))
        await ana.send("go")
        await until(lambda: disk.refused > 1)
        await trio.sleep(refused_s)
        assert world.rows("waits") == []
        disk.full = False
        await until(lambda: world.state().state == "held")
        # Were the host killed now, the next one would make no call before the provider's instant.
        assert len(world.rows("waits")) == 1
