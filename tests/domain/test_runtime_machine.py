"""Generated lives of a runtime, held against a small model after every step.

The model knows what was accepted in each slot, in which order, and nothing of rows, turns or
actors. At every step the transcript and what waits behind it are together exactly that; each
receipt says where its message is; nothing joins a turn that may not; nobody is called before the
instant that a provider stated, unless somebody released it; and a host that is quiesced moves
nothing. In the end everything that asked for a turn was in a request.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors import AgentHandle, Draft
from abeyance.actors.domain.errors import MessageReadError, RewindRefusedError
from abeyance.actors.testing import WallClock, call_tool, fail, reply
from abeyance.actors.testing.scripted import Gate, Step

from .world import OutsideWork, World, texts, tool

SLOTS: Final = {"ana": "ana", "bo": "room", "cy": "room"}
STATED_S: Final = 60
OPERATIONS: Final = (
    *("send", "send", "send", "batch", "own", "kept", "kept", "about", "about", "again"),
    *("call", "tool", "tool", "tool", "wait", "failure", "go", "go", "go", "rewind", "cancel"),
    *("retract",),
    *("kill", "kill", "seconds", "minutes", "release", "quiesce", "resume", "stop"),
)
ACTORS: Final = ("slot", "agent", "gate", "journal", "ledger")
Operation = tuple[str, int]


@dataclass
class Model:
    """What was accepted, and what became of it."""

    slots: dict[str, list[str]] = field(default_factory=lambda: {"ana": [], "room": []})
    """In the order in which it was accepted; what was taken out is not in it."""
    gone: dict[str, str] = field(default_factory=dict)
    """What was taken out, and the state that its receipt has."""
    agents: dict[str, str] = field(default_factory=dict)
    """Of each message, for whom it is."""
    wakes: set[str] = field(default_factory=set)
    apart: set[str] = field(default_factory=set)
    """Joins no turn that lives."""
    own: set[str] = field(default_factory=set)
    """In its agent's own words: joins no turn of that agent's, nor of its own receiver's."""
    held_until_ms: dict[str, int] = field(default_factory=dict)
    quiesced: bool = False

    def take(self, name: str, agent: str, *, replaces: str | None = None) -> None:
        """A message was accepted, in the place of another or behind all."""
        slot = self.slots[SLOTS[agent]]
        self.agents[name] = agent
        if replaces is None:
            slot.append(name)
        else:
            slot[slot.index(replaces)] = name
            self.gone[replaces] = "replaced"
            if replaces in self.wakes:
                self.wakes.add(name)

    def take_out(self, name: str, state: str) -> None:
        self.slots[SLOTS[self.agents[name]]].remove(name)
        self.gone[name] = state

    def may_join(self, name: str, agent: str) -> bool:
        return name not in self.apart and not (name in self.own and self.agents[name] == agent)


@dataclass
class Seen:
    """A slot, as it is looked at from outside."""

    placed: list[str]
    waiting: list[str]
    turn: tuple[str, int] | None
    """Whose lives, and its number."""


class Life:
    """One generated program, through every runtime that it opens."""

    def __init__(self, world: World, outside: OutsideWork) -> None:
        self.world, self.outside = world, outside
        self.model = Model()
        self.agents: dict[str, AgentHandle] = {}
        self.plan: list[str] = []
        """How the next calls are answered; all others by a reply."""
        self.blocked: list[Callable[[], None]] = []
        """What has a call or a tool go on."""
        self.names = 0
        self.calls: dict[str, int] = dict.fromkeys(SLOTS, 0)
        self.said: list[str] = []
        """All that was in any request."""

    # -- the host --------------------------------------------------------------------------------

    def script(self, agent: str) -> Callable[[Any], Step]:
        def answer(request: Any) -> Step:
            self.calls[agent] += 1
            until_ms = self.model.held_until_ms.get(agent, 0)
            assert self.world.clock.now_ms() >= until_ms, f"{agent} was to be held until {until_ms}"
            self.said += texts(request)
            match self.plan.pop(0) if self.plan else "reply":
                case "call":
                    gate = Gate(reply("late"))
                    self.blocked.append(gate.release)
                    return gate
                case "tool":
                    return call_tool("stay")
                case "wait":
                    now_ms = self.world.clock.now_ms()
                    self.model.held_until_ms[agent] = now_ms + STATED_S * 1_000
                    return fail(429, retry_after=STATED_S)
                case "failure":
                    return fail(400)
                case _:
                    return reply("said")

        return answer

    async def stay(self) -> str:
        go = trio.Event()
        self.blocked.append(go.set)
        await go.wait()
        return "stayed"

    async def begin(self) -> None:
        self.blocked.clear()
        for name, slot in SLOTS.items():
            stay = tool("stay", self.stay)
            self.agents[name] = await self.world.add(
                self.script(name), name, slot=slot, tools=[stay]
            )

    async def settle(self) -> None:
        for _ in range(2):
            # Time stands still while a commit is out, so that this is long enough for any.
            await trio.sleep(0.02)
            await wait_all_tasks_blocked()

    # -- the steps -------------------------------------------------------------------------------

    async def step(self, operation: str, number: int) -> None:
        before = {slot: await self.look(slot) for slot in self.model.slots}
        agent = list(SLOTS)[number % 3]
        busy = [seen.turn[0] for seen in before.values() if seen.turn is not None]
        if busy and number % 4:
            # Mostly to who is in a turn: what waits is what may go wrong.
            agent = busy[number % len(busy)]
        name = f"{operation}{self.names}"
        self.names += 1
        match operation:
            case "send":
                await self.send(name, agent, wake=number < 6)
            case "own":
                self.model.own.add(name)
                await self.send(name, agent, author=agent, wake=False)
            case "kept":
                self.model.apart.add(name)
                await self.send(name, agent, joins=False, wake=number < 6)
            case "about":
                await self.send(name, agent, subject="it", wake=number < 6)
            case "batch":
                drafts = [Draft(f"{name}.{n}", id=f"{name}.{n}", wake=n == 1) for n in range(3)]
                for receipt in await self.agents[agent].send_many(drafts):
                    self.model.take(receipt.id, agent)
                self.model.wakes.add(f"{name}.1")
            case "again" | "retract" | "rewind":
                await self.of_one(operation, number, before)
            case "call" | "tool" | "wait" | "failure":
                self.plan.append(operation)
            case "go":
                self.go()
            case "cancel":
                await self.agents[agent].cancel_turn(requester="ops")
            case "kill":
                kind = ACTORS[number % len(ACTORS)]
                whose = SLOTS[agent] if kind == "slot" else agent
                self.world.ref(kind, whose).kill()
                await trio.sleep(1)
            case "seconds":
                await trio.sleep(7)
            case "minutes":
                await trio.sleep(2 * STATED_S)
            case "release":
                self.model.held_until_ms.pop(agent, None)
                await self.world.runtime.release_provider_wait(agent, requester="ops")
            case "quiesce":
                await self.world.runtime.quiesce("a look", requester="ops", within_s=number)
                self.model.quiesced = True
            case "resume":
                self.model.quiesced = False
                await self.world.runtime.resume(requester="ops")
        await self.settle()
        await self.compare(operation, before)

    async def send(self, name: str, agent: str, **how: Any) -> None:
        receipt = await self.agents[agent].send(name, id=name, **how)
        if how["wake"]:
            self.model.wakes.add(name)
        self.model.take(name, agent, replaces=receipt.replaces)

    async def of_one(self, operation: str, number: int, before: dict[str, Seen]) -> None:
        """What is done to a message that was accepted before."""
        known = [name for slot in self.model.slots.values() for name in slot]
        if not known:
            return
        name = known[-1 - number * len(known) // 12]
        agent = self.agents[self.model.agents[name]]
        slot = before[SLOTS[agent.name]]
        if operation == "again":
            how = {"author": agent.name} if name in self.model.own else {}
            receipt = await agent.send(name, id=name, **how)
            assert (receipt.id, receipt.replaces) == (name, None)
        elif operation == "retract":
            try:
                await agent.retract(name)
            except MessageReadError:
                assert name in slot.placed, "what waits was in no request"
            else:
                self.model.take_out(name, "retracted")
        elif name in slot.placed:
            try:
                await agent.rewind(to=name, requester="ops")
            except RewindRefusedError:
                assert slot.turn is not None
            else:
                for behind in slot.placed[slot.placed.index(name) + 1 :]:
                    self.model.take_out(behind, "rewound")

    def go(self) -> None:
        """Have every call and tool that is blocked go on."""
        while self.blocked:
            self.blocked.pop()()

    # -- what is so ------------------------------------------------------------------------------

    async def look(self, slot: str) -> Seen:
        handle = self.agents["ana" if slot == "ana" else "bo"]
        placed = [row.id async for row in handle.transcript() if row.id in self.model.agents]
        lease = self.world.rows("leases", slot)
        turn = (lease[0].agent, lease[0].turn) if lease and lease[0].turn is not None else None
        waiting = [row.id for row in await self.world.runtime.inbox() if self.is_of(row, slot)]
        return Seen(placed, waiting, turn)

    def is_of(self, row: Any, slot: str) -> bool:
        return SLOTS[row.agent] == slot

    async def compare(self, operation: str, before: dict[str, Seen]) -> None:
        model = self.model
        for slot, accepted in model.slots.items():
            was, now = before[slot], await self.look(slot)
            assert now.placed + now.waiting == accepted
            if now.turn is None and not model.quiesced:
                assert now.waiting == []
            if model.quiesced and operation != "quiesce":
                assert len(now.placed) <= len(was.placed), "a quiesced host moves nothing"
            if now.turn is not None and now.turn == was.turn:
                first = next((n for n in was.waiting if not model.may_join(n, now.turn[0])), None)
                if first is not None and first not in model.gone:
                    at = was.waiting.index(first)
                    left = [name for name in was.waiting[at:] if name not in model.gone]
                    assert set(left) <= set(now.waiting), "it is a cut, never a skip"
            for name in accepted:
                state = (await self.agents[model.agents[name]].receipt(name)).state
                assert (state == "stored") == (name in now.placed), (name, state)
                assert state in ("stored", "accepted", "held")
        for name, state in model.gone.items():
            assert (await self.agents[model.agents[name]].receipt(name)).state == state

    async def finish(self) -> None:
        """Let everything go on to its end: all that asked for a turn was in a request."""
        self.plan.clear()
        await self.step("resume", 0)
        self.model.held_until_ms.clear()
        for name in SLOTS:
            await self.world.runtime.release_provider_wait(name, requester="ops")
        for _ in range(20):
            self.go()
            await self.settle()
            with trio.move_on_after(1):
                for agent in self.agents.values():
                    await agent.wait_idle()
                break
        for slot in self.model.slots:
            now = await self.look(slot)
            assert (now.waiting, now.turn) == ([], None)
            for name in now.placed:
                if name in self.model.wakes:
                    assert any(name in words for words in self.said), name
        assert self.world.rows("wakes") == []
        assert {turn.state for turn in self.world.turns("ana")} <= {"done", "failed", "cancelled"}


async def live(world: World, outside: OutsideWork, steps: list[Operation]) -> None:
    life, left = Life(world, outside), list(steps)
    while True:
        async with world.open():
            await life.begin()
            await life.settle()
            while left:
                operation, number = left.pop(0)
                if operation == "stop":
                    break
                await life.step(operation, number)
            else:
                await life.finish()
                return


def lived(steps: list[Operation]) -> None:
    clock = MockClock(autojump_threshold=0)
    outside = OutsideWork(clock)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as state:
        outside.watch(patch)

        async def run() -> None:
            world = World(Path(state) / "state", WallClock(follow_trio=True), clock)
            with trio.fail_after(1_000_000):
                await live(world, outside, steps)

        trio.run(run, clock=clock)


PROGRAMS = st.lists(
    st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 11)), min_size=10, max_size=40
)


@settings(max_examples=5, suppress_health_check=[HealthCheck.too_slow])
@example([("kept", 1), ("send", 1), ("go", 1)])
@given(PROGRAMS)
def test_a_runtime_is_what_its_model_is_after_every_step(steps: list[Operation]) -> None:
    lived([("tool", 0), ("send", 0), *steps])


@pytest.mark.slow
@pytest.mark.timeout(600)
@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(PROGRAMS)
def test_a_runtime_is_what_its_model_is_through_many_longer_lives(steps: list[Operation]) -> None:
    lived(steps)
