"""Starting what crashed too often and was parked again, from the command line and the socket."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from abeyance.actors import AgentSpec, Runtime, open_runtime
from abeyance.actors.core import TrioActorRef
from abeyance.actors.testing import ScriptedProvider, reply

from .test_control import asked, in_thread, request
from .test_schedules import Said, said


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 columns, no colour."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


async def parked(runtime: Runtime, ref: TrioActorRef[Any]) -> None:
    """Kill an actor each time it has started, until its group parks."""
    with runtime.events(kinds={"restarted", "parked"}) as events:
        ref.kill("by a test")
        async for event in events:
            if event.kind == "parked":
                return
            ref.kill("by a test")


async def test_parked_group_of_the_runtimes_own_goes_on_once_the_command_line_unparks_it(
    tmp_path: Path, capsys: Said
) -> None:
    state = tmp_path / "state"
    async with open_runtime(state) as runtime:
        for name in ("runs", "schedules", "alerts"):
            group = runtime._own_groups[name]
            await parked(runtime, group.refs[name])
            found = await said(capsys, "unpark", str(state), name, "--json")
            assert found == {"pids": [os.getpid()], "silent_pids": []}
            assert group.state == "running"
            found = await said(capsys, "unpark", str(state), name, "--json")
            assert found["pids"] == []
        assert "alerts is not parked" in await said(capsys, "unpark", str(state), "alerts")
        await parked(runtime, group.refs[name])
        assert f"alerts goes on in process {os.getpid()}." in await said(
            capsys, "unpark", str(state), "alerts"
        )


async def test_parked_agent_goes_on_once_the_command_line_unparks_it(
    tmp_path: Path, capsys: Said
) -> None:
    state = tmp_path / "state"
    async with open_runtime(state) as runtime:
        provider = ScriptedProvider([reply("at last")])
        ana = await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        await parked(runtime, runtime._members["ana"].agent)
        await ana.send("while it was parked")
        (shown,) = (await said(capsys, "status", str(state), "--json"))["agents"]
        assert shown["parked"].startswith("IntensityExceededError: ")
        told = await said(capsys, "status", str(state))
        assert f"then: abeyance unpark {state} --agent ana\n" in told
        assert shown["parked"] in told
        found = await said(capsys, "unpark", str(state), "--agent", "ana", "--json")
        assert found["pids"] == [os.getpid()]
        await ana.wait_idle()
        assert [message.text async for message in ana.transcript()] == [
            "while it was parked",
            "at last",
        ]
        assert "ana is not parked" in await said(capsys, "unpark", str(state), "--agent", "ana")
        refused = await said(capsys, "unpark", str(state), "--agent", "bo", code=1)
        assert "no agent 'bo'" in refused


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "group"),
        ({"group": "runs", "agent": "ana"}, "group"),
        ({"group": "journal"}, "group"),
        ({"group": 7}, "group"),
        ({"agent": "a\nb"}, "agent"),
        ({"group": "runs", "requester": None}, "requester"),
    ],
    ids=["neither", "both", "not one that parks", "number", "no name", "no requester"],
)
async def test_malformed_unpark_is_refused_by_its_field_at_the_socket(
    tmp_path: Path, fields: dict[str, Any], field: str
) -> None:
    state = tmp_path / "state"
    async with open_runtime(state):
        (answer,) = await in_thread(asked, state, request("unpark", **fields))
        assert not answer["ok"]
        assert answer["error"]["field"] == field


async def test_unpark_without_a_host_or_of_nothing_known_says_so(
    tmp_path: Path, capsys: Said
) -> None:
    state = tmp_path / "state"
    async with open_runtime(state):
        assert "must be one of" in await said(capsys, "unpark", str(state), "ledger", code=1)
        await said(capsys, "unpark", str(state), code=2)
        await said(capsys, "unpark", str(state), "runs", "--agent", "ana", code=2)
    assert "parked in a process only" in await said(capsys, "unpark", str(state), "runs", code=1)
