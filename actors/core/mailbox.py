"""The mailbox of one cell: what is put in and how, and the protocol that wakes its one consumer.

Lanes, first to last: signal and control (flags, deduplicated), internal (the runtime's own
traffic, unbounded because each sender has at most one message outstanding), returned (redelivered
and unstashed envelopes), user (bounded). Beside them the stash: envelopes that a handler put aside.

A producer on any thread appends and then looks at `attention`; the consumer announces its sleep in
`attention` and then looks at the lanes again. Store then load on both sides: a wake cannot be
lost. Closing stores `closed`, then empties the lanes; a producer that appended meanwhile finds
`attention` set and empties them itself. Pops are atomic, so each envelope is taken once.

Invariants:
    I1. One consumer. Only it takes from the lanes until the mailbox is closed.
    I2. `attention` is true only while the consumer sleeps or the mailbox is closed. One that is
        suspended sleeps without it, so that messages do not wake it; whoever puts into another lane
        or resumes it looks at `suspended` too, after it made that change.
    I3. load <= capacity + number of racing host threads + the one in flight, which may be stashed
        when its place was taken already. Stop pills are no load.
    I4. Only the loop thread puts into and takes from `returned` and `stashed`, until it is closed.

Puts run on any thread; everything else on the loop thread, except burying what is left in a closed
mailbox, which falls to whoever finds it.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Hashable
from threading import get_ident
from typing import Any, Final

import pykka
import trio
from pykka.messages import ProxyCall, ProxyGetAttr, ProxySetAttr
from trio.lowlevel import Abort, in_trio_run, reschedule

from .carried import bare
from .coalescing import CoalescingLane
from .envelope import STOP_PILL, Envelope, Internal, Replayed, aged
from .events import ActorSuspended, ActorUnsuspended
from .future import WOKEN, Target
from .room import Room
from .settling import bury, drop
from .snapshots import MailboxStatistics, of_mailbox
from .waits import check_room
from .watermarks import rose

STOP_NOW: Final = 1
HALT: Final = 2
KILL: Final = 4

_suspensions = itertools.count(1)
_KEYLESS: Final = frozenset({ProxyCall, ProxyGetAttr, ProxySetAttr, Replayed})


class Mailbox(Room):
    """The lanes of one cell, and who puts in and takes out. Outlives incarnations."""

    __slots__ = ()

    # -- producers, any thread

    def offer(self, envelope: Envelope) -> None:
        """Accept an envelope into the user lane, or refuse it by the overflow policy.

        Raises:
            MailboxFullError, MailboxClosedError, ActorDeadError: Not accepted.
        """
        user = self.user
        if len(user) < self.room:
            user.append(envelope)
            if self.attention:
                self.attend()
        else:
            self.offer_slowly(envelope)

    def offer_slowly(self, envelope: Envelope) -> None:
        """Accept or refuse where the fast path could not tell. As `offer`."""
        self.check_open(envelope[0])
        if envelope[1] is not None:
            self.check_available(envelope[0])
        if self.put_where_room(envelope):
            return
        overflow = self.terms.overflow
        if overflow == "drop_newest":
            drop(self.cell, envelope, "overflow")
        elif overflow == "drop_oldest":
            self._drop_oldest()
            self.append(envelope)
        elif overflow == "block" and not in_trio_run():
            self._block(envelope)
        else:
            raise self.full(envelope[0])

    def append(self, envelope: Envelope) -> None:
        """Accept an envelope whatever the bound."""
        self.user.append(envelope)
        self._appended()

    def put_pill(self, done: Target) -> None:
        """Put a stop behind what is there. It is exempt from the bound, and no message."""
        self.count_pill(1)
        self.append((STOP_PILL, done, 0))

    def count_pill(self, change: int) -> None:
        """Count a stop pill that is put into the user lane, or was taken. Any thread."""
        with self.cell.system.lock:
            self.pills += change

    def _appended(self) -> None:
        if self.attention:
            self.attend()
        rose(self)

    def put_where_room(self, envelope: Envelope) -> bool:
        """Accept an envelope where there is room, or where it takes the place of an older one."""
        room = self.load < self.capacity
        lane = self.user
        if isinstance(lane, CoalescingLane) and envelope[0].__class__ not in _KEYLESS:
            # The host's function comes before any effect, and outside the lane's lock.
            key = self.cell.actor_class.coalesce_key(bare(envelope[0]))
            if key is not None:
                return self.put_by_key(key, envelope, room)
        if room:
            self.append(envelope)
        return room

    def put_by_key(self, key: Hashable, envelope: Envelope, room: bool) -> bool:
        """Accept an envelope in the place of the one of its key, else where there is room."""
        lane = self.user
        assert isinstance(lane, CoalescingLane)
        put, replaced = lane.put(key, envelope, room)
        if put:
            self._appended()
        if replaced is not None:
            drop(self.cell, replaced, "coalesced")
        return put

    def _drop_oldest(self) -> None:
        kept: list[Envelope] = []
        # A pill that is kept is in the lane no more, and still counted as if it were.
        while self.load + len(kept) >= self.capacity:
            try:
                oldest = self.user.popleft()
            except IndexError:
                break
            if self.cell.is_pill(oldest):
                kept.append(oldest)
                if len(kept) > self.capacity:
                    break
            else:
                drop(self.cell, oldest, "overflow")
        self.user.extendleft(reversed(kept))
        if kept:  # Whoever looked for pills meanwhile has not seen these.
            self.cell.look_for_pills()

    def _block(self, envelope: Envelope) -> None:
        """Block a host thread until there is room, or its time is over."""
        message, target, _ = envelope
        check_room(self.cell, message)
        limit = self.cell.actor_class.block_timeout_s
        if target is not None and target._timeout_s is not None:
            limit = target._timeout_s if limit is None else min(limit, target._timeout_s)
        until = None if limit is None else time.monotonic() + limit
        while not self.put_where_room(envelope):
            waiter = self.wait_for_room()
            if waiter is not None:
                try:
                    left_s = None if until is None else max(0.0, until - time.monotonic())
                    waiter.get(timeout=left_s)
                except pykka.Timeout:
                    self.leave_queue(waiter)
                    self.check_open(message)
                    if self.put_where_room(envelope):
                        return
                    raise self.full(message, limit) from None
                except BaseException:
                    self.leave_queue(waiter)
                    raise
            self.check_open(message)

    # -- the stash, loop thread

    def put_aside(self, envelope: Envelope) -> None:
        """Put the envelope that is being handled aside."""
        if self.stashed is None:
            self.stashed = deque()
        self.stashed.append(aged(envelope, self.since))
        self.set_room()
        rose(self)

    def put_back(self, keep: int) -> int:
        """Put what was put aside before everything else, all but the `keep` last ones."""
        stashed = self.stashed
        count = len(stashed) - keep if stashed else 0
        if not count:
            return 0
        assert stashed is not None
        self.bring_back([stashed.popleft() for _ in range(count)], unstashed=count)
        self.urgent = True  # The consumer is to begin at the front again.
        if self.attention:
            self.attend()
        return count

    def bring_back(self, envelopes: list[Envelope], *, unstashed: int) -> None:
        """Put envelopes first in line. `unstashed` of them count against the capacity."""
        if self.returned is None:
            self.returned = deque()
        self.returned.extendleft(reversed(envelopes))
        if self.closed:  # It ended, and what a shielded handler held comes back only now.
            bury(self.cell)
        elif unstashed:
            self.unstashed += unstashed
            self.watched = True
            self.set_room()

    # -- suspension, any thread

    def suspend(self, on: bool) -> bool:
        """Serve the user lane no more, or again. Return whether that changed anything."""
        with self.cell.system.lock:
            if self.closed or bool(self.suspended) is on:
                return False
            self.suspended = next(_suspensions) if on else 0
        if self.terms.fails_suspended:
            self.set_room()
        self.urgent = True
        self.attend()  # A suspended consumer sleeps without announcing it.
        cell = self.cell
        kind = ActorSuspended if on else ActorUnsuspended
        cell.system.emit(kind, subject=cell.key, incarnation=cell.incarnation)
        return True

    def put_internal(self, item: Internal) -> bool:
        """Accept into the internal lane, from any thread. False if the mailbox is closed."""
        if self.closed:
            return False
        lane = self.internal
        if lane is None:
            lane = self._make_internal()
        lane.append(item)
        self.urgent = True
        if self.attention or self.suspended:
            self.attend()
        return True

    def _make_internal(self) -> deque[Internal]:
        # Two threads may race to the first message: the lock is the cell's, taken once in a life.
        with self.cell.system.lock:
            if self.internal is None:
                self.internal = deque()
            return self.internal

    def signal(self, flag: int) -> None:
        """Raise a control flag. On the loop thread."""
        self.control |= flag
        self.urgent = True
        if self.attention or self.suspended:
            self.attend()

    def attend(self) -> None:
        """Wake a sleeping consumer, or bury what was put into a closed mailbox."""
        if get_ident() == self.ident:
            self.wake()
            return
        self.attention = False
        self.spin = True
        # Looked at only now: it may have been closed before `attention` was taken back, and whoever
        # puts something after that must see that it is to be buried.
        if self.closed:
            self.attention = True
            bury(self.cell)
            return
        try:
            self._token.run_sync_soon(self.wake)
        except trio.RunFinishedError:
            self.close()
            bury(self.cell)
        except BaseException:  # A KeyboardInterrupt here must not lose the wake.
            self.attention = True
            raise

    # -- the consumer, loop thread

    @trio.lowlevel.enable_ki_protection
    def wake(self) -> None:
        """Reschedule the consumer if it sleeps. Does not raise: it runs under run_sync_soon."""
        task = self.parked
        if self.closed:
            bury(self.cell)
        elif task is not None:
            self.attention = False
            self.parked = None
            reschedule(task, WOKEN)

    def __call__(self, _raise_cancel: object) -> Abort:
        """Take back the announced sleep of a consumer that is cancelled.

        The mailbox is what trio calls then: a bound method would be 64 bytes of each idle actor.
        """
        self.attention = False
        self.parked = None
        return Abort.SUCCEEDED

    def close(self) -> None:
        """Take nothing any more. The caller buries what is left."""
        self.closed = True
        self.set_room()
        self.attention = True
        self.give_room()

    def rest(self) -> None:
        """Nobody ever took from it, nor will for a while: what comes is counted from here.

        Whoever ends an incarnation wakes it first, so that one which ran has looked at the time.
        """
        self.since = self.cell.system.ages()

    def statistics(self) -> MailboxStatistics:
        """Return a snapshot. Any thread."""
        return of_mailbox(self)

    # -- pykka's ActorInbox

    def put(self, envelope: Any, /) -> None:
        """Accept a pykka envelope."""
        target = envelope.reply_to
        if target is not None and not isinstance(target, Target):
            raise TypeError("a TrioActor is asked by its ref, which makes the future")
        self.offer((envelope.message, target, 0))

    def empty(self) -> bool:
        """Whether no envelope waits."""
        return not (self.user or self.returned)

    def get(self) -> Any:
        """Refuse: only the cell takes from its mailbox."""
        raise TypeError("only the actor takes from its mailbox")
