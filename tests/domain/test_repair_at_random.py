"""Any rows of a store damaged or gone at once: after a repair its agents run, and it is sound."""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import MockClock

from abeyance.storage.check import check
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.repair import repair
from abeyance.storage.tables import TABLES

from .damage import DAMAGES, GONE, spoil
from .test_bad_rows import again, held
from .world import World, shown


@pytest.mark.drawn(3)
@pytest.mark.parametrize("seed", range(40))
async def test_agents_of_a_store_of_which_any_rows_are_damaged_or_gone_run_after_a_repair(
    world: World, virtual_time: MockClock, seed: int
) -> None:
    rng = random.Random(seed)
    async with world.open():
        await held(world)
    store = LmdbStore.open(world.directory, clock_ms=world.clock.now_ms)
    rows = [(table, key) for table in TABLES if table != "meta" for key, _ in store.scan(table)]
    for table, key in rng.sample(rows, rng.choice([2, 4, 8, 20])):
        spoil(store, table, key, rng.choice([*DAMAGES, GONE]))
    store.close()
    copy = world.directory.with_name("before")
    assert repair(world.directory, copy, clock_ms=world.clock.now_ms).stays == ()
    store = LmdbStore.open(world.directory, clock_ms=world.clock.now_ms, read_only=True)
    assert check(store).findings == ()
    store.close()
    async with world.open() as runtime:
        if list(runtime._store.scan("modes")):
            await runtime.resume()
        for name in ("ana", "bo"):
            with trio.fail_after(600):
                agent = await again(world, name)
                await agent.wait_idle()
                await runtime.release_provider_wait(name, requester="ops")
                await agent.wait_idle()
                await agent.send("d", id="id-d")
                await agent.wait_idle()
            assert (await shown(agent))[-1].startswith("assistant: ")
