"""Mailbox, delivery, deferred replies: what becomes of every accepted envelope."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from abeyance.actors.core import (
    LATER,
    ActorCrashError,
    ActorDeadError,
    ActorKilledError,
    ActorSystem,
    AskTimeoutError,
    Backoff,
    ChildSpec,
    MailboxFullError,
    OutcomeUnknownError,
    SupervisorSpec,
    TrioActor,
)


class Recorder(TrioActor):
    """Keeps in its cell what every incarnation saw."""

    @classmethod
    def make_kept(cls):
        return {"seen": [], "replies": [], "answers": [], "ended": []}

    @property
    def seen(self):
        return self.kept["seen"]

    async def on_receive(self, message):
        self.seen.append(message)
        match message:
            case "boom" | ("boom", _):
                raise ValueError("boom")
            case "crash":
                raise ActorCrashError("crash")
            case "sleep" | ("sleep", _):
                await trio.sleep_forever()
            case ("owe", _):
                self.kept["replies"].append(self.later())
                return LATER
        return message

    def on_answer(self, answer):
        self.kept["answers"].append(answer)

    def on_ended(self, ended):
        self.kept["ended"].append(ended)


class Again(Recorder):
    """At least once."""

    max_deliveries = 3


async def supervised(system, actor_class, **options):
    supervisor = await system.start_supervisor(
        SupervisorSpec(
            "group", children=(ChildSpec("a", actor_class),), backoff=Backoff(0.05), **options
        )
    )
    return supervisor.refs["a"]


def kept(ref):
    return ref._cell.kept


def accounted(ref):
    stats = ref.statistics()
    return (
        stats.handled
        + stats.dead
        + stats.quarantined
        + stats.queued
        + stats.owed
        + int(stats.in_flight)
    )


# -- crash of a handler


async def test_message_in_flight_at_a_crash_is_quarantined_with_traceback_at_most_once(
    autojump_clock,
):
    async with ActorSystem() as system:
        ref = await supervised(system, Recorder)
        ref.tell("boom")
        ref.tell("after")
        assert await ref.ask("x") == "x"
        assert kept(ref)["seen"] == ["boom", "after", "x"]
        (entry,) = system.quarantine.entries
        assert (entry.message, entry.incarnation, entry.deliveries) == ("boom", 1, 1)
        assert "raise ValueError" in entry.traceback
        assert ref.statistics().incarnation == 2
        assert accounted(ref) == 3


async def test_message_in_flight_at_a_crash_comes_back_first_at_least_once(autojump_clock):
    async with ActorSystem() as system:
        ref = await supervised(system, Again)
        ref.tell("boom")
        ref.tell("after")
        assert await ref.ask("x") == "x"
        assert kept(ref)["seen"] == ["boom", "boom", "boom", "after", "x"]
        (entry,) = system.quarantine.entries
        assert entry.deliveries == 3


LANES = ["tell", "tell_internal", "ask"]


@pytest.mark.parametrize("lane", LANES)
async def test_message_that_crashed_an_actor_which_then_ends_keeps_its_cause(lane, autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Again)  # Nobody starts it again, so it has no second delivery.
        if lane == "ask":
            with pytest.raises(ActorCrashError, match="crash"):
                await ref.ask("crash")
        else:
            getattr(ref, lane)("crash")
            ref.tell("behind")
        await trio.sleep(1)
        [entry] = system.quarantine.entries
        assert (entry.message, entry.incarnation, entry.deliveries) == ("crash", 1, 1)
        assert "in on_receive" in entry.traceback
        left = [] if lane == "ask" else [("behind", "stopped")]
        assert [(x.message, x.reason) for x in system.dead_letters.entries] == left
        assert ref.statistics().quarantined == 1


async def test_message_that_killed_an_actor_which_then_ends_keeps_its_cause(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Again)
        asked = ref.ask("sleep", block=False)
        await wait_all_tasks_blocked()
        ref.kill()
        with pytest.raises(OutcomeUnknownError):
            await asked
        [entry] = system.quarantine.entries
        assert (entry.message, type(entry.error)) == ("sleep", ActorKilledError)
        assert not system.dead_letters.entries


@pytest.mark.parametrize("lane", ["tell", "tell_internal"])
async def test_message_that_waits_to_be_handled_again_keeps_its_first_cause(lane, autojump_clock):
    class FailsToStart(Again):
        max_deliveries = 9

        def on_start(self):
            self.kept["seen"].append("start")
            if self.kept["seen"].count("start") > 1:
                raise OSError("no start")

    async with ActorSystem() as system:
        group = await system.start_supervisor(
            SupervisorSpec(
                "group",
                children=(ChildSpec("a", FailsToStart),),
                intensity=2,
                on_exhausted="park",
                backoff=Backoff(0.05),
            )
        )
        ref = group.refs["a"]
        getattr(ref, lane)(("boom", 1))
        await trio.sleep(5)
        assert group.state == "parked"
        assert not system.quarantine.entries
        await group.stop()
        [entry] = system.quarantine.entries
        assert (entry.message, entry.incarnation, entry.deliveries) == (("boom", 1), 1, 1)
        assert isinstance(entry.error, ValueError)


async def test_stashed_message_that_had_crashed_an_earlier_incarnation_keeps_its_cause(
    autojump_clock,
):
    class Stashes(TrioActor):
        max_deliveries = 3

        def on_receive(self, message):
            if self.incarnation == 1:
                raise ValueError("first")
            self.stash()

    async with ActorSystem() as system:
        ref = await supervised(system, Stashes)
        ref.tell("x")
        await trio.sleep(1)
        assert not system.quarantine.entries
    [entry] = system.quarantine.entries
    assert (entry.message, str(entry.error), entry.incarnation) == ("x", "first", 1)


async def test_fact_that_crashed_an_actor_which_then_ends_keeps_its_cause(autojump_clock):
    class Fails(Again):
        async def on_receive(self, message):
            self.pipe(trio.lowlevel.checkpoint, tag="fact", fact=True)

        def on_answer(self, answer):
            raise ValueError(answer.tag)

    async with ActorSystem() as system:
        system.start(Fails).tell("go")
        await trio.sleep(1)
        [entry] = system.quarantine.entries
        assert (str(entry.error), entry.message.tag, entry.deliveries) == ("fact", "fact", 1)
        assert not system.dead_letters.entries


async def test_ask_that_expires_before_it_is_handled_again_keeps_its_cause(autojump_clock):
    async with ActorSystem() as system:
        group = await system.start_supervisor(
            SupervisorSpec(
                "group", children=(ChildSpec("a", Again),), intensity=99, backoff=Backoff(50, 50)
            )
        )
        ref = group.refs["a"]
        with pytest.raises(AskTimeoutError):
            await ref.ask("crash", timeout=5)
        await trio.sleep(200)
        [entry] = system.quarantine.entries
        assert (entry.message, entry.incarnation) == ("crash", 2)


async def test_crashes_of_a_redelivered_message_count_once_towards_the_intensity(autojump_clock):
    async with ActorSystem() as system:
        ref = await supervised(system, Again, intensity=1, on_exhausted="park")
        ref.tell("boom")
        assert await ref.ask("x") == "x"
        assert ref.statistics().incarnation == 1 + Again.max_deliveries
        assert system.root._children["group"].state == "running"


async def test_message_past_its_deliveries_parks_the_group_and_stays_where_asked_for(
    autojump_clock,
):
    class Parks(Again):
        past_deliveries = "park"

    async with ActorSystem() as system:
        ref = await supervised(system, Parks)
        ref.tell("boom")
        ref.tell("after")
        await wait_all_tasks_blocked()
        await trio.sleep(1)
        assert system.root._children["group"].state == "parked"
        assert ref.statistics().queued == 2
        assert system.quarantine.total == 0


async def test_message_that_parked_its_group_has_all_its_deliveries_again_when_it_is_unparked(
    autojump_clock,
):
    given = []

    class Parks(TrioActor):
        max_deliveries = 3
        past_deliveries = "park"

        def on_receive(self, message):
            given.append(message)
            raise ValueError(message)

    async with ActorSystem() as system:
        ref = await supervised(system, Parks)
        group = system.root._children["group"]
        ref.tell("boom")
        for times in (3, 6):
            await trio.sleep(60)
            assert group.state == "parked"
            assert given == ["boom"] * times
            group.unpark()


async def test_error_of_an_ask_crashes_where_the_class_says_so(autojump_clock):
    class Strict(Recorder):
        crash_on_ask_error = True

    async with ActorSystem() as system:
        ref = await supervised(system, Strict)
        with pytest.raises(ValueError, match="boom"):
            await ref.ask("boom")
        assert await ref.ask("x") == "x"
        assert ref.statistics().incarnation == 2


async def test_actor_crash_in_an_ask_answers_and_crashes(autojump_clock):
    async with ActorSystem() as system:
        ref = await supervised(system, Recorder)
        with pytest.raises(ActorCrashError):
            await ref.ask("crash")
        assert await ref.ask("x") == "x"
        assert ref.statistics().incarnation == 2


async def test_ask_in_flight_at_a_kill_fails_as_outcome_unknown_at_most_once(autojump_clock):
    async with ActorSystem() as system:
        ref = await supervised(system, Recorder)
        future = ref.ask("sleep")
        await wait_all_tasks_blocked()
        ref.kill("test")
        with pytest.raises(OutcomeUnknownError) as caught:
            await future
        assert caught.value.message == "sleep"
        (entry,) = system.quarantine.entries
        assert isinstance(entry.error, ActorKilledError)
        assert entry.error.reason == "test"
        assert await ref.ask("x") == "x"


async def test_ask_in_flight_at_a_crash_is_answered_by_the_next_incarnation_at_least_once(
    autojump_clock,
):
    class Second(TrioActor):
        max_deliveries = 2

        async def on_receive(self, message):
            if self.incarnation == 1:
                await trio.sleep_forever()
            return self.incarnation

    async with ActorSystem() as system:
        ref = await supervised(system, Second)
        future = ref.ask("x")
        await wait_all_tasks_blocked()
        ref.kill()
        assert await future == 2


async def test_ref_mailbox_urn_and_kept_object_outlive_an_incarnation(autojump_clock):
    async with ActorSystem() as system:
        ref = await supervised(system, Recorder)
        urn, box, before = ref.actor_urn, ref.actor_inbox, kept(ref)
        proxy = ref.proxy()
        ref.tell("boom")
        assert await ref.ask("x") == "x"
        assert (ref.actor_urn, ref.actor_inbox) == (urn, box)
        assert await proxy.incarnation == 2
        assert kept(ref) is before


# -- deferred replies


async def test_reply_is_settled_exactly_once(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Recorder)
        future = ref.ask(("owe", 1))
        await wait_all_tasks_blocked()
        (reply,) = kept(ref)["replies"]
        assert ref.statistics().owed == 1
        assert not reply.settled
        assert reply.set("first") is True
        assert reply.set("second") is False
        assert reply.set_exception(ValueError()) is False
        assert reply.settled
        assert await future == "first"
        assert ref.statistics().owed == 0
        assert accounted(ref) == 1


async def test_reply_can_be_an_exception(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Recorder)
        future = ref.ask(("owe", 1))
        await wait_all_tasks_blocked()
        assert kept(ref)["replies"][0].set_exception(ValueError("later"))
        with pytest.raises(ValueError, match="later"):
            await future


async def test_reply_may_be_settled_before_the_handler_returns_later(autojump_clock):
    class Early(TrioActor):
        def on_receive(self, message):
            reply = self.later()
            reply.set("early")
            return LATER

    async with ActorSystem() as system:
        ref = system.start(Early)
        assert await ref.ask(1) == "early"
        assert accounted(ref) == 1
        assert ref.statistics().handled == 1


async def test_other_messages_are_handled_while_a_reply_is_owed(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Recorder)
        future = ref.ask(("owe", 1))
        assert await ref.ask("x") == "x"
        kept(ref)["replies"][0].set(1)
        assert await future == 1


async def test_later_returned_without_a_handle_fails_the_ask(autojump_clock):
    class Wrong(TrioActor):
        def on_receive(self, message):
            return LATER

    async with ActorSystem() as system:
        with pytest.raises(RuntimeError, match="later"):
            await system.start(Wrong).ask(1)


async def test_handle_that_was_taken_and_not_returned_later_for_is_settled_by_the_return(
    autojump_clock,
):
    class Both(TrioActor):
        def on_receive(self, message):
            self.handle = self.later()
            return "returned"

    async with ActorSystem() as system:
        ref = system.start(Both)
        assert await ref.ask(1) == "returned"
        ref.tell(2)
        await wait_all_tasks_blocked()
        assert ref._cell.actor.handle.set("late") is False
        assert ref.statistics().handled == 2
        assert ref.statistics().owed == 0


async def test_tell_can_be_owed_and_is_redelivered_until_its_handle_is_settled(autojump_clock):
    async with ActorSystem() as system:
        ref = await supervised(system, Again)
        ref.tell(("owe", 1))
        ref.tell("boom")
        assert await ref.ask("x") == "x"
        replies = kept(ref)["replies"]
        assert kept(ref)["seen"].count(("owe", 1)) == 4
        assert ref.statistics().owed == 1
        assert replies[0].set() is True
        assert ref.statistics().owed == 0
        assert accounted(ref) == 3


class Flaky(Again):
    """Owes for a message, and fails when it gets it again."""

    async def on_receive(self, message):
        if message == ("owe", 1) and self.incarnation > 1:
            self.seen.append(message)
            raise ValueError("again")
        return await super().on_receive(message)


async def test_tell_that_was_owed_crashes_its_actor_when_it_fails_on_its_way_back(autojump_clock):
    async with ActorSystem() as system:
        ref = await supervised(system, Flaky, intensity=100)
        ref.tell(("owe", 1))
        ref.tell("crash")
        assert await ref.ask("x") == "x"
        # One delivery was owed and is uncounted, three crashed; "crash" has three of its own.
        assert kept(ref)["seen"].count(("owe", 1)) == 4
        assert [entry.message for entry in system.quarantine.list()] == [("owe", 1), "crash"]
        assert accounted(ref) == 3


async def test_stop_that_waits_for_what_is_owed_lets_other_tasks_run_while_the_lane_feeds_itself():
    class Feeds(Recorder):
        def on_receive(self, message):
            self.seen.append(message)
            if len(self.seen) < 1000:
                self.actor_ref.tell_internal("again")
            if message != "again":
                self.kept["replies"].append(self.later())
            return LATER

    async with ActorSystem() as system:
        ref = system.start(Feeds)
        future = ref.ask("owe", timeout=100)
        stopped = ref.stop()
        while ref.statistics().state != "stopping":
            await trio.lowlevel.checkpoint()
        assert len(kept(ref)["seen"]) < 1000
        assert kept(ref)["replies"][0].set("paid") is True
        assert await stopped is True
        assert await future == "paid"


async def test_tell_whose_handler_returns_later_without_a_handle_is_handled():
    class Mistaken(TrioActor):
        def on_receive(self, message):
            return LATER

    async with ActorSystem() as system:
        ref = system.start(Mistaken)
        for number in range(3):
            ref.tell(number)
        await wait_all_tasks_blocked()
        assert ref.statistics().handled == accounted(ref) == 3


async def test_owed_ask_fails_as_outcome_unknown_at_a_crash_and_is_not_quarantined_at_most_once(
    autojump_clock,
):
    async with ActorSystem() as system:
        ref = await supervised(system, Recorder)
        future = ref.ask(("owe", 1))
        ref.tell("boom")
        with pytest.raises(OutcomeUnknownError):
            await future
        assert [entry.message for entry in system.quarantine.entries] == ["boom"]
        assert system.dead_letters.counts == {"outcome_unknown": 1}
        assert kept(ref)["replies"][0].set("late") is False


async def test_owed_asks_come_back_first_in_order_and_uncounted_at_least_once(autojump_clock):
    async with ActorSystem() as system:
        ref = await supervised(system, Again, intensity=100)
        futures = [ref.ask(("owe", n)) for n in range(3)]
        for _ in range(2):
            ref.tell("boom")
        ref.tell("last")
        await trio.sleep(5)
        assert system.quarantine.counts == {"ValueError": 2}
        owes = [("owe", n) for n in range(3)]
        seen = kept(ref)["seen"]
        assert seen[:8] == [*owes, "boom", *owes, "boom"]
        assert seen[-1] == "last"
        for n, reply in enumerate(kept(ref)["replies"][-3:]):
            assert reply.set(n)
        assert [await future for future in futures] == [0, 1, 2]


async def test_poison_does_not_quarantine_an_innocent_owed_ask(autojump_clock):
    class FailsLate(Again):
        async def on_receive(self, message):
            if message == ("owe", 1) and self.seen.count(message) == 6:
                self.seen.append(message)
                raise ActorCrashError("its first crash")
            return await super().on_receive(message)

    async with ActorSystem() as system:
        ref = await supervised(system, FailsLate, intensity=100)
        innocent = ref.ask(("owe", 1))
        for n in range(4):
            ref.tell(("boom", n))
        await trio.sleep(60 - 1)
        assert [entry.message for entry in system.quarantine.entries] == [
            ("boom", n) for n in range(4)
        ]
        # Twelve crashes of others are none of its own, and one of its own is not the third.
        assert kept(ref)["seen"].count(("owe", 1)) == 1 + 12 + 1
        assert not innocent.settled
        assert kept(ref)["replies"][-1].set("fine")
        assert await innocent == "fine"


async def test_handle_of_an_earlier_incarnation_settles_a_queued_envelope_which_leaves_the_queue(
    autojump_clock,
):
    async with ActorSystem() as system:
        ref = await supervised(system, Again)
        future = ref.ask(("owe", 1))
        await wait_all_tasks_blocked()
        await ref._cell.halt()
        assert ref.statistics().queued == 1
        (reply,) = kept(ref)["replies"]
        assert reply.set("settled") is True
        assert reply.set("again") is False
        assert ref.statistics().queued == 0
        assert await future == "settled"
        await ref._cell.release_hold()
        assert await ref.ask("x") == "x"
        assert kept(ref)["seen"] == [("owe", 1), "x"]
        assert accounted(ref) == 2


async def test_handle_of_an_earlier_incarnation_settles_an_envelope_that_is_handled_again(
    autojump_clock,
):
    class Slow(TrioActor):
        max_deliveries = 5

        @classmethod
        def make_kept(cls):
            return []

        async def on_receive(self, message):
            self.kept.append(self.later())
            if self.incarnation == 2:
                await trio.sleep(10)
            return LATER

    async with ActorSystem() as system:
        ref = await supervised(system, Slow)
        future = ref.ask(1)
        await wait_all_tasks_blocked()
        ref.kill()
        await trio.sleep(1)
        assert ref.statistics().incarnation == 2
        assert kept(ref)[0].set("by the first") is True
        assert await future == "by the first"
        await trio.sleep(20)
        assert kept(ref)[1].set("by the second") is False
        assert accounted(ref) == 1


async def test_settled_envelope_is_not_redelivered_when_its_handler_then_crashes(autojump_clock):
    class Settles(TrioActor):
        max_deliveries = 3

        @classmethod
        def make_kept(cls):
            return []

        def on_receive(self, message):
            self.kept.append(message)
            self.later().set("done")
            raise ActorCrashError("after")

    async with ActorSystem() as system:
        ref = await supervised(system, Settles)
        assert await ref.ask(1) == "done"
        await trio.sleep(1)
        assert kept(ref) == [1]
        assert system.quarantine.total == 0
        assert accounted(ref) == 1


async def test_stop_serves_the_internal_lane_until_nothing_is_owed(autojump_clock):
    class Answers(TrioActor):
        async def on_receive(self, message):
            await trio.sleep(2)
            return "answered"

    class Passes(TrioActor):
        def __init__(self, other):
            self.other = other

        def on_receive(self, message):
            self.ask(self.other, message, tag=self.later())
            return LATER

        def on_answer(self, answer):
            answer.tag.set(answer.unwrap())

    async with ActorSystem() as system:
        ref = system.start(Passes, system.start(Answers))
        future = ref.ask(1)
        await wait_all_tasks_blocked()
        assert await ref.stop() is True
        assert await future == "answered"


async def test_what_is_owed_past_the_shutdown_time_becomes_a_dead_letter(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Recorder)
        future = ref.ask(("owe", 1), timeout=100)
        await wait_all_tasks_blocked()
        began = trio.current_time()
        await ref.stop()
        assert trio.current_time() - began == 5
        with pytest.raises(ActorDeadError):
            await future
        assert system.dead_letters.counts == {"stopped": 1}
        assert kept(ref)["replies"][0].set(1) is False


async def test_later_outside_a_handler_is_an_error(autojump_clock):
    class Outside(TrioActor):
        def on_start(self):
            with pytest.raises(RuntimeError, match="later"):
                self.later()

    async with ActorSystem() as system:
        assert await system.start(Outside).ask("x") is None


# -- deadlines


async def test_ask_expires_at_its_deadline_and_is_skipped_when_its_turn_comes(autojump_clock):
    async with ActorSystem() as system:
        ref = await supervised(system, Recorder)
        ref.tell("sleep")
        future = ref.ask("expired", timeout=2)
        began = trio.current_time()
        with pytest.raises(AskTimeoutError):
            await future
        assert 2 <= trio.current_time() - began <= 2 + 1 / 32
        ref.kill()
        assert await ref.ask("x") == "x"
        assert kept(ref)["seen"] == ["sleep", "x"]
        assert system.dead_letters.counts == {"expired": 1}
        assert accounted(ref) == 3


async def test_ask_without_a_deadline_of_its_own_has_the_systems(autojump_clock):
    async with ActorSystem(ask_timeout_s=3) as system:
        ref = system.start(Recorder)
        with pytest.raises(AskTimeoutError) as caught:
            await ref.ask("sleep")
        assert caught.value.timeout_s == 3
        ref.kill()


async def test_ask_with_infinite_deadline_never_expires(autojump_clock):
    async with ActorSystem(ask_timeout_s=3) as system:
        ref = system.start(Recorder)
        future = ref.ask(("owe", 1), timeout=float("inf"))
        await trio.sleep(10_000)
        kept(ref)["replies"][0].set("slow")
        assert await future == "slow"


async def test_late_reply_is_dropped_and_counted(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Recorder)
        with pytest.raises(AskTimeoutError):
            await ref.ask(("owe", 1), timeout=1)
        assert kept(ref)["replies"][0].set("late") is False
        assert ref.statistics().late == 1
        assert ref.statistics().owed == 0


async def test_answered_ask_is_not_held_by_the_wheel(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Recorder)
        for n in range(100):
            await ref.ask(n, timeout=1000)
        assert [*map(len, system.wheel._slots.values())] == [1]  # The mailbox, for all of them.
        slow = ref.ask("sleep", timeout=2000)
        await trio.sleep(1001)
        assert [*map(len, system.wheel._slots.values())] == [1]  # The one that still waits.
        ref.kill()
        with pytest.raises(OutcomeUnknownError):
            await slow
        assert [*map(len, system.wheel._slots.values())] == [0]


async def test_ended_actor_is_not_held_by_the_wheel(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Recorder)
        await ref.ask(1)
        await ref.stop()
        assert [*map(len, system.wheel._slots.values())] == [0]


@pytest.mark.parametrize("first_s", [5, 1], ids=["sooner-last", "later-last"])
async def test_asks_of_one_mailbox_expire_each_at_its_own_deadline(first_s, autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Recorder)
        ref.tell("sleep")
        ended = {}

        async def ask(timeout_s):
            with pytest.raises(AskTimeoutError) as caught:
                await ref.ask("x", timeout=timeout_s)
            ended[caught.value.timeout_s] = trio.current_time() - began

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for timeout_s in (first_s, 3, 6 - first_s):
                nursery.start_soon(ask, timeout_s)
                await wait_all_tasks_blocked()
        assert list(ended) == [1, 3, 5]
        assert all(0 <= ended[timeout_s] - timeout_s <= 1 / 32 for timeout_s in ended)
        ref.kill()


async def test_ask_in_flight_and_asks_owed_expire_at_their_deadlines(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Recorder)
        owed = ref.ask(("owe", 1), timeout=2)
        running = ref.ask("sleep", timeout=3)
        for future, at in ((owed, 2), (running, 3)):
            with pytest.raises(AskTimeoutError):
                await future
            assert at <= trio.current_time() <= at + 1 / 32
        ref.kill()


# -- bounds


class Slow(Recorder):
    mailbox_capacity = 3


def overflowing(policy):
    return type(f"Slow_{policy}", (Slow,), {"overflow": policy})


async def blocked(system, policy):
    ref = await supervised(system, overflowing(policy))
    ref.tell("sleep")
    await wait_all_tasks_blocked()
    for n in range(3):
        ref.tell(n)
    return ref


async def test_full_mailbox_rejects_and_hands_the_message_back(autojump_clock):
    async with ActorSystem() as system:
        ref = await blocked(system, "reject")
        with pytest.raises(MailboxFullError) as caught:
            ref.tell("more")
        assert (caught.value.message, caught.value.capacity) == ("more", 3)
        with pytest.raises(MailboxFullError):
            await ref.ask("more")
        ref.kill()
        await wait_all_tasks_blocked()
        assert kept(ref)["seen"] == ["sleep", 0, 1, 2]


async def test_full_mailbox_drops_the_newest_as_dead_letter(autojump_clock):
    async with ActorSystem() as system:
        ref = await blocked(system, "drop_newest")
        ref.tell("more")
        with pytest.raises(MailboxFullError):
            await ref.ask("asked")
        assert system.dead_letters.counts == {"overflow": 2}
        ref.kill()
        await wait_all_tasks_blocked()
        assert kept(ref)["seen"] == ["sleep", 0, 1, 2]


async def test_full_mailbox_drops_the_oldest_as_dead_letter(autojump_clock):
    async with ActorSystem() as system:
        ref = await blocked(system, "drop_oldest")
        ref.tell("more")
        assert [letter.message for letter in system.dead_letters.entries] == [0]
        ref.kill()
        await wait_all_tasks_blocked()
        assert kept(ref)["seen"] == ["sleep", 1, 2, "more"]


@pytest.mark.parametrize("policy", ["reject", "block", "drop_oldest", "drop_newest", "coalesce"])
async def test_stop_is_accepted_by_a_full_mailbox_and_never_dropped(policy, autojump_clock):
    class Held(overflowing(policy)):
        coalesce_key = staticmethod(lambda message: None)

        async def on_receive(self, message):
            self.seen.append(message)
            if message == "sleep":
                await trio.sleep(5)

    async with ActorSystem() as system:
        ref = system.start(Held)
        ref.tell("sleep")
        await wait_all_tasks_blocked()
        for n in range(3):
            ref.tell(n)
        stopped = ref.stop()
        for n in range(3, 20):
            with suppress(MailboxFullError):
                ref.tell(n)
        with trio.fail_after(60):
            assert await stopped is True
            await ref.stopped()
        assert trio.current_time() == 5
        handled, dead = kept(ref)["seen"], system.dead_letters.entries
        # What was before the stop is handled, and what overflowed is not.
        assert handled == ["sleep", *([] if policy == "drop_oldest" else range(3))]
        assert all(isinstance(letter.message, int) for letter in dead)


@pytest.mark.parametrize("policy", ["reject", "block", "drop_oldest", "drop_newest"])
async def test_tell_wait_waits_for_room_whatever_the_policy(policy, autojump_clock):
    async with ActorSystem() as system:
        ref = await blocked(system, policy)
        async with trio.open_nursery() as nursery:
            for n in range(3, 8):
                nursery.start_soon(ref.tell_wait, n)
                await wait_all_tasks_blocked()
            assert ref.statistics().queued == 3
            ref.kill()
        assert await ref.ask("x") == "x"
        assert sorted(kept(ref)["seen"][1:-1]) == list(range(8))
        assert system.dead_letters.total == 0


async def test_tell_wait_that_is_cancelled_sent_nothing_and_passes_its_wake_on(autojump_clock):
    async with ActorSystem() as system:
        ref = await blocked(system, "reject")
        with trio.move_on_after(1):
            await ref.tell_wait("cancelled")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ref.tell_wait, "waited")
            await wait_all_tasks_blocked()
            ref.kill()
        await wait_all_tasks_blocked()
        assert kept(ref)["seen"] == ["sleep", 0, 1, 2, "waited"]


async def test_tell_wait_raises_when_the_actor_ends_while_it_waits(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Slow)
        ref.tell("sleep")
        await wait_all_tasks_blocked()
        for n in range(3):
            ref.tell(n)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _():
                with pytest.raises(ActorDeadError):
                    await ref.tell_wait("never")

            await wait_all_tasks_blocked()
            ref.kill()


async def test_internal_lane_is_exempt_from_the_bound_and_comes_first(autojump_clock):
    async with ActorSystem() as system:
        ref = await blocked(system, "reject")
        for n in range(5):
            ref.tell_internal(("internal", n))
        ref.kill()
        await wait_all_tasks_blocked()
        internal = [("internal", n) for n in range(5)]
        assert kept(ref)["seen"] == ["sleep", *internal, 0, 1, 2]


async def test_internal_lane_does_not_starve_the_user_lane(autojump_clock):
    class Busy(TrioActor):
        @classmethod
        def make_kept(cls):
            return []

        def on_receive(self, message):
            self.kept.append(message)
            if message == "internal" and len(self.kept) < 1000:
                self.actor_ref.tell_internal("internal")

    async with ActorSystem() as system:
        ref = system.start(Busy)
        ref.tell_internal("internal")
        for _ in range(10):
            ref.tell("user")
        await wait_all_tasks_blocked()
        assert kept(ref)[:20].count("user") >= 9


def test_capacity_and_policy_are_checked_before_anything_starts():
    async def main():
        async with ActorSystem() as system:
            with pytest.raises(ValueError, match="overflow"):
                system.start(type("Odd", (Slow,), {"overflow": "explode"}))
            with pytest.raises(ValueError, match="mailbox_capacity"):
                system.start(type("Odd", (Slow,), {"mailbox_capacity": 0}))

    trio.run(main)


# -- answers, pipes, tasks, timers, watching


class Asker(Recorder):
    """Does what it is told to, with itself as the argument."""

    def on_receive(self, message):
        return message(self) if callable(message) else super().on_receive(message)


async def test_answer_of_an_ask_comes_tagged_on_the_internal_lane(autojump_clock):
    async with ActorSystem() as system:
        other, ref = system.start(Recorder), system.start(Asker)
        ref.tell(lambda me: me.ask(other, "q", tag="t"))
        await wait_all_tasks_blocked()
        (answer,) = kept(ref)["answers"]
        assert (answer.tag, answer.value, answer.error, answer.request) == ("t", "q", None, "q")
        assert answer.unwrap() == "q"


async def test_refusal_of_an_actors_ask_is_its_answers_error(autojump_clock):
    async with ActorSystem() as system:
        other, ref = system.start(Recorder), system.start(Asker)
        await other.stop()
        ref.tell(lambda me: me.ask(other, "q", tag="t"))
        await wait_all_tasks_blocked()
        (answer,) = kept(ref)["answers"]
        with pytest.raises(ActorDeadError):
            answer.unwrap()


async def test_actors_ask_expires_by_its_deadline(autojump_clock):
    async with ActorSystem() as system:
        other, ref = system.start(Recorder), system.start(Asker)
        ref.tell(lambda me: me.ask(other, "sleep", tag="t", timeout_s=4))
        await trio.sleep(5)
        assert isinstance(kept(ref)["answers"][0].error, AskTimeoutError)
        other.kill()


@pytest.mark.parametrize("fact", [False, True], ids=["plain", "fact"])
async def test_answer_for_a_dead_incarnation_is_dropped_unless_it_is_a_fact(fact, autojump_clock):
    async with ActorSystem() as system:
        other, ref = system.start(Recorder), await supervised(system, Asker)
        ref.tell(lambda me: me.ask(other, ("owe", 1), tag="t", fact=fact))
        await wait_all_tasks_blocked()
        ref.kill()
        await wait_all_tasks_blocked()
        kept(other)["replies"][0].set("value")
        await wait_all_tasks_blocked()
        assert [answer.value for answer in kept(ref)["answers"]] == (["value"] if fact else [])
        assert ref.statistics().dropped == (0 if fact else 1)


async def test_fact_for_an_actor_that_ended_is_a_dead_letter(autojump_clock):
    async with ActorSystem() as system:
        other, ref = system.start(Recorder), system.start(Asker)
        ref.tell(lambda me: me.ask(other, ("owe", 1), tag="t", fact=True))
        await wait_all_tasks_blocked()
        await ref.stop()
        kept(other)["replies"][0].set("value")
        assert system.dead_letters.counts == {"fact_undelivered": 1}


async def test_fact_whose_handler_crashes_is_delivered_again_at_least_once(autojump_clock):
    class Fragile(Again):
        def on_receive(self, message):
            return message(self)

        def on_answer(self, answer):
            super().on_answer(answer)
            if len(self.kept["answers"]) == 1:
                raise ValueError("once")

    async with ActorSystem() as system:
        other, ref = system.start(Recorder), await supervised(system, Fragile)
        ref.tell(lambda me: me.ask(other, "q", tag="t", fact=True))
        await wait_all_tasks_blocked()
        assert [answer.value for answer in kept(ref)["answers"]] == ["q", "q"]


async def test_pipe_delivers_value_and_error_as_answers(autojump_clock):
    async def work(x):
        await trio.sleep(1)
        if x < 0:
            raise ValueError("negative")
        return x * 2

    async with ActorSystem() as system:
        ref = system.start(Asker)
        ref.tell(lambda me: me.pipe(work, 4, tag="good"))
        ref.tell(lambda me: me.pipe(work, -4, tag="bad"))
        await trio.sleep(2)
        answers = {answer.tag: answer for answer in kept(ref)["answers"]}
        assert answers["good"].value == 8
        assert isinstance(answers["bad"].error, ValueError)
        assert ref.is_alive()


async def test_pipe_is_cancelled_with_its_incarnation_and_a_fact_says_outcome_unknown(
    autojump_clock,
):
    async with ActorSystem() as system:
        ref = await supervised(system, Asker)
        ref.tell(lambda me: me.pipe(trio.sleep_forever, tag="plain"))
        ref.tell(lambda me: me.pipe(trio.sleep_forever, tag="fact", fact=True))
        await wait_all_tasks_blocked()
        ref.kill()
        await wait_all_tasks_blocked()
        (answer,) = kept(ref)["answers"]
        assert answer.tag == "fact"
        assert isinstance(answer.error, OutcomeUnknownError)


async def test_crash_of_a_spawned_task_crashes_the_incarnation(autojump_clock):
    async def fail():
        await trio.sleep(1)
        raise ValueError("task")

    async with ActorSystem() as system:
        ref = await supervised(system, Asker)
        ref.tell(lambda me: me.spawn(fail) and None)
        await trio.sleep(2)
        assert ref.statistics().incarnation == 2
        assert str(ref.statistics().last_error) == "task"


async def test_next_incarnation_starts_only_after_the_tasks_of_the_last_have_ended(autojump_clock):
    events = []

    async def linger():
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(3)
            events.append("task ended")

    class Starts(Asker):
        def on_start(self):
            events.append(f"start {self.incarnation}")

    async with ActorSystem() as system:
        ref = await supervised(system, Starts)
        ref.tell(lambda me: me.spawn(linger) and None)
        await wait_all_tasks_blocked()
        ref.kill()
        await trio.sleep(4)
    assert events == ["start 1", "task ended", "start 2"]


async def test_spawned_task_can_be_cancelled_alone(autojump_clock):
    scopes = []
    async with ActorSystem() as system:
        ref = system.start(Asker)
        ref.tell(lambda me: scopes.append(me.spawn(trio.sleep_forever)))
        await wait_all_tasks_blocked()
        scopes[0].cancel()
        await wait_all_tasks_blocked()
        assert ref._cell.tasks == {}
        assert ref.is_alive()


async def test_timer_fires_through_the_mailbox_at_its_time(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Asker)
        ref.tell(lambda me: me.after(2.5, "tick") and None)
        await trio.sleep(2.4)
        assert "tick" not in kept(ref)["seen"]
        await trio.sleep(0.2)
        assert kept(ref)["seen"] == ["tick"]


async def test_timer_can_be_cancelled_and_dies_with_its_incarnation(autojump_clock):
    timers = []
    async with ActorSystem() as system:
        ref = await supervised(system, Asker)
        ref.tell(lambda me: timers.append(me.after(1, "cancelled")))
        ref.tell(lambda me: timers.append(me.after(1, "dies")))
        await wait_all_tasks_blocked()
        assert timers[0].cancel() is True
        assert timers[0].cancel() is False
        ref.kill()
        await trio.sleep(2)
        assert kept(ref)["seen"] == []


async def test_watcher_hears_of_every_end_of_an_incarnation_and_of_the_last(autojump_clock):
    async with ActorSystem() as system:
        watched, ref = await supervised(system, Recorder), system.start(Asker)
        ref.tell(lambda me: me.watch(watched))
        await wait_all_tasks_blocked()
        watched.tell("boom")
        await wait_all_tasks_blocked()
        (ended,) = kept(ref)["ended"]
        assert (ended.ref, ended.incarnation, ended.final) == (watched, 1, False)
        assert isinstance(ended.reason, ValueError)
        await system.root._children["group"].stop()
        await wait_all_tasks_blocked()
        last = kept(ref)["ended"][-1]
        assert (last.incarnation, last.reason, last.final) == (2, None, True)


async def test_watching_an_actor_that_ended_is_told_at_once(autojump_clock):
    async with ActorSystem() as system:
        watched, ref = system.start(Recorder), system.start(Asker)
        await watched.stop()
        ref.tell(lambda me: me.watch(watched))
        await wait_all_tasks_blocked()
        assert kept(ref)["ended"][0].final is True


@pytest.mark.parametrize(
    ("sink", "failures"),
    [("on_dead_letter", 1), ("on_quarantine", 1), ("on_event", None)],
    ids=["dead letters", "quarantine", "events"],
)
async def test_sink_that_raises_is_counted_and_isolated(sink, failures, autojump_clock):
    given = []

    def raises(entry):
        given.append(entry)
        raise ValueError("sink")

    async with ActorSystem(**{sink: raises}) as system:
        ref = await supervised(system, Recorder)
        ref.tell("boom")
        assert await ref.ask("x") == "x"
        ended = system.start(Recorder)
        ended.stop()
        ended.tell("unhandled")
        await ended.stopped()
        assert await ref.ask("y") == "y"
        assert [entry.message for entry in system.quarantine.entries] == ["boom"]
        assert [entry.message for entry in system.dead_letters.entries] == ["unhandled"]
        assert system.statistics().sink_failures == len(given) > 0
        assert failures is None or len(given) == failures


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("max_deliveries", 0),
        ("max_deliveries", 1.5),
        ("max_deliveries", "3"),
        ("max_deliveries", True),
        ("past_deliveries", "parc"),
        ("counts_durably", "no"),
    ],
)
async def test_actor_whose_class_says_nonsense_of_deliveries_is_not_started(
    field: str, said: Any
) -> None:
    kind = type("Odd", (TrioActor,), {field: said})
    async with ActorSystem() as system:
        with pytest.raises(ValueError, match=field):
            system.start(kind)
        assert system.statistics().actors == 0
