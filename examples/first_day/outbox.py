"""A bridge posts replies to a chat, dies before it says so, and the next one repeats just that.

Run it with a directory for its state. The provider is scripted, so that it needs no key.
"""

import sys

import trio

from abeyance.actors import AgentSpec, OutboxReply, open_runtime
from abeyance.actors.testing import ScriptedProvider

posted: dict[str, str] = {}
"""What the chat service has, by the idempotency key that it was given."""


def post(reply: OutboxReply) -> None:
    again = "again: " if reply.id in posted else ""
    posted[reply.id] = reply.text
    print(f"[{reply.channel}] {again}{reply.text}")


async def main(state: str) -> None:
    spec = AgentSpec(name="ana", provider=ScriptedProvider.echo(), model="m")
    async with open_runtime(state) as runtime, runtime.outbox("chat") as outbox:
        ana = await runtime.add_agent(spec)
        for text in ("one", "two", "three"):
            await ana.send(text, channel="#general")
            await ana.wait_idle()
        async for reply in outbox:
            post(reply)
            if reply.text == "two":
                break  # As if it were killed here, ahead of `done`.
            await reply.done()

    async with open_runtime(state) as runtime, runtime.outbox("chat") as outbox:
        (status,) = await runtime.outboxes()
        print(f"{status.name}: {status.lag} to go")
        async for reply in outbox:
            post(reply)
            await reply.done()
            if reply.text == "three":
                break
    print(f"the chat shows {', '.join(posted.values())}")


trio.run(main, sys.argv[1])
