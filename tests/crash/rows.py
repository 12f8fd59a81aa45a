"""Everything a store holds, as one comparable snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from abeyance.storage.errors import MissingStoreError
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Key
from abeyance.storage.tables import TABLES


@dataclass(slots=True)
class Snapshot:
    """The rows of a store at one revision, by table and key."""

    at_ms: int
    """When the host had died, by the harness's clock."""
    tables: dict[str, dict[Key, Any]] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)

    def rows(self, table: str) -> dict[Key, Any]:
        return self.tables.get(table, {})


def read_snapshot(state: Path, at_ms: int) -> Snapshot | None:
    """Read a stopped store without changing it; None where none was made yet."""
    snapshot = Snapshot(at_ms)
    try:
        store = LmdbStore.open(state, clock_ms=lambda: at_ms, read_only=True)
    except MissingStoreError:
        return None
    try:
        for table in TABLES:
            rows = snapshot.tables[table] = {}
            for key, row in store.scan(table):
                if isinstance(row, Exception):
                    snapshot.unreadable.append(f"{table} {key}: {row}")
                else:
                    rows[key] = row.record
    finally:
        store.close()
    return snapshot
