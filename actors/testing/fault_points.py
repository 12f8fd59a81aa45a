"""Where faults happen: stand-ins for a mailbox, an incarnation's handlers, and the store.

Each takes the place of the real thing in a system that has faults, and only there. With no rule
that acts, each does exactly what the real thing does.

Invariants:
    I1. The mailbox's fast path is never taken (`room` is zero), so every put passes here.
    I2. `accepted` counts what the mailbox took, in the same locked section as the put.

Mailboxes are put to on any thread; handlers run on the loop thread; a commit's outcome comes on the
store's writer thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any

import trio

from abeyance.actors.core.coalescing import CoalescingLane
from abeyance.actors.core.envelope import TELL, Envelope, Internal, StopPill, opened
from abeyance.actors.core.errors import ActorDeadError
from abeyance.actors.core.future import Target, TrioFuture
from abeyance.actors.core.hosted import find_system
from abeyance.actors.core.mailbox import Mailbox
from abeyance.actors.core.proxies import SPECIAL, proxied
from abeyance.actors.core.settling import count_dead
from abeyance.storage.errors import StorageError
from abeyance.storage.store import Committed, NeedsService, NotStored, Outcome, Request

if TYPE_CHECKING:
    from abeyance.actors.core.cell import Cell
    from abeyance.actors.core.system import ActorSystem
    from abeyance.storage.lmdb_store import LmdbStore

    from .faults import Faults
    from .schedule import Action

_KILLED = "a fault"
JOURNAL = "journal"
_put = threading.local()


class FaultyMailbox(Mailbox):
    """A mailbox that counts what it accepts, and at which puts and wakes are points."""

    __slots__ = ("accepted", "books", "faults", "late", "targets")

    def __init__(self, faults: Faults, cell: Cell) -> None:
        super().__init__(cell, cell.system.ident, cell.system.token)
        self.room = self._bound()
        self.faults = faults
        self.accepted = 0
        self.books = threading.RLock()
        self.targets: list[Target] = []
        self.late = False  # Whether a wake was delayed and has not come.

    def offer_slowly(self, envelope: Envelope) -> None:
        _put.appended = False
        super().offer_slowly(envelope)
        if not _put.appended:  # Dropped as the newest: accepted, and a dead letter already.
            with self.books:
                self._account(envelope)

    def append(self, envelope: Envelope) -> None:
        _put.appended = True
        if envelope[0].__class__ is StopPill:
            super().append(envelope)
            return
        action = self.faults.hit("mailbox_put", self.cell, opened(envelope[0])[0])
        kind = None if action is None else action.kind
        with self.books:
            self._account(envelope)
            if kind == "drop":
                _lose(self.cell, *envelope[:2])
                return
            super().append(envelope)
            if kind == "duplicate":
                message, target, _ = envelope
                copy: Envelope = (message, None if target is None else Target(), 0)
                self._account(copy)
                super().append(copy)
        if kind == "kill":
            self.cell.system.on_loop(self.cell.kill, _KILLED)

    def _bound(self) -> int:
        return 0

    def put_by_key(self, key: Hashable, envelope: Envelope, room: bool) -> bool:
        """As the real one. A double is put first: the message then takes its place by their key."""
        lane = self.user
        assert isinstance(lane, CoalescingLane)
        message, target, _ = envelope
        with self.books:
            if not (room or lane.has(key)):
                return super().put_by_key(key, envelope, room)
            action = self.faults.hit("mailbox_put", self.cell, opened(message)[0])
            kind = None if action is None else action.kind
            if kind == "drop":
                _put.appended = True
                self._account(envelope)
                _lose(self.cell, message, target)
                return True
            if kind == "duplicate":
                double: Envelope = (message, None if target is None else Target(), 0)
                if super().put_by_key(key, double, room):
                    self._account(double)
            put = super().put_by_key(key, envelope, room)
            if put:
                _put.appended = True
                self._account(envelope)
        if kind == "kill":
            self.cell.system.on_loop(self.cell.kill, _KILLED)
        return put

    def _account(self, envelope: Envelope) -> None:
        self.accepted += 1
        if envelope[1] is not None:
            self.targets.append(envelope[1])

    def put_internal(self, item: Internal) -> bool:
        if item[0] != TELL or self.closed:
            return super().put_internal(item)
        action = self.faults.hit("mailbox_put", self.cell, item[1])
        kind = None if action is None else action.kind
        with self.books:
            if kind == "drop":
                self.accepted += 1
                _lose(self.cell, item[1], None)
                return True
            for _ in range(2 if kind == "duplicate" else 1):
                if not super().put_internal(item):
                    return False
                self.accepted += 1
        if kind == "kill":
            self.cell.system.on_loop(self.cell.kill, _KILLED)
        return True

    @trio.lowlevel.enable_ki_protection
    def wake(self) -> None:
        if self.closed or self.parked is None or self.control:
            super().wake()
            return
        if self.late:
            return
        action = self.faults.hit("wake", self.cell)
        if action is not None and action.kind == "delay":
            self.late = True
            self.cell.system.wheel.at(action.value, self._wake_late)
            return
        if action is not None:
            self.cell.kill(_KILLED)
        super().wake()

    def _wake_late(self) -> None:
        self.late = False
        super().wake()


def _lose(cell: Cell, message: Any, target: Target | None) -> None:
    """Make a dead letter of an accepted message, for no reason but the test's. Any thread."""
    count_dead(cell, message, "fault")
    if target is not None:
        target._fail(
            ActorDeadError(
                f"a fault dropped a message to {cell}; it was not handled; send it again",
                actor=cell.key,
                message=message,
            )
        )


class FaultyHandlers:
    """What is called in the place of one incarnation's instance.

    `__getattr__` gives the instance's own for everything that is no point.
    """

    def __init__(self, faults: Faults, cell: Cell, actor: Any) -> None:
        self._faults = faults
        self._cell = cell
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._actor, name)

    def on_start(self) -> Any:
        point = "on_start" if self._cell.incarnation == 1 else "on_restart"
        action = self._faults.hit(point, self._cell)
        if action is None:
            return self._actor.on_start()
        return self._first(action, self._actor.on_start)

    def on_receive(self, message: Any) -> Any:
        if message.__class__ in SPECIAL:
            # What is sent again passes as what was sent.
            return self._handle(lambda _: proxied(self._actor, message), opened(message)[0])
        return self._handle(self._actor.on_receive, message)

    def on_answer(self, answer: Any) -> Any:
        return self._handle(self._actor.on_answer, answer)

    def on_ended(self, ended: Any) -> Any:
        return self._handle(self._actor.on_ended, ended)

    def _handle(self, handler: Callable[[Any], Any], message: Any) -> Any:
        action = self._faults.hit("before_handle", self._cell, message)
        if action is not None:
            return self._first(action, lambda: self._done(handler(message), message))
        return self._done(handler(message), message)

    def _done(self, result: Any, message: Any) -> Any:
        """Let what a handler returned pass the point after it."""
        if result.__class__ is CoroutineType:
            return self._awaited(result, message)
        action = self._faults.hit("after_handle_before_ack", self._cell, message)
        return result if action is None else self._first(action, lambda: result)

    async def _awaited(self, running: Any, message: Any) -> Any:
        result = self._done(await running, message)
        return await result if result.__class__ is CoroutineType else result

    def _first(self, action: Action, then: Callable[[], Any]) -> Any:
        if action.kind == "crash":
            raise action.value.with_traceback(None)
        return self._suspend(action, then)

    async def _suspend(self, action: Action, then: Callable[[], Any]) -> Any:
        if action.kind == "kill":
            self._cell.kill(_KILLED)
            await trio.sleep_forever()
        await trio.sleep(action.value)
        result = then()
        return await result if result.__class__ is CoroutineType else result


class Bridge:
    """The point that a host thread's call passes."""

    def __init__(self, faults: Faults, system: ActorSystem) -> None:
        self._faults = faults
        self._system = system

    def pass_over(self, cell: Cell | None, message: object) -> None:
        action = self._faults.hit("bridge_call", cell, message, "host")
        if action is None:
            return
        if action.kind == "crash":
            raise action.value.with_traceback(None)
        late: TrioFuture[None] = TrioFuture()
        # Where the run has ended there is no time to wait for; the call itself says so.
        if self._system.on_loop(self._system.wheel.at, action.value, partial(late._answer, None)):
            late.get()


class FaultyStore:
    """A store whose commits are points. Everything else is the store's own."""

    def __init__(self, faults: Faults, store: LmdbStore) -> None:
        self._faults = faults
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def submit(
        self,
        batch: Sequence[Request],
        done: Callable[[Sequence[Outcome] | NeedsService], object],
    ) -> None:
        """See `Store.submit`."""
        system = find_system()
        requests = tuple(batch)

        def reported(result: Sequence[Outcome] | NeedsService) -> None:
            self._committed(system, requests, done, result)

        action = self._faults.hit("before_commit", None, requests, JOURNAL)
        if action is None:
            self._store.submit(requests, reported)
        elif action.kind == "refuse":
            done([NotStored(action.value)] * len(requests))
        elif action.kind == "delay":
            self._later(system, action.value, partial(self._submit_late, requests, reported))
        else:
            _kill_journal(system)
            self._store.submit(requests, reported)

    def _submit_late(
        self,
        requests: Sequence[Request],
        reported: Callable[[Sequence[Outcome] | NeedsService], None],
    ) -> None:
        try:
            self._store.submit(requests, reported)
        except StorageError as error:
            reported([NotStored(error)] * len(requests))

    def _committed(
        self,
        system: ActorSystem,
        requests: Sequence[Request],
        done: Callable[[Sequence[Outcome] | NeedsService], object],
        result: Sequence[Outcome] | NeedsService,
    ) -> None:
        stored = not isinstance(result, NeedsService) and any(
            isinstance(outcome, Committed) for outcome in result
        )
        action = self._faults.hit("after_commit", None, requests, JOURNAL) if stored else None
        if action is not None and action.kind == "kill":
            system.on_loop(_kill_journal, system)
        elif action is not None and system.on_loop(
            self._later, system, action.value, partial(done, result)
        ):
            return
        done(result)

    def _later(self, system: ActorSystem, seconds: float, do: Callable[[], object]) -> None:
        self._faults.commits_delayed += 1

        def now() -> None:
            self._faults.commits_delayed -= 1
            do()

        system.wheel.at(seconds, now)


def _kill_journal(system: ActorSystem) -> None:
    cell = system.names.find(JOURNAL)
    if cell is not None:
        cell.kill(_KILLED)
