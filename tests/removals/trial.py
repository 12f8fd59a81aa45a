"""A copy of the project, the tests that run in it, and what became of a test without its guard.

I1: the project itself is never written to.
I2: a copy holds the project's own files between two trials: what a trial changed is put back.
I3: no run outlives its bound; with the process its children end.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .table import Removal

# What fails a test because the code does not fit together any more, not because of what it does.
_BROKEN = {"NameError", "ImportError", "SyntaxError", "UsageError"}
_START_S = 60.0  # for starting Python and importing, on a busy machine, beside the test's own time.


@dataclass(frozen=True)
class Outcome:
    """How a test ended: passed, failed, hung, or broken (nothing was judged); and the reason."""

    how: str
    why: str = ""


def copy_project(root: Path, to: Path) -> None:
    """Copy what git knows or would take, or everything but rubbish where there is no git."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0 and (root / ".git").exists():
        for name in filter(None, listed.stdout.split("\0")):
            if (root / name).is_file() and not (root / name).is_symlink():
                (to / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, to / name)
    else:
        rubbish = shutil.ignore_patterns(".git", ".venv", ".dev", "dist", "__pycache__", ".*_cache")
        shutil.copytree(root, to, ignore=rubbish, dirs_exist_ok=True)
    for room in ("actors", "storage"):
        if (to / room).is_dir():
            (to / ".dev" / "abeyance").mkdir(parents=True, exist_ok=True)
            (to / ".dev" / "abeyance" / room).symlink_to(Path("../..") / room)


class Copy:
    """A copy in which one pytest runs at a time."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self._seed = seed
        self._changed_at_s = int(time.time())

    def unchanged(self, tests: list[str], timeout_s: float, whole_s: float) -> dict[str, Outcome]:
        """Run the tests as they are; each one's outcome, by its node id."""
        # By the whole function: pytest runs nothing at all where it does not know one case.
        functions = sorted({test.partition("[")[0] for test in tests})
        judged = self._run(functions, timeout_s, whole_s)
        return {test: judged(test) for test in tests}

    def _run(self, tests: list[str], timeout_s: float, whole_s: float) -> Callable[[str], Outcome]:
        with tempfile.TemporaryDirectory() as scratch:
            observed = Path(scratch) / "observed"
            observed.touch()
            environment = {
                **{k: v for k, v in os.environ.items() if not k.startswith("PYTHON")},
                "PYTHONPATH": os.pathsep.join(
                    [str(self.path / ".dev"), str(Path(__file__).parent)]
                ),
                "REMOVALS_OBSERVED": str(observed),
                "ABEYANCE_SEED": str(self._seed),
            }
            command = [sys.executable, "-m", "pytest", "-q", "-p", "removal_observer"]
            command += ["-p", "no:cacheprovider", "-m", "slow or not slow", "--tb=short"]
            command += [f"--timeout={timeout_s:g}", *tests]
            ended, output = _run(command, self.path, environment, whole_s)
            lines = [json.loads(line) for line in observed.read_text("utf-8").splitlines()]
        return lambda test: _judge(test, lines, ended, output)

    def without(self, removal: Removal, timeout_s: float) -> Outcome:
        """Run the removal's test in the copy without the guard."""
        file = self.path / removal.file
        before = file.read_text("utf-8")
        self._write(file, removal.applied(before))
        try:
            whole_s = timeout_s + _START_S
            return self._run([removal.test], timeout_s, whole_s)(removal.test)
        finally:
            self._write(file, before)

    def _write(self, file: Path, text: str) -> None:
        # What Python compiled is taken for a file's by its length and the second it was changed
        # in: every change has a second of its own, or the code would be run as it was before.
        file.write_text(text, "utf-8")
        self._changed_at_s += 1
        os.utime(file, (self._changed_at_s, self._changed_at_s))


def _run(
    command: list[str], cwd: Path, environment: dict[str, str], timeout_s: float
) -> tuple[bool, str]:
    """Run to the end or to the bound; whether it ended, and the end of its output."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        return True, process.communicate(timeout=timeout_s)[0][-4000:]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return False, process.communicate()[0][-4000:]


def _judge(test: str, lines: list[dict[str, object]], ended: bool, output: str) -> Outcome:
    mine = [x for x in lines if x["node"] == test or str(x["node"]).startswith(test + "[")]
    if not mine:
        why = "there is no such case" if ended and lines else _last(output)
        return Outcome("broken" if ended else "hung", why)
    for line in mine:
        if line["outcome"] != "failed":
            continue
        kinds: list[str] = line["kinds"]  # type: ignore[assignment]
        text = str(line["text"]).partition("\n")[0][:160]
        if line["phase"] == "setup" or _BROKEN.intersection(kinds):
            return Outcome("broken", f"{line['phase']}: {text}")
        return Outcome("hung" if "Timeout" in text else "failed", text)
    if any(line["outcome"] == "skipped" for line in mine):
        return Outcome("broken", "was skipped")
    if not ended or not any(line["phase"] == "call" for line in mine):
        # The test killed its process, or outlived the bound with the signal blocked.
        return Outcome("failed" if ended else "hung", _last(output))
    return Outcome("passed")


def _last(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("E  ", "ERROR", "FAILED"))]
    return (errors or lines or ["no output"])[-1][:160]
