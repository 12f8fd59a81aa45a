"""Which planner plans what a slot is asked, but for what is sent to it. No actor, no await.

Runs in: the loop thread.
"""

from __future__ import annotations

from typing import Any

from abeyance.storage.store import Chain, Request

from .mode import DeferWrites
from .slot_acts import SlotKept
from .slot_approvals import AskApprovals, Decide, plan_ask, plan_decision
from .slot_book import SlotBook
from .slot_cancel import CancelTurn, plan_cancel
from .slot_disposal import plan_dispose
from .slot_edits import plan_edit, plan_undo_edit
from .slot_messages import (
    BeginFork,
    CloseGap,
    Dispose,
    EditSlot,
    EndPair,
    EndTurn,
    HoldTurn,
    PairStart,
    RecordRound,
    Rewake,
    RewindSlot,
    SetPrompt,
    StartPair,
    StartTurn,
    UndoEdit,
    UndoRewind,
)
from .slot_pairs import plan_pair, plan_pair_end
from .slot_rewind import last_cut, plan_rewind, plan_undo
from .slot_turns import (
    Plan,
    plan_boundary,
    plan_end,
    plan_hold,
    plan_prompt,
    plan_round,
    plan_start,
)


def plan(book: SlotBook, kept: SlotKept, message: Any, chain: Chain) -> Plan:
    """Plan one message.

    Raises:
        AbeyanceError, StorageError: As its planner; nothing is planned.
    """
    match message:
        case StartTurn():
            return plan_start(book, message, chain)
        case SetPrompt():
            return plan_prompt(book, message, chain)
        case RecordRound():
            return plan_round(book, message, chain)
        case CloseGap():
            inject = kept.injects.get(message.agent, False) and not message.last
            return plan_boundary(book, message, chain, inject=inject)
        case HoldTurn():
            return plan_hold(book, message, chain)
        case EndTurn():
            return plan_end(book, message, chain)
        case AskApprovals():
            return plan_ask(book, message, chain)
        case Decide():
            return plan_decision(book, message, chain)
        case CancelTurn():
            return plan_cancel(book, message, chain)
        case StartPair():
            begun = plan_pair(book, message, chain, kept.pairs)
            if isinstance(begun.answer, PairStart):
                kept.begin_pair(message, begun.answer.turn)
            return begun
        case EndPair():
            return plan_pair_end(book, message, chain)
        case RewindSlot():
            requests, receipt = plan_rewind(book, message, chain)
            return Plan(requests, len(requests), receipt)
        case UndoRewind():
            cut = last_cut(book)
            requests, receipt = plan_undo(book, message, chain, kept.undoing.get(message.act))
            if cut is not None:
                kept.begin_undo(message.act, cut, receipt)
            return Plan(requests, len(requests), receipt)
        case EditSlot():
            return plan_edit(book, message, chain)
        case UndoEdit():
            return plan_undo_edit(book, message, chain)
        case BeginFork():
            return Plan([Request(chain=chain)], 1)
        case Rewake():
            return Plan([book.rewake(message, chain)], 1)
        case DeferWrites(on):
            book.is_deferring, waited = on, len(book.inbox)
            landing = book.drain_idle(chain)
            return Plan(landing, len(landing), waited - len(book.inbox))
        case Dispose():
            others = kept.agents.keys() - kept.ended - {message.agent}
            planned = plan_dispose(book, message, chain, goes_on=bool(others))
            kept.ended.add(message.agent)
            return planned
    raise AssertionError(message)
