"""What many messages cost the loop at once: a few calls a message, whatever is done with them.

Counted, not timed: the calls of Python functions between two of the loop's turns. What a message
costs as a whole (rows made, checked, encoded, read) is some fifty of them, so whoever does it for
all messages in one step is found, on a machine of any speed.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from abeyance.actors import AgentHandle, AgentSpec, Draft, Runtime, Tool, open_runtime
from abeyance.actors.domain.slot_messages import Receipt
from abeyance.actors.providers.port import (
    ModelReply,
    ModelRequest,
    OnDelta,
    StopReason,
    use_permit,
)
from abeyance.actors.testing import witness
from abeyance.storage.tables.blocks import TextBlock, ToolUseBlock

from .world import SCHEMA

MANY = 2_101
CALLS_A_MESSAGE_MAX = 6


class Steps(trio.abc.Instrument):
    """The most calls that one step of a task made, and whose step it was."""

    def __init__(self) -> None:
        self.calls = self.most = 0
        self.whose = ""
        self._beside = 0
        """How deep in what only looks on."""

    def before_task_step(self, task: Any) -> None:
        self.calls = 0

    def after_task_step(self, task: Any) -> None:
        if self.calls > self.most:
            self.most, self.whose = self.calls, task.name

    def count(self, frame: Any, event: str, arg: Any) -> None:
        if event == "call":
            if self._beside or frame.f_code.co_filename == witness.__file__:
                self._beside += 1
            else:
                self.calls += 1
        elif event == "return" and self._beside:
            self._beside -= 1

    @contextmanager
    def counting(self) -> Iterator[None]:
        trio.lowlevel.add_instrument(self)
        sys.setprofile(self.count)
        try:
            yield
        finally:
            sys.setprofile(None)
            trio.lowlevel.remove_instrument(self)


class Bare:
    """A provider that calls a tool, then says that it is done; nothing of it counts messages."""

    carries_injections = True

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []

    async def call(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        use_permit()
        self.requests.append(request)
        if len(self.requests) > 1:
            return ModelReply((TextBlock(text="done"),), StopReason.END_TURN)
        return ModelReply((ToolUseBlock(id="c1", name="wait", input={}),), StopReason.TOOL_USE)

    async def aclose(self) -> None:
        return None


class Life:
    """An agent on a store of its own, whose first turn is in its tool."""

    def __init__(self, runtime: Runtime, provider: Bare) -> None:
        self.runtime = runtime
        self.provider = provider
        self.entered, self.go = trio.Event(), trio.Event()
        self.ana: AgentHandle

    async def add(self) -> None:
        tool = Tool(name="wait", description="Waits.", input_schema=SCHEMA, run=self._wait)
        spec = AgentSpec(name="ana", provider=self.provider, model="m", tools=[tool])
        self.ana = await self.runtime.add_agent(spec)

    async def _wait(self) -> str:
        self.entered.set()
        await self.go.wait()
        return "waited"

    async def into_a_tool(self) -> None:
        await self.ana.send("go")
        await self.entered.wait()

    async def end(self) -> None:
        self.go.set()
        await self.ana.wait_idle()


def drafts(*, prefix: str = "m", **how: Any) -> list[Draft]:
    return [Draft(f"{prefix}{number}", id=f"{prefix}{number}", **how) for number in range(MANY)]


async def accepted_by_a_live_turn(life: Life, steps: Steps) -> None:
    await life.into_a_tool()
    with steps.counting():
        receipts = await life.ana.send_many(drafts())
    assert [each.state for each in receipts] == ["accepted"] * MANY


async def sent_again(life: Life, steps: Steps) -> None:
    await life.into_a_tool()
    receipts = await life.ana.send_many(drafts())
    before = life.runtime.statistics().requests
    with steps.counting():
        assert await life.ana.send_many(drafts()) == receipts
    assert life.runtime.statistics().requests == before


async def sent_twice_at_once(life: Life, steps: Steps) -> None:
    await life.into_a_tool()
    given: list[tuple[Receipt, ...]] = []

    async def send() -> None:
        given.append(await life.ana.send_many(drafts()))

    with steps.counting():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            nursery.start_soon(send)
    assert given[0] == given[1]
    assert len({receipt.seq for receipt in given[0]}) == MANY


async def joined_at_a_boundary(life: Life, steps: Steps) -> None:
    await life.into_a_tool()
    await life.ana.send_many(drafts())
    with steps.counting():
        await life.end()
    assert len(life.provider.requests) == 2
    assert len(life.provider.requests[1].messages) == MANY + 3


async def landed_at_a_turns_end(life: Life, steps: Steps) -> None:
    await life.into_a_tool()
    await life.ana.send_many(drafts(joins=False, wake=False))
    with steps.counting():
        await life.end()
    assert len(life.provider.requests[1].messages) == 3
    assert [row.text async for row in life.ana.transcript()][-1] == f"m{MANY - 1}"


async def answered_by_an_idle_agent(life: Life, steps: Steps) -> None:
    with steps.counting():
        receipts = await life.ana.send_many(drafts())
        await life.entered.wait()
    assert [each.state for each in receipts] == ["stored"] * MANY
    assert len(life.provider.requests[0].messages) == MANY


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    "do",
    [
        accepted_by_a_live_turn,
        sent_again,
        sent_twice_at_once,
        joined_at_a_boundary,
        landed_at_a_turns_end,
        answered_by_an_idle_agent,
    ],
    ids=lambda do: do.__name__.replace("_", " "),
)
async def test_no_step_of_the_loop_does_more_than_a_few_calls_for_each_of_2101_messages(
    tmp_path: Path, do: Callable[[Life, Steps], Awaitable[None]]
) -> None:
    steps = Steps()
    with trio.fail_after(60):
        async with open_runtime(tmp_path, control=False) as runtime:
            life = Life(runtime, Bare())
            await life.add()
            await do(life, steps)
            await life.end()
    assert steps.most <= CALLS_A_MESSAGE_MAX * MANY, steps.whose


@pytest.mark.parametrize("waits", ["in the slot", "in the inbox"])
async def test_a_slot_with_2101_messages_is_read_in_steps_when_it_starts(
    tmp_path: Path, waits: str
) -> None:
    steps = Steps()
    with trio.fail_after(60):
        async with open_runtime(tmp_path, control=False) as runtime:
            life = Life(runtime, Bare())
            await life.add()
            if waits == "in the inbox":
                await runtime.quiesce(reason="a test")
            await life.ana.send_many(drafts(wake=False))
        async with open_runtime(tmp_path, control=False) as runtime:
            life = Life(runtime, Bare())
            with steps.counting():
                await life.add()
                shown = len(await runtime.inbox("ana", limit=1_000))
            assert shown == (1_000 if waits == "in the inbox" else 0)
    # A row's read is about twenty calls: 2,101 of them at once would be 40,000.
    assert steps.most <= CALLS_A_MESSAGE_MAX * MANY, steps.whose
