"""A store is brought to a newer format, and back: a version of before opens it until somebody says.

Run it with a directory for its state. The provider is scripted, so that it needs no key.
"""

import json
import subprocess
import sys

import trio

from abeyance.actors import AgentSpec, open_runtime
from abeyance.actors.testing import ScriptedProvider, fail


def abeyance(*arguments: str) -> dict[str, object]:
    """The command line, as an operator has it."""
    program = [sys.executable, "-m", "abeyance.actors.ops.entry", *arguments, "--json"]
    said = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    found: dict[str, object] = json.loads(said)
    return found


async def host(state: str) -> None:
    provider = ScriptedProvider([fail(429, retry_after=7_200)])
    async with open_runtime(state) as runtime:
        ana = await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        await ana.send("Hello?", id="m1")
        await ana.wait_idle()
        waits, calls = len(runtime.provider_waits()), len(provider.requests)
        print(f"{waits} wait holds ana, calls made here: {calls}")


def main(state: str) -> None:
    trio.run(host, state)
    found = abeyance("migrate", state)
    print(f"format {found['store']}; the newest known here is {found['newest']}")
    done = abeyance("migrate", state, "--commit", "--yes", "--backup", f"{state}-before")
    print(f"from {done['before']} to {done['after']}")
    trio.run(host, state)
    back = abeyance("migrate", state, "--back", "--yes", "--backup", f"{state}-before-back")
    print(f"from {back['before']} to {back['after']}")
    trio.run(host, state)


main(sys.argv[1])
