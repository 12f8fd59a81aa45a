"""What a boundary costs, in a long slot beside a short one, and with a full inbox.

A boundary is what a turn waits for between its tools and its next request: the slot plans it, the
store commits it, and what joined is read back. The request that follows holds every message, as
does what an adapter makes of it; the whole round is shown beside.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import trio

from abeyance.actors import AgentHandle, AgentSpec, Runtime, Tool, open_runtime
from abeyance.actors.domain.slot_messages import CloseGap
from abeyance.actors.domain.turn import TurnTask
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
from abeyance.storage.tables.slots import Body, Entry

from .measure import AsyncPiece, Bound, Result, Scale, in_turns, ratio_of

_LONG = "long"
_ROUNDS_MAX = 1_000_000
_PUTS = 5_000
_WAITING = 9_000
"""Messages in the inbox behind one that may not join; an inbox holds 10,000."""
_SENDERS = 256
_ROUNDS = 20
"""Boundaries a piece. The request behind each holds all messages, and takes far longer."""


class _Rounds:
    """A provider that calls a tool for so many rounds, and notes when each request came."""

    carries_injections = True

    def begin(self, rounds: int) -> None:
        """Make ready for a turn."""
        self.left = rounds
        self.came: list[float] = []
        self.begun, self.go = trio.Event(), trio.Event()

    async def call(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        use_permit()
        self.came.append(time.perf_counter())
        if not self.begun.is_set():
            self.begun.set()
            await self.go.wait()
            self.came[-1] = time.perf_counter()
        if self.left == 0:
            return ModelReply((TextBlock(text="done"),), StopReason.END_TURN)
        self.left -= 1
        use = ToolUseBlock(id=f"call_{len(self.came)}_{len(request.messages)}", name="t", input={})
        return ModelReply((use,), StopReason.TOOL_USE)

    async def aclose(self) -> None:
        return None


def _puts(slot: str, rows: int) -> Iterator[Put]:
    for entry in range(1, rows + 1):
        text = f"message {entry} of a conversation that went on for a while, as they do"
        yield Put("bodies", (slot, entry), encode(Body(blocks=(TextBlock(text=text),))))
        row = Entry(entry=entry, message=f"m{entry}", author="user", role="user", at_ms=1)
        yield Put("slots", (slot, entry), encode(row))


def fill(path: Path, slot: str, rows: int) -> None:
    """Put so many messages into a slot of a stopped store."""
    store = LmdbStore.open(path, clock_ms=lambda: 1)
    puts = _puts(slot, rows)
    while batch := tuple(itertools.islice(puts, _PUTS)):
        (outcome,) = store.commit(Request(puts=batch))
        assert isinstance(outcome, Committed), outcome
    store.close()


class _Boundaries:
    """How long the turns of this process have waited for boundaries."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        ask = TurnTask._ask

        async def timed_ask(task: TurnTask, kind: Any, **fields: Any) -> Any:
            start = time.perf_counter()
            answer = await ask(task, kind, **fields)
            if kind is CloseGap:
                self.seconds += time.perf_counter() - start
            return answer

        with patch.object(TurnTask, "_ask", timed_ask):
            yield


class _Host:
    """A runtime, and an agent for each piece: one in the long slot, fresh ones otherwise."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._names = itertools.count(1)
        self._long: tuple[AgentHandle, _Rounds] | None = None
        self.boundaries = _Boundaries()
        self.round_ms: dict[str, list[float]] = {}
        """What a whole round took, by the side that it was of."""

    async def _agent(self, name: str) -> tuple[AgentHandle, _Rounds]:
        provider = _Rounds()
        tool = Tool(name="t", description="t", input_schema={"type": "object"}, run=_nothing)
        spec = AgentSpec(
            name=name, provider=provider, model="m", tools=[tool], rounds_max=_ROUNDS_MAX
        )
        return await self._runtime.add_agent(spec), provider

    async def in_long_slot(self, count: int) -> float:
        if self._long is None:
            self._long = await self._agent(_LONG)
        return await self._turn("long", *self._long, count)

    async def in_short_slot(self, count: int) -> float:
        return await self._turn("short", *await self._agent(f"ana-{next(self._names)}"), count)

    def with_inbox(self, waiting: int) -> AsyncPiece:
        async def piece(count: int) -> float:
            agent, provider = await self._agent(f"ana-{next(self._names)}")
            side = "full" if waiting else "empty"
            return await self._turn(side, agent, provider, count, waiting)

        return piece

    async def _turn(
        self, side: str, agent: AgentHandle, provider: _Rounds, count: int, waiting: int = 0
    ) -> float:
        """A turn of so many rounds: reply, tool, boundary. The seconds of its boundaries."""
        provider.begin(count)
        await agent.send("go")
        await provider.begun.wait()
        if waiting:
            await agent.send("waits for the turn's end", author=agent.name)
            async with trio.open_nursery() as nursery:
                for first in range(_SENDERS):
                    nursery.start_soon(_send, agent, len(range(first, waiting, _SENDERS)))
        before = self.boundaries.seconds
        provider.go.set()
        await agent.wait_idle()
        seconds = provider.came[count] - provider.came[0]
        self.round_ms.setdefault(side, []).append(seconds / count * 1e3)
        return self.boundaries.seconds - before

    def beside(self, *sides: str) -> dict[str, float]:
        """Whole rounds of these sides."""
        return {f"round_{side}_ms": statistics.median(self.round_ms[side]) for side in sides}


async def _nothing() -> str:
    return "x"


async def _send(agent: AgentHandle, count: int) -> None:
    for _ in range(count):
        await agent.send("behind it", wake=False)


async def _boundaries(scale: Scale) -> list[Result]:
    many = 10_000 if scale.quick else 100_000
    waiting = 1_000 if scale.quick else _WAITING
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent, prefix=".state-") as folder:
        path = Path(folder) / "state"
        fill(path, _LONG, many)
        async with open_runtime(path, control=False) as runtime:
            host = _Host(runtime)
            with host.boundaries.timed():
                long = await in_turns(
                    scale, host.in_long_slot, host.in_short_slot, first=_ROUNDS, most=_ROUNDS
                )
                full = await in_turns(
                    scale, host.with_inbox(waiting), host.with_inbox(0), first=_ROUNDS, most=_ROUNDS
                )
    return [
        ratio_of(
            "boundary",
            f"a boundary in a slot of {many} messages",
            "in a slot of none",
            long,
            Bound(None, 1.5, "lower"),
            beside=host.beside("long", "short"),
        ),
        ratio_of(
            "boundary-inbox",
            f"a boundary with {waiting} messages that wait in the inbox",
            "with none",
            full,
            Bound(None, 1.5, "lower"),
            beside=host.beside("full", "empty"),
        ),
    ]


def boundaries(scale: Scale) -> list[Result]:
    return trio.run(_boundaries, scale)
