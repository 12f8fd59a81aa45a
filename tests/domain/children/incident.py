"""A host with one agent on the Anthropic wire, steered by JSON lines; it is there to be killed.

Arguments: the state directory, the provider's URL, and by how many milliseconds its wall clock is
ahead. Each line of standard input is a call of a function below and its arguments; each line of
standard output is what it came to. The first line of output says that the agent is there.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import trio

from abeyance.actors import AgentHandle, AgentSpec, Runtime, open_runtime
from abeyance.actors.domain.protocol import Admit
from abeyance.actors.domain.wait_book import Deferral
from abeyance.actors.providers import AnthropicProvider


class AheadClock:
    """The machine's wall clock, and what it is ahead by."""

    def __init__(self, ahead_ms: int) -> None:
        self.ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


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
        return [tuple(wait) for wait in self.runtime.provider_waits()]

    async def tick(self) -> str:
        """What a compression asks before its call: may one be made to this model?"""
        gate = self.runtime._system.find("gate:ana")
        assert gate is not None
        answer = await gate.ask(Admit("m", "auxiliary"))
        return f"deferred: {answer.cause}" if isinstance(answer, Deferral) else "admitted"

    async def release(self) -> list[str]:
        receipt = await self.runtime.release_provider_wait("ana", requester="ops")
        return [item.reach for item in receipt.released]

    async def step(self, ms: int) -> None:
        """Step the wall clock, as an administrator may."""
        self.clock.ahead_ms += ms

    async def shown(self) -> list[str]:
        return [f"{row.role}: {row.text}" async for row in self.ana.transcript()]


async def main(directory: str, base_url: str, ahead_ms: str) -> None:
    clock = AheadClock(int(ahead_ms))
    async with open_runtime(directory, clock=clock) as runtime:
        provider = AnthropicProvider(api_key="any", base_url=base_url, clock=clock)
        ana = await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        host = Host(runtime, ana, clock)
        print(json.dumps("ready"), flush=True)
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            name, *arguments = json.loads(line)
            print(json.dumps(await getattr(host, name)(*arguments)), flush=True)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
