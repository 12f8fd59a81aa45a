"""Children that fall while their group is busy: none is forgotten, and nobody waits for ever."""

from __future__ import annotations

from itertools import count, permutations, takewhile
from random import Random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from abeyance.actors.core import (
    ActorCrashError,
    ActorDeadError,
    ActorSystem,
    Backoff,
    ChildSpec,
    ChildStartError,
    IntensityExceededError,
    MailboxClosedError,
    NameTakenError,
    OutcomeUnknownError,
    Supervisor,
    SupervisorSpec,
    TrioActor,
)

STRATEGIES = ("one_for_one", "rest_for_one", "one_for_all")
PLAIN = Backoff(jitter=0.0)


class Asked(TrioActor):
    """Answers with its incarnation, once it has crashed as often as it was told to."""

    max_deliveries = 100

    @classmethod
    def make_kept(cls):
        return {"crashes": 0, "starts": []}

    def __init__(self, crashes=0):
        self.kept.setdefault("left", crashes)

    def on_start(self):
        self.kept["starts"].append(trio.current_time())

    async def on_receive(self, message):
        if message == "boom":
            raise ValueError("boom")
        if message == "crash on the next":
            self.kept["left"] = 1
            return None
        if self.kept["left"]:
            self.kept["left"] -= 1
            raise ActorCrashError("asked too early")
        return self.incarnation


class Needs(TrioActor):
    """Starts when another has answered; kept in `starts` is how often it tried."""

    max_deliveries = 100

    @classmethod
    def make_kept(cls):
        return {"starts": 0}

    def __init__(self, other):
        self.other = other

    async def on_start(self):
        self.kept["starts"] += 1
        await self.other.ask("x", timeout=float("inf"))

    def on_receive(self, message):
        return self.incarnation


class Slow(TrioActor):
    async def on_start(self):
        await trio.sleep(3)

    def on_receive(self, message):
        return self.incarnation


class Never(TrioActor):
    async def on_start(self):
        await trio.sleep_forever()


class Shielded(TrioActor):
    """Waits for another's reply where nothing can cancel it, as a commit is waited for."""

    @classmethod
    def make_kept(cls):
        return {"replies": []}

    def __init__(self, other):
        self.other = other

    async def on_receive(self, message):
        if message == "ask":
            with trio.CancelScope(shield=True):
                self.kept["replies"].append(await self.other.ask("x", timeout=float("inf")))
        return self.incarnation


def needs(id_="b", of="a"):
    return ChildSpec(id_, Needs, lambda refs: (refs[of],))


def states(supervisor):
    return {id_: ref.statistics().state for id_, ref in supervisor.refs.items()}


async def incarnations(supervisor):
    return [await ref.ask("x") for ref in supervisor.refs.values()]


async def soon(awaitable, seconds=30):
    """Await within a virtual time that is long, yet not for ever."""
    with trio.fail_after(seconds):
        return await awaitable


# -- a sibling that a starting child waits for


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_group_starts_when_a_child_falls_that_a_starting_sibling_waits_for(
    strategy, autojump_clock
):
    async with ActorSystem() as system:
        children = (ChildSpec("a", Asked, (1,)), needs(), ChildSpec("c", Asked))
        supervisor = await soon(
            system.start_supervisor(SupervisorSpec("group", children, strategy=strategy))
        )
        assert supervisor.statistics().restarts == 1
        again = 1 if strategy == "one_for_one" else 2
        assert await incarnations(supervisor) == [2, again, 1]
        assert supervisor.refs["b"]._cell.kept["starts"] == again


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_start_child_returns_when_a_sibling_falls_that_the_child_waits_for(
    strategy, autojump_clock
):
    async with ActorSystem() as system:
        spec = SupervisorSpec("group", (ChildSpec("a", Asked, (1,)),), strategy=strategy)
        supervisor = await system.start_supervisor(spec)
        ref = await soon(supervisor.start_child(needs()))
        assert supervisor.refs["b"] is ref
        assert supervisor.statistics().restarts == 1
        assert await incarnations(supervisor) == [2, 1 if strategy == "one_for_one" else 2]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("how", ["restart", "unpark", "parent"])
async def test_group_that_restarts_goes_round_when_a_child_falls_that_another_waits_for(
    strategy, how, autojump_clock
):
    async with ActorSystem() as system:
        supervisor = await system.start_supervisor(
            SupervisorSpec(
                "group",
                (ChildSpec("a", Asked), needs(), ChildSpec("c", Asked)),
                strategy=strategy,
                intensity=3 if how == "restart" else 0,
                backoff=PLAIN,
                on_exhausted="park" if how == "unpark" else "escalate",
            )
        )
        a, b, c = supervisor.refs.values()
        await a.ask("crash on the next")
        if how == "restart":
            b.kill()
        else:
            c.kill()
            await wait_all_tasks_blocked()
            supervisor.spec = SupervisorSpec("group", strategy=strategy, backoff=PLAIN)
        if how == "unpark":
            assert supervisor.unpark()
        await trio.sleep(10)
        assert supervisor.state == "running"
        # Of a restart by b, a is part only where all are.
        again = 2 if how == "restart" and strategy != "one_for_all" else 3
        assert await soon(a.ask("x")) == again
        for ref in (b, c):
            assert await soon(ref.ask("x"))


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_start_of_a_group_fails_when_its_intensity_is_exceeded_meanwhile(
    strategy, autojump_clock
):
    class Hopeless(Asked):
        max_deliveries = 1

        def on_receive(self, message):
            raise ActorCrashError("always")

    class Persists(Needs):
        async def on_start(self):
            while True:
                try:
                    await self.other.ask("x", timeout=float("inf"))
                except ActorCrashError:
                    await trio.sleep(0.1)

    async with ActorSystem() as system:
        children = (
            ChildSpec("a", Hopeless),
            ChildSpec("b", Persists, lambda refs: (refs["a"],)),
        )
        with pytest.raises(ChildStartError) as caught:
            await soon(
                system.start_supervisor(
                    SupervisorSpec("group", children, strategy=strategy, intensity=2)
                )
            )
        assert caught.value.child == "b"
        assert isinstance(caught.value.__cause__, IntensityExceededError)
        assert isinstance(caught.value.__cause__.__cause__, ActorCrashError)
        await wait_all_tasks_blocked()
        assert system.statistics().actors == 0
        assert "group" not in system.root._children


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("on_exhausted", ["park", "escalate"])
async def test_start_child_fails_and_the_group_parks_or_escalates_past_its_intensity(
    strategy, on_exhausted, autojump_clock
):
    async with ActorSystem() as system:
        supervisor = await system.start_supervisor(
            SupervisorSpec(
                "group",
                (ChildSpec("a", Asked, (1,)),),
                strategy=strategy,
                intensity=0,
                on_exhausted=on_exhausted,
            )
        )
        with pytest.raises(ChildStartError) as caught:
            await soon(supervisor.start_child(needs()))
        assert isinstance(caught.value.__cause__, IntensityExceededError)
        assert list(supervisor.refs) == ["a"]
        await trio.sleep(1)
        if on_exhausted == "park":
            assert supervisor.state == "parked"
            assert supervisor.unpark()
        assert await soon(supervisor.refs["a"].ask("x")) == 2


async def test_child_that_waits_for_a_group_that_escalates_is_started_again(autojump_clock):
    async with ActorSystem() as system:
        outer = await system.start_supervisor(SupervisorSpec("outer"))
        inner = await system.start_supervisor(
            SupervisorSpec("inner", (ChildSpec("a", Asked, (1,)),), intensity=0), parent=outer
        )
        a = inner.refs["a"]
        await soon(outer.start_child(ChildSpec("b", Needs, (a,))))
        assert outer.statistics().restarts == 1
        assert await incarnations(inner) + await incarnations(outer) == [2, 2]


async def test_inner_group_gives_its_start_up_when_the_outer_one_restarts(autojump_clock):
    async with ActorSystem() as system:
        outer = await system.start_supervisor(
            SupervisorSpec("outer", (ChildSpec("a", Asked, (1,)),), intensity=0)
        )
        a = outer.refs["a"]
        with pytest.raises(ChildStartError):
            await soon(
                system.start_supervisor(
                    SupervisorSpec("inner", (ChildSpec("b", Needs, (a,)),)), parent=outer
                )
            )
        assert await soon(a.ask("x")) == 2
        await soon(
            system.start_supervisor(
                SupervisorSpec("inner", (ChildSpec("b", Needs, (a,)),)), parent=outer
            )
        )


# -- several that fall


FALLS = ["".join(order) for length in (2, 3) for order in permutations("abc", length)]
AFFECTED = {
    "one_for_one": lambda fallen: set(fallen),
    "rest_for_one": lambda fallen: set("abc"["abc".index(min(fallen)) :]),
    "one_for_all": lambda _fallen: set("abc"),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("fallen", FALLS)
@pytest.mark.parametrize("during", ["start_child", "stop_child"])
async def test_every_child_that_falls_while_the_group_is_busy_is_decided_on(
    strategy, fallen, during, autojump_clock
):
    class Lingers(Asked):
        async def on_stop(self):
            await trio.sleep(3)

    async with ActorSystem() as system:
        children = tuple(ChildSpec(name, Asked) for name in "abc")
        supervisor = await system.start_supervisor(
            SupervisorSpec(
                "group",
                (*children, ChildSpec("z", Lingers)),
                strategy=strategy,
                intensity=50,
                backoff=PLAIN,
            )
        )
        async with trio.open_nursery() as nursery:
            if during == "start_child":
                nursery.start_soon(supervisor.start_child, ChildSpec("slow", Slow))
            else:
                nursery.start_soon(supervisor.stop_child, "z")
            await trio.sleep(1)
            for name in fallen:
                supervisor.refs[name].kill()
                await wait_all_tasks_blocked()
        await trio.sleep(20)
        refs = supervisor.refs
        assert set(states(supervisor).values()) == {"running"}
        restarted = {name for name in "abc" if await soon(refs[name].ask("x")) > 1}
        assert restarted == AFFECTED[strategy](fallen)


async def test_child_that_fell_later_but_started_sooner_takes_the_others_with_it(autojump_clock):
    async with ActorSystem() as system:
        supervisor = await system.start_supervisor(
            SupervisorSpec(
                "group", tuple(ChildSpec(name, Asked) for name in "abc"), strategy="rest_for_one"
            )
        )
        for name in "ba":
            supervisor.refs[name].kill()
        await trio.sleep(5)
        assert await incarnations(supervisor) == [2, 2, 2]
        assert supervisor.statistics().restarts == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_poison_parks_the_group_though_another_fall_restarts_its_child(
    strategy, autojump_clock
):
    class Poisoned(Asked):
        max_deliveries = 2
        past_deliveries = "park"

    async with ActorSystem() as system:
        supervisor = await system.start_supervisor(
            SupervisorSpec(
                "group",
                (ChildSpec("a", Asked), ChildSpec("b", Poisoned)),
                strategy=strategy,
                backoff=PLAIN,
            )
        )
        supervisor.refs["b"].tell("boom")
        supervisor.refs["b"].tell("behind")
        await trio.lowlevel.checkpoint()
        supervisor.refs["a"].kill()
        await trio.sleep(10)
        assert supervisor.state == "parked"
        assert supervisor.refs["b"].statistics().queued == 2


async def test_unparked_group_starts_those_behind_a_child_that_fails_to_start(autojump_clock):
    class Fails(Asked):
        def on_start(self):
            self.kept["crashes"] += 1
            if self.kept["crashes"] == 2:
                raise ValueError("the second time")

    async with ActorSystem() as system:
        supervisor = await system.start_supervisor(
            SupervisorSpec(
                "group",
                (ChildSpec("a", Asked), ChildSpec("b", Fails), ChildSpec("c", Asked)),
                intensity=0,
                on_exhausted="park",
            )
        )
        supervisor.refs["a"].kill()
        await wait_all_tasks_blocked()
        supervisor.spec = SupervisorSpec("group")
        assert supervisor.unpark()
        await trio.sleep(1)
        assert states(supervisor) == dict.fromkeys("abc", "running")
        assert await incarnations(supervisor) == [2, 3, 2]


@pytest.mark.parametrize("strategy", ["rest_for_one", "one_for_all"])
async def test_child_that_falls_as_soon_as_it_has_started_is_started_again(
    strategy, autojump_clock
):
    async with ActorSystem() as system:
        supervisor = await system.start_supervisor(
            SupervisorSpec(
                "group",
                tuple(ChildSpec(name, Asked) for name in "ab"),
                strategy=strategy,
                intensity=50,
                backoff=PLAIN,
            )
        )
        a = supervisor.refs["a"]
        a.kill()
        a.tell("boom")
        answer = a.ask("x")
        await trio.sleep(500)
        assert states(supervisor) == dict.fromkeys("ab", "running")
        assert answer.settled


# -- stopping what is busy


@pytest.mark.parametrize("during", ["start", "start_child", "restart"])
async def test_stop_of_a_supervisor_does_not_wait_for_a_start_that_never_ends(
    during, autojump_clock
):
    class NeverAgain(TrioActor):
        async def on_start(self):
            if self.incarnation > 1:
                await trio.sleep_forever()

    async def start():
        with pytest.raises(ActorDeadError):
            await system.start_supervisor(
                SupervisorSpec("group", (ChildSpec("a", Asked), ChildSpec("b", Never)))
            )

    async def start_child():
        with pytest.raises(ActorDeadError):
            await supervisor.start_child(ChildSpec("c", Never))

    async with ActorSystem() as system, trio.open_nursery() as nursery:
        if during == "start":
            nursery.start_soon(start)
            await wait_all_tasks_blocked()
            supervisor = system.root._children["group"]
        else:
            supervisor = await system.start_supervisor(
                SupervisorSpec(
                    "group",
                    (ChildSpec("a", Asked), ChildSpec("b", NeverAgain)),
                    strategy="rest_for_one",
                )
            )
            if during == "start_child":
                nursery.start_soon(start_child)
            else:
                supervisor.refs["a"].kill()
            await wait_all_tasks_blocked()
        began = trio.current_time()
        await soon(supervisor.stop())
        assert trio.current_time() == began
        assert system.statistics().actors == 0


@pytest.mark.parametrize("how", ["leave", "raise"])
async def test_leaving_the_block_does_not_wait_for_a_start_that_never_ends(how, autojump_clock):
    began = trio.current_time()
    ended = []

    async def start_child(supervisor):
        try:
            await supervisor.start_child(ChildSpec("c", Never))
        except ActorDeadError:
            ended.append("refused")

    async with trio.open_nursery() as nursery:
        try:
            async with ActorSystem() as system:
                supervisor = await system.start_supervisor(SupervisorSpec("group"))
                nursery.start_soon(start_child, supervisor)
                await wait_all_tasks_blocked()
                if how == "raise":
                    raise KeyError("mine")
        except KeyError:
            pass
    assert ended == ["refused"]
    assert trio.current_time() == began


async def test_stop_that_is_cancelled_stops_the_group_all_the_same(autojump_clock):
    async with ActorSystem() as system:
        children = (ChildSpec("a", Asked), ChildSpec("b", Asked))
        supervisor = await system.start_supervisor(SupervisorSpec("group", children))
        with trio.CancelScope() as scope:
            scope.cancel()
            await supervisor.stop()
        await wait_all_tasks_blocked()
        assert supervisor.state == "stopped"
        assert system.statistics().actors == 0


async def test_stop_child_cuts_the_start_of_a_child_short(autojump_clock):
    async def start_child():
        with pytest.raises(ChildStartError):
            await supervisor.start_child(ChildSpec("x", Never))

    async with ActorSystem() as system:
        supervisor = await system.start_supervisor(SupervisorSpec("group"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(start_child)
            await wait_all_tasks_blocked()
            await soon(supervisor.stop_child("x"))
        assert supervisor.refs == {}
        assert system.statistics().actors == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_start_child_that_is_cancelled_while_the_group_goes_round_leaves_the_others_running(
    strategy, autojump_clock
):
    async with ActorSystem() as system:
        children = (ChildSpec("a", Asked), ChildSpec("b", Slow))
        supervisor = await system.start_supervisor(
            SupervisorSpec("group", children, strategy=strategy)
        )
        with trio.move_on_after(2):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(supervisor.start_child, ChildSpec("x", Never))
                await trio.sleep(1)
                supervisor.refs["a"].kill()
                await trio.sleep_forever()
        await trio.sleep(5)
        assert states(supervisor) == dict.fromkeys("ab", "running")
        assert system.statistics().actors == 2


# -- handlers that nothing can cancel


@pytest.mark.parametrize("on_exhausted", ["park", "escalate"])
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_group_past_its_intensity_does_not_wait_for_a_shielded_wait_for_its_fallen_child(
    strategy, on_exhausted, autojump_clock
):
    async with ActorSystem() as system:
        supervisor = await system.start_supervisor(
            SupervisorSpec(
                "group",
                (
                    ChildSpec("a", Asked, (1,)),
                    ChildSpec("b", Shielded, lambda refs: (refs["a"],), shutdown_s=1.0),
                ),
                strategy=strategy,
                intensity=0,
                on_exhausted=on_exhausted,
            )
        )
        a, b = supervisor.refs.values()
        b.tell("ask")
        await trio.sleep(5)
        if on_exhausted == "park":
            assert supervisor.state == "parked"
            assert supervisor.unpark()
        assert await soon(a.ask("x")) == 2
        assert await soon(b.ask("x")) == 2
        # What it waited for came, when its incarnation was long to end.
        assert b._cell.kept["replies"] == [2]


async def test_stop_of_a_parked_group_ends_a_shielded_wait_for_its_fallen_child(autojump_clock):
    async with ActorSystem() as system:
        supervisor = await system.start_supervisor(
            SupervisorSpec(
                "group",
                (
                    ChildSpec("a", Asked, (1,)),
                    ChildSpec("b", Shielded, lambda refs: (refs["a"],), shutdown_s=1.0),
                ),
                intensity=0,
                on_exhausted="park",
            )
        )
        supervisor.refs["b"].tell("ask")
        await wait_all_tasks_blocked()
        await soon(supervisor.stop(), 5)
        assert system.statistics().actors == 0


async def test_unpark_of_a_group_that_stops_does_nothing(autojump_clock):
    unparked = []

    def look(event):
        if event.kind == "stopped":
            unparked.append(supervisor.unpark())

    async with ActorSystem(on_event=look) as system:
        children = (ChildSpec("a", Asked), ChildSpec("b", Asked))
        supervisor = await system.start_supervisor(
            SupervisorSpec("group", children, intensity=0, on_exhausted="park")
        )
        supervisor.refs["a"].kill()
        await wait_all_tasks_blocked()
        await supervisor.stop()
        assert unparked == [False, False]


async def test_block_is_left_though_an_inner_group_waits_shielded_for_the_outer_one(
    autojump_clock,
):
    async with ActorSystem() as system:
        outer = await system.start_supervisor(
            SupervisorSpec(
                "outer", (ChildSpec("a", Asked, (1,)),), intensity=0, on_exhausted="park"
            )
        )
        inner = await system.start_supervisor(
            SupervisorSpec(
                "inner", (ChildSpec("b", Shielded, (outer.refs["a"],), shutdown_s=1.0),)
            ),
            parent=outer,
        )
        inner.refs["b"].tell("ask")
        await wait_all_tasks_blocked()
        began = trio.current_time()
    assert trio.current_time() - began < 15


async def test_stop_child_lets_the_group_go_on_when_its_child_cannot_be_ended(autojump_clock):
    async with ActorSystem() as system:
        supervisor = await system.start_supervisor(
            SupervisorSpec(
                "group",
                (
                    ChildSpec("a", Asked, (1,)),
                    ChildSpec("b", Shielded, lambda refs: (refs["a"],), shutdown_s=1.0),
                ),
                strategy="rest_for_one",
            )
        )
        b = supervisor.refs["b"]
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(supervisor.stop_child, "b")
                b.tell("ask")
                await trio.sleep(10)
                scope.cancel()
        assert await soon(supervisor.refs["a"].ask("x")) == 2
        await trio.sleep(5)
        assert not b.is_alive()


# -- groups at rest


async def test_child_that_is_started_in_a_group_at_rest_starts_with_the_others(autojump_clock):
    async with ActorSystem() as system:
        outer = await system.start_supervisor(
            SupervisorSpec(
                "outer",
                (ChildSpec("a", Asked),),
                strategy="one_for_all",
                backoff=Backoff(5, 5, 1, 0),
            )
        )
        inner = await system.start_supervisor(
            SupervisorSpec("inner", (ChildSpec("b", Asked),)), parent=outer
        )
        outer.refs["a"].kill()
        await trio.sleep(1)
        outer.refs["a"].kill()
        await trio.sleep(1)
        assert states(inner) == {"b": "held"}
        ref = await soon(inner.start_child(ChildSpec("x", Needs, (inner.refs["b"],))), 1)
        with pytest.raises(NameTakenError):
            await inner.start_child(ChildSpec("x", Asked))
        assert await soon(ref.ask("x")) == 1
        assert await soon(inner.refs["b"].ask("x")) == 3


async def test_group_that_is_started_under_one_at_rest_does_not_hold_it_up(autojump_clock):
    async with ActorSystem() as system:
        outermost = await system.start_supervisor(
            SupervisorSpec(
                "outermost",
                (ChildSpec("a", Asked),),
                strategy="one_for_all",
                backoff=Backoff(5, 5, 1, 0),
            )
        )
        outer = await system.start_supervisor(
            SupervisorSpec("outer", (ChildSpec("b", Asked),)), parent=outermost
        )
        outermost.refs["a"].kill()
        await trio.sleep(1)
        outermost.refs["a"].kill()
        await trio.sleep(1)
        inner = await soon(
            system.start_supervisor(SupervisorSpec("inner", (ChildSpec("c", Asked),)), parent=outer)
        )
        await trio.sleep(10)
        assert states(outermost) | states(outer) | states(inner) == dict.fromkeys("abc", "running")
        assert await soon(outermost.start_child(ChildSpec("d", Asked)))


async def test_unpark_under_a_group_at_rest_waits_for_it(autojump_clock):
    async with ActorSystem() as system:
        outer = await system.start_supervisor(
            SupervisorSpec(
                "outer",
                (ChildSpec("a", Asked),),
                strategy="one_for_all",
                backoff=Backoff(5, 5, 1, 0),
            )
        )
        inner = await system.start_supervisor(
            SupervisorSpec("inner", (ChildSpec("b", Asked),), intensity=0, on_exhausted="park"),
            parent=outer,
        )
        outer.refs["a"].kill()
        await trio.sleep(1)
        inner.refs["b"].kill()
        await trio.sleep(1)
        outer.refs["a"].kill()
        await trio.sleep(1)
        assert inner.unpark()
        await trio.sleep(1)
        assert states(outer) | states(inner) == dict.fromkeys("ab", "held")
        await trio.sleep(10)
        assert states(outer) | states(inner) == dict.fromkeys("ab", "running")


async def test_start_child_right_after_an_unpark_waits_for_none_that_is_held(autojump_clock):
    async with ActorSystem() as system:
        for n in range(10):  # Which of the two tasks runs first is drawn by trio.
            supervisor = await system.start_supervisor(
                SupervisorSpec(
                    f"group {n}", (ChildSpec("a", Asked),), intensity=0, on_exhausted="park"
                )
            )
            supervisor.refs["a"].kill()
            await wait_all_tasks_blocked()
            assert supervisor.unpark()
            ref = await soon(supervisor.start_child(needs()))
            assert await soon(ref.ask("x")) == 1


async def test_child_of_a_group_at_rest_keeps_no_drain_waiting(autojump_clock):
    async with ActorSystem() as system:
        supervisor = await system.start_supervisor(
            SupervisorSpec("group", (ChildSpec("a", Asked),), intensity=0, on_exhausted="park")
        )
        supervisor.refs["a"].kill()
        await wait_all_tasks_blocked()
        ref = await supervisor.start_child(ChildSpec("b", Asked))
        ref.tell("x")
        began = trio.current_time()
        report = await system.shutdown()
        assert trio.current_time() == began
        assert report.left == {ref.name: 1}


# -- children that fall while others end


@pytest.mark.parametrize("why", ["stop", "failed start"])
async def test_child_that_falls_while_its_group_stops_is_not_started_again(why, autojump_clock):
    class Lingers(Asked):
        async def on_stop(self):
            await trio.sleep(3)

    class Fails(TrioActor):
        def on_start(self):
            raise ValueError("it never starts")

    async def start():
        with pytest.raises(ChildStartError):
            await system.start_supervisor(
                SupervisorSpec("group", (*children, ChildSpec("c", Fails)))
            )

    children = (ChildSpec("a", Asked, name="a"), ChildSpec("b", Lingers))
    async with ActorSystem() as system, trio.open_nursery() as nursery:
        if why == "stop":
            supervisor = await system.start_supervisor(SupervisorSpec("group", children))
            nursery.start_soon(supervisor.stop)
        else:
            nursery.start_soon(start)
        await trio.sleep(1)
        a = system.find("a")
        a.kill()
        await wait_all_tasks_blocked()
        assert not a.is_alive()
        assert len(a._cell.kept["starts"]) == 1


async def test_child_that_falls_while_its_parent_halts_its_group_starts_with_the_others(
    autojump_clock,
):
    class Lingers(Asked):
        async def on_stop(self):
            await trio.sleep(3)

    async with ActorSystem() as system:
        outer = await system.start_supervisor(
            SupervisorSpec("outer", (ChildSpec("z", Asked),), strategy="one_for_all")
        )
        inner = await system.start_supervisor(
            SupervisorSpec("inner", (ChildSpec("a", Asked), ChildSpec("b", Lingers))),
            parent=outer,
        )
        outer.refs["z"].kill()
        await trio.sleep(1)
        inner.refs["a"].kill()
        await trio.sleep(10)
        assert await incarnations(outer) + await incarnations(inner) == [2, 2, 2]
        assert inner.statistics().restarts == 0


async def test_stop_does_not_wait_for_the_backoff_of_a_restart(autojump_clock):
    async with ActorSystem() as system:
        supervisor = await system.start_supervisor(
            SupervisorSpec(
                "group",
                (ChildSpec("a", Asked),),
                strategy="one_for_all",
                backoff=Backoff(100, 100, 1, 0),
            )
        )
        for _ in range(2):
            supervisor.refs["a"].kill()
            await wait_all_tasks_blocked()
        began = trio.current_time()
        await supervisor.stop()
        assert trio.current_time() == began


async def test_block_does_not_wait_for_backoffs_once_the_stop_is_past_its_deadline(
    autojump_clock,
):
    class Deaf(TrioActor):
        async def on_receive(self, message):
            with trio.CancelScope(shield=True):
                await trio.sleep(20)

    async with ActorSystem() as system:
        outer = await system.start_supervisor(SupervisorSpec("outer"))
        supervisor = await system.start_supervisor(
            SupervisorSpec(
                "group",
                (ChildSpec("a", Asked),),
                strategy="one_for_all",
                backoff=Backoff(1000, 1000, 1, 0),
            ),
            parent=outer,
        )
        deaf = ChildSpec("deaf", Deaf, shutdown_s=30)
        later = await system.start_supervisor(SupervisorSpec("later", (deaf,)))
        for _ in range(2):
            supervisor.refs["a"].kill()
            await wait_all_tasks_blocked()
        later.refs["deaf"].tell("x")
        began = trio.current_time()
        await system.shutdown(phase_s={"drain": 1, "settle": 1, "stop": 5})
    assert trio.current_time() - began == 20


async def test_stop_child_ends_a_held_child_though_the_group_waits_for_a_start(autojump_clock):
    class NeedsLater(TrioActor):
        @classmethod
        def make_kept(cls):
            return []

        async def on_start(self):
            later = system.find("later")
            if later is not None:
                try:
                    await later.ask("x", timeout=float("inf"))
                except ActorDeadError:
                    self.kept.append("refused")

    async with ActorSystem() as system:
        supervisor = await system.start_supervisor(
            SupervisorSpec(
                "group",
                (ChildSpec("a", NeedsLater), ChildSpec("b", Asked, name="later")),
                strategy="one_for_all",
            )
        )
        supervisor.refs["a"].kill()
        await wait_all_tasks_blocked()
        assert states(supervisor)["b"] == "held"
        await soon(supervisor.stop_child("b"))
        assert supervisor.refs["a"]._cell.kept == ["refused"]


# -- halting and launching one child


async def test_halt_of_an_actor_that_was_just_started_does_not_end_its_first_incarnation(
    autojump_clock,
):
    async with ActorSystem() as system:
        ref = system.start(Asked)
        await ref._cell.halt()
        assert ref.statistics().state == "held"
        await ref._cell.release_hold()
        assert await ref.ask("x") == 1


async def test_launch_that_is_cancelled_leaves_the_child_held(autojump_clock):
    class NeverAgain(Asked):
        async def on_start(self):
            if self.incarnation == 2:
                await trio.sleep_forever()

    async with ActorSystem() as system:
        supervisor = await system.start_supervisor(
            SupervisorSpec("group", (ChildSpec("a", NeverAgain),))
        )
        child = supervisor._children["a"]
        await child.halt()
        with trio.move_on_after(1):
            await child.launch()
        await trio.sleep(1)
        assert states(supervisor) == {"a": "held"}
        assert await child.launch() is None
        assert await child.launch() is None
        assert await incarnations(supervisor) == [3]


async def test_kill_of_one_incarnation_takes_no_time_to_stop_from_the_next(autojump_clock):
    ended = []

    class Works(Asked):
        def __init__(self, name):
            super().__init__()
            self.name = name

        async def on_receive(self, message):
            await trio.sleep(3)

        def on_stop(self):
            ended.append(self.name)

    async with ActorSystem() as system:
        supervisor = await system.start_supervisor(
            SupervisorSpec("group", tuple(ChildSpec(name, Works, (name,)) for name in "ab"))
        )
        b = supervisor.refs["b"]
        b.kill()
        await trio.sleep(20)
        b.tell("x")
        await wait_all_tasks_blocked()
        await supervisor.stop()
    assert ended == ["b", "a"]


async def test_child_that_could_not_be_ended_is_given_no_second_shutdown_time(autojump_clock):
    async with ActorSystem() as system:
        supervisor = await system.start_supervisor(
            SupervisorSpec(
                "group",
                (
                    ChildSpec("a", Asked, (1,)),
                    ChildSpec("b", Shielded, lambda refs: (refs["a"],), shutdown_s=4.0),
                ),
                intensity=0,
            )
        )
        supervisor.refs["b"].tell("ask")
        await wait_all_tasks_blocked()
        began = trio.current_time()
        assert await supervisor.refs["a"].ask("x") == 2
        assert trio.current_time() - began == 8


# -- any order of events


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", range(8))
async def test_whatever_falls_and_comes_and_goes_every_child_runs_in_the_end(
    seed, strategy, autojump_clock
):
    print(f"seed {seed}")
    random = Random(f"{seed} {strategy}")
    # Trio shuffles the tasks that are ready: by this seed too.
    trio._core._run._r.seed(seed)
    names = count()

    calm: list[bool] = []

    class Unruly(TrioActor):
        """Starts quickly, slowly, not every time, or when one that started before it answers."""

        max_deliveries = 3

        def __init__(self, earlier):
            self.earlier = earlier

        async def on_start(self):
            await trio.sleep(random.choice([0, 0, 0.5, 2]))
            if self.incarnation > 1 and not calm and random.random() < 0.2:
                raise ValueError("not this time")
            if self.earlier:
                with trio.CancelScope(shield=random.random() < 0.3):
                    await self.ask_one()

        async def ask_one(self):
            try:
                await random.choice(self.earlier).ask("x", timeout=float("inf"))
            except (ActorCrashError, ActorDeadError, OutcomeUnknownError, MailboxClosedError):
                await trio.lowlevel.checkpoint()

        async def on_receive(self, message):
            if message == "boom":
                raise ActorCrashError("boom")
            if message == "ask" and self.earlier:
                with trio.CancelScope(shield=True):
                    await self.ask_one()
            return self.incarnation

    def spec():
        name = f"child {next(names)}"

        def args(refs):
            earlier = takewhile(lambda id_: id_ != name, refs)
            return ([refs[id_] for id_ in earlier][:2],)

        return ChildSpec(
            name,
            Unruly,
            args,
            shutdown_s=random.choice([0, 1]),
        )

    def group(intensity=3):
        return SupervisorSpec(
            f"group {next(names)}",
            tuple(spec() for _ in range(3)),
            strategy=strategy,
            intensity=intensity,
            backoff=Backoff(0.1, 1.0),
            on_exhausted=random.choice(["escalate", "park"]),
        )

    async def attempt(afn, *args):
        with trio.move_on_after(random.choice([0.5, 5, 100])):
            try:
                supervisor = await afn(*args)
            except (ChildStartError, ActorDeadError, KeyError):
                return
            if isinstance(supervisor, Supervisor):
                groups.append(supervisor)

    async with ActorSystem(seed=seed) as system:
        outer = await system.start_supervisor(group(10_000))
        groups = [outer, await system.start_supervisor(group(), outer)]
        async with trio.open_nursery() as nursery:
            for _ in range(60):
                supervisor = random.choice(groups)
                refs = list(supervisor.refs.items())
                id_, ref = random.choice(refs) if refs else ("none", None)
                match random.randrange(9):
                    case 0 if ref:
                        ref.kill()
                    case 1 if ref and ref.is_alive():
                        ref.tell("boom")
                    case 2 if ref and ref.is_alive():
                        ref.tell("ask")
                    case 3 if ref:
                        ref.stop()
                    case 4:
                        nursery.start_soon(attempt, supervisor.start_child, spec())
                    case 5 if len(refs) > 2:
                        nursery.start_soon(attempt, supervisor.stop_child, id_)
                    case 6:
                        supervisor.unpark()
                    case 7 if supervisor.state != "stopped":
                        nursery.start_soon(attempt, system.start_supervisor, group(), supervisor)
                    case 8 if len(groups) > 3 and supervisor is not outer:
                        nursery.start_soon(attempt, supervisor.stop)
                await trio.sleep(random.choice([0, 0, 0.1, 1]))
        calm.append(True)
        while any([await settled(supervisor) for supervisor in groups]):
            pass
        living = [supervisor for supervisor in groups if supervisor.state != "stopped"]
        assert outer in living
        running = [state for supervisor in living for state in states(supervisor).values()]
        assert set(running) <= {"running"}
        assert len(system.actors()) == len(running)
        began = trio.current_time()
    assert trio.current_time() - began < 10


async def settled(supervisor):
    """Give a group its time; return whether it has to be given more."""
    await trio.sleep(100)
    return supervisor.unpark()
