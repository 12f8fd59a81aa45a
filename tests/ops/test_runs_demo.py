"""The demo of runs: it passes, and a line of its table fails where its promise does not hold."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from abeyance.actors.ops import cli
from abeyance.actors.ops.demo.children import DemoError
from abeyance.actors.ops.demo.runs import play
from abeyance.actors.ops.demo.runs.audit import RunEvidence, audit
from abeyance.actors.ops.demo.runs.director import check_waits
from abeyance.actors.ops.demo.wire import WireCall, read_calls
from abeyance.storage.locks import is_locked

pytest.importorskip("anthropic")

DEMO_S_MAX = 280.0
"""Beside one other test it took 21 s; a machine with much else to do is no failure."""
LINES = 12


@pytest.mark.slow
@pytest.mark.timeout(DEMO_S_MAX + 20)
@pytest.mark.behaviour("S-035", "S-037", "S-044", "S-064")
def test_every_line_of_the_runs_demo_holds_and_it_leaves_no_process_behind(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "abeyance.actors.ops.cli"),
            *("demo", "--runs", "--json", "--state", str(root)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEMO_S_MAX,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert [line for line in report["promises"] if line["holds"] is not True] == []
    assert len(report["promises"]) == LINES
    assert report["state"] == str(root)
    assert not any(map(is_locked, (root / "state" / "store" / "owners").iterdir()))
    # Whoever keeps the state can audit it again.
    saved = json.loads((root / "evidence.json").read_text())
    kept = RunEvidence(calls=read_calls(root / "wire.jsonl"), **saved)
    assert [line.holds for line in audit(kept)] == [True] * LINES


@pytest.mark.parametrize(
    ("state", "now_s", "goes_on"),
    [
        ("waiting_for_capacity", 9, True),
        ("waiting_for_capacity", 11, True),
        ("running", 9, True),  # Ahead of its time: a line of the table is to say so.
        ("running", 11, False),
        ("completed", 11, False),
    ],
)
def test_demo_whose_wait_was_over_too_soon_says_so_at_once(
    state: str, now_s: float, goes_on: bool
) -> None:
    refused = contextlib.nullcontext() if goes_on else pytest.raises(DemoError, match="busier")
    with refused:
        check_waits({"state": state}, 10, now_s)


# -- the audit


def call(number: int, at_ms: int, prompt: str, status: int) -> WireCall:
    request = {"model": play.MODEL, "messages": [{"role": "user", "content": prompt}]}
    return WireCall(
        number, at_ms, request, status=status, finished=status == 200, replied_ms=at_ms + 5
    )


@pytest.fixture
def evidence() -> RunEvidence:
    """What a demo leaves in which every line holds: a wall at 1 s, due at 9 s."""
    waiting = {
        "state": "waiting_for_capacity",
        "window": play.WINDOW,
        "step": play.WALLED,
        "text": f"Waiting for {play.PROVIDER} capacity ({play.WINDOW}) \u00b7 resumes after noon",
        "retry_at_ms": 8_000,
        "resume_after_ms": 9_000,
    }
    instants = (900, 950, 9_020, 12_000, 12_010)
    before = None
    history = []
    for state, at_ms in zip(
        play.STATES, (500, 1_010, 9_001, 9_002, 11_000, 11_001, 12_020), strict=True
    ):
        history.append({"before": before, "after": state, "by": "runtime", "at_ms": at_ms})
        before = state
    return RunEvidence(
        calls=[
            call(1, 600, play.DRAFT, 200),
            call(2, 1_000, play.TRANSLATE, 429),
            call(3, 9_010, play.TRANSLATE, 200),
        ],
        posts=[
            {"key": f"{play.KEY}@1/{place}", "item": item, "text": "t", "at_ms": at_ms}
            for place, (item, at_ms) in enumerate(zip(play.POSTS, instants, strict=True))
        ],
        asked=[f"{play.KEY}@1/{play.POSTS.index(play.HELD_POST)}"],
        waiting=waiting,
        left=dict(waiting),
        runs=1,
        refused="run_open",
        killed_waiting=-9,
        killed_posting=-9,
        hosts_waiting=2,
        detail={
            "steps": [
                {"path": path, "state": "done", "attempts": 2 if path == play.WALLED else 1}
                for path in play.ITEMS
            ],
            "history": history,
        },
        presses=[{"exit": 0, "changed": False}, {"exit": 0, "changed": False}],
    )


def posts(evidence: RunEvidence) -> list[Any]:
    assert isinstance(evidence.posts, list)
    return evidence.posts


def calls(evidence: RunEvidence) -> list[WireCall]:
    assert isinstance(evidence.calls, list)
    return evidence.calls


def history(evidence: RunEvidence) -> list[Any]:
    steps: list[Any] = evidence.detail["history"]
    return steps


def fail_at_the_wall(evidence: RunEvidence) -> None:
    evidence.waiting = {**evidence.waiting, "state": "failed"}
    evidence.left = evidence.waiting


def forget_the_window(evidence: RunEvidence) -> None:
    evidence.waiting = {**evidence.waiting, "window": None}
    evidence.left = evidence.waiting


def call_in_the_wait(evidence: RunEvidence) -> None:
    walled = next(call for call in calls(evidence) if call.status == 429)
    again = copy.deepcopy(walled)
    again.at_ms = int(walled.replied_ms or 0) + 1
    calls(evidence).append(again)


def post_in_the_wait(evidence: RunEvidence) -> None:
    walled = next(call for call in calls(evidence) if call.status == 429)
    posts(evidence)[1]["at_ms"] = int(walled.replied_ms or 0) + 1


def die_politely(evidence: RunEvidence) -> None:
    evidence.killed_waiting = 0


def lose_the_record(evidence: RunEvidence) -> None:
    evidence.left = {}


def start_another(evidence: RunEvidence) -> None:
    evidence.refused = None


def have_two_runs(evidence: RunEvidence) -> None:
    evidence.runs = 2


def come_up_late(evidence: RunEvidence) -> None:
    evidence.hosts_waiting = 1


def resume_twice(evidence: RunEvidence) -> None:
    history(evidence).insert(3, dict(history(evidence)[2]))


def resume_early(evidence: RunEvidence) -> None:
    history(evidence)[2]["at_ms"] = evidence.waiting["resume_after_ms"] - 1


def draft_again(evidence: RunEvidence) -> None:
    drafted = next(c for c in calls(evidence) if play.asked(c.request) == play.DRAFT)
    calls(evidence).append(copy.deepcopy(drafted))


def never_ask_again(evidence: RunEvidence) -> None:
    evidence.calls = [call for call in calls(evidence) if call.number < 3]


def not_ask_the_endpoint(evidence: RunEvidence) -> None:
    evidence.asked = []


def outlive_the_post(evidence: RunEvidence) -> None:
    evidence.killed_posting = None


def post_again_after_the_death(evidence: RunEvidence) -> None:
    place = play.POSTS.index(play.HELD_POST)
    posts(evidence).insert(place + 1, dict(posts(evidence)[place]))


def post_twice(evidence: RunEvidence) -> None:
    posts(evidence).insert(1, dict(posts(evidence)[0]))


def lose_a_post(evidence: RunEvidence) -> None:
    del posts(evidence)[0]


def run_an_item_again(evidence: RunEvidence) -> None:
    evidence.detail["steps"][0]["attempts"] = 2


def leave_an_item_open(evidence: RunEvidence) -> None:
    evidence.detail["steps"][-1]["state"] = "started"


def file_first(evidence: RunEvidence) -> None:
    posts(evidence).insert(0, posts(evidence).pop())


def end_otherwise(evidence: RunEvidence) -> None:
    history(evidence)[-1]["after"] = "failed"


def change_by_a_press(evidence: RunEvidence) -> None:
    evidence.presses = [{**evidence.presses[0], "changed": True}, evidence.presses[1]]


def fail_a_press(evidence: RunEvidence) -> None:
    evidence.presses = [{"exit": 1}, evidence.presses[1]]


FAULTS: list[tuple[Callable[[RunEvidence], None], set[int]]] = [
    (fail_at_the_wall, {0}),
    (forget_the_window, {0}),
    (call_in_the_wait, {1, 5}),
    (post_in_the_wait, {1}),
    (die_politely, {2}),
    (lose_the_record, {2}),
    (start_another, {3}),
    (have_two_runs, {3}),
    (come_up_late, {4}),
    (resume_twice, {4, 10}),
    (resume_early, {4}),
    (draft_again, {5}),
    (never_ask_again, {5}),
    (not_ask_the_endpoint, {6}),
    (outlive_the_post, {6}),
    (post_again_after_the_death, {6, 7}),
    (post_twice, {7}),
    (lose_a_post, {7}),
    (run_an_item_again, {8}),
    (leave_an_item_open, {8}),
    (file_first, {7, 9}),
    (end_otherwise, {10}),
    (change_by_a_press, {11}),
    (fail_a_press, {11}),
]


def test_audit_of_evidence_that_is_whole_finds_no_fault(evidence: RunEvidence) -> None:
    assert [line for line in audit(evidence) if line.holds is not True] == []


@pytest.mark.parametrize(("fault", "lines"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_audit_of_the_runs_demo_fails_the_line_whose_promise_is_broken(
    evidence: RunEvidence, fault: Callable[[RunEvidence], None], lines: set[int]
) -> None:
    fault(evidence)
    failed = {number for number, line in enumerate(audit(evidence)) if line.holds is False}
    assert failed == lines


def test_every_line_of_the_runs_demo_is_failed_by_some_fault() -> None:
    assert set().union(*(lines for _, lines in FAULTS)) == set(range(LINES))


def test_audit_of_nothing_holds_nothing() -> None:
    assert [line.promised for line in audit(RunEvidence()) if line.holds] == []


@pytest.mark.parametrize("options", [("--provider", "anthropic"), ("--model", "m")], ids=" ".join)
def test_runs_demo_is_played_with_the_simulator_only(
    options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", "--runs", *options]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_runs_demo_in_a_directory_that_is_used_leaves_it_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    assert cli.main(["demo", "--runs", "--state", str(tmp_path)]) == 2
    assert "is not empty; it was left alone" in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]
