"""The event stream: bounded, lossy in place, in nobody's way, from any thread."""

from __future__ import annotations

import gc
import json
import threading

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from abeyance.actors.core import (
    ActorStarted,
    ActorSystem,
    ChildSpec,
    Event,
    EventsDropped,
    HostedSystem,
    SupervisorSpec,
    TrioActor,
    WouldDeadlockError,
)
from abeyance.actors.core.events import ActorEvent

from ..stopwatch import Stopwatch


class Worker(TrioActor):
    mailbox_capacity = 10

    def on_receive(self, message):
        if message == "boom":
            raise ValueError("boom\nbang")
        return message


class Gated(TrioActor):
    """Handles a message when the gate opens."""

    mailbox_capacity = 10

    def __init__(self, gate):
        self.gate = gate

    async def on_receive(self, message):
        await self.gate.wait()


def started(name):
    return ActorStarted(at_ms=1, subject=name, incarnation=1)


def names(events):
    return [event.count if isinstance(event, EventsDropped) else event.subject for event in events]


async def test_events_tell_of_an_actors_life_in_order(autojump_clock):
    async with ActorSystem() as system:
        looking = system.events()
        supervisor = await system.start_supervisor(
            SupervisorSpec("group", (ChildSpec("a", Worker, name="a"),))
        )
        supervisor.refs["a"].tell("boom")
        await wait_all_tasks_blocked()
        await supervisor.stop()
    seen = [event async for event in looking]
    assert [(event.kind, event.subject, event.incarnation) for event in seen] == [
        ("started", "a", 1),
        ("crashed", "a", 1),
        ("restarted", "a", 2),
        ("stopped", "a", 2),
    ]
    assert isinstance(seen[1].error, ValueError)


async def test_events_tell_that_an_actor_is_suspended_and_resumed_each_once(autojump_clock):
    async with ActorSystem() as system:
        looking = system.events(kinds={"suspended", "unsuspended"})
        ref = system.start(Worker, name="a")
        for _ in range(2):
            ref.suspend()
        for _ in range(2):
            ref.resume()
    assert [(event.kind, event.subject) async for event in looking] == [
        ("suspended", "a"),
        ("unsuspended", "a"),
    ]


async def test_events_tell_of_a_groups_parking_unparking_and_escalation(autojump_clock):
    async with ActorSystem() as system:
        looking = system.events(kinds={"parked", "unparked", "escalated"})
        parks = await system.start_supervisor(
            SupervisorSpec("parks", (ChildSpec("a", Worker),), intensity=0, on_exhausted="park")
        )
        parks.refs["a"].tell("boom")
        await wait_all_tasks_blocked()
        parks.unpark()
        outer = await system.start_supervisor(SupervisorSpec("outer"))
        inner = await system.start_supervisor(
            SupervisorSpec("inner", (ChildSpec("b", Worker),), intensity=0), parent=outer
        )
        inner.refs["b"].tell("boom")
        await wait_all_tasks_blocked()
    assert [(event.kind, event.subject) async for event in looking] == [
        ("parked", "parks"),
        ("unparked", "parks"),
        ("escalated", "inner"),
    ]


async def test_events_say_in_place_how_many_a_slow_reader_missed(autojump_clock):
    async with ActorSystem() as system:
        looking = system.events(capacity=2)
        for name in "abcde":
            system.hub.emit(started(name))
        assert looking.dropped == 3
        assert names([await anext(looking) for _ in range(2)]) == [3, "d"]
        system.hub.emit(started("f"))
        system.hub.emit(started("g"))
        assert names([await anext(looking) for _ in range(3)]) == [1, "f", "g"]


async def test_events_are_no_less_for_one_reader_when_another_is_slow(autojump_clock):
    async with ActorSystem() as system:
        slow, quick = system.events(capacity=1), system.events()
        for name in "abc":
            system.hub.emit(started(name))
        assert names([await anext(quick) for _ in range(3)]) == ["a", "b", "c"]
        assert names([await anext(slow) for _ in range(2)]) == [2, "c"]


async def test_events_of_a_reader_that_waits_come_at_once(autojump_clock):
    seen = []

    async def read(looking):
        while True:
            seen.append((await anext(looking)).subject)

    async with ActorSystem() as system, trio.open_nursery() as nursery:
        nursery.start_soon(read, system.events())
        await wait_all_tasks_blocked()
        await trio.to_thread.run_sync(system.hub.emit, started("a"))
        system.hub.emit(started("b"))
        await wait_all_tasks_blocked()
        assert seen == ["a", "b"]
        nursery.cancel_scope.cancel()


async def test_events_end_with_the_system_behind_what_is_unread(autojump_clock):
    async with ActorSystem() as system:
        looking = system.events()
        system.hub.emit(started("a"))
    assert names([event async for event in looking]) == ["a"]
    assert [event async for event in system.events()] == []


async def test_events_lose_nothing_when_a_wait_for_one_is_cancelled(autojump_clock):
    async with ActorSystem() as system:
        looking = system.events()
        for _ in range(2):
            with trio.move_on_after(1):
                await anext(looking)
        system.hub.emit(started("a"))
        assert (await anext(looking)).subject == "a"


@pytest.mark.parametrize("how", ["break", "cancel", "with", "close"])
async def test_events_are_unsubscribed_when_their_reader_leaves(autojump_clock, how):
    async def read(system):
        if how == "with":
            with system.events() as looking:
                await anext(looking)
            assert system.hub.subscribers == 0
            assert [event async for event in looking] == []
        elif how == "close":
            looking = system.events()
            looking.close()
            looking.close()
            assert system.hub.subscribers == 0
        else:
            async for _ in system.events():
                break

    async with ActorSystem() as system:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, system)
            await wait_all_tasks_blocked()
            if how == "cancel":
                nursery.cancel_scope.cancel()
            else:
                system.emit(ActorStarted, subject="a", incarnation=1)
        gc.collect()
        assert system.statistics().subscribers == 0
        assert not system.hub.watched


async def test_event_is_not_made_where_nobody_looks(autojump_clock):
    class Counted(ActorEvent):
        def __init__(self, **fields):
            raise AssertionError("made")

    async with ActorSystem() as system:
        system.emit(Counted, subject="a")


async def test_on_event_and_a_subscription_see_the_same_events(autojump_clock):
    told = []
    async with ActorSystem(on_event=told.append) as system:
        looking = system.events()
        system.start(Worker)
        await wait_all_tasks_blocked()
    assert [event async for event in looking] == told
    assert [event.kind for event in told] == ["started", "stopped"]


async def test_events_have_one_reader_at_a_time(autojump_clock):
    async with ActorSystem() as system, trio.open_nursery() as nursery:
        looking = system.events()
        nursery.start_soon(anext, looking)
        await wait_all_tasks_blocked()
        with pytest.raises(RuntimeError, match="one reader"):
            await anext(looking)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("capacity", [0, -1, True, 1.5, "9"])
async def test_events_refuse_a_capacity_that_is_none(autojump_clock, capacity):
    async with ActorSystem() as system:
        with pytest.raises(ValueError, match="capacity"):
            system.events(capacity=capacity)
        with pytest.raises(TypeError, match="kinds"):
            system.events(kinds="started")


async def test_events_by_a_plain_loop_are_refused_where_trio_runs(autojump_clock):
    async with ActorSystem() as system:
        with pytest.raises(WouldDeadlockError):
            next(system.events())


def test_events_reach_a_host_thread_by_a_plain_loop_that_ends_with_the_system():
    seen = []
    with HostedSystem() as system:
        looking = system.events()
        reader = threading.Thread(target=lambda: seen.extend(event.kind for event in looking))
        reader.start()
        system.start(Worker).stop()
    reader.join(30)
    assert seen == ["started", "stopped"]


def test_events_of_many_threads_are_each_read_once_or_counted(autojump_clock):
    with HostedSystem() as system:
        looking = system.events(capacity=50)

        def emit():
            for _ in range(500):
                system.system.hub.emit(started("a"))

        threads = [threading.Thread(target=emit) for _ in range(4)]
        for thread in threads:
            thread.start()
        got, dropped = 0, 0
        while got + dropped < 2_000:
            event = next(looking)
            if isinstance(event, EventsDropped):
                dropped += event.count
            else:
                got += 1
        for thread in threads:
            thread.join()
        assert dropped == looking.dropped


def _kinds(of):
    yield of
    for kind in of.__subclasses__():
        yield from _kinds(kind)


def test_every_event_is_frozen_and_has_a_kind_of_its_own():
    # By name: of each slotted dataclass there is a first class without slots, too.
    concrete = {kind.__qualname__: kind.kind for kind in _kinds(Event) if "kind" in vars(kind)}
    assert len(set(concrete.values())) == len(concrete) > 8
    with pytest.raises(AttributeError):
        started("a").subject = "b"


async def test_event_as_json_is_what_a_program_reads(autojump_clock):
    async with ActorSystem() as system:
        looking = system.events(kinds=["crashed"])
        system.start(Worker, name="a").tell("boom")
        await wait_all_tasks_blocked()
        event = await anext(looking)
    assert json.loads(json.dumps(event.as_json())) == {
        "kind": "crashed",
        "at_ms": event.at_ms,
        "subject": "a",
        "incarnation": 1,
        "error": {"type": "ValueError", "text": "boom\nbang"},
    }


async def test_mailbox_that_fills_and_empties_is_an_event_each_once(autojump_clock):
    gate = trio.Event()
    async with ActorSystem() as system:
        looking = system.events(kinds=["mailbox_high", "mailbox_low"])
        ref = system.start(Gated, gate, name="a")
        await wait_all_tasks_blocked()
        for _ in range(11):
            ref.tell("x")
            await wait_all_tasks_blocked()
        for _ in range(3):
            with pytest.raises(Exception, match="holds 10"):
                ref.tell("x")
        gate.set()
        await wait_all_tasks_blocked()
        high, low = [await anext(looking) for _ in range(2)]
        assert (high.kind, high.subject, high.depth, high.capacity) == ("mailbox_high", "a", 8, 10)
        assert (low.kind, low.subject, low.capacity) == ("mailbox_low", "a", 10)
        assert low.depth <= 5


async def test_mailbox_that_fills_and_empties_within_one_batch_is_an_event_each(autojump_clock):
    class Fills(TrioActor):
        mailbox_capacity = 100

        def on_receive(self, message):
            if message == "fill":
                for _ in range(80):
                    self.actor_ref.tell("x")

    async with ActorSystem() as system:
        system.stopwatch = Stopwatch()  # It stands still, so that the batch has no end.
        looking = system.events(kinds=["mailbox_high", "mailbox_low"])
        system.start(Fills).tell("fill")
        await wait_all_tasks_blocked()
        high, low = [await anext(looking) for _ in range(2)]
        assert (high.kind, high.depth) == ("mailbox_high", 80)
        assert low.kind == "mailbox_low"
        assert 42 < low.depth <= 50  # Looked at after every eighth message.


async def test_mailbox_that_empties_and_fills_again_between_two_looks_is_no_event(autojump_clock):
    depths = []

    class Refills(TrioActor):
        mailbox_capacity = 10

        def on_receive(self, message):
            if message == "refill":
                depths.append(len(self.actor_ref._cell.box.user))
                for _ in range(6):
                    self.actor_ref.tell("x")
                depths.append(len(self.actor_ref._cell.box.user))

    async with ActorSystem() as system:
        system.stopwatch = Stopwatch()
        looking = system.events(kinds=["mailbox_high", "mailbox_low"])
        ref = system.start(Refills)
        for message in ["x"] * 4 + ["refill"] + ["x"] * 3:
            ref.tell(message)
        await wait_all_tasks_blocked()
        assert depths == [3, 9]  # Below the low mark, and above the high one again.
        high, low = [await anext(looking) for _ in range(2)]
        assert (high.kind, high.depth) == ("mailbox_high", 8)
        assert (low.kind, low.depth) == ("mailbox_low", 0)
        with trio.move_on_after(1) as time:
            await anext(looking)
        assert time.cancelled_caught


async def test_mailbox_that_fills_during_a_batch_is_an_event_before_it_is_full(autojump_clock):
    class Slow(TrioActor):
        mailbox_capacity = 100

        def on_receive(self, message):
            if message == "fill":
                for _ in range(80):
                    self.actor_ref.tell("x")
                system.stopwatch.now += 1.0

    async with ActorSystem() as system:
        system.stopwatch = Stopwatch()
        looking = system.events(kinds=["mailbox_high", "mailbox_low"])
        ref = system.start(Slow)
        for message in ["x"] * 7 + ["fill"] + ["x"] * 5:
            ref.tell(message)
        await wait_all_tasks_blocked()
        high, low = [await anext(looking) for _ in range(2)]
        assert (high.kind, high.depth) == ("mailbox_high", 80)
        assert low.kind == "mailbox_low"
        assert 42 < low.depth <= 50
