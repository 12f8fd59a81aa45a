"""What trio leaves to chance, the order of tasks that are ready at once, is part of a schedule."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
import trio._core._run as scheduler
import trio.lowlevel
from trio.testing import MockClock

from abeyance.actors.core import ActorSystem, Backoff, ChildSpec, SupervisorSpec, TrioActor
from abeyance.actors.testing import Faults, settled, task_order

PROGRAM = '''
import trio
from trio.testing import MockClock
from abeyance.actors.core import ActorSystem, ChildSpec, SupervisorSpec, TrioActor
from abeyance.actors.testing import Faults, settled


class Relay(TrioActor):
    """Passes on what it gets: who was first decides at which hit a fault of the last one fires."""

    max_deliveries = 3

    def __init__(self, peer=None, trace=None):
        self.peer, self.trace = peer, trace

    async def on_receive(self, message):
        await trio.lowlevel.checkpoint()
        if self.peer is not None:
            self.peer.tell(message)
        else:
            self.trace.append(message)


async def relay(faults, trace):
    async with ActorSystem(faults=faults) as system:
        last = ChildSpec("last", Relay, kwargs={"trace": trace})
        group = await system.start_supervisor(SupervisorSpec("g", (last,), intensity=10**5))
        firsts = [system.start(Relay, group.refs["last"], name=f"first {n}") for n in range(5)]
        for _ in range(8):
            for n, first in enumerate(firsts):
                first.tell(n)
            await trio.sleep(0.01)
        await settled(system, within_s=500)


def run(faults):
    trace = []
    with faults:
        trio.run(relay, faults, trace, clock=MockClock(autojump_threshold=0))
    return trace


def chancy(seed):
    faults = Faults(seed)
    faults.at("before_handle", actor="last", probability=0.2).crash()
    faults.at("before_handle", actor="last", probability=0.1).delay(0.004)
    faults.at("mailbox_put", actor="last", probability=0.1).drop()
    faults.at("wake", probability=0.1).delay(0.005)
    return faults
'''
_program: dict[str, Any] = {}
exec(compile(PROGRAM, "program", "exec"), _program)
run: Callable[[Faults], list[int]] = _program["run"]
chancy: Callable[[int], Faults] = _program["chancy"]


def lines(faults: Faults) -> list[str]:
    return [line for line in faults.schedule.splitlines() if not line.startswith("#")]


def trios_own() -> tuple[bool, Any]:
    return scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r


def test_replay_is_exact_where_the_order_of_tasks_decides() -> None:
    traces = set()
    for seed in range(10):
        first, second = chancy(seed), chancy(seed)
        trace = run(first)
        assert run(second) == trace
        assert second.schedule == first.schedule
        again = Faults.replay(first.schedule)
        assert run(again) == trace
        assert lines(again) == lines(first)
        bare = Faults(seed)  # Without a fault, the order is all that differs.
        traces.add(tuple(run(bare)))
    assert len(traces) > 1, "the order of tasks did not decide anything"


def test_replay_is_exact_in_another_process() -> None:
    faults = chancy(4711)
    trace = run(faults)
    code = (
        f"{PROGRAM}\nimport sys\nfaults = Faults.replay(sys.stdin.read())\n"
        "print(run(faults))\nprint(faults.schedule)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=faults.schedule,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "99"},
    )
    said, *schedule = done.stdout.splitlines()
    assert said == str(trace)
    assert [line for line in schedule if not line.startswith("#")] == lines(faults)


def test_schedule_says_the_order_of_tasks_where_it_was_given_one() -> None:
    faults = Faults(4711)
    assert lines(faults) == []
    with faults:
        pass
    assert lines(faults) == ["task_order 4711"]
    with Faults.replay(faults.schedule) as again:
        pass
    assert lines(again) == ["task_order 4711"]


@pytest.mark.parametrize("line", ["task_order", "task_order x", "task_order 1 2"])
def test_order_that_is_no_number_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=f"a line of a schedule .* not '{line}'"):
        Faults.replay(line)


def test_schedule_of_an_order_that_was_trios_own_leaves_it_to_trio() -> None:
    before = trios_own()
    with Faults.replay("mailbox_put worker 3 drop") as faults:
        assert trios_own() == before
    assert lines(faults) == []


def test_trios_own_order_is_back_after_the_block() -> None:
    before = trios_own()
    state = scheduler._r.getstate()
    with Faults(1):
        assert trios_own() != before
        trio.run(trio.sleep, 0)
    assert trios_own() == before
    with pytest.raises(RuntimeError, match="own"), Faults(1):
        raise RuntimeError("the test's own")
    assert trios_own() == before
    assert scheduler._r.getstate() == state


def test_trios_own_order_is_back_after_blocks_that_are_left_in_any_order() -> None:
    before = trios_own()
    one, two = Faults(1), Faults(2)
    one.__enter__()
    own_of_one = scheduler._r
    two.__enter__()
    own_of_two = scheduler._r
    assert own_of_two is not own_of_one
    one.__exit__(None, None, None)
    assert scheduler._r is own_of_two
    two.__exit__(None, None, None)
    assert trios_own() == before


def test_run_on_another_thread_takes_nothing_from_the_order_of_this_one() -> None:
    alone = run(Faults(5))
    after = threading.Event()

    async def many() -> None:
        async with trio.open_nursery() as nursery:
            while not after.is_set():
                for _ in range(5):
                    nursery.start_soon(trio.sleep, 0)
                await trio.lowlevel.checkpoint()

    other = threading.Thread(target=trio.run, args=(many,))
    faults = Faults(5)
    with faults:
        other.start()
        try:
            beside = run(faults)
        finally:
            after.set()
            other.join()
    assert beside == alone


class Falls(TrioActor):
    def on_receive(self, message: object) -> None:
        raise RuntimeError("falls")


def pauses(faults: Faults, seed: int | None = None) -> list[float]:
    """When the starts were of an actor that falls again and again."""
    starts: list[float] = []

    class Notes(Falls):
        def on_start(self) -> None:
            starts.append(trio.current_time())

    async def main() -> None:
        async with ActorSystem(faults=faults, seed=seed) as system:
            child = ChildSpec("falls", Notes)
            group = await system.start_supervisor(
                SupervisorSpec(
                    "g", (child,), intensity=10, period_s=1_000.0, backoff=Backoff(jitter=1.0)
                )
            )
            for _ in range(4):
                group.refs["falls"].tell(1)
                await trio.sleep(60)

    with faults:
        trio.run(main, clock=MockClock(autojump_threshold=0))
    return starts


def test_pauses_before_restarts_are_replayed_with_the_order() -> None:
    faults = Faults(8)
    first = pauses(faults)
    assert pauses(Faults.replay(faults.schedule)) == first
    assert pauses(Faults(9)) != first
    assert pauses(Faults(9), seed=3) == pauses(Faults(10), seed=3)


def test_trio_that_takes_no_order_keeps_its_own_and_the_schedule_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_order, "_ORDERED", "_NO_SUCH_THING")
    before = trios_own()
    faults = Faults(1)
    with faults:
        assert trios_own() == before
    assert lines(faults) == []
    assert "the order of tasks was trio's own" in faults.schedule
    assert not hasattr(scheduler, "_NO_SUCH_THING")


def test_machine_that_is_slower_takes_the_same_messages_in_a_batch() -> None:
    async def main(faults: Faults, slow_s: float, order: list[int]) -> None:
        class Busy(TrioActor):
            def on_receive(self, message: int) -> None:
                until = time.perf_counter() + slow_s
                while time.perf_counter() < until:
                    pass
                order.append(message)

        async with ActorSystem(faults=faults) as system:
            for which in range(3):
                ref = system.start(Busy)
                for lane in (ref.tell, ref.tell_internal):
                    for _ in range(40):
                        lane(which)
            await settled(system)

    def play(slow_s: float) -> list[int]:
        order: list[int] = []
        with Faults(3) as faults:
            trio.run(main, faults, slow_s, order, clock=MockClock(autojump_threshold=0))
        return order

    fast = play(0.0)
    assert play(0.0007) == fast
    assert len(fast) == 240


def test_asks_that_expire_at_once_expire_in_the_order_they_were_asked() -> None:
    async def main(faults: Faults, order: list[int]) -> None:
        class Sleeps(TrioActor):
            async def on_receive(self, message: int) -> None:
                await trio.sleep(100)

        async with ActorSystem(faults=faults) as system:
            refs = [system.start(Sleeps) for _ in range(30)]
            for n, ref in enumerate(refs):
                ref.ask(n, timeout=5.0).on_done(partial(order.append, n))
            await trio.sleep(10)

    order: list[int] = []
    with Faults(3) as faults:
        trio.run(main, faults, order, clock=MockClock(autojump_threshold=0))
    assert order == list(range(30))


async def test_block_inside_the_run_gives_the_order_from_there_on() -> None:
    async def race(faults: Faults) -> list[int]:
        order: list[int] = []

        async def note(n: int) -> None:
            order.append(n)

        with faults:
            async with trio.open_nursery() as nursery:
                for n in range(20):
                    nursery.start_soon(note, n)
        return order

    first = await race(Faults(1))
    assert await race(Faults(1)) == first
    assert await race(Faults(2)) != first
