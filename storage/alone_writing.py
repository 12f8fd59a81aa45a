"""Writing into the file of a store that this process has alone, past requests and their checks.

For what mends or changes rows as bytes: a row that cannot be read has no counter to guard, and one
whose key cannot be read has no name.

Invariants:
    I1  The whole file was looked at before the engine got it.
    I2  What is written takes no revision: nobody follows what changes in a stopped store.

Blocks the thread that calls, which is the writer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeVar

from . import codec
from .closed import note_clean_close
from .directory import STORE, read_identity, refuse_missing
from .environment import EngineError, Environment, Transaction, is_full, typed
from .errors import MapLimitError, UnreadableRecordError
from .exclusive import alone
from .keys import encode_key
from .lmdb_store import MAP_BYTES, MAP_BYTES_MAX, LmdbStore, look_at_meta_row, look_first
from .precheck import read_meta
from .store import Key, Record, Store
from .tables import TABLES
from .tables.ownership import Sequence

_Result = TypeVar("_Result")


class Writing:
    """A store that is open alone, to be read by `store` and written by `run`."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.directory = environment.directory
        self.store: Store = LmdbStore(environment, None, (), "", environment.directory)

    def get(self, table: str, key: bytes) -> bytes | None:
        """A value as it is on disk."""
        return self._environment.get(table, key)

    def run(self, write: Callable[[], _Result]) -> _Result:
        """Run what writes; again where the map was full and could grow.

        Raises:
            MapLimitError: It cannot grow. Nothing was written.
        """
        while True:
            try:
                return write()
            except EngineError as error:
                if not is_full(error):
                    raise
                if not self._environment.can_grow:
                    limit = self._environment.map_bytes_max
                    raise MapLimitError(
                        f"the store has reached its limit of {limit} bytes; nothing of this commit "
                        "is stored and what was stored before stands; delete what is not needed",
                        path=str(self._environment.directory),
                        map_bytes_max=limit,
                    ) from error
                self._environment.grow()

    @contextmanager
    def transaction(self) -> Iterator[RawTransaction]:
        """One commit; nothing is written where the block raises. Durable: behind the block."""
        with self._environment.writing() as transaction:
            yield RawTransaction(transaction, self._environment)
            self._environment.commit(transaction)


class RawTransaction:
    """Rows as bytes."""

    def __init__(self, transaction: Transaction, environment: Environment) -> None:
        self._transaction = transaction
        self._tables = environment.tables

    def get(self, table: str, key: bytes) -> bytes | None:
        return self._transaction.get(key, db=self._tables[table])

    def put(self, table: str, key: bytes, raw: bytes | None) -> None:
        """Put a value, or take the row out."""
        if raw is None:
            self._transaction.delete(key, db=self._tables[table])
        else:
            self._transaction.put(key, raw, db=self._tables[table])

    def put_new(self, table: str, key: Key, record: Record) -> None:
        raw = encode_key(TABLES[table].key, key)
        self.put(table, raw, codec.frame(table, raw, 1, codec.encode(record)))

    def count(self, table: str, number: int) -> None:
        """Say that the next row of a table has this number; a row that cannot be read stays."""
        key = encode_key((str,), (table,))
        raw = self.get("sequences", key)
        try:
            counter = 0 if raw is None else codec.read_counter("sequences", key, raw)
        except UnreadableRecordError:
            return
        record = codec.encode(Sequence(next=number))
        self.put("sequences", key, codec.frame("sequences", key, counter + 1, record))


@contextmanager
def writing_alone(
    state: Path, done: str, lock_timeout_s: float
) -> Iterator[Callable[[], AbstractContextManager[Writing]]]:
    """Have a stopped store alone; what is given opens it, once, for writing.

    Args:
        done: What would have been done with it, as a participle.
    Raises:
        StoreInUseError: A process has it open. Nothing was changed.
        StorageError: It cannot be opened. Nothing was changed.
    """
    store = state / STORE
    if not store.is_dir():
        refuse_missing(state)

    @contextmanager
    def begin() -> Iterator[Writing]:
        identity = read_identity(store)
        look_first(store, verify=True)
        environment = Environment(store, map_bytes=MAP_BYTES, map_bytes_max=MAP_BYTES_MAX)
        try:
            look_at_meta_row(environment, identity)
            environment.settle()
            environment.claim_writing()
            yield Writing(environment)
        finally:
            environment.close()
        note_clean_close(store, read_meta(store / "data.mdb"))

    try:
        with alone(store, done, lock_timeout_s):
            yield begin
    except (OSError, EngineError) as error:
        raise typed(error, state, "writing the store") from error
