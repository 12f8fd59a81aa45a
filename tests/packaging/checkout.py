"""The checkout under test: where it is, what is in it, and commands run in copies of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINKS = {"actors", "storage"}


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command without the caller's Python and `./dev` settings; output is in the failure."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("PYTHON", "ABEYANCE_"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=kept | environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    done.stdout += done.stderr
    return done


def succeed(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = run(*command, cwd=cwd, **environment)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}"
    return done.stdout


def checkout_files() -> list[str]:
    """Every file of the checkout that is tracked, or new and not ignored. Links are left out."""
    listed = succeed("git", "ls-files", "-co", "--exclude-standard", "-z", cwd=ROOT).split("\0")
    return sorted(f for f in listed if f and (ROOT / f).is_file() and not (ROOT / f).is_symlink())
