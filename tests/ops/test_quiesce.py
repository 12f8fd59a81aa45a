"""Quiescing from outside: by the command line, on a stopped store, and under threads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from abeyance.actors import AgentSpec, HostedRuntime, Runtime, open_runtime
from abeyance.actors.ops import cli
from abeyance.actors.ops.client import ControlClient
from abeyance.actors.testing import Gate, ScriptedProvider, reply

from .test_control import asked, in_thread, request


async def run(*arguments: str) -> int:
    return await in_thread(cli.main, list(arguments))


async def add(runtime: Runtime, *script: Any) -> Any:
    provider = ScriptedProvider(list(script))
    return await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))


async def test_quiesce_and_its_end_by_the_command_line_are_done_by_the_host(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = Gate()
    async with open_runtime(state) as runtime:
        ana = await add(runtime, gate, reply("fresh"))
        await ana.send("one")
        await gate.wait_entered()
        assert await run("quiesce", str(state), "--reason", "upgrade", "--within", "0") == 0
        printed = capsys.readouterr().out
        assert "Quiesced: upgrade. No turn lives." in printed
        assert "ended, and run anew when it ends: ana" in printed
        await ana.send("two")
        assert await run("status", str(state)) == 0
        assert "upgrade; no turn starts" in " ".join(capsys.readouterr().out.split())
        assert await run("status", str(state), "--json") == 0
        mode = json.loads(capsys.readouterr().out)["mode"]
        assert (mode["state"], mode["reason"]) == ("quiesced", "upgrade")
        assert mode["by"].startswith("cli:")
        assert await run("quiesce", str(state), "--end") == 0
        assert "1 messages that had waited landed" in capsys.readouterr().out
        await ana.wait_idle()
        assert await run("quiesce", str(state), "--end") == 0
        assert "not quiesced" in capsys.readouterr().out


async def test_quiesce_of_a_stopped_store_binds_its_next_host(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_runtime(state):
        pass
    assert await run("quiesce", str(state), "--reason", "moving", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["state"], report["was"], report["reason"]) == ("quiesced", "serving", "moving")
    assert await run("status", str(state)) == 0
    assert "moving" in capsys.readouterr().out
    async with open_runtime(state) as runtime:
        ana = await add(runtime, reply("x"))
        await ana.send("one")
        await ana.wait_idle()
        assert runtime.status().mode.reason == "moving"
    assert await run("quiesce", str(state), "--end", "--json") == 0
    assert json.loads(capsys.readouterr().out)["was"] == "quiesced"
    async with open_runtime(state) as runtime:
        ana = await add(runtime, reply("x"))
        await ana.wait_idle()
        assert [row.role async for row in ana.transcript()] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "reason"),
        ({"reason": " "}, "reason"),
        ({"reason": "r", "within_s": -1}, "within_s"),
        ({"reason": "r", "within_s": 1e9}, "within_s"),
        ({"reason": "r", "within_s": "soon"}, "within_s"),
        ({"reason": "r", "end": 3}, "end"),
    ],
    ids=str,
)
async def test_malformed_quiesce_is_refused_at_the_socket(
    state: Path, fields: dict[str, Any], field: str
) -> None:
    async with open_runtime(state) as runtime:
        (answer,) = await in_thread(asked, state, request("quiesce", **fields))
        assert (answer["ok"], answer["error"]["field"]) == (False, field)
        assert runtime.status().mode.state == "serving"


@pytest.mark.parametrize("arguments", [("--reason", ""), ("--within", "-1"), ("--within", "nan")])
async def test_malformed_quiesce_is_refused_by_the_command_line(
    state: Path, arguments: tuple[str, ...]
) -> None:
    async with open_runtime(state) as runtime:
        assert await run("quiesce", str(state), *arguments) in (1, 2)
        assert runtime.status().mode.state == "serving"


async def test_client_waits_for_as_long_as_the_window_is(state: Path) -> None:
    gate = Gate()
    async with open_runtime(state) as runtime:
        ana = await add(runtime, gate, reply("fresh"))
        await ana.send("one")
        await gate.wait_entered()

        def quiesce() -> Any:
            with ControlClient(state, timeout_s=0.3) as client:
                return client.quiesce("upgrade", 0.6)

        report = await in_thread(quiesce)
        assert report.abandoned == ("ana",)


def test_quiesce_under_threads(tmp_path: Path) -> None:
    with HostedRuntime(tmp_path / "state") as host:
        provider = ScriptedProvider([reply("x")])
        ana = host.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        assert host.quiesce("upgrade", 1).abandoned == ()
        ana.send("one")
        ana.wait_idle()
        assert host.status().mode.state == "quiesced"
        assert host.resume(block=False).get(timeout=60).landed == 1
        ana.wait_idle()
        assert len(provider.requests) == 1
