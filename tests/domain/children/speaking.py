"""An agent in the middle of a reply: prints its attempt once a piece of it was streamed.

Usage: speaking.py DIRECTORY
"""

from __future__ import annotations

import sys

import trio

from abeyance.actors import AgentSpec, StreamDelta, open_runtime
from abeyance.actors.providers.port import ModelReply, ReplyDelta
from abeyance.actors.testing import ScriptedProvider
from abeyance.actors.testing.scripted import ScriptedCall


class Half:
    async def play(self, call: ScriptedCall) -> ModelReply:
        call.on_delta(ReplyDelta("text", 0, "It is"))
        await trio.sleep_forever()
        raise AssertionError


async def main() -> None:
    async with open_runtime(sys.argv[1], control=False) as runtime:
        spec = AgentSpec(name="ana", provider=ScriptedProvider([Half()]), model="m")
        ana = await runtime.add_agent(spec)
        await ana.send("Does it rain?", author="user")
        async for item in ana.stream(after=0):
            if isinstance(item, StreamDelta):
                print(*item.attempt, flush=True)


trio.run(main)
