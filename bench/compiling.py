"""What many messages cost the loop, and what a long slot costs a turn that carries little of it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import trio

from abeyance.actors import AgentHandle, AgentSpec, ContextDesk, Draft, Summary, Tool, open_runtime
from abeyance.actors.providers.port import (
    ModelReply,
    ModelRequest,
    OnDelta,
    StopReason,
    use_permit,
)
from abeyance.storage.codec import encode
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Committed, Put, Request
from abeyance.storage.tables.blocks import TextBlock, ToolUseBlock
from abeyance.storage.tables.contexts import Context

from .accepting import Lag, stall_of
from .boundary import fill
from .measure import AsyncPiece, Bound, Result, Scale, in_turns, ratio_of

_MANY = 2_101
_LEFT = 10
"""Rows behind the summary, and in the slot beside."""


class _Caller:
    """A provider that calls its tool once, where it is told to, and notes when it was asked."""

    carries_injections = True

    def __init__(self, *, calls: bool) -> None:
        self._calls = calls
        self.came = 0.0

    async def call(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        use_permit()
        self.came = time.perf_counter()
        await trio.lowlevel.checkpoint()
        self._calls, calls = False, self._calls
        if calls:
            use = ToolUseBlock(id="call", name="t", input={})
            return ModelReply((use,), StopReason.TOOL_USE)
        return ModelReply((TextBlock(text="done"),), StopReason.END_TURN)

    async def aclose(self) -> None:
        return None


# -- 2,101 messages ------------------------------------------------------------------------------


async def _batches(scale: Scale) -> list[Result]:
    lag = Lag()
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent, prefix=".state-") as folder:
        async with open_runtime(Path(folder) / "state", control=False) as runtime:
            for number in range(scale.rounds):
                entered, go = trio.Event(), trio.Event()

                async def wait(entered: trio.Event = entered, go: trio.Event = go) -> str:
                    entered.set()
                    await go.wait()
                    return "x"

                tool = Tool(name="t", description="t", input_schema={"type": "object"}, run=wait)
                agent = await runtime.add_agent(
                    AgentSpec(
                        name=f"agent-{number}",
                        provider=_Caller(calls=True),
                        model="m",
                        tools=[tool],
                    )
                )
                await agent.send("go")
                await entered.wait()
                drafts = [Draft(f"message {each}", id=f"m{each}") for each in range(_MANY)]
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(lag.watch)
                    await agent.send_many(drafts)
                    await agent.send_many(drafts)
                    go.set()
                    await agent.wait_idle()
                    nursery.cancel_scope.cancel()
    text = (
        f"how late the loop resumes a sleeper while {_MANY} are sent, sent again, and join, p99.9"
    )
    return [stall_of("stall-2101", text, lag)]


def batches(scale: Scale) -> list[Result]:
    return trio.run(_batches, scale)


# -- a long slot ---------------------------------------------------------------------------------


class _Newest:
    """A strategy whose summary was made before."""

    def view(self, summaries: Iterable[Summary]) -> Summary | None:
        return next(iter(summaries), None)

    async def compact(self, desk: ContextDesk) -> None:
        return None

    async def on_wait_recorded(self, event: Any) -> None: ...
    async def on_wait_released(self, event: Any) -> None: ...
    async def on_call_deferred(self, event: Any) -> None: ...


def _summarise(path: Path, slot: str, last: int) -> None:
    store = LmdbStore.open(path, clock_ms=lambda: 1)
    context = Context(first=1, text="in short", strategy="_Newest", made_ms=1)
    (outcome,) = store.commit(Request(puts=(Put("contexts", (slot, slot, last), encode(context)),)))
    assert isinstance(outcome, Committed), outcome
    store.close()


def _compiling(agent: AgentHandle, provider: _Caller) -> AsyncPiece:
    async def piece(count: int) -> float:
        """From a message's receipt to its turn's request: the seconds of so many."""
        seconds = 0.0
        for _ in range(count):
            await agent.send("go")
            begun = time.perf_counter()
            await agent.wait_idle()
            seconds += provider.came - begun
        return max(seconds, 1e-9)

    return piece


async def _compiles(scale: Scale) -> list[Result]:
    many = 10_000 if scale.quick else 100_000
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent, prefix=".state-") as folder:
        path = Path(folder) / "state"
        fill(path, "long", many)
        fill(path, "short", _LEFT)
        _summarise(path, "long", many - _LEFT)
        async with open_runtime(path, control=False) as runtime:
            pieces = []
            for name in ("long", "short"):
                provider = _Caller(calls=False)
                spec = AgentSpec(name=name, provider=provider, model="m", context=_Newest())
                pieces.append(_compiling(await runtime.add_agent(spec), provider))
            long, short = pieces
            rates = await in_turns(scale, long, short, first=5, most=200)
    return [
        ratio_of(
            "compile",
            f"a turn's first request in a slot of {many}, all but {_LEFT} behind a summary",
            f"in a slot of {_LEFT}",
            rates,
            Bound(None, 1.5, "lower"),
        )
    ]


def compiles(scale: Scale) -> list[Result]:
    return trio.run(_compiles, scale)
