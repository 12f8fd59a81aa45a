"""The table "when each dies" of docs/architecture.md, row by row, under a mixed load.

Several agents take messages, use tools, are refused and held. Meanwhile one kind of actor is killed
again and again at random steps. Then everything must have come to rest as if nobody had died.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentHandle, tool_context
from abeyance.actors.providers.port import ModelRequest
from abeyance.actors.testing import fail, reply
from abeyance.actors.testing.scripted import Step, rounds_made
from abeyance.storage.tables.blocks import ToolResultBlock, ToolUseBlock

from .world import World, tool, until

AGENTS = ("ana", "bo", "cy")
MESSAGES = 14
KILLS = 8
BETWEEN_KILLS_S = 8.0
"""So that no supervisor sees more than its intensity, five restarts in 30 s."""
STEPS_MAX = 200

OWN = ("journal", "ledger", "alarm")
KINDS = (*OWN, "slot", "gate", "agent", "turn task")


class Killer(trio.abc.Instrument):
    """Kills at the n-th step that any task makes from when it was armed."""

    def __init__(self, world: World, kinds: tuple[str, ...], rng: random.Random) -> None:
        self._world = world
        self._kinds = kinds
        self._rng = rng
        self._left = 0
        self.kills: Counter[str] = Counter()

    async def run(self) -> None:
        """Kill `KILLS` times, as far apart as the supervisors allow."""
        trio.lowlevel.add_instrument(self)
        try:
            for _ in range(KILLS):
                self._left = self._rng.randint(1, STEPS_MAX)
                await trio.sleep(BETWEEN_KILLS_S)
            self._left = 0
        finally:
            trio.lowlevel.remove_instrument(self)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._left <= 0:
            return
        self._left -= 1
        if self._left == 0:
            kind = self._rng.choice(self._kinds)
            if self._kill(kind):
                self.kills[kind] += 1
            else:
                self._left = 1

    def _kill(self, kind: str) -> bool:
        if kind == "turn task":
            # Only the turn is a task of an agent's incarnation.
            living = [
                scope
                for name in AGENTS
                for scope in self._world.ref("agent", name)._cell.tasks or ()
            ]
            if living:
                self._rng.choice(living).cancel()
            return bool(living)
        self._world.ref(kind, self._rng.choice(AGENTS)).kill()
        return True


class Load:
    """What the agents are given, and what came back."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._calls = 0
        self.receipts: dict[str, list[tuple[str, int, bool]]] = {name: [] for name in AGENTS}
        self.effects: Counter[str] = Counter()

    def choose(self, request: ModelRequest) -> Step:
        chance = self._rng.random()
        if chance < 0.10:
            return fail(429, retry_after=self._rng.randint(1, 12))
        if chance < 0.15:
            return fail(500)
        if chance < 0.20:
            return fail(400)
        if chance < 0.60 and rounds_made(request) < 3:
            return reply(*(self._call() for _ in range(self._rng.randint(1, 3))))
        return reply("said")

    def _call(self) -> ToolUseBlock:
        self._calls += 1
        name = self._rng.choice(("slow", "plain", "late", "gone"))
        return ToolUseBlock(id=f"c{self._calls}", name=name, input={})

    def tools(self) -> list[Any]:
        async def slow() -> str:
            self.effects[tool_context().call_id] += 1
            await trio.sleep(self._rng.uniform(0, 4))
            return "slow"

        def plain() -> str:
            self.effects[tool_context().call_id] += 1
            return "plain"

        async def late() -> str:
            self.effects[tool_context().call_id] += 1
            await trio.sleep(3)
            return "late"

        return [tool("slow", slow), tool("plain", plain), tool("late", late, time_limit_s=2)]

    async def drive(self, agent: AgentHandle) -> None:
        for number in range(MESSAGES):
            await trio.sleep(self._rng.uniform(0, 8))
            text = f"{agent.name}:{number}"
            author = self._rng.choice(("user", "user", "peer", agent.name))
            wakes = author != agent.name and self._rng.random() < 0.8
            receipt = await agent.send(text, author=author, wake=wakes)
            self.receipts[agent.name].append((text, receipt.seq, wakes))


async def check_transcript(agent: AgentHandle, given: list[tuple[str, int, bool]]) -> None:
    rows = [row async for row in agent.transcript()]
    sent = [(row.text, row.entry) for row in rows if row.text.startswith(f"{agent.name}:")]
    assert sent == [(text, seq) for text, seq, _ in given], "each once, in its order"
    called: list[str] = []
    for row in rows:
        for block in row.blocks:
            called += [block.id] if isinstance(block, ToolUseBlock) else []
        results = [block for block in row.blocks if isinstance(block, ToolResultBlock)]
        if results:
            assert [block.tool_use_id for block in results] == called, "each call, its result"
            called = []
        elif row.role != "marker" and not any(isinstance(b, ToolUseBlock) for b in row.blocks):
            assert not called, "nothing stands between calls and their results"
    assert not called


def check_rest(world: World, name: str, given: list[tuple[str, int, bool]]) -> None:
    """No wake, no lease, no open turn, no permit, no message is left."""
    turns = world.turns(name)
    assert {turn.state for turn in turns} <= {"done", "failed"}
    assert max(turn.attempts for turn in turns) <= 4
    answers = [entry for turn in turns for entry in turn.answers]
    assert len(answers) == len(set(answers)), "no wake is answered twice"
    assert set(answers) == {seq for _, seq, wakes in given if wakes}, "each wake is answered"
    assert not world.rows("wakes", name)
    assert not world.rows("inbox", name)
    (lease,) = world.rows("leases", name)
    assert (lease.turn, lease.gap, lease.agent) == (None, None, None)
    assert not world.permits_out(name)
    assert world.state(name).state == "idle"


def check_envelopes(world: World) -> None:
    """Nothing is queued, owed, in flight, dead or quarantined."""
    for statistics in world.runtime._system.actors():
        left = (statistics.queued, statistics.internal, statistics.owed, statistics.in_flight)
        assert left == (0, 0, 0, False), statistics
        assert (statistics.dead, statistics.quarantined) == (0, 0), statistics
        assert statistics.state == "running", statistics


@pytest.mark.drawn(5)
@pytest.mark.parametrize("kinds", [*((kind,) for kind in KINDS), KINDS], ids="+".join)
@pytest.mark.parametrize("trial", range(2))
async def test_all_comes_to_rest_as_if_nobody_had_died(
    world: World, virtual_time: MockClock, seed: int, kinds: tuple[str, ...], trial: int
) -> None:
    rng = random.Random(f"{seed}/{kinds}/{trial}")
    load, killer = Load(world, rng), Killer(world, kinds, rng)
    async with world.open():
        agents = [await world.add(load.choose, name, tools=load.tools()) for name in AGENTS]
        async with trio.open_nursery() as nursery:
            for agent in agents:
                nursery.start_soon(load.drive, agent)
            nursery.start_soon(killer.run)
        # A turn's task is there to be killed only while a turn lives.
        assert sum(killer.kills.values()) >= KILLS // 4
        with trio.fail_after(1_000):
            for agent in agents:
                while True:
                    await agent.wait_idle()
                    if world.state(agent.name).state == "idle":
                        break
                    await trio.sleep(5)  # It is held; its wait ends by itself.
        # Bodies that nobody waits for end on their own.
        await trio.sleep(10)
        await until(lambda: not any(world.permits_out(name) for name in AGENTS))
        for agent in agents:
            given = load.receipts[agent.name]
            assert len(given) == MESSAGES
            await check_transcript(agent, given)
            check_rest(world, agent.name, given)
            calls = world.tool_calls(agent.name)
            assert {call.state for call in calls} <= {"done", "unknown"}
        assert max(load.effects.values(), default=0) <= 1, "no body runs twice"
        ran = sum(len(world.tool_calls(name)) for name in AGENTS)
        assert len(load.effects) == ran
        assert not world.runtime._runner._running
        check_envelopes(world)
