"""What waits and releases come to when a commit raises: looked up, kept, recorded once, in order.

On the embedded store, whose commits fail before or after they are on disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from abeyance.actors.domain.protocol import ReleasedWait
from abeyance.actors.domain.wait_book import WaitBook
from abeyance.actors.testing import WallClock
from abeyance.storage.environment import Environment
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Store
from abeyance.storage.tables.waits import Wait, WaitReleased

from .books import KEY, Books, open_books
from .desk import Spotty, lines, rows

EARLIER, OTHER = ("ana", "m0"), ("bo", "m1")
YEAR_MS = 365 * 86_400 * 1_000


class Failing:
    """Makes the next commits raise, before or after they are on disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._commit, self._reopen = Environment.commit, Environment.reopen
        self.plan: tuple[str, ...] = ()
        self.reopened = 0
        monkeypatch.setattr(Environment, "commit", lambda *args: self._run(*args))
        monkeypatch.setattr(Environment, "reopen", lambda *args: self._open(*args))

    def _run(self, environment: Environment, transaction: Any) -> None:
        when, self.plan = (self.plan or ("",))[0], self.plan[1:]
        if when != "before":
            self._commit(environment, transaction)
        if when:
            error = lmdb.DiskError("mdb_txn_commit: Input/output error")
            error.code = 5
            raise error

    def _open(self, environment: Environment) -> None:
        self.reopened += 1
        self._reopen(environment)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    return Failing(monkeypatch)


class Disk:
    """One state directory, opened once after another as by processes."""

    def __init__(self, path: Path) -> None:
        self.clock = WallClock()
        self._path = path
        self.store: Any = None

    def open(self) -> Store:
        """Open the store as the next process would; what had it open has closed it."""
        if self.store is not None:
            self.store.close()
        self.store = LmdbStore.open(self._path, clock_ms=self.clock.now_ms)
        return self.store


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "state")
    yield made
    if made.store is not None:
        made.store.close()


WAYS = {
    "before it landed": (("before",), "recorded"),
    "after it landed": (("after",), "recorded"),
    "before, and again before": (("before", "before"), "pending"),
    "before, and then after": (("before", "after"), "recorded"),
    "four times before": (("before",) * 4, "pending"),
}
however = pytest.mark.parametrize(("plan", "reach"), WAYS.values(), ids=WAYS)


@pytest.mark.behaviour("R-16", "W-034", "W-035", "W-037")
@however
async def test_recording_goes_on_after_a_commit_that_raised_with_every_act_once_and_no_restart(
    disk: Disk, failing: Failing, plan: tuple[str, ...], reach: str
) -> None:
    def is_recorded(store: Store) -> None:
        found = rows(store, "waits")
        assert {key: type(row) for key, row in found.items()} == {
            EARLIER: WaitReleased,
            KEY: Wait,
            OTHER: Wait,
        }
        row = store.get("waits", KEY)
        assert row is not None
        assert row.counter == 1, "it was put twice"
        said = [line.split(": ")[-1].split()[0] for line in lines(store)]
        assert said == ["earlier", "raised", "next", "by"]

    async with open_books(disk.open(), disk.clock) as books:
        await books.set(600, key=EARLIER, why="earlier")
        failing.plan = plan
        receipt = await books.set(900, why="raised")
        assert (receipt.changed, receipt.reach) == (True, reach)
        assert books.left_s() == 900, "it binds, stored or not"
        second = await books.set(60, key=OTHER, why="next")
        assert second.reach == ("recorded" if len(plan) < 3 else "pending")
        assert books.left_s(*OTHER) == 60
        released = (await books.release(*EARLIER)).released
        assert released == (ReleasedWait(*EARLIER, "recorded"),)
        assert books.book.pending == []
        assert failing.reopened == len(plan)
        is_recorded(disk.store)
    is_recorded(disk.open())
    async with open_books(disk.store, disk.clock) as books:
        assert (books.left_s(), books.left_s(*EARLIER), books.left_s(*OTHER)) == (900, None, 60)


@pytest.mark.behaviour("W-036", "R-16")
@however
async def test_a_release_whose_commit_raised_is_recorded_by_the_next_act_and_lifts_after_a_restart(
    disk: Disk, failing: Failing, plan: tuple[str, ...], reach: str
) -> None:
    plan = plan[:2]
    async with open_books(disk.open(), disk.clock) as books:
        await books.set(None)
        failing.plan = plan
        assert (await books.release()).released == (ReleasedWait(*KEY, reach),)
        assert await books.held() is None
        assert (await books.set(60, key=OTHER)).reach == "recorded"
        assert len(lines(disk.store)) == 3
    async with open_books(disk.open(), disk.clock) as books:
        assert await books.held() is None
        assert books.left_s(*OTHER) == 60


@pytest.mark.behaviour("W-030", "R-16")
@however
async def test_a_release_behind_a_set_whose_commit_raised_stays_a_release_through_70_acts(
    disk: Disk, failing: Failing, plan: tuple[str, ...], reach: str
) -> None:
    async def others(books: Books) -> None:
        for number in range(70):
            assert (await books.set(60, key=("bo", f"m{number}"))).reach == "recorded"

    async with open_books(disk.open(), disk.clock) as books:
        failing.plan = plan[:2]
        assert (await books.set(None)).reach == reach
        assert (await books.release()).released == (ReleasedWait(*KEY, "recorded"),)
        await others(books)
        assert await books.held() is None
    async with open_books(disk.open(), disk.clock) as books:
        assert await books.held() is None
        assert len(books.book.listing()) == 70
        assert len(lines(disk.store)) == 72


@pytest.mark.behaviour("W-032")
async def test_storage_holds_what_is_durable_and_nothing_pending_however_many_acts_follow() -> None:
    store = Spotty()
    async with open_books(store) as books:
        await books.set(60, why="before")
        store.bad = {KEY}
        books.book.forget("ana")
        assert (await books.set(900, why="pending")).reach == "pending"
        for number in range(70):
            assert (await books.set(60, key=("bo", f"m{number}"))).reach == "recorded"
        assert [act.key for act in books.book.pending] == [KEY]
    left = store.reopened()
    left.bad = set()
    kept = rows(left, "waits")
    assert (len(kept), kept[KEY].reason) == (71, "before")
    assert not any("pending" in line for line in lines(left))


@pytest.mark.behaviour("W-033")
@pytest.mark.parametrize("after_s", [600, None], ids=["an instant", "no end"])
async def test_a_wait_keeps_its_end_reason_and_instant_through_70_others_and_a_shorter_one(
    disk: Disk, after_s: float | None
) -> None:
    async with open_books(disk.open(), disk.clock) as books:
        first = (await books.set(after_s, why="long")).binding
        for number in range(70):
            disk.clock.advance(1)
            await books.set(60, key=("bo", f"m{number}"))
        shorter = await books.set(10, why="short")
        assert (shorter.changed, shorter.binding) == (False, first)
    disk.open()
    assert WaitBook(disk.store, disk.clock).listing("ana") == (first,)
    async with open_books(disk.store, disk.clock) as books:
        await books.set(10, why="short again")
        assert books.book.listing("ana") == (first,)
