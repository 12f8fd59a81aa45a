"""Crash points are named in one place, and kill only the process that was told to die."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import abeyance.storage
from abeyance.storage import crashpoints

STORAGE = Path(abeyance.storage.__file__).parent


@pytest.fixture(autouse=True)
def _disarmed() -> object:
    yield
    crashpoints.arm(None)


def test_every_point_that_is_hit_is_declared_and_every_declared_one_is_hit() -> None:
    hit = set()
    for source in STORAGE.rglob("*.py"):
        hit |= set(re.findall(r'\bcrashpoint\("([^"]+)"\)', source.read_text()))
    declared = {name for name in crashpoints.CRASHPOINTS if name.split(".")[0] in _MODULES}
    assert hit == declared


_MODULES = {
    "open",
    "writer",
    "service",
    "ownership",
    "close",
    "compact",
    "backup",
    "repair",
    "migrate",
}


def test_an_unarmed_point_does_nothing() -> None:
    crashpoints.crashpoint("writer.before_commit")
    crashpoints.crashpoint("nobody.declared_it")


def test_an_undeclared_point_is_an_error_as_soon_as_one_is_armed() -> None:
    crashpoints.arm("writer.before_commit")
    with pytest.raises(crashpoints.UnknownCrashpointError):
        crashpoints.crashpoint("nobody.declared_it")


def test_other_points_go_on() -> None:
    crashpoints.arm("writer.before_commit")
    crashpoints.crashpoint("writer.after_commit")


@pytest.mark.parametrize("spec", ["writer.before_commit:0", "writer.before_commit:x"])
def test_a_count_that_is_none_is_refused(spec: str) -> None:
    with pytest.raises(ValueError):
        crashpoints.arm(spec)


def test_a_name_is_declared_once_and_described() -> None:
    doc = crashpoints.CRASHPOINTS["writer.before_commit"]
    assert crashpoints.declare("writer.before_commit", doc) == "writer.before_commit"
    for name, text in (("writer.before_commit", "another"), ("nodot", "text"), ("a.b", "")):
        with pytest.raises(ValueError):
            crashpoints.declare(name, text)


def test_an_armed_point_kills_at_its_nth_hit() -> None:
    script = (
        "from abeyance.storage.crashpoints import crashpoint\n"
        "for n in range(5):\n"
        "    print(n, flush=True)\n"
        "    crashpoint('writer.after_flock')\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", script],
        env={"ABEYANCE_CRASH_AT": "writer.after_flock:3", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stdout.split()) == (-9, ["0", "1", "2"])
