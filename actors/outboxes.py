"""The outboxes of a runtime: who reads which, in whichever process, how far each is, and their end.

Invariants:
    I1  An outbox has one reader at a time: within the process by its name here, between processes
        by its owner row.
    I2  What a removal cut off leaves is deleted before an outbox of that name is begun anew.

Runs in: the loop thread, in the task of whoever asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import trio

from abeyance.storage.errors import OwnedElsewhereError
from abeyance.storage.store import Committed, Delete, Guard, NotStored, Refused, Request

from .domain.errors import OutboxBusyError, UnknownOutboxError, not_stored
from .domain.outbox_rows import read_behind, requests_of
from .outbox_status import OutboxStatus, begun, owner_pid, status_of

if TYPE_CHECKING:
    from .runtime import Runtime


class Outboxes:
    """The outboxes of one runtime: who reads which, and that rows may have changed."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._read: dict[str, object] = {}
        self._waiting = trio.lowlevel.ParkingLot()
        self.stirs = 0

    # -- that something moved ----------------------------------------------------------------

    def stir(self) -> None:
        """Rows of a slot may have changed. Not a checkpoint; costs nothing where nobody reads."""
        self.stirs += 1
        if self._waiting:
            self._waiting.unpark_all()

    async def watch(self) -> None:
        """Tell readers of the runtime's end."""
        await self._runtime._lifetime.ending.wait()
        self.stir()

    async def wait_stirred(self, since: int) -> None:
        """Wait until something moved since a number of stirs. A checkpoint only if it waits."""
        while self.stirs == since and self._runtime._lifetime.is_open:
            await self._waiting.park()

    # -- who reads ---------------------------------------------------------------------------

    @contextmanager
    def opening(self, name: str, token: object) -> Iterator[None]:
        """Hold the name while a reader opens; what fails lets go of it.

        Raises:
            OutboxBusyError: Somebody of this process has it.
        """
        if name in self._read:
            raise busy(name)
        self._read[name] = token
        try:
            yield
        except BaseException:
            del self._read[name]
            raise

    def closed(self, name: str, token: object) -> None:
        if self._read.get(name) is token:
            del self._read[name]

    async def own(self, name: str) -> Guard:
        """Take an outbox's owner row, by compare-and-set.

        Raises:
            OutboxBusyError: A live process has it; nothing was done.
            NotStoredError: Nothing was taken.
        """
        owned = ("outbox", name)
        while True:
            try:
                taking = self._runtime._ownership.plan(owned)
            except OwnedElsewhereError as error:
                raise busy(name, error.pid, error.host) from error
            with trio.CancelScope(shield=True):
                taken = [await self.commit(request) for request in taking.requests]
            if all(taken):
                return Guard("owners", owned, taking.counters[owned])
            # Another process was faster; who it was is read again.

    async def commit(self, request: Request) -> bool:
        """Commit; False where another process has the outbox."""
        outcome: Any = await self._runtime._journal.ask(request)
        if isinstance(outcome, NotStored):
            raise not_stored(outcome)
        assert isinstance(outcome, Committed | Refused)
        return isinstance(outcome, Committed)

    async def clear(self, name: str, guard: Guard) -> None:
        """Delete the cursors of an outbox that is no more."""
        store = self._runtime._store
        deletes = [Delete("cursors", key) for key, _ in store.scan("cursors", (name,))]
        with trio.CancelScope(shield=True):
            for request in requests_of(guard, store, deletes):
                await self.commit(request)

    # -- looking and removing ----------------------------------------------------------------

    async def listing(self) -> tuple[OutboxStatus, ...]:
        found = []
        for name, record in begun(self._runtime._store):
            behind = []
            for each in read_behind(self._runtime._store, name, record.agent):
                if each is None:
                    await trio.lowlevel.checkpoint()
                else:
                    behind.append(each)
            found.append(status_of(name, record, behind, self._pid(name), name in self._read))
        return tuple(found)

    def _pid(self, name: str) -> int | None:
        runtime = self._runtime
        return owner_pid(runtime._store, name, runtime._ownership.is_alive)

    async def remove(self, name: str) -> None:
        store = self._runtime._store
        if not any(key == (name,) for key, _ in store.scan("outboxes", (name,), limit=1)):
            raise UnknownOutboxError(
                f"there is no outbox {name!r}; nothing was done; outboxes() lists those there are",
                name=name,
            )
        token = object()
        with self.opening(name, token):
            guard = await self.own(name)
            # Its row first: an outbox without some of its cursors would begin anew with them.
            delete = Request(guards=(guard,), deletes=(Delete("outboxes", (name,)),))
            with trio.CancelScope(shield=True):
                await self.commit(delete)
            await self.clear(name, guard)
        self.closed(name, token)


def busy(name: str, pid: int | None = None, host: str | None = None) -> OutboxBusyError:
    who = "somebody in this process" if pid is None else f"process {pid} on {host}"
    return OutboxBusyError(
        f"outbox {name!r} is read by {who}; nothing was done; close it there first, or end that "
        "process",
        name=name,
        pid=pid,
        host=host,
    )
