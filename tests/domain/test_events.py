"""Events of agents: each act once, after the store has it, in order."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentSpec, HostedRuntime
from abeyance.actors.domain.errors import RuntimeClosedError
from abeyance.actors.domain.protocol import RecordWait
from abeyance.actors.events import (
    CommitOverdue,
    HoldBegan,
    HoldEnded,
    TurnEnded,
    TurnStarted,
    WaitRecorded,
    WaitReleased,
)
from abeyance.actors.testing import ScriptedProvider, fail, reply
from abeyance.storage.store import Request

from .desk import DeskStore, desk, line
from .test_holds import Unreadable
from .world import World

OF_AGENTS = ("turn_started", "turn_ended", "hold_began", "hold_ended", "wait_recorded",
             "wait_released")  # fmt: skip


async def test_events_tell_of_a_turn_from_its_start_to_its_end(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        looking = runtime.events(kinds=OF_AGENTS)
        ana = await world.add([reply("hello")])
        await ana.send("go")
        await ana.wait_idle()
        started, ended = [await anext(looking) for _ in range(2)]
    assert isinstance(started, TurnStarted)
    assert (started.agent, started.turn, started.round, started.attempts, started.model) == (
        "ana", 1, 0, 1, "m",
    )  # fmt: skip
    assert isinstance(ended, TurnEnded)
    assert (ended.agent, ended.turn, ended.round, ended.state) == ("ana", 1, 1, "done")
    assert started.at_ms <= ended.at_ms
    assert [event async for event in looking] == []


async def test_events_tell_of_a_wait_its_hold_and_what_ended_it(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        looking = runtime.events(kinds=OF_AGENTS)
        ana = await world.add([fail(429, retry_after=7_200), reply("now")])
        await ana.send("go")
        await ana.wait_idle()
        deadline_ms = world.rows("waits")[0].deadline_ms
        await runtime.release_provider_wait("ana", requester="ops")
        await ana.wait_idle()
        seen = [await anext(looking) for _ in range(8)]
    assert [event.kind for event in seen if event.kind != "wait_released"] == [
        "turn_started", "wait_recorded", "turn_ended", "hold_began",
        "hold_ended", "turn_started", "turn_ended",
    ]  # fmt: skip
    recorded = next(event for event in seen if isinstance(event, WaitRecorded))
    assert (recorded.agent, recorded.model, recorded.deadline_ms) == ("ana", "m", deadline_ms)
    began = next(event for event in seen if isinstance(event, HoldBegan))
    assert (began.turn, began.model, began.cause, began.deadline_ms) == (
        1,
        "m",
        "wait",
        deadline_ms,
    )
    over = next(event for event in seen if isinstance(event, HoldEnded))
    assert (over.agent, over.model, over.cause) == ("ana", "m", "wait")
    (released,) = [event for event in seen if isinstance(event, WaitReleased)]
    assert (released.agent, released.model, released.by) == ("ana", "m", "api:ops")
    assert all(json.loads(json.dumps(event.as_json()))["kind"] == event.kind for event in seen)


async def test_events_tell_of_a_hold_that_stood_at_the_start(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([fail(429, retry_after=7_200)])
        await ana.send("go")
        await ana.wait_idle()
    async with world.open() as runtime:
        looking = runtime.events(kinds=OF_AGENTS)
        ana = await world.add([reply("now")])
        await ana.wait_idle()
        began = await anext(looking)
        assert isinstance(began, HoldBegan)
        assert (began.turn, began.cause) == (None, "wait")
        assert world.runtime.status().agents[0].state == "held"


async def test_event_of_a_wait_comes_when_the_store_has_it_and_not_before(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.open() as runtime:
        looking = runtime.events(kinds=["wait_recorded"])
        ledger = world.ref("ledger")
        # Nobody can tell what a row holds that cannot be read: no wait is put over it.
        damaged = Unreadable(monkeypatch, "ana")
        pending = await ledger.ask(RecordWait("ana", "m", None, "slow down"))
        lands = await ledger.ask(RecordWait("bo", "m", None, "slow down"))
        assert (pending.reach, lands.reach) == ("pending", "recorded")
        first = await anext(looking)
        assert [row.reason for row in world.rows("waits")] == ["slow down"]
        damaged.on = False
        again = await ledger.ask(RecordWait("cy", "m", None, "slow down"))
        assert again.reach == "recorded"
        assert len(world.rows("waits")) == 3
    rest = [event async for event in looking]
    assert [event.agent for event in (first, *rest)] == ["bo", "ana", "cy"]


async def test_commit_that_is_out_for_long_is_an_event_once(autojump_clock: MockClock) -> None:
    class SlowStore(DeskStore):
        held: list[Any] = []

        def submit(self, batch: Any, done: Any) -> None:
            super().submit(batch, lambda result: self.held.append((done, result)))

    store = SlowStore()
    async with desk(store) as room:
        journal = room.refs["journal"]
        looking = room.system.events(kinds=["commit_overdue"])
        asked = [journal.ask(Request(appends=(line("x"),))) for _ in range(3)]
        await trio.sleep(1.5)
        done, result = store.held.pop()
        done(result)
        for each in asked:
            await each
        latency = journal._cell.kept.figures
        assert latency.counts[-3:] == [1, 0, 0]  # Between 1.0 and 2.5 s.
        assert sum(latency.counts) == 1
        assert 1.5 <= latency.sum_s < 1.6
        asked = [journal.ask(Request(appends=(line("y"),)))]
        await trio.sleep(0.04)
        done, result = store.held.pop()
        done(result)
        await asked[0]
    overdue, *more = [event async for event in looking]
    assert isinstance(overdue, CommitOverdue)
    assert overdue.requests == 3
    assert 50 < overdue.outstanding_ms < 100
    assert more == []


def test_events_of_a_hosted_runtime_are_had_by_a_plain_loop(tmp_path: Path) -> None:
    seen: list[str] = []
    with HostedRuntime(tmp_path / "state", control=False) as host:
        looking = host.events(kinds=["turn_started", "turn_ended"])
        reader = threading.Thread(target=lambda: seen.extend(event.kind for event in looking))
        reader.start()
        provider = ScriptedProvider([reply("hello")])
        ana = host.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        ana.send("go")
        ana.wait_idle()
        assert [node.id for node in host.tree(depth_max=2).children] == ["user", "runtime"]
    reader.join(20)
    assert seen == ["turn_started", "turn_ended"]
    with pytest.raises(RuntimeClosedError):
        host.events()
    with pytest.raises(RuntimeClosedError):
        host.tree()
