"""Where a host's control socket is, and how it is reached when its path is too long.

A Unix socket's address holds about a hundred bytes; a state directory may be deeper than that. Such
a socket is bound and reached through a link to the directory, in a private directory of its own
that lives only as long as the call.

Invariants:
    I1  The socket file always lies in the state directory, whatever path it was bound through.

Blocking, short; any thread.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from .protocol import ControlError

SOCKET_NAME: Final = "control.sock"
LOCK_NAME: Final = "control.lock"
ADDRESS_BYTES_MAX: Final = 107 if sys.platform == "linux" else 103
"""Bytes of `sun_path` without its final zero."""


class SocketPathError(ControlError):
    """The control socket's path cannot be made short enough; nothing was bound or reached."""

    code = "socket_path"


@contextlib.contextmanager
def socket_address(directory: Path) -> Iterator[str]:
    """Give an address of the control socket of a state directory that the system accepts.

    The address is valid within the block. Blocks for at most a few file operations.

    Raises:
        SocketPathError: No temporary directory is short enough.
        OSError: The temporary directory cannot be written.
    """
    direct = os.fspath(directory / SOCKET_NAME)
    if _fits(direct):
        yield direct
        return
    with tempfile.TemporaryDirectory(prefix="abeyance-", dir=_short_root()) as private:
        link = Path(private) / "d"
        # Unlike Path.resolve, this does not raise for a loop of links: the system says so.
        link.symlink_to(os.path.realpath(directory))
        try:
            yield os.fspath(link / SOCKET_NAME)
        finally:
            link.unlink(missing_ok=True)


def _fits(path: str) -> bool:
    return len(os.fsencode(path)) <= ADDRESS_BYTES_MAX


def _short_root() -> str:
    for root in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # A private one is made in it.
        if _fits(os.path.join(root, "abeyance-12345678", "d", SOCKET_NAME)) and os.access(
            root, os.W_OK
        ):
            return root
    raise SocketPathError(
        f"{tempfile.gettempdir()} is too long a path to reach a socket through; nothing was "
        "changed; set TMPDIR to a short path"
    )
