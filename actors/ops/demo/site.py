"""Where a demo is played, and what its caller is told when it cannot be.

Runs in the calling thread, around the director's trio loop.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import trio

from ..errors import StateUnusableError
from .children import DemoError

_ROOM_BYTES: Final = 2**20
"""With less than this left, whatever failed is taken to have failed for want of room."""


def check_sdk() -> None:
    """Refuse to start without the SDK that a demo talks through.

    Raises:
        DemoError: It is not installed; nothing was started.
    """
    if importlib.util.find_spec("anthropic") is None:
        raise DemoError(
            "the demo talks through the anthropic SDK, which is not installed; nothing was "
            "started; install abeyance's extra 'anthropic': pip install 'path/to/clone[anthropic]'"
        )


def play(run: Callable[[], Awaitable[None]], root: Path) -> None:
    """Run a director to its end.

    Raises:
        DemoError: It could not be played to its end; every child is ended.
        StateUnusableError: There is no room for it; every child is ended.
        KeyboardInterrupt: Ctrl-C; every child is ended.
    """
    try:
        trio.run(run)
    except BaseExceptionGroup as group:
        raise _cause(group, root) from None
    except OSError as error:
        raise _cause(BaseExceptionGroup("", [error]), root) from None


def _cause(group: BaseExceptionGroup[BaseException], root: Path) -> BaseException:
    """What a caller is told: the one cause, not the nurseries it came through."""
    for kind in (KeyboardInterrupt, DemoError, OSError):
        found: BaseException | None = group.subgroup(kind)
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        if found is not None and kind is not KeyboardInterrupt and _is_full(found, root):
            # Whichever process met it first: a child only says that something failed.
            return StateUnusableError(
                f"there is no room in {root} ({found}); every child is ended; make room, or name "
                "another directory"
            )
        if found is not None:
            return found
    if group.subgroup(trio.TooSlowError) is not None:
        return DemoError(
            f"a step took too long; every child is ended; what it left is in {root} if it was kept "
            "(--keep)"
        )
    return group


def _is_full(error: BaseException, root: Path) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    disk = os.statvfs(root)
    return disk.f_bavail * disk.f_frsize < _ROOM_BYTES


@contextmanager
def demo_site(state: Path | None, *, keep: bool) -> Iterator[Path]:
    """The directory that everything is kept in: given, or temporary.

    Raises:
        StateUnusableError: It is not empty, or cannot be made; it was left alone.
    """
    if state is not None:
        root = state
        if os.path.lexists(root) and not root.is_dir():
            raise StateUnusableError(
                f"{root} is there and no directory; it was left alone and nothing was started; "
                "name a new one"
            )
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            used = any(root.iterdir())
        except OSError as error:
            raise StateUnusableError(
                f"{root} cannot be used ({error.strerror}); nothing was started; name another"
            ) from None
        if used:
            raise StateUnusableError(
                f"{root} is not empty; it was left alone and nothing was started; name a new one"
            )
        yield root
        return
    root = Path(tempfile.mkdtemp(prefix="abeyance-demo-"))
    try:
        yield root
    finally:
        if not keep:
            shutil.rmtree(root, ignore_errors=True)
