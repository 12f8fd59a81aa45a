"""Cancellations of an agent's turns: which one is meant, its end, and who waits for that.

A part of the agent actor. Each asks the slot which turn is open, and from then on is of that turn
by its number. The slot marks a turn that lives, and its task is cut off; a held one it ends itself.

Invariants:
    I1  Whoever asks twice is told of one turn; a cancellation never reaches the turn behind it.
    I2  Which turn it is outlives a crash of the actor, as whoever asked does.

Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from abeyance.actors.core import Answer, Reply
from abeyance.actors.core.errors import AbeyanceError
from abeyance.storage.errors import StorageError

from .errors import AdmissionClosedError
from .slot_cancel import CancelReceipt, CancelTurn, FindTurn, TurnLives


class Cancel(NamedTuple):
    """Ask an agent: end its open turn, or the one of a number, for good. Answers a
    `CancelReceipt`."""

    act: str
    turn: int | None
    by: str
    at_ms: int


class Cancelling:
    """What of an agent's cancellations is asked for and not done.

    Args:
        agent: Its name.
        found: Which turn each act is of; kept past a crash.
        ask: Asks the slot, and hands the answer to a function.
        cut: Cuts off the turn of a number, now or as it starts. False: nobody takes it up now.
    """

    def __init__(
        self,
        agent: str,
        found: dict[str, int],
        ask: Callable[[Any, Callable[[Answer], None]], None],
        cut: Callable[[int], bool],
    ) -> None:
        self._agent = agent
        self._found = found
        self._ask = ask
        self._cut = cut
        self._asked: dict[str, tuple[Cancel, Reply | None]] = {}
        self._cutting: dict[int, str] = {}

    def by(self, turn: int) -> str | None:
        """Who cancelled the turn; None: nobody did, as far as it is marked."""
        return self._cutting.get(turn)

    def take(self, cancel: Cancel, reply: Reply | None) -> None:
        """A cancellation was asked for."""
        self._asked[cancel.act] = cancel, reply
        number = cancel.turn if cancel.turn is not None else self._found.get(cancel.act)
        if number is None:
            self._ask(FindTurn(self._agent), lambda answer: self._has_found(cancel, answer))
        else:
            self._go_on(cancel, number)

    def turn_over(self, turn: int) -> None:
        """A turn's task is over, or none came of a start: the slot says how the turn stands."""
        if self._cutting.pop(turn, None) is None:
            return
        for cancel, _ in list(self._asked.values()):
            if self._found.get(cancel.act) == turn:
                self._go_on(cancel, turn)

    def starts_over(self) -> None:
        """No turn came of the start that was asked for."""
        for turn in list(self._cutting):
            self.turn_over(turn)

    def fail(self, error: BaseException) -> None:
        """The agent goes on nowhere: whoever waits is told."""
        asked, self._asked = self._asked, {}
        self._cutting.clear()
        self._found.clear()
        for _, reply in asked.values():
            if reply is not None:
                reply.set_exception(error)

    def _has_found(self, cancel: Cancel, answer: Answer) -> None:
        if self._is_refused(cancel, answer):
            return
        if answer.value is None:
            self._done(cancel, CancelReceipt(None, "none"))
        else:
            self._go_on(cancel, answer.value)

    def _go_on(self, cancel: Cancel, turn: int) -> None:
        self._found[cancel.act] = turn
        ends = CancelTurn(self._agent, turn, cancel.by, cancel.at_ms)
        self._ask(ends, lambda answer: self._answered(cancel, answer))

    def _answered(self, cancel: Cancel, answer: Answer) -> None:
        if self._is_refused(cancel, answer):
            return
        receipt = answer.value
        if isinstance(receipt, CancelReceipt):
            self._done(cancel, receipt)
            return
        assert isinstance(receipt, TurnLives)
        self._cutting[receipt.turn] = receipt.by
        if not self._cut(receipt.turn):
            # It has the lease and no task: a death left it, and no turn starts here now.
            del self._cutting[receipt.turn]
            self._fail(cancel, self._later(receipt.turn))

    def _is_refused(self, cancel: Cancel, answer: Answer) -> bool:
        """A refusal is the asker's; anything else is a fault, and ends the incarnation."""
        if cancel.act not in self._asked:
            return True
        if answer.error is None:
            return False
        if not isinstance(answer.error, AbeyanceError | StorageError):
            answer.unwrap()
        self._fail(cancel, answer.error)
        return True

    def _later(self, turn: int) -> AdmissionClosedError:
        return AdmissionClosedError(
            f"turn {turn} of agent {self._agent!r} is marked as cancelled, and no turn is taken up "
            "here now to end it; it makes no call any more, and ends when turns start again",
            agent=self._agent,
        )

    def _fail(self, cancel: Cancel, error: BaseException) -> None:
        _, reply = self._forget(cancel)
        if reply is not None:
            reply.set_exception(error)

    def _done(self, cancel: Cancel, receipt: CancelReceipt) -> None:
        _, reply = self._forget(cancel)
        if reply is not None:
            reply.set(receipt)

    def _forget(self, cancel: Cancel) -> tuple[Cancel, Reply | None]:
        self._found.pop(cancel.act, None)
        return self._asked.pop(cancel.act)
