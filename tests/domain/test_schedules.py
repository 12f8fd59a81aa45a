"""Schedules: each occurrence starts one run or is recorded as what kept it from that."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import (
    InvalidScheduleError,
    RunContext,
    Runtime,
    UnknownScheduleError,
    UnknownWorkflowError,
)
from abeyance.actors.domain.errors import InvalidInputError, NotPermittedError, NotStoredError
from abeyance.actors.domain.schedules import LOOK_EVERY_S, Schedules
from abeyance.actors.events import ScheduleOccurred
from abeyance.storage.errors import DiskFullError
from abeyance.storage.store import Request
from abeyance.storage.tables.schedules import KEPT_MAX

from .test_runs import RefusingStore, settled, wall
from .test_runs_parked import parked
from .world import World, until

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000


class Job:
    """A workflow of one item, which tells when each of its runs was due; some meet a wall."""

    def __init__(self) -> None:
        self.due: list[int | None] = []
        self.raising: list[BaseException] = []

    async def body(self, run: RunContext, params: Any) -> Any:
        return await run.do("work", self._work, run.due_ms, in_doubt="retry")

    async def _work(self, due_ms: int | None) -> None:
        if self.raising:
            raise self.raising.pop(0)
        self.due.append(due_ms)


async def passes(world: World, until_ms: int) -> None:
    """Let time pass until the wall clock reads an instant, and what is due then be done."""
    while (left_ms := until_ms - world.clock.now_ms()) > 0:
        await trio.sleep(min(left_ms / 1_000, 30.0))
        await settled()
    await settled()


def told(runtime: Runtime, name: str = "nightly") -> list[tuple[int, str, str | None]]:
    """What became of each occurrence, oldest first: when it was due, what, and why or its run."""
    return [
        (each.due_ms, each.outcome, each.run if each.outcome == "started" else each.cause)
        for each in reversed(runtime.occurrences(name))
    ]


# -- being due


@pytest.mark.behaviour("S-026")
async def test_schedule_starts_a_run_when_it_is_due_and_not_before(
    world: World, virtual_time: MockClock
) -> None:
    job = Job()
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        began = world.clock.now_ms()
        receipt = await runtime.add_schedule("nightly", "report", {"a": 1}, every=3_600)
        assert (receipt.state, receipt.changed) == ("active", True)
        await passes(world, began + HOUR - 1)
        assert runtime.runs() == ()
        await passes(world, began + HOUR)
        await until(lambda: job.due == [began + HOUR])
        run = runtime.run("nightly")
        assert (run.id, run.schedule, run.due_ms) == ("nightly@1", "nightly", began + HOUR)
        assert runtime.run_history("nightly")[0].by == "schedule:nightly"
        await passes(world, began + 3 * HOUR)
        await until(lambda: len(job.due) == 3)
        await until(
            lambda: (
                told(runtime) == [(began + n * HOUR, "started", f"nightly@{n}") for n in (1, 2, 3)]
            )
        )
        status = runtime.schedule("nightly")
        assert (status.next_ms, status.occurrences) == (began + 4 * HOUR, 3)
        assert (status.workflow, status.params, status.every_s) == ("report", {"a": 1}, 3_600)
        assert runtime.schedules() == (status,)


async def test_schedule_by_a_cron_expression_is_due_by_the_clock_of_its_zone(
    world: World, virtual_time: MockClock
) -> None:
    vienna = ZoneInfo("Europe/Vienna")
    change = round(datetime(2027, 3, 28, 1, tzinfo=vienna).timestamp() * 1_000)
    job = Job()
    world.clock.advance(change - world.clock.now_ms())
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        await runtime.add_schedule("nightly", "report", cron="30 2 * * *", zone="Europe/Vienna")
        await passes(world, change + 26 * HOUR)
        await until(lambda: len(job.due) == 2)
    # Half past two does not exist that night: due as the clock goes from two to three.
    assert job.due == [change + HOUR, change + HOUR + 23 * HOUR + 30 * MINUTE]


async def test_hundred_schedules_have_one_alarm_and_no_task(
    world: World, virtual_time: MockClock
) -> None:
    job = Job()
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        await settled()
        tasks = count_tasks()
        for number in range(100):
            await runtime.add_schedule(f"s{number}", "report", every=3_600)
        await settled()
        assert count_tasks() == tasks
        assert set(world.ref("alarm")._cell.kept.instants) == {"schedules"}
        await passes(world, world.clock.now_ms() + HOUR)
        await until(lambda: len(job.due) == 100)
        assert all(each.occurrences == 1 for each in runtime.schedules())


def count_tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


async def test_occurrence_emits_an_event_that_names_its_run(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        runtime.add_workflow("report", Job().body)
        events = runtime.events(kinds=["schedule_occurred"])
        began = world.clock.now_ms()
        await runtime.add_schedule("nightly", "report", every=60)
        await passes(world, began + MINUTE)
        event = await anext(aiter(events))
        assert isinstance(event, ScheduleOccurred)
        assert (event.schedule, event.due_ms) == ("nightly", began + MINUTE)
        assert (event.outcome, event.run) == ("started", "nightly@1")


# -- one run of a key


@pytest.mark.behaviour("S-042")
async def test_schedule_starts_nothing_while_a_run_of_its_key_waits(
    world: World, virtual_time: MockClock
) -> None:
    job = Job()
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        began = world.clock.now_ms()
        job.raising = [wall(began + 4 * HOUR + 30 * MINUTE)]
        await runtime.add_schedule("nightly", "report", every=3_600)
        await passes(world, began + 4 * HOUR)
        assert [run.id for run in runtime.runs()] == ["nightly@1"]
        assert runtime.run("nightly").state == "waiting_for_capacity"
        assert job.due == []
        await until(
            lambda: (
                told(runtime)
                == [
                    (began + HOUR, "started", "nightly@1"),
                    *((began + n * HOUR, "skipped", "run_open") for n in (2, 3, 4)),
                ]
            )
        )
        assert {each.run for each in runtime.occurrences("nightly")} == {"nightly@1"}
        await passes(world, began + 5 * HOUR)
        await until(lambda: job.due == [began + HOUR, began + 5 * HOUR])
        assert [run.id for run in runtime.runs()] == ["nightly@1", "nightly@2"]


@pytest.mark.behaviour("S-042")
async def test_occurrence_is_skipped_while_a_run_that_somebody_started_has_its_key(
    world: World, virtual_time: MockClock
) -> None:
    job = Job()
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        job.raising = [wall(None)]
        await runtime.start_run("books", "report")
        began = world.clock.now_ms()
        await runtime.add_schedule("nightly", "report", every=60, key="books")
        await passes(world, began + MINUTE)
        await until(lambda: told(runtime) == [(began + MINUTE, "skipped", "run_open")])
        await runtime.cancel_run("books", requester="ops")
        await passes(world, began + 2 * MINUTE)
        await until(lambda: job.due == [began + 2 * MINUTE])
        assert runtime.run("books@2").schedule == "nightly"


async def test_run_that_ends_as_an_occurrence_is_decided_lets_it_start(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the key and the commit the run ends: the decision is made again."""
    job = Job()
    ask = Schedules._ask
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        job.raising = [wall(None)]
        await runtime.start_run("nightly", "report")
        await until(lambda: runtime.run("nightly").state == "waiting_for_capacity_unknown")

        async def ends_first(self: Schedules, request: Request) -> bool:
            if runtime.run("nightly@1").state != "cancelled":
                await runtime.cancel_run("nightly", requester="ops")
            return await ask(self, request)

        monkeypatch.setattr(Schedules, "_ask", ends_first)
        began = world.clock.now_ms()
        await runtime.add_schedule("nightly", "report", every=60)
        await passes(world, began + MINUTE)
        await until(lambda: told(runtime) == [(began + MINUTE, "started", "nightly@2")])


# -- what was missed


async def test_occurrences_that_passed_while_the_process_was_dead_start_one_run(
    world: World, virtual_time: MockClock
) -> None:
    job = Job()
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        began = world.clock.now_ms()
        await runtime.add_schedule("nightly", "report", every=3_600)
    world.clock.advance(5 * HOUR + 10 * MINUTE)
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        await until(lambda: job.due == [began + 5 * HOUR])
        await settled()
        await until(
            lambda: (
                told(runtime)
                == [
                    (began + HOUR, "missed", "late"),
                    (began + 5 * HOUR, "started", "nightly@1"),
                ]
            )
        )
        missed = runtime.occurrences("nightly")[-1]
        assert missed.until_ms == began + 5 * HOUR
        assert runtime.schedule("nightly").next_ms == began + 6 * HOUR


@pytest.mark.parametrize(("late_minutes", "started"), [(9, True), (10, True), (11, False)], ids=str)
async def test_occurrence_later_than_the_schedule_allows_is_recorded_as_missed(
    world: World, virtual_time: MockClock, late_minutes: int, started: bool
) -> None:
    job = Job()
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        began = world.clock.now_ms()
        await runtime.add_schedule("nightly", "report", every=3_600, late_s=600)
    world.clock.advance(began + 2 * HOUR + late_minutes * MINUTE - world.clock.now_ms())
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        await until(lambda: runtime.schedule("nightly").next_ms == began + 3 * HOUR)
        await until(lambda: job.due == ([began + 2 * HOUR] if started else []))
        outcomes = [each[1] for each in told(runtime)]
        assert outcomes == (["missed", "started"] if started else ["missed"])
        until_ms = runtime.occurrences("nightly")[-1].until_ms
        assert until_ms is not None
        assert (until_ms > began + 2 * HOUR) is not started


async def test_schedule_whose_workflow_nobody_has_stays_due_until_somebody_does(
    world: World, virtual_time: MockClock
) -> None:
    job = Job()
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        began = world.clock.now_ms()
        await runtime.add_schedule("nightly", "report", every=3_600)
    async with world.open() as runtime:
        await passes(world, began + 2 * HOUR)
        assert runtime.occurrences("nightly") == ()
        runtime.add_workflow("report", job.body)
        await until(lambda: job.due == [began + 2 * HOUR])
        assert [each[1] for each in told(runtime)] == ["missed", "started"]


async def test_quiesced_host_starts_no_occurrence_and_one_when_it_resumes(
    world: World, virtual_time: MockClock
) -> None:
    job = Job()
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        began = world.clock.now_ms()
        await runtime.add_schedule("nightly", "report", every=60)
        await runtime.quiesce("upgrade")
        await passes(world, began + 3 * MINUTE)
        assert runtime.runs() == ()
        assert runtime.occurrences("nightly") == ()
        await runtime.resume()
        await until(lambda: job.due == [began + 3 * MINUTE])
        assert [each[1] for each in told(runtime)] == ["missed", "started"]


# -- clocks that are set


async def test_clock_that_is_set_forward_starts_one_run_of_what_it_passed_over(
    world: World, virtual_time: MockClock
) -> None:
    job = Job()
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        began = world.clock.now_ms()
        await runtime.add_schedule("nightly", "report", every=3_600)
        await settled()
        world.clock.advance(3 * HOUR + MINUTE)
        await trio.sleep(LOOK_EVERY_S)
        await until(lambda: job.due == [began + 3 * HOUR])
        assert [each[1] for each in told(runtime)] == ["missed", "started"]


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
async def test_clock_that_is_set_back_makes_nothing_due_again(
    world: World, virtual_time: MockClock, restarts: bool
) -> None:
    job = Job()
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        began = world.clock.now_ms()
        await runtime.add_schedule("nightly", "report", every=3_600)
        await passes(world, began + 2 * HOUR)
        await until(lambda: len(job.due) == 2)
        if not restarts:
            world.clock.advance(-2 * HOUR)
            await passes(world, began + 2 * HOUR + MINUTE)
            assert len(job.due) == 2
    if restarts:
        world.clock.advance(-2 * HOUR)
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        await passes(world, began + 3 * HOUR)
        await until(lambda: len(job.due) == 3)
        assert job.due == [began + n * HOUR for n in (1, 2, 3)]


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
async def test_schedule_that_was_due_by_a_clock_years_ahead_is_due_by_the_right_one_again(
    world: World, virtual_time: MockClock, restarts: bool
) -> None:
    job = Job()
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        began = world.clock.now_ms()
        await runtime.add_schedule("nightly", "report", every=3_600)
        await runtime.add_schedule("cron", "report", cron="0 * * * *")
        world.clock.advance(1_000 * DAY)
        await runtime.add_schedule("young", "report", every=3_600)
        await until(lambda: len(job.due) == 2)
        if not restarts:
            await settled()
            world.clock.advance(-1_000 * DAY)
            await passes(world, began + 2 * HOUR)
            await until(lambda: len(job.due) >= 6)
    if restarts:
        world.clock.advance(-1_000 * DAY)
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        await passes(world, began + 3 * HOUR + 2 * MINUTE)
        for each in runtime.schedules():
            # One that was added again by nobody was last due by the wrong clock.
            assert each.last is not None, each.name
            assert each.last.outcome == "started", each.name
        for each in runtime.schedules():
            assert each.next_ms is not None
            assert 0 < each.next_ms - world.clock.now_ms() <= HOUR, each.name


# -- verbs, each safe to do twice


async def test_schedule_that_is_added_again_goes_on_as_it_was(
    world: World, virtual_time: MockClock
) -> None:
    job = Job()
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        began = world.clock.now_ms()
        await runtime.add_schedule("nightly", "report", every=3_600)
        await passes(world, began + 30 * MINUTE)
        receipt = await runtime.add_schedule("nightly", "report", every=3_600)
        assert (receipt.state, receipt.changed) == ("active", False)
        assert runtime.schedule("nightly").next_ms == began + HOUR
        receipt = await runtime.add_schedule("nightly", "report", "new", every=3_600)
        assert receipt.changed
        assert runtime.schedule("nightly").next_ms == began + HOUR, "its grid stands"
        assert runtime.schedule("nightly").params == "new"
        await runtime.add_schedule("nightly", "report", "new", every=1_800)
        assert runtime.schedule("nightly").next_ms == world.clock.now_ms() + 30 * MINUTE
        await passes(world, began + HOUR)
        await until(lambda: len(job.due) == 1)


async def test_paused_schedule_starts_nothing_and_is_not_resumed_by_being_added_again(
    world: World, virtual_time: MockClock
) -> None:
    job = Job()
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        began = world.clock.now_ms()
        await runtime.add_schedule("nightly", "report", every=3_600)
        first = await runtime.pause_schedule("nightly", requester="ops")
        second = await runtime.pause_schedule("nightly", requester="ops")
        assert [(each.state, each.changed) for each in (first, second)] == [
            ("paused", True),
            ("paused", False),
        ]
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        await runtime.add_schedule("nightly", "report", every=3_600)
        await passes(world, began + 2 * HOUR + 30 * MINUTE)
        status = runtime.schedule("nightly")
        assert (status.state, status.next_ms, status.occurrences) == ("paused", None, 0)
        first = await runtime.resume_schedule("nightly", requester="ops")
        second = await runtime.resume_schedule("nightly", requester="ops")
        assert [(each.state, each.changed) for each in (first, second)] == [
            ("active", True),
            ("active", False),
        ]
        # What would have been due while it was paused is neither started nor missed.
        assert runtime.schedule("nightly").next_ms == began + 3 * HOUR
        await passes(world, began + 3 * HOUR)
        await until(lambda: job.due == [began + 3 * HOUR])
        await until(lambda: told(runtime) == [(began + 3 * HOUR, "started", "nightly@1")])


async def test_removed_schedule_starts_nothing_and_can_be_added_again(
    world: World, virtual_time: MockClock
) -> None:
    job = Job()
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        began = world.clock.now_ms()
        await runtime.add_schedule("nightly", "report", every=3_600)
        await passes(world, began + HOUR)
        first = await runtime.remove_schedule("nightly", requester="ops")
        second = await runtime.remove_schedule("nightly", requester="ops")
        assert [(each.state, each.changed) for each in (first, second)] == [
            ("removed", True),
            ("removed", False),
        ]
        assert runtime.schedules() == ()
        with pytest.raises(UnknownScheduleError):
            runtime.schedule("nightly")
        for verb in (runtime.pause_schedule, runtime.resume_schedule):
            with pytest.raises(UnknownScheduleError):
                await verb("nightly", requester="ops")
        await passes(world, began + 3 * HOUR)
        assert len(runtime.occurrences("nightly")) == len(job.due) == 1
        assert (await runtime.add_schedule("nightly", "report", every=60)).changed
        await passes(world, began + 3 * HOUR + MINUTE)
        await until(lambda: len(job.due) == 2)
        assert [each.number for each in runtime.occurrences("nightly")] == [2, 1]


async def test_schedule_that_is_removed_as_it_is_decided_starts_nothing(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job()
    ask = Schedules._ask
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        began = world.clock.now_ms()
        await runtime.add_schedule("nightly", "report", every=60)

        async def removed_first(self: Schedules, request: Request) -> bool:
            if runtime.schedules():
                await runtime.remove_schedule("nightly", requester="ops")
            return await ask(self, request)

        monkeypatch.setattr(Schedules, "_ask", removed_first)
        await passes(world, began + 2 * MINUTE)
        assert runtime.runs() == ()
        assert runtime.occurrences("nightly") == ()


async def test_what_happened_is_kept_up_to_a_bound(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("abeyance.actors.domain.schedule_rows", "abeyance.actors.scheduling"):
        monkeypatch.setattr(f"{module}.KEPT_MAX", 5)
    assert KEPT_MAX == 1_000
    async with world.open() as runtime:
        runtime.add_workflow("report", Job().body)
        began = world.clock.now_ms()
        await runtime.add_schedule("nightly", "report", every=60)
        await passes(world, began + 8 * MINUTE)
        await until(lambda: runtime.schedule("nightly").occurrences == 8)
        assert [each.number for each in runtime.occurrences("nightly")] == [8, 7, 6, 5, 4]
        assert len(world.rows("occurrences", "nightly")) == 5
        page = runtime.occurrences("nightly", before=7, limit=2)
        assert [each.number for each in page] == [6, 5]


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("name", lambda runtime: runtime.add_schedule("", "report", every=60)),
        ("name", lambda runtime: runtime.add_schedule("a@b", "report", every=60)),
        ("name", lambda runtime: runtime.add_schedule("x" * 101, "report", every=60)),
        ("name", lambda runtime: runtime.add_schedule(7, "report", every=60)),
        ("key", lambda runtime: runtime.add_schedule("n", "report", every=60, key="a@b")),
        ("every", lambda runtime: runtime.add_schedule("n", "report")),
        ("every", lambda runtime: runtime.add_schedule("n", "report", every=0.9)),
        ("cron", lambda runtime: runtime.add_schedule("n", "report", cron="nightly")),
        ("zone", lambda runtime: runtime.add_schedule("n", "report", cron="0 3 * * *", zone="X")),
        ("late_s", lambda runtime: runtime.add_schedule("n", "report", every=60, late_s=59)),
        ("params", lambda runtime: runtime.add_schedule("n", "report", object(), every=60)),
        (
            "requester",
            lambda runtime: runtime.add_schedule("n", "report", every=60, requester=" "),
        ),
        ("name", lambda runtime: runtime.pause_schedule("", requester="ops")),
        ("name", lambda runtime: runtime.remove_schedule("a@b", requester="ops")),
        ("requester", lambda runtime: runtime.resume_schedule("n", requester="")),
    ],
)
async def test_malformed_schedule_is_refused_by_its_field_before_any_effect(
    world: World, virtual_time: MockClock, field: str, call: Callable[[Any], Any]
) -> None:
    async with world.open() as runtime:
        runtime.add_workflow("report", Job().body)
        with pytest.raises(InvalidInputError) as caught:
            await call(runtime)
        assert caught.value.field == field
        assert world.rows("schedules") == []


@pytest.mark.parametrize("limit", [0, 1_001, True, "5"])
async def test_malformed_page_of_occurrences_is_refused(
    world: World, virtual_time: MockClock, limit: Any
) -> None:
    async with world.open() as runtime:
        with pytest.raises(InvalidScheduleError) as caught:
            runtime.occurrences("n", limit=limit)
        assert caught.value.field == "limit"


async def test_schedule_of_a_workflow_or_name_that_nobody_added_is_refused(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        with pytest.raises(UnknownWorkflowError):
            await runtime.add_schedule("n", "report", every=60)
        with pytest.raises(UnknownScheduleError):
            runtime.occurrences("n")
        for verb in (runtime.pause_schedule, runtime.resume_schedule, runtime.remove_schedule):
            with pytest.raises(UnknownScheduleError):
                await verb("n", requester="ops")
        assert world.rows("schedules") == []


async def test_admin_gate_is_asked_before_a_schedule_changes(
    world: World, virtual_time: MockClock
) -> None:
    asked: list[tuple[str, str]] = []

    def admin(act: Any) -> bool:
        asked.append((act.verb, act.agent))
        return act.verb == "add_schedule"

    async with world.open(admin=admin) as runtime:
        runtime.add_workflow("report", Job().body)
        await runtime.add_schedule("nightly", "report", every=60)
        for verb in (runtime.pause_schedule, runtime.resume_schedule, runtime.remove_schedule):
            with pytest.raises(NotPermittedError):
                await verb("nightly", requester="ops")
        assert runtime.schedule("nightly").state == "active"
    assert asked == [
        (f"{verb}_schedule", "nightly") for verb in ("add", "pause", "resume", "remove")
    ]


# -- faults


async def test_occurrence_that_a_full_disk_refuses_stays_due_and_starts_one_run(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job()
    disk = RefusingStore(monkeypatch)
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        began = world.clock.now_ms()
        await runtime.add_schedule("nightly", "report", every=3_600)
        disk.refuses = lambda request: any(put.table == "occurrences" for put in request.puts)
        await passes(world, began + HOUR + MINUTE)
        assert runtime.runs() == ()
        assert runtime.schedule("nightly").next_ms == began + HOUR
        assert world.ref("schedules")._cell.incarnation == 1
        disk.refuses = lambda _request: False
        await passes(world, began + HOUR + 2 * MINUTE)
        await until(lambda: job.due == [began + HOUR])
        await until(lambda: told(runtime) == [(began + HOUR, "started", "nightly@1")])


@pytest.mark.parametrize("verb", ["add", "pause", "resume", "remove"])
async def test_verb_that_a_full_disk_refuses_changes_nothing(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    disk = RefusingStore(monkeypatch)
    async with world.open() as runtime:
        runtime.add_workflow("report", Job().body)
        await runtime.add_schedule("nightly", "report", every=3_600)
        if verb == "resume":
            await runtime.pause_schedule("nightly", requester="ops")
        before = runtime.schedules()
        disk.refuses = lambda request: any(put.table == "schedules" for put in request.puts)
        call = getattr(runtime, f"{verb}_schedule")
        made = (
            call("other", "report", every=60) if verb == "add" else call("nightly", requester="ops")
        )
        with pytest.raises(NotStoredError) as caught:
            await made
        assert isinstance(caught.value.__cause__, DiskFullError)
        assert runtime.schedules() == before
        disk.refuses = lambda _request: False


async def test_commit_whose_answer_is_lost_starts_one_run(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The actor is killed before it hears of its decision; the next life reads what it was."""
    job, entered, go = Job(), trio.Event(), trio.Event()
    ask = Schedules._ask

    async def slow(self: Schedules, request: Request) -> bool:
        made = await ask(self, request)
        if not entered.is_set() and any(put.table == "runs" for put in request.puts):
            entered.set()
            with trio.CancelScope(shield=True):
                await go.wait()
        return made

    monkeypatch.setattr(Schedules, "_ask", slow)
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        began = world.clock.now_ms()
        await runtime.add_schedule("nightly", "report", every=3_600)
        await passes(world, began + HOUR)
        await entered.wait()
        world.ref("schedules").kill()
        go.set()
        await passes(world, began + HOUR + 2 * MINUTE)
        await until(lambda: job.due == [began + HOUR])
        await until(lambda: told(runtime) == [(began + HOUR, "started", "nightly@1")])


async def test_stop_with_a_schedule_that_is_due_leaves_one_run_to_the_next_start(
    world: World, virtual_time: MockClock
) -> None:
    job = Job()
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        began = world.clock.now_ms()
        await runtime.add_schedule("nightly", "report", every=3_600)
        world.clock.advance(HOUR)
        runtime._scheduling.look()
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        await passes(world, world.clock.now_ms() + MINUTE)
        await until(lambda: job.due == [began + HOUR])
        await until(lambda: told(runtime) == [(began + HOUR, "started", "nightly@1")])


async def test_schedules_that_crash_for_ever_are_parked_and_told_of_and_stay_due(
    world: World, virtual_time: MockClock
) -> None:
    job = Job()
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        began = world.clock.now_ms()
        await runtime.add_schedule("nightly", "report", every=3_600)
        await parked(world, "schedules")
        assert [group.id for group in runtime.system.parked_groups()] == ["schedules"]
        await passes(world, began + HOUR)
        assert (await (await runtime.start_run("other", "report")).wait()).state == "completed"
        assert runtime.occurrences("nightly") == ()
        await until(lambda: [each.kind for each in runtime.alerts()] == ["schedules_parked"])
        assert "unpark('schedules')" in runtime.alerts()[0].text
        await runtime.add_schedule("second", "report", every=60)
        assert await runtime.unpark("schedules", requester="ops")
        await until(lambda: began + HOUR in job.due)
        assert told(runtime) == [(began + HOUR, "started", "nightly@1")]


async def test_schedule_stays_due_while_nobody_executes_runs(
    world: World, virtual_time: MockClock
) -> None:
    job = Job()
    async with world.open() as runtime:
        runtime.add_workflow("report", job.body)
        began = world.clock.now_ms()
        await runtime.add_schedule("nightly", "report", every=3_600)
        await parked(world)
        await passes(world, began + HOUR + MINUTE)
        assert (runtime.runs(), runtime.occurrences("nightly")) == ((), ())
        assert await runtime.unpark("runs", requester="ops")
        await passes(world, began + HOUR + 2 * MINUTE)
        await until(lambda: job.due == [began + HOUR])
