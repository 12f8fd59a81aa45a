"""A pykka application that is there already, with an agent and an actor of ours among its own.

`Stock` and `Front` are the application's, threads of their own as ever. An agent's tool asks
`Stock`; `Front` sends to the agent, and asks `Prices`, an actor on the loop, as it would ask any
other. Run it with a directory for its state. The provider is scripted, so that it needs no key.
"""

import sys
from typing import Any

import pykka

from abeyance.actors import (
    AgentSpec,
    HostedAgent,
    HostedRuntime,
    Tool,
    TrioActor,
)
from abeyance.actors.testing import ScriptedProvider, call_tool, reply


class Stock(pykka.ThreadingActor):
    """Theirs: knows what is on the shelf."""

    def __init__(self) -> None:
        super().__init__()
        self.shelf = {"lamps": 3}

    def count(self, name: str) -> int:
        return self.shelf.get(name, 0)


class Front(pykka.ThreadingActor):
    """Theirs: takes what customers say to the agent, and returns what it said."""

    def __init__(self, agent: HostedAgent, prices: pykka.ActorRef["Prices"]) -> None:
        super().__init__()
        self.agent, self.prices = agent, prices

    def on_receive(self, message: str) -> str:
        price = self.prices.ask("lamps")  # The same call as to an actor of pykka's.
        self.agent.send(f"{message} (A lamp is {price}.)", author="customer")
        self.agent.wait_idle()
        return self.agent.transcript()[-1].text


class Prices(TrioActor):
    """Ours: its state is safe without a lock, and it has no thread."""

    async def on_receive(self, message: Any) -> int:
        return {"lamps": 40}[message]


def main(state: str) -> None:
    stock = Stock.start()
    look = Tool(
        name="look",
        description="How many of a thing there are.",
        input_schema={"type": "object", "properties": {"name": {"type": "string"}}},
        # A plain function runs in a thread of its own, where it may wait for an actor.
        run=lambda name: str(stock.proxy().count(name).get()),
    )
    provider = ScriptedProvider([call_tool("look", {"name": "lamps"}), reply("Yes, we have 3.")])
    spec = AgentSpec(name="ana", provider=provider, model="m", tools=[look])
    with HostedRuntime(state) as host:
        front = Front.start(host.add_agent(spec), Prices.start())
        print(front.ask("Do you have lamps?"))
        for message in host.agent("ana").transcript():
            print(f"{message.role}: {message.text or '(tools)'}")
        front.stop()
    stock.stop()


main(sys.argv[1])
