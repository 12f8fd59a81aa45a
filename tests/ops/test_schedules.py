"""Schedules for an operator: at the command line and the socket, of a host and a stopped store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from abeyance.actors import RunContext, open_runtime
from abeyance.actors.domain import alarm
from abeyance.actors.events import ScheduleOccurred
from abeyance.actors.ops import cli
from abeyance.actors.testing import WallClock

from .test_cli import spawn
from .test_control import asked, in_thread, request
from .test_surfaces import HOUR_MS

NOW = 1_791_374_400_000
"""7 October 2026, 12:00 in UTC."""
Said = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 columns, no colour, UTC."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


async def said(capsys: Said, *arguments: str, code: int = 0) -> Any:
    found = await trio.to_thread.run_sync(cli.main, list(arguments))
    out = capsys.readouterr()
    assert found == code, out.err
    return json.loads(out.out) if "--json" in arguments and not code else out.out + out.err


async def body(run: RunContext, _params: Any) -> None:
    await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
async def test_schedules_are_listed_and_one_is_shown_with_its_occurrences(
    tmp_path: Path, capsys: Said, stopped: bool
) -> None:
    state, clock = tmp_path / "state", WallClock(NOW)
    async with open_runtime(state, clock=clock) as runtime:
        runtime.add_workflow("report", body)
        await runtime.add_schedule("nightly", "report", cron="30 2 * * *", zone="Europe/Vienna")
        with runtime.events(kinds={"schedule_occurred"}) as events:
            await runtime.add_schedule("pulse", "report", every=900)
            clock.advance(2_700_000)
            await runtime.pause_schedule("nightly", requester="ops")
            assert isinstance(await anext(aiter(events)), ScheduleOccurred)
            assert isinstance(await anext(aiter(events)), ScheduleOccurred)
        await runtime.wait_run("pulse")
        if not stopped:
            await looks(state, capsys)
            (answer,) = await in_thread(asked, state, request("schedules", schedule="pulse"))
            assert answer["ok"] is True
    if stopped:
        await looks(state, capsys)


async def looks(state: Path, capsys: Said) -> None:
    listed = await said(capsys, "schedules", str(state), "--json")
    assert [(each["name"], each["state"]) for each in listed["schedules"]] == [
        ("nightly", "paused"),
        ("pulse", "active"),
    ]
    assert listed["schedules"][1]["next_ms"] == NOW + 3_600_000
    assert listed["occurrences"] is None
    shown = await said(capsys, "schedules", str(state), "pulse", "--json")
    assert [(each["number"], each["outcome"]) for each in shown["occurrences"]] == [
        (2, "started"),
        (1, "missed"),
    ]
    page = await said(capsys, "schedules", str(state), "pulse", "--before", "2", "--json")
    assert [each["number"] for each in page["occurrences"]] == [1]
    text = await said(capsys, "schedules", str(state), "pulse")
    assert "pulse  report, every 900 s" in text
    assert "started pulse@1" in text
    assert "missed" in text
    text = await said(capsys, "schedules", str(state))
    assert "nightly  report, 30 2 * * * in Europe/Vienna" in text
    assert "paused since" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "no schedule 'gone'" in await said(capsys, "schedules", str(state), "gone", code=1)
    await said(capsys, "schedules", str(state), "--before", "2", code=2)


async def test_store_without_schedules_says_so(tmp_path: Path, capsys: Said) -> None:
    async with open_runtime(tmp_path / "state", control=False):
        pass
    assert "No schedules." in await said(capsys, "schedules", str(tmp_path / "state"))


async def acts(state: Path, capsys: Said) -> None:
    """Each act twice, by the command line; an act on a removed one finds none."""
    for act, comes_to in (("pause", "paused"), ("resume", "active"), ("remove", "removed")):
        for changed in (True, False):
            found = await said(capsys, "schedules", str(state), "pulse", f"--{act}", "--json")
            assert (found["name"], found["state"], found["changed"]) == ("pulse", comes_to, changed)
        text = await said(capsys, "schedules", str(state), "pulse", f"--{act}")
        assert f"pulse is {comes_to}; nothing was changed." in text
        if act == "resume":
            listed = await said(capsys, "schedules", str(state), "--json")
            assert [each["state"] for each in listed["schedules"]] == ["active"]
    for act in ("pause", "resume"):
        refused = await said(capsys, "schedules", str(state), "pulse", f"--{act}", code=1)
        assert "no schedule 'pulse'; nothing was done" in refused
    refused = await said(capsys, "schedules", str(state), "gone", "--remove", code=1)
    assert "no schedule 'gone'; nothing was done" in refused
    for wrong in (
        ("--pause",),
        ("pulse", "--pause", "--remove"),
        ("pulse", "--pause", "--before", "2"),
    ):
        await said(capsys, "schedules", str(state), *wrong, code=2)
    await said(capsys, "schedules", str(state), "a@b", "--pause", code=1)


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
async def test_schedule_is_paused_resumed_and_removed_safely_twice(
    tmp_path: Path, capsys: Said, stopped: bool
) -> None:
    state = tmp_path / "state"
    async with open_runtime(state) as runtime:
        runtime.add_workflow("report", body)
        await runtime.add_schedule("pulse", "report", every=900)
        if not stopped:
            await acts(state, capsys)
            assert runtime.schedules() == ()
    if stopped:
        await acts(state, capsys)
    async with open_runtime(state, control=False) as runtime:
        told = [row.record.text for _, row in runtime._store.scan("log")]  # type: ignore[union-attr]
        assert [line.rpartition(" by ")[0] for line in told if line.startswith("pulse")] == [
            "pulse: new to active",
            "pulse: active to paused",
            "pulse: paused to active",
            "pulse: active to removed",
        ]
        runtime.add_workflow("report", body)
        receipt = await runtime.add_schedule("pulse", "report", every=900)
        assert receipt.changed
        assert runtime.schedule("pulse").state == "active"


@pytest.mark.slow
async def test_host_that_lives_goes_by_what_was_decided_on_its_store_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that serves no socket: the command line decides on the rows that it goes by."""
    # What is waited for really is the alarm's next look at the wall clock.
    monkeypatch.setattr(alarm, "LOOK_EVERY_S", 0.1)
    state, clock = tmp_path / "state", WallClock(NOW)
    async with open_runtime(state, clock=clock, control=False) as runtime:
        runtime.add_workflow("report", body)
        for name in ("paused", "runs"):
            await runtime.add_schedule(name, "report", every=3_600)
        done = await spawn("schedules", str(state), "paused", "--pause")
        assert done.returncode == 0, done.stderr
        with runtime.events(kinds={"schedule_occurred"}) as events:
            clock.advance(HOUR_MS)
            assert (await anext(aiter(events))).schedule == "runs"
        assert runtime.schedule("paused").occurrences == 0
        await runtime.wait_run("runs")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"schedule": "pulse", "act": "stop"}, "act"),
        ({"schedule": "pulse"}, "act"),
        ({"act": "pause"}, "schedule"),
        ({"schedule": 7, "act": "pause"}, "schedule"),
        ({"schedule": "a@b", "act": "pause"}, "name"),
        ({"schedule": "pulse", "act": "pause", "requester": None}, "requester"),
    ],
    ids=["unknown act", "no act", "no name", "number", "no key", "no requester"],
)
async def test_malformed_act_on_a_schedule_is_refused_by_its_field_at_the_socket(
    tmp_path: Path, fields: dict[str, Any], field: str
) -> None:
    state = tmp_path / "state"
    async with open_runtime(state) as runtime:
        runtime.add_workflow("report", body)
        await runtime.add_schedule("pulse", "report", every=900)
        (answer,) = await in_thread(asked, state, request("schedule-act", **fields))
        assert not answer["ok"]
        assert answer["error"]["field"] == field
        assert runtime.schedule("pulse").state == "active"
