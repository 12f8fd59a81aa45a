"""An agent whose system prompt is a function of the turn: where it answers, and what it may know.

Run it with a directory for its state. The provider is scripted, so that it needs no key.
"""

import sys

import trio

from abeyance.actors import AgentSpec, Tool, TurnInfo, open_runtime
from abeyance.actors.testing import ScriptedProvider, call_tool, reply

pages = {"support": "Returns are free for 30 days."}


def prompt(turn: TurnInfo) -> str:
    return f"You are Ana, turn {turn.turn}. {pages[turn.channel or 'support']}"


def edit() -> str:
    pages["support"] = "Returns are free for 14 days."
    return "edited"


async def main(state: str) -> None:
    provider = ScriptedProvider([call_tool("edit"), reply("Done."), reply("14 days.")])
    schema = {"type": "object", "properties": {}}
    tool = Tool(name="edit", description="Edit the page.", input_schema=schema, run=edit)
    spec = AgentSpec(name="ana", provider=provider, model="m", system=prompt, tools=[tool])
    async with open_runtime(state) as runtime:
        ana = await runtime.add_agent(spec)
        for text in ("Make it 14 days.", "How long?"):
            await ana.send(text, channel="support")
            await ana.wait_idle()
        # Both requests of the first turn carried what it was compiled with.
        for request in provider.requests:
            print(request.system)

        await ana.send("And there?", channel="sales")  # There is no such page.
        await ana.wait_idle()
        (agent,) = runtime.status().agents
        print(agent.name, "is", agent.state)
        async for message in ana.transcript():
            if message.role == "marker":
                print(message.text.split(";")[0])


trio.run(main, sys.argv[1])
