"""Coalescing and retraction: what takes an unread message's place, and what takes one back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from trio.testing import MockClock

from abeyance.actors import AgentHandle, Draft
from abeyance.actors.domain import slot_book
from abeyance.actors.domain.errors import (
    InboxFullError,
    InvalidNameError,
    MessageConflictError,
    MessageReadError,
    UnknownMessageError,
)
from abeyance.actors.domain.protocol import RecordWait
from abeyance.actors.domain.slot_messages import BeginFork, Receipt, Retract, RewindSlot
from abeyance.actors.domain.slot_rewind import plan_rewind
from abeyance.actors.domain.slot_turns import plan_end, plan_hold
from abeyance.actors.events import MessageReplaced, MessageRetracted
from abeyance.actors.testing.scripted import Gate, call_tool, reply
from abeyance.storage.codec import encode
from abeyance.storage.store import Put, Request
from abeyance.storage.tables.agents import Conversation

from .desk import DeskStore, outcomes_of, rows
from .slots import (
    AT,
    SLOT,
    BookDesk,
    accept,
    close,
    end,
    hold,
    joined_by,
    record,
    shown,
    start,
    waiting,
    wakes_of,
)
from .test_slot_actor import open_room
from .world import Stop, World
from .world import shown as transcript

Setting = Callable[[BookDesk], Any]


def _live(desk: BookDesk) -> None:
    desk.start()


def _held(desk: BookDesk, *, sent: bool) -> None:
    turn = desk.start()
    desk.run(plan_hold(desk.book, hold(turn, sent=sent), desk.chain))


def _ended(desk: BookDesk, *, sent: bool) -> None:
    turn = desk.start()
    desk.run(plan_end(desk.book, end(turn)._replace(sent=sent), desk.chain))


def _answered(desk: BookDesk) -> None:
    desk.record(desk.start(), 1, "done")


def _forked(desk: BookDesk) -> None:
    fork = Conversation(agent="ana.c", base_seq=1, state="open", opened_ms=AT)
    desk.store.commit(Request(puts=(Put("conversations", (SLOT, "c"), encode(fork)),)))
    desk.reload()


def _rewound(desk: BookDesk, to: int = 0) -> None:
    desk.commit(plan_rewind(desk.book, RewindSlot(to, "act", "api:ops", AT), desk.chain)[0])


UNREAD: dict[str, Setting] = {
    "at rest": lambda desk: None,
    "read anew from the store": lambda desk: desk.reload(),
    "held before its request left": lambda desk: _held(desk, sent=False),
    "its turn ended before a request left": lambda desk: _ended(desk, sent=False),
}
READ: dict[str, tuple[Setting, str]] = {
    "a live turn's request carries it": (_live, "in_flight"),
    "a request that was refused carried it": (lambda desk: _held(desk, sent=True), "read"),
    "its turn ended with the request out": (lambda desk: _ended(desk, sent=True), "read"),
    "it was answered": (_answered, "read"),
    "a conversation began with it": (_forked, "forked"),
}


# -- coalescing --------------------------------------------------------------------------------


@pytest.mark.behaviour("D-073", "D-078")
@pytest.mark.parametrize("setting", UNREAD.values(), ids=UNREAD)
def test_a_newer_message_takes_the_number_and_place_of_an_unread_one_of_its_subject(
    setting: Setting,
) -> None:
    desk = BookDesk()
    older = desk.send("build 1 runs", subject="build", known="old")
    setting(desk)
    desk.accept("else", wake=False)
    newer = desk.send("build 1 failed", subject="build", known="new")
    assert newer == Receipt("new", older.seq, "stored", replaces="old")
    assert [row for row in shown(desk.store) if row.startswith("user")] == [
        "user: build 1 failed",
        "user: else",
    ]
    old = rows(desk.store, "ids", (SLOT,))[SLOT, "old"]
    assert (old.state, old.seq, old.by) == ("replaced", None, "new")


@pytest.mark.behaviour("D-073", "D-078")
@pytest.mark.parametrize(("setting", "reading"), READ.values(), ids=READ)
def test_a_newer_message_goes_behind_one_of_its_subject_that_was_read(
    setting: Setting, reading: str
) -> None:
    desk = BookDesk()
    older = desk.send("build 1 runs", subject="build")
    setting(desk)
    newer = desk.send("build 1 failed", subject="build")
    assert (newer.replaces, newer.seq > older.seq) == (None, True)
    assert "user: build 1 runs" in shown(desk.store)
    # From here on the newer one is what the next may replace.
    newest = desk.send("build 1 runs again", subject="build")
    assert newest.replaces == newer.id
    said = [*shown(desk.store), *(f"user: {words}" for words in waiting(desk.store))]
    assert [row for row in said if row.startswith("user")] == [
        "user: build 1 runs",
        "user: build 1 runs again",
    ]


@pytest.mark.behaviour("D-078")
def test_one_that_waits_in_the_inbox_is_replaced_where_it_waits() -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    for words, subject in (("a", None), ("1", "n"), ("b", None)):
        desk.send(words, subject=subject)
    assert desk.send("2", subject="n").state == "accepted"
    assert waiting(desk.store) == ["a", "2", "b"]
    desk.reload()
    desk.send("3", subject="n")
    desk.record(turn, 1, "Moving", "c1")
    desk.boundary(turn, 1, "c1")
    assert shown(desk.store)[-3:] == ["user: a", "user: 3", "user: b"]


@pytest.mark.behaviour("D-077")
def test_one_that_joined_at_a_boundary_is_not_replaced_from_that_commit_on() -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    desk.record(turn, 1, "Moving", "c1")
    desk.send("1", subject="n")
    desk.boundary(turn, 1, "c1")
    assert desk.send("2", subject="n").replaces is None
    assert (shown(desk.store)[-1], waiting(desk.store)) == ("user: 1", ["2"])


def test_a_rewound_message_is_not_replaced() -> None:
    desk = BookDesk()
    desk.accept("go")
    desk.send("1", subject="n", wake=False)
    _rewound(desk, to=1)
    assert desk.send("2", subject="n").replaces is None
    assert shown(desk.store) == ["user: go", "user: 2"]


OTHERS = {
    "another author": {"author": "eve"},
    "another channel": {"channel": "c2"},
    "another subject": {"subject": "other"},
    "no subject": {"subject": None},
    "another agent on the slot": {"agent": "bob"},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_only_the_same_author_channel_and_agent_replace_by_a_subject(other: Any) -> None:
    desk = BookDesk(None, "ana", "bob")
    same = {"subject": "n", "channel": "c1"}
    desk.send("1", **same)
    assert desk.send("2", **{**same, **other}).replaces is None
    desk.reload()
    assert desk.send("3", **{**same, **other}).replaces == (
        None if other.get("subject", "n") is None else _newest(desk)
    )


def _newest(desk: BookDesk) -> str | None:
    gone = [key[1] for key, row in rows(desk.store, "ids", (SLOT,)).items() if row.by is not None]
    return gone[-1] if gone else None


@pytest.mark.behaviour("D-004")
def test_an_author_is_the_same_however_it_is_spelt() -> None:
    desk = BookDesk()
    desk.send("1", subject="n", author="Eve")
    assert desk.send("2", subject="n", author="ＥVE").replaces is not None


@pytest.mark.parametrize("older", [True, False], ids=["older wakes", "older does not"])
@pytest.mark.parametrize("newer", [True, False], ids=["newer wakes", "newer does not"])
def test_a_turn_that_either_of_them_asked_for_is_asked_for_once(older: bool, newer: bool) -> None:
    desk = BookDesk()
    entry = desk.send("1", subject="n", wake=older).seq
    desk.send("2", subject="n", wake=newer, known="new")
    assert wakes_of(desk.store) == ({entry} if older or newer else set())
    for wake in rows(desk.store, "wakes").values():
        assert wake.message == "new"


def test_a_held_turn_answers_what_replaced_the_message_it_was_to_answer() -> None:
    desk = BookDesk()
    entry = desk.send("1", subject="n").seq
    _held(desk, sent=False)
    desk.send("2", subject="n")
    assert wakes_of(desk.store) == set()
    assert desk.book.open_turn("ana").answers == (entry,)  # type: ignore[union-attr]


def test_a_replacement_is_one_request_that_guards_its_id() -> None:
    desk = BookDesk()
    desk.send("1", subject="n", known="old")
    before = len(desk.store.requests)
    desk.send("2", subject="n", known="new")
    (request,) = desk.store.requests[before:]
    assert [put.table for put in request.puts] == ["ids", "ids", "bodies", "slots", "wakes"]
    assert [guard.table for guard in request.guards] == ["owners", "ids"]


def test_a_full_inbox_takes_what_replaces_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_book, "INBOX_ROWS_MAX", 1)
    desk = BookDesk()
    desk.accept("go")
    desk.start()
    desk.send("1", subject="n")
    with pytest.raises(InboxFullError):
        desk.book.accept(accept("more"), desk.chain)
    assert desk.send("2", subject="n").replaces is not None
    monkeypatch.setattr(slot_book, "INBOX_BYTES_MAX", desk.book.inbox_bytes + 10)
    desk.send("2" * 10, subject="n")
    with pytest.raises(InboxFullError):
        desk.send("3" * 30, subject="n")
    desk.same()
    assert waiting(desk.store) == ["2" * 10]


# -- retraction --------------------------------------------------------------------------------


@pytest.mark.behaviour("D-078")
@pytest.mark.parametrize("setting", UNREAD.values(), ids=UNREAD)
def test_an_unread_message_is_taken_back_with_its_content_and_its_wake(setting: Setting) -> None:
    desk = BookDesk()
    desk.send("oops", known="x")
    setting(desk)
    receipt, agent, _ = desk.retract("x")
    assert (receipt.state, agent) == ("retracted", "ana")
    assert [row for row in shown(desk.store) if row.startswith("user")] == []
    assert rows(desk.store, "bodies", (SLOT, 1)) == {}
    assert wakes_of(desk.store) == set()
    desk.reload()
    assert desk.retract("x") == Receipt("x", 1, "retracted")
    # Its number and its place are not given again.
    assert desk.accept("next")[0] > 1


@pytest.mark.behaviour("D-078")
@pytest.mark.parametrize(("setting", "reading"), READ.values(), ids=READ)
def test_a_message_that_was_read_is_not_taken_back_and_the_refusal_says_how_far(
    setting: Setting, reading: str
) -> None:
    desk = BookDesk()
    desk.send("oops", known="x")
    setting(desk)
    with pytest.raises(MessageReadError) as caught:
        desk.retract("x")
    assert (caught.value.id, caught.value.reading) == ("x", reading)
    desk.same()
    assert "user: oops" in shown(desk.store)


def test_one_that_waits_in_the_inbox_is_taken_back() -> None:
    desk = BookDesk()
    desk.accept("go")
    turn = desk.start()
    desk.send("a")
    desk.send("oops", known="x", subject="n")
    desk.send("b")
    desk.retract("x")
    assert waiting(desk.store) == ["a", "b"]
    assert desk.send("again", subject="n").replaces is None
    desk.record(turn, 1, "done")
    assert shown(desk.store)[-3:] == ["user: a", "user: b", "user: again"]


def test_what_a_rewind_took_out_unread_is_taken_back_and_no_undo_brings_it() -> None:
    desk = BookDesk()
    desk.accept("go")
    desk.send("oops", known="x", wake=False)
    _rewound(desk, to=1)
    assert desk.retract("x").receipt.state == "retracted"
    assert rows(desk.store, "slots", (SLOT, 2)) == {}


def test_retracting_what_is_gone_says_what_became_of_it() -> None:
    desk = BookDesk()
    desk.send("1", subject="n", known="old")
    desk.send("2", subject="n", known="new")
    assert desk.retract("old").state == "replaced"
    assert shown(desk.store) == ["user: 2"]
    with pytest.raises(UnknownMessageError):
        desk.retract("nobody's")


def test_only_its_own_part_of_a_held_turn_is_withdrawn() -> None:
    desk = BookDesk()
    desk.send("a", known="a")
    desk.send("b", known="b")
    _held(desk, sent=False)
    assert desk.retract("a").withdrawn is None
    assert desk.book.open_turn("ana").answers == (2,)  # type: ignore[union-attr]
    assert desk.retract("b").withdrawn is not None
    assert desk.book.open_turn("ana") is None
    assert rows(desk.store, "turns")["ana", 1].state == "cancelled"


def test_a_held_turn_that_a_wake_waits_for_is_not_withdrawn() -> None:
    desk = BookDesk()
    desk.send("a", known="a")
    _held(desk, sent=False)
    desk.send("b")
    assert desk.retract("a").withdrawn is None
    again = desk.start()
    assert (again.turn, desk.book.open_turn("ana").answers) == (1, (2,))  # type: ignore[union-attr]


# -- by the actor ------------------------------------------------------------------------------


@pytest.mark.behaviour("D-078")
async def test_what_is_asked_in_one_breath_is_done_in_order() -> None:
    store = DeskStore()
    store.own(SLOT)
    async with open_room(store, "ana") as room:
        asked = [
            room.slot.ask(accept("1", subject="n", known="one", wake=False)),
            room.slot.ask(accept("2", subject="n", known="two", wake=False)),
            room.slot.ask(Retract("one", AT)),
            room.slot.ask(Retract("two", AT)),
            room.slot.ask(Retract("two", AT)),
            room.slot.ask(accept("3", subject="n", known="three", wake=False)),
        ]
        states = [receipt.state for receipt in await outcomes_of(asked)]
        assert states == ["stored", "stored", "replaced", "retracted", "retracted", "stored"]
        assert shown(store) == ["user: 3"]


@pytest.mark.behaviour("D-077", "D-078")
@pytest.mark.parametrize("first", ["the boundary", "the retraction"])
async def test_a_boundary_and_a_retraction_that_race_agree_on_who_was_first(first: str) -> None:
    store = DeskStore()
    store.own(SLOT)
    async with open_room(store, "ana") as room:
        await room.slot.ask(accept("go"))
        turn = await room.slot.ask(start())
        await room.slot.ask(record(turn, 1, "Moving", "c1"))
        await room.slot.ask(accept("x", known="x"))
        boundary, retract = close(turn, 1, "c1"), Retract("x", AT)
        if first == "the boundary":
            placed, refused = room.slot.ask(boundary), room.slot.ask(retract)
            with pytest.raises(MessageReadError, match="turn that lives"):
                await refused
            assert len(joined_by(store, await placed)) == 2
        else:
            done, placed = room.slot.ask(retract), room.slot.ask(boundary)
            assert (await done).state == "retracted"
            assert len(joined_by(store, await placed)) == 1


async def test_a_retraction_behind_what_reads_its_message_is_told_so() -> None:
    store = DeskStore()
    store.own(SLOT)
    async with open_room(store, "ana") as room:
        await room.slot.ask(accept("go"))
        turn = await room.slot.ask(start())
        await room.slot.ask(record(turn, 1, "Moving", "c1"))
        await room.slot.ask(accept("x", known="x"))
        # None of it is in when the retraction is planned.
        asked = [room.slot.ask(close(turn, 1, "c1")), room.slot.ask(record(turn, 2, "Done"))]
        refused = room.slot.ask(Retract("x", AT))
        await outcomes_of(asked)
        with pytest.raises(MessageReadError) as caught:
            await refused
        assert caught.value.reading == "read"


@pytest.mark.behaviour("D-022")
async def test_ids_of_what_was_replaced_or_taken_back_stay_used() -> None:
    store = DeskStore()
    store.own(SLOT)
    async with open_room(store, "ana") as room:
        for words, id_ in (("1", "one"), ("2", "two")):
            await room.slot.ask(accept(words, subject="n", known=id_, wake=False))
        again = await room.slot.ask(accept("1", subject="n", known="one", wake=False))
        assert again.state == "replaced"
        await room.slot.ask(Retract("two", AT))
        again = await room.slot.ask(accept("2", subject="n", known="two", wake=False))
        assert again.state == "retracted"
        with pytest.raises(MessageConflictError):
            await room.slot.ask(accept("else", known="two"))
        assert shown(store) == []


@pytest.mark.parametrize("refused", range(4))
async def test_replacing_and_taking_back_survive_a_refusal_at_any_request(refused: int) -> None:
    store = DeskStore()
    store.own(SLOT)
    async with open_room(store, "ana") as room:
        await room.slot.ask(accept("0", wake=False))
        asked = [
            room.slot.ask(accept("1", subject="n", known="one", wake=False)),
            room.slot.ask(accept("2", subject="n", known="two", wake=False)),
            room.slot.ask(accept("3", known="three", wake=False)),
            room.slot.ask(Retract("three", AT)),
        ]
        room.store.refuse_next = refused + 1  # type: ignore[attr-defined]
        receipts = await outcomes_of(asked)
        assert [receipt.state for receipt in receipts] == [*["stored"] * 3, "retracted"]
        assert shown(store) == ["user: 0", "user: 2"]


async def test_what_a_fork_is_about_to_take_over_is_not_taken_out_any_more() -> None:
    store = DeskStore()
    store.own(SLOT)
    async with open_room(store, "ana") as room:
        early = room.slot.ask(accept("early", known="early", wake=False))
        asked = [room.slot.ask(Retract("early", AT)), room.slot.ask(BeginFork())]
        await early
        assert (await asked[0]).state == "retracted"
        await room.slot.ask(accept("a", known="a", wake=False))
        await asked[1]
        # Nothing of what came in behind it is kept by that fork.
        assert (await room.slot.ask(Retract("a", AT))).state == "retracted"
        await room.slot.ask(accept("b", known="b", wake=False))
        await room.slot.ask(BeginFork())
        room.slot.kill()
        with pytest.raises(MessageReadError, match="conversation"):
            await room.slot.ask(Retract("b", AT))


# -- by hosts ----------------------------------------------------------------------------------


async def test_a_batch_of_one_subject_leaves_its_newest_and_says_so(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        events = runtime.events(kinds={"message_replaced"})
        ana = await world.add([])
        receipts = await ana.send_many(
            [Draft(str(number), subject="n", wake=False) for number in range(3)]
        )
        assert [receipt.replaces for receipt in receipts] == [
            None,
            receipts[0].id,
            receipts[1].id,
        ]
        assert len({receipt.seq for receipt in receipts}) == 1
        assert await transcript(ana) == ["user: 2"]
        heard = [await events.__anext__() for _ in range(2)]
        assert all(isinstance(event, MessageReplaced) for event in heard)
        assert [event.by for event in heard] == [receipt.id for receipt in receipts[1:]]


async def _bind(world: World) -> None:
    """Have a wait bind, as an auxiliary call may have been told it."""
    until_ms = world.clock.now_ms() + 3_600_000
    await world.ref("ledger").ask(RecordWait("ana", "m", until_ms, "a wait"))


async def _hold_unsent(world: World, ana: AgentHandle, id_: str) -> None:
    """Have a turn held by the call it asks for, before that is made."""
    await _bind(world)
    await ana.send(id_, id=id_)
    await ana.wait_idle()
    assert world.state().state == "held"
    assert [row.sent for row in world.rows("carried", "ana")] == [False]


@pytest.mark.behaviour("D-095")
async def test_a_turn_held_before_its_request_is_withdrawn_with_what_it_was_to_answer(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        events = runtime.events(kinds={"message_retracted"})
        ana = await world.add([reply("never")])
        await _hold_unsent(world, ana, "x")
        await ana.send("for later", wake=False)
        await ana.retract("x")
        event = await events.__anext__()
        assert isinstance(event, MessageRetracted)
        assert (event.agent, event.id) == ("ana", "x")
        await ana.wait_idle()
        state = world.state()
        assert (state.state, state.held, state.turn) == ("idle", None, None)
        assert world.turns()[-1].state == "cancelled"
        # What was behind it is in its place, and asks for nothing.
        assert await transcript(ana) == ["user: for later"]
        await runtime.release_provider_wait("ana", requester="ops")
        await ana.wait_idle()
        assert world.providers[0].requests == []


async def test_a_held_turn_hears_what_replaced_its_message_and_once(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([reply("heard")])
        await _bind(world)
        for number in range(5):
            await ana.send(f"build {number}", subject="build")
            await ana.wait_idle()
        await runtime.release_provider_wait("ana", requester="ops")
        await ana.wait_idle()
        assert await transcript(ana) == ["user: build 4", "assistant: heard"]
        assert len(world.turns()) == 1


async def test_after_a_withdrawal_the_next_message_gets_a_turn_of_its_own(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([reply("heard")])
        await _hold_unsent(world, ana, "x")
        await ana.retract("x")
        await ana.send("y")
        await ana.wait_idle()
        assert world.state().state == "held", "the wait binds whoever asks"
        await runtime.release_provider_wait("ana", requester="ops")
        await ana.wait_idle()
        assert await transcript(ana) == ["user: y", "assistant: heard"]


async def test_a_retraction_that_its_slot_did_not_live_to_tell_of_is_told_by_the_next(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([reply("never")])
        await _hold_unsent(world, ana, "x")
        slot = world.ref("slot")
        slot._cell.actor._committed = lambda act: slot.kill()
        assert (await ana.retract("x")).state == "retracted"
        await ana.wait_idle()
        assert world.state().state == "idle"


@pytest.mark.behaviour("D-073")
async def test_what_joined_a_live_turn_is_history_for_a_newer_message(
    world: World, virtual_time: MockClock
) -> None:
    stop, gate = Stop(), Gate(then=reply("Done"))
    async with world.open():
        ana = await world.add([call_tool("wait"), gate, reply("heard")], tools=[stop.tool()])
        await ana.send("go")
        await stop.entered.wait()
        await ana.send("status 1", subject="status", id="one")
        stop.go.set()
        await gate.wait_entered()
        newer = await ana.send("status 2", subject="status")
        assert newer.replaces is None
        with pytest.raises(MessageReadError):
            await ana.retract("one")
        gate.release()
        await ana.wait_idle()
        assert await transcript(ana) == [
            "user: go",
            "assistant: <wait>",
            "results: =done",
            "user: status 1",
            "assistant: Done",
            "user: status 2",
            "assistant: heard",
        ]


@pytest.mark.behaviour("D-087")
async def test_what_may_not_join_waits_for_the_turns_end_though_what_held_it_is_over(
    world: World, virtual_time: MockClock
) -> None:
    """A host keeps what is not of one channel from a live turn, until it stops doing so."""
    stop = Stop()
    async with world.open():
        ana = await world.add(
            [call_tool("wait"), reply("Done"), reply("heard")], tools=[stop.tool()]
        )
        await ana.send("go")
        await stop.entered.wait()
        await ana.send("in focus")
        await ana.send("out of focus", joins=False)
        await ana.send("focus is over")
        stop.go.set()
        await ana.wait_idle()
        assert await transcript(ana) == [
            "user: go",
            "assistant: <wait>",
            "results: =done",
            "user: in focus",
            "assistant: Done",
            "user: out of focus",
            "user: focus is over",
            "assistant: heard",
        ]


async def test_a_subject_is_a_name(world: World, virtual_time: MockClock) -> None:
    async with world.open():
        ana = await world.add([])
        with pytest.raises(InvalidNameError) as caught:
            await ana.send("a", subject="")
        assert caught.value.field == "subject"
