"""What is opened was looked at first; what is refused is refused by name, and was not changed."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from abeyance.storage import closed, directory, lmdb_store, locks, precheck
from abeyance.storage.errors import (
    AlreadyOpenError,
    DamagedStoreError,
    ForeignDirectoryError,
    ForkedStoreError,
    LockTimeoutError,
    MissingStoreError,
    NewerFormatError,
    NoFileLocksError,
    ReadOnlyStoreError,
    StorageError,
    StoreEmptiedError,
    UnreadableRecordError,
)
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.locks import FileLock
from abeyance.storage.store import Committed, Request
from abeyance.storage.tables import FORMAT

CHILDREN = Path(__file__).parent / "children"


def _open(state: Path, **options: Any) -> LmdbStore:
    return LmdbStore.open(state, clock_ms=lambda: 5, **options)


def _open_in_a_child(state: Path) -> subprocess.CompletedProcess[str]:
    """Open where the engine may end the process; prints the name of what was raised."""
    script = (
        "import sys\nfrom abeyance.storage.lmdb_store import LmdbStore\n"
        "try: LmdbStore.open(sys.argv[1], clock_ms=lambda: 1)\n"
        "except Exception as error: print(type(error).__name__)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", script, str(state)], capture_output=True, text=True, check=False
    )


def _files(path: Path) -> dict[str, bytes]:
    """What is there, apart from lock files, whose content is nobody's data."""
    found = {}
    for entry in sorted(path.rglob("*")):
        if entry.is_file() and not entry.name.endswith(("lock", "lock.mdb")):
            found[str(entry.relative_to(path))] = entry.read_bytes()
    return found


@pytest.fixture
def state(tmp_path: Path, rows: Any) -> Path:
    """A state directory with a few hundred rows, closed cleanly."""
    store = _open(tmp_path / "state")
    for batch in range(5):
        store.commit(*(Request(puts=(rows.put(("a", batch * 100 + n)),)) for n in range(100)))
    store.close()
    return tmp_path / "state"


# --- making and finding


def test_a_new_store_is_private_and_complete(tmp_path: Path) -> None:
    store = _open(tmp_path / "deep" / "state")
    store.close()
    root = tmp_path / "deep" / "state"
    assert [p.name for p in root.iterdir()] == ["store"]
    for path in (root, root / "store", root / "store" / "owners"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for path in (root / "store").iterdir():
        if path.is_file():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_store_is_made_inside_an_empty_directory_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    _open(tmp_path).close()
    assert (tmp_path / "store" / "data.mdb").exists()


def test_what_a_death_left_half_made_is_swept_away(tmp_path: Path) -> None:
    half = tmp_path / "store.creating-0000"
    half.mkdir()
    (half / "data.mdb").write_bytes(b"half")
    _open(tmp_path).close()
    assert [p.name for p in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("step", ["crashpoint", "FileLock", "write_json"])
def test_a_store_that_fails_to_be_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    made = getattr(directory, step)

    def fail(on: object, *others: object) -> object:
        # The directory's own lock is no part of what is made.
        if on == tmp_path / "state":
            return made(on, *others)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(directory, step, fail)
    with pytest.raises(StorageError):
        _open(tmp_path / "state")
    assert list((tmp_path / "state").iterdir()) == []


def test_a_new_store_is_synced_before_and_after_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill can't show a missing sync, so the order of the steps is looked at."""
    steps: list[str] = []
    sync = directory.sync_directory

    def note_sync(path: Path) -> None:
        steps.append(f"sync {path.name[:8]}")
        sync(path)

    monkeypatch.setattr(directory, "sync_directory", note_sync)
    monkeypatch.setattr(directory, "crashpoint", steps.append)
    _open(tmp_path / "state").close()
    assert steps == [
        f"sync {tmp_path.name[:8]}",
        "sync store.cr",
        "open.before_rename",
        "open.after_rename",
        "sync state",
    ]


@pytest.mark.parametrize("options", [{"create": False}, {"read_only": True}])
def test_a_store_that_is_not_there_is_not_made_unless_asked(
    tmp_path: Path, options: dict[str, bool]
) -> None:
    with pytest.raises(MissingStoreError):
        _open(tmp_path / "state", **options)
    assert list(tmp_path.iterdir()) == []


def test_each_opening_is_counted_and_a_clean_close_recorded(state: Path) -> None:
    for boots in (2, 3):
        store = _open(state)
        meta = store.get("meta", ("store",))
        assert (meta.record.boots, meta.record.clean) == (boots, False)  # type: ignore[union-attr]
        store.close()
        looking = _open(state, read_only=True)
        assert looking.get("meta", ("store",)).record.clean  # type: ignore[union-attr]
        looking.close()


# --- refused, unchanged


def _foreign(state: Path) -> None:
    shutil.rmtree(state)
    state.mkdir()
    (state / "thesis.txt").write_text("mine")


def _file(state: Path) -> None:
    shutil.rmtree(state)
    state.write_text("mine")


def _dangling(state: Path) -> None:
    shutil.rmtree(state)
    state.symlink_to(state.parent / "gone")


def _truncate_to(size: int | float) -> Callable[[Path], None]:
    def damage(state: Path) -> None:
        data = state / "store" / "data.mdb"
        os.truncate(data, size if isinstance(size, int) else int(data.stat().st_size * size))

    return damage


def _zero_pages(first: int, count: int) -> Callable[[Path], None]:
    def damage(state: Path) -> None:
        with (state / "store" / "data.mdb").open("r+b") as file:
            file.seek(first * 4096)
            file.write(bytes(count * 4096))

    return damage


def _garbage(state: Path) -> None:
    data = state / "store" / "data.mdb"
    data.write_bytes(b"not a database " * 1000)


def _delete(name: str) -> Callable[[Path], None]:
    return lambda state: (state / "store" / name).unlink()


def _store_json(**fields: Any) -> Callable[[Path], None]:
    def damage(state: Path) -> None:
        path = state / "store" / "store.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return damage


def _other_data(state: Path) -> None:
    other = state.parent / "other"
    _open(other).close()
    shutil.copy(other / "store" / "data.mdb", state / "store" / "data.mdb")


_DAMAGES: dict[str, tuple[Callable[[Path], None], type[StorageError]]] = {
    "foreign": (_foreign, ForeignDirectoryError),
    "a file": (_file, ForeignDirectoryError),
    "a link to nothing": (_dangling, ForeignDirectoryError),
    "truncated to half": (_truncate_to(0.5), DamagedStoreError),
    "truncated in the meta pages": (_truncate_to(5_000), DamagedStoreError),
    "truncated to a few bytes": (_truncate_to(20), DamagedStoreError),
    "emptied": (_truncate_to(0), StoreEmptiedError),
    "data deleted": (_delete("data.mdb"), StoreEmptiedError),
    "first meta page zeroed": (_zero_pages(0, 1), DamagedStoreError),
    "second meta page zeroed": (_zero_pages(1, 1), DamagedStoreError),
    "garbage": (_garbage, DamagedStoreError),
    "store.json deleted": (_delete("store.json"), DamagedStoreError),
    "store.json of another type": (_store_json(store_id=5), DamagedStoreError),
    "another store's data": (_other_data, DamagedStoreError),
    "newer format": (_store_json(format=FORMAT + 1), NewerFormatError),
}


@pytest.mark.parametrize("read_only", [False, True], ids=["to write", "to look"])
@pytest.mark.parametrize("name", sorted(_DAMAGES))
def test_a_directory_that_can_t_be_trusted_is_refused_and_not_changed(
    state: Path, name: str, read_only: bool
) -> None:
    damage, error = _DAMAGES[name]
    damage(state)
    before = _files(state.parent)
    with pytest.raises(error) as caught:
        _open(state, read_only=read_only)
    assert str(state) in str(caught.value)
    assert type(caught.value) is error
    if name != "another store's data" or read_only:
        assert _files(state.parent) == before


@pytest.mark.parametrize("walk", [False, True], ids=["verified", "walked"])
@pytest.mark.parametrize("part", [0.2, 0.5, 0.8])
def test_pages_zeroed_in_an_unclean_store_are_found_before_the_engine_sees_them(
    state: Path, part: float, walk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if walk:
        monkeypatch.setattr(precheck, "VERIFY_BYTES_MAX", 0)
    (state / "store" / "closed.json").unlink()
    data = state / "store" / "data.mdb"
    _open(state).close()
    (state / "store" / "closed.json").unlink()
    pages = data.stat().st_size // 4096
    _zero_pages(2, int(pages * part))(state)
    with pytest.raises(DamagedStoreError) as caught:
        _open(state)
    assert caught.value.findings


def test_a_sound_file_passes_both_ways_of_looking(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in (precheck.VERIFY_BYTES_MAX, 0):
        monkeypatch.setattr(precheck, "VERIFY_BYTES_MAX", limit)
        (state / "store" / "closed.json").unlink()
        store = _open(state)
        assert len(list(store.scan("wakes"))) == 500
        store.close()


def test_a_clean_close_spares_the_next_open_the_long_look(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    monkeypatch.setattr(lmdb_store, "verify_file", lambda path: looked.append(path) or [])
    _open(state).close()
    assert looked == []
    (state / "store" / "closed.json").write_text('{"txn": 1, "last_page": 1}')
    _open(state).close()
    assert len(looked) == 1


def _flip(data: Path) -> None:
    """Change one bit in the file, and have it look as if it was written when it was."""
    was = data.stat()
    with data.open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        (byte,) = file.read(1)
        file.seek(-100, os.SEEK_END)
        file.write(bytes([byte ^ 1]))
    os.utime(data, ns=(was.st_atime_ns, was.st_mtime_ns))


@pytest.mark.parametrize("small", [True, False], ids=["by its bytes", "by the file system"])
def test_a_file_that_was_changed_behind_a_clean_close_is_looked_at_before_the_engine_gets_it(
    state: Path, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    looked: list[str] = []
    monkeypatch.setattr(lmdb_store, "verify_file", lambda path: looked.append(path) or [])
    if not small:
        monkeypatch.setattr(closed, "SUMMED_BYTES_MAX", 0)
    _open(state).close()
    looked.clear()
    _open(state).close()
    assert looked == []
    _flip(state / "store" / "data.mdb")
    _open(state, read_only=True).close()
    assert len(looked) == 1


def test_a_copy_of_a_small_store_is_as_clean_as_what_it_is_of(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    _open(state).close()
    monkeypatch.setattr(lmdb_store, "verify_file", lambda path: looked.append(path) or [])
    copy = state.with_name("copy")
    shutil.copytree(state, copy)
    _open(copy).close()
    assert looked == []


def test_a_note_of_a_clean_close_by_an_earlier_version_does_not_spare_the_long_look(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    _open(state).close()
    monkeypatch.setattr(lmdb_store, "verify_file", lambda path: looked.append(path) or [])
    note = state / "store" / "closed.json"
    said = json.loads(note.read_bytes())
    del said["data"]
    note.write_text(json.dumps(said))
    _open(state).close()
    assert len(looked) == 1


@pytest.mark.parametrize("read_only", [False, True])
def test_the_long_look_is_taken_after_a_clean_close_where_it_is_asked_for(
    state: Path, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    looked: list[str] = []
    monkeypatch.setattr(lmdb_store, "verify_file", lambda path: looked.append(path) or [])
    _open(state, read_only=read_only, verify=True).close()
    assert len(looked) == 1


def test_a_file_that_changes_while_it_is_looked_at_is_looked_at_again(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metas = itertools.count(1)
    looked: list[str] = []

    def confused(path: str) -> list[str]:
        looked.append(path)
        return ["a page that was written just now"] if len(looked) == 1 else []

    def changing(path: Path) -> Any:
        return read_meta(path)._replace(txn=next(metas))

    read_meta = precheck.read_meta
    monkeypatch.setattr(lmdb_store, "verify_file", confused)
    monkeypatch.setattr(lmdb_store, "read_meta", changing)
    _open(state, read_only=True, verify=True).close()
    assert len(looked) == 2


def test_a_look_that_the_writes_of_a_process_that_started_meanwhile_confuse_is_none(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metas, running = itertools.count(1), iter([False, True])
    read_meta = precheck.read_meta

    def changing(path: Path) -> Any:
        return read_meta(path)._replace(txn=next(metas))

    monkeypatch.setattr(lmdb_store, "verify_file", lambda _path: ["a page written just now"])
    monkeypatch.setattr(lmdb_store, "read_meta", changing)
    monkeypatch.setattr(lmdb_store, "_is_running", lambda _store: next(running))
    _open(state, read_only=True, verify=True).close()


def test_a_refused_store_does_not_kill_the_process_that_looks(state: Path) -> None:
    """In a child, since the engine would end this process if it were given the file."""
    _truncate_to(0.5)(state)
    found = _open_in_a_child(state)
    assert (found.returncode, found.stdout) == (0, "DamagedStoreError\n")


def test_one_damaged_row_hides_no_other(state: Path) -> None:
    """A flipped bit in the file, in a row's body: it and only it is unreadable."""
    data = state / "store" / "data.mdb"
    raw = bytearray(data.read_bytes())
    at = [n for n in range(len(raw)) if raw.startswith(b"author\xa3ana", n)]
    for place in at:
        raw[place + 8] ^= 1
    data.write_bytes(raw)
    store = _open(state)
    good = bad = 0
    for key, row in store.scan("wakes"):
        if isinstance(row, UnreadableRecordError):
            assert (row.table, row.key, row.cause) == ("wakes", key, "checksum")
            bad += 1
            with pytest.raises(UnreadableRecordError):
                store.get("wakes", key)
        else:
            good += 1
    store.close()
    assert bad > 0
    assert good + bad == 500


# --- who has it open


@pytest.mark.parametrize("read_only", [False, True])
def test_a_second_opening_in_one_process_is_an_error_by_whatever_path(
    state: Path, tmp_path: Path, read_only: bool
) -> None:
    store = _open(state)
    (tmp_path / "link").symlink_to(state)
    for path in (state, tmp_path / "link", tmp_path / "link" / ".." / "state"):
        with pytest.raises(AlreadyOpenError):
            _open(path, read_only=read_only)
    assert isinstance(store.commit(Request())[0], Committed)
    store.close()
    _open(state).close()


def test_other_processes_may_open_it_and_see_one_another(
    state: Path, spawn: Any, rows: Any
) -> None:
    store = _open(state)
    child = spawn("writer.py", state, 3, "plain")
    out, err = child.communicate(timeout=60)
    assert out.splitlines()[-1] == "closed", err
    assert len(list(store.scan("wakes", (f"p{child.pid}",)))) == 15
    assert isinstance(store.commit(rows.cas((f"p{child.pid}", 0), 1))[0], Committed)
    store.close()


def test_a_close_is_clean_only_for_the_last_one(state: Path, spawn: Any) -> None:
    store = _open(state)
    child = spawn("writer.py", state, 1, "plain")
    child.communicate(timeout=60)
    assert not store.get("meta", ("store",)).record.clean  # type: ignore[union-attr]
    store.close()
    looking = _open(state, read_only=True)
    assert looking.get("meta", ("store",)).record.clean  # type: ignore[union-attr]
    looking.close()


def test_looking_takes_nothing_and_writes_nothing(state: Path, spawn: Any, rows: Any) -> None:
    before = _files(state)
    looking = _open(state, read_only=True)
    assert looking.nonce == ""
    assert len(list(looking.scan("wakes"))) == 500
    with pytest.raises(ReadOnlyStoreError):
        looking.commit(rows.cas(("x", 1), 0))
    looking.close()
    assert _files(state) == before
    owner = spawn("owner.py", state, "ana")
    assert owner.stdout.readline() == "open\n"
    looking = _open(state, read_only=True)
    assert len(list(looking.scan("processes"))) == 2
    looking.close()


def test_a_forked_child_can_t_use_the_store_and_the_parent_can(state: Path, rows: Any) -> None:
    store = _open(state)
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (
            lambda: store.get("wakes", ("a", 1)),
            lambda: list(store.scan("wakes")),
            lambda: store.commit(Request()),
            lambda: store.revision(),
        ):
            try:
                call()
            except ForkedStoreError:
                refused += 1
        store.close()
        os._exit(0 if refused == 4 else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert isinstance(store.commit(rows.cas(("b", 1), 0))[0], Committed)
    lock = FileLock(store.directory / "open.lock")
    assert not lock.acquire_nowait(), "the child gave its parent's lock away"
    lock.close()
    store.close()


# --- where it can't be written


def test_a_directory_that_can_t_be_written_is_said_to_be_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ReadOnlyStoreError):
        _open(tmp_path / "state")


def test_a_store_that_is_another_users_says_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _open(tmp_path / "state")
    store.close()
    owner = os.geteuid()

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(tmp_path / "state" / "store"))

    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    monkeypatch.setattr(Path, "iterdir", refuse)
    monkeypatch.setattr(Path, "read_text", refuse)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ReadOnlyStoreError) as caught:
        _open(tmp_path / "state")
    said = f"it belongs to user {owner} and this process is user {owner + 1}"
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    if (
        mount is None
        or subprocess.run(
            [mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)],
            capture_output=True,
            check=False,
        ).returncode
    ):
        pytest.skip("no file system can be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_read_only_file_system_is_refused_to_write_and_can_be_looked_at(
    small_disk: Path, rows: Any
) -> None:
    store = _open(small_disk / "state")
    store.commit(rows.cas(("a", 1), 0))
    store.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    before = _files(small_disk)
    with pytest.raises(ReadOnlyStoreError):
        _open(small_disk / "state")
    with pytest.raises(ReadOnlyStoreError):
        _open(small_disk / "other")
    looking = _open(small_disk / "state", read_only=True)
    assert looking.get("wakes", ("a", 1)) is not None
    looking.close()
    assert _files(small_disk) == before


def test_a_full_disk_is_named_and_nothing_is_left_half_made(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(b"x" * (2**20 - 3 * 4096))
    with pytest.raises(StorageError) as caught:
        _open(small_disk / "state")
    assert type(caught.value).__name__ == "DiskFullError"
    if (small_disk / "state").exists():
        assert list((small_disk / "state").iterdir()) == []


def test_a_lock_file_without_room_is_an_error_and_not_the_end_of_the_process(
    small_disk: Path,
) -> None:
    """The engine maps that file: a hole in it on a full disk would be SIGBUS."""
    state = small_disk / "state"
    _open(state).close()
    (state / "store" / "lock.mdb").unlink()
    with (small_disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    found = _open_in_a_child(state)
    assert (found.returncode, found.stdout) == (0, "DiskFullError\n")


@pytest.mark.parametrize("how", ["limit", "disk"])
def test_a_store_that_ran_out_of_room_reads_on_and_writes_on_once_there_is_some(
    how: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    where = request.getfixturevalue("small_disk") if how == "disk" else tmp_path
    found = subprocess.run(
        [sys.executable, str(CHILDREN / "full.py"), str(where / "state"), how],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.stdout.splitlines() == ["full DiskFullError True", "room True 1"], found.stderr


def test_a_lock_held_too_long_names_its_holder(state: Path) -> None:
    lock = FileLock(state / "store" / "write.lock")
    assert lock.acquire_nowait()
    with pytest.raises(LockTimeoutError) as caught:
        _open(state, lock_timeout_s=0.01)
    assert caught.value.holder == os.getpid()
    lock.close()
    _open(state).close()


def test_a_lock_that_another_process_took_later_names_that_process(state: Path, spawn: Any) -> None:
    """The pid noted in the file may be an earlier holder's; the kernel knows better."""
    path = state / "store" / "write.lock"
    lock = FileLock(path)
    script = (
        "import sys, pathlib\nfrom abeyance.storage.locks import FileLock\n"
        "lock = FileLock(pathlib.Path(sys.argv[1]))\nassert lock.acquire_nowait()\n"
        "print('locked', flush=True)\nsys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    path.write_text("1")
    with pytest.raises(LockTimeoutError) as caught:
        lock.acquire(0.01)
    holder.communicate()
    assert caught.value.holder == (holder.pid if Path("/proc/locks").exists() else 1)
    lock.acquire(0)
    lock.close()


@pytest.mark.parametrize(
    ("kind", "refused"), [("nfs4", True), ("cifs", True), ("ext4", False), ("tmpfs", False)]
)
def test_network_file_systems_are_refused_by_name(tmp_path: Path, kind: str, refused: bool) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw shared:1 - ext4 /dev/vda rw\n"
        f"2 1 0:4 / {tmp_path.resolve()} rw shared:2 - {kind} server:/x rw\n"
        "3 1 0:5 / /somewhere rw - nfs server:/y rw\n"
    )
    if not refused:
        locks.refuse_network_filesystem(tmp_path, mounts)
        return
    with pytest.raises(NoFileLocksError) as caught:
        locks.refuse_network_filesystem(tmp_path, mounts)
    assert caught.value.filesystem == kind


def test_a_store_opened_while_its_last_process_dies_is_sound(state: Path, spawn: Any) -> None:
    child = spawn("writer.py", state, 100_000, "plain")
    for _ in range(5):
        child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    store = _open(state)
    assert len(list(store.scan("wakes"))) >= 500
    store.close()


def test_directory_that_another_process_makes_at_the_same_moment_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    exists = Path.exists

    def made_meanwhile(path: Path) -> bool:
        found = exists(path)
        if path == state and not found:
            state.mkdir()
        return found

    monkeypatch.setattr(Path, "exists", made_meanwhile)
    store = _open(state)
    store.close()
