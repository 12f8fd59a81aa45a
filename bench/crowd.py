"""Many actors: what one costs to start and to keep, and what a message costs among many."""

from __future__ import annotations

import gc
import itertools
import logging
import statistics
import time
import tracemalloc
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from abeyance.actors.core import ActorSystem, Backoff, ChildSpec, SupervisorSpec, TrioActor

from .counters import Counter
from .measure import AsyncPiece, Bound, Result, Scale, Spread, in_turns, ratio_of
from .peers import Task, bare_nurseries, nursery_crashes, spawn_tasks

_WINDOW = 100
_A_WAKE = 16


async def _spawn_actors(count: int) -> float:
    async with ActorSystem():
        start = time.perf_counter()
        refs = [Counter.start() for _ in range(count)]
        await wait_all_tasks_blocked()
        seconds = time.perf_counter() - start
        del refs
    return seconds


async def _bytes_of_actors(count: int) -> float:
    async with ActorSystem():
        before = _traced()
        refs = [Counter.start() for _ in range(count)]
        await wait_all_tasks_blocked()
        taken = _traced() - before
        del refs
    return taken / count


async def _bytes_of_tasks(count: int) -> float:
    async with trio.open_nursery() as nursery:
        before = _traced()
        for _ in range(count):
            nursery.start_soon(Task().run)
        await wait_all_tasks_blocked()
        taken = _traced() - before
        nursery.cancel_scope.cancel()
    return taken / count


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def _spawn(scale: Scale) -> list[Result]:
    rates = await in_turns(scale, _spawn_actors, spawn_tasks, first=200, most=20_000)
    count = 1000 if scale.quick else 5000
    tracemalloc.start()
    sizes = [
        (await _bytes_of_actors(count), await _bytes_of_tasks(count))
        for _ in range(1 if scale.quick else 3)
    ]
    tracemalloc.stop()
    peer = "a bare trio task in a cancel scope"
    return [
        ratio_of(
            "spawn",
            "start an actor and let it reach its first wait",
            peer,
            rates,
            Bound(floor=2.5, goal=2.0, better="lower"),
        ),
        Result(
            "memory",
            "an idle actor, traced bytes",
            peer,
            "B",
            Spread.of([mine / theirs for mine, theirs in sizes]),
            Bound(floor=2.0, goal=2.0, better="lower"),
            Spread.of([mine for mine, _ in sizes]),
            Spread.of([theirs for _, theirs in sizes]),
        ),
    ]


def spawn(scale: Scale) -> list[Result]:
    return trio.run(_spawn, scale)


async def _lives_of(count: int) -> float:
    """Start so many actors, let each reach its first wait, and stop each; not registered."""
    async with ActorSystem() as system:
        start = time.perf_counter()
        refs = [system.start(Counter) for _ in range(count)]
        await wait_all_tasks_blocked()
        for ref in refs:
            ref.stop()
        while system.cells:
            await trio.lowlevel.checkpoint()
        return time.perf_counter() - start


async def _lives(scale: Scale) -> list[Result]:
    many, few = (10_000 if scale.quick else 100_000), 1000
    rates: tuple[list[float], list[float]] = ([], [])
    for _ in range(1 if scale.quick else 3):
        gc.collect()
        rates[0].append(many / await _lives_of(many))
        gc.collect()
        seconds = sum([await _lives_of(few) for _ in range(10)])
        rates[1].append(10 * few / seconds)
    return [
        ratio_of(
            "lives",
            f"start and stop an actor, {many} at a time",
            f"the same, {few} at a time",
            rates,
            Bound(better="lower"),
            unit="actors/s",
            beside={"us_each": 1e6 / statistics.median(rates[0])},
        )
    ]


def lives(scale: Scale) -> list[Result]:
    return trio.run(_lives, scale)


class _Fragile(TrioActor):
    """Ends its incarnation when it is told to."""

    def on_receive(self, message: Any) -> Any:
        if message == "crash":
            raise ValueError(message)
        return message


class _Listens(logging.Handler):
    """Takes each record and formats it, as a host's log file would."""

    def emit(self, record: logging.LogRecord) -> None:
        self.format(record)


async def _crash(scale: Scale) -> list[Result]:
    spec = SupervisorSpec(
        "bench",
        (ChildSpec("fragile", _Fragile),),
        intensity=10**9,
        # Without the pause that restarts after the first would make: the machinery is measured.
        backoff=Backoff(initial_s=0.0, max_s=0.0, factor=1.0, jitter=0.0),
    )
    async with ActorSystem() as system:
        ref = (await system.start_supervisor(spec)).refs["fragile"]

        async def crashing(count: int) -> float:
            start = time.perf_counter()
            for _ in range(count):
                ref.tell("crash")
                await ref.ask("reply", block=False, timeout=30)
            return time.perf_counter() - start

        rates = await in_turns(scale, crashing, bare_nurseries, first=100)
        raising = await nursery_crashes(500)
        # Nobody listens to the log above, so that no record is made of a crash.
        handler = _Listens()
        logging.getLogger("abeyance").addHandler(handler)
        logged = await crashing(500)
        logging.getLogger("abeyance").removeHandler(handler)
    return [
        ratio_of(
            "crash",
            "a tell that crashes its actor, to the next incarnation's reply",
            "a bare nursery with one task",
            rates,
            Bound(floor=2.0, goal=2.0, better="lower"),
            beside={
                "crash_us": 1e6 / statistics.median(rates[0]),
                "nursery_us": 1e6 / statistics.median(rates[1]),
                "crash_logged_us": logged / 500 * 1e6,
                "nursery_that_raises_and_a_new_one_us": raising / 500 * 1e6,
            },
        )
    ]


def crash_to_reply(scale: Scale) -> list[Result]:
    return trio.run(_crash, scale)


class _Tally:
    def __init__(self) -> None:
        self.handled = 0


class _Member(TrioActor):
    def __init__(self, tally: _Tally) -> None:
        super().__init__()
        self._tally = tally

    def on_receive(self, message: Any) -> None:
        self._tally.handled += 1


def _round_the(refs: list[Any], tally: _Tally) -> AsyncPiece:
    """Tell a window of actors some messages each, let them handle these, and go on to the next."""
    windows = itertools.cycle(
        [refs[first : first + _WINDOW] for first in range(0, len(refs), _WINDOW)]
    )

    async def piece(count: int) -> float:
        rounds = max(1, count // (_WINDOW * _A_WAKE))
        start = time.perf_counter()
        for _ in range(rounds):
            window = next(windows)
            expected = tally.handled + len(window) * _A_WAKE
            for ref in window:
                for number in range(_A_WAKE):
                    ref.tell(number)
            while tally.handled < expected:
                await trio.lowlevel.checkpoint()
        return (time.perf_counter() - start) * count / (rounds * _WINDOW * _A_WAKE)

    return piece


async def _crowd(scale: Scale) -> list[Result]:
    many, few = (20_000 if scale.quick else 100_000), 1000
    tally = _Tally()
    async with ActorSystem():
        crowd = [_Member.start(tally) for _ in range(many)]
        await wait_all_tasks_blocked()
        rates = await in_turns(
            scale,
            _round_the(crowd, tally),
            _round_the(crowd[:few], tally),
            # At least once round the larger crowd, or its members would be told twice as warm.
            first=many * _A_WAKE // 4,
        )
    return [
        ratio_of(
            "crowd",
            f"a message among {many} actors, {_A_WAKE} a wake",
            f"a message among {few} of them",
            rates,
            Bound(floor=1.5, goal=1.5, better="lower"),
            unit="messages/s",
        )
    ]


def crowd(scale: Scale) -> list[Result]:
    return trio.run(_crowd, scale)
