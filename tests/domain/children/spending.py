"""A host whose agent calls a tool, and that may die at a crash point."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from abeyance.actors import AgentSpec, Budget, Tool, open_runtime
from abeyance.actors.providers.port import ModelRequest, ProviderMessage, Usage
from abeyance.actors.testing import ScriptedProvider, reply
from abeyance.storage.crashpoints import arm
from abeyance.storage.tables.blocks import TextBlock, ToolUseBlock


async def ask_beside(directory: Path, point: str) -> None:
    """A host whose agent makes an auxiliary call that was answered, and one that may kill it."""
    usage = Usage(input_tokens=1_000, output_tokens=100)
    answered: list[object] = []

    def script(_request: object) -> object:
        if answered and point == "in the call":
            os.kill(os.getpid(), signal.SIGKILL)
        answered.append(_request)
        return reply("x", usage=usage)

    async with open_runtime(directory, control=False) as runtime:
        provider = ScriptedProvider(script)  # type: ignore[arg-type]
        ana = await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        message = ProviderMessage("user", (TextBlock(text="sum up"),))
        request = ModelRequest(model="m", messages=(message,))
        await ana.auxiliary_call(request)
        if point != "in the call":
            arm(point)
        await ana.auxiliary_call(request)


async def live(directory: Path, point: str, budget: int | None = None) -> None:
    look = ToolUseBlock(id="c1", name="look", input={})
    usage = Usage(input_tokens=1_000, output_tokens=100)
    schema = {"type": "object", "properties": {}}
    tool = Tool(name="look", description="look", input_schema=schema, run=lambda: "seen")
    async with open_runtime(directory, control=False) as runtime:
        provider = ScriptedProvider([reply(look, usage=usage), reply("x", usage=usage)])
        arm(point)
        budgets = [] if budget is None else [Budget(per="life", tokens=budget)]
        print(runtime.clock.now_ms(), flush=True)
        ana = await runtime.add_agent(
            AgentSpec(name="ana", provider=provider, model="m", tools=[tool], budgets=budgets)
        )
        await ana.send("go")
        await ana.wait_idle()
