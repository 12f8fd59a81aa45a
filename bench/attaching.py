"""How late the loop is while a picture of 10 MB is attached, and while requests carry it.

The provider is a process of its own that reads what it is sent and answers at once, so that what is
seen is the host's side: reading, hashing, storing, reading back, base64, the SDK, the socket.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import tempfile
from pathlib import Path
from typing import Any

import h11
import trio

from abeyance.actors import AgentSpec, TextBlock, open_runtime
from abeyance.actors.providers import AnthropicProvider

from .accepting import Lag, stall_of
from .measure import Result, Scale

_BYTES = 10 * 1024 * 1024
_PICTURES = 8
"""A round: one is looked at some fifty times, and of a few hundred looks the latest is p99.9."""
_EVENTS = (
    {"type": "message_start", "message": {"usage": {"input_tokens": 1, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a cat"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    {"type": "message_stop"},
)
_SAID = (f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in _EVENTS)
_REPLY = "".join(_SAID).encode()


async def _answer(stream: trio.SocketStream) -> None:
    connection = h11.Connection(h11.SERVER)
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(2**20))
        elif isinstance(event, h11.EndOfMessage):
            head = h11.Response(
                status_code=200,
                headers=[("content-type", "text/event-stream"), ("connection", "close")],
            )
            for said in (head, h11.Data(data=_REPLY), h11.EndOfMessage()):
                await stream.send_all(connection.send(said) or b"")
            await stream.aclose()
            return


def _serve(pipe: Any) -> None:
    async def main() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        pipe.send(listener.socket.getsockname()[1])
        await trio.serve_listeners(_answer, [listener])

    trio.run(main)


async def _measured(scale: Scale, port: int) -> list[Result]:
    attaching, carrying = Lag(), Lag()
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent, prefix=".state-") as folder:
        path = Path(folder) / "picture.png"
        async with open_runtime(Path(folder) / "state", control=False) as runtime:
            provider = AnthropicProvider(api_key="any", base_url=f"http://127.0.0.1:{port}")
            ana = await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
            await ana.send("hello")  # The SDK is imported and connected.
            await ana.wait_idle()
            for number in range(scale.rounds * _PICTURES):
                data = random.Random(number).randbytes(_BYTES)
                path.write_bytes(b"\x89PNG\r\n\x1a\n" + data)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(attaching.watch)
                    block = await ana.attach(path)
                    nursery.cancel_scope.cancel()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(carrying.watch)
                    once = AgentSpec(name=f"once-{number}", provider=provider, model="m")
                    await runtime.run_ephemeral(once, [block, TextBlock(text="?")])
                    nursery.cancel_scope.cancel()
            await provider.aclose()
    late = "how late the loop resumes a sleeper while a picture of 10 MB is"
    return [
        stall_of("stall-attach", f"{late} attached, p99.9", attaching),
        stall_of("stall-picture", f"{late} sent to a provider, p99.9", carrying),
    ]


def pictures(scale: Scale) -> list[Result]:
    ours, its = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(its,), daemon=True)
    process.start()
    try:
        return trio.run(_measured, scale, ours.recv())
    finally:
        process.kill()
        process.join()
