"""Opening a store with very many records beside one with few."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from abeyance.actors.core import SystemClock
from abeyance.actors.domain.wait_book import WaitBook
from abeyance.storage.codec import encode
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Append, Committed, Put, Request
from abeyance.storage.tables.blocks import TextBlock
from abeyance.storage.tables.slots import Body, Entry
from abeyance.storage.tables.waits import LogLine

from .accepting import record_waits
from .measure import Bound, Piece, Result, Scale, in_turns_sync, ratio_of

_ROWS_A_SLOT = 500
_PUTS = 5000


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _puts(records: int) -> Iterator[Put]:
    """A body and a transcript row by turns, in slots of five hundred messages."""
    for number in range(records // 2):
        slot, entry = f"agent-{number // _ROWS_A_SLOT:06}", number % _ROWS_A_SLOT + 1
        text = f"message {number} of a conversation that went on for a while, as they do"
        yield Put("bodies", (slot, entry), encode(Body(blocks=(TextBlock(text=text),))))
        row = Entry(
            entry=entry, message=f"m{number}", author="user", role="user", at_ms=1_700_000_000_000
        )
        yield Put("slots", (slot, entry), encode(row))


def _fill(path: Path, records: int) -> None:
    store = LmdbStore.open(path, clock_ms=_now_ms)
    puts = _puts(records)
    while batch := tuple(itertools.islice(puts, _PUTS)):
        (outcome,) = store.commit(Request(puts=batch))
        assert isinstance(outcome, Committed), outcome
    store.close()


def _fill_waits(path: Path, waits: int, lines: int) -> None:
    """So many recorded waits, and so many lines of the log."""
    record_waits(path, waits)
    store = LmdbStore.open(path, clock_ms=_now_ms)
    line = encode(LogLine(event="wait_recorded", agent="ana", model="m", text="until", at_ms=1))
    for start in range(0, lines, _PUTS):
        appends = (Append("log", line),) * min(_PUTS, lines - start)
        (outcome,) = store.commit(Request(appends=appends))
        assert isinstance(outcome, Committed), outcome
    store.close()


def opening_waits(scale: Scale) -> list[Result]:
    many = (5_000, 50_000) if scale.quick else (100_000, 1_000_000)
    few = (1_000, 1_000)
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent, prefix=".state-") as folder:
        paths = {count: Path(folder) / str(count[0]) for count in (many, few)}
        for count, path in paths.items():
            _fill_waits(path, *count)

        def opened(records: tuple[int, int]) -> Piece:
            def piece(count: int) -> float:
                seconds = 0.0
                for _ in range(count):
                    start = time.perf_counter()
                    store = LmdbStore.open(paths[records], clock_ms=_now_ms)
                    deferral = WaitBook(store, SystemClock()).deferral("ana-00000", "m1")
                    seconds += time.perf_counter() - start
                    assert deferral is not None
                    store.close()
                return seconds

            return piece

        rates = in_turns_sync(scale, opened(many), opened(few), first=1, most=50)
    return [
        ratio_of(
            "open-waits",
            f"open a store of {many[0]} waits and {many[1]} lines of the log, and admit or defer",
            f"a store of {few[0]} waits and {few[1]} lines",
            rates,
            Bound(None, 2.0, "lower"),
        )
    ]


def opening(scale: Scale) -> list[Result]:
    many, few = (50_000 if scale.quick else 1_000_000), 1000

    with tempfile.TemporaryDirectory(dir=Path(__file__).parent, prefix=".state-") as folder:
        paths = {count: Path(folder) / str(count) for count in (many, few)}
        for count, path in paths.items():
            _fill(path, count)

        def opened(records: int) -> Piece:
            def piece(count: int) -> float:
                seconds = 0.0
                for _ in range(count):
                    start = time.perf_counter()
                    store = LmdbStore.open(paths[records], clock_ms=_now_ms)
                    row = store.get("slots", ("agent-000000", 1))
                    seconds += time.perf_counter() - start
                    assert row is not None
                    store.close()
                return seconds

            return piece

        rates = in_turns_sync(scale, opened(many), opened(few), first=1, most=50)
        size = sum(f.stat().st_blocks * 512 for f in paths[many].rglob("*") if f.is_file())
    return [
        ratio_of(
            "open",
            f"open a store of {many} records and read one",
            f"a store of {few} records",
            rates,
            Bound(None, 2.0, "lower"),
            beside={"size_MiB": size / 2**20},
        )
    ]
