"""Where a state directory's control sockets are, and how one is reached when its path is too long.

Each opening that serves operators has a socket of its own, `control/PID-NONCE.sock`. The nonce is
the opening's, so that its proof of life in `store/owners/` says whether its process lives.

A Unix socket's address holds about a hundred bytes; a state directory may be deeper than that. Such
a socket is bound and reached through a link to the directory, in a private directory of its own
that lives only as long as the call.

Invariants:
    I1  A socket file always lies in the state directory, whatever path it was bound through.
    I2  Whoever is named as a host lives. A socket whose owner is dead is nobody's.

Blocking, short; any thread.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from abeyance.storage.directory import STORE
from abeyance.storage.locks import is_locked

from .errors import ControlError

CONTROL_NAME: Final = "control"
"""The folder of the sockets, in the state directory."""
_SOCKET_NAME: Final = re.compile(r"([0-9]{1,19})-([0-9a-f]{1,64})\.sock")
ADDRESS_BYTES_MAX: Final = 107 if sys.platform == "linux" else 103
"""Bytes of `sun_path` without its final zero."""


class SocketPathError(ControlError):
    """The control socket's path cannot be made short enough; nothing was bound or reached."""

    code = "socket_path"


class HostSocket(NamedTuple):
    """One opening's control socket, by the process and the opening's nonce."""

    pid: int
    nonce: str

    def path(self, directory: Path) -> Path:
        """Where it is in a state directory."""
        return directory / CONTROL_NAME / f"{self.pid}-{self.nonce}.sock"

    def is_alive(self, directory: Path) -> bool:
        """Whether its opening still has its process, by the lock that proves it."""
        try:
            return is_locked(directory / STORE / "owners" / self.nonce)
        except PermissionError:
            return True  # Another user's: what becomes of a connection to it says more.


def all_sockets(directory: Path) -> list[HostSocket]:
    """The sockets of a state directory, also those that the dead left; other files are skipped.

    Raises:
        OSError: The folder is there and cannot be read.
    """
    try:
        names = os.listdir(directory / CONTROL_NAME)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = (_SOCKET_NAME.fullmatch(name) for name in names)
    return sorted(HostSocket(int(match[1]), match[2]) for match in found if match)


def host_sockets(directory: Path) -> list[HostSocket]:
    """The sockets of the live hosts of a state directory.

    Raises:
        OSError: The folder is there and cannot be read.
    """
    return [at for at in all_sockets(directory) if at.is_alive(directory)]


@contextlib.contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """Give an address of the socket at a path that the system accepts.

    The address is valid within the block. Blocks for at most a few file operations.

    Raises:
        SocketPathError: No temporary directory is short enough.
        OSError: The temporary directory cannot be written.
    """
    direct = os.fspath(path)
    if _fits(direct):
        yield direct
        return
    with tempfile.TemporaryDirectory(prefix="abeyance-", dir=_short_root(path.name)) as private:
        link = Path(private) / "d"
        # Unlike Path.resolve, this does not raise for a loop of links: the system says so.
        link.symlink_to(os.path.realpath(path.parent))
        try:
            yield os.fspath(link / path.name)
        finally:
            link.unlink(missing_ok=True)


def _fits(path: str) -> bool:
    return len(os.fsencode(path)) <= ADDRESS_BYTES_MAX


def _short_root(name: str) -> str:
    for root in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # A private one is made in it.
        if _fits(os.path.join(root, "abeyance-12345678", "d", name)) and os.access(root, os.W_OK):
            return root
    raise SocketPathError(
        f"{tempfile.gettempdir()} is too long a path to reach a socket through; nothing was "
        "changed; set TMPDIR to a short path"
    )
