"""A host whose operator edits a transcript, which may die at a crash point. A line for each act
that was acknowledged."""

from __future__ import annotations

from pathlib import Path

from abeyance.actors import AgentSpec, open_runtime
from abeyance.actors.testing import ScriptedProvider, reply
from abeyance.storage.crashpoints import arm


async def live(directory: Path, point: str) -> None:
    async with open_runtime(directory, control=False) as runtime:
        provider = ScriptedProvider([reply("one")])
        ana = await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        await ana.send("a", id="a")
        await ana.wait_idle()
        if point:
            arm(point)

        def told(act: str) -> None:
            print(act, flush=True)

        changed = await ana.edit("a", "x", requester="ops")
        told("changed")
        removed = await ana.edit(2, None, requester="ops")
        told("removed")
        await ana.send("aside", wake=False, id="aside")
        told("sent")
        await ana.undo_edit(removed.edit, requester="ops")
        told("put back")
        await ana.undo_edit(changed.edit, requester="ops")
        told("undone")
