"""Lives of agents that end, which may die at a crash point; a life is a function below."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import trio
import trio.testing

from abeyance.actors import AgentSpec, Runtime, Tool, open_runtime
from abeyance.actors.testing import ScriptedProvider, call_tool, fail, reply
from abeyance.storage import lmdb_store
from abeyance.storage.crashpoints import arm
from abeyance.storage.store import Limits

from ..talk import Talk, small
from ..world import shown

NOTES = 150
"""More rows than one commit of a fork takes over."""
QUEUED = 60
SMALL = ("take_over_queue",)
"""Lives on a store that takes 128 operations a request."""


async def ana(runtime: Runtime, *script: Any) -> None:
    await runtime.add_agent(AgentSpec(name="ana", provider=ScriptedProvider(script), model="m"))


async def notes(runtime: Runtime) -> None:
    await ana(runtime)
    for number in range(NOTES):
        await runtime.agent("ana").send(f"note {number}", wake=False)


async def fork(runtime: Runtime) -> None:
    await ana(runtime, reply("here"))
    opened = await runtime.open_conversation("ana", channel="c1")
    await opened.send("aside", id="a1")
    await opened.wait_idle()


async def close(runtime: Runtime) -> None:
    """Close a fork that is held, with two wakes that nobody answers."""
    await ana(runtime, fail(429, retry_after=7_200))
    opened = await runtime.open_conversation("ana", channel="c1")
    for name in ("w1", "w2"):
        await opened.send(name, id=name)
        await opened.wait_idle()
    await opened.close()


async def open_again(runtime: Runtime) -> None:
    await ana(runtime)
    await runtime.open_conversation("ana", channel="c1")


async def remove(runtime: Runtime) -> None:
    await ana(runtime, fail(429, retry_after=7_200))
    await runtime.agent("ana").send("w1", id="w1")
    await runtime.agent("ana").wait_idle()
    await runtime.remove_agent("ana")


async def run(runtime: Runtime) -> None:
    spec = AgentSpec(name="sum", provider=ScriptedProvider([reply("in short")]), model="m")
    await runtime.run_ephemeral(spec, "go")


async def summed_up(runtime: Runtime) -> None:
    """Talk until the transcript was summed up."""
    provider = ScriptedProvider(Talk())
    spec = AgentSpec(name="ana", provider=provider, model="m", context=small())
    agent = await runtime.add_agent(spec)
    with runtime.events(kinds=["context_kept"]) as kept:
        for word in "abcd":
            await agent.send(word)
            await agent.wait_idle()
        await anext(aiter(kept))


async def talk_on(runtime: Runtime) -> None:
    """One more turn, and what it has the strategy do."""
    provider = ScriptedProvider(Talk())
    spec = AgentSpec(name="ana", provider=provider, model="m", context=small())
    agent = await runtime.add_agent(spec)
    with runtime.events(kinds=["context_kept"]) as kept:
        await agent.send("e")
        await agent.wait_idle()
        if len(await shown(agent)) > 8 and not agent.summaries():
            await anext(aiter(kept))
    first = provider.requests[0].messages[0].blocks[0]
    # Nothing else of this process outlives it.
    await agent.send(f"it began with: {first}", id="began", wake=False)


async def only_open(runtime: Runtime) -> None:
    """Until the runs that a death cut off are closed."""
    with trio.fail_after(60):
        while any(runtime._store.scan("ephemerals", ())):
            await trio.testing.wait_all_tasks_blocked(0.02)


async def quiesce(runtime: Runtime) -> None:
    """Quiesce over a turn in a tool, take messages meanwhile, and resume."""

    async def never() -> None:
        await trio.sleep_forever()

    tool = Tool(name="wait", description="", input_schema={"type": "object"}, run=never)
    script = [call_tool("wait"), reply("fresh"), reply("more")]
    provider = ScriptedProvider(script)
    spec = AgentSpec(name="ana", provider=provider, model="m", tools=[tool])
    agent = await runtime.add_agent(spec)
    await agent.send("one", id="one")
    while not any(runtime._store.scan("tool_calls", ("ana",))):
        await trio.testing.wait_all_tasks_blocked(0.005)
    await agent.send("two", id="two")
    await runtime.quiesce("upgrade", within_s=0)
    await agent.send("own", author="ana", id="own")
    await agent.send("three", id="three")
    await runtime.resume()
    await agent.wait_idle()


async def take_over_queue(runtime: Runtime) -> None:
    """Import a queue in more commits than one, twice."""
    await ana(runtime)
    text = [[{"type": "text", "text": f"entry {number}"}] for number in range(QUEUED)]
    entries = [
        {"participant": "user", "target": "ana", "id": f"q{number}", "content": content}
        for number, content in enumerate(text)
    ]
    queue = json.dumps({"format": "abeyance-deferred", "version": 1, "entries": entries})
    for _ in range(2):
        report = await runtime.import_deferred(io.StringIO(queue))
        assert len(report.messages) == QUEUED


async def go_on(runtime: Runtime) -> None:
    """Resume whatever there is, and let it come to rest."""
    await ana(runtime, *(reply("fresh") for _ in range(4)))
    await runtime.resume()
    await runtime.agent("ana").wait_idle()


async def live(directory: Path, life: str, point: str) -> None:
    arm(point or None)
    if life in SMALL:
        lmdb_store.LIMITS = Limits(128, lmdb_store.LIMITS.payload_bytes_max)  # type: ignore[misc]
    async with open_runtime(directory, control=False) as runtime:
        await globals()[life](runtime)
