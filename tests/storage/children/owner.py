"""Takes an owner row when told to, says what came of it, and lives until its input ends."""

from __future__ import annotations

import os
import sys

from abeyance.storage.errors import OwnedElsewhereError
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.ownership import Ownership


def main(path: str, name: str) -> None:
    store = LmdbStore.open(path, clock_ms=lambda: 1)
    ownership = Ownership(store, store.directory, host="here", pid=os.getpid())
    print("open", flush=True)
    sys.stdin.readline()
    try:
        ownership.take(("agent", name))
        row = store.get("owners", ("agent", name))
        assert row is not None
        print("took", row.record.fence, flush=True)
    except OwnedElsewhereError as error:
        print("elsewhere", error.pid, error.host, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
