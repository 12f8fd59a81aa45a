"""After a repair of a row of runs, schedules, approvals, inboxes and modes: what then goes on.

The stores are those of the tests of bad rows in these tables.
"""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from abeyance.actors.testing import call_tool, reply
from abeyance.storage.check import check
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.repair import repair

from .damage import damage
from .test_approvals import Pay
from .test_bad_rows_of_runs import two as steps
from .test_bad_rows_of_runs import waiting_two  # noqa: F401
from .test_bad_rows_of_schedules import two  # noqa: F401
from .test_repair import mended
from .test_runs import HOUR, Effects, comes, settled
from .test_schedules import Job, passes
from .world import World, shown, until

BIT = "a flipped bit"


async def test_a_run_whose_row_was_damaged_has_failed_and_another_of_its_key_starts(
    world: World,
    virtual_time: MockClock,
    waiting_two: Effects,  # noqa: F811
) -> None:
    damage(world.directory, world.clock, "runs", ("ana", 1), BIT)
    mended(world)
    async with world.open() as runtime:
        runtime.add_workflow("two", steps(waiting_two))
        await comes(lambda: runtime.run("bo").ended)
        await settled()
        assert runtime.run("ana").state == "failed"
        assert waiting_two.log == ["before ana", "before bo", "bo"], "nothing is done again"
        again = await runtime.start_run("ana", "two")
        assert (await again.wait()).state == "completed"
        assert runtime.run("ana").id == "ana@2"


@pytest.mark.parametrize("table", ["run_keys", "run_index", "run_transitions"])
async def test_a_run_goes_on_where_what_other_rows_say_of_it_was_damaged(
    world: World,
    virtual_time: MockClock,
    waiting_two: Effects,  # noqa: F811
    table: str,
) -> None:
    store = LmdbStore.open(world.directory, clock_ms=world.clock.now_ms, read_only=True)
    key = next(key for key, _ in store.scan(table) if "ana" in key)
    store.close()
    damage(world.directory, world.clock, table, key, BIT)
    mended(world)
    async with world.open() as runtime:
        runtime.add_workflow("two", steps(waiting_two))
        await comes(lambda: runtime.run("bo").ended and runtime.run("ana").ended)
        assert runtime.run("ana").state == "completed"
        again = await runtime.start_run("ana", "two")
        assert (await again.wait()).state == "completed"
    assert waiting_two.log.count("bo") == 1


async def test_a_step_that_was_damaged_stays_until_its_run_is_cancelled(
    world: World,
    virtual_time: MockClock,
    waiting_two: Effects,  # noqa: F811
) -> None:
    damage(world.directory, world.clock, "run_items", ("ana", 1, 0), BIT)
    copy = world.directory.with_name("one")
    done = repair(world.directory, copy, clock_ms=world.clock.now_ms)
    assert [each.finding.table for each in done.stays] == ["run_items"]
    async with world.open() as runtime:
        runtime.add_workflow("two", steps(waiting_two))
        await comes(lambda: runtime.run("ana").state == "recovery_required")
        await runtime.cancel_run("ana", requester="ops")
    mended(world)
    assert waiting_two.log.count("before ana") == 1


@pytest.mark.parametrize("table", ["schedules", "schedule_index"])
async def test_a_schedule_that_was_damaged_is_removed_or_as_its_other_row_says(
    world: World,
    virtual_time: MockClock,
    two: int,  # noqa: F811
    table: str,
) -> None:
    key: Any = ("ana",) if table == "schedules" else (two + HOUR, "ana")
    damage(world.directory, world.clock, table, key, BIT)
    mended(world)
    job = Job()
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        await passes(world, two + HOUR)
        await until(lambda: len(job.due) == (1 if table == "schedules" else 2))
        await settled()
        if table == "schedules":
            assert [each.name for each in runtime.schedules()] == ["bo"]
            await runtime.add_schedule("ana", "report", every=3_600)
        assert runtime.schedule("ana").state == "active"


async def test_a_call_whose_approval_was_damaged_waits_for_a_person_and_is_begun_once(
    world: World, virtual_time: MockClock
) -> None:
    pay = Pay()
    async with world.open():
        ana = await world.add([call_tool("pay")], tools=[pay.tool()])
        await ana.send("go")
        await ana.wait_idle()
    store = LmdbStore.open(world.directory, clock_ms=world.clock.now_ms, read_only=True)
    ((key, _),) = store.scan("approvals")
    store.close()
    damage(world.directory, world.clock, "approvals", key, BIT)
    mended(world)
    async with world.open() as runtime:
        ana = await world.add([reply("done")], tools=[pay.tool()])
        await until(lambda: len(runtime.approvals()) == 1)
        assert pay.effects == []
        await runtime.approve(runtime.approvals()[0].id, requester="ops")
        await ana.wait_idle()
        assert pay.effects == [1]
        assert (await shown(ana))[-1] == "assistant: done"


async def test_a_host_whose_mode_was_damaged_is_quiesced_until_a_person_ends_that(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await runtime.quiesce("r")
        await runtime.resume()
    damage(world.directory, world.clock, "modes", ("host",), BIT)
    mended(world)
    async with world.open() as runtime:
        ana = await world.add([reply("yes")])
        await ana.send("go")
        await settled()
        assert world.providers[-1].requests == []
        await runtime.resume()
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: yes"
    store = LmdbStore.open(world.directory, clock_ms=world.clock.now_ms, read_only=True)
    assert check(store).findings == ()
    store.close()
