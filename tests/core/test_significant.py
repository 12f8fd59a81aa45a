"""Significant children: whose end ends their supervisor, by OTP's rules."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from abeyance.actors.core import (
    ActorDeadError,
    ActorSystem,
    Backoff,
    ChildSpec,
    ChildStartError,
    SupervisorSpec,
    TrioActor,
)

PLAIN = Backoff(jitter=0.0)
SHUTDOWNS = ("any_significant", "all_significant")


class Worker(TrioActor):
    def __init__(self, journal, name):
        self.journal = journal
        self.name = name

    def on_start(self):
        self.journal.append(("start", self.name))

    def on_stop(self):
        self.journal.append(("stop", self.name))

    def on_receive(self, message):
        if isinstance(message, Exception):
            raise message
        return self.incarnation


def spec(journal, name, restart="transient", *, significant=True, **options):
    return ChildSpec(
        name, Worker, (journal, name), restart=restart, significant=significant, **options
    )


async def start(system, *children, auto_shutdown="any_significant", **options):
    options.setdefault("backoff", PLAIN)
    return await system.start_supervisor(
        SupervisorSpec("group", children, auto_shutdown=auto_shutdown, **options)
    )


def end(ref, how):
    match how:
        case "stop":
            ref.stop()
        case "stop now":
            ref.stop(now=True)
        case "crash":
            ref.tell(ValueError())
        case "kill":
            ref.kill()
        case "directive stop":
            ref.tell(KeyError())


ENDS_ITSELF = {
    ("transient", "stop"): True,
    ("transient", "stop now"): True,
    ("transient", "crash"): False,
    ("transient", "kill"): False,
    ("transient", "directive stop"): True,
    ("temporary", "stop"): True,
    ("temporary", "stop now"): True,
    ("temporary", "crash"): True,
    ("temporary", "kill"): True,
    ("temporary", "directive stop"): True,
}


@pytest.mark.parametrize("auto_shutdown", SHUTDOWNS)
@pytest.mark.parametrize(("restart", "how"), ENDS_ITSELF, ids=" ".join)
async def test_end_of_a_significant_child_ends_its_supervisor_in_reverse(
    restart, how, auto_shutdown, autojump_clock
):
    journal, events = [], []
    async with ActorSystem(on_event=events.append) as system:
        supervisor = await start(
            system,
            spec(journal, "a", "permanent", significant=False),
            spec(journal, "b", restart, directives=((KeyError, "stop"),)),
            spec(journal, "c", "permanent", significant=False),
            auto_shutdown=auto_shutdown,
        )
        a, b, c = supervisor.refs.values()
        journal.clear()
        end(b, how)
        await wait_all_tasks_blocked()
        if ENDS_ITSELF[restart, how]:
            assert supervisor.state == "stopped"
            assert not any(ref.is_alive() for ref in (a, b, c))
            assert [entry for entry in journal if entry[1] != "b"] == [("stop", "c"), ("stop", "a")]
            assert [group.id for group in system.root.walk()] == ["root", "user"]
            assert [event.subject for event in events if event.kind == "shut_down"] == ["group"]
            with pytest.raises(ActorDeadError):
                await supervisor.start_child(spec(journal, "d"))
            # Its end is a normal one, and nothing to its parent.
            assert system.root.restarts == 0
        else:
            assert supervisor.state == "running"
            assert [await ref.ask("x") for ref in (a, b, c)] == [1, 2, 1]


@pytest.mark.parametrize("auto_shutdown", SHUTDOWNS)
async def test_one_of_two_significant_children_ends_its_supervisor_only_by_any(
    auto_shutdown, autojump_clock
):
    async with ActorSystem() as system:
        supervisor = await start(
            system,
            spec([], "a"),
            spec([], "b"),
            spec([], "c", "permanent", significant=False),
            auto_shutdown=auto_shutdown,
        )
        a, b, _ = supervisor.refs.values()
        b.stop()
        await wait_all_tasks_blocked()
        assert (supervisor.state == "stopped") is (auto_shutdown == "any_significant")
        if auto_shutdown == "all_significant":
            a.stop()
            await wait_all_tasks_blocked()
            assert supervisor.state == "stopped"


@pytest.mark.parametrize("auto_shutdown", SHUTDOWNS)
@pytest.mark.parametrize("how", ["stop_child", "a sibling's restart", "a start that fails"])
async def test_end_of_a_significant_child_by_its_supervisor_does_not_end_it(
    how, auto_shutdown, autojump_clock
):
    class Broken(TrioActor):
        def on_start(self):
            raise ValueError("start")

    async with ActorSystem() as system:
        supervisor = await start(
            system,
            spec([], "a", "permanent", significant=False),
            spec([], "b", "temporary"),
            auto_shutdown=auto_shutdown,
            strategy="rest_for_one",
        )
        a = supervisor.refs["a"]
        match how:
            case "stop_child":
                await supervisor.stop_child("b")
            case "a sibling's restart":
                a.tell(ValueError())
            case "a start that fails":
                with pytest.raises(ChildStartError):
                    await supervisor.start_child(
                        ChildSpec("d", Broken, restart="temporary", significant=True)
                    )
                await supervisor.stop_child("b")
        await wait_all_tasks_blocked()
        assert supervisor.state == "running"
        assert list(supervisor.refs) == ["a"]


async def test_last_significant_child_ends_the_supervisor_though_another_was_stopped_by_it(
    autojump_clock,
):
    async with ActorSystem() as system:
        supervisor = await start(
            system, spec([], "a"), spec([], "b"), auto_shutdown="all_significant"
        )
        a = supervisor.refs["a"]
        await supervisor.stop_child("b")
        assert supervisor.state == "running"
        a.stop()
        await wait_all_tasks_blocked()
        assert supervisor.state == "stopped"


@pytest.mark.parametrize("auto_shutdown", SHUTDOWNS)
async def test_significant_child_that_ends_while_its_siblings_start_is_looked_at_when_all_have(
    auto_shutdown, autojump_clock
):
    class Short(TrioActor):
        def on_start(self):
            self.stop()

    class Slow(Worker):
        async def on_start(self):
            await trio.sleep(3)

    async with ActorSystem() as system:
        supervisor = await start(
            system,
            ChildSpec("a", Short, restart="temporary", significant=True),
            ChildSpec("b", Slow, ([], "b"), restart="transient", significant=True),
            auto_shutdown=auto_shutdown,
        )
        assert trio.current_time() >= 3
        await wait_all_tasks_blocked()
        assert (supervisor.state == "stopped") is (auto_shutdown == "any_significant")


async def test_supervisor_that_shuts_itself_down_starts_no_sibling_again(autojump_clock):
    """One that waits for its backoff, or is being started, ends with the others."""
    journal = []
    async with ActorSystem() as system:
        supervisor = await start(
            system,
            spec(journal, "a", "permanent", significant=False),
            spec(journal, "b"),
            backoff=Backoff(5.0, 5.0, 1.0, 0.0),
        )
        a, b = supervisor.refs.values()
        a.kill()
        await wait_all_tasks_blocked()
        a.kill()
        await wait_all_tasks_blocked()
        assert a.statistics().state == "waiting"
        b.stop()
        await wait_all_tasks_blocked()
        assert supervisor.state == "stopped"
        assert not a.is_alive()
        assert trio.current_time() < 1


async def test_inner_supervisor_that_shuts_itself_down_leaves_the_outer_one_running(
    autojump_clock,
):
    journal = []
    async with ActorSystem() as system:
        outer = await system.start_supervisor(
            SupervisorSpec("outer", (spec(journal, "a", "permanent", significant=False),))
        )
        inner = await system.start_supervisor(
            SupervisorSpec("inner", (spec(journal, "b"),), auto_shutdown="any_significant"), outer
        )
        inner.refs["b"].stop()
        await wait_all_tasks_blocked()
        assert inner.state == "stopped"
        assert outer.state == "running"
        assert outer.restarts == 0
        outer.refs["a"].kill()
        await wait_all_tasks_blocked()
        assert await outer.refs["a"].ask("x") == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: spec([], "a", "permanent"),
        lambda: SupervisorSpec("a", auto_shutdown="sometimes"),
        lambda: SupervisorSpec("a", (spec([], "a"),)),
    ],
    ids=["permanent", "unknown", "never"],
)
def test_malformed_significance_is_refused(make):
    with pytest.raises(ValueError, match=r"significant|auto_shutdown"):
        make()


async def test_significant_child_is_refused_by_a_supervisor_that_never_shuts_itself_down(
    autojump_clock,
):
    async with ActorSystem() as system:
        supervisor = await start(system, auto_shutdown="never")
        with pytest.raises(ValueError, match="significant"):
            await supervisor.start_child(spec([], "a"))
        assert supervisor.refs == {}


@pytest.mark.parametrize("auto_shutdown", SHUTDOWNS)
@pytest.mark.parametrize("strategy", ["one_for_one", "rest_for_one", "one_for_all"])
async def test_significant_child_that_is_stopped_as_it_fails_to_start_again_ends_its_supervisor(
    strategy, auto_shutdown, autojump_clock
):
    class Once(Worker):
        def on_start(self):
            if self.incarnation > 1:
                raise KeyError("again")

    async with ActorSystem() as system:
        supervisor = await start(
            system,
            spec([], "a", "permanent", significant=False),
            ChildSpec("b", Once, ([], "b"), restart="transient", significant=True),
            auto_shutdown=auto_shutdown,
            strategy=strategy,
            directives=((KeyError, "stop"),),
        )
        supervisor.refs["b"].kill()
        await wait_all_tasks_blocked()
        assert supervisor.state == "stopped"


async def test_two_significant_children_that_end_at_once_end_their_supervisor_once(
    autojump_clock,
):
    events = []
    async with ActorSystem(on_event=events.append) as system:
        supervisor = await start(system, spec([], "a"), spec([], "b"))
        for ref in supervisor.refs.values():
            ref.stop()
        await wait_all_tasks_blocked()
        assert supervisor.state == "stopped"
        assert [event.subject for event in events if event.kind == "shut_down"] == ["group"]
