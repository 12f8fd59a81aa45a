"""Where a call may fail: as it begins, in an event of its stream, out of the stream's middle.

Over the real adapter and a simulator on loopback, where the wire can say so; in virtual time.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors import AgentHandle, AgentSpec, GiveUp
from abeyance.actors.providers import AnthropicProvider
from abeyance.actors.providers.port import ModelReply, ModelRequest, ReplyDelta
from abeyance.actors.testing import fail, reply
from abeyance.actors.testing.scripted import ScriptedCall
from abeyance.actors.testing.simulator import Answer, ProviderSimulator, WireRequest

from .world import World, shown

JUMPS_AFTER_S = 0.01
"""Bytes may still be on their way through the loopback when every task is blocked already."""
LIMITED = "This request would exceed your rate limit"
WAIT_S = 1_200


class OnTheWire:
    """An agent whose provider is the Anthropic adapter, on a simulator."""

    def __init__(
        self,
        world: World,
        simulator: ProviderSimulator,
        ana: AgentHandle,
        provider: AnthropicProvider,
    ) -> None:
        self.world = world
        self.simulator = simulator
        self.ana = ana
        self.provider = provider

    @property
    def calls(self) -> int:
        return len(self.simulator.log)


@asynccontextmanager
async def on_the_wire(
    world: World,
    *answers: Answer,
    deadlines: dict[str, float] | None = None,
    **spec: Any,
) -> AsyncIterator[OnTheWire]:
    left = list(answers)

    def script(request: WireRequest) -> Answer:
        return left.pop(0)

    async with ProviderSimulator(script, clock=world.clock) as simulator:
        provider = AnthropicProvider(
            api_key="k", base_url=simulator.base_url, clock=world.clock, **(deadlines or {})
        )
        try:
            async with world.open() as runtime:
                ana = await runtime.add_agent(
                    AgentSpec(name="ana", provider=provider, model="m", **spec)
                )
                yield OnTheWire(world, simulator, ana, provider)
        finally:
            await provider.aclose()


class Torn:
    """A call that is told of a limit just as somebody cancels it: both are raised, in a group."""

    def __init__(self) -> None:
        self.out = trio.Event()

    async def play(self, call: ScriptedCall) -> ModelReply:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            self.out.set()
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await fail(429, retry_after=WAIT_S).play(call)
        raise AssertionError


def error_event(**fields: Any) -> dict[str, Any]:
    return {"type": "rate_limit_error", "message": LIMITED, **fields}


class Thrown:
    """A step whose stream begins, and throws what a provider's library throws out of one."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def play(self, call: ScriptedCall) -> ModelReply:
        call.on_delta(ReplyDelta("text", 0, "I am"))
        await trio.sleep(0.1)
        raise self._error


def library_error(retry_after_ms: float) -> Exception:
    error: Any = type("RateLimitError", (Exception,), {})(LIMITED)
    error.status_code, error.retry_after_ms = 429, retry_after_ms
    return error  # type: ignore[no-any-return]


async def is_held_once(world: World, ana: AgentHandle, stated_ms: int) -> None:
    """The same end for every site: one call, one recorded wait, one held turn, nothing said."""
    await ana.wait_idle()
    state = world.state()
    assert (state.state, state.held.cause) == ("held", "wait")
    assert 0 <= state.held.deadline_ms - (stated_ms + WAIT_S * 1_000) < 1_000
    (wait,) = world.rows("waits")
    assert (wait.deadline_ms, wait.reason) == (state.held.deadline_ms, LIMITED)
    (turn,) = world.turns()
    assert (turn.state, turn.round, turn.failures) == ("held", 0, 1)
    assert await shown(ana) == ["user: go"]
    assert [row.sent for row in world.rows("carried", "ana")] == [True]
    assert not world.permits_out()


@pytest.mark.behaviour("W-067", "W-068", "W-063")
@pytest.mark.parametrize(
    "limited",
    [
        Answer(
            status=429,
            headers={"retry-after": str(WAIT_S)},
            body={"type": "error", "error": error_event()},
        ),
        Answer(text="I am", error_after=3, error=error_event(retry_after=WAIT_S)),
        Answer(text="I am", error_after=0, error=error_event(retry_after=WAIT_S)),
    ],
    ids=["as it begins", "in the stream", "as the stream begins"],
)
async def test_a_limit_holds_the_turn_wherever_the_wire_states_it(
    world: World, virtual_time: MockClock, limited: Answer
) -> None:
    async with on_the_wire(world, limited, Answer(text="at last")) as wire:
        stated_ms = world.clock.now_ms()
        await wire.ana.send("go")
        await is_held_once(world, wire.ana, stated_ms)
        await trio.sleep(WAIT_S - 10)
        await wire.ana.wait_idle()
        assert wire.calls == 1
        await trio.sleep(15)
        await wire.ana.wait_idle()
        assert wire.calls == 2
        assert await shown(wire.ana) == ["user: go", "assistant: at last"]


@pytest.mark.behaviour("W-068", "W-063")
async def test_a_limit_that_is_thrown_out_of_a_stream_holds_the_turn_the_same(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([Thrown(library_error(WAIT_S * 1_000)), reply("at last")])
        stated_ms = world.clock.now_ms()
        await ana.send("go")
        await is_held_once(world, ana, stated_ms)
        await trio.sleep(WAIT_S + 5)
        await ana.wait_idle()
        assert await shown(ana) == ["user: go", "assistant: at last"]


@pytest.mark.behaviour("R-32")
async def test_an_error_of_a_reloaded_module_holds_the_turn(
    world: World, virtual_time: MockClock, tmp_path: Path
) -> None:
    source = (
        "class LimitError(Exception):\n"
        "    retryable = True\n"
        f"    retry_after_ms = {WAIT_S * 1_000}\n"
        f"    said = {LIMITED!r}\n"
    )

    def load() -> ModuleType:
        module = ModuleType("library_of_errors")
        exec(compile(source, "library_of_errors.py", "exec"), module.__dict__)
        sys.modules["library_of_errors"] = module
        return module

    try:
        old, new = load(), load()
        assert old.LimitError is not new.LimitError
        for name, module in (("ana", old), ("bo", new)):
            async with world.open():
                agent = await world.add([Thrown(module.LimitError("limited"))], name)
                await agent.send("go")
                await agent.wait_idle()
                assert world.state(name).held.cause == "wait"
                assert len(world.providers[-1].requests) == 1
    finally:
        sys.modules.pop("library_of_errors", None)


async def test_of_two_waits_that_one_refusal_states_the_longer_holds(
    world: World, virtual_time: MockClock
) -> None:
    limited = Answer(
        status=429,
        headers={"retry-after": "5"},
        body={"type": "error", "error": error_event(retry_after=WAIT_S)},
    )
    async with on_the_wire(world, limited) as wire:
        stated_ms = world.clock.now_ms()
        await wire.ana.send("go")
        await is_held_once(world, wire.ana, stated_ms)


async def test_of_two_waits_that_one_error_states_the_longer_holds(
    world: World, virtual_time: MockClock
) -> None:
    grouped = ExceptionGroup("both", [library_error(5_000), library_error(WAIT_S * 1_000)])
    async with world.open():
        ana = await world.add([Thrown(grouped)])
        stated_ms = world.clock.now_ms()
        await ana.send("go")
        await is_held_once(world, ana, stated_ms)


async def test_a_stream_that_is_cut_is_tried_again_and_none_of_it_is_kept(
    world: World, virtual_time: MockClock
) -> None:
    cut = Answer(text="half of what", cut_after=3)
    ended = Answer(text="half of what", end_after=3)
    async with on_the_wire(world, cut, ended, Answer(text="whole")) as wire:
        await wire.ana.send("go")
        await wire.ana.wait_idle()
        assert wire.calls == 3
        assert await shown(wire.ana) == ["user: go", "assistant: whole"]
        (turn,) = world.turns()
        assert (turn.state, turn.failures) == ("done", 2)


# -- providers that say nothing --------------------------------------------------------------


class GivesUp:
    def decide(self, failure: object) -> GiveUp:
        return GiveUp()


@pytest.mark.drawn(3)
@pytest.mark.behaviour("R-25")
@pytest.mark.parametrize(
    ("silent", "deadlines", "after_s"),
    [
        (Answer(hold="never"), {}, 120),
        (Answer(text="some of it", stall_after=3), {}, 120),
        (Answer(text="x", stall_after=1, keep_alive_ms=30_000), {}, 3_600),
        (Answer(text="x", stall_after=0, keep_alive_ms=30_000, keep_alive="ping"), {}, 900),
        (Answer(hold="never"), {"byte_idle_s": 7}, 7),
        (Answer(text="x", stall_after=0, keep_alive_ms=3_000, keep_alive="ping"),
         {"first_event_s": 20}, 20),
        (Answer(text="x", stall_after=1, keep_alive_ms=3_000), {"call_s": 50}, 50),
    ],
    ids=["no byte", "no more bytes", "a whole call of comments", "only pings",
         "bytes, configured", "first event, configured", "whole call, configured"],
)  # fmt: skip
async def test_a_provider_that_never_answers_fails_the_call_at_its_deadline(
    world: World,
    virtual_time: MockClock,
    silent: Answer,
    deadlines: dict[str, float],
    after_s: float,
) -> None:
    async with on_the_wire(world, silent, deadlines=deadlines, error_policy=GivesUp()) as wire:
        await wire.ana.send("go")
        began_s = trio.current_time()
        await wire.ana.wait_idle()
        assert after_s - 1 <= trio.current_time() - began_s <= after_s + 31
        (turn,) = world.turns()
        assert (turn.state, turn.failures) == ("failed", 1)
        assert not world.permits_out()
        assert not world.ref("agent")._cell.tasks, "nothing is left that reads a dead stream"


@pytest.mark.behaviour("R-25")
async def test_a_provider_that_never_answers_is_asked_again_by_the_default_policy(
    world: World, virtual_time: MockClock
) -> None:
    async with on_the_wire(world, Answer(hold="never"), Answer(text="now")) as wire:
        await wire.ana.send("go")
        await wire.ana.wait_idle()
        assert await shown(wire.ana) == ["user: go", "assistant: now"]


@pytest.mark.behaviour("W-068", "W-094")
@pytest.mark.parametrize("kind", ["turn", "auxiliary"])
async def test_a_limit_that_is_stated_as_its_call_is_cut_off_is_recorded_all_the_same(
    world: World, virtual_time: MockClock, kind: str
) -> None:
    torn = Torn()
    async with world.open() as runtime:
        ana = await world.add([torn])
        if kind == "turn":
            await ana.send("go")
            await torn.out.wait()
        else:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ana.auxiliary_call, ModelRequest(model="m", messages=()))
                await torn.out.wait()
                nursery.cancel_scope.cancel()
            await wait_all_tasks_blocked()
            (wait,) = runtime.provider_waits("ana")
            assert wait.deadline_ms == world.clock.now_ms() + WAIT_S * 1_000
    async with world.open() as runtime:
        (wait,) = runtime.provider_waits("ana")
        assert wait.model == "m"
        ana = await world.add([reply("late")])
        await ana.send("again")
        await ana.wait_idle()
        assert world.state("ana").state == "held"
        assert len(world.providers[-1].requests) == 0


@pytest.mark.behaviour("W-122")
async def test_a_stop_ends_a_call_that_nobody_answers(
    world: World, virtual_time: MockClock
) -> None:
    async with on_the_wire(world, Answer(hold="never")) as wire:
        await wire.ana.send("go")
        await wire.simulator.wait_held("never")
        before = trio.current_time()
    assert trio.current_time() - before < 5
    assert wire.calls == 1
