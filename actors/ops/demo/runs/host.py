"""A host of the runs' demo: it has the workflow, and can be killed at any instant.

Its standard output carries JSON lines: that it is ready, and each state a run comes to here. The
line `start` on its standard input starts the run, `stop` or the end of the input ends the host.

Runs trio in the main thread of a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx2
import trio

from abeyance.actors import (
    DidNotHappen,
    FallbackChain,
    Happened,
    ModelChoice,
    RunContext,
    Runtime,
    StepContext,
    open_runtime,
    step_context,
)
from abeyance.actors.core.errors import AbeyanceError
from abeyance.storage.errors import StorageError

from ..pipes import read_lines, say
from . import play

if TYPE_CHECKING:
    import anthropic

HTTP_S_MAX = 60.0


class Report:
    """The workflow: what is between its items decides only which comes next."""

    def __init__(self, base_url: str, http: httpx2.AsyncClient, endpoint: str) -> None:
        self._base_url = base_url
        self._client: anthropic.AsyncAnthropic | None = None
        self._http = http
        self._endpoint = endpoint
        self._chain = FallbackChain([ModelChoice(play.PROVIDER, play.MODEL)])

    async def body(self, run: RunContext, _params: Any) -> str:
        figures = await run.do(play.COLLECT, self._collect, in_doubt="retry")
        draft = await run.do("draft", self._ask, play.DRAFT, in_doubt="retry")
        await run.do("announce", self._post, f"{figures} {draft}", in_doubt=self._was_posted)
        with run.step("publish", total=3):
            await run.do("ops", self._post, draft, in_doubt=self._was_posted)
            french = await run.do("translate", self._ask, play.TRANSLATE, in_doubt="retry")
            await run.do("all", self._post, french, in_doubt=self._was_posted)
        await run.do("close", self._post, "That is all.", in_doubt=self._was_posted)
        return f"{draft} {french}"

    async def file(self, result: str) -> None:
        """The finaliser."""
        await self._post(f"Filed: {result}")

    async def _collect(self) -> str:
        await trio.lowlevel.checkpoint()
        return "42 of 42."

    async def _ask(self, prompt: str) -> str:
        """Ask the model through the unmodified SDK; what it raises is what the run is told."""

        async def call(choice: ModelChoice) -> str:
            reply = await self._model().messages.create(
                model=choice.model,
                max_tokens=100,
                messages=[{"role": "user", "content": prompt}],
            )
            return "".join(block.text for block in reply.content if block.type == "text")

        return await self._chain.call(call, now_ms=_now_ms)

    def _model(self) -> anthropic.AsyncAnthropic:
        """The SDK, imported by the host that asks: it takes longer than all the rest of a start."""
        if self._client is None:
            import anthropic

            self._client = anthropic.AsyncAnthropic(
                api_key="simulated",
                base_url=self._base_url,
                # Whether and when to try again is the run's to say, not the SDK's.
                max_retries=0,
                http_client=httpx2.AsyncClient(timeout=HTTP_S_MAX),
            )
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _post(self, text: str) -> None:
        context = step_context()
        answer = await self._http.post(
            f"{self._endpoint}/posts",
            json={"item": context.path, "text": text},
            headers={"idempotency-key": context.key},
        )
        answer.raise_for_status()

    async def _was_posted(self, context: StepContext) -> Any:
        """Whether a post whose process died in its middle had its effect."""
        answer = await self._http.get(f"{self._endpoint}/posts/{quote(context.key, safe='')}")
        return Happened() if answer.status_code == 200 else DidNotHappen


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _watch(runtime: Runtime, task_status: trio.TaskStatus[None]) -> None:
    with runtime.events(kinds={"run_changed"}) as events:
        task_status.started()
        async for event in events:
            changed: Any = event
            say("run", run=changed.run, state=changed.state)


async def _start(runtime: Runtime) -> None:
    try:
        run = await runtime.start_run(play.KEY, play.WORKFLOW)
    except AbeyanceError as error:
        say("refused", code=error.code, text=str(error))
    else:
        say("started", run=run.id)


async def _run(options: argparse.Namespace) -> None:
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(open_runtime(options.state))
        http = await stack.enter_async_context(httpx2.AsyncClient(timeout=HTTP_S_MAX))
        report = Report(options.base_url, http, options.endpoint)
        stack.push_async_callback(report.close)
        nursery = await stack.enter_async_context(trio.open_nursery())
        await nursery.start(_watch, runtime)
        runtime.add_workflow(
            play.WORKFLOW,
            report.body,
            finalisers=[("file", report.file)],
            buffer_s=play.BUFFER_S,
        )
        say("ready", pid=os.getpid())
        async for line in read_lines(sys.stdin.fileno()):
            if json.loads(line)["do"] != "start":
                break
            await _start(runtime)
        nursery.cancel_scope.cancel()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the host until `stop`, the end of its input, or its death."""
    parser = argparse.ArgumentParser(prog="abeyance-demo-runs-host")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--endpoint", required=True)
    options = parser.parse_args(arguments)
    failed = False
    try:
        trio.run(_run, options)
    except* (AbeyanceError, StorageError) as group:
        failed = True
        say("failed", text=str(group.exceptions[0]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
