"""The demo: it passes, and each line of its table fails when what it promises does not hold."""

from __future__ import annotations

import contextlib
import copy
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from abeyance.actors.ops import cli
from abeyance.actors.ops.demo import DemoError, director, site
from abeyance.actors.ops.demo.audit import Evidence, audit
from abeyance.actors.ops.demo.children import start_simulator
from abeyance.actors.ops.demo.play import ANA, BO, LIMITED, NOTE
from abeyance.actors.ops.demo.wire import WireCall, read_calls
from abeyance.storage.locks import is_locked

pytest.importorskip("anthropic")

DEMO_S_MAX = 60.0
"""Alone it takes a few seconds; a machine with much else to do is no failure."""


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "abeyance.actors.ops.cli", "demo", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1", **environment},
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, float]:
    """One real demo: its report, where its state lies, how long it took."""
    root = tmp_path_factory.mktemp("demo") / "root"
    started = time.monotonic()
    done = demo("--json", "--state", str(root))
    seconds = time.monotonic() - started
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout), root, seconds


def test_every_line_of_the_demos_table_holds(played: tuple[Any, Path, float]) -> None:
    report, root, seconds = played
    assert [line for line in report["promises"] if line["holds"] is not True] == []
    assert len(report["promises"]) == 12
    assert report["state"] == str(root)
    assert seconds < DEMO_S_MAX


def test_demo_leaves_no_process_behind(played: tuple[Any, Path, float]) -> None:
    _, root, _ = played
    assert not list((root / "state" / "control").iterdir())
    assert not any(map(is_locked, (root / "state" / "store" / "owners").iterdir()))


# -- the audit -----------------------------------------------------------------------------------


@pytest.fixture
def evidence(played: tuple[Any, Path, float]) -> Evidence:
    """The demo's evidence, rebuilt from what it left on disk."""
    _, root, _ = played
    saved = json.loads((root / "evidence.json").read_text())
    saved["calls"] = read_calls(root / "wire.jsonl")
    return Evidence(**saved)


def rows(evidence: Evidence, agent: str = ANA) -> list[Any]:
    found = evidence.transcripts[agent]
    assert isinstance(found, list)
    return found


def place(evidence: Evidence, name: str) -> int:
    return [row["id"] for row in rows(evidence)].index(name)


def lose_a_message(evidence: Evidence) -> None:
    del rows(evidence)[place(evidence, "aside")]


def repeat_a_message(evidence: Evidence) -> None:
    rows(evidence).append(rows(evidence)[place(evidence, "aside")])


def never_answer(evidence: Evidence) -> None:
    del rows(evidence)[place(evidence, "salad") + 1 :]


def inject_too_late(evidence: Evidence) -> None:
    calls(evidence)[1].request = calls(evidence)[0].request


def store_the_note_early(evidence: Evidence) -> None:
    note = rows(evidence).pop(place(evidence, NOTE.id))
    rows(evidence).insert(place(evidence, "aside"), note)


def send_the_note_early(evidence: Evidence) -> None:
    block = {"role": "user", "content": [{"type": "text", "text": NOTE.text}]}
    second = calls(evidence)[1].request
    second["messages"] = [*second["messages"], block]


def tell_twice(evidence: Evidence) -> None:
    rows(evidence, BO).insert(0, rows(evidence, BO)[0])


def tell_one_way(evidence: Evidence) -> None:
    evidence.told = [told for told in evidence.told if told["agent"] == ANA]


def book_twice(evidence: Evidence) -> None:
    evidence.effects = [*evidence.effects, *evidence.effects]


def change_the_past(evidence: Evidence) -> None:
    messages = calls(evidence)[-1].request["messages"]
    messages[0] = {"role": "user", "content": "something else"}


def call_in_the_wait(evidence: Evidence) -> None:
    limited = next(call for call in evidence.calls or () if call.status == 429)
    again = copy.deepcopy(limited)
    again.number, again.status, again.at_ms = 99, 200, limited.at_ms + 1
    calls(evidence).append(again)  # Behind the last call, whose content it does not carry.


def call_after_the_restart(evidence: Evidence) -> None:
    assert evidence.restarted_ms is not None
    limited = next(call for call in evidence.calls or () if call.status == 429)
    again = copy.deepcopy(limited)
    again.number, again.at_ms = 99, evidence.restarted_ms + 1
    calls(evidence).append(again)


def never_limit(evidence: Evidence) -> None:
    evidence.calls = [call for call in evidence.calls or () if call.status != 429]


def die_politely(evidence: Evidence) -> None:
    evidence.killed_status = 0


def forget_the_hold(evidence: Evidence) -> None:
    evidence.held_after_restart = False


def fail_the_release(evidence: Evidence) -> None:
    evidence.release_exit = 1


def call_no_more(evidence: Evidence) -> None:
    assert evidence.released_ms is not None
    evidence.calls = [c for c in evidence.calls or () if c.at_ms < (evidence.released_ms or 0)]


def drop_a_message_from_the_last_call(evidence: Evidence) -> None:
    request = calls(evidence)[-1].request
    request["messages"] = [m for m in request["messages"] if LIMITED.text not in json.dumps(m)]


def reorder_the_past(evidence: Evidence) -> None:
    rows(evidence)[0], rows(evidence)[3] = rows(evidence)[3], rows(evidence)[0]


def calls(evidence: Evidence) -> list[WireCall]:
    assert isinstance(evidence.calls, list)
    return evidence.calls


FAULTS: list[tuple[Callable[[Evidence], None], set[int]]] = [
    (lose_a_message, {0, 1, 11}),
    (repeat_a_message, {0, 11}),
    (never_answer, {1}),
    (inject_too_late, {2}),
    (store_the_note_early, {3, 11}),
    (send_the_note_early, {2, 3, 6}),
    (tell_twice, {4, 11}),
    (tell_one_way, {4}),
    (book_twice, {5}),
    (change_the_past, {6}),
    (call_in_the_wait, {6, 7}),
    (call_after_the_restart, {6, 7, 9}),
    (never_limit, {7}),
    (die_politely, {8}),
    (forget_the_hold, {8}),
    (fail_the_release, {9}),
    (call_no_more, {10}),
    (drop_a_message_from_the_last_call, {6, 10}),
    (reorder_the_past, {11}),
]


def test_audit_of_the_demos_evidence_finds_no_fault(evidence: Evidence) -> None:
    assert [line for line in audit(evidence) if line.holds is not True] == []


@pytest.mark.parametrize(("fault", "lines"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_audit_fails_the_line_whose_promise_is_broken(
    evidence: Evidence, fault: Callable[[Evidence], None], lines: set[int]
) -> None:
    fault(evidence)
    failed = {number for number, line in enumerate(audit(evidence)) if line.holds is False}
    assert failed == lines


def test_every_line_of_the_table_is_failed_by_some_fault() -> None:
    assert set().union(*(lines for _, lines in FAULTS)) == set(range(12))


# -- the real provider ---------------------------------------------------------------------------


def test_real_provider_without_a_key_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    done = demo("--provider", "anthropic", ANTHROPIC_API_KEY="")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "abeyance: --provider anthropic needs a key; nothing was started; set ANTHROPIC_API_KEY"
    ]


@pytest.mark.slow
def test_real_providers_lines_that_cannot_be_played_read_not_run(tmp_path: Path) -> None:
    """The simulator stands in for the real provider, which is reached by the SDK's own variable."""
    simulator = subprocess.Popen(
        [
            *(sys.executable, "-m", "abeyance.actors.ops.demo.simulator"),
            *("--log", str(tmp_path / "wire.jsonl")),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with simulator:
        assert simulator.stdin is not None
        assert simulator.stdout is not None
        serving = json.loads(simulator.stdout.readline())
        simulator.stdin.write(b'{"do": "lift"}\n')
        simulator.stdin.flush()
        done = demo(
            *("--provider", "anthropic", "--model", "sim-large"),
            ANTHROPIC_API_KEY="any",
            ANTHROPIC_BASE_URL=serving["base_url"],
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("not run") == 10
    assert "FAILS" not in done.stdout
    assert "Every line holds." in done.stdout


def test_demo_in_a_directory_that_is_used_leaves_it_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    assert cli.main(["demo", "--state", str(tmp_path)]) == 2
    assert "is not empty; it was left alone" in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]


def test_demo_says_of_a_state_that_is_no_directory_what_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for name in ("file", "link"):
        assert cli.main(["demo", "--state", str(tmp_path / name)]) == 2
        assert "is there and no directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), False),
        (DemoError("the host did not start"), True),
    ],
    ids=["its own write", "its own quota", "a child's failure on a full disk"],
)
def test_demo_without_room_is_a_directory_that_cannot_be_used(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    is_full: bool,
) -> None:
    async def fail(_: object) -> None:
        async with trio.open_nursery():
            raise error

    monkeypatch.setattr(director._Director, "run", fail)
    if is_full:
        disk = SimpleNamespace(f_bavail=1, f_frsize=4096)
        monkeypatch.setattr(site.os, "statvfs", lambda _: disk)
    assert cli.main(["demo", "--state", str(tmp_path / "new")]) == 2
    assert "there is no room in" in capsys.readouterr().err


class Mute:
    """A process that lives and says nothing."""

    pid = 4242

    def __init__(self) -> None:
        self._speaking, self.stdout = trio.testing.memory_stream_one_way_pair()
        self.killed = False

    def kill(self) -> None:
        self.killed = True
        self._speaking.close()

    async def wait(self) -> int:
        await trio.lowlevel.checkpoint()
        return -9


@pytest.mark.parametrize("silent_s", [1.0, None], ids=["cancelled", "too slow"])
async def test_a_simulator_that_does_not_serve_yet_is_ended_with_its_start(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, silent_s: float | None
) -> None:
    process = Mute()

    async def launch(*_: object) -> Any:
        return process

    async with trio.open_nursery() as nursery:
        with trio.move_on_after(1_000 if silent_s is None else silent_s) as scope:
            with contextlib.suppress(trio.TooSlowError):
                await start_simulator(nursery, tmp_path / "log", launch=launch)
        assert scope.cancelled_caught == (silent_s is not None)
    assert process.killed


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_demo_in_a_directory_that_cannot_be_made_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o500)
    assert cli.main(["demo", "--state", str(tmp_path / "new")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Children hear an interrupt though this process was started in the background, deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_interrupted_demo_ends_its_children_and_says_so(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with subprocess.Popen(
        [sys.executable, "-m", "abeyance.actors.ops.cli", "demo", "--state", str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "COLUMNS": "80"},
    ) as demo_process:
        assert demo_process.stdout is not None
        while b"runs ana and bo" not in (line := demo_process.stdout.readline()):
            assert line, "the demo ended by itself"
        demo_process.send_signal(signal.SIGINT)
        _, errors = demo_process.communicate(timeout=60)
    assert errors == b"abeyance: interrupted\n"
    assert demo_process.returncode == 130
    assert not any(map(is_locked, (root / "state" / "store" / "owners").iterdir()))
