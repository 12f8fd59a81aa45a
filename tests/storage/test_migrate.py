"""Migration: a store goes to the next format and back, whole at every death, when it is said."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from abeyance.actors.ops import cli
from abeyance.actors.testing import WallClock
from abeyance.storage import directory
from abeyance.storage import migrate as room
from abeyance.storage.check import check
from abeyance.storage.codec import encode
from abeyance.storage.crashpoints import arm
from abeyance.storage.errors import (
    DamagedStoreError,
    InvalidRequestError,
    NewerFormatError,
    StorageError,
    StoreInUseError,
)
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.migrate import Format, Migrated, migrate
from abeyance.storage.store import Key, Put, Request
from abeyance.storage.tables import FORMAT, FORMATS, TABLES
from abeyance.storage.tables.waits import Wait, WaitReleased

from ..golden.test_golden import STORES, laid_out
from ..lives import KILLED, begin, lived
from .test_repair import garble, hold, run

CLOCK = WallClock()
MANY = 600
OWN = Wait(deadline_ms=9, reason="r", set_ms=5, act="a")
TAKEN_OVER = replace(OWN, hold="h", since_ms=3)


def opened(state: Path, **options: Any) -> LmdbStore:
    return LmdbStore.open(state, clock_ms=CLOCK.now_ms, **options)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A store of format 1, with waits that leave out what format 2 says."""
    state = tmp_path / "state"
    store = opened(state)
    puts = [Put("waits", (f"a{number}", "m"), encode(OWN)) for number in range(MANY)]
    puts += [
        Put("waits", ("taken", "m"), encode(TAKEN_OVER)),
        Put("waits", ("ended", "m"), encode(WaitReleased(act="x"))),
        Put("account_waits", ("c", "*"), encode(OWN)),
    ]
    store.commit(Request(puts=tuple(puts)))
    store.close()
    return state


def go(state: Path, to: int, name: str = "copy") -> Migrated:
    return migrate(state, state.with_name(name), to=to, clock_ms=CLOCK.now_ms)


def formats(state: Path) -> Format:
    store = opened(state, read_only=True)
    try:
        assert check(store).findings == ()
        return room.look(store, store.directory)
    finally:
        store.close()


def rows(state: Path) -> dict[tuple[str, Key], Any]:
    store = opened(state, read_only=True)
    try:
        return {
            (table, key): row.record  # type: ignore[union-attr]
            for table in TABLES
            if table not in ("meta", "processes")
            for key, row in store.scan(table)
        }
    finally:
        store.close()


def waits(found: dict[tuple[str, Key], Any]) -> dict[tuple[str, Key], Any]:
    return {at: row for at, row in found.items() if at[0] in ("waits", "account_waits")}


def opens_in_format_1(state: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a version that knows no other format opens it."""
    with monkeypatch.context() as patch:
        patch.setattr(directory, "FORMAT", 1)
        try:
            opened(state, read_only=True).close()
        except NewerFormatError as error:
            return (error.format, error.supported) != (2, 1)
    return True


def test_a_new_store_is_of_the_format_that_the_version_before_reads(tmp_path: Path) -> None:
    opened(tmp_path / "new").close()
    assert FORMATS == (1, FORMAT) == (1, 2)
    assert formats(tmp_path / "new") == Format(1, 1, 2, {}, 0)


def test_store_goes_to_the_next_format_and_back_and_says_the_same(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows(state)
    assert formats(state) == Format(1, 1, 2, {"waits": MANY, "account_waits": 1}, 0)
    done = go(state, 2, "one")
    assert (done.before, done.after, done.rows) == (1, 2, MANY + 1)
    assert formats(state) == Format(2, 2, 2, {}, 0)
    assert not opens_in_format_1(state, monkeypatch)
    after = rows(state)
    changed = {at: row for at, row in after.items() if before[at] != row}
    assert len(changed) == MANY + 1
    for at, row in changed.items():
        assert row == replace(before[at], hold="a", since_ms=5)
    assert after["waits", ("taken", "m")] == TAKEN_OVER
    assert rows(state.with_name("one")) == before
    assert formats(state.with_name("one")).store == 1
    assert go(state, 2, "none") == Migrated(2, 2, 0, None)
    assert not state.with_name("none").exists()
    # A host writes it on, and it stays what it is.
    store = opened(state)
    store.commit(Request(puts=(Put("waits", ("b", "m"), encode(TAKEN_OVER)),)))
    store.close()
    back = go(state, 1, "two")
    assert (back.before, back.after, back.rows) == (2, 1, 0)
    assert formats(state) == Format(1, 1, 2, {}, 0)
    assert opens_in_format_1(state, monkeypatch)
    assert rows(state) == {**after, ("waits", ("b", "m")): TAKEN_OVER} | {
        at: row for at, row in rows(state).items() if at[0] in ("changes", "sequences")
    }
    opened(state).close()


@pytest.mark.parametrize("on", [2, 1], ids=["on", "or back"])
@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5])
def test_death_on_the_way_leaves_a_store_that_opens_and_goes_on_or_back(
    state: Path, monkeypatch: pytest.MonkeyPatch, nth: int, on: int
) -> None:
    before = rows(state)
    assert lived(dies, state, 2, nth).status == KILLED
    found = formats(state)
    assert found.store == 2
    assert found.data == (2 if nth == 5 else 1)
    assert not opens_in_format_1(state, monkeypatch), "it may have rows that format 1 does not know"
    opened(state).close()
    done = go(state, on, "again")
    assert done.rows == (max(0, MANY + 1 - 256 * (nth - 1)) if on == 2 else 0)
    assert formats(state)[:2] == (on, on)
    assert opens_in_format_1(state, monkeypatch) == (on == 1)
    acts = {at: row.act for at, row in waits(rows(state)).items()}
    assert acts == {at: row.act for at, row in waits(before).items()}


@pytest.mark.parametrize("nth", [1, 2])
def test_death_on_the_way_back_leaves_a_store_that_format_1_refuses_until_it_is_over(
    state: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    go(state, 2, "one")
    assert lived(dies, state, 1, nth).status == KILLED
    assert not opens_in_format_1(state, monkeypatch)
    opened(state).close()
    go(state, 1, "again")
    assert opens_in_format_1(state, monkeypatch)


def dies(state: Path, to: int, nth: int) -> None:
    arm(f"migrate.between_commits:{nth}")
    go(state, to, "died")


def test_nothing_is_changed_where_the_copy_finds_no_room(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows(state)
    assert lived(bounded, state).status == 0
    assert rows(state) == before
    assert opens_in_format_1(state, monkeypatch)
    assert not state.with_name("copy").exists()


def bounded(state: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
    with pytest.raises(StorageError, match="making a backup"):
        go(state, 2)


def test_a_row_that_cannot_be_read_is_mended_first(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    garble(state, "waits", ("a1", "m"))
    with pytest.raises(DamagedStoreError, match="--repair"):
        go(state, 2)
    assert opens_in_format_1(state, monkeypatch)
    assert not state.with_name("copy").exists()


def test_a_format_that_is_none_and_a_store_that_is_open_are_refused(state: Path) -> None:
    with pytest.raises(InvalidRequestError):
        go(state, 3)
    for name in ("held", "go"):
        os.mkfifo(state.parent / name)
    holder = begin(hold, state)
    (state.parent / "held").read_text()
    with pytest.raises(StoreInUseError, match=str(holder.pid)):
        go(state, 2)
    assert run("migrate", state, "--commit", "--yes") == 2
    (state.parent / "go").write_text("go")
    assert holder.wait().status == 0
    assert formats(state).store == 1


def test_data_of_a_newer_format_than_its_store_says_is_refused(state: Path) -> None:
    """A `store.json` of another day: a version of format 1 would take the store for its own."""
    go(state, 2)
    directory.write_format(state / "store", 1)
    with pytest.raises(DamagedStoreError, match="format"):
        opened(state, read_only=True)


@pytest.mark.parametrize("name", STORES)
def test_kept_stores_of_every_version_go_there_and_back(name: str, tmp_path: Path) -> None:
    state = laid_out(name, tmp_path / "state")
    store = opened(state, read_only=True)
    began = room.look(store, store.directory).store
    store.close()
    before = rows(state)
    go(state, 2, "there")
    there = rows(state)
    assert there.keys() == before.keys()
    assert all(there[at] == row for at, row in before.items() if at not in waits(before))
    go(state, 1, "back")
    assert rows(state) == there
    go(state, began, "again")


# -- the command -------------------------------------------------------------------------------


def test_command_says_what_would_change_and_changes_nothing_until_it_is_told(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("migrate", state) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "format 1" in said
    assert f"{MANY + 1:,} rows" in said
    assert opens_in_format_1(state, monkeypatch)
    assert run("migrate", state, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["store"], told["data"], told["newest"]) == (1, 1, 2)
    assert told["rows"] == {"waits": MANY, "account_waits": 1}
    assert run("migrate", state, "--commit") == 2
    assert "--yes" in capsys.readouterr().err
    assert run("migrate", state, "--commit", "--back", "--yes") == 2
    capsys.readouterr()
    assert run("migrate", state, "--commit", "--yes", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["before"], told["after"], told["rows"]) == (1, 2, MANY + 1)
    (copy,) = state.parent.glob("state.before-migrate-*")
    assert told["backup"] == str(copy)
    assert run("migrate", state) == 0
    assert "nothing is to be migrated" in " ".join(capsys.readouterr().out.split())
    assert run("migrate", state, "--commit", "--yes") == 0
    assert len(list(state.parent.glob("state.before-migrate-*"))) == 1
    assert run("migrate", state, "--back", "--yes", "--backup", state.with_name("b")) == 0
    assert "format 1" in capsys.readouterr().out
    assert opens_in_format_1(state, monkeypatch)
    assert lived(dies, state, 2, 1).status == KILLED
    assert run("migrate", state) == 0
    assert "was begun" in capsys.readouterr().out


def test_command_is_one_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["migrate", "--help"]) == 0
    assert "--back" in capsys.readouterr().out
