"""What a generator of the runtime's loop yields, for a host's threads and for an asyncio loop.

Invariants:
    I1. One item is asked for at a time, and one that was asked for is given to whoever asks next:
        an `async for` that is cancelled while it waits loses nothing.
    I2. `_lock`, on the runtime's loop, is held while the generator runs; it is closed by whoever
        has the lock. So a close ends a wait for an item instead of meeting it.

Usable from any thread but the runtime's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

import trio

from .core import TrioFuture
from .domain.errors import RuntimeClosedError

if TYPE_CHECKING:
    from .runtime import Runtime

_Item = TypeVar("_Item")
_END: Final[Any] = object()


class HostedItems(Generic[_Item]):
    """Items as they come: `for item in ...` on a thread, `async for item in ...` in asyncio.

    To be made it waits for one pass of the runtime's loop, wherever it is made. `for` blocks
    its thread until there is an item; `async for` holds no thread, and asyncio's loop goes on
    meanwhile. Use one of the two, in one place at a time. An `async for` that is cancelled, as
    by `asyncio.timeout`, can go on: what came meanwhile is its next item.

    Closed, or no longer referred to, it waits for nothing, and whoever waits for an item finds its
    end: `close` from any thread, `await aclose()` in asyncio, or leave its `with` or `async with`.
    Nothing that is stored depends on it.

    Raises:
        RuntimeClosedError: An item was asked for, and the runtime has ended.
    """

    def __init__(
        self, call: Callable[..., Any], open_: Callable[[Runtime], AsyncGenerator[_Item, None]]
    ) -> None:
        async def begin(runtime: Runtime) -> _Reading:
            return _Reading(open_(runtime))

        self._call = call
        self._asked: TrioFuture[_Item] | None = None
        self._reading: _Reading = call(begin, True)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> _Item:
        item: _Item = self._call(self._reading.next, True)
        if item is _END:
            raise StopIteration
        return item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> _Item:
        if self._asked is None:
            self._asked = self._call(self._reading.next, False)
        asked = self._asked
        try:
            item = await asked
        finally:
            if asked.settled and self._asked is asked:
                self._asked = None
        if item is _END:
            raise StopAsyncIteration
        return item

    def close(self) -> None:
        """End it. Blocks until the runtime waits for nothing of it; any number of times."""
        with suppress(RuntimeClosedError):  # Then it has ended there, too.
            self._call(self._reading.end, True)

    async def aclose(self) -> None:
        """End it, without blocking. As `close`."""
        with suppress(RuntimeClosedError):
            await self._call(self._reading.end, False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        reading = self.__dict__.get("_reading")  # None: its making failed.
        if reading is not None and not reading.closed:
            with suppress(RuntimeClosedError):
                self._call(reading.end, False)


class _Reading:
    """The generator, and who waits for it. All but `closed` on the runtime's loop only."""

    def __init__(self, found: AsyncGenerator[Any, None]) -> None:
        self._found = found
        self._lock = trio.Lock()
        self._scope: trio.CancelScope | None = None
        self.closed = False

    async def next(self, runtime: Runtime) -> Any:
        with trio.CancelScope() as scope:
            async with self._lock:
                if self.closed:
                    return _END
                self._scope = scope
                try:
                    return await anext(self._found, _END)
                finally:
                    self._scope = None
        return _END

    async def end(self, runtime: Runtime) -> None:
        self.closed = True
        if self._scope is not None:
            self._scope.cancel(reason="it was closed")
        async with self._lock:
            await self._found.aclose()
