"""The command line as an operator sees it: at 80 columns, as JSON, and when something is wrong."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from rich.console import Console

from abeyance.actors import __version__
from abeyance.actors.ops import cli, render, shell, targets
from abeyance.actors.ops.client import ControlClient
from abeyance.actors.ops.reports import ReleasedReport, ReleaseReport, WaitReport
from abeyance.storage.codec import encode
from abeyance.storage.errors import DiskFullError, ReadOnlyStoreError, StoreIOError
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Put, Request
from abeyance.storage.tables.slots import Inboxed

NOW_MS = 1_791_374_400_000
"""2026-10-07T12:00:00Z."""


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 columns, no colour, UTC, a wall clock that stands still."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setattr(shell, "now_ms", lambda: NOW_MS)


async def run(*arguments: str) -> int:
    """Run the command line in this process, its blocking calls in a thread."""
    return await trio.to_thread.run_sync(cli.main, arguments)


async def spawn(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command line in a process of its own."""
    return await trio.run_process(
        [sys.executable, "-m", "abeyance.actors.ops.cli", *arguments],
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        env={**os.environ, **environment},
    )


# -- a running host ------------------------------------------------------------------------------


STATUS = """\
Host running: pid 4242, up 56y 279d
state STATE  store 5f1e

agent      state   model      turn   round   inbox   wakes
──────────────────────────────────────────────────────────
ana        held    m1            3       1       2       1
bo         idle    m1            –       –       0       0

agent    model    waits until                          left   reason
──────────────────────────────────────────────────────────────────────────
ana      m1       275760-09-13 00:00:00 UTC   273,728y 114d   slow down
ana      m2       until released                          –   quota
bo       m1       2100-01-01 00:00:00 UTC           73y 85d   slow down

To end a wait by hand: abeyance release DIR AGENT [--model MODEL]
"""


async def test_status_of_a_host_reads_well_at_80_columns(
    serving: Any, runtime: Any, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime.directory = Path("STATE")
    async with serving():
        code = await run("status", str(state))
    printed = capsys.readouterr()
    assert (code, printed.err) == (0, "")
    assert trimmed(printed.out) == trimmed(STATUS)


def trimmed(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.strip().splitlines()]
    assert max(map(len, lines)) <= 80
    return lines


async def test_long_names_and_reasons_fold_within_80_columns(
    serving: Any, runtime: Any, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, model, reason = "a" * 128, "m" * 128, "because " * 30
    runtime.listed = [shaped_wait(name, model, None, reason)]
    async with serving():
        assert await run("waits", str(state)) == 0
    printed = capsys.readouterr().out
    trimmed(printed)
    assert printed.count("a") >= 128
    assert printed.count("m") >= 128


async def test_text_from_a_provider_is_never_taken_for_markup(
    serving: Any, runtime: Any, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime.listed = [shaped_wait("ana", "m[1]", None, "[red]slow[/red]")]
    async with serving():
        assert await run("waits", str(state)) == 0
    printed = capsys.readouterr().out
    assert "m[1]" in printed
    assert "[red]slow" in printed


def shaped_wait(agent: str, model: str, deadline_ms: int | None, reason: str) -> Any:
    return WaitReport(
        agent=agent, model=model, deadline_ms=deadline_ms, reason=reason, set_ms=1_000
    )


async def test_waits_of_one_agent(
    serving: Any, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving():
        assert await run("waits", str(state), "--agent", "bo") == 0
    printed = capsys.readouterr().out
    assert "bo" in printed
    assert "ana" not in printed


async def test_waits_of_an_agent_that_is_not_known_is_no_empty_list(
    serving: Any, runtime: Any, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime.listed = []
    async with serving():
        assert await run("waits", str(state), "--agent", "bo") == 0
        assert capsys.readouterr().out == "No waits.\n"
        assert await run("waits", str(state), "--agent", "cy") == 1
    assert "no agent 'cy' is known there" in capsys.readouterr().err


NARROW = """\
Host running: pid 4242, up 56y 279d
state STATE  store 5f1e

ana
  state held, model m1
  turn 3, round 1, inbox 2, wakes 1
bo
  state idle, model m1
  turn –, round –, inbox 0, wakes 0

ana on m1
  until 275760-09-13 00:00:00 UTC,
273,728y 114d left
  slow down
ana on m2
  until released
  quota
bo on m1
  until 2100-01-01 00:00:00 UTC, 73y 85d
left
  slow down

To end a wait by hand: abeyance release
DIR AGENT [--model MODEL]
"""


async def test_at_40_columns_each_agent_and_each_wait_is_a_block(
    serving: Any,
    runtime: Any,
    state: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    runtime.directory = Path("STATE")
    async with serving():
        assert await run("status", str(state)) == 0
    assert trimmed(capsys.readouterr().out) == trimmed(NARROW)


@pytest.mark.parametrize("columns", ["0", "1", "19"])
async def test_a_terminal_that_does_not_know_its_width_counts_as_80_columns(
    serving: Any,
    runtime: Any,
    state: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: str,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    runtime.directory = Path("STATE")
    async with serving():
        assert await run("status", str(state)) == 0
    assert trimmed(capsys.readouterr().out) == trimmed(STATUS)


@pytest.mark.parametrize("agent_state", ["lost", "parked", "unrecorded"])
async def test_every_state_of_an_agent_is_shown_as_the_host_says_it(
    serving: Any,
    runtime: Any,
    state: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    agent_state: str,
) -> None:
    told = runtime.status()
    agents = (dataclasses.replace(told.agents[0], state=agent_state), told.agents[1])
    monkeypatch.setattr(runtime, "status", lambda: dataclasses.replace(told, agents=agents))
    async with serving():
        assert await run("status", str(state), "--json") == 0
        report = json.loads(capsys.readouterr().out)
        assert await run("status", str(state)) == 0
    assert [agent["state"] for agent in report["agents"]] == [agent_state, "idle"]
    assert agent_state in capsys.readouterr().out


async def test_json_carries_instants_as_they_are(
    serving: Any, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving():
        assert await run("status", str(state), "--json") == 0
        status = json.loads(capsys.readouterr().out)
        assert await run("waits", str(state), "--json") == 0
        waits = json.loads(capsys.readouterr().out)
    assert status["pid"] == 4242
    assert status["agents"][0]["held"]["deadline_ms"] == 8_640_000_000_000_000
    assert status["waits"] == waits["waits"]
    assert [wait["deadline_ms"] for wait in waits["waits"]] == [
        8_640_000_000_000_000,
        None,
        4_102_444_800_000,
    ]


@pytest.mark.behaviour("W-106")
@pytest.mark.parametrize(
    ("scope", "model"),
    [((), "*"), (("--all",), "*"), (("--model", "*"), "*"), (("--model", "m2"), "m2")],
    ids=["no model", "--all", "star", "one model"],
)
async def test_release_says_what_it_lifted(
    serving: Any,
    runtime: Any,
    state: Path,
    capsys: pytest.CaptureFixture[str],
    scope: tuple[str, ...],
    model: str | None,
) -> None:
    async with serving():
        assert await run("release", str(state), "ana", *scope) == 0
    assert [(agent, asked) for agent, asked, _ in runtime.releases] == [("ana", model)]
    assert re.fullmatch(r"cli:\S+", runtime.releases[0][2])
    lifted = ["m1", "m2"] if model == "*" else [model]
    assert capsys.readouterr().out.splitlines() == [
        f"Released ana on {name}: recorded." for name in lifted
    ]


async def test_release_of_nothing_says_so(
    serving: Any, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving():
        assert await run("release", str(state), "ana", "--model", "m9") == 0
        said = " ".join(capsys.readouterr().out.split())
        assert said.startswith("No wait of ana was binding in that scope")
        assert said.endswith("What binds it is on m1, m2.")
        assert await run("release", str(state), "ana", "--json") == 0
    assert [item["reach"] for item in json.loads(capsys.readouterr().out)["released"]] == [
        "recorded",
        "recorded",
    ]


def test_name_of_a_credential_is_printed_in_one_line_that_can_be_copied(
    capsys: pytest.CaptureFixture[str],
) -> None:
    account = f"account:{'0123456789abcdef' * 2}"
    waits = tuple(
        WaitReport(agent=agent, model="m", deadline_ms=None, reason="slow", set_ms=0)
        for agent in ("ana", account)
    )
    render.print_waits(Console(width=80), waits, 0)
    printed = capsys.readouterr().out
    assert f"{account} on m\n  until released\n  slow\n" in printed
    assert "ana" in printed.partition(account)[0]


def test_pending_release_says_that_its_record_is_not_in(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = ReleaseReport(released=(ReleasedReport(agent="ana", model="m", reach="pending"),))
    render.print_release(Console(), "ana", report)
    assert "its record is not in yet" in capsys.readouterr().out


# -- refusals and failures -----------------------------------------------------------------------


@pytest.mark.behaviour("W-105", "W-107", "W-108")
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("release", "STATE", "*"), "invalid_name"),
        (("release", "STATE", "framework"), "invalid_name"),
        (("release", "STATE", ""), "invalid_name"),
        (("release", "STATE", "a\x1bb"), "invalid_name"),
        (("release", "STATE", "a" * 129), "invalid_name"),
        (("release", "STATE", "ana", "--model", ""), "invalid_name"),
        (("release", "STATE", "ana", "--model", "m\n"), "invalid_name"),
        (("release", "STATE", "nobody"), "unknown_agent"),
        (("waits", "STATE", "--agent", ""), "invalid_name"),
        (("waits", "STATE", "--agent", "*"), "invalid_name"),
    ],
    ids=repr,
)
async def test_refused_verb_is_one_line_and_exit_code_1(
    serving: Any,
    runtime: Any,
    state: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: str,
) -> None:
    named = [str(state) if part == "STATE" else part for part in arguments]
    async with serving():
        assert await run(*named) == 1
        printed = capsys.readouterr()
        assert await run(*named, "--json") == 1
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert printed.err.startswith("abeyance: ")
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code
    assert runtime.releases == []
    assert len(runtime.listed) == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ("frob",),
        ("status",),
        ("release", "STATE"),
        ("release", "STATE", "ana", "--model", "m1", "--all"),
        ("status", "STATE", "--frob"),
        ("waits", "STATE", "--agent"),
        ("demo", "--provider", "openai"),
        ("demo", "--model", "claude-opus-4-5"),
        ("status", ""),
        ("check", ""),
        ("demo", "--state", ""),
    ],
    ids=repr,
)
async def test_usage_mistake_is_one_line_and_exit_code_2(
    state: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert await run(*[str(state) if part == "STATE" else part for part in arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1


async def test_host_that_does_not_answer_is_a_failure_and_the_store_is_not_opened(
    state: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    listening: Any,
) -> None:
    monkeypatch.setattr(targets, "ControlClient", lambda path: ControlClient(path, timeout_s=0.05))
    with listening(state, pid=77):
        assert await run("status", str(state)) == 1
    printed = capsys.readouterr().err
    assert "host process 77 did not answer" in printed
    assert "no answer within 0.05 s" in printed


async def test_no_command_prints_the_help_and_exit_code_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert await run() == 2
    assert "release" in capsys.readouterr().out


async def test_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    assert await run("--version") == 0
    assert capsys.readouterr().out == f"abeyance {__version__}\n"


# -- a state directory that cannot be used -------------------------------------------------------


def damage_nothing(_: Path) -> None:
    pass


def make_foreign(state: Path) -> None:
    state.mkdir()
    (state / "thesis.txt").write_text("mine")


def make_file(state: Path) -> None:
    state.write_text("mine")


def make_damaged(state: Path) -> None:
    make_store(state)
    with (state / "store" / "data.mdb").open("r+b") as data:
        data.truncate(5_000)


def make_newer(state: Path) -> None:
    make_store(state)
    identity = state / "store" / "store.json"
    identity.write_text(identity.read_text().replace('"format": 1', '"format": 99'))


def make_store(state: Path) -> None:
    LmdbStore.open(state, clock_ms=lambda: NOW_MS).close()


def contents(root: Path) -> dict[str, bytes]:
    if root.is_file():
        return {"": root.read_bytes()}
    return {
        str(path): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.suffix != ".lock"  # Who holds a lock notes its pid in the file.
    }


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (damage_nothing, "missing_store"),
        (make_foreign, "foreign_directory"),
        (make_file, "foreign_directory"),
        (make_damaged, "damaged_store"),
        (make_newer, "newer_format"),
    ],
    ids=["missing", "foreign", "a file", "damaged", "newer"],
)
@pytest.mark.parametrize(
    "verb",
    [("status",), ("waits",), ("check",), ("release", "ana")],
    ids=["status", "waits", "check", "release"],
)
async def test_bad_state_directory_is_one_line_exit_code_2_and_nothing_is_damaged(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    make: Any,
    code: str,
    verb: tuple[str, ...],
) -> None:
    state = tmp_path / "there"
    make(state)
    before = contents(state)
    assert await run(verb[0], str(state), *verb[1:], "--json") == 2
    printed = capsys.readouterr()
    assert len(printed.err.splitlines()) == 1
    assert json.loads(printed.out)["error"]["code"] == code
    if code == "foreign_directory":
        assert printed.err.endswith("name the state directory of a host\n")
    assert contents(state) == before


@pytest.mark.parametrize(
    "error",
    [
        DiskFullError("no room; make room", path="x"),
        ReadOnlyStoreError("x can't be written; see its mode", path="x"),
        StoreIOError("reading failed; see the cause", path="x", errno=5),
        PermissionError(13, "Permission denied", "x"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_state_directory_that_the_system_refuses_is_exit_code_2(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(LmdbStore, "open", refuse)
    assert await run("status", str(tmp_path)) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("verb", ["status", "check"])
@pytest.mark.parametrize("how", ["a loop of links", "a name too long"])
async def test_path_that_cannot_be_followed_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str, verb: str
) -> None:
    path = tmp_path / ("loop" if how == "a loop of links" else "x" * 300)
    if how == "a loop of links":
        path.symlink_to(path)
    assert await run(verb, str(path)) == 2
    printed = capsys.readouterr().err
    assert str(path) in printed
    assert "None" not in printed
    assert len(printed.splitlines()) == 1


async def test_fault_of_the_program_is_one_line_and_its_traceback_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(LmdbStore, "open", fail)
    assert await run("status", str(tmp_path)) == 1
    printed = capsys.readouterr().err
    assert printed == (
        "abeyance: internal error: KeyError('a bug'); run it again with ABEYANCE_TRACEBACK=1 to "
        "see where\n"
    )
    monkeypatch.setenv(cli.TRACEBACK, "1")
    with pytest.raises(KeyError):
        await run("status", str(tmp_path))


async def test_process_of_its_own_prints_one_line_and_no_traceback(tmp_path: Path) -> None:
    done = await spawn("status", str(tmp_path))
    assert done.returncode == 2
    assert done.stdout == b""
    assert re.fullmatch(rb"abeyance: there is no store in [^\n]+\n", done.stderr)


async def test_output_that_nobody_reads_is_no_crash(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = await trio.run_process(
            [sys.executable, "-m", "abeyance.actors.ops.cli", "--version"],
            stdout=writer,
            capture_stderr=True,
            check=False,
        )
    finally:
        os.close(writer)
    assert done.stderr == b""


@pytest.mark.drawn(1)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("as_json", [(), ("--json",)], ids=["text", "json"])
async def test_output_that_cannot_be_written_is_one_line_and_a_release_is_done_all_the_same(
    serving: Any, runtime: Any, state: Path, as_json: tuple[str, ...]
) -> None:
    async def full(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        with Path("/dev/full").open("wb") as nowhere:  # noqa: ASYNC230 - a device.
            return await trio.run_process(
                [sys.executable, "-m", "abeyance.actors.ops.cli", *arguments, *as_json],
                stdout=nowhere,
                capture_stderr=True,
                check=False,
            )

    async with serving():
        looked = await full("status", str(state))
        released = await full("release", str(state), "ana")
    assert (looked.returncode, released.returncode) == (1, 0)
    assert looked.stderr.startswith(b"abeyance: the output cannot be written (No space left")
    assert released.stderr.startswith(b"abeyance: the release was done; ")
    for done in (looked, released):
        assert len(done.stderr.splitlines()) == 1
    assert [agent for agent, _, _ in runtime.releases] == ["ana"]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
async def test_characters_that_the_terminal_lacks_are_escaped(
    serving: Any, runtime: Any, state: Path, encoding: str
) -> None:
    runtime.listed = [shaped_wait("ana", "m\N{SNOWMAN}", None, "quota")]
    async with serving():
        looked = await spawn("status", str(state), PYTHONIOENCODING=encoding)
        released = await spawn("release", str(state), "ana", PYTHONIOENCODING=encoding)
    assert (looked.returncode, looked.stderr) == (0, b"")
    assert (released.returncode, released.stderr) == (0, b"")
    assert released.stdout == b"Released ana on m\\u2603: recorded.\n"


# -- check ---------------------------------------------------------------------------------------


async def test_check_of_a_sound_store_finds_nothing_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    make_store(state)
    before = (state / "store" / "data.mdb").read_bytes()
    assert await run("check", str(state)) == 0
    assert re.fullmatch(r"Read \d+ rows: nothing is wrong\.\n", capsys.readouterr().out)
    assert await run("check", str(state), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["directory"], report["findings"]) == (str(state), [])
    assert report["rows"] > 0
    assert (state / "store" / "data.mdb").read_bytes() == before


async def test_check_lists_what_is_wrong_and_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    store = LmdbStore.open(state, clock_ms=lambda: NOW_MS)
    dangling = Inboxed(
        message="x",
        author="bo",
        agent="ana",
        wake=True,
        injectable=True,
        own=False,
        body_crc=0,
        body_bytes=0,
        accepted_ms=1,
    )
    store.commit(Request(puts=(Put("inbox", ("slot", 1), encode(dangling)),)))
    store.close()
    assert await run("check", str(state)) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("dangling: inbox ('slot', 1) names bodies")
    assert "1 finding." in printed.out
    assert printed.err == ""
    assert await run("check", str(state), "--json") == 1
    [finding] = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["problem"], finding["table"], finding["key"]) == (
        "dangling",
        "inbox",
        "('slot', 1)",
    )


def test_shells_complete_its_commands() -> None:
    shell = {"_ABEYANCE_COMPLETE": "complete_bash", "COMP_WORDS": "abeyance rel", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "abeyance.actors.ops.entry"],
        env={**os.environ, **shell},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["release"]
