"""The host clock: virtual time that stands still while somebody works outside the loop."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentSpec, open_runtime
from abeyance.actors.core import ActorSystem, AskTimeoutError, HostedSystem, TrioActor
from abeyance.actors.testing import Faults, HostClock, ScriptedProvider, WallClock, settled


def work(seconds: float = 0.05) -> None:
    """Work for so long in real time, as a library does that knows no event loop."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1_000))


@pytest.fixture
def clock():
    return HostClock()


def _deadline_of_a_minute(clock) -> tuple[bool, float]:
    async def main():
        with trio.move_on_after(60) as scope:
            await trio.to_thread.run_sync(work)
        return scope.cancel_called, trio.current_time()

    return trio.run(main, clock=clock)


def test_mock_clock_lets_a_deadline_of_a_minute_pass_while_a_thread_works_50_ms():
    passed, _ = _deadline_of_a_minute(MockClock(autojump_threshold=0))
    assert passed


def test_host_clock_stands_still_while_a_thread_of_trios_works():
    passed, now = _deadline_of_a_minute(HostClock())
    assert (passed, now) == (False, 0.0)


async def test_time_jumps_to_each_deadline_when_nobody_works(clock):
    began = time.monotonic()
    seen = []
    async with trio.open_nursery() as nursery:
        for seconds in (3_600, 60, 60.5):

            async def nap(seconds=seconds):
                await trio.sleep(seconds)
                seen.append(trio.current_time())

            nursery.start_soon(nap)
    assert seen == [60, 60.5, 3_600]
    assert time.monotonic() - began < 60


async def test_time_waits_for_the_tasks_that_wait_for_all_others(clock):
    order = []

    async def idle():
        await trio.testing.wait_all_tasks_blocked()
        order.append("blocked")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(idle)
        await trio.sleep(1)
        order.append("slept")
    assert order == ["blocked", "slept"]


class Sleeps(TrioActor):
    async def on_receive(self, message):
        await trio.sleep(30)
        return message


async def test_time_passes_for_a_thread_of_trios_that_waits_in_a_blocking_ask(clock):
    async with ActorSystem() as system:
        ref = system.start(Sleeps)
        assert await trio.to_thread.run_sync(ref.ask, "x") == "x"
        assert trio.current_time() == 30


async def test_time_passes_for_a_thread_of_trios_that_waits_in_from_thread(clock):
    await trio.to_thread.run_sync(partial(trio.from_thread.run, trio.sleep, 30))
    assert trio.current_time() == 30


async def test_time_stands_still_between_two_calls_of_a_thread_of_trios(clock):
    def call() -> list[float]:
        seen = []
        for _ in range(5):
            trio.from_thread.run(trio.sleep, 1)
            work(0.01)
            seen.append(trio.from_thread.run_sync(trio.current_time))
        return seen

    with trio.move_on_after(60):
        assert await trio.to_thread.run_sync(call) == [1, 2, 3, 4, 5]


class Idles(TrioActor):
    """Says so when nobody asked it for a minute."""

    def on_start(self):
        self.idled = False
        self.timer = None

    def on_receive(self, message):
        if message == "idle":
            self.idled = True
            return None
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.after(60, "idle")
        return self.idled


def test_time_stands_still_while_a_host_thread_works_that_says_so():
    clock = HostClock()
    with HostedSystem(trio_clock=clock) as hosted, clock.working():
        ref = hosted.start(Idles)
        assert [(work(0.02), ref.ask("x"))[1] for _ in range(3)] == [False, False, False]


def test_time_passes_while_a_host_thread_works_that_does_not_say_so():
    with HostedSystem(trio_clock=HostClock()) as hosted:
        ref = hosted.start(Idles)
        assert [(work(0.02), ref.ask("x"))[1] for _ in range(3)] == [False, True, True]


def test_time_passes_while_a_host_thread_that_works_waits_for_the_loop():
    clock = HostClock()
    with HostedSystem(trio_clock=clock) as hosted:
        with clock.working(), clock.working():
            assert hosted.start(Sleeps).ask("x") == "x"
            assert clock.current_time() == 30
        asked = hosted.start(Sleeps).ask("x", block=False, timeout=20)
        with pytest.raises(AskTimeoutError):
            asked.get(timeout=60)


async def test_time_stands_still_while_a_commit_is_with_the_writer(tmp_path, clock):
    faults = Faults(1)
    # A predicate is asked on the writer's thread, which is then slow to say that it is done.
    faults.at("after_commit", message=lambda _: work(0.02)).kill()
    async with open_runtime(
        tmp_path / "state", control=False, clock=WallClock(follow_trio=True), faults=faults
    ) as runtime:
        provider = ScriptedProvider.echo()
        ana = await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        began = trio.current_time()
        with trio.fail_after(1):
            for n in range(5):
                await ana.send(f"message {n}")
        await ana.wait_idle()
        assert trio.current_time() == began


async def test_time_passes_for_a_commit_that_a_fault_delays(tmp_path, clock):
    faults = Faults(1)
    with faults:
        async with open_runtime(tmp_path / "state", control=False, faults=faults) as runtime:
            ana = await runtime.add_agent(
                AgentSpec(name="ana", provider=ScriptedProvider.echo(), model="m")
            )
            faults.at("before_commit", nth=1).delay(0.4)
            faults.at("after_commit", nth=1).delay(0.2)
            await ana.send("hello")
            assert trio.current_time() == pytest.approx(0.6)
            await ana.wait_idle()
            await settled(runtime)


async def test_time_can_be_moved_by_hand(clock):
    with trio.move_on_after(60) as scope:
        clock.jump(61)
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    with pytest.raises(ValueError, match="forwards"):
        clock.jump(-1)


def test_time_goes_on_in_the_next_run():
    clock = HostClock()
    for _ in range(2):
        trio.run(trio.sleep, 1, clock=clock)
    assert clock.current_time() == 2


def test_time_stands_still_until_the_last_of_several_threads_has_ended():
    clock = HostClock()
    begun = threading.Barrier(3)

    async def main():
        with trio.move_on_after(60) as scope:
            async with trio.open_nursery() as nursery:
                for seconds in (0.0, 0.01, 0.03):

                    def body(seconds=seconds):
                        begun.wait()
                        work(seconds)

                    nursery.start_soon(trio.to_thread.run_sync, body)
        return scope.cancel_called

    assert trio.run(main, clock=clock) is False
