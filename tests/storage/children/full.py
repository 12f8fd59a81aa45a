"""Writes until there is no room, makes room, and writes on, in one process."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

from abeyance.storage import codec
from abeyance.storage.errors import StorageError
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Committed, NotStored, Put, Request
from abeyance.storage.tables.blocks import TextBlock
from abeyance.storage.tables.slots import Body


def main(path: str, how: str) -> None:
    make_room: Callable[[], None]
    filler = Path(path).parent / "filler"
    if how == "limit":
        soft = 400_000

        def make_room() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)

        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))
    else:
        filler.write_bytes(b"x" * 500_000)
        make_room = filler.unlink
    body = codec.encode(Body(blocks=(TextBlock(text="x" * 3_000),)))
    try:
        store = LmdbStore.open(path, clock_ms=lambda: 1)
    except StorageError as error:
        print("not opened", type(error).__name__, sorted(os.listdir(path)), flush=True)
        return
    written = 0
    while True:
        (outcome,) = store.commit(Request(puts=(Put("bodies", ("a", written), body),)))
        if not isinstance(outcome, Committed):
            break
        written += 1
    assert isinstance(outcome, NotStored)
    (again,) = store.commit(Request(puts=(Put("bodies", ("a", written), body),)))
    assert isinstance(again, NotStored)
    readable = len(list(store.scan("bodies")))
    print("full", type(outcome.error).__name__, readable == written, flush=True)
    make_room()
    (outcome,) = store.commit(Request(puts=(Put("bodies", ("b", 0), body),)))
    print("room", isinstance(outcome, Committed), len(list(store.scan("bodies"))) - written)
    store.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
