"""Waiting for an end that waits for whoever waits: refused, with the ring named."""

from __future__ import annotations

import contextvars
import math
import threading
from typing import Any

import pykka
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from abeyance.actors.core import (
    LATER,
    ActorSystem,
    AskCycleError,
    ChildSpec,
    HostedSystem,
    OutcomeUnknownError,
    StopCycleError,
    SupervisorSpec,
    TrioActor,
    in_chain,
)
from abeyance.actors.core.waits import check_end


class Does(TrioActor):
    """Runs what it is sent, with itself as the argument."""

    last: Any = None

    async def on_receive(self, message: Any) -> Any:
        if not callable(message):
            return message
        result = message(self)
        return await result if hasattr(result, "__await__") else result

    async def on_stop(self) -> None:
        if self.last is not None:
            await self.last(self)


async def _stop(ref: Any) -> Any:
    return await ref.stop()


async def _stop_now(ref: Any) -> Any:
    return await ref.stop(now=True)


async def _stopped(ref: Any) -> Any:
    return await ref.stopped()


async def _nursery(ref: Any) -> Any:
    caught: list[Any] = []

    async def child() -> None:
        try:
            await ref.stop()
        except StopCycleError as error:
            caught.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(child)
    raise caught[0]


async def _thread(ref: Any) -> Any:
    return await trio.to_thread.run_sync(ref.stop)


async def _thread_of_the_hosts(ref: Any) -> Any:
    """As a library's pool that copies the context, whose thread nobody awaits in trio."""
    found: list[Any] = []
    done = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def work() -> None:
        try:
            found.append(ref.stop())
        except StopCycleError as error:
            found.append(error)
        token.run_sync_soon(done.set)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(work,), daemon=True).start()
    await done.wait()
    raise found[0]


async def _flag(ref: Any) -> Any:
    return await trio.to_thread.run_sync(ref.actor_stopped.wait)


async def _registry(_: Any) -> Any:
    return await trio.to_thread.run_sync(pykka.ActorRegistry.stop_all)


async def _block(ref: Any) -> Any:
    def work() -> None:
        with ref:
            pass

    return await trio.to_thread.run_sync(work)


WAYS = [
    _stop,
    _stop_now,
    _stopped,
    _nursery,
    _thread,
    _thread_of_the_hosts,
    _flag,
    _registry,
    _block,
]


@pytest.mark.parametrize("wait", WAYS)
async def test_actor_that_waits_for_its_own_end_is_refused_with_the_ring(wait):
    async with ActorSystem() as system:
        ref = system.start(Does, name="one")
        if wait is _registry:
            pykka.ActorRegistry.register(ref)
        with trio.fail_after(5), pytest.raises(StopCycleError) as caught:
            await ref.ask(lambda actor: wait(actor.actor_ref))
        pykka.ActorRegistry.unregister(ref)
        assert caught.value.ring == ("one", "one")
        assert isinstance(caught.value, AskCycleError)
        assert caught.value.message is None
        # Nothing was done: it runs on, and is stopped by somebody else.
        assert await ref.ask("x") == "x"
        assert not ref._cell.waits
        assert await ref.stop() is True


@pytest.mark.parametrize("wait", [_stop, _stop_now, _stopped, _nursery, _thread, _flag])
async def test_stop_that_closes_a_ring_of_asks_is_refused_before_any_effect(wait):
    async with ActorSystem() as system:
        one, two, three = (system.start(Does, name=name) for name in ("one", "two", "three"))

        async def asks(_: Any) -> Any:
            return await two.ask(lambda _: three.ask(lambda _: wait(one)))

        with trio.fail_after(5), pytest.raises(StopCycleError) as caught:
            await one.ask(asks)
        assert caught.value.ring == ("one", "two", "three", "one")
        for ref in (one, two, three):
            assert await ref.ask("x") == "x"
            assert not ref._cell.waits


async def test_stop_of_who_is_named_in_the_chain_is_refused():
    async with ActorSystem() as system:
        one = system.start(Does, name="one")
        with in_chain("one"), pytest.raises(StopCycleError):
            await one.stop()
        assert await one.stop() is True


async def test_stop_without_waiting_is_asked_for_and_raises_where_it_is_waited_for():
    async with ActorSystem() as system:
        one = system.start(Does, name="one")
        stops = []

        async def goes_on(actor: Any) -> str:
            stops.append(actor.actor_ref.stop(block=False))
            return "done"

        async def waits(actor: Any) -> None:
            await actor.actor_ref.stop(block=False)

        assert await one.ask(goes_on) == "done"
        assert await stops[0] is True
        one = system.start(Does, name="one")
        with trio.fail_after(5), pytest.raises(StopCycleError):
            await one.ask(waits)
        with trio.fail_after(5):
            await one.stopped()  # The stop was asked for, and comes.


async def test_of_two_handlers_that_wait_for_each_others_end_the_last_is_refused():
    async with ActorSystem() as system:
        one, two = system.start(Does, name="one"), system.start(Does, name="two")
        gate = trio.Event()

        async def first(_: Any) -> Any:
            return await two.stop()

        async def second(_: Any) -> Any:
            await gate.wait()
            return await one.stop()

        waiting, refused = one.ask(first), two.ask(second)
        await wait_all_tasks_blocked()
        gate.set()
        with trio.fail_after(5):
            with pytest.raises(StopCycleError) as caught:
                await refused
            assert caught.value.ring == ("two", "one", "two")
            assert await waiting is True
        assert await one.ask("x") == "x"


@pytest.mark.parametrize("first_waits_for", ["an end", "a reply"])
async def test_ring_of_an_end_and_a_reply_refuses_the_last(first_waits_for):
    async with ActorSystem() as system:
        one, two = system.start(Does, name="one"), system.start(Does, name="two")
        gate = trio.Event()

        async def first(_: Any) -> Any:
            return await (two.stop() if first_waits_for == "an end" else two.ask("x"))

        async def second(_: Any) -> Any:
            await gate.wait()
            return await (one.ask("x") if first_waits_for == "an end" else one.stop())

        waiting, refused = one.ask(first), two.ask(second)
        await wait_all_tasks_blocked()
        gate.set()
        with trio.fail_after(5):
            with pytest.raises(AskCycleError) as caught:
                await refused
            assert isinstance(caught.value, StopCycleError) is (first_waits_for == "a reply")
            assert await waiting == (True if first_waits_for == "an end" else "x")


async def test_hooks_that_stop_each_other_end_and_the_last_is_refused():
    async with ActorSystem() as system:
        one, two = system.start(Does, name="one"), system.start(Does, name="two")
        found: list[Any] = []

        def stops(other: Any) -> Any:
            async def last(_: Any) -> None:
                try:
                    found.append(await other.stop())
                except StopCycleError as error:
                    found.append(error.ring)

            return last

        await one.ask(lambda actor: setattr(actor, "last", stops(two)))
        await two.ask(lambda actor: setattr(actor, "last", stops(one)))
        with trio.fail_after(1):
            assert await one.stop() is True
        assert found == [("two", "one", "two"), True]


@pytest.mark.parametrize("wait", [_stopped, _flag, _stop])
async def test_killed_actor_is_waited_for_by_who_it_asked(wait):
    async with ActorSystem() as system:
        one, two = system.start(Does), system.start(Does)
        got: list[Any] = []

        async def kills(_: Any) -> None:
            one.kill()
            got.append(await wait(one))

        async def asks(_: Any) -> Any:
            return await two.ask(kills)

        with trio.fail_after(5):
            one.tell(asks)
            await one.stopped()
            assert await two.ask("x") == "x"
        assert got == [None if wait is _stopped else True]


async def test_task_in_somebody_elses_nursery_waits_for_the_actor_that_started_it():
    async with ActorSystem() as system, trio.open_nursery() as nursery:
        one = system.start(Does)
        got: list[Any] = []

        async def apart() -> None:
            got.append(await one.ask("x"))
            got.append(await one.stop())

        await one.ask(lambda _: nursery.start_soon(apart))
        with trio.fail_after(5):
            await one.stopped()
        await wait_all_tasks_blocked()
        assert got == ["x", True]


async def test_task_that_its_actor_does_not_wait_for_may_stop_it():
    async with ActorSystem() as system:
        one = system.start(Does)
        await one.ask(lambda actor: actor.spawn(lambda: _stop(actor.actor_ref)) and None)
        with trio.fail_after(5):
            await one.stopped()
        assert one.statistics().last_error is None  # Stopped, and not by a crash of the task.


def _spawned(actor: Any, work: Any) -> None:
    actor.spawn(work)


def _piped(actor: Any, work: Any) -> None:
    actor.pipe(work, tag="work")


def _piped_for_a_reply(actor: Any, work: Any) -> Any:
    actor.owed = actor.later()
    actor.pipe(work, tag="work")
    return LATER


TASKS = [_spawned, _piped, _piped_for_a_reply]


@pytest.mark.parametrize("start", TASKS)
@pytest.mark.parametrize("wait", [_thread, _flag, _registry, _block])
async def test_thread_of_a_task_waits_for_no_end_of_its_own_actor(start, wait):
    """The end cuts the task off, and waits for its thread."""
    async with ActorSystem() as system:
        ref = system.start(Does, name="one")
        if wait is _registry:
            pykka.ActorRegistry.register(ref)
        got: list[Any] = []
        done = trio.Event()

        async def work() -> None:
            try:
                got.append(await wait(ref))
            except StopCycleError as error:
                got.append(error.ring)
            assert await ref.ask("x", timeout=5) == "x"  # Its replies do not wait for the task.
            done.set()

        ref.tell(lambda actor: start(actor, work))
        with trio.fail_after(5):
            await done.wait()
            assert got == [("one", "one")]
            assert not ref._cell.waits
            if start is _piped_for_a_reply:
                ref.kill()
            assert await ref.stop() is True
        pykka.ActorRegistry.unregister(ref)


@pytest.mark.parametrize("what", ["actor", "system"])
async def test_end_of_a_killed_actor_waits_for_the_threads_of_its_tasks(what):
    """A kill cancels what the actor waits for, and no thread."""
    async with ActorSystem() as system:
        one = system.start(Does, name="one")
        got: list[Any] = []
        done = trio.Event()

        def ends() -> None:
            trio.from_thread.run_sync(one.kill)
            try:
                if what == "actor":
                    one.stop()
                else:
                    check_end("system", lambda cell: cell.system is system)
                got.append(None)
            except StopCycleError as error:
                got.append(error.ring)
            trio.from_thread.run_sync(done.set)

        one.tell(lambda actor: _spawned(actor, lambda: trio.to_thread.run_sync(ends)))
        with trio.fail_after(5):
            await done.wait()
        assert got == [("one", "one") if what == "actor" else ("one", "system", "one")]


async def test_end_that_a_thread_of_a_task_waits_for_through_others_is_refused():
    async with ActorSystem() as system:
        one, two = system.start(Does, name="one"), system.start(Does, name="two")
        got: list[Any] = []
        done = trio.Event()

        async def stops(_: Any) -> Any:
            return await one.stop()

        def asks() -> None:
            got.append(two.ask(lambda _: one.ask("x")))  # A reply is no end.
            try:
                got.append(two.ask(stops))
            except StopCycleError as error:
                got.append(error.ring)

        async def work() -> None:
            await trio.to_thread.run_sync(asks)
            done.set()

        await one.ask(lambda actor: _spawned(actor, work))
        with trio.fail_after(5):
            await done.wait()
        assert got == ["x", ("one", "two", "one")]


async def test_of_two_threads_of_tasks_that_wait_for_each_others_end_the_last_is_refused():
    async with ActorSystem() as system:
        refs = [system.start(Does, name=name) for name in ("one", "two")]
        got: list[Any] = []
        both = threading.Barrier(2)

        def stops(other: Any) -> None:
            both.wait()
            try:
                got.append(other.stop())
            except StopCycleError as error:
                got.append(error.ring)

        work = trio.to_thread.run_sync
        for own, other in (refs, refs[::-1]):
            await own.ask(lambda actor, other=other: actor.spawn(work, stops, other) and None)
        with trio.fail_after(5):
            while len(got) < 2:
                await wait_all_tasks_blocked(0.01)
        rings = [each for each in got if each is not True]
        assert len(rings) == 1
        assert rings[0] in (("one", "two", "one"), ("two", "one", "two"))


@pytest.mark.parametrize("start", TASKS)
@pytest.mark.parametrize("by", ["close", "run"])
def test_hosted_system_is_not_closed_from_a_thread_of_a_task(start, by):
    system = HostedSystem()
    system.open()
    ref = system.start(Does, name="one")
    got: list[Any] = []
    done = threading.Event()

    def closes() -> None:
        try:
            got.append(system.close() if by == "close" else system.run(system.system.shutdown))
        except StopCycleError as error:
            got.append(error.ring)
        done.set()

    async def work() -> None:
        await trio.to_thread.run_sync(closes)

    ref.tell(lambda actor: start(actor, work))
    assert done.wait(5)
    assert got == [("one", "system abeyance", "one")]
    assert system.start(Does).is_alive()
    ref.kill()
    assert system.close().clean


@pytest.mark.parametrize("what", ["child", "group", "outer group", "outer's child", "system"])
@pytest.mark.parametrize("through", ["itself", "an actor", "a thread"])
async def test_end_of_a_group_is_not_waited_for_from_inside(what, through):
    async with ActorSystem() as system:
        outer = await system.start_supervisor(SupervisorSpec("outer"))
        spec = ChildSpec("a", Does, name="a", shutdown_s=math.inf)
        group = await system.start_supervisor(SupervisorSpec("g", (spec,)), outer)
        one, two = group.refs["a"], system.start(Does, name="two")
        ends = {
            "child": lambda: group.stop_child("a"),
            "group": group.stop,
            "outer group": outer.stop,
            "outer's child": lambda: outer.stop_child("g"),
            "system": system.shutdown,
        }[what]
        name = {
            "child": "a",
            "group": "g",
            "outer group": "outer",
            "outer's child": "g",
            "system": "system abeyance",
        }[what]

        async def end(_: Any) -> Any:
            return await ends()

        async def goes(actor: Any) -> Any:
            if through == "itself":
                return await end(actor)
            if through == "an actor":
                return await two.ask(end)
            return await trio.to_thread.run_sync(trio.from_thread.run, end, None)

        with trio.fail_after(5), pytest.raises(StopCycleError) as caught:
            await one.ask(goes)
        asked = ("two",) if through == "an actor" else ()
        assert caught.value.ring == ("a", *asked, name, "a")
        assert not system.refusing
        assert await one.ask("x") == "x"
        assert group.refs == {"a": one}
        # From outside, and from a child of another group, it is.
        with trio.fail_after(5):
            if what == "system":
                return
            await two.ask(end)
        assert not one.is_alive()


def test_hosted_system_is_not_closed_from_a_thread_that_its_handler_waits_for():
    with HostedSystem() as system:
        ref = system.start(Does, name="one")

        async def closes(_: Any) -> Any:
            return await trio.to_thread.run_sync(system.close)

        with pytest.raises(StopCycleError) as caught:
            ref.ask(closes, timeout=5)
        assert caught.value.ring == ("one", "system abeyance", "one")
        assert ref.ask("x") == "x"
        assert system.start(Does).is_alive()


async def test_child_that_waits_for_who_ends_its_group_is_killed_after_its_time(autojump_clock):
    """It asked before, and by itself: the one who ends the group does not know that it waits."""
    async with ActorSystem() as system:
        spec = ChildSpec("a", Does, name="a", shutdown_s=3.0)
        group = await system.start_supervisor(SupervisorSpec("g", (spec,)))
        one, two = group.refs["a"], system.start(Does, name="two")
        gate = trio.Event()

        async def ends(_: Any) -> None:
            await gate.wait()
            await group.stop()

        ending = two.ask(ends)
        await wait_all_tasks_blocked()
        waiting = one.ask(lambda _: two.ask("x"))
        await wait_all_tasks_blocked()
        gate.set()
        began = trio.current_time()
        with trio.fail_after(100):
            await ending
        assert trio.current_time() - began == 3
        with pytest.raises(OutcomeUnknownError):
            await waiting


@pytest.mark.parametrize("bound", ["its own", "its ask's"])
async def test_stop_in_a_ring_that_is_not_seen_ends_by_the_deadline_of_its_ask_or_its_own(bound):
    """Through a `ThreadingActor`, which knows no chain."""

    class Stops(pykka.ThreadingActor):
        def on_receive(self, message: Any) -> Any:
            return message.stop(timeout=0.05 if bound == "its own" else None)

    async with ActorSystem() as system:
        one, stops = system.start(Does), Stops.start()

        async def waits(actor: Any) -> Any:
            future = stops.ask(actor.actor_ref, block=False)
            if bound == "its own":
                return await trio.to_thread.run_sync(future.get)
            return await two.ask(lambda _: trio.to_thread.run_sync(future.get), timeout=0.05)

        two = system.start(Does)
        with trio.fail_after(10):
            with pytest.raises(pykka.Timeout):
                await one.ask(waits)
            await one.stopped()
        await trio.to_thread.run_sync(stops.stop)
