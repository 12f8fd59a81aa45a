"""Statements of docs/semantics.md that no other file is about."""

from __future__ import annotations

import threading
from itertools import pairwise

import pykka
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from abeyance.actors.core import (
    LATER,
    ActorDeadError,
    ActorSystem,
    Backoff,
    ChildSpec,
    HostedSystem,
    MailboxFullError,
    SupervisorSpec,
    TrioActor,
)
from abeyance.actors.core import serving as serving_module


class Keeps(TrioActor):
    """Keeps what it got, as it got it; fails, waits and goes on by what it is told."""

    level = 1

    @classmethod
    def make_kept(cls):
        return []

    async def on_receive(self, message):
        self.kept.append(message)
        if message == "boom":
            raise ValueError("boom")
        if message == "wait":
            await trio.sleep_forever()
        if isinstance(message, trio.Event):
            await message.wait()
        return message


def seen(ref):
    return ref._cell.kept


async def full(system, *, message="wait"):
    """An actor that handles a message for ever, so that what is sent next is queued."""
    ref = system.start(Keeps)
    ref.tell(message)
    await wait_all_tasks_blocked()
    return ref


async def test_user_lane_holds_ten_thousand_messages_where_the_class_says_nothing(autojump_clock):
    async with ActorSystem() as system:
        ref = await full(system)
        for n in range(10_000):
            ref.tell(n)
        with pytest.raises(MailboxFullError) as caught:
            ref.tell("one more")
        assert caught.value.message == "one more"
        assert ref.statistics().queued == 10_000
        ref.kill()


def test_threads_that_race_for_the_last_place_exceed_the_bound_by_less_than_their_number():
    threads = 6
    kind = type("Small", (Keeps,), {"mailbox_capacity": 50})
    with HostedSystem() as hosted:
        for _ in range(20):
            ref = hosted.start(kind)
            ref.tell("wait")
            while not ref.statistics().in_flight:
                pass
            barrier = threading.Barrier(threads)

            def race(ref=ref, barrier=barrier):
                barrier.wait()
                for n in range(30):
                    try:
                        ref.tell(n)
                    except MailboxFullError:
                        return

            running = [threading.Thread(target=race) for _ in range(threads)]
            for thread in running:
                thread.start()
            for thread in running:
                thread.join()
            assert 50 <= ref.statistics().queued <= 50 + threads - 1
            ref.kill()


async def test_message_is_the_object_that_was_sent():
    async with ActorSystem() as system:
        ref = system.start(Keeps)
        message = {"changed": False}
        ref.tell(message)
        message["changed"] = True
        assert await ref.ask("settle") == "settle"
        assert seen(ref)[0] is message


async def test_messages_of_one_sender_are_handled_in_the_order_sent():
    async with ActorSystem() as system:
        ref = system.start(Keeps)

        def send():
            for n in range(2_000):
                ref.tell(n)

        await trio.to_thread.run_sync(send)
        for n in range(2_000, 3_000):
            ref.tell(n)
        await ref.ask("end")
        assert seen(ref) == [*range(3_000), "end"]


async def test_batch_lets_other_tasks_run_when_its_time_is_over():
    class Plain(Keeps):
        def on_receive(self, message):
            self.kept.append(message)

    class Clock:
        """Each look is half a batch later than the last."""

        now = 0.0

        def __call__(self):
            self.now += serving_module.BATCH_S / 2
            return self.now

    async with ActorSystem() as system:
        system.stopwatch = Clock()
        ref = system.start(Plain)
        await wait_all_tasks_blocked()
        for n in range(1_000):
            ref.tell(n)
        seen_between = []
        while len(seen(ref)) < 1_000:
            seen_between.append(len(seen(ref)))
            await trio.lowlevel.checkpoint()
        assert len(seen_between) > 10
        assert max(b - a for a, b in pairwise(seen_between)) < 100


async def test_ask_whose_await_is_cancelled_is_handled_all_the_same(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Keeps)
        go = trio.Event()
        ref.tell(go)
        future = ref.ask("asked")
        with trio.move_on_after(1) as scope:
            await future
        assert scope.cancelled_caught
        go.set()
        assert await future == "asked"
        assert seen(ref) == [go, "asked"]


async def test_reply_handle_is_refused_off_the_loop_thread_and_settles_on_it():
    class Owes(Keeps):
        def on_receive(self, message):
            self.kept.append(self.later())
            return LATER

    async with ActorSystem() as system:
        ref = system.start(Owes)
        future = ref.ask("owed")
        await wait_all_tasks_blocked()
        (reply,) = seen(ref)
        with pytest.raises(RuntimeError, match="on the loop thread"):
            await trio.to_thread.run_sync(reply.set, "from a thread")
        assert not future.settled
        assert reply.set("from the loop")
        assert await future == "from the loop"


async def test_ended_actor_refuses_every_call_and_what_was_left_became_dead_letters(
    autojump_clock,
):
    async with ActorSystem() as system:
        ref = await full(system)
        ref.tell("left")
        asked = ref.ask("asked")
        ref.kill()
        await ref.stopped()
        with pytest.raises(ActorDeadError):
            await asked
        assert [letter.message for letter in system.dead_letters.entries] == ["left", "asked"]
        with pytest.raises(ActorDeadError):
            ref.tell("late")
        with pytest.raises(ActorDeadError):
            ref.tell_internal("late")
        with pytest.raises(ActorDeadError):
            await ref.tell_wait("late")
        with pytest.raises(ActorDeadError):
            await ref.ask("late")
        with pytest.raises(pykka.ActorDeadError):
            ref.proxy()
        assert await ref.stop() is False
        assert not ref.is_alive()


async def test_handler_that_never_awaits_goes_on_to_its_end_though_it_was_killed():
    class Busy(Keeps):
        def on_receive(self, message):
            self.actor_ref.kill()
            self.kept.append(message)
            return message

    async with ActorSystem() as system:
        ref = system.start(Busy)
        assert await ref.ask("whole") == "whole"
        await ref.stopped()
        assert seen(ref) == ["whole"]


async def test_system_start_starts_a_temporary_child_of_the_user_supervisor(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Keeps)
        other = system.start(Keeps)
        ref.tell("boom")
        await ref.stopped()
        assert ref.statistics().incarnation == 1
        assert await other.ask("alive") == "alive"


@pytest.mark.parametrize("how", ["parked", "restarting"])
async def test_shutdown_does_not_drain_what_runs_nothing_and_says_what_it_holds(
    autojump_clock, how
):
    began = trio.current_time()
    async with ActorSystem() as system:
        supervisor = await system.start_supervisor(
            SupervisorSpec(
                "group",
                (ChildSpec("a", Keeps),),
                intensity=0 if how == "parked" else 5,
                period_s=10_000.0,
                on_exhausted="park",
                backoff=Backoff(1_000.0, 1_000.0),
            )
        )
        ref = supervisor.refs["a"]
        for _ in range(1 if how == "parked" else 2):
            ref.tell("boom")
            await wait_all_tasks_blocked()
        for n in range(3):
            ref.tell(n)
        assert ref.statistics().state != "running"
        report = await system.shutdown()
        assert trio.current_time() - began < 1
        drain = next(phase for phase in report.phases if phase.name == "drain")
        assert drain.completed
        assert report.left == {ref.name: 3}


async def test_attribute_set_by_a_proxy_on_the_loop_thread_is_set_later_and_its_error_is_lost():
    class Picky(Keeps):
        @property
        def even(self):
            return 2

        @even.setter
        def even(self, value):
            raise ValueError("odd")

    async with ActorSystem() as system:
        ref = system.start(Picky)
        proxy = ref.proxy()
        proxy.level = 7
        proxy.even = 3
        assert ref._cell.actor.level == 1
        assert await proxy.level == 7
        assert ref.is_alive()


def test_attribute_set_by_a_proxy_on_a_host_thread_is_set_on_return():
    with HostedSystem() as hosted:
        ref = hosted.start(Keeps)
        ref.proxy().level = 7
        assert ref._cell.actor.level == 7
