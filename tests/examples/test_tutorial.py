"""The tutorial, done as it says: its file, its commands, its kill."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
REAL_S_MAX = 30.0
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


def blocks(language: str) -> list[str]:
    return [text for kind, text in _FENCE.findall(PAGE.read_text()) if kind == language]


@contextmanager
def started(where: Path, command: str) -> Iterator[subprocess.Popen[str]]:
    python, *rest = command.split()
    assert python == "python"
    with subprocess.Popen(
        [sys.executable, *rest], cwd=where, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def abeyance(where: Path, command: str) -> str:
    name, *rest = command.split()
    assert name == "abeyance"
    done = subprocess.run(
        [sys.executable, "-m", "abeyance.actors.ops.entry", *rest],
        cwd=where,
        capture_output=True,
        text=True,
        timeout=REAL_S_MAX,
        check=True,
    )
    return done.stdout


@pytest.mark.slow
def test_tutorial_does_what_it_says(tmp_path: Path) -> None:
    (host,) = blocks("python")
    (tmp_path / "host.py").write_text(host)
    start, waits, status, again, release = (text.strip() for text in blocks("sh"))
    with started(tmp_path, start) as first:
        assert f"pid {first.pid}, page http://127.0.0.1:" in says(first)
        assert says(first) == "user: Do I need an umbrella in Oslo?"
        while "opus" not in (listed := abeyance(tmp_path, waits)):
            assert "No waits." in listed
        assert "held" in abeyance(tmp_path, status)
        first.send_signal(signal.SIGKILL)
        first.wait(REAL_S_MAX)
    stopped = abeyance(tmp_path, status)
    assert "No host is running" in stopped
    assert "opus" in stopped
    with started(tmp_path, again) as second:
        assert f"pid {second.pid}" in says(second)
        assert "held" in abeyance(tmp_path, status)
        assert "Released ana on opus: recorded." in abeyance(tmp_path, release)
        assert says(second) == "ana: Take one."
