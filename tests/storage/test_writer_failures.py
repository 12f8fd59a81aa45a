"""Commits that fail, maps that fill, writers that die: each batch has one outcome, a true one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import lmdb
import pytest

from abeyance.storage import codec, lmdb_store, writer
from abeyance.storage.environment import Environment
from abeyance.storage.errors import (
    CommitFailedError,
    DamagedStoreError,
    DiskFullError,
    LockTimeoutError,
    MapLimitError,
    StoreClosedError,
    StoreIOError,
    StoreLostError,
    UnreadableRecordError,
)
from abeyance.storage.keys import encode_key
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.locks import FileLock
from abeyance.storage.store import (
    Chain,
    Committed,
    Delete,
    NeedsService,
    NotStored,
    Put,
    Refused,
    Request,
)
from abeyance.storage.tables import TABLES
from abeyance.storage.tables.blocks import TextBlock
from abeyance.storage.tables.slots import Body

A, B = ("a", 1), ("b", 1)


class _Failing:
    """Makes the next commits fail, before or after they are on disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._commit = Environment.commit
        self.plan: list[tuple[str, Exception]] = []
        monkeypatch.setattr(Environment, "commit", lambda *args: self._run(*args))

    def _run(self, environment: Environment, transaction: Any) -> None:
        if not self.plan:
            self._commit(environment, transaction)
            return
        when, error = self.plan.pop(0)
        if when == "after":
            self._commit(environment, transaction)
        raise error


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> _Failing:
    return _Failing(monkeypatch)


def _disk_error(code: int) -> Exception:
    error = lmdb.DiskError("mdb_txn_commit")
    error.code = code
    return error


@pytest.mark.parametrize("error", [_disk_error(28), _disk_error(5), lmdb.PanicError("panic")])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_batch_whose_commit_failed_is_stored_once_whichever_way_it_failed(
    lmdb_opener: Any, rows: Any, failing: _Failing, when: str, error: Exception
) -> None:
    store = lmdb_opener.open()
    store.commit(rows.cas(A, 0))
    failing.plan = [(when, error)]
    batch = [Request(puts=(rows.put(A), rows.put(B)), appends=(rows.log(),)), rows.cas(A, 7)]
    first, refused = store.commit(*batch)
    assert isinstance(first, Committed)
    assert isinstance(refused, Refused)
    assert refused.refusals[0].row.counter == 2
    assert (store.get("wakes", A).counter, store.get("wakes", B).counter) == (2, 1)
    assert [key for key, _ in store.scan("log")] == list(first.allotted)
    assert store.revision() == first.revision


def test_a_batch_that_fails_twice_is_not_stored_and_the_store_goes_on(
    lmdb_opener: Any, rows: Any, failing: _Failing
) -> None:
    store = lmdb_opener.open()
    failing.plan = [("before", _disk_error(28)), ("before", _disk_error(28))]
    (outcome,) = store.commit(rows.cas(A, 0, chain=Chain("s", 0)))
    assert isinstance(outcome.error, DiskFullError)
    assert store.get("wakes", A) is None
    # What was planned on it is refused; what is planned anew is stored.
    assert store.commit(rows.cas(B, 0, chain=Chain("s", 0))) == [Refused(behind=True)]
    assert isinstance(store.commit(rows.cas(A, 0, chain=Chain("s", 1)))[0], Committed)


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_close_is_clean_only_where_no_commit_failed(
    lmdb_opener: Any, rows: Any, failing: _Failing, failures: int
) -> None:
    store = lmdb_opener.open()
    failing.plan = [("before", _disk_error(5))] * failures
    store.commit(rows.cas(A, 0))
    store.close()
    looking = lmdb_opener.open(read_only=True)
    assert looking.get("meta", ("store",)).record.clean == (failures == 0)
    assert (looking.directory / "closed.json").exists() == (failures == 0)


@pytest.mark.parametrize(
    ("error", "kind"),
    [(lmdb.CorruptedError("page"), DamagedStoreError), (lmdb.BadTxnError("bad"), StoreIOError)],
    ids=["damage", "another"],
)
@pytest.mark.parametrize("how", ["get", "page"])
def test_what_the_engine_cannot_read_is_a_typed_error_and_the_close_is_not_clean(
    lmdb_opener: Any, monkeypatch: pytest.MonkeyPatch, how: str, error: Exception, kind: type
) -> None:
    store = lmdb_opener.open()

    def fail(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Environment, how, fail)
        with pytest.raises(kind):
            store.get("wakes", A) if how == "get" else list(store.scan("wakes"))
    store.close()
    looking = lmdb_opener.open(read_only=True)
    assert not looking.get("meta", ("store",)).record.clean


def test_a_second_commit_that_failed_after_it_was_on_disk_counts(
    lmdb_opener: Any, rows: Any, failing: _Failing
) -> None:
    store = lmdb_opener.open()
    failing.plan = [("before", _disk_error(5)), ("after", _disk_error(5))]
    (outcome,) = store.commit(rows.cas(A, 0))
    assert isinstance(outcome, Committed)
    assert store.get("wakes", A).counter == 1


def test_an_error_that_names_no_known_cause_is_a_failed_commit(
    lmdb_opener: Any, rows: Any, failing: _Failing
) -> None:
    store = lmdb_opener.open()
    failing.plan = [("before", _disk_error(5)), ("before", _disk_error(5))]
    (outcome,) = store.commit(rows.cas(A, 0))
    assert (type(outcome.error), outcome.error.errno) == (CommitFailedError, 5)


def test_a_store_that_can_t_be_opened_again_is_lost(
    lmdb_opener: Any, rows: Any, failing: _Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = lmdb_opener.open()

    def fail(self: Environment) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Environment, "reopen", fail)
    failing.plan = [("before", _disk_error(5))]
    (outcome,) = store.commit(rows.cas(A, 0))
    assert isinstance(outcome.error, StoreLostError)
    with pytest.raises(StoreLostError):
        store.commit(rows.cas(A, 0))
    assert issubclass(StoreLostError, StoreClosedError)


# --- the map


def _body(size: int) -> Any:
    return codec.encode(Body(blocks=(TextBlock(text="x" * size),)))


def test_the_map_grows_under_load_and_every_batch_is_stored(lmdb_opener: Any) -> None:
    store = lmdb_opener.open(map_bytes=2**19, map_bytes_max=2**26)
    value = _body(2_000)
    for batch in range(20):
        puts = [Request(puts=(Put("bodies", ("a", batch * 50 + n), value),)) for n in range(50)]
        assert all(isinstance(outcome, Committed) for outcome in store.commit(*puts))
    found = dict(store.scan("bodies"))
    assert sorted(key[1] for key in found) == list(range(1_000))
    assert all(row.counter == 1 for row in found.values())


def test_a_full_map_at_its_limit_is_an_error_and_the_store_goes_on(lmdb_opener: Any) -> None:
    store = lmdb_opener.open(map_bytes=2**19, map_bytes_max=2**20)
    for n in range(1_000):
        (outcome,) = store.commit(Request(puts=(Put("bodies", ("a", n), _body(20_000)),)))
        if not isinstance(outcome, Committed):
            break
    assert isinstance(outcome, NotStored)
    assert isinstance(outcome.error, MapLimitError)
    assert len(list(store.scan("bodies"))) == n
    gone = tuple(Delete("bodies", ("a", k)) for k in range(n // 2))
    assert isinstance(store.commit(Request(deletes=gone))[0], Committed)
    # The engine reuses pages from the second commit after the one that freed them.
    store.commit(Request(puts=(Put("bodies", ("b", 1), _body(10)),)))
    assert isinstance(
        store.commit(Request(puts=(Put("bodies", ("b", 0), _body(20_000)),)))[0], Committed
    )


def test_a_batch_asks_the_reading_thread_for_room_before_it_goes_on(lmdb_opener: Any) -> None:
    store = lmdb_opener.open(map_bytes=2**19, map_bytes_max=2**26)
    told = threading.Semaphore(0)
    answers: list[Any] = []
    large = Request(puts=tuple(Put("bodies", ("a", n), _body(50_000)) for n in range(20)))
    store.submit([large], lambda answer: (answers.append(answer), told.release()))
    while True:
        assert told.acquire(timeout=60)
        if not isinstance(answers[-1], NeedsService):
            break
        assert store.get("bodies", ("a", 0)) is None
        store.service()
    assert {answer.reason for answer in answers[:-1]} == {"grow"}
    assert isinstance(answers[-1][0], Committed)
    store.service()


_GROW = """
import sys
from abeyance.storage import codec
from abeyance.storage.keys import encode_key
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Put, Request
from abeyance.storage.tables import TABLES
from abeyance.storage.tables.blocks import TextBlock
from abeyance.storage.tables.slots import Body
store = LmdbStore.open(sys.argv[1], clock_ms=lambda: 1, map_bytes=2**25)
body = codec.encode(Body(blocks=(TextBlock(text="x" * 100_000),)))
store.commit(*(Request(puts=(Put("bodies", ("child", n), body),)) for n in range(40)))
store.close()
"""


@pytest.mark.parametrize("first", ["read", "write"])
def test_a_file_that_another_process_grew_is_read_and_written(
    lmdb_opener: Any, rows: Any, first: str
) -> None:
    store = lmdb_opener.open(map_bytes=2**20)
    store.commit(rows.cas(A, 0))
    subprocess.run(
        [sys.executable, "-c", _GROW, str(store.directory.parent)], check=True, timeout=60
    )
    if first == "read":
        assert len(list(store.scan("bodies", ("child",)))) == 40
    reasons = []
    service = store.service

    def note_service() -> None:
        reasons.append(store._writer._wanted)
        service()

    store.service = note_service
    assert isinstance(store.commit(rows.cas(A, 1))[0], Committed)
    assert reasons == (["resized"] if first == "write" else [])
    assert len(list(store.scan("bodies", ("child",)))) == 40


# --- the writer thread


class _Dying:
    """Lets the writer die of an exception at a crash point, so many times."""

    def __init__(self, point: str, times: int) -> None:
        self.point, self.left = point, times

    def __call__(self, name: str) -> None:
        if name == self.point and self.left:
            self.left -= 1
            raise MemoryError("told to die")


@pytest.mark.parametrize(
    "point", ["writer.after_flock", "writer.before_commit", "writer.after_commit"]
)
def test_a_writer_that_dies_once_is_replaced_and_its_batch_stored_once(
    lmdb_opener: Any, rows: Any, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    store = lmdb_opener.open()
    monkeypatch.setattr(writer, "crashpoint", _Dying(point, 1))
    (outcome,) = store.commit(Request(puts=(rows.put(A),), appends=(rows.log(),)))
    assert isinstance(outcome, Committed)
    assert store.get("wakes", A).counter == 1
    assert [key for key, _ in store.scan("log")] == list(outcome.allotted)
    assert isinstance(store.commit(rows.cas(A, 1))[0], Committed)


def test_a_writer_that_dies_twice_loses_the_store_and_leaves_the_lock(
    lmdb_opener: Any, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = lmdb_opener.open()
    store.commit(rows.cas(A, 0))
    monkeypatch.setattr(writer, "crashpoint", _Dying("writer.before_commit", 2))
    (outcome,) = store.commit(rows.cas(A, 1))
    assert isinstance(outcome.error, StoreLostError)
    assert isinstance(outcome.error.__cause__, MemoryError)
    with pytest.raises(StoreLostError):
        store.commit(rows.cas(A, 1))
    assert store.get("wakes", A).counter == 1
    lock = FileLock(store.directory / "write.lock")
    assert lock.acquire_nowait()
    lock.close()
    store.close()


def test_deaths_with_commits_between_them_do_not_add_up(
    lmdb_opener: Any, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = lmdb_opener.open()
    for counter in range(3):
        monkeypatch.setattr(writer, "crashpoint", _Dying("writer.before_commit", 1))
        assert isinstance(store.commit(rows.cas(A, counter))[0], Committed)


def test_a_requester_that_raises_does_not_end_the_writer(
    lmdb_opener: Any, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = lmdb_opener.open()
    reported: list[Any] = []
    told = threading.Event()

    def report(args: Any) -> None:
        reported.append(args.exc_value)
        told.set()

    def done(result: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(threading, "excepthook", report)
    store.submit([rows.cas(A, 0)], done)
    assert told.wait(60)
    assert isinstance(reported[0], ZeroDivisionError)
    assert isinstance(store.commit(rows.cas(A, 1))[0], Committed)


def test_only_the_writer_thread_may_write(lmdb_opener: Any) -> None:
    store = lmdb_opener.open()
    with pytest.raises(AssertionError), store._environment.writing():
        pass


def test_a_batch_that_can_t_have_the_lock_is_not_stored_and_the_next_one_is(
    lmdb_opener: Any, rows: Any
) -> None:
    store = lmdb_opener.open(lock_timeout_s=0.01)
    lock = FileLock(store.directory / "write.lock")
    assert lock.acquire_nowait()
    (outcome,) = store.commit(rows.cas(A, 0))
    assert isinstance(outcome.error, LockTimeoutError)
    assert outcome.error.holder == os.getpid()
    lock.close()
    assert isinstance(store.commit(rows.cas(A, 0))[0], Committed)


def test_nothing_is_written_into_a_directory_that_was_removed(lmdb_opener: Any, rows: Any) -> None:
    store = lmdb_opener.open()
    store.directory.rename(store.directory.with_name("elsewhere"))
    (outcome,) = store.commit(rows.cas(A, 0))
    assert isinstance(outcome.error, StoreLostError)
    assert store.get("wakes", A) is None
    store.directory.with_name("elsewhere").rename(store.directory)
    assert isinstance(store.commit(rows.cas(A, 0))[0], Committed)


def test_a_close_services_the_batch_it_waits_for(
    lmdb_opener: Any, failing: _Failing, rows: Any
) -> None:
    store = lmdb_opener.open()
    failing.plan = [("before", _disk_error(5))]
    answers: list[Any] = []
    store.submit([rows.cas(A, 0)], answers.append)
    store.close()
    assert isinstance(answers[-1][0], Committed)


def test_a_long_scan_is_cut_into_transactions_and_reads_every_row_once(
    lmdb_opener: Any, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmdb_store, "SCAN_ROWS_MAX", 7)
    store = lmdb_opener.open()
    store.commit(*(Request(puts=(rows.put(("a", n)),)) for n in range(50)))
    for reverse in (False, True):
        numbers = [key[1] for key, _ in store.scan("wakes", ("a",), reverse=reverse)]
        assert numbers == sorted(range(50), reverse=reverse)
    scan = store.scan("wakes")
    assert next(scan)[0] == ("a", 0)
    store.commit(Request(deletes=(Delete("wakes", ("a", 6)), Delete("wakes", ("a", 20)))))
    assert [key[1] for key, _ in scan] == [n for n in range(1, 50) if n != 20]


def test_a_store_opened_by_a_relative_path_stays_where_it_is(
    tmp_path: Path, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = LmdbStore.open("state", clock_ms=lambda: 1)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert isinstance(store.commit(rows.cas(A, 0))[0], Committed)
    store.close()


# --- rows that can't be read


def _damage(store: LmdbStore, table: str, key: Any, raw: bytes | None = None) -> None:
    """Write bytes past the codec, as a flipped bit would."""
    environment = store._environment
    encoded = encode_key(TABLES[table].key, key)
    before = environment.get(table, encoded)
    assert before is not None
    flipped = raw or before[:-1] + bytes([before[-1] ^ 1])
    with environment._env.begin(write=True) as transaction:  # type: ignore[union-attr]
        transaction.put(encoded, flipped, db=environment.tables[table])


def test_a_request_about_an_unreadable_row_is_refused_and_others_of_its_batch_are_not(
    lmdb_opener: Any, rows: Any
) -> None:
    store = lmdb_opener.open()
    store.commit(rows.cas(A, 0))
    _damage(store, "wakes", A)
    guarding, putting, other, deleting = store.commit(
        rows.cas(A, 1), Request(puts=(rows.put(A), rows.put(("c", 1)))), rows.cas(B, 0), Request()
    )
    for outcome in (guarding, putting):
        assert isinstance(outcome.error, UnreadableRecordError)
        assert outcome.error.key == A
    assert isinstance(other, Committed)
    assert isinstance(deleting, Committed)
    assert store.get("wakes", ("c", 1)) is None


def test_an_unreadable_row_can_be_deleted(lmdb_opener: Any, rows: Any) -> None:
    store = lmdb_opener.open()
    store.commit(rows.cas(A, 0))
    _damage(store, "wakes", A)
    (outcome,) = store.commit(Request(deletes=(Delete("wakes", A),)))
    assert isinstance(outcome, Committed)
    assert isinstance(store.commit(rows.cas(A, 0))[0], Committed)


def test_a_sequence_that_can_t_be_read_stops_appends_to_its_table_only(
    lmdb_opener: Any, rows: Any
) -> None:
    store = lmdb_opener.open()
    store.commit(Request(appends=(rows.log(),)))
    _damage(store, "sequences", ("log",))
    (outcome,) = store.commit(Request(appends=(rows.log(),)))
    assert isinstance(outcome.error, UnreadableRecordError)
    assert isinstance(store.commit(rows.cas(A, 0))[0], Committed)


def test_stored_values_survive_a_copy_of_the_files(
    lmdb_opener: Any, rows: Any, tmp_path: Path
) -> None:
    store = lmdb_opener.open()
    store.commit(rows.cas(A, 0))
    store.close()
    shutil.copytree(store.directory.parent, tmp_path / "copy")
    other = LmdbStore.open(tmp_path / "copy", clock_ms=lambda: 1)
    assert other.get("wakes", A) is not None
    other.close()
