"""What agents used, by the command line, the socket, under threads and of a stopped store."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import trio

from abeyance.actors import AgentSpec, HostedRuntime, Price, Prices, open_runtime
from abeyance.actors.ops import cli
from abeyance.actors.providers import Usage
from abeyance.actors.testing import ScriptedProvider, reply

from .test_control import asked, in_thread, request

PRICES = Prices("EUR", {("ScriptedProvider", "m"): Price(input=Decimal("2.5"), output=Decimal(10))})
USED = Usage(input_tokens=1_000_000, output_tokens=100, cache_read_tokens=7)


async def run(*arguments: str) -> int:
    return await trio.to_thread.run_sync(cli.main, arguments)


def spec(name: str = "ana", model: str = "m") -> AgentSpec:
    provider = ScriptedProvider([reply("x", usage=USED)])
    return AgentSpec(name=name, provider=provider, model=model)


async def spend(runtime: Any) -> None:
    for each in (spec(), spec("bo", "m\x9bx".replace("\x9b", "2"))):
        agent = await runtime.add_agent(each)
        await agent.send("go")
        await agent.wait_idle()


async def test_usage_is_printed_alike_by_a_running_host_and_of_a_stopped_store(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    async with open_runtime(state, prices=PRICES) as runtime:
        assert await run("usage", str(state)) == 0
        assert capsys.readouterr().out == "No calls.\n0 calls, 0 tokens.\n"
        await spend(runtime)
        for arguments in ((), ("--json",), ("ana", "--by", "day", "--since", "2020-01-01")):
            assert await run("usage", str(state), *arguments) == 0
            said.append(capsys.readouterr().out)
    for arguments, was in zip(
        ((), ("--json",), ("ana", "--by", "day", "--since", "2020-01-01")), said, strict=True
    ):
        assert await run("usage", str(state), *arguments) == 0
        assert capsys.readouterr().out == was
    table, plain, day = said
    assert all(len(line) <= 80 for line in table.splitlines())
    lines = [" ".join(line.split()) for line in table.splitlines()]
    assert lines == [
        "model calls input cached output cost",
        "ScriptedProvider m 1 1,000,000 7 100 2.50 EUR",
        "ScriptedProvider m2x 1 1,000,000 7 100 –",
        "2 calls, 2,000,214 tokens: 2.50 EUR.",
        "1 of the calls are ones without a price.",
    ]
    report = json.loads(plain)
    assert report["cost"] == {"EUR": "2.501017500"}
    assert [line["model"] for line in report["lines"]] == ["m", "m2x"]
    assert "1 calls, 1,000,107 tokens since 2020-01-01" in " ".join(day.split())


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--by", "week"), 1),
        (("--zone", "Mars"), 1),
        (("--since", "yesterday"), 2),
        (("*",), 1),
    ],
)
async def test_usage_refuses_what_is_malformed_at_a_host_and_a_stopped_store_alike(
    state: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int
) -> None:
    said = []
    async with open_runtime(state):
        assert await run("usage", str(state), *arguments) == code
        said.append(capsys.readouterr().err)
    assert await run("usage", str(state), *arguments) == code
    assert capsys.readouterr().err == said[0]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"by": "week"}, "by"),
        ({"zone": ""}, "zone"),
        ({"since": -1}, "since"),
        ({"agent": ""}, "agent"),
    ],
)
async def test_socket_names_the_field_of_usage_that_is_wrong(
    state: Path, fields: dict[str, Any], field: str
) -> None:
    async with open_runtime(state):
        (answer,) = await in_thread(asked, state, request("usage", **fields))
    assert answer["error"]["field"] == field


def test_threads_read_usage_and_have_prices_and_budgets(state: Path) -> None:
    with HostedRuntime(state, prices=PRICES) as host:
        ana = host.add_agent(spec())
        ana.send("go")
        ana.wait_idle()
        report = host.usage("ana", by="agent")
        assert [(line.agent, line.calls) for line in report.lines] == [("ana", 1)]
