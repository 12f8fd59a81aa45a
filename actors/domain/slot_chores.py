"""What a slot does by itself, later: tidying, deleting what was rewound, ending an absent turn.

No actor, no await. Each chore is planned when its time comes, on the book as it is then; the time
comes as a message that the slot's actor sends itself.

Invariants:
    I1  Of each chore one message is on its way at most.
    I2  A chore that is not stored is planned again from the store; nobody waits for one.

Runs in: the loop thread; one slot actor's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from abeyance.actors.core.clock import Clock
from abeyance.actors.core.logs import Log
from abeyance.storage.store import Chain

from .slot_absent import ABSENT_S, plan_absent_end
from .slot_book import SlotBook
from .slot_edits import next_forget_ms, plan_forget
from .slot_listeners import Listeners
from .slot_lost import plan_lost
from .slot_outgoing import Outgoing
from .slot_rewind import next_prune_ms, plan_prune

_logger = Log(__name__)

PRUNE_EVERY_S: Final = 3_600.0
"""How often, at least, the wall clock is looked at while rewound rows wait to be deleted."""
PRUNE_PAUSE_S: Final = 0.1
"""Between two parts that are deleted, so that nobody waits for many of them."""
TIDY_AGAIN_S: Final = 5.0
"""Until what only tidies up is tried again where the store refused it."""


class Tidy:
    """Told to itself, later: land what waits in an idle slot, delete what is answered."""


class LookAtHolder:
    """Told to itself, later: whether the agent for whose turn others wait is here."""


class Prune:
    """Told to itself, later: delete a part of what was rewound long ago."""


Chore: TypeAlias = Tidy | LookAtHolder | Prune


class Chores:
    """One slot's, of this incarnation. See the module's invariants.

    Args:
        out: Takes what is planned.
        after: Has the slot's actor be told a message in so many seconds.
    """

    def __init__(self, out: Outgoing, after: Callable[[float, Any], Any], clock: Clock) -> None:
        self._out = out
        self._after = after
        self._clock = clock
        self._due: set[type] = set()

    def do(
        self, chore: Chore, book: SlotBook, chain: Chain, listeners: Listeners, is_awaited: bool
    ) -> bool:
        """Plan a chore whose time has come.

        Args:
            is_awaited: Whether somebody waits for the lease.
        Returns:
            Whether the lease was freed by it.
        """
        self._due.discard(type(chore))
        if isinstance(chore, Tidy):
            self.tidy(book, chain)
        elif isinstance(chore, Prune):
            self._prune(book, chain)
        elif is_awaited:
            return self._end_absent(book, chain, listeners)
        return False

    def tidy(self, book: SlotBook, chain: Chain) -> None:
        """Land what waits in an idle slot, delete the wakes that are answered, and have what has
        no row that can be read leave the inbox."""
        if book.lost:
            self._out.plan(plan_lost(book, chain, self._clock.now_ms()))
        self._out.plan(book.forget_answered(chain))
        self._out.plan(book.drain_idle(chain))

    def tidy_later(self) -> None:
        """The same in a while: at once would be as often as the disk can refuse."""
        self._later(TIDY_AGAIN_S, Tidy())

    def prune_later(self, book: SlotBook) -> None:
        """Look again when the first of it is due, if there is any."""
        due = [next_prune_ms(book), next_forget_ms(book)]
        due_ms = min((at_ms for at_ms in due if at_ms is not None), default=None)
        if due_ms is not None:
            left_s = (due_ms - self._clock.now_ms()) / 1_000
            self._later(min(max(left_s, PRUNE_PAUSE_S), PRUNE_EVERY_S), Prune())

    def look_later(self) -> None:
        """Look in a while at who holds the lease that others wait for."""
        self._later(ABSENT_S, LookAtHolder())

    def _prune(self, book: SlotBook, chain: Chain) -> None:
        """Delete a part of what was rewound or edited long ago, and look again later."""
        now_ms = self._clock.now_ms()
        self._out.plan(plan_prune(book, chain, now_ms))
        self._out.plan(plan_forget(book, chain, now_ms))
        self.prune_later(book)

    def _end_absent(self, book: SlotBook, chain: Chain, listeners: Listeners) -> bool:
        """End the turn that others wait for where its agent is not here to go on with it."""
        holder = book.lease.agent
        if holder is None:
            return False
        if listeners.is_here(holder) or book.is_deferring:
            self.look_later()
            return False
        _logger.warning(
            "a turn of agent %r is ended: the agent is not here, and another waits for slot %r",
            holder,
            book.slot,
            agent=holder,
        )
        self._out.plan(plan_absent_end(book, self._clock.now_ms(), chain).requests)
        return True

    def _later(self, seconds: float, chore: Chore) -> None:
        if type(chore) not in self._due:
            self._due.add(type(chore))
            self._after(seconds, chore)
