"""The mailbox of one cell: lanes, bound, and the protocol that wakes its one consumer.

Lanes, first to last: signal and control (flags, deduplicated), internal (the runtime's own
traffic, unbounded because each sender has at most one message outstanding), returned (redelivered
envelopes), user (bounded).

A producer on any thread appends and then looks at `attention`; the consumer announces its sleep in
`attention` and then looks at the lanes again. Store then load on both sides: a wake cannot be
lost. Closing stores `closed`, then empties the lanes; a producer that appended meanwhile finds
`attention` set and empties them itself. Pops are atomic, so each envelope is taken once.

Invariants:
    I1. One consumer. Only it takes from the lanes until the mailbox is closed.
    I2. `attention` is true only while the consumer sleeps or the mailbox is closed.
    I3. len(user) <= capacity + number of racing host threads + stop pills.
    I4. What the user lane holds came after `since`, which is NEVER where the consumer sleeps or has
        not looked since it was woken.
    I5. `room` is `capacity` while puts may take the fast path, and below zero otherwise.

Puts run on any thread; everything else on the loop thread, except burying what is left in a closed
mailbox, which falls to whoever finds it.
"""

from __future__ import annotations

from collections import deque
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

import trio
from trio.lowlevel import Abort, reschedule

from .envelope import Envelope, Internal
from .errors import ActorDeadError, MailboxClosedError, MailboxFullError
from .events import MailboxHigh, MailboxLow
from .future import Target, TrioFuture
from .settling import bury, drop

if TYPE_CHECKING:
    from .cell import Cell

OVERFLOWS: Final = ("reject", "block", "drop_oldest", "drop_newest")

HIGH_MARK: Final = 0.8
LOW_MARK: Final = 0.5
"""Parts of the capacity: to fill past the one is an event, to empty below the other the next."""

NEVER: Final = float("inf")

STOP_NOW: Final = 1
HALT: Final = 2
KILL: Final = 4

NO_ALARM: Final = float("inf")


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
        "high",
        "ident",
        "internal",
        "is_high",
        "looked",
        "overflow",
        "parked",
        "returned",
        "room",
        "since",
        "spin",
        "urgent",
        "user",
        "waiting",
    )

    def __init__(
        self,
        cell: Cell,
        capacity: int,
        overflow: str,
        ident: int,
        token: trio.lowlevel.TrioToken,
    ) -> None:
        if overflow not in OVERFLOWS:
            raise ValueError(f"overflow must be one of {', '.join(OVERFLOWS)}, not {overflow!r}")
        if capacity < 1:
            raise ValueError(f"mailbox_capacity must be at least 1, not {capacity!r}")
        self.cell = cell
        self.user: deque[Envelope] = deque()
        # Built when first used: an empty deque is 600 bytes, and most actors use one lane.
        self.internal: deque[Internal] | None = None
        self.returned: deque[Envelope] | None = None
        self.waiting: deque[TrioFuture[None]] | None = None
        self.capacity = capacity
        self.overflow = overflow
        self.room = capacity
        self.high = max(1, int(capacity * HIGH_MARK))
        self.is_high = False
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
        if len(self.user) >= self.capacity:
            if not self.is_high:
                self.look_at_level()
            if self.overflow == "drop_newest":
                drop(self.cell, envelope)
                return
            if self.overflow == "drop_oldest":
                self._drop_oldest()
            elif self.overflow == "block" and get_ident() != self.ident:
                self._block(envelope)
                return
            else:
                raise self._full(envelope[0])
        self.append(envelope)

    def append(self, envelope: Envelope) -> None:
        """Accept an envelope whatever the bound. A stop pill is exempt from it."""
        self.user.append(envelope)
        if self.attention:
            self.attend()

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

    def _full(self, message: Any) -> MailboxFullError:
        return MailboxFullError(
            f"the mailbox of {self.cell} holds {self.capacity} messages; this one was not "
            "accepted; send slower, or await tell_wait()",
            actor=str(self.cell),
            message=message,
            capacity=self.capacity,
        )

    def _drop_oldest(self) -> None:
        kept = []
        while len(self.user) >= self.capacity:
            try:
                oldest = self.user.popleft()
            except IndexError:
                break
            if self.cell.is_pill(oldest):
                kept.append(oldest)
                if len(kept) > self.capacity:
                    break
            else:
                drop(self.cell, oldest)
        self.user.extendleft(reversed(kept))

    def _block(self, envelope: Envelope) -> None:
        """Block a host thread until there is room."""
        while len(self.user) >= self.capacity:
            waiter = self.wait_for_room()
            if waiter is not None:
                waiter.get()
            self.check_open(envelope[0])
        self.append(envelope)

    def wait_for_room(self) -> TrioFuture[None] | None:
        """Return a future that is settled when there may be room; None if there is some now."""
        if self.waiting is None:
            self.waiting = deque()
        waiter: TrioFuture[None] = TrioFuture()
        self.waiting.append(waiter)
        if len(self.user) < self.capacity or self.closed or self.cell.stopping:
            waiter._answer(None)
            return None
        return waiter

    def give_room(self) -> None:
        """Wake as many waiting senders as there is room for. On the loop thread."""
        waiting = self.waiting
        room = self.capacity - len(self.user)
        if self.closed or self.cell.stopping:
            room = len(waiting) if waiting else 0
        while waiting and room > 0:
            try:
                waiter = waiting.popleft()
            except IndexError:
                return
            if waiter._answer(None):
                room -= 1

    def look_at_level(self) -> None:
        """Say so where the user lane went past its high mark, or back below its low one.

        Called once a batch, and where a message finds the lane full: a mark that was passed in
        between, and back, is not seen. Any thread.
        """
        depth, cell = len(self.user), self.cell
        if self.is_high:
            if depth > self.capacity * LOW_MARK:
                return
        elif depth < self.high:
            return
        with cell.system.lock:
            was, self.is_high = self.is_high, depth >= self.high
        if was != self.is_high:
            cell.system.emit(
                MailboxHigh if self.is_high else MailboxLow,
                subject=cell.key,
                incarnation=cell.incarnation,
                depth=depth,
                capacity=self.capacity,
            )

    def put_internal(self, item: Internal) -> bool:
        """Accept into the internal lane, from any thread. False if the mailbox is closed."""
        if self.closed:
            return False
        lane = self.internal
        if lane is None:
            lane = self._make_internal()
        lane.append(item)
        self.urgent = True
        if self.attention:
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
        if self.attention:
            self.attend()

    def attend(self) -> None:
        """Wake a sleeping consumer, or bury what was put into a closed mailbox."""
        if self.closed:
            bury(self.cell)
            return
        if get_ident() == self.ident:
            self.wake()
            return
        self.attention = False
        self.spin = True
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
        self.room = -1
        self.closed = True
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
        """How many envelopes wait in the user lane and to be redelivered."""
        return len(self.user) + (len(self.returned) if self.returned else 0)

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
