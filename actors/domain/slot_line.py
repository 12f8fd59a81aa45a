"""Who waits for a slot's lease, first come first served. No actor, no await.

Invariants:
    I1  An agent waits for one turn at most, and for one pair; whoever asks again waits at the end.
    I2  Whoever has nothing to ask the lease for does not wait for it.

Runs in: the loop thread; one slot actor's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from .slot_acts import Act
from .slot_book import SlotBook
from .slot_messages import NothingToDo, StartPair, StartTurn


class Line:
    """One slot's. See the module's invariants."""

    def __init__(self) -> None:
        self._acts: deque[Act] = deque()

    def __len__(self) -> int:
        return len(self._acts)

    def join(self, act: Act) -> None:
        self._acts.append(act)

    def next(self) -> Act:
        return self._acts.popleft()

    def leave_all(self) -> list[Act]:
        """Everybody who waits, in order; nobody does any more."""
        acts = list(self._acts)
        self._acts.clear()
        return acts

    def withdraw_turn(self, agent: str) -> None:
        """Take back a start that waits; its wakes stay."""
        self._withdraw(lambda asked: isinstance(asked, StartTurn) and asked.agent == agent)

    def withdraw_pair(self, message: str) -> None:
        """Take back an operator's pair that waits, told by the id of its call's row."""
        self._withdraw(lambda asked: isinstance(asked, StartPair) and asked.message == message)

    def withdraw_pairs(self, agent: str) -> None:
        """Take back what a life of the agent that is no more waits for: nobody would run it, and
        it would have the lease for ever."""
        self._withdraw(lambda asked: isinstance(asked, StartPair) and asked.agent == agent)

    def _withdraw(self, is_it: Callable[[Any], bool]) -> None:
        for act in [act for act in self._acts if is_it(act.message)]:
            self._acts.remove(act)
            act.set(NothingToDo())


def must_wait(book: SlotBook, message: Any) -> bool:
    """Whether somebody else has the lease: another agent, or an operator's pair."""
    holder = book.lease.agent
    if isinstance(message, StartTurn):
        others = holder is not None and (holder != message.agent or holder in book.pairs)
        return others and book.has_work(message.agent)
    if isinstance(message, StartPair):
        mine = book.pairs.get(message.agent) if holder == message.agent else None
        return holder is not None and (mine is None or mine.record.pair != message.message)
    return False
