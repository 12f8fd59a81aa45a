"""Alerts for an operator: through a host's socket, on a stopped store, under threads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from abeyance.actors import AgentSpec, HostedRuntime, open_runtime
from abeyance.actors.domain.protocol import RecordWait
from abeyance.actors.ops import cli
from abeyance.actors.ops.client import ControlClient, RefusedByHostError
from abeyance.actors.testing import ScriptedProvider, WallClock, fail

from ..domain.damage import damage
from .test_control import asked, in_thread, request


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 columns, no colour, UTC."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


async def run(*arguments: str) -> int:
    return await trio.to_thread.run_sync(cli.main, arguments)


async def listed(state: Path, capsys: Any, *options: str) -> list[Any]:
    assert await run("alerts", str(state), "--json", *options) == 0
    found: list[Any] = json.loads(capsys.readouterr().out)["alerts"]
    return found


def through_client(state: Path, page: dict[str, Any]) -> list[str]:
    with ControlClient(state) as client:
        return [alert.model for alert in client.alerts(**page)]


async def test_host_and_stopped_store_list_the_same_alerts(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_runtime(state) as runtime:
        for model in ("m1", "m2", "m3"):
            await runtime._ledger.ask(RecordWait("ana", model, None, "slow\x1b[31m down"))
            while len(runtime.alerts()) < int(model[1]):
                await trio.lowlevel.checkpoint()
        running = [await listed(state, capsys, *options) for options in ((), ("--after", "1"))]
        assert await in_thread(through_client, state, {"after": 2}) == ["m3"]
        with pytest.raises(RefusedByHostError):
            await in_thread(through_client, state, {"limit": 0})
    stopped = [await listed(state, capsys, *options) for options in ((), ("--after", "1"))]
    assert running == stopped
    every, behind = stopped
    assert [alert["model"] for alert in every] == ["m1", "m2", "m3"]
    assert [alert["model"] for alert in behind] == ["m2", "m3"]
    assert await run("alerts", str(state), "--limit", "1") == 0
    out = capsys.readouterr().out
    head, text = out.splitlines()
    assert head.startswith("3  20")
    assert head.endswith("provider_wait  ana on m3")
    assert text.strip() == every[2]["text"]
    assert "\x1b" not in out


async def test_alert_whose_row_cannot_be_read_is_listed_without_a_time(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_runtime(state) as runtime:
        await runtime._ledger.ask(RecordWait("ana", "m1", None, "slow down"))
        while not runtime.alerts():
            await trio.lowlevel.checkpoint()
    damage(state, WallClock(), "alerts", (1,), "another shape")
    async with open_runtime(state):
        running = await listed(state, capsys)
        assert await in_thread(through_client, state, {}) == ["*"]
    assert running == await listed(state, capsys)
    assert [(alert["kind"], alert["at_ms"]) for alert in running] == [("unreadable", None)]
    assert await run("alerts", str(state)) == 0
    head, text = capsys.readouterr().out.splitlines()
    assert head == "1  at a time that cannot be read  unreadable  framework on *"
    assert "cannot be read" in text


async def test_alerts_of_a_store_without_any_say_so(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_runtime(state, control=False):
        pass
    assert await run("alerts", str(state)) == 0
    assert capsys.readouterr().out == "No alerts.\n"
    assert await run("alerts", str(state), "--after", "-1") == 1
    assert "after" in capsys.readouterr().err


@pytest.mark.parametrize("fields", [{"after": -1}, {"after": "1"}, {"limit": 0}, {"limit": 1_001}])
async def test_malformed_alerts_request_names_its_field(
    state: Path, fields: dict[str, Any]
) -> None:
    async with open_runtime(state):
        (said,) = await in_thread(asked, state, request("alerts", **fields))
    assert said["error"]["field"] == next(iter(fields))


def test_alerts_of_a_hosted_runtime_are_listed(tmp_path: Path) -> None:
    with HostedRuntime(tmp_path / "state", control=False) as host:
        provider = ScriptedProvider([fail(429, retry_after=7_200)])
        ana = host.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        looking = host.events(kinds=["alert_raised"])
        ana.send("go")
        assert next(iter(looking)).kind == "alert_raised"
        (alert,) = host.alerts()
        assert (alert.agent, alert.model) == ("ana", "m")
        assert host.alerts(after=alert.id) == ()
