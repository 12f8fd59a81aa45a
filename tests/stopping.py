"""Stopping a process as SIGSTOP does, at a moment that a test chooses."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from abeyance.storage.locks import FileLock

COMMIT_S_MAX = 60.0


def stop_between_commits(pid: int, state: Path) -> None:
    """Stop a child process that has the store at `state` open, and is inside no commit of it.

    One that is stopped inside a commit keeps the write lock, and with it everybody from writing:
    that is another case, which a signal at any instant would meet now and then. Holding the lock
    ourselves while the signal takes effect, we know that the child does not.
    """
    lock = FileLock(state / "store" / "write.lock")
    try:
        lock.acquire(COMMIT_S_MAX)
        os.kill(pid, signal.SIGSTOP)
        # The signal takes effect when the kernel gets to it, not when it is sent.
        _, status = os.waitpid(pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"process {pid} ended before it was stopped"
    finally:
        lock.close()
