"""`python -m tests.golden NAME [FORMAT]`: write a store of what this version writes, to be read for
ever; of the format that new ones are of, or of another.

NAME is a day, `2026-12-03`; one that is there is never written again. Beside the store, as its
files are with the data packed, `rows.json` says which records every table has, as they were put.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from abeyance.actors.testing import WallClock
from abeyance.storage.backup import backup
from abeyance.storage.batch import KEPT_BY_THE_STORE
from abeyance.storage.codec import encode
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.migrate import migrate
from abeyance.storage.store import Append, Committed, Delete, Put, Request
from abeyance.storage.tables import FORMATS, TABLES

from .samples import key_of, plain, samples

HERE: Final = Path(__file__).parent
CLOCK: Final = WallClock()


def fill(store: LmdbStore) -> None:
    """Put records of every kind; those of the store's own tables come of that."""
    for table in TABLES.values():
        if table.name in KEPT_BY_THE_STORE or table.name == "processes":
            continue
        records = [record for kind in table.kinds for record in samples(kind)]
        if table.append:
            request = Request(appends=tuple(Append(table.name, encode(each)) for each in records))
        else:
            request = Request(puts=tuple(_puts(table.name, records)))
        (outcome,) = store.commit(request)
        assert isinstance(outcome, Committed), outcome
    # Rows with a history: one put again, one deleted, one that carries the key of an append.
    owner = next(samples(TABLES["owners"].kinds[0]))
    log = next(samples(TABLES["log"].kinds[0]))
    alerted = next(samples(TABLES["alerted"].kinds[0]))
    again = Put("owners", key_of("owners", 0), encode(owner))
    names = Put("alerted", ("carries", "a", "key"), encode(alerted, allotted=0))
    gone = Delete("wakes", key_of("wakes", 0))
    request = Request(puts=(again, names), deletes=(gone,), appends=(Append("log", encode(log)),))
    (outcome,) = store.commit(request)
    assert isinstance(outcome, Committed), outcome


def _puts(table: str, records: list[Any]) -> list[Put]:
    return [
        Put(table, key_of(table, number), encode(record)) for number, record in enumerate(records)
    ]


def rows(store: LmdbStore) -> dict[str, list[dict[str, Any]]]:
    """All rows of a store, as `rows.json` has them."""
    found: dict[str, list[dict[str, Any]]] = {}
    for table in TABLES:
        found[table] = []
        for key, row in store.scan(table):
            assert not isinstance(row, Exception), row
            found[table].append(
                {
                    "key": plain(key),
                    "counter": row.counter,
                    "kind": row.record.KIND,
                    "version": row.record.VERSION,
                    "allotted": plain(row.allotted),
                    "fields": plain(row.record),
                }
            )
    return found


def write(place: Path, to: int = FORMATS[0]) -> None:
    """Make a store, and put its files in a directory that is not there yet."""
    place.mkdir()
    with tempfile.TemporaryDirectory() as scratch:
        first, second = Path(scratch, "first"), Path(scratch, "second")
        store = LmdbStore.open(first, clock_ms=CLOCK.now_ms, pid=1, host="host")
        try:
            fill(store)
        finally:
            store.close()
        # A backup has no free pages, so that what is kept for ever is small.
        backup(first, second, clock_ms=CLOCK.now_ms)
        if to != FORMATS[0]:
            migrate(second, Path(scratch, "before"), to=to, clock_ms=CLOCK.now_ms)
        store = LmdbStore.open(second, clock_ms=CLOCK.now_ms, read_only=True)
        try:
            listed = rows(store)
        finally:
            store.close()
        for name in ("store.json", "closed.json"):
            (place / name).write_bytes((second / "store" / name).read_bytes())
        data = (second / "store" / "data.mdb").read_bytes()
        (place / "data.mdb.gz").write_bytes(gzip.compress(data, mtime=0))
    lines = json.dumps(listed, ensure_ascii=True, separators=(",", ":")).replace(
        '{"key"', '\n{"key"'
    )
    (place / "rows.json.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))


if __name__ == "__main__":
    write(HERE / sys.argv[1], *map(int, sys.argv[2:]))
