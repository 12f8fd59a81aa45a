"""Reminders, and deliveries that are counted past the end of the process."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from abeyance.actors.core import (
    LATER,
    ActorSystem,
    Backoff,
    ChildSpec,
    DeliveriesSpentError,
    Reminder,
    SupervisorSpec,
    TrioActor,
)
from abeyance.actors.core.reminders import LOOK_EVERY_S, ReminderBook
from abeyance.actors.testing import WallClock


class Reminded(TrioActor):
    """Sets what it is told to, and keeps what came."""

    @classmethod
    def make_kept(cls):
        return {"came": [], "fails": 0, "incarnations": []}

    def on_receive(self, message):
        match message:
            case Reminder():
                self.kept["incarnations"].append(self.incarnation)
                if self.kept["fails"]:
                    self.kept["fails"] -= 1
                    raise ValueError("not now")
                self.kept["came"].append((message.name, message.message, message.due_ms))
            case ("remind", arguments):
                self.remind(**arguments)
            case ("forget", name):
                self.forget_reminder(name)
            case "boom":
                raise ValueError("boom")


class RemindedAgain(Reminded):
    max_deliveries = 3


async def started(system, actor_class=Reminded, **options):
    supervisor = await system.start_supervisor(
        SupervisorSpec(
            "group",
            children=(ChildSpec("a", actor_class, name="a"),),
            backoff=Backoff(0.05),
            **options,
        )
    )
    return supervisor.refs["a"]


@pytest.fixture
async def clock(autojump_clock):
    return WallClock(follow_trio=True)


def came(ref):
    return ref._cell.kept["came"]


async def test_reminder_comes_at_its_instant_and_once(autojump_clock, clock):
    async with ActorSystem(clock=clock) as system:
        ref = await started(system)
        due = clock.now_ms() + 5_000
        ref.tell(("remind", {"name": "n", "message": {"x": 1}, "at_ms": due}))
        await trio.sleep(4.9)
        assert came(ref) == []
        await trio.sleep(0.2)
        assert came(ref) == [("n", {"x": 1}, due)]
        await trio.sleep(100)
        assert len(came(ref)) == 1


async def test_reminder_outlives_the_incarnation_that_set_it(autojump_clock, clock):
    async with ActorSystem(clock=clock) as system:
        ref = await started(system)
        ref.tell(("remind", {"name": "n", "at_ms": clock.now_ms() + 5_000}))
        ref.tell("boom")
        await trio.sleep(6)
        assert (len(came(ref)), ref._cell.kept["incarnations"]) == (1, [2])


async def test_reminder_waits_for_an_actor_of_its_name_and_comes_once(autojump_clock, clock):
    async with ActorSystem(clock=clock) as system:
        first = system.start(Reminded, name="a")
        due = clock.now_ms() + 5_000
        first.tell(("remind", {"name": "n", "at_ms": due}))
        first.stop()
        await trio.sleep(60)
        second = system.start(Reminded, name="a")
        await trio.sleep(60)
        assert came(second) == [("n", None, due)]


async def test_reminder_that_is_cancelled_does_not_come(autojump_clock, clock):
    async with ActorSystem(clock=clock) as system:
        ref = await started(system)
        ref.tell(("remind", {"name": "n", "at_ms": clock.now_ms() + 5_000}))
        ref.tell(("forget", "n"))
        await trio.sleep(10)
        assert came(ref) == []


async def test_reminder_takes_the_place_of_an_earlier_one_of_its_name(autojump_clock, clock):
    async with ActorSystem(clock=clock) as system:
        ref = await started(system)
        now = clock.now_ms()
        ref.tell(("remind", {"name": "n", "message": "old", "at_ms": now + 1_000}))
        ref.tell(("remind", {"name": "n", "message": "new", "at_ms": now + 9_000}))
        await trio.sleep(20)
        assert [message for _, message, _ in came(ref)] == ["new"]


async def test_periodic_reminder_comes_each_period_and_missed_periods_come_once(
    autojump_clock, clock
):
    async with ActorSystem(clock=clock) as system:
        first = system.start(Reminded, name="a")
        start = clock.now_ms()
        first.tell(("remind", {"name": "n", "at_ms": start + 1_000, "every_ms": 1_000}))
        await trio.sleep(3.5)
        assert [due - start for *_, due in came(first)] == [1_000, 2_000, 3_000]
        first.stop()
        await trio.sleep(10)
        second = system.start(Reminded, name="a")
        await trio.sleep(1)
        assert [due - start for *_, due in came(second)] == [4_000, 14_000]


async def test_reminder_whose_handler_crashes_comes_again_at_least_once(autojump_clock, clock):
    async with ActorSystem(clock=clock) as system:
        ref = await started(system, RemindedAgain)
        ref._cell.kept["fails"] = 2
        ref.tell(("remind", {"name": "n", "at_ms": clock.now_ms()}))
        await trio.sleep(5)
        assert (len(came(ref)), ref._cell.kept["incarnations"]) == (1, [1, 2, 3])


async def test_reminder_whose_handler_crashes_is_quarantined_at_most_once(autojump_clock, clock):
    async with ActorSystem(clock=clock) as system:
        ref = await started(system)
        ref._cell.kept["fails"] = 1
        ref.tell(("remind", {"name": "n", "at_ms": clock.now_ms()}))
        await trio.sleep(60)
        (entry,) = system.quarantine.list()
        assert (entry.message.name, entry.deliveries, came(ref)) == ("n", 1, [])


async def test_reminder_follows_a_wall_clock_that_steps(autojump_clock, clock):
    async with ActorSystem(clock=clock) as system:
        ref = await started(system)
        ref.tell(("remind", {"name": "n", "at_ms": clock.now_ms() + 3_600_000}))
        await trio.sleep(1)
        clock.advance(3_600_000)
        await trio.sleep(LOOK_EVERY_S + 1)
        assert len(came(ref)) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": "", "at_ms": 1},
        {"name": "n" * 129, "at_ms": 1},
        {"name": 7, "at_ms": 1},
        {"name": "n", "at_ms": -1},
        {"name": "n", "at_ms": 1.5},
        {"name": "n", "at_ms": True},
        {"name": "n", "at_ms": 8_640_000_000_000_001},
        {"name": "n", "at_ms": 1, "every_ms": 0},
    ],
    ids=str,
)
async def test_reminder_out_of_bounds_is_refused(arguments, autojump_clock):
    async with ActorSystem() as system:
        ref = await started(system)
        with pytest.raises(ValueError, match="must be"):
            ref._cell.actor.remind(**arguments)


async def test_actor_without_a_name_has_no_reminders(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Reminded)
        await wait_all_tasks_blocked()
        with pytest.raises(ValueError, match="without a name"):
            ref._cell.actor.remind("n", at_ms=1)
        with pytest.raises(ValueError, match="no name"):
            ref._cell.actor.forget_reminder("n")


def test_firing_that_was_replaced_while_it_was_out_changes_nothing_when_it_is_over():
    book = ReminderBook()
    old, new = Reminder("a", "n", 10, "old"), Reminder("a", "n", 50, "new")
    book.put(old)
    assert book.take_due(20) == [old]
    book.put(new)
    assert book.take_due(100) == []  # One firing at a time.
    assert book.finish(old, 100) == new
    assert book.take_due(100) == [new]
    assert book.finish(new, 100) is None
    assert len(book) == 0


def test_firing_that_was_cancelled_while_it_was_out_leaves_nothing():
    book = ReminderBook()
    old = Reminder("a", "n", 10, None, 5)
    book.put(old)
    book.take_due(20)
    assert book.remove("a", "n")
    assert book.finish(old, 20) is None
    assert book.earliest() is None


# -- counted deliveries


class Lives:
    """Counts as a store would: what was begun and not ended is a delivery of the next life."""

    def __init__(self, earlier=None):
        self.earlier = dict(earlier or {})
        self.out = {}
        self.log = []

    def begin(self, actor, act_id, deliveries):
        before = self.earlier.get((actor, act_id), 0) + deliveries
        self.log.append((act_id, before))
        self.out[actor, act_id] = before + 1
        return before

    def end(self, actor, act_id, *, handled):
        self.out.pop((actor, act_id), None)
        if handled:
            self.earlier.pop((actor, act_id), None)


class Act(str):
    __slots__ = ("act_id",)

    def __new__(cls, act_id, text=""):
        act = super().__new__(cls, text)
        act.act_id = act_id
        return act


class Counts(TrioActor):
    max_deliveries = 3
    counts_durably = True

    @classmethod
    def make_kept(cls):
        return {"seen": [], "out": []}

    def on_receive(self, message):
        self.kept["seen"].append(str(message))
        self.kept["out"].append(dict(self._cell.system.deliveries.out))
        if message == "boom":
            raise ValueError("boom")
        return self.sleep() if message == "sleep" else message

    async def sleep(self):
        await trio.sleep(1)


async def test_counted_message_is_noted_before_its_handler_and_taken_back_after(autojump_clock):
    async with ActorSystem() as system:
        system.deliveries = lives = Lives()
        ref = await started(system, Counts)
        ref.tell(Act("k", "hello"))
        ref.tell("plain")
        await ref.ask(Act("s", "sleep"))
        assert ref._cell.kept["out"] == [{("a", "k"): 1}, {}, {("a", "s"): 1}]
        assert (lives.out, lives.log) == ({}, [("k", 0), ("s", 0)])


async def test_owed_reply_is_noted_as_no_delivery(autojump_clock):
    class Owes(Counts):
        def on_receive(self, message):
            super().on_receive(message)
            self.kept["reply"] = self.later()
            return LATER

    async with ActorSystem() as system:
        system.deliveries = lives = Lives()
        ref = await started(system, Owes)
        future = ref.ask(Act("k", "owe"))
        await wait_all_tasks_blocked()
        assert ref.statistics().owed == 1
        assert ref._cell.kept["out"] == [{("a", "k"): 1}]
        assert lives.out == {}
        ref._cell.kept["reply"].set("late")
        assert await future == "late"


async def test_tell_that_was_owed_and_fails_on_its_way_back_stays_noted(autojump_clock):
    class Flaky(Counts):
        def on_receive(self, message):
            super().on_receive(message)
            if self.incarnation == 1:
                self.later()
                return LATER
            raise ValueError("again")

    async with ActorSystem() as system:
        system.deliveries = lives = Lives()
        ref = await started(system, Flaky)
        ref.tell(Act("k", "owe"))
        await wait_all_tasks_blocked()
        ref.kill()
        await wait_all_tasks_blocked()
        assert (ref._cell.incarnation, lives.out) == (2, {("a", "k"): 1})


async def test_deliveries_of_earlier_lives_count_and_a_spent_message_is_not_delivered(
    autojump_clock,
):
    async with ActorSystem() as system:
        system.deliveries = Lives({("a", "k"): 3})
        ref = await started(system, Counts)
        ref.tell(Act("k", "hello"))
        with pytest.raises(DeliveriesSpentError) as caught:
            await ref.ask(Act("k", "hello"))
        assert (caught.value.act, caught.value.deliveries) == ("k", 3)
        await ref.ask(Act("other", "x"))
        assert ref._cell.kept["seen"] == ["x"]
        assert [entry.deliveries for entry in system.quarantine.list()] == [3, 3]
        assert ref.statistics().incarnation == 1
        assert system.deliveries.earlier == {("a", "k"): 3}


async def test_crashes_in_this_life_and_deaths_of_earlier_ones_add_up(autojump_clock):
    async with ActorSystem() as system:
        system.deliveries = lives = Lives({("a", "k"): 1})
        ref = await started(system, Counts)
        ref.tell(Act("k", "boom"))
        await ref.ask(Act("after", "x"))
        assert lives.log[:3] == [("k", 1), ("k", 2), ("k", 3)]
        assert ref._cell.kept["seen"] == ["boom", "boom", "x"]
        (entry,) = system.quarantine.list()
        assert entry.deliveries == 3


async def test_spent_message_parks_the_group_where_asked_for(autojump_clock):
    class Parks(Counts):
        past_deliveries = "park"

    async with ActorSystem() as system:
        system.deliveries = Lives({("a", "k"): 3})
        ref = await started(system, Parks, on_exhausted="park")
        ref.tell(Act("k", "hello"))
        await trio.sleep(1)
        assert system.root._children["group"].state == "parked"
        assert (ref.statistics().queued, ref._cell.kept["seen"]) == (1, [])


async def test_message_that_crashed_and_is_to_come_back_stays_noted(autojump_clock):
    async with ActorSystem() as system:
        system.deliveries = lives = Lives()
        supervisor = await system.start_supervisor(
            SupervisorSpec(
                "group",
                children=(ChildSpec("a", Counts, name="a"),),
                intensity=0,
                on_exhausted="park",
            )
        )
        supervisor.refs["a"].tell(Act("k", "boom"))
        await trio.sleep(1)
        assert supervisor.state == "parked"
        assert lives.out == {("a", "k"): 1}


async def test_error_that_answers_an_ask_takes_the_note_back(autojump_clock):
    async with ActorSystem() as system:
        system.deliveries = lives = Lives()
        ref = await started(system, Counts)
        with pytest.raises(ValueError, match="boom"):
            await ref.ask(Act("k", "boom"))
        assert lives.out == {}


async def test_spent_reminder_is_quarantined_and_over(autojump_clock, clock):
    async with ActorSystem(clock=clock) as system:
        due = clock.now_ms()
        system.deliveries = lives = Lives({("a", f"reminder:n:{due}"): 1})
        ref = await started(system)
        ref.tell(("remind", {"name": "n", "at_ms": due}))
        ref.tell(("remind", {"name": "m", "at_ms": due}))
        await trio.sleep(60)
        assert [name for name, *_ in came(ref)] == ["m"]
        assert [entry.message.name for entry in system.quarantine.list()] == ["n"]
        assert lives.out == {}
