"""A host whose agent's system prompt is a function's, and that may die at a crash point."""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from abeyance.actors import AgentSpec, open_runtime
from abeyance.actors.testing import ScriptedProvider, call_tool, fail
from abeyance.storage.crashpoints import arm


async def live(directory: Path, point: str) -> None:
    async with open_runtime(directory, control=False) as runtime:
        provider = ScriptedProvider([call_tool("look"), fail(500)])
        spec = AgentSpec(name="ana", provider=provider, model="m", system=lambda turn: "first")
        ana = await runtime.add_agent(spec)
        arm(point)
        await ana.send("a", id="a")
        await ana.wait_idle()


if __name__ == "__main__":
    trio.run(live, Path(sys.argv[1]), sys.argv[2])
