"""A host that traces, and that may die at a crash point."""

from __future__ import annotations

from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from abeyance.actors import AgentSpec, open_runtime
from abeyance.actors.testing import ScriptedProvider, reply
from abeyance.storage.crashpoints import arm


async def live(directory: Path, point: str) -> None:
    trace.set_tracer_provider(TracerProvider())
    async with open_runtime(directory, control=False, trace=True) as runtime:
        arm(point)
        provider = ScriptedProvider([reply("never stored")])
        ana = await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        await ana.send("go")
        await ana.wait_idle()
