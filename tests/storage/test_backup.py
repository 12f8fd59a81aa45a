"""Backup: a copy of one state between two commits, whole or not there, that a host goes on with."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import trio

from abeyance.actors import AgentSpec, open_runtime
from abeyance.actors.ops import cli
from abeyance.actors.testing import ScriptedProvider, WallClock, fail, reply
from abeyance.storage.backup import MAKING, backup
from abeyance.storage.check import check
from abeyance.storage.codec import encode
from abeyance.storage.crashpoints import arm
from abeyance.storage.errors import DiskFullError, ForeignDirectoryError, StorageError
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.locks import FileLock
from abeyance.storage.store import Delete, Put, Request
from abeyance.storage.tables.blocks import TextBlock
from abeyance.storage.tables.slots import Body

from ..lives import KILLED, begin, lived

CLOCK = WallClock()


def opened(state: Path, **options: Any) -> LmdbStore:
    return LmdbStore.open(state, clock_ms=CLOCK.now_ms, **options)


def put(place: int) -> Put:
    return Put("bodies", ("ana", place), encode(Body(blocks=(TextBlock(text="x" * 2_000),))))


def filled(state: Path, rows: int = 300) -> None:
    store = opened(state)
    store.commit(Request(puts=tuple(put(each) for each in range(rows))))
    store.close()


def places(state: Path) -> list[int]:
    store = opened(state, read_only=True)
    try:
        assert check(store).findings == ()
        return [key[1] for key, _ in store.scan("bodies")]
    finally:
        store.close()


def left(directory: Path) -> list[str]:
    return [each.name for each in directory.iterdir() if MAKING in each.name]


def test_copy_has_every_row_and_is_a_store_of_its_own(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    filled(state)
    told: list[tuple[int, int]] = []
    made = backup(state, copy, clock_ms=CLOCK.now_ms, progress=lambda *how: told.append(how))
    assert made.findings == 0
    assert made.bytes == (copy / "store" / "data.mdb").stat().st_size
    assert places(copy) == places(state) == list(range(300))
    assert copy.stat().st_mode & 0o777 == (copy / "store").stat().st_mode & 0o777 == 0o700
    files = [each for each in copy.rglob("*") if each.is_file()]
    assert {each.stat().st_mode & 0o777 for each in files} == {0o600}
    assert all(done <= whole for done, whole in told)
    store = opened(copy)
    store.commit(Request(deletes=(Delete("bodies", ("ana", 299)),)))
    store.close()
    assert len(places(copy)) == 299
    assert len(places(state)) == 300
    assert left(tmp_path) == []


@pytest.mark.slow
def test_copy_of_a_store_that_is_written_is_of_one_commit(tmp_path: Path) -> None:
    state = tmp_path / "state"
    filled(state, rows=1)
    writer = begin(write_pairs, state)
    try:
        while len(places(state)) < 20:
            pass
        for number in range(3):
            copy = tmp_path / f"copy-{number}"
            backup(state, copy, clock_ms=CLOCK.now_ms)
            seen = places(copy)
            # Two rows a commit, from 1 on: what is there is whole commits, without a gap.
            assert seen == list(range(len(seen)))
            assert len(seen) % 2 == 1
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()


def write_pairs(state: Path) -> None:
    store = opened(state)
    # As a host is known to run: what looks at its store then leaves its file to it.
    owners = state / "store" / "owners"
    owners.mkdir(exist_ok=True)
    lock = FileLock(owners / "writer")
    assert lock.acquire_nowait()
    for first in range(1, 2_000_000, 2):
        store.commit(Request(puts=(put(first), put(first + 1))))


async def test_host_on_a_copy_of_a_running_one_goes_on_with_what_is_owed(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    async with open_runtime(state) as runtime:
        provider = ScriptedProvider([fail(429, retry_after=7_200)])
        ana = await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        await ana.send("Hello?", author="user")
        await ana.wait_idle()
        await trio.to_thread.run_sync(lived, copies, state, copy)
        assert len(runtime.provider_waits()) == 1
    async with open_runtime(copy) as runtime:
        provider = ScriptedProvider([reply("At last.")])
        ana = await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        await ana.wait_idle()
        assert [wait.model for wait in runtime.provider_waits()] == ["m"]
        assert len(provider.requests) == 0
        await runtime.release_provider_wait("ana", requester="test")
        await ana.wait_idle()
        assert [message.text async for message in ana.transcript()] == ["Hello?", "At last."]


def copies(state: Path, copy: Path) -> None:
    assert cli.main(["backup", str(state), str(copy)]) == 0


@pytest.mark.parametrize(
    "place", ["state/copy", "full", "file", "nowhere/copy", "dangling", "state"]
)
def test_place_that_is_not_free_is_refused_and_left_as_it_is(tmp_path: Path, place: str) -> None:
    filled(tmp_path / "state")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "theirs").touch()
    (tmp_path / "file").write_text("theirs")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ForeignDirectoryError, match="nothing was changed"):
        backup(tmp_path / "state", tmp_path / place, clock_ms=CLOCK.now_ms)
    # The engine's lock file is made by whoever looks.
    assert [each for each in sorted(tmp_path.rglob("*")) if each not in before] == []
    assert (tmp_path / "file").read_text() == "theirs"


def test_empty_directory_is_taken(tmp_path: Path) -> None:
    filled(tmp_path / "state")
    (tmp_path / "copy").mkdir()
    backup(tmp_path / "state", tmp_path / "copy", clock_ms=CLOCK.now_ms)
    assert len(places(tmp_path / "copy")) == 300


def test_death_before_the_copy_is_whole_leaves_no_destination(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    filled(state)
    assert lived(dies, state, copy).status == KILLED
    assert not copy.exists()
    assert len(left(tmp_path)) == 1
    backup(state, copy, clock_ms=CLOCK.now_ms)
    assert len(places(copy)) == len(places(state)) == 300


def dies(state: Path, copy: Path) -> None:
    arm("backup.before_rename")
    backup(state, copy, clock_ms=CLOCK.now_ms)


def test_copy_that_finds_no_room_is_a_typed_error_and_leaves_nothing(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    filled(state)
    assert lived(bounded, state, copy).status == 0
    assert not copy.exists()
    assert left(tmp_path) == []
    assert len(places(state)) == 300


def bounded(state: Path, copy: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    with pytest.raises(StorageError, match="making a backup"):
        backup(state, copy, clock_ms=CLOCK.now_ms)


def test_place_with_less_room_than_the_store_takes_is_refused_before_anything_is_copied(
    tmp_path: Path,
) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    filled(state)
    # Sparse: it takes no room, and says that it would.
    whole = (state / "store" / "data.mdb").stat().st_size
    os.truncate(state / "store" / "data.mdb", 1 << 40)
    with pytest.raises(DiskFullError, match="no backup was made"):
        backup(state, copy, clock_ms=CLOCK.now_ms)
    os.truncate(state / "store" / "data.mdb", whole)
    assert not copy.exists()
    assert left(tmp_path) == []


def test_command_says_what_was_copied_and_what_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    filled(state)
    assert cli.main(["backup", str(state), str(tmp_path / "one"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["findings"] == 0
    assert told["destination"] == str(tmp_path / "one")
    data = state / "store" / "data.mdb"
    image = data.read_bytes()
    assert image.count(b"xxxxxxxx") > 0
    place = image.index(b"x" * 500)
    data.write_bytes(image[:place] + b"y" + image[place + 1 :])
    assert cli.main(["backup", str(state), str(tmp_path / "two")]) == 1
    said = capsys.readouterr()
    assert "rows" in said.out
    assert "1 of its rows are damaged" in said.err
    assert cli.main(["backup", str(state), str(tmp_path / "two")]) == 2
    assert "is not empty" in capsys.readouterr().err
