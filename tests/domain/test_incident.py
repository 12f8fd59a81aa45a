"""The incident that waits are kept for, end to end: a real host that is killed, the vendor's own
SDK, a provider on a socket, an operator who rolls back, and time that passes while nobody runs.

Each life of the host is a process with its wall clock ahead by what is said to have passed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import trio

from abeyance.actors.ops.client import ControlClient
from abeyance.actors.ops.stopped import StoppedStore
from abeyance.actors.testing.simulator import Answer, ProviderSimulator, WireRequest

from ..lives import KILLED, Life, begin
from .children.incident import host as incident_host

REAL_S_MAX = 60.0
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
WAIT_S = 7_200


class Host:
    """One process of the host."""

    def __init__(self, life: Life, pipe: Connection) -> None:
        self._pipe = pipe
        self.pid = life.pid

    async def call(self, name: str, *arguments: Any) -> Any:
        self._pipe.send((name, *arguments))
        return await self.heard()

    async def heard(self) -> Any:
        heard = await trio.to_thread.run_sync(self._pipe.poll, REAL_S_MAX)
        assert heard, f"the host said nothing for {REAL_S_MAX} s"
        return self._pipe.recv()


class Incident:
    """A state directory and a provider that refuses the second call for two hours."""

    def __init__(self, state: Path, simulator: ProviderSimulator) -> None:
        self.state = state
        self.simulator = simulator
        self.compacts = False

    @asynccontextmanager
    async def life(self, ahead_ms: int = 0) -> AsyncIterator[Host]:
        """A host, which is killed at the end of the block."""
        ours, theirs = Pipe()
        where = (self.state, self.simulator.base_url)
        life = begin(incident_host, theirs, *where, ahead_ms, self.compacts)
        theirs.close()
        try:
            host = Host(life, ours)
            assert await host.heard() == "ready"
            yield host
        finally:
            os.kill(life.pid, signal.SIGKILL)
            assert life.wait().status == KILLED
            ours.close()

    @property
    def calls(self) -> list[list[str]]:
        """The words of each request that reached the provider."""
        return [
            [
                str(block["text"])
                for message in entry.request["messages"]
                for block in (
                    message["content"]
                    if isinstance(message["content"], list)
                    else [{"text": message["content"]}]
                )
            ]
            for entry in self.simulator.log
        ]


@pytest.fixture
async def incident(tmp_path: Path) -> AsyncIterator[Incident]:
    def script(request: WireRequest) -> Answer:
        if request.number == 2:
            return Answer(status=429, headers={"retry-after": str(WAIT_S)})
        return Answer(text=f"answer {request.number}")

    async with ProviderSimulator(script) as simulator:
        yield Incident(tmp_path / "state", simulator)


async def refused(incident: Incident) -> str:
    """The first life: an answered message, then a refused one, rolled back; and a kill."""
    async with incident.life() as host:
        first: str = await host.call("send", "first")
        assert await host.call("settle") == "idle"
        await host.call("send", "second")
        assert await host.call("settle") == "held"
        assert len(incident.calls) == 2
        assert await host.call("rewind", first) == [2, 3]
        assert await host.call("settle") == "held"
    return first


@pytest.mark.drawn(2)
@pytest.mark.behaviour("W-130", "W-077", "W-022", "R-22")
@pytest.mark.parametrize("ends", ["by itself", "released", "released while stopped"])
async def test_a_stated_wait_outlasts_a_rollback_a_kill_and_a_restart_and_then_one_call_is_made(
    incident: Incident, ends: str
) -> None:
    await refused(incident)
    async with incident.life(11 * MINUTE_MS) as host:
        assert await host.call("settle") == "held"
        assert await host.call("tick") == "deferred: wait"
        await host.call("send", "wake")
        assert await host.call("settle") == "held"
        ((agent, model, deadline_ms, reason, set_ms),) = await host.call("waits")
        assert (agent, model) == ("ana", "m")
        # From when the response came, which is a moment before it is recorded.
        assert 0 <= WAIT_S * 1_000 - (deadline_ms - set_ms) < MINUTE_MS
        assert reason
        assert len(incident.calls) == 2, "nothing was called before the provider's instant"
        if ends == "released":
            assert await host.call("release") == ["recorded"]
            assert await host.call("settle") == "idle"
            assert len(incident.calls) == 3
    if ends == "released while stopped":
        stopped = StoppedStore(incident.state, writing=True)
        try:
            assert [item.reach for item in stopped.release("ana").released] == ["recorded"]
        finally:
            stopped.close()
    over_ms = WAIT_S * 1_000 + MINUTE_MS if ends == "by itself" else 12 * MINUTE_MS
    async with incident.life(over_ms) as host:
        assert await host.call("settle") == "idle"
        assert await host.call("waits") == []
        assert incident.calls[2:] == [["first", "wake"]]
        assert await host.call("shown") == ["user: first", "user: wake", "assistant: answer 3"]


@pytest.mark.behaviour("W-130", "W-090")
async def test_a_compaction_keeps_to_a_stated_wait_over_a_rollback_a_kill_and_a_restart(
    incident: Incident,
) -> None:
    incident.compacts = True
    long = "first " * 500
    async with incident.life() as host:
        await host.call("send", long)
        assert await host.call("settle") == "idle"
        # The second call is the compaction's, and it is refused for two hours.
        assert await host.call("refused") == "ana"
        await host.call("send", "second")
        assert await host.call("settle") == "held"
        assert len(incident.calls) == 2
        assert await host.call("rewind", 2) == [3, 3]
    async with incident.life(11 * MINUTE_MS) as host:
        await host.call("send", "wake")
        assert await host.call("settle") == "held"
        assert await host.call("compact") == ["wait"]
        assert await host.call("tick") == "deferred: wait"
        assert len(incident.calls) == 2, "nothing was called before the provider's instant"
    async with incident.life(WAIT_S * 1_000 + MINUTE_MS) as host:
        assert await host.call("settle") == "idle"
        (summary,) = await host.call("summed_up")
        assert summary.endswith("answer 4")
        assert [len(call) for call in incident.calls[2:]] == [3, 1], "a turn, then a summary"
        assert incident.calls[2][1:] == ["answer 1", "wake"]
        await host.call("send", "on")
        assert await host.call("settle") == "idle"
        assert incident.calls[4] == [summary, "on"], "it stands for all that was answered"


@pytest.mark.behaviour("W-077")
async def test_a_hold_does_not_end_because_the_clock_was_turned_back_a_day(
    incident: Incident,
) -> None:
    await refused(incident)
    async with incident.life() as host:
        await host.call("send", "wake")
        await host.call("step", -DAY_MS)
        assert await host.call("settle") == "held"
        assert await host.call("tick") == "deferred: wait"
        assert len(incident.calls) == 2
    async with incident.life(-DAY_MS) as host:
        assert await host.call("settle") == "held"
        assert len(incident.calls) == 2
    # A clock that is right again: the instant stated is what counts.
    async with incident.life(WAIT_S * 1_000 + MINUTE_MS) as host:
        assert await host.call("settle") == "idle"
        assert len(incident.calls) == 3


@pytest.mark.behaviour("W-119")
async def test_another_process_lists_the_same_waits_while_the_host_runs_by_it_and_when_it_is_dead(
    incident: Incident,
) -> None:
    def through_host() -> list[tuple[Any, ...]]:
        with ControlClient(incident.state) as client:
            return [(w.agent, w.model, w.deadline_ms, w.reason, w.set_ms) for w in client.waits()]

    def beside_host() -> list[tuple[Any, ...]]:
        store = StoppedStore(incident.state)
        try:
            return [(w.agent, w.model, w.deadline_ms, w.reason, w.set_ms) for w in store.waits()]
        finally:
            store.close()

    async with incident.life() as host:
        await host.call("send", "first")
        await host.call("settle")
        await host.call("send", "second")
        await host.call("settle")
        own = [tuple(wait) for wait in await host.call("waits")]
        assert len(own) == 1
        assert await trio.to_thread.run_sync(through_host) == own
        assert await trio.to_thread.run_sync(beside_host) == own
    assert await trio.to_thread.run_sync(beside_host) == own
