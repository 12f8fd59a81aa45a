"""Rewinds of an agent's slot, one at a time, each behind the end of the turn that lives.

A part of the agent actor. A rewind is checked by the slot first, so that a place that does not
exist ends nobody's turn; then a live turn is ended, which closes its tool gap and marks the rewind
in one commit; where none lives, the slot is asked alone. A held turn is a row and stays held.

Invariants:
    I1  At most one rewind is under way; others wait in order.
    I2  A turn that is ended for one gives its wakes back only where something is left to answer.

Runs in: the loop thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from abeyance.actors.core import Answer, Reply
from abeyance.actors.core.errors import AbeyanceError
from abeyance.storage.errors import StorageError

from .slot_messages import CheckRewind, RewindReceipt, RewindSlot, UndoRewind

REWOUND_MARKER: Final = "this turn was ended by a rewind"


class Rewinding:
    """What of an agent's rewinds is asked for and not done.

    Args:
        ask: Asks the slot, and hands the answer to a function.
        end_turn: Ends the live turn, if one lives or is being started. False: none is.
    """

    def __init__(
        self,
        ask: Callable[[Any, Callable[[Answer], None]], None],
        end_turn: Callable[[], bool],
    ) -> None:
        self._ask = ask
        self._end_turn = end_turn
        self._waiting: deque[tuple[RewindSlot | UndoRewind, Reply]] = deque()
        self._now: tuple[RewindSlot | UndoRewind, Reply] | None = None
        self.ends_turn: RewindSlot | None = None
        """The rewind that the live turn's end is to carry."""
        self.gives_back = False

    def take(self, rewind: RewindSlot | UndoRewind, reply: Reply) -> None:
        """A rewind was asked for, or to undo the last."""
        self._waiting.append((rewind, reply))
        self._next()

    def turn_over(self, receipt: RewindReceipt | None) -> None:
        """The live turn has ended, or none came of the start: with its rewind, or without."""
        if self.ends_turn is None:
            return
        rewind, self.ends_turn = self.ends_turn, None
        if receipt is not None:
            self._done(receipt)
        else:
            self._ask(rewind, self._rewound)

    def fail(self, error: BaseException) -> None:
        """The agent goes on nowhere: whoever waits is told."""
        waiting = [*([] if self._now is None else [self._now]), *self._waiting]
        self._now, self.ends_turn = None, None
        self._waiting.clear()
        for _, reply in waiting:
            reply.set_exception(error)

    def _next(self) -> None:
        if self._now is None and self._waiting:
            self._now = self._waiting.popleft()
            asked = self._now[0]
            if isinstance(asked, UndoRewind):
                # What would have to end for it has written behind the rewind, or soon will.
                self._ask(asked, self._rewound)
            else:
                self._ask(CheckRewind(asked.to, asked.agent), self._checked)

    def _checked(self, answer: Answer) -> None:
        if self._now is None:
            return
        if answer.error is not None:
            self._refused(answer)
            return
        rewind = self._now[0]
        assert isinstance(rewind, RewindSlot)
        self.gives_back, self.ends_turn = answer.value, rewind
        if not self._end_turn():
            self.turn_over(None)

    def _rewound(self, answer: Answer) -> None:
        if self._now is None:
            return
        if answer.error is not None:
            self._refused(answer)
        else:
            self._done(answer.value)

    def _refused(self, answer: Answer) -> None:
        """A refusal is the asker's; anything else is a fault, and ends the incarnation."""
        error = answer.error
        if not isinstance(error, AbeyanceError | StorageError):
            answer.unwrap()
        assert self._now is not None
        assert error is not None
        (_, reply), self._now = self._now, None
        reply.set_exception(error)
        self._next()

    def _done(self, receipt: RewindReceipt) -> None:
        assert self._now is not None
        (_, reply), self._now = self._now, None
        reply.set(receipt)
        self._next()
