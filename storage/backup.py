"""Backup: a copy of a store, running or stopped, that is a state directory of its own.

The engine copies what one of its read transactions sees: a state between two commits, whatever is
written meanwhile.

Invariants:
    I1  The original is only read, and no writer waits for it.
    I2  The destination is there whole, read row by row and synced, or not at all: it is made beside
        its place under a temporary name. What a death left there is named by that.

Blocks the thread that calls; in another process than a host's, whose own file may grow meanwhile.
"""

from __future__ import annotations

import os
import secrets
import shutil
import threading
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from .check import check
from .closed import note_clean_close
from .crashpoints import crashpoint
from .directory import DIRECTORY_MODE, STORE, prepare, sync_directory
from .environment import EngineError, typed
from .errors import DiskFullError, ForeignDirectoryError
from .lmdb_store import LmdbStore
from .locks import FILE_MODE
from .precheck import read_meta

if TYPE_CHECKING:
    from collections.abc import Iterator

MAKING: Final = ".backing-up-"
TELL_S: Final = 0.25
"""Between two words about how far a copy is."""


class BackedUp(NamedTuple):
    """What a backup came to."""

    rows: int
    bytes: int
    findings: int
    """How many rows of the copy cannot be read, or refer to what is not there: as in the original.
    `check` names them."""


def backup(
    path: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    clock_ms: Callable[[], int],
    progress: Callable[[int, int], object] = lambda _done, _whole: None,
) -> BackedUp:
    """Copy the store of a state directory into a new one.

    Blocks for a copy of the file without its free pages and a look at all rows of it.
    Durable: on return. A death before leaves no destination.

    Args:
        path: The state directory; a host may run on it.
        destination: A directory that is not there, or is empty; its parent is there. A host opens
            it as a state directory. Nothing says that it is a copy: of two hosts on a store and its
            copy each does what is owed.
        progress: Told how many bytes are copied, and how many the original has in all, from another
            thread, a few times a second.
    Raises:
        ForeignDirectoryError: The destination holds something, or is in the state directory.
        DiskFullError: There is less room than the original takes.
        StorageError: It cannot be opened, read or copied. Nothing is left at the destination.
    """
    state, place = Path(path).absolute(), Path(destination).absolute()
    original = LmdbStore.open(state, clock_ms=clock_ms, create=False, read_only=True)
    try:
        _refuse_place(state, place)
        try:
            return _backup(original, place, clock_ms, progress)
        except (OSError, EngineError) as error:
            raise typed(error, place, "making a backup") from error
    finally:
        original.close()


def _backup(
    original: LmdbStore,
    place: Path,
    clock_ms: Callable[[], int],
    progress: Callable[[int, int], object],
) -> BackedUp:
    data_bytes = (original.directory / "data.mdb").stat().st_size
    free_bytes = shutil.disk_usage(place.parent).free
    if free_bytes < data_bytes:
        raise DiskFullError(
            f"{place.parent} has {free_bytes:,} bytes of room and the store takes up to "
            f"{data_bytes:,}; no backup was made; make room, or name another place",
            path=str(place),
        )
    making = place.with_name(f"{place.name}{MAKING}{secrets.token_hex(8)}")
    store = making / STORE
    try:
        making.mkdir(mode=DIRECTORY_MODE)
        prepare(store)
        shutil.copyfile(original.directory / "store.json", store / "store.json")
        with _told(progress, store / "data.mdb", data_bytes):
            original._environment.copy_to(store)
        for name in ("store.json", "data.mdb"):
            os.chmod(store / name, FILE_MODE)
            _sync(store / name)
        note_clean_close(store, read_meta(store / "data.mdb"))
        found = _look(making, clock_ms)
        for directory in (store, making):
            sync_directory(directory)
        crashpoint("backup.before_rename")
        making.rename(place)
        sync_directory(place.parent)
        return found
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _look(making: Path, clock_ms: Callable[[], int]) -> BackedUp:
    copy = LmdbStore.open(making, clock_ms=clock_ms, create=False, read_only=True, verify=True)
    try:
        report = check(copy)
    finally:
        copy.close()
    with suppress(FileNotFoundError):
        (making / STORE / "lock.mdb").unlink()
    size = (making / STORE / "data.mdb").stat().st_size
    return BackedUp(sum(report.rows.values()), size, len(report.findings))


def _refuse_place(state: Path, place: Path) -> None:
    problem = None
    if place.resolve().is_relative_to(state.resolve()):
        problem = "is in the state directory itself"
    elif os.path.lexists(place) and not place.is_dir():
        problem = "is there, and is no directory"
    elif place.is_dir() and any(place.iterdir()):
        problem = "is not empty"
    elif not place.parent.is_dir():
        problem = "is to be in a directory that is not there"
    if problem is not None:
        raise ForeignDirectoryError(
            f"{place} {problem}; no backup was made and nothing was changed; name a new directory",
            path=str(place),
        )


@contextmanager
def _told(progress: Callable[[int, int], object], copy: Path, whole: int) -> Iterator[None]:
    over = threading.Event()

    def tell() -> None:
        while not over.wait(TELL_S):
            with suppress(FileNotFoundError):
                progress(min(copy.stat().st_size, whole), whole)

    teller = threading.Thread(target=tell, name="abeyance-backup")
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
