"""A runtime's life as its callers see it: open, ending, ended; and how whoever waits is answered.

    open      verbs do what they say
    ending    each verb raises RuntimeClosedError at once; who waits is answered by it, too
    ended     the same, for ever: nothing opens a runtime again, a new one is opened

Invariants:
    I1  From the first moment of the end nothing starts: what was about to, is refused; what is
        starting, is waited for and then stopped with the rest.
    I2  Nobody who called a verb waits past the end of the actors, and none is told anything but
        that the runtime has ended. An auxiliary call that is out is its caller's own.

Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio

from abeyance.storage.errors import StoreClosedError

from .core.errors import ActorDeadError, ChildStartError
from .domain.errors import RuntimeClosedError


def closed() -> RuntimeClosedError:
    """The one error of every verb from the first moment of the end on."""
    return RuntimeClosedError(
        "this runtime has ended; nothing was done; open the state directory again"
    )


class Lifetime:
    """Whether a runtime is open, and who of its callers is under way."""

    def __init__(self) -> None:
        self.ending = trio.Event()
        """Set at the first moment of the end."""
        self._starting = 0
        self._started = trio.Event()

    @property
    def is_open(self) -> bool:
        return not self.ending.is_set()

    def check_open(self) -> None:
        """Refuse a verb.

        Raises:
            RuntimeClosedError: The end has begun; nothing was done.
        """
        if self.ending.is_set():
            raise closed()

    async def end(self) -> None:
        """Begin the end: refuse what comes, and wait for what is starting.

        Idempotent; a checkpoint.
        """
        self.ending.set()
        while self._starting:
            await self._started.wait()
        await trio.lowlevel.checkpoint()

    @asynccontextmanager
    async def starting(self) -> AsyncIterator[None]:
        """Start actors in this block, shielded: half a group would hold its names.

        Raises:
            RuntimeClosedError: The end has begun; nothing is started.
        """
        self.check_open()
        self._starting += 1
        try:
            with trio.CancelScope(shield=True):
                yield
        finally:
            self._starting -= 1
            self._started.set()
            self._started = trio.Event()

    @contextmanager
    def answers(self) -> Iterator[None]:
        """Tell who was under way when the end came that it came, whatever it met with.

        Raises:
            RuntimeClosedError: In place of what an actor or a store that has ended raises.
        """
        try:
            yield
        except (ActorDeadError, ChildStartError, StoreClosedError) as error:
            if self.is_open:
                raise
            raise closed() from error
