"""Messages that are accepted by one request: what they share, and what they do not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors.domain.drafts import read_said
from abeyance.actors.domain.errors import MessageConflictError, NotStoredError
from abeyance.actors.domain.slot_accepts import TOGETHER_BYTES_MAX, TOGETHER_MAX, Accepts
from abeyance.actors.domain.slot_acts import Act
from abeyance.actors.domain.slot_messages import Accept, Receipt
from abeyance.actors.testing import WallClock
from abeyance.storage import codec
from abeyance.storage.keys import encode_key
from abeyance.storage.lmdb_store import LIMITS
from abeyance.storage.store import Chain, Limits, Request
from abeyance.storage.tables import TABLES

from .desk import disk_full, outcomes_of, rows
from .slots import SLOT, BookDesk, accept, check, start
from .test_poison import PickyStore
from .test_slot_actor import open_room

CHAIN = Chain("slot", 1)


def requests_of(store: Any) -> list[list[Any]]:
    """The numbers that each request accepted."""
    return [
        list(request.rows[1].lasts)
        for request in store.requests
        if isinstance(request, Request) and request.rows
    ]


# -- the rows ------------------------------------------------------------------------------------

NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cf", "Zl", "Zp", "Zs", "Cs"]),
    min_size=1,
    max_size=30,
).filter(lambda name: name == name.strip() and not name.startswith("account:"))


@given(
    text=st.text(st.characters(codec="utf-8"), max_size=300),
    author=NAMES,
    agent=NAMES,
    id_=st.none() | NAMES,
    channel=st.none() | NAMES,
    subject=st.none() | NAMES,
    flags=st.tuples(st.booleans(), st.booleans()),
    now_ms=st.integers(-(2**70), 2**70),
    leased=st.booleans(),
)
def test_the_rows_of_whatever_was_let_in_fit_their_schemas_and_say_it(
    text: str,
    author: str,
    agent: str,
    id_: str | None,
    channel: str | None,
    subject: str | None,
    flags: tuple[bool, bool],
    now_ms: int,
    leased: bool,
) -> None:
    """They are packed without being checked: what is let in is what fits."""
    wake, joins = flags
    said = read_said(
        WallClock(now_ms),
        agent,
        "x" + text,
        author,
        id_,
        wake=wake,
        channel=channel,
        subject=subject,
        joins=joins,
    )
    desk = BookDesk()
    if leased:
        desk.accept("go")
        desk.start()
    into = desk.book.accepts(agent)
    entry, seq = desk.book.accept(said, into)
    assert (seq is None) == leased
    made = {}
    for put in codec.spread(into.request(desk.book.owner, CHAIN)).puts:
        key = encode_key(TABLES[put.table].key, put.key)
        row = codec.decode(put.table, key, codec.frame(put.table, key, 1, put.value))
        assert codec.pack_record(row.record) == put.value.body
        made[put.table] = row.record
    assert made["bodies"].blocks[0].text == "x" + text
    assert (made["ids"].entry, made["ids"].body_crc) == (entry, said.body_crc)
    place = made["inbox" if leased else "slots"]
    assert (place.author, place.channel, place.subject) == (author, channel, subject)
    assert ("wakes" in made) == said.wake


def test_messages_share_a_request_up_to_a_number_a_size_and_the_stores_operations() -> None:
    desk, said = BookDesk(), accept("a")
    into = Accepts(SLOT, "ana", LIMITS)
    for number in range(TOGETHER_MAX):
        assert into.has_room(said)
        desk.book.accept(accept(str(number)), into)
    assert not into.has_room(said)
    assert not Accepts(SLOT, "ana", LIMITS).has_room(accept("a", agent="bo"))
    rest = TOGETHER_BYTES_MAX - len(accept("x" * 70_000).body.body) + 70_000
    assert Accepts(SLOT, "ana", LIMITS).has_room(accept("x" * rest))
    assert not Accepts(SLOT, "ana", LIMITS).has_room(accept("x" * (rest + 1)))
    assert not Accepts(SLOT, "ana", Limits(5, 1_000)).has_room(said)


# -- through the actor ---------------------------------------------------------------------------


async def test_messages_of_one_pass_share_requests_and_keep_their_order(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine a pass would end within them, by its time.
    monkeypatch.setattr("abeyance.actors.core.serving.BATCH_S", 60.0)
    store = PickyStore()
    store.own(SLOT)
    async with open_room(store, "ana") as room:
        await room.slot.ask(accept("go"))
        await room.slot.ask(start())
        store.batches.clear()
        receipts = await outcomes_of([room.slot.ask(accept(str(n))) for n in range(70)])
    assert [receipt.seq for receipt in receipts] == list(range(2, 72))
    # As many as this store takes operations of; the others behind them.
    assert [len(numbers) for numbers in requests_of(store)] == [25, 25, 20]
    check(store)


async def test_what_comes_between_two_messages_parts_their_requests(
    autojump_clock: MockClock,
) -> None:
    store = PickyStore()
    store.own(SLOT)
    async with open_room(store, "ana") as room:
        await wait_all_tasks_blocked()
        store.batches.clear()
        asked = [accept("a"), accept("b"), start(), accept("c"), accept("d")]
        await outcomes_of([room.slot.ask(message) for message in asked])
    assert requests_of(store) == [[1, 2], [3, 4]]
    # The turn that was started between them answers what came before it, and only that.
    assert [entry for _, entry in rows(store, "inbox")] == [3, 4]


@pytest.mark.parametrize("table", ["bodies", "inbox", "wakes"])
async def test_one_that_is_refused_by_name_is_refused_alone(
    table: str, autojump_clock: MockClock
) -> None:
    store = PickyStore()
    store.own(SLOT)
    async with open_room(store, "ana") as room:
        await room.slot.ask(accept("go"))
        await room.slot.ask(start())
        # Once with the others, once by itself; the next message takes the number.
        store.refuse(table, ("ana" if table == "wakes" else SLOT, 4), times=2)
        said = await outcomes_of([room.slot.ask(accept(str(n))) for n in range(5)])
    assert [type(each) for each in said] == [Receipt, Receipt, NotStoredError, Receipt, Receipt]
    assert [each.seq for each in said if isinstance(each, Receipt)] == [2, 3, 4, 5]
    check(store)


async def test_an_id_that_is_used_is_refused_alone_though_the_others_share_its_request(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PickyStore()
    store.own(SLOT)
    async with open_room(store, "ana") as room:
        await room.slot.ask(accept("go"))
        await room.slot.ask(start())
        await room.slot.ask(accept("first", known="x"))
        # As if another life of the slot had stored it and this one had not looked.
        monkeypatch.setattr(
            "abeyance.actors.domain.slot.Slot._accept",
            lambda slot, said, reply: slot._planning.plan(Act(said, reply)),
        )
        asked: list[Accept] = [accept("a"), accept("second", known="x"), accept("b")]
        first, conflict, last = await outcomes_of([room.slot.ask(said) for said in asked])
    assert isinstance(conflict, MessageConflictError)
    assert (first.seq, last.seq) == (3, 4)
    check(store)


async def test_a_full_disk_fails_all_that_share_a_request_at_once(
    autojump_clock: MockClock,
) -> None:
    store = PickyStore()
    store.own(SLOT)
    async with open_room(store, "ana") as room:
        await room.slot.ask(accept("go"))
        await room.slot.ask(start())
        store.batches.clear()
        store.fail_next = disk_full()
        store.fate = lambda number: disk_full()
        said = await outcomes_of([room.slot.ask(accept(str(n))) for n in range(5)])
        assert [type(each) for each in said] == [NotStoredError] * 5
        assert requests_of(store) == [[2, 3, 4, 5, 6]]
        store.fate = lambda number: None
        assert (await room.slot.ask(accept("again"))).seq == 2
    check(store)
