"""A model is limited for hours; an operator has the agent go on with another one.

Run it with a directory for its state. The providers are scripted, so that it needs no key.
"""

import sys

import trio

from abeyance.actors import AgentSpec, open_runtime
from abeyance.actors.testing import ScriptedProvider, fail, reply


async def main(state: str) -> None:
    limited = ScriptedProvider([fail(429, retry_after=7_200)])
    async with open_runtime(state) as runtime:
        ana = await runtime.add_agent(AgentSpec(name="ana", provider=limited, model="large"))
        await ana.send("Hello?")
        await ana.wait_idle()
        (agent,) = runtime.status().agents
        print(f"{agent.name} is {agent.state}, and asks {agent.model}")

        runtime.add_provider("other", ScriptedProvider([reply("Hello!")]))
        receipt = await ana.set_model("small", provider="other", requester="cy")
        print(f"{receipt.was} -> {receipt.model}")
        await ana.wait_idle()
        async for message in ana.transcript():
            print(f"{message.role}: {message.text}")
        for wait in runtime.provider_waits("ana"):
            print(f"{wait.model} is waited for still")  # Whoever asks it again waits.

    async with open_runtime(state) as runtime:
        runtime.add_provider("other", ScriptedProvider([]))  # Before the agent that needs it.
        await runtime.add_agent(AgentSpec(name="ana", provider=limited, model="large"))
        (agent,) = runtime.status().agents
        print(f"after a restart {agent.name} asks {agent.model}")


trio.run(main, sys.argv[1])
