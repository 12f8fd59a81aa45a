"""A bounded share of the crash matrix of runs, and what its judge says of runs that lost something.

`./dev run-matrix` plays all of it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SAMPLE = 12
WITHIN_S = 40


@pytest.mark.slow
@pytest.mark.behaviour("S-035", "S-037", "S-044", "S-064", "S-066", "R-20", "R-22", "R-23")
def test_run_that_is_killed_anywhere_on_its_way_comes_to_its_end_with_each_effect_once(
    request: pytest.FixtureRequest,
) -> None:
    seed = request.config.option.hypothesis_seed
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.crash.run_matrix", "--seed", seed),
            *("--sample", str(SAMPLE), "--within-s", str(WITHIN_S), "--race", "2x12"),
        ],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=115,
    )
    print(done.stdout + done.stderr)
    assert done.returncode == 0
    played = re.search(r"^(\d+) of \d+ trials of (\d+), 0 violations", done.stdout, re.MULTILINE)
    assert played is not None
    assert int(played[1]) >= 3
    assert int(played[2]) > 400
    assert "race: 2 processes, 12 runs" in done.stdout


# -- the judge


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the undisturbed lives of a run with one wall left."""
    where = tmp_path_factory.mktemp("run")
    script = (
        "import sys; from pathlib import Path; from tests.crash import run_matrix as m; "
        "at = Path(sys.argv[1]); "
        "ends = [m._ends(m.fork(at, stage)) for stage in m.SCENARIOS['wall']]; "
        "assert ends == [0, 0], ends"
    )
    subprocess.run([sys.executable, "-c", script, str(where)], cwd=ROOT, check=True, timeout=100)
    return where


def act_twice(directory: Path) -> None:
    with (directory / "effects").open("a") as lines:
        lines.write("k@1/0\n")


def lose_an_effect(directory: Path) -> None:
    lines = (directory / "effects").read_text().splitlines(keepends=True)
    (directory / "effects").write_text("".join(lines[1:]))


@pytest.mark.parametrize(
    ("scenario", "fault", "says"),
    [
        ("wall", None, ()),
        ("wall", act_twice, ("the effects are",)),
        ("wall", lose_an_effect, ("the effects are",)),
        ("second wall", None, ("it met 1 walls, not 2", "it was woken 1 times for 2 walls")),
        (
            "cancel",
            None,
            (
                "it is completed, not cancelled",
                "the effects are",
                "its end is not the last",
                "the index has it as",
            ),
        ),
    ],
    ids=["undisturbed", "done twice", "not done", "a wall too few", "not cancelled"],
)
def test_judge_of_the_run_matrix_sees_what_does_not_hold(
    evidence: Path,
    tmp_path: Path,
    harness_module: Any,
    scenario: str,
    fault: Callable[[Path], None] | None,
    says: tuple[str, ...],
) -> None:
    directory = tmp_path / "run"
    shutil.copytree(evidence, directory)
    if fault is not None:
        fault(directory)
    found = harness_module("run_matrix").judge(directory, scenario)
    assert len(found) == len(says), found
    assert all(line.startswith(said) for line, said in zip(found, says, strict=True)), found
