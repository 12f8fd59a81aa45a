"""Rings that are closed from two sides: each handler began by itself, then they ask each other."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pykka
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from abeyance.actors.core import (
    LATER,
    ActorSystem,
    AskCycleError,
    AskTimeoutError,
    ChildSpec,
    ChildStartError,
    HostedSystem,
    SupervisorSpec,
    TrioActor,
    TrioFuture,
    in_chain,
)


class Does(TrioActor):
    """Runs what it is sent, with itself as the argument."""

    async def on_receive(self, message: Any) -> Any:
        if not callable(message):
            return message
        result = message(self)
        return await result if hasattr(result, "__await__") else result


def crosswise(one: Any, two: Any, ask: Any) -> tuple[Any, Any]:
    """Ask both at once to ask each other, once both are at it."""
    both = [trio.Event(), trio.Event()]

    def asks(place: int, other: Any) -> Any:
        async def go(_: Any) -> Any:
            both[place].set()
            await both[1 - place].wait()
            return await ask(other)

        return go

    return one.ask(asks(0, two)), two.ask(asks(1, one))


async def outcomes(*futures: Any) -> list[Any]:
    found: list[Any] = []
    for future in futures:
        try:
            found.append(await future)
        except AskCycleError as error:
            found.append(error.ring)
    return found


async def _plain(other: Any) -> Any:
    return await other.ask("x")


async def _proxy(other: Any) -> Any:
    return await other.ask("x", block=False)


async def _nursery(other: Any) -> Any:
    got: list[Any] = []

    async def child() -> None:
        try:
            got.append(await other.ask("x"))
        except AskCycleError as error:
            got.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(child)
    if isinstance(got[0], Exception):
        raise got[0]
    return got[0]


async def _thread(other: Any) -> Any:
    return await trio.to_thread.run_sync(other.ask, "x")


async def _joined(other: Any) -> Any:
    done: TrioFuture[int] = TrioFuture()
    done.set(1)
    return (await done.join(other.ask("x", block=False)))[1]


@pytest.mark.parametrize("ask", [_plain, _proxy, _nursery, _joined, _thread])
async def test_of_two_handlers_that_ask_each_other_the_last_is_refused_with_the_ring(ask):
    async with ActorSystem() as system:
        one, two = system.start(Does, name="one"), system.start(Does, name="two")
        with trio.fail_after(5):
            found = await outcomes(*crosswise(one, two, ask))
        # The one that was refused is free, and answers the other.
        assert sorted(found, key=str) == [
            next(each for each in found if each != "x"),
            "x",
        ]
        assert ("one", "two", "one") in found or ("two", "one", "two") in found
        assert not one._cell.waits
        assert not two._cell.waits


async def test_ring_of_three_that_began_by_themselves_is_named():
    async with ActorSystem() as system:
        refs = [system.start(Does, name=name) for name in ("a", "b", "c")]
        gate = trio.Event()

        def asks(other: Any) -> Any:
            async def go(_: Any) -> Any:
                await gate.wait()
                return await other.ask("x")

            return go

        futures = [refs[n].ask(asks(refs[(n + 1) % 3])) for n in range(3)]
        await wait_all_tasks_blocked()
        gate.set()
        found = await outcomes(*futures)
        assert found.count("x") == 2
        (ring,) = (each for each in found if each != "x")
        assert len(ring) == 4
        assert ring[0] == ring[-1]
        assert set(ring) == {"a", "b", "c"}


async def test_ask_that_closes_a_ring_is_refused_before_it_is_sent():
    async with ActorSystem() as system:
        one, two = system.start(Does, name="one"), system.start(Does, name="two")
        gate = trio.Event()

        async def waits(_: Any) -> Any:
            await gate.wait()
            return await one.ask("x")

        waiting = two.ask(waits)
        await wait_all_tasks_blocked()

        async def closes(_: Any) -> Any:
            gate.set()
            await wait_all_tasks_blocked()
            two.ask("y")

        with pytest.raises(AskCycleError) as caught:
            await one.ask(closes)
        assert caught.value.message == "y"
        assert await waiting == "x"
        assert two.statistics().handled == 1


async def test_actor_that_is_not_blocked_is_in_no_ring():
    """One that owes its reply handles the next message, as does one whose task waits."""

    class Owes(TrioActor):
        def __init__(self, how: str) -> None:
            self.how = how

        async def on_receive(self, message: Any) -> Any:
            if message == "x":
                return "free"
            reply = self.later() if self.how == "owes" else None

            async def task() -> None:
                got = await message.ask("go")
                if reply is not None:
                    reply.set(got)

            self.spawn(task)
            return LATER if reply is not None else None

    async with ActorSystem() as system:
        for how in ("owes", "spawns"):
            owes = system.start(Owes, how)
            gate = trio.Event()

            async def go(_: Any, gate: trio.Event = gate, owes: Any = owes) -> Any:
                await gate.wait()
                return await owes.ask("x")

            class Asked(TrioActor):
                async def on_receive(self, message: Any, go: Any = go) -> Any:
                    return await go(message)

            asked = system.start(Asked)
            future = owes.ask(asked)
            await wait_all_tasks_blocked()
            gate.set()
            assert await future == ("free" if how == "owes" else None)
            await wait_all_tasks_blocked()


async def test_task_that_a_handler_does_not_wait_for_keeps_it_in_no_ring():
    async with ActorSystem() as system, trio.open_nursery() as nursery:
        one, two = system.start(Does, name="one"), system.start(Does, name="two")
        gate, got = trio.Event(), []

        async def apart() -> None:
            got.append(await two.ask(answers))

        async def answers(_: Any) -> Any:
            await gate.wait()
            with trio.fail_after(1):
                return await trio.to_thread.run_sync(lambda: "free")

        async def starts(_: Any) -> None:
            nursery.start_soon(apart)

        await one.ask(starts)
        await wait_all_tasks_blocked()
        assert not one._cell.waits
        gate.set()


async def test_ring_through_a_task_that_works_for_an_owed_reply_is_refused():
    class Passes(TrioActor):
        def __init__(self, how: str) -> None:
            self.how = how

        def on_receive(self, message: Any) -> Any:
            reply = self.later()

            async def work() -> None:
                try:
                    reply.set(await message.ask("x"))
                except AskCycleError as error:
                    reply.set_exception(error)

            if self.how == "spawn":
                self.spawn(work)
            else:
                self.pipe(work, tag=None)
            return LATER

        def on_answer(self, answer: Any) -> None:
            pass

    async with ActorSystem() as system:
        for how in ("spawn", "pipe"):
            one, passes = system.start(Does, name=how), system.start(Passes, how, name=f"by {how}")
            with pytest.raises(AskCycleError) as caught:
                await one.ask(lambda _, one=one, passes=passes: passes.ask(one))
            assert caught.value.ring == (how, f"by {how}", how)
            # Nobody waits for a reply that was given.
            assert await passes.ask(one) == "x"


async def test_ring_that_a_task_closes_for_an_owed_reply_from_the_other_side_is_refused():
    gate = trio.Event()

    class Works(TrioActor):
        def on_receive(self, message: Any) -> Any:
            reply = self.later()

            async def work() -> None:
                await gate.wait()
                try:
                    reply.set(await message.ask("x"))
                except AskCycleError as error:
                    reply.set_exception(error)

            self.spawn(work)
            return LATER

    async with ActorSystem() as system:
        one, other = system.start(Does, name="one"), system.start(Does, name="other")
        works = system.start(Works, name="works")
        first = one.ask(lambda _: works.ask(other))
        await wait_all_tasks_blocked()
        second = other.ask(lambda _: one.ask("x"))
        await wait_all_tasks_blocked()
        gate.set()
        with trio.fail_after(5), pytest.raises(AskCycleError) as caught:
            await first
        assert caught.value.ring == ("works", "other", "one", "works")
        assert await second == "x"


async def test_task_goes_on_asking_when_the_reply_it_worked_for_was_given():
    class Answers(TrioActor):
        def on_receive(self, message: Any) -> Any:
            reply = self.later()

            async def work() -> None:
                reply.set("early")
                await wait_all_tasks_blocked()
                message.got = await message.asker.ask("x")
                message.done.set()

            self.spawn(work)
            return LATER

    class Note:
        asker: Any = None
        got: Any = None
        done: Any = None

    async with ActorSystem() as system:
        one, answers = system.start(Does), system.start(Answers)
        note = Note()
        note.asker = one
        note.done = trio.Event()
        assert await one.ask(lambda _: answers.ask(note)) == "early"
        await note.done.wait()
        assert note.got == "x"


class Starts(TrioActor):
    """Does in `on_start` what it is given."""

    def __init__(self, act: Any) -> None:
        self.act = act

    async def on_start(self) -> None:
        await self.act()


@pytest.mark.parametrize("first", ["the start of the sibling", "the one who waits"])
@pytest.mark.parametrize("act", ["start_child", "stop_child"])
async def test_start_of_a_sibling_that_asks_who_waits_for_the_group_is_refused(
    autojump_clock, first, act
):
    rings: list[Any] = []
    asks, waits = trio.Event(), trio.Event()

    async def sibling() -> None:
        await asks.wait()
        try:
            await one.ask("x")
        except AskCycleError as error:
            rings.append(error.ring)

    async def changes(_: Any) -> None:
        await waits.wait()
        try:
            if act == "start_child":
                await group.start_child(ChildSpec("new", Does))
            else:
                await group.stop_child("there")
        except AskCycleError as error:
            rings.append(error.ring)

    async with ActorSystem(ask_timeout_s=None) as system, trio.open_nursery() as nursery:
        one = system.start(Does, name="one")
        group = await system.start_supervisor(SupervisorSpec("group", (ChildSpec("there", Does),)))
        spec = ChildSpec("sibling", Starts, args=(sibling,), name="sibling")
        nursery.start_soon(group.start_child, spec)
        done = one.ask(changes)
        await wait_all_tasks_blocked()
        for event in (asks, waits) if first == "the start of the sibling" else (waits, asks):
            event.set()
            await wait_all_tasks_blocked()
        with trio.fail_after(5):
            await done
        if first == "the start of the sibling":
            assert rings == [("one", "sibling", "one")]
        else:
            assert rings == [("sibling", "one", "sibling")]


async def test_start_that_changes_its_own_group_is_refused(autojump_clock):
    rings: list[Any] = []

    async def starts() -> None:
        try:
            await group.start_child(ChildSpec("other", Does))
        except AskCycleError as error:
            rings.append(error.ring)

    async with ActorSystem() as system:
        group = await system.start_supervisor(SupervisorSpec("group"))
        with trio.fail_after(5):
            await group.start_child(ChildSpec("a", Starts, args=(starts,), name="a"))
        assert rings == [("a", "a")]
        assert list(group.refs) == ["a"]


async def test_stop_of_a_child_cuts_its_start_short_though_that_waits_for_who_stops_it():
    async def asks() -> None:
        await one.ask("x")

    async with ActorSystem() as system, trio.open_nursery() as nursery:
        one = system.start(Does)
        group = await system.start_supervisor(SupervisorSpec("group"))
        gate = trio.Event()

        async def stops(_: Any) -> None:
            await gate.wait()
            await group.stop_child("a")

        async def start() -> None:
            with pytest.raises(ChildStartError):
                await group.start_child(ChildSpec("a", Starts, args=(asks,)))

        done = one.ask(stops)
        nursery.start_soon(start)
        await wait_all_tasks_blocked()
        gate.set()
        with trio.fail_after(5):
            await done
        assert group.refs == {}


async def test_thread_that_outlives_its_handler_is_still_taken_to_keep_its_actor():
    goes, over = threading.Event(), trio.Event()
    ends: list[Any] = []

    async def leaves(actor: Any) -> None:
        ref = actor.actor_ref

        def thread() -> None:
            goes.wait(20)
            try:
                ends.append(ref.ask("x"))
            except AskCycleError as error:
                ends.append(error.ring)
            trio.from_thread.run_sync(over.set, trio_token=token)

        await trio.to_thread.run_sync(thread, abandon_on_cancel=True)

    async with ActorSystem() as system:
        token = trio.lowlevel.current_trio_token()
        one = system.start(Does, name="one")
        with pytest.raises(AskTimeoutError):
            await one.ask(leaves, timeout=0.05, cancel_on_timeout=True)
        assert await one.ask("x") == "x"  # It is kept by nobody; its thread is not told.
        goes.set()
        with trio.fail_after(5):
            await over.wait()
        assert ends == [("one", "one")]


async def test_start_of_a_child_that_asks_who_waits_for_it_is_refused(autojump_clock):
    rings: list[Any] = []

    class Child(TrioActor):
        def __init__(self, parent: Any) -> None:
            self.parent = parent

        async def on_start(self) -> None:
            try:
                await self.parent.ask("x")
            except AskCycleError as error:
                rings.append(error.ring)

        def on_receive(self, message: Any) -> Any:
            return message

    async with ActorSystem() as system:
        group = await system.start_supervisor(SupervisorSpec("group"))
        parent = system.start(Does, name="parent")

        def child(name: str) -> ChildSpec:
            return ChildSpec(name, Child, args=(parent,), name=name)

        ref = await parent.ask(lambda _: group.start_child(child("child")))
        assert await ref.ask("y") == "y"
        more = SupervisorSpec("more", children=(child("first"),))
        await parent.ask(lambda _: system.start_supervisor(more))
        assert rings == [("child", "parent", "child"), ("first", "parent", "first")]
        # From outside a handler nobody waits, and it may ask.
        await group.start_child(child("free"))
        assert len(rings) == 2


def test_two_handlers_that_ask_each_other_by_threads_of_the_host_are_refused():
    """With their contexts, on a pool of the host's, and by a call into the loop."""
    with HostedSystem() as hosted, ThreadPoolExecutor(4) as pool:
        for by in ("ask", "run"):
            one, two = hosted.start(Does, name=f"one {by}"), hosted.start(Does, name=f"two {by}")

            async def ask(other: Any, by: str = by) -> Any:
                context = contextvars.copy_context()
                if by == "ask":
                    call = pool.submit(context.run, other.ask, "x")
                else:
                    call = pool.submit(context.run, hosted.run, _plain, other)
                return await trio.to_thread.run_sync(call.result)

            async def both(one: Any = one, two: Any = two, ask: Any = ask) -> list[Any]:
                with trio.fail_after(10):
                    return await outcomes(*crosswise(one, two, ask))

            found = hosted.run(both)
            assert found.count("x") == 1
            assert any(set(each) == {f"one {by}", f"two {by}"} for each in found if each != "x")


def test_actors_of_two_systems_that_share_a_name_are_told_apart():
    with HostedSystem() as first, HostedSystem() as second:
        one, same = first.start(Does, name="one"), second.start(Does, name="one")
        assert one.ask(lambda _: same.ask("x")) == "x"

        async def named() -> Any:
            with in_chain("one", system=second.system):
                return await one.ask("x")

        assert first.run(named) == "x"

        async def refused() -> Any:
            with in_chain("one", system=first.system):
                return await one.ask("x")

        with pytest.raises(AskCycleError):
            first.run(refused)


_PASSES_ON = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"


def _through_a_process(ask: Any) -> Any:
    """What is written to the process comes back; who reads it asks."""
    with subprocess.Popen(
        [sys.executable, "-c", _PASSES_ON], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("ask\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ask\n"
        answered = _through_a_thread(ask)  # Of a server, which knows nothing of who wrote.
        process.stdin.write(f"{type(answered).__name__}\n")
        process.stdin.close()
        assert process.stdout.readline() == f"{type(answered).__name__}\n"
        return answered


def _through_a_thread(ask: Any) -> Any:
    answered: list[Any] = []
    thread = threading.Thread(
        target=contextvars.Context().run, args=(lambda: answered.append(ask()),), daemon=True
    )
    thread.start()
    thread.join()
    return answered[0]


def _through_a_threading_actor(ask: Any) -> Any:
    class Asks(pykka.ThreadingActor):
        def on_receive(self, message: Any) -> Any:
            return message()

    ref = Asks.start()
    try:
        return ref.ask(ask)
    finally:
        ref.stop()


def _through_asyncios_loop(ask: Any) -> Any:
    """One that runs in a thread of its own, as a host's web server does."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=contextvars.Context().run, args=(loop.run_forever,))
    thread.start()

    async def asks() -> Any:
        return await asyncio.to_thread(contextvars.Context().run, ask)

    try:
        return _through_a_thread(lambda: asyncio.run_coroutine_threadsafe(asks(), loop).result())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.parametrize(
    "through",
    [
        _through_a_process,
        _through_a_thread,
        _through_a_threading_actor,
        _through_asyncios_loop,
    ],
)
async def test_ring_that_is_not_seen_is_ended_by_its_deadline(through):
    async with ActorSystem() as system:
        one = system.start(Does)

        def ask() -> Any:
            try:
                return one.ask("x", timeout=0.05)
            except AskTimeoutError as error:
                return error

        async def goes_round(_: Any) -> Any:
            return await trio.to_thread.run_sync(through, ask)

        with trio.fail_after(30):
            assert isinstance(await one.ask(goes_round), AskTimeoutError)
            assert await one.ask("next") == "next"
        assert system.dead_letters.counts == {"expired": 1}


async def test_ring_from_two_sides_through_an_owed_answer_is_ended_by_its_deadline(autojump_clock):
    class Owes(TrioActor):
        """Replies to all when its own ask is answered, and waits for nobody meanwhile."""

        def __init__(self) -> None:
            self.replies: list[Any] = []

        def on_receive(self, message: Any) -> Any:
            self.replies.append(self.later())
            if message is not None:
                self.ask(message, "x", tag="asked", timeout_s=3)
            return LATER

        def on_answer(self, answer: Any) -> None:
            for reply in self.replies:
                reply.set(type(answer.error))

    async with ActorSystem() as system:
        one, owes = system.start(Does), system.start(Owes)
        gate = trio.Event()

        async def waits(_: Any) -> Any:
            await gate.wait()
            return await owes.ask(None)

        waiting = one.ask(waits)
        owed = owes.ask(one)
        await wait_all_tasks_blocked()
        began = trio.current_time()
        gate.set()
        with trio.fail_after(100):
            assert await waiting is AskTimeoutError
            assert await owed is AskTimeoutError
        assert 2.9 <= trio.current_time() - began <= 3.1


@pytest.mark.parametrize("how", ["expired", "gave up", "was killed", "blocked a thread"])
@pytest.mark.parametrize("closes", ["asks it", "asks it in a thread", "stops it", "asks through"])
async def test_actor_that_has_gone_on_is_in_no_ring(how, closes, autojump_clock):
    """Its ask is handled all the same, and what runs for it may ask it."""
    async with ActorSystem() as system:
        spec = ChildSpec("one", Does)
        one = (await system.start_supervisor(SupervisorSpec("g", (spec,)))).refs["one"]
        two, three = system.start(Does), system.start(Does)
        gate, done, gone_on = trio.Event(), trio.Event(), trio.Event()
        got: list[Any] = []

        async def late(_: Any) -> None:
            await gate.wait()
            try:
                match closes:
                    case "asks it":
                        got.append(await one.ask("x"))
                    case "asks it in a thread":
                        got.append(await trio.to_thread.run_sync(one.ask, "x"))
                    case "asks through":
                        got.append(await three.ask(lambda _: one.ask("x")))
                    case _:
                        assert await one.stop() is True
                        got.append("x")
            finally:
                done.set()

        async def asks(me: Any) -> None:
            try:
                await waits(me)
            finally:
                gone_on.set()

        async def waits(_: Any) -> None:
            match how:
                case "expired":
                    with pytest.raises(AskTimeoutError):
                        await two.ask(late, timeout=1)
                case "gave up":
                    with trio.move_on_after(1):
                        await two.ask(late)
                case "was killed":
                    await two.ask(late)
                case _:
                    with pytest.raises(AskTimeoutError):
                        await trio.to_thread.run_sync(lambda: two.ask(late, timeout=0.01))

        one.tell(asks)
        await wait_all_tasks_blocked()
        if how == "was killed":
            one.kill()
        await gone_on.wait()
        await wait_all_tasks_blocked()
        gate.set()
        await done.wait()  # Without a time: the clock would jump past it while a thread asks.
        assert got == ["x"]


async def test_ask_that_is_waited_for_again_is_in_the_ring_again(autojump_clock):
    async with ActorSystem() as system:
        one, two = system.start(Does, name="one"), system.start(Does, name="two")
        gate = trio.Event()

        async def late(_: Any) -> Any:
            await gate.wait()
            return await one.ask("x")

        async def asks(_: Any) -> Any:
            future = two.ask(late)
            with trio.move_on_after(1):
                await future
            gate.set()
            return await future

        with trio.fail_after(1_000), pytest.raises(AskCycleError) as caught:
            await one.ask(asks)
        assert caught.value.ring == ("one", "two", "one")
