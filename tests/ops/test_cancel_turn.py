"""Cancelling a turn by the command line, the control socket and under threads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from abeyance.actors import AgentSpec, CancelReceipt, HostedRuntime, open_runtime
from abeyance.actors.ops import cli
from abeyance.actors.ops.stopped import NeedsHostError, StoppedStore
from abeyance.actors.testing import Gate, ScriptedProvider, fail, reply

from .test_control import asked, in_thread, request


async def run(*arguments: str) -> int:
    return await trio.to_thread.run_sync(cli.main, arguments)


def spec(*script: Any) -> AgentSpec:
    return AgentSpec(name="ana", provider=ScriptedProvider(list(script)), model="m")


async def test_a_turn_is_cancelled_by_the_command_line_through_its_host(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = Gate()
    async with open_runtime(state) as runtime:
        ana = await runtime.add_agent(spec(reply("one"), gate))
        assert await run("cancel-turn", str(state), "ana") == 0
        assert capsys.readouterr().out == "ana: no turn was open\n"
        await ana.send("a")
        await ana.wait_idle()
        await ana.send("b")
        await gate.wait_entered()
        assert await run("cancel-turn", str(state), "ana", "--turn", "1") == 0
        assert capsys.readouterr().out == "ana: turn 1 had ended: done\n"
        assert await run("cancel-turn", str(state), "ana") == 0
        assert capsys.readouterr().out == "ana: turn 2 is cancelled\n"
        assert await run("cancel-turn", str(state), "ana", "--turn", "2", "--json") == 0
        assert json.loads(capsys.readouterr().out) == {"turn": 2, "state": "cancelled"}
        lines = [
            row.record
            for _, row in runtime._store.scan("log")
            if row.record.event == "turn_cancelled"  # type: ignore[union-attr]
        ]
        assert [(line.turn, line.text.startswith("by cli:")) for line in lines] == [(2, True)]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        *(({"turn": turn}, "turn") for turn in (0, -1, 1.5, "1", None, [])),
        ({"agent": "*"}, "agent"),
        ({"agent": ""}, "agent"),
        ({"agent": "cy"}, None),
        ({"turn": 9}, "turn"),
        ({"rounds": 1}, "rounds"),
    ],
    ids=repr,
)
async def test_what_is_malformed_is_refused_at_the_socket_and_ends_nothing(
    state: Path, fields: dict[str, Any], field: str | None
) -> None:
    gate = Gate()
    async with open_runtime(state) as runtime:
        ana = await runtime.add_agent(spec(gate))
        await ana.send("a")
        await gate.wait_entered()
        message = request("cancel-turn", **{"agent": "ana", **fields})
        (answer,) = await in_thread(asked, state, message)
        assert not answer["ok"]
        assert answer["error"].get("field") == field
        assert runtime.status().agents[0].state == "running"
        gate.release()
        await ana.wait_idle()


@pytest.mark.parametrize("arguments", [("--turn", "0"), ("--turn", "x"), ("--all",)], ids=repr)
async def test_what_is_malformed_is_refused_by_the_command_line(
    state: Path, arguments: tuple[str, ...]
) -> None:
    assert await run("cancel-turn", str(state), "ana", *arguments) == 2


async def test_a_turn_of_a_stopped_store_needs_its_host(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_runtime(state) as runtime:
        await runtime.add_agent(spec())
    assert await run("cancel-turn", str(state), "ana") == 1
    assert "start the host" in capsys.readouterr().err
    stopped = StoppedStore(state)
    try:
        with pytest.raises(NeedsHostError):
            stopped.cancel_turn("ana", 1)
    finally:
        stopped.close()


def test_a_turn_is_cancelled_under_threads(tmp_path: Path) -> None:
    with HostedRuntime(tmp_path / "state", control=False) as host:
        ana = host.add_agent(spec(fail(429, retry_after=7_200)))
        ana.send("a")
        ana.wait_idle()
        assert ana.cancel_turn(requester="ops", block=False).get() == CancelReceipt(1, "cancelled")
        assert ana.cancel_turn(turn=1, requester="ops") == CancelReceipt(1, "cancelled")
        assert ana.cancel_turn(requester="ops") == CancelReceipt(None, "none")
