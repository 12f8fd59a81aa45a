"""A row that cannot be read in each table of runs: its run is held or refused, and only it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from trio.testing import MockClock

from abeyance.actors import RunContext
from abeyance.actors.ops.stopped import StoppedStore
from abeyance.storage import codec
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Committed, Put, Request

from .damage import DAMAGES, damage
from .test_runs import HOUR, Effects, comes, settled, wall
from .world import World, until

each_damage = pytest.mark.parametrize("how", DAMAGES)


def two(effects: Effects) -> Any:
    async def body(run: RunContext, params: Any) -> None:
        await run.do("before", effects, f"before {run.key}")
        await run.do("call", effects, run.key)

    return body


@pytest.fixture
async def waiting_two(world: World, virtual_time: MockClock) -> Effects:
    """Runs `ana` and `bo` of a store that is closed, both waiting for an hour."""
    effects = Effects()
    async with world.open() as runtime:
        runtime.add_workflow("two", two(effects))
        ends = world.clock.now_ms() + HOUR
        effects.raising = {"ana": [wall(ends)], "bo": [wall(ends)]}
        for key in ("ana", "bo"):
            await runtime.start_run(key, "two")
        await until(lambda: len(runtime.runs(state="waiting_for_capacity")) == 2)
    return effects


@each_damage
async def test_bad_row_of_a_run_holds_that_run_alone(
    world: World, virtual_time: MockClock, waiting_two: Effects, how: str
) -> None:
    damage(world.directory, world.clock, "runs", ("ana", 1), how)
    async with world.open() as runtime:
        runtime.add_workflow("two", two(waiting_two))
        await comes(lambda: runtime.run("bo").ended)
        for ask in (runtime.run, runtime.run_steps):
            with pytest.raises(UnreadableRecordError) as caught:
                ask("ana")
            assert (caught.value.table, caught.value.key) == ("runs", ("ana", 1))
        with pytest.raises(UnreadableRecordError):
            await runtime.start_run("ana", "two")
        with pytest.raises(UnreadableRecordError):
            await runtime.resume_run("ana", requester="ops")
        assert world.ref("runs")._cell.incarnation == 1
    assert waiting_two.log == ["before ana", "before bo", "bo"]


@each_damage
async def test_bad_row_of_a_key_starts_no_other_run_of_it(
    world: World, virtual_time: MockClock, waiting_two: Effects, how: str
) -> None:
    damage(world.directory, world.clock, "run_keys", ("ana",), how)
    async with world.open() as runtime:
        runtime.add_workflow("two", two(waiting_two))
        with pytest.raises(UnreadableRecordError) as caught:
            await runtime.start_run("ana", "two")
        assert (caught.value.table, caught.value.key) == ("run_keys", ("ana",))
        await comes(lambda: runtime.run("bo").ended)
        # It goes on as far as it can: its end is a row that cannot be put over the bad one.
        await comes(lambda: "ana" in waiting_two.log)
        await settled()
        assert runtime.run("ana@1").state == "running"
        # Given up here, and begun again by an operator.
        kept = world.ref("runs")._cell.kept
        assert {str(run) for run in kept.given_up} == {"ana@1"}
        status = runtime.run("ana@1")
        assert status.executed is False
        assert status.given_up is not None
        assert "run_keys" in status.given_up
        assert status.text() == (
            "Interrupted \u00b7 given up here, goes on when somebody resumes it (abeyance resume)"
            f" or a host starts: {status.given_up}"
        )
        [listed] = runtime.runs(state="running")
        assert listed == status
        assert (await runtime.resume_run("ana@1", requester="ops")).changed
        await until(lambda: not kept.lives and bool(kept.given_up))
        again = await runtime.start_run("bo", "two")
        assert (await again.wait()).state == "completed"
        assert world.ref("runs")._cell.incarnation == 1
    assert waiting_two.log.count("ana") == waiting_two.log.count("before ana") == 1


@each_damage
async def test_bad_row_of_an_item_leaves_its_run_to_an_operator(
    world: World, virtual_time: MockClock, waiting_two: Effects, how: str
) -> None:
    damage(world.directory, world.clock, "run_items", ("ana", 1, 0), how)
    async with world.open() as runtime:
        runtime.add_workflow("two", two(waiting_two))
        await comes(lambda: runtime.run("bo").ended)
        await comes(lambda: runtime.run("ana").state == "recovery_required")
        assert "cannot be read" in runtime.run("ana").reason
        await runtime.cancel_run("ana", requester="ops")
    assert waiting_two.log == ["before ana", "before bo", "bo"]


@each_damage
async def test_bad_row_of_the_index_hides_no_run(
    world: World, virtual_time: MockClock, waiting_two: Effects, how: str
) -> None:
    async with world.open() as runtime:
        due = runtime.run("ana").resume_after_ms
        assert due is not None
    damage(world.directory, world.clock, "run_index", ("waiting", due, "ana", 1), how)
    async with world.open() as runtime:
        runtime.add_workflow("two", two(waiting_two))
        await comes(lambda: runtime.run("bo").ended and runtime.run("ana").ended)
    assert sorted(waiting_two.log) == ["ana", "before ana", "before bo", "bo"]


@each_damage
async def test_bad_row_of_the_history_costs_nothing_but_itself(
    world: World, virtual_time: MockClock, waiting_two: Effects, how: str
) -> None:
    damage(world.directory, world.clock, "run_transitions", ("ana", 1, 1), how)
    async with world.open() as runtime:
        runtime.add_workflow("two", two(waiting_two))
        await comes(lambda: runtime.run("ana").ended)
        assert [step.after for step in runtime.run_history("ana")] == [
            "waiting_for_capacity",
            "resuming",
            "running",
            "completed",
        ]


@each_damage
@pytest.mark.parametrize("state", [None, "open", "waiting_for_capacity"])
async def test_run_whose_row_cannot_be_read_is_listed_as_that_beside_the_others(
    world: World, virtual_time: MockClock, waiting_two: Effects, how: str, state: Any
) -> None:
    damage(world.directory, world.clock, "runs", ("ana", 1), how)
    async with world.open() as runtime:
        ana, bo = sorted(runtime.runs(state=state), key=lambda each: each.key)
        assert (ana.id, ana.state, bo.state) == ("ana@1", "unreadable", "waiting_for_capacity")
        assert ana.unreadable is not None
        assert ana.unreadable in ana.text()
        assert ana.workflow == ("" if state is None else "two")
        assert bo.unreadable is None
        listed = {each.id for each in runtime.runs(state="open", workflow="two")}
        assert listed == {"ana@1", "bo@1"}
        assert runtime.runs(state="completed") == ()
        assert runtime.runs(state="open", workflow="other") == ()
    store = StoppedStore(world.directory, writing=False)
    assert {each.state for each in store.runs().runs} == {"unreadable", "waiting_for_capacity"}
    store.close()


@pytest.mark.parametrize("state", [None, "completed"])
async def test_result_that_an_earlier_version_kept_and_nobody_can_read_hides_nothing_else(
    world: World, virtual_time: MockClock, state: Any
) -> None:
    """Maps whose keys are no text were kept, and are not read."""

    async def body(run: RunContext, params: Any) -> Any:
        return await run.do("act", lambda: {"a": params})

    async with world.open() as runtime:
        runtime.add_workflow("w", body)
        for key in ("ana", "bo"):
            await (await runtime.start_run(key, "w", key)).wait()
    kept = codec.pack({17: 1})
    store = LmdbStore.open(world.directory, clock_ms=lambda: 1)
    for table, key in (("runs", ("ana", 1)), ("run_items", ("ana", 1, 0))):
        row = store.get(table, key)
        assert row is not None
        put = Put(table, key, codec.encode(replace(row.record, result=kept)))
        assert isinstance(store.commit(Request(puts=(put,)))[0], Committed)
    store.close()
    async with world.open() as runtime:
        runtime.add_workflow("w", body)
        ana, bo = sorted(runtime.runs(state=state), key=lambda each: each.key)
        assert (ana.state, ana.result, bo.result) == ("completed", None, {"a": "bo"})
        assert ana.unreadable is not None
        assert ana.unreadable.startswith("its result cannot be read")
        assert runtime.run("ana") == ana
        (step,) = runtime.run_steps("ana")
        assert (step.state, step.result) == ("done", None)
        assert "cannot be read" in step.error
        assert runtime.run_steps("bo")[0].result == {"a": "bo"}
        assert (await (await runtime.start_run("ana", "w", 1)).wait()).result == {"a": 1}


async def test_run_that_stands_behind_a_result_nobody_can_read_waits_for_an_operator(
    world: World, virtual_time: MockClock, waiting_two: Effects
) -> None:
    store = LmdbStore.open(world.directory, clock_ms=lambda: 1)
    row = store.get("run_items", ("ana", 1, 0))
    assert row is not None
    bad = replace(row.record, result=codec.pack({17: 1}))
    store.commit(Request(puts=(Put("run_items", ("ana", 1, 0), codec.encode(bad)),)))
    store.close()
    async with world.open() as runtime:
        runtime.add_workflow("two", two(waiting_two))
        await comes(lambda: runtime.run("bo").ended)
        await comes(lambda: runtime.run("ana").state == "recovery_required")
        assert "cannot be read" in runtime.run("ana").reason
    assert waiting_two.log == ["before ana", "before bo", "bo"]
