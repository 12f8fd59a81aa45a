"""A store that refuses: one message by name, every message alike, for a while or for good."""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors import AgentSpec, HostedRuntime, Receipt
from abeyance.actors.domain.agent import Agent
from abeyance.actors.domain.errors import LeaseLostError, NotStoredError
from abeyance.actors.domain.slot_messages import AttachAgent, TurnStart, Woken
from abeyance.actors.domain.slot_poison import REFUSALS_MAX, plan_give_up
from abeyance.actors.testing import ScriptedProvider, call_tool, reply
from abeyance.storage import codec
from abeyance.storage.batch import Prepared
from abeyance.storage.errors import (
    InvalidRequestError,
    MapLimitError,
    StorageError,
    UnreadableRecordError,
)
from abeyance.storage.keys import decode_key
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import NotStored, Outcome, Put, Request
from abeyance.storage.tables.slots import Lease

from .desk import DeskStore, disk_full, rows
from .slots import (
    SLOT,
    BookDesk,
    accept,
    check,
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
from .test_bad_rows import damage
from .test_conversations import keep_from_landing, leave_in_inbox
from .test_slot_actor import Room, open_room
from .world import Stop, World, until
from .world import shown as transcript


class PickyStore(DeskStore):
    """A store that takes no request which writes one of some rows; the requests before it stand."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.refuses: dict[tuple[str, Any], StorageError] = {}
        self.times: dict[tuple[str, Any], int] = {}
        """How often each refuses, where it is not for good."""
        self.refused = 0

    def refuse(self, table: str, key: Any, times: int | None = None) -> None:
        error = UnreadableRecordError("bad row", table=table, key=key, cause="checksum")
        self.refuses[table, key] = error
        if times is not None:
            self.times[table, key] = times

    def _decide(self, batch: list[Prepared]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for request in batch:
            error = self._picked(request)
            if error is None:
                outcomes += super()._decide([request])
            else:
                self._break_chain(request)
                outcomes.append(NotStored(error))
        return outcomes

    def _picked(self, request: Prepared) -> StorageError | None:
        chain = request.chain
        if chain is not None and chain.epoch <= self._behind.get(chain.sender, -1):
            return None
        for table, raw, *_ in request.puts:
            place = (table, decode_key(raw))
            if place in self.refuses:
                left = self.times.get(place)
                if left == 0:
                    continue
                if left is not None:
                    self.times[place] = left - 1
                self.refused += 1
                return self.refuses[place]
        return None


@asynccontextmanager
async def in_a_turn(*words: str) -> AsyncIterator[tuple[PickyStore, Room, TurnStart]]:
    """A slot whose turn is live, and what waits in its inbox; of each word the id is its own."""
    store = PickyStore()
    store.own(SLOT)
    async with open_room(store, "ana") as room:
        await room.slot.ask(accept("go"))
        turn = await room.slot.ask(start())
        for word in words:
            await room.slot.ask(accept(word, known=word))
        yield store, room, turn


def letters(store: Any) -> list[tuple[str, str]]:
    return [(row.message, row.reason) for row in rows(store, "dead_letters").values()]


# -- one message that is refused by name ---------------------------------------------------------


@pytest.mark.behaviour("R-3", "D-040", "D-044", "D-045", "D-046")
async def test_a_message_that_is_refused_by_name_leaves_after_three_times_and_the_rest_lands(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "abeyance")
    async with in_a_turn("a", "b", "c") as (store, room, turn):
        store.refuse("ids", (SLOT, "b"))
        with trio.fail_after(60):
            await room.slot.ask(record(turn, 1, "Done"))
        assert shown(store) == ["user: go", "assistant: Done", "user: a", "user: c"]
        assert waiting(store) == []
        # The last time it was its end that was refused, for the same row.
        assert store.refused == REFUSALS_MAX + 1
        ((message, reason),) = letters(store)
        assert message == "message 'b' by 'user'"
        assert reason == "refused 3 times: bad row"
        lines = [line.message for line in caplog.records if "was refused" in line.message]
        assert [line.partition(" times")[0] for line in lines] == [
            f"message 'b' by 'user' was refused {count}" for count in range(1, 5)
        ]
        # Nothing is left that would be refused again, and its wake went with it.
        assert wakes_of(store) == {entry for _, entry in rows(store, "wakes", ("ana",))} == {2, 4}
        assert room.slot.statistics().incarnation == 1


@pytest.mark.behaviour("R-3", "D-044")
def test_a_message_that_is_given_up_leaves_no_wake_of_an_agent_that_is_not_added_yet() -> None:
    desk = BookDesk(None, "ana", "bo")
    desk.accept("go")
    desk.start()
    entry, stored = desk.accept("for bo", agent="bo")
    assert not stored
    # After a restart bo is not here; the slot could know of its wake by the row alone.
    desk.agents = ("ana",)
    desk.reload()
    request = plan_give_up(desk.book, entry, "a bad row", desk.chain, 1, names=True)
    # Added while that is on its way to the store: there is nothing that asks for a turn of bo.
    assert not desk.book.has_work("bo")
    desk.commit([request])
    assert waiting(desk.store) == []
    assert wakes_of(desk.store, "bo") == set()
    assert len(letters(desk.store)) == 1


@pytest.mark.behaviour("R-3", "D-044")
@pytest.mark.parametrize("times", [1, 2])
async def test_a_message_that_is_refused_less_often_lands_in_its_place(times: int) -> None:
    async with in_a_turn("a", "b", "c") as (store, room, turn):
        store.refuse("ids", (SLOT, "b"), times)
        await room.slot.ask(record(turn, 1, "Done"))
        said = ["user: go", "assistant: Done", "user: a", "user: b", "user: c"]
        assert shown(store) == said
        assert letters(store) == []
        check(store)


@pytest.mark.behaviour("R-3", "D-042")
async def test_at_a_boundary_exactly_what_was_stored_joins() -> None:
    async with in_a_turn("a", "b", "c") as (store, room, turn):
        await room.slot.ask(record(turn, 1, "look", "call"))
        store.refuse("ids", (SLOT, "b"))
        joined = joined_by(store, await room.slot.ask(close(turn, 1, "call")))
        assert [row.entry.message for row in joined][1:] == ["a", "c"]
        assert shown(store)[-2:] == ["user: a", "user: c"]
        carried = rows(store, "carried", (SLOT,))
        assert list(carried.values())[-1].rows == ((1, 5),)
        assert letters(store)[0][0] == "message 'b' by 'user'"


@pytest.mark.behaviour("R-3", "D-047")
@pytest.mark.parametrize("how", ["reply", "hold", "end", "tidy", "start"])
async def test_every_drain_gives_up_what_is_refused_by_name(how: str) -> None:
    async with in_a_turn("a", "b", "c") as (store, room, turn):
        store.refuse("ids", (SLOT, "b"))
        with trio.fail_after(60):
            match how:
                case "reply":
                    await room.slot.ask(record(turn, 1, "Done"))
                case "hold":
                    await room.slot.ask(hold(turn))
                case "end":
                    await room.slot.ask(end(turn))
                case _:
                    # As a death left it: the turn is over, and its inbox did not land.
                    free = Lease(token=1, entry_next=9, seq_next=9, request_next=9)
                    store.commit(Request(puts=(Put("leases", (SLOT,), codec.encode(free)),)))
                    room.slot.kill("a test")
                    if how == "start":
                        await room.slot.ask(start())
                    else:
                        await room.slot.ask(accept("d"))
                        await wait_all_tasks_blocked()
        said = [line for line in shown(store) if line.startswith("user")]
        assert said == ["user: go", "user: a", "user: c"] + ["user: d"] * (how == "tidy")
        assert waiting(store) == []
        assert len(letters(store)) == 1


@pytest.mark.behaviour("R-3")
async def test_a_store_that_takes_not_even_the_end_of_a_message_is_waited_out() -> None:
    async with in_a_turn("b") as (store, room, turn):
        (entry,) = (key[-1] for key in rows(store, "inbox", (SLOT,)))
        bad = UnreadableRecordError("bad", table="inbox", key=(SLOT, entry), cause="x")

        def picked(request: Prepared) -> StorageError | None:
            return bad if any(table == "inbox" for table, _ in request.deletes) else None

        store._picked = picked  # type: ignore[method-assign]
        with trio.fail_after(60), pytest.raises(NotStoredError):
            await room.slot.ask(record(turn, 1, "Done"))
        assert waiting(store) == ["b"]
        assert letters(store) == []
        store._picked = lambda request: None  # type: ignore[method-assign]
        await room.slot.ask(record(turn, 1, "Done"))
        assert shown(store) == ["user: go", "assistant: Done", "user: b"]
        check(store)


@pytest.mark.behaviour("R-3")
@pytest.mark.parametrize("table", ["slots", "ids"])
async def test_a_row_that_the_store_says_is_none_is_found_by_its_place_in_the_request(
    table: str,
) -> None:
    async with in_a_turn("a", "b", "c") as (store, room, turn):

        def picked(request: Prepared) -> StorageError | None:
            for place, (of, _, value) in enumerate(request.puts):
                fields = codec.unpack(value.body)
                if of == table and fields["entry"] == 3 and fields.get("state") != "dead":
                    return InvalidRequestError("no row", field=f"batch[0].puts[{place}].value")
            return None

        store._picked = picked  # type: ignore[method-assign]
        with trio.fail_after(60):
            await room.slot.ask(record(turn, 1, "Done"))
        said = ["user: go", "assistant: Done", "user: a", "user: c"]
        assert shown(store) == said
        assert [name for name, _ in letters(store)] == ["message 'b' by 'user'"]


@pytest.mark.behaviour("R-3", "D-041")
async def test_a_slot_whose_message_is_refused_keeps_no_other_slot_from_anything(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        leave_in_inbox(world, "a", "a", 1, wake=False)
        leave_in_inbox(world, "b", "b", 2, wake=True)
        leave_in_inbox(world, "c", "c", 3, wake=True)
    damage(world.directory, world.clock, "ids", ("ana", "b"), "a flipped bit")
    async with world.open() as runtime:
        bo = await world.add([reply("here")], "bo")
        ana = await world.add([reply("heard")] * 2)
        await bo.send("hi")
        await bo.wait_idle()
        await ana.wait_idle()
        assert await transcript(ana) == ["user: a", "user: c", "assistant: heard"]
        assert await transcript(bo) == ["user: hi", "assistant: here"]
        (letter,) = runtime.dead_letters()
        assert letter.message == "message 'b' by 'user'"
        assert "can't be trusted" in letter.reason
        # Its content is kept, and comes back when somebody asks for it.
        await runtime.replay_dead_letter(letter.id, requester="ops")
        await until(lambda: len(world.rows("slots", "ana")) >= 4)


@pytest.mark.behaviour("R-3")
async def test_a_message_that_was_given_up_is_dead_to_its_sender_and_says_why() -> None:
    async with in_a_turn("b") as (store, room, turn):
        # Another row of it is bad: its id can be written.
        (entry,) = (key[-1] for key in rows(store, "inbox", (SLOT,)))
        seq = 3

        def picked(request: Prepared) -> StorageError | None:
            if any(
                table == "slots" and decode_key(raw) == (SLOT, seq)
                for table, raw, _ in request.puts
            ):
                return UnreadableRecordError("bad", table="bodies", key=(SLOT, entry), cause="x")
            return None

        store._picked = picked  # type: ignore[method-assign]
        await room.slot.ask(record(turn, 1, "Done"))
        again = await room.slot.ask(accept("b", known="b"))
        assert again == Receipt("b", entry, "dead", "refused 3 times: bad")


# -- every message alike -----------------------------------------------------------------------


@pytest.mark.behaviour("R-2", "D-044")
async def test_what_a_stop_could_not_land_is_there_at_the_next_start(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Stop()
    async with world.open():
        ana = await world.add([call_tool("wait")], tools=[stop.tool()])
        await ana.send("go")
        await stop.entered.wait()
        for word in "ab":
            await ana.send(word, id=word)
        keep_from_landing(monkeypatch)
    # It refuses through another life, too, and what waits is where it was.
    async with world.open():
        ana = await world.add([], tools=[stop.tool()])
        await trio.sleep(1)
        assert [row.message for row in world.rows("inbox", "ana")] == ["a", "b"]
        assert (await ana.receipt("a")).state == "accepted"
    monkeypatch.undo()
    async with world.open():
        ana = await world.add([reply("heard")], tools=[stop.tool()])
        await ana.wait_idle()
        users = [line for line in await transcript(ana) if line.startswith("user")]
        assert users == ["user: go", "user: a", "user: b"]
        assert (await transcript(ana))[-1] == "assistant: heard"
        assert (await ana.receipt("a")).state == "stored"
        letters_of = {letter.actor for letter in world.runtime.dead_letters()}
        assert "slot:ana" not in letters_of


@pytest.mark.behaviour("D-050")
async def test_what_cannot_land_is_tried_at_each_of_three_starts_and_is_still_first(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[list[str]] = []
    submit = LmdbStore.submit

    def refuse(store: LmdbStore, batch: Any, done: Any) -> None:
        moves = [
            put.key
            for request in batch
            if any(gone.table == "inbox" for gone in request.deletes)
            for put in request.puts
            if put.table == "ids"
        ]
        if moves:
            tried[-1] += [key[-1] for key in moves]
            done([NotStored(disk_full())] * len(batch))
        else:
            submit(store, batch, done)

    async with world.open():
        leave_in_inbox(world, "stuck", "stuck", 1, wake=False)
    monkeypatch.setattr(LmdbStore, "submit", refuse)
    for life in range(3):
        tried.append([])
        async with world.open():
            ana = await world.add([])
            await trio.sleep(1)
            assert tried[-1][:1] == ["stuck"], "it is tried by itself at the start"
            await ana.send(f"behind {life}", id=f"b{life}", wake=False)
            waits = ["stuck", *(f"b{earlier}" for earlier in range(life + 1))]
            assert [row.message for row in world.rows("inbox", "ana")] == waits
            assert await transcript(ana) == []
            # A quiesced host holds it back, and the resume tries it again.
            await world.runtime.quiesce("upgrade")
            tried[-1].clear()
            await trio.sleep(60)
            assert tried[-1] == []
            await world.runtime.resume()
            await trio.sleep(1)
            assert tried[-1][:1] == ["stuck"]
    monkeypatch.undo()
    async with world.open():
        ana = await world.add([])
        await until(lambda: not world.rows("inbox", "ana"))
        assert await transcript(ana) == [
            "user: stuck", "user: behind 0", "user: behind 1", "user: behind 2",
        ]  # fmt: skip


@pytest.mark.behaviour("D-043")
async def test_results_of_a_call_that_was_not_stored_are_not_stored_either() -> None:
    async with in_a_turn("a") as (store, room, turn):
        store.refuse("slots", (SLOT, 2), 1)
        with pytest.raises(NotStoredError):
            await room.slot.ask(record(turn, 1, "look", "call"))
        with pytest.raises(LeaseLostError):
            await room.slot.ask(close(turn, 1, "call"))
        assert shown(store) == ["user: go"]
        await room.slot.ask(record(turn, 1, "look", "call"))
        await room.slot.ask(close(turn, 1, "call"))
        assert shown(store) == ["user: go", "assistant: look <call>", "results: =call", "user: a"]
        check(store)


@pytest.mark.behaviour("D-048")
async def test_results_that_were_refused_land_directly_behind_their_call() -> None:
    async with in_a_turn("a") as (store, room, turn):
        await room.slot.ask(record(turn, 1, "look", "call"))
        store.refuse("slots", (SLOT, 3), 1)
        with pytest.raises(NotStoredError):
            await room.slot.ask(close(turn, 1, "call"))
        await room.slot.ask(accept("b"))
        assert shown(store) == ["user: go", "assistant: look <call>"]
        await room.slot.ask(close(turn, 1, "call"))
        assert shown(store)[1:] == [
            "assistant: look <call>", "results: =call", "user: a", "user: b",
        ]  # fmt: skip
        check(store)


@pytest.mark.behaviour("R-7")
def test_a_full_store_refuses_at_the_door_and_loses_nothing_that_was_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = LmdbStore.open
    small = functools.partial(opened, map_bytes=2**20, map_bytes_max=4 * 2**20)
    spec = AgentSpec(name="ana", provider=ScriptedProvider([]), model="m")
    accepted = []
    monkeypatch.setattr(LmdbStore, "open", small)
    with HostedRuntime(tmp_path / "state", control=False) as host:
        ana = host.add_agent(spec)

        def fill() -> None:
            for number in range(1_000):
                accepted.append(  # noqa: PERF401 - up to the one that is refused.
                    ana.send("x" * 50_000, id=str(number), wake=False).id
                )

        with pytest.raises(NotStoredError) as caught:
            fill()
        assert isinstance(caught.value.__cause__, MapLimitError)
        assert caught.value.__cause__.map_bytes_max == 4 * 2**20
        assert len(accepted) > 20
        with pytest.raises(NotStoredError):
            ana.send("x" * 50_000, wake=False)
    monkeypatch.setattr(LmdbStore, "open", opened)
    with HostedRuntime(tmp_path / "state", control=False) as host:
        ana = host.add_agent(spec)
        assert [message.id for message in ana.transcript()] == accepted
        assert ana.send("there is room", wake=False).state == "stored"


@pytest.mark.behaviour("R-4", "D-049")
async def test_moving_into_the_slot_is_one_request_so_there_is_nothing_to_acknowledge() -> None:
    async with in_a_turn("a", "b") as (store, room, turn):
        before = len(store.requests)
        await room.slot.ask(record(turn, 1, "Done"))
        moved = [r for r in store.requests[before:] if any(d.table == "inbox" for d in r.deletes)]
        (request,) = moved
        assert {delete.table for delete in request.deletes} == {"inbox"}
        assert len([put for put in request.puts if put.table == "slots"]) == 3


# -- whoever looks on ----------------------------------------------------------------------------


@pytest.mark.behaviour("R-5", "D-051")
async def test_whoever_is_told_of_a_message_is_told_behind_its_commit_and_may_raise() -> None:
    store = PickyStore()
    store.own(SLOT)
    told: list[int] = []

    class Raising:
        def tell_internal(self, message: Woken) -> None:
            told.append(message.entry)
            if len(told) == 1:
                raise RuntimeError("a listener raises")

    async with open_room(store) as room:
        room.slot.tell(AttachAgent("ana", Raising()))
        await wait_all_tasks_blocked()
        store.hold = True
        future = room.slot.ask(accept("a"))
        await wait_all_tasks_blocked()
        assert told == []
        store.hold = False
        store.release()
        with trio.fail_after(60):
            receipt = await future
        # Told again by the next incarnation, which found the message where it was.
        assert told == [1, 1]
        assert shown(store) == ["user: a"]
        assert receipt.seq == 1
        check(store)


@pytest.mark.behaviour("R-5", "D-051")
async def test_a_crash_of_whoever_is_told_of_a_message_stores_it_no_second_time(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = Agent.on_receive
    left = [3]

    def raising(agent: Agent, message: Any) -> Any:
        if isinstance(message, Woken) and left[0]:
            left[0] -= 1
            raise RuntimeError("the listener raises")
        return received(agent, message)

    async with world.open() as runtime:
        ana = await world.add([reply("one"), reply("two"), reply("three"), reply("four")])
        monkeypatch.setattr(Agent, "on_receive", raising)
        for number in range(3):
            receipt = await ana.send(f"m{number}", id=str(number))
            assert receipt.state in ("stored", "accepted")
        with trio.fail_after(600):
            await ana.wait_idle()
        said = [line for line in await transcript(ana) if line.startswith("user")]
        assert said == ["user: m0", "user: m1", "user: m2"]
        assert not world.rows("inbox")
        assert left == [0]
        assert world.state().wakes == 0
        assert runtime.status().agents[0].state == "idle"


@pytest.mark.behaviour("D-057")
async def test_where_answers_belong_is_noted_with_each_message_in_the_order_they_came(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    async with world.open():
        ana = await world.add(
            [call_tool("wait"), reply("done"), reply("more")], tools=[stop.tool()]
        )
        await ana.send("go", channel="main")
        await stop.entered.wait()
        await ana.send("to alpha", id="a", channel="alpha")
        await ana.send("to beta", id="b", channel="beta")
        wakes = [(wake.message, wake.channel) for wake in world.rows("wakes", "ana")]
        assert wakes == [("a", "alpha"), ("b", "beta")]
        stop.go.set()
        await ana.wait_idle()
        sent = [row for row in world.rows("slots", "ana") if row.turn is None]
        assert [(row.message, row.channel) for row in sent[1:]] == [("a", "alpha"), ("b", "beta")]
