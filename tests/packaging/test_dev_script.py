"""`./dev`: what it refuses, and that it names what it can do."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from .checkout import ROOT, run, succeed


def test_help_names_every_command_the_script_has() -> None:
    told = set(re.findall(r"^\./dev ([\w-]+)", succeed("./dev", "help", cwd=ROOT), re.M))
    script = (ROOT / "dev").read_text()
    (accepted,) = re.findall(r"^(demo \|[\w |-]+)\) set_up ;;$", script, re.M)
    assert told == {name.strip() for name in accepted.split("|")}


def test_unknown_command_is_refused_before_anything_is_set_up(tmp_path: Path) -> None:
    done = run("./dev", "frobnicate", cwd=ROOT, ABEYANCE_VENV=str(tmp_path / "venv"))
    assert done.returncode == 2
    assert "unknown command: frobnicate" in done.stdout
    assert not (tmp_path / "venv").exists()


def test_named_interpreter_that_cannot_serve_is_refused_with_what_to_do(tmp_path: Path) -> None:
    old = tmp_path / "old-python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = run("./dev", "test", cwd=ROOT, PYTHON=str(old), ABEYANCE_VENV=str(tmp_path / "venv"))
    assert done.returncode == 2
    assert "is not a Python 3.11 or newer with its venv module" in done.stdout


def test_interpreter_that_is_named_makes_an_environment_of_another_one_anew(tmp_path: Path) -> None:
    other = tmp_path / "other-python"
    other.write_text(
        f"""#!/bin/sh
case "$*" in
*"-m venv"*) echo "makes $4" >&2; exit 7 ;;
*sys.base_prefix*) echo "another version" ;;
*) exec '{sys.executable}' "$@" ;;
esac
"""
    )
    other.chmod(0o755)
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    (venv / ".abeyance-set-up").write_text("set up")
    done = run("./dev", "test", cwd=ROOT, PYTHON=str(other), ABEYANCE_VENV=str(venv))
    assert done.returncode == 7
    assert f"making {venv} with {other}" in done.stdout
    assert f"makes {venv}" in done.stdout


@pytest.mark.parametrize("where", ["/", "/tmp"])
def test_script_runs_from_any_directory(where: str) -> None:
    assert "./dev test" in succeed(ROOT / "dev", "help", cwd=Path(where))


def _set_up_commands() -> list[str]:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.split("\n## Set up\n", 1)[1].split("\n## ", 1)[0]
    blocks = re.findall(r"^```sh\n(.*?)^```$", section, re.M | re.S)
    return [line for block in blocks for line in block.splitlines()]


def test_readme_sets_up_with_exactly_two_commands() -> None:
    assert _set_up_commands() == ["./dev demo", "./dev test"]


def test_continuous_integration_ends_with_the_readmes_own_test_command() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").rstrip().splitlines()
    assert lines[-1] == _set_up_commands()[-1]


def test_make_forwards_every_command() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (targets,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.M)
    script = (ROOT / "dev").read_text(encoding="utf-8")
    (accepted,) = re.findall(r"^(demo \|[\w |-]+)\) set_up ;;$", script, re.M)
    commands = {name.strip() for name in accepted.split("|")}
    assert set(targets.split()) == commands - {"python"} | {"help"}
