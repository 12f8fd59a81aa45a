"""What the storage tests share: records to write, and both stores behind one way to open them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from abeyance.storage import codec
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.locks import FileLock
from abeyance.storage.memory import MemoryStore
from abeyance.storage.store import Append, Guard, Key, Put, Request, Row, Store
from abeyance.storage.tables.slots import Wake
from abeyance.storage.tables.waits import LogLine

CHILDREN = Path(__file__).parent / "children"


class Rows:
    """Short names for the rows that most tests write."""

    @staticmethod
    def wake(author: str = "ana") -> Wake:
        return Wake(reason="message", author=author, at_ms=1)

    @classmethod
    def put(cls, key: Key, author: str = "ana", *, allotted: int | None = None) -> Put:
        return Put("wakes", key, codec.encode(cls.wake(author), allotted=allotted))

    @staticmethod
    def guard(key: Key, counter: int) -> Guard:
        return Guard("wakes", key, counter)

    @staticmethod
    def log(text: str = "") -> Append:
        return Append("log", codec.encode(LogLine(event="tested", text=text, at_ms=1)))

    @classmethod
    def cas(cls, key: Key, counter: int, author: str = "ana", **more: Any) -> Request:
        """Put one row if its counter is as said."""
        return Request(guards=(cls.guard(key, counter),), puts=(cls.put(key, author),), **more)

    @staticmethod
    def all(store: Store, table: str = "wakes") -> dict[Key, Row]:
        found = dict(store.scan(table))
        assert not [row for row in found.values() if isinstance(row, Exception)]
        return found  # type: ignore[return-value]


@pytest.fixture(scope="session")
def rows() -> type[Rows]:
    return Rows


class Opener:
    """Opens, reopens and crashes one kind of store."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.directory = directory
        self._opened: list[Any] = []
        self._copies = 0

    def open(self, **options: Any) -> Any:
        store: Any
        if self.kind == "memory":
            options.pop("map_bytes", None)
            store = MemoryStore(**options)
        else:
            store = LmdbStore.open(self.directory / "state", clock_ms=lambda: 1_000, **options)
        self._opened.append(store)
        return store

    def reopen(self, store: Any) -> Any:
        """Close in good order, and open again."""
        store.close()
        if self.kind == "memory":
            return self._keep(store.reopened())
        return self._keep(LmdbStore.open(store.directory.parent, clock_ms=lambda: 1_000))

    def crash(self, store: Any) -> Any:
        """Open what a death at this instant would leave."""
        if self.kind == "memory":
            return self._keep(store.reopened())
        # A process can't open a data file twice, and this one is to die: its files are copied.
        self._copies += 1
        left = self.directory / f"crashed-{self._copies}"
        shutil.copytree(store.directory.parent, left)
        store.close()
        return self._keep(LmdbStore.open(left, clock_ms=lambda: 1_000))

    def stall(self, store: Any) -> Callable[[], None]:
        """Keep the next batch out until what is returned is called."""
        if self.kind == "memory":
            store.hold = True

            def go_on() -> None:
                store.hold = False
                store.release()

            return go_on
        lock = FileLock(store.directory / "write.lock")
        assert lock.acquire_nowait()
        return lock.close

    def close(self) -> None:
        for store in self._opened:
            store.close()

    def _keep(self, store: Any) -> Any:
        self._opened.append(store)
        return store


@pytest.fixture(params=["memory", "lmdb"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(request.param, tmp_path)
    yield opener
    opener.close()


@pytest.fixture
def store(opener: Opener) -> Any:
    """One store of each kind, closed at the end."""
    return opener.open()


@pytest.fixture
def lmdb_opener(tmp_path: Path) -> Iterator[Opener]:
    opener = Opener("lmdb", tmp_path)
    yield opener
    opener.close()


@pytest.fixture
def make_opener() -> Iterator[Callable[[str, Path], Opener]]:
    """For tests that open many stores in directories of their own."""
    made: list[Opener] = []

    def make(kind: str, directory: Path) -> Opener:
        made.append(Opener(kind, directory))
        return made[-1]

    yield make
    for opener in made:
        opener.close()


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a script of `children/`; what still runs at the end is killed."""
    running: list[subprocess.Popen[str]] = []

    def spawn(script: str, *args: object, crash_at: str | None = None) -> subprocess.Popen[str]:
        environment = dict(os.environ)
        environment.pop("ABEYANCE_CRASH_AT", None)
        if crash_at is not None:
            environment["ABEYANCE_CRASH_AT"] = crash_at
        child = subprocess.Popen(
            [sys.executable, str(CHILDREN / script), *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        running.append(child)
        return child

    yield spawn
    for child in running:
        if child.poll() is None:
            child.kill()
        child.communicate()
