"""The bound of the mailbox and what happens at it: waiting, coalescing, marks, lanes, figures."""

from __future__ import annotations

import math
import threading
from contextlib import suppress

import pykka
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from abeyance.actors.core import (
    ActorSystem,
    AskCycleError,
    AskTimeoutError,
    Backoff,
    ChildSpec,
    HostedSystem,
    MailboxFullError,
    MessageCoalescedError,
    SupervisorSpec,
    TrioActor,
    TrioFuture,
)
from abeyance.actors.core.coalescing import CoalescingLane
from abeyance.actors.core.mailbox import Mailbox


class Gated(TrioActor):
    """Handles nothing behind the message `hold` until its gate opens."""

    @classmethod
    def make_kept(cls):
        return {"seen": [], "gate": trio.Event()}

    async def on_receive(self, message):
        if message == "hold":
            await self.kept["gate"].wait()
        else:
            self.kept["seen"].append(message)
        return message


async def test_class_has_its_say_about_the_mailbox_when_its_first_actor_starts():
    class Base(Gated):
        mailbox_capacity = 3

    async with ActorSystem() as system:
        assert system.start(Base)._cell.box.statistics().capacity == 3

        class Derived(Base):
            mailbox_capacity = 5

        assert system.start(Derived)._cell.box.statistics().capacity == 5
        Base.mailbox_capacity = Derived.mailbox_capacity = 7
        assert system.start(Base)._cell.box.statistics().capacity == 3
        assert system.start(Derived)._cell.box.statistics().capacity == 5


async def held(system, **attributes):
    """Start a `Gated` of these class attributes, and let it hold."""
    ref = system.start(type("Held", (Gated,), attributes))
    ref.tell("hold")
    await wait_all_tasks_blocked()
    return ref


def seen(ref):
    return ref._cell.kept["seen"]


def opens(ref):
    ref._cell.kept["gate"].set()


def accounted(ref):
    return ref._cell.accounted()


# -- waiting for room


class Stuck(TrioActor):
    overflow = "block"
    mailbox_capacity = 1

    async def on_receive(self, message):
        await trio.sleep_forever()


def stuck(hosted, **attributes):
    """Start a `Stuck` whose mailbox is full."""
    ref = hosted.start(type("StuckToo", (Stuck,), attributes))
    ref.tell("in flight")
    while ref.statistics().queued or not ref.statistics().in_flight:
        pass
    ref.tell("queued")
    return ref


def test_blocked_host_thread_gives_up_after_its_time_and_has_the_message_back():
    with HostedSystem() as hosted:
        ref = stuck(hosted, block_timeout_s=0.01)
        for _ in range(3):
            with pytest.raises(MailboxFullError, match=r"waiting 0\.01 s") as caught:
                ref.tell("late")
            assert (caught.value.message, caught.value.capacity) == ("late", 1)
        assert ref.statistics().mailbox.waiting == 0
        assert ref.statistics().queued == 1
        ref.kill()


def test_thread_that_runs_another_loop_is_refused_where_it_would_block():
    with HostedSystem() as hosted:
        ref = stuck(hosted)

        async def tells():
            with pytest.raises(MailboxFullError) as caught:
                ref.tell("late")
            return caught.value.message

        assert trio.run(tells) == "late"
        assert ref.statistics().mailbox.waiting == 0
        ref.kill()


@pytest.mark.parametrize("how", ["tell_wait", "tell in its thread", "tell_wait of who it asked"])
async def test_who_waits_for_room_that_its_own_actor_is_to_make_is_refused_with_the_ring(how):
    class Fills(TrioActor):
        mailbox_capacity = 1
        overflow = "block"

        async def on_receive(self, message):
            if not callable(message):
                return None
            result = message(self)
            return await result if hasattr(result, "__await__") else result

    async with ActorSystem() as system:
        one, two = system.start(Fills, name="one"), system.start(Fills, name="two")

        async def fills(actor):
            one.tell("queued")
            if how == "tell_wait":
                await one.tell_wait("late")
            elif how == "tell in its thread":
                await trio.to_thread.run_sync(one.tell, "late")
            else:
                await two.ask(lambda _: one.tell_wait("late"))

        with trio.fail_after(5), pytest.raises(AskCycleError) as caught:
            await one.ask(fills)
        assert caught.value.ring == (
            ("one", "two", "one") if how.endswith("asked") else ("one", "one")
        )
        assert caught.value.message == "late"
        assert not one._box.waiting
        assert await one.ask("x") is None


def test_blocked_ask_gives_up_at_its_own_deadline_where_that_is_sooner():
    with HostedSystem() as hosted:
        ref = stuck(hosted, block_timeout_s=60.0)
        with pytest.raises(MailboxFullError) as caught:
            ref.ask("late", timeout=0.01)
        assert caught.value.message == "late"
        assert ref.statistics().queued == 1
        ref.kill()


async def test_host_thread_woken_as_its_time_runs_out_takes_the_room_it_was_given(monkeypatch):
    async with ActorSystem() as system:
        ref = await held(system, mailbox_capacity=1, overflow="block", block_timeout_s=60.0)
        ref.tell("first")
        box = ref._box

        class Late(TrioFuture):
            def get(self, *, timeout=None):
                box.user.popleft()
                box.give_room()
                raise pykka.Timeout("woken at the same time")

        monkeypatch.setattr("abeyance.actors.core.room.TrioFuture", Late)
        await trio.to_thread.run_sync(ref.tell, "late")
        assert [message for message, _, _ in box.user] == ["late"]
        opens(ref)


async def test_threads_that_are_the_first_to_wait_at_the_same_time_all_wait_in_one_queue():
    barrier = threading.Barrier(2)

    class BothAtOnce:
        """A lock that two threads reach before either takes it."""

        def __init__(self, lock):
            self.lock = lock

        def __enter__(self):
            if threading.current_thread().name.startswith("waits"):
                barrier.wait(timeout=60)
            return self.lock.__enter__()

        def __exit__(self, *args):
            return self.lock.__exit__(*args)

    async with ActorSystem() as system:
        ref = await held(system, mailbox_capacity=1)
        ref.tell("first")
        system.lock = BothAtOnce(system.lock)
        threads = [
            threading.Thread(target=ref._box.wait_for_room, name=f"waits {n}") for n in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert ref.statistics().mailbox.waiting == 2
        opens(ref)


async def test_tell_wait_gives_up_after_its_time_and_has_the_message_back(autojump_clock):
    async with ActorSystem() as system:
        ref = await held(system, mailbox_capacity=1)
        ref.tell("first")
        began = trio.current_time()
        with pytest.raises(MailboxFullError, match="waiting 2 s") as caught:
            await ref.tell_wait("late", timeout=2)
        assert caught.value.message == "late"
        assert trio.current_time() == began + 2
        assert ref.statistics().mailbox.waiting == 0
        opens(ref)
        await ref.tell_wait("in time", timeout=2)
        await wait_all_tasks_blocked()
        assert seen(ref) == ["first", "in time"]


@pytest.mark.parametrize("timeout", [-1, math.nan, True])
async def test_tell_wait_refuses_a_timeout_that_is_none_before_it_sends(timeout):
    async with ActorSystem() as system:
        ref = system.start(Gated)
        with pytest.raises(ValueError, match="timeout"):
            await ref.tell_wait("x", timeout=timeout)
        await wait_all_tasks_blocked()
        assert seen(ref) == []


# -- coalescing


def by_first(message):
    return message[0] if isinstance(message, tuple) else None


class Coalesces(Gated):
    overflow = "coalesce"
    mailbox_capacity = 3
    coalesce_key = staticmethod(by_first)


async def coalescing(system, **attributes):
    return await held(system, **{**Coalesces.__dict__, **attributes})


async def test_newer_message_takes_the_place_of_the_queued_one_of_its_key():
    async with ActorSystem() as system:
        ref = await coalescing(system)
        for message in [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 3)]:
            ref.tell(message)
        assert [letter.message for letter in system.dead_letters.entries] == [
            ("a", 1),
            ("b", 1),
            ("a", 2),
        ]
        assert ref.statistics().mailbox.dead == system.dead_letters.counts == {"coalesced": 3}
        opens(ref)
        await wait_all_tasks_blocked()
        assert seen(ref) == [("a", 3), ("b", 2)]
        assert accounted(ref) == 6


async def test_asker_whose_message_was_coalesced_is_told_so():
    async with ActorSystem() as system:
        ref = await coalescing(system)
        first, second = ref.ask(("a", 1)), ref.ask(("a", 2))
        with pytest.raises(MessageCoalescedError) as caught:
            await first
        assert caught.value.message == ("a", 1)
        opens(ref)
        assert await second == ("a", 2)


async def test_ask_with_a_place_by_key_expires_as_any_other(autojump_clock):
    async with ActorSystem() as system:
        ref = await coalescing(system)
        with pytest.raises(AskTimeoutError):
            await ref.ask(("a", 1), timeout=1)
        opens(ref)
        await wait_all_tasks_blocked()
        assert seen(ref) == []


async def test_message_without_a_key_is_never_coalesced():
    async with ActorSystem() as system:
        ref = await coalescing(system)
        ref.tell("same")
        ref.tell("same")
        opens(ref)
        await wait_all_tasks_blocked()
        assert seen(ref) == ["same", "same"]


async def test_full_coalescing_mailbox_takes_only_what_replaces_another():
    async with ActorSystem() as system:
        ref = await coalescing(system)
        for key in "abc":
            ref.tell((key, 1))
        with pytest.raises(MailboxFullError):
            ref.tell(("d", 1))
        with pytest.raises(MailboxFullError):
            ref.tell("without a key")
        ref.tell(("b", 2))
        await ref.tell_wait(("c", 2))
        with trio.move_on_after(0), pytest.raises(MailboxFullError):
            await ref.tell_wait(("d", 1), timeout=0)
        opens(ref)
        await wait_all_tasks_blocked()
        assert seen(ref) == [("a", 1), ("b", 2), ("c", 2)]


async def test_message_in_flight_is_not_replaced_by_a_newer_one_of_its_key():
    class Slow(Coalesces):
        async def on_receive(self, message):
            self.kept["seen"].append(message)
            await self.kept["gate"].wait()

    async with ActorSystem() as system:
        ref = system.start(Slow)
        ref.tell(("a", 1))
        await wait_all_tasks_blocked()
        ref.tell(("a", 2))
        ref.tell(("a", 3))
        opens(ref)
        await wait_all_tasks_blocked()
        assert seen(ref) == [("a", 1), ("a", 3)]


async def test_key_function_that_raises_does_so_at_the_sender_and_nothing_is_sent():
    class Odd(Coalesces):
        @staticmethod
        def coalesce_key(message):
            if message == "unhashable":
                return []
            raise KeyError(message)

    async with ActorSystem() as system:
        ref = system.start(Odd)
        with pytest.raises(KeyError):
            ref.tell("x")
        with pytest.raises(TypeError):
            ref.tell("unhashable")
        assert await ref.proxy().incarnation == 1  # Pykka's own messages have no key.
        assert await ref.stop()
        assert accounted(ref) == 1


async def test_replacing_looks_at_no_other_message():
    class Key:
        looks = 0

        def __init__(self, n):
            self.n = n

        def __hash__(self):
            return self.n

        def __eq__(self, other):
            Key.looks += 1
            return self.n == other.n

    async with ActorSystem() as system:
        ref = await coalescing(system, mailbox_capacity=1000)
        for n in range(1000):
            ref.tell((Key(n), 1))
        Key.looks = 0
        ref.tell((Key(999), 2))
        assert Key.looks <= 2
        assert ref.statistics().queued == 1000
        opens(ref)


async def test_messages_of_a_coalescing_mailbox_can_be_looked_at_in_order():
    async with ActorSystem() as system:
        ref = await coalescing(system)
        for message in [("a", 1), "plain", ("a", 2)]:
            ref.tell(message)
        lane = ref._box.user
        assert [envelope[0] for envelope in lane] == [("a", 2), "plain"]
        assert [lane[0][0], lane[1][0]] == [("a", 2), "plain"]
        opens(ref)


def test_message_that_is_taken_while_a_thread_replaces_it_is_the_newer_one():
    lane = CoalescingLane()
    taken = []

    class Key:
        """One whose comparison, in the middle of a put, lets another thread take."""

        def __hash__(self):
            return 1

        def __eq__(self, other):
            taker.start()
            taker.join(timeout=0.2)
            return True

    taker = threading.Thread(target=lambda: taken.append(lane.popleft()))
    assert lane.put(Key(), ("old", None, 0), True) == (True, None)
    put, replaced = lane.put(Key(), ("new", None, 0), True)
    taker.join(timeout=60)
    assert (put, replaced, taken) == (True, ("old", None, 0), [("new", None, 0)])


class Interrupts:
    """A key that has something else put, once, as it is hashed: as a finalizer may any time."""

    def __init__(self, name, puts=None, at=0):
        self.name, self.puts, self.at = name, puts, at

    def __hash__(self):
        self.at -= 1
        if self.at == 0:
            self.puts()
        return 1

    def __eq__(self, other):
        return self.name == other.name


@pytest.mark.parametrize("at", [1, 2], ids=["first looked up", "looked up again"])
@pytest.mark.parametrize("name", ["a", "b"], ids=["another key", "its own key"])
def test_a_put_in_the_midst_of_a_put_waits_for_nobody_and_loses_nothing(name, at):
    lane, sent, replaced = CoalescingLane(), [], []

    def put(key, envelope):
        sent.append(envelope)
        replaced.append(lane.put(key, envelope, True)[1])

    done = threading.Event()

    def interrupted():
        put(Interrupts("a"), "first")
        put(Interrupts("b", lambda: put(Interrupts(name), "within"), at), "second")
        done.set()

    threading.Thread(target=interrupted, daemon=True).start()
    assert done.wait(20), "it waits for its own thread"
    left = []
    while lane:
        left.append(lane.popleft())
    assert sorted(left + [each for each in replaced if each is not None]) == sorted(sent)
    assert not any(lane.has(Interrupts(each)) for each in "ab")


def test_threads_that_coalesce_lose_and_double_nothing():
    class Last(TrioActor):
        overflow = "coalesce"
        coalesce_key = staticmethod(by_first)

        @classmethod
        def make_kept(cls):
            return []

        def on_receive(self, message):
            self.kept.append(message)

    with HostedSystem() as hosted:
        ref = hosted.start(Last)
        barrier = threading.Barrier(4)

        def send(worker):
            barrier.wait(timeout=60)
            for n in range(3_000):
                ref.tell((f"{worker % 2} {n % 3}", (worker, n)))

        threads = [threading.Thread(target=send, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        ref.ask("end")
        stats = ref.statistics()
        assert stats.handled + stats.dead == 12_001
        assert stats.handled == len(ref._cell.kept)
        assert stats.queued == 0
        values = [message[1] for message in ref._cell.kept[:-1]]
        assert len(set(values)) == len(values)
        for worker in range(4):
            for key in range(3):  # Of two keys the later may take an earlier place.
                mine = [n for who, n in values if who == worker and n % 3 == key]
                assert mine == sorted(mine)


# -- marks


def marks(events):
    return [kind for kind in events if kind.startswith("mailbox")]


def recording(events, **options):
    return ActorSystem(on_event=lambda event: events.append(event.kind), **options)


async def test_high_and_low_mark_are_events_once_a_crossing():
    events = []
    async with recording(events) as system:
        ref = await held(system, mailbox_high=4, mailbox_low=2)
        for n in range(3):
            ref.tell(n)
        assert marks(events) == []
        for n in range(3, 9):
            ref.tell(n)
        assert marks(events) == ["mailbox_high"]
        assert ref.statistics().mailbox.above_high
        opens(ref)
        await wait_all_tasks_blocked()
        assert marks(events) == ["mailbox_high", "mailbox_low"]
        assert not ref.statistics().mailbox.above_high
        for n in range(4):
            ref.tell(n)
        assert marks(events) == ["mailbox_high", "mailbox_low", "mailbox_high"]


async def test_mailbox_between_its_marks_emits_nothing():
    class Steps(Gated):
        mailbox_high = 4
        mailbox_low = 1

        async def on_receive(self, message):
            await self.kept["gate"].wait()
            self.kept["gate"] = trio.Event()

    events = []
    async with recording(events) as system:
        ref = system.start(Steps)
        for n in range(5):
            ref.tell(n)
        for _ in range(3):  # From 4 to 2 and back: past neither mark.
            for _ in range(2):
                await wait_all_tasks_blocked()
                opens(ref)
            await wait_all_tasks_blocked()
            for n in range(2):
                ref.tell(n)
        assert marks(events) == ["mailbox_high"]
        ref.kill()


async def test_mailbox_whose_high_mark_is_0_emits_nothing():
    events = []
    async with recording(events) as system:
        ref = await held(system, mailbox_capacity=4, mailbox_high=0)
        for n in range(4):
            ref.tell(n)
        opens(ref)
        await wait_all_tasks_blocked()
        assert marks(events) == []
        assert not ref.statistics().mailbox.above_high


async def test_crossing_by_a_host_thread_that_is_over_before_the_loop_hears_of_it_is_announced(
    monkeypatch,
):
    events, late = [], []
    async with recording(events) as system:
        ref = await held(system, mailbox_high=2, mailbox_low=0)
        monkeypatch.setattr(system, "on_loop", lambda *call: late.append(call))
        ref.tell(1)
        ref.tell(2)
        opens(ref)
        await wait_all_tasks_blocked()
        assert seen(ref) == [1, 2]
        ref._box.shrank()
        assert marks(events) == []
        for function, *args in late:
            function(*args)
        assert marks(events) == ["mailbox_high", "mailbox_low"]


def test_marks_crossed_by_threads_alternate():
    events = []

    class Fast(TrioActor):
        mailbox_high = 20
        mailbox_low = 5

        def on_receive(self, message):
            return message

    with HostedSystem(on_event=lambda event: events.append(event.kind)) as hosted:
        ref = hosted.start(Fast)
        barrier = threading.Barrier(3)

        def send():
            barrier.wait(timeout=60)
            for n in range(2_000):
                with suppress(MailboxFullError):
                    ref.tell(n)

        threads = [threading.Thread(target=send) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        ref.ask("end")
    crossed = marks(events)
    assert crossed
    assert crossed == ["mailbox_high", "mailbox_low"] * (len(crossed) // 2)


@pytest.mark.parametrize(
    ("attributes", "field"),
    [
        ({"mailbox_high": -1}, "mailbox_high"),
        ({"mailbox_high": 11}, "mailbox_high"),
        ({"mailbox_low": 8}, "mailbox_low"),
        ({"mailbox_high": 4, "mailbox_low": 4}, "mailbox_low"),
        ({"mailbox_high": 4, "mailbox_low": -1}, "mailbox_low"),
        ({"block_timeout_s": -1.0}, "block_timeout_s"),
        ({"block_timeout_s": math.nan}, "block_timeout_s"),
        ({"while_suspended": "drop"}, "while_suspended"),
        ({"while_restarting": "drop"}, "while_restarting"),
    ],
)
async def test_class_attributes_of_the_mailbox_are_checked_before_anything_starts(
    attributes, field
):
    async with ActorSystem() as system:
        with pytest.raises(ValueError, match=field):
            system.start(type("Odd", (Gated,), {"mailbox_capacity": 10, **attributes}))
        assert system.statistics().actors == 0


# -- what the fast path does not do


@pytest.mark.parametrize("attributes", [{}, {"mailbox_high": 900}], ids=["plain", "marks"])
async def test_tell_takes_the_fast_path_from_the_first_below_the_high_mark(attributes, monkeypatch):
    slow = []
    slowly = Mailbox.offer_slowly

    def offer_slowly(self, envelope):
        slow.append(envelope)
        slowly(self, envelope)

    monkeypatch.setattr(Mailbox, "offer_slowly", offer_slowly)
    async with ActorSystem() as system:
        ref = system.start(type("Plain", (Gated,), attributes))
        for _ in range(5):
            for n in range(800):
                ref.tell(n)
            await wait_all_tasks_blocked()
        assert slow == []


# -- figures


async def test_statistics_say_what_each_lane_holds_and_the_peak():
    class Stashes(Gated):
        mailbox_capacity = 10

        async def on_receive(self, message):
            if message == "stash":
                return self.stash()
            return await super().on_receive(message)

    async with ActorSystem() as system:
        ref = system.start(Stashes)
        for message in ["stash", "stash", "hold", 1, 2, 3]:
            ref.tell(message)
        await wait_all_tasks_blocked()
        ref.tell_internal("internal")
        ref._box.signal(1)
        statistics = ref.statistics()
        box = statistics.mailbox
        assert (box.user, box.stashed, box.returned, box.internal) == (3, 2, 0, 1)
        assert (box.capacity, box.peak, box.waiting, box.suspended) == (10, 6, 0, False)
        assert box.control == ("stop_now",)
        assert (statistics.queued, statistics.stashed) == (3, 2)
        opens(ref)
        await ref.stopped()
        assert ref.statistics().mailbox.dead == {"stopped": 6}
        assert accounted(ref) == 7


@pytest.mark.parametrize("deep", [1, 5, 8, 100, 1000])
async def test_peak_is_what_the_user_lane_held_at_most_when_its_actor_slept_or_handled_one(deep):
    async with ActorSystem() as system:
        ref = await held(system)
        for n in range(deep):
            ref.tell(n)
        opens(ref)
        await wait_all_tasks_blocked()
        assert seen(ref) == list(range(deep))
        assert ref.statistics().mailbox.peak == deep


async def test_peak_that_came_and_went_between_two_looks_is_short_by_eight_at_most():
    class Refills(Gated):
        async def on_receive(self, message):
            if message == 3:
                for _ in range(20):
                    self.actor_ref.tell("more")

    async with ActorSystem() as system:
        ref = system.start(Refills)
        for n in range(6):
            ref.tell(n)
        await wait_all_tasks_blocked()
        assert 22 - 8 <= ref.statistics().mailbox.peak <= 22


async def test_dead_letters_are_counted_by_reason_for_each_mailbox(autojump_clock):
    async with ActorSystem() as system:
        ref = await held(system, mailbox_capacity=2, overflow="drop_newest")
        expires = ref.ask("expires", timeout=1)
        ref.tell("queued")
        ref.tell("over")
        with pytest.raises(pykka.Timeout):
            await expires
        stopped = ref.stop(now=True)
        opens(ref)
        await stopped
        assert ref.statistics().mailbox.dead == {"overflow": 1, "stopped": 2}


# -- lanes


class Sees(TrioActor):
    @classmethod
    def make_kept(cls):
        return []


async def flooded(system, actor_class):
    supervisor = await system.start_supervisor(
        SupervisorSpec("g", (ChildSpec("a", actor_class),), backoff=Backoff(0, 0), intensity=100)
    )
    return supervisor.refs["a"]


@pytest.mark.parametrize("flag", ["kill", "stop_now"])
async def test_flood_of_one_signal_takes_effect_once_and_the_next_message_is_handled(flag):
    class Floods(Sees):
        async def on_receive(self, message):
            self.kept.append((message, self.incarnation))
            if message == "flood":
                for _ in range(1000):
                    if flag == "kill":
                        self.actor_ref.kill()
                    else:
                        self.actor_ref.stop(now=True, block=False)

    async with ActorSystem() as system:
        ref = await flooded(system, Floods)
        for message in ["flood", 1, "flood", 2, 3]:
            ref.tell(message)
        await wait_all_tasks_blocked()
        assert [message for message, _ in ref._cell.kept] == ["flood", 1, "flood", 2, 3]
        assert [incarnation for _, incarnation in ref._cell.kept] == [1, 2, 2, 3, 3]


async def test_flood_of_signals_between_any_two_messages_starves_no_lane():
    class Toggles(Sees):
        def on_receive(self, message):
            self.kept.append(message)
            for _ in range(1000):
                self.actor_ref.suspend()
                self.actor_ref.resume()

    async with ActorSystem() as system:
        ref = system.start(Toggles)
        for n in range(10):
            ref.tell(n)
        ref.tell_internal("internal")
        await wait_all_tasks_blocked()
        assert ref._cell.kept == ["internal", *range(10)]


async def test_control_is_looked_at_before_the_internal_lane_and_that_before_the_user_lane():
    async with ActorSystem() as system:
        ref = await held(system)
        ref.tell("user")
        ref.tell_internal("internal")
        ref.suspend()
        opens(ref)
        await wait_all_tasks_blocked()
        assert seen(ref) == ["internal"]
        ref.tell_internal("never")
        stopped = ref.stop(now=True)
        await stopped
        assert seen(ref) == ["internal"]
