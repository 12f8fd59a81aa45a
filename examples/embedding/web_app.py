"""A FastAPI application with agents in it.

FastAPI runs on asyncio, the runtime on trio in a thread of its own: `HostedRuntime` is opened and
closed with the application. Verbs with `block=False` are awaited, and `async for` reads what an
agent says; neither holds a thread. What only reads the store, as a transcript, is a plain function,
which FastAPI calls in a thread. Run it with a directory for its state and a port:

    python web_app.py STATE 8000
    curl -X POST localhost:8000/agents/ana/messages -H 'content-type: application/json' \
        -d '{"id": "m1", "text": "Hello?"}'
    curl -N localhost:8000/agents/ana/stream

The provider is scripted, so that it needs no key.
"""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from hypercorn.asyncio import serve
from hypercorn.config import Config
from pydantic import BaseModel

from abeyance.actors import (
    AgentSpec,
    HostedAgent,
    HostedRuntime,
    InboxFullError,
    MessageConflictError,
    StreamStored,
    UnknownAgentError,
)
from abeyance.actors.testing import ScriptedProvider


class Said(BaseModel):
    """What a client sends: its own id makes sending it again harmless."""

    id: str
    text: str


def application(state: str) -> FastAPI:
    host = HostedRuntime(state)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(host.open)
        try:
            spec = AgentSpec(name="ana", provider=ScriptedProvider.echo(), model="m")
            await host.add_agent(spec, block=False)
            yield
        finally:
            await asyncio.to_thread(host.close)

    app = FastAPI(lifespan=lifespan)

    def agent(name: str) -> HostedAgent:
        try:
            return host.agent(name)
        except UnknownAgentError as error:
            raise HTTPException(404, str(error)) from error

    @app.post("/agents/{name}/messages", status_code=202)
    async def send(name: str, said: Said) -> dict[str, str]:
        try:  # When this returns, the message is on the disk.
            receipt = await agent(name).send(said.text, author="web", id=said.id, block=False)
        except InboxFullError as error:
            raise HTTPException(503, str(error), {"Retry-After": "5"}) from error
        except MessageConflictError as error:
            raise HTTPException(409, str(error)) from error
        return {"id": receipt.id, "state": receipt.state}

    @app.get("/agents/{name}/messages")
    def messages(name: str) -> list[dict[str, str]]:
        return [{"author": each.author, "text": each.text} for each in agent(name).transcript()]

    @app.get("/agents/{name}/stream")
    async def stream(name: str) -> StreamingResponse:
        return StreamingResponse(events(agent(name)), media_type="text/event-stream")

    return app


async def events(agent: HostedAgent) -> AsyncIterator[str]:
    async with agent.stream() as items:  # Ended when the client goes, or the application.
        async for item in items:
            if isinstance(item, StreamStored):
                data = {"author": item.message.author, "text": item.message.text}
                yield f"data: {json.dumps(data)}\n\n"


async def main(state: str, port: int) -> None:
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.graceful_timeout = 1.0  # A stream has no end of its own.
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    async def stopped() -> None:
        await stop.wait()

    app: Any = application(state)  # Hypercorn's types know no FastAPI.
    await serve(app, config, shutdown_trigger=stopped)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
