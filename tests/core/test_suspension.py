"""Suspended actors: messages accumulate, everything else is served."""

from __future__ import annotations

import threading

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from abeyance.actors.core import (
    ActorDeadError,
    ActorSystem,
    ActorUnavailableError,
    Backoff,
    ChildSpec,
    HostedSystem,
    MailboxClosedError,
    MailboxFullError,
    SupervisorSpec,
    TrioActor,
)


class Records(TrioActor):
    @classmethod
    def make_kept(cls):
        return {"seen": [], "gate": trio.Event()}

    async def on_receive(self, message):
        self.kept["seen"].append(message)
        match message:
            case "hold":
                await self.kept["gate"].wait()
            case "boom":
                raise ValueError("boom")
        return message

    def on_answer(self, answer):
        self.kept["seen"].append(("answer", answer.tag, type(answer.error).__name__))


async def supervised(system, actor_class, backoff=None):
    supervisor = await system.start_supervisor(
        SupervisorSpec(
            "g", (ChildSpec("a", actor_class),), backoff=backoff or Backoff(0, 0), intensity=100
        )
    )
    return supervisor.refs["a"]


def seen(ref):
    return ref._cell.kept["seen"]


async def fill(ref):
    """Let the lane have been long once, so that the next puts may take the fast path."""
    for n in range(100):
        ref.tell(n)
    await wait_all_tasks_blocked()
    assert ref._box.room > 0


async def test_suspended_actor_handles_no_messages_and_all_of_them_when_resumed():
    async with ActorSystem() as system:
        ref = system.start(Records)
        assert ref.suspend() is True
        assert ref.suspend() is False
        for n in range(3):
            ref.tell(n)
        asked = ref.ask("asked")
        await wait_all_tasks_blocked()
        assert seen(ref) == []
        statistics = ref.statistics()
        assert (statistics.state, statistics.queued) == ("suspended", 4)
        assert statistics.mailbox.suspended
        assert ref.resume() is True
        assert ref.resume() is False
        assert await asked == "asked"
        assert seen(ref) == [0, 1, 2, "asked"]
        assert ref.statistics().state == "running"


async def test_suspension_takes_effect_after_the_current_message():
    async with ActorSystem() as system:
        ref = system.start(Records)
        held = ref.ask("hold")
        ref.tell("after")
        await wait_all_tasks_blocked()
        ref.suspend()
        ref._cell.kept["gate"].set()
        assert await held == "hold"
        await wait_all_tasks_blocked()
        assert seen(ref) == ["hold"]
        assert not ref.statistics().in_flight
        ref.resume()
        await wait_all_tasks_blocked()
        assert seen(ref) == ["hold", "after"]


async def test_internal_lane_is_served_while_the_actor_is_suspended(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Records)
        await wait_all_tasks_blocked()
        ref.suspend()
        ref.tell("user")
        ref.tell_internal("internal")
        ref._cell.actor.after(1, "timer")
        ref._cell.actor.pipe(trio.sleep, 2, tag="pipe")
        await trio.sleep(3)
        assert seen(ref) == ["internal", "timer", ("answer", "pipe", "NoneType")]


async def test_internal_lane_that_feeds_itself_lets_other_tasks_run_while_suspended():
    class Feeds(Records):
        def on_receive(self, message):
            if not self.kept["gate"].is_set():
                self.actor_ref.tell_internal("again")

    async with ActorSystem() as system:
        ref = system.start(Feeds)
        ref.suspend()
        ref.tell_internal("begin")
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        ref._cell.kept["gate"].set()
        await wait_all_tasks_blocked()
        assert ref.statistics().internal == 0


@pytest.mark.parametrize("put", ["message", "internal"])
async def test_messages_do_not_wake_a_suspended_actor(put):
    async with ActorSystem() as system:
        ref = system.start(Records)
        ref.suspend()
        await wait_all_tasks_blocked()
        for n in range(3):
            if put == "message":
                ref.tell(n)
            else:
                ref.tell_internal(n)
        assert (ref._box.parked is None) is (put == "internal")
        await wait_all_tasks_blocked()
        assert seen(ref) == ([] if put == "message" else [0, 1, 2])


def test_internal_lane_is_served_for_host_threads_while_the_actor_is_suspended():
    reached = threading.Event()

    class Tells(Records):
        async def on_receive(self, message):
            await super().on_receive(message)
            if message == 99:
                reached.set()
            return message

    with HostedSystem() as hosted:
        ref = hosted.start(Tells)
        ref.suspend()
        for n in range(100):
            ref.tell_internal(n)
        assert reached.wait(30)
        assert seen(ref) == list(range(100))
        ref.resume()
        assert ref.ask("resumed") == "resumed"


async def test_messages_that_came_back_wait_too_while_the_actor_is_suspended():
    class Again(Records):
        max_deliveries = 3

    async with ActorSystem() as system:
        ref = await supervised(system, Again)
        ref.tell("hold")
        await wait_all_tasks_blocked()
        ref.suspend()
        ref.kill()
        await wait_all_tasks_blocked()
        statistics = ref.statistics()
        assert (statistics.incarnation, statistics.state) == (2, "suspended")
        assert (statistics.mailbox.returned, seen(ref)) == (1, ["hold"])
        ref._cell.kept["gate"].set()
        ref.resume()
        await wait_all_tasks_blocked()
        assert seen(ref) == ["hold", "hold"]


# -- asks


async def test_ask_of_a_suspended_actor_fails_at_once_where_its_class_says_so():
    class Refuses(Records):
        while_suspended = "fail"

    async with ActorSystem() as system:
        ref = system.start(Refuses)
        await fill(ref)
        queued = ref.ask("before")
        ref.suspend()
        with pytest.raises(ActorUnavailableError) as caught:
            await ref.ask("during")
        assert (caught.value.message, caught.value.state) == ("during", "suspended")
        ref.tell("told")
        asker = system.start(Records)
        await wait_all_tasks_blocked()
        asker._cell.actor.ask(ref, "of an actor", tag="t")
        await wait_all_tasks_blocked()
        assert seen(asker) == [("answer", "t", "ActorUnavailableError")]
        ref.resume()
        assert await queued == "before"
        assert await ref.ask("after") == "after"
        assert seen(ref) == [*range(100), "before", "told", "after"]


async def test_ask_between_incarnations_fails_at_once_where_the_class_says_so(autojump_clock):
    class Refuses(Records):
        while_restarting = "fail"

        async def on_start(self):
            if self.incarnation > 1:
                await trio.sleep(1)

    async with ActorSystem() as system:
        ref = await supervised(system, Refuses, Backoff(5.0, 5.0, jitter=0))
        await fill(ref)
        for pause in [0, 5]:
            ref.tell("boom")
            queued = ref.ask("before")
            await wait_all_tasks_blocked()
            for _ in range(1 + pause):  # In the backoff, and then in on_start.
                with pytest.raises(ActorUnavailableError) as caught:
                    await ref.ask("during")
                assert caught.value.state == "restarting"
                await trio.sleep(0.99)
            ref.tell("told")
            assert await queued == "before"
            assert await ref.ask("after") == "after"


@pytest.mark.parametrize("policy", ["while_suspended", "while_restarting"])
async def test_ask_waits_by_default(policy, autojump_clock):
    async with ActorSystem() as system:
        ref = await supervised(system, Records, Backoff(5.0, 5.0))
        if policy == "while_suspended":
            ref.suspend()
        else:
            for _ in range(2):
                ref.tell("boom")
        await wait_all_tasks_blocked()
        asked = ref.ask("x")
        await trio.sleep(1)
        assert not asked.settled
        ref.resume()
        assert await asked == "x"


# -- ends


@pytest.mark.parametrize("how", ["stop", "stop before", "stop now", "kill"])
async def test_suspended_actor_is_stopped_and_killed_as_any_other(how):
    async with ActorSystem() as system:
        ref = system.start(Records)
        await wait_all_tasks_blocked()
        if how == "stop before":
            asked = ref.ask("queued")
            stopped = ref.stop()
            ref.suspend()
        else:
            ref.suspend()
            asked = ref.ask("queued")
            await wait_all_tasks_blocked()
            if how == "kill":
                ref.kill()
            else:
                stopped = ref.stop(now=how == "stop now")
        if how != "kill":
            assert await stopped is True
        await ref.stopped()
        with pytest.raises(ActorDeadError):
            await asked
        assert seen(ref) == []
        assert system.dead_letters.counts == {"stopped": 1}
        assert (ref.suspend(), ref.resume()) == (False, False)


async def test_suspension_and_queue_outlive_the_stop_of_a_permanent_child():
    async with ActorSystem() as system:
        ref = await supervised(system, Records)
        ref.suspend()
        ref.tell(1)
        assert await ref.stop() is True
        ref.tell(2)
        await wait_all_tasks_blocked()
        statistics = ref.statistics()
        assert (statistics.incarnation, statistics.state) == (2, "suspended")
        ref.resume()
        assert await ref.ask(3) == 3
        assert seen(ref) == [1, 2, 3]
        assert ref.statistics().incarnation == 2
        assert ref._cell.accounted() == 3


async def test_shutdown_does_not_wait_for_a_suspended_actor_and_says_what_was_left(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Records, name="a")
        ref.suspend()
        ref.tell(1)
        await wait_all_tasks_blocked()
        report = await system.shutdown()
        assert report.left == {"a": 1}
        assert all(phase.completed and phase.took_s == 0 for phase in report.phases)


async def test_shutdown_that_drains_an_actor_which_is_then_suspended_goes_on(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Records, name="a")
        ref.tell("hold")
        ref.tell("left")
        await wait_all_tasks_blocked()
        reports = []
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _():
                reports.append(await system.shutdown())

            await trio.sleep(1)
            ref.suspend()
            ref._cell.kept["gate"].set()
        (report,) = reports
        assert report.left == {"a": 1}
        assert [phase.took_s for phase in report.phases if phase.name == "drain"] == [1]


# -- threads


def test_threads_that_suspend_and_resume_lose_nothing_and_keep_the_order():
    with HostedSystem() as hosted:
        ref = hosted.start(Records)
        barrier = threading.Barrier(4)
        done = threading.Event()

        def send(worker):
            barrier.wait(timeout=60)
            for n in range(3_000):
                ref.tell((worker, n))

        def toggle():
            barrier.wait(timeout=60)
            while not done.is_set():
                ref.suspend()
                ref.resume()

        threads = [threading.Thread(target=send, args=(worker,)) for worker in range(3)]
        toggler = threading.Thread(target=toggle)
        for thread in (toggler, *threads):
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        done.set()
        toggler.join(timeout=60)
        assert ref.ask("end") == "end"
        for worker in range(3):
            assert [n for who, n in seen(ref)[:-1] if who == worker] == list(range(3_000))


def test_stop_that_races_a_suspension_always_ends_the_actor():
    with HostedSystem() as hosted:
        for _ in range(100):
            ref = hosted.start(Records)
            barrier = threading.Barrier(3)
            accepted = []

            def send(ref=ref, barrier=barrier, accepted=accepted):
                barrier.wait(timeout=60)
                try:
                    for n in range(20):
                        ref.tell(n)
                        accepted.append(n)
                except (MailboxClosedError, ActorDeadError, MailboxFullError):
                    pass

            def suspend(ref=ref, barrier=barrier):
                barrier.wait(timeout=60)
                ref.suspend()

            threads = [threading.Thread(target=send), threading.Thread(target=suspend)]
            for thread in threads:
                thread.start()
            barrier.wait(timeout=60)
            assert ref.stop(timeout=60) is True
            for thread in threads:
                thread.join(timeout=60)
            assert ref._cell.accounted() == len(accepted)
