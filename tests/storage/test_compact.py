"""Compaction: the same rows in a smaller file, and one of the two files whole whatever happens."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import trio

from abeyance.actors import open_runtime
from abeyance.actors.ops import cli
from abeyance.actors.testing import WallClock
from abeyance.storage import compact as room
from abeyance.storage.check import check
from abeyance.storage.codec import encode
from abeyance.storage.compact import OLD, compact
from abeyance.storage.crashpoints import arm
from abeyance.storage.errors import (
    AlreadyOpenError,
    DamagedStoreError,
    ForeignDirectoryError,
    MissingStoreError,
    StorageError,
    StoreInUseError,
)
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Delete, Put, Request
from abeyance.storage.tables.blocks import TextBlock
from abeyance.storage.tables.slots import Body

from ..lives import KILLED, begin, lived

CLOCK = WallClock()


def opened(state: Path, **options: Any) -> LmdbStore:
    return LmdbStore.open(state, clock_ms=CLOCK.now_ms, **options)


def with_room(state: Path) -> None:
    """A store of which most was deleted."""
    store = opened(state)
    body = encode(Body(blocks=(TextBlock(text="x" * 20_000),)))
    for first in range(0, 200, 50):
        puts = (Put("bodies", ("ana", each), body) for each in range(first, first + 50))
        store.commit(Request(puts=tuple(puts)))
    store.commit(Request(deletes=tuple(Delete("bodies", ("ana", each)) for each in range(190))))
    store.close()


def rows(state: Path) -> Any:
    store = opened(state, read_only=True)
    try:
        assert check(store).findings == ()
        return [(key, row) for key, row in store.scan("bodies")]
    finally:
        store.close()


def left_over(state: Path) -> list[str]:
    beside = [path.name for path in state.iterdir() if path.name.startswith(room.COPYING)]
    return sorted([*beside, *(path.name for path in (state / "store").glob(OLD))])


def test_compacted_store_has_the_same_rows_in_a_smaller_file(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with_room(state)
    before = rows(state)
    done = compact(state, clock_ms=CLOCK.now_ms)
    data = state / "store" / "data.mdb"
    assert done.bytes_after == data.stat().st_size
    assert done.bytes_after < done.bytes_before / 3
    assert done.rows > len(before) == 10
    assert data.stat().st_mode & 0o777 == 0o600
    assert rows(state) == before
    assert left_over(state) == []
    # It is written again as it was, from its own revision on.
    store = opened(state)
    revision = store.revision()
    store.commit(Request(deletes=(Delete("bodies", ("ana", 190)),)))
    assert store.revision() == revision + 1
    store.close()
    assert compact(state, clock_ms=CLOCK.now_ms).rows > 0


def test_compaction_refuses_while_anybody_has_the_store_open(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with_room(state)
    before = (state / "store" / "data.mdb").stat()
    for options in ({}, {"read_only": True}):
        for name in ("held", "go"):
            os.mkfifo(tmp_path / name)
        holder = begin(hold, state, options)
        (tmp_path / "held").read_text()
        with pytest.raises(StoreInUseError):
            compact(state, clock_ms=CLOCK.now_ms)
        (tmp_path / "go").write_text("go")
        assert holder.wait().status == 0
        for name in ("held", "go"):
            (tmp_path / name).unlink()
    store = opened(state)
    with pytest.raises((AlreadyOpenError, StoreInUseError)):
        compact(state, clock_ms=CLOCK.now_ms)
    store.close()
    assert (state / "store" / "data.mdb").stat().st_ino == before.st_ino
    assert left_over(state) == []


def hold(state: Path, options: dict[str, Any]) -> None:
    store = opened(state, **options)
    (state.parent / "held").write_text("held")
    (state.parent / "go").read_text()
    store.close()


@pytest.mark.parametrize("point", ["compact.before_rename", "compact.after_rename"])
def test_death_during_a_compaction_leaves_a_whole_store(tmp_path: Path, point: str) -> None:
    state = tmp_path / "state"
    with_room(state)
    before = rows(state)
    assert lived(dies, state, point).status == KILLED
    assert left_over(state) != []
    assert rows(state) == before
    # A host may go on before the next compaction, which sweeps what was left.
    store = opened(state)
    store.commit(Request(deletes=(Delete("bodies", ("ana", 190)),)))
    store.close()
    compact(state, clock_ms=CLOCK.now_ms)
    assert rows(state) == before[1:]
    assert left_over(state) == []


def dies(state: Path, point: str) -> None:
    arm(point)
    compact(state, clock_ms=CLOCK.now_ms)


def test_copy_that_differs_is_not_put_into_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    with_room(state)
    before = rows(state)
    original = room._rows

    def one_less(environment: Any, table: str) -> Any:
        found = list(original(environment, table))
        return found[:-1] if environment.directory.name.startswith(room.COPYING) else found

    monkeypatch.setattr(room, "_rows", one_less)
    with pytest.raises(DamagedStoreError):
        compact(state, clock_ms=CLOCK.now_ms)
    assert rows(state) == before
    assert left_over(state) == []


def test_copy_that_cannot_be_written_leaves_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    with_room(state)
    before = rows(state)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(room.Environment, "copy_to", full)
    with pytest.raises(StorageError, match="no room"):
        compact(state, clock_ms=CLOCK.now_ms)
    assert rows(state) == before
    assert left_over(state) == []


def test_compaction_of_what_is_no_store_is_refused_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(MissingStoreError):
        compact(tmp_path / "nothing", clock_ms=CLOCK.now_ms)
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(ForeignDirectoryError):
        compact(tmp_path, clock_ms=CLOCK.now_ms)


async def test_command_compacts_a_stopped_store_and_refuses_where_a_host_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(*arguments: str) -> int:
        return await trio.to_thread.run_sync(cli.main, arguments)

    state = tmp_path / "state"
    with_room(state)
    async with open_runtime(state):
        assert await run("compact", str(state)) == 2
        assert "a host runs on" in capsys.readouterr().err
    assert await run("compact", str(state)) == 0
    assert "rows: " in capsys.readouterr().out
    assert await run("compact", str(state), "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] > 10
