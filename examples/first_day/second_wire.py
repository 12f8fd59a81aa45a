"""A server that speaks OpenAI's Chat Completions, behind a `base_url`; and one of Responses.

Run it with a directory for its state. The servers are simulated, so that it needs no key.
"""

import sys

import trio

from abeyance.actors import AgentSpec, StreamDelta, StreamStored, Tool, open_runtime
from abeyance.actors.providers import OpenAIProvider
from abeyance.actors.testing import Answer, ProviderSimulator, SimulatedTool, WireRequest


def answers(request: WireRequest) -> Answer:
    """What the simulated models say: they look at the sky first."""
    if request.number == 1:
        return Answer(text="Let me see.", tools=(SimulatedTool("look", {"at": "the sky"}),))
    return Answer(text="It is blue.", chunk_chars=4)


look = Tool(
    name="look",
    description="Look at something.",
    input_schema={"type": "object", "properties": {"at": {"type": "string"}}},
    run=lambda at: f"{at} is blue",
)


async def main(state: str) -> None:
    async with ProviderSimulator(answers) as local, ProviderSimulator(answers) as service:
        chat = OpenAIProvider(
            api="chat",
            base_url=f"{local.base_url}/v1",  # As that of a server such as vLLM or Ollama.
            api_key="none",
            service="generic",
            output_limit="max_tokens",
        )
        responses = OpenAIProvider(base_url=f"{service.base_url}/v1", api_key="any")
        async with open_runtime(state) as runtime:
            for name, provider in (("ana", chat), ("bo", responses)):
                agent = await runtime.add_agent(
                    AgentSpec(name=name, provider=provider, model="small", tools=[look])
                )
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(show, agent)
                    await agent.send("What colour is the sky?")
                    await agent.wait_idle()
                    nursery.cancel_scope.cancel()
        print("asked:", *(entry.path for entry in (*local.log, *service.log)))
        await chat.aclose()
        await responses.aclose()


async def show(agent: object) -> None:
    pieces = 0
    async for item in agent.stream():  # type: ignore[attr-defined]
        match item:
            case StreamDelta():
                pieces += 1
            case StreamStored(message=message) if message.role == "assistant":
                print(f"{message.author}, in {pieces} pieces: {message.text}")
                pieces = 0


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
