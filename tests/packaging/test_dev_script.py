"""`./dev`: what it refuses, and that it names what it can do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .checkout import ROOT, run, succeed


def test_help_names_every_command_the_script_has() -> None:
    told = set(re.findall(r"^\./dev (\w+)", succeed("./dev", "help", cwd=ROOT), re.M))
    script = (ROOT / "dev").read_text()
    (accepted,) = re.findall(r"^(demo \|[\w |]+)\) set_up ;;$", script, re.M)
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


@pytest.mark.parametrize("where", ["/", "/tmp"])
def test_script_runs_from_any_directory(where: str) -> None:
    assert "./dev test" in succeed(ROOT / "dev", "help", cwd=Path(where))
