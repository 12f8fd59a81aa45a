"""Stops of what handles nothing for now, times that are none, and what a constructor may do."""

from __future__ import annotations

import math
import threading
from typing import Any

import pykka
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from abeyance.actors.core import (
    ActorSystem,
    ChildSpec,
    HostedSystem,
    NameTakenError,
    SupervisorSpec,
    TrioActor,
)
from abeyance.actors.core.future import TrioFuture


class Poisoned(TrioActor):
    max_deliveries = 2
    past_deliveries = "park"

    def on_receive(self, message: Any) -> Any:
        if message:
            raise ValueError(message)


class Sibling(TrioActor):
    def on_receive(self, message: Any) -> Any:
        return self.incarnation


async def parked(system: ActorSystem, restart: Any, *, inner: bool = False) -> Any:
    """A parked group, and a child of it, or of a group under it, that runs nothing."""
    sibling = ChildSpec("sibling", Sibling, restart=restart)
    own = (ChildSpec("poisoned", Poisoned), *(() if inner else (sibling,)))
    group = await system.start_supervisor(
        SupervisorSpec("group", strategy="one_for_all", children=own)
    )
    below = group
    if inner:
        below = await system.start_supervisor(SupervisorSpec("inner", children=(sibling,)), group)
    return group, below.refs["sibling"]


@pytest.mark.parametrize("restart", ["permanent", "transient", "temporary"])
@pytest.mark.parametrize("now", [False, True], ids=["stop", "stop_now"])
@pytest.mark.parametrize("when", ["suspended", "plain", "below"])
async def test_stop_of_a_child_of_a_parked_group_is_answered(restart, now, when, autojump_clock):
    async with ActorSystem() as system:
        group, ref = await parked(system, restart, inner=when == "below")
        poison = ["poison"]
        group.refs["poisoned"].tell(poison)
        if when == "suspended":
            ref.suspend()
        await trio.sleep(5)
        assert group.state == "parked"
        if not ref.is_alive():
            return  # A temporary one has ended with its group.
        ref.tell("queued")
        with trio.fail_after(1):
            assert await ref.stop(now=now)
        assert ref.is_alive() is (restart == "permanent")
        if restart == "permanent":
            poison.clear()
            group.unpark()
            ref.resume()
            assert await ref.ask("x") > 1
        else:
            assert system.dead_letters.counts == {"stopped": 1}


async def test_stop_that_was_on_its_way_as_its_group_parked_is_answered(autojump_clock):
    class Slow(TrioActor):
        async def on_receive(self, message: Any) -> None:
            await trio.sleep(100)

    async with ActorSystem() as system:
        spec = SupervisorSpec(
            "group",
            strategy="one_for_all",
            children=(
                ChildSpec("poisoned", Poisoned),
                ChildSpec("slow", Slow, restart="transient", shutdown_s=0.5),
            ),
        )
        group = await system.start_supervisor(spec)
        slow = group.refs["slow"]
        slow.tell("first")
        await wait_all_tasks_blocked()
        slow.tell("second")
        stopped = slow.stop()
        group.refs["poisoned"].tell("poison")
        with trio.fail_after(10):
            assert await stopped
        assert group.state == "parked"
        assert not slow.is_alive()


@pytest.mark.parametrize("now", [False, True], ids=["stop", "stop_now"])
@pytest.mark.parametrize("restart", ["permanent", "transient"])
async def test_stop_of_a_child_that_was_added_to_a_parked_group_is_answered(
    restart, now, autojump_clock
):
    async with ActorSystem() as system:
        group, _ = await parked(system, "permanent")
        poison = ["poison"]
        group.refs["poisoned"].tell(poison)
        await trio.sleep(5)
        ref = await group.start_child(ChildSpec("more", Sibling, restart=restart))
        with trio.fail_after(1):
            assert await ref.stop(now=now)
        assert ref.is_alive() is (restart == "permanent")
        poison.clear()
        group.unpark()
        if restart == "permanent":
            assert await ref.ask("x") == 1


NONE = [True, False, math.nan, -1, -math.inf]
ENDLESS = [math.inf, 1e308, threading.TIMEOUT_MAX]


@pytest.mark.parametrize("timeout", NONE)
def test_time_to_wait_that_is_none_is_refused_by_its_name_before_any_effect(timeout):
    with HostedSystem() as hosted:
        ref = hosted.start(Sibling)
        for wait in (
            lambda: TrioFuture().get(timeout=timeout),
            lambda: TrioFuture().map(str).get(timeout=timeout),
            lambda: ref.stop(timeout=timeout),
            lambda: ref.stop(block=False, timeout=timeout),
            lambda: ref.actor_stopped.wait(timeout),
        ):
            with pytest.raises(ValueError, match="timeout must be at least 0"):
                wait()
        assert ref.ask("x") == 1


@pytest.mark.parametrize("timeout", ENDLESS)
def test_time_to_wait_that_is_longer_than_a_thread_can_wait_is_without_an_end(timeout):
    with HostedSystem() as hosted:
        ref = hosted.start(Sibling)
        assert ref.ask("x", block=False).get(timeout=timeout) == 1
        assert ref.stop(timeout=timeout)
        assert ref.actor_stopped.wait(timeout)


class Constructs(TrioActor):
    """Does in its constructor what any handler may."""

    def __init__(self, other: Any, got: list[Any]) -> None:
        self.other, self.got = other, got
        if self.incarnation < 2:
            self.watch(other)
            self.after(0.01, "tick")
            self.ask(other, "x", tag="asked")

    def on_start(self) -> None:
        self.got.append(self.incarnation)

    def on_ended(self, ended: Any) -> None:
        self.got.append("ended")

    def on_answer(self, answer: Any) -> None:
        self.got.append(answer.tag)

    def on_receive(self, message: Any) -> Any:
        if message == "boom":
            raise ValueError(message)
        self.got.append(message)


async def test_what_a_constructor_watches_asks_and_sets_comes_to_its_incarnation(autojump_clock):
    got: list[Any] = []
    async with ActorSystem() as system:
        other = system.start(Sibling)
        system.start(Constructs, other, got)
        await trio.sleep(0.1)
        assert got == [1, "asked", "tick"]
        await other.stop()
        await wait_all_tasks_blocked()
        assert got[-1] == "ended"


async def test_what_a_constructor_set_dies_with_its_incarnation(autojump_clock):
    got: list[Any] = []
    async with ActorSystem() as system:
        other = system.start(Sibling)
        other.suspend()
        spec = ChildSpec("constructs", Constructs, args=(other, got))
        group = await system.start_supervisor(SupervisorSpec("group", children=(spec,)))
        group.refs["constructs"].tell("boom")
        await wait_all_tasks_blocked()
        other.resume()
        await trio.sleep(0.1)
        await other.stop()
        await wait_all_tasks_blocked()
        assert got == [1, 2]


def test_what_a_constructor_on_a_host_thread_watches_and_sets_comes():
    got: list[Any] = []
    with HostedSystem() as hosted:
        other = hosted.start(Sibling)
        hosted.start(Constructs, other, got)
        while "tick" not in got:
            hosted.run(trio.sleep, 0.01)
        other.stop()
        hosted.run(wait_all_tasks_blocked)
    assert got[0] == 1
    assert sorted(got[1:]) == ["asked", "ended", "tick"]


async def test_timer_whose_delay_is_no_number_is_refused(autojump_clock):
    class Sets(TrioActor):
        def on_receive(self, message: Any) -> Any:
            self.after(message, "tick")

    async with ActorSystem() as system:
        with pytest.raises(ValueError, match="delay_s"):
            await system.start(Sets).ask(math.nan)


@pytest.mark.parametrize("runtime", ["threading", "trio"])
def test_documented_actor_is_out_of_the_registry_while_on_stop_runs(runtime):
    seen: list[Any] = []
    base: Any = TrioActor if runtime == "trio" else pykka.ThreadingActor

    class Looks(base):  # type: ignore[misc]
        def on_stop(self) -> None:
            seen.append(self.actor_ref in pykka.ActorRegistry.get_all())

    with HostedSystem():
        Looks.start().stop()
    assert seen == [False]


@pytest.mark.parametrize("future", [pykka.ThreadingFuture, TrioFuture])
def test_replaced_hook_yields_only_where_the_one_before_has_not(future):
    first = future()
    first.set_get_hook(lambda _timeout: 1)
    first.set_get_hook(lambda _timeout: 2)
    assert first.get() == 2
    first.set_get_hook(lambda _timeout: 3)
    assert first.get() == 2


@pytest.mark.parametrize("future", [pykka.ThreadingFuture, TrioFuture])
def test_exception_that_is_set_outside_an_except_block_tells_whoever_gets_it(future):
    empty = future()
    empty.set_exception()
    with pytest.raises(AssertionError):
        empty.get()


def test_on_failure_runs_where_on_start_fails():
    """Pykka's pages say it runs in the place of `on_stop`; its code leaves it out here."""
    seen = threading.Event()

    class Fails(TrioActor):
        def on_start(self) -> None:
            raise ValueError("start")

        def on_failure(self, *_info: Any) -> None:
            seen.set()

    with HostedSystem() as hosted:
        ref = hosted.start(Fails)
        assert ref.actor_stopped.wait(5)
    assert seen.is_set()


@pytest.mark.parametrize("where", ["group", "user"])
async def test_name_by_which_an_unnamed_actor_of_another_group_is_known_is_refused(where):
    async with ActorSystem() as system:
        spec = SupervisorSpec("other", children=(ChildSpec("child", Sibling),))
        unnamed = system.start(Sibling)
        if where == "user":
            unnamed = (await system.start_supervisor(spec)).refs["child"]
        taken = unnamed.name
        group = await system.start_supervisor(SupervisorSpec("group"))
        if where == "group":
            with pytest.raises(NameTakenError):
                await group.start_child(ChildSpec("named", Sibling, name=taken))
        else:
            with pytest.raises(NameTakenError):
                system.start(Sibling, name=taken)
        assert await unnamed.ask("x") == 1
        if where == "group":
            await unnamed.stop()
            named = await group.start_child(ChildSpec("named", Sibling, name=taken))
            assert named.name == taken
