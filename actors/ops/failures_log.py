"""The failures log: a line a failure that an operator should know of, in the state directory.

Each line of `failures.jsonl` is one JSON object in ASCII, so that no text can forge a line. The
file is turned over by size; the newest earlier ones are `failures.jsonl.1` and so on.

Invariants:
    I1  A file is never wider than 0600, and never longer than `FILE_BYTES_MAX` by more than a line.
    I2  Of several processes one writes or turns over at a time, under a lock of the file itself.
    I3  A line begins on a line of its own, also behind one that a death cut off.
    I4  Whoever is cancelled while its line is being written is told that it stands, once it does:
        else a stop at that moment would have the next opening write it again.

Lines are written by a thread: the loop waits for no disk.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any, Final

import trio

from abeyance.actors.domain.alert_book import Alert, AlertNotDeliveredError

FILE_NAME: Final = "failures.jsonl"
FILE_MODE: Final = 0o600
FILE_BYTES_MAX: Final = 1_048_576
FILES_MAX: Final = 4
"""The current one and the earlier ones."""
WRITE_S_MAX: Final = 5.0
"""How long a line may take, also to whoever is cancelled meanwhile."""
ATTEMPTS_MAX: Final = 20
"""Of opening a file that another process turns over meanwhile."""


class FailuresLog:
    """Writes alerts as lines.

    Args:
        directory: The state directory; it exists.
        bytes_max: At which length a file is turned over.
    """

    name = "failures-log"

    def __init__(self, directory: Path, *, bytes_max: int = FILE_BYTES_MAX) -> None:
        self.path = directory / FILE_NAME
        self._bytes_max = bytes_max
        self._limiter = trio.CapacityLimiter(1)

    async def deliver(self, alert: Alert) -> None:
        """Append a line. A checkpoint. Cancelled before it begins: nothing is written.

        Cancelled later it ends as if it had not been, within `WRITE_S_MAX`.

        Raises:
            AlertNotDeliveredError: The file takes no line, or not in time: then the line may still
                be written.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        line = line_of(alert.as_json())
        why, cause = f"not within {WRITE_S_MAX:g} s", None
        with trio.move_on_after(WRITE_S_MAX, shield=True):
            try:
                await trio.to_thread.run_sync(
                    self.append, line, abandon_on_cancel=True, limiter=self._limiter
                )
                return
            except OSError as error:
                why, cause = error.strerror or type(error).__name__, error
        raise AlertNotDeliveredError(
            f"{FILE_NAME} takes no line ({why}); the alert stands in the store; mend the state "
            "directory"
        ) from cause

    def append(self, line: bytes) -> None:
        """Write one line, turning the file over first where it would grow too long. Blocks.

        Raises:
            OSError: The file cannot be written.
        """
        fd = self._locked()
        try:
            size = os.fstat(fd).st_size
            if size and size + len(line) > self._bytes_max:
                self._turn_over()
                # The old file stays locked: another process that waits for it finds it moved.
                new = self._opened()
                os.close(fd)
                fd, size = new, 0
            if size and os.pread(fd, 1, size - 1) != b"\n":
                line = b"\n" + line
            os.write(fd, line)
        finally:
            os.close(fd)

    def _opened(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self.path, flags, FILE_MODE)
        if os.fstat(fd).st_mode & 0o077:
            os.fchmod(fd, FILE_MODE)
        return fd

    def _locked(self) -> int:
        """The current file, locked."""
        for _ in range(ATTEMPTS_MAX):
            fd = self._opened()
            fcntl.flock(fd, fcntl.LOCK_EX)
            try:
                there = os.stat(self.path, follow_symlinks=False)
            except FileNotFoundError:
                there = None
            if there is not None and os.path.samestat(there, os.fstat(fd)):
                return fd
            os.close(fd)
        raise OSError(None, "it is turned over again and again")

    def _turn_over(self) -> None:
        earlier = [self.path, *(Path(f"{self.path}.{n}") for n in range(1, FILES_MAX))]
        for newer, older in zip(earlier[-2::-1], earlier[:0:-1], strict=True):
            if newer.exists():
                newer.replace(older)


def line_of(fields: dict[str, Any]) -> bytes:
    """One line of JSON in ASCII, with its newline."""
    return json.dumps(fields, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
