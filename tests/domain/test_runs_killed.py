"""Runs and SIGKILL, and runs and several processes: each effect once, each run resumed once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Row

from .children.runs import ITEMS

KILLED = -signal.SIGKILL
NOW = 1_791_374_400_000
HOUR = 3_600_000
POINTS = (
    *(f"run.after_started:{n}" for n in range(1, 4)),
    *(f"run.after_body:{n}" for n in range(1, 3)),
    *(f"run.after_done:{n}" for n in range(1, 3)),
    "run.after_suspended",
)
"""Places before the wall, by how often they are passed: three items are started, two done."""
WAKING = (
    "run.after_claimed",
    "run.after_running",
    *(f"run.after_started:{n}" for n in range(1, 4)),
    *(f"run.after_body:{n}" for n in range(1, 4)),
    *(f"run.after_done:{n}" for n in range(1, 4)),
    "run.before_end",
)
COMMITS = tuple(f"writer.before_commit:{n}" for n in range(2, 8)) + tuple(
    f"writer.after_commit:{n}" for n in range(2, 8)
)


def life(directory: Path, now_ms: int, point: str = "", start: Any = ("k",)) -> dict[str, Any]:
    return {
        "directory": str(directory),
        "now_ms": now_ms,
        "point": point,
        "start": list(start),
        "ends_ms": NOW + HOUR,
    }


def play(*jobs: tuple[list[dict[str, Any]], bool]) -> list[list[int]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.domain.children.runs"],
        input=json.dumps([{"lives": lives, "at_once": at_once} for lives, at_once in jobs]),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    statuses: list[list[int]] = json.loads(done.stdout)
    assert all(each in (0, KILLED) for job in statuses for each in job), done.stderr
    return statuses


def rows(directory: Path, table: str) -> list[Any]:
    store = LmdbStore.open(directory / "state", clock_ms=lambda: 0, read_only=True)
    try:
        found = []
        for key, row in store.scan(table):
            assert isinstance(row, Row), row
            found.append((key, row.record))
        return found
    finally:
        store.close()


def effects(directory: Path) -> Counter[str]:
    return Counter((directory / "effects").read_text().splitlines())


def asked_about(directory: Path) -> list[str]:
    """The items of which it was asked whether they had happened: no more than one died."""
    path = directory / "asked"
    return path.read_text().splitlines() if path.exists() else []


def each_once(*keys: str) -> Counter[str]:
    return Counter(f"{key}@1/{number}" for key in keys for number in range(len(ITEMS)))


@pytest.fixture
def directories(tmp_path: Path) -> Any:
    def make(name: str) -> Path:
        path = tmp_path / name.replace(":", "-")
        path.mkdir()
        return path

    return make


DRAWN = pytest.mark.parametrize(
    "drawn", [5, pytest.param(None, marks=pytest.mark.slow)], ids=["drawn", "all"]
)
"""How many of the places a run of the tests dies at, drawn by its seed; None is all of them."""


def drawn_of(points: tuple[str, ...], drawn: int | None, seed: int) -> list[str]:
    return list(points) if drawn is None else random.Random(seed).sample(points, drawn)


@DRAWN
@pytest.mark.behaviour("S-035", "S-044", "R-20", "R-22", "S-064")
def test_run_that_is_killed_on_its_way_to_a_wall_has_each_effect_once(
    directories: Any, drawn: int | None, seed: int
) -> None:
    places = {point: directories(point) for point in drawn_of((*POINTS, *COMMITS), drawn, seed)}
    statuses = play(
        *(
            ([life(at, NOW, point), life(at, NOW), life(at, NOW + HOUR, "", ())], False)
            for point, at in places.items()
        )
    )
    for (point, at), (killed, *after) in zip(places.items(), statuses, strict=True):
        assert killed == KILLED, f"{point} was not reached"
        assert after == [0, 0], point
        ((_, run),) = rows(at, "runs")
        assert run.state == "completed", (point, run.reason)
        assert effects(at) == each_once("k"), point
        assert len(asked_about(at)) <= 1, point


@DRAWN
@pytest.mark.behaviour("S-066", "S-037", "S-064")
def test_run_that_is_killed_after_any_step_of_its_waking_is_resumed_and_has_each_effect_once(
    directories: Any, drawn: int | None, seed: int
) -> None:
    places = {point: directories(point) for point in drawn_of(WAKING, drawn, seed)}
    statuses = play(
        *(
            (
                [
                    life(at, NOW),
                    life(at, NOW + HOUR, point, ()),
                    life(at, NOW + HOUR, "", ()),
                ],
                False,
            )
            for point, at in places.items()
        )
    )
    for (point, at), status in zip(places.items(), statuses, strict=True):
        assert status == [0, KILLED, 0], point
        ((_, run),) = rows(at, "runs")
        assert run.state == "completed", (point, run.reason)
        assert effects(at) == each_once("k"), point
        assert len(asked_about(at)) <= 1, point
        states = [record.after for _, record in rows(at, "run_transitions")]
        assert states.count("completed") == 1
        assert "recovery_required" not in states


@pytest.mark.behaviour("S-037", "R-23")
@pytest.mark.parametrize(
    ("processes", "runs"),
    [
        (2, 15),
        (4, 15),
        pytest.param(2, 1_000, marks=pytest.mark.slow),
        pytest.param(4, 1_000, marks=pytest.mark.slow),
    ],
)
def test_of_processes_that_race_for_runs_that_are_due_one_resumes_each(
    directories: Any, processes: int, runs: int
) -> None:
    at = directories("race")
    keys = [f"r{number:04}" for number in range(runs)]
    statuses = play(
        ([life(at, NOW, start=keys)], False),
        ([life(at, NOW + HOUR, start=()) for _ in range(processes)], True),
    )
    assert statuses == [[0], [0] * processes]
    assert {run.state for _, run in rows(at, "runs")} == {"completed"}
    assert effects(at) == each_once(*keys)
    taken = Counter(key[0] for key, step in rows(at, "run_transitions") if step.after == "resuming")
    assert taken == Counter(keys)


ASKING = (
    "run.after_started:1",
    "run.after_sent:1",
    "turn.after_reply:1",
    "turn.after_round:1",
    "run.after_done:1",
    "run.after_started:2",
    "run.after_sent:2",
    "turn.after_wait",
    "turn.after_hold",
    "run.after_suspended",
)
"""Places on the way to the second turn's hold."""
JOINING = (
    "turn.after_reply:1",
    "turn.after_round:1",
    "run.after_claimed",
    "run.after_running",
    "run.after_done:1",
    "run.before_end",
)
"""Places behind it: the turn goes on first, and its run when that has ended."""


@DRAWN
@pytest.mark.behaviour("S-035", "S-044", "X-006", "S-064", "S-066")
def test_run_that_asks_an_agent_sends_each_message_once_wherever_it_is_killed(
    directories: Any, drawn: int | None, seed: int
) -> None:
    points = drawn_of((*ASKING, *(f"late {point}" for point in JOINING)), drawn, seed)
    places = {point: directories(point) for point in points}

    def lives(at: Path, point: str) -> list[dict[str, Any]]:
        late, _, name = point.rpartition(" ")
        killed = life(at, NOW + HOUR if late else NOW, name, () if late else ("k",))
        before, after = [life(at, NOW)], [life(at, NOW)]
        # The last starts nothing: it may have ended the run by then, and would begin another.
        last = life(at, NOW + HOUR, "", ())
        found = [*(before if late else ()), killed, *(() if late else after), last]
        return [{**each, "workflow": "asks"} for each in found]

    statuses = play(*((lives(at, point), False) for point, at in places.items()))
    for (point, at), status in zip(places.items(), statuses, strict=True):
        assert status.count(KILLED) == 1, f"{point} was not reached"
        ((_, run),) = rows(at, "runs")
        assert run.state == "completed", (point, run.reason)
        said = [entry.message for _, entry in rows(at, "slots") if entry.role == "user"]
        assert said == ["run:k@1/0", "run:k@1/1"], point
        turns = [turn for _, turn in rows(at, "turns")]
        assert [turn.state for turn in turns] == ["done", "done"], point
        states = [record.after for _, record in rows(at, "run_transitions")]
        assert states.count("completed") == 1
        assert "recovery_required" not in states


@pytest.mark.drawn(1)
@pytest.mark.behaviour("S-064", "S-048", "X-006")
@pytest.mark.parametrize("question", ["first?", "second?"])
def test_run_whose_process_is_killed_under_a_stream_that_stands_still_goes_on_once(
    directories: Any, question: str
) -> None:
    """Before its wall, or as it goes on behind it."""
    at = directories("hangs")
    late = NOW + HOUR
    first = {**life(at, NOW), "hangs_at": question, "workflow": "asks"}
    second = {**life(at, late, start=()), "hangs_at": question, "workflow": "asks"}
    whole = {**life(at, late, start=()), "workflow": "asks"}
    lives = [first, whole] if question == "first?" else [first, second, whole]
    (status,) = play((lives, False))
    assert status == [KILLED, 0] if question == "first?" else [0, KILLED, 0]
    ((_, run),) = rows(at, "runs")
    assert run.state == "completed", run.reason
    said = [(entry.role, entry.message) for _, entry in rows(at, "slots")]
    asked = [message for role, message in said if role == "user"]
    assert asked == ["run:k@1/0", "run:k@1/1"]
    assert [role for role, _ in said] == ["user", "assistant"] * 2
    assert [turn.state for _, turn in rows(at, "turns")] == ["done", "done"]
    states = [record.after for _, record in rows(at, "run_transitions")]
    assert states.count("completed") == 1
    assert "recovery_required" not in states
