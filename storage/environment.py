"""The LMDB environment: opened with asserted flags, grown, reopened, closed. With the writer, the
one door to lmdb.

Invariants:
    I1  Commits are synced: sync and metasync on, writemap off, engine 0.9. Checked after each open.
    I2  One environment a data file in a process, by whatever path.
    I3  Resizing, reopening and closing happen while no transaction of this environment is open.
    I4  Nothing is written while the disk may have a meta page of a commit that failed.

Runs in: everything but write transactions in the opening thread; those in the writer's. `_between`
keeps a resize and a write transaction apart.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeAlias

import lmdb
import lmdb.verify

from . import roots
from .errors import (
    AlreadyOpenError,
    DamagedStoreError,
    DiskFullError,
    ForkedStoreError,
    ReadOnlyStoreError,
    StorageError,
    StoreClosedError,
    StoreIOError,
    StoreLostError,
)
from .forks import dismiss, remember
from .locks import FILE_MODE
from .readers import READERS_MAX, openers, slots, slots_full
from .tables import TABLES

# What the rest of the room may name of the engine.
EngineError = lmdb.Error
Transaction: TypeAlias = "lmdb.Transaction[bytes]"
Database: TypeAlias = lmdb._Database

TABLES_MAX: Final = 128
ROOM_BYTES: Final = 2**20
"""With less than this left, an I/O error is taken for a full disk."""
CLEAR_READERS_EVERY: Final = 64
"""Write transactions. A slot of a process that was killed while it read keeps every page that was
freed since: the file grows until the slot is cleared, and nobody may open the store anew."""
LOCK_FILE_BYTES: Final = 8192
"""What the engine's lock file takes for `READERS_MAX`. It is mapped, so its room is taken before
the engine opens it: a hole on a full disk would end the process with SIGBUS."""

_DAMAGE: Final = (
    lmdb.InvalidError,
    lmdb.CorruptedError,
    lmdb.VersionMismatchError,
    lmdb.PageNotFoundError,
    lmdb.PageFullError,
    lmdb.CursorFullError,
    lmdb.IncompatibleError,
)
"""What the engine raises only where its pages contradict each other."""

_open_files: dict[tuple[int, int], str] = {}
_open_files_lock = threading.Lock()
verify_file: Final[Callable[[str], list[str]]] = lmdb.verify.verify


def typed(error: OSError | lmdb.Error, path: Path, doing: str) -> StorageError:
    """The error of ours that says what the operating system or the engine refused."""
    code = error.errno if isinstance(error, OSError) else getattr(error, "code", None)
    # The engine reports a write that was cut short by a full disk as an I/O error.
    full = code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if full or (code == errno.EIO and not _has_room(path)):
        return DiskFullError(
            f"no room for {doing} in {path}; earlier data stands; make room and try again",
            path=str(path),
        )
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ReadOnlyStoreError(
            f"{path} can't be written ({error}){_whose(error, path)}; nothing was changed; see its "
            "owner and mode",
            path=str(path),
        )
    if isinstance(error, _DAMAGE):
        return DamagedStoreError(
            f"{path} is refused by the engine ({error}); it was not changed; restore a backup",
            path=str(path),
            findings=(str(error),),
        )
    return StoreIOError(
        f"{doing} failed in {path} ({error}); what was stored before stands; see the cause",
        path=str(path),
        errno=code,
    )


def is_full(error: Exception) -> bool:
    """Whether the engine wants a larger map."""
    return isinstance(error, lmdb.MapFullError)


def _whose(error: Exception, path: Path) -> str:
    """That a file is another user's, as in a store that was copied with its owners."""
    named = getattr(error, "filename", None)
    for each in (path if named is None else named, path):
        with contextlib.suppress(OSError, TypeError):
            owner, mine = os.stat(each).st_uid, os.geteuid()
            if owner != mine:
                return f": it belongs to user {owner} and this process is user {mine}"
    return ""


class Environment:
    """One open data file.

    Args:
        directory: Where data.mdb and lock.mdb are.
        map_bytes: The map to begin with; sparse.
        map_bytes_max: Growth stops here.
    Raises:
        AlreadyOpenError: This process has it open.
        DamagedStoreError, DiskFullError, ReadOnlyStoreError, StoreIOError: It can't be opened.
    """

    def __init__(
        self,
        directory: Path,
        *,
        map_bytes: int,
        map_bytes_max: int,
        read_only: bool = False,
    ) -> None:
        self.directory = directory
        self._data = directory / "data.mdb"
        self.map_bytes_max = map_bytes_max
        self.read_only = read_only
        self._map_bytes = map_bytes
        self._env: lmdb.Environment | None = None
        self._tables: dict[str, Database] = {}
        self._identity: tuple[int, int] | None = None
        self._forked: list[lmdb.Environment] | None = None
        self._between = threading.Lock()
        self._writer: int | None = None
        self._writes = 0
        self._unsettled = False
        self._open()
        remember(self)

    @property
    def tables(self) -> dict[str, Database]:
        return self._tables

    @property
    def map_bytes(self) -> int:
        return self._map_bytes

    @property
    def can_grow(self) -> bool:
        return self._map_bytes < self.map_bytes_max

    def claim_writing(self) -> None:
        """Make the calling thread the only one that may write; its predecessor is dead."""
        self._writer = threading.get_ident()

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        """A write transaction in the writer's thread; aborted unless it was committed."""
        if self._writer != threading.get_ident():
            # The engine accepts it silently, and the next writer then waits for ever.
            raise AssertionError("a write transaction outside the writer's thread")
        with self._between:
            handle = self._handle()
            self._writes += 1
            if self._writes % CLEAR_READERS_EVERY == 0:
                handle.reader_check()
            transaction = handle.begin(write=True)
            try:
                yield transaction
            finally:
                transaction.abort()

    def commit(self, transaction: Transaction) -> None:
        """Commit, synced. What fails in the engine is taken back, as far as the disk lets us."""
        before = transaction.id() - 1
        try:
            transaction.commit()
        except lmdb.MapFullError:
            # Nothing was written.
            raise
        except lmdb.Error:
            # The engine tells others of a state last: nobody has read this one.
            with suppress(StorageError):
                self._settle(before)
            raise

    def settle(self) -> None:
        """Have the disk begin from the state that is read here. Under the write lock.

        Raises:
            StorageError: What the disk begins from is not known; nothing may be written.
        """
        # Of a write transaction: its number follows that of the state it begins from, and it takes
        # no slot of the reader table.
        with self._between, self._handle().begin(write=True) as transaction:
            txn = transaction.id() - 1
            transaction.abort()
        self._settle(txn)

    def get(self, table: str, key: bytes) -> bytes | None:
        """Read one value, in a transaction of its own."""
        database = self._table(table)
        if database is None:
            return None
        with self._begin_read() as transaction:
            return transaction.get(key, db=database)

    def count(self, table: str) -> int:
        """How many rows a table holds, as the engine keeps it."""
        database = self._table(table)
        if database is None:
            return 0
        with self._begin_read() as transaction:
            return int(transaction.stat(db=database)["entries"])

    def page(
        self,
        table: str,
        prefix: bytes,
        *,
        after: bytes | None,
        reverse: bool,
        rows_max: int,
        bytes_max: int,
    ) -> tuple[list[tuple[bytes, bytes]], bool]:
        """Copy rows of one state of the store; whether there may be more behind them."""
        database = self._table(table)
        if database is None:
            return [], False
        rows: list[tuple[bytes, bytes]] = []
        size = 0
        with self._begin_read() as transaction, transaction.cursor(db=database) as cursor:
            moved = _seek(cursor, prefix, after, reverse)
            step = cursor.prev if reverse else cursor.next
            while moved:
                key, value = cursor.item()
                if not key.startswith(prefix):
                    return rows, False
                rows.append((key, value))
                size += len(value)
                if len(rows) >= rows_max or size >= bytes_max:
                    return rows, True
                moved = step()
        return rows, False

    def grow(self) -> None:
        """Double the map, up to its limit."""
        self._resize(min(self._map_bytes * 2, self.map_bytes_max))

    def copy_to(self, directory: Path) -> None:
        """Write every row into a new data file there, without free pages. Not synced."""
        handle = self._handle()
        handle.reader_check()
        try:
            handle.copy(str(directory), compact=True)
        except lmdb.ReadersFullError as error:
            raise slots_full(self.directory, slots(handle.readers())) from error

    def adopt_size(self) -> None:
        """Take over the map size that another process grew the file to."""
        self._resize(0)

    def reopen(self) -> None:
        """Close and open again: the cure for an environment that a failed commit left unusable."""
        with self._between:
            self._close()
            self._open()

    @property
    def is_forked(self) -> bool:
        """Whether this is a forked child's copy."""
        return self._forked is not None

    def check_usable(self) -> None:
        """See that this environment may be used here.

        Raises:
            StoreClosedError, ForkedStoreError: It may not.
        """
        self._handle()

    def check_reachable(self) -> None:
        """See that the open file is still the one at its path, and begins from what is read here.

        Raises:
            StoreLostError: It was removed or replaced; writes would go nowhere.
            StorageError: What the disk begins from is not known; nothing may be written.
        """
        try:
            found = os.stat(self._data)
        except OSError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != self._identity:
            raise StoreLostError(
                f"{self.directory} was removed or replaced under the open store; nothing more is "
                "written; put it back or open another",
                path=str(self.directory),
            )
        if self._unsettled or (found.st_nlink > 1 and roots.is_marked(self._data)):
            self.settle()

    def close(self) -> None:
        """Close. Idempotent. No transaction may be open."""
        dismiss(self)
        with self._between:
            self._close()

    def forget(self) -> None:
        """In a forked child: keep the handle alive unused; closing it would harm the parent."""
        if self._env is not None:
            self._forked, self._env = [self._env], None
        self._tables = {}
        # The lock may have been held by a thread that this process does not have.
        self._between = threading.Lock()

    def _handle(self) -> lmdb.Environment:
        if self._env is None:
            if self._forked is not None:
                raise ForkedStoreError(
                    f"{self.directory} was opened before a fork and can't be used in the "
                    "child; the parent's store is untouched; open stores after forking",
                    path=str(self.directory),
                )
            raise StoreClosedError("the store is closed; nothing was done; open it again")
        return self._env

    def _table(self, name: str) -> Database | None:
        """None: opened to look at a store of an older version, which lacked it."""
        self._handle()
        return self._tables.get(name)

    def _begin_read(self) -> Transaction:
        handle = self._handle()
        try:
            return handle.begin()
        except lmdb.MapResizedError:
            # Another process grew the file. Waits for our own write transaction, if one is open.
            self.adopt_size()
        except lmdb.ReadersFullError:
            # Processes that were killed leave their slots behind.
            handle.reader_check()
        try:
            return handle.begin()
        except lmdb.ReadersFullError as error:
            raise slots_full(self.directory, slots(handle.readers())) from error

    def _settle(self, txn: int) -> None:
        self._unsettled = True
        try:
            roots.settle(self._data, txn)
            roots.unmark(self._data)
            self._unsettled = False
        except OSError as error:
            # Where a file can have one name only, no other process knows.
            with suppress(OSError):
                roots.mark(self._data)
            raise typed(error, self.directory, "settling the meta pages") from error

    def _resize(self, map_bytes: int) -> None:
        with self._between:
            handle = self._handle()
            handle.set_mapsize(map_bytes)
            self._map_bytes = handle.info()["map_size"]

    def _open(self) -> None:
        data = self._data
        with _open_files_lock:
            identity = _identity_of(data)
            if identity in _open_files:
                raise AlreadyOpenError(
                    f"this process has {data} open already, as {_open_files[identity]}; that one "
                    "is untouched; use it, or close it first",
                    path=str(self.directory),
                )
            try:
                if not self.read_only:
                    _take_lock_file_room(self.directory / "lock.mdb")
                self._env = self._open_engine()
            except lmdb.ReadersFullError as error:
                # The engine reads as it opens, before it lets anybody clear what the dead hold.
                raise slots_full(self.directory, openers(self.directory / "lock.mdb")) from error
            except (OSError, lmdb.Error) as error:
                raise typed(error, self.directory, "opening the store") from error
            self._identity = _identity_of(data)
            assert self._identity is not None
            _open_files[self._identity] = str(self.directory)
        try:
            self._check_flags()
            self._open_tables()
            self._map_bytes = self._env.info()["map_size"]
        except lmdb.ReadersFullError as error:
            full = slots_full(self.directory, slots(self._env.readers()))
            self._close()
            raise full from error
        except lmdb.Error as error:
            self._close()
            raise typed(error, self.directory, "opening the tables") from error
        except BaseException:
            self._close()
            raise

    def _open_engine(self) -> lmdb.Environment:
        return lmdb.open(
            str(self.directory),
            map_size=self._map_bytes,
            readonly=self.read_only,
            sync=True,
            metasync=True,
            writemap=False,
            map_async=False,
            mode=FILE_MODE,
            create=False,
            max_readers=READERS_MAX,
            max_dbs=TABLES_MAX,
            lib_version=0,
        )

    def _check_flags(self) -> None:
        handle = self._handle()
        flags = handle.flags()
        synced = flags["sync"] and flags["metasync"]
        if not synced or flags["writemap"] or flags["map_async"] or handle.lib_version()[0] != 0:
            raise AssertionError(f"the engine did not take its flags: {flags}")

    def _open_tables(self) -> None:
        handle = self._handle()
        handle.reader_check()
        if not self.read_only:
            # One transaction for all; it writes only where an older version lacked a table.
            with handle.begin(write=True) as transaction:
                for name in TABLES:
                    self._tables[name] = handle.open_db(name.encode(), transaction)
            return
        for name in TABLES:
            # A table that an older version did not have reads as empty.
            with suppress(lmdb.NotFoundError):
                self._tables[name] = handle.open_db(name.encode(), create=False)

    def _close(self) -> None:
        handle, self._env = self._env, None
        self._tables = {}
        if handle is not None:
            handle.close()
        with _open_files_lock:
            if self._identity is not None:
                _open_files.pop(self._identity, None)


def _has_room(directory: Path) -> bool:
    """Whether the data file could grow by a little, for all one can tell."""
    try:
        disk = os.statvfs(directory)
        size = (directory / "data.mdb").stat().st_size
    except OSError:
        return True
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    within = limit == resource.RLIM_INFINITY or size + ROOM_BYTES <= limit
    return within and disk.f_bavail * disk.f_frsize >= ROOM_BYTES


def _identity_of(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _take_lock_file_room(path: Path) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        if os.fstat(fd).st_size < LOCK_FILE_BYTES and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, LOCK_FILE_BYTES)
    finally:
        os.close(fd)


def _seek(cursor: lmdb.Cursor[bytes], prefix: bytes, after: bytes | None, reverse: bool) -> bool:
    """Place the cursor on the first row to read; False where there is none."""
    if not reverse:
        if after is None or after < prefix:
            return cursor.set_range(prefix)
        moved = cursor.set_range(after)
        return cursor.next() if moved and cursor.key() == after else moved
    # The first key past the wanted ones, then one back. No encoded part begins with ff, so that a
    # prefix and an ff is past all of its keys.
    bound = prefix + b"\xff" if after is None or after > prefix + b"\xff" else after
    if cursor.set_range(bound):
        return cursor.prev()
    return cursor.last()
