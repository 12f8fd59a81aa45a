"""A host whose operator cancels a turn, and which may die at a crash point. A line for each act
that was acknowledged. Its wait is too short for an alert, which would be a commit of its own."""

from __future__ import annotations

from pathlib import Path

import trio

from abeyance.actors import AgentSpec, Tool, open_runtime
from abeyance.actors.testing import Gate, ScriptedProvider, call_tool, fail
from abeyance.storage.crashpoints import arm


async def live(directory: Path, where: str, point: str) -> None:
    entered = trio.Event()

    async def wait() -> None:
        entered.set()
        await trio.sleep_forever()

    async with open_runtime(directory, control=False) as runtime:
        gate = Gate(call_tool("wait"))
        first = {"live": gate, "tool": call_tool("wait"), "held": fail(429, retry_after=600)}
        provider = ScriptedProvider([first[where]])
        tools = [Tool(name="wait", description="", input_schema={"type": "object"}, run=wait)]
        ana = await runtime.add_agent(
            AgentSpec(name="ana", provider=provider, model="m", tools=tools)
        )
        if point.startswith("turn."):
            arm(point)
            gate.release()
        await ana.send("a", id="a")
        if where == "live":
            await gate.wait_entered()
        elif where == "tool":
            await entered.wait()
        else:
            await ana.wait_idle()
        arm(point)
        receipt = await ana.cancel_turn(requester="ops")
        print(receipt.state, flush=True)
