"""What a predecessor of a slot's actor committed and did not live to answer. No actor, no await.

An asker whose slot died asks again: what is stored already is answered, and not done twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .slot_book import SlotBook
from .slot_messages import (
    CloseGap,
    EndPair,
    EndTurn,
    HoldTurn,
    Places,
    RecordRound,
    RewindReceipt,
    RewindSlot,
)
from .slot_pairs import pair_is_done
from .slot_rewind import find_act
from .slot_rows import find_results
from .slot_turns import has_done


class Recalled(NamedTuple):
    """It is stored."""

    answer: Any


def recall(book: SlotBook, message: Any) -> Recalled | None:
    """What an act came to that is stored already; None where it is to be done."""
    match message:
        case RewindSlot():
            receipt = find_act(book, message.act)
            return None if receipt is None else Recalled(receipt)
        case EndPair():
            return Recalled(None) if pair_is_done(book, message) else None
        case CloseGap() if has_done(book, message):
            first = find_results(book.store, book.slot, message.agent, message.turn, message.round)
            # A round that called no tool has no gap either: what would close one is refused.
            return None if first is None else Recalled(Places(first, book.seq_next - 1))
        case EndTurn(rewind=asked) if asked is not None and has_done(book, message):
            return Recalled(find_act(book, asked.act) or RewindReceipt(None, None))
        case RecordRound() | HoldTurn() | EndTurn() if has_done(book, message):
            return Recalled(None)
    return None
