"""The slot actor: receipts, retries, refusals in mid-pipeline, crashes, a slot that is shared."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors.core import ChildSpec, Supervisor, TrioActor, TrioActorRef
from abeyance.actors.domain import slot_book
from abeyance.actors.domain.errors import (
    InboxFullError,
    LeaseLostError,
    MessageConflictError,
    NotStoredError,
    OwnershipLostError,
)
from abeyance.actors.domain.slot import Slot
from abeyance.actors.domain.slot_chores import TIDY_AGAIN_S
from abeyance.actors.domain.slot_messages import (
    AttachAgent,
    NothingToDo,
    ReadOpenTurn,
    Receipt,
    TurnStart,
    TurnWithdrawn,
    Woken,
)
from abeyance.actors.domain.slot_turns import plan_round
from abeyance.actors.domain.slot_view import SlotView
from abeyance.storage import codec
from abeyance.storage.errors import DiskFullError, InvalidRecordError
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Put, Request, Store
from abeyance.storage.tables.ownership import Owner

from .desk import DeskStore, desk, disk_full, kill_after, outcomes_of, rows
from .slots import (
    SLOT,
    BookDesk,
    accept,
    check,
    close,
    end,
    hold,
    joined_by,
    numbers,
    record,
    shown,
    start,
    text,
    waiting,
    wakes_of,
)


class Listener(TrioActor):
    """Stands where an agent stands: hears of wakes."""

    role = "agent"

    def __init__(self, heard: list[int], stirred: Callable[[], None]) -> None:
        super().__init__()
        self._heard = heard
        self._stirred = stirred

    def on_receive(self, message: Any) -> None:
        if isinstance(message, TurnWithdrawn):
            return
        assert isinstance(message, Woken)
        self._heard.append(message.entry)
        self._stirred()


class Room:
    """A slot, its store, and what its agents heard."""

    def __init__(self, store: Store, supervisor: Supervisor) -> None:
        self.store = store
        self.supervisor = supervisor
        self.slot: TrioActorRef[Slot] = supervisor.refs["slot"]
        self.heard: dict[str, list[int]] = {}
        self.stirred: dict[str, trio.Event] = {}

    async def attach(self, agent: str) -> TrioActorRef[Listener]:
        heard = self.heard[agent] = []
        self.stirred[agent] = trio.Event()
        ref: TrioActorRef[Listener] = await self.supervisor.start_child(
            ChildSpec(f"agent-{agent}", Listener, (heard, lambda: self.stirred[agent].set()))
        )
        self.slot.tell(AttachAgent(agent, ref))
        return ref

    async def wait_woken(self, agent: str) -> None:
        await self.stirred[agent].wait()
        self.stirred[agent] = trio.Event()


@asynccontextmanager
async def open_room(store: Store, *agents: str) -> AsyncIterator[Room]:
    view = SlotView()
    child = ChildSpec(
        "slot",
        Slot,
        lambda refs: (SLOT, store.nonce, store, refs["journal"], view),
        name=f"slot:{SLOT}",
    )
    async with desk(store, child) as supervisor:
        room = Room(store, supervisor)
        for agent in agents:
            await room.attach(agent)
        yield room


def new_store() -> DeskStore:
    store = DeskStore()
    store.own(SLOT)
    return store


def take_over(store: DeskStore) -> None:
    """Another process becomes the slot's owner."""
    store.own(SLOT, nonce="somebody else", fence=2)


# -- receipts ----------------------------------------------------------------------------------


async def test_a_receipt_is_given_only_for_what_is_committed() -> None:
    store = new_store()
    async with open_room(store) as room:
        await room.slot.ask(accept("first"))
        store.hold = True
        future = room.slot.ask(accept("a"))
        await wait_all_tasks_blocked()
        assert not future.settled
        store.hold = False
        store.release()
        receipt = await future
        assert (receipt.seq, receipt.state) == (2, "stored")
        assert shown(store) == ["user: first", "user: a"]


@pytest.mark.behaviour("D-024")
async def test_a_receipt_says_whether_the_message_waits_for_a_live_turn() -> None:
    store = new_store()
    async with open_room(store) as room:
        await room.slot.ask(accept("go"))
        turn = await room.slot.ask(start())
        assert (await room.slot.ask(accept("a"))).state == "accepted"
        await room.slot.ask(record(turn, 1, "Done"))
        assert shown(store) == ["user: go", "assistant: Done", "user: a"]
        assert (await room.slot.ask(accept("b"))).state == "stored"


@pytest.mark.behaviour("D-022")
async def test_one_id_sent_twice_is_one_message_in_flight_and_stored() -> None:
    store = new_store()
    async with open_room(store) as room:
        store.hold = True
        first = room.slot.ask(accept("a", known="x"))
        await wait_all_tasks_blocked()
        second = room.slot.ask(accept("a", known="x"))
        other = room.slot.ask(accept("b", known="x"))
        await wait_all_tasks_blocked()
        assert not first.settled
        assert not second.settled
        with pytest.raises(MessageConflictError):
            await other
        store.hold = False
        store.release()
        assert await first == await second == Receipt("x", 1, "stored")
        assert await room.slot.ask(accept("a", known="x")) == Receipt("x", 1, "stored")
        with pytest.raises(MessageConflictError) as caught:
            await room.slot.ask(accept("b", known="x"))
        assert caught.value.id == "x"
        assert shown(store) == ["user: a"]


@pytest.mark.behaviour("D-022", "D-053")
async def test_an_id_that_is_used_is_answered_though_its_sender_thought_it_fresh() -> None:
    store = new_store()
    async with open_room(store) as room:
        await room.slot.ask(accept("a", known="x"))
        with trio.fail_after(60):
            fresh = msgspec.structs.replace(accept("a", known="x"), known=False)
            other = msgspec.structs.replace(accept("b", known="x"), known=False)
            # By itself, and twice in one request with another behind it.
            assert await room.slot.ask(fresh) == Receipt("x", 1, "stored")
            same, conflict, behind = await outcomes_of(
                [room.slot.ask(fresh), room.slot.ask(other), room.slot.ask(accept("c"))]
            )
        assert same == Receipt("x", 1, "stored")
        assert isinstance(conflict, MessageConflictError)
        assert behind.state == "stored"
        assert shown(store) == ["user: a", "user: c"]


async def test_the_receipt_of_a_repeated_id_follows_the_message_into_the_slot() -> None:
    store = new_store()
    async with open_room(store) as room:
        await room.slot.ask(accept("go"))
        turn = await room.slot.ask(start())
        assert (await room.slot.ask(accept("a", known="x"))).state == "accepted"
        assert (await room.slot.ask(accept("a", known="x"))).state == "accepted"
        await room.slot.ask(record(turn, 1, "Done"))
        assert await room.slot.ask(accept("a", known="x")) == Receipt("x", 2, "stored")


@pytest.mark.behaviour("D-091")
async def test_300_messages_at_once_are_committed_in_a_few_groups() -> None:
    store = new_store()
    async with open_room(store) as room:
        before = len(store.batches)
        futures = [room.slot.ask(accept(str(number))) for number in range(300)]
        receipts = await outcomes_of(futures)
        assert [receipt.seq for receipt in receipts] == list(range(1, 301))
        assert len(store.batches) - before <= 3
        assert shown(store) == [f"user: {number}" for number in range(300)]


async def test_a_message_that_is_no_message_is_refused() -> None:
    async with open_room(new_store()) as room:
        with pytest.raises(TypeError, match="takes no str"):
            await room.slot.ask("hi")


# -- refusals and failed commits ---------------------------------------------------------------


async def test_everyone_hears_when_the_slot_was_taken_over_and_nothing_is_stored_afterwards() -> (
    None
):
    store = new_store()
    async with open_room(store, "ana") as room:
        await room.slot.ask(accept("go"))
        turn = await room.slot.ask(start())
        store.hold = True
        first = room.slot.ask(accept("a", known="x"))
        await wait_all_tasks_blocked()
        futures = [room.slot.ask(record(turn, 1, "Done")), room.slot.ask(accept("b"))]
        store.hold = False
        store.release()
        assert isinstance(await first, Receipt)
        await outcomes_of(futures)
        take_over(store)
        before = store._durable.revision
        futures = [room.slot.ask(accept("c", known="y")), room.slot.ask(accept("d"))]
        assert [type(each) for each in await outcomes_of(futures)] == [OwnershipLostError] * 2
        # Also under an id that was on its way, and for a turn.
        late = [room.slot.ask(accept("c", known="y")), room.slot.ask(start())]
        assert [type(each) for each in await outcomes_of(late)] == [OwnershipLostError] * 2
        assert store._durable.revision == before


async def test_a_take_over_while_acts_are_in_flight_stores_none_of_them() -> None:
    store = new_store()
    async with open_room(store) as room:
        await room.slot.ask(accept("go"))
        store.hold = True
        out = room.slot.ask(accept("out"))
        await wait_all_tasks_blocked()
        futures = [room.slot.ask(accept(str(number))) for number in range(200)]
        await wait_all_tasks_blocked()
        # The batch that is out is decided; then the owner changes, then the rest is decided.
        store.hold = False
        store._out = False
        store._held, held = [], store._held
        take_over(store)
        for answer in held:
            answer()
        assert isinstance(await out, Receipt)
        assert {type(each) for each in await outcomes_of(futures)} == {OwnershipLostError}
        assert shown(store) == ["user: go", "user: out"]


async def test_a_slot_that_restarts_after_a_take_over_writes_nothing() -> None:
    store = new_store()
    async with open_room(store) as room:
        await room.slot.ask(accept("go"))
        turn = await room.slot.ask(start())
        await room.slot.ask(accept("a"))
        # Its new owner put the turn down, and has not landed the inbox yet.
        head = store.get("leases", (SLOT,)).record  # type: ignore[union-attr]
        free = codec.encode(type(head)(token=9, entry_next=9, seq_next=9, request_next=9))
        store.commit(Request(puts=(Put("leases", (SLOT,), free),)))
        take_over(store)
        before = store._durable.revision
        room.slot.kill()
        with pytest.raises(OwnershipLostError):
            await room.slot.ask(record(turn, 1, "Done"))
        await wait_all_tasks_blocked()
        assert waiting(store) == ["a"]
        assert store._durable.revision == before


async def test_a_slot_without_an_owner_row_writes_nothing() -> None:
    store = DeskStore()
    async with open_room(store) as room:
        with pytest.raises(OwnershipLostError):
            await room.slot.ask(accept("a"))
        assert rows(store, "slots") == {}


async def test_refusals_in_mid_pipeline_keep_the_order_and_double_nothing(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(10):
        store = new_store()
        async with open_room(store) as room:
            await room.slot.ask(accept("go"))
            futures = []
            for number in range(60):
                if draw.random() < 0.1:
                    store.refuse_next += 1
                futures.append(room.slot.ask(accept(str(number), known=f"k{number}")))
                if draw.random() < 0.3:
                    await trio.lowlevel.checkpoint()
            receipts = await outcomes_of(futures)
            assert all(isinstance(receipt, Receipt) for receipt in receipts)
            assert shown(store) == ["user: go", *(f"user: {number}" for number in range(60))]
            check(store)


async def test_acts_of_a_failed_commit_fail_and_those_behind_are_stored_in_order(
    seed: int,
) -> None:
    draw = random.Random(seed)
    failures = 0
    for _ in range(10):
        store = new_store()
        store.fate = lambda number: disk_full() if draw.random() < 0.3 else None
        async with open_room(store) as room:
            futures = []
            for number in range(60):
                futures.append(room.slot.ask(accept(str(number), known=f"k{number}")))
                if draw.random() < 0.3:
                    await trio.lowlevel.checkpoint()
            found = await outcomes_of(futures)
            stored = [n for n, each in enumerate(found) if isinstance(each, Receipt)]
            for each in found:
                if not isinstance(each, Receipt):
                    assert isinstance(each, NotStoredError)
                    assert isinstance(each.__cause__, DiskFullError)
                    failures += 1
            assert shown(store) == [f"user: {number}" for number in stored]
            check(store)
            # What failed is sent again under its id, and nothing else is there twice.
            store.fate = lambda number: None
            for number in range(60):
                await room.slot.ask(accept(str(number), known=f"k{number}"))
            assert sorted(shown(store)) == sorted(f"user: {number}" for number in range(60))
    assert failures


async def test_a_full_disk_costs_one_commit_a_group_and_not_one_a_message() -> None:
    store = new_store()
    store.fate = lambda number: disk_full()
    async with open_room(store) as room:
        found = await outcomes_of([room.slot.ask(accept("x")) for _ in range(300)])
        assert {type(each) for each in found} == {NotStoredError}
        assert len(store.batches) < 20
        store.fate = lambda number: None
        assert (await room.slot.ask(accept("y"))).seq == 1


async def test_an_act_that_is_refused_anew_leaves_its_id_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = new_store()
    monkeypatch.setattr(slot_book, "INBOX_ROWS_MAX", 0)
    async with open_room(store, "ana") as room:
        await room.slot.ask(accept("go"))
        # Planned into an idle slot; refused, and by then a turn lives: the inbox has no room.
        store.refuse_next = 1
        begun = room.slot.ask(start())
        first = room.slot.ask(accept("a", known="x"))
        assert isinstance(await begun, TurnStart)
        with pytest.raises(InboxFullError):
            await first
        monkeypatch.setattr(slot_book, "INBOX_ROWS_MAX", 10)
        with trio.fail_after(60):
            assert (await room.slot.ask(accept("a", known="x"))).state == "accepted"


async def test_content_that_cannot_be_stored_fails_its_act_alone() -> None:
    store = new_store()
    async with open_room(store) as room:
        await room.slot.ask(accept("go"))
        turn = await room.slot.ask(start())
        bad = record(turn, 1, "x")._replace(blocks=text("\ud800"))
        futures = [room.slot.ask(accept("a")), room.slot.ask(bad), room.slot.ask(accept("b"))]
        first, second, third = await outcomes_of(futures)
        assert (first.state, third.state) == ("accepted", "accepted")
        assert isinstance(second, InvalidRecordError)
        await room.slot.ask(record(turn, 1, "Done"))
        check(store)
        assert room.slot.statistics().incarnation == 1


async def test_a_fault_in_planning_crashes_the_slot_and_the_next_life_plans_on_what_is_stored(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    store = new_store()
    faults = [1]
    take_in = slot_book.SlotBook.take_in

    def faulty(book: Any, *args: Any, **how: Any) -> Any:
        taken = take_in(book, *args, **how)
        if taken[0] == 3 and faults:
            faults.pop()
            raise RuntimeError("a fault of ours, half way")
        return taken

    monkeypatch.setattr(slot_book.SlotBook, "take_in", faulty)
    async with open_room(store) as room:
        futures = [room.slot.ask(accept(str(number))) for number in range(6)]
        receipts = await outcomes_of(futures)
        assert [receipt.seq for receipt in receipts] == [1, 2, 3, 4, 5, 6]
        assert shown(store) == [f"user: {number}" for number in range(6)]
        assert room.slot.statistics().incarnation == 2
        check(store)


# -- what is decided and what only tidies up ---------------------------------------------------


@pytest.mark.parametrize("how", ["reply", "hold", "end"])
async def test_an_act_is_answered_by_the_commit_that_makes_it_true_though_its_tail_fails(
    how: str, autojump_clock: MockClock
) -> None:
    store = new_store()
    async with open_room(store) as room:
        await room.slot.ask(accept("go"))
        turn = await room.slot.ask(start())
        await outcomes_of([room.slot.ask(accept(str(number))) for number in range(299)])
        asked = {"reply": record(turn, 1, "Done"), "hold": hold(turn), "end": end(turn)}[how]
        # Requests of one act may share a batch: here each goes alone, and all but the first fail.
        first = store._writes
        store.fate = lambda number: disk_full() if first < number < first + 4 else None
        submit = store.submit
        monkey: Any = store

        def one_by_one(batch: Any, done: Any) -> None:
            """Commit the first request, and fail the rest as a batch of its own would."""
            if len(batch) == 1 or store._writes != first:
                submit(batch, done)
                return
            outcomes: list[Any] = []
            submit(batch[:1], outcomes.extend)
            submit(batch[1:], outcomes.extend)
            done(outcomes)

        monkey.submit = one_by_one
        assert await room.slot.ask(asked) is None
        left = len(waiting(store))
        assert left > 200
        check(store)
        await trio.sleep(4 * TIDY_AGAIN_S)
        assert waiting(store) == []
        assert [row for row in shown(store) if row.startswith("user")] == [
            "user: go",
            *(f"user: {number}" for number in range(299)),
        ]
        check(store)


async def test_tidying_is_not_tried_again_as_fast_as_the_disk_refuses(
    autojump_clock: MockClock,
) -> None:
    store = left_by_a_death()
    store.fate = lambda number: disk_full()
    async with open_room(store) as room:
        for _ in range(10):
            await outcomes_of([room.slot.ask(accept("x"))])
            await trio.sleep(0.3)
        store.batches.clear()
        await trio.sleep(20 * TIDY_AGAIN_S)
        assert 15 <= len(store.batches) <= 25
        assert room.slot.statistics().incarnation == 1
        store.fate = lambda number: None
        await trio.sleep(2 * TIDY_AGAIN_S)
        assert waiting(store) == []


def left_by_a_death() -> DeskStore:
    """A store whose turn is over, and whose inbox did not land behind it."""
    before = BookDesk()
    before.accept("go")
    turn = before.start()
    before.fill(100)
    plan = plan_round(before.book, record(turn, 1, "Done"), before.chain)
    before.store.commit(plan.requests[0])
    before.store.batches.clear()
    return before.store


async def test_a_barrier_that_was_not_stored_lets_the_slot_start() -> None:
    store = new_store()
    store.fail_next = disk_full()
    async with open_room(store) as room:
        assert store.fail_next is None, "the barrier was what failed"
        assert (await room.slot.ask(accept("a"))).seq == 1
        assert room.slot.statistics().incarnation == 1


# -- wakes -------------------------------------------------------------------------------------


async def test_an_agent_is_told_of_a_wake_before_its_sender_has_the_receipt() -> None:
    store = new_store()
    async with open_room(store, "ana") as room:
        await room.slot.ask(accept("hi"))
        await wait_all_tasks_blocked()
        assert room.heard["ana"] == [1]
        await room.slot.ask(accept("again"))
        assert room.heard["ana"] == [1], "once, until it asks for a turn"
        await room.slot.ask(start())
        await room.slot.ask(accept("a"))
        await wait_all_tasks_blocked()
        assert room.heard["ana"] == [1, 3]


async def test_an_agent_hears_of_a_wake_whose_slot_died_between_commit_and_telling() -> None:
    for kill_at in range(15):
        store = new_store()
        async with open_room(store, "ana") as room:
            await wait_all_tasks_blocked()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(kill_after, room.slot, kill_at)
                await room.slot.ask(accept("hi"))
            with trio.fail_after(60):
                await room.stirred["ana"].wait()


async def test_a_wake_for_an_agent_that_has_ended_does_not_crash_the_slot() -> None:
    store = new_store()
    async with open_room(store) as room:
        agent = await room.attach("ana")
        await wait_all_tasks_blocked()
        await room.supervisor.stop_child("agent-ana")
        await agent.stopped()
        assert (await room.slot.ask(accept("hi"))).seq == 1
        assert room.slot.statistics().incarnation == 1
        assert wakes_of(store) == {1}


# -- turns -------------------------------------------------------------------------------------


async def test_an_agents_open_turn_can_be_read_as_planned() -> None:
    async with open_room(new_store()) as room:
        assert await room.slot.ask(ReadOpenTurn("ana")) is None
        await room.slot.ask(accept("go"))
        await room.slot.ask(start())
        assert (await room.slot.ask(ReadOpenTurn("ana"))).state == "running"


@pytest.mark.behaviour("D-011")
async def test_a_boundary_answers_the_rows_it_placed_with_their_content() -> None:
    async with open_room(new_store()) as room:
        await room.slot.ask(accept("go"))
        turn = await room.slot.ask(start())
        await room.slot.ask(record(turn, 1, "Moving", "c1"))
        await room.slot.ask(accept("a"))
        await room.slot.ask(accept("own", own=True))
        placed = joined_by(room.store, await room.slot.ask(close(turn, 1, "c1")))
        assert [(row.seq, row.entry.role) for row in placed] == [(3, "results"), (4, "user")]
        assert placed[1].blocks == text("a")


@pytest.mark.behaviour("D-012")
async def test_an_agent_whose_provider_carries_no_injections_gets_none() -> None:
    store = new_store()
    async with open_room(store) as room:
        await room.slot.ask(accept("go"))
        turn = await room.slot.ask(start(injects=False))
        await room.slot.ask(record(turn, 1, "Moving", "c1"))
        await room.slot.ask(accept("a"))
        first, last = await room.slot.ask(close(turn, 1, "c1"))
        assert first == last
        assert waiting(store) == ["a"]


async def test_a_start_asked_again_replaces_the_one_that_waits() -> None:
    async with open_room(new_store()) as room:
        await room.slot.ask(accept("for ana"))
        await room.slot.ask(accept("for bo", agent="bo"))
        turn = await room.slot.ask(start("ana"))
        old = room.slot.ask(start("bo"))
        await wait_all_tasks_blocked()
        new = room.slot.ask(start("bo"))
        assert await old == NothingToDo()
        await room.slot.ask(record(turn, 1, "Done"))
        assert (await new).attempts == 1


async def test_a_start_without_work_is_answered_while_another_agents_turn_lives() -> None:
    async with open_room(new_store()) as room:
        await room.slot.ask(accept("for ana"))
        turn = await room.slot.ask(start("ana"))
        with trio.fail_after(60):
            assert await room.slot.ask(start("bo")) == NothingToDo()
        await room.slot.ask(record(turn, 1, "Done"))


async def test_a_start_that_finds_nothing_keeps_nobody_waiting_behind_it() -> None:
    store = new_store()
    async with open_room(store) as room:
        for agent in ("ana", "bo", "cy"):
            await room.slot.ask(accept(f"for {agent}", agent=agent))
        turn = await room.slot.ask(start("ana"))
        bo, cy = room.slot.ask(start("bo")), room.slot.ask(start("cy"))
        await wait_all_tasks_blocked()
        # Bo's wake is gone by the time the lease is free.
        room.slot._cell.actor._book.wakes["bo"].clear()  # type: ignore[union-attr]
        with trio.fail_after(60):
            await room.slot.ask(record(turn, 1, "Done"))
            assert await bo == NothingToDo()
            assert (await cy).agent == "cy"


async def test_two_agents_on_one_slot_never_interleave(autojump_clock: MockClock) -> None:
    store = new_store()
    async with open_room(store, "ana", "bo") as room:

        async def agent(name: str) -> None:
            for number in range(5):
                turn = await room.slot.ask(start(name))
                while turn == NothingToDo():
                    await room.wait_woken(name)
                    turn = await room.slot.ask(start(name))
                call = f"{name}{number}"
                await room.slot.ask(record(turn, 1, f"{name} moves", call))
                await trio.lowlevel.checkpoint()
                await room.slot.ask(close(turn, 1, call))
                await room.slot.ask(record(turn, 2, f"{name} done"))

        async def host(name: str) -> None:
            for number in range(5):
                await room.slot.ask(accept(f"{name} {number}", agent=name))

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for name in ("ana", "bo"):
                    nursery.start_soon(agent, name)
                    nursery.start_soon(host, name)
                await trio.sleep(10)  # virtual: until nothing more happens.
                nursery.cancel_scope.cancel()
        assert not wakes_of(store, "ana")
        assert not wakes_of(store, "bo")
        check(store)
        live = None
        for row in shown(store):
            if "moves" in row:
                assert live is None
                live = row.split()[1]
            elif row.startswith("assistant"):
                assert row == f"assistant: {live} done"
                live = None
            elif row.startswith("results"):
                assert live is not None
                assert live in row


# -- crashes -----------------------------------------------------------------------------------


class Program:
    """Hosts that send and an agent that takes turns, all at once, until everything is answered."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.ticks = 0
        self.receipts: dict[str, Receipt] = {}
        self.placed: list[int] = []
        self.rounds: list[str] = []
        self.hosts_left = 2

    async def host(self, room: Room, name: str) -> None:
        for number in range(8):
            words = f"{name} {number}"
            known = f"{name}-{number}" if number % 2 else None
            sent = accept(words, known=known, own=number == 3)
            self.receipts[words] = await room.slot.ask(sent)
            if known is not None and number % 4 == 1:
                assert (await room.slot.ask(sent)).seq == self.receipts[words].seq
        self.hosts_left -= 1

    async def agent(self, room: Room) -> None:
        serial = 0
        while True:
            turn = await room.slot.ask(start())
            if turn == NothingToDo():
                if not self.hosts_left and not wakes_of(room.store):
                    return
                await room.wait_woken("ana")
                continue
            assert turn.gap is None
            assert turn.attempts == 1, "nobody but this task lives a turn"
            serial += 1
            last = turn.round + self.draw.randrange(3)
            for round_ in range(turn.round + 1, last + 1):
                call = f"c{serial}.{round_}"
                self.rounds.append(f"assistant: moving <{call}>")
                await room.slot.ask(record(turn, round_, "moving", call))
                placed = joined_by(room.store, await room.slot.ask(close(turn, round_, call)))
                assert placed[0].entry.role == "results"
                self.placed += [row.entry.entry for row in placed]
            match self.draw.choice(["reply", "reply", "hold", "end", "stop"]):
                case "reply":
                    self.rounds.append(f"assistant: done {serial}")
                    await room.slot.ask(record(turn, last + 1, f"done {serial}"))
                case "hold":
                    await room.slot.ask(hold(turn))
                case "end":
                    await room.slot.ask(end(turn))
                case "stop":
                    await room.slot.ask(end(turn, give_back=self.draw.random() < 0.3))

    async def run(self, store: Any, *kills: int) -> None:
        async with open_room(store, "ana") as room:

            async def count() -> None:
                while True:
                    await trio.lowlevel.checkpoint()
                    self.ticks += 1

            async def kill() -> None:
                for ticks in kills:
                    await kill_after(room.slot, ticks)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(count)
                nursery.start_soon(kill)
                with trio.fail_after(300):
                    async with trio.open_nursery() as work:
                        work.start_soon(self.host, room, "h1")
                        work.start_soon(self.host, room, "h2")
                        work.start_soon(self.agent, room)
                nursery.cancel_scope.cancel()
            statistics = room.slot.statistics()
            assert (statistics.owed, statistics.queued, statistics.quarantined) == (0, 0, 0)
        self.judge(store)

    def judge(self, store: Any) -> None:
        check(store)
        transcript = shown(store)
        assert waiting(store) == []
        for host in ("h1", "h2"):
            mine = [row.split(": ")[1] for row in transcript if f": {host} " in row]
            assert mine == [f"{host} {number}" for number in range(8)]
        for words, receipt in self.receipts.items():
            (body,) = [b for (_, e), b in rows(store, "bodies").items() if e == receipt.seq]
            assert body.blocks == text(words)
        replies = [row for row in transcript if "moving" in row or "done" in row]
        assert replies == self.rounds
        assert len(set(self.placed)) == len(self.placed)
        turns = rows(store, "turns", ("ana",)).values()
        assert {turn.state for turn in turns} <= {"done", "cancelled"}
        answered = [entry for turn in turns for entry in turn.answers]
        assert len(set(answered)) == len(answered), "a wake is answered by one turn"
        asked = {r.seq for words, r in self.receipts.items() if not words.endswith(" 3")}
        assert asked <= set(answered)
        assert rows(store, "wakes") == {}


@pytest.mark.drawn(1)
@pytest.mark.parametrize("round_", range(2))
async def test_a_kill_at_any_checkpoint_answers_every_ask_once_and_keeps_the_order(
    round_: int, seed: int
) -> None:
    whole = Program(seed + round_)
    await whole.run(new_store())
    assert whole.ticks > 40
    for kill_at in range(0, whole.ticks, 3 if round_ else 1):
        await Program(seed + round_).run(new_store(), kill_at)


async def test_many_kills_answer_every_ask_once_and_keep_the_order(seed: int) -> None:
    draw = random.Random(seed)
    for number in range(25):
        kills = [draw.randrange(25) for _ in range(8)]
        await Program(seed + number).run(new_store(), *kills)


async def test_kills_and_failing_commits_at_once_lose_and_double_nothing(seed: int) -> None:
    draw = random.Random(seed)
    for number in range(15):
        store = new_store()
        store.fate = lambda count: disk_full() if draw.random() < 0.2 else None
        async with open_room(store, "ana") as room:
            found: list[tuple[str, Any]] = []

            async def host(name: str, room: Room = room, found: Any = found) -> None:
                for each in range(20):
                    words = f"{name} {each}"
                    (outcome,) = await outcomes_of([room.slot.ask(accept(words, known=words))])
                    found.append((words, outcome))

            async with trio.open_nursery() as nursery:
                for each in range(3):
                    nursery.start_soon(host, f"h{number}{each}")
                for _ in range(4):
                    await kill_after(room.slot, draw.randrange(40))
            assert {type(outcome) for _, outcome in found} <= {Receipt, NotStoredError}
            stored = {words for words, outcome in found if isinstance(outcome, Receipt)}
            assert sorted(shown(store)) == sorted(f"user: {words}" for words in stored)
            check(store)


async def test_a_start_that_was_granted_and_not_answered_is_not_counted_as_a_life() -> None:
    attempts = []
    for kill_at in range(20):
        store = new_store()
        async with open_room(store, "ana") as room:
            await room.slot.ask(accept("go"))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(kill_after, room.slot, kill_at)
                turn = await room.slot.ask(start())
            attempts.append(turn.attempts)
            # A task of the agent that dies is counted, before and after a crash of the slot.
            assert (await room.slot.ask(start())).attempts == 2
            await room.slot.ask(record(turn._replace(token=turn.token + 1), 1, "Done"))
    assert attempts == [1] * 20


async def test_a_start_asked_while_a_grant_is_in_flight_is_answered_by_its_own_commit() -> None:
    store = new_store()
    async with open_room(store, "ana") as room:
        await room.slot.ask(accept("go"))
        store.hold = True
        first = room.slot.ask(start())
        await wait_all_tasks_blocked()
        second = room.slot.ask(start())
        await wait_all_tasks_blocked()
        assert not second.settled
        store.hold = False
        store.release()
        assert ((await first).token, (await second).token) == (1, 2)


async def test_what_a_predecessor_committed_is_answered_without_being_asked_of_the_store() -> None:
    store = new_store()
    async with open_room(store, "ana") as room:
        await wait_all_tasks_blocked()
        store.batches.clear()
        store.hold = True
        futures = [room.slot.ask(accept(str(number))) for number in range(200)]
        await wait_all_tasks_blocked()
        room.slot.kill()
        await wait_all_tasks_blocked()
        store.hold = False
        store.release()
        assert [receipt.seq for receipt in await outcomes_of(futures)] == list(range(1, 201))
        assert sum(len(request.rows[0].lasts) for request in store.requests if request.rows) == 200


async def test_a_boundary_is_not_done_twice_by_a_slot_that_died_before_it_answered() -> None:
    for kill_at in range(20):
        store = new_store()
        async with open_room(store, "ana") as room:
            await room.slot.ask(accept("go"))
            turn = await room.slot.ask(start())
            await room.slot.ask(record(turn, 1, "Moving", "c1"))
            await room.slot.ask(accept("a"))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(kill_after, room.slot, kill_at)
                places = await room.slot.ask(close(turn, 1, "c1"))
            assert places == (3, 4)
            assert shown(store)[2:] == ["results: =c1", "user: a"]
            carried = rows(store, "carried").values()
            assert [numbers(row.rows) for row in carried] == [[1], [1, 2, 3, 4]]


async def test_an_old_holders_act_is_refused_by_a_slot_that_died_too() -> None:
    store = new_store()
    async with open_room(store, "ana") as room:
        await room.slot.ask(accept("go"))
        old = await room.slot.ask(start())
        room.slot.kill()
        new = await room.slot.ask(start())
        with pytest.raises(LeaseLostError):
            await room.slot.ask(record(old, 1, "late"))
        await room.slot.ask(record(new, 1, "Done"))
        assert shown(store) == ["user: go", "assistant: Done"]


@pytest.mark.behaviour("D-068")
async def test_a_boot_lands_what_a_death_left_in_the_inbox_of_an_idle_slot() -> None:
    left = left_by_a_death()
    assert len(waiting(left)) > 50
    async with open_room(left) as room:
        assert await room.slot.ask(ReadOpenTurn("ana")) is None
        await wait_all_tasks_blocked()
        assert waiting(left) == []
        assert len(shown(left)) == 102


@pytest.mark.behaviour("D-016")
async def test_a_boot_drains_nothing_from_a_slot_with_a_live_turn() -> None:
    store = new_store()
    async with open_room(store) as room:
        await room.slot.ask(accept("go"))
        await room.slot.ask(start())
        await room.slot.ask(accept("a"))
    left = store.reopened(nonce=store.nonce)
    async with open_room(left) as room:
        turn = await room.slot.ask(start())
        assert (turn.turn, turn.attempts) == (1, 2)
        assert waiting(left) == ["a"]


async def test_on_the_embedded_store_kills_lose_and_double_nothing(
    tmp_path: Path, seed: int
) -> None:
    store = LmdbStore.open(tmp_path / "state", clock_ms=lambda: time.time_ns() // 1_000_000)
    try:
        owner = codec.encode(Owner(nonce=store.nonce, fence=1))
        store.commit(Request(puts=(Put("owners", ("slot", SLOT), owner),)))
        draw = random.Random(seed)
        await Program(seed).run(store, *[draw.randrange(60) for _ in range(6)])
    finally:
        store.close()


def test_a_tail_that_fails_waits_for_seconds_and_not_for_ever() -> None:
    assert 1 <= TIDY_AGAIN_S <= 30
