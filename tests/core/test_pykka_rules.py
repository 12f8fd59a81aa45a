"""What pykka documents of actors, refs, proxies and the registry, on a TrioActor."""

from __future__ import annotations

import threading
from contextlib import suppress

import pykka
import pytest
import trio

from abeyance.actors.core import (
    ActorDeadError,
    ActorSystem,
    HostedSystem,
    TrioActor,
    TrioFuture,
    WouldDeadlockError,
)


@pykka.traversable
class Deck:
    level = 2


class Playback:
    pykka_traversable = True

    def __init__(self):
        self.volume = 3
        self.deck = Deck()

    def play(self):
        return "playing"


class Sample(TrioActor):
    title = "class attribute"

    def __init__(self, greeting="hello", *, log=None):
        super().__init__()
        self.greeting = greeting
        self.playback = Playback()
        self.log = log if log is not None else []
        self._secret = 1

    def on_start(self):
        self.log.append("on_start")

    def on_stop(self):
        self.log.append("on_stop")

    def on_failure(self, exception_type, exception_value, traceback):
        self.log.append(("on_failure", exception_type, str(exception_value), traceback is not None))

    def on_receive(self, message):
        if message == "ident":
            return threading.get_ident()
        if isinstance(message, BaseException):
            raise message
        return ("received", message)

    def shout(self, word, *, times=1):
        return word.upper() * times

    async def slowly(self, word):
        await trio.lowlevel.checkpoint()
        return word[::-1]

    def fail(self):
        raise ValueError("failed")

    def stop_yourself(self):
        self.stop()


@pytest.fixture
def hosted():
    with HostedSystem() as system:
        yield system


@pytest.fixture
def log():
    return []


@pytest.fixture
def ref(hosted, log):
    return Sample.start("hi", log=log)


def test_start_passes_arguments_and_returns_a_live_ref(ref):
    assert ref.is_alive()
    assert ref.proxy().greeting.get() == "hi"
    assert ref.actor_class is Sample
    assert ref.actor_urn.startswith("urn:uuid:")


def test_start_makes_the_instance_on_the_calling_thread(hosted):
    class Made(TrioActor):
        def __init__(self):
            self.made_in = threading.get_ident()

    assert Made.start().proxy().made_in.get() == threading.get_ident()


def test_start_raises_what_the_constructor_raises(hosted):
    class Broken(TrioActor):
        def __init__(self):
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        Broken.start()
    assert pykka.ActorRegistry.get_by_class(Broken) == []


def test_handlers_run_on_the_loop_thread(ref):
    assert ref.ask("ident") not in (threading.get_ident(), None)


def test_on_start_runs_before_the_first_message(ref, log):
    ref.ask("x")
    assert log == ["on_start"]


def test_on_stop_runs_after_the_last_message_and_before_stop_returns(ref, log):
    ref.tell("x")
    assert ref.stop() is True
    assert log == ["on_start", "on_stop"]
    assert not ref.is_alive()


def test_stop_returns_false_when_the_actor_was_dead(ref):
    assert ref.stop() is True
    assert ref.stop() is False
    assert ref.stop(block=False).get() is False


def test_stop_handles_what_was_sent_before_it(ref):
    futures = [ref.ask(n, block=False) for n in range(20)]
    ref.stop()
    assert [future.get() for future in futures] == [("received", n) for n in range(20)]


def test_actor_stops_itself(ref):
    ref.proxy().stop_yourself().get()
    assert ref.actor_stopped.wait(timeout=60)


def test_tell_to_a_dead_actor_raises_pykkas_error_and_hands_the_message_back(ref):
    ref.stop()
    with pytest.raises(pykka.ActorDeadError) as caught:
        ref.tell("late")
    assert isinstance(caught.value, ActorDeadError)
    assert caught.value.message == "late"


def test_ask_to_a_dead_actor_fails_the_future(ref):
    ref.stop()
    future = ref.ask("late", block=False)
    with pytest.raises(pykka.ActorDeadError):
        future.get()
    with pytest.raises(pykka.ActorDeadError):
        ref.ask("late")


def test_error_of_an_ask_goes_to_the_asker_and_the_actor_lives(ref, log):
    with pytest.raises(ValueError, match="mine"):
        ref.ask(ValueError("mine"))
    assert ref.ask("still") == ("received", "still")
    assert log == ["on_start"]


def test_error_of_a_tell_calls_on_failure_instead_of_on_stop_and_ends_the_actor(ref, log):
    ref.tell(ValueError("told"))
    assert ref.actor_stopped.wait(timeout=60)
    assert log == ["on_start", ("on_failure", ValueError, "told", True)]


def test_error_of_on_start_ends_the_actor(hosted):
    class Broken(TrioActor):
        def on_start(self):
            raise ValueError("start")

    assert Broken.start().actor_stopped.wait(timeout=60)


def test_error_of_on_stop_ends_the_actor_all_the_same(hosted):
    class Broken(TrioActor):
        def on_stop(self):
            raise ValueError("stop")

    ref = Broken.start()
    assert ref.stop() is True
    assert not ref.is_alive()


def test_unexpected_message_is_logged_and_answered_with_none(hosted, caplog):
    class Plain(TrioActor):
        pass

    assert Plain.start().ask("odd") is None
    assert "Unexpected message" in caplog.text


def test_ask_blocks_by_default_and_gives_a_future_with_block_false(ref):
    assert ref.ask(1) == ("received", 1)
    future = ref.ask(2, block=False)
    assert isinstance(future, TrioFuture)
    assert future.get() == ("received", 2)


def test_ask_times_out_with_pykkas_timeout(hosted):
    class Stuck(TrioActor):
        async def on_receive(self, message):
            await trio.sleep_forever()

    ref = Stuck.start()
    with pytest.raises(pykka.Timeout):
        ref.ask("x", timeout=0.01)
    ref.kill()


def test_proxy_reads_attributes_of_instance_and_class(ref):
    proxy = ref.proxy()
    assert proxy.greeting.get() == "hi"
    assert proxy.title.get() == "class attribute"


def test_proxy_sets_attributes(ref):
    proxy = ref.proxy()
    proxy.greeting = "changed"
    assert proxy.greeting.get() == "changed"


def test_proxy_calls_methods_plain_and_async(ref):
    proxy = ref.proxy()
    assert proxy.shout("a", times=3).get() == "AAA"
    assert proxy.slowly("abc").get() == "cba"


def test_proxy_raises_the_methods_error_at_get(ref):
    future = ref.proxy().fail()
    with pytest.raises(ValueError, match="failed"):
        future.get()
    assert ref.is_alive()


def test_proxy_defer_sends_a_tell(ref, log):
    assert ref.proxy().shout.defer("a") is None
    ref.proxy().fail.defer()
    assert ref.actor_stopped.wait(timeout=60)
    assert log[-1][:2] == ("on_failure", ValueError)


def test_proxy_walks_traversable_attributes(ref):
    proxy = ref.proxy()
    assert proxy.playback.play().get() == "playing"
    assert proxy.playback.volume.get() == 3
    proxy.playback.volume = 9
    assert proxy.playback.volume.get() == 9
    assert proxy.playback.deck.level.get() == 2


def test_proxy_hides_private_and_unknown_attributes(ref):
    proxy = ref.proxy()
    with pytest.raises(AttributeError):
        proxy._secret  # noqa: B018
    with pytest.raises(AttributeError):
        proxy.unknown  # noqa: B018


def test_proxy_of_a_dead_actor_is_refused(ref):
    ref.stop()
    with pytest.raises(pykka.ActorDeadError):
        ref.proxy()


def test_proxy_to_itself_defers_work_behind_what_is_queued(hosted):
    class Steps(TrioActor):
        def __init__(self):
            self.seen = []
            self._later = None

        def on_start(self):
            self._later = self.actor_ref.proxy()

        def first(self):
            self.seen.append("first")
            self._later.second()

        def second(self):
            self.seen.append("second")

    proxy = Steps.start().proxy()
    proxy.first().get()
    assert proxy.seen.get() == ["first", "second"]


def test_proxy_to_itself_may_be_made_by_the_constructor(hosted):
    class Steps(TrioActor):
        level = 1

        def __init__(self):
            super().__init__()
            self.me = self.actor_ref.proxy()
            self.seen = []

        def first(self):
            self.me.second()
            self.seen.append("first")

        def second(self):
            self.seen.append(f"second, level {self.level}")

    proxy = Steps.start().proxy()
    proxy.first().get()
    assert proxy.seen.get() == ["first", "second, level 1"]


def test_text_of_ref_proxy_and_actor_names_class_and_urn(hosted):
    class Says(TrioActor):
        def on_receive(self, message):
            return str(self)

    ref = hosted.start(Says, name="named")
    assert ref.ask("who") == str(ref)
    for text in (str(ref), repr(ref), str(ref.proxy()), repr(ref.proxy())):
        assert "Says" in text
        assert "named" in text
        assert ref.actor_urn in text


@pytest.mark.parametrize("how", ["ask", "tell", "on_start", "on_stop"])
def test_error_of_a_hook_or_handler_is_logged_under_the_refs_text(hosted, caplog, how):
    class Fails(TrioActor):
        def on_start(self):
            if how == "on_start":
                raise ValueError("here")

        def on_stop(self):
            if how == "on_stop":
                raise ValueError("here")

        def on_receive(self, message):
            raise ValueError("here")

    caplog.set_level("INFO")
    ref = Fails.start()
    if how == "ask":
        with pytest.raises(ValueError, match="here"):
            ref.ask("x")
    elif how == "tell":
        ref.tell("x")
    ref.stop()
    records = [record for record in caplog.records if record.exc_info]
    assert [record.levelname for record in records] == ["INFO" if how == "ask" else "ERROR"]
    expected = (
        "Exception returned from {} to caller:" if how == "ask" else "Unhandled exception in {}:"
    )
    assert records[0].getMessage() == expected.format(ref)
    assert str(records[0].exc_info[1]) == "here"


def test_start_and_end_of_a_registered_actor_are_logged_as_debug(hosted, caplog):
    caplog.set_level("DEBUG", "abeyance.core")
    ref = Sample.start()
    ref.stop()
    logged = [r.getMessage() for r in caplog.records if r.name == "abeyance.core"]
    assert logged == [f"Starting {ref}", f"Stopped {ref}"]


def test_actor_is_alive_while_on_failure_runs(hosted):
    class Looks(TrioActor):
        def on_receive(self, message):
            raise ValueError("crash")

        def on_failure(self, exception_type, exception_value, traceback):
            alive.append(self.actor_ref.is_alive())

    alive: list[bool] = []
    ref = hosted.start(Looks)
    ref.tell("x")
    assert ref.actor_stopped.wait(timeout=20)
    assert alive == [True]
    assert not ref.is_alive()


def test_instance_that_is_made_by_hand_is_refused():
    with pytest.raises(RuntimeError, match="made by starting it"):
        Sample()


def test_registry_knows_started_actors_until_they_stop(ref):
    assert ref in pykka.ActorRegistry.get_all()
    assert pykka.ActorRegistry.get_by_urn(ref.actor_urn) is ref
    assert pykka.ActorRegistry.get_by_class(Sample) == [ref]
    assert pykka.ActorRegistry.get_by_class_name("Sample") == [ref]
    ref.stop()
    assert pykka.ActorRegistry.get_by_urn(ref.actor_urn) is None


def test_registry_broadcasts(hosted):
    class Counts(TrioActor):
        def __init__(self):
            self.seen = []

        def on_receive(self, message):
            self.seen.append(message)

    refs = [Counts.start() for _ in range(3)]
    pykka.ActorRegistry.broadcast("all", target_class=Counts)
    assert [ref.proxy().seen.get() for ref in refs] == [["all"]] * 3


def test_registry_stop_all_stops_them_from_a_host_thread(hosted):
    refs = [Sample.start() for _ in range(3)]
    assert pykka.ActorRegistry.stop_all() == [True] * 3
    assert not any(ref.is_alive() for ref in refs)


def test_threading_actor_asks_a_trio_actor_and_is_told_by_it(ref):
    class Threaded(pykka.ThreadingActor):
        def __init__(self, other):
            super().__init__()
            self.other = other

        def on_receive(self, message):
            return self.other.ask(message)

    threaded = Threaded.start(ref)
    try:
        assert threaded.ask("via") == ("received", "via")
    finally:
        threaded.stop()


def test_calls_after_the_hosted_system_ended_raise_actor_dead():
    with HostedSystem():
        ref = Sample.start()
    for call in (lambda: ref.tell(1), lambda: ref.ask(1), lambda: ref.proxy()):
        with pytest.raises(pykka.ActorDeadError):
            call()
    assert ref.stop() is False


def test_calls_after_the_end_raise_actor_dead_on_a_thread_of_the_loops_ident():
    """Idents are given anew; the loop's own thread has it, and is a host's after its run."""
    refs = []

    async def main():
        async with ActorSystem() as system:
            refs.append(system.start(Sample))
            refs.append(refs[0].proxy())

    trio.run(main)
    ref, proxy = refs
    calls = {
        "tell": lambda: ref.tell(1),
        "ask": lambda: ref.ask(1),
        "blocking ask": lambda: ref.ask(1, block=True),
        "proxy": ref.proxy,
        "attribute": lambda: setattr(proxy, "attr", 2),
        "future": lambda: ref.ask(1, block=False).get(),
    }
    accepted = []
    for name, call in calls.items():
        with suppress(pykka.ActorDeadError):
            call()
            accepted.append(name)
    assert accepted == []
    assert ref.stop() is False
    assert ref.stop(block=True) is False
    assert ref.actor_stopped.wait() is True


def test_start_without_a_system_is_a_runtime_error():
    with pytest.raises(RuntimeError, match="no actor system"):
        Sample.start()


def test_start_with_two_hosted_systems_is_a_runtime_error():
    with HostedSystem(), HostedSystem(), pytest.raises(RuntimeError, match="2 hosted"):
        Sample.start()


async def test_start_in_trio_uses_the_running_tasks_system():
    async with ActorSystem() as system:
        ref = Sample.start()
        assert ref in pykka.ActorRegistry.get_all()
        assert await ref.ask(1) == ("received", 1)
        assert system.statistics().actors == 1
    assert ref not in pykka.ActorRegistry.get_all()


async def test_ask_in_trio_is_awaited_and_blocking_is_refused():
    async with ActorSystem() as system:
        ref = system.start(Sample)
        assert await ref.ask(1) == ("received", 1)
        assert await ref.proxy().slowly("ab") == "ba"
        with pytest.raises(WouldDeadlockError):
            ref.ask(1, block=True)
        with pytest.raises(WouldDeadlockError):
            ref.stop(block=True)
        assert await ref.stop() is True


def test_base_exception_in_an_ask_reaches_asker_and_ends_the_run():
    system = HostedSystem()
    system.open()
    ref = Sample.start()
    with pytest.raises(KeyboardInterrupt):
        ref.ask(KeyboardInterrupt())
    with pytest.raises(BaseExceptionGroup) as caught:
        system.close()
    assert caught.group_contains(KeyboardInterrupt)


def test_base_exception_stops_all_actors_by_pykkas_rule_where_asked_for():
    with HostedSystem(stop_all_on_base_exception=True) as system:
        refs = [Sample.start() for _ in range(3)]
        with pytest.raises(SystemExit):
            refs[0].ask(SystemExit(1))
        assert all(ref.actor_stopped.wait(timeout=60) for ref in refs)
        assert system.start(Sample).ask(1) == ("received", 1)


def test_hosted_run_returns_the_result_and_raises_the_error(hosted):
    async def double(x):
        await trio.lowlevel.checkpoint()
        return x * 2

    async def fail():
        raise ValueError("run")

    assert hosted.run(double, 4) == 8
    assert hosted.run_nowait(double, 5).get() == 10
    with pytest.raises(ValueError, match="run"):
        hosted.run(fail)


def test_hosted_run_on_the_loop_thread_is_refused(hosted):
    async def again():
        with pytest.raises(WouldDeadlockError):
            hosted.run(trio.lowlevel.checkpoint)
        with pytest.raises(WouldDeadlockError):
            hosted.close()
        return "refused"

    assert hosted.run(again) == "refused"


async def test_hosted_system_is_not_opened_on_a_thread_that_runs_trio():
    system = HostedSystem(thread_name="never started")
    with pytest.raises(WouldDeadlockError), system:
        pass
    assert "never started" not in [thread.name for thread in threading.enumerate()]
    await trio.to_thread.run_sync(system.open)  # Nothing was started: it can be, elsewhere.
    await trio.to_thread.run_sync(system.close)


def test_hosted_run_after_the_end_raises_actor_dead():
    with HostedSystem() as system:
        pass
    with pytest.raises(ActorDeadError):
        system.run(trio.lowlevel.checkpoint)


@pytest.mark.parametrize("heard", [False, True], ids=["unread", "read"])
async def test_urn_is_made_for_pykkas_debug_lines_only_where_somebody_reads_them(heard, caplog):
    caplog.set_level("DEBUG" if heard else "INFO", "pykka")
    async with ActorSystem():
        ref = Sample.start()
        assert (ref._cell._urn is not None) is heard
        assert (f"Registered {ref}" in caplog.text) is heard
        await ref.stop()
        assert (f"Unregistered {ref}" in caplog.text) is heard
