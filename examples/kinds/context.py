"""Keep a long conversation short: what is older than the newest part becomes a summary."""

import trio

from abeyance.actors import AgentSpec, CompactingContext, open_runtime
from abeyance.actors.providers import AnthropicProvider


async def main() -> None:
    spec = AgentSpec(
        name="ana",
        provider=AnthropicProvider(),
        model="claude-opus-4-5",
        context=CompactingContext(past_chars=2_000, keep_chars=500),
    )
    async with open_runtime("state/") as runtime:
        ana = await runtime.add_agent(spec)
        with runtime.events(kinds=["context_kept"]) as kept:
            for place in ("Oslo", "Bergen", "Tromsø"):
                await ana.send(f"Tell me all about {place}.")
                await ana.wait_idle()
            await anext(aiter(kept))
        await ana.send("Where was it coldest?")
        await ana.wait_idle()
        (summary, *_) = ana.summaries()
        print(f"places {summary.first} to {summary.last}: {summary.text.splitlines()[-1]}")
        async for message in ana.transcript(after=6):
            print(f"{message.role}: {message.text}")


trio.run(main)
