"""Wherever a slot drains its inbox: one writer moves it, in order, and only a boundary injects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentHandle, AgentSpec, Receipt
from abeyance.actors.domain.protocol import RecordWait
from abeyance.actors.domain.slot_book import SlotBook
from abeyance.actors.domain.slot_reading import read_reading
from abeyance.actors.testing import Faults, Gate, ScriptedProvider, call_tool, fail, reply
from abeyance.actors.testing.witness import Witness
from abeyance.storage.lmdb_store import LmdbStore

from .test_ephemeral import queue
from .world import Stop, World, shown, texts

# -- a boundary behind which no call comes -------------------------------------------------------


def place_of(world: World, message: str) -> int:
    row = world.runtime._store.get("ids", ("ana", message))
    assert row is not None
    place: int = row.record.seq
    return place


@pytest.mark.behaviour("D-015")
async def test_a_boundary_that_ends_the_turn_injects_nothing_and_the_next_turn_hears_it(
    world: World, virtual_time: MockClock
) -> None:
    stop, later = Stop(), Gate(reply("heard"))
    async with world.open() as runtime:
        ana = await world.add([call_tool("wait"), later], tools=[stop.tool()], rounds_max=1)
        await ana.send("go")
        await stop.entered.wait()
        receipt = await ana.send("meanwhile")
        stop.go.set()
        with trio.fail_after(600):
            await later.wait_entered()
        first, second = world.turns()
        assert (first.state, second.state) == ("failed", "running")
        assert receipt.seq not in first.answers, "no call of that turn carried it"
        assert second.answers == (receipt.seq,)
        assert texts(world.providers[0].requests[1])[-2:] == ["user: =done", "user: meanwhile"]
        later.release()
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: heard"
        assert not world.rows("wakes")
        assert runtime.status().agents[0].state == "idle"


@pytest.mark.behaviour("D-015")
async def test_what_a_boundary_joined_to_a_turn_that_is_then_held_is_unread_until_it_is_sent(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    async with world.open() as runtime:
        ana = await world.add([call_tool("wait"), reply("heard")], tools=[stop.tool()])
        await ana.send("go")
        await stop.entered.wait()
        await ana.send("meanwhile", wake=False, id="late")
        until_ms = world.clock.now_ms() + 60_000
        await runtime._ledger.ask(RecordWait("ana", "m", until_ms, "a test"))
        stop.go.set()
        await ana.wait_idle()
        assert world.state().state == "held"
        place = place_of(world, "late")
        assert read_reading(runtime._store, "ana", place) == "unread"
        assert len(world.providers[0].requests) == 1
        await trio.sleep(61)
        await ana.wait_idle()
        assert texts(world.providers[0].requests[1])[-1] == "user: meanwhile"
        assert read_reading(runtime._store, "ana", place) == "read"


@pytest.mark.behaviour("D-015")
async def test_a_stop_behind_which_no_call_comes_injects_nothing_and_leaves_what_came_unread(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    async with world.open():
        ana = await world.add([call_tool("wait")], tools=[stop.tool()])
        await ana.send("go")
        await stop.entered.wait()
        await ana.send("meanwhile", wake=False, id="late")
    async with world.open() as runtime:
        place = place_of(world, "late")
        assert read_reading(runtime._store, "ana", place) == "unread"
        ana = await world.add([reply("again")])
        await ana.wait_idle()
        assert texts(world.providers[1].requests[0])[-1] == "user: meanwhile"
        assert read_reading(runtime._store, "ana", place) == "read"


# -- where the inbox is drained ------------------------------------------------------------------

Path_ = Callable[["Drain"], Awaitable[None]]


class Drain:
    """A world in which messages are deferred, and what wrote them."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self.stop = Stop()
        self.faults = Faults(seed=1)
        self.moved: list[tuple[str, int]] = []
        """What went through the one writer, in order: slot and entry."""
        self.deferred: list[tuple[str, Receipt]] = []
        move = SlotBook.move

        def counted(book: SlotBook, draft: Any, entries: list[int], **how: Any) -> None:
            move(book, draft, entries, **how)
            self.moved += [(book.slot, entry) for entry in entries]

        monkeypatch.setattr(SlotBook, "move", counted)

    async def ana(self, *script: Any, **spec: Any) -> AgentHandle:
        return await self.world.add(list(script), tools=[self.stop.tool()], **spec)

    async def defer(self, agent: AgentHandle) -> None:
        """Three messages: one that may join, one that may not, and one behind it."""
        for words, author in (("a", "bo"), ("own", agent.name), ("b", "cy")):
            receipt = await agent.send(words, author=author, wake=False)
            assert receipt.state == "accepted"
            self.deferred.append((agent.name, receipt))


async def boundary_and_turn_end(drain: Drain) -> None:
    async with drain.world.open():
        ana = await drain.ana(call_tool("wait"), reply("Done"))
        await ana.send("go")
        await drain.stop.entered.wait()
        await drain.defer(ana)
        drain.stop.go.set()
        await ana.wait_idle()


async def turn_that_fails(drain: Drain) -> None:
    call = Gate(fail(400))
    async with drain.world.open():
        ana = await drain.ana(call)
        await ana.send("go")
        await call.wait_entered()
        await drain.defer(ana)
        call.release()
        await ana.wait_idle()


async def hold(drain: Drain) -> None:
    call = Gate(fail(429, retry_after=60))
    async with drain.world.open():
        ana = await drain.ana(call, reply("Done"))
        await ana.send("go")
        await call.wait_entered()
        await drain.defer(ana)
        call.release()
        await ana.wait_idle()


async def stop_in_a_tool(drain: Drain) -> None:
    async with drain.world.open():
        ana = await drain.ana(call_tool("wait"))
        await ana.send("go")
        await drain.stop.entered.wait()
        await drain.defer(ana)


async def stop_in_a_call(drain: Drain) -> None:
    call = Gate(reply("never"))
    async with drain.world.open():
        ana = await drain.ana(call)
        await ana.send("go")
        await call.wait_entered()
        await drain.defer(ana)


async def rewind_of_a_live_turn(drain: Drain) -> None:
    call = Gate(reply("never"))
    async with drain.world.open():
        ana = await drain.ana(call)
        await ana.send("go", id="go")
        await call.wait_entered()
        await drain.defer(ana)
        await ana.rewind(to="go", requester="ops")
        await ana.wait_idle()


async def resume(drain: Drain) -> None:
    async with drain.world.open() as runtime:
        ana = await drain.ana(reply("Done"))
        await runtime.quiesce("upgrade")
        await drain.defer(ana)
        await runtime.resume()
        await ana.wait_idle()


async def boot(drain: Drain) -> None:
    """A host that died between the parts of a long drain leaves the rest to the next start."""
    async with drain.world.open():
        ana = await drain.ana(call_tool("wait"), reply("Done"))
        await ana.send("go")
        await drain.stop.entered.wait()
        await drain.defer(ana)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SlotBook, "prefix", lambda *args, **how: [])
            patch.setattr(SlotBook, "drain_all", lambda *args: [])
            drain.stop.go.set()
            await ana.wait_idle()
        assert len(drain.world.rows("inbox")) == 3
    async with drain.world.open():
        ana = await drain.world.add([])
        await ana.wait_idle()


async def end_of_a_run(drain: Drain) -> None:
    call = Gate(reply("in short"))
    provider = ScriptedProvider([call], clock=drain.world.clock)
    async with drain.world.open() as runtime, trio.open_nursery() as nursery:
        nursery.start_soon(
            runtime.run_ephemeral, AgentSpec(name="sum", provider=provider, model="m"), "go"
        )
        await call.wait_entered()
        (name,) = runtime._runs.runs
        await queue(drain.world, "one", "two")
        drain.deferred += [(name, Receipt("", seq, "accepted")) for seq in inbox_of(drain, name)]
        call.release()


async def close_of_a_conversation(drain: Drain) -> None:
    async with drain.world.open() as runtime:
        await drain.ana(call_tool("wait"), reply("bye"))
        fork = await runtime.open_conversation("ana", channel="c1")
        await fork.send("go")
        await drain.stop.entered.wait()
        await drain.defer(fork)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fork.close)
            await trio.testing.wait_all_tasks_blocked()
            drain.stop.go.set()


def inbox_of(drain: Drain, slot: str) -> list[int]:
    scan = drain.world.runtime._store.scan("inbox", (slot,))
    return [int(key[-1]) for key, _ in scan]


PATHS: list[Path_] = [
    boundary_and_turn_end,
    turn_that_fails,
    hold,
    stop_in_a_tool,
    stop_in_a_call,
    rewind_of_a_live_turn,
    resume,
    boot,
    end_of_a_run,
    close_of_a_conversation,
]


@pytest.mark.behaviour("D-080", "D-081")
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
async def test_what_was_deferred_is_stored_by_the_one_writer_once_and_in_order(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch, path: Path_
) -> None:
    drain = Drain(world, monkeypatch)
    await path(drain)
    deferred = [(slot, receipt.seq) for slot, receipt in drain.deferred]
    assert deferred
    assert drain.moved == deferred
    async with world.open():
        assert not world.rows("inbox")
        for slot in {slot for slot, _ in deferred}:
            entries = [row.entry for row in world.rows("slots", slot)]
            assert [e for e in entries if (slot, e) in deferred] == [e for _, e in deferred]


# -- arrival -------------------------------------------------------------------------------------


@pytest.mark.behaviour("R-30")
async def test_a_message_and_who_is_to_be_told_of_it_are_one_commit_in_the_order_of_their_numbers(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, accepted = LmdbStore.submit, list[set[tuple[str, int]]]()

    def watched(store: LmdbStore, batch: Any, done: Any) -> None:
        for request in batch:
            if request.rows and not request.deletes:
                accepted.append(
                    {(rows.table, tuple(key[-1] for key in rows.keys)) for rows in request.rows[1:]}
                )
        submit(store, batch, done)

    stop = Stop()
    async with world.open() as runtime:
        ana = await world.add([call_tool("wait"), reply("Done")], tools=[stop.tool()])
        await ana.send("go")
        await stop.entered.wait()
        monkeypatch.setattr(LmdbStore, "submit", watched)
        receipts: list[Receipt] = []

        async def send(number: int) -> None:
            receipts.append(await ana.send(f"says {number}", channel=f"c{number}"))

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(send, number)
        numbers = sorted(receipt.seq for receipt in receipts)
        # Body, place and wake of each are rows of one request, under its number.
        together = [next(iter(of))[1] for of in accepted]
        assert [number for of in together for number in of] == numbers
        assert accepted == [{("bodies", of), ("inbox", of), ("wakes", of)} for of in together]
        for table in ("inbox", "wakes"):
            assert [int(key[-1]) for key, _ in runtime._store.scan(table, ("ana",))] == numbers
        named = {receipt.seq: receipt.id for receipt in receipts}
        rows = world.rows("inbox", "ana")
        assert [row.message for row in rows] == [named[number] for number in numbers]
        assert [row.channel for row in rows] == [
            wake.channel for wake in world.rows("wakes", "ana")
        ]
        stop.go.set()
        await ana.wait_idle()
        order = [row.message for row in world.rows("slots", "ana") if row.turn is None]
        assert order[1:] == [named[number] for number in numbers]


# -- cost ----------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_boundary_reads_and_writes_no_more_in_a_long_slot_with_a_full_inbox(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Witness, "_look", lambda *looked: None)
    touched: list[str] = []
    get, scan, submit = LmdbStore.get, LmdbStore.scan, LmdbStore.submit

    def counted_get(store: LmdbStore, table: str, key: Any) -> Any:
        touched.append(f"get {table}")
        return get(store, table, key)

    def counted_scan(store: LmdbStore, table: str, *args: Any, **how: Any) -> Any:
        for found in scan(store, table, *args, **how):
            touched.append(f"scan {table}")
            yield found

    def counted_submit(store: LmdbStore, requests: Any, done: Any) -> None:
        touched.extend("op" for request in requests for _ in range(request.ops))
        submit(store, requests, done)

    async def boundary_of(name: str, notes: int) -> list[str]:
        stop, call = Stop(), Gate(reply("Done"))
        agent = await world.add([call_tool("wait"), call], name, tools=[stop.tool()])
        for number in range(notes):
            await agent.send(f"note {number}", wake=False)
        await agent.send("go")
        await stop.entered.wait()
        await agent.send("waits for the turn's end", author=name)
        for number in range(notes):
            await agent.send(f"behind it {number}", wake=False)
        touched.clear()
        with monkeypatch.context() as patch:
            patch.setattr(LmdbStore, "get", counted_get)
            patch.setattr(LmdbStore, "scan", counted_scan)
            patch.setattr(LmdbStore, "submit", counted_submit)
            stop.go.set()
            await call.wait_entered()
        counted = sorted(touched)
        call.release()
        await agent.wait_idle()
        return counted

    async with world.open():
        short = await boundary_of("short", 1)
        assert short
        assert await boundary_of("long", 300) == short
