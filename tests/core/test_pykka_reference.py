"""What pykka's reference and its guide to logging state, sentence by sentence, of both runtimes.

Each test runs on a `pykka.ThreadingActor` too: that the sentence is read as pykka means it is then
not our word alone. `test_pykka_rules.py` and `test_pykka_documented.py` have the rest.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading

import pykka
import pytest
from pykka.messages import ProxyCall, ProxyGetAttr, ProxySetAttr

from abeyance.actors.core import HostedSystem, TrioActor, TrioFuture


@pytest.fixture(autouse=True)
def hosted():
    with HostedSystem() as system:
        yield system
    pykka.ActorRegistry.stop_all()


@pytest.fixture(params=[pykka.ThreadingActor, TrioActor], ids=["threading", "trio"])
def base(request):
    return request.param


@pytest.fixture(params=[pykka.ThreadingFuture, TrioFuture], ids=["threading", "trio"])
def future(request):
    return request.param()


class Shelf:
    pykka_traversable = True
    height = 3

    def lift(self, by):
        return self.height + by


@pykka.traversable
class Drawer:
    width = 4


class Plain:
    """Not marked: a proxy gives it as it is."""


class Desk:
    """What the actors of these tests do, without their runtime."""

    made = "of wood"
    shelf = Shelf()
    drawer = Drawer()
    lamp = pykka.traversable(Plain())
    chair = Plain()

    def __init__(self, log=None):
        super().__init__()
        self.log = [] if log is None else log
        self.items = []

    def on_receive(self, message):
        self.log.append(message)
        if isinstance(message, BaseException):
            raise message
        if callable(message):
            return message(self)
        return message

    def put(self, *items, front=False):
        self.items = [*items, *self.items] if front else [*self.items, *items]
        return len(self.items)

    def drop(self):
        raise LookupError("nothing to drop")

    def on_failure(self, exception_type, exception_value, traceback):
        self.log.append((exception_type, exception_value, traceback is not None))

    @property
    def broken(self):
        raise LookupError("broken")


@pytest.fixture
def desk_class(base):
    return type("SomeDesk", (Desk, base), {})


@pytest.fixture
def ref(desk_class):
    return desk_class.start()


def see_end(ref):
    """Wait until the actor is gone: a ThreadingActor says that it stopped before its last hook."""
    assert ref.actor_stopped.wait(timeout=60)
    for thread in threading.enumerate():
        if thread.name.startswith(f"{ref.actor_class.__name__}-"):
            thread.join(timeout=10)


# -- actors


def test_constructor_finds_urn_inbox_and_ref_behind_its_superclass_and_no_registration(base):
    seen = {}

    class Curious(base):
        def __init__(self):
            super().__init__()
            seen["urn"], seen["inbox"], seen["ref"] = (
                self.actor_urn,
                self.actor_inbox,
                self.actor_ref,
            )
            seen["registered"] = pykka.ActorRegistry.get_by_urn(self.actor_urn)

    ref = Curious.start()
    assert seen == {
        "urn": ref.actor_urn,
        "inbox": ref.actor_inbox,
        "ref": ref,
        "registered": None,
    }
    assert pykka.ActorRegistry.get_by_urn(ref.actor_urn) == ref


def test_actor_tells_its_stop_by_the_event_that_it_shares_with_its_ref(desk_class):
    ref = desk_class.start()
    assert not ref.actor_stopped.is_set()
    assert ref.is_alive()
    ref.stop()
    see_end(ref)
    assert not ref.is_alive()


def test_hook_that_fails_before_or_after_the_messages_ends_the_actor(base, caplog):
    class FailsFirst(base):
        def on_start(self):
            raise LookupError("at its start")

    class FailsLast(base):
        def on_stop(self):
            raise LookupError("at its end")

    with caplog.at_level(logging.ERROR):
        first = FailsFirst.start()
        see_end(first)
        last = FailsLast.start()
        last.stop()
        see_end(last)
    shown = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert [str(error) for error in shown] == ["at its start", "at its end"]


def test_failure_hook_gets_what_exc_info_has_and_its_own_failure_is_logged_too(base, caplog):
    given = []

    class Unlucky(base):
        def on_receive(self, message):
            raise LookupError(message)

        def on_failure(self, *arguments):
            given.append(arguments)
            raise OSError("once more")

    with caplog.at_level(logging.ERROR):
        ref = Unlucky.start()
        ref.tell("oops")
        see_end(ref)
    ((kind, value, traceback),) = given
    assert kind is LookupError
    assert str(value) == "oops"
    assert traceback.tb_frame is not None
    assert [type(record.exc_info[1]) for record in caplog.records if record.exc_info] == [
        LookupError,
        OSError,
    ]


# -- refs


def test_ask_gives_any_kind_of_message_and_raises_any_kind_of_error(ref):
    for message in (None, 0, "text", b"bytes", {"a": 1}, (1, 2)):
        assert ref.ask(message) == message
    with pytest.raises(ZeroDivisionError, match="by it"):
        ref.ask(ZeroDivisionError("by it"))


def test_ask_that_does_not_block_raises_neither_timeout_nor_error_before_get(ref):
    future = ref.ask(ZeroDivisionError("by it"), block=False, timeout=10)
    assert isinstance(future, pykka.Future)
    with pytest.raises(ZeroDivisionError):
        future.get()


def test_stop_is_true_the_first_time_and_false_ever_after(ref):
    assert ref.stop() is True
    assert ref.stop() is False
    future = ref.stop(block=False)
    assert isinstance(future, pykka.Future)
    assert future.get() is False


def test_message_ahead_of_a_stop_is_handled_and_one_behind_it_is_answered_as_dead(ref):
    entered, released = threading.Event(), threading.Event()
    # Work outside the loop, as it blocks its thread: the actor is in its handler until then.
    if isinstance(ref.actor_class, type) and issubclass(ref.actor_class, TrioActor):
        import trio

        async def busy(_):
            entered.set()
            await trio.to_thread.run_sync(released.wait)
    else:

        def busy(_):
            entered.set()
            released.wait()

    first = ref.ask(busy, block=False)
    assert entered.wait(timeout=10)
    ahead = ref.ask("ahead", block=False)
    stopped = ref.stop(block=False)
    behind = ref.ask("behind", block=False)
    released.set()
    assert first.get(timeout=60) is None
    assert ahead.get(timeout=60) == "ahead"
    assert stopped.get(timeout=60) is True
    with pytest.raises(pykka.ActorDeadError):
        behind.get(timeout=60)


def test_proxy_of_a_ref_is_the_proxy_of_its_class_and_equal_to_it(ref):
    assert ref.proxy() == pykka.ActorProxy(actor_ref=ref)
    assert hash(ref.proxy()) == hash(pykka.ActorProxy(actor_ref=ref))
    assert ref.proxy().actor_ref == ref
    assert repr(ref.proxy()).startswith("<ActorProxy for ")


def test_ref_is_equal_to_every_other_ref_of_its_actor_and_to_no_other(desk_class, ref):
    again = pykka.ActorRegistry.get_by_urn(ref.actor_urn)
    assert again == ref
    assert hash(again) == hash(ref)
    assert ref != desk_class.start()


# -- proxies


def test_proxy_lists_and_reads_public_names_of_class_and_instance(ref):
    proxy = ref.proxy()
    assert {"put", "items", "made", "shelf"} <= set(dir(proxy))
    assert not [name for name in dir(proxy) if name.startswith("_SomeDesk")]
    assert proxy.made.get() == "of wood"
    assert proxy.items.get() == []


def test_proxy_gives_a_method_that_is_not_called_as_a_callable_proxy(ref):
    put = ref.proxy().put
    assert isinstance(put, pykka.CallableProxy)
    assert put("a", "b").get() == 2
    assert put("c", front=True).get() == 3
    assert ref.proxy().items.get() == ["c", "a", "b"]


def test_deferred_call_makes_no_future_and_its_error_ends_the_actor(desk_class):
    log = []
    ref = desk_class.start(log)
    assert ref.proxy().put.defer("a") is None
    assert ref.proxy().items.get() == ["a"]
    assert ref.proxy().drop.defer() is None
    see_end(ref)
    ((kind, value, traced),) = log
    assert (kind, str(value), traced) == (LookupError, "nothing to drop", True)


def test_call_raises_its_error_at_get_and_the_actor_lives_on(ref):
    future = ref.proxy().drop()
    with pytest.raises(LookupError, match="nothing to drop"):
        future.get()
    assert ref.is_alive()


def test_attribute_is_set_when_the_assignment_is_over_and_its_error_is_raised_there(ref):
    ref.proxy().made = "of glass"
    assert ref.ask(lambda desk: desk.made) == "of glass"
    with pytest.raises(AttributeError):
        ref.proxy().broken = 1


@pytest.mark.parametrize(
    ("path", "value"),
    [("shelf.height", 3), ("drawer.width", 4)],
    ids=["by its attribute", "by the decorator"],
)
def test_traversable_object_is_reached_through_the_actor(ref, path, value):
    holder, name = path.split(".")
    assert getattr(getattr(ref.proxy(), holder), name).get() == value


def test_traversable_attribute_is_a_proxy_and_another_is_the_object_itself(ref):
    assert ref.proxy().shelf.lift(2).get() == 5
    assert isinstance(ref.proxy().lamp, pykka.ActorProxy)
    assert isinstance(ref.proxy().chair.get(), Plain)


def test_messages_of_proxies_work_without_one(ref):
    assert ref.ask(ProxyCall(attr_path=("put",), args=("a",), kwargs={"front": True})) == 1
    assert ref.ask(ProxyGetAttr(attr_path=("items",))) == ["a"]
    ref.ask(ProxySetAttr(attr_path=("items",), value=["z"]))
    assert ref.tell(ProxyCall(attr_path=("put",), args=("y",), kwargs={})) is None
    assert ref.ask(ProxyGetAttr(attr_path=("items",))) == ["z", "y"]
    assert ref.ask(ProxyCall(attr_path=("shelf", "lift"), args=(1,), kwargs={})) == 4


# -- futures


def test_future_gives_its_value_again_and_again_and_is_set_once(future):
    future.set([1, 2])
    assert future.get() is future.get(timeout=0)
    with pytest.raises(Exception):  # noqa: B017 pykka names no class, and each runtime has its own
        future.set(3)
    assert future.get() == [1, 2]


def test_future_without_a_value_has_none(future):
    future.set()
    assert future.get() is None


@pytest.mark.parametrize("how", ["set", "set_exception"])
def test_future_with_a_hook_takes_no_result_and_one_with_a_result_no_hook(future, how):
    future.set_get_hook(lambda timeout: ("hooked", timeout))
    arguments = [1] if how == "set" else [(LookupError, LookupError("late"), None)]
    with pytest.raises(Exception):  # noqa: B017
        getattr(future, how)(*arguments)
    assert future.get(timeout=2) == ("hooked", 2)

    settled = type(future)()
    getattr(settled, how)(*arguments)
    with pytest.raises(Exception):  # noqa: B017
        settled.set_get_hook(lambda timeout: timeout)


def test_future_takes_the_exception_being_handled_and_raises_it_where_it_is_read(future):
    try:
        raise LookupError("handled")
    except LookupError:
        future.set_exception()
    with pytest.raises(LookupError, match="handled"):
        future.get()
    with pytest.raises(LookupError, match="handled"):
        future.get()


def test_future_that_is_mapped_filtered_joined_and_reduced_waits_for_its_source(future):
    mapped = future.map(list)
    kept = future.filter(lambda each: each > 10)
    joined = future.join(mapped)
    summed, began = future.reduce(lambda a, b: a + b), future.reduce(lambda a, b: a + b, 5)
    with pytest.raises(pykka.Timeout):
        kept.get(timeout=0)
    future.set(range(9, 13))
    assert mapped.get() == [9, 10, 11, 12]
    assert list(kept.get()) == [11, 12]
    assert joined.get() == [range(9, 13), [9, 10, 11, 12]]
    assert (summed.get(), began.get()) == (42, 47)


@pytest.mark.parametrize(
    "derive",
    [lambda f: f.filter(bool), lambda f: f.reduce(lambda a, b: a)],
    ids=["filter", "reduce"],
)
def test_future_whose_value_is_no_iterable_raises_type_error_at_get(future, derive):
    derived = derive(future)
    future.set(1)
    with pytest.raises(TypeError):
        derived.get()


def test_futures_are_collected_in_order_and_the_one_that_is_late_times_out(future):
    late = type(future)()
    future.set("first")
    with pytest.raises(pykka.Timeout):
        pykka.get_all([future, late], timeout=0)
    late.set("second")
    assert pykka.get_all([future, late], timeout=0) == ["first", "second"]


# -- registry


def test_registry_finds_by_class_subclass_name_and_urn(base, desk_class):
    child = type("ChildDesk", (desk_class,), {})
    one, other = desk_class.start(), child.start()
    registry = pykka.ActorRegistry
    assert set(registry.get_all()) == {one, other}
    assert set(registry.get_by_class(desk_class)) == {one, other}
    assert set(registry.get_by_class(base)) == {one, other}
    assert registry.get_by_class(child) == [other]
    assert registry.get_by_class_name("SomeDesk") == [one]
    assert registry.get_by_urn("urn:uuid:of-nobody") is None


def test_registry_broadcasts_to_all_to_a_class_and_to_a_name(desk_class):
    child = type("ChildDesk", (desk_class,), {})
    one, other = desk_class.start(), child.start()
    pykka.ActorRegistry.broadcast("all")
    pykka.ActorRegistry.broadcast("class", target_class=child)
    pykka.ActorRegistry.broadcast("name", target_class="SomeDesk")
    assert one.proxy().log.get() == ["all", "name"]
    assert other.proxy().log.get() == ["all", "class"]


def test_registry_stops_the_last_that_started_first_and_returns_each_answer(base):
    ended = []

    class Ordered(base):
        def __init__(self, number):
            super().__init__()
            self.number = number

        def on_stop(self):
            ended.append(self.number)

    for number in range(5):
        Ordered.start(number)
    assert pykka.ActorRegistry.stop_all() == [True] * 5
    assert ended == [4, 3, 2, 1, 0]
    assert pykka.ActorRegistry.get_all() == []
    assert pykka.ActorRegistry.stop_all() == []


def test_registry_that_does_not_wait_gives_a_future_an_actor(desk_class):
    desk_class.start(), desk_class.start()
    answers = pykka.ActorRegistry.stop_all(block=False)
    assert pykka.get_all(answers, timeout=10) == [True, True]


def test_registry_forgets_an_actor_by_hand_and_it_lives_on(ref):
    pykka.ActorRegistry.unregister(ref)
    assert pykka.ActorRegistry.get_all() == []
    assert ref.ask("still here") == "still here"
    pykka.ActorRegistry.register(ref)
    assert pykka.ActorRegistry.get_all() == [ref]


# -- logging


def levels_of(caplog, error):
    return [
        record.levelname
        for record in caplog.records
        if record.exc_info and error in str(record.exc_info[1])
    ]


def test_error_is_logged_as_info_where_a_future_has_it_and_as_error_where_none_has(ref, caplog):
    with caplog.at_level(logging.DEBUG):
        with pytest.raises(LookupError):
            ref.ask(LookupError("asked"))
        ref.proxy().drop()
        ref.tell(LookupError("told"))
        see_end(ref)
    assert levels_of(caplog, "asked") == ["INFO"]
    assert levels_of(caplog, "nothing to drop") == ["INFO"]
    assert levels_of(caplog, "told") == ["ERROR"]


def test_start_and_end_are_logged_as_debug_and_nothing_higher(desk_class, caplog):
    with caplog.at_level(logging.DEBUG):
        ref = desk_class.start()
        ref.stop()
    assert {record.levelname for record in caplog.records} == {"DEBUG"}
    told = " ".join(record.getMessage() for record in caplog.records)
    for word in ("Registered", "Starting", "Unregistered", "Stopped"):
        assert f"{word} {ref}" in told


@pytest.mark.parametrize("package", ["pykka", "abeyance.actors.core"])
def test_import_sets_no_logging_up_and_a_warning_is_not_printed_unless_somebody_asks(package):
    code = (
        f"import logging, {package}; name = '{package}'.split('.')[0];"
        "assert logging.getLogger().handlers == [];"
        "assert all(type(h) is logging.NullHandler for h in logging.getLogger(name).handlers);"
        "logging.getLogger(name + '.core').warning('%s', 'said')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
