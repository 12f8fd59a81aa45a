"""What a host's code raises: the failure of one call, never the end of the runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentSpec
from abeyance.actors.domain.foreign import failure_of, told
from abeyance.actors.providers.port import ModelReply, ModelRequest, OnDelta, ProviderError
from abeyance.actors.testing import call_tool, reply

from .world import Stop, World, shown, tool

EXITS: dict[str, tuple[Callable[[], BaseException], str]] = {
    "SystemExit": (lambda: SystemExit("config missing"), "SystemExit: config missing"),
    "asyncio's CancelledError": (asyncio.CancelledError, "CancelledError"),
    "GeneratorExit": (GeneratorExit, "GeneratorExit"),
    "a group of them": (
        lambda: BaseExceptionGroup("two", [SystemExit(3), ValueError("bad")]),
        "BaseExceptionGroup: two (2 sub-exceptions): SystemExit: 3; ValueError: bad",
    ),
}
PASSING: dict[str, Callable[[], BaseException]] = {
    "KeyboardInterrupt": KeyboardInterrupt,
    "a group with a KeyboardInterrupt": lambda: BaseExceptionGroup(
        "two", [KeyboardInterrupt(), SystemExit(3)]
    ),
}
exits = pytest.mark.parametrize(("make", "text"), EXITS.values(), ids=EXITS)
passing = pytest.mark.parametrize("make", PASSING.values(), ids=PASSING)


class Raises:
    """A provider that raises what it is told to, once; then it replies."""

    carries_injections = True

    def __init__(self, make: Callable[[], BaseException]) -> None:
        self._make = make
        self.calls = 0

    async def call(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        await trio.lowlevel.checkpoint()
        self.calls += 1
        raise self._make()

    async def aclose(self) -> None: ...


@exits
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_tool_body_that_raises_an_exit_ends_its_call_with_an_error_and_nothing_else(
    world: World,
    virtual_time: MockClock,
    make: Callable[[], BaseException],
    text: str,
    kind: str,
) -> None:
    def sync_body() -> None:
        raise make()

    async def async_body() -> None:
        raise make()

    async with world.open():
        body = sync_body if kind == "sync" else async_body
        ana = await world.add([call_tool("t"), reply("end")], tools=[tool("t", body)])
        bystander = await world.add([reply("here")], "bob")
        await ana.send("go")
        await ana.wait_idle()
        assert (await shown(ana))[2:] == [f"results: =!{text}", "assistant: end"]
        assert [(row.state, row.is_error) for row in world.tool_calls()] == [("done", True)]
        await bystander.send("hi")
        await bystander.wait_idle()
        assert (await shown(bystander))[-1] == "assistant: here"


@exits
async def test_provider_that_raises_an_exit_fails_its_call_and_nothing_else(
    world: World, virtual_time: MockClock, make: Callable[[], BaseException], text: str
) -> None:
    provider: Any = Raises(make)
    async with world.open():
        ana = await world.runtime.add_agent(AgentSpec(name="ana", model="m", provider=provider))
        await ana.send("go")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == f"marker: this turn failed: {text}"
        assert provider.calls == 1
        assert not world.permits_out()


@exits
async def test_provider_that_raises_an_exit_fails_an_auxiliary_call_as_any_error_does(
    world: World, virtual_time: MockClock, make: Callable[[], BaseException], text: str
) -> None:
    provider: Any = Raises(make)
    async with world.open():
        ana = await world.runtime.add_agent(AgentSpec(name="ana", model="m", provider=provider))
        with pytest.raises(ProviderError) as caught:
            await ana.auxiliary_call(ModelRequest(model="m", messages=()))
        assert str(caught.value) == text
        assert not world.permits_out()


@passing
@pytest.mark.parametrize("kind", ["tool", "provider"])
async def test_interrupt_out_of_a_tool_or_provider_ends_the_run(
    world: World, virtual_time: MockClock, make: Callable[[], BaseException], kind: str
) -> None:
    async def body() -> None:
        raise make()

    async def live() -> None:
        async with world.open():
            provider: Any = Raises(make) if kind == "provider" else world.provider([call_tool("t")])
            ana = await world.runtime.add_agent(
                AgentSpec(name="ana", model="m", provider=provider, tools=[tool("t", body)])
            )
            await ana.send("go")
            await trio.sleep(60)

    with pytest.raises(BaseException) as caught:
        await live()
    left = caught.value
    while isinstance(left, BaseExceptionGroup):
        assert len(left.exceptions) == 1
        left = left.exceptions[0]
    assert isinstance(left, KeyboardInterrupt)


async def test_cancellation_of_a_body_keeps_its_meaning_beside_what_the_body_raises(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()

    async def leave() -> None:
        raise SystemExit("as it was cancelled")

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop)
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                nursery.start_soon(leave)
                raise

    async with world.open():
        ana = await world.add([call_tool("t")], tools=[tool("t", body)])
        await ana.send("go")
        await stop.entered.wait()
    assert stop.effects == 1


async def test_error_whose_text_raises_is_told_by_its_type() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert told(MuteError()) == "MuteError: its text cannot be read (RuntimeError)"


async def test_group_of_many_errors_is_told_up_to_a_bound() -> None:
    group = ExceptionGroup("many", [ValueError(str(n)) for n in range(7)])
    assert told(group).endswith("ValueError: 3; ValueError: 4; ...")


def test_generator_exit_outside_of_a_task_is_no_failure() -> None:
    with pytest.raises(GeneratorExit):
        failure_of(GeneratorExit())
