"""How far bridges are: by the API, under threads, the command line, by HTTP, and when stopped."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from abeyance.actors import AgentSpec, HostedRuntime, HttpApi, OutboxBehind, open_runtime
from abeyance.actors.domain import outbox_rows
from abeyance.actors.ops import cli
from abeyance.actors.ops.instants import local_text
from abeyance.actors.testing import ScriptedProvider, WallClock

from ..domain.damage import damage
from .test_surfaces import TOKEN

START_MS = 1_800_000_000_000


async def run(capsys: pytest.CaptureFixture[str], state: Path, *arguments: str) -> str:
    assert await trio.to_thread.run_sync(cli.main, ("outbox", str(state), *arguments)) == 0
    return capsys.readouterr().out


def spec(name: str) -> AgentSpec:
    return AgentSpec(name=name, provider=ScriptedProvider.echo(), model="m")


async def told(runtime: Any, *names: str) -> None:
    """An outbox of all agents that is one reply on, and one of `bo` that nobody reads."""
    clock = runtime.clock
    agents = [await runtime.add_agent(spec(name)) for name in names]
    async with runtime.outbox("mail", "bo"):
        pass
    async with runtime.outbox("chat") as outbox:
        for agent in agents:
            for text in ("one", "two"):
                await agent.send(text)
                await agent.wait_idle()
                clock.advance(60_000)
        async for reply in outbox:
            await reply.done()
            break


async def test_how_far_bridges_are_is_listed_alike_at_every_door(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    http, clock = HttpApi(port=0, admin_token=TOKEN), WallClock(START_MS)
    async with open_runtime(state, http=http, clock=clock) as runtime:
        assert await run(capsys, state) == "No outbox was begun.\n"
        assert json.loads(await run(capsys, state, "--json")) == {"outboxes": []}
        await told(runtime, "ana", "bo")
        chat, mail = await runtime.outboxes()
        assert (chat.name, chat.agent, chat.lag, chat.pid) == ("chat", None, 3, os.getpid())
        assert chat.behind == (
            OutboxBehind(agent="ana", slot="ana", seq=2, lag=1, oldest_ms=START_MS + 60_000),
            OutboxBehind(agent="bo", slot="bo", seq=0, lag=2, oldest_ms=START_MS + 120_000),
        )
        assert (mail.agent, mail.lag, mail.oldest_ms) == ("bo", 2, START_MS + 120_000)
        lines = (await run(capsys, state)).splitlines()
        live = json.loads(await run(capsys, state, "--json"))
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with httpx2.AsyncClient(base_url=runtime.http_url, headers=headers) as client:
            assert (await client.get("/v1/outbox")).json() == live
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(outbox_rows, "LAG_MAX", 2)
            few, _ = await runtime.outboxes()
            assert (few.lag, [each.lag for each in few.behind]) == (2, [1, 1])
        async with runtime.outbox("chat"):
            read = json.loads(await run(capsys, state, "--json"))
            assert [each["is_read"] for each in read["outboxes"]] == [True, False]
            assert f"process {os.getpid()} reads it" in await run(capsys, state)
    assert [line.rstrip() for line in lines] == [
        f"chat (of all agents): 3 to post; process {os.getpid()} has it",
        f"    the oldest of {local_text(START_MS + 60_000)}",
        "    ana: 1 behind place 2",
        "    bo: 2 behind place 0",
        f"mail (of bo): 2 to post; process {os.getpid()} has it",
        f"    the oldest of {local_text(START_MS + 120_000)}",
        "    bo: 2 behind place 0",
    ]
    for each, listed in zip((chat, mail), live["outboxes"], strict=True):
        assert listed["behind"] == [
            {name: getattr(one, name) for name in ("agent", "slot", "seq", "lag", "oldest_ms")}
            for one in each.behind
        ]
    stopped = json.loads(await run(capsys, state, "--json"))
    assert [each.pop("pid") for each in live["outboxes"]] == [os.getpid()] * 2
    assert [each.pop("pid") for each in stopped["outboxes"]] == [None] * 2
    assert stopped == live
    assert "; nobody has it\n" in await run(capsys, state)


async def test_whether_another_process_reads_an_outbox_is_left_open(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_runtime(state, clock=WallClock(START_MS)) as runtime:
        await told(runtime, "ana", "bo")
        code = (
            "import sys, trio\n"
            "from abeyance.actors import open_runtime\n"
            "from abeyance.actors.ops.outbox_reports import report_outboxes\n"
            "async def main():\n"
            "    async with open_runtime(sys.argv[1], control=False) as runtime:\n"
            "        for each in report_outboxes(await runtime.outboxes()).outboxes:\n"
            "            print(each.pid, each.is_read, each.lag)\n"
            "trio.run(main)\n"
        )
        command = [sys.executable, "-c", code, str(state)]
        other = await trio.run_process(command, capture_stdout=True)
        assert other.stdout.decode().splitlines() == [
            f"{os.getpid()} None 3",
            f"{os.getpid()} None 2",
        ]


@pytest.mark.parametrize(
    ("table", "key", "left"),
    [
        ("cursors", ("chat", "ana", "ana"), [("ana", None, 0), ("bo", 0, 2)]),
        ("slots", ("ana", 4), [("ana", None, 0), ("bo", 0, 2)]),
        ("slots", ("bo", 4), [("ana", 2, 1), ("bo", None, 0)]),
        ("outboxes", ("chat",), None),
    ],
    ids=str,
)
async def test_row_that_cannot_be_read_hides_no_other_agent_of_an_outbox(
    state: Path,
    capsys: pytest.CaptureFixture[str],
    table: str,
    key: tuple[Any, ...],
    left: list[Any] | None,
) -> None:
    clock = WallClock(START_MS)
    async with open_runtime(state, clock=clock) as runtime:
        await told(runtime, "ana", "bo")
    damage(state, clock, table, key, "a flipped bit")
    report = json.loads(await run(capsys, state, "--json"))
    names = [each["name"] for each in report["outboxes"]]
    if left is None:
        assert names == ["mail"]
        return
    assert names == ["chat", "mail"]
    chat = report["outboxes"][0]
    assert [(each["agent"], each["seq"], each["lag"]) for each in chat["behind"]] == left
    assert chat["unreadable"] == [name for name, seq, _ in left if seq is None]
    (name,) = chat["unreadable"]
    said = " ".join((await run(capsys, state)).split())
    assert f"{name}: a row cannot be read, and it is not gone on with: see abeyance check" in said


def test_threads_see_who_is_behind(state: Path) -> None:
    with HostedRuntime(state, control=False) as host:
        bo = host.add_agent(spec("bo"))
        with host.outbox("chat"):
            pass
        bo.send("one")
        bo.wait_idle()
        (status,) = host.outboxes()
        assert [(each.agent, each.lag) for each in status.behind] == [("bo", 1)]
