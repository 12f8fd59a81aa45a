"""A report with posts, which waits for capacity where it stands and posts nothing twice."""

import sys
from datetime import UTC, datetime

import trio

from abeyance.actors import (
    FallbackChain,
    ModelChoice,
    RunContext,
    RunOpenError,
    open_runtime,
    step_context,
)

CHAIN = FallbackChain([ModelChoice("anthropic", "opus"), ModelChoice("openai", "gpt")])


async def summarise(day: str) -> str:
    async def ask(choice: ModelChoice) -> str:  # Call your provider here.
        return f"{choice.model} on {day}: all quiet"

    return await CHAIN.call(ask, now_ms=lambda: int(datetime.now(UTC).timestamp() * 1_000))


async def post(channel: str, text: str) -> None:
    # The key is the same whenever this item is run again: hand it to whoever has the effect.
    print(f"[{step_context().key}] to {channel}: {text}")


async def report(run: RunContext, day: str) -> str:
    text: str = await run.do("summarise", summarise, day)
    with run.step("publish", total=2):
        for channel in ("ops", "all"):
            await run.do(channel, post, channel, text)
    return text


async def main(directory: str) -> None:
    async with open_runtime(directory) as runtime:
        runtime.add_workflow("report", report)
        try:
            run = await runtime.start_run("report:2026-12-01", "report", "1 December")
        except RunOpenError as error:
            print(runtime.run(error.run).text())
            return
        print((await run.wait()).text())


trio.run(main, sys.argv[1])
