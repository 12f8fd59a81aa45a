"""The two meta pages: what a file begins from is settled before anything is written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from abeyance.storage import roots
from abeyance.storage.environment import verify_file
from abeyance.storage.errors import DamagedStoreError, StoreIOError
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.precheck import PAGE_HEADER, TXN, read_meta, read_metas
from abeyance.storage.store import Committed, NotStored

A = ("a", 1)


class _Disk:
    """Writes of meta pages, which may be refused from one of them on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._write: Callable[..., None] = roots._write
        self.left: float = float("inf")
        self.keeps = 0.0
        """How much of the first one that is refused lands all the same."""
        monkeypatch.setattr(roots, "_write", self._put)

    def _put(self, fd: int, raw: bytes, offset: int) -> None:
        if self.left > 0:
            self.left -= 1
            self._write(fd, raw, offset)
            return
        landing, self.keeps = raw[: int(len(raw) * self.keeps)], 0.0
        if landing:
            self._write(fd, landing, offset)
        raise OSError(5, "Input/output error")


@pytest.fixture
def meta_disk(monkeypatch: pytest.MonkeyPatch) -> _Disk:
    return _Disk(monkeypatch)


@pytest.fixture
def state(tmp_path: Path, rows: Any) -> Path:
    store = _open(tmp_path / "state")
    for counter in range(4):
        store.commit(rows.cas(A, counter))
    store.close()
    return tmp_path / "state"


def _open(state: Path) -> LmdbStore:
    return LmdbStore.open(state, clock_ms=lambda: 1)


def _keep_a_commit_that_failed(state: Path, rows: Any) -> Path:
    """The file as it is where the disk has the meta page of a commit that was taken back."""
    data = state / "store" / "data.mdb"
    later = state.with_name("later")
    shutil.copytree(state, later)
    store = _open(later)
    store.close()
    raw = (later / "store" / "data.mdb").read_bytes()
    newest = read_meta(data).txn
    with data.open("r+b") as file:
        file.seek((newest + 1) % 2 * 4096)
        file.write(raw[(newest + 1) % 2 * 4096 :][:4096])
    return data


@pytest.mark.parametrize("keeps", [0.0, 0.5, 1.0], ids=["nothing", "half", "all"])
@pytest.mark.parametrize("done", range(4))
def test_a_state_is_settled_whatever_the_disk_keeps_of_writes_that_it_refuses(
    state: Path, rows: Any, meta_disk: _Disk, done: int, keeps: float
) -> None:
    data = state / "store" / "data.mdb"
    txn = read_meta(data).txn
    _keep_a_commit_that_failed(state, rows)
    kept = read_metas(data)[txn % 2]
    meta_disk.left, meta_disk.keeps = done, keeps
    if done < 3:
        with pytest.raises(OSError, match="Input/output"):
            roots.settle(data, txn)
        # It begins from the one or the other, each whole.
        assert read_meta(data).txn == (txn + 1 if done == 0 or (done, keeps) == (1, 0.0) else txn)
        assert read_metas(data)[txn % 2] == kept
    meta_disk.left = float("inf")
    roots.settle(data, txn)
    settled = read_metas(data)
    assert settled[txn % 2] == kept
    assert settled[1 - txn % 2] == kept._replace(txn=txn - 1)
    assert verify_file(str(data)) == []


def test_half_of_a_meta_page_is_never_half_of_a_newer_one(
    state: Path, rows: Any, meta_disk: _Disk
) -> None:
    data = state / "store" / "data.mdb"
    txn = read_meta(data).txn
    _keep_a_commit_that_failed(state, rows)
    wrote: list[tuple[int, int]] = []
    write = meta_disk._write
    meta_disk._write = lambda fd, raw, at: (wrote.append((at, len(raw))), write(fd, raw, at))[1]
    roots.settle(data, txn)
    other = (1 - txn % 2) * 4096
    assert wrote[1:] == [(other + TXN, 8), (other + PAGE_HEADER, TXN + 8 - PAGE_HEADER)]


def test_a_state_that_no_meta_page_tells_of_is_refused_and_nothing_is_written(state: Path) -> None:
    data = state / "store" / "data.mdb"
    before = data.read_bytes()
    with pytest.raises(DamagedStoreError, match="begins from no state 999"):
        roots.settle(data, 999)
    assert data.read_bytes() == before


def test_what_another_process_could_not_settle_is_settled_before_the_next_commit(
    state: Path, rows: Any, meta_disk: _Disk
) -> None:
    store = _open(state)
    data = state / "store" / "data.mdb"
    roots.mark(data)
    meta_disk.left = 0
    before = data.read_bytes()
    for _ in range(2):
        (outcome,) = store.commit(rows.cas(A, 4))
        assert isinstance(outcome, NotStored)
        assert type(outcome.error) is StoreIOError
    assert data.read_bytes() == before
    assert roots.is_marked(data)
    meta_disk.left = float("inf")
    assert isinstance(store.commit(rows.cas(A, 4))[0], Committed)
    assert not roots.is_marked(data)
    store.close()


@pytest.mark.parametrize("why", ["marked", "died"])
def test_an_opening_settles_what_a_process_left_that_died(
    state: Path, rows: Any, meta_disk: _Disk, why: str
) -> None:
    data = state / "store" / "data.mdb"
    if why == "marked":
        roots.mark(data)
    else:
        (state / "store" / "closed.json").unlink()
    meta_disk.left = 0
    before = data.read_bytes()
    with pytest.raises(StoreIOError, match="settling the meta pages"):
        _open(state)
    assert data.read_bytes() == before
    meta_disk.left = float("inf")
    store = _open(state)
    assert isinstance(store.commit(rows.cas(A, 4))[0], Committed)
    store.close()
    assert data.stat().st_nlink == 1
    # Behind a clean close there is nothing to settle.
    meta_disk.left = 0
    _open(state).close()


def test_a_file_with_another_name_of_somebody_elses_is_written_on(
    state: Path, rows: Any, meta_disk: _Disk
) -> None:
    data = state / "store" / "data.mdb"
    data.with_name("kept by a person").hardlink_to(data)
    meta_disk.left = 0
    store = _open(state)
    assert isinstance(store.commit(rows.cas(A, 4))[0], Committed)
    store.close()
