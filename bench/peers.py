"""What the subjects are measured beside: the plain ways, with nothing of Abeyance in them."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pykka
import trio
from trio.testing import wait_all_tasks_blocked


async def channel_await(count: int) -> float:
    """Messages through a memory channel, `await send` and `await receive`."""
    send, receive = trio.open_memory_channel[int](1000)

    async def consume() -> None:
        async for _ in receive:
            pass

    start = time.perf_counter()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(consume)
        async with send:
            for number in range(count):
                await send.send(number)
    return time.perf_counter() - start


async def channels_ping_pong(count: int) -> float:
    """Question and answer over two channels of capacity 1, awaited at both ends."""
    ask, asked = trio.open_memory_channel[int](1)
    reply, replied = trio.open_memory_channel[int](1)

    async def answer() -> None:
        async for number in asked:
            await reply.send(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        start = time.perf_counter()
        for number in range(count):
            await ask.send(number)
            await replied.receive()
        seconds = time.perf_counter() - start
        nursery.cancel_scope.cancel()
    return seconds


async def wakes(count: int) -> float:
    """Park a task and wake it: what the loop must do at least for one waiting sender."""
    parked: list[trio.lowlevel.Task] = []

    def stay(_: Any) -> trio.lowlevel.Abort:
        return trio.lowlevel.Abort.SUCCEEDED

    async def sleeper() -> None:
        while True:
            parked.append(trio.lowlevel.current_task())
            await trio.lowlevel.wait_task_rescheduled(stay)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeper)
        await trio.lowlevel.checkpoint()
        start = time.perf_counter()
        for _ in range(count):
            while not parked:
                await trio.lowlevel.checkpoint()
            trio.lowlevel.reschedule(parked.pop())
            await trio.lowlevel.checkpoint()
        seconds = time.perf_counter() - start
        nursery.cancel_scope.cancel()
    return seconds


class Task:
    """A task that waits in a cancel scope of its own: the least an actor could be."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()

    async def run(self) -> None:
        with self.scope:
            await trio.sleep_forever()


async def spawn_tasks(count: int) -> float:
    """Start so many tasks in cancel scopes and let each reach its first wait."""
    async with trio.open_nursery() as nursery:
        start = time.perf_counter()
        for _ in range(count):
            nursery.start_soon(Task().run)
        # Not a checkpoint: in every other round trio would resume this task before all of them.
        await wait_all_tasks_blocked()
        seconds = time.perf_counter() - start
        nursery.cancel_scope.cancel()
    return seconds


async def bare_nurseries(count: int) -> float:
    """Open a nursery, run one task in it, leave it."""

    async def answer() -> None:
        pass

    start = time.perf_counter()
    for _ in range(count):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
    return time.perf_counter() - start


async def nursery_crashes(count: int) -> float:
    """A task in a nursery raises, a new nursery is opened, and its task answers."""

    class Broken(Exception):
        pass

    async def fail() -> None:
        raise Broken

    async def answer(answered: trio.Event) -> None:
        answered.set()

    start = time.perf_counter()
    for _ in range(count):
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail)
        except* Broken:
            pass
        answered = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer, answered)
            await answered.wait()
    return time.perf_counter() - start


class PykkaCounter(pykka.ThreadingActor):
    """Counts tells, sets an event at a number, and answers asks."""

    def __init__(self) -> None:
        super().__init__()
        self.handled = 0
        self.until = math.inf
        self.reached = threading.Event()

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, int):
            self.handled += 1
            if self.handled >= self.until:
                self.reached.set()
            return message
        until, reached = message
        self.handled, self.until, self.reached = 0, until, reached
        return None


@contextmanager
def pykka_counter() -> Iterator[pykka.ActorRef[PykkaCounter]]:
    ref = PykkaCounter.start()
    try:
        yield ref
    finally:
        ref.stop()


def drag(begun: float, seconds: float) -> None:
    """Sleep until so long after `begun`, as a slower disk would have its writer wait."""
    left = begun + seconds - time.perf_counter()
    if left > 0:
        time.sleep(left)


class SyncedLmdb:
    """One record a commit, each synced, in a table of its own."""

    def __init__(self, folder: Path, record: bytes) -> None:
        folder.mkdir()
        self._env = lmdb.open(str(folder), map_size=1 << 30, sync=True)
        self._record = record
        self._next = 0
        self.sync_s = 0.0
        """How long a commit takes at least: 0 is as long as the disk does."""

    def commits(self, count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            begun = time.perf_counter()
            with self._env.begin(write=True) as txn:
                txn.put(self._next.to_bytes(8, "big"), self._record, append=True)
            self._next += 1
            drag(begun, self.sync_s)
        return time.perf_counter() - start

    def close(self) -> None:
        self._env.close()


class SyncedFile:
    """Append and `fdatasync`, one record at a time: what the disk itself allows."""

    def __init__(self, path: Path, record: bytes) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        self._record = record
        self._sync = getattr(os, "fdatasync", os.fsync)

    def appends(self, count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            os.write(self._fd, self._record)
            self._sync(self._fd)
        return time.perf_counter() - start

    def close(self) -> None:
        os.close(self._fd)
