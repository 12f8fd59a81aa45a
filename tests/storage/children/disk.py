"""Commits over a disk that fails, or whose writes are logged; says what came of each batch.

Runs behind `disk.c`: see `tests/storage/disk.py`.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys

from abeyance.storage.codec import encode
from abeyance.storage.errors import StorageError
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Committed, Delete, Put, Request
from abeyance.storage.tables.blocks import TextBlock
from abeyance.storage.tables.slots import Body

PER_BATCH = 3
DISK = ctypes.CDLL(None)


def batch(number: int, rng: random.Random) -> Request:
    """Rows that say which batch they are of; the same rows of the one before are deleted."""
    puts = []
    for place in range(PER_BATCH):
        text = f"{number} " + "x" * rng.choice([10, 300, 3_000, 9_000])
        puts.append(
            Put("bodies", (f"b{number}", place), encode(Body(blocks=(TextBlock(text=text),))))
        )
    if number % 4 == 3:
        gone = tuple(Delete("bodies", (f"b{number - 2}", place)) for place in range(PER_BATCH))
        return Request(puts=tuple(puts), deletes=gone)
    return Request(puts=tuple(puts))


def main(path: str, sound: int, failing: int, after: int, seed: int, *fault: int) -> None:
    rng = random.Random(seed)
    became: list[str] = []
    read: list[int] = []
    store = LmdbStore.open(path, clock_ms=lambda: 1)
    for number in range(sound + failing + after):
        if number == sound and fault:
            DISK.disk_fail(*fault)
        if number == sound + failing:
            for kind in (1, 2, 3):
                DISK.disk_fail(kind, 0, 0)
        try:
            (outcome,) = store.commit(batch(number, rng))
        except StorageError as error:
            became.append(f"refused {type(error).__name__}")
        else:
            if isinstance(outcome, Committed):
                DISK.disk_note(number)
                became.append("acknowledged")
            else:
                became.append(type(outcome.error).__name__)  # type: ignore[union-attr]
        try:
            read = sorted({int(str(key[0])[1:]) for key, _ in store.scan("bodies")})
        except StorageError as error:
            became[-1] += f", read {type(error).__name__}"
    store.close()
    print(json.dumps({"became": became, "read": read}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
