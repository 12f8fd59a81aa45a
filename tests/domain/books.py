"""A ledger on a store, with what its tests say to it and look at."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from abeyance.actors.core import ChildSpec, Supervisor
from abeyance.actors.domain.protocol import (
    CheckWait,
    RecordWait,
    ReleaseReceipt,
    ReleaseWaits,
    WaitReceipt,
)
from abeyance.actors.domain.wait_book import Deferral, WaitBook
from abeyance.actors.domain.waits import Ledger
from abeyance.actors.testing import WallClock
from abeyance.storage.store import Store

from .desk import DeskStore, desk, disk_full, rows

KEY = ("ana", "m1")
SECOND = 1_000


class Books:
    """A ledger on a store, and the clock they go by."""

    def __init__(self, store: Store, clock: WallClock, room: Supervisor, book: WaitBook) -> None:
        self.store = store
        self.clock = clock
        self.room = room
        self.book = book
        self.ledger: Any = room.refs["ledger"]

    def set_nowait(
        self, after_s: float | None, *, key: tuple[str, str] = KEY, why: str = "w"
    ) -> Any:
        deadline_ms = None if after_s is None else self.clock.now_ms() + int(after_s * SECOND)
        return self.ledger.ask(RecordWait(*key, deadline_ms, why))

    async def set(self, after_s: float | None, **how: Any) -> WaitReceipt:
        receipt: WaitReceipt = await self.set_nowait(after_s, **how)
        return receipt

    async def release(self, agent: str = "ana", model: str | None = None) -> ReleaseReceipt:
        receipt: ReleaseReceipt = await self.ledger.ask(ReleaseWaits(agent, model, "ops"))
        return receipt

    async def held(self, *key: str) -> Deferral | None:
        deferral: Deferral | None = await self.ledger.ask(CheckWait(*(key or KEY)))
        return deferral

    def left_s(self, *key: str) -> float | None:
        """Seconds left of what binds; None where nothing does."""
        deferral = self.book.deferral(*(key or KEY))
        if deferral is None:
            return None
        if deferral.deadline_ms is None:
            return float("inf")
        return (deferral.deadline_ms - self.clock.now_ms()) / SECOND


@asynccontextmanager
async def open_books(store: Store, clock: WallClock | None = None) -> AsyncIterator[Books]:
    clock = clock or WallClock()
    book = WaitBook(store, clock)
    child = ChildSpec(
        "ledger", Ledger, lambda refs: (book, store, refs["journal"], clock), name="ledger"
    )
    async with desk(store, child, clock=clock) as room:
        yield Books(store, clock, room, book)


def refuse(store: DeskStore, refusing: bool = True) -> None:
    store.fate = (lambda number: disk_full()) if refusing else (lambda number: None)


def stored(store: Store, key: tuple[str, str] = KEY) -> Any:
    return rows(store, "waits").get(key)
