"""Batches that only make rows: which they are, and that they come to what any batch would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from abeyance.storage import codec, lmdb_store, writer
from abeyance.storage.errors import InvalidRequestError, UnreadableRecordError
from abeyance.storage.lmdb_store import LIMITS, LmdbStore
from abeyance.storage.plain import Plain, plain_of
from abeyance.storage.store import (
    Append,
    Chain,
    Committed,
    Delete,
    Guard,
    Limits,
    NotStored,
    Outcome,
    Put,
    Record,
    Refused,
    Request,
    Rows,
)
from abeyance.storage.tables.blocks import TextBlock
from abeyance.storage.tables.ownership import Owner
from abeyance.storage.tables.slots import Body, Entry, MessageId, Wake
from abeyance.storage.tables.waits import LogLine

OWNER = Guard("owners", ("slot", "ana"), 1)
ENTRY = Entry(entry=1, message="m", author="a", role="marker", at_ms=0)
WAKE = Wake(reason="message", author="u", at_ms=1)
TABLES = ("owners", "ids", "bodies", "slots", "wakes")


def put(table: str, key: Any, record: Record) -> Put:
    return Put(table, key, codec.encode(record))


def body(text: str = "hello") -> Body:
    return Body(blocks=(TextBlock(text=text),))


def accept(entry: int, message: str | None = None, **changes: Any) -> Request:
    """What accepts a message; its id is its own unless one is given."""
    name, places = ("ana", message or f"m{entry}"), [("ana", entry)]
    made: dict[str, Any] = {
        "guards": (OWNER,),
        "rows": (
            of("ids", name, MessageId(entry=entry, state="inbox", body_crc=1), fresh=True),
            of("bodies", places[0], body()),
            of("wakes", places[0], WAKE),
        ),
    }
    return Request(**(made | changes))


def of(table: str, key: Any, record: Record, **how: Any) -> Rows:
    body = codec.pack_record(record)
    return Rows(table, record.KIND, record.VERSION, key[:-1], [key[-1]], [body], **how)


# -- which they are ------------------------------------------------------------------------------


def test_accepted_messages_are_a_batch_that_only_makes_rows() -> None:
    plain = plain_of([accept(1), accept(2), Request()], LIMITS)
    assert plain is not None
    assert {table: len(keys) for table, (_, _, keys, _) in plain.rows.items()} == {
        "ids": 2,
        "bodies": 2,
        "wakes": 2,
    }
    assert [counter for _, _, counter in plain.guards] == [1]


TWO = [codec.pack_record(body())] * 2
NOT_PLAIN = {
    "one that deletes": accept(1, deletes=(Delete("inbox", ("ana", 1)),)),
    "one that appends": accept(
        1, appends=(Append("log", codec.encode(LogLine(event="e", text="", at_ms=1))),)
    ),
    "one that puts": accept(1, puts=(put("slots", ("ana", 1), ENTRY),)),
    "a guard of a row that is there": accept(1, guards=(Guard("ids", ("ana", "m1"), 1),)),
    "a guard of a row that it does not make": accept(1, guards=(Guard("ids", ("ana", "m2"), 0),)),
    "a table whose rows change": accept(
        1, rows=(of("owners", ("slot", "ana"), Owner(nonce="n", fence=1)),)
    ),
    "a table twice": accept(
        1, rows=(of("bodies", ("ana", 1), body()), of("bodies", ("ana", 2), body()))
    ),
    "a key twice": accept(1, rows=(Rows("bodies", "body", 1, ("ana",), [1, 1], TWO),)),
    "fewer keys than bodies": accept(1, rows=(Rows("bodies", "body", 1, ("ana",), [1], TWO),)),
    "a kind that the table does not hold": accept(1, rows=(of("bodies", ("ana", 1), WAKE),)),
    "another version": accept(1, rows=(Rows("bodies", "body", 2, ("ana",), [1], TWO[:1]),)),
    "a malformed key": accept(1, rows=(of("bodies", ("ana", -1), body()),)),
    "a key of another shape": accept(1, rows=(of("bodies", ("ana",), body()),)),
    "a number that is none": accept(1, rows=(of("bodies", ("ana", True), body()),)),
    "a prefix that is none": accept(1, rows=(Rows("bodies", "body", 1, (1,), [1], TWO[:1]),)),
    "an unknown table": accept(1, rows=(of("none", ("ana", 1), body()),)),
    "an unknown table of a guard": accept(1, guards=(Guard("none", ("ana",), 1),)),
    "a malformed key of a guard": accept(1, guards=(Guard("owners", ("ana",), 1),)),
    "no rows": Request(),
    "no request": None,
}


@pytest.mark.parametrize("request_", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_a_batch_with_anything_else_in_it_is_decided_request_by_request(request_: Any) -> None:
    assert plain_of([request_], LIMITS) is None
    if request_ != Request():
        assert plain_of([accept(7), request_], LIMITS) is None


@pytest.mark.parametrize("limits", [Limits(4, 10_000), Limits(10_000, 60)], ids=["ops", "bytes"])
def test_a_batch_with_a_request_past_the_limits_is_not_plain(limits: Limits) -> None:
    assert plain_of([accept(1)], Limits(5, 10_000)) is not None
    assert plain_of([accept(1)], limits) is None


# -- what they come to -----------------------------------------------------------------------------


def whether(outcomes: list[Outcome]) -> list[Any]:
    """Outcomes without their revision, and with no more of an error than its type."""
    said: list[Any] = []
    for outcome in outcomes:
        if isinstance(outcome, NotStored):
            said.append(type(outcome.error))
        else:
            said.append("in" if isinstance(outcome, Committed) else outcome)
    return said


def spoil_body(store: LmdbStore) -> None:
    """Write an unreadable row where the body of entry 2 belongs."""
    environment = store._environment
    with environment._handle().begin(write=True) as transaction:
        key = b"\x02ana\0\x03" + (2).to_bytes(8, "big")
        transaction.put(key, b"nonsense", db=environment.tables["bodies"])


CHAIN, NEXT = Chain("ana", 1), Chain("ana", 2)
BATCHES: dict[str, tuple[list[Request], list[Request], Callable[[LmdbStore], None] | None]] = {
    "new messages": ([], [accept(3), accept(1), accept(2)], None),
    "nothing else but a barrier": ([], [accept(1), Request()], None),
    "an id that is used": ([accept(1)], [accept(2), accept(3, "m1"), accept(4)], None),
    "an id twice in a batch": ([], [accept(2), accept(3, "m2"), accept(4)], None),
    "behind one that is refused": (
        [accept(1)],
        [accept(2, chain=CHAIN), accept(3, "m1", chain=CHAIN), accept(4, chain=CHAIN)],
        None,
    ),
    "behind one that an earlier batch refused": (
        [accept(1), accept(2, "m1", chain=CHAIN)],
        [accept(3, chain=CHAIN), accept(4, chain=NEXT), accept(5)],
        None,
    ),
    "an owner that changed": (
        [Request(puts=(put("owners", ("slot", "ana"), Owner(nonce="other", fence=2)),))],
        [accept(1), accept(2)],
        None,
    ),
    "a row that is there, without a guard": (
        [accept(1)],
        [accept(1, "again"), accept(2)],
        None,
    ),
    "an unreadable row in the way": ([], [accept(1), accept(2), accept(3)], spoil_body),
    "the same row by two requests": (
        [],
        [
            Request(rows=(of("slots", ("ana", 1), entry),))
            for entry in (
                ENTRY,
                Entry(entry=2, message="n", author="b", role="user", at_ms=0),
            )
        ],
        None,
    ),
}


@pytest.mark.parametrize(("before", "batch", "spoil"), BATCHES.values(), ids=BATCHES)
def test_a_batch_that_only_makes_rows_comes_to_what_any_batch_would(
    before: list[Request],
    batch: list[Request],
    spoil: Callable[[LmdbStore], None] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert plain_of(batch, LIMITS) is not None
    seen = []
    for way in ("plain", "weighed"):
        if way == "weighed":
            monkeypatch.setattr(lmdb_store, "plain_of", lambda *_: None)
        store = LmdbStore.open(tmp_path / way, clock_ms=lambda: 1)
        store.commit(Request(puts=(put("owners", ("slot", "ana"), Owner(nonce="n", fence=1)),)))
        if before:
            store.commit(*before)
        if spoil is not None:
            spoil(store)
        revision = store.revision()
        outcomes = store.commit(*batch)
        rows = {table: dict(store.scan(table)) for table in TABLES}
        rows["bodies"] = {
            key: str(row) if isinstance(row, UnreadableRecordError) else row
            for key, row in rows["bodies"].items()
        }
        changes = [(at - revision, table, key) for at, table, key in store.changes(revision)]
        seen.append((whether(outcomes), rows, sorted(changes)))
        store.close()
    assert seen[0] == seen[1]


def test_a_batch_whose_row_is_there_already_is_decided_anew_in_a_transaction_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weighed: list[int] = []
    of = Plain.weighed

    def weigh(plain: Plain) -> Any:
        weighed.append(len(plain.requests))
        return of(plain)

    monkeypatch.setattr(writer.Plain, "weighed", weigh)
    store = LmdbStore.open(tmp_path / "state", clock_ms=lambda: 1)
    store.commit(Request(puts=(put("owners", ("slot", "ana"), Owner(nonce="n", fence=1)),)))
    assert whether(store.commit(accept(1), accept(2))) == ["in", "in"]
    assert weighed == []
    (refused, fine) = store.commit(accept(3, "m2"), accept(4))
    assert isinstance(refused, Refused)
    assert isinstance(fine, Committed)
    assert weighed == [2]
    # Nothing is left of what the first transaction had put before it met the row.
    assert store.get("bodies", ("ana", 3)) is None
    store.close()


def test_a_request_that_names_a_key_twice_is_refused_before_it_is_taken(tmp_path: Path) -> None:
    store = LmdbStore.open(tmp_path / "state", clock_ms=lambda: 1)
    key, wake = ("ana", 1), codec.pack_record(WAKE)
    for twice in (
        Request(puts=(put("wakes", key, WAKE), put("wakes", key, WAKE))),
        Request(rows=(Rows("wakes", "wake", 1, key[:1], [1, 1], [wake, wake]),)),
        Request(rows=(of("wakes", key, WAKE), of("wakes", key, WAKE))),
        Request(puts=(put("wakes", key, WAKE),), rows=(of("wakes", key, WAKE),)),
    ):
        with pytest.raises(InvalidRequestError):
            store.commit(twice)
    store.close()


@pytest.mark.parametrize("size", [0, 1, 255, 256, 2**16 - 1, 2**16, 2**17], ids=str)
def test_a_row_that_is_made_is_framed_as_any_row(size: int) -> None:
    value = codec.encode(body("x" * size))
    key = b"\x02ana\0\x03\0\0\0\0\0\0\0\1"
    assert codec.frame_made("bodies", "body", 1, [key], [value.body]) == codec.frame_all(
        "bodies", [(key, (1, value, b""))]
    )
