"""Opening a store with very many records beside one with few."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from abeyance.storage.codec import encode
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Committed, Put, Request
from abeyance.storage.tables.blocks import TextBlock
from abeyance.storage.tables.slots import Body, Entry

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
    while batch := tuple(put for put, _ in zip(puts, range(_PUTS), strict=False)):
        (outcome,) = store.commit(Request(puts=batch))
        assert isinstance(outcome, Committed), outcome
    store.close()


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
