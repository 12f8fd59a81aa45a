"""Import of an older queue for an operator: through hosts, and what a stopped store says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from abeyance.actors import AgentSpec, open_runtime
from abeyance.actors.ops import cli
from abeyance.actors.testing import ScriptedProvider

from .test_control import asked, in_thread, request


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 columns, no colour."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


async def run(*arguments: str) -> int:
    return await trio.to_thread.run_sync(cli.main, arguments)


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    path = tmp_path / "queue.json"
    said = [{"type": "text", "text": "hi"}]
    entries: list[Any] = [
        {"id": "b", "seq": 2, "participant": "bo", "content": said},
        {"id": "a", "seq": 1, "participant": "bo", "content": said, "target": "ana"},
        {"id": "\x1b[31m", "participant": 7, "content": said},
        {"id": "i", "seq": 3, "participant": "bo", "content": [{"type": "video"}]},
    ]
    document = {"format": "abeyance-deferred", "version": 1, "entries": entries}
    path.write_text(json.dumps(document))
    return path


@pytest.mark.behaviour("R-29", "D-067")
async def test_a_host_imports_a_file_and_says_what_became_of_each_entry(
    state: Path, queue: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(queue.parent)
    async with open_runtime(state) as runtime:
        ana = await runtime.add_agent(
            AgentSpec(name="ana", provider=ScriptedProvider([]), model="m")
        )
        command = ("import", str(state), "queue.json", "--agent", "ana")
        assert await run(*command, "--dry-run", "--json") == 1
        dry = json.loads(capsys.readouterr().out)
        assert [message["id"] for message in dry["messages"]] == ["a", "b"]
        assert [message async for message in ana.transcript()] == []
        assert await run(*command, "--json") == 1
        report = json.loads(capsys.readouterr().out)
        assert [(m["id"], m["number"], m["seq"]) for m in report["messages"]] == [
            ("a", 1, 1),
            ("b", 2, 2),
        ]
        assert [(r["kind"], r["place"]) for r in report["repairs"]] == [
            ("dropped", 2),
            ("refused", 3),
        ]
        assert [message.id async for message in ana.transcript()] == ["a", "b"]
        assert await run(*command) == 1
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert out.splitlines() == [
            "entries[2]  [31m by a number: dropped: participant must be text, not a number",
            "entries[3] i by bo: refused: content[0].type Invalid value 'video'",
            "4 entries: 2 accepted, 1 dropped, 1 refused.",
        ]
        for fields, code in (
            ({"path": ""}, "invalid_field"),
            ({"path": str(queue), "agent": "*"}, "invalid_name"),
            ({"path": str(queue), "wake": 1}, "invalid_field"),
            ({"path": str(queue)}, "invalid_input"),
            ({"path": str(queue.parent / "nothing"), "agent": "ana"}, "invalid_input"),
        ):
            (answer,) = await in_thread(asked, state, request("import", **fields))
            assert answer["error"]["code"] == code, answer


async def test_a_stopped_store_says_what_an_import_would_do_and_accepts_nothing(
    state: Path, queue: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_runtime(state, control=False) as runtime:
        await runtime.add_agent(AgentSpec(name="ana", provider=ScriptedProvider([]), model="m"))
    command = ("import", str(state), str(queue), "--agent", "ana")
    assert await run(*command, "--dry-run", "--json") == 1
    dry = json.loads(capsys.readouterr().out)
    assert (dry["dry_run"], [message["id"] for message in dry["messages"]]) == (True, ["a", "b"])
    assert await run(*command, "--json") == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "needs_host"
    assert await run("import", str(state), str(queue.parent / "nothing"), "--json") == 1
    assert json.loads(capsys.readouterr().out)["error"]["field"] == "source"


async def test_two_hosts_of_a_directory_import_each_what_is_for_its_own_agents(
    state: Path, queue: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from abeyance.actors.ops.client import ControlClient
    from abeyance.actors.ops.reports import ImportedReport, ImportReport, RepairReport

    def report(name: str, place: int, other: int) -> ImportReport:
        taken = ImportedReport(agent=name, place=place, number=place + 1, id=name, seq=1)
        gone = RepairReport(kind="refused", place=other, id="x", participant="bo", text="not here")
        bad = RepairReport(kind="dropped", place=2, id=None, participant=None, text="null")
        return ImportReport(total=3, dry_run=False, messages=(taken,), repairs=(gone, bad))

    client = ControlClient.__new__(ControlClient)
    hosts = [report("bo", 1, 0), report("ana", 0, 1)]
    client._of_every = lambda ask: [(None, each) for each in hosts]  # type: ignore[method-assign, misc]
    merged = client.import_deferred("x")
    assert [message.id for message in merged.messages] == ["ana", "bo"]
    assert [(repair.kind, repair.place) for repair in merged.repairs] == [("dropped", 2)]
