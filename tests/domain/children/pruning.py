"""A host with history of every kind that deletes it, and may die between two commits of that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from abeyance.actors import AgentSpec, Draft, Retention, Tool, open_runtime
from abeyance.actors.testing import ScriptedProvider, WallClock, call_tool, reply
from abeyance.storage.crashpoints import arm

START_MS = 1_800_000_000_000
DAY_MS = 86_400_000


async def live(directory: Path, point: str) -> None:
    first = not (directory / "store").exists()
    clock = WallClock(START_MS)
    schema = {"type": "object", "properties": {}}
    look = Tool(name="look", description="look", input_schema=schema, run=lambda: "seen")

    def spec(name: str, rounds: int) -> AgentSpec:
        script = [*(call_tool("look") for _ in range(rounds)), reply("x")]
        provider = ScriptedProvider(script)
        return AgentSpec(name=name, provider=provider, model="m", tools=[look])

    async def work(run: Any, _given: Any) -> None:
        for number in range(6):
            await run.do(f"i{number}", lambda: "done")

    keeps = dict.fromkeys(Retention.__dataclass_fields__, 1)
    async with open_runtime(
        directory, control=False, clock=clock, retention=Retention(**keeps)
    ) as runtime:
        if first:
            runtime.add_workflow("w", work)
            await runtime.run_ephemeral(spec("sum", 3), "go")
            await (await runtime.start_run("nightly", "w")).wait()
        runtime._pruner._room = 4  # Rows a commit: the less there are, the more commits.
        clock.advance(3 * DAY_MS)
        arm(point)
        await runtime.prune()


async def forget(directory: Path, point: str) -> None:
    """An agent with six messages, whose ids are old; it may die while they are deleted."""
    clock = WallClock(START_MS)
    async with open_runtime(
        directory, control=False, clock=clock, retention=Retention(ids_days=1)
    ) as runtime:
        spec = AgentSpec(name="bo", provider=ScriptedProvider([reply("x")]), model="m")
        bo = await runtime.add_agent(spec)
        await bo.send_many([Draft(f"text {n}", id=f"id-{n}") for n in range(6)])
        await bo.wait_idle()
        runtime._pruner._room = 2
        clock.advance(2 * DAY_MS)
        arm(point)
        await runtime.prune()
