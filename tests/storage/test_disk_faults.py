"""A disk that reports errors, and one that loses power: what was acknowledged is there, whole."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from abeyance.storage.check import check
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.roots import UNSETTLED

from ..lives import lived
from . import disk
from .children.disk import PER_BATCH

SOUND, FAILING, AFTER = 4, 2, 3
NOT_STORED = ("CommitFailedError", "StoreIOError")
LOST = ("StoreLostError", "refused StoreLostError")
KINDS = {"a write of data": disk.DATA, "a sync": disk.SYNC, "a write of the meta page": disk.META}
LANDS_ALL = 2
LANDS = {"nothing lands": 0, "half lands": 1, "all lands": LANDS_ALL, "it is not taken back": 3}

pytestmark = pytest.mark.skipif(disk.COMPILER is None, reason="no C compiler is installed")


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return disk.build(tmp_path_factory.mktemp("disk"))


def batches(store: LmdbStore, attempted: int) -> set[int]:
    """The batches whose rows are there; each is there whole, and nothing else is."""
    assert check(store).is_sound
    found: Counter[int] = Counter()
    for key, row in store.scan("bodies"):
        number = int(str(key[0])[1:])
        assert not isinstance(row, Exception)
        assert row.record.blocks[0].text.startswith(f"{number} ")
        found[number] += 1
    assert set(found.values()) <= {PER_BATCH}
    assert all(number < attempted for number in found)
    return set(found)


def stands(number: int, stored: set[int]) -> bool:
    """Whether a stored batch has its rows still: every fourth one deletes those of two before."""
    return not (number % 4 == 1 and number + 2 in stored)


def log_notes(log: list[disk.Entry]) -> set[int]:
    return {entry.offset for entry in log if entry.kind == disk.NOTE}


def look_at(state: Path, log: list[disk.Entry], attempted: int, seed: int, count: int) -> None:
    """Open images of that log, and see that each holds what it must; say what became of them."""
    became: Counter[str] = Counter()
    in_order = len(log_notes(log)) == attempted
    for number, image in enumerate(disk.images(log, random.Random(seed), count)):
        print(image.name, flush=True)
        copy = state.with_name("image")
        shutil.copytree(state, copy)
        for name in ("closed.json", "lock.mdb"):
            (copy / "store" / name).unlink(missing_ok=True)
        (copy / "store" / "data.mdb").write_bytes(image.data)
        # Some are recovered by writing; most are only looked at, which is faster.
        store = LmdbStore.open(copy, clock_ms=lambda: 2, read_only=number % 8 > 0)
        found = batches(store, attempted)
        store.close()
        shutil.rmtree(copy)
        missing = {each for each in image.acknowledged - found if stands(each, found)}
        assert missing == set(), (image.name, missing, sorted(found))
        last = max(found)
        became["more than was acknowledged" if last > max(image.acknowledged) else "exactly"] += 1
        if in_order:
            # None is missing before one that is there.
            before = {each for each in range(last) if stands(each, found)}
            assert before <= found, (image.name, sorted(found))
    print(json.dumps(became))


@pytest.mark.parametrize("times", [1, 2, 50], ids=["once", "twice", "on and on"])
@pytest.mark.parametrize("lands", LANDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.drawn(4)
def test_an_error_of_the_disk_is_a_typed_outcome_and_nothing_acknowledged_is_lost(
    shim: Path, tmp_path: Path, seed: int, kind: str, lands: str, times: int
) -> None:
    state = tmp_path / "state"
    fault = (KINDS[kind], times, LANDS[lands])
    said, log = disk.run(shim, state, SOUND, FAILING, AFTER, seed, *fault)
    became: list[str] = said["became"]
    # The first failure is retried; later ones are not stored, or nobody can tell any more.
    assert set(became) <= {"acknowledged", *NOT_STORED, *LOST}, became
    assert became[:SOUND] == ["acknowledged"] * SOUND
    if times == 1:
        assert became == ["acknowledged"] * len(became)
    if not set(became) & set(LOST):
        # The same process goes on once the disk does.
        assert became[-AFTER:] == ["acknowledged"] * AFTER
    certain = {number for number, outcome in enumerate(became) if outcome == "acknowledged"}
    store = LmdbStore.open(state, clock_ms=lambda: 2)
    found = batches(store, len(became))
    store.close()
    assert {each for each in certain - found if stands(each, found)} == set()
    assert not found & {n for n, outcome in enumerate(became) if outcome in NOT_STORED}
    # And were the power cut at any instant of that.
    ended = lived(look_at, state, log, len(became), seed, 12)
    assert ended.status == 0, (ended.out[-200:], ended.err)


@pytest.mark.parametrize("seed", [364399284, 7, 11])
def test_a_meta_page_that_the_disk_kept_is_put_back_before_its_pages_are_written_anew(
    shim: Path, tmp_path: Path, seed: int
) -> None:
    state = tmp_path / "state"
    said, log = disk.run(shim, state, SOUND, FAILING, AFTER, seed, disk.META, 50, LANDS_ALL)
    assert said["became"][SOUND : SOUND + FAILING] == ["StoreIOError"] * FAILING
    assert not (state / "store" / UNSETTLED).exists()
    ended = lived(look_at, state, log, len(said["became"]), seed, 40)
    assert ended.status == 0, (ended.out[-200:], ended.err)


@pytest.mark.parametrize(
    ("commits", "count"),
    [(24, 30), pytest.param(200, 5_000, marks=pytest.mark.slow)],
    ids=["some", "many"],
)
@pytest.mark.timeout(600)
def test_a_power_cut_that_loses_any_of_what_was_not_synced_leaves_what_was_acknowledged(
    shim: Path, tmp_path: Path, seed: int, commits: int, count: int
) -> None:
    state = tmp_path / "state"
    said, log = disk.run(shim, state, commits, 0, 0, seed)
    assert said["became"] == ["acknowledged"] * commits
    became: Counter[str] = Counter()
    parts = max(1, count // 500)
    for part in range(parts):
        ended = lived(look_at, state, log, commits, seed + part, count // parts)
        assert ended.status == 0, (ended.out[-200:], ended.err)
        became.update(json.loads(ended.out.splitlines()[-1]))
    assert became.total() == count
    print(dict(became))
