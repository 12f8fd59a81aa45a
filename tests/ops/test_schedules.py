"""Schedules for an operator: at the command line and the socket, of a host and a stopped store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from abeyance.actors import RunContext, open_runtime
from abeyance.actors.events import ScheduleOccurred
from abeyance.actors.ops import cli
from abeyance.actors.testing import WallClock

from .test_control import asked, in_thread, request

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
