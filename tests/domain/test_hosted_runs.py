"""Runs for hosts without trio: the verbs of runs from a host's thread, with the same errors."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from abeyance.actors import (
    HostedRuntime,
    RunContext,
    RunOpenError,
    RunReceipt,
    UnknownRunError,
    UnknownScheduleError,
    UnknownWorkflowError,
)
from abeyance.actors.core.errors import WouldDeadlockError
from abeyance.actors.domain.errors import InvalidInputError, RuntimeClosedError
from abeyance.actors.domain.fallback import ModelChoice
from abeyance.actors.hosted_runs import HostedRunVerbs
from abeyance.actors.hosted_schedules import HostedScheduleVerbs
from abeyance.actors.providers import CapacityExhaustedError, Exhaustion
from abeyance.actors.run_verbs import RunVerbs
from abeyance.actors.schedule_verbs import ScheduleVerbs
from abeyance.actors.testing import ScriptedProvider

from .test_hosted_runtime import WAIT_S, on_the_loop


@pytest.fixture
def host(tmp_path: Path) -> Iterator[HostedRuntime]:
    with HostedRuntime(tmp_path / "state", control=False) as opened:
        yield opened


def wall() -> CapacityExhaustedError:
    return CapacityExhaustedError((Exhaustion(provider="p", model="m", window="five_hour"),))


class Pages:
    """A workflow of two items; the second meets a wall of unknown end as often as a test says."""

    def __init__(self, walls: int = 0) -> None:
        self.walls = walls
        self.choices: list[Any] = []
        self.threads: list[str] = []

    def write(self, name: str) -> str:
        self.threads.append(threading.current_thread().name)
        if name == "b" and self.walls:
            self.walls -= 1
            raise wall()
        return f"{name}!"

    async def body(self, run: RunContext, params: Any) -> Any:
        self.choices.append(run.choice)
        with run.step("write", total=2):
            return [params, *[await run.do(name, self.write, name) for name in ("a", "b")]]


def until_waiting(host: HostedRuntime, run: str) -> None:
    """Follow the host's events until a run waits for capacity."""
    with host.events(kinds={"run_changed"}) as events:
        if host.run(run).state.startswith("waiting"):
            return
        for event in events:
            if event.run == run and event.state.startswith("waiting"):  # type: ignore[attr-defined]
                return


def test_run_is_started_and_awaited_and_looked_at_from_a_hosts_thread(host: HostedRuntime) -> None:
    pages = Pages()
    host.add_workflow("pages", pages.body)
    run = host.start_run("k", "pages", {"n": 1})
    assert run.id == "k@1"
    status = run.wait()
    assert (status.state, status.result) == ("completed", [{"n": 1}, "a!", "b!"])
    assert run.status() == host.run("k") == host.runs(state="completed", workflow="pages")[0]
    assert [step.path for step in host.run_steps("k")] == ["write/a", "write/b"]
    assert [step.after for step in host.run_history("k")] == ["running", "completed"]
    assert host.wait_run("k") == status
    assert threading.current_thread().name not in pages.threads


def test_run_is_steered_from_a_hosts_thread_and_a_second_press_changes_nothing(
    host: HostedRuntime,
) -> None:
    pages = Pages(walls=2)
    host.add_workflow("pages", pages.body, fallbacks=[ModelChoice("p2", "m2")])
    run = host.start_run("k", "pages", block=False).get(timeout=WAIT_S)
    until_waiting(host, run.id)
    assert host.resume_run("k", requester="ops") == RunReceipt(
        id="k@1", state="resuming", changed=True
    )
    until_waiting(host, run.id)
    assert host.use_fallback("k", provider="p2", model="m2", requester="ops").changed
    assert run.wait(block=False).get(timeout=WAIT_S).state == "completed"
    assert pages.choices == [None, None, ModelChoice("p2", "m2")]
    for again in (
        host.resume_run("k", requester="ops"),
        host.use_fallback("k", provider="p3", model="m3", requester="ops"),
        host.cancel_run("k", requester="ops", reason="late"),
    ):
        assert again == RunReceipt(id="k@1", state="completed", changed=False)


def test_run_that_waits_is_cancelled_from_a_hosts_thread(host: HostedRuntime) -> None:
    host.add_workflow("pages", Pages(walls=1).body)
    run = host.start_run("k", "pages")
    until_waiting(host, run.id)
    waits = run.wait(block=False)
    assert (
        host.cancel_run("k", requester="ops", reason="no more", block=False)
        .get(timeout=WAIT_S)
        .changed
    )
    assert (waits.get(timeout=WAIT_S).state, run.status().reason) == ("cancelled", "no more")
    assert host.run_history("k")[-1].by == "api:ops"


def test_what_a_verb_of_runs_raises_is_raised_in_the_calling_thread(host: HostedRuntime) -> None:
    host.add_workflow("pages", Pages(walls=1).body)
    with pytest.raises(UnknownWorkflowError) as unknown:
        host.start_run("k", "nothing")
    assert unknown.value.workflow == "nothing"
    with pytest.raises(InvalidInputError) as malformed:
        host.start_run("k@1", "pages")
    assert malformed.value.field == "key"
    for look in (host.run, host.run_steps, host.run_history, host.wait_run):
        with pytest.raises(UnknownRunError) as missing:
            look("k")
        assert missing.value.run == "k"
    run = host.start_run("k", "pages")
    until_waiting(host, run.id)
    with pytest.raises(RunOpenError) as taken:
        host.start_run("k", "pages", block=False).get(timeout=WAIT_S)
    assert (taken.value.run, taken.value.state) == ("k@1", "waiting_for_capacity_unknown")
    with pytest.raises(InvalidInputError) as nobody:
        host.resume_run("k", requester="")
    assert nobody.value.field == "requester"
    with pytest.raises(InvalidInputError) as choice:
        host.use_fallback("k", provider="", model="m", requester="ops")
    assert choice.value.field == "provider"


def test_blocking_verb_of_runs_on_the_loops_thread_is_refused_and_does_nothing(
    host: HostedRuntime,
) -> None:
    host.add_workflow("pages", Pages().body)
    for call in (
        lambda: host.start_run("k", "pages"),
        lambda: host.add_workflow("other", Pages().body),
        lambda: host.cancel_run("k", requester="ops"),
        host.runs,
    ):
        assert isinstance(on_the_loop(host, call), WouldDeadlockError)
    assert host.runs() == ()


def test_thread_that_waits_for_a_run_is_told_when_the_host_ends_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    with HostedRuntime(tmp_path / "state", control=False) as host:
        host.add_workflow("held", Pages(walls=1).body)
        run = host.start_run("k", "held")
        until_waiting(host, run.id)
        waits = run.wait(block=False)
    with pytest.raises(RuntimeClosedError):
        waits.get(timeout=WAIT_S)
    with pytest.raises(RuntimeClosedError):
        run.status()
    with HostedRuntime(tmp_path / "state", control=False) as host:
        host.add_workflow("held", Pages().body)
        assert host.resume_run("k", requester="ops").changed
        assert host.wait_run("k").state == "completed"


def test_schedule_is_added_and_steered_from_a_hosts_thread(host: HostedRuntime) -> None:
    host.add_workflow("pages", Pages().body)
    assert host.add_schedule("pulse", "pages", every=3_600).changed
    assert (
        not host.add_schedule("pulse", "pages", every=3_600, block=False)
        .get(timeout=WAIT_S)
        .changed
    )
    assert host.schedules() == (host.schedule("pulse"),)
    assert host.pause_schedule("pulse", requester="ops").changed
    assert host.schedule("pulse").state == "paused"
    assert host.resume_schedule("pulse", requester="ops").changed
    assert host.occurrences("pulse") == ()
    assert host.remove_schedule("pulse", requester="ops").changed
    with pytest.raises(UnknownScheduleError) as missing:
        host.schedule("pulse")
    assert missing.value.schedule == "pulse"
    assert host.account_usage(ScriptedProvider([])) is None
    assert not host.unpark("runs", requester="ops")
    with pytest.raises(InvalidInputError) as malformed:
        host.add_schedule("pulse", "pages", every=0)
    assert malformed.value.field == "every"


@pytest.mark.parametrize(
    ("verbs", "hosted"),
    [(RunVerbs, HostedRunVerbs), (ScheduleVerbs, HostedScheduleVerbs)],
    ids=["runs", "schedules"],
)
def test_every_verb_of_runs_and_schedules_is_there_under_threads_with_the_same_arguments(
    verbs: type, hosted: type
) -> None:
    names = {name for name in vars(verbs) if not name.startswith("_") and name != "clock"}
    assert names <= {name for name in vars(hosted) if not name.startswith("_")}
    for name in names:
        here = inspect.signature(getattr(verbs, name)).parameters
        there = inspect.signature(getattr(hosted, name)).parameters
        same = {each: value.default for each, value in here.items()}
        assert same == {each: value.default for each, value in there.items() if each != "block"}
