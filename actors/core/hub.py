"""The hub: takes events to whoever looks. Lossy for a slow reader, and never in a producer's way.

Producers hand a frozen record to the hub. It goes to the system's `on_event`, where there is one,
and to every subscription: a bounded queue that drops its oldest record when it is full and says in
that place how many it dropped.

Invariants:
    I1. A producer takes a lock for the length of a few queue operations and waits for nobody.
    I2. Of the records that a subscription was offered, in order, each is read once or counted by
        the `EventsDropped` that is read in its place.
    I3. The hub refers to subscriptions weakly: one that nobody holds any more is gone.
    I4. `watched` is true where somebody looks; where nobody does, producers build no record.

Any thread.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import trio

from .events import Event, EventsDropped
from .future import TrioFuture
from .logs import Log

if TYPE_CHECKING:
    from .ports import EventSink

logger = Log("abeyance.core")

CAPACITY: Final = 1_000
"""How many records a subscription holds unread, where it states no other bound."""


class EventHub:
    """Where a system's events go.

    Args:
        sink: Called with every event on the thread that made it. One that raises is counted.
        now_ms: Where instants come from.
    """

    def __init__(self, sink: EventSink | None, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        self.watched = sink is not None
        self.sink_failures = 0
        self._sink = sink
        self._lock = threading.RLock()  # A subscription's end may interrupt its holder.
        self._subscriptions: dict[int, weakref.ref[Subscription]] = {}
        self._ended = False

    def emit(self, event: Event) -> None:
        """Hand an event to whoever looks. Any thread; does not raise, waits for nobody."""
        if self._sink is not None:
            try:
                self._sink(event)
            except Exception:
                with self._lock:
                    self.sink_failures += 1
                logger.exception("on_event failed; the system goes on")
        for reference in list(self._subscriptions.values()):
            subscription = reference()
            if subscription is not None:
                subscription._offer(event)

    def subscribe(self, capacity: int, kinds: Collection[str] | None) -> Subscription:
        """Return a new subscription to what happens from now on. Any thread."""
        subscription = Subscription(self, capacity, kinds)
        key = id(subscription)
        with self._lock:
            if self._ended:
                subscription._end()
            else:
                # What is gone leaves by itself, wherever it is collected.
                self._subscriptions[key] = weakref.ref(
                    subscription, lambda _gone: self._forget(key)
                )
                self.watched = True
        return subscription

    def _forget(self, key: int) -> None:
        with self._lock:
            self._subscriptions.pop(key, None)
            self.watched = self._sink is not None or bool(self._subscriptions)

    @property
    def subscribers(self) -> int:
        """How many subscriptions there are."""
        return len(self._subscriptions)

    def end(self) -> None:
        """End every subscription behind what it holds. Any thread; does not raise."""
        with self._lock:
            self._ended = True
            references = list(self._subscriptions.values())
            self._subscriptions.clear()
            self.watched = self._sink is not None
        for reference in references:
            subscription = reference()
            if subscription is not None:
                subscription._end()


class Subscription:
    """The events from one moment on: `async for` in trio code, `for` in a host thread.

    Got from `events()`; not constructed. One reader at a time. It ends by `close()`, at the end of
    a `with` block, when nobody holds it any more (a loop that is left, a task that is cancelled),
    and when the system has ended, behind what it holds.
    """

    def __init__(self, hub: EventHub, capacity: int, kinds: Collection[str] | None) -> None:
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
            raise ValueError(f"capacity must be an integer of at least 1, and is {capacity!r}")
        if isinstance(kinds, str):
            raise TypeError("kinds is a collection of event kinds, not one of them")
        self._hub = hub
        self._capacity = capacity
        self._kinds = None if kinds is None else frozenset(kinds)
        self._lock = threading.RLock()  # A finalizer that emits may interrupt its holder.
        self._held: deque[Event] = deque()
        self._missing = 0
        self._dropped = 0
        self._ended = False
        self._waiter: TrioFuture[None] | None = None

    @property
    def dropped(self) -> int:
        """How many events it dropped in its life."""
        return self._dropped

    def close(self) -> None:
        """End it; what it holds is dropped, and a reader that waits is released. Any thread."""
        self._hub._forget(id(self))
        with self._lock:
            self._held.clear()
            self._missing = 0
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- producers, any thread

    def _offer(self, event: Event) -> None:
        if self._kinds is not None and event.kind not in self._kinds:
            return
        gone: Event | None = None  # Not before the lock: its finalizer may emit, too.
        with self._lock:
            if self._ended:
                return
            if len(self._held) >= self._capacity:
                # The oldest goes, so that what is missing is always right before what is read next.
                gone = self._held.popleft()
                self._missing += 1
                self._dropped += 1
            self._held.append(event)
            waiter, self._waiter = self._waiter, None
        del gone
        if waiter is not None:
            waiter._answer(None)

    def _end(self) -> None:
        with self._lock:
            self._ended = True
            waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter._answer(None)

    # -- the reader

    def _take(self) -> Event | TrioFuture[None] | None:
        """Take the next record; where there is none, what to wait for; None at the end."""
        with self._lock:
            if self._missing:
                missing, self._missing = self._missing, 0
                return EventsDropped(at_ms=self._hub.now_ms(), count=missing)
            if self._held:
                return self._held.popleft()
            if self._ended:
                return None
            if self._waiter is not None:
                raise RuntimeError("a subscription has one reader at a time; open one for each")
            self._waiter = TrioFuture()
            return self._waiter

    def _leave(self, waiter: TrioFuture[None]) -> None:
        with self._lock:
            if self._waiter is waiter:
                self._waiter = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """Return the next event. A checkpoint. Cancelled: no event is lost."""
        await trio.lowlevel.checkpoint()
        while True:
            taken = self._take()
            if taken is None:
                raise StopAsyncIteration
            if isinstance(taken, Event):
                return taken
            try:
                await taken
            finally:
                self._leave(taken)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        """Return the next event. Blocks; where trio runs it raises `WouldDeadlockError` instead."""
        while True:
            taken = self._take()
            if taken is None:
                raise StopIteration
            if isinstance(taken, Event):
                return taken
            try:
                taken.get()
            finally:
                self._leave(taken)
