"""Somebody presses Stop: the turn ends at once, and what was sent meanwhile is answered next.

Run it with a directory for its state. The provider is scripted, so that it needs no key.
"""

import sys

import trio

from abeyance.actors import AgentSpec, RunContext, Tool, open_runtime
from abeyance.actors.testing import ScriptedProvider, call_tool, reply

searching = trio.Event()


async def search(words: str = "") -> str:
    searching.set()
    await trio.sleep(600)  # An async body is cancelled where it waits.
    return f"all about {words}"


async def research(run: RunContext, question: str) -> str:
    return await run.ask("research", "ana", question)


async def main(state: str) -> None:
    provider = ScriptedProvider([call_tool("search", {"words": "whales"}), reply("Hello again.")])
    tool = Tool(
        name="search",
        description="Search for long.",
        input_schema={"type": "object", "properties": {"words": {"type": "string"}}},
        run=search,
        in_doubt="retry",  # The model is told that it may be called again.
    )
    async with open_runtime(state) as runtime:
        ana = await runtime.add_agent(
            AgentSpec(name="ana", provider=provider, model="m", tools=[tool])
        )
        runtime.add_workflow("research", research)
        run = await runtime.start_run("whales", "research", "Everything about whales?")
        await searching.wait()
        await ana.send("Never mind. Hello?")

        receipt = await ana.cancel_turn(requester="cy")
        print(f"turn {receipt.turn}: {receipt.state}")
        again = await ana.cancel_turn(turn=receipt.turn, requester="cy")  # Safe to press twice.
        print(f"turn {again.turn}: {again.state}")

        status = await run.wait()
        print(f"the run: {status.state}")
        await ana.wait_idle()
        async for message in ana.transcript():
            print(f"{message.role}: {message.text or '(tools)'}")


trio.run(main, sys.argv[1])
