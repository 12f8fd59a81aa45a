"""A host whose bridge posts replies into a file, and which may die at a crash point. Its agent
answers what it is told; the messages have ids, so that a next life sends them again."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import trio

from abeyance.actors import AgentSpec, open_runtime
from abeyance.actors.testing import ScriptedProvider
from abeyance.storage.crashpoints import arm


async def live(directory: Path, posts: Path, messages: int, point: str) -> None:
    async with (
        open_runtime(directory, control=False) as runtime,
        runtime.outbox("chat", begin="first") as outbox,
    ):
        ana = await runtime.add_agent(
            AgentSpec(name="ana", provider=ScriptedProvider.echo(), model="m")
        )
        for number in range(messages):
            await ana.send(f"{number}", id=f"m{number}")
            await ana.wait_idle()
        if point != "host.posted":
            arm(point)
        async for reply in outbox:
            with posts.open("a") as file:
                file.write(f"{reply.id} {reply.text}\n")
            if point == "host.posted":
                os.kill(os.getpid(), signal.SIGKILL)
            await reply.done()
            if reply.text == f"{messages - 1}":
                break


if __name__ == "__main__":
    trio.run(live, Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
