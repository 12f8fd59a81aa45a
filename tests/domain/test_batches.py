"""Batches: several messages accepted in one commit, all of them or none."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors import AgentSpec, Draft, HostedRuntime, open_runtime
from abeyance.actors.domain import slot_book
from abeyance.actors.domain.errors import (
    AgentEndedError,
    BatchTooLargeError,
    InboxFullError,
    InvalidInputError,
    MessageConflictError,
    NotStoredError,
)
from abeyance.actors.domain.slot_batches import plan_accepts
from abeyance.actors.domain.slot_messages import (
    AcceptMany,
    AttachAgent,
    Dispose,
    Receipt,
    TurnStart,
)
from abeyance.actors.testing import ScriptedProvider, call_tool, reply

from .desk import DeskStore, disk_full, kill_after, outcomes_of, rows
from .slots import SLOT, BookDesk, accept, check, record, shown, start, waiting, wakes_of
from .test_slot_actor import new_store, open_room
from .world import Stop, World, texts
from .world import shown as transcript


def many(*words: str, **how: Any) -> AcceptMany:
    return AcceptMany(tuple(accept(each, **how) for each in words))


def known(*pairs: tuple[str, str]) -> AcceptMany:
    return AcceptMany(tuple(accept(words, known=id_) for id_, words in pairs))


def drafts(*words: str) -> list[Draft]:
    return [Draft(each) for each in words]


# -- one commit ----------------------------------------------------------------------------------


@pytest.mark.behaviour("D-091")
async def test_a_batch_is_one_request_and_every_message_of_it_has_a_receipt() -> None:
    store = new_store()
    async with open_room(store, "ana") as room:
        before = len(store.requests)
        receipts = await room.slot.ask(many("a", "b", "c"))
        assert [(each.seq, each.state) for each in receipts] == [
            (1, "stored"), (2, "stored"), (3, "stored"),
        ]  # fmt: skip
        assert len([r for r in store.requests[before:] if r.ops]) == 1
        assert shown(store) == ["user: a", "user: b", "user: c"]
        assert wakes_of(store) == {1, 2, 3}
        await room.wait_woken("ana")
        assert room.heard["ana"] == [1]


async def test_nothing_is_accepted_between_the_messages_of_a_batch() -> None:
    store = new_store()
    async with open_room(store) as room:
        futures = [room.slot.ask(accept("before"))]
        futures += [room.slot.ask(many("a", "b")), room.slot.ask(accept("behind"))]
        await outcomes_of(futures)
        assert shown(store) == ["user: before", "user: a", "user: b", "user: behind"]


async def test_a_batch_for_a_leased_slot_waits_in_the_inbox_as_a_whole() -> None:
    store = new_store()
    async with open_room(store) as room:
        await room.slot.ask(accept("go"))
        turn = await room.slot.ask(start())
        receipts = await room.slot.ask(many("a", "b"))
        assert [each.state for each in receipts] == ["accepted", "accepted"]
        assert waiting(store) == ["a", "b"]
        await room.slot.ask(record(turn, 1, "Done"))
        assert shown(store) == ["user: go", "assistant: Done", "user: a", "user: b"]
        check(store)


@pytest.mark.behaviour("D-091")
async def test_300_messages_in_one_batch_are_accepted_within_3_s_on_a_busy_loop(
    tmp_path: Path,
) -> None:
    async with open_runtime(tmp_path, control=False) as runtime:
        provider = ScriptedProvider([reply("yes")] * 50)
        ana = await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        bo = await runtime.add_agent(AgentSpec(name="bo", provider=provider, model="m"))

        async def flood() -> None:
            while True:
                await bo.send("noise", wake=False)

        async with trio.open_nursery() as nursery:
            for _ in range(16):
                nursery.start_soon(flood)
            with trio.fail_after(3):
                receipts = await ana.send_many(
                    [Draft(str(number), wake=False) for number in range(300)]
                )
            nursery.cancel_scope.cancel()
        assert [each.seq for each in receipts] == list(range(1, 301))
        said = [message.text async for message in ana.transcript()]
        assert said == [str(number) for number in range(300)]


@contextmanager
def loaded_machine() -> Iterator[None]:
    """Two processes for each core that do nothing but compute."""
    code = "print(flush=True)\nwhile True: pass"
    with ExitStack() as stack:
        for _ in range(2 * (os.cpu_count() or 1)):
            busy = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
            stack.enter_context(busy)  # Waits for it, once it was killed.
            stack.callback(busy.kill)
            assert busy.stdout is not None
            busy.stdout.readline()
        yield


@pytest.mark.slow
@pytest.mark.behaviour("D-091")
async def test_300_messages_in_one_batch_are_one_commit_within_3_s_on_a_loaded_machine(
    tmp_path: Path,
) -> None:
    async with open_runtime(tmp_path, control=False) as runtime:
        ana = await runtime.add_agent(
            AgentSpec(name="ana", provider=ScriptedProvider([]), model="m")
        )
        with loaded_machine():
            for batch in range(5):
                before = runtime.statistics()
                with trio.fail_after(3):
                    receipts = await ana.send_many(
                        [Draft(f"{batch}.{number}", wake=False) for number in range(300)]
                    )
                after = runtime.statistics()
                assert after.requests - before.requests == 1
                assert after.commits[-1][1] - before.commits[-1][1] == 1
                first = 300 * batch + 1
                assert [each.seq for each in receipts] == list(range(first, first + 300))
    async with open_runtime(tmp_path, control=False) as runtime:
        ana = await runtime.add_agent(
            AgentSpec(name="ana", provider=ScriptedProvider([]), model="m")
        )
        said = [message.text async for message in ana.transcript()]
        assert said == [f"{batch}.{number}" for batch in range(5) for number in range(300)]


@pytest.mark.slow
@pytest.mark.behaviour("D-091")
async def test_a_batch_whose_sender_gives_up_on_a_loaded_machine_is_there_whole_or_not_at_all(
    tmp_path: Path,
) -> None:
    async with open_runtime(tmp_path, control=False) as runtime:
        ana = await runtime.add_agent(
            AgentSpec(name="ana", provider=ScriptedProvider([]), model="m")
        )
        said: list[str] = []
        cut_off = 0
        with loaded_machine():
            for batch, wait_s in enumerate((0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 3.0)):
                drafts = [Draft(f"{batch}.{n}", id=f"{batch}.{n}", wake=False) for n in range(300)]
                with trio.move_on_after(wait_s) as scope:
                    await ana.send_many(drafts)
                cut_off += scope.cancelled_caught
                # Behind whatever of it is on its way.
                await ana.send(f"behind {batch}", id=f"behind {batch}", wake=False)
                known = [message.text async for message in ana.transcript()][len(said) :]
                words = [f"{batch}.{n}" for n in range(300)]
                assert known in ([f"behind {batch}"], [*words, f"behind {batch}"])
                receipts = await ana.send_many(drafts)
                assert len({each.seq for each in receipts}) == 300
                said = [message.text async for message in ana.transcript()]
                assert sorted(said[-301:]) == sorted([*words, f"behind {batch}"])
        assert cut_off > 0
        assert len(said) == len(set(said)) == 8 * 301


async def test_a_batch_of_2101_messages_that_ask_for_turns_is_one_commit_and_one_turn(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([reply("heard")])
        before = runtime.statistics().requests
        receipts = await ana.send_many([Draft(str(number)) for number in range(2_101)])
        assert [each.seq for each in receipts] == list(range(1, 2_102))
        assert {each.state for each in receipts} == {"stored"}
        await ana.wait_idle()
        assert runtime.statistics().requests - before < 10
        assert len(world.providers[0].requests) == 1
        assert texts(world.providers[0].requests[0])[-1] == "user: 2100"
        assert world.state().wakes == 0


async def test_a_batch_that_comes_during_a_tool_joins_the_live_turn_in_order(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    async with world.open():
        ana = await world.add([call_tool("wait"), reply("heard both")], tools=[stop.tool()])
        await ana.send("go")
        await stop.entered.wait()
        receipts = await ana.send_many(drafts("a", "b"))
        assert [each.state for each in receipts] == ["accepted", "accepted"]
        stop.go.set()
        await ana.wait_idle()
        assert len(world.turns()) == 1
        assert (await transcript(ana))[-3:] == ["user: a", "user: b", "assistant: heard both"]


async def test_no_messages_are_a_batch_of_none(world: World, virtual_time: MockClock) -> None:
    async with world.open():
        ana = await world.add([])
        assert await ana.send_many([]) == ()
        assert await transcript(ana) == []


# -- all or none -----------------------------------------------------------------------------------


async def test_a_batch_whose_commit_fails_leaves_nothing_and_what_is_behind_it_is_stored() -> None:
    store = new_store()
    async with open_room(store) as room:
        await room.slot.ask(accept("go"))
        batch = known(("x", "a"), ("y", "b"))
        writes = store._writes
        store.fate = lambda number: disk_full() if number == writes else None
        future = room.slot.ask(batch)
        await wait_all_tasks_blocked()
        (failed, behind) = await outcomes_of([future, room.slot.ask(accept("c"))])
        assert isinstance(failed, NotStoredError)
        assert behind.state == "stored"
        assert shown(store) == ["user: go", "user: c"]
        again = await room.slot.ask(batch)
        assert [each.id for each in again] == ["x", "y"]
        assert shown(store) == ["user: go", "user: c", "user: a", "user: b"]
        check(store)


@pytest.mark.parametrize("looked", [False, True], ids=["unseen", "looked for"])
@pytest.mark.parametrize("full", [False, True], ids=["idle", "it fills the inbox"])
@pytest.mark.parametrize("ticks", range(12))
async def test_a_batch_is_accepted_once_when_its_slot_is_killed_under_it(
    monkeypatch: pytest.MonkeyPatch, ticks: int, full: bool, looked: bool
) -> None:
    monkeypatch.setattr(slot_book, "INBOX_ROWS_MAX", 3)
    store = new_store()
    async with open_room(store, "ana") as room:
        await room.slot.ask(accept("go"))
        if full:
            await room.slot.ask(start())
        batch = msgspec.structs.replace(many("a", "b", "c"), looked=looked)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill_after, room.slot, ticks)
            with trio.fail_after(10):
                receipts = await room.slot.ask(batch)
        assert [each.seq for each in receipts] == sorted(each.seq for each in receipts)
        assert (waiting if full else shown)(store)[-3:] == (
            ["a", "b", "c"] if full else ["user: a", "user: b", "user: c"]
        )
        assert len(shown(store)) + len(waiting(store)) == 4
        check(store)


@pytest.mark.behaviour("R-4")
async def test_a_batch_that_a_dead_slot_stored_is_answered_whatever_is_stored_since() -> None:
    store = new_store()
    async with open_room(store) as room:
        await room.slot.ask(accept("go"))
        store.hold = True
        batch = room.slot.ask(msgspec.structs.replace(many("a", "b"), looked=True))
        await wait_all_tasks_blocked()
        room.slot.kill()
        # What the next life of the slot writes is not stored any more.
        store.fate = lambda number: disk_full()
        store.hold = False
        store.release()
        (receipts,) = await outcomes_of([batch])
        assert [(each.seq, each.state) for each in receipts] == [(2, "stored"), (3, "stored")]
        assert shown(store) == ["user: go", "user: a", "user: b"]


@pytest.mark.behaviour("R-4")
async def test_a_batch_of_which_one_came_since_it_was_looked_for_is_looked_for_again() -> None:
    store = new_store()
    async with open_room(store) as room:
        await room.slot.ask(accept("a", known="x"))
        late = msgspec.structs.replace(known(("x", "a"), ("y", "b")), looked=True)
        with trio.fail_after(10):
            receipts = await room.slot.ask(late)
        assert [(each.id, each.seq) for each in receipts] == [("x", 1), ("y", 2)]
        assert shown(store) == ["user: a", "user: b"]


async def test_a_batch_that_replaces_messages_takes_the_words_that_edits_gave_them_out_once(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([])
        await ana.send("tea", id="tea", subject="drink", wake=False)
        await ana.edit("tea", "coffee", requester="eve")
        before = len(world.rows("bodies"))
        receipts = await ana.send_many(
            [
                Draft("juice", id="juice", subject="drink", wake=False),
                Draft("water", id="water", subject="drink", wake=False),
                Draft("bread", id="bread", wake=False),
            ]
        )
        assert [each.replaces for each in receipts] == ["tea", "juice", None]
        assert await transcript(ana) == ["user: water", "user: bread"]
        # The words that the edit gave are gone with the message, and bread came.
        assert len(world.rows("bodies")) == before


async def test_a_batch_behind_a_refusal_is_planned_again_once_and_in_order(seed: int) -> None:
    store = new_store()
    async with open_room(store) as room:
        await room.slot.ask(accept("go"))
        store.refuse_next = 1
        futures = [room.slot.ask(accept("1")), room.slot.ask(many("2", "3"))]
        futures += [room.slot.ask(known(("x", "4"))), room.slot.ask(accept("5"))]
        await outcomes_of(futures)
        assert shown(store) == ["user: go", *(f"user: {number}" for number in range(1, 6))]
        check(store)


def test_a_batch_that_is_refused_leaves_the_mirror_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slot_book, "INBOX_ROWS_MAX", 3)
    desk = BookDesk()
    desk.accept("go")
    desk.start()
    desk.accept("a")
    for batch, kind in [
        (many("1", "2", "3"), InboxFullError),
        (many(*map(str, range(26))), BatchTooLargeError),
        (many(*["x" * 400_000] * 4), BatchTooLargeError),
    ]:
        with pytest.raises(kind):
            plan_accepts(desk.book, batch, desk.chain, lambda _: None, in_flight=lambda _: None)
        desk.same()
    assert desk.accept("b") == (3, False)


# -- ids -------------------------------------------------------------------------------------------


async def test_a_batch_sent_again_is_the_same_messages() -> None:
    store = new_store()
    async with open_room(store) as room:
        first = await room.slot.ask(known(("x", "a"), ("y", "b")))
        before = store._durable.revision
        assert await room.slot.ask(known(("x", "a"), ("y", "b"))) == first
        assert store._durable.revision == before
        more = await room.slot.ask(known(("y", "b"), ("z", "c"), ("x", "a")))
        assert more == (Receipt("y", 2, "stored"), Receipt("z", 3, "stored"), first[0])
        assert shown(store) == ["user: a", "user: b", "user: c"]


async def test_ids_that_are_on_their_way_are_one_message_in_whatever_company_they_come() -> None:
    store = new_store()
    async with open_room(store) as room:
        await room.slot.ask(accept("go"))
        before = len(store.requests)
        store.hold = True
        one = room.slot.ask(accept("a", known="x"))
        await wait_all_tasks_blocked()
        futures = [
            one,
            room.slot.ask(known(("x", "a"), ("y", "b"))),
            room.slot.ask(accept("b", known="y")),
            room.slot.ask(known(("y", "b"))),
            room.slot.ask(known(("z", "c"), ("x", "other"))),
            room.slot.ask(accept("other", known="y")),
        ]
        await wait_all_tasks_blocked()
        assert not any(future.settled for future in futures[:4])
        store.hold = False
        store.release()
        x, y = Receipt("x", 2, "stored"), Receipt("y", 3, "stored")
        *same, conflict, other = await outcomes_of(futures)
        assert same == [x, (x, y), y, (y,)]
        assert isinstance(conflict, MessageConflictError)
        assert isinstance(other, MessageConflictError)
        assert shown(store) == ["user: go", "user: a", "user: b"]
        # Known as it was planned: nothing had to be refused and planned again.
        assert len([request for request in store.requests[before:] if request.ops]) == 2
        check(store)


@pytest.mark.behaviour("R-29")
async def test_an_id_that_two_batches_name_is_the_first_ones_message_for_a_third_sender() -> None:
    store = new_store()
    async with open_room(store) as room:
        await room.slot.ask(accept("go"))
        store.hold = True
        futures = [
            room.slot.ask(known(("x", "a"), ("y", "b"))),
            room.slot.ask(known(("y", "b"), ("z", "c"))),
            room.slot.ask(accept("b", known="y")),
        ]
        await wait_all_tasks_blocked()
        store.hold = False
        store.release()
        (x, y), again, alone = await outcomes_of(futures)
        assert (x.seq, y.seq) == (2, 3)
        assert again == (y, Receipt("z", 4, "stored"))
        assert alone == y
        check(store)


@pytest.mark.parametrize("refusals", range(1, 5))
async def test_ids_on_their_way_are_one_message_when_what_is_ahead_is_refused(
    refusals: int,
) -> None:
    store = new_store()
    async with open_room(store) as room:
        await room.slot.ask(accept("go"))
        store.refuse_next = refusals
        futures = [
            room.slot.ask(known(("x", "a"), ("y", "b"))),
            room.slot.ask(accept("b", known="y")),
            room.slot.ask(known(("y", "b"), ("z", "c"))),
        ]
        batch, y, last = await outcomes_of(futures)
        assert [each.id for each in batch] == ["x", "y"]
        assert y == batch[1] == last[0]
        assert shown(store) == ["user: go", "user: a", "user: b", "user: c"]
        check(store)


async def test_a_batch_with_an_id_of_other_content_is_refused_as_a_whole() -> None:
    store = new_store()
    async with open_room(store) as room:
        await room.slot.ask(accept("a", known="x"))
        with pytest.raises(MessageConflictError) as caught:
            await room.slot.ask(known(("w", "new"), ("x", "other")))
        assert caught.value.id == "x"
        assert shown(store) == ["user: a"]


async def test_a_message_twice_in_a_batch_is_one_message_with_two_receipts(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([])
        twice = Draft("a", id="x", wake=False)
        first, other, again = await ana.send_many([twice, Draft("b", wake=False), twice])
        assert first == again
        assert (first.seq, other.seq) == (1, 2)
        assert await transcript(ana) == ["user: a", "user: b"]


# -- bounds and bad input --------------------------------------------------------------------------


async def test_an_inbox_without_room_for_the_whole_batch_takes_none_and_hands_all_back(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_book, "INBOX_ROWS_MAX", 3)
    stop = Stop()
    async with world.open():
        ana = await world.add([call_tool("wait"), reply("done"), reply("x")], tools=[stop.tool()])
        await ana.send("go")
        await stop.entered.wait()
        await ana.send_many(drafts("1", "2"))
        batch = (Draft("3", id="x", author="bo", channel="c"), Draft("4"))
        with pytest.raises(InboxFullError) as caught:
            await ana.send_many(batch)
        assert caught.value.messages == batch
        assert (caught.value.rows, caught.value.rows_max) == (2, 3)
        assert pickle.loads(pickle.dumps(caught.value)).messages == batch
        assert world.state().inbox == 2
        await ana.send("3")
        with pytest.raises(InboxFullError) as caught:
            await ana.send("4", "bo", id="y", wake=False, channel="c")
        assert caught.value.messages == (Draft("4", "bo", "y", False, "c"),)
        stop.go.set()
        await ana.wait_idle()
        assert [line for line in await transcript(ana) if "user" in line] == [
            "user: go", "user: 1", "user: 2", "user: 3",
        ]  # fmt: skip


@pytest.mark.behaviour("D-091")
async def test_a_batch_that_one_commit_cannot_hold_is_refused_with_the_bound() -> None:
    store = DeskStore()
    assert store.limits.ops_max == 128
    store.own(SLOT)
    async with open_room(store) as room:
        receipts = await room.slot.ask(many(*map(str, range(25))))
        assert len(receipts) == 25
        for batch, what, size, limit in [
            (many(*map(str, range(2_101))), "operations", 10_506, 128),
            (many(*["x" * 500_000] * 4), "bytes", None, store.limits.payload_bytes_max),
        ]:
            with pytest.raises(BatchTooLargeError) as caught:
                await room.slot.ask(batch)
            assert (caught.value.what, caught.value.limit) == (what, limit)
            assert size is None or caught.value.size == size
            assert f"{limit:,}" in str(caught.value)
        assert len(rows(store, "ids")) == 25
        assert room.slot.statistics().incarnation == 1


async def test_a_batch_past_the_bound_is_handed_back_by_the_handle(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([])
        for count, what in ((4_001, "operations"), (10_001, "messages")):
            batch = [Draft(str(place)) for place in range(count)]
            with pytest.raises(BatchTooLargeError) as caught:
                await ana.send_many(batch)
            assert caught.value.what == what
            assert caught.value.messages == tuple(batch)
        assert await transcript(ana) == []


BAD: dict[str, tuple[Any, str]] = {
    "text": ("hi", "drafts"),
    "a mapping": ({"content": "hi"}, "drafts"),
    "none": (None, "drafts"),
    "a draft by itself": (Draft("a"), "drafts"),
    "a text in it": ([Draft("a"), "b"], "drafts[1].type"),
    "a mapping in it": ([{"content": "hi"}], "drafts[0].type"),
    "null content": ([Draft("a"), Draft(None)], "drafts[1].message"),  # type: ignore[arg-type]
    "a null block": ([Draft([None])], "drafts[0].message[0]"),  # type: ignore[list-item]
    "a number deep inside": (
        [Draft("a"), Draft("b"), Draft([{"type": "text", "text": 1}])],
        "drafts[2].message[0].text",
    ),
    "an author that is none": ([Draft("a", author="")], "drafts[0].author"),
    "an id that is long": ([Draft("a", id="x" * 129)], "drafts[0].id"),
    "an id with other content": ([Draft("a", id="x"), Draft("b", id="x")], "drafts[1].id"),
    "a wake that is a number": ([Draft("a", wake=1)], "drafts[0].wake"),  # type: ignore[arg-type]
    "a channel that is none": ([Draft("a", channel="\0")], "drafts[0].channel"),
}


@pytest.mark.behaviour("D-090", "R-15")
@pytest.mark.parametrize(("batch", "field"), BAD.values(), ids=BAD)
async def test_a_malformed_batch_is_refused_by_its_place_and_stores_nothing(
    world: World, virtual_time: MockClock, batch: Any, field: str
) -> None:
    async with world.open():
        ana = await world.add([])
        with pytest.raises(InvalidInputError) as caught:
            await ana.send_many(batch)
        assert caught.value.field == field
        assert str(caught.value).startswith(f"{field}: ")
        assert pickle.loads(pickle.dumps(caught.value)).field == field
        assert await transcript(ana) == []
        assert not world.rows("ids")
        assert not world.rows("inbox")


async def test_a_slot_whose_agent_was_disposed_of_takes_no_batch() -> None:
    async with open_room(new_store()) as room:
        await room.slot.ask(accept("go"))
        assert isinstance(await room.slot.ask(start()), TurnStart)
        room.slot._cell.kept.ended.add("ana")
        with pytest.raises(AgentEndedError):
            await room.slot.ask(many("a"))


@pytest.mark.behaviour("R-28")
async def test_an_agent_that_was_disposed_of_takes_nothing_when_its_actor_is_started_again() -> (
    None
):
    """Its actors are stopped behind the commit that ends it; one of them may die in between."""
    store = new_store()
    async with open_room(store) as room:
        first = await room.attach("ana")
        await room.slot.ask(Dispose("ana", "resident", None, None, "ops", 1))
        room.slot.tell(AttachAgent("ana", first))
        for message in (accept("a"), many("b", "c")):
            with pytest.raises(AgentEndedError):
                await room.slot.ask(message)
        assert wakes_of(store) == set(), "nobody would answer it"
        await room.supervisor.stop_child("agent-ana")
        await room.attach("ana")
        assert (await room.slot.ask(accept("again"))).state == "stored"


def test_a_threaded_host_sends_a_batch_and_gets_a_future_of_one(tmp_path: Path) -> None:
    with HostedRuntime(tmp_path / "state", control=False) as host:
        provider = ScriptedProvider([])
        ana = host.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        quiet = [Draft("a", wake=False, id="x"), Draft("b", wake=False)]
        first = ana.send_many(quiet)
        future = ana.send_many([quiet[0], Draft("c", wake=False)], block=False)
        assert future.get()[0] == first[0]
        assert ana.send_many([]) == ana.send_many([], block=False).get() == ()
        with pytest.raises(InvalidInputError, match=r"drafts\[0\]\.author"):
            ana.send_many([Draft("a", author="")], block=False)
        with pytest.raises(BatchTooLargeError) as caught:
            ana.send_many([Draft(str(place)) for place in range(4_001)])
        assert len(caught.value.messages) == 4_001
        assert [message.text for message in ana.transcript()] == ["a", "b", "c"]
