"""Who holds the slots of the engine's reader table, when a reader finds none.

Each read transaction that is open takes a slot, whichever process has it; a process that has read
keeps one for its next. Writing takes none.

Runs in: the thread that reads.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from collections import Counter
from pathlib import Path
from typing import Final

from .errors import ReaderSlotsFullError

READERS_MAX: Final = 126
_FLOCK: Final = struct.Struct("hhqqi")
_PID_MAX: Final = 2**22 + 1


def slots_full(path: Path, held: Counter[int]) -> ReaderSlotsFullError:
    """`held`: slots by their holder's pid; 0 where only that it has the store open is known."""
    named = ", ".join(f"{pid} ({slots})" if slots else f"{pid}" for pid, slots in held.items())
    return ReaderSlotsFullError(
        f"all {READERS_MAX} reader slots of {path} are taken by processes that have it open "
        f"({named or 'whose ids are not known'}); nothing was read and commits go on; end those "
        "that only look, and try again",
        path=str(path),
        pids=tuple(held),
    )


def slots(table: str) -> Counter[int]:
    """Slots by pid, from the engine's listing: a line a slot, which begins with the pid."""
    lines = [line.split() for line in table.splitlines()]
    return Counter(sorted(int(line[0]) for line in lines if line and line[0].isdecimal()))


def openers(lock_file: Path) -> Counter[int]:
    """Who has the engine's lock file open: each holds a lock in it at the place of its pid.

    Not while this process has it open: closing the file here would drop that lock.
    """
    found: Counter[int] = Counter()
    if sys.platform != "linux":
        return found
    with lock_file.open("rb") as file:
        place = 1
        while place < _PID_MAX:
            wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, place, _PID_MAX - place, 0)
            kind, _, place, _, pid = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, wanted))
            if kind == fcntl.F_UNLCK:
                break
            found[pid] = 0
            place += 1
    return found
