"""Choosing a model by the command line, the control socket and under threads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from abeyance.actors import AgentSpec, HostedRuntime, open_runtime
from abeyance.actors.ops import cli
from abeyance.actors.testing import ScriptedProvider, fail, reply

from .test_control import asked, in_thread, request


async def run(*arguments: str) -> int:
    return await trio.to_thread.run_sync(cli.main, arguments)


def spec(*script: Any) -> AgentSpec:
    return AgentSpec(name="ana", provider=ScriptedProvider(list(script)), model="m")


async def test_a_model_is_chosen_by_the_command_line_through_its_host(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_runtime(state) as runtime:
        ana = await runtime.add_agent(spec(fail(402), reply("one")))
        runtime.add_provider("other", ScriptedProvider([reply("other")]))
        await ana.send("a")
        await ana.wait_idle()
        assert await run("set-model", str(state), "ana", "m2") == 0
        assert capsys.readouterr().out == "ana: m2 from its next turn on\n"
        await ana.wait_idle()
        assert [message.text async for message in ana.transcript()] == ["a", "one"]
        arguments = ("set-model", str(state), "ana", "m3", "--provider", "other", "--json")
        assert await run(*arguments) == 0
        assert json.loads(capsys.readouterr().out) == {
            "model": "m3",
            "provider": "other",
            "was": "m2",
        }
        assert await run("set-model", str(state), "ana") == 0
        assert capsys.readouterr().out == "ana: m from its next turn on\n"
        assert await run("set-model", str(state), "ana", "m2", "--provider", "none") == 1
        assert "add_provider" in capsys.readouterr().err
    assert await run("set-model", str(state), "ana", "m2") == 1
    assert "start the host" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        *(({"model": wrong}, "model") for wrong in ("", "*", None, 7, "a\nb")),
        ({"model": "m2", "provider": ""}, "provider"),
        ({"provider": "other"}, "provider"),
        ({"agent": "*", "model": "m2"}, "agent"),
        ({"agent": "cy", "model": "m2"}, None),
        ({"model": "m2", "provider": "none"}, None),
    ],
    ids=repr,
)
async def test_what_is_malformed_is_refused_at_the_socket_and_chooses_nothing(
    state: Path, fields: dict[str, Any], field: str | None
) -> None:
    async with open_runtime(state) as runtime:
        await runtime.add_agent(spec())
        message = request("set-model", **{"agent": "ana", **fields})
        (answer,) = await in_thread(asked, state, message)
        assert not answer["ok"]
        assert answer["error"].get("field") == field
        assert runtime.status().agents[0].model == "m"


@pytest.mark.parametrize("arguments", [("*",), ("--provider", "p"), ("m", "n")], ids=repr)
async def test_what_is_malformed_is_refused_by_the_command_line(
    state: Path, arguments: tuple[str, ...]
) -> None:
    assert await run("set-model", str(state), "ana", *arguments) in (1, 2)


def test_a_model_is_chosen_under_threads(tmp_path: Path) -> None:
    with HostedRuntime(tmp_path / "state", control=False) as host:
        ana = host.add_agent(spec())
        other = ScriptedProvider([reply("other")])
        host.add_provider("other", other)
        assert ana.set_model("m2", provider="other", block=False).get().was == "m"
        ana.send("a")
        ana.wait_idle()
        assert [each.model for each in other.requests] == ["m2"]
