"""Edits by the command line, the control socket, under threads, and on a stopped store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from abeyance.actors import AgentSpec, HostedRuntime, open_runtime
from abeyance.actors.ops.stopped import NeedsHostError, StoppedStore
from abeyance.actors.testing import ScriptedProvider, reply

from .test_surfaces import asked, in_thread, request, run, spoken, texts


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


async def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert await run(*arguments) == 0
    return capsys.readouterr().out


async def test_edit_by_the_command_line_is_done_by_the_host(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = str(state)
    async with open_runtime(state) as runtime:
        ana = await spoken(runtime)
        done = await said(capsys, "edit", here, "ana", "--message", "id-a", "--text", "other")
        (edit,) = ana.edits()
        assert done == f"ana: message id-a at place 1 changed (edit {edit.edit})\n"
        blocks = json.dumps([{"type": "text", "text": "two"}])
        out = await said(capsys, "edit", here, "ana", "--place", "4", "--blocks", blocks, "--json")
        assert json.loads(out)["seq"] == 4
        assert "taken out" in await said(capsys, "edit", here, "ana", "--place", "2", "--remove")
        assert await texts(ana) == ["other", "b", "two"]
        undone = await said(capsys, "edit", here, "ana", "--undo", str(edit.edit))
        assert undone.startswith("ana: message id-a at place 1 undone")
        assert await texts(ana) == ["a", "b", "two"]
        listed = await said(capsys, "edits", here, "ana")
        assert "place 1  changed  id-a  by cli:" in listed
        assert "undone by cli:" in listed
        rows = json.loads(await said(capsys, "edits", here, "ana", "--json"))["edits"]
        assert [row["seq"] for row in rows] == [1, 4, 2]
        assert json.loads(rows[0]["was"]) == [{"type": "text", "text": "a"}]
        assert rows[2]["undone_by"] is None


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "message"),
        ({"message": "id-a"}, "blocks"),
        ({"blocks": "x"}, "message"),
        ({"message": "id-a", "blocks": "x", "remove": True}, "blocks"),
        ({"message": "id-a", "blocks": "x", "undo": 1}, "undo"),
        *(
            ({"message": message, "blocks": "x"}, "message")
            for message in ("", None, -1, 1.5, [], "a\nb", "x" * 129)
        ),
        *(({"undo": undo}, "undo") for undo in (0, -1, "1", None, 1.5)),
        ({"message": "id-a", "blocks": 1}, "blocks"),
        ({"message": "id-a", "blocks": [{"type": "video"}]}, "blocks[0].type"),
        ({"message": "id-a", "blocks": [1]}, "blocks[0]"),
        ({"message": "id-a", "blocks": " "}, "blocks"),
        ({"agent": "*", "undo": 1}, "agent"),
        ({"message": "nobody", "blocks": "x"}, None),
        ({"message": 9, "blocks": "x"}, None),
        ({"undo": 99}, None),
        ({"agent": "cy", "undo": 1}, None),
    ],
    ids=repr,
)
async def test_malformed_edit_is_refused_at_the_socket(
    state: Path, fields: dict[str, Any], field: str | None
) -> None:
    async with open_runtime(state) as runtime:
        ana = await spoken(runtime)
        (answer,) = await in_thread(asked, state, request("edit", **{"agent": "ana", **fields}))
        assert not answer["ok"]
        assert answer["error"].get("field") == field
        assert await texts(ana) == ["a", "one", "b", "two"]
        assert ana.edits() == ()


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--message", "x"),
        ("--text", "x"),
        ("--message", "x", "--place", "1", "--text", "x"),
        ("--message", "x", "--text", "x", "--remove"),
        ("--undo", "1", "--remove"),
        ("--undo", "0"),
        ("--place", "0", "--text", "x"),
        ("--message", "", "--text", "x"),
        ("--message", "x", "--blocks", "not json"),
        ("--message", "x", "--blocks", "{}"),
        ("--message", "x", "--blocks", '[{"type": "video"}]'),
    ],
    ids=repr,
)
async def test_malformed_edit_is_refused_by_the_command_line(
    state: Path, arguments: tuple[str, ...]
) -> None:
    async with open_runtime(state) as runtime:
        ana = await spoken(runtime)
        assert await run("edit", str(state), "ana", *arguments) in (1, 2)
        assert ana.edits() == ()


async def test_edit_of_a_stopped_store_needs_its_host_and_edits_are_listed(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_runtime(state) as runtime:
        ana = await spoken(runtime)
        edit = (await ana.edit("id-a", "other", requester="ops")).edit
    for arguments in (("--undo", str(edit)), ("--message", "id-a", "--remove")):
        assert await run("edit", str(state), "ana", *arguments) == 1
        assert "start the host" in capsys.readouterr().err
    assert 'it said: [{"type":"text","text":"a"}]' in await said(capsys, "edits", str(state), "ana")
    assert await run("edits", str(state), "nobody") == 1
    stopped = StoppedStore(state)
    try:
        with pytest.raises(NeedsHostError):
            stopped.edit("ana", 1, "x")
        with pytest.raises(NeedsHostError):
            stopped.undo_edit("ana", edit)
        assert [row.edit for row in stopped.edits("ana")] == [edit]
    finally:
        stopped.close()


async def test_a_long_message_that_was_edited_is_listed_by_its_beginning(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_runtime(state) as runtime:
        provider = ScriptedProvider([])
        ana = await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        for number in range(3):
            await ana.send("x" * 1_000_000, wake=False)
            await ana.edit(number + 1, "y", requester="ops")
        rows = json.loads(await said(capsys, "edits", str(state), "ana", "--json"))["edits"]
        assert [len(row["was"]) for row in rows] == [2_000] * 3


def test_edit_under_threads(tmp_path: Path) -> None:
    with HostedRuntime(tmp_path / "state", control=False) as host:
        provider = ScriptedProvider([reply("one")])
        ana = host.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        ana.send("a", id="x")
        ana.wait_idle()
        receipt = ana.edit("x", "other", requester="ops")
        assert [message.text for message in ana.transcript()] == ["other", "one"]
        assert ana.undo_edit(receipt.edit, requester="ops", block=False).get() == receipt
        assert [message.text for message in ana.transcript()] == ["a", "one"]
        assert [edit.id for edit in ana.edits()] == ["x"]
