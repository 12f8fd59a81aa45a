"""Show a reply while it is said, take back what did not count, and keep what was stored.

A server that speaks OpenAI's Chat Completions stands on loopback and cuts its first reply off in
the middle; put the `base_url` of another in its place. Run it with a directory for its state.
"""

import sys

import trio

from abeyance.actors import (
    AgentHandle,
    AgentSpec,
    StreamDelta,
    StreamStored,
    StreamSuperseded,
    open_runtime,
)
from abeyance.actors.providers import OpenAIProvider
from abeyance.actors.testing import Answer, ProviderSimulator, Rule, When

TIDES = "The sea rises and falls twice a day."
SCRIPT = (
    Rule(when=When(nth=1), then=Answer(text=TIDES, cut_after=4)),
    Rule(when=When(nth=2), then=Answer(text=TIDES)),
)


async def show(agent: AgentHandle) -> None:
    async for item in agent.stream():
        match item:
            case StreamDelta(text=text):
                print(text, end="", flush=True)
            case StreamSuperseded():
                print("\n(that did not count; once more)")
            case StreamStored(message=message) if message.role == "assistant":
                print(f"\nstored: {message.text}")
                return


async def main(state: str) -> None:
    async with ProviderSimulator(SCRIPT) as server:
        provider = OpenAIProvider(
            api="chat", base_url=f"{server.base_url}/v1", api_key="none", service="generic"
        )
        spec = AgentSpec(name="ana", provider=provider, model="small")
        async with open_runtime(state) as runtime, trio.open_nursery() as nursery:
            ana = await runtime.add_agent(spec)
            nursery.start_soon(show, ana)
            await ana.send("What are tides?")
        await provider.aclose()


trio.run(main, sys.argv[1])
