"""Runs of workflows: what a recorded step costs, and whether those that wait cost the others.

DBOS comes with the dependency group `bench`; without it its row says so. Both record each step in a
transaction of its own that is synced.
"""

from __future__ import annotations

import importlib
import itertools
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio

from abeyance.actors import RunContext, Runtime, open_runtime
from abeyance.actors.domain.run_rows import RunId
from abeyance.actors.providers import CapacityExhaustedError, Exhaustion
from abeyance.storage.codec import encode, pack
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Committed, Put, Request
from abeyance.storage.tables.runs import Run, RunIndexed, RunItem, RunKey, RunTransition, Suspension

from .measure import Bound, Result, Scale, in_turns, in_turns_sync, not_installed, ratio_of
from .peers import SyncedLmdb

FEW: Final = 10
MANY: Final = (1_000, 100_000)
MANY_QUICK: Final = (1_000, 10_000)
"""For a look; the rows keep their names, and say how many there were."""
FAR_MS: Final = 4_102_444_800_000
_RUNS_A_COMMIT: Final = 500
_STEP = "a step of a run that does nothing: two commits, started and done"
_WAKE = "start a run, suspend it at its wall, resume it, complete it"


async def _nothing() -> None:
    """The cheapest item."""


async def _steps(run: RunContext, count: int) -> None:
    for number in range(count):
        await run.do(str(number), _nothing)


class _Walled:
    """A workflow of one item that meets a wall of unknown end the first time."""

    def __init__(self) -> None:
        self.is_walled = True

    async def body(self, run: RunContext, _params: Any) -> None:
        await run.do("ask", self._ask)

    async def _ask(self) -> None:
        if self.is_walled:
            raise CapacityExhaustedError((Exhaustion(provider="p", model="m"),))


def _waiting(number: int) -> Iterator[Put]:
    """The rows of one run that waits for an instant far away."""
    run, at_ms = RunId(f"waits-{number:06}", 1), FAR_MS + number
    waits = Suspension(
        provider="p",
        model="m",
        window="five_hour",
        retry_at_ms=at_ms,
        resume_after_ms=at_ms,
        path="ask",
        ordinal=0,
        attempt=1,
        failure="no capacity",
        since_ms=1,
    )
    row = Run(
        workflow="walled",
        version=1,
        state="waiting_for_capacity",
        params=pack(None),
        suspension=waits,
        walls=1,
        started_ms=1,
        changed_ms=1,
    )
    item = RunItem(path="ask", state="blocked", started_ms=1, ended_ms=1)
    step = RunTransition(before="running", after="waiting_for_capacity", by="runtime", at_ms=1)
    yield Put("run_keys", (run.key,), encode(RunKey(generation=1, is_open=True)))
    yield Put("runs", run.row, encode(row))
    yield Put("run_index", ("waiting", at_ms, *run), encode(RunIndexed(workflow="walled")))
    yield Put("run_items", (*run, 0), encode(item))
    yield Put("run_transitions", (*run, 1), encode(step))


def _fill(path: Path, runs: int) -> None:
    store = LmdbStore.open(path, clock_ms=lambda: 1)
    numbers = iter(range(runs))
    while batch := list(itertools.islice(numbers, _RUNS_A_COMMIT)):
        puts = tuple(itertools.chain.from_iterable(map(_waiting, batch)))
        (outcome,) = store.commit(Request(puts=puts))
        assert isinstance(outcome, Committed), outcome
    store.close()


@asynccontextmanager
async def _hosted(path: Path) -> AsyncIterator[Runtime]:
    async with open_runtime(path, control=False) as runtime:
        yield runtime


async def _wake(runtime: Runtime, walled: _Walled, keys: Iterator[int], count: int) -> float:
    start = time.perf_counter()
    with runtime.events(kinds={"run_changed"}) as events:
        for _ in range(count):
            walled.is_walled = True
            run = await runtime.start_run(f"run-{next(keys)}", "walled")
            async for event in events:
                changed: Any = event
                if changed.run == run.id and changed.state.startswith("waiting"):
                    break
            walled.is_walled = False
            await runtime.resume_run(run.id, requester="bench")
            await run.wait()
    return time.perf_counter() - start


def steps(scale: Scale) -> list[Result]:
    """A recorded step beside a bare synced commit."""

    async def measure(root: Path) -> tuple[list[float], list[float]]:
        peer = SyncedLmdb(root / "peer", b"x" * 120)
        keys = itertools.count()
        async with _hosted(root / "state") as runtime:
            runtime.add_workflow("steps", _steps)

            async def subject(count: int) -> float:
                start = time.perf_counter()
                run = await runtime.start_run(f"run-{next(keys)}", "steps", count)
                status = await run.wait()
                assert status.state == "completed", status
                return time.perf_counter() - start

            async def bare(count: int) -> float:
                return peer.commits(count)

            rates = await in_turns(scale, subject, bare, first=20, most=5_000)
        peer.close()
        return rates

    with tempfile.TemporaryDirectory() as root:
        rates = trio.run(measure, Path(root))
    return [ratio_of("run-step", _STEP, "one synced LMDB commit a record", rates)]


def wakes(scale: Scale) -> list[Result]:
    """Suspending and resuming beside very many runs that wait, beside few."""
    sizes = MANY_QUICK if scale.quick else MANY

    async def measure(root: Path, many: int) -> tuple[list[float], list[float]]:
        async with AsyncExitStack() as stack:
            sides = []
            for runs in (many, FEW):
                runtime = await stack.enter_async_context(_hosted(root / str(runs)))
                walled = _Walled()
                runtime.add_workflow("walled", walled.body)
                sides.append((runtime, walled, itertools.count()))

            async def subject(count: int) -> float:
                return await _wake(*sides[0], count)

            async def peer(count: int) -> float:
                return await _wake(*sides[1], count)

            return await in_turns(scale, subject, peer, first=5, most=500)

    found = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        _fill(root / str(FEW), FEW)
        for many in sizes:
            _fill(root / str(many), many)
            rates = trio.run(measure, root, many)
            found.append(
                ratio_of(
                    f"run-wake-{MANY[sizes.index(many)]}",
                    f"{_WAKE}, beside {many:,} that wait",
                    f"beside {FEW}",
                    rates,
                    Bound(None, 1.5, "lower"),
                )
            )
    return found


def starts(scale: Scale) -> list[Result]:
    """Opening a runtime with very many suspended runs, until a new run of it has completed."""
    many = MANY_QUICK[-1] if scale.quick else MANY[-1]

    async def start(path: Path, keys: Iterator[int]) -> float:
        begun = time.perf_counter()
        async with _hosted(path) as runtime:
            walled = _Walled()
            walled.is_walled = False
            runtime.add_workflow("walled", walled.body)
            run = await runtime.start_run(f"run-{next(keys)}", "walled")
            await run.wait()
            return time.perf_counter() - begun

    with tempfile.TemporaryDirectory() as name:
        root, keys = Path(name), itertools.count()
        for runs in (many, FEW):
            _fill(root / str(runs), runs)

        def opened(runs: int) -> Any:
            return lambda count: sum(trio.run(start, root / str(runs), keys) for _ in range(count))

        rates = in_turns_sync(scale, opened(many), opened(FEW), first=1, most=20)
    return [
        ratio_of(
            "run-start",
            f"open a runtime with {many:,} suspended runs, and complete a new one",
            f"with {FEW}",
            rates,
            Bound(None, 2.0, "lower"),
        )
    ]


def with_dbos(scale: Scale) -> list[Result]:
    """A step beside DBOS on SQLite, both of them synced at each step."""
    row, peer = "run-step-dbos", "DBOS on SQLite, a step that does nothing"
    try:
        dbos: Any = importlib.import_module("dbos")
    except ImportError:
        return [not_installed(row, _STEP, peer)]
    logging.getLogger("dbos").setLevel(logging.CRITICAL + 1)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        dbos.DBOS(
            config={
                "name": "bench",
                "system_database_url": f"sqlite:///{root / 'dbos.sqlite'}",
                "log_level": "CRITICAL",
                "run_admin_server": False,
            }
        )

        @dbos.DBOS.step()  # type: ignore[untyped-decorator]
        def nothing(number: int) -> int:
            return number

        @dbos.DBOS.workflow()  # type: ignore[untyped-decorator]
        def workflow(count: int) -> int:
            for number in range(count):
                nothing(number)
            return count

        async def ours(count: int) -> float:
            async with _hosted(root / f"state-{time.time_ns()}") as runtime:
                runtime.add_workflow("steps", _steps)
                start = time.perf_counter()
                run = await runtime.start_run("run", "steps", count)
                await run.wait()
                return time.perf_counter() - start

        def theirs(count: int) -> float:
            start = time.perf_counter()
            workflow(count)
            return time.perf_counter() - start

        dbos.DBOS.launch()
        try:
            rates = in_turns_sync(
                scale, lambda count: trio.run(ours, count), theirs, first=20, most=5_000
            )
        finally:
            dbos.DBOS.destroy()
    return [ratio_of(row, _STEP, peer, rates)]
