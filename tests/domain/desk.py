"""The lower half of the domain without a runtime: a journal on a store in memory, and what asks it.

A store here counts what it is handed, and can be told what becomes of its next batches.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from abeyance.actors.core import (
    ActorSystem,
    AskTable,
    Backoff,
    ChildSpec,
    Clock,
    Supervisor,
    SupervisorSpec,
    TrioActorRef,
)
from abeyance.actors.domain.asks import ASKS
from abeyance.actors.domain.journal import Journal
from abeyance.actors.testing import WallClock
from abeyance.storage import codec
from abeyance.storage.errors import (
    DiskFullError,
    StorageError,
    StoreIOError,
    UnreadableRecordError,
)
from abeyance.storage.keys import encode_prefix
from abeyance.storage.memory import MemoryStore
from abeyance.storage.store import (
    Append,
    Committed,
    Done,
    Key,
    Put,
    Request,
    Row,
    Store,
    Value,
)
from abeyance.storage.tables.ownership import Owner
from abeyance.storage.tables.waits import LogLine

from ..stopwatch import still


def disk_full() -> DiskFullError:
    return DiskFullError("no room; nothing of this commit is stored; make room", path="memory")


class DeskStore(MemoryStore):
    """A store in memory that remembers its batches, and fails or refuses those it is told to."""

    spoilt: frozenset[tuple[str, Key]] = frozenset()
    """Rows that cannot be read; of one that was opened again none, unless it is told."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.batches: list[tuple[Request, ...]] = []
        self.fate: Callable[[int], Exception | None] = lambda number: None
        """Of each batch that writes, by number from 0: the error it fails with, or None."""
        self._writes = 0

    def submit(self, batch: Sequence[Request], done: Done) -> None:
        if any(request.ops for request in batch):
            self.fail_next = self.fate(self._writes)
            self._writes += 1
        super().submit(batch, done)
        self.batches.append(tuple(batch))

    @property
    def requests(self) -> list[Request]:
        return [request for batch in self.batches for request in batch]

    def get(self, table: str, key: Key) -> Row | None:
        row = super().get(table, key)
        if row is not None and (table, key) in self.spoilt:
            raise _unreadable(table, key)
        return row

    def scan(self, table: str, *how: Any, **more: Any) -> Iterator[tuple[Key, Row | Exception]]:
        for key, row in super().scan(table, *how, **more):
            yield key, _unreadable(table, key) if (table, key) in self.spoilt else row

    def own(self, slot: str, nonce: str | None = None, *, fence: int = 1) -> None:
        owner = Owner(nonce=self.nonce if nonce is None else nonce, fence=fence)
        self.commit(Request(puts=(Put("owners", ("slot", slot), codec.encode(owner)),)))


def bad_page() -> StoreIOError:
    return StoreIOError("a page is gone; nothing was read", path="memory", errno=5)


class Spotty(DeskStore):
    """A store that cannot read some of `waits`, as one with damaged pages."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.bad: set[Key] = set()
        """Keys whose values cannot be read."""
        self.bad_keys: set[bytes] = set()
        """Keys, as they are on disk, that are none."""
        self.broken: StorageError | None = None
        """What every reading of the table fails with."""
        self.pages: set[Key] = set()
        """Keys, or agents' prefixes of keys, whose page cannot be read."""
        self.ignorable = False
        """Whether a bad value says that it may be taken for none."""
        self.reads = 0
        """How often any of it was read."""

    def _error(self, key: Key) -> UnreadableRecordError:
        return UnreadableRecordError(
            "checksum", table="waits", key=key, cause="checksum", ignorable=self.ignorable
        )

    def get(self, table: str, key: Key) -> Row | None:
        if table == "waits":
            self.reads += 1
            if self.broken is not None:
                raise self.broken
            if key in self.pages or key[:1] in self.pages:
                raise bad_page()
            if key in self.bad:
                raise self._error(key)
        return super().get(table, key)

    def scan(
        self, table: str, prefix: Key = (), *, after: Key | None = None, **how: Any
    ) -> Iterator[tuple[Key, Any]]:
        found = super().scan(table, prefix, after=after, **how)
        if table != "waits":
            yield from found
            return
        self.reads += 1
        if self.broken is not None:
            raise self.broken
        if prefix and tuple(prefix) in self.pages:
            raise bad_page()
        for key, row in found:
            yield key, self._error(key) if key in self.bad else row
        start = encode_prefix((str, str), prefix)
        for raw in sorted(self.bad_keys):
            if raw.startswith(start) and after is None:
                error = UnreadableRecordError("key", table="waits", key=raw, cause="key: cut off")
                yield (raw,), error

    def reopened(self, **options: Any) -> Any:
        """The same damage, in another process."""
        other = super().reopened(**options)
        mine = Spotty()
        mine._durable, mine._nonce = other._durable, other._nonce
        mine.bad, mine.bad_keys, mine.broken = set(self.bad), set(self.bad_keys), self.broken
        mine.pages = set(self.pages)
        return mine


def rows(store: Store, table: str, prefix: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], Any]:
    found = dict(store.scan(table, prefix))
    bad = [row for row in found.values() if row is None or isinstance(row, Exception)]
    assert not bad, bad
    return {key: row.record for key, row in found.items()}  # type: ignore[union-attr]


def make_unreadable(store: Store, table: str, key: Key) -> None:
    """Have a row be damaged: one in memory is said to be, over another a later version is put."""
    row = store.get(table, key)
    assert row is not None
    if isinstance(store, DeskStore):
        store.spoilt |= {(table, key)}
    else:
        made = codec.encode(row.record)
        value = Value(made.kind, 99, made.body, made.body_crc)
        (outcome,) = store.commit(Request(puts=(Put(table, key, value),)))
        assert isinstance(outcome, Committed)
    with pytest.raises(UnreadableRecordError):
        store.get(table, key)


def _unreadable(table: str, key: Key) -> UnreadableRecordError:
    return UnreadableRecordError(
        f"row {key!r} of table {table} is damaged", table=table, key=key, cause="damaged"
    )


def line(text: str) -> Append:
    return Append("log", codec.encode(LogLine(event="tested", text=text, at_ms=1)))


def lines(store: Store) -> list[str]:
    return [record.text for record in rows(store, "log").values()]


@asynccontextmanager
async def desk(
    store: Store,
    *children: ChildSpec,
    clock: Clock | None = None,
    lost: Callable[[Exception], None] | None = None,
) -> AsyncIterator[Supervisor]:
    """A journal and what is to ask it, under a supervisor that a test may kill much of."""

    def ended(error: Exception) -> None:
        raise AssertionError("the store was lost") from error

    # Domain handlers suspend once at most; `debug` holds them to it.
    system = still(
        ActorSystem(
            asks=AskTable(ASKS), clock=clock or WallClock(), ask_timeout_s=None, debug=True, seed=1
        )
    )
    async with system:
        journal = ChildSpec("journal", Journal, (store, lost or ended), name="journal")
        yield await system.start_supervisor(
            SupervisorSpec(
                "desk",
                children=(journal, *children),
                intensity=1_000,
                backoff=Backoff(initial_s=0.0, max_s=0.0),
            )
        )


async def kill_after(ref: TrioActorRef[Any], ticks: int) -> None:
    """Kill an actor once the loop has gone round so many times."""
    for _ in range(ticks):
        await trio.lowlevel.checkpoint()
    ref.kill("a test")


async def outcomes_of(futures: Iterable[Any]) -> list[Any]:
    """What each future came to; an error in its place."""
    found = []
    with trio.fail_after(60):
        for future in futures:
            try:
                found.append(await future)
            except Exception as error:
                found.append(error)
    return found
