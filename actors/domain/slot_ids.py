"""Which message ids a slot knows: stored ones, and those on their way there. No actor, no await.

Invariants:
    I1  An id is of one content: the same id with other content is refused, wherever the first is.
    I2  `acts` holds every planned acceptance of an id that came from a caller, until it is
        committed; the rows say the rest.

Runs in: the loop thread; one slot actor's.
"""

from __future__ import annotations

from collections.abc import Iterable

from abeyance.storage.store import Store
from abeyance.storage.tables.slots import MessageId

from .errors import MessageConflictError
from .slot_acts import Act
from .slot_book import SlotBook
from .slot_inbox import receipt_of
from .slot_messages import Accept, AcceptMany, Receipt


class Ids:
    """One slot's. See the module's invariants."""

    def __init__(self, store: Store, slot: str) -> None:
        self._store = store
        self._slot = slot
        self.acts: dict[str, Act] = {}
        """By id; a batch is there once for each of its ids."""
        self._places: dict[str, int] = {}
        """Of the ids that came in a batch, their places in it."""

    def take(self, act: Act, fresh: Iterable[Accept]) -> None:
        """Note what is planned of a batch."""
        acts = self.acts
        for accept in fresh:
            if accept.known:
                acts[accept.message] = act
        for place, accept in enumerate(act.message.accepts):
            # Not of those that are on their way in another act: their places are in that one.
            if acts.get(accept.message) is act:
                self._places[accept.message] = place

    def settle(self, many: AcceptMany) -> None:
        """Forget a batch that is in."""
        for accept in many.accepts:
            if accept.known:
                self.acts.pop(accept.message, None)
                self._places.pop(accept.message, None)

    def stored(self, accept: Accept, book: SlotBook) -> Receipt | None:
        """The receipt of a message that is stored under this id.

        Raises:
            MessageConflictError: It has other content.
        """
        row = self._store.get("ids", (self._slot, accept.message))
        if row is None:
            return None
        check_same(accept, row.record.body_crc)
        return receipt_of(accept.message, row.record, book.is_cut)

    def in_flight(self, accept: Accept) -> Receipt | None:
        """The same of a message that is on its way."""
        act = self.acts.get(accept.message) if accept.known else None
        if act is None:
            return None
        message, answer = act.message, act.answer
        if isinstance(message, AcceptMany):
            place = self._places[accept.message]
            message, answer = message.accepts[place], answer[place]
        check_same(accept, message.body_crc)
        receipt: Receipt = answer
        return receipt

    def of(self, message: str) -> MessageId | None:
        """What is known of an id: what is stored, or on its way there."""
        row = self._store.get("ids", (self._slot, message))
        if row is not None:
            known: MessageId = row.record
            return known
        act = self.acts.get(message)
        if act is None:
            return None
        receipts = act.answer if isinstance(act.message, AcceptMany) else (act.answer,)
        (entry,) = (receipt.seq for receipt in receipts if receipt.id == message)
        return MessageId(entry=entry, state="inbox", body_crc=0)

    def answers(self, act: Act, book: SlotBook) -> bool:
        """Whether an act that was refused is an acceptance that is stored all the same; then it is
        answered."""
        if not isinstance(act.message, Accept):
            return False
        try:
            receipt = self.stored(act.message, book)
        except MessageConflictError as error:
            act.set_exception(error)
            return True
        if receipt is not None:
            act.set(receipt)
        return receipt is not None


def check_same(accept: Accept, crc: int) -> None:
    """Refuse an id that was used for other content.

    Raises:
        MessageConflictError: It was.
    """
    if accept.body_crc != crc:
        raise MessageConflictError(
            f"the message id {accept.message!r} is used for other content; nothing was stored, the "
            "earlier message stands; send this one under another id",
            id=accept.message,
        )
