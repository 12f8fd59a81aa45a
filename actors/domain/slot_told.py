"""What follows a commit of a slot: who is told of it, and which events say so. No actor.

Invariants:
    I1  Nobody is told of what is not committed.
    I2  An agent is told before the answer is given, so that whoever has the answer and asks the
        agent asks behind it.

Runs in: the loop thread; one slot actor's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import events
from .slot_acts import Act, SlotKept
from .slot_approvals import ApprovalDecided, Decide
from .slot_book import SlotBook
from .slot_cancel import CancelReceipt
from .slot_ids import Ids
from .slot_listeners import Listeners
from .slot_messages import (
    AcceptMany,
    EditReceipt,
    EditSlot,
    EndTurn,
    Receipt,
    Rewake,
    RewindReceipt,
    StartTurn,
    TurnWithdrawn,
    UndoEdit,
    UndoRewind,
)
from .slot_subjects import Retraction


class Told:
    """One slot's, of this incarnation. See the module's invariants.

    Args:
        emit: Emits an event of the slot's actor.
    """

    def __init__(
        self,
        slot: str,
        kept: SlotKept,
        listeners: Listeners,
        ids: Ids,
        emit: Callable[..., None],
    ) -> None:
        self._slot = slot
        self._kept = kept
        self._listeners = listeners
        self._ids = ids
        self._emit = emit

    def committed(self, act: Act, book: SlotBook) -> Any:
        """Tell whom an act concerns that it is in; what its asker is answered."""
        message, answer = act.message, act.answer
        if isinstance(message, AcceptMany):
            self._accepted(message, answer, book)
        elif isinstance(message, Decide):
            self._listeners.tell(message.agent, ApprovalDecided(message.key))
        elif isinstance(answer, CancelReceipt):
            assert answer.turn is not None
            self._listeners.tell_withdrawn(message.agent, TurnWithdrawn(answer.turn))
        elif isinstance(answer, Retraction):
            return self._retracted(answer, book)
        elif isinstance(message, Rewake):
            self._listeners.tell_woken(message.agent, next(reversed(book.wakes[message.agent])))
        elif isinstance(message, StartTurn):
            self._kept.granted.pop(message.agent, None)
        elif isinstance(answer, RewindReceipt):
            self._rewound(message, answer)
        elif isinstance(answer, EditReceipt):
            self._edited(message, answer, book)
        return answer

    def replaced(self, agent: str, receipt: Receipt, book: SlotBook) -> None:
        """A message took the place of an older one."""
        assert receipt.replaces is not None
        book.gone.pop(receipt.replaces, None)
        self._emit(events.MessageReplaced, agent=agent, id=receipt.replaces, by=receipt.id)

    def _accepted(self, many: AcceptMany, receipts: tuple[Receipt, ...], book: SlotBook) -> None:
        self._ids.settle(many)
        for accept, receipt in zip(many.accepts, receipts, strict=True):
            if accept.wake:
                self._listeners.tell_woken(accept.agent, receipt.seq)
                break
        for receipt in receipts:
            if receipt.replaces is not None:
                self.replaced(many.accepts[0].agent, receipt, book)

    def _retracted(self, done: Retraction, book: SlotBook) -> Receipt:
        book.gone.pop(done.receipt.id, None)
        self._emit(events.MessageRetracted, agent=done.agent, id=done.receipt.id)
        if done.withdrawn is not None:
            self._listeners.tell_withdrawn(done.agent, done.withdrawn)
        return done.receipt

    def _edited(self, message: EditSlot | UndoEdit, receipt: EditReceipt, book: SlotBook) -> None:
        book.edits.settle(receipt.edit)
        kind = events.EditUndone if isinstance(message, UndoEdit) else events.MessageEdited
        number, id_, seq = receipt
        self._emit(kind, agent=self._slot, id=id_, edit=number, seq=seq, by=message.by)

    def _rewound(self, message: Any, receipt: RewindReceipt) -> None:
        act = message.rewind if isinstance(message, EndTurn) else message
        if act is not None and receipt.first is not None:
            kind = events.RewindUndone if isinstance(act, UndoRewind) else events.SlotRewound
            first, last = receipt
            self._emit(kind, agent=self._slot, first=first, last=last, by=act.by)
