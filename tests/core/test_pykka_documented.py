"""What pykka's documentation shows, page by page, with a TrioActor in a ThreadingActor's place.

What pykka's own text says of an actor holds of ours, but for what docs/semantics.md lists as a
difference. `test_pykka_rules.py` is about the rules one by one; here are its stories as a whole.
"""

from __future__ import annotations

import logging
import threading
from contextlib import nullcontext
from typing import cast
from unittest.mock import Mock

import pykka
import pykka.debug
import pytest
import trio
from pykka import ActorProxy
from pykka.typing import ActorMemberMixin, proxy_field, proxy_method

from abeyance.actors.core import (
    ActorSystem,
    AskCycleError,
    HostedSystem,
    TrioActor,
    WouldDeadlockError,
)


@pytest.fixture(autouse=True)
def hosted():
    with HostedSystem() as system:
        yield system


# -- getting started


class Greeter(TrioActor):
    def __init__(self, greeting="Default greeting"):
        super().__init__()
        self.greeting = greeting
        self.greeted = []

    def on_receive(self, message):
        self.greeted.append(message)
        if message == "Hi?":
            return self.greeting
        if message == "Raise!":
            raise LookupError("Oops")
        if message == "Enough!":
            self.stop()
            return None
        return super().on_receive(message)


def test_documented_actor_greets_as_it_was_started_with():
    assert Greeter.start().ask("Hi?") == "Default greeting"
    assert Greeter.start(greeting="Hi you!").ask("Hi?") == "Hi you!"
    assert Greeter.start("Hi him!").ask("Hi?") == "Hi him!"


def test_documented_ask_is_answered_at_once_in_time_or_by_a_future():
    ref = Greeter.start()
    assert ref.tell("Hi?") is None
    assert ref.ask("Hi?", timeout=10) == "Default greeting"
    future = ref.ask("Hi?", block=False)
    assert future.get() == "Default greeting"
    assert future.get(timeout=60) == "Default greeting"
    assert (
        pykka.get_all([ref.ask("Hi?", block=False) for _ in range(3)]) == ["Default greeting"] * 3
    )


def test_documented_error_reaches_who_asked_and_the_actor_answers_the_next():
    ref = Greeter.start()
    with pytest.raises(LookupError, match="Oops"):
        ref.ask("Raise!")
    assert ref.ask("Hi?") == "Default greeting"


def test_documented_message_that_nobody_expects_is_logged_and_answered_with_none(caplog):
    ref = Greeter.start()
    with caplog.at_level(logging.WARNING):
        assert ref.ask("Bye?") is None
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line == f"Unexpected message received by {ref}: 'Bye?'"


def test_documented_message_to_an_actor_that_stopped_is_refused_and_not_logged(caplog):
    ref = Greeter.start()
    ref.stop()
    with caplog.at_level(logging.WARNING):
        with pytest.raises(pykka.ActorDeadError):
            ref.tell("Bye?")
        with pytest.raises(pykka.ActorDeadError):
            ref.ask("Bye?", block=False).get()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_documented_actor_that_stops_itself_has_handled_what_was_queued_before():
    ref = Greeter.start()
    answers = [ref.ask(each, block=False) for each in ("Hi?", "Enough!", "Hi?")]
    assert ref.actor_stopped.wait(timeout=60)
    assert answers[0].get() == "Default greeting"
    assert answers[1].get() is None
    assert not ref.is_alive()


@pytest.mark.parametrize("raises", [False, True], ids=["is left", "raises"])
def test_documented_block_of_a_ref_stops_its_actor_behind_what_was_sent_when_it(raises):
    class Fails(Exception):
        pass

    seen = []

    class Keeps(TrioActor):
        def on_receive(self, message):
            seen.append(message)

    error = pytest.raises(Fails) if raises else nullcontext()
    with error, Keeps.start() as ref:
        ref.tell("sent")
        if raises:
            raise Fails
    assert seen == ["sent"]
    assert not ref.is_alive()


async def test_block_of_a_ref_is_refused_where_trio_runs():
    async with ActorSystem() as system:
        ref = system.start(TrioActor)
        with pytest.raises(WouldDeadlockError), ref:
            pytest.fail("the block was entered")
        assert ref.is_alive()


def test_documented_constructor_runs_where_the_actor_is_started_and_hooks_where_it_runs():
    threads = {}

    class Hooked(TrioActor):
        def __init__(self):
            super().__init__()
            threads["init"] = threading.get_ident()

        def on_start(self):
            threads["start"] = threading.get_ident()

        def on_stop(self):
            threads["stop"] = threading.get_ident()

    Hooked.start().stop()
    assert threads["init"] == threading.get_ident()
    assert threads["start"] == threads["stop"] != threads["init"]


class Calculator(TrioActor):
    def __init__(self):
        super().__init__()
        self.last_result = None

    def add(self, one, other=None):
        self.last_result = (self.last_result if other is None else other) + one
        return self.last_result

    def sub(self, one, other=None):
        self.last_result = self.last_result - one if other is None else one - other
        return self.last_result


def test_documented_proxy_calls_and_reads_in_the_order_of_its_use():
    proxy = Calculator.start().proxy()
    assert proxy.add(1, 3).get() == 4
    assert proxy.last_result.get() == 4
    proxy.sub(5)
    proxy.add(3)
    assert proxy.last_result.get() == 2
    proxy.last_result = 17
    assert proxy.last_result.get() == 17


class Playback:
    def play(self):
        return True


def test_documented_traversable_attribute_is_a_proxy_of_its_own():
    class Player(TrioActor):
        playback = pykka.traversable(Playback())

    assert Player.start().proxy().playback.play().get() is True


# -- examples


class PlainActor(TrioActor):
    def __init__(self):
        super().__init__()
        self.stored_messages = []

    def on_receive(self, message):
        if message.get("command") == "get_messages":
            return self.stored_messages
        self.stored_messages.append(message)
        return None


def test_example_of_a_plain_actor_keeps_what_it_was_told_until_it_is_asked():
    ref = PlainActor.start()
    ref.tell({"no": "Norway", "se": "Sweden"})
    ref.tell({"a": 3, "b": 4, "c": 5})
    assert ref.ask({"command": "get_messages"}) == [
        {"no": "Norway", "se": "Sweden"},
        {"a": 3, "b": 4, "c": 5},
    ]


class Adder(TrioActor):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def add_one(self, number):
        self.calls += 1
        return number + 1


class Bookkeeper(TrioActor):
    """Awaits each reply where pykka's blocks its thread: here all actors share one."""

    def __init__(self, adder):
        super().__init__()
        self.adder = adder

    async def count_to(self, target):
        number = 0
        while number < target:
            number = await self.adder.add_one(number)
        return number

    def count_blocking(self):
        return self.adder.add_one(0).get()


def test_example_of_two_actors_that_work_together_counts_to_its_target():
    adder = Adder.start().proxy()
    bookkeeper = Bookkeeper.start(adder).proxy()
    assert bookkeeper.count_to(5).get() == 5
    assert adder.calls.get() == 5
    pykka.ActorRegistry.stop_all()
    assert pykka.ActorRegistry.get_all() == []


def test_handler_that_blocks_on_another_actor_as_pykkas_may_is_refused_instead_of_hanging():
    bookkeeper = Bookkeeper.start(Adder.start().proxy()).proxy()
    with pytest.raises(WouldDeadlockError):
        bookkeeper.count_blocking().get()
    assert bookkeeper.count_to(1).get() == 1


class Resolver(TrioActor):
    async def resolve(self, number):
        if number == 3:
            return None
        await trio.lowlevel.checkpoint()
        return f"host-{number}"


def test_example_of_a_pool_of_workers_gathers_all_results_in_order():
    pool = [Resolver.start().proxy() for _ in range(4)]
    hosts = [pool[number % len(pool)].resolve(number) for number in range(19)]
    expected = [None if number == 3 else f"host-{number}" for number in range(19)]
    assert pykka.get_all(hosts) == expected
    assert len(pykka.ActorRegistry.get_by_class(Resolver)) == 4
    assert len(pykka.ActorRegistry.get_by_class_name("Resolver")) == 4
    pykka.ActorRegistry.stop_all()


# -- guides: typing of proxies


class Circle(TrioActor):
    pi = 3.14

    def area(self, radius: float) -> float:
        return self.pi * radius**2


class CircleProxy(ActorMemberMixin, ActorProxy[Circle]):
    pi = proxy_field(Circle.pi)
    area = proxy_method(Circle.area)


def test_proxy_whose_types_are_declared_as_documented_works_as_any():
    proxy = cast("CircleProxy", Circle.start().proxy())
    assert proxy.pi.get() == 3.14
    assert proxy.area(2.0).get() == pytest.approx(12.56)
    proxy.stop().get()
    assert proxy.actor_ref.actor_stopped.wait(timeout=60)


# -- guides: testing


class Producer(TrioActor):
    def __init__(self, consumer):
        super().__init__()
        self.consumer = consumer

    def produce(self):
        self.consumer.consume({"item": 1, "new": True})


@pytest.fixture
def consumer():
    return Mock()


@pytest.fixture
def producer(consumer):
    proxy = Producer.start(consumer).proxy()
    yield proxy
    proxy.stop()


def test_actor_is_tested_with_a_mock_in_the_place_of_who_it_works_with(consumer, producer):
    producer.produce().get()
    consumer.consume.assert_called_once_with({"item": 1, "new": True})


def test_actor_whose_mock_raises_gives_that_to_who_asked(consumer, producer):
    consumer.consume.side_effect = OSError("gone")
    with pytest.raises(OSError, match="gone"):
        producer.produce().get()


# -- guides: deadlocks


class Deadlocked(TrioActor):
    def __init__(self, other=None):
        super().__init__()
        self.other = other

    async def foo(self, other):
        return await other.bar()

    async def bar(self):
        return await self.other.foo(None)


def test_documented_deadlock_of_two_actors_is_an_error_to_whoever_asked_instead():
    one = Deadlocked.start().proxy()
    other = Deadlocked.start(one).proxy()
    with pytest.raises(AskCycleError):
        one.foo(other).get(timeout=60)


def test_tracebacks_of_all_threads_show_the_one_that_runs_the_actors(hosted, caplog):
    Greeter.start()
    with caplog.at_level(logging.CRITICAL, logger="pykka"):
        pykka.debug.log_thread_tracebacks()
    shown = [record.getMessage() for record in caplog.records]
    assert any("trio" in text and "MainThread" not in text for text in shown)
    assert any(text.startswith("Current state of MainThread") for text in shown)
