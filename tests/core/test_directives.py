"""Directives: what an error of a child means, to it, to its message, and to its group."""

from __future__ import annotations

import logging

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from abeyance.actors.core import (
    LATER,
    ActorCrashError,
    ActorDeadError,
    ActorKilledError,
    ActorSystem,
    Backoff,
    ChildSpec,
    ChildStartError,
    IntensityExceededError,
    SupervisorSpec,
    TrioActor,
)
from abeyance.actors.core.directives import decide, resumes

PLAIN = Backoff(jitter=0.0)
STRATEGIES = ("one_for_one", "rest_for_one", "one_for_all")


class Error(Exception):
    """What the directives of these tests are about."""


class SubError(Error):
    pass


class Crash(Error, ActorCrashError):
    """Crashes where an ask raises it, too."""


class Worker(TrioActor):
    """Counts in its instance, and keeps its life in a journal."""

    def __init__(self, journal=None, name="", *, broken=lambda: None):
        self.journal = [] if journal is None else journal
        self.name = name
        self.broken = broken
        self.count = 0
        self.ticks = 0
        self.later_handle = None

    def on_start(self):
        self.journal.append(("start", self.name))
        error = self.broken()
        if error is not None:
            raise error

    def on_stop(self):
        self.journal.append(("stop", self.name))

    def on_failure(self, *_error):
        self.journal.append(("failure", self.name))

    def on_answer(self, answer):
        raise answer.tag

    def on_ended(self, ended):
        self.journal.append(("ended", self.name))

    async def on_receive(self, message):
        match message:
            case BaseException():
                self.count += 1
                raise message
            case "task":
                self.spawn(self.tick)
            case "failing task":
                self.spawn(self.fail)
            case "owe":
                self.later_handle = self.later()
                return LATER
            case "pay":
                return self.later_handle.set("paid")
            case ("settle and raise", error):
                self.later().set("settled")
                raise error
            case ("take and raise", error):
                self.later_handle = self.later()
                raise error
            case ("watch", ref):
                self.watch(ref)
            case ("ask", ref, tag):
                self.ask(ref, "x", tag=tag)
            case ("deaf", error):
                with trio.CancelScope(shield=True):
                    await trio.sleep(3)
                raise error
            case "sleep":
                await trio.sleep_forever()
        return (self.incarnation, self.count, self.ticks)

    async def tick(self):
        while True:
            await trio.sleep(1)
            self.ticks += 1

    async def fail(self):
        raise Error("of a task")


class AtLeastOnce(Worker):
    max_deliveries = 3


class Parking(Worker):
    max_deliveries = 2
    past_deliveries = "park"


def children(journal, names="abc", **options):
    return tuple(ChildSpec(name, Worker, (journal, name), **options) for name in names)


async def group(system, journal, names="abc", *, parent=None, child=None, **options):
    options.setdefault("backoff", PLAIN)
    spec = SupervisorSpec(
        options.pop("id", "group"), children(journal, names, **(child or {})), **options
    )
    return await system.start_supervisor(spec, parent)


def of(directive, error=Error):
    return ((error, directive),)


# -- which


@pytest.mark.parametrize(
    ("error", "tables", "directive"),
    [
        (Error(), (), "restart"),
        (ValueError(), (of("stop"),), "restart"),
        (SubError(), (of("stop"),), "stop"),
        (SubError(), (((SubError, "resume"), (Error, "stop")),), "resume"),
        (SubError(), (((Error, "stop"), (SubError, "resume")),), "stop"),
        (Error(), (of("resume"), of("stop")), "resume"),
        (ValueError(), (of("resume"), of("stop", Exception)), "stop"),
        (ExceptionGroup("", [Error(), ValueError()]), (of("resume"),), "restart"),
        (ExceptionGroup("", [Error(), SubError()]), (of("resume"),), "resume"),
        (
            ExceptionGroup("", [ExceptionGroup("", [KeyError()]), Error()]),
            (((KeyError, "escalate"), (Error, "stop")),),
            "escalate",
        ),
        (
            ExceptionGroup("", [Error(), KeyError()]),
            (((Error, "stop"), (KeyError, "resume")),),
            "stop",
        ),
        (ExceptionGroup("", [Error()]), (of("stop", Exception),), "stop"),
        (BaseExceptionGroup("", [KeyboardInterrupt()]), (of("stop", Exception),), "restart"),
    ],
    ids=[
        "none",
        "no match",
        "by isinstance",
        "the first of two",
        "the first though the second is nearer",
        "the first table",
        "the second table",
        "a group by its severest member",
        "a group of one mind",
        "a group in a group",
        "stop before resume",
        "a group is not matched itself",
        "no exception",
    ],
)
def test_first_pair_that_matches_decides_and_a_groups_severest_member(error, tables, directive):
    assert decide(error, *tables) == directive


@pytest.mark.parametrize(
    ("directives", "refusal"),
    [
        (((Error, "weep"),), ValueError),
        ((("Error", "stop"),), TypeError),
        (((int, "stop"),), TypeError),
        (((ExceptionGroup, "stop"),), ValueError),
    ],
    ids=["unknown", "a name", "no exception", "an exception group"],
)
@pytest.mark.parametrize(
    "make",
    [
        lambda directives: ChildSpec("a", Worker, directives=directives),
        lambda directives: SupervisorSpec("a", directives=directives),
        lambda directives: ActorSystem(directives=directives),
    ],
    ids=["child", "supervisor", "system"],
)
def test_malformed_directives_are_refused(make, directives, refusal):
    with pytest.raises(refusal, match="directives"):
        make(directives)


@pytest.mark.parametrize("own", ["stop", None])
async def test_directives_of_a_child_come_before_those_of_its_supervisor(own, autojump_clock):
    async with ActorSystem() as system:
        supervisor = await group(
            system, [], "a", child={"directives": of(own) if own else ()}, directives=of("resume")
        )
        (ref,) = supervisor.refs.values()
        ref.tell(Error())
        await wait_all_tasks_blocked()
        assert ref.is_alive() is (own is None)


# -- resume


@pytest.mark.parametrize("actor", [Worker, AtLeastOnce, Parking])
async def test_resume_keeps_the_incarnation_with_its_state_and_tasks_and_quarantines_the_message(
    actor, autojump_clock
):
    events, journal = [], []
    async with ActorSystem(on_event=events.append) as system:
        spec = ChildSpec("a", actor, (journal, "a"), directives=of("resume"))
        supervisor = await system.start_supervisor(SupervisorSpec("group", (spec,), intensity=0))
        watcher = system.start(Worker, journal, "watcher")
        (ref,) = supervisor.refs.values()
        watcher.tell(("watch", ref))
        ref.tell("task")
        owed = ref.ask("owe")
        await trio.sleep(2.5)
        errors = [Error(number) for number in range(3)]
        for error in errors:
            ref.tell(error)
        assert await ref.ask("x") == (1, 3, 2)
        await trio.sleep(2)
        assert await ref.ask("x") == (1, 3, 4)
        await ref.ask("pay")
        assert await owed == "paid"
        assert [(entry.message, entry.deliveries) for entry in system.quarantine.entries] == [
            (error, 1) for error in errors
        ]
        statistics = ref.statistics()
        assert (statistics.quarantined, statistics.last_error) == (3, errors[-1])
        assert supervisor.restarts == 0
        assert supervisor.state == "running"
        assert [event.error for event in events if event.kind == "resumed"] == errors
        assert "crashed" not in [event.kind for event in events]
        assert journal == [("start", "a"), ("start", "watcher")]


async def test_resume_fails_the_ask_that_crashed_with_its_error_once(autojump_clock):
    async with ActorSystem() as system:
        supervisor = await group(system, [], "a", directives=of("resume"))
        (ref,) = supervisor.refs.values()
        crash = Crash("asked")
        with pytest.raises(Crash):
            await ref.ask(crash)
        taken = ref.ask(("take and raise", crash))
        with pytest.raises(Crash):
            await taken
        assert ref.statistics().owed == 0
        assert await ref.ask("pay") is False
        assert (await ref.ask("x"))[0] == 1
        assert ref.statistics().quarantined == 2


async def test_resumed_actor_asks_in_its_own_name_afterwards(autojump_clock):
    """The chain of the ask that failed would refuse it as a ring."""

    class Forwards(Worker):
        async def on_receive(self, message):
            if message == "crash":
                raise Crash("asked")
            return await message.ask("x")

    async with ActorSystem() as system:
        spec = ChildSpec("a", Forwards, directives=of("resume"))
        supervisor = await system.start_supervisor(SupervisorSpec("group", (spec,)))
        (ref,) = supervisor.refs.values()
        asker = system.start(Asker, ref)
        assert isinstance(await asker.ask("crash"), Crash)
        ref.tell(asker)
        await wait_all_tasks_blocked()
        assert ref.statistics().quarantined == 1
        assert ref.statistics().handled == 1


class Asker(TrioActor):
    def __init__(self, other):
        self.other = other

    async def on_receive(self, message):
        if message == "x":
            return "fine"
        try:
            return await self.other.ask(message)
        except Crash as crash:
            return crash


@pytest.mark.parametrize("fact", [True, False])
async def test_resume_drops_a_failing_answer_and_quarantines_a_failing_fact(fact, autojump_clock):
    class Facts(Worker):
        def on_receive(self, message):
            if message == "ask":
                self.ask(self.other, "x", tag=Error("tag"), fact=fact)
            return self.incarnation

    async with ActorSystem() as system:
        spec = ChildSpec("a", Facts, directives=of("resume"))
        supervisor = await system.start_supervisor(SupervisorSpec("group", (spec,)))
        (ref,) = supervisor.refs.values()
        ref._cell.actor.other = system.start(Worker)
        ref.tell("ask")
        await wait_all_tasks_blocked()
        assert await ref.ask("x") == 1
        assert ref.statistics().quarantined == fact
        assert not ref.statistics().in_flight


@pytest.mark.parametrize("how", ["kill", "task", "start", "handler with a task"])
async def test_resume_restarts_where_there_is_nothing_to_go_on_with(how, autojump_clock):
    async with ActorSystem() as system:
        broken = []
        spec = ChildSpec(
            "a",
            Worker,
            ([], "a"),
            {"broken": lambda: broken.pop() if broken else None},
            directives=of("resume", Exception),
        )
        supervisor = await system.start_supervisor(SupervisorSpec("group", (spec,), backoff=PLAIN))
        (ref,) = supervisor.refs.values()
        match how:
            case "kill":
                ref.kill()
            case "task":
                ref.tell("failing task")
            case "start":
                broken.append(Error("start"))
                ref.kill()
            case "handler with a task":
                ref.tell("failing task")
                ref.tell(("deaf", Error("handler")))
        await trio.sleep(10)
        assert (await ref.ask("x"))[0] == (3 if how == "start" else 2)


async def test_kill_of_an_actor_that_resumes_for_ever_ends_it(autojump_clock):
    """Each resume is a checkpoint: a handler that tells itself and fails must not hold the loop."""

    class Selfish(TrioActor):
        def on_receive(self, message):
            if self.incarnation == 1:
                self.actor_ref.tell(message)
                raise Error
            return self.incarnation

    logging.getLogger("abeyance.core").setLevel(logging.CRITICAL)
    try:
        async with ActorSystem() as system:
            spec = ChildSpec("a", Selfish, directives=of("resume"))
            supervisor = await system.start_supervisor(SupervisorSpec("group", (spec,)))
            (ref,) = supervisor.refs.values()
            ref.tell("x")
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            assert ref.statistics().quarantined > 1
            ref.kill()
            assert await ref.ask("x") == 2
    finally:
        logging.getLogger("abeyance.core").setLevel(logging.NOTSET)


async def test_stop_behind_a_message_that_resumes_is_a_stop(autojump_clock):
    journal = []
    async with ActorSystem() as system:
        supervisor = await group(
            system, journal, "a", child={"restart": "transient"}, directives=of("resume")
        )
        (ref,) = supervisor.refs.values()
        ref.tell(("deaf", Error()))
        await wait_all_tasks_blocked()
        assert await ref.stop(now=True) is True
        assert not ref.is_alive()
    assert journal == [("start", "a"), ("stop", "a")]


# -- stop


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("restart", ["permanent", "transient", "temporary"])
async def test_stop_ends_the_child_as_a_temporary_one_and_leaves_its_siblings(
    restart, strategy, autojump_clock
):
    journal = []
    async with ActorSystem() as system:
        supervisor = await group(
            system,
            journal,
            child={"restart": restart, "directives": of("stop")},
            strategy=strategy,
            intensity=0,
        )
        a, b, c = supervisor.refs.values()
        journal.clear()
        b.tell(Error())
        behind = b.ask("x")
        await wait_all_tasks_blocked()
        with pytest.raises(ActorDeadError):
            await behind
        assert list(supervisor.refs) == ["a", "c"]
        assert [(await ref.ask("x"))[0] for ref in (a, c)] == [1, 1]
        assert journal == [("failure", "b")]
        assert (supervisor.restarts, supervisor.state) == (0, "running")
        assert system.dead_letters.counts == {"stopped": 1}
        assert system.quarantine.total == 1


async def test_stop_quarantines_a_message_that_might_be_delivered_again(autojump_clock):
    async with ActorSystem() as system:
        spec = ChildSpec("a", AtLeastOnce, directives=of("stop"))
        supervisor = await system.start_supervisor(SupervisorSpec("group", (spec,)))
        (ref,) = supervisor.refs.values()
        ref.tell(Error())
        await wait_all_tasks_blocked()
        assert not ref.is_alive()
        assert (system.dead_letters.total, system.quarantine.total) == (0, 1)


async def test_kill_can_be_told_to_stop(autojump_clock):
    async with ActorSystem() as system:
        supervisor = await group(system, [], "a", directives=of("stop", ActorKilledError))
        (ref,) = supervisor.refs.values()
        ref.kill()
        await wait_all_tasks_blocked()
        assert not ref.is_alive()


@pytest.mark.parametrize("directive", ["stop", "escalate"])
async def test_kill_by_a_group_that_restarts_is_no_error_of_the_child(directive, autojump_clock):
    async with ActorSystem() as system:
        supervisor = await group(
            system,
            [],
            "ab",
            child={"shutdown_s": 1.0},
            strategy="one_for_all",
            directives=((Error, "restart"), (Exception, directive)),
        )
        a, b = supervisor.refs.values()
        b.tell("sleep")
        await wait_all_tasks_blocked()
        a.tell(Error())
        await trio.sleep(5)
        assert [(await ref.ask("x"))[0] for ref in (a, b)] == [2, 2]
        assert system.root.restarts == 0


# -- escalate


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("restart", ["permanent", "transient", "temporary"])
@pytest.mark.parametrize("on_exhausted", ["escalate", "park"])
async def test_escalate_stops_the_children_in_reverse_and_hands_the_error_to_the_parent(
    on_exhausted, restart, strategy, autojump_clock
):
    journal, events = [], []
    async with ActorSystem(on_event=events.append) as system:
        supervisor = await group(
            system,
            journal,
            child={"restart": restart},
            strategy=strategy,
            on_exhausted=on_exhausted,
            directives=of("escalate"),
        )
        refs = supervisor.refs
        journal.clear()
        error = Error("out")
        refs["b"].tell(error)
        await wait_all_tasks_blocked()
        (escalated,) = [event for event in events if event.kind == "escalated"]
        assert (escalated.subject, escalated.error) == ("group", error)
        assert supervisor.last_error is error
        assert (supervisor.restarts, system.root.restarts) == (0, 1)
        stops = [("failure", "b"), ("stop", "c"), ("stop", "a")]
        if restart == "temporary":
            assert journal == stops
            assert supervisor.refs == {}
        else:
            assert journal == [*stops, *[("start", name) for name in "abc"]]
            assert [(await ref.ask("x"))[0] for ref in refs.values()] == [2, 2, 2]


async def test_escalation_at_the_root_leaves_the_run_as_an_exception_group(autojump_clock):
    journal, error = [], Error("out")
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with ActorSystem(directives=of("escalate")) as system:
            outer = await group(system, journal, "a", id="outer", directives=of("escalate"))
            inner = await group(
                system, journal, "bc", id="inner", parent=outer, directives=of("escalate")
            )
            inner.refs["b"].tell(error)
            await trio.sleep(60)
    assert caught.value.exceptions == (error,)
    assert [entry for entry in journal if entry[0] == "stop"] == [("stop", "c"), ("stop", "a")]


@pytest.mark.parametrize("directive", ["resume", "restart", "stop", "escalate"])
async def test_directive_of_a_parent_decides_on_the_error_of_a_group_under_it(
    directive, autojump_clock
):
    journal = []
    async with ActorSystem() as system:
        outer = await group(system, journal, "a", id="outer", directives=of(directive))
        inner = await group(
            system, journal, "b", id="inner", parent=outer, directives=of("escalate")
        )
        a, b = outer.refs["a"], inner.refs["b"]
        b.tell(Error())
        await wait_all_tasks_blocked()
        if directive == "stop":
            assert inner.state == "stopped"
            assert not b.is_alive()
            assert [group.id for group in outer.walk()] == ["outer"]
        else:
            assert (await b.ask("x"))[0] == 2
        assert (await a.ask("x"))[0] == (2 if directive == "escalate" else 1)
        # One that is to be resumed has nothing left to go on with: it is restarted.
        assert outer.restarts == (directive in ("resume", "restart"))
        assert system.root.restarts == (directive == "escalate")


async def test_exceeded_intensity_can_be_told_to_stop_the_group(autojump_clock):
    async with ActorSystem() as system:
        outer = await group(
            system, [], "a", id="outer", directives=of("stop", IntensityExceededError)
        )
        inner = await group(system, [], "b", id="inner", parent=outer, intensity=0)
        inner.refs["b"].tell(Error())
        await wait_all_tasks_blocked()
        assert inner.state == "stopped"
        assert outer.restarts == 0


# -- while the group is busy


@pytest.mark.parametrize("directive", ["stop", "escalate"])
@pytest.mark.parametrize("strategy", ["rest_for_one", "one_for_all"])
async def test_directive_holds_for_a_sibling_that_fails_while_the_group_restarts(
    strategy, directive, autojump_clock
):
    journal = []
    async with ActorSystem() as system:
        supervisor = await group(
            system,
            journal,
            child={"shutdown_s": 10},
            strategy=strategy,
            directives=of(directive, SubError),
        )
        a, b, c = supervisor.refs.values()
        c.tell(("deaf", SubError()))
        await wait_all_tasks_blocked()
        b.tell(Error())
        await trio.sleep(10)
        if directive == "stop":
            assert list(supervisor.refs) == ["a", "b"]
            assert (await b.ask("x"))[0] == 2
            assert system.root.restarts == 0
        else:
            assert [(await ref.ask("x"))[0] for ref in (a, b, c)] == [2, 2, 2]
            assert system.root.restarts == 1
            assert isinstance(supervisor.last_error, SubError)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("directive", ["restart", "stop", "escalate"])
async def test_directive_holds_for_a_child_that_fails_to_start_again(
    directive, strategy, autojump_clock
):
    journal, broken = [], []
    async with ActorSystem() as system:
        specs = (
            *children(journal, "a"),
            ChildSpec(
                "b", Worker, (journal, "b"), {"broken": lambda: broken.pop() if broken else None}
            ),
            *children(journal, "c"),
        )
        supervisor = await system.start_supervisor(
            SupervisorSpec(
                "group", specs, strategy=strategy, backoff=PLAIN, directives=of(directive, Crash)
            )
        )
        a, b, c = supervisor.refs.values()
        broken.append(Crash("start"))
        b.tell(Error())
        await trio.sleep(10)
        assert not broken
        if directive == "stop":
            assert list(supervisor.refs) == ["a", "c"]
            assert not b.is_alive()
        else:
            assert (await b.ask("x"))[0] == 3
        assert (await a.ask("x"))[0] > 0
        assert (await c.ask("x"))[0] > 0
        assert system.root.restarts == (directive == "escalate")
        assert supervisor.restarts == (2 if directive == "restart" else 1)


@pytest.mark.parametrize("directive", ["resume", "restart", "stop", "escalate"])
@pytest.mark.parametrize("how", ["group", "start_child"])
async def test_child_that_fails_to_start_at_first_is_no_child_whatever_the_directive(
    how, directive, autojump_clock
):
    journal = []
    bad = ChildSpec("bad", Worker, (journal, "bad"), {"broken": lambda: Error("start")})
    async with ActorSystem() as system:
        with pytest.raises(ChildStartError) as caught:  # noqa: PT012
            if how == "group":
                await system.start_supervisor(
                    SupervisorSpec("g", (*children(journal, "a"), bad), directives=of(directive))
                )
            else:
                supervisor = await group(system, journal, "a", directives=of(directive))
                await supervisor.start_child(bad)
        assert isinstance(caught.value.__cause__, Error)
        assert system.root.restarts == 0
        if how == "start_child":
            assert list(supervisor.refs) == ["a"]
            assert supervisor.state == "running"
            assert supervisor.restarts == 0
        else:
            assert system.statistics().actors == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_start_that_waits_for_a_sibling_whose_error_escalates_fails_with_it(
    strategy, autojump_clock
):
    class Waits(TrioActor):
        def __init__(self, other):
            self.other = other

        async def on_start(self):
            self.other.tell(Error("out"))
            await trio.sleep_forever()

    async with ActorSystem() as system:
        supervisor = await group(system, [], "a", strategy=strategy, directives=of("escalate"))
        (ref,) = supervisor.refs.values()
        with pytest.raises(ChildStartError) as caught:
            await supervisor.start_child(ChildSpec("b", Waits, (ref,)))
        assert isinstance(caught.value.__cause__, Error)
        await wait_all_tasks_blocked()
        assert system.root.restarts == 1
        assert (await ref.ask("x"))[0] == 2


async def test_directive_of_an_error_that_an_incarnation_and_its_task_share_is_the_severest(
    autojump_clock,
):
    async with ActorSystem() as system:
        supervisor = await group(
            system, [], "a", directives=((SubError, "restart"), (Error, "stop"))
        )
        (ref,) = supervisor.refs.values()
        ref.tell("failing task")
        ref.tell(("deaf", SubError()))
        await trio.sleep(5)
        assert not ref.is_alive()


async def test_resume_quarantines_a_failing_reminder_and_ends_it(autojump_clock):
    class Reminded(Worker):
        def on_receive(self, message):
            if message == "remind":
                self.remind("r", at_ms=0)
                return None
            if message == "x":
                return self.incarnation
            raise Error("reminder")

    async with ActorSystem() as system:
        spec = ChildSpec("a", Reminded, name="a", directives=of("resume"))
        supervisor = await system.start_supervisor(SupervisorSpec("group", (spec,)))
        (ref,) = supervisor.refs.values()
        ref.tell("remind")
        await trio.sleep(5)
        assert await ref.ask("x") == 1
        assert ref.statistics().quarantined == 1
        assert not len(system.reminders._book)


async def test_resume_takes_a_message_whose_reply_was_settled_as_handled(autojump_clock):
    async with ActorSystem() as system:
        supervisor = await group(system, [], "a", directives=of("resume"))
        (ref,) = supervisor.refs.values()
        assert await ref.ask(("settle and raise", Crash("late"))) == "settled"
        assert (await ref.ask("x"))[0] == 1
        statistics = ref.statistics()
        assert (statistics.handled, statistics.quarantined, statistics.owed) == (2, 0, 0)


async def test_message_of_a_killed_handler_that_raises_is_delivered_again_and_not_resumed(
    autojump_clock,
):
    async with ActorSystem() as system:
        spec = ChildSpec("a", AtLeastOnce, directives=of("resume"))
        supervisor = await system.start_supervisor(SupervisorSpec("group", (spec,)))
        (ref,) = supervisor.refs.values()
        ref.tell(("deaf", Error()))
        await wait_all_tasks_blocked()
        ref.kill()
        await trio.sleep(10)
        (entry,) = system.quarantine.entries
        assert (entry.incarnation, entry.deliveries) == (2, 2)


async def test_error_without_a_message_in_flight_is_not_resumed(autojump_clock):
    """It is the kernel's own: nothing would be settled, and it would come again."""
    async with ActorSystem() as system:
        supervisor = await group(system, [], "a", directives=of("resume"))
        (ref,) = supervisor.refs.values()
        assert not resumes(ref._cell, Error())
        assert ref._cell.last_error is None


async def test_message_past_its_deliveries_parks_its_group_whatever_is_to_be_resumed(
    autojump_clock,
):
    class Spent:
        def begin(self, *_act):
            return 99

        def end(self, *_act, **_how):
            pass

    class Counted(Parking):
        counts_durably = True

    class Act:
        act_id = "act"

    async with ActorSystem() as system:
        system.deliveries = Spent()
        spec = ChildSpec("a", Counted, directives=of("resume", Exception))
        supervisor = await system.start_supervisor(SupervisorSpec("group", (spec,)))
        supervisor.refs["a"].tell(Act())
        await wait_all_tasks_blocked()
        assert supervisor.state == "parked"
        assert system.quarantine.total == 0


@pytest.mark.parametrize("directive", ["restart", "stop"])
async def test_child_that_fails_to_start_in_a_group_its_parent_restarts_fails_the_group(
    directive, autojump_clock
):
    """Whoever starts the group is told; the parent's directives decide."""
    broken = []
    async with ActorSystem() as system:
        outer = await group(
            system, [], "a", id="outer", strategy="one_for_all", directives=of(directive, SubError)
        )
        spec = ChildSpec(
            "b", Worker, ([], "b"), {"broken": lambda: broken.pop() if broken else None}
        )
        inner = await system.start_supervisor(
            SupervisorSpec("inner", (spec,), directives=of("stop")), outer
        )
        a, b = outer.refs["a"], inner.refs["b"]
        broken.append(SubError("start"))
        a.kill()
        await trio.sleep(10)
        assert not broken
        assert (inner.state == "stopped") is (directive == "stop")
        assert b.is_alive() is (directive == "restart")
        assert outer.restarts == (2 if directive == "restart" else 1)
        assert (await a.ask("x"))[0] == (3 if directive == "restart" else 2)
