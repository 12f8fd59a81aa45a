"""The room of a mailbox: its lanes, how much they hold and may hold, and who waits for more.

What is laid out here is what the fast paths of `ref` and `serving` read; `mailbox` puts and takes.

Invariants:
    I1. A put that the fast path takes, because len(user) < `room`, is one that the slow path would
        take without doing anything else. `room` is computed anew, under the system's lock, after
        each change of what it depends on, so the last to compute it has seen every change.
    I2. `watched` is true while anyone waits for the load to fall: senders, or a high mark.
    I3. What the user lane holds came after `since`, which is NEVER where the consumer sleeps or has
        not looked since it was woken.

Any thread, but for what a docstring says.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

import trio

from .coalescing import CoalescingLane
from .envelope import NEVER, Envelope, Internal, since_of
from .errors import ActorDeadError, ActorUnavailableError, MailboxClosedError, MailboxFullError
from .future import TrioFuture
from .terms import terms_of
from .watermarks import BELOW, fell

if TYPE_CHECKING:
    from .cell import Cell

NO_ALARM: Final = float("inf")


class Room:
    """The lanes of one cell, and how much they may hold."""

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
        "pills",
        "restarting",
        "returned",
        "room",
        "since",
        "spin",
        "stashed",
        "suspended",
        "terms",
        "unstashed",
        "until",
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
        self.pills = 0  # How many of `user` are stop pills. Changed under the system's lock.
        self.unstashed = 0  # How many of `returned` were put there by unstashing.
        self.level = BELOW  # On which side of its marks it is.
        self.watched = False
        self.suspended = 0  # Which suspension it is in, of all there were; 0 is none.
        self.restarting = False  # Between incarnations.
        self.peak = 1
        self.dead: dict[str, int] | None = None
        self.room = 0 if cell.system.refusing else terms.room
        # Messages carry no instant, as that would be dearer than the rest of a tell. The consumer
        # keeps two of its own, by the clock of ages, at the looks at the time it takes anyway.
        self.since = NEVER  # What the user lane holds came after it; NEVER while it sleeps.
        self.looked = 0.0  # Its last look; what its handler does began no earlier.
        self.until = 0.0  # When the batch's time is over.
        self.control = 0
        self.urgent = False
        self.attention = False
        self.spin = False  # Whether a host thread woke the consumer.
        self.closed = False
        self.alarm = NO_ALARM  # When the wheel looks for asks past their deadline here.
        self.parked: trio.lowlevel.Task | None = None
        self.ident = ident
        self._token = token

    # -- who may put

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

    def check_available(self, message: Any) -> None:
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

    # -- who waits

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
        return self.queued + self._aside

    @property
    def queued(self) -> int:
        """How many messages the user lane holds: stop pills are none."""
        # A pill is counted before it is put in, and until after it was taken.
        return max(0, len(self.user) - self.pills)

    @property
    def _aside(self) -> int:
        """How much of the capacity is taken by what was put aside."""
        aside = len(self.stashed) if self.stashed else 0
        if self.unstashed and self.returned:
            aside += min(self.unstashed, len(self.returned))
        return aside

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
        bound = terms.room if self.level == BELOW else self.capacity
        return bound - self._aside

    def shrank(self) -> None:
        """Do what waits for the load to fall. Called each time some were taken, where watched."""
        # Whoever begins to wait from here on sets it again (I2).
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

    # -- what it holds

    def oldest_s_max(self) -> float | None:
        """How long the oldest message that is to be handled has waited at most. Any thread."""
        # What was taken once came before what the user lane holds.
        since = min(since_of(self.returned), since_of(self.stashed))
        if since == NEVER and self.queued:
            since = self.since
        return None if since == NEVER else max(0.0, self.cell.system.ages() - since)

    @property
    def depth(self) -> int:
        """How many messages wait in the user lane and to be handled before it."""
        return self.queued + (len(self.returned) if self.returned else 0)

    @property
    def held(self) -> int:
        """How many messages it holds, the stash included."""
        return self.depth + (len(self.stashed) if self.stashed else 0)
