"""Junk out of a provider or a tool: one failed call, or one error result, that names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentSpec
from abeyance.actors.providers.port import (
    ModelReply,
    ModelRequest,
    OnDelta,
    ProviderError,
    StopReason,
)
from abeyance.actors.testing import call_tool, reply
from abeyance.storage.tables.blocks import TextBlock, ToolUseBlock

from .world import World, shown, tool


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Junk:
    """A provider that returns what it is given."""

    carries_injections = True

    def __init__(self, play: Callable[[OnDelta], Any]) -> None:
        self._play = play
        self.calls = 0

    async def call(self, request: ModelRequest, on_delta: OnDelta) -> Any:
        await trio.lowlevel.checkpoint()
        self.calls += 1
        return self._play(on_delta)

    async def aclose(self) -> None: ...


def mute(_: OnDelta) -> None:
    raise MuteError


def of(blocks: Any) -> Callable[[OnDelta], Any]:
    return lambda _: ModelReply(blocks, StopReason.END_TURN)


RETURNED: dict[str, tuple[Callable[[OnDelta], Any], str]] = {
    "None": (lambda _: None, "the provider returned None, which is no ModelReply"),
    "a number": (lambda _: 5, "the provider returned int 5, which is no ModelReply"),
    "text": (lambda _: "x", "the provider returned str 'x', which is no ModelReply"),
    "an object": (lambda _: object(), "the provider returned object, which is no ModelReply"),
    "no blocks": (
        of(None),
        "the provider returned a ModelReply whose blocks are None, which is no tuple of blocks",
    ),
    "text as blocks": (
        of("hi"),
        "the provider returned a ModelReply whose blocks are str 'hi', which is no tuple of blocks",
    ),
    "a block that is none": (
        of((TextBlock(text="a"), {"type": "text"})),
        "the provider returned a ModelReply whose blocks[1] is dict, which is no block",
    ),
    "an error without a text": (mute, "MuteError: its text cannot be read (RuntimeError)"),
}


@pytest.mark.parametrize(("play", "text"), RETURNED.values(), ids=RETURNED)
async def test_junk_out_of_a_provider_fails_the_turn_at_once_and_is_named(
    world: World, virtual_time: MockClock, play: Callable[[OnDelta], Any], text: str
) -> None:
    provider: Any = Junk(play)
    async with world.open():
        ana = await world.runtime.add_agent(AgentSpec(name="ana", model="m", provider=provider))
        await ana.send("go")
        await ana.wait_idle()
        assert await shown(ana) == ["user: go", f"marker: this turn failed: {text}"]
        assert provider.calls == 1
        assert not world.permits_out()
        assert world.ref("agent").statistics().restarts == 0


async def test_junk_handed_to_on_delta_does_no_harm_to_the_reply(
    world: World, virtual_time: MockClock
) -> None:
    def play(on_delta: OnDelta) -> ModelReply:
        on_delta(None)  # type: ignore[arg-type]
        return ModelReply([TextBlock(text="hello")], StopReason.END_TURN)  # type: ignore[arg-type]

    provider: Any = Junk(play)
    async with world.open():
        ana = await world.runtime.add_agent(AgentSpec(name="ana", model="m", provider=provider))
        await ana.send("go")
        await ana.wait_idle()
        assert await shown(ana) == ["user: go", "assistant: hello"]


@dataclass
class Point:
    x: int


class Thing:
    pass


def looped() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def untold(kind: str) -> str:
    return f"=!The tool returned a value that is no text and no JSON: it is or holds {kind}."


TOLD: dict[str, tuple[Any, str]] = {
    "an object": (
        Thing(),
        untold("Thing"),
    ),
    "an object inside": (
        {"a": [Thing()]},
        untold("Thing"),
    ),
    "a class": (
        Thing,
        untold("type"),
    ),
    "a function": (
        len,
        untold("builtin_function_or_method"),
    ),
    "a key that is none": (
        {(1, 2): 3},
        untold("dict"),
    ),
    "a list that holds itself": (
        looped(),
        untold("list"),
    ),
    "a block of another kind": (
        ToolUseBlock(id="c", name="t", input={}),
        untold("ToolUseBlock"),
    ),
    "a text block": (TextBlock(text="plain"), "=plain"),
    "text blocks": ([TextBlock(text="one"), TextBlock(text="two")], "=one two"),
    "a dataclass": (Point(1), '={"x": 1}'),
    "a date inside": ({"at": datetime(2026, 1, 2, tzinfo=UTC)}, '={"at": "2026-01-02T00:00:00Z"}'),
    "an empty list": ([], "=[]"),
}


@pytest.mark.parametrize(("value", "text"), TOLD.values(), ids=TOLD)
async def test_what_a_body_returns_is_told_where_it_can_be_and_named_where_not(
    world: World, virtual_time: MockClock, value: Any, text: str
) -> None:
    async with world.open():
        ana = await world.add([call_tool("t"), reply("end")], tools=[tool("t", lambda: value)])
        await ana.send("go")
        await ana.wait_idle()
        assert (await shown(ana))[2] == f"results: {text}"
        assert [row.state for row in world.tool_calls()] == ["done"]


async def test_junk_out_of_a_provider_fails_an_auxiliary_call_and_is_named(
    world: World, virtual_time: MockClock
) -> None:
    provider: Any = Junk(lambda _: None)
    async with world.open():
        ana = await world.runtime.add_agent(AgentSpec(name="ana", model="m", provider=provider))
        with pytest.raises(ProviderError, match="returned None, which is no ModelReply"):
            await ana.auxiliary_call(ModelRequest(model="m", messages=()))
        assert not world.permits_out()
