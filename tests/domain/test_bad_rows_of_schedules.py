"""A row that cannot be read in each table of schedules: its schedule is held, and only it."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from abeyance.actors import Runtime
from abeyance.storage.errors import UnreadableRecordError

from .damage import DAMAGES, damage
from .test_runs import settled
from .test_schedules import HOUR, MINUTE, Job, passes, told
from .world import World, until

each_damage = pytest.mark.parametrize("how", DAMAGES)


@pytest.fixture
async def two(world: World, virtual_time: MockClock) -> int:
    """Schedules `ana` and `bo` of a store that is closed, both due in an hour; since when."""
    job = Job()
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        began = world.clock.now_ms()
        for name in ("ana", "bo"):
            await runtime.add_schedule(name, "report", every=3_600)
    return began


async def started(world: World, runtime: Runtime, job: Job, until_ms: int) -> None:
    runtime.add_workflow("report", job.body)
    await passes(world, until_ms)
    await until(lambda: any(run.key == "bo" and run.ended for run in runtime.runs()))
    await settled()


@each_damage
async def test_bad_row_of_a_schedule_holds_that_schedule_alone(
    world: World, virtual_time: MockClock, two: int, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    damage(world.directory, world.clock, "schedules", ("ana",), how)
    async with world.open() as runtime:
        await started(world, runtime, Job(), two + HOUR + 3 * MINUTE)
        assert [run.key for run in runtime.runs()] == ["bo"]
        assert [each.name for each in runtime.schedules()] == ["bo"]
        for verb in (runtime.pause_schedule, runtime.remove_schedule):
            with pytest.raises(UnreadableRecordError) as caught:
                await verb("ana", requester="ops")
            assert (caught.value.table, caught.value.key) == ("schedules", ("ana",))
        with pytest.raises(UnreadableRecordError):
            await runtime.add_schedule("ana", "report", every=60)
        assert world.ref("schedules")._cell.incarnation == 1
    named = [
        each for each in caplog.records if "'ana' is due and cannot be decided" in each.message
    ]
    assert len(named) == 1, "it is told of once, not at every look"


@each_damage
async def test_bad_row_of_the_index_hides_no_schedule(
    world: World, virtual_time: MockClock, two: int, how: str
) -> None:
    damage(world.directory, world.clock, "schedule_index", (two + HOUR, "ana"), how)
    async with world.open() as runtime:
        job = Job()
        await started(world, runtime, job, two + HOUR)
        await until(lambda: len(job.due) == 2)
        assert [key for key, _ in runtime._store.scan("schedule_index")] == [
            (two + 2 * HOUR, "ana"),
            (two + 2 * HOUR, "bo"),
        ]


@each_damage
async def test_bad_row_of_an_occurrence_costs_nothing_but_itself(
    world: World, virtual_time: MockClock, two: int, how: str
) -> None:
    async with world.open() as runtime:
        await started(world, runtime, Job(), two + HOUR)
        await until(lambda: runtime.schedule("ana").occurrences == 1)
    damage(world.directory, world.clock, "occurrences", ("ana", 1), how)
    async with world.open() as runtime:
        runtime.add_workflow("report", Job().body)
        await passes(world, two + 2 * HOUR)
        await until(lambda: told(runtime, "ana") == [(two + 2 * HOUR, "started", "ana@2")])


@each_damage
async def test_bad_row_of_a_runs_key_leaves_its_schedule_due_and_the_others_alone(
    world: World, virtual_time: MockClock, two: int, how: str
) -> None:
    async with world.open() as runtime:
        await started(world, runtime, Job(), two + HOUR)
        await until(lambda: runtime.schedule("ana").occurrences == 1)
    damage(world.directory, world.clock, "run_keys", ("ana",), how)
    async with world.open() as runtime:
        runtime.add_workflow("report", Job().body)
        await passes(world, two + 2 * HOUR + MINUTE)
        await until(lambda: runtime.schedule("bo").occurrences == 2)
        status = runtime.schedule("ana")
        assert (status.occurrences, status.next_ms) == (1, two + 2 * HOUR)


async def test_zone_that_this_machine_does_not_know_leaves_its_schedule_due(
    world: World, virtual_time: MockClock, two: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.open() as runtime:
        runtime.add_workflow("report", Job().body)
        await runtime.add_schedule("far", "report", cron="* * * * *", zone="Asia/Tokyo")

    def unknown(key: str) -> None:
        raise KeyError(key)

    monkeypatch.setattr("abeyance.actors.domain.timetable.ZoneInfo", unknown)
    async with world.open() as runtime:
        await started(world, runtime, Job(), two + HOUR + MINUTE)
        assert [run.key for run in runtime.runs()] == ["ana", "bo"]
        assert runtime.schedule("far").occurrences == 0
