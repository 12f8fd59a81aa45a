"""The embedded store: LMDB behind the `Store` port.

Invariants:
    I1  What is opened was looked at first; what is refused was not changed.
    I2  A process that has the store open for writing holds `open.lock` shared, so that the one that
        is alone can tell.

Runs in: the thread that opened it; `done` is called in the writer's thread.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from . import codec
from .batch import prepare
from .closed import note_clean_close, was_closed_cleanly
from .crashpoints import crashpoint
from .directory import (
    Identity,
    find_or_create,
    read_identity,
    refuse_missing,
)
from .environment import EngineError, Environment, typed, verify_file
from .errors import (
    DamagedStoreError,
    InvalidRequestError,
    ReadOnlyStoreError,
    RevisionPrunedError,
    StorageError,
    StoreClosedError,
    UnreadableRecordError,
)
from .keys import decode_key, encode_key, encode_prefix
from .locks import FileLock, is_locked, refuse_network_filesystem
from .plain import plain_of
from .precheck import precheck, read_meta
from .store import Done, Key, Limits, NeedsService, Outcome, Request, Row
from .tables import TABLES, Table
from .tables.ownership import Process, StoreMeta
from .transaction import CHANGES, BatchTransaction
from .writer import Settings, Writer

MAP_BYTES: Final = 4 * 2**30
MAP_BYTES_MAX: Final = 2**40
LIMITS: Final = Limits(ops_max=20_000, payload_bytes_max=64 * 2**20)
LOCK_TIMEOUT_S: Final = 30.0
CHANGES_KEPT: Final = 10_000
LOOKS_MAX: Final = 5
"""A file that is written while it is looked at is looked at so often."""
SCAN_ROWS_MAX: Final = 4_096
ONE_STATE_ROWS: Final = 1_000
"""A scan with a limit up to here is of one state, however large its rows are."""
SCAN_BYTES_MAX: Final = 16 * 2**20
_STORE_KEY: Final = encode_key((str,), ("store",))


class LmdbStore:
    """A `Store` in a directory. Made by `open`."""

    def __init__(
        self,
        environment: Environment,
        writer: Writer | None,
        locks: tuple[FileLock, ...],
        nonce: str,
        directory: Path,
    ) -> None:
        self._environment = environment
        self._writer = writer
        self._locks = locks
        self._nonce = nonce
        self._closed = False
        self._has_failed = False
        self.directory = directory
        """Where the store's files are: `store` inside the state directory."""

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        clock_ms: Callable[[], int],
        create: bool = True,
        read_only: bool = False,
        map_bytes: int = MAP_BYTES,
        map_bytes_max: int = MAP_BYTES_MAX,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        changes_kept: int = CHANGES_KEPT,
        pid: int | None = None,
        host: str | None = None,
        verify: bool = False,
    ) -> LmdbStore:
        """Open the store in a state directory.

        Blocks: for a full look at the file after an unclean end or with `verify` (about 10 ms a MiB
        up to 64 MiB, bounded beyond), and for the write lock.
        Durable: on return, the store exists and this opening is recorded.

        Args:
            path: The state directory; made, with mode 0700, where there is none.
            clock_ms: Epoch milliseconds, for what is recorded.
            read_only: Look at a stopped or running store; nothing is written or owned, and every
                `submit` is refused.
            map_bytes: Address space to begin with. Sparse: no disk is taken for it.
            map_bytes_max: Where growth stops.
            lock_timeout_s: Seconds to wait for another process's write batch.
            changes_kept: Revisions whose changes are kept; at least 1.
            verify: Take the full look after a clean end, too; not while others have it open.
        Raises:
            MissingStoreError, ForeignDirectoryError, NewerFormatError, StoreEmptiedError,
            DamagedStoreError, ReadOnlyStoreError, DiskFullError, StoreIOError, AlreadyOpenError,
            NoFileLocksError, LockTimeoutError: It was not opened; nothing in it was changed.
        """
        # Absolute, so that a later chdir moves nothing.
        state = Path(path).absolute()
        opening = _Opening(
            clock_ms,
            map_bytes,
            map_bytes_max,
            Settings(lock_timeout_s, max(1, changes_kept)),
            verify,
        )
        process = Process(
            pid=os.getpid() if pid is None else pid,
            host=(socket.gethostname() if host is None else host)[:255],
            started_ms=clock_ms(),
            last_batch=0,
        )
        try:
            return opening.look(state) if read_only else opening.run(state, create, process)
        except (OSError, EngineError) as error:
            raise typed(error, state, "opening the store") from error

    @property
    def limits(self) -> Limits:
        """See `Store.limits`."""
        return LIMITS

    @property
    def nonce(self) -> str:
        """See `Store.nonce`. Empty for a store that was opened to look."""
        return self._nonce

    def submit(self, batch: Sequence[Request], done: Done) -> None:
        """See `Store.submit`. `done` is called in the writer's thread."""
        writer = self._check_writable()
        writer.submit(plain_of(batch, LIMITS) or prepare(batch, LIMITS), done)

    def service(self) -> None:
        """See `Store.service`."""
        if self._writer is not None:
            self._writer.service()

    def commit(self, *requests: Request) -> list[Outcome]:
        """See `Store.commit`."""
        told = threading.Semaphore(0)
        answers: list[Sequence[Outcome] | NeedsService] = []

        def done(result: Sequence[Outcome] | NeedsService) -> None:
            answers.append(result)
            told.release()

        # Whoever submitted what is out may be gone: an actor that was killed over a slow disk.
        self._check_writable().wait_idle()
        self.submit(requests, done)
        while True:
            told.acquire()
            answer = answers.pop()
            if not isinstance(answer, NeedsService):
                return list(answer)
            self.service()

    def get(self, table: str, key: Key) -> Row | None:
        """See `Store.get`."""
        self._check_open()
        raw_key = encode_key(_table(table).key, key)
        try:
            raw = self._environment.get(table, raw_key)
        except EngineError as error:
            raise self._surprise(error) from error
        return None if raw is None else codec.decode(table, raw_key, raw)

    def scan(
        self,
        table: str,
        prefix: Key = (),
        *,
        after: Key | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Iterator[tuple[Key, Row | Exception]]:
        """See `Store.scan`.

        One transaction copies up to 4,096 rows or 16 MiB; with a limit of up to 1,000 rows, all.
        """
        self._check_open()
        shape = _table(table).key
        start = encode_prefix(shape, prefix)
        bound = None if after is None else encode_key(shape, after)
        return self._scan(table, start, bound, limit, reverse)

    def count(self, table: str) -> int:
        """See `Store.count`."""
        self._check_open()
        try:
            return self._environment.count(_table(table).name)
        except EngineError as error:
            raise self._surprise(error) from error

    def revision(self) -> int:
        """See `Store.revision`."""
        row = self.get("sequences", (CHANGES,))
        return 0 if row is None else row.record.next - 1

    def changes(self, after: int, limit: int = 1000) -> Sequence[tuple[int, str, Key]]:
        """See `Store.changes`."""
        picked: list[tuple[int, str, Key]] = []
        for key, row in self.scan(CHANGES, after=(after, 2**64 - 1)):
            revision = key[0]
            assert isinstance(revision, int)
            if isinstance(row, Exception):
                raise row
            if not picked and revision != after + 1:
                raise RevisionPrunedError(
                    f"changes up to revision {revision - 1} are gone; read the tables again",
                    after=after,
                    oldest=revision,
                )
            if len(picked) >= limit and revision != picked[-1][0]:
                break
            for table, keys in row.record.keys.items():
                picked += [(revision, table, decode_key(raw)) for raw in keys]
        return picked

    def close(self) -> None:
        """See `Store.close`."""
        if self._closed:
            return
        self._closed = True
        if self._environment.is_forked:
            return
        if self._writer is not None:
            self._writer.close()
            if not (self._has_failed or self._writer.has_failed):
                # After a failure, what is on disk is for the next open to look at.
                self._close_cleanly()
        self._environment.close()
        for lock in self._locks:
            lock.close()

    def _scan(
        self, table: str, prefix: bytes, after: bytes | None, limit: int | None, reverse: bool
    ) -> Iterator[tuple[Key, Row | Exception]]:
        left = limit
        more = True
        whole = limit is not None and limit <= ONE_STATE_ROWS
        while more and (left is None or left > 0):
            self._check_open()
            try:
                rows, more = self._environment.page(
                    table,
                    prefix,
                    after=after,
                    reverse=reverse,
                    rows_max=SCAN_ROWS_MAX if left is None else min(left, SCAN_ROWS_MAX),
                    bytes_max=sys.maxsize if whole else SCAN_BYTES_MAX,
                )
            except EngineError as error:
                raise self._surprise(error) from error
            if left is not None:
                left -= len(rows)
            for key, raw in rows:
                after = key
                yield _read(table, key, raw)

    def _surprise(self, error: EngineError) -> StorageError:
        """What the engine could not read. The next open looks at the whole file."""
        self._has_failed = True
        return typed(error, self.directory, "reading the store")

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the store is closed; nothing was done; open it again")

    def _check_writable(self) -> Writer:
        self._check_open()
        self._environment.check_usable()
        if self._writer is None:
            raise ReadOnlyStoreError(
                f"{self.directory} was opened to look; nothing was taken; open it for writing",
                path=str(self.directory),
            )
        return self._writer

    def _close_cleanly(self) -> None:
        """Record a clean close, if no other process has the store open. Never fails a close."""
        write_lock, open_lock = self._locks
        with suppress(StorageError, EngineError, OSError):
            # A close that can't be recorded is an unclean one: the next open looks longer.
            write_lock.acquire(1.0)
            if not open_lock.acquire_nowait():
                return
            self._environment.claim_writing()
            with self._environment.writing() as transaction:
                work = BatchTransaction(transaction, self._environment.tables, str(self.directory))
                row = work.get_own("meta", _STORE_KEY)
                if row is None:
                    return
                work.put_own("meta", _STORE_KEY, replace(row.record, clean=True))
                crashpoint("close.before_clean")
                self._environment.commit(transaction)
            self._environment.close()
            note_clean_close(self.directory, read_meta(self.directory / "data.mdb"))


class _Opening:
    """The steps of `LmdbStore.open`."""

    def __init__(
        self,
        clock_ms: Callable[[], int],
        map_bytes: int,
        map_bytes_max: int,
        settings: Settings,
        verify: bool,
    ) -> None:
        self._verify = verify
        self._clock_ms = clock_ms
        self._map_bytes = map_bytes
        self._map_bytes_max = max(map_bytes, map_bytes_max)
        self._settings = settings

    def run(self, state: Path, create: bool, process: Process) -> LmdbStore:
        timeout_s = self._settings.lock_timeout_s
        store = find_or_create(
            state, create=create, now_ms=process.started_ms, timeout_s=timeout_s, fill=self._fill
        )
        refuse_network_filesystem(store)
        identity = read_identity(store)
        with ExitStack() as undo:
            write_lock, open_lock = FileLock(store / "write.lock"), FileLock(store / "open.lock")
            undo.callback(write_lock.close)
            undo.callback(open_lock.close)
            write_lock.acquire(timeout_s)
            alone = open_lock.acquire_nowait()
            # From exclusive to shared is not atomic, but every opener holds the write lock here.
            open_lock.acquire(timeout_s, shared=True)
            was_clean = look_first(store, self._verify) if alone else True
            environment = self._environment(store)
            undo.callback(environment.close)
            read_meta_row(environment, identity)
            if was_clean:
                environment.check_reachable()
            else:
                # Whoever died may have been in the midst of a commit that the disk failed.
                environment.settle()
            crashpoint("open.before_boot")
            nonce = secrets.token_hex(16)
            self._boot(environment, identity, nonce, process)
            write_lock.release()
            writer = Writer(environment, write_lock, process, nonce, self._settings)
            undo.pop_all()
        return LmdbStore(environment, writer, (write_lock, open_lock), nonce, store)

    def look(self, state: Path) -> LmdbStore:
        """Open for reading only."""
        store = state / "store"
        if not store.is_dir():
            refuse_missing(state)
        identity = read_identity(store)
        # A running process has looked already, and its writes would confuse the verifier.
        if not _is_running(store):
            try:
                look_first(store, self._verify)
            except DamagedStoreError:
                # One that has started meanwhile looked itself, and its writes confused this look.
                if not _is_running(store):
                    raise
        environment = self._environment(store, read_only=True)
        try:
            look_at_meta_row(environment, identity)
        except BaseException:
            environment.close()
            raise
        return LmdbStore(environment, None, (), "", store)

    def _environment(self, store: Path, *, read_only: bool = False) -> Environment:
        return Environment(
            store,
            map_bytes=self._map_bytes,
            map_bytes_max=self._map_bytes_max,
            read_only=read_only,
        )

    def _fill(self, directory: Path, identity: Identity) -> None:
        """Make the data file of a new store."""
        environment = self._environment(directory)
        try:
            environment.claim_writing()
            with environment.writing() as transaction:
                work = BatchTransaction(transaction, environment.tables, str(directory))
                meta = StoreMeta(
                    format=identity.format,
                    store_id=identity.store_id,
                    created_ms=identity.created_ms,
                    boots=0,
                    clean=True,
                )
                work.put_own("meta", _STORE_KEY, meta)
                environment.commit(transaction)
        finally:
            environment.close()

    def _boot(
        self, environment: Environment, identity: Identity, nonce: str, process: Process
    ) -> None:
        """Record this opening."""
        environment.claim_writing()
        path = str(environment.directory)
        with environment.writing() as transaction:
            work = BatchTransaction(transaction, environment.tables, path)
            row = work.get_own("meta", _STORE_KEY)
            meta = _check_identity(environment.directory, identity, row)
            work.put_own("meta", _STORE_KEY, replace(meta, boots=meta.boots + 1, clean=False))
            work.put_own("processes", encode_key((str,), (nonce,)), process)
            environment.commit(transaction)


def read_meta_row(environment: Environment, identity: Identity) -> StoreMeta:
    """The store's own row, which is of the same store as `store.json`.

    Raises:
        DamagedStoreError, UnreadableRecordError: It is not, or cannot be read.
    """
    raw = environment.get("meta", _STORE_KEY)
    row = None if raw is None else codec.decode("meta", _STORE_KEY, raw)
    return _check_identity(environment.directory, identity, row)


def look_at_meta_row(environment: Environment, identity: Identity) -> None:
    """As `read_meta_row`, for whoever may mend it: a row that cannot be read is a finding."""
    try:
        read_meta_row(environment, identity)
    except UnreadableRecordError as error:
        if error.other_version:
            raise


def look_first(store: Path, verify: bool) -> bool:
    """Look at the data file before the engine does, as far as its last end asks for; whole with
    `verify`. Whether it was closed cleanly.

    Raises:
        DamagedStoreError: It contradicts itself.
    """
    data = store / "data.mdb"
    for _ in range(LOOKS_MAX - 1):
        meta = read_meta(data)
        try:
            return _look_once(store, verify)
        except DamagedStoreError:
            # Another process that commits meanwhile, as one that starts does, confuses the look.
            if read_meta(data) == meta:
                raise
    return _look_once(store, verify)


def _look_once(store: Path, verify: bool) -> bool:
    data = store / "data.mdb"
    clean = was_closed_cleanly(store, read_meta(data))
    precheck(data, clean=clean and not verify, verify=verify_file)
    return clean


def _check_identity(store: Path, identity: Identity, row: Row | None) -> StoreMeta:
    if row is None or row.record.store_id != identity.store_id:
        found = "no store row" if row is None else f"the data of store {row.record.store_id}"
        raise DamagedStoreError(
            f"{store} should hold store {identity.store_id} and holds {found}; nothing was "
            "changed; restore a backup",
            path=str(store),
            findings=(found,),
        )
    meta: StoreMeta = row.record
    if meta.format > identity.format:
        # Versions that do not know the data's format would take it for one that they know.
        found = f"data of format {meta.format}"
        raise DamagedStoreError(
            f"{store} should be of format {identity.format} and holds {found}; nothing was "
            "changed; restore a backup, or the store.json that is its own",
            path=str(store),
            findings=(found,),
        )
    return meta


def _is_running(store: Path) -> bool:
    owners = store / "owners"
    return owners.is_dir() and any(is_locked(entry) for entry in owners.iterdir())


def _table(name: str) -> Table:
    table = TABLES.get(name)
    if table is None:
        raise InvalidRequestError(
            f"there is no table {name!r}; nothing was read; name one that there is", field="table"
        )
    return table


def _read(table: str, key: bytes, raw: bytes) -> tuple[Key, Row | Exception]:
    try:
        named = decode_key(key)
    except ValueError as error:
        damaged = UnreadableRecordError(
            f"a row of table {table} has a damaged key ({error}); it was not changed and other "
            "rows stand; see 'abeyance check'",
            table=table,
            key=key,
            cause=f"key: {error}",
            seal=codec.seal_of(table, raw),
        )
        return (key,), damaged
    try:
        return named, codec.decode(table, key, raw)
    except UnreadableRecordError as error:
        return named, error
