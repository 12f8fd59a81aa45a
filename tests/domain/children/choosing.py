"""A host that chooses another model for an agent that is held, and may die at a crash point."""

from __future__ import annotations

from pathlib import Path

from abeyance.actors import AgentSpec, open_runtime
from abeyance.actors.testing import ScriptedProvider, fail, reply
from abeyance.storage.crashpoints import arm


async def live(directory: Path, point: str) -> None:
    async with open_runtime(directory, control=False) as runtime:
        provider = ScriptedProvider([fail(429, retry_after=3_000), reply("never")])
        ana = await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        await ana.send("a", id="a")
        await ana.wait_idle()
        arm(point)
        await ana.set_model("m2")
        print("chosen", flush=True)
