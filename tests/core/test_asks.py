"""Who may ask whom, and rings that could never be answered."""

from __future__ import annotations

import contextvars
from concurrent.futures import ThreadPoolExecutor

import pytest
import trio

from abeyance.actors.core import (
    LATER,
    ActorSystem,
    AskCycleError,
    AskTable,
    HostedSystem,
    LongAwaitError,
    TrioActor,
    UndeclaredAskError,
    chain,
    in_chain,
    in_role,
)


class Does(TrioActor):
    """Runs what it is sent, with itself as the argument."""

    async def on_receive(self, message):
        if callable(message):
            result = message(self)
            return await result if hasattr(result, "__await__") else result
        return chain()


async def test_self_ask_is_refused_before_it_is_sent():
    async with ActorSystem() as system:
        ref = system.start(Does, name="one")
        with pytest.raises(AskCycleError) as caught:
            await ref.ask(lambda me: me.actor_ref.ask("x"))
        assert caught.value.ring == ("one", "one")
        assert caught.value.message == "x"
        assert ref.statistics().handled == 1


async def test_self_ask_of_an_actor_that_goes_on_is_refused_too():
    async with ActorSystem() as system:
        ref = system.start(Does, name="one")
        with pytest.raises(AskCycleError):
            await ref.ask(lambda me: me.ask(me.actor_ref, "x", tag=1))


async def test_ring_of_asks_is_refused_and_named():
    async with ActorSystem() as system:
        one, two, three = (system.start(Does, name=name) for name in ("one", "two", "three"))
        with pytest.raises(AskCycleError) as caught:
            await one.ask(lambda _: two.ask(lambda _: three.ask(lambda _: one.ask("x"))))
        assert caught.value.ring == ("one", "two", "three", "one")


async def test_asks_that_close_no_ring_pass_and_carry_the_chain():
    async with ActorSystem() as system:
        one, two = system.start(Does, name="one"), system.start(Does, name="two")
        assert await one.ask(lambda _: two.ask("x")) == ("one", "two")
        assert await one.ask("x") == ("one",)
        assert await two.ask("x") == ("two",)


async def test_ring_through_a_thread_is_refused():
    def tool(ref):
        return trio.from_thread.run(_ask, ref)

    async def _ask(ref):
        return await ref.ask("x")

    async with ActorSystem() as system:
        ref = system.start(Does, name="one")
        with pytest.raises(AskCycleError) as caught:
            await ref.ask(lambda _: trio.to_thread.run_sync(tool, ref))
        assert caught.value.ring == ("one", "one")


async def test_ring_through_a_blocking_ask_in_a_thread_is_refused():
    async with ActorSystem() as system:
        ref = system.start(Does, name="one")
        with pytest.raises(AskCycleError) as caught:
            await ref.ask(lambda _: trio.to_thread.run_sync(ref.ask, "x"))
        assert caught.value.ring == ("one", "one")


async def test_ring_of_two_actors_through_a_thread_of_each_is_refused_and_named():
    def tool_of(ref, message):
        return lambda _: trio.to_thread.run_sync(ref.ask, message)

    async with ActorSystem() as system:
        one, two = system.start(Does, name="one"), system.start(Does, name="two")
        with pytest.raises(AskCycleError) as caught:
            await one.ask(tool_of(two, tool_of(one, "x")))
        assert caught.value.ring == ("one", "two", "one")
        assert "one -> two -> one" in str(caught.value)


def test_ring_through_a_thread_of_the_hosts_own_is_refused_where_it_has_the_handlers_context():
    """As a host does that hands a tool to its own pool."""
    with HostedSystem() as hosted, ThreadPoolExecutor(1) as pool:
        one, two = hosted.start(Does, name="one"), hosted.start(Does, name="two")

        def tool(_):
            context = contextvars.copy_context()
            call = pool.submit(context.run, two.ask, lambda _: one.ask("x"))
            return trio.to_thread.run_sync(call.result)

        with pytest.raises(AskCycleError) as caught:
            one.ask(tool)
        assert caught.value.ring == ("one", "two", "one")


def test_ring_through_a_proxy_in_a_thread_is_refused_when_it_is_waited_for():
    class Calls(Does):
        def name(self):
            return self.actor_ref.name

    with HostedSystem() as hosted:
        one = hosted.start(Calls, name="one")
        proxy = one.proxy()

        def tool(_):
            return trio.to_thread.run_sync(lambda: proxy.name().get())

        with pytest.raises(AskCycleError) as caught:
            one.ask(tool, timeout=10)
        assert caught.value.ring == ("one", "one")


async def test_ring_through_a_reply_that_is_owed_is_refused():
    class Passes(TrioActor):
        def __init__(self, other):
            self.other = other

        def on_receive(self, message):
            self.ask(self.other, message, tag=self.later())
            return LATER

        def on_answer(self, answer):
            if answer.error is not None:
                answer.tag.set_exception(answer.error)
            else:
                answer.tag.set(answer.value)

    async with ActorSystem() as system:
        other = system.start(Does, name="other")
        passes = system.start(Passes, other, name="passes")
        with pytest.raises(AskCycleError) as caught:
            await passes.ask(lambda _: passes.ask("x"))
        assert caught.value.ring == ("passes", "other", "passes")
        assert await passes.ask("x") == ("passes", "other")


async def test_proxy_to_oneself_may_be_called_and_not_awaited():
    async with ActorSystem() as system:
        ref = system.start(Does, name="one")

        async def wait(me):
            return await me.actor_ref.ask("x", block=False)

        await ref.ask(lambda me: me.actor_ref.ask("x", block=False).settled)
        with pytest.raises(AskCycleError):
            await ref.ask(wait)


async def test_spawned_task_waits_for_nobody_and_may_ask_its_actor():
    async with ActorSystem() as system:
        ref = system.start(Does, name="one")
        got = []

        async def task():
            got.append(await ref.ask("x"))
            got.append(await trio.to_thread.run_sync(ref.ask, "x"))
            done.set()

        done = trio.Event()
        await ref.ask(lambda me: me.spawn(task) and None)
        with trio.fail_after(5):
            await done.wait()
        assert got == [("one",), ("one",)]


async def test_names_put_in_the_chain_are_refused_in_tasks_and_threads_of_the_block():
    async with ActorSystem() as system:
        agent = system.start(Does, name="agent:ana")
        with in_chain("agent:ana", "slot:ana"):
            assert chain() == ("agent:ana", "slot:ana")
            with in_chain("agent:ana", "more"):
                assert chain() == ("agent:ana", "slot:ana", "more")
            with pytest.raises(AskCycleError):
                agent.ask("x")
            with pytest.raises(AskCycleError):
                await trio.to_thread.run_sync(agent.ask, "x")
        assert chain() == ()
        assert await agent.ask("x") == ("agent:ana",)


TABLE = AskTable({"top": {"middle"}, "middle": {"bottom"}, "bottom": set()})


class Top(Does):
    role = "top"


class Middle(Does):
    role = "middle"


class Bottom(Does):
    role = "bottom"


async def test_declared_asks_pass_and_others_are_refused_when_sent():
    async with ActorSystem(asks=TABLE) as system:
        top, middle, bottom = (system.start(kind) for kind in (Top, Middle, Bottom))
        await top.ask(lambda _: middle.ask(lambda _: bottom.ask("x")))
        with pytest.raises(UndeclaredAskError) as caught:
            await top.ask(lambda _: bottom.ask("x"))
        assert (caught.value.asker, caught.value.asked) == ("top", "bottom")
        with pytest.raises(UndeclaredAskError):
            await bottom.ask(lambda me: me.ask(top, "x", tag=1))
        with pytest.raises(UndeclaredAskError):
            await middle.ask(lambda _: system.start(Top).ask("x"))


async def test_tells_and_asks_of_hosts_are_not_in_the_table():
    async with ActorSystem(asks=TABLE) as system:
        top, bottom = system.start(Top), system.start(Bottom)
        assert await bottom.ask("x")
        await bottom.ask(lambda _: top.tell("x"))


async def test_tasks_of_an_actor_ask_in_its_role_unless_they_say_otherwise():
    outcome = []

    async with ActorSystem(asks=TABLE) as system:
        top, bottom = system.start(Top), system.start(Bottom)

        async def task():
            with pytest.raises(UndeclaredAskError):
                bottom.ask("x")
            with in_role(None):
                outcome.append(await bottom.ask("x"))

        await top.ask(lambda me: me.spawn(task) and None)
        await trio.testing.wait_all_tasks_blocked()
        assert len(outcome) == 1


@pytest.mark.parametrize(
    ("allowed", "ring"),
    [
        ({}, None),
        ({"a": {"b"}, "b": {"c"}}, None),
        ({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}}, None),
        ({"a": {"a"}}, ("a", "a")),
        ({"a": {"b"}, "b": {"a"}}, ("a", "b", "a")),
        ({"a": {"b"}, "b": {"c", "d"}, "d": {"b"}}, ("b", "d", "b")),
    ],
    ids=["empty", "line", "diamond", "self", "pair", "inner"],
)
def test_table_finds_a_ring_or_none(allowed, ring):
    assert AskTable(allowed).find_cycle() == ring


class Awaits(TrioActor):
    role = "awaits"

    async def on_receive(self, message):
        for _ in range(message):
            await trio.lowlevel.checkpoint()
        return "done"

    async def on_answer(self, answer):
        await trio.sleep_forever()


@pytest.mark.parametrize("count", [0, 1])
async def test_debug_mode_lets_a_handler_suspend_once(count):
    async with ActorSystem(debug=True) as system:
        assert await system.start(Awaits).ask(count) == "done"


async def test_debug_mode_raises_when_a_handler_suspends_twice():
    async with ActorSystem(debug=True) as system:
        with pytest.raises(LongAwaitError):
            await system.start(Awaits).ask(2)
    async with ActorSystem() as system:
        assert await system.start(Awaits).ask(2) == "done"


async def test_debug_mode_cancels_what_the_handler_waits_for():
    event = trio.Event()
    cancelled = []

    class Waits(TrioActor):
        role = "waits"

        async def on_receive(self, message):
            await trio.lowlevel.checkpoint()
            try:
                await event.wait()
            except trio.Cancelled:
                cancelled.append(True)
                raise

    async with ActorSystem(debug=True) as system:
        with pytest.raises(LongAwaitError):
            await system.start(Waits).ask(1)
        event.set()
    assert cancelled == [True]


def test_chain_of_a_host_thread_is_empty():
    with HostedSystem() as hosted:
        assert hosted.start(Does, name="one").ask("x") == ("one",)
