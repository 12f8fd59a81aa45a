"""What waits in inboxes, for an operator: through a host's socket, and on a stopped store."""

from __future__ import annotations

import inspect
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import trio

from abeyance.actors import AgentSpec, Draft, InboxRow, Tool, open_runtime
from abeyance.actors.domain.errors import UnknownAgentError
from abeyance.actors.domain.ingress import body_crc, encode_body, read_blocks
from abeyance.actors.ops import cli
from abeyance.actors.ops.client import ControlClient, RefusedByHostError
from abeyance.actors.ops.render import _CAUSES
from abeyance.actors.ops.stopped import StoppedStore
from abeyance.actors.testing import ScriptedProvider, call_tool, reply
from abeyance.storage.codec import encode
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Committed, Put, Request
from abeyance.storage.tables.slots import Inboxed, Lease, MessageId, Turn

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
    assert await run("inbox", str(state), "--json", *options) == 0
    found: list[Any] = json.loads(capsys.readouterr().out)["inbox"]
    return found


def through_client(state: Path, page: dict[str, Any]) -> list[str]:
    with ControlClient(state) as client:
        return [row.id for row in client.inbox(**page)]


def leave(state: Path, *ids: str, turn: bool) -> None:
    """Rows as a death leaves them: messages of ana's that did not land, and perhaps a live turn."""
    store = LmdbStore.open(state, clock_ms=lambda: time.time_ns() // 1_000_000)
    puts = []
    for entry, id_ in enumerate(ids, 1):
        body = encode_body(read_blocks(id_))
        own = id_ == "own"
        row = Inboxed(
            message=id_,
            author="ana" if own else "bo\x1b[31m",
            agent="ana",
            wake=not own,
            injectable=not own,
            own=own,
            body_crc=body_crc(body),
            body_bytes=len(body.body),
            accepted_ms=1_000,
        )
        known = MessageId(entry=entry, state="inbox", body_crc=body_crc(body))
        puts += [
            Put("ids", ("ana", id_), encode(known)),
            Put("bodies", ("ana", entry), body),
            Put("inbox", ("ana", entry), encode(row)),
        ]
    if turn:
        lease = Lease(token=1, agent="ana", turn=1, entry_next=9, seq_next=1, request_next=1)
        open_ = Turn(
            slot="ana", state="running", round=0, attempts=1, provider="p", model="m",
            injects=True, started_ms=1,
        )  # fmt: skip
        puts += [Put("leases", ("ana",), encode(lease)), Put("turns", ("ana", 1), encode(open_))]
    (outcome,) = store.commit(Request(puts=tuple(puts)))
    assert isinstance(outcome, Committed)
    store.close()


async def with_ana(state: Path) -> None:
    async with open_runtime(state, control=False) as runtime:
        await runtime.add_agent(AgentSpec(name="ana", provider=ScriptedProvider([]), model="m"))


@pytest.mark.behaviour("R-14")
async def test_a_host_lists_what_waits_and_why(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entered, go = trio.Event(), trio.Event()

    async def wait() -> str:
        entered.set()
        await go.wait()
        return "done"

    async with open_runtime(state) as runtime:
        provider = ScriptedProvider([call_tool("wait"), reply("done"), reply("more")])
        tools = [Tool(name="wait", description="w", input_schema={"type": "object"}, run=wait)]
        ana = await runtime.add_agent(
            AgentSpec(name="ana", provider=provider, model="m", tools=tools)
        )
        await ana.send("go")
        await entered.wait()
        own = Draft("own", author="ana", id="own")
        await ana.send_many([Draft("a", id="a", channel="c"), own, Draft("b", id="b")])
        rows = await listed(state, capsys)
        assert [(row["id"], row["state"], row["cause"], row["behind"]) for row in rows] == [
            ("a", "accepted", "turn", None),
            ("own", "held", "own", None),
            ("b", "held", "behind", "own"),
        ]
        assert rows == await listed(state, capsys, "--agent", "ana")
        page = {"agent": "ana", "after": rows[0]["seq"], "limit": 1}
        assert await in_thread(through_client, state, page) == ["own"]
        assert await run("inbox", str(state)) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith(f"{rows[0]['seq']}  accepted  ana  a by user  20")
        assert lines[1] == (
            "  joins the live turn at its next tool boundary; "
            f"{rows[0]['size']} bytes; channel c; asks for a turn"
        )
        assert lines[5].startswith("  stands behind own, which lands at the turn's end; ")
        for fields, code in (
            ({"agent": "*"}, "invalid_name"),
            ({"agent": 7}, "invalid_field"),
            ({"after": 1}, "invalid_input"),
            ({"agent": "ana", "after": -1}, "invalid_input"),
            ({"limit": 0}, "invalid_input"),
            ({"agent": "nobody"}, "unknown_agent"),
        ):
            (answer,) = await in_thread(asked, state, request("inbox", **fields))
            assert answer["error"]["code"] == code
        with pytest.raises(RefusedByHostError):
            await in_thread(through_client, state, {"agent": "nobody"})
        go.set()
        await ana.wait_idle()
        assert await listed(state, capsys) == []
        assert await run("inbox", str(state)) == 0
        assert capsys.readouterr().out == "No messages wait.\n"


def test_every_cause_has_words_for_a_person() -> None:
    told = (inspect.getdoc(InboxRow) or "").partition("cause: ")[2].partition("behind: ")[0]
    assert set(re.findall(r"`(\w+)`:", told)) == set(_CAUSES)


@pytest.mark.behaviour("R-14")
@pytest.mark.parametrize("turn", [True, False], ids=["in a turn", "between turns"])
async def test_a_stopped_store_lists_what_a_death_left_and_why(
    state: Path, capsys: pytest.CaptureFixture[str], turn: bool
) -> None:
    await with_ana(state)
    leave(state, "a", "own", "b", turn=turn)
    rows = await listed(state, capsys)
    causes = [(row["id"], row["state"], row["cause"]) for row in rows]
    assert causes == (
        [("a", "accepted", "turn"), ("own", "held", "own"), ("b", "held", "behind")]
        if turn
        else [(id_, "accepted", "start") for id_ in ("a", "own", "b")]
    )
    assert [
        row["seq"] for row in await listed(state, capsys, "--agent", "ana", "--after", "1")
    ] == [
        2,
        3,
    ]
    assert [row["id"] for row in await listed(state, capsys, "--limit", "1")] == ["a"]
    assert await run("inbox", str(state)) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "1  accepted  ana  a by bo" in out
    for options, code in (
        (("--agent", "nobody"), "unknown_agent"),
        (("--agent", "*"), "invalid_name"),
        (("--after", "1"), "invalid_input"),
        (("--limit", "0"), "invalid_input"),
    ):
        assert await run("inbox", str(state), "--json", *options) == 1
        assert json.loads(capsys.readouterr().out)["error"]["code"] == code
    store = StoppedStore(state)
    with pytest.raises(UnknownAgentError):
        store.inbox("nobody")
    store.close()
