"""Fork a resident for one channel, talk there, and close the fork."""

import trio

from abeyance.actors import AgentSpec, open_runtime
from abeyance.actors.providers import AnthropicProvider


async def main() -> None:
    spec = AgentSpec(name="ana", provider=AnthropicProvider(), model="claude-opus-4-5")
    async with open_runtime("state/") as runtime:
        ana = await runtime.add_agent(spec)
        await ana.send("We meet at noon.", id="noon-1")
        await ana.wait_idle()
        fork = await runtime.open_conversation("ana", channel="kitchen")
        await fork.send("When do we meet?", id="when-1")
        await fork.wait_idle()
        async for message in fork.transcript():
            print(f"{message.role}: {message.text}")
        await fork.close()


trio.run(main)
