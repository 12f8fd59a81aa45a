"""A picture that a model is shown, and a sound that it is told of in words.

Run it with a directory for its state. The provider is simulated, so that it needs no key.
"""

import struct
import sys
import zlib
from pathlib import Path

import trio

from abeyance.actors import (
    AgentSpec,
    AttachmentTooLargeError,
    TextBlock,
    UnknownAttachmentError,
    open_runtime,
)
from abeyance.actors.providers import AnthropicProvider
from abeyance.actors.testing import Answer, ProviderSimulator, WireRequest


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def a_red_dot() -> bytes:
    """A PNG of one pixel."""
    head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    dot = zlib.compress(b"\0\xff\0\0")
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", dot) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def looks(request: WireRequest) -> Answer:
    """What the simulated model says: it names the kinds of what it was shown."""
    shown = request.json["messages"][-1]["content"]
    return Answer(text="I see: " + ", ".join(part["type"] for part in shown))


async def main(state: str) -> None:
    folder = Path(state).parent
    (folder / "dot.png").write_bytes(a_red_dot())
    async with ProviderSimulator(looks) as simulator, open_runtime(state) as runtime:
        provider = AnthropicProvider(api_key="any", base_url=simulator.base_url)
        ana = await runtime.add_agent(
            AgentSpec(name="ana", provider=provider, model="m", attachment_bytes_max=1_000)
        )
        picture = await ana.attach(folder / "dot.png")
        print(picture.name, picture.media_type, picture.size_bytes, "bytes")
        again = await runtime.attach(a_red_dot())
        print("stored once:", again.digest == picture.digest)

        await ana.send([picture, TextBlock(text="What is this?")])
        await ana.wait_idle()
        notes = await ana.attach(b"# Notes", media_type="text/markdown", name="notes.md")
        sound = await ana.attach(b"RIFF\x04\0\0\0WAVE", name="hello.wav")
        await ana.send([notes, sound])
        await ana.wait_idle()

        try:
            await ana.attach(bytes(1_001), media_type="text/plain")
        except AttachmentTooLargeError as error:
            print(f"too large: {error.size} of {error.limit} bytes")
        try:
            await ana.send({**vars_of(picture), "digest": "0" * 64})
        except UnknownAttachmentError as error:
            print(f"refused: {error.field}")

        async for message in ana.transcript():
            if message.role == "assistant":
                print(f"{message.author}: {message.text}")
        await provider.aclose()


def vars_of(block: object) -> dict[str, object]:
    """A block as plain data, as a bridge would keep it."""
    fields = ("digest", "media_type", "size_bytes")
    return {"type": "image", **{name: getattr(block, name) for name in fields}}


trio.run(main, sys.argv[1])
