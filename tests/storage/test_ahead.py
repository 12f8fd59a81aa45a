"""Requests that are checked and encoded in steps: they come to what they would at once."""

from __future__ import annotations

from typing import Any

import pytest

from abeyance.storage import codec
from abeyance.storage.ahead import STEP_OPS, make_ready
from abeyance.storage.batch import Ready, prepare
from abeyance.storage.errors import InvalidRequestError, RequestTooLargeError, StorageError
from abeyance.storage.lmdb_store import LIMITS
from abeyance.storage.memory import MemoryStore
from abeyance.storage.store import Append, Chain, Committed, Delete, Guard, Limits, Put, Request
from abeyance.storage.tables.blocks import TextBlock
from abeyance.storage.tables.slots import Body
from abeyance.storage.tables.waits import LogLine

OWNER = Guard("owners", ("slot", "ana"), 0)
CHAIN = Chain("ana", 1)
COUNT = STEP_OPS + 10


def body(text: str) -> codec.Value:
    return codec.encode(Body(blocks=(TextBlock(text=text),)))


def request(count: int = COUNT, **changes: Any) -> Request:
    made: dict[str, Any] = {
        "guards": (OWNER, *(Guard("ids", ("ana", f"m{n}"), 0) for n in range(count))),
        "puts": tuple(Put("bodies", ("ana", n), body(f"said {n}")) for n in range(count)),
        "deletes": tuple(Delete("inbox", ("ana", n)) for n in range(count)),
        "chain": CHAIN,
    }
    return Request(**(made | changes))


def stepped(given: Request, limits: Limits = LIMITS) -> tuple[Request, int]:
    """What it is when it is ready, and in how many steps it was made so."""
    steps, count = make_ready(given, limits), 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value, count
        count += 1


def test_a_request_that_is_ready_is_what_it_would_have_been_made_at_once() -> None:
    given = request()
    ready, steps = stepped(given)
    assert isinstance(ready, Ready)
    assert steps == 6
    at_once, ahead = prepare([given], LIMITS), prepare([ready], LIMITS)
    assert ahead.requests == at_once.requests
    assert ahead.reads == at_once.reads
    assert ahead.appended == at_once.appended == set()


def test_a_store_takes_a_ready_request_as_any_other() -> None:
    store = MemoryStore()
    ready, _ = stepped(request(3), store.limits)
    assert isinstance(ready, Ready)
    outcomes = store.commit(ready, request(1, puts=(Put("bodies", ("ana", 9), body("x")),)))
    assert all(isinstance(each, Committed) for each in outcomes)
    assert [key for key, _ in store.scan("bodies", ("ana",))] == [("ana", n) for n in (0, 1, 2, 9)]


def test_a_store_of_other_limits_looks_at_a_ready_request_itself() -> None:
    ready, _ = stepped(request())
    with pytest.raises(RequestTooLargeError):
        prepare([ready], Limits(ops_max=128, payload_bytes_max=1_000_000))


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"puts": tuple(Put("bodies", ("ana", n % COUNT), body("x")) for n in range(2 * COUNT))},
         InvalidRequestError),
        ({"deletes": (Delete("bodies", ("ana", COUNT - 1)),)}, InvalidRequestError),
        ({"deletes": (Delete("meta", ("x",)),)}, InvalidRequestError),
        ({"puts": (Put("nowhere", ("ana", 1), body("x")),)}, InvalidRequestError),
        ({"guards": (Guard("ids", ("ana",), 0),)}, InvalidRequestError),
        ({"puts": (Put("ids", ("ana", "x"), body("x")),)}, InvalidRequestError),
        ({"puts": tuple(Put("bodies", ("ana", n), body("x" * 150_000)) for n in range(500))},
         RequestTooLargeError),
        ({"puts": tuple(Put("bodies", ("ana", n), body("")) for n in range(20_001))},
         RequestTooLargeError),
    ],
    ids=[
        "a put twice", "a put and a delete of a key", "the store's own table", "no table",
        "a malformed key", "a kind of another table", "too many bytes", "too many operations",
    ],
)  # fmt: skip
def test_a_request_that_is_not_sound_is_left_for_the_store_to_say_so(
    changes: dict[str, Any], refusal: type[StorageError]
) -> None:
    given = request(**changes)
    left, _ = stepped(given)
    assert left is given
    with pytest.raises(refusal):
        prepare([left], LIMITS)


def test_a_request_that_appends_is_left_as_it_is() -> None:
    line = codec.encode(LogLine(event="e", agent="ana", text="t", at_ms=1))
    given = request(appends=(Append("log", line),))
    left, _ = stepped(given)
    assert left is given
    assert len(prepare([left], LIMITS).requests) == 1
