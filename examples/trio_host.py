import trio

from abeyance.actors import AgentSpec, Tool, open_runtime
from abeyance.actors.providers import AnthropicProvider

PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}


def look(place: str) -> str:
    return f"{place}: rain, 12 degrees"


async def main() -> None:
    tool = Tool(name="look", description="The weather at a place.", input_schema=PLACE, run=look)
    spec = AgentSpec(
        name="ana", provider=AnthropicProvider(), model="claude-opus-4-5", tools=[tool]
    )
    async with open_runtime("state/") as runtime:
        ana = await runtime.add_agent(spec)
        await ana.send("Do I need an umbrella in Oslo?", author="user", id="umbrella-1")
        await ana.wait_idle()
        async for message in ana.transcript():
            print(f"{message.author}: {message.text}")


trio.run(main)
