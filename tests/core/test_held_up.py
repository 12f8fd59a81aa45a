"""What may hold nothing up: threads in the wrong place, finalizers, ends from two sides."""

from __future__ import annotations

import gc
import threading
from contextlib import suppress
from typing import Any

import pykka
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors.core import (
    LATER,
    ActorDeadError,
    ActorSystem,
    Backoff,
    ChildSpec,
    HostedSystem,
    OutcomeUnknownError,
    SupervisorSpec,
    TrioActor,
    TrioFuture,
)
from abeyance.actors.core.cell import Cell
from abeyance.actors.core.deadletters import DeadLetter, Ledger
from abeyance.actors.core.events import ActorCrashed
from abeyance.actors.core.hosted import find_system

from ..stopwatch import Stopwatch

WITHIN_S = 20.0  # Only what hangs takes as long.


class Does(TrioActor):
    """Does what it is told, with itself."""

    async def on_receive(self, message: Any) -> Any:
        result = message(self) if callable(message) else message
        return await result if hasattr(result, "__await__") else result


async def waits(_self: Any) -> None:
    await trio.sleep_forever()


async def group_of(system: ActorSystem, actor_class: type[TrioActor], **options: Any) -> Any:
    return await system.start_supervisor(
        SupervisorSpec("group", (ChildSpec("a", actor_class),), backoff=Backoff(0, 0), **options)
    )


# -- threads


@pytest.mark.parametrize("start", ["spawn", "pipe"])
async def test_task_that_is_started_from_a_thread_is_refused_and_holds_no_stop_up(start):
    def begins(actor: Does) -> Any:
        options = {} if start == "spawn" else {"tag": None}
        return trio.to_thread.run_sync(lambda: getattr(actor, start)(trio.sleep_forever, **options))

    async with ActorSystem() as system:
        ref = system.start(Does)
        with pytest.raises(RuntimeError, match="loop thread"):
            await ref.ask(begins)
        with trio.fail_after(WITHIN_S):
            assert await ref.stop() is True


async def start_child(system, group):
    await group.start_child(ChildSpec("b", Does))


async def stop_child(system, group):
    await group.stop_child("a")


async def stop_group(system, group):
    await group.stop()


async def unpark(system, group):
    group.unpark()


async def start_supervisor(system, group):
    await system.start_supervisor(SupervisorSpec("other"))


@pytest.mark.parametrize(
    "act", [start_child, stop_child, stop_group, unpark, start_supervisor], ids=lambda f: f.__name__
)
async def test_group_is_changed_on_its_loop_thread_only_and_refuses_others_first(act):
    async with ActorSystem() as system:
        group = await group_of(system, Does, intensity=0, on_exhausted="park")
        group.refs["a"].kill()
        await wait_all_tasks_blocked()
        assert group.state == "parked"
        with pytest.raises(RuntimeError, match="loop thread"):
            await trio.to_thread.run_sync(trio.run, act, system, group)
        assert (group.state, list(group.refs)) == ("parked", ["a"])
        assert group.unpark()
        assert await group.refs["a"].ask("x") == "x"


async def test_reminder_is_set_on_the_loop_thread_only():
    def reminds(actor: Does) -> Any:
        return trio.to_thread.run_sync(lambda: actor.remind("r", at_ms=0))

    async with ActorSystem() as system:
        with pytest.raises(RuntimeError, match="loop thread"):
            await system.start(Does, name="named").ask(reminds)


async def test_stop_that_a_dropping_thread_has_in_hand_is_found_by_an_actor_that_is_suspended():
    class Drops(Does):
        overflow = "drop_oldest"
        mailbox_capacity = 2

    gate = trio.Event()

    async def suspended() -> None:
        ref.suspend()
        gate.set()
        await wait_all_tasks_blocked()

    def dropped(_letter: DeadLetter) -> None:
        with suppress(RuntimeError):  # On the loop thread, later: nothing more is to happen.
            trio.from_thread.run(suspended)

    async with ActorSystem(on_dead_letter=dropped) as system:
        ref = system.start(Drops)
        ref.tell(lambda _: gate.wait())
        await wait_all_tasks_blocked()
        stopped = ref.stop()
        ref.tell("a")
        ref.tell("b")
        await trio.to_thread.run_sync(ref.tell, "c")
        with trio.fail_after(WITHIN_S):
            assert await stopped is True


async def test_shutdown_goes_on_though_a_start_of_a_host_thread_fails_meanwhile(monkeypatch):
    begun, fails = threading.Event(), threading.Event()

    class Fails(TrioActor):
        def __init__(self) -> None:
            begun.set()
            fails.wait(WITHIN_S)
            raise ValueError("no")

    async with ActorSystem() as system:
        system.start(Does)

        def starts() -> None:
            with pytest.raises(ValueError, match="no"):
                system.start(Fails)

        thread = threading.Thread(target=starts)
        thread.start()
        await trio.to_thread.run_sync(begun.wait)
        system.start(Does)

        def busy(_cell: Cell) -> bool:
            fails.set()
            thread.join(WITHIN_S)
            return False

        monkeypatch.setattr(Cell, "busy", property(busy))
        report = await system.shutdown()
    assert report.clean


@pytest.mark.parametrize("taken", [True, False], ids=["after", "before"])
def test_start_whose_thread_is_interrupted_as_it_hands_the_actor_over_leaves_no_child(taken):
    with HostedSystem() as hosted:
        system = hosted.system
        token = system.token

        class Interrupts:
            def run_sync_soon(self, function: Any, *args: Any) -> None:
                system.token = token
                if taken:
                    token.run_sync_soon(function, *args)
                    hosted.run(trio.sleep, 0)
                raise KeyboardInterrupt

        system.token = Interrupts()
        with pytest.raises(KeyboardInterrupt):
            hosted.start(Does, name="a")

        async def settled() -> list[str]:
            await wait_all_tasks_blocked()
            return list(system.user._children)

        assert hosted.run(settled) == []
        assert hosted.start(Does, name="a").ask("x") == "x"


# -- hosted systems


def test_call_that_never_ends_is_cut_off_at_the_end_of_its_system():
    began = threading.Event()
    ends: list[BaseException] = []

    async def for_ever() -> None:
        began.set()
        await trio.sleep_forever()

    def calls() -> None:
        try:
            hosted.run(for_ever)
        except OutcomeUnknownError as error:
            ends.append(error)

    hosted = HostedSystem(trio_clock=MockClock(autojump_threshold=0))
    hosted.open()
    calling = threading.Thread(target=calls, daemon=True)
    calling.start()
    began.wait(WITHIN_S)
    closing = threading.Thread(target=hosted.close, daemon=True)
    closing.start()
    closing.join(WITHIN_S)
    assert not closing.is_alive()
    calling.join(WITHIN_S)
    assert len(ends) == 1
    with pytest.raises(ActorDeadError):
        hosted.run(for_ever)


def test_call_that_ends_in_its_time_is_waited_for_at_the_end_of_its_system():
    began = threading.Event()

    async def a_while() -> str:
        began.set()
        while hosted.report is None:  # The clock jumps as soon as all are asleep.
            await trio.lowlevel.checkpoint()
        await trio.sleep(20)
        return "done"

    hosted = HostedSystem(trio_clock=MockClock(autojump_threshold=0))
    hosted.open()
    call = hosted.run_nowait(a_while)
    began.wait(WITHIN_S)
    hosted.close()
    assert call.get(timeout=WITHIN_S) == "done"


def test_hosted_system_that_was_never_opened_has_nothing_to_close():
    hosted = HostedSystem()
    assert hosted.close() is None
    with hosted:
        assert hosted.start(Does).ask("x") == "x"


def test_hosted_system_whose_run_ends_as_it_opens_is_nobodys_system():
    hosted = HostedSystem()
    ready = hosted._ready.get

    def ends_first() -> None:
        ready()
        hosted.system.token.run_sync_soon(hosted._signal_stop)
        hosted._thread.join(WITHIN_S)

    hosted._ready.get = ends_first  # type: ignore[method-assign]
    hosted.open()
    with pytest.raises(RuntimeError, match="no actor system runs"):
        find_system()
    hosted.close()


# -- ends


async def test_kill_that_comes_while_on_failure_runs_ends_no_later_incarnation(autojump_clock):
    gate = trio.Event()
    begun: list[int] = []

    class Fails(Does):
        def on_start(self) -> None:
            begun.append(self.incarnation)

        async def on_failure(self, *_info: Any) -> None:
            await gate.wait()

    async with ActorSystem() as system:
        group = await group_of(system, Fails)
        ref = group.refs["a"]
        ref.kill()
        await wait_all_tasks_blocked()
        ref.kill()
        gate.set()
        assert await ref.ask("x") == "x"
        await wait_all_tasks_blocked()
        assert begun == [1, 2]


async def test_what_is_settled_at_an_end_is_not_cut_off_by_an_interrupt():
    protected: list[tuple[str, bool]] = []

    def sink(letter: DeadLetter) -> None:
        protected.append((letter.reason, trio.lowlevel.currently_ki_protected()))

    def owes(actor: Does) -> Any:
        actor.later()
        return LATER

    async with ActorSystem(on_dead_letter=sink) as system:
        group = await group_of(system, Does)
        owed = group.refs["a"].ask(owes)
        await wait_all_tasks_blocked()
        group.refs["a"].kill()
        with pytest.raises(OutcomeUnknownError):
            await owed
        ref = system.start(Does)
        ref.tell("queued")
        await ref.stop(now=True)
    assert protected == [("outcome_unknown", True), ("stopped", True)]


async def test_await_of_a_future_whose_hook_blocks_can_be_cancelled():
    begun, gate, over = threading.Event(), threading.Event(), []

    def hook(_timeout: float | None) -> None:
        begun.set()
        gate.wait(2.0)
        over.append(None)

    future: TrioFuture[Any] = TrioFuture()
    future.set_get_hook(hook)

    async def waits() -> None:
        await future

    async with trio.open_nursery() as nursery:
        nursery.start_soon(waits)
        await trio.to_thread.run_sync(begun.wait)
        nursery.cancel_scope.cancel()
    assert over == []
    gate.set()


# -- what must not pile up


def test_future_that_is_asked_again_and_again_holds_nobody_who_gave_up():
    future: TrioFuture[Any] = TrioFuture()
    for _ in range(20):
        with pytest.raises(pykka.Timeout):
            future.get(timeout=0)
    assert future.__dict__["_callbacks"] == []
    future.set("x")
    assert future.get() == "x"


async def test_timers_that_are_cancelled_are_not_kept_until_their_time(autojump_clock):
    fired: list[int] = []

    def many(actor: Does) -> None:
        for number in range(1_000):
            actor.after(3_600.0 + number, lambda _, number=number: fired.append(number))
        for number in range(5_000):
            actor.after(1_000.0 + number, "x").cancel()

    async with ActorSystem() as system:
        await system.start(Does).ask(many)
        assert len(system.wheel._timers) < 3_000
        await trio.sleep(10_000)
        assert fired == list(range(1_000))


async def test_watchers_that_ended_are_not_kept_until_the_watched_ends():
    ended: list[Any] = []

    class Watches(TrioActor):
        def on_start(self) -> None:
            self.watch(watched)

        def on_ended(self, message: Any) -> None:
            ended.append(message)

    async with ActorSystem() as system:
        watched = system.start(Does)
        staying = [system.start(Watches) for _ in range(40)]
        for _ in range(500):
            await system.start(Watches).stop()
        assert len(watched._cell.watchers or ()) <= 128
        await watched.stop()
        await wait_all_tasks_blocked()
        assert len(ended) == len(staying)


# -- the loop


class Feeds(TrioActor):
    """Has the internal lane take two milliseconds behind each message."""

    def __init__(self, stopwatch: Stopwatch, look: Any) -> None:
        self.stopwatch = stopwatch
        self.look = look

    def on_receive(self, message: Any) -> None:
        if message == "internal":
            self.stopwatch.now += 0.002
        else:
            self.look()
            self.actor_ref.tell_internal("internal")


async def test_internal_lane_that_takes_a_batchs_time_behind_each_message_lets_others_run():
    ticks = 0
    seen: list[int] = []

    async def spin() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await trio.lowlevel.checkpoint()

    async with ActorSystem() as system, trio.open_nursery() as nursery:
        system.stopwatch = stopwatch = Stopwatch()
        nursery.start_soon(spin)
        ref = system.start(Feeds, stopwatch, lambda: seen.append(ticks))
        for _ in range(8):
            ref.tell("x")
        await ref.ask("last")
        nursery.cancel_scope.cancel()
    assert len(seen) == 9
    assert len(set(seen)) >= 4  # Trio may run the two in either order, so not 9.


async def test_suspension_while_the_internal_lane_lets_others_run_holds_for_the_next_message():
    seen: list[Any] = []

    async def suspends() -> None:
        while len(seen) < 2:
            await trio.lowlevel.checkpoint()
        ref.suspend()
        seen.append("suspended")

    async with ActorSystem() as system, trio.open_nursery() as nursery:
        system.stopwatch = stopwatch = Stopwatch()
        ref = system.start(Feeds, stopwatch, lambda: seen.append(None))
        nursery.start_soon(suspends)
        for _ in range(8):
            ref.tell("x")
        await wait_all_tasks_blocked()
        assert seen[-1] == "suspended"
        ref.resume()


# -- finalizers


def within_its_time(afn: Any) -> None:
    """Call a function that may block for ever, and fail if it does."""
    failed: list[BaseException] = []

    def runs() -> None:
        try:
            afn()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=runs, daemon=True)
    thread.start()
    thread.join(5.0)
    assert not thread.is_alive()
    assert failed == []


class Finalized(Exception):
    """Calls a function when it is gone."""

    def __init__(self, then: Any) -> None:
        self.then = then

    def __del__(self) -> None:
        self.then()


def test_message_whose_finalizer_ends_a_message_does_not_lock_the_ledger():
    ledger: Ledger[DeadLetter] = Ledger("dead_letter", lambda _: None, None, kept_max=1)

    def record(message: Any) -> None:
        ledger.record(DeadLetter("a", message, "stopped", 0))

    def records() -> None:
        record(Finalized(lambda: record("from the finalizer")))
        record("pushes it out")
        gc.collect()

    within_its_time(records)
    assert ledger.counts == {"stopped": 3}


async def test_event_whose_finalizer_emits_does_not_lock_its_reader():
    async with ActorSystem() as system:
        reader = system.events(capacity=1, kinds=["crashed"])

        def emit(error: BaseException | None) -> None:
            system.hub.emit(ActorCrashed(at_ms=0, subject="a", incarnation=1, error=error))

        def emits() -> None:
            emit(Finalized(lambda: emit(None)))
            emit(None)
            gc.collect()

        await trio.to_thread.run_sync(within_its_time, emits)
        assert reader.dropped == 2


class Interrupted:
    """A lock whose holder is interrupted, once, as it has it."""

    def __init__(self, lock: Any, then: Any) -> None:
        self.lock = lock
        self.then = then

    def __enter__(self) -> None:
        self.lock.acquire()
        then, self.then = self.then, None
        if then is not None:
            then()

    def __exit__(self, *_info: object) -> None:
        self.lock.release()


async def test_teller_that_interrupts_the_kernel_under_its_lock_is_served():
    class Full(Does):
        mailbox_capacity = 1
        overflow = "drop_newest"

    async with ActorSystem() as system:
        ref = system.start(Full)
        ref.tell(waits)
        await wait_all_tasks_blocked()
        ref.tell("fills it")
        system.lock = Interrupted(system.lock, lambda: ref.tell("from a finalizer"))
        try:
            await trio.to_thread.run_sync(within_its_time, lambda: ref.tell("one more"))
        finally:
            system.lock = threading.RLock()
        assert ref.statistics().mailbox.dead == {"overflow": 2}
        ref.kill()


async def test_emitter_that_interrupts_a_reader_under_its_lock_is_read():
    async with ActorSystem() as system:
        reader = system.events(kinds=["crashed"])

        def emit(subject: str) -> None:
            system.hub.emit(ActorCrashed(at_ms=0, subject=subject, incarnation=1, error=None))

        reader._lock = Interrupted(reader._lock, lambda: emit("from a finalizer"))
        try:
            await trio.to_thread.run_sync(within_its_time, lambda: emit("one"))
        finally:
            reader._lock = threading.RLock()
        assert [(await anext(reader)).subject for _ in range(2)] == ["from a finalizer", "one"]
