"""The slot actor: the only writer of its slot, and the one place where its order is decided.

Each message becomes an act. An act is planned on the book's predicted state, handed to the
journal, and answered when its last request is committed. Acts are pipelined: the next is planned
before the last is in.

Invariants:
    I1  Acts reach the journal in mailbox order, in one chain.
    I2  After a refusal, or a commit that failed, the book is read anew and the acts behind are
        planned again in their order; none is sent as it was.
    I3  An answer is given once what makes it true is committed, and only then; what tidies up
        behind it is planned again from the store if it is not stored.
    I4  At most one turn holds the lease; other starts wait in order, but not for an agent that is
        not here.
    I5  The agent of a committed wake is told of it, also after a crash in between.
    I6  What the mirror may have been spoiled by crashes the incarnation; the next one reads anew.

Runs in: the loop thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, ClassVar

import trio

from abeyance.actors.core import (
    LATER,
    Answer,
    Reply,
    TrioActor,
)
from abeyance.actors.core.errors import OutcomeUnknownError
from abeyance.storage.store import (
    Chain,
    Committed,
    Guard,
    Outcome,
    Request,
    Store,
)

from .errors import (
    AgentEndedError,
    NotStoredError,
    OwnershipLostError,
)
from .mode import DeferWrites
from .protocol import Requests
from .slot_accepts import TOGETHER_MAX
from .slot_acts import Act, SlotKept
from .slot_again import read_again
from .slot_approvals import ApprovalDecided, AskApprovals, Decide
from .slot_book import SlotBook
from .slot_cancel import CancelTurn, FindTurn
from .slot_chores import Chore, Chores, LookAtHolder, Prune, Tidy
from .slot_ids import Ids, check_same
from .slot_line import Line
from .slot_listeners import Listeners
from .slot_messages import (
    Accept,
    AcceptMany,
    AttachAgent,
    BeginFork,
    CheckRewind,
    CloseGap,
    Dispose,
    EditReceipt,
    EditSlot,
    EndPair,
    EndTurn,
    HoldTurn,
    ReadOpenPair,
    ReadOpenTurn,
    RecordRound,
    Retract,
    RewindReceipt,
    RewindSlot,
    SetPrompt,
    StartPair,
    StartTurn,
    TurnStart,
    TurnWithdrawn,
    UndoEdit,
    UndoRewind,
    WithdrawPair,
    WithdrawStart,
)
from .slot_outgoing import Outgoing, Part
from .slot_pairs import ended_pair, open_pair
from .slot_planning import Planning
from .slot_recall import recall
from .slot_rewind import check_rewind
from .slot_rows import read_owner
from .slot_told import Told
from .slot_view import SlotView


class Slot(TrioActor):
    """One slot. See the module's invariants."""

    role: ClassVar[str] = "slot"
    mailbox_capacity: ClassVar[int] = 100_000
    max_deliveries: ClassVar[int] = 3
    counts_durably: ClassVar[bool] = True
    kept: SlotKept

    def __init__(self, slot: str, nonce: str, store: Store, journal: Any, view: SlotView) -> None:
        super().__init__()
        self._view = view
        self._slot = slot
        self._nonce = nonce
        self._store = store
        self._journal = journal
        self._epochs = itertools.count(1)
        self._line = Line()
        self._ids = Ids(store, slot)
        self._listeners: Listeners
        self._out = Outgoing(self._standing, self._ask_journal)
        self._told: Told
        self._chores: Chores
        self._planning: Planning
        self._lost: OwnershipLostError | None = None
        self._reborn = False
        self._book: SlotBook

    @classmethod
    def make_kept(cls) -> SlotKept:
        return SlotKept()

    async def on_start(self) -> None:  # type: ignore[override]
        # What a predecessor handed over is in, or refused, before this one reads; that holds of a
        # barrier that was not stored, too.
        with suppress(NotStoredError, OutcomeUnknownError):
            await self._journal.ask(Request())
        self._reborn = self.incarnation > 1
        self._listeners = Listeners(self.kept)
        self._told = Told(self._slot, self.kept, self._listeners, self._ids, self.emit)
        self._chores = Chores(self._out, self.after, self._cell.system.clock)
        self._planning = Planning(
            self._slot,
            self.kept,
            self._ids,
            self._line,
            self._out,
            self._chores,
            self._cell.system.clock,
            reborn=self._reborn,
        )
        for _ in self._read_book():
            await trio.lowlevel.checkpoint()
        self.spawn(self._out.hand_over, name=f"{self._slot}: hand over")
        if self._lost is not None:
            return
        self._chores.tidy(self._book, self._chain)
        self._chores.prune_later(self._book)
        for agent, wakes in self._book.wakes.items():
            if wakes:
                # A predecessor may have died between the commit and the telling.
                self._listeners.tell_woken(agent, next(iter(wakes)))

    def _read_book(self) -> Iterator[None]:
        """Read the slot anew, a part a step."""
        owner, counter = read_owner(self._store, self._slot)
        if owner is None or owner.nonce != self._nonce:
            self._lost = OwnershipLostError(
                f"the slot {self._slot!r} is owned by another process now; nothing was stored, "
                "earlier commits stand; stop this agent here",
                slot=self._slot,
            )
        self._chain = Chain(
            f"slot:{self._slot}:{self.actor_urn}:{self.incarnation}", next(self._epochs)
        )
        book = SlotBook(self._store, self._slot, counter, read=False)
        yield from book.read()
        book.limits = self.kept.limits
        self._view.book = self._book = book
        self._book.forked = max(self._book.forked, self.kept.forked)
        for agent in self.kept.agents.keys() - self.kept.ended:
            self._book.attach(agent)
        self._planning.stand_on(book, self._chain)

    def _read_now(self) -> OwnershipLostError | None:
        for _ in self._read_book():
            pass
        return self._lost

    # -- messages ----------------------------------------------------------------------------

    def on_receive(self, message: Any) -> Any:
        match message:
            case Accept():
                for accept, reply in self.take_run(TOGETHER_MAX):
                    self._accept(accept, reply)
                return LATER
            case AcceptMany():
                self._check_not_ended(message.accepts[0].agent)
                return self._take_in(message)
            case StartTurn():
                return self._start_turn(message)
            case RecordRound() | CloseGap() | HoldTurn() | EndTurn() | EndPair() | RewindSlot():
                done = recall(self._book, message) if self._reborn else None
                return self._take_in(message) if done is None else done.answer
            case SetPrompt():
                # Done twice it is the same: the text is known, and the row says so already.
                return self._take_in(message)
            case StartPair():
                return self._start_pair(message)
            case Decide():
                if self._reborn:
                    # A predecessor may have died between a decision and telling the agent.
                    self._listeners.tell(message.agent, ApprovalDecided(message.key))
                return self._take_in(message)
            case (
                AskApprovals() | UndoRewind() | EditSlot() | UndoEdit() | Dispose() | DeferWrites()
            ):
                return self._take_in(message)
            case WithdrawPair(_, named):
                self._line.withdraw_pair(named)
                return None
            case ReadOpenPair(agent):
                return open_pair(self._book, agent, self.kept.pairs)
            case BeginFork():
                self._book.forked = self.kept.forked = self._book.seq_next - 1
                return self._take_in(message)
            case CheckRewind():
                return check_rewind(self._book, message)
            case WithdrawStart(agent):
                self._line.withdraw_turn(agent)
                return None
            case Retract() | CancelTurn():
                if self._reborn:
                    self._tell_of_ended_turns()
                return self._take_in(message)
            case FindTurn(agent):
                self._book.attach(agent)
                return self._book.open_number(agent)
            case {"again": "wake" | "message"}:
                again = read_again(message, self._slot)
                if isinstance(again, Accept):
                    self._accept(again, self.later())
                    return LATER
                return self._take_in(again)
            case AttachAgent(agent, ref, limits):
                self.kept.limit(agent, limits)
                self._listeners.attach(agent, ref)
                self._line.withdraw_pairs(agent)
                self._book.attach(agent)
                return None
            case ReadOpenTurn(agent):
                self._book.attach(agent)
                return self._book.open_turn(agent)
            case LookAtHolder() | Prune() | Tidy():
                self._do(message)
                return None
            case _:
                raise TypeError(f"a slot takes no {type(message).__name__}")

    def _tell_of_ended_turns(self) -> None:
        """A predecessor may have died between ending a held turn, or taking back the message that
        it was to answer, and telling its agent. One that has a turn all the same asks for it and
        is held again."""
        for agent in self.kept.agents:
            if self._book.open_turn(agent) is None:
                self._listeners.tell_withdrawn(agent, TurnWithdrawn(0))

    def _accept(self, accept: Accept, reply: Reply) -> None:
        if self.kept.ended:
            self._check_not_ended(accept.agent)
        if accept.known or self._reborn:
            earlier = self._ids.acts.get(accept.message)
            if earlier is not None and isinstance(earlier.message, Accept):
                # The same id is on its way: one message, two callers.
                check_same(accept, earlier.message.body_crc)
                earlier.replies.append(reply)
                return
            receipt = None if earlier is not None else self._ids.stored(accept, self._book)
            if receipt is not None:
                reply.set(receipt)
                return
        if self._lost is not None:
            raise self._lost
        self._planning.plan(Act(accept, reply))

    def _check_not_ended(self, agent: str) -> None:
        if agent in self.kept.ended:
            raise AgentEndedError(
                f"agent {agent!r} has ended; nothing was accepted; send to an agent that is there",
                agent=agent,
            )

    def _start_turn(self, start: StartTurn) -> Any:
        self.kept.injects[start.agent] = start.carries_injections
        self._listeners.asks(start.agent)
        # An agent asks once in a life: whoever asked before is no more.
        self._line.withdraw_turn(start.agent)
        granted = self.kept.granted.pop(start.agent, None)
        if self._reborn and granted is not None and self._stands(granted):
            return granted
        return self._take_in(start)

    def _start_pair(self, start: StartPair) -> Any:
        # An agent asks for one at a time: whoever asked before is no more.
        self._line.withdraw_pairs(start.agent)
        done = ended_pair(self._book, start, self.kept.pairs)
        return self._take_in(start) if done is None else done

    def _stands(self, granted: TurnStart) -> bool:
        """Whether a lease that a predecessor granted, and did not live to answer, is stored."""
        lease = self._book.lease
        return (lease.agent, lease.turn, lease.token) == granted[:3]

    def _take_in(self, message: Any) -> Any:
        if self._lost is not None:
            raise self._lost
        act = Act(message, self.later())
        self._planning.plan(act)
        if self._line:
            self._planning.grant_waiting()
        return LATER

    def _do(self, chore: Chore) -> None:
        """What the slot does by itself, now that its time has come."""
        if self._lost is not None:
            return
        book, chain, awaited = self._book, self._chain, bool(self._line)
        if self._chores.do(chore, book, chain, self._listeners, awaited):
            self._planning.grant_waiting()

    def _standing(self) -> tuple[Guard, Chain]:
        return self._book.owner, self._chain

    def _ask_journal(self, part: Part, weight: int) -> None:
        requests = Requests([request for request, _ in part])
        requests.weight = weight
        self.ask(self._journal, requests, tag=(self._chain.epoch, part))

    # -- outcomes ----------------------------------------------------------------------------

    def on_answer(self, answer: Answer) -> None:
        epoch, part = answer.tag
        if epoch != self._chain.epoch:
            # Planned on a state that is no more; its acts were planned again already.
            return
        # What became of it is unknown where there is an error: the incarnation ends by it, and the
        # next one's barrier finds out.
        outcomes: tuple[Outcome, ...] = answer.unwrap()
        self._view.stir()
        for place, ((_, acts), outcome) in enumerate(zip(part, outcomes, strict=True)):
            if not isinstance(outcome, Committed):
                self._planning.plan_anew(outcome, part[place:], outcomes[place:], self._read_now)
                return
            for act in acts:
                act.due -= 1
                if act.due == 0:
                    self._planning.acts.popleft()
                    if act.message.__class__ is Accept:
                        self._accepted_one(act)
                    else:
                        self._committed(act)

    def _committed(self, act: Act) -> None:
        message, answer = act.message, act.answer
        if isinstance(message, Retract | EditSlot | UndoEdit | CancelTurn) and answer is None:
            self._planning.plan(act)
            return
        if isinstance(answer, RewindReceipt | EditReceipt):
            self._chores.prune_later(self._book)
        act.set(self._told.committed(act, self._book))

    def _accepted_one(self, act: Act) -> None:
        accept, receipt = act.message, act.answer
        if accept.known:
            self._ids.acts.pop(accept.message, None)
        if accept.wake:
            self._listeners.tell_woken(accept.agent, receipt.seq)
        if receipt.replaces is not None:
            self._told.replaced(accept.agent, receipt, self._book)
        for reply in act.replies:
            reply.set(receipt)
