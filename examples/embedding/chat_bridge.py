"""A bridge between a chat service and an agent, which may be killed at any instant.

What people write is sent to the agent under the update's id, and acknowledged once it is on the
disk: an update that comes twice is the same message. What the agent says is read from an outbox,
posted under the reply's id, and done once the service has it: a reply that is posted twice is shown
once. While the service cannot be reached, replies wait in the store.

    python chat_bridge.py STATE http://127.0.0.1:8080

Without an address it starts a service of its own, lets two people write, and stops. The provider is
scripted, so that it needs no key.
"""

import sys

import httpx2
import trio
from chat_service import ChatService  # type: ignore[import-not-found]

from abeyance.actors import (
    AgentHandle,
    AgentSpec,
    InboxFullError,
    Outbox,
    open_runtime,
)
from abeyance.actors.testing import ScriptedProvider

AGAIN_S = 1.0
"""How long to wait before what failed is tried again."""


async def take_in(client: httpx2.AsyncClient, agent: AgentHandle) -> None:
    """What people write, to the agent."""
    while True:
        try:
            found = (await client.get("/updates", timeout=60)).raise_for_status().json()
            for update in found["updates"]:
                await agent.send(update["text"], id=f"chat-{update['id']}", channel=update["room"])
                await client.post(f"/updates/{update['id']}/ack")
        except (httpx2.HTTPError, InboxFullError):
            await trio.sleep(AGAIN_S)  # Nothing was acknowledged: the service hands it out again.


async def post_out(client: httpx2.AsyncClient, outbox: Outbox) -> None:
    """What the agent says, to its room."""
    async for reply in outbox:
        while True:
            try:
                answer = await client.post(
                    "/messages",
                    json={"room": reply.channel, "text": reply.text},
                    headers={"idempotency-key": reply.id},
                )
                answer.raise_for_status()
                break
            except httpx2.HTTPError:
                await trio.sleep(AGAIN_S)
        await reply.done()


async def bridge(state: str, url: str) -> None:
    spec = AgentSpec(name="ana", provider=ScriptedProvider.echo(), model="m")
    async with (
        open_runtime(state) as runtime,
        runtime.outbox("chat") as outbox,
        httpx2.AsyncClient(base_url=url) as client,
        trio.open_nursery() as nursery,
    ):
        ana = await runtime.add_agent(spec)
        nursery.start_soon(take_in, client, ana)
        nursery.start_soon(post_out, client, outbox)


async def show(state: str) -> None:
    with ChatService() as chat:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bridge, state, chat.url)
            for room, text in (("garden", "Is it raining?"), ("kitchen", "What is for dinner?")):
                chat.write(room, text)
                print(f"#{room}: {await trio.to_thread.run_sync(chat.wait_shown, room)}")
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        trio.run(bridge, sys.argv[1], sys.argv[2])
    else:
        trio.run(show, sys.argv[1])
