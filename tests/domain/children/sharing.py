"""A host that dies, as by SIGKILL, in the middle of a turn on a slot that agents share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import trio

from abeyance.actors import AgentSpec, open_runtime
from abeyance.actors.testing import Gate, ScriptedProvider, call_tool

from ..world import Stop


async def live(directory: Path, where: str) -> None:
    stop, gate = Stop(), Gate()
    script = [call_tool("wait") if where == "in a tool" else gate]
    async with open_runtime(directory, control=False) as runtime, trio.open_nursery() as nursery:
        provider = ScriptedProvider(script)
        ana = await runtime.add_agent(
            AgentSpec(name="ana", provider=provider, model="m", slot="room", tools=[stop.tool()])
        )
        if where == "in an operator's pair":

            async def run() -> None:
                await ana.run_tool("wait", requester="ops")

            nursery.start_soon(run)
        else:
            await ana.send("go")
        await (gate.wait_entered() if where == "in a call" else stop.entered.wait())
        os.kill(os.getpid(), signal.SIGKILL)
