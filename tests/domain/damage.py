"""What a fault leaves over one row of a store that nobody has open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from abeyance.storage import codec
from abeyance.storage.check import check
from abeyance.storage.keys import encode_key
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Value
from abeyance.storage.tables import TABLES

DAMAGES = ("a flipped bit", "cut short", "another shape")
GONE = "gone"


def damage(directory: Path, clock: Any, table: str, key: tuple[Any, ...], how: str) -> None:
    """Write what a fault would leave over one row, past the codec."""
    store = LmdbStore.open(directory, clock_ms=clock.now_ms)
    try:
        spoil(store, table, key, how)
        # It is found, by name, and it is the only finding.
        ((found, named),) = [(each.table, each.key) for each in check(store).findings]
        assert (found, named) == (table, key)
    finally:
        store.close()


def spoil(store: LmdbStore, table: str, key: tuple[Any, ...], how: str) -> None:
    """The same under a runtime that has the store open, while nothing of it is with the writer;
    `GONE` takes the row away."""
    environment, encoded = store._environment, encode_key(TABLES[table].key, key)
    raw = environment.get(table, encoded)
    assert raw is not None
    bad: bytes | None = None
    match how:
        case "a flipped bit":
            bad = raw[:-1] + bytes([raw[-1] ^ 1])
        case "cut short":
            bad = raw[: len(raw) // 2]
        case "another shape":
            kind = TABLES[table].kinds[0]
            body = msgspec.msgpack.encode({"nobody": "knows this field"})
            value = Value(kind.KIND, kind.VERSION, body, codec.checksum(body))
            bad = codec.frame(table, encoded, codec.read_counter(table, encoded, raw), value)
    with environment._env.begin(write=True) as transaction:  # type: ignore[union-attr]
        if bad is None:
            transaction.delete(encoded, db=environment.tables[table])
        else:
            transaction.put(encoded, bad, db=environment.tables[table])
