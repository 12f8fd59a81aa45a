"""A host with one agent on the Anthropic wire, steered through a pipe; it is there to be killed.

What it is sent is a call of a method of `Host` and its arguments, what it sends what that came to.
The first that it sends says that the agent is there.
"""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import trio

from abeyance.actors import AgentHandle, AgentSpec, Runtime, open_runtime
from abeyance.actors.context import CallDeferred, CompactingContext
from abeyance.actors.domain.protocol import Admit, TurnOver
from abeyance.actors.domain.wait_book import Deferral
from abeyance.actors.providers import AnthropicProvider


class AheadClock:
    """The machine's wall clock, and what it is ahead by."""

    def __init__(self, ahead_ms: int) -> None:
        self.ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


class Compacting(CompactingContext):
    """Sums up all that was answered, once it is long; notes what was deferred."""

    __slots__ = ()
    deferred: ClassVar[list[str]] = []
    told: ClassVar[trio.Event] = trio.Event()

    async def on_call_deferred(self, event: CallDeferred) -> None:
        self.deferred.append(event.cause)
        self.told.set()


class Host:
    def __init__(self, runtime: Runtime, ana: AgentHandle, clock: AheadClock) -> None:
        self.runtime = runtime
        self.ana = ana
        self.clock = clock

    async def send(self, text: str) -> str:
        """Accept a message; what it comes to is another matter."""
        return (await self.ana.send(text)).id

    async def settle(self) -> str:
        await self.ana.wait_idle()
        return self.runtime.status().agents[0].state

    async def rewind(self, to: str) -> list[int | None]:
        return list(await self.ana.rewind(to=to, requester="ops"))

    async def waits(self) -> list[tuple[Any, ...]]:
        waits = self.runtime.provider_waits()
        return [(w.agent, w.model, w.deadline_ms, w.reason, w.set_ms) for w in waits]

    async def tick(self) -> str:
        """What a compression asks before its call: may one be made to this model?"""
        gate = self.runtime._system.find("gate:ana")
        assert gate is not None
        answer = await gate.ask(Admit("m", "auxiliary"))
        return f"deferred: {answer.cause}" if isinstance(answer, Deferral) else "admitted"

    async def compact(self) -> list[str]:
        """A tick of the compaction, as at the end of a long turn, and what deferred its call."""
        keeper = self.runtime._system.find("context:ana")
        assert keeper is not None
        keeper.tell(TurnOver(10_000))
        await Compacting.told.wait()
        return Compacting.deferred

    async def refused(self) -> str:
        """Whose wait is recorded, once one is."""
        with self.runtime.events(kinds=["wait_recorded"]) as recorded:
            if not self.runtime.provider_waits():
                await anext(aiter(recorded))
        return self.runtime.provider_waits()[0].agent

    async def summed_up(self) -> list[str]:
        """The summaries, once there is any."""
        with self.runtime.events(kinds=["context_kept"]) as kept:
            if not self.ana.summaries():
                await anext(aiter(kept))
        return [each.text for each in self.ana.summaries()]

    async def release(self) -> list[str]:
        receipt = await self.runtime.release_provider_wait("ana", requester="ops")
        return [item.reach for item in receipt.released]

    async def step(self, ms: int) -> None:
        """Step the wall clock, as an administrator may."""
        self.clock.ahead_ms += ms

    async def shown(self) -> list[str]:
        return [f"{row.role}: {row.text}" async for row in self.ana.transcript()]


async def host(
    pipe: Connection, directory: Path, base_url: str, ahead_ms: int, compacts: bool
) -> None:
    """Be a host whose wall clock is ahead; its agent sums up what was answered, once it is long."""
    clock = AheadClock(ahead_ms)
    async with open_runtime(directory, clock=clock) as runtime:
        provider = AnthropicProvider(api_key="any", base_url=base_url, clock=clock)
        context = Compacting(past_chars=2_000, keep_chars=0) if compacts else None
        spec = AgentSpec(name="ana", provider=provider, model="m", context=context)
        steered = Host(runtime, await runtime.add_agent(spec), clock)
        pipe.send("ready")
        while True:
            name, *arguments = await trio.to_thread.run_sync(pipe.recv)
            pipe.send(await getattr(steered, name)(*arguments))
