"""Statistics and the tree: what a snapshot says, from any thread, and what its bounds mean."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from random import Random

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
    format_tree,
)
from abeyance.actors.core.tree import visible

from ..stopwatch import Stopwatch


class Wall:
    def now_ms(self):
        return 1_700_000_000_000


class Worker(TrioActor):
    """Handles what it is told: a function is called, and awaited where there is need."""

    max_deliveries = 1

    async def on_receive(self, message):
        if callable(message):
            result = message()
            return await result if hasattr(result, "__await__") else result
        return message


def told(system):
    """A worker and the stopwatch that its bounds are read by."""
    system.stopwatch = system.injected = stopwatch = Stopwatch()
    return system.start(Worker), stopwatch


def fail(error):
    raise error


async def test_statistics_of_an_actor_that_waits_show_no_age(autojump_clock):
    async with ActorSystem() as system:
        ref, stopwatch = told(system)
        await ref.ask("x")
        stopwatch.now = 100.0
        stats = ref.statistics()
        assert (stats.oldest_s_max, stats.in_flight_s_max, stats.queued) == (None, None, 0)
        assert (stats.restarts, stats.last_failure, stats.handled) == (0, None, 1)


async def test_statistics_of_a_woken_actor_show_no_age_until_it_has_run(autojump_clock):
    async with ActorSystem() as system:
        ref, stopwatch = told(system)
        await ref.ask("x")
        stopwatch.now = 3_600.0
        ref.tell("y")
        # It slept for an hour, and this has waited for no time: an hour would be an invention.
        assert ref.statistics().queued == 1
        assert ref.statistics().oldest_s_max is None


async def test_oldest_s_max_bounds_the_age_of_what_waits_behind_a_handler(autojump_clock):
    async with ActorSystem() as system:
        ref, stopwatch = told(system)
        await ref.ask("x")
        stopwatch.now, gate = 50.0, trio.Event()
        ref.tell(gate.wait)
        await wait_all_tasks_blocked()
        stopwatch.now = 52.0
        ref.tell("y")
        stopwatch.now = 55.0
        stats = ref.statistics()
        assert (stats.queued, stats.in_flight) == (1, True)
        assert stats.oldest_s_max == 5.0  # It has waited for 3; at most 5 is what is known.
        assert stats.in_flight_s_max == 5.0
        assert system.statistics().oldest_s_max == 5.0
        assert system.statistics().in_flight == 1
        gate.set()


async def test_statistics_count_every_message_that_was_accepted(autojump_clock):
    async with ActorSystem() as system:
        ref, _ = told(system)
        gate = trio.Event()
        before = system.statistics().accepted
        ref.tell("x")
        ref.tell(gate.wait)
        for _ in range(3):
            ref.tell("y")
        await wait_all_tasks_blocked()
        assert system.statistics().accepted - before == 5
        gate.set()
        await wait_all_tasks_blocked()
        ref.stop(now=True)
        assert system.statistics().accepted - before == 5


async def test_oldest_s_max_does_not_grow_with_a_backlog_that_moves(autojump_clock):
    async with ActorSystem() as system:
        ref, stopwatch = told(system)

        def more():
            stopwatch.now += 1.0
            for _ in range(8):
                ref.tell("x")

        # Each eighth message takes a second and adds eight: the lane is never empty.
        stopwatch.now = 10.0
        for _ in range(20):
            ref.tell("x")
        left = 60

        def again():
            nonlocal left
            left -= 1
            more()
            if left:
                ref.tell(again)
            else:
                ages.append(ref.statistics().oldest_s_max)

        ages = []
        ref.tell(again)
        await wait_all_tasks_blocked()
        assert stopwatch.now == 70.0
        assert ages[0] is not None
        assert ages[0] < 15.0


async def test_oldest_s_max_advances_though_a_host_thread_feeds_short_batches(autojump_clock):
    async with ActorSystem() as system:
        ref, stopwatch = told(system)
        ages = []

        def look():
            ages.append(ref.statistics().oldest_s_max)

        await ref.ask("x")
        for _ in range(40):
            ref._cell.box.spin = True  # As after a wake by a host thread: it goes round unslept.
            ref.tell(look)
            ref.tell("x")
            await trio.lowlevel.checkpoint()
            stopwatch.now += 1.0
        known = [age for age in ages if age is not None]
        assert len(known) > 20
        assert max(known) <= 4.0


async def test_oldest_s_max_counts_on_for_a_group_that_is_parked(autojump_clock):
    async with ActorSystem() as system:
        system.stopwatch = system.injected = stopwatch = Stopwatch()
        group = await system.start_supervisor(
            SupervisorSpec("group", (ChildSpec("a", Worker),), intensity=0, on_exhausted="park")
        )
        await group.refs["a"].ask("x")
        stopwatch.now = 100.0
        group.refs["a"].kill()
        await wait_all_tasks_blocked()
        group.refs["a"].tell("x")
        stopwatch.now = 160.0
        assert group.refs["a"].statistics().oldest_s_max == 60.0
        added = await group.start_child(ChildSpec("b", Worker))
        added.tell("x")
        stopwatch.now = 200.0
        assert added.statistics().oldest_s_max == 40.0
        group.unpark()


async def test_oldest_s_max_counts_on_while_a_restart_waits(autojump_clock):
    async with ActorSystem() as system:
        system.stopwatch = system.injected = stopwatch = Stopwatch()
        group = await system.start_supervisor(SupervisorSpec("group", (ChildSpec("a", Worker),)))
        ref = group.refs["a"]
        await ref.ask("x")
        for _ in range(2):
            ref.kill()
            await wait_all_tasks_blocked()
        assert ref.statistics().state == "waiting"
        ref.tell("x")
        stopwatch.now = 60.0
        assert ref.statistics().oldest_s_max == 60.0


async def test_oldest_s_max_is_never_below_the_true_age(autojump_clock, seed):
    random = Random(seed)
    async with ActorSystem() as system:
        system.stopwatch = system.injected = stopwatch = Stopwatch()
        sent, wrong = {}, []

        class Checked(TrioActor):
            max_deliveries = 3
            seen: set = set()

            def on_receive(self, message):
                told_at = sent.pop(message)
                stopwatch.now += random.random() / 1_000
                bound = ref.statistics().oldest_s_max
                if sent and bound is not None:
                    age = stopwatch.now - min(sent.values())
                    if bound < age - 1e-9:
                        wrong.append((message, bound, age))
                if random.random() < 0.3:
                    tell()
                if random.random() < 0.05:
                    self.unstash_all()
                if random.random() < 0.1:
                    sent[message] = told_at
                    return self.stash()
                if random.random() < 0.02 and message not in self.seen:
                    self.seen.add(message)
                    sent[message] = told_at
                    raise ValueError("again")
                return None

        supervisor = await system.start_supervisor(
            SupervisorSpec(
                "group",
                (ChildSpec("a", Checked),),
                intensity=10_000,
                backoff=Backoff(initial_s=0.0),
            )
        )
        ref = supervisor.refs["a"]
        numbers = itertools.count()

        def tell():
            number = next(numbers)
            sent[number] = stopwatch.now
            ref.tell(number)

        for _ in range(300):
            for _ in range(random.choice([0, 1, 3, 9, 40])):
                tell()
            # Time passes only while the actor sleeps or handles something: the loop's own delay is
            # what the bound leaves out.
            if random.random() < 0.5:
                await wait_all_tasks_blocked()
                stopwatch.now += random.random() * 10
            else:
                await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked()
        assert wrong == []
        assert next(numbers) > 3_000
        assert ref.statistics().restarts > 10


class Keeps(Worker):
    """Puts aside, owes or fails what it is told to, and is not lost by that."""

    max_deliveries = 3

    async def on_receive(self, message):
        match message:
            case "aside":
                return self.stash()
            case "back":
                return self.unstash_all()
            case "owe":
                self.later()
                return LATER
            case "boom":
                raise ValueError("boom")
        return await super().on_receive(message)


async def kept(system, actor_class=Keeps, *, at, intensity=0):
    """A worker of a group that parks at its first crash, and its stopwatch."""
    system.stopwatch = system.injected = stopwatch = Stopwatch()
    group = await system.start_supervisor(
        SupervisorSpec(
            "group", (ChildSpec("a", actor_class),), intensity=intensity, on_exhausted="park"
        )
    )
    await group.refs["a"].ask("x")
    stopwatch.now = at
    return group.refs["a"], stopwatch


async def test_oldest_s_max_knows_of_what_was_put_aside(autojump_clock):
    async with ActorSystem() as system:
        ref, stopwatch = await kept(system, at=10.0)
        ref.tell("aside")
        await wait_all_tasks_blocked()
        stopwatch.now = 30.0
        ref.tell("aside")
        await wait_all_tasks_blocked()
        stopwatch.now = 100.0
        assert ref.statistics().oldest_s_max == 90.0
        assert system.statistics().oldest_s_max == 90.0
        ref.tell(lambda: None)
        await wait_all_tasks_blocked()
        assert ref.statistics().oldest_s_max == 90.0
        # Back in line it waits as long, and when it is put aside again.
        ref.suspend()
        ref._cell.actor.unstash_all()
        stopwatch.now = 110.0
        assert ref.statistics().oldest_s_max == 100.0
        ref.resume()
        await wait_all_tasks_blocked()
        stopwatch.now = 120.0
        assert (ref.statistics().stashed, ref.statistics().oldest_s_max) == (2, 110.0)
    assert ref.statistics().oldest_s_max is None


@pytest.mark.parametrize("past", [False, True], ids=["counted", "past its deliveries"])
async def test_oldest_s_max_knows_of_what_is_to_be_delivered_again(autojump_clock, past):
    actor_class = type("Keeps", (Keeps,), {"max_deliveries": 2, "past_deliveries": "park"})
    async with ActorSystem() as system:
        ref, stopwatch = await kept(system, actor_class, at=10.0, intensity=int(past))
        ref.tell("boom")
        await wait_all_tasks_blocked()
        stopwatch.now = 60.0
        assert (ref.statistics().state, ref.statistics().queued) == ("held", 1)
        assert ref.statistics().oldest_s_max == 50.0


async def test_oldest_s_max_knows_of_what_was_owed_when_it_comes_back(autojump_clock):
    async with ActorSystem() as system:
        ref, stopwatch = await kept(system, at=10.0)
        ref.ask("owe")
        await wait_all_tasks_blocked()
        stopwatch.now = 40.0
        ref.ask("owe")
        await wait_all_tasks_blocked()
        assert ref.statistics().oldest_s_max is None  # They were handled.
        ref.kill()
        await wait_all_tasks_blocked()
        stopwatch.now = 60.0
        assert (ref.statistics().queued, ref.statistics().oldest_s_max) == (2, 50.0)


async def test_oldest_s_max_does_not_take_what_comes_back_for_what_was_queued(autojump_clock):
    bounds = []

    class Twice(TrioActor):
        aside = True

        def on_receive(self, message):
            if message == "back":
                self.aside = False
                self.unstash_all()
                ref.tell("queued")
            elif self.aside:
                return self.stash()
            elif message != "queued":
                stopwatch.now += 1.0
                bounds.append(ref.statistics().oldest_s_max)
            return None

    async with ActorSystem() as system:
        system.stopwatch = system.injected = stopwatch = Stopwatch()
        ref = system.start(Twice)
        for _ in range(20):
            ref.tell("aside")
        ref.tell("back")
        await wait_all_tasks_blocked()
    # Behind the last of them only what was told before the first is left.
    assert bounds[-1] == 20.0


async def test_stop_in_the_mailbox_is_counted_as_no_message(autojump_clock):
    class Small(Worker):
        mailbox_capacity = 2

    async with ActorSystem() as system:
        before = system.statistics().accepted
        ref = system.start(Small)
        gate = trio.Event()
        ref.tell(gate.wait)
        await wait_all_tasks_blocked()
        stops = [ref.stop(), ref.stop()]
        stats = ref.statistics()
        assert (stats.queued, stats.mailbox.user, stats.oldest_s_max) == (0, 0, None)
        assert system.statistics().accepted - before == 1
        ref.tell("x")
        ref.tell("x")  # Nor does it take a place.
        with pytest.raises(MailboxFullError):
            ref.tell("x")
        assert (ref.statistics().queued, system.statistics().queued) == (2, 2)
        assert system.statistics().accepted - before == 3
        gate.set()
        for stop in stops:
            assert await stop is True
        assert ref._cell.box.pills == 0
        assert system.statistics().accepted - before == 3


async def test_statistics_name_the_last_failure_with_its_instant(autojump_clock):
    async with ActorSystem(clock=Wall()) as system:
        group = await system.start_supervisor(
            SupervisorSpec("group", (ChildSpec("a", Worker),), intensity=1, on_exhausted="park")
        )
        ref = group.refs["a"]
        for _ in range(2):
            ref.tell(lambda: fail(ValueError("no luck")))
            await wait_all_tasks_blocked()
        failure = ref.statistics().last_failure
        assert dataclasses.astuple(failure) == ("ValueError", "no luck", Wall().now_ms())
        failure = group.statistics().last_failure
        assert (failure.type, failure.at_ms) == ("IntensityExceededError", Wall().now_ms())
        assert ref.statistics().restarts == 1
        assert ref.statistics().quarantined == 2
        assert system.statistics().restarts == 1
        assert system.statistics().states == {"held": 1}


async def test_statistics_survive_an_error_whose_text_cannot_be_had(autojump_clock):
    class MuteError(Exception):
        def __str__(self):
            raise RuntimeError("mute")

    async with ActorSystem() as system:
        group = await system.start_supervisor(SupervisorSpec("g", (ChildSpec("a", Worker),)))
        events = system.events(kinds=["crashed"])
        group.refs["a"]._cell.kill("mute")
        group.refs["a"]._cell.failure = MuteError()
        await wait_all_tasks_blocked()
        assert "cannot be had" in group.refs["a"].statistics().last_failure.text
        assert "cannot be had" in (await anext(events)).as_json()["error"]["text"]


async def test_statistics_are_frozen(autojump_clock):
    async with ActorSystem() as system:
        ref = system.start(Worker)
        for snapshot in (ref.statistics(), system.statistics(), system.root.statistics()):
            field = dataclasses.fields(snapshot)[0].name
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(snapshot, field, 0)


def test_statistics_and_tree_are_had_from_host_threads_while_actors_come_and_go():
    class Fleeting(TrioActor):
        def on_start(self):
            self.stop()

    failures = []
    with HostedSystem() as system:
        done = threading.Event()

        def look():
            try:
                while not done.is_set():
                    system.statistics()
                    system.system.actors()
                    system.system.user.statistics()
                    format_tree(system.tree())
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=look) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(300):
            system.start(Fleeting)
        done.set()
        for thread in threads:
            thread.join()
    assert failures == []


async def planted(system):
    """Three levels: groups, a group in a group, actors."""
    outer = await system.start_supervisor(
        SupervisorSpec("outer", (ChildSpec("a", Worker, name="a"),), strategy="rest_for_one")
    )
    inner = await system.start_supervisor(
        SupervisorSpec(
            "inner",
            (
                ChildSpec("b", Worker, name="b"),
                ChildSpec("c", Worker, name="c", restart="temporary"),
            ),
        ),
        parent=outer,
    )
    return outer, inner


async def test_tree_shows_supervisors_children_states_and_failures(autojump_clock):
    async with ActorSystem(clock=Wall()) as system:
        _, inner = await planted(system)
        inner.refs["b"].tell(lambda: fail(ValueError("no luck")))
        await wait_all_tasks_blocked()
        gate = trio.Event()
        inner.refs["c"].tell(gate.wait)
        await wait_all_tasks_blocked()
        inner.refs["c"].tell("x")
        text = format_tree(system.tree())
        assert text.splitlines()[:5] == [
            "root  one_for_one  running",
            "├── user  one_for_one  running",
            "└── outer  rest_for_one  running",
            "    ├── a  running",
            "    └── inner  one_for_one  running  1 restart (1 recent)",
        ]
        assert text.splitlines()[5] == (
            "        ├── b  running  1 restart  last failure ValueError: no luck"
        )
        assert text.splitlines()[6].startswith("        └── c  running  1 queued (at most ")
        assert text.splitlines()[6].endswith(" s)  temporary")
        assert len(text.splitlines()) == 7
        gate.set()


async def test_tree_is_bounded_in_depth_and_says_what_it_leaves_out(autojump_clock):
    async with ActorSystem() as system:
        await planted(system)
        top = system.tree(depth_max=2)
        assert [(node.id, node.left_out) for node in top.children] == [("user", 0), ("outer", 2)]
        assert "└── … 2 more" in format_tree(top)


async def test_tree_is_bounded_in_width_and_in_all_for_many_actors(autojump_clock):
    async with ActorSystem() as system:
        for _ in range(3_000):
            system.start(Worker)
        user = system.tree().children[0]
        assert (len(user.children), user.left_out) == (100, 2_900)
        tree = system.tree(width_max=3_000, nodes_max=500)
        assert 1 + len(tree.children) + len(tree.children[0].children) == 500
        assert tree.children[0].left_out == 2_502
        assert len(format_tree(tree).splitlines()) == 501


@pytest.mark.parametrize(
    "bounds",
    [{"depth_max": 0}, {"depth_max": 65}, {"width_max": 0}, {"nodes_max": 100_001},
     {"nodes_max": True}, {"width_max": 1.5}],
    ids=str,
)  # fmt: skip
async def test_tree_refuses_a_bound_that_is_none(autojump_clock, bounds):
    async with ActorSystem() as system:
        with pytest.raises(ValueError, match=next(iter(bounds))):
            system.tree(**bounds)


def test_tree_of_a_system_that_never_ran_is_refused():
    with pytest.raises(ActorDeadError):
        ActorSystem().tree()


async def test_tree_text_holds_no_control_character_of_a_name_or_an_error(autojump_clock):
    evil = "\x1b[2J\r\n\u202e\x9b\x07"
    async with ActorSystem() as system:
        group = await system.start_supervisor(
            SupervisorSpec("g\u202e", (ChildSpec("a", type(f"A{evil}", (Worker,), {})),))
        )
        group.refs["a"].tell(lambda: fail(ValueError(evil)))
        await wait_all_tasks_blocked()
        text = format_tree(system.tree())
        assert all(line.isprintable() for line in text.split("\n"))
        assert len(text.split("\n")) == 4
        assert r"A\x1b[2J\r\n\u202e\x9b\x07" in text
        assert r"g\u202e" in text


def test_visible_text_is_cut_off_where_it_is_long():
    assert visible("a" * 300, 5) == "aaaaa…"
    assert visible("ab\ud800") == r"ab\ud800"


async def test_accepted_counts_every_message_once_whatever_its_handler_does_with_it(autojump_clock):
    class Keeps(TrioActor):
        async def on_receive(self, message):
            if message == "owe":
                reply = self.later()
                await trio.sleep(1)
                reply.set(1)
            elif message == "stash":
                self.stash()
            await trio.sleep(1)
            return LATER

    class Ticks(TrioActor):
        def on_start(self):
            self.after(0, "tick")

        async def on_receive(self, message):
            await trio.sleep(1)

    async with ActorSystem() as system:
        ref = system.start(Keeps)
        seen = []

        async def look(count):
            for _ in range(count):
                await trio.sleep(0.5)
                seen.append(system.statistics().accepted)

        ref.ask("owe")
        await look(5)
        ref.tell("stash")
        await look(3)
        assert seen == [1] * 5 + [2] * 3
        system.start(Ticks)
        await look(3)
        assert seen[-3:] == [2, 2, 2]
