"""File locks that the kernel drops at a process's death, taken with a deadline.

`flock` belongs to the open file description: two descriptors of one file exclude one another also
within a process, which `fcntl` locks do not.

Runs in: any thread; one lock object is used by one thread at a time.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from .errors import LockTimeoutError, NoFileLocksError
from .forks import dismiss, remember

FILE_MODE: Final = 0o600
POLL_S_FIRST: Final = 0.0002
POLL_S_MAX: Final = 0.02
NETWORK_FILESYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "fuse.sshfs"}
)
_PID_BYTES: Final = 20


class FileLock:
    """One descriptor of a lock file. Created, empty, where there is none.

    Args:
        path: The file; or a directory, which is then opened for reading and not written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_directory = path.is_dir()
        self._noted = False
        flags = os.O_RDONLY if self._is_directory else os.O_RDWR | os.O_CREAT
        self._fd: int | None = os.open(path, flags | os.O_CLOEXEC, FILE_MODE)
        remember(self)

    def acquire(
        self,
        timeout_s: float,
        *,
        shared: bool = False,
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take the lock; blocks the thread for up to `timeout_s` seconds.

        Raises:
            LockTimeoutError: Somebody else kept it; `holder` is the pid it noted, if any.
        """
        if self.acquire_nowait(shared=shared):
            return
        deadline, poll_s = now() + timeout_s, POLL_S_FIRST
        while True:
            left = deadline - now()
            if left <= 0:
                self._give_up(timeout_s)
            pause(min(poll_s, left))
            if self.acquire_nowait(shared=shared):
                return
            poll_s = min(poll_s * 2, POLL_S_MAX)

    def acquire_nowait(self, *, shared: bool = False) -> bool:
        """Take the lock if it is free now. The first time, an exclusive holder notes its pid."""
        assert self._fd is not None
        try:
            fcntl.flock(self._fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if not shared and not self._is_directory and not self._noted:
            # For a person who asks who holds the lock, where the kernel does not say; once, since
            # every system call on a busy writer may cost it the interpreter. A full disk must not
            # stop us.
            self._noted = True
            with suppress(OSError):
                os.pwrite(self._fd, b"%-20d" % os.getpid(), 0)
        return True

    def release(self) -> None:
        assert self._fd is not None
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give the lock up, if held, and the descriptor. Idempotent."""
        fd, self._fd = self._fd, None
        dismiss(self)
        if fd is not None:
            os.close(fd)

    def forget(self) -> None:
        """In a forked child: close, never unlock; the parent holds what it held."""
        self.close()

    def _holder(self) -> int | None:
        assert self._fd is not None
        holder = _kernel_says(os.fstat(self._fd))
        if holder is None and not self._is_directory:
            noted = os.pread(self._fd, _PID_BYTES, 0).strip()
            holder = int(noted) if noted.isdigit() else None
        return holder

    def _give_up(self, timeout_s: float) -> None:
        holder = self._holder()
        raise LockTimeoutError(
            f"{self.path} was locked for {timeout_s:g} s by "
            f"{f'process {holder}' if holder else 'another process'}; nothing was written; "
            "see whether that process is stopped, and try again",
            path=str(self.path),
            holder=holder,
            timeout_s=timeout_s,
        )


def _kernel_says(found: os.stat_result, locks: Path = Path("/proc/locks")) -> int | None:
    """The pid that holds a flock, as Linux lists it; None where it is not to be had."""
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        lines = locks.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split()
        if "FLOCK" in fields and device in fields and "->" not in fields:
            pid = int(fields[4])
            return pid if pid > 0 else None
    return None


def is_locked(path: Path) -> bool:
    """Whether somebody holds the file exclusively. A file that is not there is not locked.

    The probe is shared: exclusive probes of several processes would see one another and call the
    dead alive.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(fd)


def refuse_network_filesystem(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> None:
    """Refuse file systems on which locks and maps are known not to hold. Unknown ones pass.

    Raises:
        NoFileLocksError: `filesystem` is its type.
    """
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return  # Not Linux: only the probe by a second descriptor can tell.
    best, kind = "", ""
    where = str(path.resolve())
    for line in lines:
        fields = line.split(" ")
        point = fields[4].encode().decode("unicode_escape", "replace")
        inside = where == point or where.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[fields.index("-") + 1]
    if kind in NETWORK_FILESYSTEMS:
        raise NoFileLocksError(
            f"{path} is on a {kind} file system, where locks between machines are not sure; "
            "nothing was changed; keep the state on a local disk",
            path=str(path),
            filesystem=kind,
        )
