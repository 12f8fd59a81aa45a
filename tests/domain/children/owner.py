"""A process that owns an agent until its standard input ends. Arguments: directory, agent."""

from __future__ import annotations

import sys

import trio

from abeyance.actors import AgentSpec, open_runtime
from abeyance.actors.testing import ScriptedProvider


async def main(directory: str, name: str) -> None:
    async with open_runtime(directory, control=False) as runtime:
        provider = ScriptedProvider.echo()
        await runtime.add_agent(AgentSpec(name=name, provider=provider, model="m"))
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
