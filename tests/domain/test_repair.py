"""After a repair of a row that could not be read, its agent runs again, and nothing is said twice.

The damage and the stores are those of `test_bad_rows`; what a repair puts in the place of each
table's row is `storage/mending_rules`.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors.testing import call_tool, fail, reply
from abeyance.storage.check import check
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.repair import listed, repair, undo
from abeyance.storage.tables import TABLES

from .damage import DAMAGES, damage
from .test_bad_rows import again, held
from .world import World, shown, tool, until

TABLE: dict[str, tuple[Any, ...] | int] = {
    "owners": ("slot", "ana"),
    "agents": ("ana",),
    "leases": ("ana",),
    "heads": ("ana",),
    "turns": ("ana", 2),
    "wakes": -1,
    "carried": ("ana", 3),
    "ids": ("ana", "id-a"),
    "bodies": ("ana", 1),
    "slots": ("ana", 1),
    "waits": ("ana", "m"),
    "tool_calls": ("ana", 1, 1, 0),
    "log": -1,
    "alerts": -1,
}


def mended(world: World) -> dict[str, Any]:
    """Repair the stopped store: nothing is left to find, and each row is kept."""
    copy = world.directory.with_name("before")
    done = repair(world.directory, copy, clock_ms=world.clock.now_ms)
    store = LmdbStore.open(world.directory, clock_ms=world.clock.now_ms, read_only=True)
    try:
        assert check(store).findings == ()
        kept = list(listed(store))
        assert done.stays == ()
        assert len(kept) == done.rows >= 1
        return {each.table: each for each in kept}
    finally:
        store.close()


def image(world: World) -> dict[str, Any]:
    store = LmdbStore.open(world.directory, clock_ms=world.clock.now_ms, read_only=True)
    try:
        tables = [each for each in TABLES if each not in ("set_aside", "sequences")]
        page = store._environment.page
        return {
            each: page(each, b"", after=None, reverse=False, rows_max=10**6, bytes_max=10**9)
            for each in tables
        }
    finally:
        store.close()


@pytest.mark.drawn(14)
@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("table", TABLE)
async def test_agent_whose_row_could_not_be_read_runs_after_a_repair_and_says_nothing_twice(
    world: World, virtual_time: MockClock, table: str, how: str
) -> None:
    key: Any = TABLE[table]
    async with world.open() as runtime:
        await held(world)
        if key == -1:
            prefix = ("ana",) if TABLES[table].key[0] is str else ()
            key = list(runtime._store.scan(table, prefix))[-1][0]
    damage(world.directory, world.clock, table, key, how)
    damaged = image(world)
    assert table in mended(world)
    undone = undo(world.directory)
    assert undone.stays == ()
    assert image(world) == damaged, "put back byte by byte"
    copy = world.directory.with_name("again")
    repair(world.directory, copy, clock_ms=world.clock.now_ms)
    async with world.open() as runtime:
        with trio.fail_after(600):
            ana = await again(world, "ana")
            await ana.wait_idle()
            # The wait that held it holds, or one that a person ends.
            assert world.providers[-1].requests == []
            await runtime.release_provider_wait("ana", requester="ops")
            await ana.wait_idle()
            await ana.send("d", id="id-d")
            await ana.wait_idle()
        assert world.state("ana").state == "idle"
        said = await shown(ana)
        assert said[-1] == "assistant: again"
        assert said.count("user: b") == said.count("user: d") == 1
        if table not in ("bodies", "slots"):
            assert said.count("user: a") == 1
        numbers = [seq for (_, seq), _ in runtime._store.scan("slots", ("ana",))]
        assert len(set(numbers)) == len(numbers)
        bo = await again(world, "bo")
        await bo.wait_idle()
        assert world.state("bo").held.cause == "wait"
    store = LmdbStore.open(world.directory, clock_ms=world.clock.now_ms, read_only=True)
    assert check(store).findings == ()
    store.close()


@pytest.mark.parametrize("place", [2, 3], ids=["the call", "its result"])
@pytest.mark.parametrize("table", ["bodies", "slots"])
async def test_a_tool_pair_of_which_a_part_is_gone_is_still_a_pair(
    world: World, virtual_time: MockClock, table: str, place: int
) -> None:
    async with world.open():
        script = [call_tool("look"), reply("one")]
        ana = await world.add(script, tools=[tool("look", lambda: "x")])
        await ana.send("a")
        await ana.wait_idle()
    damage(world.directory, world.clock, table, ("ana", place), "a flipped bit")
    mended(world)
    async with world.open():
        ana = await again(world, "ana")
        await ana.send("b")
        await ana.wait_idle()
        request = world.providers[-1].requests[-1]
        blocks = [block for message in request.messages for block in message.blocks]
        calls = [block.id for block in blocks if hasattr(block, "input")]
        results = [block.tool_use_id for block in blocks if hasattr(block, "tool_use_id")]
        assert calls == results
        assert len(calls) == 1
        assert (await shown(ana))[-1] == "assistant: again"


async def test_a_turn_that_ran_at_a_death_is_cancelled_where_its_row_was_damaged(
    world: World, virtual_time: MockClock
) -> None:
    effects: list[str] = []
    async with world.open():
        ana = await world.add(
            [call_tool("look"), fail(429, retry_after=7_200)],
            tools=[tool("look", lambda: effects.append("x") or "x")],
        )
        await ana.send("a")
        await ana.wait_idle()
    damage(world.directory, world.clock, "turns", ("ana", 1), "a flipped bit")
    mended(world)
    async with world.open():
        ana = await again(world, "ana")
        await until(lambda: world.turns("ana")[-1].state == "cancelled")
    assert effects == ["x"]


async def test_what_was_rewound_stays_out_of_a_transcript_whose_head_was_damaged(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([reply("one"), reply("two")])
        for words in ("a", "secret"):
            await ana.send(words)
            await ana.wait_idle()
        await ana.rewind(to=2, requester="ops")
    damage(world.directory, world.clock, "leases", ("ana",), "a flipped bit")
    mended(world)
    async with world.open():
        ana = await again(world, "ana")
        assert await shown(ana) == ["user: a", "assistant: one"]
        await ana.send("b")
        await ana.wait_idle()
        assert await shown(ana) == ["user: a", "assistant: one", "user: b", "assistant: again"]
        assert "secret" not in str(world.providers[-1].requests[-1])


@pytest.mark.parametrize("how", DAMAGES)
async def test_a_bad_row_of_what_a_repair_set_aside_costs_its_undoing_and_nothing_else(
    world: World, virtual_time: MockClock, how: str
) -> None:
    async with world.open():
        await held(world)
    damage(world.directory, world.clock, "ids", ("ana", "id-a"), "a flipped bit")
    mended(world)
    damage(world.directory, world.clock, "set_aside", (1,), how)
    assert undo(world.directory).rows == 0
    async with world.open() as runtime:
        ana = await again(world, "ana")
        await runtime.release_provider_wait("ana", requester="ops")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: again"
