"""The ledger: what binds, how far acts reach, and what refusals, crashes and bad rows leave."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

import lmdb
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors.core import ChildSpec, TrioActor
from abeyance.actors.domain.protocol import (
    AttachToWaits,
    OfferPending,
    RecordWait,
    ReleasedWait,
    ReleaseReceipt,
    ReleaseWaits,
    WaitLifted,
    WaitReceipt,
)
from abeyance.actors.domain.wait_book import RECHECK_MS, ProviderWait, WaitBook
from abeyance.actors.domain.waits import REQUESTER_CHARS_MAX
from abeyance.actors.testing import WallClock
from abeyance.storage import codec
from abeyance.storage.errors import InvalidRecordError
from abeyance.storage.keys import encode_key
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.memory import MemoryStore
from abeyance.storage.store import Put, Request
from abeyance.storage.tables.fields import INSTANT_MS_MAX, REASON_CHARS_MAX
from abeyance.storage.tables.waits import Wait, WaitReleased

from .books import KEY, SECOND, open_books, refuse, stored
from .desk import DeskStore, Spotty, disk_full, kill_after, lines, rows

# -- what binds --------------------------------------------------------------------------------


@pytest.mark.behaviour("W-002", "W-017")
@pytest.mark.parametrize("after_s", [0, -1, -1e6], ids=["zero", "a second ago", "long ago"])
async def test_a_wait_that_is_over_binds_nothing_and_records_nothing(after_s: float) -> None:
    store = DeskStore()
    async with open_books(store) as books:
        assert await books.set(after_s) == WaitReceipt(False, None, "unbound")
        assert await books.held() is None
        assert rows(store, "waits") == {}
        assert lines(store) == []


@pytest.mark.behaviour("W-013", "W-131")
async def test_the_longest_wait_binds_and_keeps_its_reason_and_its_instant() -> None:
    store = DeskStore()
    async with open_books(store) as books:
        first = await books.set(600, why="long")
        set_ms = books.clock.now_ms()
        assert first == WaitReceipt(
            True, ProviderWait(*KEY, set_ms + 600 * SECOND, "long", set_ms), "recorded"
        )
        books.clock.advance(SECOND)
        second = await books.set(10, why="short")
        assert second == WaitReceipt(False, first.binding, "recorded")
        assert stored(store).reason == "long"
    left = store.reopened()
    assert WaitBook(left, books.clock).listing() == (first.binding,)


@pytest.mark.behaviour("W-014")
async def test_a_longer_wait_replaces_and_an_equal_one_changes_nothing() -> None:
    store = DeskStore()
    async with open_books(store) as books:
        await books.set(600)
        assert (await books.set(900, why="longer")).changed
        assert stored(store).reason == "longer"
        assert not (await books.set(900, why="again")).changed
        assert stored(store).reason == "longer"
        assert len(lines(store)) == 2


@pytest.mark.behaviour("W-015")
async def test_a_wait_without_end_outlasts_every_instant_also_after_a_restart() -> None:
    store = DeskStore()
    clock = WallClock()
    async with open_books(store, clock) as books:
        await books.set(5)
        assert (await books.set(None)).changed
        assert not (await books.set(10**9)).changed
        assert not (await books.set(None, why="again")).changed
    left = store.reopened()
    clock.advance(10 * 365 * 86_400 * SECOND)
    async with open_books(left, clock) as books:
        assert not (await books.set(5)).changed
        assert (await books.held()).deadline_ms is None  # type: ignore[union-attr]


@pytest.mark.behaviour("W-009")
async def test_the_last_instant_is_finite_and_what_is_past_it_has_no_end() -> None:
    async with open_books(DeskStore()) as books:
        ask = books.ledger.ask
        assert (await ask(RecordWait("a", "m", 10**15, ""))).binding.deadline_ms == 10**15
        last = await ask(RecordWait("b", "m", INSTANT_MS_MAX, ""))
        assert last.binding.deadline_ms == INSTANT_MS_MAX
        past = await ask(RecordWait("c", "m", INSTANT_MS_MAX + 1, ""))
        assert past == WaitReceipt(True, past.binding, "recorded")
        assert past.binding.deadline_ms is None


@pytest.mark.behaviour("W-016")
@pytest.mark.parametrize("after_s", [0, -1, -600])
async def test_a_statement_that_is_over_displaces_nothing(after_s: float) -> None:
    store = DeskStore()
    async with open_books(store) as books:
        first = await books.set(600, why="long")
        assert await books.set(after_s) == WaitReceipt(False, first.binding, "recorded")
        assert books.left_s() == 600
        assert len(lines(store)) == 1


@pytest.mark.behaviour("W-018")
async def test_a_wait_binds_its_agent_and_model_alone_and_keys_are_not_joined() -> None:
    async with open_books(DeskStore()) as books:
        await books.set(60, key=("ada", "m1"))
        assert await books.held("ada", "m2") is None
        assert await books.held("bo", "m1") is None
        await books.set(60, key=("a", "b\0c"))
        await books.set(90, key=("a/b", "c"))
        for free in (("a\0b", "c"), ("a", "b"), ("ab", "c"), ("a", "b/c")):
            assert await books.held(*free) is None
        assert books.left_s("a", "b\0c") == 60


@pytest.mark.behaviour("W-019")
async def test_a_wait_ends_by_the_clock_alone_to_the_millisecond_and_nothing_is_written() -> None:
    store = DeskStore()
    async with open_books(store) as books:
        await books.set(60)
        await books.set(7_200, key=("bo", "m1"), why="stands")
        before = store.revision()
        books.clock.advance(59_999)
        assert (await books.held()).reason == "w"  # type: ignore[union-attr]
        assert [wait.agent for wait in books.book.listing()] == ["ana", "bo"]
        books.clock.advance(1)
        assert await books.held() is None
        set_ms = books.clock.now_ms() - 60_000
        stands = ProviderWait("bo", "m1", set_ms + 7_200_000, "stands", set_ms)
        assert books.book.listing() == (stands,)
        assert books.book.listing("ana") == ()
        assert store.revision() == before


@pytest.mark.behaviour("W-020")
async def test_an_ended_wait_is_not_compared_with() -> None:
    async with open_books(DeskStore()) as books:
        await books.set(600)
        books.clock.advance(600 * SECOND)
        assert (await books.set(10)).changed
        assert books.left_s() == 10


@pytest.mark.behaviour("W-021")
async def test_another_model_runs_and_the_old_ones_wait_stands() -> None:
    async with open_books(DeskStore()) as books:
        await books.set(3600)
        books.clock.advance(1800 * SECOND)
        assert await books.held("ana", "m2") is None
        assert books.left_s() == 1800


@pytest.mark.behaviour("W-022")
async def test_a_wait_survives_a_restart_with_its_deadline_and_reason() -> None:
    store, clock = DeskStore(), WallClock()
    async with open_books(store, clock) as books:
        await books.set(60, why="why")
    left = store.reopened()
    clock.advance(5 * SECOND)
    async with open_books(left, clock) as books:
        assert (books.left_s(), (await books.held()).reason) == (55, "why")  # type: ignore[union-attr]


# -- a store that refuses ----------------------------------------------------------------------


@pytest.mark.behaviour("W-024", "W-025")
async def test_a_wait_that_is_not_recorded_binds_at_once_and_is_pending() -> None:
    store = DeskStore()
    async with open_books(store) as books:
        refuse(store)
        store.hold = True
        future = books.set_nowait(60)
        await wait_all_tasks_blocked()
        assert books.left_s() == 60, "before the store has answered"
        store.hold = False
        store.release()
        receipt = await future
        assert (receipt.changed, receipt.reach) == (True, "pending")
        assert await books.held() is not None
        assert [act.key for act in books.book.pending] == [KEY]
        assert rows(store, "waits") == {}


@pytest.mark.behaviour("W-026")
@pytest.mark.parametrize("act", ["a wait that binds", "one that does not", "one that is over",
                                 "a release", "a release of nothing"])  # fmt: skip
async def test_every_later_act_offers_what_is_pending_in_order(act: str) -> None:
    store = DeskStore()
    async with open_books(store) as books:
        refuse(store)
        assert (await books.set(None, why="first")).reach == "pending"
        assert (await books.set(60, key=("bo", "m"), why="second")).reach == "pending"
        refuse(store, False)
        match act:
            case "a wait that binds":
                assert (await books.set(5, key=("cy", "m"))).reach == "recorded"
            case "one that does not":
                assert not (await books.set(10)).changed
            case "one that is over":
                assert not (await books.set(-1, key=("cy", "m"))).changed
            case "a release":
                await books.release("bo")
            case "a release of nothing":
                assert await books.release("cy") == ReleaseReceipt(())
        await wait_all_tasks_blocked()
        assert stored(store).deadline_ms is None
        assert [line.split(": ")[-1] for line in lines(store)][:2] == ["first", "second"]
        assert books.book.pending == []


@pytest.mark.behaviour("W-027")
async def test_what_is_pending_is_offered_again_at_growing_pauses_with_no_further_act(
    autojump_clock: MockClock,
) -> None:
    store = DeskStore()
    async with open_books(store) as books:
        refuse(store)
        await books.set(600)
        offers = len(store.requests)
        for _ in range(5):
            assert await books.held() is not None
        assert len(store.requests) == offers, "an admission offers nothing"
        await trio.sleep(0.15)
        assert len(store.requests) == offers + 1
        await trio.sleep(100)
        again = len(store.requests) - offers
        assert 20 < again < 30, "a full disk is not asked more often than every 5 s"
        refuse(store, False)
        assert rows(store, "waits") == {}
        await trio.sleep(5.1)
        assert stored(store) is not None
        assert books.book.pending == []
        offers = len(store.requests)
        await trio.sleep(100)
        assert len(store.requests) == offers, "nothing is pending, so nothing is offered"


async def test_an_act_puts_the_next_offer_by_the_timer_off(autojump_clock: MockClock) -> None:
    store = DeskStore()
    async with open_books(store) as books:
        refuse(store)
        await books.set(600)
        await trio.sleep(64.3)  # The last offer was at 61.3.
        await books.set(700)
        offers = len(store.requests)
        await trio.sleep(4.9)
        assert len(store.requests) == offers
        await trio.sleep(0.2)
        assert len(store.requests) == offers + 1


async def test_a_ledger_that_crashed_offers_what_is_pending_at_once(
    autojump_clock: MockClock,
) -> None:
    store = DeskStore()
    async with open_books(store) as books:
        refuse(store)
        await books.set(600)
        refuse(store, False)
        books.ledger.kill()
        await trio.sleep(1)
        assert stored(store) is not None


@pytest.mark.parametrize("healed", [True, False])
async def test_an_offer_that_is_asked_for_is_answered_when_it_is_over(healed: bool) -> None:
    store = DeskStore()
    async with open_books(store) as books:
        await books.ledger.ask(OfferPending())
        refuse(store)
        await books.set(600)
        refuse(store, not healed)
        with trio.fail_after(60):
            await books.ledger.ask(OfferPending())
        assert (books.book.pending == []) == healed
        assert (stored(store) is not None) == healed


@pytest.mark.behaviour("W-028")
async def test_what_one_request_holds_lands_whole_or_not_at_all() -> None:
    store = DeskStore()
    async with open_books(store) as books:
        refuse(store)
        for number in range(3):
            await books.set(60, key=("ana", f"m{number}"))
        await books.release("ana", "m1")
        refuse(store, False)
        await books.set(60, key=("ana", "m9"))
        sizes = [len(request.appends) for request in store.requests if request.appends]
        assert sizes[-1] == 5
        assert {key[1]: type(row) for key, row in rows(store, "waits").items()} == {
            "m0": Wait,
            "m1": WaitReleased,
            "m2": Wait,
            "m9": Wait,
        }


async def test_more_pending_acts_than_one_request_holds_are_all_recorded() -> None:
    store = DeskStore()
    async with open_books(store) as books:
        refuse(store)
        for number in range(150):
            assert (await books.set(60, key=("ana", f"m{number}"))).reach == "pending"
        refuse(store, False)
        receipt = await books.release("ana")
        assert len(receipt.released) == 150
        assert {wait.reach for wait in receipt.released} == {"recorded"}
        assert books.book.pending == []
        assert len(lines(store)) == 300
        assert {type(row) for row in rows(store, "waits").values()} == {WaitReleased}
        assert max(request.ops for request in store.requests) <= store.limits.ops_max


async def test_a_release_that_lands_in_part_says_of_each_wait_how_far_it_reached() -> None:
    store = DeskStore()
    async with open_books(store) as books:
        for number in range(60):
            await books.set(60, key=("ana", f"m{number:02}"))
        writes = store._writes
        store.fate = lambda number: disk_full() if number > writes else None
        receipt = await books.release("ana")
        reaches = [wait.reach for wait in receipt.released]
        assert reaches == sorted(reaches, reverse=True)
        assert set(reaches) == {"recorded", "pending"}
        assert books.book.listing() == ()
        done = [row for row in rows(store, "waits").values() if isinstance(row, WaitReleased)]
        assert len(done) == reaches.count("recorded")


async def test_an_act_made_while_a_failing_offer_is_out_is_answered_too() -> None:
    store = DeskStore()
    async with open_books(store) as books:
        refuse(store)
        store.hold = True
        first = books.set_nowait(60)
        await wait_all_tasks_blocked()
        second = books.set_nowait(60, key=("bo", "m"))
        await wait_all_tasks_blocked()
        store.hold = False
        store.release()
        with trio.fail_after(60):
            assert ((await first).reach, (await second).reach) == ("pending", "pending")


async def test_an_act_made_while_an_offer_is_out_is_offered_behind_it() -> None:
    store = DeskStore()
    async with open_books(store) as books:
        store.hold = True
        first = books.set_nowait(60)
        await wait_all_tasks_blocked()
        second = books.set_nowait(90)
        await wait_all_tasks_blocked()
        store.hold = False
        store.release()
        assert ((await first).reach, (await second).reach) == ("recorded", "recorded")
        assert books.left_s() == 90
        assert len(lines(store)) == 2


@pytest.mark.behaviour("W-029", "W-030", "W-031")
async def test_a_release_after_a_set_that_failed_stays_a_release_also_after_a_restart() -> None:
    store = DeskStore()
    clock = WallClock()
    async with open_books(store, clock) as books:
        refuse(store)
        await books.set(None)
        refuse(store, False)
        receipt = await books.release()
        assert receipt.released == (ReleasedWait(*KEY, "recorded"),)
        assert await books.held() is None
        for number in range(70):
            await books.set(60, key=("bo", f"m{number}"))
        assert await books.held() is None
    left = store.reopened()
    async with open_books(left, clock) as books:
        assert await books.held() is None
        assert len(books.book.listing("bo")) == 70


@pytest.mark.behaviour("W-029", "W-031")
async def test_a_set_whose_fate_is_unknown_is_looked_up_and_a_release_behind_it_stands() -> None:
    """The commit is in, the ledger dies before it hears of it, and a release follows."""
    for kill_at in range(12):
        store = DeskStore()
        async with open_books(store) as books:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(kill_after, books.ledger, kill_at)
                await books.set(600)
            assert (await books.release()).released == (ReleasedWait(*KEY, "recorded"),)
            assert [line.split()[0] for line in lines(store)] == ["until", "by"]
        assert WaitBook(store.reopened(), books.clock).binding(KEY) is None


# -- another process ---------------------------------------------------------------------------


def foreign(store: DeskStore, deadline_ms: int | None, *, key: tuple[str, str] = KEY) -> None:
    """Another process, whose disk is not full, records a wait."""
    wait = Wait(deadline_ms=deadline_ms, reason="foreign", set_ms=1, act="foreign")
    fate, store.fate = store.fate, lambda number: None
    store.commit(Request(puts=(Put("waits", key, codec.encode(wait)),)))
    store.fate = fate


@pytest.mark.parametrize(
    ("mine_s", "other_s", "binds"),
    [(60, 90, "foreign"), (90, 60, "w"), (60, None, "foreign"), (None, 60, "w"), (60, 60, None)],
)
async def test_a_race_with_another_process_is_folded_by_the_maximum(
    mine_s: float | None, other_s: float | None, binds: str | None
) -> None:
    store = DeskStore()
    async with open_books(store) as books:
        now = books.clock.now_ms()
        # The journal has a batch out, so that mine is planned before the other's commit and
        # decided behind it.
        store.hold = True
        out = books.room.refs["journal"].ask(Request())
        await wait_all_tasks_blocked()
        mine = books.set_nowait(mine_s)
        await wait_all_tasks_blocked()
        store.hold = store._out = False
        held, store._held = store._held, []
        foreign(store, None if other_s is None else now + int(other_s * SECOND))
        for answer in held:
            answer()
        await out
        receipt = await mine
        assert (receipt.changed, receipt.reach) == (True, "recorded")
        longest = max(each if each is not None else sys.maxsize for each in (mine_s, other_s))
        assert books.left_s() == (longest if longest < sys.maxsize else float("inf"))
        if binds is not None:
            assert stored(store).reason == binds


@pytest.mark.parametrize("other_s", [30, 900], ids=["shorter", "longer"])
async def test_what_another_process_records_meanwhile_is_not_shortened_by_a_pending_act(
    other_s: int,
) -> None:
    store = DeskStore()
    async with open_books(store) as books:
        refuse(store)
        await books.set(600)
        refuse(store, False)
        foreign(store, books.clock.now_ms() + other_s * SECOND)
        assert books.left_s() == max(600, other_s), "also before it is recorded"
        assert [wait.deadline_ms for wait in books.book.listing()] == [
            books.clock.now_ms() + max(600, other_s) * SECOND
        ]
        await books.set(-1)
        await wait_all_tasks_blocked()
        assert books.book.pending == []
        assert stored(store).deadline_ms == books.clock.now_ms() + max(600, other_s) * SECOND


async def test_a_refused_offer_is_folded_again_until_it_lands() -> None:
    store = DeskStore()
    async with open_books(store) as books:
        store.refuse_next = 3
        assert (await books.set(60)).reach == "recorded"
        assert len(lines(store)) == 1


# -- releases ----------------------------------------------------------------------------------


@pytest.mark.behaviour("W-114")
async def test_a_release_ends_what_it_names_and_nothing_else_also_after_a_restart() -> None:
    store, clock = DeskStore(), WallClock()
    async with open_books(store, clock) as books:
        for key in (("ada", "a"), ("ada", "b"), ("bo", "a")):
            await books.set(60, key=key)
        receipt = await books.release("ada", "a")
        assert receipt == ReleaseReceipt((ReleasedWait("ada", "a", "recorded"),))
    left = store.reopened()
    async with open_books(left, clock) as books:
        names = [(wait.agent, wait.model) for wait in books.book.listing()]
        assert names == [("ada", "b"), ("bo", "a")]
        await books.release("ada")
        assert [wait.agent for wait in books.book.listing()] == ["bo"]


@pytest.mark.behaviour("W-109", "W-113")
async def test_a_pending_release_is_told_as_such_and_a_repeated_one_offers_it_again() -> None:
    store = DeskStore()
    async with open_books(store) as books:
        await books.set(60)
        refuse(store)
        assert (await books.release()).released == (ReleasedWait(*KEY, "pending"),)
        assert await books.held() is None
        assert isinstance(stored(store), Wait)
        refuse(store, False)
        assert await books.release() == ReleaseReceipt(())
        await wait_all_tasks_blocked()
        assert isinstance(stored(store), WaitReleased)


@pytest.mark.behaviour("W-110")
async def test_a_release_where_nothing_binds_has_an_empty_receipt_and_records_nothing() -> None:
    store = DeskStore()
    async with open_books(store) as books:
        await books.set(1)
        books.clock.advance(SECOND)
        assert await books.release() == ReleaseReceipt(())
        assert len(lines(store)) == 1


async def test_a_wait_after_a_release_binds_on_its_own_terms() -> None:
    store = DeskStore()
    async with open_books(store) as books:
        await books.set(600)
        refuse(store)
        await books.release()
        assert (await books.set(10)).changed
        assert books.left_s() == 10
        assert [wait.reason for wait in books.book.listing()] == ["w"]
        refuse(store, False)
        await books.set(-1)
        await wait_all_tasks_blocked()
        assert stored(store).deadline_ms == books.clock.now_ms() + 10 * SECOND
        assert len(lines(store)) == 3


class Told(TrioActor):
    role = "agent"

    def __init__(self, heard: list[Any]) -> None:
        super().__init__()
        self._heard = heard

    def on_receive(self, message: Any) -> None:
        self._heard.append(message)


async def test_the_agent_is_told_of_every_release_though_nothing_binds() -> None:
    async with open_books(DeskStore()) as books:
        heard: list[Any] = []
        ref = await books.room.start_child(ChildSpec("agent", Told, (heard,)))
        books.ledger.tell(AttachToWaits("ana", ref))
        await books.release("ana", "m1")
        await books.release("ana")
        await books.release("bo")
        await wait_all_tasks_blocked()
        assert heard == [WaitLifted("m1"), WaitLifted(None)]


@pytest.mark.behaviour("W-132")
async def test_an_agent_that_has_ended_does_not_fail_the_release_of_its_wait() -> None:
    async with open_books(DeskStore()) as books:
        ref = await books.room.start_child(ChildSpec("agent", Told, ([],)))
        books.ledger.tell(AttachToWaits("ana", ref))
        await books.set(60)
        await books.room.stop_child("agent")
        assert [wait.agent for wait in books.book.listing()] == ["ana"]
        assert await books.held("bo", "m1") is None
        assert (await books.release()).released == (ReleasedWait(*KEY, "recorded"),)
        assert await books.release() == ReleaseReceipt(())


@pytest.mark.behaviour("W-115", "W-116", "W-127")
async def test_requesters_and_reasons_are_one_bounded_line() -> None:
    store = DeskStore()
    async with open_books(store) as books:
        await books.set(60, why="slow down\n[ops] released\x85\u2028" + "x" * 10**6)
        wait = stored(store)
        assert len(wait.reason) == REASON_CHARS_MAX
        assert wait.reason.startswith("slow down [ops] released  xxx")
        await books.ledger.ask(ReleaseWaits("ana", None, "eve\nroot\x07" + "y" * 10_000))
        released = stored(store)
        assert len(released.by) == REQUESTER_CHARS_MAX
        assert released.by.startswith("eve root yyy")
        assert all(len(line.splitlines()) == 1 for line in lines(store))


async def test_an_act_that_cannot_be_stored_is_refused_and_binds_nothing() -> None:
    store = DeskStore()
    async with open_books(store) as books:
        # A name that no door let in.
        with pytest.raises(InvalidRecordError):
            await books.set(60, key=("x" * 200, "m"))
        assert books.book.pending == []
        assert (await books.set(60)).reach == "recorded"


# -- rows that cannot be read ------------------------------------------------------------------


@pytest.mark.behaviour("W-038", "W-046", "W-047")
async def test_a_row_that_cannot_be_read_holds_exactly_its_key_and_says_why() -> None:
    store = Spotty()
    async with open_books(store) as books:
        await books.set(60)
        await books.set(60, key=("ana", "m2"))
        store.bad = {KEY}
        deferral = await books.held()
        assert deferral is not None
        assert (deferral.deadline_ms, deferral.cause) == (None, "unreadable")
        assert "checksum" in deferral.reason
        assert books.left_s("ana", "m2") == 60
        assert await books.held("ana", "m3") is None
        assert await books.held("bo", "m1") is None
        listed = {wait.model: wait.deadline_ms for wait in books.book.listing("ana")}
        assert listed == {"m1": None, "m2": books.clock.now_ms() + 60 * SECOND}


async def test_a_row_that_reads_again_binds_by_its_own_deadline() -> None:
    store = Spotty()
    async with open_books(store) as books:
        await books.set(60)
        store.bad = {KEY}
        books.clock.advance(10 * SECOND)
        assert (await books.held()).deadline_ms is None  # type: ignore[union-attr]
        store.bad = set()
        assert (await books.held()).deadline_ms is None, "it is not read again sooner"  # type: ignore[union-attr]
        books.clock.advance(RECHECK_MS)
        assert books.left_s() == 20


async def test_a_statement_does_not_end_what_an_unreadable_row_may_hold() -> None:
    store = Spotty()
    async with open_books(store) as books:
        await books.set(600)
        store.bad = {KEY}
        assert (await books.set(1)).reach == "pending"
        books.clock.advance(2 * SECOND)
        assert (await books.held()).cause == "unreadable"  # type: ignore[union-attr]
        # Nor does it keep anything else from storage.
        assert (await books.set(60, key=("bo", "m"))).reach == "recorded"
        store.bad = set()
        await books.set(-1)
        await wait_all_tasks_blocked()
        assert books.book.pending == []
        assert stored(store).deadline_ms is not None
        books.clock.advance(RECHECK_MS)
        assert books.left_s() == 568


@pytest.mark.behaviour("W-051", "W-052")
async def test_a_release_lifts_an_unreadable_row_alone_and_outlives_a_restart() -> None:
    store = Spotty()
    async with open_books(store) as books:
        for key in (KEY, ("ana", "m2"), ("bo", "m1")):
            await books.set(600, key=key)
        store.bad = {KEY, ("bo", "m1")}
        receipt = await books.release("ana", "m1")
        assert receipt.released == (ReleasedWait(*KEY, "recorded"),)
        # The row was replaced, so it reads again.
        store.bad = {("bo", "m1")}
        assert await books.held() is None
        assert books.left_s("ana", "m2") == 600
        assert (await books.held("bo", "m1")).cause == "unreadable"  # type: ignore[union-attr]
    assert WaitBook(store.reopened(), books.clock).binding(KEY) is None


async def test_a_release_of_an_unreadable_row_binds_though_the_store_refuses_it() -> None:
    store = Spotty()
    async with open_books(store) as books:
        await books.set(600)
        store.bad = {KEY}
        refuse(store)
        assert (await books.release()).released == (ReleasedWait(*KEY, "pending"),)
        assert await books.held() is None
        assert books.book.listing() == ()
        assert (await books.set(5)).changed
        assert books.left_s() == 5


async def test_a_damaged_page_of_the_embedded_store_holds_its_key_until_it_is_released(
    tmp_path: Path,
) -> None:
    clock = WallClock()
    open_at = lambda: LmdbStore.open(tmp_path / "state", clock_ms=clock.now_ms)  # noqa: E731
    store = open_at()
    async with open_books(store, clock) as books:
        for model in ("m1", "m2"):
            await books.set(600, key=("ana", model))
    store.close()
    flip(tmp_path / "state" / "store", ("ana", "m1"))
    store = open_at()
    try:
        async with open_books(store, clock) as books:
            assert (await books.held()).cause == "unreadable"  # type: ignore[union-attr]
            assert books.left_s("ana", "m2") == 600
            assert (await books.set(900)).reach == "pending"
            assert (await books.set(60, key=("bo", "m"))).reach == "recorded"
            assert (await books.release("ana", "m1")).released == (
                ReleasedWait("ana", "m1", "recorded"),
            )
            assert await books.held() is None
    finally:
        store.close()
    store = open_at()
    try:
        book = WaitBook(store, clock)
        assert book.binding(("ana", "m1")) is None
        assert [(wait.agent, wait.model) for wait in book.listing()] == [("ana", "m2"), ("bo", "m")]
    finally:
        store.close()


def flip(directory: Path, key: tuple[str, str]) -> None:
    """Flip one bit of a row's body on disk, as a bad cable would."""
    with lmdb.open(str(directory), max_dbs=64, map_size=2**30) as environment:
        table = environment.open_db(b"waits", create=False)
        with environment.begin(write=True, db=table) as transaction:
            raw_key = encode_key((str, str), key)
            raw = bytearray(transaction.get(raw_key))
            raw[-1] ^= 1
            transaction.put(raw_key, bytes(raw))


# -- crashes -----------------------------------------------------------------------------------


async def test_a_barrier_that_was_not_stored_lets_the_ledger_start() -> None:
    store = DeskStore()
    store.fail_next = disk_full()
    async with open_books(store) as books:
        assert store.fail_next is None, "the barrier was what failed"
        assert (await books.set(60)).reach == "recorded"
        assert books.ledger.statistics().incarnation == 1


async def test_a_message_that_is_none_is_refused() -> None:
    async with open_books(DeskStore()) as books:
        with pytest.raises(TypeError, match="takes no str"):
            await books.ledger.ask("hi")


async def run_acts(store: DeskStore, seed: int, *kills: int) -> int:
    draw = random.Random(seed)
    ticks = 0
    async with open_books(store) as books:
        last: dict[tuple[str, str], int | None] = {}

        async def speaker(name: str) -> None:
            for number in range(6):
                key = (name, f"m{number % 2}")
                before = last.get(key)
                if draw.random() < 0.3:
                    receipt = await books.release(name, key[1])
                    bound = [ReleasedWait(*key, "recorded")] if before is not None else []
                    assert list(receipt.released) == bound
                    last[key] = None
                else:
                    seconds = draw.randrange(10, 100)
                    stated = await books.set(seconds, key=key)
                    deadline = books.clock.now_ms() + seconds * SECOND
                    assert stated.changed == (before is None or deadline > before)
                    assert stated.reach == "recorded"
                    last[key] = max(deadline, before or 0)

        async def count() -> None:
            nonlocal ticks
            while True:
                await trio.lowlevel.checkpoint()
                ticks += 1

        async def kill() -> None:
            for each in kills:
                await kill_after(books.ledger, each)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            nursery.start_soon(kill)
            with trio.fail_after(60):
                async with trio.open_nursery() as speakers:
                    for name in ("ana", "bo", "cy"):
                        speakers.start_soon(speaker, name)
            nursery.cancel_scope.cancel()
        left = WaitBook(store.reopened(), books.clock)
        for book in (books.book, left):
            found = {(wait.agent, wait.model): wait.deadline_ms for wait in book.listing()}
            assert found == {key: deadline for key, deadline in last.items() if deadline}
        assert books.ledger.statistics().owed == 0
        assert books.book.pending == []
    return ticks


async def test_a_kill_at_any_checkpoint_answers_every_act_once_and_truly(seed: int) -> None:
    ticks = await run_acts(DeskStore(), seed)
    assert ticks > 20
    for kill_at in range(ticks):
        await run_acts(DeskStore(), seed, kill_at)


async def test_many_kills_answer_every_act_once_and_truly(seed: int) -> None:
    draw = random.Random(seed)
    for number in range(20):
        await run_acts(DeskStore(), seed + number, *[draw.randrange(12) for _ in range(6)])


# -- a model -----------------------------------------------------------------------------------

acts = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from("ab"), st.sampled_from([None, -1, 0, 5, 60, 90])),
        st.tuples(st.just("release"), st.sampled_from("ab"), st.none()),
        st.tuples(st.just("wait"), st.just(""), st.sampled_from([1, 5, 31])),
        st.tuples(st.just("refuse"), st.just(""), st.sampled_from([0, 1])),
        st.tuples(st.just("foreign"), st.sampled_from("ab"), st.sampled_from([None, 7, 70])),
        st.tuples(st.just("kill"), st.just(""), st.none()),
    ),
    max_size=25,
)


async def compare(steps: list[tuple[str, str, int | None]]) -> None:
    store = DeskStore()
    async with open_books(store) as books:
        model: dict[str, float] = {}
        for what, name, number in steps:
            now = books.clock.now_ms()
            end = float("inf") if number is None else now + number * SECOND
            match what:
                case "set":
                    receipt = await books.set(number, key=(name, "m"))
                    binds = model.get(name, 0)
                    assert receipt.changed == (end > now and end > max(binds, now))
                    if receipt.changed:
                        model[name] = end
                case "release":
                    receipt_ = await books.release(name)
                    assert bool(receipt_.released) == (model.get(name, 0) > now)
                    model.pop(name, None)
                case "foreign":
                    # Another process reads the row first, and records only what outlasts it.
                    row = store.get("waits", (name, "m"))
                    is_wait = row is not None and isinstance(row.record, Wait)
                    theirs = row.record.deadline_ms if is_wait else 0  # type: ignore[union-attr]
                    released = any(
                        act.key[0] == name and isinstance(act.record, WaitReleased)
                        for act in books.book.pending
                    )
                    if not released and theirs is not None and end > theirs:
                        foreign(store, None if number is None else int(end), key=(name, "m"))
                        model[name] = max(end, model.get(name, 0))
                case "wait":
                    assert number is not None
                    books.clock.advance(number * SECOND)
                case "refuse":
                    refuse(store, bool(number))
                case "kill":
                    books.ledger.kill()
                    await wait_all_tasks_blocked()
            # An offer that is out is in or refused before the next step changes the weather.
            await wait_all_tasks_blocked()
            now = books.clock.now_ms()
            for name_ in "ab":
                end = model.get(name_, 0)
                held = await books.held(name_, "m")
                assert (held is not None) == (end > now)
                if held is not None:
                    assert (held.deadline_ms or float("inf")) == end
            await wait_all_tasks_blocked()
        refuse(store, False)
        await books.set(-1)
        await wait_all_tasks_blocked()
        assert books.book.pending == []
        for name, end in model.items():
            left = WaitBook(store.reopened(), books.clock).binding((name, "m"))
            assert (left is not None) == (end > books.clock.now_ms())


@pytest.mark.behaviour("W-013", "W-019", "W-020", "W-025", "W-031")
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(acts)
def test_what_binds_is_what_the_model_says_whatever_the_store_does(steps: Any) -> None:
    trio.run(compare, steps)


def test_these_books_are_kept_by_a_store_of_the_smallest_limits() -> None:
    assert MemoryStore().limits.ops_max == 128
    assert time.time() > 0
