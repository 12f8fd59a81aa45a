"""A bounded run of `matrix`, and what its judge would say of a host that lost something.

`./dev matrix` plays all of it.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from abeyance.storage.tables.blocks import TextBlock

ROOT = Path(__file__).parents[2]
SAMPLE = 24
WITHIN_S = 45

pytestmark = pytest.mark.slow


def run_matrix(tmp_path: Path, *args: str) -> dict[str, Any]:
    """The summary of a run in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.matrix", *args, "--json", str(tmp_path / "summary")],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=115,
    )
    print(done.stdout + done.stderr)
    summary: dict[str, Any] = json.loads((tmp_path / "summary").read_text())
    assert (done.returncode == 0) == (summary["violations"] == [])
    return summary


@pytest.mark.behaviour("R-1", "R-4", "D-068")
def test_what_was_accepted_is_there_once_in_order_whatever_died_where(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed = request.config.option.hypothesis_seed
    args = ("--sample", str(SAMPLE), "--within-s", str(WITHIN_S), "--seed", seed)
    summary = run_matrix(tmp_path, *args)
    assert summary["violations"] == []
    assert summary["trials"] >= 5
    assert summary["deaths"] >= 2


@pytest.mark.behaviour("R-1", "R-4")
@pytest.mark.parametrize("point", ["writer.before_commit", "writer.after_commit"])
def test_message_that_is_moved_is_there_once_though_its_commit_dies(
    tmp_path: Path, point: str
) -> None:
    """The last commits of a turn: the boundary, the last reply, and what lands behind it."""
    faults = [f"held: point {point} {nth}" for nth in (19, 21, 22)]
    summary = run_matrix(tmp_path, *(arg for fault in faults for arg in ("--trial", fault)))
    assert summary["violations"] == []
    assert summary["deaths"] == len(faults)


# -- the judge -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """What an undisturbed life of a variant left."""
    found: dict[str, Path] = {}
    script = (
        "import pickle, sys; from pathlib import Path; "
        "from tests.crash.life import Setting; from tests.crash.lives import live; "
        "status, report, error = live(Setting(Path(sys.argv[1]), sys.argv[2], 1)); "
        "assert status == 0, error; "
        "(Path(sys.argv[1]) / 'report').write_bytes(pickle.dumps(report))"
    )

    def of(variant: str) -> Path:
        if variant not in found:
            where = found[variant] = tmp_path_factory.mktemp("life")
            command = [sys.executable, "-c", script, str(where), variant]
            subprocess.run(command, cwd=ROOT, check=True, timeout=100)
        return found[variant]

    return of


Tamper = Callable[[Path, Any], None]


def place(report: Any, name: str) -> int:
    return [row.id for row in report.rows].index(name)


def change_lines(path: Path, change: Callable[[list[Any]], None]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def lose_a_message(where: Path, report: Any) -> None:
    del report.rows[place(report, "p3")]


def keep_a_message_twice(where: Path, report: Any) -> None:
    report.rows.append(report.rows[place(report, "f3")])


def swap_messages(where: Path, report: Any) -> None:
    first, second = place(report, "own1"), place(report, "p3")
    report.rows[first], report.rows[second] = report.rows[second], report.rows[first]


def part_a_call_and_its_results(where: Path, report: Any) -> None:
    results = next(i for i, row in enumerate(report.rows) if row.role == "results")
    report.rows[results], report.rows[results + 1] = report.rows[results + 1], report.rows[results]


def answer_a_wake_twice(where: Path, report: Any) -> None:
    report.answered.append(report.answered[0])


def forget_a_wake(where: Path, report: Any) -> None:
    report.answered.pop()


def leave_a_row_in_the_inbox(where: Path, report: Any) -> None:
    report.left["inbox"] = 1


def give_no_receipt(where: Path, report: Any) -> None:
    change_lines(where / "acks.jsonl", lambda acks: acks.pop(3))


def number_a_receipt_anew(where: Path, report: Any) -> None:
    change_lines(where / "acks.jsonl", lambda acks: acks.append({**acks[0], "seq": 99}))


def carry_a_message_late(where: Path, report: Any) -> None:
    def change(lines: list[Any]) -> None:
        calls = [line for line in lines if line["event"] == "received"]
        calls[1]["request"]["messages"].pop()

    change_lines(where / "wire.jsonl", change)


def end_with_another_request(where: Path, report: Any) -> None:
    report.rows.pop()


def run_a_body_twice(where: Path, report: Any) -> None:
    change_lines(where / "ran.jsonl", lambda ran: ran.append(ran[0]))


def tell_an_operator_something_else(where: Path, report: Any) -> None:
    change_lines(where / "pairs.jsonl", lambda pairs: pairs[1].update(text="other"))


def leave_a_pair_open(where: Path, report: Any) -> None:
    report.left["open pairs"] = 1


def leave_a_sharers_wake(where: Path, report: Any) -> None:
    receipts = map(json.loads, (where / "acks.jsonl").read_text().splitlines())
    (seq,) = (line["seq"] for line in receipts if line["id"] == "bo:p2")
    report.answered.remove(seq)


def keep_a_dead_letter_of_what_landed(where: Path, report: Any) -> None:
    report.letters.append("message 'f1' by 'bot'")


def forget_a_dead_letter(where: Path, report: Any) -> None:
    report.letters.remove("wake of 'bo' by 'user' for message 'bo:p1'")


def write_behind_what_was_answered(where: Path, report: Any) -> None:
    report.rows.insert(0, report.rows.pop())


def edit_twice(where: Path, report: Any) -> None:
    report.edits.append(report.edits[0])


def take_an_edit_back(where: Path, report: Any) -> None:
    (at,) = (at for at, row in enumerate(report.rows) if row.id == "go")
    report.rows[at] = dataclasses.replace(report.rows[at], blocks=(TextBlock(text="says go"),))


def keep_what_was_taken_out(where: Path, report: Any) -> None:
    (at,) = (at for at, row in enumerate(report.rows) if row.id == "x2")
    report.rows.insert(at, dataclasses.replace(report.rows[at], id="x1"))


def rewind_while_a_call_waits(where: Path, report: Any) -> None:
    change_lines(where / "decided.jsonl", lambda told: told.append({"act": "rewind"}))


def lose_what_was_approved(where: Path, report: Any) -> None:
    (at,) = (at for at, row in enumerate(report.rows) if row.role == "results" and row.round == 2)
    blocks = report.rows[at].blocks
    denied = msgspec.structs.replace(blocks[0], content=(TextBlock(text="denied"),))
    report.rows[at] = dataclasses.replace(report.rows[at], blocks=(denied,))


def ask_the_model_before(where: Path, report: Any) -> None:
    report.model = "m"


def cancel_a_turn_that_nobody_named(where: Path, report: Any) -> None:
    (marker,) = (row for row in report.rows if row.role == "marker")
    report.rows.append(dataclasses.replace(marker, id="another"))


PLAIN: dict[Tamper, str] = {
    lose_a_message: "there 0 times",
    keep_a_message_twice: "there 2 times",
    swap_messages: "stands before one that was accepted earlier",
    part_a_call_and_its_results: "owed are those of",
    answer_a_wake_twice: "answered by 2 turns",
    forget_a_wake: "answered by 0 turns",
    leave_a_row_in_the_inbox: "1 inbox at rest",
    give_no_receipt: "has no receipt",
    number_a_receipt_anew: "has two receipts",
    carry_a_message_late: "begins with something else than call",
    end_with_another_request: "are not what the transcript holds",
}
TAMPERS: list[tuple[str, Tamper | None, str]] = [
    *(("plain", tamper, text) for tamper, text in PLAIN.items()),
    ("pairs", run_a_body_twice, "op1 was asked for 1 times, is there 1, ran 2"),
    ("pairs", tell_an_operator_something_else, "a pair's receipt says 'other'"),
    ("pairs", leave_a_pair_open, "1 open pairs at rest"),
    ("shared", leave_a_sharers_wake, "the wake of bo:p2 was answered by 0 turns"),
    ("closing", write_behind_what_was_answered, "are not what the transcript begins with"),
    ("leaving", keep_a_dead_letter_of_what_landed, "f1 is in the slot and a dead letter"),
    ("leaving", forget_a_dead_letter, "the wake of bo:p1 was answered by 0 turns"),
    ("edited", edit_twice, "the edits are"),
    ("edited", take_an_edit_back, "go says 'says go', not 'says go, mended'"),
    ("edited", keep_what_was_taken_out, "x1 says"),
    ("decided", rewind_while_a_call_waits, "a rewind was done while a call waited"),
    ("decided", lose_what_was_approved, "the call that was approved has 0 results"),
    ("decided", ask_the_model_before, "the agent asks m, another was chosen"),
    ("decided", cancel_a_turn_that_nobody_named, "the markers are"),
    *(
        (name, None, "")
        for name in ("plain", "edited", "pairs", "shared", "closing", "leaving", "decided")
    ),
]


@pytest.mark.parametrize(
    ("variant", "tamper", "says"),
    TAMPERS,
    ids=[f"{each[0]}: {each[1].__name__ if each[1] else 'nothing'}" for each in TAMPERS],
)
def test_judge_finds_what_is_wrong_with_what_a_host_left(
    evidence: Callable[[str], Path],
    tmp_path: Path,
    harness_module: Any,
    variant: str,
    tamper: Tamper | None,
    says: str,
) -> None:
    harness_module("life")  # What is unpickled is defined there.
    where = tmp_path / "left"
    shutil.copytree(evidence(variant), where)
    report = pickle.loads((where / "report").read_bytes())
    if tamper is not None:
        tamper(where, report)
    found = harness_module("judge").judge(where, variant, report)
    if tamper is None:
        assert found == []
    else:
        assert any(says in line for line in found), found
