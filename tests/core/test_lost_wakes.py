"""Wakes, messages and turns of the loop that a race or a rare path could lose, each forced."""

from __future__ import annotations

import sys
import threading

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
    SupervisorSpec,
    TrioActor,
    TrioFuture,
)
from abeyance.actors.core import future as future_module
from abeyance.actors.core import mailbox as mailbox_module
from abeyance.actors.core.envelope import ANSWER, Answer


def in_a_thread(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    thread.join()


class Keeps(TrioActor):
    """Owes every message whose name begins with it, and keeps what it got."""

    @classmethod
    def make_kept(cls):
        return {"seen": [], "replies": []}

    def on_receive(self, message):
        self.kept["seen"].append(message)
        if str(message).startswith("owe"):
            self.kept["replies"].append(self.later())
            return LATER
        return message

    def on_answer(self, answer):
        self.kept["seen"].append(answer.value)


def kept(ref):
    return ref._cell.kept


# -- futures


class SettledAsItIsTold(list):
    """Callbacks of a future that a thread settles as soon as there is one."""

    def __init__(self, future):
        super().__init__()
        self._future = future

    def append(self, callback):
        super().append(callback)
        in_a_thread(self._future.set, "value")


@pytest.mark.parametrize("when", ["before it is told", "as it is told"])
async def test_future_that_a_thread_settles_while_its_await_begins_wakes_the_task_once(
    autojump_clock, monkeypatch, when
):
    future = TrioFuture()
    if when == "as it is told":
        future.__dict__["_callbacks"] = SettledAsItIsTold(future)
    else:
        token_of_the_run = future_module.current_trio_token

        def settled_meanwhile():
            in_a_thread(future.set, "value")
            return token_of_the_run()

        monkeypatch.setattr(future_module, "current_trio_token", settled_meanwhile)
    assert await future == "value"
    with trio.move_on_after(1):
        await trio.sleep_forever()  # A second wake would end it.


class AtLine:
    """Calls a function before the line of a function that is reached as the `number`th."""

    def __init__(self, code, number, function):
        self._code, self._left, self._function = code, number, function

    def __call__(self, frame, event, _arg):
        if frame.f_code is not self._code:
            return None
        if event == "line":
            self._left -= 1
            if self._left == 0:
                self._function()
        return self

    def __enter__(self):
        sys.settrace(self)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    @property
    def was_called(self):
        return self._left <= 0


async def test_ask_that_a_thread_settles_at_any_line_of_its_await_wakes_the_task_once(
    autojump_clock,
):
    number, settled = 0, True
    async with ActorSystem() as system:
        ref = system.start(Keeps)
        while settled:
            number += 1
            future = ref.ask(f"owe {number}")
            await wait_all_tasks_blocked()
            code = type(future).__await__.__code__
            with AtLine(code, number, lambda: in_a_thread(future._answer, "value")) as at:  # noqa: B023
                with trio.move_on_after(1) as limit:
                    assert await future == "value"
                    with trio.move_on_after(0.5):
                        await trio.sleep_forever()  # A second wake would end it.
                settled = at.was_called
            assert limit.cancelled_caught is not settled
            future._answer("late")
        assert number > 10
        for reply in kept(ref)["replies"]:
            reply.set(None)


@pytest.mark.parametrize("where", ["on the loop", "in a thread"])
async def test_ask_that_several_await_wakes_each_and_none_that_was_cancelled(autojump_clock, where):
    got = []
    async with ActorSystem() as system, trio.open_nursery() as nursery:
        future = system.start(Keeps).ask("owe")

        async def waits(name, seconds):
            with trio.move_on_after(seconds):
                got.append((name, await future))

        for name, seconds in (("first", 1), ("second", 9), ("third", 1), ("fourth", 9)):
            nursery.start_soon(waits, name, seconds)
            await wait_all_tasks_blocked()
        await trio.sleep(2)
        nursery.start_soon(waits, "in the place of the first", 9)
        await wait_all_tasks_blocked()
        if where == "on the loop":
            future._answer("value")
        else:
            in_a_thread(future._answer, "value")
        future.on_done(lambda: got.append(("told", future.get())))
        await wait_all_tasks_blocked()
        expected = ["fourth", "in the place of the first", "second", "told"]
        assert sorted(got) == [(name, "value") for name in expected]


# -- the internal lane


class PutMeanwhile:
    """A flag that is down, and at whose first look a thread puts something into a lane."""

    def __init__(self, put):
        self._put = put

    def __bool__(self):
        put, self._put = self._put, None
        if put is not None:
            in_a_thread(put)
        return False


async def test_answer_that_a_thread_gives_while_an_incarnation_begins_is_handled():
    class Begins(Keeps):
        def on_start(self):
            box = self._cell.box
            item = (ANSWER, ((), Answer("tag", "answered", None, None)), 0, 0)
            box.suspended = PutMeanwhile(lambda: box.put_internal(item))

    async with ActorSystem() as system:
        ref = system.start(Begins)
        await wait_all_tasks_blocked()
        assert kept(ref)["seen"] == ["answered"]
        ref._box.suspended = False


# -- the end of a mailbox


def test_message_that_is_put_while_another_thread_wakes_an_actor_that_ends_is_buried(monkeypatch):
    with HostedSystem() as system:
        ref = Keeps.start()
        ref.ask("first")
        system.run(wait_all_tasks_blocked)
        box = ref._box
        real = mailbox_module.get_ident

        async def end():
            ref.stop()
            await ref.stopped()

        def ended_meanwhile():
            monkeypatch.undo()
            system.run(end)
            return real()

        monkeypatch.setattr(mailbox_module, "get_ident", ended_meanwhile)
        box.attend()  # One thread saw it asleep; it ends before that thread goes on.
        system.run(wait_all_tasks_blocked)
        assert box.attention
        late = TrioFuture()  # Another read that there was room before the end.
        box.user.append(("late", late, 0))
        if box.attention:
            box.attend()
        with pytest.raises(ActorDeadError):
            late.get(timeout=60)


# -- stopping


async def test_stop_that_is_sent_between_two_suspensions_ends_a_suspended_actor(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Keeps)
        ref.suspend()
        await wait_all_tasks_blocked()
        ref.resume()
        stopped = ref.stop()
        ref.suspend()
        with trio.fail_after(1):
            assert await stopped is True


@pytest.mark.parametrize("left", ["an unexpired ask", "none"])
async def test_stop_waits_for_no_reply_to_an_ask_that_has_expired(autojump_clock, left):
    async with ActorSystem() as system:
        ref = system.start(Keeps)
        expires = ref.ask("owe", timeout=1)
        lasts = ref.ask("owe")
        await wait_all_tasks_blocked()
        stopped = ref.stop()
        if left == "none":
            kept(ref)["replies"][1].set("reply")
        else:
            await trio.sleep(2)
            assert not stopped.settled
            kept(ref)["replies"][1].set("reply")
        began = trio.current_time()
        await stopped
        assert trio.current_time() - began < (1.1 if left == "none" else 0.1)
        assert await lasts == "reply"
        with pytest.raises(AskTimeoutError):
            await expires


@pytest.mark.parametrize("how", ["stop(now=True)", "stop(now=True) of a suspended actor", "stop"])
async def test_answer_that_came_just_before_a_stop_pays_what_is_owed_at_once(autojump_clock, how):
    class Pays(Keeps):
        def on_answer(self, answer):
            kept(self.actor_ref)["replies"].pop().set(answer.value)

    async with ActorSystem() as system:
        ref = system.start(Pays)
        owed = ref.ask("owe")
        await wait_all_tasks_blocked()
        if "suspended" in how:
            ref.suspend()
            await wait_all_tasks_blocked()
        ref._cell.box.put_internal((ANSWER, ((), Answer("tag", value="paid")), 1, 0))
        ref.stop(now="now" in how)
        began = trio.current_time()
        assert await owed == "paid"
        await ref.stopped()
        assert trio.current_time() == began


# -- room


async def test_sender_that_waits_for_room_is_woken_by_a_reply_to_what_was_stashed(autojump_clock):
    class Stashes(Keeps):
        max_deliveries = 2
        mailbox_capacity = 1

        def on_receive(self, message):
            if self.incarnation > 1 and message == "owe":
                self.stash()
                return None
            return super().on_receive(message)

    async with ActorSystem() as system, trio.open_nursery() as nursery:
        group = await system.start_supervisor(
            SupervisorSpec("g", (ChildSpec("a", Stashes),), backoff=Backoff(0, 0))
        )
        ref = group.refs["a"]
        asked = ref.ask("owe")
        await wait_all_tasks_blocked()
        ref.kill()
        await wait_all_tasks_blocked()
        assert ref.statistics().stashed == 1
        nursery.start_soon(ref.tell_wait, "more", 5)
        await wait_all_tasks_blocked()
        assert ref.statistics().mailbox.waiting == 1
        kept(ref)["replies"][0].set("reply")
        assert await asked == "reply"
        await wait_all_tasks_blocked()
        assert kept(ref)["seen"] == ["owe", "more"]


# -- the loop's turn


@pytest.mark.parametrize("what", ["tells that are owed", "asks that have expired"])
async def test_batch_of_what_is_not_handled_at_once_holds_the_loop_no_longer_than_another(
    autojump_clock, what
):
    now = 0.0

    def pass_time(*_):
        nonlocal now
        now += 0.0004
        turns.append("one")

    class Owes(Keeps):
        def on_receive(self, message):
            pass_time()
            return super().on_receive(message)

    turns = []

    async def others():
        while True:
            turns.append("other")
            await trio.lowlevel.checkpoint()

    async with ActorSystem(on_dead_letter=pass_time) as system, trio.open_nursery() as nursery:
        system.stopwatch = lambda: now
        ref = system.start(Owes)
        await wait_all_tasks_blocked()
        if what == "tells that are owed":
            for n in range(80):
                ref.tell(f"owe {n}")
        else:
            for _ in range(80):
                ref.ask("x")._expire(1)
        nursery.start_soon(others)
        while turns.count("one") < 80:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
        longest = max(len(run) for run in "".join(t[1] for t in turns).split("t"))
        assert longest <= 16  # Eight between two looks, twice, as trio shuffles who goes first.
        for reply in kept(ref)["replies"]:
            reply.set()
