"""A host that traces, and that may die at a crash point."""

from __future__ import annotations

from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from abeyance.actors import AgentSpec, open_runtime
from abeyance.actors.testing import ScriptedProvider, call_tool, reply
from abeyance.storage.crashpoints import arm

from ..world import tool


async def live(directory: Path, point: str) -> None:
    trace.set_tracer_provider(TracerProvider())
    async with open_runtime(directory, control=False, trace=True) as runtime:
        arm(point)
        provider = ScriptedProvider([call_tool("look"), reply("never said")])
        look = tool("look", lambda: "rain")
        spec = AgentSpec(name="ana", provider=provider, model="m", tools=[look])
        ana = await runtime.add_agent(spec)
        await ana.send("go")
        await ana.wait_idle()
