"""A state directory of another user's: one clear line, exit code 2, and nothing is changed."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from abeyance.actors import open_runtime
from abeyance.actors.ops import cli

NOBODY = 65_534
ARGUMENTS = (
    *(["status"], ["waits"], ["check"], ["alerts"], ["dead-letters"], ["tree"]),
    *(
        ["release", "ana"],
        ["rewind", "ana", "--undo"],
        ["cancel-turn", "ana"],
        ["set-model", "ana", "m2"],
        ["approve", "ana/1/1/0"],
    ),
    *(["edits", "ana"], ["edit", "ana", "--undo", "1"]),
)


def as_nobody(run: Callable[[], int]) -> tuple[int, str]:
    """Exit code and output of what a process of another user does."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            sys.stdout = sys.stderr = os.fdopen(writes, "w")
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            code = run()
            sys.stderr.flush()
        finally:
            os._exit(code)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        said = pipe.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said


async def _make(state: Path) -> None:
    async with open_runtime(state, control=False):
        pass


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("mode", ["0700", "readable", "only the folders are theirs"])
def test_a_store_that_was_copied_with_another_users_files_is_refused_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], mode: str
) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o5 != 0o5 and str(folder).startswith("/tmp/"):
            folder.chmod(folder.stat().st_mode | 0o5)
    trio.run(_make, tmp_path / "made")
    state = tmp_path / "state"
    shutil.copytree(tmp_path / "made", state)
    for folder, _, files in os.walk(state):
        if mode == "readable":
            os.chmod(folder, 0o755)
        elif mode != "0700":
            os.chown(folder, NOBODY, NOBODY)
        for name in files:
            os.chmod(os.path.join(folder, name), 0o644 if mode == "readable" else 0o600)
    for arguments in ARGUMENTS:
        command, *rest = arguments

        def run(command: str = command, rest: list[str] = rest) -> int:
            return cli.main([command, str(state), *rest])

        cli.main([command, str(tmp_path / "made"), *rest])  # What it imports is imported here.
        capfd.readouterr()
        code, said = as_nobody(run)
        assert code == 2, (arguments, said)
        (line,) = said.splitlines()
        assert line.startswith(f"abeyance: {state}")
        assert "another user" in line or "it belongs to user 0" in line or "Permission" in line
