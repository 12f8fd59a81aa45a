"""Run an agent once; where its provider states a long wait, come back at the instant it named."""

import trio

from abeyance.actors import AgentSpec, RunExhaustedError, open_runtime
from abeyance.actors.providers import AnthropicProvider


async def main() -> None:
    spec = AgentSpec(name="summary", provider=AnthropicProvider(), model="claude-opus-4-5")
    async with open_runtime("state/") as runtime:
        try:
            print(await runtime.run_ephemeral(spec, "Summarise: it rained all day in Oslo."))
        except RunExhaustedError as error:
            print(f"not before {error.deadline_ms}")


trio.run(main)
