"""What holds where recorded waits cannot be read, for how long, and what a release does to it."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors.domain.overrides import EVERY, LAPSED
from abeyance.actors.domain.protocol import ReleasedWait, ReleaseReceipt
from abeyance.actors.domain.wait_book import RECHECK_MS, WaitBook
from abeyance.actors.testing import WallClock
from abeyance.storage import codec
from abeyance.storage.errors import StoreIOError, UnreadableRecordError
from abeyance.storage.keys import encode_key
from abeyance.storage.store import Put, Request
from abeyance.storage.tables.waits import Override, Wait, WaitReleased

from .books import KEY, SECOND, Books, open_books, refuse, stored
from .desk import Spotty, kill_after, lines, rows


def broken(text: str = "input/output error") -> StoreIOError:
    return StoreIOError(f"{text}; nothing was read", path="memory", errno=5)


def cut(agent: str, model: str = "m9") -> bytes:
    """A key of this agent's whose model is cut off."""
    return encode_key((str, str), (agent, model))[:-1]


LOST = b"\2an"
"""A key that does not say whose it is."""


def causes(books: Books, *keys: tuple[str, str]) -> list[str | None]:
    return causes_of(books.book, *keys)


def causes_of(book: WaitBook, *keys: tuple[str, str]) -> list[str | None]:
    found = [book.deferral(*key) for key in keys or THREE]
    return [None if deferral is None else deferral.cause for deferral in found]


THREE = (KEY, ("ana", "m2"), ("bo", "m1"))


# -- how much is held ----------------------------------------------------------------------------


@pytest.mark.behaviour("R-17", "W-038")
@pytest.mark.parametrize(
    ("damage", "held"),
    [
        ("a value", ["unreadable", None, None]),
        ("a key", ["unreadable", "unreadable", None]),
        ("a key that names nobody", ["unreadable"] * 3),
        ("the table", ["unreadable"] * 3),
    ],
)
async def test_what_cannot_be_read_holds_as_much_as_is_unknown(
    autojump_clock: MockClock, damage: str, held: list[str | None]
) -> None:
    store = Spotty()
    async with open_books(store) as books:
        await books.set(1, key=KEY)
        books.clock.advance(SECOND)
    store = store.reopened()
    match damage:
        case "a value":
            store.bad = {KEY}
        case "a key":
            store.bad_keys = {cut("ana")}
        case "a key that names nobody":
            store.bad_keys = {LOST}
        case "the table":
            store.broken = broken()
    async with open_books(store) as books:
        await wait_all_tasks_blocked()
        assert causes(books, *THREE) == held


@pytest.mark.behaviour("W-046", "W-047", "W-048")
@pytest.mark.parametrize(
    ("damage", "of_ana", "of_bo", "of_all"),
    [
        ("a key", ["*", "m1"], ["m1"], [("ana", "*"), ("ana", "m1"), ("bo", "m1")]),
        ("the table", ["*"], ["*"], [("*", "*")]),
    ],
)
async def test_a_hold_of_every_model_is_listed_first_with_its_cause_on_a_star(
    damage: str, of_ana: list[str], of_bo: list[str], of_all: list[tuple[str, str]]
) -> None:
    store = Spotty()
    async with open_books(store) as books:
        for key in (KEY, ("bo", "m1")):
            await books.set(60, key=key)
    store = store.reopened()
    if damage == "a key":
        store.bad_keys = {cut("ana")}
    else:
        store.broken = broken("the disk is gone")
    async with open_books(store) as books:
        assert [wait.model for wait in books.book.listing("ana")] == of_ana
        assert [wait.model for wait in books.book.listing("bo")] == of_bo
        listed = books.book.listing()
        assert [(wait.agent, wait.model) for wait in listed] == of_all
        assert listed[0].deadline_ms is None
        assert ("damaged key" if damage == "a key" else "the disk is gone") in listed[0].reason
        assert "abeyance release" in listed[0].reason, "it says what ends it"


@pytest.mark.behaviour("W-048")
async def test_an_agent_whose_every_model_was_released_is_not_listed_as_held() -> None:
    store = Spotty()
    store.broken = broken()
    async with open_books(store) as books:
        await books.release("ana")
        assert books.book.listing("ana") == ()
        assert [(wait.agent, wait.model) for wait in books.book.listing("bo")] == [("bo", EVERY)]
        assert [(wait.agent, wait.model) for wait in books.book.listing()] == [(EVERY, EVERY)]


@pytest.mark.behaviour("R-17", "W-043")
@pytest.mark.parametrize("safe", [True, False], ids=["safe to ignore", "not"])
async def test_a_kind_that_is_not_known_holds_unless_it_says_that_it_is_safe_to_ignore(
    safe: bool,
) -> None:
    store = Spotty()
    async with open_books(store) as books:
        await books.set(600)
        store.bad, store.ignorable = {KEY}, safe
        held = await books.held()
        assert (held is None) == safe
        assert [wait.model for wait in books.book.listing("ana")] == ([] if safe else ["m1"])
        receipt = await books.set(60)
        assert receipt.reach == ("recorded" if safe else "pending")
        books.clock.advance(100 * RECHECK_MS)
        assert (await books.held() is None) == safe, "no reading again ends it"


def test_a_kind_is_safe_to_ignore_where_its_name_says_so() -> None:
    key = encode_key((str, str), KEY)
    for kind, safe in (("~paused", True), ("paused", False)):
        value = codec.encode(Wait(deadline_ms=1, reason="", set_ms=1, act="a"))
        raw = codec.frame("waits", key, 1, type(value)(kind, 1, value.body, value.body_crc))
        with pytest.raises(UnreadableRecordError, match="unknown kind") as caught:
            codec.decode("waits", key, raw)
        assert caught.value.ignorable is safe


@pytest.mark.behaviour("W-054")
@pytest.mark.parametrize("damage", ["nothing", "a value", "a key", "the table"])
async def test_a_call_that_names_no_model_meets_what_cannot_be_read_of_any(damage: str) -> None:
    store = Spotty()
    async with open_books(store) as books:
        for key in THREE:
            await books.set(60, key=key)
    store = store.reopened()
    match damage:
        case "a value":
            store.bad = {("ana", "m2")}
        case "a key":
            store.bad_keys = {cut("ana")}
        case "the table":
            store.broken = broken()
    async with open_books(store) as books:
        deferral = books.book.deferral("ana", None)
        if damage == "nothing":
            assert deferral is None, "a wait binds the model that it is of"
        else:
            assert deferral is not None
            assert (deferral.model, deferral.cause) == (EVERY, "unreadable")
            assert deferral.deadline_ms is None
        assert (books.book.deferral("bo", None) is None) == (damage != "the table")


@pytest.mark.behaviour("W-055")
async def test_what_is_exempt_is_held_by_waits_alone() -> None:
    store = Spotty()
    async with open_books(store) as books:
        for key in THREE:
            await books.set(60, key=key)
        store.bad, store.bad_keys = {KEY}, {cut("bo")}
        book = WaitBook(store, books.clock)
        assert book.deferral(*KEY, exempt=True) is None
        assert book.deferral("ana", "m2", exempt=True).cause == "wait"  # type: ignore[union-attr]
        assert book.deferral("bo", "m1", exempt=True).cause == "wait"  # type: ignore[union-attr]
        store.broken = broken()
        books.clock.advance(RECHECK_MS)
        assert book.deferral("ana", "m2", exempt=True) is None


# -- for how long --------------------------------------------------------------------------------


@pytest.mark.behaviour("W-039")
@pytest.mark.parametrize("damage", ["a value", "a key", "a key that names nobody", "the table"])
async def test_what_cannot_be_read_is_read_again_every_30_seconds_and_no_sooner(
    autojump_clock: MockClock, damage: str
) -> None:
    store = Spotty()
    match damage:
        case "a value":
            store.bad = {KEY}
        case "a key":
            store.bad_keys = {cut("ana")}
        case "a key that names nobody":
            store.bad_keys = {LOST}
        case "the table":
            store.broken = broken()
    clock = WallClock()
    async with open_books(store, clock) as books:
        await wait_all_tasks_blocked()
        assert causes(books, KEY) == ["unreadable"]
        reads = store.reads
        for _ in range(100):
            assert causes(books, KEY) == ["unreadable"]
        clock.advance(RECHECK_MS - 1)
        assert causes(books, KEY) == ["unreadable"]
        assert store.reads == reads, "it was read again sooner"
        store.bad, store.bad_keys, store.broken = set(), set(), None
        clock.advance(1)
        await trio.sleep(RECHECK_MS / 1_000 + 1)
        assert causes(books, KEY) == [None]
        assert books.book.listing() == ()


async def test_a_clock_that_was_turned_back_does_not_put_the_next_reading_off() -> None:
    store = Spotty()
    store.broken = broken()
    clock = WallClock()
    book = WaitBook(store, clock)
    assert book.deferral(*KEY) is not None
    store.broken = None
    clock.advance(-86_400 * SECOND)
    assert book.deferral(*KEY) is None


@pytest.mark.behaviour("W-045")
async def test_a_table_that_reads_again_binds_by_what_it_holds() -> None:
    store = Spotty()
    async with open_books(store) as books:
        await books.set(600)
        store.broken = broken()
        assert (await books.held()).deadline_ms is None  # type: ignore[union-attr]
        store.broken = None
        books.clock.advance(RECHECK_MS)
        assert books.left_s() == 570


# -- releases ------------------------------------------------------------------------------------


@pytest.mark.behaviour("W-051", "R-18")
@pytest.mark.parametrize("model", ["m2", None], ids=["one model", "every model"])
async def test_a_release_lifts_exactly_its_scope_also_after_a_restart_that_still_cannot_read(
    model: str | None,
) -> None:
    store = Spotty()
    store.broken = broken()
    clock = WallClock()
    free = [None if model is None else "unreadable", None, "unreadable"]
    async with open_books(store, clock) as books:
        receipt = await books.release("ana", model)
        assert receipt.released == (ReleasedWait("ana", model or EVERY, "recorded"),)
        assert causes(books, *THREE) == free
        assert await books.release("ana", model) == ReleaseReceipt(())
    async with open_books(store.reopened(), clock) as books:
        assert causes(books, *THREE) == free


@pytest.mark.behaviour("R-18")
@pytest.mark.parametrize("damage", ["a key", "the table"])
async def test_a_release_lapses_when_what_cannot_be_read_is_another(damage: str) -> None:
    store = Spotty()
    if damage == "a key":
        store.bad_keys = {cut("ana")}
    else:
        store.broken = broken()
    clock = WallClock()
    async with open_books(store, clock) as books:
        await books.release("ana")
        assert causes(books, KEY) == [None]
    store = store.reopened()
    if damage == "a key":
        store.bad_keys = {cut("ana"), cut("ana", "m8")}
    else:
        store.broken = broken("another error")
    async with open_books(store, clock) as books:
        assert causes(books, KEY) == ["unreadable"]


@pytest.mark.behaviour("R-18")
@pytest.mark.parametrize("healed_by", ["a reading", "a restart", "what it recorded"])
@pytest.mark.parametrize("damage", ["a key", "the table"])
async def test_a_release_lapses_with_its_episode_though_the_next_one_is_of_the_same_text(
    autojump_clock: MockClock, damage: str, healed_by: str
) -> None:
    def spoil(store: Spotty, is_bad: bool = True) -> None:
        if damage == "a key":
            store.bad_keys = {cut("ana")} if is_bad else set()
        else:
            store.broken = broken() if is_bad else None

    store, clock = Spotty(), WallClock()
    spoil(store)
    async with open_books(store, clock) as books:
        await books.set(60, key=("bo", "m1"))
        await books.release("ana")
        assert causes(books, KEY) == [None]
    store = store.reopened()
    async with open_books(store, clock) as books:
        assert causes(books, KEY) == [None], "the same episode goes on"
        spoil(store, is_bad=False)
        if healed_by == "a reading":
            clock.advance(RECHECK_MS)
            assert causes(books, KEY) == [None]
            assert not list(books.book.overrides.standing()), "at once"
            await wait_all_tasks_blocked()
        elif healed_by == "what it recorded":
            assert (await books.set(7_200)).reach == "recorded"
            clock.advance(RECHECK_MS)
            assert causes(books, KEY) == ["wait"]
            await wait_all_tasks_blocked()
    if healed_by == "a restart":
        store = store.reopened()
        async with open_books(store, clock) as books:
            await wait_all_tasks_blocked()
    assert {row.fingerprint for row in rows(store, "overrides").values()} == {LAPSED}
    store = store.reopened()
    spoil(store)
    async with open_books(store, clock) as books:
        assert causes(books, KEY) == ["unreadable"]
        assert books.book.listing("ana")[0].model == EVERY
        receipt = await books.release("ana")
        assert ReleasedWait("ana", EVERY, "recorded") in receipt.released
        assert causes(books, KEY) == [None], "it is released anew"


@pytest.mark.behaviour("R-18")
async def test_a_wait_recorded_behind_a_release_binds_when_the_same_cannot_be_read_again() -> None:
    store, clock = Spotty(), WallClock()
    store.broken = broken()
    async with open_books(store, clock) as books:
        await books.release("ana")
        store.broken = None  # And nobody has read it since.
        assert (await books.set(7_200)).reach == "recorded"
        store.broken = broken()
        assert causes(books, KEY) == ["unreadable"]


@pytest.mark.behaviour("R-18")
async def test_an_override_that_cannot_be_read_lifts_nothing() -> None:
    store = Spotty()
    store.broken = broken()
    clock = WallClock()
    async with open_books(store, clock) as books:
        await books.release("ana")
        fingerprint = next(iter(rows(store, "overrides").values())).fingerprint
    store = store.reopened()
    other = Override(fingerprint="x" + fingerprint[1:], by="ops", at_ms=1, act="a")
    store.commit(Request(puts=(Put("overrides", ("ana", "*", "unreadable"), codec.encode(other)),)))
    assert WaitBook(store, clock).deferral(*KEY) is not None


@pytest.mark.behaviour("W-052")
async def test_a_release_applies_behind_the_waits_that_could_not_be_read() -> None:
    store = Spotty()
    clock = WallClock()
    async with open_books(store, clock) as books:
        for key in THREE:
            await books.set(600, key=key)
        store.broken = broken()
        clock.advance(RECHECK_MS)
        await books.release("ana")
        assert causes(books, *THREE) == [None, None, "unreadable"]
        store.broken = None
        clock.advance(RECHECK_MS)
        assert causes(books, *THREE) == [None, None, "wait"]
        assert [wait.agent for wait in books.book.listing()] == ["bo"]
    async with open_books(store.reopened(), clock) as books:
        assert causes(books, *THREE) == [None, None, "wait"]
        # What is stated from then on binds on its own terms, though in the same millisecond.
        assert (await books.set(5)).reach == "recorded"
        assert books.left_s() == 5
        assert stored(books.store).deadline_ms == clock.now_ms() + 5 * SECOND


@pytest.mark.behaviour("W-051", "W-052")
@pytest.mark.parametrize("model", ["m1", None], ids=["one model", "every model"])
async def test_a_release_ends_what_was_stated_while_the_table_could_not_be_read(
    model: str | None,
) -> None:
    store, clock = Spotty(), WallClock()
    store.broken = broken()
    async with open_books(store, clock) as books:
        for key in THREE:
            assert (await books.set(7_200, key=key)).reach == "pending"
        receipt = await books.release("ana", model)
        named = ["m1", "m1"] if model else ["m1", "m2", EVERY]
        assert [wait.model for wait in receipt.released] == named
        free = [None, "unreadable" if model else None, "unreadable"]
        assert causes(books, *THREE) == free
        store.broken = None
        clock.advance(RECHECK_MS)
        after = [None, "wait" if model else None, "wait"]
        assert causes(books, *THREE) == after
        await books.set(-1)
        await wait_all_tasks_blocked()
        assert books.book.pending == []
        assert causes(books, *THREE) == after
    assert causes_of(WaitBook(store.reopened(), clock)) == after


async def test_a_wait_stated_in_the_millisecond_of_such_a_release_binds() -> None:
    store = Spotty()
    store.broken = broken()
    clock = WallClock()
    async with open_books(store, clock) as books:
        await books.release("ana")
        assert (await books.set(60)).reach == "pending", "its row cannot be read"
        assert causes(books, KEY) == ["wait"]
        store.broken = None
        await books.set(-1)
        await wait_all_tasks_blocked()
        assert books.book.pending == []
        clock.advance(RECHECK_MS)
        assert books.left_s() == 30
    assert WaitBook(store.reopened(), clock).binding(KEY) is not None


@pytest.mark.behaviour("W-053")
async def test_a_release_of_the_star_that_is_listed_is_a_release_of_every_model() -> None:
    store = Spotty()
    clock = WallClock()
    async with open_books(store, clock) as books:
        for key in THREE:
            await books.set(600, key=key)
        store.bad_keys = {cut("ana")}
        books.book.forget("ana")
        (listed, *_) = books.book.listing("ana")
        assert listed.model == EVERY
        receipt = await books.release("ana", listed.model)
        assert [wait.model for wait in receipt.released] == ["m1", "m2", EVERY]
        assert causes(books, *THREE) == [None, None, "wait"]
        assert isinstance(store.get("waits", KEY).record, WaitReleased)  # type: ignore[union-attr]
        assert list(rows(store, "overrides")) == [("ana", EVERY, "unreadable")]
    async with open_books(store.reopened(), clock) as books:
        assert causes(books, *THREE) == [None, None, "wait"]


@pytest.mark.behaviour("W-109")
async def test_a_release_of_what_cannot_be_read_says_how_far_it_reached() -> None:
    store = Spotty()
    store.broken = broken()
    async with open_books(store) as books:
        refuse(store)
        assert (await books.release()).released == (ReleasedWait("ana", EVERY, "pending"),)
        assert causes(books, KEY) == [None]
        assert rows(store, "overrides") == {}
        refuse(store, False)
        assert await books.release() == ReleaseReceipt(())
        await wait_all_tasks_blocked()
        assert len(rows(store, "overrides")) == 1
        assert books.book.pending == []


async def test_a_crash_behind_the_commit_of_an_override_records_it_once() -> None:
    for kill_at in range(8):
        store = Spotty()
        store.broken = broken()
        async with open_books(store) as books:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(kill_after, books.ledger, kill_at)
                receipt = await books.release()
            assert receipt.released == (ReleasedWait("ana", EVERY, "recorded"),)
            assert len(lines(store)) == 1


# -- one bad page ----------------------------------------------------------------------------------

PAGES = [pytest.param(KEY, id="of a row"), pytest.param(("ana",), id="of an agent's rows")]


def page_of(damage: Any) -> Spotty:
    store = Spotty()
    store.pages = {damage}
    return store


@pytest.mark.behaviour("R-18", "W-051", "W-109")
@pytest.mark.parametrize("damage", PAGES)
@pytest.mark.parametrize("model", ["m1", None], ids=["one model", "every model"])
async def test_a_release_of_one_bad_page_is_recorded_and_stays_after_a_restart(
    damage: Any, model: str | None
) -> None:
    store, clock = page_of(damage), WallClock()
    async with open_books(store, clock) as books:
        assert causes(books, KEY, ("bo", "m1")) == ["unreadable", None]
        (released,) = (await books.release("ana", model)).released
        assert released.reach == "recorded"
        assert causes(books, KEY) == [None]
        assert await books.release("ana", model) == ReleaseReceipt(())
        assert books.book.pending == []
        clock.advance(RECHECK_MS)
        assert causes(books, KEY) == [None], "also when it was read in vain again"
    for _ in range(2):
        store = store.reopened()
        async with open_books(store, clock) as books:
            await wait_all_tasks_blocked()
            assert causes(books, KEY) == [None]
            if model is not None and damage != KEY:
                assert causes(books, ("ana", "m2")) == ["unreadable"]


@pytest.mark.behaviour("R-18")
@pytest.mark.parametrize("healed_by", ["a reading", "a restart", "what it recorded"])
@pytest.mark.parametrize("damage", PAGES)
async def test_a_release_of_one_bad_page_lapses_when_it_reads_again(
    damage: Any, healed_by: str
) -> None:
    store, clock = page_of(damage), WallClock()
    async with open_books(store, clock) as books:
        assert causes(books, KEY) == ["unreadable"]
        await books.release("ana", "m1")
        assert causes(books, KEY) == [None]
        store.pages = set()
        if healed_by == "a reading":
            clock.advance(RECHECK_MS)
            assert causes(books, KEY) == [None]
            await wait_all_tasks_blocked()
        elif healed_by == "what it recorded":
            assert (await books.set(60)).reach == "recorded"
            assert causes(books, KEY) == ["wait"], "at once, though nobody has read it since"
    if healed_by == "a restart":
        store = store.reopened()
        async with open_books(store, clock) as books:
            await wait_all_tasks_blocked()
            assert causes(books, KEY) == [None]
    assert {row.fingerprint for row in rows(store, "overrides").values()} == {LAPSED}
    store = store.reopened()
    store.pages = {damage}
    async with open_books(store, clock) as books:
        await wait_all_tasks_blocked()
        assert causes(books, KEY) == ["unreadable"], "another episode, though of the same words"


@pytest.mark.behaviour("R-18", "W-025")
@pytest.mark.parametrize("damage", PAGES)
async def test_a_wait_stated_behind_a_release_of_one_bad_page_binds_and_is_recorded_when_it_heals(
    autojump_clock: MockClock, damage: Any
) -> None:
    store, clock = page_of(damage), WallClock()
    async with open_books(store, clock) as books:
        assert causes(books, KEY) == ["unreadable"]
        await books.release("ana")
        assert (await books.set(600)).reach == "pending"
        assert books.left_s() == 600
        store.pages = set()
        await trio.sleep(RECHECK_MS / SECOND + 1)
        assert books.book.pending == []
        assert causes(books, KEY) == ["wait"]
    async with open_books(store.reopened(), clock) as books:
        assert causes(books, KEY) == ["wait"]


@pytest.mark.behaviour("R-18", "W-052")
async def test_a_release_ends_what_was_stated_while_its_page_could_not_be_read() -> None:
    store, clock = Spotty(), WallClock()
    async with open_books(store, clock) as books:
        await books.set(600)
    store = store.reopened()
    store.pages = {KEY}
    async with open_books(store, clock) as books:
        assert causes(books, KEY) == ["unreadable"]
        await books.set(900)
        receipt = await books.release("ana")
        assert {each.reach for each in receipt.released} == {"recorded", "pending"}
        assert causes(books, KEY) == [None]
    # What was pending is gone with the process, and what was released stays so.
    store = store.reopened()
    async with open_books(store, clock) as books:
        await wait_all_tasks_blocked()
        assert causes(books, KEY) == [None]
        store.pages = set()
        clock.advance(RECHECK_MS)
        assert causes(books, KEY) == [None], "the recorded wait was released with it"


@pytest.mark.behaviour("W-109", "W-113")
async def test_a_release_of_one_bad_page_that_the_disk_refuses_is_pending_until_it_heals() -> None:
    store = page_of(KEY)
    async with open_books(store) as books:
        assert causes(books, KEY) == ["unreadable"]
        refuse(store)
        assert [each.reach for each in (await books.release("ana")).released] == ["pending"]
        assert causes(books, KEY) == [None]
        refuse(store, False)
        await books.release("ana")
        await wait_all_tasks_blocked()
        assert books.book.pending == []
        assert len(rows(store, "overrides")) == 1
