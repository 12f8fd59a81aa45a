"""What a provider may do to a call, on each wire there is: over its vendor's own SDK and a
simulator on loopback, in virtual time. What becomes of the agent's turn is the same on all of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentHandle, AgentSpec, RunContext, StepFailedError
from abeyance.actors.providers import AnthropicProvider, OpenAIProvider
from abeyance.actors.testing.simulator import Answer, ProviderSimulator, WireRequest

from .test_failure_sites import GivesUp
from .test_faults import Disk, disk
from .world import World, shown, until

__all__ = ["disk"]

JUMPS_AFTER_S = 0.02
"""Bytes may still be on their way through the loopback when every task is blocked already."""
WAIT_S = 300
LIMITED = "Rate limit reached for m in organization o. Please try again in 5m0s."
ERROR = {"type": "rate_limit_error", "message": LIMITED}
Make: TypeAlias = Callable[..., Any]
WIRES: dict[str, Make] = {
    "anthropic": lambda url, **more: AnthropicProvider(api_key="k", base_url=url, **more),
    "responses": lambda url, **more: OpenAIProvider(
        api="responses", api_key="k", base_url=f"{url}/v1", **more
    ),
    "chat": lambda url, **more: OpenAIProvider(
        api="chat", api_key="k", base_url=f"{url}/v1", **more
    ),
}
each_wire = pytest.mark.parametrize("wire", WIRES)


class Live:
    """An agent on a wire, and who is asked at its other end."""

    def __init__(self, simulator: ProviderSimulator, ana: AgentHandle) -> None:
        self.simulator = simulator
        self.ana = ana

    @property
    def calls(self) -> int:
        return len(self.simulator.log)


@asynccontextmanager
async def on(world: World, wire: str, *answers: Answer, **spec: Any) -> AsyncIterator[Live]:
    left = list(answers)

    def script(_request: WireRequest) -> Answer:
        return left.pop(0)

    async with ProviderSimulator(script, clock=world.clock) as simulator:
        provider = WIRES[wire](simulator.base_url, clock=world.clock)
        try:
            async with world.open() as runtime:
                named = AgentSpec(name="ana", provider=provider, model="m", **spec)
                yield Live(simulator, await runtime.add_agent(named))
        finally:
            await provider.aclose()


async def until_ms(world: World, instant_ms: int) -> None:
    await trio.sleep(max(0, instant_ms - world.clock.now_ms()) / 1_000)


async def is_held_once_to_its_end(world: World, live: Live) -> None:
    """One call, one recorded wait of the longest statement, one held turn; it runs at the end."""
    await live.ana.wait_idle()
    state = world.state()
    assert (state.state, state.held.cause) == ("held", "wait")
    (wait,) = world.rows("waits")
    assert (wait.deadline_ms, wait.deadline_ms - wait.set_ms) == (
        state.held.deadline_ms,
        WAIT_S * 1_000,
    )
    assert await shown(live.ana) == ["user: go"]
    assert not world.permits_out()
    await until_ms(world, wait.deadline_ms - 1_000)
    await live.ana.wait_idle()
    assert live.calls == 1
    await until_ms(world, wait.deadline_ms + 2_000)
    await live.ana.wait_idle()
    assert live.calls == 2
    assert await shown(live.ana) == ["user: go", "assistant: at last"]


@pytest.mark.drawn(5)
@each_wire
@pytest.mark.parametrize(
    "limited",
    [
        Answer(text="I am about to", error_after=3, error=ERROR),
        Answer(text="I am about to", error_after=0, error=ERROR),
        Answer(text="so", error_after=1, error=ERROR, headers={"retry-after": "5"}),
        Answer(status=429, body={"error": ERROR}, headers={"retry-after": "5"}),
        Answer(
            status=429,
            body={"error": {"type": "rate_limit_error", "message": "Please try again in 5s."}},
            headers={"retry-after": str(WAIT_S)},
        ),
        Answer(status=429, body={"error": ERROR}, headers={"retry-after": ["5", "7"]}),
    ],
    ids=[
        "200, then an error event",
        "200, and the first event is an error",
        "200 that states less in its head than in its error event",
        "429 that states less in its head than in its body",
        "429 that states more in its head than in its body",
        "429 that states two waits in its head and a third in its body",
    ],
)
async def test_a_limit_holds_the_turn_until_the_longest_wait_that_its_response_states(
    world: World, virtual_time: MockClock, wire: str, limited: Answer
) -> None:
    async with on(world, wire, limited, Answer(text="at last")) as live:
        await live.ana.send("go")
        await is_held_once_to_its_end(world, live)


@each_wire
@pytest.mark.parametrize(
    "cut",
    [
        Answer(text="half of what", cut_after=0),
        Answer(text="half of what", chunk_chars=4, cut_after=3),
        Answer(text="half of what", chunk_chars=4, end_after=3),
    ],
    ids=["before an event", "in the middle", "in the middle, as if it were whole"],
)
async def test_a_provider_that_closes_in_the_middle_is_asked_again_and_none_of_it_is_kept(
    world: World, virtual_time: MockClock, wire: str, cut: Answer
) -> None:
    async with on(world, wire, cut, Answer(text="whole")) as live:
        await live.ana.send("go")
        await live.ana.wait_idle()
        assert live.calls == 2
        assert await shown(live.ana) == ["user: go", "assistant: whole"]
        (turn,) = world.turns()
        assert (turn.state, turn.failures) == ("done", 1)
        assert not world.rows("waits")
        assert not world.permits_out()


@pytest.mark.behaviour("R-25")
@each_wire
@pytest.mark.parametrize(
    "silent",
    [Answer(hold="never"), Answer(text="some of it", stall_after=2)],
    ids=["no byte", "no more bytes"],
)
async def test_a_provider_that_never_answers_is_cut_off_and_leaves_nothing_on_either_side(
    world: World, virtual_time: MockClock, wire: str, silent: Answer
) -> None:
    async with on(world, wire, silent, error_policy=GivesUp()) as live:
        began_s = trio.current_time()
        await live.ana.send("go")
        await live.ana.wait_idle()
        assert 119 <= trio.current_time() - began_s <= 151
        (turn,) = world.turns()
        assert (turn.state, turn.failures) == ("failed", 1)
        assert not world.permits_out()
        assert not world.ref("agent")._cell.tasks
        await live.simulator.wait_replied(1)


# -- the disk and the clock, while a provider's wait binds ------------------------------------


@contextmanager
def without_room(disk: Disk) -> Iterator[None]:
    disk.full = True
    try:
        yield
    finally:
        disk.full = False


@pytest.mark.drawn(2)
@each_wire
@pytest.mark.parametrize("outage_s", [5, 150, WAIT_S + 60], ids=["short", "long", "past its end"])
async def test_a_wait_that_the_disk_refuses_is_obeyed_and_recorded_when_that_heals(
    world: World, virtual_time: MockClock, disk: Disk, wire: str, outage_s: int
) -> None:
    limited = Answer(status=429, headers={"retry-after": str(WAIT_S)}, hold="said")
    async with on(world, wire, limited, Answer(text="at last")) as live:
        await live.ana.send("go")
        await live.simulator.wait_held("said")
        with without_room(disk):
            live.simulator.release("said")
            await until(lambda: disk.refused > 0)
            (wait,) = world.runtime.provider_waits("ana")
            assert wait.deadline_ms - wait.set_ms == WAIT_S * 1_000
            assert not world.rows("waits")
            await until_ms(world, wait.set_ms + outage_s * 1_000)
            assert live.calls == 1, "no call is made while it cannot be recorded that it is"
            assert not world.rows("waits")
        if outage_s < WAIT_S:
            await trio.sleep(31)
            (row,) = world.rows("waits")
            assert row.deadline_ms == wait.deadline_ms, "recorded as it was stated, with no restart"
            await live.ana.wait_idle()
            assert world.state().held.deadline_ms == wait.deadline_ms
            await until_ms(world, wait.deadline_ms - 1_000)
            assert live.calls == 1
            await until_ms(world, wait.deadline_ms + 2_000)
        await live.ana.wait_idle()
        assert live.calls == 2
        assert await shown(live.ana) == ["user: go", "assistant: at last"]
        assert world.ref("ledger").statistics().incarnation == 1
        assert world.ref("agent").statistics().incarnation == 1


@pytest.mark.drawn(3)
@pytest.mark.behaviour("R-26")
@each_wire
@pytest.mark.parametrize("day_ms", [-86_400_000, 86_400_000], ids=["back", "forward"])
async def test_a_clock_that_steps_a_day_in_a_hold_neither_hurries_nor_outlasts_its_instant(
    world: World, virtual_time: MockClock, wire: str, day_ms: int
) -> None:
    limited = Answer(status=429, headers={"retry-after": str(WAIT_S)})
    async with on(world, wire, limited, Answer(text="at last")) as live:
        await live.ana.send("go")
        await live.ana.wait_idle()
        ends_ms = world.state().held.deadline_ms
        await trio.sleep(10)
        world.clock.advance(day_ms)
        await trio.sleep(31)
        await live.ana.wait_idle()
        if day_ms < 0:
            assert (live.calls, world.state().held.deadline_ms) == (1, ends_ms)
            world.clock.advance(-day_ms)
            await until_ms(world, ends_ms - 1_000)
            await live.ana.wait_idle()
            assert live.calls == 1
            await until_ms(world, ends_ms + 2_000)
            await live.ana.wait_idle()
        assert live.calls == 2
        assert world.clock.now_ms() >= ends_ms
        assert await shown(live.ana) == ["user: go", "assistant: at last"]


# -- five children that fail at once, and a parent whose provider hangs -------------------------


@pytest.mark.drawn(2)
@pytest.mark.behaviour("S-054", "S-055", "S-057", "S-058", "R-25")
@each_wire
@pytest.mark.parametrize(
    "hangs",
    [
        Answer(hold="never"),
        Answer(text="some of what I", chunk_chars=4, stall_after=2),
        Answer(text="some of what I", chunk_chars=4, stall_after=2, keep_alive_ms=30_000),
    ],
    ids=["no byte", "no more bytes", "comments for ever"],
)
async def test_stream_that_never_closes_under_five_failing_children_is_a_stall_of_each_turn(
    world: World, virtual_time: MockClock, wire: str, hangs: Answer
) -> None:
    """Each child's failure is told to their parent, whose answer never comes to its end."""
    refused = Answer(status=401)

    def script(request: WireRequest) -> Answer:
        return refused if request.model == "child" else hangs

    async def child(run: RunContext, number: int) -> None:
        spec = AgentSpec(name=f"child{number}", provider=provider, model="child")
        try:
            await run.ask("work", spec, "work")
        except StepFailedError as error:
            await run.ask("notify", "ana", f"child {number} failed: {error.path}")

    async with ProviderSimulator(script, clock=world.clock) as simulator:
        provider = WIRES[wire](simulator.base_url, clock=world.clock, call_s=300)
        try:
            async with world.open() as runtime:
                parent = AgentSpec(name="ana", provider=provider, model="m", error_policy=GivesUp())
                ana = await runtime.add_agent(parent)
                runtime.add_workflow("child", child)
                began_s = trio.current_time()
                runs = [await runtime.start_run(f"child{n}", "child", n) for n in range(5)]
                ends = [await run.wait() for run in runs]
                await ana.wait_idle()
                assert [end.state for end in ends] == ["failed"] * 5
                turns = world.turns()
                assert 1 <= len(turns) <= 5
                assert {(turn.state, turn.failure) for turn in turns} == {
                    ("failed", "provider_stalled")
                }, "a stall is a failure with its reason, and no cancellation"
                bound_s = 300 if hangs.keep_alive_ms else 120
                assert trio.current_time() - began_s <= len(turns) * (bound_s + 31)
                assert world.rows("wakes", "ana") == []
                assert runtime.runs(state="open") == ()
                assert not world.ref("runs")._cell.kept.lives
                assert not world.ref("agent")._cell.tasks
                assert world.state().state == "idle"
                assert not world.permits_out()
            for number in range(1, len(simulator.log) + 1):
                await simulator.wait_replied(number)
            assert sum(entry.status == 401 for entry in simulator.log) == 5
        finally:
            await provider.aclose()
