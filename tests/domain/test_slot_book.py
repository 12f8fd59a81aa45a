"""A slot's mirror: where a message goes, what a drain takes, which numbers and ranges it keeps."""

from __future__ import annotations

import random

import pytest

from abeyance.actors.domain import slot_book
from abeyance.actors.domain.errors import InboxFullError
from abeyance.actors.domain.slot_book import PAYLOAD_RESERVE, SlotBook
from abeyance.actors.domain.slot_long import whole
from abeyance.storage.codec import encode, spread
from abeyance.storage.errors import RequestTooLargeError, UnreadableRecordError
from abeyance.storage.store import Delete, Guard, Put, Request
from abeyance.storage.tables.slots import MessageId

from .desk import DeskStore, rows
from .slots import SLOT, BookDesk, accept, check, load, places, shown, waiting, wakes_of


@pytest.mark.behaviour("D-024")
def test_a_message_for_an_idle_slot_is_in_the_slot_at_once() -> None:
    desk = BookDesk()
    assert desk.accept("hi") == (1, True)
    assert shown(desk.store) == ["user: hi"]
    assert waiting(desk.store) == []
    assert rows(desk.store, "ids")[SLOT, next(iter(rows(desk.store, "ids")))[1]] == MessageId(
        entry=1, state="slot", seq=1, body_crc=accept("hi").body_crc
    )


@pytest.mark.behaviour("D-002", "D-024")
def test_a_message_for_a_leased_slot_waits_in_the_inbox() -> None:
    desk = BookDesk()
    desk.accept("go")
    desk.start()
    assert desk.accept("a") == (2, False)
    assert shown(desk.store) == ["user: go"]
    assert waiting(desk.store) == ["a"]


def test_a_message_behind_a_waiting_one_waits_too_though_the_slot_is_idle() -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    desk.accept("a")
    # The turn's end is in, and a death came before what lands the inbox.
    desk.book.drain_all = lambda chain: []  # type: ignore[method-assign]
    desk.book.prefix = lambda **how: []  # type: ignore[method-assign]
    desk.record(turn, 1, "done")
    desk.reload()
    assert waiting(desk.store) == ["a"]
    assert desk.accept("b") == (4, False)
    desk.commit(desk.book.drain_idle(desk.chain))
    assert shown(desk.store) == ["user: go", "assistant: done", "user: a", "user: b"]


def test_a_message_named_as_the_agent_is_its_own_words_and_wakes_nobody() -> None:
    desk = BookDesk()
    desk.accept("I was here", own=True)
    assert shown(desk.store) == ["assistant: I was here"]
    assert wakes_of(desk.store) == set()


def test_an_acceptance_writes_its_rows_in_one_request_that_guards_owner_and_id() -> None:
    desk = BookDesk()
    asked = accept("hi", known="x")
    into = desk.book.accepts("ana")
    desk.book.accept(asked, into)
    request = into.request(desk.book.owner, desk.chain)
    assert spread(request).guards == (desk.book.owner, Guard("ids", (SLOT, "x"), 0))
    assert [put.table for put in spread(request).puts] == ["ids", "bodies", "slots", "wakes"]
    assert request.chain == desk.chain


@pytest.mark.behaviour("D-006", "D-007", "D-008", "D-010")
@pytest.mark.parametrize(
    ("queued", "injected"),
    [
        (["a", "own", "b"], ["a"]),
        (["own", "b"], []),
        (["b", "own"], ["b"]),
        (["a", "b"], ["a", "b"]),
        ([], []),
    ],
    ids=" ".join,
)
def test_an_injectable_prefix_is_cut_at_the_first_own_message_and_skips_nothing(
    queued: list[str], injected: list[str]
) -> None:
    desk = BookDesk()
    desk.accept("go")
    desk.start()
    entries = {desk.accept(words, own=words == "own")[0]: words for words in queued}
    assert [entries[entry] for entry in desk.book.prefix(injectable=True)] == injected
    assert [entries[entry] for entry in desk.book.prefix()] == queued


def test_a_prefix_never_asks_for_more_than_one_request_holds() -> None:
    desk = BookDesk()
    desk.accept("go")
    desk.start()
    desk.fill(300, wake=False)
    assert 0 < len(desk.book.prefix()) < 32
    assert desk.book.prefix() == list(desk.book.inbox)[: len(desk.book.prefix())]
    drains = desk.book.drain_all(desk.chain)
    desk.commit(drains)
    assert len(drains) > 9
    assert shown(desk.store)[1:] == [f"user: {number}" for number in range(300)]


# -- bounds ------------------------------------------------------------------------------------


def test_a_full_inbox_refuses_and_plans_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_book, "INBOX_ROWS_MAX", 3)
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    for number in range(3):
        desk.accept(str(number))
    message = accept("too many")
    with pytest.raises(InboxFullError) as caught:
        desk.book.accept(message, desk.book.accepts("ana"))
    assert (caught.value.rows, caught.value.rows_max, caught.value.bytes_max) == (3, 3, 2**28)
    desk.same()
    desk.record(turn, 1, "done")
    # An idle slot takes it: the bound is the inbox's.
    assert desk.accept("again")[1]


def test_an_inbox_of_too_many_bytes_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = BookDesk()
    desk.accept("go")
    desk.start()
    size = len(accept("x" * 100).body.body)
    monkeypatch.setattr(slot_book, "INBOX_BYTES_MAX", 2 * size)
    desk.accept("x" * 100)
    desk.accept("x" * 100)
    with pytest.raises(InboxFullError):
        desk.book.accept(accept("x"), desk.book.accepts("ana"))
    assert desk.book.inbox_bytes == 2 * size


def test_content_that_no_request_of_the_store_holds_is_refused_alone() -> None:
    desk = BookDesk()
    largest = desk.store.limits.payload_bytes_max - PAYLOAD_RESERVE
    overhead = len(accept("").body.body)
    with pytest.raises(RequestTooLargeError) as caught:
        desk.book.accept(accept("x" * largest), desk.book.accepts("ana"))
    assert caught.value.limit == largest
    desk.same()
    assert desk.accept("x" * (largest - overhead - 8)) == (1, True)


# -- numbers -----------------------------------------------------------------------------------


def test_numbers_are_never_used_twice_over_deaths_drains_and_wakes_without_a_message() -> None:
    desk = BookDesk()
    used: list[int] = []
    places: list[int] = []

    def look() -> None:
        used.extend(entry for _, entry in rows(desk.store, "bodies", (SLOT,)) if entry not in used)
        used.extend(entry for _, entry in rows(desk.store, "wakes") if entry not in used)
        places.extend(seq for _, seq in rows(desk.store, "slots") if seq not in places)

    for _ in range(3):
        desk.accept("go")
        look()
        turn = desk.start()
        desk.accept("a", wake=False)
        desk.reload()
        desk.end(turn, give_back=True)
        look()
        desk.reload()
        again = desk.start()
        desk.record(again, 1, "done")
        look()
        desk.reload()
    assert len(set(used)) == len(used)
    assert places == sorted(set(places))
    # Three messages, three markers, three replies, three 'a', and three wakes given back.
    assert len(used) == 15


def test_a_new_book_takes_numbers_behind_a_wake_that_has_no_body() -> None:
    desk = BookDesk()
    desk.accept("go")
    desk.end(desk.start(), marker="", give_back=True)
    (given_back,) = wakes_of(desk.store)
    turn = desk.start()
    desk.record(turn, 1, "done")
    desk.reload()
    assert desk.accept("next")[0] > given_back


def test_after_a_refusal_a_new_book_uses_what_was_never_committed_and_nothing_else() -> None:
    desk = BookDesk()
    desk.accept("a")
    desk.book.accept(accept("lost"), desk.book.accepts("ana"))
    desk.book = load(desk.store)
    assert desk.accept("b") == (2, True)
    check(desk.store)


# -- wakes and ranges --------------------------------------------------------------------------


def test_a_wake_is_mirrored_for_an_agent_that_was_not_attached() -> None:
    desk = BookDesk()
    desk.accept("hi", agent="bo")
    assert list(desk.book.wakes["bo"]) == [1]
    assert wakes_of(desk.store, "bo") == {1}


def test_attaching_twice_changes_nothing() -> None:
    desk = BookDesk()
    desk.accept("hi")
    wakes = desk.book.wakes["ana"]
    desk.book.attach("ana")
    assert desk.book.wakes["ana"] is wakes


def test_an_unreadable_row_is_raised_and_not_read_around() -> None:
    class Bad(DeskStore):
        is_bad = False

        def scan(self, table: str, prefix: tuple = (), **how: object):  # type: ignore[no-untyped-def, override, type-arg]
            for key, row in super().scan(table, prefix, **how):  # type: ignore[arg-type]
                bad = UnreadableRecordError("bad", table=table, key=key, cause="checksum")
                yield key, bad if table == "slots" and self.is_bad else row

    store = Bad()
    store.own(SLOT)
    desk = BookDesk(store)
    desk.accept("go")
    desk.start()
    into = desk.book.accepts("ana")
    desk.book.accept(accept("a"), into)
    store.commit(into.request(desk.book.owner, desk.chain))
    store.is_bad = True
    with pytest.raises(UnreadableRecordError):
        SlotBook(store, SLOT, 1)


def test_ranges_span_markers_which_no_request_carries() -> None:
    desk = BookDesk()
    desk.accept("go")
    desk.end(desk.start())
    desk.accept("again")
    turn = desk.start()
    assert desk.book.ranges == [[1, 3]]
    desk.record(turn, 1, "done")
    desk.reload()
    assert desk.book.ranges == [[1, 4]]
    assert places(desk.store, desk.book.ranges) == [1, 3, 4]


@pytest.mark.behaviour("D-010")
def test_an_inbox_is_in_the_order_of_its_numbers_however_its_rows_were_written(seed: int) -> None:
    desk = BookDesk()
    desk.accept("go")
    desk.start()
    numbers = desk.fill(600)
    kept = rows(desk.store, "inbox")
    shuffled = list(kept)
    random.Random(seed).shuffle(shuffled)
    # Written again in any order, across the numbers whose last byte overflows.
    for key in shuffled:
        desk.store.commit(Request(deletes=(Delete("inbox", key),)))
    for key in shuffled:
        desk.store.commit(Request(puts=(Put("inbox", key, encode(kept[key])),)))
    assert list(load(desk.store).inbox) == numbers
    desk.reload()
    desk.store.commit(*map(whole, desk.book.drain_all(desk.chain)))
    assert shown(desk.store)[1:] == [f"user: {number}" for number in range(600)]
