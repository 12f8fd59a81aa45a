"""TrioFuture: pykka's documented future, got from threads and awaited in trio."""

from __future__ import annotations

import dis
import queue
import threading

import pykka
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from abeyance.actors.core import (
    ActorSystem,
    FutureSettledError,
    TrioActor,
    TrioFuture,
    WouldDeadlockError,
)
from abeyance.actors.core.future import Target
from abeyance.actors.core.serving import serve


class Echo(TrioActor):
    def on_receive(self, message):
        return message


def settled(value):
    future = TrioFuture()
    future.set(value)
    return future


def test_future_get_returns_the_value_as_often_as_asked():
    future = settled(1)
    assert [future.get(), future.get()] == [1, 1]


def test_future_get_raises_pykkas_timeout_when_nothing_was_set():
    with pytest.raises(pykka.Timeout):
        TrioFuture().get(timeout=0)


def test_future_get_blocks_a_thread_until_another_sets():
    future = TrioFuture()
    thread = threading.Thread(target=future.set, args=("x",))
    thread.start()
    assert future.get(timeout=60) == "x"
    thread.join()


def test_future_set_twice_raises_and_keeps_the_first():
    future = settled(1)
    with pytest.raises(FutureSettledError):
        future.set(2)
    with pytest.raises(queue.Full):
        future.set_exception((ValueError, ValueError(), None))
    with pytest.raises(FutureSettledError):
        future.set_get_hook(lambda timeout: 3)
    assert future.get() == 1


def test_future_set_raises_when_there_is_a_get_hook():
    future = TrioFuture()
    future.set_get_hook(lambda timeout: 3)
    with pytest.raises(FutureSettledError):
        future.set(1)
    assert future.get() == 3


def test_future_set_exception_takes_the_exception_being_handled():
    future = TrioFuture()
    try:
        raise ValueError("why")
    except ValueError:
        future.set_exception()
    with pytest.raises(ValueError, match="why"):
        future.get()


def test_future_set_exception_takes_a_class_alone():
    future = TrioFuture()
    future.set_exception((KeyError, None, None))
    with pytest.raises(KeyError):
        future.get()


def test_future_get_hook_runs_once_with_the_timeout():
    calls = []

    def hook(timeout):
        calls.append(timeout)
        return "made"

    future = TrioFuture()
    future.set_get_hook(hook)
    assert [future.get(timeout=3), future.get(timeout=4)] == ["made", "made"]
    assert calls == [3]


async def test_future_of_an_ask_that_got_a_hook_drops_the_reply_and_counts_it_as_late():
    async with ActorSystem() as system:
        ref = system.start(Echo)
        future = ref.ask("reply", block=False)
        future.set_get_hook(lambda timeout: "hooked")
        assert await ref.ask("next", block=False) == "next"
        assert await future == "hooked"
        assert ref.statistics().late == 1


def test_future_filter_keeps_the_items_that_pass():
    future = TrioFuture()
    filtered = future.filter(lambda x: x > 10)
    future.set(range(5, 15))
    assert filtered.get() == [11, 12, 13, 14]


def test_future_filter_raises_type_error_on_what_is_no_iterable():
    with pytest.raises(TypeError):
        settled(1).filter(lambda x: x).get()


def test_future_join_gives_all_results_in_order():
    first, second, third = TrioFuture(), TrioFuture(), TrioFuture()
    joined = first.join(second, third)
    third.set(False)
    first.set("abc")
    second.set(123)
    assert joined.get() == ["abc", 123, False]


@pytest.mark.parametrize(
    ("value", "func", "result"),
    [(30, lambda x: x + 10, 40), ({"foo": "bar"}, lambda x: x["foo"], "bar")],
    ids=["number", "dict"],
)
def test_future_map_passes_the_whole_value(value, func, result):
    assert settled(value).map(func).get() == result


@pytest.mark.parametrize(
    ("items", "start", "result"),
    [([1, 2, 3], (), 6), ([1, 2, 3], (5,), 11), ([], (5,), 5)],
    ids=["plain", "with a start", "empty"],
)
def test_future_reduce_combines_from_the_left(items, start, result):
    assert settled(items).reduce(lambda x, y: x + y, *start).get() == result


def test_future_reduce_of_nothing_without_a_start_raises_type_error():
    with pytest.raises(TypeError):
        settled([]).reduce(lambda x, y: x + y).get()


def test_future_can_be_collected_by_pykkas_get_all():
    assert pykka.get_all([settled(1), settled(2)]) == [1, 2]


async def test_future_get_on_the_loop_thread_raises_instead_of_deadlocking():
    with pytest.raises(WouldDeadlockError):
        TrioFuture().get()


async def test_future_get_on_the_loop_thread_returns_what_is_there():
    assert settled(1).get() == 1


async def test_future_await_waits_for_a_set_in_trio():
    future = TrioFuture()
    async with trio.open_nursery() as nursery:
        got = []

        async def waiter():
            got.append(await future)

        for _ in range(3):
            nursery.start_soon(waiter)
        await wait_all_tasks_blocked()
        assert got == []
        future.set(7)
    assert got == [7, 7, 7]


async def test_future_await_is_woken_by_a_set_in_a_thread():
    future = TrioFuture()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, future.set, 8)
        assert await future == 8


async def test_future_await_of_a_settled_future_is_a_checkpoint():
    with trio.testing.assert_checkpoints():
        await settled(1)


async def test_future_await_raises_the_exception():
    future = TrioFuture()
    future.set_exception((ValueError, ValueError("no"), None))
    with pytest.raises(ValueError, match="no"):
        await future


async def test_future_is_as_it_was_after_a_cancelled_await():
    future = TrioFuture()
    with trio.move_on_after(0):
        await future
    assert not future.settled
    assert future._callbacks == []
    future.set(1)
    assert await future == 1


async def test_future_await_of_mapped_joined_and_reduced_futures_waits_for_their_sources():
    first, second = TrioFuture(), TrioFuture()
    results = []

    async def waiter(future):
        results.append(await future)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(waiter, first.map(lambda x: x + 1))
        nursery.start_soon(waiter, first.join(second))
        nursery.start_soon(waiter, first.join(second).reduce(lambda x, y: x + y))
        await wait_all_tasks_blocked()
        second.set(2)
        await wait_all_tasks_blocked()
        assert results == []
        first.set(1)
    assert sorted(map(str, results)) == ["2", "3", "[1, 2]"]


async def test_future_await_of_a_mapped_future_raises_its_sources_exception():
    future = TrioFuture()
    future.set_exception((ValueError, ValueError("source"), None))
    with pytest.raises(ValueError, match="source"):
        await future.map(lambda x: x)


async def test_future_await_of_a_get_hook_runs_it_in_a_thread():
    seen = []
    future = TrioFuture()
    future.set_get_hook(lambda timeout: seen.append(threading.current_thread()) or 5)
    assert await future == 5
    assert seen != [threading.current_thread()]


async def test_future_await_of_a_join_with_a_threading_future_works():
    other = pykka.ThreadingFuture()
    joined = settled(1).join(other)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, other.set, 2)
        assert await joined == [1, 2]


def test_future_settled_by_many_threads_is_settled_once_and_wakes_everyone():
    for _ in range(50):
        future = TrioFuture()
        wins = []
        woken = []
        barrier = threading.Barrier(4)

        def settle(value, future=future, wins=wins, barrier=barrier):
            barrier.wait()
            wins.append(future._answer(value))

        def wait(future=future, woken=woken, barrier=barrier):
            barrier.wait()
            woken.append(future.get(timeout=60))

        threads = [threading.Thread(target=settle, args=(n,)) for n in range(2)]
        threads += [threading.Thread(target=wait) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(wins) == [False, True]
        assert len(set(woken)) == 1
        assert len(woken) == 2


@pytest.mark.parametrize("code", [Target._settle, serve], ids=["settle", "serve"])
def test_nothing_can_come_between_the_claim_of_an_outcome_and_its_publication(code):
    """Threads and signal handlers get a turn at calls, jumps back and awaits, and at nothing else:
    a claim without an outcome would leave whoever waits for it waiting for ever."""
    steps = [(step.opname, step.argval) for step in dis.get_instructions(code)]
    claim = steps.index(("DELETE_ATTR", "_claim"))
    publish = steps.index(("STORE_ATTR", "_outcome"), claim)
    between = {opname for opname, _ in steps[claim + 1 : publish]}
    assert all(opname == "NOP" or opname.startswith("LOAD_FAST") for opname in between), between


def test_future_of_a_run_that_ended_can_be_settled_all_the_same():
    future = TrioFuture()

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: _await(future))
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(main)
    future.set(1)
    assert future.get() == 1


async def _await(future):
    return await future
