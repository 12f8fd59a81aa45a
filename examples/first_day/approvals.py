"""A payment waits for a person, through a restart, and is made once.

Run it with a directory for its state. The provider is scripted, so that it needs no key.
"""

import sys

import trio

from abeyance.actors import AgentSpec, NeedsApproval, Tool, open_runtime
from abeyance.actors.testing import ScriptedProvider, call_tool, reply
from abeyance.actors.testing.scripted import Step


def pay(amount: int, to: str) -> str:
    print(f"[the bank] {amount} to {to}")
    return "paid"


def agent(*script: Step) -> AgentSpec:
    tool = Tool(
        name="pay",
        description="Pay somebody.",
        input_schema={
            "type": "object",
            "properties": {"amount": {"type": "integer"}, "to": {"type": "string"}},
        },
        run=pay,
        # Small sums go through; what nobody decides within a day is not paid.
        approve=NeedsApproval(
            within_s=86_400, otherwise="deny", when=lambda fields: fields["amount"] > 10
        ),
    )
    return AgentSpec(name="ana", provider=ScriptedProvider(list(script)), model="m", tools=[tool])


async def main(state: str) -> None:
    async with open_runtime(state) as runtime:
        ana = await runtime.add_agent(agent(call_tool("pay", {"amount": 900, "to": "bo"})))
        await ana.send("Pay bo what we owe.")
        await ana.wait_idle()  # What waits for a person keeps nobody here.

    async with open_runtime(state) as runtime:  # As after any restart, or kill.
        ana = await runtime.add_agent(agent(reply("Done.")))
        for waiting in runtime.approvals():
            print(f"{waiting.agent} wants to {waiting.tool} {waiting.input}")
            decided = await runtime.approve(waiting.id, requester="cy")
            print(f"{decided.id}: {decided.state} by {decided.by}")
        await ana.wait_idle()
        async for message in ana.transcript():
            print(f"{message.role}: {message.text or '(tools)'}")


trio.run(main, sys.argv[1])
