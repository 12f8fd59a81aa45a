"""Migration: a stopped store from one format to the next, and back, when an operator says so.

A version reads the formats in `FORMATS`, makes stores of the first of them, and leaves each store
in the format it has. So the version before can read what this one writes until `migrate` was told
to commit.

    store.json   the data    what it is
    1            1           format 1: any version opens it
    2            1           between the two, on the way there or back; refused as format 2
    2            2           format 2

Invariants:
    I1  `store.json` is raised first and lowered last: no version that does not know a row's format
        ever opens the store.
    I2  Rows are written by bounded commits, each as the format's rule says; a death between two
        leaves a store that this version opens, and that a second run goes on with, either way.
    I3  Nobody has the store open meanwhile; a copy of it, made first, stands beside.

Blocks the thread that calls.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from . import codec
from .alone_writing import Writing, writing_alone
from .backup import BackedUp, backup
from .crashpoints import crashpoint
from .directory import STORE, read_identity, write_format
from .errors import DamagedStoreError, InvalidRequestError
from .keys import encode_key
from .lmdb_store import LOCK_TIMEOUT_S, LmdbStore
from .store import Key, Record, Row, Store
from .tables import FORMAT, FORMATS, TABLES
from .tables.waits import Wait

ROWS_A_COMMIT: Final = 256
_WAITS: Final = ("waits", "account_waits")


class Format(NamedTuple):
    """What a store is, and what a migration would change."""

    store: int
    """What `store.json` says: versions that do not know it refuse the store."""
    data: int
    """What the rows are of. Less than `store`: a migration was begun and is not over."""
    newest: int
    """The newest that this version knows."""
    rows: dict[str, int]
    """How many rows of which tables would be written on the way to the newest."""
    unreadable: int
    """Rows of those tables that cannot be read: repair the store first."""


class Migrated(NamedTuple):
    """What a migration came to."""

    before: int
    after: int
    rows: int
    """How many were written."""
    backup: BackedUp | None
    """The copy from before; None: nothing was to be done, and none was made."""


def look(store: Store, directory: Path) -> Format:
    """What a store is, and what a migration to the newest format would change. Changes nothing.

    Args:
        directory: The directory `store` inside the state directory.
    """
    counts = dict.fromkeys(_WAITS, 0)
    unreadable = 0
    for table, _, row in _waits(store):
        if isinstance(row, Exception):
            unreadable += 1
        elif _with_hold(row.record) is not None:
            counts[table] += 1
    meta = store.get("meta", ("store",))
    assert meta is not None
    rows = {table: count for table, count in counts.items() if count}
    return Format(read_identity(directory).format, meta.record.format, FORMAT, rows, unreadable)


def migrate(
    path: str | os.PathLike[str],
    copy: str | os.PathLike[str],
    *,
    to: int,
    clock_ms: Callable[[], int],
    progress: Callable[[int, int], object] = lambda _done, _whole: None,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> Migrated:
    """Bring a stopped store to another format that this version knows, after a copy of it.

    Blocks for the copy and for all rows that change.
    Durable: on return. A death leaves a store between the two; run again, it goes on, either way.

    Args:
        copy: Where the copy is made, as by `backup`.
        to: The format: the newest, or an earlier one, where versions that know no newer are to open
            the store again.
    Raises:
        InvalidRequestError: No such format; nothing was changed.
        StoreInUseError: A process has the store open; nothing was changed.
        DamagedStoreError: A row that is to be written cannot be read; nothing was changed.
        StorageError: The copy could not be made, and nothing was changed; or a commit failed, and
            what was committed before stands.
    """
    if to not in FORMATS:
        raise InvalidRequestError(
            f"there is no format {to} here; nothing was changed; this version knows "
            f"{', '.join(map(str, FORMATS))}",
            field="to",
        )
    state = Path(path).absolute()
    store = state / STORE
    with writing_alone(state, "migrated", lock_timeout_s) as begin:
        looked = LmdbStore.open(state, clock_ms=clock_ms, create=False, read_only=True, verify=True)
        try:
            found = look(looked, store)
        finally:
            looked.close()
        if (found.store, found.data) == (to, to):
            return Migrated(to, to, 0, None)
        if found.unreadable:
            raise DamagedStoreError(
                f"{found.unreadable} rows of {store} that a migration writes cannot be read; "
                "nothing was changed; mend them first (`abeyance check --repair`)",
                path=str(store),
                findings=(f"{found.unreadable} rows",),
            )
        made = backup(state, copy, clock_ms=clock_ms, progress=progress)
        if found.store < to:
            write_format(store, to)
        crashpoint("migrate.between_commits")
        with begin() as writing:
            # Back, nothing is written: the earlier format reads such rows as they are.
            rows = _fill_holds(writing) if to >= 2 else 0
            _say_format(writing, to)
        crashpoint("migrate.between_commits")
        if found.store > to:
            write_format(store, to)
    return Migrated(found.data, to, rows, made)


# -- format 2 ----------------------------------------------------------------------------------


def _waits(store: Store) -> Iterator[tuple[str, Key, Row | Exception]]:
    for table in _WAITS:
        for key, row in store.scan(table):
            yield table, key, row


def _with_hold(record: Record) -> Wait | None:
    """A wait that says which hold it belongs to, and since when; None where it does."""
    if not isinstance(record, Wait) or (record.hold is not None and record.since_ms is not None):
        return None
    hold = record.act if record.hold is None else record.hold
    since_ms = record.set_ms if record.since_ms is None else record.since_ms
    return replace(record, hold=hold, since_ms=since_ms)


def _fill_holds(writing: Writing) -> int:
    """Have each wait say which hold it belongs to; how many rows were written."""
    rows = 0
    batch: list[tuple[str, bytes, int, Wait]] = []

    def flush() -> None:
        def write() -> None:
            with writing.transaction() as transaction:
                for table, key, counter, record in batch:
                    framed = codec.frame(table, key, counter + 1, codec.encode(record))
                    transaction.put(table, key, framed)

        writing.run(write)
        batch.clear()
        crashpoint("migrate.between_commits")

    for table, key, row in _waits(writing.store):
        record = None if isinstance(row, Exception) else _with_hold(row.record)
        if record is not None and isinstance(row, Row):
            batch.append((table, encode_key(TABLES[table].key, key), row.counter, record))
            rows += 1
            if len(batch) >= ROWS_A_COMMIT:
                flush()
    if batch:
        flush()
    return rows


def _say_format(writing: Writing, to: int) -> None:
    key = encode_key((str,), ("store",))

    def write() -> None:
        row = writing.store.get("meta", ("store",))
        assert row is not None
        if row.record.format == to:
            return
        record = codec.encode(replace(row.record, format=to))
        with writing.transaction() as transaction:
            transaction.put("meta", key, codec.frame("meta", key, row.counter + 1, record))

    writing.run(write)
