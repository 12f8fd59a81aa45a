"""Tool calls that wait for a person: by command line and socket, under threads, and stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from abeyance.actors import AgentSpec, HostedRuntime, NeedsApproval, Tool, open_runtime
from abeyance.actors.domain.errors import (
    AgentOwnedElsewhereError,
    ApprovalDecidedError,
    UnknownApprovalError,
)
from abeyance.actors.domain.protocol import RecordWait
from abeyance.actors.ops import cli
from abeyance.actors.ops.stopped import StoppedStore
from abeyance.actors.testing import ScriptedProvider, call_tool, reply
from abeyance.storage.check import check

from .test_control import asked, in_thread, request

FIRST = "ana/1/1/0"
HOSTILE = "\x1b[31mred\u202e"


async def run(*arguments: str) -> int:
    return await trio.to_thread.run_sync(cli.main, arguments)


def spec(*script: Any, effects: list[Any] | None = None, **policy: Any) -> AgentSpec:
    def pay(to: str = "") -> str:
        if effects is not None:
            effects.append(to)
        return "paid"

    schema = {"type": "object", "properties": {"to": {"type": "string"}}}
    tool = Tool("pay", "", schema, pay, approve=NeedsApproval(**policy))
    return AgentSpec(name="ana", provider=ScriptedProvider(list(script)), model="m", tools=[tool])


async def waits(runtime: Any, **fields: Any) -> Any:
    ana = await runtime.add_agent(spec(call_tool("pay", {"to": HOSTILE}), reply("on"), **fields))
    await ana.send("a")
    await ana.wait_idle()
    return ana


async def test_calls_are_listed_and_decided_by_the_command_line_through_their_host(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    effects: list[Any] = []
    async with open_runtime(state) as runtime:
        assert await run("approve", str(state)) == 0
        assert capsys.readouterr().out == "Nothing waits for a person.\n"
        ana = await waits(runtime, effects=effects)
        assert await run("approve", str(state)) == 0
        said = capsys.readouterr().out
        assert said.startswith(f"{FIRST}  pay\n")
        assert "then it counts as denied" in " ".join(said.split())
        assert "\x1b" not in said
        assert "\u202e" not in said
        assert all(len(line) <= 80 for line in said.splitlines())
        # The model's own wait is listed, and what holds the turn is told of all the same.
        await runtime._ledger.ask(RecordWait("ana", "m", None, "slow down"))
        assert await run("status", str(state)) == 0
        assert "ana on m: approval, until" in " ".join(capsys.readouterr().out.split())
        assert await runtime.release_provider_wait("ana", requester="ops")
        assert await run("approve", str(state), "--agent", "bo", "--json") == 1
        assert json.loads(capsys.readouterr().out)["error"]["code"] == "unknown_agent"
        assert await run("approve", str(state), "--json") == 0
        (row,) = json.loads(capsys.readouterr().out)["approvals"]
        assert (row["id"], row["otherwise"], json.loads(row["input"])) == (
            FIRST,
            "deny",
            {"to": HOSTILE},
        )
        for _ in range(2):  # Given twice, it is done once.
            assert await run("approve", str(state), FIRST, "--json") == 0
            decided = json.loads(capsys.readouterr().out)
            assert (decided["id"], decided["state"]) == (FIRST, "approved")
            assert decided["by"].startswith("cli:")
            await ana.wait_idle()
        assert effects == [HOSTILE]
        assert await run("approve", str(state), FIRST, "--deny") == 1
        assert "was approved by cli:" in capsys.readouterr().err


async def test_a_call_is_denied_by_the_command_line_with_a_note(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_runtime(state) as runtime:
        ana = await waits(runtime)
        assert await run("approve", str(state), FIRST, "--deny", "--note", "not today") == 0
        assert f"{FIRST}: denied by cli:" in capsys.readouterr().out
        await ana.wait_idle()
        told = [message async for message in ana.transcript()][2].blocks[0].content[0].text  # type: ignore[union-attr]
        assert told == "This call was not made: a person denied it. not today"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        *(({"approval": wrong}, "id") for wrong in ("", "ana", "ana/1/1/x", "a\nb/1/1/0")),
        ({"approval": 7}, "approval"),
        ({"verdict": "maybe"}, "verdict"),
        ({"note": 7}, "note"),
        ({"approval": "ana/1/1/9"}, None),
        ({"approval": "cy/1/1/0"}, None),
        ({"all": True}, "all"),
    ],
    ids=repr,
)
async def test_what_is_malformed_is_refused_at_the_socket_and_decides_nothing(
    state: Path, fields: dict[str, Any], field: str | None
) -> None:
    async with open_runtime(state) as runtime:
        await waits(runtime)
        message = request("decide", **{"approval": FIRST, "verdict": "approve", **fields})
        (answer,) = await in_thread(asked, state, message)
        assert not answer["ok"]
        assert answer["error"].get("field") == field
        assert [row.id for row in runtime.approvals()] == [FIRST]


@pytest.mark.parametrize(
    "arguments",
    [("nonsense",), ("--deny",), ("--note", "x"), (FIRST, "--agent", "ana"), ("--agent", "*")],
    ids=repr,
)
async def test_what_is_malformed_is_refused_by_the_command_line(
    state: Path, arguments: tuple[str, ...]
) -> None:
    async with open_runtime(state) as runtime:
        await waits(runtime)
        assert await run("approve", str(state), *arguments) in (1, 2)
        assert [row.id for row in runtime.approvals()] == [FIRST]


@pytest.mark.parametrize("verdict", ["approve", "deny"])
async def test_a_call_of_a_stopped_store_is_decided_there_and_acted_on_at_the_next_start(
    state: Path, capsys: pytest.CaptureFixture[str], verdict: str
) -> None:
    effects: list[Any] = []
    async with open_runtime(state) as runtime:
        await waits(runtime)
        (call,) = runtime.approvals()
        said = runtime.status().agents[0].held
        assert said is not None
        assert said.deadline_ms == call.deadline_ms
    assert await run("status", str(state), "--json") == 0
    (agent,) = json.loads(capsys.readouterr().out)["agents"]
    assert agent["held"]["cause"] == "approval"
    assert agent["held"]["deadline_ms"] == call.deadline_ms, "as its host said"
    assert "list the approvals" in agent["held"]["reason"]
    deny = ["--deny"] if verdict == "deny" else []
    for _ in range(2):
        assert await run("approve", str(state), FIRST, *deny) == 0
        assert f"{FIRST}: {'denied' if deny else 'approved'} by cli:" in capsys.readouterr().out
    stopped = StoppedStore(state, writing=True)
    try:
        assert stopped.approvals() == ()
        with pytest.raises(ApprovalDecidedError):
            stopped.decide(FIRST, "approve" if deny else "deny")
        with pytest.raises(UnknownApprovalError):
            stopped.decide("ana/1/1/5", "approve")
        assert check(stopped._store).findings == ()
    finally:
        stopped.close()
    async with open_runtime(state) as runtime:
        ana = await runtime.add_agent(spec(reply("on"), effects=effects))
        await ana.wait_idle()
        assert len(effects) == (0 if deny else 1)
        assert runtime.status().agents[0].state == "idle"


async def test_a_call_whose_turn_has_ended_is_decided_no_more_on_a_stopped_store(
    state: Path,
) -> None:
    async with open_runtime(state) as runtime:
        ana = await waits(runtime)
        await ana.cancel_turn(requester="ops")
    stopped = StoppedStore(state, writing=True)
    try:
        with pytest.raises(ApprovalDecidedError) as caught:
            stopped.decide(FIRST, "approve")
        assert caught.value.state == "over"
    finally:
        stopped.close()


async def test_a_call_of_an_agent_whose_host_serves_no_socket_is_not_decided_behind_its_back(
    state: Path,
) -> None:
    async with open_runtime(state, control=False) as runtime:
        await waits(runtime)

        def decide() -> None:
            # As the command line of another process would: it finds no socket.
            stopped = StoppedStore.__new__(StoppedStore)
            stopped._directory, stopped._clock, stopped._store = state, runtime.clock, store  # type: ignore[assignment]
            stopped.decide(FIRST, "approve")

        store = runtime._store
        with pytest.raises(AgentOwnedElsewhereError, match="nothing was done"):
            decide()
        assert [row.id for row in runtime.approvals()] == [FIRST]


def test_calls_are_decided_under_threads(tmp_path: Path) -> None:
    effects: list[Any] = []
    with HostedRuntime(tmp_path / "state", control=False) as host:
        ana = host.add_agent(spec(call_tool("pay", {"to": "bo"}), reply("on"), effects=effects))
        ana.send("a")
        ana.wait_idle()
        (row,) = host.approvals("ana")
        assert host.approve(row.id, requester="ops", block=False).get().state == "approved"
        ana.wait_idle()
        assert effects == ["bo"]
        with pytest.raises(ApprovalDecidedError):
            host.deny(row.id, requester="ops")
