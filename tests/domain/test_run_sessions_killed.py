"""Runs that stand in a session, and SIGKILL: one session, and each thing said in it once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from abeyance.actors.testing import ScriptedSessions

from .children.sessions import SAID
from .test_runs_killed import DRAWN, HOUR, KILLED, NOW, drawn_of, rows

POINTS = (
    *(f"writer.{side}_commit:{n}" for side in ("before", "after") for n in range(2, 9)),
    "run.after_session",
    "usage.begun",
    "usage.made",
    *(f"run.after_started:{n}" for n in (2, 3)),
    "run.after_body",
    "run.after_done",
    "run.after_suspended",
)
WAKING = (
    "run.after_claimed",
    "run.after_running",
    *(f"run.after_started:{n}" for n in (1, 2)),
    *(f"run.after_body:{n}" for n in (1, 2)),
    *(f"run.after_done:{n}" for n in (1, 2)),
    "run.before_end",
)


@DRAWN
@pytest.mark.behaviour("S-023", "S-035", "S-044", "S-064")
def test_run_in_a_session_that_is_killed_at_any_commit_says_each_thing_once_in_it(
    tmp_path: Path, drawn: int | None, seed: int
) -> None:
    jobs, places = [], []
    for when, points in (("before", POINTS), ("waking", WAKING)):
        for point in drawn_of(points, drawn, seed):
            at = tmp_path / f"{when} {point}".replace(":", "-")
            (at / "far").mkdir(parents=True)

            def life(now_ms: int, point: str = "", at: Path = at) -> dict[str, str | int]:
                return {
                    "directory": str(at),
                    "now_ms": now_ms,
                    "point": point,
                    "ends_ms": NOW + HOUR,
                }

            first = [life(NOW, point)] if when == "before" else [life(NOW), life(NOW + HOUR, point)]
            jobs.append([*first, life(NOW + HOUR)])
            places.append((when, point, at))
    done = subprocess.run(
        [sys.executable, "-m", "tests.domain.children.sessions"],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    for (when, point, at), statuses in zip(places, json.loads(done.stdout), strict=True):
        assert statuses.count(KILLED) == 1, (when, point, statuses, done.stderr)
        assert statuses[-1] == 0
        ((_, run),) = rows(at, "runs")
        assert run.state == "completed", (when, point, run.reason)
        far = ScriptedSessions(at / "far")
        told = {
            handle: [each.blocks[0].text for each in far.messages(handle) if each.role == "user"]  # type: ignore[union-attr]
            for handle in far.handles
        }
        # One that was opened as its process died, before its handle was a row, is nobody's.
        assert [said for said in told.values() if said] == [list(SAID)], (when, point, told)
