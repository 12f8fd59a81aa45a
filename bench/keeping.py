"""What is kept: its size beside the raw bytes, deleting it under load, opening a store of it."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trio

from abeyance.actors import AgentSpec, Retention, open_runtime
from abeyance.actors.providers.port import ModelReply, ModelRequest, OnDelta, StopReason, use_permit
from abeyance.storage.codec import encode, frame_made
from abeyance.storage.directory import STORE
from abeyance.storage.environment import Environment
from abeyance.storage.keys import encode_key
from abeyance.storage.lmdb_store import MAP_BYTES, MAP_BYTES_MAX, LmdbStore
from abeyance.storage.store import Append, Committed, Key, Request
from abeyance.storage.tables import TABLES
from abeyance.storage.tables.blocks import TextBlock
from abeyance.storage.tables.waits import LogLine
from tests.golden.samples import samples

from .accepting import TEXT, Host, record_waits
from .measure import Bound, Piece, Result, Scale, Spread, in_turns, in_turns_sync, ratio_of

_OF_THE_STORE = frozenset({"meta", "sequences"})
"""A row each, or one a table."""
_PUTS = 50_000
_OLD_MS = 1_000
_SENDERS = 16


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# -- size


class _Once:
    """A provider that answers when it is told to."""

    carries_injections = True

    def __init__(self) -> None:
        self.called, self.go = trio.Event(), trio.Event()

    async def call(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        use_permit()
        self.called.set()
        await self.go.wait()
        return ModelReply((TextBlock(text="done"),), StopReason.END_TURN)

    async def aclose(self) -> None:
        return None


def _bytes_of(store: LmdbStore, beside: Path) -> int:
    """What the rows of a store take, without free pages."""
    with tempfile.TemporaryDirectory(dir=beside) as folder:
        store._environment.copy_to(Path(folder))
        return (Path(folder) / "data.mdb").stat().st_size


def _bytes_of_waits(state: Path, count: int) -> int:
    record_waits(state, count)
    store = LmdbStore.open(state, clock_ms=_now_ms, read_only=True)
    try:
        return _bytes_of(store, state.parent)
    finally:
        store.close()


async def _messages(state: Path, count: int) -> tuple[int, int]:
    """Bytes of a store with so many messages in an inbox, and once they were answered."""
    provider = _Once()
    async with open_runtime(state, control=False) as runtime:
        agent = await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        await agent.send("begin", author="user")
        await provider.called.wait()
        for _ in range(count):
            await agent.send(TEXT, author="user")
        store: Any = runtime._store
        accepted = _bytes_of(store, state.parent)
        provider.go.set()
        await agent.wait_idle()
        return accepted, _bytes_of(store, state.parent)


def sizes(scale: Scale) -> list[Result]:
    count = 500 if scale.quick else 5_000
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent, prefix=".state-") as folder:
        where = Path(folder)
        none = trio.run(_messages, where / "none", 0)
        many = trio.run(_messages, where / "many", count)
        waits = _bytes_of_waits(where / "waits", count) - _bytes_of_waits(where / "one wait", 1)
    raw = len(TEXT.encode())
    reason = "Number of requests has exceeded your rate limit. Please try again later."
    of = f"of {raw} bytes of text"
    inbox, kept = many[0] - none[0], many[1] - none[1]
    return [
        _size("size-inbox", f"a message {of} that waits: its rows in the file", inbox, count, raw),
        _size("size-message", f"a message {of} in a transcript, answered", kept, count, raw),
        _size("size-wait", f"a wait, {len(reason)} bytes of reason", waits, count - 1, len(reason)),
    ]


def _size(row: str, subject: str, taken: int, count: int, raw: int) -> Result:
    each = taken / count
    return Result(
        row,
        subject,
        "the text alone",
        "B",
        Spread(each / raw, each / raw, each / raw),
        subject_figure=Spread(each, each, each),
        peer_figure=Spread(raw, raw, raw),
    )


# -- deleting


def _fill_log(state: Path, lines: int) -> None:
    store = LmdbStore.open(state, clock_ms=_now_ms)
    line = encode(LogLine(event="wait_recorded", agent="ana", text="old", at_ms=_OLD_MS))
    for start in range(0, lines, 5_000):
        (outcome,) = store.commit(
            Request(appends=(Append("log", line),) * min(5_000, lines - start))
        )
        assert isinstance(outcome, Committed), outcome
    store.close()


async def _pruning(scale: Scale) -> list[Result]:
    lines = 50_000 if scale.quick else 500_000
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent, prefix=".state-") as folder:
        state = Path(folder) / "state"
        _fill_log(state, lines)
        kept = Retention(log_days=1)
        async with open_runtime(state, control=False, retention=kept) as runtime:
            store = runtime._store
            host = Host(runtime)
            accept = host.accepting(_SENDERS)
            waits: dict[str, list[float]] = {"alone": [], "beside": []}
            deleted, took = 0, 0.0

            async def alone(count: int) -> float:
                host.forget()
                seconds = await accept(count)
                waits["alone"] += host.wait_ms
                return seconds

            async def beside(count: int) -> float:
                nonlocal deleted, took
                host.forget()
                before = store.count("log")
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(runtime.prune)
                    start = time.perf_counter()
                    seconds = await accept(count)
                    took += time.perf_counter() - start
                    nursery.cancel_scope.cancel()
                deleted += before - store.count("log")
                waits["beside"] += host.wait_ms
                return seconds

            await alone(_SENDERS)
            waits["alone"].clear()
            rates = await in_turns(scale, beside, alone, first=200, most=5_000)
            assert store.count("log"), "all was deleted before the last round"
    figures = {
        f"{part}_{side}_ms": at(ordered)
        for side, ordered in ((side, sorted(found)) for side, found in waits.items())
        for part, at in (("p50", statistics.median), ("p99", _p99), ("longest", max))
    }
    return [
        ratio_of(
            "prune",
            f"durable accepts, {_SENDERS} senders, while old rows are deleted",
            "the same with nothing to delete",
            rates,
            beside={**figures, "deleted_per_s": deleted / took},
        )
    ]


def _p99(ordered: list[float]) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


def pruning(scale: Scale) -> list[Result]:
    return trio.run(_pruning, scale)


# -- opening


def _keys(table: str, count: int) -> Iterator[bytes]:
    """Keys of a table's shape in their order, all different."""
    shape = TABLES[table].key
    for number in range(1, count + 1):
        first = f"{number:08}" if shape[0] is str else number
        rest = ["a" if part is str else 1 for part in shape[1:]]
        key: Key = (first, *rest)
        yield encode_key(shape, key)


def _fill(state: Path, tables: list[str], records: int) -> None:
    """So many records of each, past requests: what they name is not there."""
    LmdbStore.open(state, clock_ms=_now_ms).close()
    environment = Environment(state / STORE, map_bytes=MAP_BYTES, map_bytes_max=MAP_BYTES_MAX)
    try:
        environment.claim_writing()
        for table in tables:
            record = next(samples(TABLES[table].kinds[0]))
            body = encode(record).body
            keys = _keys(table, records)
            while part := list(itertools.islice(keys, _PUTS)):
                rows = frame_made(table, record.KIND, record.VERSION, part, [body] * len(part))
                with environment.writing() as transaction:
                    with transaction.cursor(db=environment.tables[table]) as cursor:
                        cursor.putmulti(rows)
                    environment.commit(transaction)
    finally:
        environment.close()
    # Closed as a host closes it: behind that nothing is looked at first.
    LmdbStore.open(state, clock_ms=_now_ms).close()


def _opened(state: Path, table: str) -> Piece:
    def piece(count: int) -> float:
        seconds = 0.0
        for _ in range(count):
            start = time.perf_counter()
            store = LmdbStore.open(state, clock_ms=_now_ms)
            row = next(iter(store.scan(table, limit=1)), None)
            seconds += time.perf_counter() - start
            assert row is not None
            store.close()
        return seconds

    return piece


def opening_each(scale: Scale) -> list[Result]:
    """One store a table, as all of them at once would take more room than a machine may have."""
    results = []
    named = [table for table in TABLES if table not in _OF_THE_STORE]
    few = 1_000
    rounds = scale._replace(rounds=3, piece_s=0.02)
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent, prefix=".state-") as folder:
        _fill(Path(folder) / "few", named, few)
        for many in (10_000,) if scale.quick else (100_000, 1_000_000):
            found: dict[str, tuple[list[float], list[float]]] = {}
            for table in named:
                with tempfile.TemporaryDirectory(dir=folder) as one:
                    state = Path(one) / "state"
                    _fill(state, [table], many)
                    sides = _opened(state, table), _opened(Path(folder) / "few", table)
                    found[table] = in_turns_sync(rounds, *sides, first=2, most=50)
            mine = [1 / statistics.median(rates[0]) for rates in found.values()]
            theirs = [1 / statistics.median(rates[1]) for rates in found.values()]
            ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
            slowest = max(range(len(named)), key=ratios.__getitem__)
            results.append(
                Result(
                    f"open-each-{many}",
                    f"open a store of {many:,} records of one table and read one, over all "
                    f"{len(named)} tables",
                    f"a store of {few:,} of each",
                    "s",
                    Spread.of(ratios),
                    Bound(None, 2.0, "lower"),
                    subject_figure=Spread.of(mine),
                    peer_figure=Spread.of(theirs),
                    beside={f"most_{named[slowest]}": ratios[slowest]},
                )
            )
    return results
