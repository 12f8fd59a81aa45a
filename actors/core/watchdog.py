"""Debug mode: a handler of an actor with a role must not suspend more than once.

Domain handlers hand over and return; one that awaits another actor can deadlock with a message
that is queued behind it. The check drives the handler's coroutine and counts what it yields. The
second suspension is cancelled rather than refused, so that what the coroutine waits for is told.

Runs in the cell's task.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any

import trio

from .errors import LongAwaitError


class _Counted:
    """Await a coroutine; cancel the scope when it suspends a second time."""

    __slots__ = ("_coroutine", "_scope")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], scope: trio.CancelScope) -> None:
        self._coroutine = coroutine
        self._scope = scope

    def __await__(self) -> Generator[Any, Any, Any]:
        send, throw = self._coroutine.send, self._coroutine.throw
        value: Any = None
        error: BaseException | None = None
        suspended = 0
        while True:
            try:
                trap = send(value) if error is None else throw(error)
            except StopIteration as stop:
                return stop.value
            suspended += 1
            if suspended == 2:
                self._scope.cancel(reason="a handler suspended more than once")
            value = error = None
            try:
                value = yield trap
            except BaseException as exc:  # noqa: BLE001 - thrown into the coroutine, as await does.
                error = exc


async def one_checkpoint(coroutine: Coroutine[Any, Any, Any], owner: object) -> Any:
    """Await a handler's coroutine, which may suspend once. A checkpoint if it suspends.

    Raises:
        LongAwaitError: It suspended a second time; it was cancelled there.
    """
    with trio.CancelScope() as scope:
        return await _Counted(coroutine, scope)
    raise LongAwaitError(
        f"a handler of {owner} suspended more than once; it was cancelled there; "
        "hand the work over by ask(), pipe() or spawn(), and return",
        actor=str(owner),
    )
