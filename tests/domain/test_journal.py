"""The journal: order, batches, refused chains, and outcomes that outlive its crashes."""

from __future__ import annotations

import itertools
import random
import time
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors.core import AskTimeoutError, OutcomeUnknownError
from abeyance.actors.domain import journal as journal_module
from abeyance.actors.domain.errors import NotStoredError
from abeyance.actors.domain.journal import BATCH_REQUESTS_MAX, SETTLE_SLICE
from abeyance.actors.domain.protocol import Requests
from abeyance.storage import codec
from abeyance.storage.errors import (
    DiskFullError,
    InvalidRequestError,
    RequestTooLargeError,
    StoreClosedError,
    StoreLostError,
)
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.memory import MemoryStore
from abeyance.storage.store import (
    Chain,
    Committed,
    Guard,
    NotStored,
    Put,
    Refused,
    Request,
)
from abeyance.storage.tables.slots import Wake

from .desk import DeskStore, desk, disk_full, kill_after, line, lines, outcomes_of

Row = tuple[str, int]


def put(name: str, counter: int, *, chain: Chain | None = None, text: str | None = None) -> Request:
    """Put a row if its counter is as said, and note it."""
    key = (name, 1)
    value = codec.encode(Wake(reason="operator", author="test", at_ms=1))
    return Request(
        guards=(Guard("wakes", key, counter),),
        puts=(Put("wakes", key, value),),
        appends=(line(text or f"{name} {counter}"),),
        chain=chain,
    )


def note(text: str, *, chain: Chain | None = None) -> Request:
    return Request(appends=(line(text),), chain=chain)


# -- order and batches ---------------------------------------------------------------------------


async def test_each_senders_requests_reach_the_store_in_the_order_they_were_sent() -> None:
    store = DeskStore()
    async with desk(store) as room:
        journal = room.refs["journal"]

        async def sender(name: str) -> None:
            futures = [journal.ask(put(name, count)) for count in range(30)]
            futures.append(journal.ask(Requests(put(name, count) for count in range(30, 60))))
            assert all(isinstance(each, Committed) for each in (await outcomes_of(futures))[:30])

        async with trio.open_nursery() as nursery:
            for name in ("a", "b", "c"):
                nursery.start_soon(sender, name)
        assert store.get("wakes", ("a", 1)).counter == 60  # type: ignore[union-attr]
        for name in ("a", "b", "c"):
            mine = [text for text in lines(store) if text.startswith(name)]
            assert mine == [f"{name} {count}" for count in range(60)]


async def test_a_batch_holds_at_most_256_requests_and_no_message_is_cut() -> None:
    store = DeskStore()
    store.hold = True
    async with desk(store) as room:
        journal = room.refs["journal"]
        first = journal.ask(Request())
        await wait_all_tasks_blocked()
        several = [journal.ask(Requests([note("x")] * 100)) for _ in range(5)]
        single = [journal.ask(note("y")) for _ in range(300)]
        store.hold = False
        store.release()
        await outcomes_of([first, *several, *single])
        sizes = [len(batch) for batch in store.batches]
        assert sizes == [1, 200, 200, 256, 144]
        assert max(sizes) == BATCH_REQUESTS_MAX


async def test_one_message_of_more_than_a_batch_is_refused_before_any_effect() -> None:
    store = DeskStore()
    async with desk(store) as room:
        journal = room.refs["journal"]
        with pytest.raises(ValueError, match="257 requests"):
            await journal.ask(Requests([note("x")] * 257))
        with pytest.raises(TypeError, match="takes no str"):
            await journal.ask("x")
        assert await journal.ask(Requests([note("x")] * 256))
        assert len(lines(store)) == 256
        assert await journal.ask(Requests()) == ()


async def test_a_batch_is_sealed_after_the_callers_of_the_last_have_run_once() -> None:
    store = DeskStore()
    async with desk(store) as room:
        journal = room.refs["journal"]

        async def caller(name: str) -> None:
            for count in range(8):
                await journal.ask(put(name, count))

        async with trio.open_nursery() as nursery:
            for number in range(128):
                nursery.start_soon(caller, f"c{number}")
        # Eight rounds of callers are eight batches, and one or two more where a round is cut by the
        # order of its tasks; sealed earlier, eleven at the least.
        assert len(store.batches) <= 10


async def test_replies_are_resumed_in_slices() -> None:
    store = DeskStore()
    async with desk(store) as room:
        journal = room.refs["journal"]
        futures = [journal.ask(note("x")) for _ in range(BATCH_REQUESTS_MAX)]
        settled = [0]
        while settled[-1] < len(futures):
            await trio.lowlevel.checkpoint()
            settled.append(sum(future.settled for future in futures))
        steps = [after - before for before, after in itertools.pairwise(settled)]
        # A look may miss one round of the loop, as trio shuffles the tasks of each.
        assert max(steps) <= 2 * SETTLE_SLICE


async def test_two_nearly_full_messages_are_answered_in_two_rounds_of_the_loop() -> None:
    class Rounds(trio.abc.Instrument):
        number = 0

        def before_io_wait(self, timeout: float) -> None:
            self.number += 1

    rounds, answered = Rounds(), list[int]()
    async with desk(MemoryStore()) as room:
        trio.lowlevel.add_instrument(rounds)
        size = SETTLE_SLICE - 1
        futures = [
            room.refs["journal"].ask(Requests(note(f"{name} {count}") for count in range(size)))
            for name in ("a", "b", "c")
        ]
        for future in futures:
            future.on_done(lambda: answered.append(rounds.number))
        await outcomes_of(futures)
        trio.lowlevel.remove_instrument(rounds)
    assert len(set(answered)) == 3


async def test_the_same_message_object_asked_twice_is_two_requests() -> None:
    store = DeskStore()
    async with desk(store) as room:
        journal = room.refs["journal"]
        request = note("twice")
        assert all(isinstance(each, Committed) for each in await outcomes_of(
            [journal.ask(request), journal.ask(request)]
        ))  # fmt: skip
        assert lines(store) == ["twice", "twice"]


# -- refused chains ------------------------------------------------------------------------------


async def test_nothing_planned_on_a_refused_request_is_applied_across_messages_and_batches() -> (
    None
):
    store = DeskStore()
    chain = Chain("s", 1)
    async with desk(store) as room:
        journal = room.refs["journal"]
        store.hold = True
        first = journal.ask(put("row", 7, chain=chain))
        await wait_all_tasks_blocked()
        # The refusal is in flight: these wait in the journal, and one of them would hold.
        behind = [journal.ask(put("row", 0, chain=chain)), journal.ask(note("a", chain=chain))]
        several = journal.ask(Requests([note("b", chain=chain), note("c", chain=chain)]))
        other = journal.ask(note("other", chain=Chain("t", 1)))
        store.hold = False
        store.release()
        refused = await first
        assert isinstance(refused, Refused)
        assert not refused.behind
        assert refused.refusals[0].row is None
        assert await outcomes_of(behind) == [Refused(behind=True)] * 2
        assert await several == (Refused(behind=True),) * 2
        assert isinstance(await other, Committed)
        assert await journal.ask(note("late", chain=chain)) == Refused(behind=True)
        assert isinstance(await journal.ask(note("anew", chain=Chain("s", 2))), Committed)
        assert lines(store) == ["other", "anew"]


async def test_nothing_planned_on_what_was_not_stored_is_applied() -> None:
    store = DeskStore()
    chain = Chain("s", 1)
    store.fate = lambda number: disk_full() if number == 0 else None
    async with desk(store) as room:
        journal = room.refs["journal"]
        store.hold = True
        first = journal.ask(Requests([note("a", chain=chain), note("b", chain=chain)]))
        await wait_all_tasks_blocked()
        second = journal.ask(note("c", chain=chain))
        store.hold = False
        store.release()
        assert [type(outcome) for outcome in await first] == [NotStored, NotStored]
        assert await second == Refused(behind=True)
        assert lines(store) == []


async def test_a_request_the_store_does_not_take_breaks_its_chain_too() -> None:
    store = DeskStore()
    chain = Chain("s", 1)
    async with desk(store) as room:
        journal = room.refs["journal"]
        bad = Request(puts=(Put("nowhere", ("x",), line("x").value),), chain=chain)
        first, second = await outcomes_of([journal.ask(bad), journal.ask(note("a", chain=chain))])
        assert isinstance(first, NotStoredError)
        assert second == Refused(behind=True)
        assert lines(store) == []


# -- failures ------------------------------------------------------------------------------------


async def test_a_request_whose_commit_failed_raises_with_the_cause() -> None:
    store = DeskStore()
    store.fate = lambda number: disk_full() if number == 0 else None
    async with desk(store) as room:
        journal = room.refs["journal"]
        with pytest.raises(NotStoredError) as caught:
            await journal.ask(note("x"))
        assert isinstance(caught.value.__cause__, DiskFullError)
        assert isinstance(await journal.ask(note("y")), Committed)
        assert lines(store) == ["y"]


@pytest.mark.parametrize("place", [0, 1, 5])
async def test_a_request_that_is_none_fails_alone_and_the_order_of_the_rest_stands(
    place: int,
) -> None:
    store = DeskStore()
    async with desk(store) as room:
        journal = room.refs["journal"]
        asked: list[Any] = [note(str(number)) for number in range(6)]
        value = line("x").value
        asked[place] = Request(puts=(Put("slots", ("no", "key"), value),))
        found = await outcomes_of([journal.ask(each) for each in asked])
        assert isinstance(found[place], NotStoredError)
        assert isinstance(found[place].__cause__, InvalidRequestError)
        assert sum(isinstance(each, Committed) for each in found) == 5
        assert lines(store) == [str(number) for number in range(6) if number != place]
        # Batches are shared again behind it.
        before = len(store.batches)
        await outcomes_of([journal.ask(note("z")) for _ in range(20)])
        assert len(store.batches) <= before + 2


async def test_a_request_too_large_for_the_store_fails_alone() -> None:
    store = DeskStore()
    async with desk(store) as room:
        journal = room.refs["journal"]
        large = Request(appends=(line("x"),) * (store.limits.ops_max + 1))
        first, second = await outcomes_of([journal.ask(large), journal.ask(note("y"))])
        assert isinstance(first.__cause__, RequestTooLargeError)
        assert isinstance(second, Committed)


async def test_a_closed_store_answers_everyone() -> None:
    store = DeskStore()
    async with desk(store) as room:
        journal = room.refs["journal"]
        store.close()
        found = await outcomes_of([journal.ask(note("x")) for _ in range(3)])
        assert [type(each.__cause__) for each in found] == [StoreClosedError] * 3


async def test_a_batch_that_needs_service_gets_it_and_is_answered() -> None:
    store = DeskStore()
    store.service_next = "grow"
    async with desk(store) as room:
        assert isinstance(await room.refs["journal"].ask(note("x")), Committed)
        assert lines(store) == ["x"]


async def test_a_lost_store_is_told_to_the_runtime_after_its_senders() -> None:
    store = DeskStore()
    store.fate = lambda number: StoreLostError("gone; nothing is promised; end", path="memory")
    told: list[Exception] = []
    async with desk(store, lost=told.append) as room:
        journal = room.refs["journal"]
        store.hold = True
        futures = [journal.ask(note("x")), journal.ask(Requests([note("y"), note("z")]))]
        await wait_all_tasks_blocked()
        assert not told
        store.hold = False
        store.release()
        found = await outcomes_of(futures)
        assert isinstance(found[0].__cause__, StoreLostError)
        assert all(isinstance(each.error, StoreLostError) for each in found[1])
        await wait_all_tasks_blocked()
        assert [type(error) for error in told] == [StoreLostError]


async def test_an_observer_that_raises_on_a_lost_store_costs_nobody_an_answer() -> None:
    store = DeskStore()
    store.fate = lambda number: (
        StoreLostError("gone; nothing is promised; end", path="memory") if number == 0 else None
    )

    def raising(error: Exception) -> None:
        raise RuntimeError("an observer's fault")

    async with desk(store, lost=raising) as room:
        journal = room.refs["journal"]
        found = await outcomes_of([journal.ask(note(str(number))) for number in range(3)])
        assert all(isinstance(each, OutcomeUnknownError) for each in found)
        assert isinstance(await journal.ask(note("x")), Committed)
        assert lines(store) == ["x"]


# -- the GIL -------------------------------------------------------------------------------------


async def spin() -> None:
    while True:
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("busy", [True, False], ids=["busy loop", "idle loop"])
async def test_the_gil_is_given_up_in_bounded_slices_while_the_loop_is_busy(
    busy: bool, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps: list[float] = []
    monkeypatch.setattr(journal_module.time, "sleep", naps.append)
    store = DeskStore()
    async with desk(store) as room:
        future = room.refs["journal"].ask(note("x"))
        await wait_all_tasks_blocked()
        store.hold = True
        future = room.refs["journal"].ask(note("y"))
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            for _ in range(30 if busy else 0):
                nursery.start_soon(spin)
            for _ in range(20):
                mock_clock.jump(2 * journal_module.YIELD_EVERY_S)
                if busy:
                    for _ in range(10):
                        await trio.lowlevel.checkpoint()
                else:
                    await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        store.release()
        await future
    assert set(naps) <= {journal_module.YIELD_S}
    # One nap a period at most, and hardly a period without: the loop that is looked at in a round
    # of its own may seem idle.
    assert (10 <= len(naps) <= 20) if busy else not naps


# -- crashes -------------------------------------------------------------------------------------


async def run_senders(store: DeskStore, seed: int, kill_at: int | None) -> int:
    """Senders that pipeline chains, some refused; at most one kill. Returns the ticks it took."""
    draw = random.Random(seed)
    ticks = 0
    async with desk(store) as room:
        journal = room.refs["journal"]
        told: dict[str, Any] = {}

        async def sender(name: str) -> None:
            epoch = 1
            for part in range(3):
                chain = Chain(name, epoch)
                asked: dict[str, Request] = {}
                for number in range(6):
                    text = f"{name} {part}.{number}"
                    bad = part == 1 and number == 3
                    asked[text] = (
                        put(name, 99, chain=chain, text=text) if bad else note(text, chain=chain)
                    )
                futures = {}
                for text, request in asked.items():
                    futures[text] = journal.ask(request)
                    if draw.random() < 0.3:
                        await trio.lowlevel.checkpoint()
                for text, outcome in zip(futures, await outcomes_of(futures.values()), strict=True):
                    assert text not in told
                    told[text] = outcome
                epoch += 1

        async def count() -> None:
            nonlocal ticks
            while True:
                await trio.lowlevel.checkpoint()
                ticks += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            if kill_at is not None:
                nursery.start_soon(kill_after, journal, kill_at)
            async with trio.open_nursery() as senders:
                for name in "ab":
                    senders.start_soon(sender, name)
            nursery.cancel_scope.cancel()
        stored = lines(store)
        committed = {text for text, outcome in told.items() if isinstance(outcome, Committed)}
        assert len(told) == 36
        assert len(stored) == len(set(stored))
        assert set(stored) == committed
        for name in "ab":
            mine = [text for text in stored if text.startswith(name)]
            assert mine == sorted(mine)
            # Part 1 ends at its refusal, the others are whole.
            assert len(mine) == 6 + 3 + 6
        for text, outcome in told.items():
            if " 1.3" in text:
                assert isinstance(outcome, Refused)
                assert not outcome.behind
            elif text[2:] in ("1.4", "1.5"):
                assert outcome == Refused(behind=True)
        await journal.ask(Request())
        statistics = journal.statistics()
        assert (statistics.owed, statistics.queued) == (0, 0)
    return ticks


async def test_a_kill_at_any_checkpoint_loses_and_repeats_no_outcome(seed: int) -> None:
    ticks = await run_senders(DeskStore(), seed, None)
    assert ticks > 10
    for kill_at in range(ticks + 2):
        await run_senders(DeskStore(), seed, kill_at)


async def test_a_kill_while_answers_come_from_a_thread_loses_and_repeats_none(seed: int) -> None:
    for kill_at in range(0, 60, 3):
        store = DeskStore()
        store.done_in_thread = True
        await run_senders(store, seed, kill_at)


async def test_a_batch_that_is_out_while_the_journal_dies_is_answered_by_its_next_life(
    autojump_clock: MockClock,
) -> None:
    store = DeskStore()
    async with desk(store) as room:
        journal = room.refs["journal"]
        store.hold = True
        request = note("out")
        futures = [journal.ask(request), journal.ask(Requests([note("a"), note("b")]))]
        await wait_all_tasks_blocked()
        queued = journal.ask(note("queued"))
        for _ in range(3):
            journal.kill("a test")
            await trio.sleep(1)  # virtual: a restart waits by its backoff.
        # The same object sent again is not taken for the one that came back.
        again = journal.ask(request)
        store.hold = False
        store.release()
        found = await outcomes_of([*futures, queued, again])
        assert [type(each) for each in found] == [Committed, tuple, Committed, Committed]
        assert lines(store) == ["out", "a", "b", "queued", "out"]
        assert journal.statistics().incarnation == 4


async def test_an_ask_that_expired_is_not_taken_for_one_that_is_sent_again_after_a_crash(
    autojump_clock: MockClock,
) -> None:
    store = DeskStore()
    async with desk(store) as room:
        journal = room.refs["journal"]
        store.hold = True
        request = note("slow")
        first = journal.ask(request, timeout=1)
        await trio.sleep(2)
        with pytest.raises(AskTimeoutError):
            await first
        journal.kill("a test")
        await wait_all_tasks_blocked()
        again = journal.ask(request)
        await wait_all_tasks_blocked()
        store.hold = False
        store.release()
        with trio.fail_after(5):
            assert isinstance(await again, Committed)
        assert lines(store) == ["slow", "slow"]


async def test_a_batch_that_asks_for_service_while_the_journal_dies_gets_it() -> None:
    for kill_at in range(12):
        store = DeskStore()
        store.service_next = "reopen"
        async with desk(store) as room, trio.open_nursery() as nursery:
            journal = room.refs["journal"]
            nursery.start_soon(kill_after, journal, kill_at)
            assert isinstance(await journal.ask(note("x")), Committed)
            assert lines(store) == ["x"]


async def test_a_stop_answers_what_is_out_before_it_ends() -> None:
    store = DeskStore()
    async with desk(store) as room:
        journal = room.refs["journal"]
        store.hold = True
        futures = [journal.ask(note(str(number))) for number in range(300)]
        await wait_all_tasks_blocked()
        stopped = journal.stop()
        await wait_all_tasks_blocked()
        store.hold = False
        store.release()
        assert all(isinstance(each, Committed) for each in await outcomes_of(futures))
        await stopped


async def test_on_the_embedded_store_outcomes_survive_kills_of_the_journal(
    tmp_path: Any, seed: int
) -> None:
    draw = random.Random(seed)
    store = LmdbStore.open(tmp_path / "state", clock_ms=lambda: time.time_ns() // 1_000_000)
    try:
        async with desk(store) as room:
            journal = room.refs["journal"]
            told: dict[str, Any] = {}

            async def sender(name: str) -> None:
                for count in range(20):
                    text = f"{name} {count}"
                    told[text] = await journal.ask(put(name, count, text=text))

            async with trio.open_nursery() as nursery:
                for number in range(4):
                    nursery.start_soon(sender, f"s{number}")
                for _ in range(5):
                    await kill_after(journal, draw.randrange(40))
            assert all(isinstance(each, Committed) for each in told.values())
            assert sorted(lines(store)) == sorted(told)
    finally:
        store.close()


def test_memory_store_is_what_these_tests_take_it_for() -> None:
    assert MemoryStore().limits.ops_max == 128
