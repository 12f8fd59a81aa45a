"""What became of a message and why it waits: receipts, those who follow them, and listings."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors import AgentHandle, AgentSpec, Draft, HostedRuntime, InboxRow, Receipt
from abeyance.actors.domain.errors import (
    InvalidInputError,
    RuntimeClosedError,
    UnknownAgentError,
    UnknownMessageError,
)
from abeyance.actors.domain.slot_inbox import listed
from abeyance.actors.testing import ScriptedProvider, call_tool, reply
from abeyance.storage import codec
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.store import Put, Request
from abeyance.storage.tables.agents import Agent

from .damage import spoil
from .slots import SLOT, BookDesk
from .test_conversations import keep_from_landing, leave_in_inbox
from .world import Stop, World, tool, until


def causes(rows: tuple[InboxRow, ...]) -> list[tuple[str, str, str, str | None]]:
    return [(row.id, row.state, row.cause, row.behind) for row in rows]


async def during_a_tool(world: World, stop: Stop, **spec: Any) -> AgentHandle:
    """An agent whose turn is at its tool, and stays there."""
    ana = await world.add([call_tool("wait"), reply("done")], tools=[stop.tool()], **spec)
    await ana.send("go", id="go")
    await stop.entered.wait()
    return ana


async def keep(told: list[Receipt], states: AsyncIterator[Receipt]) -> None:
    """Keep what a follower is told, as it is told."""
    async for receipt in states:
        told.append(receipt)  # noqa: PERF401 - looked at meanwhile.


@asynccontextmanager
async def fail_after(seconds: float) -> AsyncIterator[None]:
    """A bound for a follower that is never told; in virtual time it costs nothing."""
    with trio.fail_after(seconds):
        yield


# -- listings --------------------------------------------------------------------------------------


@pytest.mark.behaviour("R-14")
async def test_an_inbox_lists_what_waits_in_order_with_its_state_and_cause(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    async with world.open() as runtime:
        ana = await during_a_tool(world, stop)
        await ana.send("hear me", id="a", channel="c1")
        await ana.send("I said so", "ANA", id="own")
        await ana.send("and me", "bo", id="b", wake=False)
        rows = await runtime.inbox("ana")
        assert causes(rows) == [
            ("a", "accepted", "turn", None),
            ("own", "held", "own", None),
            ("b", "held", "behind", "own"),
        ]
        assert [row.seq for row in rows] == [3, 4, 5]
        assert [(row.author, row.channel, row.wake) for row in rows] == [
            ("user", "c1", True), ("ANA", None, False), ("bo", None, False),
        ]  # fmt: skip
        assert {row.agent for row in rows} == {"ana"}
        assert all(row.size > 0 and row.at_ms == world.clock.now_ms() for row in rows)
        assert await runtime.inbox() == rows
        assert causes(await runtime.inbox("ana", after=3, limit=1)) == [
            ("own", "held", "own", None)
        ]
        assert await runtime.inbox("ana", after=5) == ()
        stop.go.set()
        await ana.wait_idle()
        assert await runtime.inbox("ana") == ()


@pytest.mark.behaviour("R-14", "D-012")
async def test_an_inbox_says_that_the_provider_carries_nothing_into_a_live_turn(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    async with world.open() as runtime:
        ana = await during_a_tool(world, stop, carries_injections=False)
        await ana.send("later", id="a")
        assert causes(await runtime.inbox("ana")) == [("a", "held", "no_injections", None)]
        assert await ana.receipt("a") == Receipt("a", 3, "held", "no_injections")
        stop.go.set()
        await ana.wait_idle()
        assert (await ana.receipt("a")).state == "stored"


@pytest.mark.behaviour("R-14")
async def test_what_waits_while_the_host_is_quiesced_says_so_and_its_follower_sees_it_land(
    world: World, virtual_time: MockClock
) -> None:
    told: list[Receipt] = []
    async with world.open() as runtime:
        ana = await world.add([])
        await runtime.quiesce(reason="upgrade", requester="ops")
        await ana.send("a", id="a", wake=False)
        assert causes(await runtime.inbox("ana")) == [("a", "held", "quiesced", None)]
        async with fail_after(5), trio.open_nursery() as nursery:
            nursery.start_soon(keep, told, ana.follow("a"))
            await until(lambda: len(told) == 1)
            await runtime.resume(requester="ops")
    assert told == [Receipt("a", 1, "held", "quiesced"), Receipt("a", 1, "stored")]


async def test_listings_go_agent_by_agent_and_know_only_agents_that_there_are(
    world: World, virtual_time: MockClock
) -> None:
    stops = Stop(), Stop()
    async with world.open() as runtime:
        for name, stop in zip(("bo", "ana"), stops, strict=True):
            agent = await during_a_tool(world, stop, name=name)
            for number in range(70):
                await agent.send(str(number), id=str(number))
        rows = await runtime.inbox(limit=1_000)
        assert [(row.agent, row.id) for row in rows] == [
            (name, str(number)) for name in ("ana", "bo") for number in range(70)
        ]
        assert len(await runtime.inbox()) == 100
        for name in ("cy", "an", "ana\0"):
            with pytest.raises((UnknownAgentError, InvalidInputError)):
                await runtime.inbox(name)
        for stop in stops:
            stop.go.set()


BAD_LISTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "a number as agent": ({"agent": 1}, "agent"),
    "an empty agent": ({"agent": ""}, "agent"),
    "a place without agent": ({"after": 1}, "after"),
    "a negative place": ({"agent": "ana", "after": -1}, "after"),
    "a place that is a flag": ({"agent": "ana", "after": True}, "after"),
    "no limit": ({"limit": None}, "limit"),
    "a limit of none": ({"limit": 0}, "limit"),
    "a limit too far": ({"limit": 1_001}, "limit"),
    "a limit that is a flag": ({"limit": True}, "limit"),
}


@pytest.mark.parametrize(("how", "field"), BAD_LISTINGS.values(), ids=BAD_LISTINGS)
async def test_a_malformed_listing_is_refused_by_its_field(
    world: World, virtual_time: MockClock, how: dict[str, Any], field: str
) -> None:
    async with world.open() as runtime:
        await world.add([])
        with pytest.raises(InvalidInputError) as caught:
            await runtime.inbox(**how)
        assert caught.value.field == field


def test_a_row_that_cannot_be_read_hides_no_other_of_its_inbox() -> None:
    desk = BookDesk()
    desk.accept("go")
    desk.start()
    entries = [desk.accept(words)[0] for words in "abc"]
    agent = Agent(kind="resident", slot=SLOT, provider="p", model="m", created_ms=1)
    desk.store.commit(Request(puts=(Put("agents", ("ana",), codec.encode(agent)),)))
    store: Any = desk.store
    scan = store.scan

    def damaged(table: str, *args: Any, **how: Any) -> Any:
        for key, row in scan(table, *args, **how):
            bad = (table, key) == ("inbox", (SLOT, entries[1]))
            yield key, UnreadableRecordError("checksum", table=table, key=key) if bad else row

    store.scan = damaged
    rows = [row for row in listed(store, "ana") if row is not None]
    assert [(row.seq, row.state, row.cause) for row in rows] == [
        (2, "accepted", "turn"), (3, "held", "unreadable"), (4, "accepted", "turn"),
    ]  # fmt: skip


@pytest.mark.behaviour("R-14")
def test_what_waits_for_agents_that_share_a_slot_is_listed_in_the_order_it_lands() -> None:
    desk = BookDesk(None, "ana", "bo")
    desk.accept("go")
    desk.start()
    said = [desk.accept("x", agent=name)[0] for name in ("bo", "ana", "bo", "ana")]
    for name in ("ana", "bo"):
        agent = Agent(kind="resident", slot=SLOT, provider="p", model="m", created_ms=1)
        desk.store.commit(Request(puts=(Put("agents", (name,), codec.encode(agent)),)))
    rows = [row for row in listed(desk.store, None) if row is not None]
    assert [row.seq for row in rows] == said
    assert [row.agent for row in rows] == ["bo", "ana", "bo", "ana"]
    own = [row.seq for row in listed(desk.store, "ana") if row is not None]
    assert own == said[1::2]


@pytest.mark.behaviour("R-14")
async def test_a_receipt_of_a_message_whose_waiting_row_cannot_be_read_says_so(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    async with world.open() as runtime:
        ana = await during_a_tool(world, stop)
        sent = await ana.send("a", id="a")
        spoil(runtime._store, "inbox", ("ana", sent.seq), "a flipped bit")
        told: list[Receipt] = []

        async def ask() -> None:
            told.append(await ana.receipt("a"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            for _ in range(50):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert [(receipt.state, receipt.cause) for receipt in told] == [("held", "unreadable")]
        stop.go.set()
        await ana.wait_idle()


# -- receipts --------------------------------------------------------------------------------------


@pytest.mark.behaviour("R-14")
async def test_a_receipt_tells_what_became_of_a_message(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    async with world.open() as runtime:
        ana = await during_a_tool(world, stop)
        assert await ana.receipt("go") == Receipt("go", 1, "stored", read=True)
        sent = await ana.send("a", id="a")
        assert sent.state == "accepted"
        assert await ana.receipt("a") == Receipt("a", sent.seq, "accepted", "turn")
        own = await ana.send("own", "ana")
        assert await ana.receipt(own.id) == Receipt(own.id, own.seq, "held", "own")
        await ana.send("b", id="b")
        assert await ana.receipt("b") == Receipt("b", 5, "held", "behind")
        stop.go.set()
        await ana.wait_idle()
        for id_ in ("a", own.id, "b"):
            assert (await ana.receipt(id_)).state == "stored"
        await ana.rewind(to="go", requester="ops")
        assert (await ana.receipt("a")).state == "rewound"
        assert (await ana.receipt("go")).state == "stored"
        for unknown in ("c", "results-1-1"):
            with pytest.raises(UnknownMessageError):
                await ana.receipt(unknown)
        for bad in ("", 7, None, "x" * 129):
            with pytest.raises(InvalidInputError) as caught:
                await ana.receipt(bad)  # type: ignore[arg-type]
            assert caught.value.field == "id"
        assert runtime.status().agents[0].inbox == 0


@pytest.mark.behaviour("R-14")
async def test_a_follower_is_told_of_each_state_until_the_last(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    told: list[Receipt] = []
    async with world.open():
        ana = await during_a_tool(world, stop)
        await ana.send("own", "ana", id="own")

        async with fail_after(5), trio.open_nursery() as nursery:
            nursery.start_soon(keep, told, ana.follow("own"))
            await until(lambda: len(told) == 1)
            await ana.send("x")
            await wait_all_tasks_blocked()
            assert told == [Receipt("own", 3, "held", "own")]
            stop.go.set()
        assert told == [Receipt("own", 3, "held", "own"), Receipt("own", 3, "stored")]
        assert [each.state async for each in ana.follow("own")] == ["stored"]
        with pytest.raises(UnknownMessageError):
            await anext(ana.follow("never"))


@pytest.mark.behaviour("R-14")
async def test_a_follower_sees_a_message_die_with_its_agent_and_is_told_why(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Receipt] = []
    async with world.open() as runtime:
        leave_in_inbox(world, "a note", "n1", 1, wake=False)
        keep_from_landing(monkeypatch)
        ana = await world.add([])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep, told, ana.follow("n1"))
            await until(lambda: len(told) == 1)
            await runtime.remove_agent("ana", requester="ops")
    assert told == [
        Receipt("n1", 1, "accepted", "start"),
        Receipt("n1", 1, "dead", "agent 'ana' was disposed of by api:ops"),
    ]


async def test_a_follower_of_what_can_land_nowhere_is_answered_when_the_runtime_ends(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fail_after(600), trio.open_nursery() as nursery, world.open():
        leave_in_inbox(world, "a note", "n1", 1, wake=False)
        keep_from_landing(monkeypatch)
        ana = await world.add([])
        told: list[Receipt] = []

        async def follow() -> None:
            with pytest.raises(RuntimeClosedError):
                await keep(told, ana.follow("n1"))

        nursery.start_soon(follow)
        await until(lambda: [each.state for each in told] == ["accepted"])


async def test_whoever_follows_is_answered_when_the_runtime_ends(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    ended: list[str] = []
    async with trio.open_nursery() as nursery:
        async with world.open():
            ana = await during_a_tool(world, stop)
            await ana.send("a", id="a")

            async def follow() -> None:
                states = [each.state async for each in ana.follow("a")]
                ended.extend(states)

            nursery.start_soon(follow)
            await wait_all_tasks_blocked()
        await until(lambda: bool(ended))
    # The stop ended the turn, and what waited for its end landed.
    assert ended == ["accepted", "stored"]
    with pytest.raises(RuntimeClosedError):
        await ana.receipt("a")
    with pytest.raises(RuntimeClosedError):
        await anext(ana.follow("a"))


def test_a_threaded_host_lists_and_follows(tmp_path: Path) -> None:
    entered, go = threading.Event(), threading.Event()

    async def wait() -> str:
        entered.set()
        await trio.to_thread.run_sync(go.wait)
        return "done"

    with HostedRuntime(tmp_path / "state", control=False) as host:
        provider = ScriptedProvider(
            [call_tool("wait"), reply("done"), reply("again")], carries_injections=True
        )
        spec = AgentSpec(name="ana", provider=provider, model="m", tools=[tool("wait", wait)])
        ana = host.add_agent(spec)
        ana.send("go")
        entered.wait()
        ana.send_many([Draft("own", "ana", id="own"), Draft("a", id="a")])
        assert [row.state for row in host.inbox("ana")] == ["held", "held"]
        assert ana.receipt("own").cause == "own"
        states = ana.follow("a")
        assert next(states).cause == "behind"
        left = ana.follow("own")
        assert next(left).state == "held"
        left.close()
        go.set()
        assert [each.state for each in states] == ["stored"]
        ana.wait_idle()
        assert host.inbox() == ()
        again = ana.follow("a")
        assert next(again).state == "stored"
    again.close()
