"""The example of a run: what it prints, and that a second start of its key says how it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "runs" / "nightly_report.py"


def play(where: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(where / "state")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_nightly_report_posts_each_once_and_a_later_night_is_another_run(tmp_path: Path) -> None:
    posts = [
        "to ops: opus on 1 December: all quiet",
        "to all: opus on 1 December: all quiet",
    ]
    said = play(tmp_path)
    assert said == [
        f"[report:2026-12-01@1/1] {posts[0]}",
        f"[report:2026-12-01@1/2] {posts[1]}",
        "Completed",
    ]
    assert play(tmp_path)[0] == f"[report:2026-12-01@2/1] {posts[0]}"
