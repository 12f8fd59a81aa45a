"""Compaction: a copy of a stopped store without its free pages, put in the place of the file.

A file of the engine never shrinks by itself: what was deleted makes room for what comes.

Invariants:
    I1  Nobody has the store open meanwhile: whoever opens it waits for the write lock, and whoever
        has it open already is found by its lock, and refused for.
    I2  At every instant `data.mdb` is a whole file with every row: the old one until a rename puts
        the copy there, which was compared with it row by row and synced.
    I3  Until then nothing of the store is changed; a copy that a death left is swept by the next.

Blocks the thread that calls.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

from .closed import note_clean_close
from .crashpoints import crashpoint
from .directory import (
    DIRECTORY_MODE,
    STORE,
    refuse_missing,
    sync_directory,
)
from .environment import EngineError, Environment, typed
from .errors import DamagedStoreError
from .exclusive import alone, in_use
from .lmdb_store import LOCK_TIMEOUT_S, MAP_BYTES, MAP_BYTES_MAX, LmdbStore
from .locks import FILE_MODE
from .precheck import read_meta
from .roots import unmark
from .tables import TABLES

COPYING: Final = "store.compacting-"
OLD: Final = "data.mdb.before"
_PAGE_ROWS: Final = 1_000
_PAGE_BYTES: Final = 16 * 2**20


class Compacted(NamedTuple):
    """What a compaction came to."""

    rows: int
    bytes_before: int
    bytes_after: int


def compact(
    path: str | os.PathLike[str],
    *,
    clock_ms: Callable[[], int],
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> Compacted:
    """Rewrite the file of a stopped store without its free pages.

    Blocks for a look at the whole file, its copy and a comparison of all rows. It takes as much
    room as the rows do, beside the file.
    Durable: on return. A death leaves the old file or the new one, each whole.

    Raises:
        StoreInUseError: A process has the store open; nothing was changed.
        AlreadyOpenError: This process has.
        LockTimeoutError: Another process is opening or compacting it for too long.
        StorageError: It cannot be opened, or copied; it stands as it was.
    """
    state = Path(path).absolute()
    store = state / STORE
    if not store.is_dir():
        refuse_missing(state)
    try:
        with alone(store, "compacted", lock_timeout_s):
            return _compact(state, store, clock_ms)
    except (OSError, EngineError) as error:
        raise typed(error, state, "compacting the store") from error


def _compact(state: Path, store: Path, clock_ms: Callable[[], int]) -> Compacted:
    for left in state.glob(f"{COPYING}*"):
        shutil.rmtree(left)
    making = state / f"{COPYING}{secrets.token_hex(8)}"
    making.mkdir(mode=DIRECTORY_MODE)
    data, copy, old = store / "data.mdb", making / "data.mdb", store / OLD
    try:
        before = data.stat().st_size
        # Looked at whole first: a damaged page must not be read by the engine.
        looked = LmdbStore.open(state, clock_ms=clock_ms, create=False, read_only=True, verify=True)
        try:
            looked._environment.copy_to(making)
            rows = _compare(looked._environment, making)
        finally:
            looked.close()
        os.chmod(copy, FILE_MODE)
        for directory in (copy, making):
            sync_directory(directory)
        _refuse_readers(store)
        with suppress(FileNotFoundError):
            old.unlink()
        os.link(data, old)
        crashpoint("compact.before_rename")
        # The engine's reader table goes with the file that it is of.
        with suppress(FileNotFoundError):
            (store / "lock.mdb").unlink()
        copy.rename(data)
        unmark(data)
        sync_directory(store)
        crashpoint("compact.after_rename")
        note_clean_close(store, read_meta(data))
        old.unlink()
        sync_directory(store)
        return Compacted(rows, before, data.stat().st_size)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _compare(original: Environment, making: Path) -> int:
    """See that the copy has every row of every table as it is, and no other; how many.

    Raises:
        DamagedStoreError: It has not; the store was not changed.
    """
    copied = Environment(making, map_bytes=MAP_BYTES, map_bytes_max=MAP_BYTES_MAX, read_only=True)
    rows = 0
    try:
        for table in TABLES:
            for one, other in zip_longest(_rows(original, table), _rows(copied, table)):
                if one != other:
                    raise DamagedStoreError(
                        f"the copy of {original.directory} differs from it in table {table}; the "
                        "store was not changed; check it, and the disk",
                        path=str(original.directory),
                        findings=(f"table {table}",),
                    )
                rows += 1
    finally:
        copied.close()
    return rows


def _rows(environment: Environment, table: str) -> Iterator[tuple[bytes, bytes]]:
    after: bytes | None = None
    more = True
    while more:
        rows, more = environment.page(
            table, b"", after=after, reverse=False, rows_max=_PAGE_ROWS, bytes_max=_PAGE_BYTES
        )
        yield from rows
        after = rows[-1][0] if rows else None


def _refuse_readers(store: Path) -> None:
    """Whoever looks at the store holds the engine's lock file; this process does not any more."""
    try:
        descriptor = os.open(store / "lock.mdb", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise in_use(store, "looks at it", "compacted") from None
    finally:
        os.close(descriptor)
