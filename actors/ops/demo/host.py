"""The demo's host: a process that runs two agents, commanded by lines on its standard input.

Its standard output carries JSON lines, one an event; what it prints has happened, and a receipt is
printed only after it is durable. It can be killed at any instant and started again on the same
state directory: that is what the demo is about.

Invariants:
    I1  An `accepted` line is printed after `send` returned, never before.
    I2  A tool's effect is one synced line in the effects file, named by the call's id.

Runs trio in the main thread of a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import trio

from abeyance.actors import AgentSpec, Tool, open_runtime, tool_context
from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.ops.answers import report_status
from abeyance.actors.providers import AnthropicProvider
from abeyance.storage.errors import StorageError

from .pipes import read_lines, say
from .play import ANA, BO, BOOK, SYSTEM, TELL, WEATHER

TEXT = {"type": "string"}


class _Host:
    def __init__(self, options: argparse.Namespace, runtime: Any) -> None:
        self._options = options
        self._runtime = runtime
        self._agents: dict[str, Any] = {}
        self._complete = trio.Event()

    async def run(self) -> None:
        # From the environment: an argument would show the key to every user of the machine.
        key = os.environ.get("ANTHROPIC_API_KEY", "")
        provider = AnthropicProvider(api_key=key, base_url=self._options.base_url)
        for name, model in ((ANA, self._options.ana_model), (BO, self._options.bo_model)):
            self._agents[name] = await self._runtime.add_agent(
                AgentSpec(
                    name=name,
                    provider=provider,
                    model=model,
                    system=SYSTEM[name],
                    tools=self._tools(name),
                )
            )
        self._complete.set()
        say("ready", pid=os.getpid())
        async with trio.open_nursery() as nursery:
            if self._options.watch:
                for name in self._agents:
                    nursery.start_soon(self._watch, name)
            await self._obey(nursery)
            nursery.cancel_scope.cancel()

    # -- tools -------------------------------------------------------------------------------

    def _tools(self, agent: str) -> list[Tool]:
        tell = Tool(
            name=TELL,
            description="Write a message to the other person.",
            input_schema=_object(to=TEXT, text=TEXT),
            run=self._tell,
            in_doubt="retry",
        )
        if agent == BO:
            return [tell]
        weather = Tool(
            name=WEATHER,
            description="The weather on Saturday.",
            input_schema=_object(place=TEXT),
            run=self._weather,
            in_doubt="retry",
        )
        book = Tool(
            name=BOOK,
            description="Book something for Saturday. It costs money.",
            input_schema=_object(what=TEXT),
            run=self._book,
            in_doubt="report",
        )
        return [weather, tell, book]

    async def _weather(self, place: str) -> str:
        self._began(WEATHER)
        await trio.sleep(self._options.tool_s)
        return f"Sunny at {place}, 22 degrees."

    async def _tell(self, to: str, text: str) -> str:
        context = tool_context()
        self._began(TELL)
        await self._complete.wait()
        receipt = await self._agents[to].send(text, author=context.agent, id=context.call_id)
        say("told", agent=context.agent, to=to, id=receipt.id, seq=receipt.seq, text=text)
        return f"{to} has it."

    async def _book(self, what: str) -> str:
        self._began(BOOK)
        call_id = tool_context().call_id
        await trio.to_thread.run_sync(_append_synced, self._options.effects, call_id)
        return f"Booked {what}."

    def _began(self, tool: str) -> None:
        context = tool_context()
        say("tool", agent=context.agent, tool=tool, call=context.call_id)

    # -- commands ----------------------------------------------------------------------------

    async def _obey(self, nursery: trio.Nursery) -> None:
        async for line in read_lines(sys.stdin.fileno()):
            command = json.loads(line)
            if command["do"] == "stop":
                return
            if command["do"] == "send":
                await self._answer(command)  # In order: the next line waits for this receipt.
            else:
                nursery.start_soon(self._answer, command)

    async def _answer(self, command: Mapping[str, Any]) -> None:
        verb = getattr(self, f"_do_{command['do']}")
        try:
            result = await verb(command)
        except (AbeyanceError, StorageError) as error:
            say("refused", n=command["n"], code=error.code, text=str(error))
        else:
            say("answer", n=command["n"], result=result)

    async def _do_send(self, command: Mapping[str, Any]) -> dict[str, Any]:
        receipt = await self._agents[command["agent"]].send(
            command["text"], author=command["author"], id=command["id"], wake=command["wake"]
        )
        return {"id": receipt.id, "seq": receipt.seq, "state": receipt.state}

    async def _do_idle(self, command: Mapping[str, Any]) -> None:
        await self._agents[command["agent"]].wait_idle()

    async def _do_status(self, _command: Mapping[str, Any]) -> Any:
        return msgspec.to_builtins(report_status(self._runtime.status()))

    async def _do_transcript(self, command: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [_row(message) async for message in self._agents[command["agent"]].transcript()]

    # -- for the audience --------------------------------------------------------------------

    async def _watch(self, agent: str) -> None:
        """Print each row of a transcript soon after it is there."""
        after: int | None = None
        while True:
            async for message in self._agents[agent].transcript(after=after):
                after = message.seq
                say("row", agent=agent, **_row(message))
            await trio.sleep(0.02)


def _row(message: Any) -> dict[str, Any]:
    return {
        "id": message.id,
        "seq": message.seq,
        "author": message.author,
        "role": message.role,
        "text": message.text,
        "blocks": msgspec.to_builtins(message.blocks),
    }


def _object(**properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _append_synced(path: str, call_id: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, call_id.encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


async def _run(options: argparse.Namespace) -> None:
    async with open_runtime(options.state) as runtime:
        await _Host(options, runtime).run()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the host until `stop`, the end of its input, or its death."""
    parser = argparse.ArgumentParser(prog="abeyance-demo-host")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--effects", required=True)
    parser.add_argument("--base-url", default=None)
    parser.add_argument("--ana-model", required=True)
    parser.add_argument("--bo-model", required=True)
    parser.add_argument("--tool-s", type=float, default=0.6)
    parser.add_argument("--watch", action="store_true")
    options = parser.parse_args(arguments)
    failed = False
    try:
        trio.run(_run, options)
    except* (AbeyanceError, StorageError) as group:
        failed = True
        error = group.exceptions[0]
        cause = "" if error.__cause__ is None else f" ({error.__cause__!r})"
        say("failed", text=f"{error}{cause}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
