"""A request that its model calls too long: sent once more behind a summary, and a typed failure if
that is too long as well.

Run it with a directory for its state. The provider is scripted, so that it needs no key.
"""

import sys

import trio

from abeyance.actors import AgentSpec, CompactingContext, open_runtime
from abeyance.actors.providers import ContextTooLongError, ModelRequest
from abeyance.actors.testing import ScriptedProvider, raise_, reply
from abeyance.actors.testing.scripted import Step
from abeyance.storage.tables.blocks import TextBlock

# Its own measure, in characters, finds nothing too long: the model is the first to say so.
strategy = CompactingContext(past_chars=1_000_000, keep_chars=400)


def narrow(request: ModelRequest) -> Step:
    """A model that takes 800 characters, and sums up in a few."""
    if request.system == strategy.instructions:
        print("summed up")
        return reply("They wrote of towns.")
    blocks = [block for message in request.messages for block in message.blocks]
    size = sum(len(block.text) for block in blocks if isinstance(block, TextBlock))
    if size > 800:
        print("a request is too long")
        return raise_(ContextTooLongError("prompt is too long", retryable=False))
    print("a request is answered")
    return reply("Noted." + "." * 300)


async def main(state: str) -> None:
    spec = AgentSpec(name="ana", provider=ScriptedProvider(narrow), model="m", context=strategy)
    async with open_runtime(state) as runtime:
        ana = await runtime.add_agent(spec)
        for text in ("Oslo", "Bergen", "Tromsø", "Bodø"):
            await ana.send(text)
            await ana.wait_idle()
        (summary,) = ana.summaries()
        print(f"rows {summary.first} to {summary.last}: {summary.text}")

        receipt = await ana.send("A book. " * 1_000)  # No summary makes room for this one.
        await ana.wait_idle()
        async for message in ana.transcript(after=receipt):
            print(f"{message.role}: {message.text.split(';')[0]}")


trio.run(main, sys.argv[1])
