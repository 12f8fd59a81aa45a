"""Threads of items' sync functions: nobody can end one, so the next life of its run joins it.

A life that is cut off leaves its thread behind. What the thread comes to is kept here, so that a
later life of the run, of whichever runtime this process has opened on the store, takes that for the
item's outcome instead of running the function beside itself.

Invariants:
    I1  For each item of a store at most one thread of this process runs; who asks again joins it.
    I2  What a thread came to is given to one life, once; nobody's after its run has ended.

Runs in: the loop thread, and `StepThread.__call__` in the thread itself.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, Final, Literal, TypeAlias

import trio

from .run_rows import RunId

THREADS: Final = 16
KEPT_MAX: Final = 1_000
"""Outcomes that no life has asked for; past them the oldest is forgotten, and its item in doubt."""

Key: TypeAlias = tuple[str, RunId, int]
"""(store, run, which of its items)."""


class StepThread:
    """One function in one thread, for whoever waits for it."""

    __slots__ = ("_error", "_function", "_lock", "_state", "_value", "_waiting", "wanted")

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._state: Literal["new", "running", "done", "revoked"] = "new"
        self._value: Any = None
        self._error: BaseException | None = None
        self._waiting: list[tuple[trio.lowlevel.TrioToken, trio.Event]] = []
        self.wanted = True
        """False once its run has ended: what it comes to is nobody's."""

    def __call__(self) -> None:
        """Run the function. In the thread; raises nothing."""
        with self._lock:
            if self._state != "new":
                return  # Whoever started it has gone, and said so before it began.
            self._state = "running"
        try:
            self._value = self._function()
        except BaseException as error:  # noqa: BLE001 - told to whoever waits for it.
            self._error = error
        if not self.wanted:
            self.drop()
        with self._lock:
            self._state = "done"
            waiting, self._waiting = self._waiting, []
        for token, event in waiting:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(event.set)

    @property
    def is_running(self) -> bool:
        return self._state == "running"

    @property
    def is_done(self) -> bool:
        return self._state == "done"

    def revoke(self) -> bool:
        """Have it never begin; False where it has begun."""
        with self._lock:
            if self._state != "new":
                return False
            self._state = "revoked"
            return True

    async def wait(self) -> None:
        """Wait until it has come to something. Cancelled: it runs on."""
        event = trio.Event()
        with self._lock:
            if self._state == "done":
                return
            self._waiting.append((trio.lowlevel.current_trio_token(), event))
        await event.wait()

    def take(self) -> Any:
        """What it came to: returned, or raised."""
        if self._error is not None:
            raise self._error
        return self._value

    def drop(self) -> None:
        """Nobody asks for what it came to any more."""
        self.wanted = False
        if inspect.iscoroutine(self._value):
            self._value.close()


class StepThreads:
    """The threads of one store's runs.

    Args:
        store: Names the store among those this process has opened, or had opened.
    """

    _known: ClassVar[dict[Key, StepThread]] = {}
    """Of the process, not of a runtime: a thread outlives the runtime that started it."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._limiter = trio.CapacityLimiter(THREADS)

    def find(self, run: RunId, ordinal: int) -> StepThread | None:
        """The thread that an item's function runs in, or ran in and was asked for by nobody."""
        return self._known.get((self._store, run, ordinal))

    def running(self, run: RunId) -> int:
        """How many functions of a run are in their threads now."""
        return sum(
            thread.is_running
            for (store, owner, _), thread in list(self._known.items())
            if (store, owner) == (self._store, run)
        )

    async def wait_idle(self, run: RunId) -> None:
        """Wait until no function of a run is in a thread. A checkpoint. Cancelled: they run on."""
        await trio.lowlevel.checkpoint()
        for (store, owner, _), thread in list(self._known.items()):
            if (store, owner) == (self._store, run) and thread.is_running:
                await thread.wait()

    async def call(self, run: RunId, ordinal: int, function: Callable[[], Any], name: str) -> Any:
        """Run a function in a thread, or join the thread that this item has already.

        A checkpoint. Cancelled: the function runs on where it has begun, and is found again.

        Returns:
            What it returned; raises what it raised.
        """
        key = (self._store, run, ordinal)
        thread = self._known.get(key)
        if thread is None:
            self._make_room()
            thread = self._known[key] = StepThread(function)
            try:
                await trio.to_thread.run_sync(
                    thread, limiter=self._limiter, thread_name=name, abandon_on_cancel=True
                )
            except BaseException:
                if thread.revoke():
                    del self._known[key]
                raise
        else:
            await thread.wait()
        if self._known.get(key) is thread:
            del self._known[key]
        return thread.take()

    def forget(self, run: RunId) -> None:
        """A run has ended: what its threads come to is nobody's."""
        for key, thread in list(self._known.items()):
            if key[:2] == (self._store, run):
                thread.drop()
                if not thread.is_running:
                    self._known.pop(key, None)

    def _make_room(self) -> None:
        kept = [key for key, thread in list(self._known.items()) if thread.is_done]
        for key in kept[: max(0, len(kept) - KEPT_MAX + 1)]:
            self._known.pop(key).drop()
        for key, thread in list(self._known.items()):
            if thread.is_done and not thread.wanted:
                del self._known[key]
