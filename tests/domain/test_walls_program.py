"""Residents and conversations that come and go under one credential, by a generated program.

Their provider states walls of the account, of a model, and of nobody in particular, at any moment,
also by calls that were out as another wall was stated. No call is made into a wall, whoever forks,
closes, restarts or turns the clock; in the end everyone has been answered.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentHandle, Runtime
from abeyance.actors.providers.port import ProviderError
from abeyance.actors.providers.stated import StatedWait, WaitEnds, WaitKind, WaitScope
from abeyance.actors.testing import fail, raise_, reply

from .world import World

CHANNELS = 5
ROUNDS_MAX = 400
SHARED, OTHER = "shared", "other"
RESIDENTS = {"ana": (SHARED, "m"), "bo": (SHARED, "n"), "cy": (SHARED, "m"), "di": (OTHER, "m")}
PARENTS = ("ana", "bo")


class Wall(NamedTuple):
    stated_ms: int
    ends_ms: int


class Late:
    """A step that is played after a while."""

    def __init__(self, after_s: float, then: Callable[[], Any]) -> None:
        self._after_s = after_s
        self._then = then

    async def play(self, call: Any) -> Any:
        await trio.sleep(self._after_s)
        return await self._then().play(call)


class Provider:
    """What both credentials' provider says, and the walls it has stated."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self.walls: dict[tuple[str, str], Wall] = {}
        self.calls = 0
        self.into_walls: list[Any] = []
        self.is_calm = False

    def speaks(self, key: str) -> Callable[[Any], Any]:
        def say(request: Any) -> Any:
            self.calls += 1
            self._look(key, request.model)
            late_s = self._rng.choice([0, 0.01, 0.5, 3, 20])
            if self.is_calm or self._rng.random() < 0.6:
                return Late(late_s, lambda: reply("ok"))
            if self._rng.random() < 0.25:
                return Late(late_s, lambda: fail(529))
            wait_ms = self._rng.choice([500, 5_000, 60_000, 400_000, 4_000_000])
            scope = self._rng.choice([WaitScope.ACCOUNT, WaitScope.MODEL, None])
            return Late(late_s, lambda: self._wall(key, request.model, scope, wait_ms))

        return say

    def _look(self, key: str, model: str) -> None:
        now_ms = self._world.clock.now_ms()
        for of in ("*", model):
            wall = self.walls.get((key, of))
            if wall is not None and wall.stated_ms < now_ms < wall.ends_ms:
                self.into_walls.append((key, model, now_ms, of, wall))

    def _wall(self, key: str, model: str, scope: WaitScope | None, wait_ms: int) -> Any:
        now_ms = self._world.clock.now_ms()
        of = "*" if scope is WaitScope.ACCOUNT else model
        known = self.walls.get((key, of))
        if known is None or known.ends_ms < now_ms + wait_ms:
            self.walls[key, of] = Wall(now_ms, now_ms + wait_ms)
        stated = StatedWait(
            kind=WaitKind.QUOTA_EXHAUSTED,
            ends=WaitEnds.UNTIL,
            deadline_ms=now_ms + wait_ms,
            scope=scope,
        )
        return raise_(
            ProviderError("limited", retryable=True, status=429, stated=stated, sent=True)
        )


async def _program(
    world: World, runtime: Runtime, rng: random.Random, agents: list[AgentHandle], steps: int
) -> None:
    forks: dict[tuple[str, str], AgentHandle] = {}
    for _ in range(steps):
        await trio.sleep(rng.choice([0, 0.1, 5, 60, 900]))
        act = rng.choice(["send", "send", "send", "fork", "fork", "talk", "close", "step"])
        if act == "send":
            await rng.choice([*agents, *forks.values()]).send("hello")
        elif act == "fork":
            parent, channel = rng.choice(PARENTS), f"c{rng.randrange(CHANNELS)}"
            forks[parent, channel] = await runtime.open_conversation(parent, channel=channel)
        elif act == "talk" and forks:
            await rng.choice(list(forks.values())).send("again")
        elif act == "close" and forks:
            await forks.pop(rng.choice(list(forks))).close()
        elif act == "step":
            world.clock.advance(rng.choice([1, -1]) * rng.choice([10_000, 3_600_000]))


async def _run(world: World, seed: int, lives: int, steps: int) -> None:
    rng = random.Random(seed)
    provider = Provider(world, rng)
    for life in range(lives):
        async with world.open(account_waits=True) as runtime:
            agents = [
                await world.add(world.provider(provider.speaks(key), key=key), name, model=model)
                for name, (key, model) in RESIDENTS.items()
            ]
            await _program(world, runtime, rng, agents, steps)
            if life == lives - 1:
                await _is_answered(world, runtime, provider)
    assert provider.into_walls == []


async def _is_answered(world: World, runtime: Runtime, provider: Provider) -> None:
    provider.is_calm = True
    ends_ms = max((wall.ends_ms for wall in provider.walls.values()), default=0)
    world.clock.advance(max(0, ends_ms - world.clock.now_ms()) + 1)
    for _ in range(ROUNDS_MAX):
        left = [
            (agent.name, agent.state, agent.held)
            for agent in runtime.status().agents
            if agent.state != "idle" or agent.inbox or agent.wakes
        ]
        if not left:
            return
        await trio.sleep(31)
    raise AssertionError(left)


async def test_no_call_is_made_into_a_wall_whoever_comes_and_goes_and_everyone_is_answered(
    world: World, virtual_time: MockClock, seed: int
) -> None:
    await _run(world, seed, lives=2, steps=12)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
async def test_no_call_is_made_into_a_wall_by_longer_programs(
    world: World, virtual_time: MockClock, seed: int, part: int
) -> None:
    await _run(world, seed + part, lives=3, steps=40)
