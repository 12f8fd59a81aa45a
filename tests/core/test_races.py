"""Narrow places of the mailbox and the cell, each reached without luck."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from abeyance.actors.core import (
    LATER,
    ActorDeadError,
    ActorSystem,
    AskTimeoutError,
    Backoff,
    ChildSpec,
    HostedSystem,
    OutcomeUnknownError,
    SupervisorSpec,
    TrioActor,
    TrioFuture,
)
from abeyance.actors.core import wheel as wheel_module


class Kept(TrioActor):
    @classmethod
    def make_kept(cls):
        return {"seen": [], "replies": [], "slow": False}

    @property
    def seen(self):
        return self.kept["seen"]


async def supervised(system, actor_class):
    supervisor = await system.start_supervisor(
        SupervisorSpec(
            "group", (ChildSpec("a", actor_class),), intensity=100, backoff=Backoff(0, 0)
        )
    )
    return supervisor.refs["a"]


def kept(ref):
    return ref._cell.kept


async def test_room_is_announced_after_a_short_batch_of_plain_handlers():
    class Plain(Kept):
        mailbox_capacity = 2

        def on_receive(self, message):
            self.seen.append(message)

    async with ActorSystem() as system:
        ref = system.start(Plain)
        for n in range(6):
            await ref.tell_wait(n)
        await wait_all_tasks_blocked()
        assert kept(ref)["seen"] == list(range(6))


async def test_message_handled_before_a_crash_in_the_internal_lane_is_not_taken_for_in_flight():
    class Sends(Kept):
        def on_receive(self, message):
            if message == "boom":
                raise ValueError("boom")
            self.actor_ref.tell_internal("boom")
            if message == "owe":
                self.later()
                return LATER
            return message

    async with ActorSystem() as system:
        ref = await supervised(system, Sends)
        assert await ref.ask("done") == "done"
        with pytest.raises(OutcomeUnknownError):
            await ref.ask("owe")
        await wait_all_tasks_blocked()
        assert [entry.message for entry in system.quarantine.entries] == ["boom", "boom"]


async def test_internal_messages_behind_a_crash_are_handled_by_the_next_incarnation():
    class Breaks(Kept):
        def on_receive(self, message):
            if message == "boom":
                raise ValueError("boom")
            self.seen.append(message)

    async with ActorSystem() as system:
        ref = await supervised(system, Breaks)
        ref.tell_internal("boom")
        ref.tell_internal("after")
        await wait_all_tasks_blocked()
        assert kept(ref)["seen"] == ["after"]


@pytest.mark.parametrize("how", ["tell", "ask"])
async def test_message_that_took_a_handle_and_crashed_comes_back_once_and_counted(how):
    class Takes(Kept):
        max_deliveries = 3
        crash_on_ask_error = True

        def on_receive(self, message):
            self.seen.append(message)
            self.later()
            raise ValueError("after taking the handle")

    async with ActorSystem() as system:
        ref = await supervised(system, Takes)
        future = getattr(ref, how)("x")
        await wait_all_tasks_blocked()
        assert kept(ref)["seen"] == ["x"] * 3
        assert system.quarantine.total == 1
        assert ref.statistics().queued == ref.statistics().owed == 0
        if future is not None:
            with pytest.raises(ValueError, match="after taking"):
                await future


async def test_owed_message_that_came_back_often_still_has_all_its_deliveries():
    class Owes(Kept):
        max_deliveries = 2

        async def on_receive(self, message):
            self.seen.append(message)
            if message == "boom":
                raise ValueError("boom")
            self.kept["replies"].append(self.later())
            if self.kept["slow"]:
                self.kept["slow"] = False
                await trio.sleep_forever()
            return LATER

    async with ActorSystem() as system:
        ref = await supervised(system, Owes)
        future = ref.ask("owed")
        for _ in range(3):
            ref.tell("boom")
        await wait_all_tasks_blocked()
        assert system.quarantine.counts == {"ValueError": 3}
        kept(ref)["slow"] = True
        ref.kill()
        await wait_all_tasks_blocked()
        assert ref.statistics().in_flight
        ref.kill()
        await wait_all_tasks_blocked()
        assert kept(ref)["replies"][-1].set("answered")
        assert await future == "answered"


async def test_envelope_put_into_a_mailbox_that_closed_meanwhile_is_buried_by_its_sender():
    async with ActorSystem() as system:
        ref = system.start(Kept)
        await ref.stop()
        future = TrioFuture()
        ref._box.append(("late", future, 0))
        with pytest.raises(ActorDeadError):
            await future
        assert [letter.message for letter in system.dead_letters.entries] == ["late"]
        assert ref.statistics().queued == 0


async def test_threads_that_put_into_a_closed_mailbox_bury_at_once_and_leave_it_attended():
    async with ActorSystem() as system:
        ref = system.start(Kept)
        await ref.stop()

        def put():
            for n in range(2):
                future = TrioFuture()
                ref._box.append((n, future, 0))
                assert future.settled
            assert ref._box.attention

        await trio.to_thread.run_sync(put)
        assert system.dead_letters.counts == {"stopped": 2}


async def test_stop_ends_when_the_last_reply_is_settled_from_outside(autojump_clock):
    class Owes(Kept):
        def on_receive(self, message):
            self.kept["replies"].append(self.later())
            return LATER

    async with ActorSystem() as system:
        ref = system.start(Owes)
        future = ref.ask("x")
        await wait_all_tasks_blocked()
        stopped = ref.stop()
        await trio.sleep(1)
        assert not stopped.settled
        kept(ref)["replies"][0].set("outside")
        began = trio.current_time()
        assert await stopped is True
        assert trio.current_time() == began
        assert await future == "outside"


@pytest.mark.parametrize("seen", [True, False], ids=["before-it-looks", "after-it-looked"])
async def test_ask_that_is_sent_while_its_mailbox_is_looked_through_still_expires(
    seen, autojump_clock, monkeypatch
):
    class Stuck(Kept):
        async def on_receive(self, message):
            await trio.sleep_forever()

    raced = []
    look = wheel_module._waiting

    def racing(cell):
        # As a host thread would, between two steps of the wheel.
        before = [] if seen else look(cell)
        if not raced:
            raced.append(cell.ref.ask("raced", timeout=2))
        return look(cell) if seen else before

    monkeypatch.setattr(wheel_module, "_waiting", racing)
    async with ActorSystem() as system:
        ref = system.start(Stuck)
        with pytest.raises(AskTimeoutError):
            await ref.ask("first", timeout=1)
        with pytest.raises(AskTimeoutError):
            await raced[0]
        assert 3 <= trio.current_time() <= 3 + 1 / 16
        ref.kill()


async def test_sender_cancelled_as_it_is_woken_hands_the_wake_on():
    class Stuck(Kept):
        mailbox_capacity = 1

        async def on_receive(self, message):
            await trio.sleep_forever()

    async with ActorSystem() as system:
        ref = system.start(Stuck)
        ref.tell("handled")
        await wait_all_tasks_blocked()
        ref.tell("queued")
        box = ref._box
        async with trio.open_nursery() as nursery:
            first = trio.CancelScope()

            @nursery.start_soon
            async def _():
                with first:
                    await ref.tell_wait("cancelled")

            await wait_all_tasks_blocked()
            nursery.start_soon(ref.tell_wait, "waits")
            await wait_all_tasks_blocked()
            box.user.popleft()
            first.cancel()
            box.give_room()
        assert [envelope[0] for envelope in box.user] == ["waits"]
        ref.kill()


async def test_child_that_falls_while_another_starts_is_restarted_at_once_one_for_one(
    autojump_clock,
):
    class Slow(Kept):
        async def on_start(self):
            await trio.sleep(10)

    class Breaks(Kept):
        def on_receive(self, message):
            if message == "boom":
                raise ValueError("boom")
            return trio.current_time()

    async with ActorSystem() as system:
        ref = await supervised(system, Breaks)
        supervisor = system.root._children["group"]
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.start_child, ChildSpec("slow", Slow))
            await wait_all_tasks_blocked()
            ref.tell("boom")
            assert await ref.ask("when") == began


@pytest.mark.parametrize("ends", ["the-actor", "the-run"])
def test_ask_that_is_put_into_a_mailbox_as_it_closes_is_settled_by_its_sender(ends):
    with HostedSystem(ask_timeout_s=None) as hosted:
        ref = hosted.start(Kept)
        lane = ref._lane

        class Late(type(lane)):
            """Takes what was accepted only when the mailbox has been closed and emptied."""

            def append(self, envelope):
                if ends == "the-run":
                    hosted.close()
                else:
                    # Not by stop(), which would come this way too.
                    hosted.system.on_loop(ref._cell.stop_now)
                    ref._cell.ended_future().get(timeout=60)
                lane.append(envelope)

        ref._lane = Late()
        ref._box.room = 1  # What is put in goes the fast way.
        future = ref.ask("late", block=False)
        with pytest.raises(ActorDeadError):
            future.get(timeout=1)
        assert len(lane) == 0
