"""Durable acceptance: `send` through a runtime's slot, beside synced commits and the bare disk."""

from __future__ import annotations

import functools
import itertools
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from abeyance.actors import AgentHandle, AgentSpec, Runtime, open_runtime
from abeyance.actors.providers.port import ModelReply, ModelRequest, OnDelta, use_permit
from abeyance.storage.codec import encode
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Committed, Put, Request
from abeyance.storage.tables.waits import Wait

from .measure import AsyncPiece, Bound, Result, Scale, Spread, in_turns, ratio_of
from .peers import SyncedFile, SyncedLmdb, drag, wakes

TEXT = "It is raining in Oslo, and the umbrella is in the other bag. Shall we go anyway? " * 2
_RECORD = b"x" * 250
_SENDERS = (1, 16, 256, 4096)
_DRAGGED_S = 0.002
"""What a commit takes at least in the row that does not depend on the disk."""
_STALL = "how late the loop resumes a sleeper under 256 senders, p99.9"
_INBOX = 9_000
"""Accepts a slot takes in a piece: an inbox holds 10,000 messages while its turn lives."""


class _Busy:
    """A provider whose call lasts: the turn lives, and what is accepted stays in the inbox."""

    carries_injections = True

    def __init__(self) -> None:
        self.called = trio.Event()

    async def call(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        use_permit()
        self.called.set()
        await trio.sleep_forever()
        raise AssertionError

    async def aclose(self) -> None:
        return None


class Lag:
    """How late a task is resumed that slept a millisecond: what the loop adds to everything."""

    def __init__(self) -> None:
        self.late_ms: list[float] = []

    async def watch(self) -> None:
        while True:
            due = time.perf_counter() + 0.001
            await trio.sleep(0.001)
            self.late_ms.append((time.perf_counter() - due) * 1000)

    def percentile(self, part: float) -> float:
        ordered = sorted(self.late_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else 0.0


class Host:
    """A runtime, and a fresh agent with a live turn for each piece."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._numbers = itertools.count(1)
        self.lag = Lag()
        self.wait_ms: list[float] = []
        self.cpu_s: list[float] = []

    async def busy_agent(self) -> AgentHandle:
        provider = _Busy()
        agent = await self._runtime.add_agent(
            AgentSpec(name=f"agent-{next(self._numbers)}", provider=provider, model="m")
        )
        await agent.send("begin", author="user")
        await provider.called.wait()
        return agent

    def accepting(self, senders: int, *, watched: bool = False) -> AsyncPiece:
        """So many messages from so many tasks, each awaiting its receipt before its next.

        `watched`: beside them the loop's lateness is noted, each millisecond. That costs the loop
        about a twentieth of its time, which is none of an accept's.
        """

        async def piece(count: int) -> float:
            agent = await self.busy_agent()
            each = max(1, count // senders)

            async def sender() -> None:
                for _ in range(each):
                    before = time.perf_counter()
                    await agent.send(TEXT, author="user")
                    self.wait_ms.append((time.perf_counter() - before) * 1000)

            async with trio.open_nursery() as watching:
                if watched:
                    watching.start_soon(self.lag.watch)
                cpu, start = time.process_time(), time.perf_counter()
                async with trio.open_nursery() as nursery:
                    for _ in range(senders):
                        nursery.start_soon(sender)
                seconds = time.perf_counter() - start
                self.cpu_s.append((time.process_time() - cpu) / (each * senders))
                watching.cancel_scope.cancel()
            return seconds * count / (each * senders)

        return piece

    def forget(self) -> None:
        self.lag, self.wait_ms, self.cpu_s = Lag(), [], []


def _syncing(side: Callable[[int], float]) -> AsyncPiece:
    async def piece(count: int) -> float:
        await trio.lowlevel.checkpoint()
        return side(count)

    return piece


@asynccontextmanager
async def _host() -> AsyncIterator[tuple[Host, Path]]:
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent, prefix=".state-") as folder:
        where = Path(folder)
        async with open_runtime(where / "state") as runtime:
            yield Host(runtime), where


@contextmanager
def _dragged(host: Host, synced: SyncedLmdb, seconds: float) -> Iterator[None]:
    """Let each commit of both sides take at least so long."""
    environment: Any = host._runtime._store._environment
    commit = environment.commit

    def slowly(transaction: Any) -> None:
        begun = time.perf_counter()
        commit(transaction)
        drag(begun, seconds)

    environment.commit, synced.sync_s = slowly, seconds
    try:
        yield
    finally:
        environment.commit, synced.sync_s = commit, 0.0


def _per_second(disk: SyncedFile, count: int) -> float:
    return count / disk.appends(count)


async def _accepts(scale: Scale) -> list[Result]:
    results: list[Result] = []
    bounds = {256: Bound(10, 20) if scale.pinned else Bound(6, 10)}
    async with _host() as (host, where):
        synced, disk = SyncedLmdb(where / "peer", _RECORD), SyncedFile(where / "raw", _RECORD)
        for senders in _SENDERS:
            raw = _per_second(disk, 200)
            await host.accepting(senders)(senders)
            host.forget()
            rates = await in_turns(
                scale,
                host.accepting(senders),
                _syncing(synced.commits),
                first=max(100, senders),
                most=_INBOX,
            )
            mine = statistics.median(rates[0])
            after = _per_second(disk, 200)
            results.append(
                ratio_of(
                    f"accepts-{senders}",
                    f"durable accepts, {senders} senders, four rows each",
                    "one synced LMDB commit a record",
                    rates,
                    bounds.get(senders, Bound()),
                    beside={
                        "x_fdatasync": mine / ((raw + after) / 2),
                        "fdatasync_before_per_s": raw,
                        "fdatasync_after_per_s": after,
                        "receipt_p50_ms": statistics.median(host.wait_ms),
                        "receipt_max_ms": max(host.wait_ms),
                    },
                )
            )
            if senders == 256:
                results.append(await _cpu(scale, host))
                for _ in range(scale.rounds):
                    await host.accepting(senders, watched=True)(1_000 if scale.quick else 8_000)
                results.append(stall_of("stall", _STALL, host.lag))
        results.append(await _accepts_dragged(scale, host, synced))
    return results


async def _accepts_dragged(scale: Scale, host: Host, synced: SyncedLmdb) -> Result:
    """The accepts of 256 senders where a commit takes the same on every machine, or nearly."""
    host.forget()
    with _dragged(host, synced, _DRAGGED_S):
        rates = await in_turns(
            scale, host.accepting(256), _syncing(synced.commits), first=256, most=_INBOX
        )
    return ratio_of(
        "accepts-256-2ms",
        f"durable accepts, 256 senders, no commit of either side under {_DRAGGED_S * 1e3:g} ms",
        "one synced LMDB commit a record, slowed down in the same way",
        rates,
        beside={
            "receipt_p50_ms": statistics.median(host.wait_ms),
            "receipt_max_ms": max(host.wait_ms),
        },
    )


def stall_of(row: str, text: str, lag: Lag) -> Result:
    """A row of how late a loop was, whose p99.9 counts."""
    worst = lag.percentile(0.999)
    return Result(
        row,
        text,
        "",
        "ms",
        Spread(worst, lag.percentile(0.5), max(lag.late_ms)),
        Bound(5.0, 3.0, "lower"),
        beside={"max_ms": max(lag.late_ms), "samples": len(lag.late_ms)},
    )


async def _cpu(scale: Scale, host: Host) -> Result:
    count = 2000 if scale.quick else 20_000
    bare = []
    for _ in range(3):
        cpu = time.process_time()
        await wakes(count)
        bare.append((time.process_time() - cpu) / count)
    peer = statistics.median(bare)
    mine = Spread.of([seconds * 1e6 for seconds in host.cpu_s])
    return Result(
        "accept-cpu",
        "processor time an accept, 256 senders, writer included",
        "parking and waking one trio task",
        "us",
        Spread(*(figure / 1e6 / peer for figure in mine)),
        subject_figure=mine,
        peer_figure=Spread(*[1e6 * s for s in (peer, min(bare), max(bare))]),
    )


def accepts(scale: Scale) -> list[Result]:
    return trio.run(_accepts, scale)


async def _burn() -> None:
    """Keep the loop busy, half a millisecond at a time."""
    while True:
        until = time.perf_counter() + 0.0005
        while time.perf_counter() < until:
            pass
        await trio.lowlevel.checkpoint()


async def _saturated(scale: Scale) -> list[Result]:
    senders = 16
    async with _host() as (host, _):
        quiet = host.accepting(senders, watched=True)

        async def loaded(count: int) -> float:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_burn)
                seconds = await quiet(count)
                nursery.cancel_scope.cancel()
            return seconds

        await quiet(senders)
        host.forget()
        alone = [1000 / await quiet(1000) for _ in range(scale.rounds)]
        host.forget()
        count = 200 if scale.quick else 1000
        rates = [count / await loaded(count) for _ in range(scale.rounds)]
    longest = max(host.wait_ms)
    return [
        Result(
            "accepts-saturated",
            f"durable accepts, {senders} senders, beside a task that never idles",
            "the same senders on an idle loop",
            "1/s",
            Spread.of([mine / statistics.median(alone) for mine in rates]),
            subject_figure=Spread.of(rates),
            peer_figure=Spread.of(alone),
            beside={"lag_p999_ms": host.lag.percentile(0.999)},
        ),
        Result(
            "starvation",
            "the longest wait for a receipt beside a task that never idles",
            "",
            "ms",
            Spread(longest, statistics.median(host.wait_ms), longest),
            Bound(250.0, 50.0, "lower"),
        ),
    ]


def saturated(scale: Scale) -> list[Result]:
    return trio.run(_saturated, scale)


def record_waits(path: Path, waits: int) -> None:
    """Waits of as many agents and models as a large host has, each an hour long, and one ended."""
    now_ms = time.time_ns() // 1_000_000
    store = LmdbStore.open(path, clock_ms=lambda: now_ms)
    reason = "Number of requests has exceeded your rate limit. Please try again later."
    keys = [("agent-1", "m"), *((f"ana-{n // 50:05}", f"m{n % 50}") for n in range(waits - 1))]
    for start in range(0, waits, 5_000):
        puts = tuple(
            Put(
                "waits",
                key,
                encode(
                    Wait(
                        deadline_ms=now_ms + (-1 if key[0] == "agent-1" else 3_600_000),
                        reason=reason,
                        set_ms=now_ms,
                        act=f"act-{key[0]}-{key[1]}",
                    )
                ),
            )
            for key in keys[start : start + 5_000]
        )
        (outcome,) = store.commit(Request(puts=puts))
        assert isinstance(outcome, Committed), outcome
    store.close()


async def _admission(scale: Scale, waits: int) -> tuple[Spread, float]:
    """Microseconds a permit, and the same while the waits are looked through after an opening."""
    from abeyance.actors.domain.protocol import Admit, Settle

    with tempfile.TemporaryDirectory(dir=Path(__file__).parent, prefix=".state-") as folder:
        where = Path(folder) / "state"
        record_waits(where, waits)
        async with open_runtime(where, control=False) as runtime:
            # Without a turn: a gate parks one call for as long as another is out.
            await runtime.add_agent(AgentSpec(name="agent-1", provider=_Busy(), model="m"))
            ref: Any = runtime._members["agent-1"].group.refs["gate"]

            async def permits(count: int) -> float:
                start = time.perf_counter()
                for _ in range(count):
                    permit = await ref.ask(Admit("m", "turn"), timeout=30)
                    ref.tell(Settle(permit, "succeeded"))
                return (time.perf_counter() - start) / count * 1e6

            first = await permits(50)
            await wait_all_tasks_blocked()
            count = 500 if scale.quick else 5000
            return Spread.of([await permits(count) for _ in range(scale.rounds)]), first


def admission(scale: Scale) -> list[Result]:
    results = []
    for name, waits in (("admission", 1), ("admission-100000-waits", 100_000)):
        figure, first = trio.run(functools.partial(_admission, scale, waits))
        results.append(
            Result(
                name,
                f"permit and settlement of one provider call, beside {waits} recorded wait(s)",
                "",
                "us",
                figure,
                Bound(None, 50.0, "lower"),
                beside={"right_after_opening_us": first},
            )
        )
    return results


__all__ = ["TEXT", "Host", "Lag", "accepts", "admission", "record_waits", "saturated", "stall_of"]
