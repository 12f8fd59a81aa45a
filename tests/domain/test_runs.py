"""Runs of workflows: executed once, suspended on exhausted capacity, taken up where they stood."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from datetime import UTC, date
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import (
    AgentSpec,
    DidNotHappen,
    Happened,
    ModelChoice,
    RunContext,
    RunEndedError,
    RunHandle,
    RunOpenError,
    RunStateError,
    StepFailedError,
    UnknownRunError,
    UnknownWorkflowError,
    step_context,
)
from abeyance.actors.domain.errors import (
    InvalidInputError,
    QuiescedError,
    RuntimeClosedError,
)
from abeyance.actors.domain.run_errors import InvalidRunError
from abeyance.actors.providers import CapacityExhaustedError, Exhaustion
from abeyance.actors.providers.failures import refusal
from abeyance.actors.providers.port import ProviderError
from abeyance.actors.providers.stated import StatedWait, WaitEnds, WaitKind
from abeyance.actors.testing import ScriptedProvider, fail, reply
from abeyance.storage.errors import DiskFullError
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import NotStored, Request

from .test_auxiliary import ask
from .world import World, until, wait_all_tasks_blocked

HOUR = 3_600_000
BUFFER = 300_000


class Effects:
    """What a workflow's items did, in order; some of them meet a wall or fail first."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.keys: list[str] = []
        self.raising: dict[str, list[BaseException]] = {}
        self.gates: dict[str, trio.Event] = {}

    async def __call__(self, name: str) -> str:
        self.keys.append(step_context().key)
        if self.raising.get(name):
            raise self.raising[name].pop(0)
        if name in self.gates:
            await self.gates[name].wait()
        self.log.append(name)
        return f"{name}!"


def wall(at_ms: int | None, window: str = "five_hour") -> CapacityExhaustedError:
    return CapacityExhaustedError(
        (
            Exhaustion(
                provider="anthropic",
                model="opus",
                window=window,
                retry_at_ms=at_ms,
                told_by=None if at_ms is None else "windows",
            ),
        )
    )


class RefusingStore:
    """Refuses the batches that hold a request which a test names, as a full disk would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refuses: Callable[[Request], bool] = lambda _request: False
        submit = LmdbStore.submit

        def refusing(store: LmdbStore, batch: Any, done: Any) -> None:
            if any(map(self.refuses, batch)):
                error = DiskFullError("the disk is full", path="")
                done([NotStored(error)] * len(batch))
            else:
                submit(store, batch, done)

        monkeypatch.setattr(LmdbStore, "submit", refusing)


def five(effects: Effects) -> Callable[..., Any]:
    """A workflow of a step, a step with three items, and a step."""

    async def report(run: RunContext, params: Any) -> Any:
        found = [await run.do("gather", effects, "gather")]
        with run.step("publish", total=3):
            found += [await run.do(each, effects, each) for each in ("a", "b", "c")]
        found.append(await run.do("close", effects, "close"))
        return {"found": found, "params": params}

    return report


async def settled() -> None:
    await wait_all_tasks_blocked()


async def comes(condition: Callable[[], bool]) -> None:
    """Let hours pass, in steps of half a minute, until a condition holds."""
    for _ in range(10_000):
        if condition():
            return
        await trio.sleep(30)
        await settled()
    raise AssertionError("the condition does not come to hold")


def states(world: World, run: str) -> list[str]:
    return [step.after for step in world.runtime.run_history(run)]


ALL = ["gather", "a", "b", "c", "close"]


async def waiting(world: World, effects: Effects, ends_ms: int | None, at: str = "b") -> RunHandle:
    """Start a run that meets a wall at an item, and wait until it waits."""
    effects.raising[at] = [wall(ends_ms)]
    world.runtime.add_workflow("report", five(effects))
    run = await world.runtime.start_run("report:1", "report")
    await until(lambda: run.status().state.startswith("waiting"))
    return run


async def test_run_executes_its_items_once_in_order_and_ends_with_its_result(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        run = await runtime.start_run("report:1", "report", {"day": date(2026, 12, 2)})
        status = await run.wait()
    assert status.state == "completed", status.reason
    assert status.result == {
        "found": [f"{name}!" for name in ALL],
        "params": {"day": "2026-12-02"},
    }
    assert effects.log == ALL
    assert len(set(effects.keys)) == 5
    assert effects.keys[2] == "report:1@1/2"


@pytest.mark.behaviour("S-024", "S-026", "S-033", "S-040", "S-044")
async def test_run_that_meets_a_wall_waits_and_goes_on_at_the_item_that_met_it(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        ends = world.clock.now_ms() + 2 * HOUR
        effects.raising["b"] = [wall(ends)]
        run = await runtime.start_run("report:1", "report")
        await until(lambda: run.status().state == "waiting_for_capacity")
        status = run.status()
        assert (status.provider, status.model, status.window) == ("anthropic", "opus", "five_hour")
        assert (status.retry_at_ms, status.resume_after_ms) == (ends, ends + BUFFER)
        assert (status.step, status.steps_done) == ("publish/b", 2)
        assert (status.place, status.total) == (2, 3)
        assert "no capacity: anthropic/opus" in status.reason
        assert effects.log == ["gather", "a"]
        status = await run.wait()
        assert status.state == "completed"
        assert effects.log == ALL
        assert states(world, run.id) == [
            "running",
            "waiting_for_capacity",
            "resuming",
            "running",
            "completed",
        ]
        assert [step.attempts for step in runtime.run_steps(run.id)] == [1, 1, 2, 1, 1]


@pytest.mark.behaviour("S-062")
@pytest.mark.parametrize("restarted", [False, True], ids=["in its host", "in the next host"])
async def test_sequence_whose_fifth_item_meets_a_wall_executes_the_four_before_it_no_more(
    world: World, virtual_time: MockClock, restarted: bool
) -> None:
    effects = Effects()
    posts = [f"post {number}" for number in range(1, 6)]

    async def sequence(run: RunContext, params: Any) -> Any:
        with run.step("message_sequence", total=5):
            return [await run.do(each, effects, each) for each in posts]

    async with world.open() as runtime:
        runtime.add_workflow("sequence", sequence)
        effects.raising["post 5"] = [wall(world.clock.now_ms() + HOUR)]
        run = await runtime.start_run("sequence:1", "sequence")
        await until(lambda: run.status().state == "waiting_for_capacity")
        status = run.status()
        assert (status.step, status.steps_done) == ("message_sequence/post 5", 4)
        assert effects.log == posts[:4]
        if not restarted:
            with trio.fail_after(86_400):
                status = await run.wait()
    if restarted:
        async with world.open() as runtime:
            runtime.add_workflow("sequence", sequence)
            with trio.fail_after(86_400):
                status = await runtime.wait_run(run.id)
    assert (status.state, status.result) == ("completed", [f"{each}!" for each in posts])
    assert effects.log == posts
    # Each had its own key, and the fifth the same at its second attempt: nothing else was begun.
    assert len(effects.keys) == 6
    assert effects.keys[4] == effects.keys[5]
    async with world.open() as runtime:
        assert [step.attempts for step in runtime.run_steps(run.id)] == [1, 1, 1, 1, 2]


# -- what waits


@pytest.mark.behaviour("S-025", "S-059")
async def test_run_that_waits_is_nowhere_said_to_be_running(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()
    async with world.open() as runtime:
        run = await waiting(world, effects, world.clock.now_ms() + HOUR)
        assert runtime.runs(state="running") == ()
        assert [status.id for status in runtime.runs(state="waiting_for_capacity")] == [run.id]
        assert runtime.runs() == (run.status(),)


@pytest.mark.behaviour("S-027")
async def test_run_is_due_behind_the_reset_and_a_buffer_and_not_before(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects), buffer_s=300)
        ends = world.clock.now_ms() + HOUR
        effects.raising["b"] = [wall(ends)]
        run = await runtime.start_run("report:1", "report")
        await until(lambda: run.status().state == "waiting_for_capacity")
        await trio.sleep((ends + BUFFER - 1 - world.clock.now_ms()) / 1_000)
        await settled()
        assert run.status().state == "waiting_for_capacity"
        await trio.sleep(0.001)
        assert (await run.wait()).state == "completed"


@pytest.mark.behaviour("S-028", "S-029")
async def test_run_whose_end_of_waiting_nobody_knows_is_never_resumed_by_itself(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()
    async with world.open():
        run = await waiting(world, effects, None)
        assert run.status().state == "waiting_for_capacity_unknown"
        assert run.status().resume_after_ms is None
        assert world.ref("alarm")._cell.kept.instants.keys() == set()
        world.clock.advance(7 * 86_400_000)
        await trio.sleep(3_600)
        await settled()
        assert run.status().state == "waiting_for_capacity_unknown"
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        world.clock.advance(7 * 86_400_000)
        await trio.sleep(3_600)
        assert runtime.run(run.id).state == "waiting_for_capacity_unknown"
    assert effects.log == ["gather", "a"]


def busy_threads() -> int:
    """Those that do something, or wait for somebody: trio keeps a worker for ten idle seconds."""
    return sum(not each.name.startswith("Trio thread") for each in threading.enumerate())


@pytest.mark.slow
@pytest.mark.behaviour("S-031", "S-067")
async def test_thousand_suspended_runs_hold_no_task(world: World, virtual_time: MockClock) -> None:
    effects = Effects()

    async def walled(run: RunContext, params: Any) -> None:
        await run.do("call", raises, wall(params))

    async def raises(error: BaseException) -> None:
        raise error

    async with world.open() as runtime:
        runtime.add_workflow("walled", walled)
        await settled()
        tasks = trio.lowlevel.current_statistics().tasks_living
        files, threads = os.listdir("/dev/fd"), busy_threads()
        ends = world.clock.now_ms() + 5 * HOUR
        async with trio.open_nursery() as nursery:
            for number in range(1_000):
                nursery.start_soon(runtime.start_run, f"r{number}", "walled", ends)
        await comes(lambda: len(runtime.runs(state="waiting_for_capacity", limit=1_000)) == 1_000)
        assert trio.lowlevel.current_statistics().tasks_living == tasks
        assert len(os.listdir("/dev/fd")) == len(files), "nor a socket or a file"
        assert busy_threads() <= threads, "nor a thread; one of a test before may end"
        assert not world.ref("runs")._cell.kept.lives
    assert effects.log == []


@pytest.mark.behaviour("S-032", "S-047")
async def test_finalisers_run_once_in_order_and_only_when_the_run_has_completed(
    world: World, virtual_time: MockClock
) -> None:
    effects, finals = Effects(), []

    async def backup(result: Any) -> None:
        finals.append(("backup", result["params"]))

    async with world.open() as runtime:
        effects.raising["b"] = [wall(world.clock.now_ms() + HOUR)]
        effects.raising["notify"] = [wall(world.clock.now_ms() + 9 * HOUR)]
        runtime.add_workflow(
            "report",
            five(effects),
            finalisers=[("backup", backup), ("notify", lambda _: effects("notify"))],
        )
        run = await runtime.start_run("report:1", "report", 7)
        await until(lambda: run.status().state == "waiting_for_capacity")
        assert finals == []
        status = await run.wait()
        assert status.state == "completed", status.reason
    assert finals == [("backup", 7)]
    assert effects.log == [*ALL, "notify"]


# -- waking


@pytest.mark.behaviour("S-034", "S-035", "S-039")
async def test_suspended_runs_are_found_by_the_next_process_and_resumed_once_each(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()

    async def one(run: RunContext, params: Any) -> None:
        await run.do("before", effects, f"before {run.key}")
        await run.do("call", effects, run.key)

    async with world.open() as runtime:
        runtime.add_workflow("one", one)
        now = world.clock.now_ms()
        effects.raising = {"near": [wall(now + HOUR)], "far": [wall(now + 9 * HOUR)]}
        for key in ("far", "near"):
            await runtime.start_run(key, "one")
        await until(lambda: len(runtime.runs(state="waiting_for_capacity")) == 2)
    await trio.sleep(2 * 3_600)  # The near one is overdue by now.
    async with world.open() as runtime:
        runtime.add_workflow("one", one)
        await until(lambda: runtime.run("near").state == "completed")
        assert world.ref("alarm")._cell.kept.instants["runs"][0] == now + 9 * HOUR + BUFFER
        assert runtime.run("far").state == "waiting_for_capacity"
        await trio.sleep(8 * 3_600)
        await until(lambda: runtime.run("far").state == "completed")
        assert [status.id for status in runtime.runs()] == ["far@1", "near@1"]
        for key in ("near", "far"):
            assert states(world, key) == [
                "running",
                "waiting_for_capacity",
                "resuming",
                "running",
                "completed",
            ]
    assert sorted(effects.log) == ["before far", "before near", "far", "near"]


@pytest.mark.behaviour("S-041")
async def test_second_wall_moves_the_instant_and_counts(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        now = world.clock.now_ms()
        effects.raising["b"] = [wall(now + HOUR), wall(now + 7 * HOUR, "seven_day")]
        run = await runtime.start_run("report:1", "report")
        await comes(lambda: run.status().walls == 2)
        status = run.status()
        assert status.state == "waiting_for_capacity"
        assert status.resume_after_ms == now + 7 * HOUR + BUFFER
        assert status.window == "seven_day"
        assert (await run.wait()).state == "completed"
    assert effects.log == ALL


@pytest.mark.behaviour("S-042")
async def test_no_other_run_of_a_key_is_started_while_one_may_go_on(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()
    async with world.open() as runtime:
        run = await waiting(world, effects, world.clock.now_ms() + HOUR)
        for _ in range(3):
            with pytest.raises(RunOpenError) as caught:
                await runtime.start_run("report:1", "report")
            assert (caught.value.run, caught.value.state) == (run.id, "waiting_for_capacity")
        assert len(runtime.runs()) == 1
        await run.wait()
        again = await runtime.start_run("report:1", "report")
        assert again.id == "report:1@2"
        assert (await again.wait()).state == "completed"
    assert effects.log == [*ALL, *ALL]


async def test_of_many_who_start_a_key_at_once_one_does(
    world: World, virtual_time: MockClock
) -> None:
    effects, refused = Effects(), []
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))

        async def start() -> None:
            try:
                await runtime.start_run("report:1", "report")
            except RunOpenError as error:
                refused.append(error.run)

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(start)
        await until(lambda: runtime.run("report:1").ended)
    assert refused == ["report:1@1"] * 19
    assert effects.log == ALL


# -- operators


@pytest.mark.behaviour("S-036", "S-050", "R-23")
async def test_resume_now_and_the_alarm_at_once_are_one_resume(
    world: World, virtual_time: MockClock
) -> None:
    effects, receipts = Effects(), []
    async with world.open() as runtime:
        run = await waiting(world, effects, world.clock.now_ms() + HOUR)

        async def press() -> None:
            receipts.append(await runtime.resume_run(run.id, requester="ops"))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(press)
        assert (await run.wait()).state == "completed"
        assert [receipt.changed for receipt in receipts].count(True) == 1
        assert states(world, run.id).count("resuming") == 1
        assert (await runtime.resume_run(run.id, requester="ops")).changed is False
        assert runtime.run_history(run.id)[2].by == "api:ops"
    assert effects.log == ALL


@pytest.mark.behaviour("S-036")
@pytest.mark.parametrize("act", ["resume", "cancel"])
async def test_run_that_falls_due_while_an_operators_act_is_recorded_waits_for_that(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    effects, held = Effects(), list[Callable[[], None]]()
    submit = LmdbStore.submit

    def slow(store: LmdbStore, batch: Any, done: Any) -> None:
        """The operator's commit reaches the store when its run has been due for a minute."""
        places = [put.key for each in batch for put in each.puts if put.table == "run_index"]
        if not held and any(key[0] in ("live", "cancelled") for key in places):
            held.append(lambda: submit(store, batch, done))
        else:
            submit(store, batch, done)

    async with world.open() as runtime:
        run = await waiting(world, effects, world.clock.now_ms() + HOUR)
        await trio.sleep((HOUR + BUFFER) / 1_000 - 1)
        monkeypatch.setattr(LmdbStore, "submit", slow)
        async with trio.open_nursery() as nursery:
            verb: Any = runtime.resume_run if act == "resume" else runtime.cancel_run
            nursery.start_soon(partial(verb, run.id, requester="ops"))
            await trio.sleep(60)
            assert len(held) == 1
            assert run.status().state == "waiting_for_capacity", "its time has come"
            assert effects.log == ["gather", "a"]
            held[0]()
        assert (await run.wait()).state == ("completed" if act == "resume" else "cancelled")
        await trio.sleep(60)
        assert states(world, run.id).count("resuming") == (act == "resume")
    assert effects.log == (ALL if act == "resume" else ["gather", "a"])


@pytest.mark.behaviour("S-051")
async def test_unknown_end_that_is_retried_and_then_known_waits_for_it(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()
    async with world.open() as runtime:
        run = await waiting(world, effects, None)
        ends = world.clock.now_ms() + HOUR
        effects.raising["b"] = [wall(ends)]
        receipt = await runtime.resume_run(run.id, requester="ops")
        assert (receipt.state, receipt.changed) == ("resuming", True)
        await comes(lambda: run.status().walls == 2)
        assert run.status().state == "waiting_for_capacity"
        assert run.status().resume_after_ms == ends + BUFFER
        assert (await run.wait()).state == "completed"


@pytest.mark.behaviour("S-052")
async def test_fallback_that_an_operator_names_goes_on_with_the_same_item(
    world: World, virtual_time: MockClock
) -> None:
    called = []

    async def call(model: str) -> str:
        if model == "anthropic/opus":
            raise wall(None)
        called.append((step_context().path, model))
        return model

    async def one(run: RunContext, params: Any) -> Any:
        await run.do("before", called.append, "before")
        choice = run.choice
        model = "anthropic/opus" if choice is None else f"{choice.provider}/{choice.model}"
        return await run.do("call", call, model)

    async with world.open() as runtime:
        runtime.add_workflow("one", one, fallbacks=[ModelChoice("openai", "gpt")])
        run = await runtime.start_run("k", "one")
        await until(lambda: run.status().state == "waiting_for_capacity_unknown")
        await runtime.use_fallback("k", provider="openai", model="gpt", requester="ops")
        status = await run.wait()
    assert (status.state, status.result) == ("completed", "openai/gpt")
    assert status.fallback == ("openai", "gpt")
    assert called == ["before", ("call", "openai/gpt")]


@pytest.mark.behaviour("S-053")
async def test_cancelled_run_is_never_resumed_and_no_finaliser_of_it_runs(
    world: World, virtual_time: MockClock
) -> None:
    effects, finals = Effects(), []
    async with world.open() as runtime:
        effects.raising["b"] = [wall(world.clock.now_ms() + HOUR)]
        runtime.add_workflow("report", five(effects), finalisers=[("backup", finals.append)])
        run = await runtime.start_run("report:1", "report")
        await until(lambda: run.status().state == "waiting_for_capacity")
        receipt = await runtime.cancel_run(run.id, requester="ops", reason="not needed")
        assert (receipt.state, receipt.changed) == ("cancelled", True)
        assert (await runtime.cancel_run(run.id, requester="ops")).changed is False
        assert (await runtime.resume_run(run.id, requester="ops")).changed is False
        await trio.sleep(9 * 3_600)
        await settled()
        assert (run.status().state, run.status().reason) == ("cancelled", "not needed")
    assert effects.log == ["gather", "a"]
    assert finals == []


@pytest.mark.behaviour("S-060")
async def test_cancel_is_answered_when_nothing_of_the_run_runs(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()
    effects.gates["a"] = trio.Event()
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        await settled()
        tasks = trio.lowlevel.current_statistics().tasks_living
        run = await runtime.start_run("report:1", "report")
        await until(lambda: run.status().step == "publish/a")
        await runtime.cancel_run(run.id, requester="ops")
        assert not world.ref("runs")._cell.kept.lives
        await settled()
        assert trio.lowlevel.current_statistics().tasks_living == tasks
        assert run.status().state == "cancelled"
    assert effects.log == ["gather"]


@pytest.mark.behaviour("S-049", "S-061")
async def test_text_of_a_waiting_run_says_for_what_and_until_when(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()
    async with world.open() as runtime:
        run = await waiting(world, effects, 1_791_374_400_000 + HOUR)
        assert run.status().text(UTC) == (
            "Waiting for anthropic capacity (five_hour) \u00b7 resumes after 2026-10-07 13:05 UTC"
        )
        healthy = await runtime.start_run("other", "report")
        assert (await healthy.wait()).text() == "Completed"
        assert "capacity" in run.status().reason
        assert healthy.status().reason == ""
        assert [each.id for each in runtime.runs() if "capacity" in each.reason] == [run.id]
        await runtime.cancel_run(run.id, requester="ops")
        effects.raising["gather"] = [wall(None)]
        unknown = await runtime.start_run("third", "report")
        await until(lambda: unknown.status().state.startswith("waiting"))
        assert unknown.status().text().endswith("\u00b7 until somebody resumes it")


# -- failures


@pytest.mark.behaviour("S-056", "S-048")
@pytest.mark.parametrize(
    ("function", "state", "reason"),
    [
        ("step", "failed", "StepFailedError"),
        ("body", "failed", "LookupError: in the body"),
        ("exit", "failed", "SystemExit"),
        ("result", "failed", "it was done, but what it returned cannot be recorded"),
        ("returns", "completed", ""),
        ("cancelled", "cancelled", "cancelled by api:ops"),
    ],
)
async def test_run_whose_body_ends_in_any_way_is_settled(
    world: World, virtual_time: MockClock, function: str, state: str, reason: str
) -> None:
    effects = Effects()
    effects.raising["gather"] = [LookupError("in a step")]

    async def body(run: RunContext, params: Any) -> Any:
        match function:
            case "step":
                await run.do("gather", effects, "gather")
            case "body":
                raise LookupError("in the body")
            case "exit":
                raise SystemExit(3)
            case "returns":
                return "made"
            case "cancelled":
                await run.do("wait", trio.sleep_forever)
        return object()

    async with world.open() as runtime:
        runtime.add_workflow("report", body)
        run = await runtime.start_run("report:1", "report")
        if function == "cancelled":
            await until(lambda: run.status().step == "wait")
            await runtime.cancel_run("report:1", requester="ops")
        status = await run.wait()
        assert status.state == state
        assert reason in status.reason
        await settled()
        assert not world.ref("runs")._cell.kept.lives


@pytest.mark.parametrize("at", ["params", "item", "result"])
async def test_map_whose_keys_are_no_text_is_refused_before_it_is_kept(
    world: World, virtual_time: MockClock, at: str
) -> None:
    keyed = {"sent": [{17: "id"}]}

    async def body(run: RunContext, params: Any) -> Any:
        await run.do("post", lambda: keyed if at == "item" else "posted")
        return keyed if at == "result" else "done"

    async with world.open() as runtime:
        runtime.add_workflow("report", body)
        if at == "params":
            with pytest.raises(InvalidRunError, match="keys") as caught:
                await runtime.start_run("report:1", "report", keyed)
            assert caught.value.field == "params"
            assert runtime.runs() == ()
            return
        run = await runtime.start_run("report:1", "report")
        status = await run.wait()
        assert status.state == "failed"
        assert "it was done, but what it returned cannot be recorded" in status.reason
        assert "keys" in status.reason
        assert "nothing was done" not in status.reason
        # Whatever was kept reads, and so does the list of every run.
        assert [each.state for each in runtime.runs()] == ["failed"]
        assert [step.state for step in runtime.run_steps("report:1")] == [
            "failed" if at == "item" else "done"
        ]


@pytest.mark.behaviour("S-030", "R-24")
async def test_suspension_that_cannot_be_recorded_is_a_failure(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    effects = Effects()
    refusing = RefusingStore(monkeypatch)
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        effects.raising["b"] = [wall(world.clock.now_ms() + HOUR)]
        refusing.refuses = lambda request: any(
            put.table == "run_index" and put.key[0] == "waiting" for put in request.puts
        )
        run = await runtime.start_run("report:1", "report")
        status = await run.wait()
        assert status.state == "failed"
        assert "could not be recorded" in status.reason
        assert "waiting_for_capacity" not in states(world, run.id)
    assert effects.log == ["gather", "a"]


async def test_step_that_failed_is_not_run_again_when_its_run_is_taken_up(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()
    effects.raising["gather"] = [LookupError("no such place")]
    caught = []

    async def body(run: RunContext, params: Any) -> Any:
        try:
            await run.do("gather", effects, "gather")
        except StepFailedError as error:
            caught.append((error.path, error.error))
        await run.do("call", effects, "call")

    async with world.open() as runtime:
        runtime.add_workflow("report", body)
        effects.raising["call"] = [wall(world.clock.now_ms() + HOUR)]
        run = await runtime.start_run("report:1", "report")
        assert (await run.wait()).state == "completed"
    assert caught == [("gather", "LookupError: no such place")] * 2
    assert effects.log == ["call"]


async def test_run_that_is_suspended_executes_nothing_more_of_its_body(
    world: World, virtual_time: MockClock
) -> None:
    effects, refused = Effects(), []

    async def body(run: RunContext, params: Any) -> Any:
        try:
            await run.do("call", effects, "call")
        finally:
            with trio.CancelScope(shield=True):
                try:
                    await run.do("clean up", effects, "clean up")
                except RunEndedError as error:
                    refused.append(error.run)

    async with world.open() as runtime:
        runtime.add_workflow("report", body)
        effects.raising["call"] = [wall(world.clock.now_ms() + HOUR)]
        run = await runtime.start_run("report:1", "report")
        await until(lambda: run.status().state == "waiting_for_capacity")
        await until(lambda: refused == [run.id])
        assert effects.log == []
        assert (await run.wait()).state == "completed"
    assert effects.log == ["call", "clean up"]


@pytest.mark.behaviour("X-005")
async def test_wait_that_ends_an_ephemeral_run_in_a_step_suspends_its_run_until_that_instant(
    world: World, virtual_time: MockClock
) -> None:
    calls = []

    def script(request: Any) -> Any:
        calls.append(world.clock.now_ms())
        return fail(429, retry_after=7_200) if len(calls) == 1 else reply("a summary")

    async def body(run: RunContext, params: Any) -> Any:
        spec = AgentSpec(
            name="scribe", provider=ScriptedProvider(script, clock=world.clock), model="m"
        )
        return await run.do("summarise", world.runtime.run_ephemeral, spec, "summarise this")

    async with world.open() as runtime:
        runtime.add_workflow("report", body)
        began = world.clock.now_ms()
        run = await runtime.start_run("report:1", "report")
        await until(lambda: run.status().state == "waiting_for_capacity")
        assert run.status().retry_at_ms == run.status().resume_after_ms == began + 2 * HOUR
        status = await run.wait()
    assert (status.state, status.result) == ("completed", "a summary")
    assert calls[0] == began
    assert calls[1] >= began + 2 * HOUR
    assert len(calls) == 2


def refused(status: int, retry_after: float | str | None) -> ProviderError:
    """What a provider call that an item made by itself raises."""
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    return refusal(
        provider="anthropic",
        status=status,
        headers=headers,
        body=None,
        message="too many",
        received_at=START_S,
    )


START_S = 1_791_374_400


@pytest.mark.behaviour("X-007")
@pytest.mark.parametrize("status", [429, 529], ids=["rate limited", "overloaded"])
@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "in a group"])
async def test_wait_that_a_refused_call_of_an_item_stated_suspends_its_run_until_that_instant(
    world: World, virtual_time: MockClock, status: int, wrapped: bool
) -> None:
    effects = Effects()
    error: BaseException = refused(status, 7_200)
    if wrapped:
        error = ExceptionGroup("of a nursery", [error])
    async with world.open() as runtime:
        assert world.clock.now_ms() // 1_000 == START_S
        runtime.add_workflow("report", five(effects))
        effects.raising["b"] = [error]
        run = await runtime.start_run("report:1", "report")
        await until(lambda: run.status().state == "waiting_for_capacity")
        ends = (START_S + 7_200) * 1_000
        assert run.status().retry_at_ms == run.status().resume_after_ms == ends
        await trio.sleep((ends - 1 - world.clock.now_ms()) / 1_000)
        await settled()
        assert effects.log == ["gather", "a"]
        assert (await run.wait()).state == "completed"
        assert states(world, run.id).count("resuming") == 1
    assert effects.log == ALL


@pytest.mark.parametrize(
    ("status", "retry_after"),
    [(429, None), (429, -1), (429, 0), (503, None), (401, 7_200)],
    ids=["unstated", "no grammar", "over", "unavailable", "no limit"],
)
async def test_refused_call_that_states_no_wait_to_keep_is_its_items_failure(
    world: World, virtual_time: MockClock, status: int, retry_after: Any
) -> None:
    effects = Effects()
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        effects.raising["b"] = [refused(status, retry_after)]
        run = await runtime.start_run("report:1", "report")
        status_ = await run.wait()
        assert status_.state == "failed"
        assert "refused the call" in status_.reason
        assert [step.state for step in runtime.run_steps(run.id)] == ["done", "done", "failed"]


async def test_refused_call_that_states_a_wait_of_before_its_item_is_its_items_failure(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()
    error = refused(429, None)
    passed = StatedWait(
        kind=WaitKind.RATE_LIMITED, ends=WaitEnds.UNTIL, deadline_ms=world.clock.now_ms() - 1
    )
    error.stated = passed
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        effects.raising["b"] = [error]
        run = await runtime.start_run("report:1", "report")
        assert (await run.wait()).state == "failed"


async def test_refused_call_of_an_item_that_is_held_until_released_waits_for_an_operator(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()
    error = refused(429, None)
    error.stated = StatedWait(kind=WaitKind.RATE_LIMITED, ends=WaitEnds.UNTIL_RELEASED)
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        effects.raising["b"] = [error]
        run = await runtime.start_run("report:1", "report")
        await until(lambda: run.status().state == "waiting_for_capacity_unknown")
        await runtime.resume_run(run.id, requester="ops")
        assert (await run.wait()).state == "completed"


# -- the workflow's own errors


async def test_run_whose_workflow_asks_for_another_item_waits_for_an_operator(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()
    names = ["first", "call"]

    async def body(run: RunContext, params: Any) -> Any:
        for name in names:
            await run.do(name, effects, name)

    async with world.open() as runtime:
        runtime.add_workflow("report", body)
        effects.raising["call"] = [wall(world.clock.now_ms() + HOUR)]
        run = await runtime.start_run("report:1", "report")
        await until(lambda: run.status().state == "waiting_for_capacity")
        names[0] = "another"
        await comes(lambda: run.status().state == "recovery_required")
        assert "recorded as 'first'" in run.status().reason
        assert "asks for 'another'" in run.status().reason
        names[0] = "first"
        assert (await runtime.resume_run(run.id, requester="ops")).changed
        assert (await run.wait()).state == "completed"
    assert effects.log == ["first", "call"]


async def test_run_of_another_version_is_not_executed(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()
    async with world.open():
        run = await waiting(world, effects, world.clock.now_ms() + HOUR)
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects), version=2)
        await comes(lambda: runtime.run(run.id).state == "recovery_required")
        assert "version 1" in runtime.run(run.id).reason
        with pytest.raises(RunStateError, match="version 2"):
            await runtime.resume_run(run.id, requester="ops")
        assert effects.log == ["gather", "a"]
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects), version=1)
        assert (await runtime.resume_run(run.id, requester="ops")).changed
        await until(lambda: runtime.run(run.id).state == "completed")
    assert effects.log == ALL


async def test_two_items_of_a_run_at_once_are_refused(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()

    async def body(run: RunContext, params: Any) -> Any:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.do, "a", effects, "a")
            nursery.start_soon(run.do, "b", effects, "b")

    async with world.open() as runtime:
        runtime.add_workflow("report", body)
        run = await runtime.start_run("report:1", "report")
        status = await run.wait()
    assert status.state == "failed"
    assert "one at a time" in status.reason


# -- bad input


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda r: r.start_run("", "report"), "key"),
        (lambda r: r.start_run("a@b", "report"), "key"),
        (lambda r: r.start_run("k" * 101, "report"), "key"),
        (lambda r: r.start_run("k", ""), "workflow"),
        (lambda r: r.start_run("k", "report", object()), "params"),
        (lambda r: r.start_run("k", "report", "x" * 300_000), "params"),
        (lambda r: r.start_run("k", "report", requester=""), "requester"),
        (lambda r: r.resume_run(3, requester="ops"), "run"),
        (lambda r: r.resume_run("a\nb", requester="ops"), "run"),
        (lambda r: r.resume_run("k@1", requester="ops", in_doubt="maybe"), "in_doubt"),
        (lambda r: r.use_fallback("k", provider="", model="m", requester="ops"), "provider"),
        (lambda r: r.use_fallback("k", provider="p", model="", requester="ops"), "model"),
        (lambda r: r.cancel_run("k@1", requester="ops", reason="x" * 2_000), "reason"),
        (lambda r: r.cancel_run("k@1", requester="\n"), "requester"),
    ],
)
async def test_malformed_argument_of_a_verb_is_refused_by_its_field_and_changes_nothing(
    world: World, virtual_time: MockClock, call: Any, field: str
) -> None:
    effects = Effects()
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        effects.raising["gather"] = [wall(None)]
        await runtime.start_run("k", "report")
        await until(lambda: runtime.run("k").state.startswith("waiting"))
        before = runtime.runs()
        with pytest.raises(InvalidInputError) as caught:
            await call(runtime)
        assert caught.value.field == field
        assert runtime.runs() == before


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "report"}, "name"),
        ({"function": lambda run, params: None}, "function"),
        ({"function": None}, "function"),
        ({"version": 0}, "version"),
        ({"version": True}, "version"),
        ({"buffer_s": -1}, "buffer_s"),
        ({"buffer_s": float("nan")}, "buffer_s"),
        ({"finalisers": [("a/b", print)]}, "finalisers[0][0]"),
        ({"finalisers": [("a", print), ("a", print)]}, "finalisers[1][0]"),
        ({"finalisers": [("a", None)]}, "finalisers[0][1]"),
        ({"finalisers": [("a", print, "perhaps")]}, "finalisers[0][2]"),
        ({"finalisers": ["a"]}, "finalisers[0]"),
        ({"fallbacks": [("p", "m")]}, "fallbacks[0]"),
        ({"fallbacks": 5}, "fallbacks"),
    ],
)
async def test_malformed_workflow_is_refused_by_its_field(
    world: World, virtual_time: MockClock, options: dict[str, Any], field: str
) -> None:
    async with world.open() as runtime:
        runtime.add_workflow("report", five(Effects()))
        given: dict[str, Any] = {"name": "other", "function": five(Effects()), **options}
        with pytest.raises(InvalidInputError) as caught:
            runtime.add_workflow(given.pop("name"), given.pop("function"), **given)
        assert caught.value.field == field


async def test_run_and_workflow_that_are_not_there_are_refused(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        with pytest.raises(UnknownWorkflowError):
            await runtime.start_run("k", "report")
        for verb in (runtime.run, runtime.run_steps, runtime.run_history):
            with pytest.raises(UnknownRunError):
                verb("k")
            with pytest.raises(UnknownRunError):
                verb("k@1")
        with pytest.raises(UnknownRunError):
            await runtime.cancel_run("k", requester="ops")
    with pytest.raises(RuntimeClosedError):
        await runtime.start_run("k", "report")


# -- the end of the process


async def test_stop_lets_what_runs_be_recorded_and_the_next_start_goes_on_behind_it(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()
    effects.gates["a"] = trio.Event()
    async with trio.open_nursery() as nursery, world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        run = await runtime.start_run("report:1", "report")
        await until(lambda: run.status().step == "publish/a")
        nursery.start_soon(release_soon, effects.gates["a"])
    assert effects.log == ["gather", "a"]
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        await until(lambda: runtime.run("report:1").ended)
        assert runtime.run("report:1").state == "completed"
    assert effects.log == ALL


async def test_item_that_raises_as_a_stop_cuts_it_off_is_in_doubt_and_has_not_failed(
    world: World, virtual_time: MockClock
) -> None:
    begun = []

    async def act() -> str:
        begun.append(len(begun))
        try:
            await trio.sleep(0 if begun[1:] else 3_600)
        finally:
            if not begun[1:]:
                raise OSError("the cleaning up failed")
        return "acted"

    async def body(run: RunContext, params: Any) -> Any:
        return await run.do("act", act, in_doubt="retry")

    async with world.open() as runtime:
        runtime.add_workflow("report", body)
        await runtime.start_run("k", "report")
        await until(lambda: begun == [0])
    async with world.open() as runtime:
        runtime.add_workflow("report", body)
        await until(lambda: runtime.run("k").ended)
        assert (runtime.run("k").state, runtime.run("k").result) == ("completed", "acted")


async def test_item_that_its_workflow_cut_off_can_be_settled_though_others_are_behind_it(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()

    async def body(run: RunContext, params: Any) -> Any:
        with trio.move_on_after(1):
            await run.do("slow", trio.sleep, 60)
        return await run.do("call", effects, "call")

    async with world.open() as runtime:
        runtime.add_workflow("report", body)
        effects.raising["call"] = [wall(None)]
        run = await runtime.start_run("k", "report")
        await comes(lambda: run.status().state == "waiting_for_capacity_unknown")
        await runtime.resume_run("k", requester="ops")
        await comes(lambda: run.status().state == "recovery_required")
        assert "'slow'" in run.status().reason
        await runtime.resume_run("k", requester="ops", in_doubt="done")
        assert (await run.wait()).state == "completed"
    assert effects.log == ["call"]


async def test_wall_of_a_window_whose_name_is_too_long_is_recorded_all_the_same(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        effects.raising["b"] = [wall(world.clock.now_ms() + HOUR, "w" * 500)]
        run = await runtime.start_run("report:1", "report")
        await until(lambda: run.status().state == "waiting_for_capacity")
        assert run.status().window is not None
        assert (await run.wait()).state == "completed"
    assert effects.log == ALL


@pytest.mark.behaviour("S-012")
@pytest.mark.parametrize("ago_ms", [0, 1, HOUR], ids=["now", "just now", "an hour ago"])
async def test_reset_that_has_passed_is_no_instant_to_go_on_at(
    world: World, virtual_time: MockClock, ago_ms: int
) -> None:
    effects = Effects()
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        effects.raising["b"] = [wall(world.clock.now_ms() - ago_ms)]
        run = await runtime.start_run("report:1", "report")
        await until(lambda: run.status().state == "waiting_for_capacity_unknown")
        assert run.status().retry_at_ms is None
        assert run.status().model == "opus"
        await runtime.resume_run("report:1", requester="ops")
        assert (await run.wait()).state == "completed"
    assert effects.log == ALL


@pytest.mark.parametrize("total", [-1, True, 1.5, 2**63])
async def test_malformed_total_of_a_step_is_refused(
    world: World, virtual_time: MockClock, total: Any
) -> None:
    async def body(run: RunContext, params: Any) -> Any:
        with run.step("publish", total=total):
            raise AssertionError("it was taken")

    async with world.open() as runtime:
        runtime.add_workflow("report", body)
        run = await runtime.start_run("k", "report")
        assert "total" in (await run.wait()).reason


async def release_soon(event: trio.Event) -> None:
    await trio.sleep(2)
    event.set()


async def test_whoever_waits_for_a_run_is_told_when_the_runtime_ends(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()
    told = []
    async with trio.open_nursery() as nursery, world.open():
        run = await waiting(world, effects, None)

        async def wait() -> None:
            try:
                await run.wait()
            except RuntimeClosedError as error:
                told.append(error.code)

        nursery.start_soon(wait)
        await settled()
    assert told == ["runtime_closed"]


async def test_quiesced_host_executes_no_item_and_goes_on_behind_it_when_it_resumes(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()
    effects.gates["a"] = trio.Event()
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        run = await runtime.start_run("report:1", "report")
        await until(lambda: len(effects.keys) == 2)
        await runtime.quiesce(reason="upgrade", requester="ops")
        effects.gates["a"].set()
        await trio.sleep(120)
        assert effects.log == ["gather", "a"]
        assert run.status().state == "running"
        serves = "when the quiesced host serves again (abeyance quiesce DIR --end)"
        assert run.status().text() == f"Interrupted \u00b7 goes on {serves}"
        for verb in (
            runtime.start_run("other", "report"),
            runtime.resume_run(run.id, requester="ops"),
        ):
            with pytest.raises(QuiescedError):
                await verb
        await runtime.resume(requester="ops")
        assert (await run.wait()).state == "completed"
    assert effects.log == ALL


async def test_run_that_is_due_while_the_host_is_quiesced_waits_for_its_resume(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()
    async with world.open() as runtime:
        run = await waiting(world, effects, world.clock.now_ms() + HOUR)
        await runtime.quiesce(reason="upgrade", requester="ops")
        await trio.sleep(2 * 3_600)
        assert run.status().state == "waiting_for_capacity"
        assert (
            run.status()
            .text()
            .endswith(", once the quiesced host serves again (abeyance quiesce DIR --end)")
        )
        await runtime.resume(requester="ops")
        assert not run.status().quiesced
        assert (await run.wait()).state == "completed"
    assert effects.log == ALL


@pytest.mark.parametrize("in_doubt", ["retry", "happened", "did not", "unknown", "recover"])
@pytest.mark.behaviour("R-20")
async def test_item_that_was_running_at_a_crash_is_settled_by_its_policy(
    world: World, virtual_time: MockClock, in_doubt: str
) -> None:
    effects = Effects()
    effects.gates["act"] = trio.Event()
    asked = []

    def ask(context: Any) -> Any:
        asked.append((context.path, context.key))
        return {"happened": Happened("as it was"), "did not": DidNotHappen}.get(in_doubt)

    policy: Any = in_doubt if in_doubt in ("retry", "recover") else ask

    async def body(run: RunContext, params: Any) -> Any:
        await run.do("before", effects, "before")
        return await run.do("act", effects, "act", in_doubt=policy)

    async with world.open() as runtime:
        runtime.add_workflow("report", body)
        run = await runtime.start_run("report:1", "report")
        await until(lambda: len(effects.keys) == 2)
        del effects.gates["act"]
        world.ref("runs").kill()
        if in_doubt in ("unknown", "recover"):
            await until(lambda: run.status().state == "recovery_required")
            assert "'act' was begun and its end is not recorded" in run.status().reason
            with pytest.raises(RunStateError, match="needs a decision"):
                await runtime.resume_run(run.id, requester="ops")
            receipt = await runtime.resume_run(
                run.id, requester="ops", in_doubt="done", result="as the ledger says"
            )
            assert receipt.changed
        status = await run.wait()
    assert status.state == "completed"
    assert asked == ([] if policy is not ask else [("act", "report:1@1/1")])
    again = in_doubt in ("retry", "did not")
    assert effects.log.count("act") == again
    assert effects.log.count("before") == 1
    assert status.result == {
        "retry": "act!",
        "did not": "act!",
        "happened": "as it was",
    }.get(in_doubt, "as the ledger says")


@pytest.mark.behaviour("X-006")
async def test_resident_and_run_that_share_a_wall_have_one_row_one_hold_and_one_suspension(
    world: World, virtual_time: MockClock
) -> None:
    """The resident's turn is held where it stands, the run is suspended, and both go on once."""
    tries: list[int] = []

    async def body(run: RunContext, params: Any) -> Any:
        return await run.do("ask", sum_up)

    async def sum_up() -> str:
        tries.append(world.clock.now_ms())
        said = await world.runtime.agent("ana").auxiliary_call(ask())
        return str(said.blocks[0].text)  # type: ignore[union-attr]

    async with world.open() as runtime:
        looking = runtime.events(kinds=["wait_recorded", "hold_began", "hold_ended"])
        script = [fail(429, retry_after=3_600), reply("hello"), reply("in short")]
        provider = ScriptedProvider(script, clock=world.clock)
        ana = await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        await ana.send("go")
        await ana.wait_idle()
        (wait,) = runtime.provider_waits()
        runtime.add_workflow("report", body)
        run = await runtime.start_run("report:1", "report")
        await until(lambda: run.status().state == "waiting_for_capacity")
        assert run.status().retry_at_ms == wait.deadline_ms
        assert run.status().resume_after_ms == wait.deadline_ms, "the gate asks again: no buffer"
        assert world.state("ana").held.deadline_ms == wait.deadline_ms
        assert (len(tries), len(provider.requests)) == (1, 1)
        status = await run.wait()
        await ana.wait_idle()
        assert (status.state, status.result) == ("completed", "in short")
        assert wait.deadline_ms is not None
        assert tries[1] >= wait.deadline_ms
        assert (len(tries), len(provider.requests)) == (2, 3)
        assert len(world.rows("waits")) == 1
        assert states(world, run.id).count("waiting_for_capacity") == 1
        assert [turn.state for turn in world.turns("ana")] == ["done"]
    assert [event.kind async for event in looking] == ["wait_recorded", "hold_began", "hold_ended"]


# -- listings


async def ended(world: World, *keys: str, fails: bool = False) -> None:
    for key in keys:
        run = await world.runtime.start_run(key, "fails" if fails else "ends")
        await run.wait()
        world.clock.advance(1)


async def ends(run: RunContext, params: Any) -> None:
    await trio.lowlevel.checkpoint()


async def fails(run: RunContext, params: Any) -> None:
    raise LookupError("so")


async def test_runs_that_have_ended_are_listed_by_how_they_did_the_newest_first_in_pages(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        runtime.add_workflow("ends", ends)
        runtime.add_workflow("fails", fails)
        await ended(world, "c", "a")
        await ended(world, "z", "y", fails=True)
        await ended(world, "b", "a")
        listed = [run.id for run in runtime.runs(state="completed")]
        assert listed == ["a@2", "b@1", "a@1", "c@1"]
        assert [run.id for run in runtime.runs(state="failed")] == ["y@1", "z@1"]
        assert runtime.runs(state="cancelled") == runtime.runs(state="open") == ()
        paged: list[str] = []
        while page := runtime.runs(state="completed", limit=1, after=paged[-1] if paged else None):
            paged += [run.id for run in page]
        assert paged == listed
        with pytest.raises(InvalidRunError) as caught:
            runtime.runs(state="completed", after="y@1")
        assert caught.value.field == "after"
        with pytest.raises(UnknownRunError):
            runtime.runs(state="completed", after="nobody@1")


@pytest.mark.parametrize("state", ["completed", "failed", None])
async def test_listing_goes_through_no_more_runs_than_its_bound_however_many_there_are(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch, state: str | None
) -> None:
    monkeypatch.setattr("abeyance.actors.run_reading.LOOKED_AT_MAX", 4)
    async with world.open() as runtime:
        runtime.add_workflow("ends", ends)
        runtime.add_workflow("fails", fails)
        await ended(world, *(f"k{number}" for number in range(9)))
        await ended(world, "z", fails=True)
        read: list[Any] = []
        get = runtime._store.get

        def counted(table: str, key: Any) -> Any:
            read.append((table, key))
            return get(table, key)

        monkeypatch.setattr(runtime._store, "get", counted)
        found = runtime.runs(state=state, workflow="fails")
        assert [run.id for run in found] == (["z@1"] if state == "failed" else [])
        rows = [key for table, key in read if table == "runs"]
        assert len(rows) <= (4 if state is None else 1), "the index knows of whom a run is"


async def test_run_that_is_executed_names_the_process_that_owns_it_and_no_other_does(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()
    effects.gates["a"] = trio.Event()
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        run = await runtime.start_run("k", "report")
        await until(lambda: run.status().step == "publish/a")
        status = run.status()
        assert (status.owner_pid, status.owner_host) == (os.getpid(), socket.gethostname())
        assert runtime.runs() == (status,)
        effects.raising["b"] = [wall(world.clock.now_ms() + HOUR)]
        effects.gates.pop("a").set()
        await until(lambda: run.status().state == "waiting_for_capacity")
        assert (run.status().owner_pid, run.status().owner_host) == (None, None)
        status = await run.wait()
        assert (status.owner_pid, status.owner_host) == (None, None)
