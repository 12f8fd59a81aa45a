"""Adds to one row that other processes add to as well, by compare-and-set."""

from __future__ import annotations

import os
import sys

from abeyance.storage import codec
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Committed, Guard, Put, Request
from abeyance.storage.tables.slots import Wake


def main(path: str, additions: int) -> None:
    store = LmdbStore.open(path, clock_ms=lambda: 1)
    os.write(1, b"open\n")
    sys.stdin.readline()
    wake = codec.encode(Wake(reason="message", author="ana", at_ms=1))
    counter = 0
    for done in range(additions):
        while True:
            guard = Guard("wakes", ("shared", 0), counter)
            request = Request(guards=(guard,), puts=(Put("wakes", guard.key, wake),))
            (outcome,) = store.commit(request)
            if isinstance(outcome, Committed):
                counter += 1
                break
            row = outcome.refusals[0].row  # type: ignore[union-attr]
            counter = 0 if row is None else row.counter
        os.write(1, f"added {done}\n".encode())
    store.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
