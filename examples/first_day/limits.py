"""An agent with limits of its own: what is too large or too much comes back to whoever sent it.

Run it with a directory for its state. The provider is scripted, so that it needs no key.
"""

import sys

import trio

from abeyance.actors import (
    AgentSpec,
    Draft,
    InboxFullError,
    MessageTooLargeError,
    open_runtime,
)
from abeyance.actors.testing import Gate, ScriptedProvider, reply


async def main(state: str) -> None:
    busy = Gate(reply("Hello!"))  # A call that takes its time.
    provider = ScriptedProvider([busy, reply("Two notes, I see."), reply("And a third.")])
    spec = AgentSpec(
        name="ana", provider=provider, model="m", inbox_messages_max=2, message_bytes_max=1_000
    )
    async with open_runtime(state) as runtime:
        ana = await runtime.add_agent(spec)
        try:
            await ana.send("a book " * 1_000)
        except MessageTooLargeError as error:
            print(f"too large: {error.size} of {error.limit} bytes")

        await ana.send("Hello?")
        await busy.wait_entered()
        later: list[Draft] = []
        for note in ("one", "two", "three"):
            try:
                await ana.send(f"note {note}")
            except InboxFullError as error:
                print(f"full: {error.rows} of {error.rows_max} messages")
                later += error.messages  # Handed back: nothing is lost.
        (status,) = runtime.status().agents
        print("waiting:", status.inbox, "of", status.limits.inbox_messages_max)

        busy.release()
        await ana.wait_idle()
        await ana.send_many([*later])
        await ana.wait_idle()
        async for message in ana.transcript():
            print(f"{message.author}: {message.text}")


trio.run(main, sys.argv[1])
