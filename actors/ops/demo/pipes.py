"""JSON lines between the demo's processes: what a child says and reads.

Runs in the child's trio thread.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncGenerator
from typing import Any

import trio


def say(event: str, **fields: Any) -> None:
    """Print one event line, whole. Blocks while the pipe is full; not a checkpoint."""
    line = json.dumps({"event": event, **fields}).encode() + b"\n"
    written = 0
    while written < len(line):
        written += os.write(sys.stdout.fileno(), line[written:])


async def read_lines(descriptor: int) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a pipe, without their newline, to its end. A checkpoint each read."""
    pending = b""
    async with trio.lowlevel.FdStream(os.dup(descriptor)) as stream:
        async for piece in stream:
            *lines, pending = (pending + piece).split(b"\n")
            for line in lines:
                yield line
