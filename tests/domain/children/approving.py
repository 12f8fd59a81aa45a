"""A host whose agent waits for a person, who then decides; it may die at a crash point. A line for
each act that was acknowledged. The tool's effects are in a file beside the state directory."""

from __future__ import annotations

from pathlib import Path

from abeyance.actors import AgentSpec, NeedsApproval, Tool, open_runtime
from abeyance.actors.testing import ScriptedProvider, call_tool, reply
from abeyance.storage.crashpoints import arm


async def live(directory: Path, act: str, point: str) -> None:
    def pay() -> str:
        with Path(f"{directory}.effects").open("a") as file:
            file.write("paid\n")
        return "paid 1"

    async with open_runtime(directory, control=False) as runtime:
        provider = ScriptedProvider([call_tool("pay"), reply("on")])
        tool = Tool("pay", "", {"type": "object"}, pay, approve=NeedsApproval(within_s=None))
        ana = await runtime.add_agent(
            AgentSpec(name="ana", provider=provider, model="m", tools=[tool])
        )
        arm(point)
        await ana.send("a", id="a")
        await ana.wait_idle()
        verb = runtime.approve if act == "approve" else runtime.deny
        await verb("ana/1/1/0", requester="ops")
        print(act, flush=True)
        await ana.wait_idle()
