"""Supervisors on a virtual clock: strategies, restart types, intensity, backoff, parking."""

from __future__ import annotations

import functools
import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from abeyance.actors.core import (
    ActorDeadError,
    ActorSystem,
    Backoff,
    ChildSpec,
    ChildStartError,
    IntensityExceededError,
    NameTakenError,
    SupervisorSpec,
    TrioActor,
)
from abeyance.actors.core.cell import Cell, unnamed
from abeyance.actors.core.entering import adopt
from abeyance.actors.core.envelope import TIMER
from abeyance.actors.core.registry import Names
from abeyance.actors.core.settling import count_dead


class Child(TrioActor):
    """Writes its life into a journal that its test reads."""

    def __init__(self, journal, name, *, broken=lambda: False):
        self.journal = journal
        self.name = name
        self.broken = broken

    def on_start(self):
        self.journal.append(("start", self.name, round(trio.current_time(), 3)))
        if self.broken():
            raise ValueError(f"{self.name} is broken")

    def on_stop(self):
        self.journal.append(("stop", self.name))

    async def on_receive(self, message):
        if message == "boom":
            raise ValueError("boom")
        if message == "sleep":
            await trio.sleep_forever()
        if message == "deaf":
            with trio.CancelScope(shield=True):
                await trio.sleep(3)
        return self.incarnation


def specs(journal, names="abc", **options):
    return tuple(ChildSpec(name, Child, (journal, name), **options) for name in names)


def lives(journal):
    return [entry[:2] for entry in journal]


PLAIN = Backoff(jitter=0.0)


async def group(system, journal, names="abc", restart="permanent", shutdown_s=5.0, **options):
    options.setdefault("backoff", PLAIN)
    return await system.start_supervisor(
        SupervisorSpec(
            "group",
            specs(journal, names, restart=restart, shutdown_s=shutdown_s),
            **options,
        )
    )


async def test_children_start_in_order_and_stop_in_reverse(autojump_clock):
    journal = []
    async with ActorSystem() as system:
        supervisor = await group(system, journal)
        assert list(supervisor.refs) == ["a", "b", "c"]
        assert supervisor.state == "running"
        await supervisor.stop()
        assert supervisor.state == "stopped"
    assert lives(journal) == [
        *[("start", name) for name in "abc"],
        *[("stop", name) for name in "cba"],
    ]


STRATEGIES = {
    "one_for_one": [("start", "b")],
    "rest_for_one": [("stop", "c"), ("start", "b"), ("start", "c")],
    "one_for_all": [
        ("stop", "c"),
        ("stop", "a"),
        ("start", "a"),
        ("start", "b"),
        ("start", "c"),
    ],
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("how", ["crash", "kill"])
async def test_strategy_restarts_whom_it_says_in_order(strategy, how, autojump_clock):
    journal = []
    async with ActorSystem() as system:
        supervisor = await group(system, journal, strategy=strategy)
        refs = supervisor.refs
        journal.clear()
        if how == "crash":
            refs["b"].tell("boom")
        else:
            refs["b"].kill()
        await wait_all_tasks_blocked()
        assert lives(journal) == STRATEGIES[strategy]
        assert supervisor.refs == refs
        assert [await ref.ask("x") for ref in refs.values()] == [
            2 if ("start", name) in lives(journal) else 1 for name in "abc"
        ]


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_messages_sent_to_a_sibling_that_is_restarted_are_handled_afterwards(
    strategy, autojump_clock
):
    async with ActorSystem() as system:
        supervisor = await group(system, [], strategy=strategy)
        supervisor.refs["b"].tell("boom")
        futures = [ref.ask("x") for ref in supervisor.refs.values()]
        for future in futures:
            assert await future in (1, 2)


RESTARTED = {
    ("permanent", "stop"): True,
    ("permanent", "stop now"): True,
    ("permanent", "crash"): True,
    ("permanent", "kill"): True,
    ("transient", "stop"): False,
    ("transient", "stop now"): False,
    ("transient", "crash"): True,
    ("transient", "kill"): True,
    ("temporary", "stop"): False,
    ("temporary", "stop now"): False,
    ("temporary", "crash"): False,
    ("temporary", "kill"): False,
}


@pytest.mark.parametrize(("restart", "how"), RESTARTED, ids=" ".join)
async def test_restart_type_decides_whether_an_ended_child_is_started_again(
    restart, how, autojump_clock
):
    journal = []
    async with ActorSystem() as system:
        supervisor = await group(system, journal, "a", restart=restart)
        ref = supervisor.refs["a"]
        match how:
            case "stop":
                assert await ref.stop() is True
            case "stop now":
                assert await ref.stop(now=True) is True
            case "crash":
                ref.tell("boom")
            case "kill":
                ref.kill()
        await wait_all_tasks_blocked()
        again = RESTARTED[restart, how]
        assert lives(journal).count(("start", "a")) == (2 if again else 1)
        assert ref.is_alive() is again
        assert ("a" in supervisor.refs) is again


async def test_messages_behind_the_stop_of_a_permanent_child_are_handled_by_the_next_incarnation(
    autojump_clock,
):
    async with ActorSystem() as system:
        supervisor = await group(system, [], "a")
        ref = supervisor.refs["a"]
        stopped = ref.stop()
        assert await ref.ask("x") == 2
        assert await stopped is True


async def test_temporary_sibling_of_a_restarted_group_is_ended(autojump_clock):
    journal = []
    async with ActorSystem() as system:
        children = (
            ChildSpec("a", Child, (journal, "a")),
            ChildSpec("b", Child, (journal, "b"), restart="temporary"),
        )
        supervisor = await system.start_supervisor(
            SupervisorSpec("group", children, strategy="one_for_all")
        )
        temporary = supervisor.refs["b"]
        supervisor.refs["a"].tell("boom")
        await wait_all_tasks_blocked()
        assert list(supervisor.refs) == ["a"]
        assert not temporary.is_alive()


async def test_first_restart_is_immediate_and_later_ones_back_off_up_to_a_bound(autojump_clock):
    journal = []
    async with ActorSystem() as system:
        supervisor = await group(
            system, journal, "a", intensity=100, backoff=Backoff(0.1, 0.5, 2, 0.0)
        )
        for _ in range(6):
            supervisor.refs["a"].tell("boom")
        await trio.sleep(20)
    starts = [entry[2] for entry in journal if entry[0] == "start"]
    waits = [round(later - sooner, 3) for sooner, later in pairwise(starts)]
    assert waits == [0, 0.1, 0.2, 0.4, 0.5, 0.5]


async def test_backoff_starts_anew_when_a_period_has_passed(autojump_clock):
    journal = []
    async with ActorSystem() as system:
        supervisor = await group(system, journal, "a", intensity=2, period_s=10)
        for _ in range(5):
            supervisor.refs["a"].tell("boom")
            await trio.sleep(11)
        assert supervisor.statistics().restarts == 5
    starts = [entry[2] for entry in journal if entry[0] == "start"]
    assert [round(at) for at in starts] == [0, 0, 11, 22, 33, 44]


async def test_backoff_is_bounded_however_many_restarts_a_period_may_see(autojump_clock):
    async with ActorSystem() as system:
        supervisor = await group(
            system, [], "a", intensity=10_000, period_s=1e9, backoff=Backoff(1.0, 2.0, 2.0, 0.0)
        )
        for _ in range(1_100):
            supervisor.refs["a"].tell("boom")
        assert await supervisor.refs["a"].ask("x", timeout=1e6) == 1_101


async def test_jitter_is_repeated_by_the_seed(autojump_clock):
    async def run(seed):
        journal = []
        began = trio.current_time()
        async with ActorSystem(seed=seed) as system:
            supervisor = await group(
                system, journal, "a", intensity=100, backoff=Backoff(jitter=0.5)
            )
            for _ in range(4):
                supervisor.refs["a"].tell("boom")
            await trio.sleep(20)
        return [round(entry[2] - began, 2) for entry in journal if entry[0] == "start"]

    first, again, other = await run(1), await run(1), await run(2)
    assert first == again
    assert first != other


async def test_intensity_exceeded_at_the_root_leaves_the_run_as_an_exception_group(
    autojump_clock,
):
    journal = []
    futures = []
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with ActorSystem() as system:
            supervisor = await system.start_supervisor(
                SupervisorSpec("group", specs(journal, "ab"), intensity=0)
            )
            system.root.spec = SupervisorSpec("root", intensity=0)
            futures.append(supervisor.refs["b"].ask("sleep"))
            supervisor.refs["a"].tell("boom")
            await trio.sleep_forever()
    assert caught.group_contains(IntensityExceededError)
    (future,) = futures
    assert future.settled


async def test_supervisor_that_escalates_is_restarted_by_its_parent_with_the_same_refs(
    autojump_clock,
):
    journal = []
    async with ActorSystem() as system:
        supervisor = await group(system, journal, "ab", intensity=1)
        refs = supervisor.refs
        for _ in range(2):
            refs["b"].tell("boom")
            await wait_all_tasks_blocked()
        assert lives(journal) == [
            ("start", "a"),
            ("start", "b"),
            ("start", "b"),
            ("stop", "a"),
            ("start", "a"),
            ("start", "b"),
        ]
        assert supervisor.refs == refs
        assert supervisor.state == "running"
        assert await refs["b"].ask("x") == 3
        assert system.root.statistics().restarts == 1


async def test_parked_group_accepts_and_runs_nothing_while_other_groups_run(autojump_clock):
    parked = []
    events = []
    async with ActorSystem(on_event=events.append) as system:
        journal = []
        supervisor = await system.start_supervisor(
            SupervisorSpec(
                "group",
                specs(journal, "ab"),
                intensity=0,
                on_exhausted="park",
                on_parked=lambda *args: parked.append(args),
            )
        )
        other = await system.start_supervisor(SupervisorSpec("other", specs(journal, "z")))
        a, b = supervisor.refs.values()
        a.tell("boom")
        await wait_all_tasks_blocked()
        assert supervisor.state == "parked"
        ((who, error),) = parked
        assert who is supervisor
        assert isinstance(error, IntensityExceededError)
        assert isinstance(error.__cause__, ValueError)
        assert "parked" in [event.kind for event in events]
        future = b.ask("x")
        await trio.sleep(10)
        assert not future.settled
        assert a.is_alive()
        assert b.is_alive()
        assert await other.refs["z"].ask("x") == 1

        assert supervisor.unpark() is True
        assert supervisor.unpark() is False
        assert await future == 2
        assert await a.ask("x") == 2
        assert supervisor.state == "running"


async def test_parked_groups_are_listed_and_logged_once(autojump_clock, caplog):
    async with ActorSystem() as system:
        outer = await group(system, [], "a")
        inner = await system.start_supervisor(
            SupervisorSpec("inner", specs([], "b"), intensity=0, on_exhausted="park"), outer
        )
        other = await system.start_supervisor(
            SupervisorSpec("other", specs([], "c"), intensity=0, on_exhausted="park")
        )
        assert system.parked_groups() == ()
        other.refs["c"].tell("boom")
        inner.refs["b"].tell("boom")
        await wait_all_tasks_blocked()
        assert system.parked_groups() == (inner, other)
        assert isinstance(inner.last_error, IntensityExceededError)
        lines = [record.getMessage() for record in caplog.records]
        assert len([line for line in lines if line.startswith("group inner is parked")]) == 1
        assert inner.unpark()
        assert system.parked_groups() == (other,)
        assert await inner.refs["b"].ask("x") == 2
        await other.stop()
        assert system.parked_groups() == ()


async def test_parked_group_can_be_stopped(autojump_clock):
    async with ActorSystem() as system:
        supervisor = await group(system, [], "ab", intensity=0, on_exhausted="park")
        refs = supervisor.refs
        refs["a"].tell("boom")
        await wait_all_tasks_blocked()
        future = refs["b"].ask("x")
        await supervisor.stop()
        with pytest.raises(ActorDeadError):
            await future
        assert supervisor.unpark() is False


async def test_group_that_fails_again_when_unparked_is_parked_again(autojump_clock):
    journal = []
    broken = [False]
    async with ActorSystem() as system:
        spec = ChildSpec("a", Child, (journal, "a"), {"broken": lambda: broken[0]})
        supervisor = await system.start_supervisor(
            SupervisorSpec("group", (spec,), intensity=2, on_exhausted="park", backoff=PLAIN)
        )
        broken[0] = True
        supervisor.refs["a"].kill()
        await trio.sleep(5)
        assert supervisor.state == "parked"
        assert supervisor.unpark()
        await trio.sleep(5)
        assert supervisor.state == "parked"
        broken[0] = False
        assert supervisor.unpark()
        assert await supervisor.refs["a"].ask("x") > 4


async def test_child_that_fails_to_start_stops_those_before_it_in_reverse(autojump_clock):
    journal = []
    async with ActorSystem() as system:
        children = (
            *specs(journal, "ab"),
            ChildSpec("c", Child, (journal, "c"), {"broken": lambda: True}),
            *specs(journal, "d"),
        )
        with pytest.raises(ChildStartError) as caught:
            await system.start_supervisor(SupervisorSpec("group", children))
        assert caught.value.child == "c"
        assert isinstance(caught.value.__cause__, ValueError)
        assert lives(journal) == [
            *[("start", name) for name in "abc"],
            ("stop", "b"),
            ("stop", "a"),
        ]
        assert (await group(system, journal)).state == "running"


async def test_constructor_that_fails_is_a_failed_start(autojump_clock):
    class Broken(TrioActor):
        def __init__(self):
            raise KeyError("constructor")

    async with ActorSystem() as system:
        with pytest.raises(ChildStartError):
            await system.start_supervisor(SupervisorSpec("g", (ChildSpec("a", Broken),)))
        assert system.statistics().actors == 0


async def test_child_that_fails_to_start_again_uses_up_the_intensity(autojump_clock):
    journal = []
    broken = [False]
    async with ActorSystem() as system:
        children = (
            ChildSpec("a", Child, (journal, "a")),
            ChildSpec("b", Child, (journal, "b"), {"broken": lambda: broken[0]}),
        )
        supervisor = await system.start_supervisor(
            SupervisorSpec(
                "g",
                children,
                strategy="one_for_all",
                intensity=3,
                on_exhausted="park",
                backoff=PLAIN,
            )
        )
        broken[0] = True
        supervisor.refs["a"].tell("boom")
        await trio.sleep(5)
        assert supervisor.state == "parked"
        assert supervisor.statistics().restarts == 3
        assert lives(journal)[-1] == ("stop", "a")


async def test_args_may_be_made_of_the_refs_of_earlier_siblings(autojump_clock):
    class Holds(TrioActor):
        def __init__(self, other):
            self.other = other

        def on_receive(self, message):
            return self.other

    async with ActorSystem() as system:
        supervisor = await system.start_supervisor(
            SupervisorSpec(
                "g",
                (
                    ChildSpec("a", Child, ([], "a")),
                    ChildSpec("b", Holds, lambda refs: (refs["a"],)),
                ),
            )
        )
        assert await supervisor.refs["b"].ask("x") is supervisor.refs["a"]


async def test_start_child_and_stop_child_change_a_running_group(autojump_clock):
    journal = []
    async with ActorSystem() as system:
        supervisor = await group(system, journal, "a")
        ref = await supervisor.start_child(ChildSpec("x", Child, (journal, "x"), name="named"))
        assert system.find("named") is ref
        with pytest.raises(NameTakenError):
            await supervisor.start_child(ChildSpec("x", Child, (journal, "x")))
        with pytest.raises(NameTakenError):
            await supervisor.start_child(ChildSpec("y", Child, (journal, "y"), name="named"))
        assert list(supervisor.refs) == ["a", "x"]
        await supervisor.stop_child("x")
        assert not ref.is_alive()
        assert system.find("named") is None
        assert list(supervisor.refs) == ["a"]
        with pytest.raises(KeyError):
            await supervisor.stop_child("x")
        await supervisor.start_child(ChildSpec("x", Child, (journal, "x"), name="named"))


async def test_start_child_that_is_cancelled_leaves_no_child(autojump_clock):
    class Never(TrioActor):
        async def on_start(self):
            await trio.sleep_forever()

    async with ActorSystem() as system:
        supervisor = await group(system, [], "a")
        with trio.move_on_after(1):
            await supervisor.start_child(ChildSpec("x", Never))
        await wait_all_tasks_blocked()
        assert list(supervisor.refs) == ["a"]
        assert system.statistics().actors == 1


async def test_child_that_does_not_stop_within_its_time_is_killed(autojump_clock):
    journal = []
    async with ActorSystem() as system:
        supervisor = await group(system, journal, "a", shutdown_s=2.0)
        future = supervisor.refs["a"].ask("sleep")
        await wait_all_tasks_blocked()
        began = trio.current_time()
        await supervisor.stop_child("a")
        assert trio.current_time() - began == 2
        assert future.settled
    assert ("stop", "a") not in journal


@pytest.mark.parametrize(
    ("shutdown_s", "takes_s"), [(0, 0), (1, 1), (math.inf, 100)], ids=["at once", "1 s", "for ever"]
)
async def test_stop_takes_as_long_as_the_spec_of_the_child_allows(
    shutdown_s, takes_s, autojump_clock
):
    class Slow(TrioActor):
        async def on_stop(self):
            await trio.sleep(100)
            self.kept.append("stopped")

        @classmethod
        def make_kept(cls):
            return []

    async with ActorSystem() as system:
        spec = SupervisorSpec("g", (ChildSpec("a", Slow, shutdown_s=shutdown_s),))
        supervisor = await system.start_supervisor(spec)
        ref = supervisor.refs["a"]
        await wait_all_tasks_blocked()
        began = trio.current_time()
        await supervisor.stop_child("a")
        assert trio.current_time() - began == takes_s
        assert ref._cell.kept == (["stopped"] if takes_s == 100 else [])


async def test_next_incarnation_knows_that_it_is_one_and_why_the_last_one_ended():
    seen = []

    class Learns(TrioActor):
        def on_start(self):
            last = self.actor_ref.statistics().last_failure
            seen.append(("start", self.incarnation, last and last.text))

        def on_failure(self, _type, error, _traceback):
            seen.append(("failure", self.incarnation, str(error)))

        def on_receive(self, message):
            raise ValueError(message)

    async with ActorSystem() as system:
        spec = SupervisorSpec("g", (ChildSpec("a", Learns),))
        ref = (await system.start_supervisor(spec)).refs["a"]
        ref.tell("boom")
        await wait_all_tasks_blocked()
    assert seen == [("start", 1, None), ("failure", 1, "boom"), ("start", 2, "boom")]


async def test_sibling_that_crashes_while_a_group_restarts_is_restarted_with_it(
    autojump_clock,
):
    journal = []
    async with ActorSystem() as system:
        supervisor = await group(system, journal, "abc", strategy="rest_for_one", shutdown_s=10)
        refs = supervisor.refs
        refs["c"].tell("deaf")
        await wait_all_tasks_blocked()
        refs["b"].tell("boom")
        await trio.sleep(1)
        refs["a"].tell("boom")
        await trio.sleep(10)
        # One round answers both: the fall of a, which was started first, covers that of b.
        assert [await ref.ask("x") for ref in refs.values()] == [2, 2, 2]


async def test_nested_supervisors_stop_in_reverse(autojump_clock):
    journal = []
    async with ActorSystem() as system:
        outer = await system.start_supervisor(SupervisorSpec("outer", specs(journal, "a")))
        await system.start_supervisor(SupervisorSpec("inner", specs(journal, "bc")), parent=outer)
        with pytest.raises(NameTakenError):
            await system.start_supervisor(SupervisorSpec("inner"), parent=outer)
    assert [entry for entry in lives(journal) if entry[0] == "stop"] == [
        ("stop", name) for name in "cba"
    ]


async def test_child_is_in_pykkas_registry_only_where_asked_for(autojump_clock):
    import pykka

    async with ActorSystem() as system:
        supervisor = await system.start_supervisor(
            SupervisorSpec(
                "g",
                (
                    ChildSpec("a", Child, ([], "a")),
                    ChildSpec("b", Child, ([], "b"), register=True),
                ),
            )
        )
        assert pykka.ActorRegistry.get_all() == [supervisor.refs["b"]]
    assert pykka.ActorRegistry.get_all() == []


@pytest.mark.parametrize(
    "spec",
    [
        lambda: ChildSpec("a", Child, restart="sometimes"),
        lambda: ChildSpec("a", Child, shutdown_s=-1),
        lambda: SupervisorSpec("a", strategy="none_for_all"),
        lambda: SupervisorSpec("a", on_exhausted="weep"),
        lambda: SupervisorSpec("a", intensity=-1),
        lambda: SupervisorSpec("a", period_s=0),
    ],
    ids=["restart", "shutdown", "strategy", "exhausted", "intensity", "period"],
)
def test_malformed_spec_is_refused(spec):
    with pytest.raises(ValueError):
        spec()


async def test_statistics_of_a_supervisor_add_up_those_of_the_actors_below_it(autojump_clock):
    async with ActorSystem() as system:
        outer = await group(system, [], "ab")
        inner = await system.start_supervisor(SupervisorSpec("inner", specs([], "c")), outer)
        a, b = outer.refs["a"], outer.refs["b"]
        c = inner.refs["c"]
        a.suspend()
        for ref in (a, b, c):
            ref.tell("x")
            ref.tell("x")
        c._box.put_internal((TIMER, "late", 99, 0))
        count_dead(b._cell, "x", "overflow")
        await wait_all_tasks_blocked()
        for supervisor, sums in ((outer, (2, 4, 1, 1)), (inner, (0, 2, 1, 0))):
            said = supervisor.statistics()
            assert (said.depth, said.handled, said.dropped, said.dead) == sums


class Plain(TrioActor):
    """Does nothing."""


def _next_unnamed(kind):
    """The name that the next actor that nobody names would get."""
    system = SimpleNamespace(names=Names(), unnamed=set())
    probe = unnamed(kind, SimpleNamespace(_children={}, system=system))
    prefix, serial = probe.rsplit("-", 1)
    return f"{prefix}-{int(serial) + 1}"


@pytest.mark.parametrize("group", [False, True], ids=["actor", "group"])
async def test_actor_that_nobody_named_is_known_by_nothing_that_is_taken(group):
    async with ActorSystem() as system:
        taken = _next_unnamed(Plain)
        if group:
            await system.start_supervisor(SupervisorSpec(taken), system.user)
        else:
            first = system.start(Plain, name=taken)
        other = system.start(Plain)
        assert other._cell.key != taken
        if not group:
            assert other._cell.key not in (first._cell.key, taken)
            assert {first._cell, other._cell} <= {
                child.cell for child in system.user._children.values()
            }


@pytest.mark.parametrize("foreign", [False, True], ids=["loop", "thread"])
async def test_name_by_which_an_unnamed_actor_is_known_is_refused_and_the_actor_stands(foreign):
    async with ActorSystem() as system:
        unnamed_ref = system.start(Plain)
        name = unnamed_ref._cell.key
        start = functools.partial(system.start, Plain, name=name)
        with pytest.raises(NameTakenError):
            await trio.to_thread.run_sync(start) if foreign else start()
        assert unnamed_ref.is_alive()
        assert system.user._children[name].cell is unnamed_ref._cell
        unnamed_ref.stop(block=False)
        await wait_all_tasks_blocked()
        assert name not in system.user._children
        assert start().is_alive()


def _on_its_way(system, name=None):
    """The cell of an actor that another thread has started, before the loop has heard of it."""
    cell = Cell(system, system.user, Plain, (), {}, name)
    system.cells[cell] = None
    if name is not None:
        system.names.claim(name, cell)
    cell.make()
    return cell


async def test_name_that_meets_an_unnamed_actor_on_its_way_from_a_thread_ends_alone():
    async with ActorSystem() as system:
        first = _on_its_way(system)
        second = _on_its_way(system, first.key)
        adopt(system, first)
        adopt(system, second)
        await wait_all_tasks_blocked()
        assert system.user._children[first.key].cell is first
        assert (first.state, second.state) == ("running", "ended")


async def test_unnamed_actor_that_meets_a_name_on_its_way_from_a_thread_starts_all_the_same():
    async with ActorSystem() as system:
        first = _on_its_way(system)
        second = _on_its_way(system, first.key)
        adopt(system, second)
        adopt(system, first)
        await wait_all_tasks_blocked()
        assert (first.state, second.state) == ("running", "running")
        assert {each.cell for each in system.user._children.values()} == {first, second}


async def test_task_that_on_failure_starts_ends_before_the_next_incarnation():
    said = []

    async def runs():
        try:
            said.append("begins")
            await trio.sleep_forever()
        finally:
            said.append("ends")

    class Late(TrioActor):
        def on_start(self):
            said.append(self.incarnation)

        async def on_failure(self, *_):
            self.spawn(runs)
            await trio.lowlevel.checkpoint()

        def on_receive(self, message):
            raise ValueError(message)

    async with ActorSystem() as system:
        spec = SupervisorSpec("g", (ChildSpec("a", Late),))
        ref = (await system.start_supervisor(spec)).refs["a"]
        ref.tell("boom")
        await wait_all_tasks_blocked()
        assert said == [1, "begins", "ends", 2]
        assert not ref._cell.tasks
