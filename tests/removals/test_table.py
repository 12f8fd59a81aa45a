"""The table of removals fits the code and the tests, and the command says so where it does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .table import Table, marked, read

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def table() -> Table:
    return read(ROOT)


def test_every_removal_names_one_place_of_the_code_and_a_test_that_is_there(table: Table) -> None:
    assert len(table.removals) > 0


@pytest.mark.behaviour("D-089")
def test_every_marked_behaviour_has_a_removal_or_a_reason_why_not(table: Table) -> None:
    named = {id_ for removal in table.removals for id_ in removal.ids} | set(table.untried)
    assert sorted(set(marked(ROOT)) - named) == [], "name each in one of tests/removals/*.toml"


GUARDED = """
def admit(count):
    if count > 3:
        raise ValueError("too many")
    return count
"""
TESTS = """
import pytest
from guarded import admit

@pytest.mark.behaviour("W-001")
def test_too_many_are_refused():
    with pytest.raises(ValueError):
        admit(4)

@pytest.mark.behaviour("W-002")
def test_few_are_admitted():
    assert admit(2) == 2

def test_never_passes():
    assert admit(2) == 3
"""


def _project(where: Path, table: str) -> Path:
    (where / "tests" / "removals").mkdir(parents=True)
    (where / "docs").mkdir()
    (where / "docs" / "behaviours.md").write_text("| W-001 | x |\n| W-002 | x |\n| W-003 | x |\n")
    (where / "docs" / "semantics.md").write_text("(`test_few_are_admitted`, `test_never_passes`)\n")
    (where / "guarded.py").write_text(GUARDED)
    (where / "tests" / "test_guarded.py").write_text(TESTS)
    (where / "tests" / "removals" / "one.toml").write_text(table)
    (where / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers =\n behaviour\n slow\n")
    return where


def _entry(old: str, new: str, test: str, ids: str = "", file: str = "guarded.py") -> str:
    named = f"ids = [{ids}]\n" if ids else ""
    return (
        f"[[removal]]\n{named}file = {file!r}\nold = {old!r}\nnew = {new!r}\n"
        f"test = 'tests/test_guarded.py::{test}'\n"
    )


GOOD = _entry("count > 3", "count > 9", "test_too_many_are_refused", '"W-001"')


def _removals(project: Path, *arguments: str) -> tuple[int, str, dict[str, object]]:
    report = project / "report.json"
    command = [sys.executable, "-m", "tests.removals", "--project", str(project), "--seed", "1"]
    done = subprocess.run(
        [*command, "--json", str(report), *arguments],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST")},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr, json.loads(report.read_text())


def test_removal_whose_test_fails_without_its_guard_is_proven(tmp_path: Path) -> None:
    project = _project(tmp_path, GOOD + '[untried]\nW-003 = "nothing to delete"\n')
    code, said, report = _removals(project)
    assert code == 0, said
    assert "1 of 1 removals fail their test" in said
    assert "untried W-003: nothing to delete" in said
    assert report["untried"] == {"W-003": "nothing to delete"}
    assert (project / "guarded.py").read_text() == GUARDED


@pytest.mark.slow
@pytest.mark.behaviour("D-089")
def test_removal_that_its_test_survives_ends_the_command_with_1(tmp_path: Path) -> None:
    survives = _entry("count > 3", "count > 9", "test_few_are_admitted", '"W-002"')
    code, said, _ = _removals(_project(tmp_path, GOOD + survives), "--jobs", "2")
    assert code == 1
    assert "SURVIVES W-002" in said
    assert "SURVIVES W-001" not in said


@pytest.mark.slow
def test_tables_of_several_files_are_tried_as_one(tmp_path: Path) -> None:
    project = _project(tmp_path, GOOD)
    second = _entry("return count", "return 0", "test_few_are_admitted", '"W-002"')
    (project / "tests" / "removals" / "two.toml").write_text(
        second + '[untried]\nW-003 = "nothing to delete"\n'
    )
    code, said, report = _removals(project)
    assert code == 0, said
    assert "2 of 2 removals fail their test" in said
    assert report["untried"] == {"W-003": "nothing to delete"}


def test_project_without_a_table_ends_the_command_with_2(tmp_path: Path) -> None:
    project = _project(tmp_path, GOOD)
    (project / "tests" / "removals" / "one.toml").unlink()
    code, said, _ = _removals(project)
    assert code == 2
    assert "there is no table" in said


@pytest.mark.drawn(4)
@pytest.mark.parametrize(
    ("table", "said"),
    [
        pytest.param(GOOD.replace("W-001", "W-099"), "unknown id W-099", id="unknown-id"),
        pytest.param(GOOD.replace("W-001", "W-003"), "is not marked with W-003", id="unmarked"),
        pytest.param(GOOD.replace("count > 3'", "count > 4'"), "occurs 0 times", id="no-snippet"),
        pytest.param(GOOD.replace("'count > 3'", "'count'"), "occurs 3 times", id="ambiguous"),
        pytest.param(GOOD.replace("'count > 9'", "'count >'"), "does not parse", id="unparsable"),
        pytest.param(GOOD.replace("_refused", "_lost"), "there is no test", id="no-test"),
        pytest.param(GOOD.replace("'guarded.py'", "'gone.py'"), "there is no file", id="no-file"),
        pytest.param(GOOD.replace("ids =", "id ="), "unknown field id", id="unknown-field"),
        pytest.param("[[removal]\n", "tests/removals/one.toml: Expected", id="not-toml"),
        pytest.param(GOOD + '[untried]\nW-002 = ""\n', "W-002 has no reason", id="no-reason"),
        pytest.param(
            _entry("count > 3", "count > 9", "test_too_many_are_refused"),
            "docs/semantics.md does not name its test",
            id="neither-id-nor-statement",
        ),
        pytest.param(
            _entry("count > 3", "count > 9", "test_never_passes"),
            "unchanged: failed",
            id="fails-unchanged",
        ),
        pytest.param(
            _entry("count > 3", "coumt > 9", "test_few_are_admitted"),
            "NameError",
            id="broken-code",
        ),
    ],
)
def test_table_that_cannot_be_tried_ends_the_command_with_2(
    tmp_path: Path, table: str, said: str
) -> None:
    code, output, report = _removals(_project(tmp_path, table))
    assert code == 2
    assert said in output
    assert report["problems"]


def test_id_that_no_removal_is_of_is_refused(tmp_path: Path) -> None:
    code, said, _ = _removals(_project(tmp_path, GOOD), "W-002")
    assert code == 2
    assert "no removal is of W-002" in said


@pytest.mark.slow
def test_sample_is_repeated_by_its_seed(tmp_path: Path) -> None:
    second = _entry("return count", "return 0", "test_few_are_admitted", '"W-002"')
    code, said, report = _removals(_project(tmp_path, GOOD + second), "--sample", "1")
    assert code == 0, said
    assert "seed 1, 1 of 2 removals" in said
    assert _removals(tmp_path, "--sample", "1")[2]["tried"] == report["tried"]
