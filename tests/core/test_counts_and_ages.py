"""What a system counts past its actors' ends, and by which clock it tells ages."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors.core import (
    LATER,
    ActorSystem,
    ChildSpec,
    HostedSystem,
    SupervisorSpec,
    TrioActor,
)


class Outlasts(TrioActor):
    """Ends what it is asked to do, whatever its system does meanwhile."""

    max_deliveries = 2

    async def on_receive(self, message: Any) -> Any:
        reply = self.later() if message in ("owes", "pays", "owes and raises") else None
        with trio.CancelScope(shield=True):
            await trio.sleep(100)
        if message.endswith("raises"):
            raise ValueError(message)
        if message == "stashes":
            return self.stash()
        if message == "pays":
            reply.set()
        return message if reply is None else LATER


def told_of(system: ActorSystem) -> tuple[int, int]:
    """What was accepted, and what it is the sum of."""
    seen = system.statistics()
    there = seen.queued + seen.owed + seen.in_flight
    ended = seen.handled + sum(seen.dead_letters.values()) + sum(seen.quarantined.values())
    return seen.accepted, there + ended


@pytest.mark.parametrize("how", ["told", "asked"])
@pytest.mark.parametrize(
    "does", ["returns", "raises", "stashes", "owes", "pays", "owes and raises"]
)
async def test_message_whose_handler_outlasts_the_end_of_its_system_is_counted_once(
    does, how, autojump_clock
):
    system = ActorSystem()
    async with system:
        ref = system.start(Outlasts)
        if how == "told":
            ref.tell(does)
        else:
            ref.ask(does)
        ref.tell("behind")
        await wait_all_tasks_blocked()
        await system.shutdown(deadline_s=1)
        assert ref.statistics().state == "ended"
        assert system.statistics().actors == 0
        # Its handler runs on, and what it has in hand is there.
        assert system.statistics().accepted == 2
        assert system.statistics().in_flight == 1
    assert told_of(system) == (2, 2)
    assert system.statistics().in_flight == 0
    assert system.statistics().handled == ref.statistics().handled


def test_counts_of_actors_that_ended_before_the_system_stand():
    with HostedSystem() as host:
        for _ in range(3):
            ref = host.start(Outlasts)
            ref.stop()
        assert host.statistics().actors == 0
    assert told_of(host.system) == (0, 0)


class Sleeps(TrioActor):
    async def on_receive(self, message: Any) -> None:
        if message == "raises":
            raise ValueError(message)
        await trio.sleep(message)


async def test_ages_are_told_by_trios_clock(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Sleeps)
        ref.tell(1_000.0)
        await trio.sleep(10)
        ref.tell(1.0)
        await trio.sleep(600)
        seen = ref.statistics()
        assert 600 <= seen.oldest_s_max <= 610.1
        assert 610 <= seen.in_flight_s_max <= 610.1
        assert system.statistics().oldest_s_max == seen.oldest_s_max
        await trio.sleep(390.5)
        seen = ref.statistics()
        assert seen.oldest_s_max is None
        assert seen.in_flight_s_max <= 1_000.6  # Since its last look, before the first.


async def test_messages_of_a_handled_batch_have_the_ages_of_trios_clock(autojump_clock):
    """Also those that were not the first of their batch, that came back, and that rest."""

    class Looks(TrioActor):
        max_deliveries = 2

        async def on_receive(self, message: Any) -> None:
            if message == "raises" and self.incarnation == 1:
                await trio.sleep(50)
                raise ValueError(message)
            if message in (7, 8, 9, "raises"):
                await trio.sleep(100)

    async with ActorSystem() as system:
        spec = SupervisorSpec("g", (ChildSpec("a", Looks),))
        ref = (await system.start_supervisor(spec)).refs["a"]
        for message in range(30):
            ref.tell(message)
        await trio.sleep(250)
        seen = ref.statistics()
        assert 200 <= seen.oldest_s_max <= 250.1
        assert 150 <= seen.in_flight_s_max <= 150.1  # Since the look behind the first eight.
        await trio.sleep(100)
        ref.tell("raises")
        ref.tell("behind")
        await trio.sleep(60)
        seen = ref.statistics()
        assert (seen.incarnation, seen.state, seen.queued) == (2, "running", 1)
        assert 60 <= seen.oldest_s_max <= 60.1
        assert 0 <= seen.in_flight_s_max <= 10.1
        ref.suspend()
        await trio.sleep(1_000)
        assert 1_059 <= ref.statistics().oldest_s_max <= 1_060.1


def test_ages_are_told_by_the_clock_that_a_host_gives():
    clock = MockClock()
    with HostedSystem(trio_clock=clock) as host:
        ref = host.start(Sleeps)
        ref.tell(10.0)
        ref.tell(1.0)
        host.run(wait_all_tasks_blocked)
        clock.jump(5.0)
        seen = ref.statistics()
        clock.rate = 1_000.0  # So that it ends.
        assert 5 <= seen.in_flight_s_max < 5.1
        assert 5 <= seen.oldest_s_max < 5.1


async def test_batch_ends_by_the_machines_time_whatever_trios_clock_says(autojump_clock):
    others = []

    class Busy(TrioActor):
        def on_receive(self, message: Any) -> None:
            others.append(ticks)
            if message:
                self.actor_ref.tell(message - 1)

    ticks = 0
    async with ActorSystem() as system:
        system.start(Busy).tell(9_000)
        while len(others) < 9_001:
            await trio.lowlevel.checkpoint()
            ticks += 1
    assert len(set(others)) > 1
