"""Runs jobs, each in a fork that lets itself be killed at a named place. JSON in, JSON out.

A job: a directory, a crash point, an in-doubt policy, and whether the provider refuses first. Its
fork sends one message and waits until the turn that answers it is over.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import trio

from abeyance.actors import AgentSpec, Tool, open_runtime, tool_context
from abeyance.actors.providers.port import ModelRequest
from abeyance.actors.testing import ScriptedProvider, call_tool, fail, reply
from abeyance.actors.testing.scripted import Step, rounds_made
from abeyance.storage.crashpoints import arm


def script(*, refuses: bool = False) -> Any:
    """Two rounds with the tool between them; the round is read from the request."""

    def choose(request: ModelRequest) -> Step:
        if refuses:
            return fail(429, retry_after=3_600)
        return reply("end") if rounds_made(request) else call_tool("act", text="Moving")

    return choose


def act(directory: Path, policy: Any) -> Tool:
    """A tool that leaves one line in a file for each time its body runs."""

    def run() -> str:
        with (directory / "effects").open("a") as effects:
            effects.write(f"{tool_context().call_id}\n")
        return "acted"

    schema = {"type": "object", "properties": {}}
    return Tool(name="act", description="act", input_schema=schema, run=run, in_doubt=policy)


async def play(job: dict[str, Any]) -> None:
    directory = Path(job["directory"])
    async with open_runtime(directory / "state", control=False) as runtime:
        provider = ScriptedProvider(script(refuses=job["refuses"]))
        tools = [act(directory, job["policy"])]
        spec = AgentSpec(name="ana", provider=provider, model="m", tools=tools)
        ana = await runtime.add_agent(spec)
        await ana.send("go", id="m1")
        (directory / "acknowledged").touch()
        await ana.wait_idle()


def run(job: dict[str, Any]) -> int:
    """The wait status of a fork that plays the job."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            arm(job["point"])
            trio.run(play, job)
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    json.dump([run(job) for job in json.load(sys.stdin)], sys.stdout)
