"""Named places at which a test may let the process die, as SIGKILL would.

`ABEYANCE_CRASH_AT="writer.before_commit"` kills at the first hit, `"writer.before_commit:3"` at the
third. Unarmed, a hit costs one comparison.

Invariants:
    I1  A point that is hit, or named by the environment, has been declared.
    I2  A process without `ABEYANCE_CRASH_AT` never dies here.

Runs in: any thread.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Final

VARIABLE: Final = "ABEYANCE_CRASH_AT"

CRASHPOINTS: Final[dict[str, str]] = {}
"""Every declared point: its name and what has happened when it is reached."""

_hits_left = 0
_armed: str | None = None
_lock = threading.Lock()


class UnknownCrashpointError(LookupError):
    """A crash point that nobody declared; the process goes on."""


def declare(name: str, doc: str) -> str:
    """Make a point known. At import time, once a point.

    Args:
        name: Room or module, a dot, and the place: `writer.before_commit`.
        doc: One sentence: what has happened when the point is reached.
    Raises:
        ValueError: The name is taken with another text, or has no dot.
    """
    if "." not in name or not doc:
        raise ValueError(f"a crash point is named module.place and described; got {name!r}")
    if CRASHPOINTS.setdefault(name, doc) != doc:
        raise ValueError(f"crash point {name!r} is declared already, with another text")
    return name


def crashpoint(name: str) -> None:
    """Die here if a test armed this point; else do nothing.

    Raises:
        UnknownCrashpointError: Some point is armed and this one was never declared.
    """
    if _armed is None:
        return
    _hit(name)


def arm(spec: str | None) -> None:
    """Arm a point (`name` or `name:n`) in this process; None disarms.

    `ABEYANCE_CRASH_AT` does the same at import. The name may be declared later, by a
    module that is not imported yet.

    Raises:
        ValueError: The count is not a positive integer.
    """
    global _armed, _hits_left
    if not spec:
        _armed = None
        return
    name, _, count = spec.partition(":")
    hits = int(count) if count else 1
    if hits < 1:
        raise ValueError(f"a crash point is hit at least once; got {spec!r}")
    _hits_left, _armed = hits, name


def _hit(name: str) -> None:
    global _hits_left
    if name not in CRASHPOINTS:
        raise UnknownCrashpointError(f"crash point {name!r} is not declared; declare() it")
    if name != _armed:
        return
    with _lock:
        _hits_left -= 1
        due = _hits_left == 0
    if due:
        os.kill(os.getpid(), signal.SIGKILL)
        # The signal may be delivered to another thread first; nothing after the point may run.
        signal.pause()


declare("open.before_rename", "A new store is complete under its temporary name.")
declare("open.after_rename", "A new store has its name; its parent directory is not synced yet.")
declare("open.before_boot", "An existing store is open; its boot is not recorded yet.")
declare("ownership.before_rename", "The proof of life is locked under its temporary name.")
declare("ownership.after_rename", "The proof of life is in place; nothing is owned yet.")
declare("writer.after_flock", "The writer holds the write lock and has not begun to write.")
declare("writer.before_commit", "The batch is written and not committed.")
declare("writer.after_commit", "The batch is on disk and nobody was told.")
declare("service.before_reopen", "A commit failed; the store is closed and not open again yet.")
declare("close.before_clean", "Everything is stored; the clean close is not recorded yet.")
arm(os.environ.get(VARIABLE))
declare("compact.before_rename", "The copy of a store is whole, and not in its place.")
declare("compact.after_rename", "The copy is in its place, and the old file still beside it.")
declare("backup.before_rename", "A backup is whole and synced, and not in its place.")
declare("migrate.between_commits", "A migration has done a part of what it does.")
declare("repair.between_commits", "A repair, or its undoing, has committed a part of its rows.")
