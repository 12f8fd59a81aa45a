"""Schedules and SIGKILL, and schedules and several processes: each occurrence one run, once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from .test_runs_killed import DRAWN, HOUR, KILLED, NOW, drawn_of, effects, rows

ADDING = ("writer.before_commit:1", "writer.after_commit:1")
FIRING = (
    *(f"writer.{side}_commit:{n}" for side in ("before", "after") for n in range(1, 5)),
    "schedule.after_occurrence",
    "run.after_started",
    "run.after_body",
    "run.after_done",
    "run.before_end",
)


def life(directory: Path, now_ms: int, point: str = "", add: Any = ("s",)) -> dict[str, Any]:
    return {"directory": str(directory), "now_ms": now_ms, "point": point, "add": list(add)}


def play(*jobs: tuple[list[dict[str, Any]], bool]) -> list[list[int]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.domain.children.schedules"],
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


def outcomes(directory: Path) -> Counter[tuple[str, int, str]]:
    """What became of which occurrence, how often."""
    return Counter(
        (key[0], record.due_ms, record.outcome) for key, record in rows(directory, "occurrences")
    )


@DRAWN
@pytest.mark.behaviour("S-035", "S-042")
def test_schedule_whose_process_is_killed_at_any_commit_starts_one_run(
    tmp_path: Path, drawn: int | None, seed: int
) -> None:
    jobs, places = [], []
    for when, points in (("adding", ADDING), ("firing", FIRING)):
        for point in drawn_of(points, None if drawn is None else min(drawn, len(points)), seed):
            at = tmp_path / f"{when} {point}".replace(":", "-")
            at.mkdir()
            killed = (
                [life(at, NOW, point)]
                if when == "adding"
                else [life(at, NOW), life(at, NOW + HOUR, point, ())]
            )
            jobs.append(([*killed, life(at, NOW), life(at, NOW + HOUR)], False))
            places.append((when, point, at))
    for (when, point, at), statuses in zip(places, play(*jobs), strict=True):
        assert statuses.count(KILLED) == 1, (when, point, statuses)
        assert outcomes(at) == Counter({("s", NOW + HOUR, "started"): 1}), (when, point)
        assert effects(at) == Counter({"s@1/0": 1}), (when, point)
        ((_, run),) = rows(at, "runs")
        assert (run.state, run.schedule, run.due_ms) == ("completed", "s", NOW + HOUR)
        ((_, schedule),) = rows(at, "schedules")
        assert schedule.next_ms == NOW + 2 * HOUR, (when, point)


@pytest.mark.drawn(1)
@pytest.mark.behaviour("S-042")
@pytest.mark.parametrize("processes", [2, 4])
def test_of_processes_that_find_an_occurrence_due_one_starts_its_run(
    tmp_path: Path, processes: int
) -> None:
    names = [f"s{number}" for number in range(20)]
    statuses = play(
        ([life(tmp_path, NOW, add=names)], False),
        ([life(tmp_path, NOW + HOUR, add=()) for _ in range(processes)], True),
    )
    assert statuses == [[0], [0] * processes]
    assert outcomes(tmp_path) == Counter((name, NOW + HOUR, "started") for name in names)
    assert effects(tmp_path) == Counter(f"{name}@1/0" for name in names)
    assert len(rows(tmp_path, "runs")) == len(names)
