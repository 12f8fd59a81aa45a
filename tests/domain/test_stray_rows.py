"""Rows of waits under a damaged key: they hold whom they are of, and nobody where they stand."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import wait_all_tasks_blocked

from abeyance.actors.domain.accounts import Accounts
from abeyance.actors.domain.wait_book import ACCOUNT, RECHECK_MS, WaitBook
from abeyance.actors.testing import WallClock
from abeyance.storage import codec
from abeyance.storage.keys import decode_key, encode_key
from abeyance.storage.store import Value
from abeyance.storage.tables.waits import Wait

from .books import KEY, SECOND, Books, open_books
from .test_malformed_waits import Disk

CLOCK = WallClock()
NOW = CLOCK.now_ms()

WAIT = codec.encode(Wait(deadline_ms=NOW + 7_200 * SECOND, reason="w", set_ms=NOW, act="a"))
OWN = encode_key((str, str), KEY)
FLIPS = {
    "a name of the agent's": b"\2anc\0\2m1\0",
    "a name of the model's": b"\2ana\0\2m3\0",
    "a part of another type": b"\2ana\0\3m1\0",
    "a first part of another type": b"\3ana\0\2m1\0",
    "a first part that does not end": b"\2ana\1\2m1\0",
    "a first part that ends sooner": b"\2an\0\0\2m1\0",
    "a key of no end": b"\2ana\0\2m1\1",
    "no Unicode": b"\2\xe1na\0\2m1\0",
}
BEYOND = {
    "two bits of the agent": b"\2bob\0\2m1\0",
    "nothing of the model": b"\2ana\0",
    "nothing of the end": b"\2ana",
    "junk": b"\x09zz",
    "another agent and model": b"\2bo\0\2m7\0",
}
LOST = (BEYOND["nothing of the end"], BEYOND["junk"])
"""Those that say of no agent that they are its: until it is known, everyone is held."""
OTHERS = (("anc", "m1"), ("ana", "m2"), ("ana", "m3"), ("bo", "m7"), ("bob", "m1"), ("cy", "m9"))


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "state")


def stray(
    disk: Disk, key: bytes, *, own: bytes = OWN, value: Value = WAIT, table: str = "waits"
) -> None:
    """Put a row there that was written under its own key."""
    disk.put_raw(table, key, codec.frame(table, own, 1, value))


def held(books: Books, *keys: tuple[str, str]) -> list[tuple[str, str]]:
    return [key for key in keys if books.book.deferral(*key) is not None]


@pytest.mark.behaviour("R-17")
@pytest.mark.parametrize("key", FLIPS.values(), ids=FLIPS)
async def test_a_row_whose_key_has_a_bit_flipped_holds_the_key_it_is_of_and_nobody_else(
    disk: Disk, key: bytes
) -> None:
    stray(disk, key)
    with disk.opened() as store:
        async with open_books(store, CLOCK) as books:
            await wait_all_tasks_blocked()
            assert held(books, *OTHERS, KEY) == [KEY]
            deferral = books.book.deferral("ana", None)
            assert deferral is not None
            assert deferral.cause == "unreadable"
            assert books.book.deferral("anc", None) is None
            listed = [(wait.agent, wait.model, wait.deadline_ms) for wait in books.book.listing()]
            assert listed == [(*KEY, None)]
            (released,) = (await books.release("ana", "m1")).released
            assert (released.agent, released.model, released.reach) == (*KEY, "recorded")
            assert held(books, *OTHERS, KEY) == []
            assert books.book.listing() == ()
    with disk.opened() as store:
        async with open_books(store, CLOCK) as books:
            await wait_all_tasks_blocked()
            assert held(books, *OTHERS, KEY) == [], "it stays released"
            CLOCK.advance(SECOND)
            await books.set(60)
            assert books.left_s() == 60, "what is stated later binds"


@pytest.mark.behaviour("R-17")
@pytest.mark.parametrize("key", BEYOND.values(), ids=BEYOND)
async def test_a_row_whose_key_is_damaged_further_holds_it_and_nobody_else_once_it_is_asked_about(
    disk: Disk, key: bytes
) -> None:
    stray(disk, key)
    with disk.opened() as store:
        async with open_books(store, CLOCK) as books:
            await wait_all_tasks_blocked()
            assert held(books, ("cy", "m9")) == ([("cy", "m9")] if key in LOST else [])
            assert held(books, KEY) == [KEY]
            assert held(books, *OTHERS, KEY) == [KEY]
            listed = [(wait.agent, wait.model) for wait in books.book.listing()]
            assert listed == [KEY]
            await books.release("ana")
            assert held(books, *OTHERS, KEY) == []


async def test_a_row_whose_key_and_value_are_damaged_holds_where_it_stands(disk: Disk) -> None:
    spoilt = Value(WAIT.kind, WAIT.version, WAIT.body[:-1], WAIT.body_crc)
    stray(disk, FLIPS["a name of the agent's"], value=spoilt)
    with disk.opened() as store:
        async with open_books(store, CLOCK) as books:
            await wait_all_tasks_blocked()
            assert held(books, *OTHERS, KEY) == [("anc", "m1")]


@pytest.mark.behaviour("R-17")
@pytest.mark.parametrize("place", [("ana", "m3"), ("ana", "m2"), ("bo", "m7")], ids=str)
@pytest.mark.parametrize("written", [1, 2], ids=["as it is", "as it was"])
async def test_a_copy_of_anothers_row_holds_the_key_whose_row_it_took_the_place_of(
    disk: Disk, place: tuple[str, str], written: int
) -> None:
    disk.put_raw("waits", OWN, codec.frame("waits", OWN, written, WAIT))
    stray(disk, encode_key((str, str), place))
    stray(disk, encode_key((str, str), place), table="account_waits")
    disk.put_raw("account_waits", OWN, codec.frame("account_waits", OWN, written, WAIT))
    with disk.opened() as store:
        async with open_books(store, CLOCK) as books:
            await wait_all_tasks_blocked()
            assert held(books, *OTHERS, KEY) == sorted([place, KEY], key=[*OTHERS, KEY].index)
            deferral = books.book.deferral(*KEY)
            assert deferral is not None
            assert deferral.cause == "wait"
            accounts = Accounts(books.book, CLOCK)
            wall = accounts.check(place[0], "x", place[1], None)
            assert wall is not None
            assert wall.is_unread


async def test_a_row_that_is_put_back_under_its_key_binds_by_what_it_says(disk: Disk) -> None:
    clock = WallClock()
    stray(disk, FLIPS["a name of the agent's"])
    with disk.opened() as store:
        async with open_books(store, clock) as books:
            await wait_all_tasks_blocked()
            assert books.left_s() == float("inf")
            environment = store._environment
            with environment._env.begin(write=True) as transaction:  # type: ignore[union-attr]
                table = environment.tables["waits"]
                transaction.delete(FLIPS["a name of the agent's"], db=table)
                transaction.put(OWN, codec.frame("waits", OWN, 1, WAIT), db=table)
            clock.advance(RECHECK_MS)
            books.book.unreadable.look_over_at_once()
            left_s = books.left_s()
            assert left_s is not None
            assert 7_000 < left_s <= 7_200


async def test_what_is_unreadable_of_an_agent_that_nobody_asks_about_is_told_of_as_the_host_starts(
    disk: Disk,
) -> None:
    told: list[tuple[str, str]] = []

    class Watcher:
        def bound(self, key: tuple[str, str], wait: Wait) -> None:
            raise AssertionError(key)

        def unreadable(self, agent: str, model: str, reason: str, episode: str) -> None:
            told.append((agent, model))

    stray(disk, FLIPS["a name of the agent's"])
    disk.put_raw("waits", encode_key((str, str), ("gone", "m1")), b"no value")
    with disk.opened() as store:
        book = WaitBook(store, CLOCK)
        book.episodes.watcher = Watcher()
        for _ in range(3):
            book.unreadable.look_over_at_once()
        assert told == [KEY, ("gone", "m1")]


@pytest.mark.behaviour("R-17")
@pytest.mark.parametrize("key", [*FLIPS.values(), *BEYOND.values()], ids=[*FLIPS, *BEYOND])
@pytest.mark.parametrize("model", ["m1", "*"])
async def test_a_wall_whose_key_is_damaged_holds_the_credential_it_is_of(
    disk: Disk, key: bytes, model: str
) -> None:
    own = encode_key((str, str), ("ana", model))
    stray(disk, key, own=own if key in BEYOND.values() else OWN, table="account_waits")
    with disk.opened() as store:
        async with open_books(store, CLOCK) as books:
            accounts = Accounts(books.book, CLOCK)

            def walled(*names: str) -> list[str]:
                return [name for name in names if accounts.check(name, "x", "m1", None) is not None]

            assert walled("ana", "anc", "bo", "bob") == ["ana"]
            assert {wait.agent for wait in books.book.listing()} == {f"{ACCOUNT}ana"}
            await books.release(f"{ACCOUNT}ana")
            assert walled("ana", "anc", "bo", "bob") == []


async def test_damaged_keys_of_walls_that_name_nobody_are_told_of_once_under_a_star(
    disk: Disk,
) -> None:
    told: list[tuple[str, str]] = []

    class Watcher:
        def bound(self, key: tuple[str, str], wait: Wait) -> None:
            raise AssertionError(key)

        def unreadable(self, agent: str, model: str, reason: str, episode: str) -> None:
            told.append((agent, model))

    disk.put_raw("account_waits", b"\x09zz", b"no value")
    with disk.opened() as store:
        book = WaitBook(store, CLOCK)
        book.episodes.watcher = Watcher()
        accounts = Accounts(book, CLOCK)
        for name in ("k", "l", "k"):
            assert accounts.check(name, "ana", "m1", None) is not None
        assert told == [(f"{ACCOUNT}*", "*")]


def test_a_seal_tells_each_bit_of_a_key_that_flipped() -> None:
    for own in (OWN, encode_key((str, str), ("a" * 200, "m\x00\x01" * 20))):
        raw = codec.frame("waits", own, 7, WAIT)
        seal = codec.seal_of("waits", raw)
        assert seal is not None
        assert seal.home(own) is None
        for place in range(8 * len(own)):
            flipped = bytearray(own)
            flipped[place >> 3] ^= 1 << (place & 7)
            assert seal.home(bytes(flipped)) == decode_key(own)
            flipped[0] ^= 0xFF
            assert seal.home(bytes(flipped)) is None
        assert codec.seal_of("waits", raw[:-1]) is None
