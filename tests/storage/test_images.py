"""Damaged images of a store: each opens and reads what was written, or is refused by a typed error.

An image is a copy of a sound store with bytes flipped, a stretch overwritten, pages swapped, or its
end cut off, by a seed. They are looked at in a process of their own, a batch each: one that ends by
a signal fails the test and names its images.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from abeyance.actors.testing import WallClock
from abeyance.storage.codec import encode
from abeyance.storage.errors import StorageError
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Delete, Put, Request
from abeyance.storage.tables import TABLES
from abeyance.storage.tables.blocks import TextBlock
from abeyance.storage.tables.slots import Body

from ..lives import lived

BATCH = 100
PAGE = 4_096
LONG = int(os.environ.get("ABEYANCE_IMAGES", "2000")) // BATCH
"""Batches of the long run; `ABEYANCE_IMAGES=10000` looks at so many images."""
PLACES = 60
CLOCK = WallClock()


def opened(state: Path, **options: Any) -> LmdbStore:
    return LmdbStore.open(state, clock_ms=CLOCK.now_ms, **options)


def body(place: int) -> Body:
    length = 3_000 if place % 10 == 5 else 40
    return Body(blocks=(TextBlock(text=f"{place}-" * length),))


def written(state: Path) -> None:
    """A store of several pages, with long values, deleted rows and a history."""
    store = opened(state)
    for first in range(0, PLACES, 10):
        places = range(first, first + 10)
        puts = tuple(Put("bodies", ("ana", each), encode(body(each))) for each in places)
        store.commit(Request(puts=puts))
    store.commit(Request(deletes=tuple(Delete("bodies", ("ana", each)) for each in range(20, 30))))
    store.close()


MADE = {("ana", place): body(place) for place in range(PLACES)}
KEPT = {("ana", place) for place in range(PLACES) if not 20 <= place < 30}


def rows(store: LmdbStore) -> dict[tuple[str, Any], Any]:
    """What reads as a row, by table and key; what is refused row by row is left out."""
    return {
        (table, key): row.record
        for table in TABLES
        for key, row in store.scan(table)
        if not isinstance(row, Exception)
    }


def damaged(image: bytes, rng: random.Random) -> bytes:
    data = bytearray(image)
    match rng.randrange(5):
        case 0:
            for _ in range(rng.choice([1, 1, 3, 20])):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 1:
            start = rng.randrange(len(data))
            end = min(len(data), start + rng.choice([1, 64, PAGE, 4 * PAGE]))
            data[start:end] = rng.choice([bytes, rng.randbytes])(end - start)
        case 2:
            del data[rng.randrange(len(data)) :]
        case 3:
            pages = len(data) // PAGE
            one, other = (rng.randrange(pages) * PAGE for _ in range(2))
            data[one : one + PAGE], data[other : other + PAGE] = (
                data[other : other + PAGE],
                data[one : one + PAGE],
            )
        case _:
            # In the two pages that say where everything else is.
            data[rng.randrange(2 * PAGE)] = rng.randrange(256)
    return bytes(data)


def become(sound: Path, name: str, image: bytes, *, clean: bool = False) -> str:
    """What becomes of one image; an assertion fails where something else than was written reads.

    Args:
        clean: The file was damaged behind a clean close, whose note lies beside it.
    """
    state = sound.with_name(name)
    shutil.copytree(sound, state)
    if not clean:
        (state / "store" / "closed.json").unlink()
    (state / "store" / "lock.mdb").unlink(missing_ok=True)
    (state / "store" / "data.mdb").write_bytes(image)
    try:
        store = opened(state, read_only=True)
    except StorageError as error:
        return type(error).__name__
    else:
        try:
            found = rows(store)
        except StorageError as error:
            return f"read: {type(error).__name__}"
        finally:
            store.close()
        # One whose root is lost is an older whole: what was deleted since is there.
        bodies = {key: row for (table, key), row in found.items() if table == "bodies"}
        assert {key for key, row in bodies.items() if row != MADE.get(key)} == set(), name
        return "sound" if bodies.keys() == KEPT else "older, or some rows refused"
    finally:
        shutil.rmtree(state)


def look_at(sound: Path, first: int, clean: bool) -> None:
    """Look at a batch of images; what becomes of them is said on stdout."""
    image = (sound / "store" / "data.mdb").read_bytes()
    became: Counter[str] = Counter()
    for seed in range(first, first + BATCH):
        print(f"image {seed}", flush=True)
        data = damaged(image, random.Random(seed))
        became[become(sound, f"image-{seed}", data, clean=clean)] += 1
    print(json.dumps(became))


def cut_at_each_page(sound: Path) -> None:
    image = (sound / "store" / "data.mdb").read_bytes()
    for pages in range(len(image) // PAGE):
        for more in (0, 1, PAGE // 2):
            size = pages * PAGE + more
            print(f"cut at {size}", flush=True)
            became = become(sound, f"cut-{size}", image[:size])
            # The last pages may be free: then nothing is lost.
            assert became.endswith("Error") or became == "sound", (size, became)


def test_file_that_is_cut_at_any_page_is_refused_by_name_or_whole(tmp_path: Path) -> None:
    written(tmp_path / "state")
    ended = lived(cut_at_each_page, tmp_path / "state")
    assert ended.status == 0, ended.out[-200:]


@pytest.mark.parametrize("clean", [False, True], ids=["after a death", "behind a clean close"])
@pytest.mark.parametrize(
    "batches", [1, pytest.param(LONG, marks=pytest.mark.slow)], ids=["a batch", "long"]
)
@pytest.mark.timeout(900)
def test_damaged_image_is_refused_by_name_or_reads_as_it_was_written(
    tmp_path: Path, seed: int, batches: int, clean: bool
) -> None:
    written(tmp_path / "state")
    became: Counter[str] = Counter()
    for batch in range(batches):
        ended = lived(look_at, tmp_path / "state", seed + batch * BATCH, clean)
        assert ended.status == 0, ended.out[-200:]
        became.update(json.loads(ended.out.splitlines()[-1]))
    assert became.total() == batches * BATCH
    print(dict(became))


ABORTS = (50, 111)
"""Images that end the process in the engine, where it gets them unseen behind a clean close."""


@pytest.mark.parametrize("image", ABORTS)
def test_image_that_the_engine_dies_of_is_refused_behind_a_clean_close(
    tmp_path: Path, image: int
) -> None:
    written(tmp_path / "state")
    ended = lived(look_at_one, tmp_path / "state", image)
    assert ended.status == 0, ended.out[-200:]
    assert ended.out.splitlines()[-1] == "DamagedStoreError"


def look_at_one(sound: Path, seed: int) -> None:
    image = (sound / "store" / "data.mdb").read_bytes()
    print(become(sound, f"image-{seed}", damaged(image, random.Random(seed)), clean=True))
