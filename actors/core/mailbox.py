"""The mailbox of one cell: lanes, bound, and the protocol that wakes its one consumer.

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
    I3. load <= capacity + number of racing host threads + stop pills + the one in flight, which may
        be stashed when its place was taken already.
    I4. A put that the fast path takes, because len(user) < `room`, is one that the slow path would
        take without doing anything else. `room` is computed anew, under the system's lock, after
        each change of what it depends on, so the last to compute it has seen every change.
    I5. `watched` is true while anyone waits for the load to fall: senders, or a high mark.
    I6. Only the loop thread puts into and takes from `returned` and `stashed`, until it is closed.
    I7. What the user lane holds came after `since`, which is NEVER where the consumer sleeps or has
        not looked since it was woken.

Puts run on any thread; everything else on the loop thread, except burying what is left in a closed
mailbox, which falls to whoever finds it.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

import pykka
import trio
from pykka.messages import ProxyCall, ProxyGetAttr, ProxySetAttr
from trio.lowlevel import Abort, reschedule

from .carried import bare
from .coalescing import CoalescingLane
from .envelope import Envelope, Internal, Replayed
from .errors import (
    ActorDeadError,
    ActorUnavailableError,
    MailboxClosedError,
    MailboxFullError,
)
from .events import ActorSuspended, ActorUnsuspended
from .future import Target, TrioFuture
from .settling import bury, drop
from .terms import terms_of
from .watermarks import BELOW, fell, rose

if TYPE_CHECKING:
    from .cell import Cell

NEVER: Final = float("inf")

STOP_NOW: Final = 1
HALT: Final = 2
KILL: Final = 4

NO_ALARM: Final = float("inf")
_suspensions = itertools.count(1)
_FLAGS: Final = {STOP_NOW: "stop_now", HALT: "halt", KILL: "kill"}
_KEYLESS: Final = frozenset({ProxyCall, ProxyGetAttr, ProxySetAttr, Replayed})


@dataclass(frozen=True, slots=True)
class MailboxStatistics:
    """A snapshot of one mailbox.

    Attributes:
        control: The control flags that are raised: `stop_now`, `halt`, `kill`.
        internal: Items in the internal lane.
        returned: Envelopes to be handled before the user lane: redelivered and unstashed ones.
        user: Envelopes in the user lane.
        stashed: Envelopes put aside by `stash()`.
        capacity: The bound of user and stashed together.
        peak: The most that the user lane held at once, at least 1. Short by what the actor took
            since it last looked, at most: eight messages.
        waiting: Senders that wait for room.
        suspended: Whether the user lane is suspended.
        above_high: Whether its high mark was reached, and its low mark has not been since.
        dead: How many of its envelopes became dead letters, by reason.
    """

    control: tuple[str, ...]
    internal: int
    returned: int
    user: int
    stashed: int
    capacity: int
    peak: int
    waiting: int
    suspended: bool
    above_high: bool
    dead: dict[str, int]


class Mailbox:
    """The lanes of one cell. Outlives incarnations."""

    __slots__ = (
        "_token",
        "alarm",
        "attention",
        "capacity",
        "cell",
        "closed",
        "control",
        "dead",
        "ident",
        "internal",
        "level",
        "looked",
        "parked",
        "peak",
        "restarting",
        "returned",
        "room",
        "since",
        "spin",
        "stashed",
        "suspended",
        "terms",
        "unstashed",
        "urgent",
        "user",
        "waiting",
        "watched",
    )

    def __init__(self, cell: Cell, ident: int, token: trio.lowlevel.TrioToken) -> None:
        terms = self.terms = terms_of(cell.actor_class)
        self.cell = cell
        self.user: deque[Envelope] = CoalescingLane() if terms.overflow == "coalesce" else deque()
        # Built when first used: an empty deque is 600 bytes, and most actors use one lane.
        self.internal: deque[Internal] | None = None
        self.returned: deque[Envelope] | None = None
        self.stashed: deque[Envelope] | None = None
        self.waiting: deque[TrioFuture[None]] | None = None
        self.capacity = terms.capacity
        self.unstashed = 0  # How many of `returned` were put there by unstashing.
        self.level = BELOW  # On which side of its marks it is.
        self.watched = False
        self.suspended = 0  # Which suspension it is in, of all there were; 0 is none.
        self.restarting = False  # Between incarnations.
        self.peak = 1
        self.dead: dict[str, int] | None = None
        self.room = self._bound()
        # Messages carry no instant, as that would be dearer than the rest of a tell. The consumer
        # keeps two of its own, by the system's stopwatch, at the looks at the time it takes anyway.
        self.since = NEVER  # What the user lane holds came after it; NEVER while it sleeps.
        self.looked = 0.0  # Its last look; what its handler does began no earlier.
        self.control = 0
        self.urgent = False
        self.attention = False
        self.spin = False  # Whether a host thread woke the consumer.
        self.closed = False
        self.alarm = NO_ALARM  # When the wheel looks for asks past their deadline here.
        self.parked: trio.lowlevel.Task | None = None
        self.ident = ident
        self._token = token

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
            self._check_available(envelope[0])
        if self.put_where_room(envelope):
            return
        overflow = self.terms.overflow
        if overflow == "drop_newest":
            drop(self.cell, envelope, "overflow")
        elif overflow == "drop_oldest":
            self._drop_oldest()
            self.append(envelope)
        elif overflow == "block" and get_ident() != self.ident:
            self._block(envelope)
        else:
            raise self.full(envelope[0])

    def append(self, envelope: Envelope) -> None:
        """Accept an envelope whatever the bound. A stop pill is exempt from it."""
        self.user.append(envelope)
        self._appended()

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

    def check_open(self, message: Any) -> None:
        """Raise if the mailbox takes nothing from the calling thread any more."""
        if self.closed:
            raise ActorDeadError(
                f"{self.cell} has ended; the message was not accepted; send it elsewhere",
                actor=str(self.cell),
                message=message,
            )
        if self.cell.stopping:
            raise MailboxClosedError(
                f"{self.cell} is stopping; the message was not accepted; send it elsewhere",
                actor=str(self.cell),
                message=message,
            )
        if self.cell.system.refusing and get_ident() != self.ident:
            raise MailboxClosedError(
                f"{self.cell.system} is shutting down; the message was not accepted; "
                "send it to the next run",
                actor=str(self.cell),
                message=message,
            )

    def _check_available(self, message: Any) -> None:
        """Raise if an ask is to fail instead of waiting for the actor to handle messages again."""
        terms = self.terms
        if self.suspended and terms.fails_suspended:
            state = "suspended"
        elif self.restarting and terms.fails_restarting:
            state = "restarting"
        else:
            return
        raise ActorUnavailableError(
            f"{self.cell} is {state}; the ask was not accepted; ask again when it handles "
            "messages, or tell it",
            actor=str(self.cell),
            message=message,
            state=state,
        )

    def full(self, message: Any, waited_s: float | None = None) -> MailboxFullError:
        """Return the error of a message for which there is no room."""
        waited = "" if waited_s is None else f", after waiting {waited_s} s for room"
        return MailboxFullError(
            f"the mailbox of {self.cell} holds {self.capacity} messages; this one was not "
            f"accepted{waited}; send slower, or await tell_wait()",
            actor=str(self.cell),
            message=message,
            capacity=self.capacity,
        )

    def _drop_oldest(self) -> None:
        kept = []
        while self.load >= self.capacity:
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

    def _block(self, envelope: Envelope) -> None:
        """Block a host thread until there is room, or its time is over."""
        message, target, _ = envelope
        limit = self.cell.actor_class.block_timeout_s
        if target is not None and target._timeout_s is not None:
            limit = target._timeout_s if limit is None else min(limit, target._timeout_s)
        until = None if limit is None else time.monotonic() + limit
        while not self.put_where_room(envelope):
            waiter = self.wait_for_room()
            if waiter is not None:
                try:
                    waiter.get(timeout=None if until is None else until - time.monotonic())
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

    def wait_for_room(self) -> TrioFuture[None] | None:
        """Return a future that is settled when there may be room; None if there is some now."""
        waiting = self.waiting
        if waiting is None:
            # Two threads may race to be the first: of two deques one would be forgotten.
            with self.cell.system.lock:
                if self.waiting is None:
                    self.waiting = deque()
                waiting = self.waiting
        waiter: TrioFuture[None] = TrioFuture()
        waiting.append(waiter)
        self.watched = True
        if self.load < self.capacity or self.closed or self.cell.stopping:
            self.leave_queue(waiter)
            return None
        return waiter

    def leave_queue(self, waiter: TrioFuture[None]) -> None:
        """Wait no longer. A wake that was given meanwhile goes on to whoever waits next."""
        assert self.waiting is not None
        if waiter._answer(None):
            with suppress(ValueError):
                self.waiting.remove(waiter)
        else:
            self.give_room()

    def give_room(self) -> None:
        """Wake as many waiting senders as there is room for. Any thread."""
        waiting = self.waiting
        room = self.capacity - self.load
        if self.closed or self.cell.stopping:
            room = len(waiting) if waiting else 0
        while waiting and room > 0:
            try:
                waiter = waiting.popleft()
            except IndexError:
                return
            if waiter._answer(None):
                room -= 1

    # -- the bound

    @property
    def load(self) -> int:
        """How much of the capacity is taken: the user lane, and what was put aside from it."""
        load = len(self.user)
        if self.stashed:
            load += len(self.stashed)
        if self.unstashed and self.returned:
            load += min(self.unstashed, len(self.returned))
        return load

    def set_room(self) -> None:
        """Compute anew how long the user lane may be for a put to take the fast path."""
        cell = self.cell
        with cell.system.lock:
            self.room = 0 if self.closed or cell.stopping else self._bound()

    def _bound(self) -> int:
        terms = self.terms
        if (
            terms.overflow == "coalesce"
            or self.cell.system.refusing
            or (self.suspended and terms.fails_suspended)
            or (self.restarting and terms.fails_restarting)
        ):
            return 0
        # The put that reaches the high mark is to be noticed, at no cost to others.
        bound = terms.high - 1 if terms.high and self.level == BELOW else self.capacity
        if self.stashed or self.unstashed:
            bound -= self.load - len(self.user)
        return bound

    def shrank(self) -> None:
        """Do what waits for the load to fall. Called each time some were taken, where watched."""
        # Whoever begins to wait from here on sets it again (I5).
        self.watched = False
        if self.unstashed:
            self.unstashed = min(self.unstashed, len(self.returned or ()))
            self.set_room()
        if self.waiting:
            self.give_room()
        fell(self)
        if self.waiting or self.unstashed or self.level != BELOW:
            self.watched = True

    def measure(self) -> None:
        """Remember how long the user lane is, if it never was longer. Any thread."""
        depth = len(self.user)
        if depth > self.peak:
            self.peak = depth

    # -- the stash, loop thread

    def put_aside(self, envelope: Envelope) -> None:
        """Put the envelope that is being handled aside."""
        if self.stashed is None:
            self.stashed = deque()
        self.stashed.append(envelope)
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
            reschedule(task)

    def abort(self, _raise_cancel: object) -> Abort:
        """Take back the announced sleep of a consumer that is cancelled."""
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
        self.since = self.cell.system.stopwatch()

    def oldest_s_max(self) -> float | None:
        """How long the oldest message of the user lane has waited at most. Any thread."""
        since = self.since
        if not self.user or since == NEVER:
            return None
        return max(0.0, self.cell.system.stopwatch() - since)

    @property
    def depth(self) -> int:
        """How many envelopes wait in the user lane and to be handled before it."""
        return len(self.user) + (len(self.returned) if self.returned else 0)

    @property
    def held(self) -> int:
        """How many envelopes it holds, the stash included."""
        return self.depth + (len(self.stashed) if self.stashed else 0)

    def statistics(self) -> MailboxStatistics:
        """Return a snapshot. Any thread."""
        self.measure()
        control = self.control
        with self.cell.system.lock:
            dead = dict(self.dead or ())
        return MailboxStatistics(
            control=tuple(name for flag, name in _FLAGS.items() if control & flag),
            internal=len(self.internal or ()),
            returned=len(self.returned or ()),
            user=len(self.user),
            stashed=len(self.stashed or ()),
            capacity=self.capacity,
            peak=self.peak,
            waiting=len(self.waiting or ()),
            suspended=bool(self.suspended),
            above_high=self.level != BELOW,
            dead=dead,
        )

    # -- pykka's ActorInbox

    def put(self, envelope: Any, /) -> None:
        """Accept a pykka envelope."""
        target = envelope.reply_to
        if target is not None and not isinstance(target, Target):
            raise TypeError("a TrioActor is asked by its ref, which makes the future")
        self.offer((envelope.message, target, 0))

    def empty(self) -> bool:
        """Whether no envelope waits."""
        return self.depth == 0

    def get(self) -> Any:
        """Refuse: only the cell takes from its mailbox."""
        raise TypeError("only the actor takes from its mailbox")
