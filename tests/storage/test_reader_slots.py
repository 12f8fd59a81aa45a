"""The engine's table of readers: who may look, when others that look have taken every slot."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from abeyance.storage.backup import backup
from abeyance.storage.check import check
from abeyance.storage.environment import CLEAR_READERS_EVERY, Environment
from abeyance.storage.errors import ReaderSlotsFullError, StoreLostError
from abeyance.storage.keys import encode_key
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.readers import READERS_MAX
from abeyance.storage.store import Committed, NotStored, Request

Spawn = Callable[..., subprocess.Popen[str]]
KEY = ("ana", 1)


def hold(spawn: Spawn, store: LmdbStore, slots: int) -> subprocess.Popen[str]:
    child = spawn("reader.py", store.directory, slots)
    assert child.stdout is not None
    assert child.stdout.readline() == f"holding {slots}\n"
    return child


def test_slots_of_readers_that_were_killed_are_taken_back(
    lmdb_opener: Any, rows: Any, spawn: Spawn
) -> None:
    store = lmdb_opener.open()
    store.commit(rows.cas(KEY, 0))
    # More processes than there are slots, one after the other: none of them gives its own back.
    for _ in range(3):
        child = hold(spawn, store, READERS_MAX)
        child.kill()
        child.wait()
        assert store.get("wakes", KEY).counter == 1
        store._environment.reopen()  # It let its own slot go, so that the next child finds all.
    assert check(store).is_sound


def test_slots_that_live_processes_hold_are_an_error_that_names_them_and_it_goes_on_after(
    lmdb_opener: Any, rows: Any, spawn: Spawn, tmp_path: Path
) -> None:
    store = lmdb_opener.open()
    some, others = hold(spawn, store, 100), hold(spawn, store, READERS_MAX - 100)
    os.kill(some.pid, signal.SIGSTOP)  # One that stands still lives.

    def refused(act: Callable[[], Any]) -> None:
        with pytest.raises(ReaderSlotsFullError) as caught:
            act()
        assert set(caught.value.pids) == {some.pid, others.pid}
        assert f"{some.pid} (100)" in str(caught.value)

    refused(lambda: store.get("wakes", KEY))
    refused(lambda: list(store.scan("wakes")))
    # Writing takes no slot, and what is acknowledged is there.
    assert isinstance(store.commit(rows.cas(KEY, 0))[0], Committed)
    refused(lambda: store.get("wakes", KEY))
    others.communicate()
    assert store.get("wakes", KEY).counter == 1
    # Whoever has read keeps a slot for the next time: a host reads on beside any number.
    left = READERS_MAX - 101
    more = hold(spawn, store, left)
    assert store.get("wakes", KEY).counter == 1
    more.communicate()
    some.kill()
    store.close()
    looked = lmdb_opener.open(read_only=True)
    assert looked.get("meta", ("store",)).record.clean


def test_an_opening_to_look_and_a_backup_without_a_slot_are_refused_by_name(
    lmdb_opener: Any, spawn: Spawn, tmp_path: Path
) -> None:
    store = lmdb_opener.open()
    state = store.directory.parent
    child = hold(spawn, store, READERS_MAX)
    store.close()
    for act in (
        lambda: lmdb_opener.open(read_only=True),
        lambda: backup(state, tmp_path / "copy", clock_ms=lambda: 1),
    ):
        with pytest.raises(ReaderSlotsFullError) as caught:
            act()
        assert caught.value.pids == (child.pid,)
    assert not (tmp_path / "copy").exists()
    child.communicate()
    assert backup(state, tmp_path / "copy", clock_ms=lambda: 1).findings == 0


@pytest.mark.parametrize("stale", [True, False], ids=["killed", "alive"])
def test_a_store_is_opened_for_writing_beside_a_full_table(
    lmdb_opener: Any, rows: Any, spawn: Spawn, stale: bool
) -> None:
    store = lmdb_opener.open()
    child = hold(spawn, store, READERS_MAX)
    store.close()
    if not stale:
        with pytest.raises(ReaderSlotsFullError) as caught:
            lmdb_opener.open()
        assert caught.value.pids == (child.pid,)
    child.kill()
    child.wait()
    assert lmdb_opener.open().get("wakes", KEY) is None


def test_a_reader_that_was_killed_keeps_no_pages_of_a_store_that_goes_on(
    lmdb_opener: Any, rows: Any, spawn: Spawn
) -> None:
    store = lmdb_opener.open()
    child = hold(spawn, store, 1)
    child.kill()
    child.wait()
    data = store.directory / "data.mdb"
    for _ in range(CLEAR_READERS_EVERY):
        store.commit(Request(puts=(rows.put(KEY),)))
    size = data.stat().st_size
    for _ in range(CLEAR_READERS_EVERY):
        store.commit(Request(puts=(rows.put(KEY),)))
    assert data.stat().st_size - size <= 16 * 4096
    assert str(child.pid) not in store._environment._handle().readers()


class FailsOnce:
    """The next commit is on disk, and fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.commit = Environment.commit
        self.failed = False
        self.before: Callable[[Environment], object] = lambda environment: None
        monkeypatch.setattr(Environment, "commit", lambda *args: self(*args))

    def __call__(self, environment: Environment, transaction: Any) -> None:
        self.commit(environment, transaction)
        if not self.failed:
            self.failed = True
            self.before(environment)
            raise lmdb.DiskError("told to fail")


def test_a_commit_that_failed_is_settled_where_the_own_slot_is_the_last(
    lmdb_opener: Any, rows: Any, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = lmdb_opener.open()
    hold(spawn, store, READERS_MAX - 1)
    FailsOnce(monkeypatch)
    assert isinstance(store.commit(rows.cas(KEY, 0))[0], Committed)


def test_a_commit_of_which_nobody_can_tell_whether_it_is_stored_is_not_called_not_stored(
    lmdb_opener: Any, rows: Any, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own row of `processes`, which says, is damaged; and another time no slot is left."""
    store = lmdb_opener.open()
    process = encode_key((str,), (store.nonce,))

    def damage(environment: Environment) -> None:
        with environment._handle().begin(write=True) as transaction:
            transaction.put(process, b"damaged", db=environment.tables["processes"])

    FailsOnce(monkeypatch).before = damage
    (outcome,) = store.commit(rows.cas(KEY, 0))
    assert isinstance(outcome, NotStored)
    assert isinstance(outcome.error, StoreLostError)
    store.close()
    again = lmdb_opener.open()
    assert again.get("wakes", KEY).counter == 1  # It was stored.
    hold(spawn, again, READERS_MAX)
    FailsOnce(monkeypatch)
    (outcome,) = again.commit(rows.cas(KEY, 1))
    assert isinstance(outcome, NotStored)
    assert isinstance(outcome.error, StoreLostError)
    assert isinstance(outcome.error.__cause__, ReaderSlotsFullError)
