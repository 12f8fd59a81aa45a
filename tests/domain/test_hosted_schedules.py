"""Schedules for hosts without trio: the same verbs from a host's thread, with the same errors."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from abeyance.actors import (
    HostedRuntime,
    InvalidScheduleError,
    RunContext,
    ScheduleReceipt,
    UnknownScheduleError,
)
from abeyance.actors.domain.errors import RuntimeClosedError
from abeyance.actors.hosted_schedules import HostedScheduleVerbs
from abeyance.actors.schedule_verbs import ScheduleVerbs
from abeyance.actors.testing import ScriptedProvider, WallClock

from .test_hosted_runtime import WAIT_S

NOW = 1_791_374_400_000


@pytest.fixture
def clock() -> WallClock:
    return WallClock(NOW)


@pytest.fixture
def host(tmp_path: Path, clock: WallClock) -> Iterator[HostedRuntime]:
    with HostedRuntime(tmp_path / "state", control=False, clock=clock) as opened:
        yield opened


async def body(run: RunContext, params: Any) -> Any:
    return run.due_ms


def test_schedule_of_a_threaded_host_starts_its_run_and_tells_of_it(
    host: HostedRuntime, clock: WallClock
) -> None:
    host.add_workflow("report", body)
    receipt = host.add_schedule("nightly", "report", every=60)
    assert receipt == ScheduleReceipt(name="nightly", state="active", changed=True)
    with host.events(kinds={"schedule_occurred"}) as events:
        clock.advance(60_000)
        # Whatever has its due instants looked at: no look of half a minute is waited for.
        host.add_schedule("other", "report", every=3_600)
        event = next(iter(events))
    assert event.run == "nightly@1"  # type: ignore[attr-defined]
    assert host.wait_run("nightly").result == NOW + 60_000
    assert [each.outcome for each in host.occurrences("nightly")] == ["started"]
    assert host.schedule("nightly").next_ms == NOW + 120_000
    assert [each.name for each in host.schedules()] == ["nightly", "other"]
    assert host.account_usage(ScriptedProvider([], key="k")) is None


def test_verbs_of_schedules_return_futures_where_they_are_not_to_block(
    host: HostedRuntime,
) -> None:
    host.add_workflow("report", body)
    added = host.add_schedule("nightly", "report", cron="0 3 * * *", block=False)
    assert added.get(timeout=WAIT_S).changed
    for verb, state in (("pause", "paused"), ("resume", "active"), ("remove", "removed")):
        call = getattr(host, f"{verb}_schedule")
        first = call("nightly", requester="ops", block=False).get(timeout=WAIT_S)
        assert (first.state, first.changed) == (state, True)
        assert not call("nightly", requester="ops").changed


def test_errors_of_schedules_reach_the_hosts_thread(host: HostedRuntime) -> None:
    host.add_workflow("report", body)
    with pytest.raises(InvalidScheduleError):
        host.add_schedule("nightly", "report", every=0)
    with pytest.raises(UnknownScheduleError):
        host.schedule("nightly")
    host.close()
    with pytest.raises(RuntimeClosedError):
        host.schedules()


def test_threaded_host_has_each_verb_of_schedules_with_its_defaults() -> None:
    verbs = {name for name in vars(ScheduleVerbs) if not name.startswith("_")}
    assert verbs == {name for name in vars(HostedScheduleVerbs) if not name.startswith("_")} - {
        "account_usage"
    }
    for name in verbs:
        here = inspect.signature(getattr(ScheduleVerbs, name)).parameters
        there = inspect.signature(getattr(HostedScheduleVerbs, name)).parameters
        same = {each: value.default for each, value in here.items()}
        assert same == {each: value.default for each, value in there.items() if each != "block"}
