"""A runtime in virtual time on a real store, and what its tests look at.

Virtual time jumps only when nobody works outside the loop: while a batch is with the store's
writer, or a thread runs for the loop, it stands still. So a test needs no guess about how long a
disk takes.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors import AgentHandle, AgentSpec, Runtime, Tool, open_runtime
from abeyance.actors.providers.port import ModelRequest
from abeyance.actors.testing import ScriptedProvider, WallClock
from abeyance.actors.testing.scripted import Script
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import NeedsService, Row
from abeyance.storage.tables.blocks import TextBlock, ToolResultBlock, ToolUseBlock

REAL_S_MAX = 60.0
"""How long a condition may take to hold, in real time: a bound for tests that fail."""
SCHEMA = {"type": "object", "properties": {}}
OWN = ("journal", "archive", "ledger", "alarm", "reminders", "alerts", "runs", "schedules")
"""Actors that a runtime has one of."""


class OutsideWork:
    """Counts what is out of the loop, and stops virtual time from jumping meanwhile."""

    def __init__(self, clock: MockClock) -> None:
        self._clock = clock
        self._jumps_after_s = clock.autojump_threshold
        self._out = 0

    def begin(self) -> None:
        self._out += 1
        self._clock.autojump_threshold = float("inf")

    def end(self) -> None:
        self._out -= 1
        if self._out == 0:
            self._clock.autojump_threshold = self._jumps_after_s

    def watch(self, monkeypatch: Any) -> None:
        submit, run_sync = LmdbStore.submit, trio.to_thread.run_sync

        def watched_submit(store: LmdbStore, batch: Any, done: Callable[[Any], None]) -> None:
            token = trio.lowlevel.current_trio_token()

            def watched_done(result: Any) -> None:
                done(result)
                # A batch whose writer asks for service stays out.
                if not isinstance(result, NeedsService):
                    token.run_sync_soon(self.end)

            self.begin()
            try:
                submit(store, batch, watched_done)
            except BaseException:
                self.end()
                raise

        async def watched_run_sync(*args: Any, **kwargs: Any) -> Any:
            self.begin()
            try:
                return await run_sync(*args, **kwargs)
            finally:
                self.end()

        monkeypatch.setattr(LmdbStore, "submit", watched_submit)
        monkeypatch.setattr(trio.to_thread, "run_sync", watched_run_sync)
        # anyio has a name of its own for it: an SDK's first call looks at its platform in a thread.
        monkeypatch.setattr("anyio._backends._trio.run_sync", watched_run_sync)


class World:
    """One state directory, one wall clock, and the runtime that is open on it."""

    def __init__(self, directory: Path, clock: WallClock, time: MockClock) -> None:
        self.directory = directory
        self.clock = clock
        self.time = time
        self.runtime: Runtime
        self.providers: list[ScriptedProvider] = []

    @asynccontextmanager
    async def open(self, **options: Any) -> AsyncIterator[Runtime]:
        options = {"clock": self.clock, "control": False, **options}
        async with open_runtime(self.directory, **options) as runtime:
            self.runtime = runtime
            yield runtime

    def provider(self, script: Script, **options: Any) -> ScriptedProvider:
        provider = ScriptedProvider(script, clock=self.clock, **options)
        self.providers.append(provider)
        return provider

    async def add(
        self, script: Script | ScriptedProvider, name: str = "ana", **spec: Any
    ) -> AgentHandle:
        """Add an agent whose provider plays a script."""
        injections = spec.pop("carries_injections", True)
        provider = (
            script
            if isinstance(script, ScriptedProvider)
            else self.provider(script, carries_injections=injections)
        )
        spec = {"model": "m", **spec}
        return await self.runtime.add_agent(AgentSpec(name=name, provider=provider, **spec))

    def ref(self, actor: str, agent: str = "ana") -> Any:
        """The ref of an actor: agent, gate or slot of an agent, or one of the runtime's own."""
        own = actor in OWN
        found = self.runtime._system.find(actor if own else f"{actor}:{agent}")
        assert found is not None
        return found

    def permits_out(self, agent: str = "ana") -> dict[int, Any]:
        permits: dict[int, Any] = self.ref("gate", agent)._cell.kept.permits
        return permits

    def state(self, agent: str = "ana") -> Any:
        return next(item for item in self.runtime.status().agents if item.name == agent)

    def turns(self, agent: str = "ana") -> list[Any]:
        return self.rows("turns", agent)

    def tool_calls(self, agent: str = "ana") -> list[Any]:
        return self.rows("tool_calls", agent)

    def rows(self, table: str, *prefix: Any) -> list[Any]:
        found = []
        for _, row in self.runtime._store.scan(table, prefix):
            assert isinstance(row, Row), row
            found.append(row.record)
        return found


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until a condition holds; it is looked at whenever the loop idles.

    Virtual time passes by a millisecond a look, later by more, and only while nobody works outside
    the loop.
    """
    gives_up_at = time.perf_counter() + REAL_S_MAX
    looks = 0
    while not condition():
        looks += 1
        assert time.perf_counter() < gives_up_at, "the condition does not come to hold"
        await wait_all_tasks_blocked()
        if not condition() and trio.lowlevel.current_clock().autojump_threshold < 1:  # type: ignore[attr-defined]
            # Half a minute is not worth thirty thousand looks.
            await trio.sleep(0.001 if looks < 100 else 0.02 if looks < 500 else 0.25)


def texts(request: ModelRequest) -> list[str]:
    """A request's messages as words: role and content, one string each."""
    return [
        f"{'user' if message.role == 'user' else 'agent'}: {words(message.blocks)}"
        for message in request.messages
    ]


def words(blocks: Sequence[Any]) -> str:
    said = []
    for block in blocks:
        match block:
            case TextBlock():
                said.append(block.text)
            case ToolUseBlock():
                said.append(f"<{block.name}>")
            case ToolResultBlock():
                text = " ".join(part.text for part in block.content if isinstance(part, TextBlock))
                said.append(f"={'!' if block.is_error else ''}{text}")
    return " ".join(said)


async def shown(agent: AgentHandle) -> list[str]:
    """The transcript as words, oldest first."""
    return [f"{row.role}: {words(row.blocks)}" async for row in agent.transcript()]


def tool(name: str, run: Callable[..., Any], **options: Any) -> Tool:
    return Tool(name=name, description=name, input_schema=SCHEMA, run=run, **options)


class Stop:
    """A tool's body that waits until the test lets it go on, and counts its effects."""

    def __init__(self, result: Any = "done") -> None:
        self.entered = trio.Event()
        self.go = trio.Event()
        self.effects = 0
        self._result = result

    async def __call__(self, **_input: Any) -> Any:
        self.effects += 1
        self.entered.set()
        await self.go.wait()
        return self._result

    def tool(self, name: str = "wait", **options: Any) -> Tool:
        return tool(name, partial(self._run), **options)

    async def _run(self, **fields: Any) -> Any:
        return await self(**fields)


__all__ = ["Stop", "World", "shown", "texts", "tool", "until", "wait_all_tasks_blocked"]
