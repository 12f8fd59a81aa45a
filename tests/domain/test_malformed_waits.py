"""Records of waits, of walls and of overrides that decode and are not what they should be.

Their checksums are right: what wrote them was wrong, or of another version. Each is written to the
file of the embedded store, past the codec, beside good ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from trio.testing import wait_all_tasks_blocked

from abeyance.actors.domain.accounts import Accounts
from abeyance.actors.domain.protocol import RecordWait, ReleaseReceipt
from abeyance.actors.domain.wait_book import ACCOUNT, RECHECK_MS, WaitBook
from abeyance.actors.testing import WallClock
from abeyance.storage import codec
from abeyance.storage.check import check
from abeyance.storage.keys import encode_key
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Value
from abeyance.storage.tables import TABLES
from abeyance.storage.tables.fields import INSTANT_MS_MAX, NAME_BYTES_MAX, REASON_CHARS_MAX
from abeyance.storage.tables.waits import Wait

from .books import KEY, SECOND, open_books
from .test_unreadable_waits import cut

CLOCK = WallClock()
NOW = CLOCK.now_ms()
WAIT = {
    "deadline_ms": NOW + 600 * SECOND,
    "reason": "w",
    "set_ms": NOW,
    "act": "a",
    "hold": None,
    "since_ms": None,
}
RELEASED = {"by": "ops", "at_ms": NOW, "act": "a"}


def without(fields: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name}


SHAPES: dict[str, tuple[str, Any]] = {
    "nothing in it": ("wait", {}),
    "null": ("wait", None),
    "a list": ("wait", list(WAIT.values())),
    "text": ("wait", "until noon"),
    **{
        f"no {name}": ("wait", without(WAIT, name))
        for name in ("deadline_ms", "reason", "set_ms", "act")
    },
    "an end that is text": ("wait", WAIT | {"deadline_ms": str(NOW)}),
    "an end that is a fraction": ("wait", WAIT | {"deadline_ms": NOW + 0.5}),
    "an end that is a truth": ("wait", WAIT | {"deadline_ms": True}),
    "an end that is a list": ("wait", WAIT | {"deadline_ms": [NOW]}),
    "an end past the last instant": ("wait", WAIT | {"deadline_ms": INSTANT_MS_MAX + 1}),
    "an end before time": ("wait", WAIT | {"deadline_ms": -1}),
    "stated at no instant": ("wait", WAIT | {"set_ms": None}),
    "stated past the last instant": ("wait", WAIT | {"set_ms": INSTANT_MS_MAX + 1}),
    "no text for a reason": ("wait", WAIT | {"reason": None}),
    "bytes for a reason": ("wait", WAIT | {"reason": b"w"}),
    "a reason beyond its bound": ("wait", WAIT | {"reason": "w" * (REASON_CHARS_MAX + 1)}),
    "an act with no name": ("wait", WAIT | {"act": ""}),
    "an unknown kind": ("paused", WAIT),
    "another table's kind": ("alerted", {"episode": "e"}),
}
shaped = pytest.mark.parametrize(("kind", "fields"), SHAPES.values(), ids=SHAPES)


class Disk:
    """One state directory whose rows a test writes as it likes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self.opened():
            pass

    @contextmanager
    def opened(self) -> Iterator[LmdbStore]:
        store = LmdbStore.open(self.path, clock_ms=CLOCK.now_ms)
        try:
            yield store
        finally:
            store.close()

    def put(self, table: str, key: tuple[str, ...], kind: str, fields: Any) -> None:
        """Write a row whose checksum is right, whatever is in it."""
        body = msgspec.msgpack.encode(fields)
        encoded = encode_key(TABLES[table].key, key)
        value = Value(kind, 1, body, codec.checksum(body))
        self.put_raw(table, encoded, codec.frame(table, encoded, 1, value))

    def put_raw(self, table: str, key: bytes, raw: bytes) -> None:
        with self.opened() as store:
            environment = store._environment
            with environment._env.begin(write=True) as transaction:  # type: ignore[union-attr]
                transaction.put(key, raw, db=environment.tables[table])


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "state")


def test_the_records_these_shapes_are_made_of_are_good_ones(disk: Disk) -> None:
    disk.put("waits", KEY, "wait", WAIT)
    disk.put("waits", ("bo", "m1"), "wait_released", RELEASED)
    with disk.opened() as store:
        book = WaitBook(store, CLOCK)
        assert book.deferral(*KEY).deadline_ms == NOW + 600 * SECOND  # type: ignore[union-attr]
        assert book.deferral("bo", "m1") is None
        assert check(store).findings == ()


@pytest.mark.behaviour("W-040")
@shaped
async def test_a_malformed_record_of_a_wait_holds_exactly_its_key_until_it_is_released(
    disk: Disk, kind: str, fields: Any
) -> None:
    disk.put("waits", ("ana", "m2"), "wait", WAIT)
    disk.put("waits", KEY, kind, fields)
    with disk.opened() as store:
        assert [(each.table, each.key) for each in check(store).findings] == [("waits", KEY)]
        async with open_books(store, CLOCK) as books:
            held = await books.held()
            assert held is not None
            assert (held.cause, held.deadline_ms) == ("unreadable", None)
            assert "cannot be read" in held.reason
            assert books.left_s("ana", "m2") == 600
            for free in (("ana", "m3"), ("bo", "m1")):
                assert await books.held(*free) is None
            listed = [(wait.agent, wait.model) for wait in books.book.listing()]
            assert listed == [("ana", "m1"), ("ana", "m2")]
            await books.release("ana", "m1")
            assert await books.held() is None
    with disk.opened() as store:
        assert check(store).findings == ()
        assert WaitBook(store, CLOCK).deferral(*KEY) is None


@pytest.mark.behaviour("W-042")
async def test_an_end_that_is_null_is_none_and_one_that_is_missing_is_unknown(disk: Disk) -> None:
    disk.put("waits", KEY, "wait", WAIT | {"deadline_ms": None})
    disk.put("waits", ("bo", "m1"), "wait", without(WAIT, "deadline_ms"))
    disk.put("waits", ("cy", "m1"), "wait", None)
    with disk.opened() as store:
        book = WaitBook(store, CLOCK)
        causes = {}
        for name in ("ana", "bo", "cy", "di"):
            found = book.deferral(name, "m1")
            causes[name] = None if found is None else (found.cause, found.reason[:20])
        assert causes.pop("ana") == ("wait", "w"), "a record that says that there is no end"
        assert causes.pop("di") is None, "no record at all"
        assert {cause for cause, _ in causes.values()} == {"unreadable"}  # type: ignore[misc]


@pytest.mark.behaviour("W-040")
@shaped
async def test_a_malformed_record_of_a_wall_holds_exactly_its_credentials_model(
    disk: Disk, kind: str, fields: Any
) -> None:
    disk.put("account_waits", ("k", "m2"), "wait", WAIT)
    disk.put("account_waits", ("k", "m1"), kind, fields)
    with disk.opened() as store:
        book = WaitBook(store, CLOCK)
        accounts = Accounts(book, CLOCK)
        wall = accounts.check("k", "ana", "m1", None)
        assert wall is not None
        assert (wall.deadline_ms, "cannot be read" in wall.reason) == (None, True)
        good = accounts.check("k", "ana", "m2", None)
        assert good is not None
        assert good.deadline_ms == NOW + 600 * SECOND
        assert accounts.check("other", "ana", "m1", None) is None
        listed = [(wait.agent, wait.model, wait.deadline_ms) for wait in book.listing()]
        assert listed == [
            (f"{ACCOUNT}k", "m1", None),
            (f"{ACCOUNT}k", "m2", NOW + 600 * SECOND),
        ]
        async with open_books(store, CLOCK) as books:
            await books.release(f"{ACCOUNT}k", "m1")
            left = [(wait.model, wait.reason) for wait in books.book.listing()]
            assert left == [("m2", "w")]
    with disk.opened() as store:
        assert check(store).findings == ()


@pytest.mark.behaviour("W-040", "W-043")
@pytest.mark.parametrize("table", ["waits", "account_waits"])
async def test_a_kind_that_is_safe_to_ignore_is_ignored(disk: Disk, table: str) -> None:
    disk.put(table, KEY, "~paused", WAIT)
    disk.put(table, ("bo", "m1"), "paused", WAIT)
    with disk.opened() as store:
        async with open_books(store, CLOCK) as books:
            if table == "waits":
                found = [books.book.deferral(name, "m1") for name in ("ana", "bo")]
            else:
                accounts = Accounts(books.book, CLOCK)
                found = [accounts.check(name, "cy", "m1", None) for name in ("ana", "bo")]  # type: ignore[misc]
            assert [each is None for each in found] == [True, False]
            assert [wait.agent.split(":")[-1] for wait in books.book.listing()] == ["bo"]
            # What is stated from then on takes its place.
            own = table == "waits"
            account = None if own else "ana"
            stated = RecordWait(*KEY, NOW + 60 * SECOND, "w", account, "m1", own)
            await books.ledger.ask(stated)
            row = store.get(table, KEY)
            assert row is not None
            assert row.record.deadline_ms == NOW + 60 * SECOND  # type: ignore[attr-defined]


OVERRIDES: dict[str, tuple[str, Any]] = {
    "nothing in it": ("override", {}),
    "null": ("override", None),
    **{f"no {name}": ("override", {name: None}) for name in ("fingerprint", "by", "at_ms", "act")},
    "a fingerprint that is a number": ("override", {"fingerprint": 7}),
    "a fingerprint beyond its bound": ("override", {"fingerprint": "x" * (NAME_BYTES_MAX + 1)}),
    "an instant that is text": ("override", {"at_ms": "now"}),
    "past the last instant": ("override", {"at_ms": INSTANT_MS_MAX + 1}),
    "before time": ("override", {"at_ms": -1}),
    "an unknown kind": ("paused", {"by": "ops"}),
    "a kind that may be ignored": ("~paused", {"by": "ops"}),
    "another table's kind": ("wait_released", {"by": "ops"}),
}


@pytest.mark.behaviour("W-040")
@pytest.mark.parametrize(("kind", "change"), OVERRIDES.values(), ids=OVERRIDES)
async def test_a_malformed_record_of_a_release_lifts_nothing_of_its_agent_and_nobody_elses(
    disk: Disk, kind: str, change: Any
) -> None:
    good = codec.encode(Wait(deadline_ms=None, reason="w", set_ms=NOW, act="a"))
    for name in ("ana", "bo"):
        key = cut(name)
        disk.put_raw("waits", key, codec.frame("waits", key, 1, good))
    clock = WallClock()
    with disk.opened() as store:
        async with open_books(store, clock) as books:
            for name in ("ana", "bo"):
                await books.release(name)
                assert await books.held(name, "m1") is None
        row = store.get("overrides", ("ana", "*", "unreadable"))
    assert row is not None
    stated: Any = msgspec.structs.asdict(row.record)
    if change is None:
        stated = None
    elif change and None in change.values():
        stated = without(stated, *change)
    else:
        stated = stated | change if change else {}
    disk.put("overrides", ("ana", "*", "unreadable"), kind, stated)
    with disk.opened() as store:
        async with open_books(store, clock) as books:
            held = await books.held("ana", "m1")
            assert held is not None
            assert held.cause == "unreadable"
            assert await books.held("bo", "m1") is None
            clock.advance(RECHECK_MS)
            assert await books.held("ana", "m1") is not None


@pytest.mark.behaviour("R-17", "R-18", "R-35")
@pytest.mark.parametrize("damage", ["of a credential", "of nobody"])
async def test_a_damaged_key_of_a_wall_holds_whom_it_may_be_of_until_that_is_released(
    disk: Disk, damage: str
) -> None:
    good = codec.encode(Wait(deadline_ms=None, reason="w", set_ms=NOW, act="a"))
    raw = cut("k") if damage == "of a credential" else b"\2k"
    disk.put_raw("account_waits", raw, codec.frame("account_waits", raw, 1, good))
    disk.put("account_waits", ("other", "m1"), "wait", WAIT)
    clock = WallClock()

    def held(book: WaitBook, *names: str) -> list[bool]:
        accounts = Accounts(book, clock)
        return [accounts.check(name, "ana", "m2", None) is not None for name in names]

    everyone = damage == "of nobody"
    with disk.opened() as store:
        async with open_books(store, clock) as books:
            assert held(books.book, "k", "third") == [True, everyone]
            listed = [(wait.agent, wait.model) for wait in books.book.listing()]
            assert listed == [
                (f"{ACCOUNT}{'*' if everyone else 'k'}", "*"),
                (f"{ACCOUNT}other", "m1"),
            ]
            (released,) = (await books.release(f"{ACCOUNT}k")).released
            assert (released.model, released.reach) == ("*", "recorded")
            assert held(books.book, "k", "third") == [False, everyone]
            assert await books.release(f"{ACCOUNT}k") == ReleaseReceipt(())
    for _ in range(2):
        with disk.opened() as store:
            async with open_books(store, clock) as books:
                await wait_all_tasks_blocked()
                assert held(books.book, "k", "third") == [False, everyone], "it stays released"
    worse = cut("k", "m8")
    disk.put_raw("account_waits", worse, codec.frame("account_waits", worse, 1, good))
    with disk.opened() as store:
        async with open_books(store, clock) as books:
            assert held(books.book, "k") == [True], "more is damaged than was released"
            environment = store._environment
            with environment._env.begin(write=True) as transaction:  # type: ignore[union-attr]
                for each in (raw, worse):
                    transaction.delete(each, db=environment.tables["account_waits"])
            clock.advance(RECHECK_MS)
            assert held(books.book, "k", "third") == [False, False], "it is gone"


@pytest.mark.behaviour("W-041")
@pytest.mark.parametrize(
    "odd", [{"by": 42}, {"by": None}, {"at_ms": "noon"}, {"at_ms": -1}, {"by": [], "at_ms": {}}]
)
async def test_a_release_holds_whatever_it_says_of_who_and_when_and_other_waits_still_read(
    disk: Disk, odd: dict[str, Any]
) -> None:
    disk.put("waits", ("ana", "m1"), "wait_released", RELEASED | odd)
    disk.put("waits", ("ana", "m2"), "wait", WAIT)
    with disk.opened() as store:
        async with open_books(store, WallClock()) as books:
            assert await books.held("ana", "m1") is None
            held = await books.held("ana", "m2")
            assert held is not None
            assert held.cause == "wait"


@pytest.mark.behaviour("R-18", "R-35")
async def test_a_release_of_the_wall_that_is_listed_of_nobody_frees_every_credential(
    disk: Disk,
) -> None:
    good = codec.encode(Wait(deadline_ms=None, reason="w", set_ms=NOW, act="a"))
    lost, named = b"\2k", cut("k")
    disk.put_raw("account_waits", lost, codec.frame("account_waits", lost, 1, good))
    clock = WallClock()

    def held(book: WaitBook, *names: str) -> list[bool]:
        accounts = Accounts(book, clock)
        return [accounts.check(name, "ana", "m2", None) is not None for name in names]

    with disk.opened() as store:
        async with open_books(store, clock) as books:
            (listed,) = books.book.listing()
            (released,) = (await books.release(listed.agent)).released
            assert (released.agent, released.reach) == (f"{ACCOUNT}*", "recorded")
            assert books.book.listing() == ()
            assert held(books.book, "k", "third") == [False, False]
    disk.put_raw("account_waits", named, codec.frame("account_waits", named, 1, good))
    with disk.opened() as store:
        async with open_books(store, clock) as books:
            await wait_all_tasks_blocked()
            assert held(books.book, "k", "third") == [True, False], "one more, and it names whose"
            await books.release(f"{ACCOUNT}k")
            assert held(books.book, "k", "third") == [False, False]
    with disk.opened() as store:
        async with open_books(store, clock) as books:
            await wait_all_tasks_blocked()
            assert held(books.book, "k", "third") == [False, False], "both stay released"
