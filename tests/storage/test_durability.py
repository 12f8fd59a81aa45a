"""Every acknowledged commit was flushed: counted by the system, from outside of the process."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMMITS = 25
REAL_S_MAX = 90.0
CHILD = """
import os
import sys
from abeyance.actors.testing import WallClock
from abeyance.storage.codec import encode
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Put, Request
from abeyance.storage.tables.blocks import TextBlock
from abeyance.storage.tables.slots import Body

state, commits = sys.argv[1], int(sys.argv[2])
store = LmdbStore.open(state, clock_ms=WallClock().now_ms)
os.write(2, b"begun")
for number in range(commits):
    body = Body(blocks=(TextBlock(text=str(number)),))
    store.commit(Request(puts=(Put("bodies", ("ana", number), encode(body)),)))
    os.write(2, b"acknowledged %d\\n" % number)
store.close()
"""
_FLUSH = re.compile(r"\b(?:fsync|fdatasync|msync)\(.*= 0$")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]


def traced(state: Path, *more: str) -> list[str]:
    """The system calls of a process that commits, and what it said, in order."""
    log = state.with_name("trace")
    script = state.with_name("child.py")
    script.write_text(CHILD)
    command = ["strace", "-f", "-qq", "-s", "64", "-e", "trace=fsync,fdatasync,msync,write"]
    subprocess.run(
        [*command, *more, "-o", str(log), sys.executable, str(script), str(state), str(COMMITS)],
        check=True,
        capture_output=True,
        timeout=REAL_S_MAX,
    )
    return log.read_text().splitlines()


def unflushed(lines: list[str]) -> list[int]:
    """The commits that were acknowledged without a flush since the one before."""
    missing, flushed, seen = [], False, 0
    for line in lines:
        if _FLUSH.search(line):
            flushed = True
        found = re.search(r'write\(2, "acknowledged (\d+)', line)
        if found:
            seen += 1
            if not flushed:
                missing.append(int(found[1]))
            flushed = False
        if 'write(2, "begun' in line:
            flushed = False
    assert seen == COMMITS
    return missing


def test_every_acknowledged_commit_is_behind_a_flush_of_its_own(tmp_path: Path) -> None:
    lines = traced(tmp_path / "state")
    assert unflushed(lines) == []


def test_audit_finds_flushes_that_are_not_made(tmp_path: Path) -> None:
    """The store itself refuses an engine that is told not to sync: here the system is, instead."""
    lines = traced(tmp_path / "state", "-e", "inject=fsync,fdatasync,msync:retval=0")
    assert unflushed(lines) == list(range(COMMITS))
