"""The alarm: never early, never more than 30 s late for a clock that stepped."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors.core import ActorSystem, ChildSpec, SupervisorSpec, TrioActor
from abeyance.actors.domain.alarm import Alarm
from abeyance.actors.domain.protocol import Due, ForgetInstant, WatchInstant
from abeyance.actors.testing import WallClock
from abeyance.actors.testing.clock import START_MS

from .world import until


class Sleeper(TrioActor):
    def __init__(self, clock: WallClock, woken: list[tuple[str, int, float]]) -> None:
        self._clock = clock
        self._woken = woken

    def on_receive(self, message: Due) -> None:
        self._woken.append((message.key, self._clock.now_ms() - START_MS, trio.current_time()))


class Trial:
    def __init__(self, clock: WallClock, woken: list[Any], refs: dict[str, Any]) -> None:
        self.clock = clock
        self.woken = woken
        self.alarm, self.sleeper = refs["alarm"], refs["sleeper"]
        self.began_s = trio.current_time()

    def watch(self, key: str, after_ms: int) -> None:
        self.alarm.tell(WatchInstant(key, START_MS + after_ms, self.sleeper))

    @property
    def keys(self) -> list[str]:
        return [key for key, _, _ in self.woken]


@asynccontextmanager
async def trial(*, follow_trio: bool = True) -> AsyncIterator[Trial]:
    woken: list[Any] = []
    clock = WallClock(follow_trio=follow_trio)
    async with ActorSystem() as system:
        group = await system.start_supervisor(
            SupervisorSpec(
                id="group",
                children=(
                    ChildSpec("alarm", Alarm, (clock,)),
                    ChildSpec("sleeper", Sleeper, (clock, woken), restart="temporary"),
                ),
            )
        )
        yield Trial(clock, woken, group.refs)


async def test_an_instant_is_told_when_it_has_come_and_not_before(
    autojump_clock: MockClock,
) -> None:
    async with trial() as it:
        it.watch("a", 10_000)
        await trio.sleep(9.999)
        assert not it.woken
        await trio.sleep(1)
        ((key, at_ms, _),) = it.woken
        assert key == "a"
        assert 10_000 <= at_ms < 10_050


async def test_an_instant_that_is_over_is_told_at_once(autojump_clock: MockClock) -> None:
    async with trial() as it:
        it.watch("a", -5)
        await until(lambda: it.keys == ["a"])
        assert trio.current_time() == it.began_s


async def test_an_earlier_instant_is_heard_while_the_alarm_sleeps_to_a_later_one(
    autojump_clock: MockClock,
) -> None:
    async with trial() as it:
        it.watch("late", 20_000)
        await wait_all_tasks_blocked()
        it.watch("early", 2_000)
        await trio.sleep(3)
        assert it.keys == ["early"]
        await trio.sleep(20)
        assert it.keys == ["early", "late"]


async def test_a_key_is_told_once_at_its_last_instant(autojump_clock: MockClock) -> None:
    async with trial() as it:
        it.watch("a", 1_000)
        it.watch("a", 5_000)
        await trio.sleep(4)
        assert not it.woken
        await trio.sleep(100)
        assert it.keys == ["a"]


async def test_a_forgotten_instant_is_not_told(autojump_clock: MockClock) -> None:
    async with trial() as it:
        it.watch("a", 1_000)
        it.alarm.tell(ForgetInstant("a"))
        it.alarm.tell(ForgetInstant("never known"))
        await trio.sleep(100)
        assert not it.woken


@pytest.mark.behaviour("R-26")
async def test_a_clock_that_steps_forward_is_seen_within_30_s(autojump_clock: MockClock) -> None:
    async with trial() as it:
        it.watch("a", 3_600_000)
        await trio.sleep(1)
        it.clock.advance(3_600_000)
        await trio.sleep(30)
        assert it.keys == ["a"]


async def test_a_clock_that_steps_backward_delays_what_is_due(autojump_clock: MockClock) -> None:
    async with trial() as it:
        it.watch("a", 10_000)
        await trio.sleep(9)
        it.clock.advance(-100_000)
        await trio.sleep(99)
        assert not it.woken, "the wall clock has not read the instant yet"
        await trio.sleep(32)
        assert it.keys == ["a"]
        assert it.woken[0][1] >= 10_000


async def test_a_wall_clock_that_stands_still_tells_nothing(autojump_clock: MockClock) -> None:
    async with trial(follow_trio=False) as it:
        it.watch("a", 10_000)
        await trio.sleep(3_600)
        assert not it.woken
        it.clock.advance(10_000)
        await trio.sleep(30)
        assert it.keys == ["a"]


async def test_an_instant_thousands_of_years_away_does_not_hurt(
    autojump_clock: MockClock,
) -> None:
    async with trial() as it:
        it.alarm.tell(WatchInstant("far", 8_640_000_000_000_000, it.sleeper))
        it.watch("near", 40_000)
        await trio.sleep(100)
        assert it.keys == ["near"]


async def test_many_instants_are_told_in_their_order(autojump_clock: MockClock, seed: int) -> None:
    instants = [(f"k{number}", number * 7) for number in range(2_000)]
    async with trial() as it:
        shuffled = instants[:]
        random.Random(seed).shuffle(shuffled)
        for key, after_ms in shuffled:
            it.watch(key, after_ms)
        await trio.sleep(20)
        assert sorted(it.keys) == sorted(key for key, _ in instants)
        told = {key: at_ms for key, at_ms, _ in it.woken}
        assert all(0 <= told[key] - after_ms < 50 for key, after_ms in instants)


async def test_registrations_outlive_a_crash_of_the_alarm(autojump_clock: MockClock) -> None:
    async with trial() as it:
        it.watch("a", 10_000)
        await wait_all_tasks_blocked()
        it.alarm.kill()
        await until(lambda: it.alarm.statistics().incarnation == 2)
        await trio.sleep(11)
        assert it.keys == ["a"]


async def test_a_due_instant_of_somebody_who_ended_does_not_crash_the_alarm(
    autojump_clock: MockClock,
) -> None:
    async with trial() as it:
        it.watch("a", 1_000)
        it.watch("b", 1_000)
        await wait_all_tasks_blocked()
        await it.sleeper.stop()
        await trio.sleep(2)
        assert it.alarm.statistics().incarnation == 1
        assert not it.alarm._cell.kept.instants
