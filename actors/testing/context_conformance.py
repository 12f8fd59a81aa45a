"""What every context strategy must do, as tests to inherit.

    class TestMyStrategy(ContextConformance):
        def strategy(self):
            return MyStrategy(past_chars=4_000)

Run them by pytest under trio (pytest-trio's mode). Each opens a runtime on a fresh directory with a
provider in process. Nothing here sleeps; a strategy that never comes to an end fails by
`TIMEOUT_S`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from abeyance.storage.tables.blocks import TextBlock, ToolResultBlock, ToolUseBlock

from ..domain.context import (
    CallDeferred,
    ContextDesk,
    ContextStrategy,
    Summary,
    WaitRecorded,
    WaitReleased,
    check_strategy,
)
from ..domain.errors import CallDeferredError
from ..domain.spec import AgentSpec
from ..domain.tools import Tool
from ..domain.views import block_size, size_of
from ..handle import AgentHandle
from ..opening import open_runtime
from ..providers.port import ModelRequest
from ..runtime import Runtime
from .scripted import Gate, ScriptedProvider, Step, call_tool, fail, reply, rounds_made
from .settled import settled

TIMEOUT_S = 20.0
"""No test here takes a second; a loaded machine may."""
SUMMARY = "what was said, in short"


class Watched:
    """A strategy as the runtime is given it, with what it did noted."""

    def __init__(self, strategy: ContextStrategy) -> None:
        self.strategy = strategy
        self.desk: ContextDesk | None = None
        self.raised: list[BaseException] = []
        self.views: list[Summary | None] = []

    def view(self, summaries: Any) -> Summary | None:
        chosen = self.strategy.view(summaries)
        self.views.append(chosen)
        return chosen

    async def compact(self, desk: ContextDesk) -> None:
        self.desk = desk
        try:
            await self.strategy.compact(desk)
        except Exception as error:
            self.raised.append(error)
            raise

    async def on_wait_recorded(self, event: WaitRecorded) -> None:
        await self.strategy.on_wait_recorded(event)

    async def on_wait_released(self, event: WaitReleased) -> None:
        await self.strategy.on_wait_released(event)

    async def on_call_deferred(self, event: CallDeferred) -> None:
        await self.strategy.on_call_deferred(event)


class Stage:
    """One agent whose strategy is under test, and its provider."""

    def __init__(self, runtime: Runtime, strategy: ContextStrategy, name: str) -> None:
        self.runtime = runtime
        self.watched = Watched(strategy)
        self.name = name
        self.summing: Callable[[], Step] = lambda: reply(SUMMARY)
        self.turning: Callable[[ModelRequest], Step] | None = None
        self.provider = ScriptedProvider(self._answer)

    async def add(self) -> AgentHandle:
        """Add the agent, or add it again."""
        spec = AgentSpec(
            name=self.name,
            provider=self.provider,
            model="m",
            tools=[Tool("look", "Look.", {"type": "object"}, lambda: "seen " * 20)],
            context=self.watched,
        )
        with trio.fail_after(TIMEOUT_S):
            return await self.runtime.add_agent(spec)

    async def say(self, *words: str) -> None:
        """Send messages, a turn each, and wait until the strategy is done, too."""
        agent = self.runtime.agent(self.name)
        for word in words:
            with trio.fail_after(TIMEOUT_S):
                await agent.send(word)
                await agent.wait_idle()
                await settled(self.runtime)

    async def talk(self, chars: int, *, tools: bool = False) -> None:
        """Talk until the transcript is longer than so many characters."""
        if tools:
            self.turning = lambda request: (
                call_tool("look", {}) if rounds_made(request) == 0 else reply("so " * 100)
            )
        while await self.size() <= chars:
            await self.say(f"message {len(self.turns)} " + "x" * 300)
        self.turning = None

    async def size(self) -> int:
        """How many characters the whole transcript has."""
        rows = [row async for row in self.runtime.agent(self.name).transcript()]
        return sum(block_size(block) for row in rows for block in row.blocks)

    @property
    def turns(self) -> list[ModelRequest]:
        return self._of("turn")

    @property
    def calls(self) -> list[ModelRequest]:
        """The strategy's own."""
        return self._of("auxiliary")

    @property
    def summaries(self) -> tuple[Summary, ...]:
        return self.runtime.agent(self.name).summaries()

    @property
    def desk(self) -> ContextDesk:
        assert self.watched.desk is not None, "compact was never called"
        return self.watched.desk

    def _of(self, purpose: str) -> list[ModelRequest]:
        both = zip(self.provider.requests, self.provider.permits, strict=True)
        return [request for request, permit in both if permit.purpose == purpose]

    def _answer(self, request: ModelRequest) -> Step:
        if self.provider.permits[-1].purpose == "auxiliary":
            return self.summing()
        if self.turning is not None:
            return self.turning(request)
        return reply(f"answer {len(self.turns)} " + "y" * 300)


class ContextConformance(ABC):
    """What holds for every strategy. Implement `strategy`.

    Attributes:
        past_chars: Of a transcript that is longer the strategy must have compacted some by the end
            of the turn that made it so.
        calls: Whether it asks the provider at all.
    """

    past_chars = 8_000
    calls = True

    @abstractmethod
    def strategy(self) -> ContextStrategy:
        """Make a strategy; each call makes one that remembers nothing."""

    @asynccontextmanager
    async def stage(
        self, directory: Path, *, strategy: ContextStrategy | None = None, name: str = "ana"
    ) -> AsyncIterator[Stage]:
        """Open a runtime with one agent on it."""
        async with open_runtime(directory, control=False) as runtime:
            stage = Stage(runtime, strategy or self.strategy(), name)
            await stage.add()
            yield stage

    def test_it_has_every_method(self) -> None:
        strategy = self.strategy()
        assert check_strategy(strategy) is strategy

    def test_its_view_is_one_of_what_it_is_offered_or_none_and_stays_the_same(self) -> None:
        strategy = self.strategy()
        assert strategy.view(iter(())) is None, "there is nothing to choose"
        offered = [Summary(last, 1, f"up to {last}", "Any", last) for last in (30, 20, 10)]
        chosen = strategy.view(iter(offered))
        assert chosen is None or chosen in offered
        assert strategy.view(iter(offered)) == chosen, "the same is offered"

    async def test_it_takes_every_event(self) -> None:
        strategy = self.strategy()
        with trio.fail_after(TIMEOUT_S):
            for deadline_ms in (None, 1_800_000_000_000):
                await _told(strategy.on_wait_recorded(WaitRecorded("a", "m", deadline_ms, "x")))
                deferred = CallDeferred("a", "m", "wait", deadline_ms, "x")
                await _told(strategy.on_call_deferred(deferred))
            for model in ("m", "another", None):
                await _told(strategy.on_wait_released(WaitReleased("a", model)))

    async def test_it_leaves_a_short_transcript_alone(self, tmp_path: Path) -> None:
        async with self.stage(tmp_path / "state") as stage:
            stage.turning = lambda _request: reply("so")
            await stage.say("a few words", "of no weight")
            assert stage.calls == []
            assert stage.summaries == ()
            assert stage.watched.raised == []

    async def test_it_compacts_a_long_transcript_and_later_turns_carry_less(
        self, tmp_path: Path
    ) -> None:
        async with self.stage(tmp_path / "state") as stage:
            await stage.talk(self.past_chars)
            assert stage.watched.raised == []
            assert stage.summaries, "nothing was compacted"
            assert bool(stage.calls) == self.calls
            await stage.say("one more")
            request = stage.turns[-1]
            assert size_of(request.messages) < await stage.size()
            assert request.messages[-1].blocks == (TextBlock(text="one more"),)
            assert stage.watched.views[-1] is not None

    async def test_it_compacts_a_transcript_of_tool_calls_and_parts_none_from_its_result(
        self, tmp_path: Path
    ) -> None:
        async with self.stage(tmp_path / "state") as stage:
            await stage.talk(self.past_chars, tools=True)
            assert stage.watched.raised == []
            assert stage.summaries, "nothing was compacted"
            await stage.say("one more")
            _paired(stage.turns[-1])

    async def test_it_compacts_nothing_twice(self, tmp_path: Path) -> None:
        async with self.stage(tmp_path / "state") as stage:
            await stage.talk(self.past_chars)
            calls, kept = len(stage.calls), stage.summaries
            for _ in range(3):
                with trio.fail_after(TIMEOUT_S):
                    await stage.watched.compact(stage.desk)
            assert len(stage.calls) == calls, "it asks again though nothing was said since"
            assert stage.summaries == kept

    async def test_it_goes_on_with_what_is_kept_after_a_restart(self, tmp_path: Path) -> None:
        async with self.stage(tmp_path / "state") as stage:
            await stage.talk(self.past_chars)
        async with self.stage(tmp_path / "state") as stage:
            await stage.say("after")
            assert stage.watched.views[-1] is not None, "it forgot what is kept"
            assert stage.watched.raised == []

    async def test_one_instance_serves_several_agents(self, tmp_path: Path) -> None:
        strategy = self.strategy()
        async with self.stage(tmp_path / "state", strategy=strategy) as stage:
            other = Stage(stage.runtime, strategy, "bo")
            other.summing = lambda: reply(f"bo: {SUMMARY}")
            await other.add()
            await stage.talk(self.past_chars)
            assert other.summaries == ()
            await other.talk(self.past_chars)
            for each in (stage, other):
                await each.say("one more")
                chosen = each.watched.views[-1]
                assert chosen is not None
                assert chosen in each.summaries, "it chose another agent's"

    async def test_a_call_that_is_deferred_is_made_once_when_the_wait_is_over(
        self, tmp_path: Path
    ) -> None:
        if not self.calls:
            return
        async with self.stage(tmp_path / "state") as stage:
            stage.summing = lambda: fail(429, retry_after=7_200)
            await stage.talk(self.past_chars)
            assert len(stage.calls) == 1, "a stated wait is not retried"
            assert stage.summaries == ()
            model = stage.calls[0].model
            with trio.fail_after(TIMEOUT_S):
                for _ in range(3):
                    try:
                        await stage.watched.strategy.compact(stage.desk)
                    except CallDeferredError:
                        continue  # As it may.
            assert len(stage.calls) == 1, "a held model was called"
            stage.summing = lambda: reply(SUMMARY)
            with trio.fail_after(TIMEOUT_S):
                await stage.runtime.release_provider_wait("ana", model, requester="ops")
                await settled(stage.runtime)
            assert len(stage.calls) >= 2, "it was not made again"
            assert stage.summaries

    async def test_a_call_that_fails_keeps_nothing(self, tmp_path: Path) -> None:
        if not self.calls:
            return
        async with self.stage(tmp_path / "state") as stage:
            stage.summing = lambda: fail(500)
            await stage.talk(self.past_chars)
            assert len(stage.calls) == 1, "it retries by itself"
            assert stage.summaries == ()
            await stage.say("one more")
            assert stage.turns[-1].messages[-1].blocks == (TextBlock(text="one more"),)
            assert size_of(stage.turns[-1].messages) > self.past_chars, "and nothing is left out"

    async def test_a_reply_without_text_keeps_nothing(self, tmp_path: Path) -> None:
        if not self.calls:
            return
        async with self.stage(tmp_path / "state") as stage:
            stage.summing = lambda: reply(" ")
            await stage.talk(self.past_chars)
            assert stage.summaries == (), "what the model forgot would be lost to the agent"

    async def test_one_that_is_cancelled_leaves_nothing_out(self, tmp_path: Path) -> None:
        if not self.calls:
            return
        async with self.stage(tmp_path / "state") as stage:
            gate = Gate(reply(SUMMARY))
            stage.summing = lambda: fail(500)
            await stage.talk(self.past_chars)
            stage.summing = lambda: gate
            with trio.fail_after(TIMEOUT_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(stage.watched.strategy.compact, stage.desk)
                    await gate.wait_entered()
                    nursery.cancel_scope.cancel()
                await settled(stage.runtime)
            assert stage.summaries == ()
            await stage.say("one more")
            assert stage.turns[-1].messages[-1].blocks == (TextBlock(text="one more"),)


async def _told(accepted: Any) -> None:
    if accepted is not None:
        await accepted


def _paired(request: ModelRequest) -> None:
    """Every call has its result right behind it, and every result its call in front."""
    owed: Sequence[str] = ()
    for message in request.messages:
        results = [each.tool_use_id for each in message.blocks if isinstance(each, ToolResultBlock)]
        assert results == list(owed), f"{owed} are owed, and {results} follow"
        owed = [each.id for each in message.blocks if isinstance(each, ToolUseBlock)]
    assert not owed
