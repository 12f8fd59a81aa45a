"""The slot actor: the only writer of its slot, and the one place where its order is decided.

Each message becomes an act. An act is planned on the book's predicted state, handed to the
journal, and answered when its last request is committed. Acts are pipelined: the next is planned
before the last is in.

Invariants:
    I1  Acts reach the journal in mailbox order, in one chain.
    I2  After a refusal, or a commit that failed, the book is read anew and the acts behind are
        planned again in their order; none is sent as it was.
    I3  A receipt is given only for what is committed.
    I4  At most one turn holds the lease; other starts wait in order.

Runs in: the loop thread.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any, ClassVar, Final

import trio

from abeyance.actors.core import LATER, Answer, Reply, TrioActor
from abeyance.storage.store import (
    Chain,
    Committed,
    NotStored,
    Outcome,
    Refused,
    Request,
    Store,
)
from abeyance.storage.tables.slots import MessageId

from .errors import MessageConflictError, OwnershipLostError, not_stored
from .protocol import Requests
from .slot_book import SlotBook
from .slot_messages import (
    Accept,
    AttachAgent,
    CloseGap,
    EndTurn,
    HoldTurn,
    ReadOpenTurn,
    Receipt,
    RecordRound,
    StartTurn,
    Woken,
)
from .slot_rows import read_boundary, read_owner, read_placed
from .slot_turns import has_done, plan_boundary, plan_end, plan_hold, plan_round, plan_start

HAND_OVER_MAX: Final = 128
"""Requests handed to the journal in one message."""


class _Act:
    """One message on its way: what was asked, who waits, and what of it is still out."""

    __slots__ = ("answer", "message", "out", "reply")

    def __init__(self, message: Any, reply: Reply) -> None:
        self.message = message
        self.reply = reply
        self.out = 0
        self.answer: Any = None


class SlotKept:
    """Who is told of wakes; survives a crash of this actor."""

    def __init__(self) -> None:
        self.agents: dict[str, Any] = {}
        self.injects: dict[str, bool] = {}


class SlotView:
    """The slot's book, for whoever looks; None until the slot has read it."""

    def __init__(self) -> None:
        self.book: SlotBook | None = None


class Slot(TrioActor):
    """One slot. See the module's invariants."""

    role: ClassVar[str] = "slot"
    mailbox_capacity: ClassVar[int] = 100_000
    max_deliveries: ClassVar[int] = 3
    kept: SlotKept

    def __init__(self, slot: str, nonce: str, store: Store, journal: Any, view: SlotView) -> None:
        super().__init__()
        self._view = view
        self._slot = slot
        self._nonce = nonce
        self._store = store
        self._journal = journal
        self._epochs = itertools.count(1)
        self._acts: deque[_Act] = deque()
        self._starts: deque[_Act] = deque()
        self._ids: dict[str, _Act] = {}
        self._told: set[str] = set()
        self._planned: list[tuple[Request, _Act | None]] = []
        self._has_planned = trio.Event()
        self._lost: OwnershipLostError | None = None
        self._reborn = False
        self._book: SlotBook

    @classmethod
    def make_kept(cls) -> SlotKept:
        return SlotKept()

    async def on_start(self) -> None:  # type: ignore[override]
        # What a predecessor handed over is in, or refused, before this one reads.
        await self._journal.ask(Request())
        self._reborn = self.incarnation > 1
        self._read_book()
        self.spawn(self._hand_over, name=f"{self._slot}: hand over")
        self._send_all(None, self._book.drain_idle(self._chain))

    def _read_book(self) -> None:
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
        self._view.book = self._book = SlotBook(self._store, self._slot, counter)
        for agent in self.kept.agents:
            self._book.attach(agent)

    # -- messages ----------------------------------------------------------------------------

    def on_receive(self, message: Any) -> Any:
        match message:
            case Accept():
                return self._accept(message)
            case StartTurn():
                self.kept.injects[message.agent] = message.carries_injections
                self._told.discard(message.agent)
                return self._take_in(message)
            case RecordRound() | CloseGap() | HoldTurn() | EndTurn():
                if self._reborn and has_done(self._book, message):
                    return self._recorded(message)
                return self._take_in(message)
            case AttachAgent(agent, ref):
                self.kept.agents[agent] = ref
                self._told.discard(agent)
                self._book.attach(agent)
                return None
            case ReadOpenTurn(agent):
                self._book.attach(agent)
                return self._book.open_turn(agent)
            case _:
                raise TypeError(f"a slot takes no {type(message).__name__}")

    def _accept(self, accept: Accept) -> Any:
        if accept.known or self._reborn:
            earlier = self._ids.get(accept.message)
            if earlier is not None:
                return self._join(earlier, accept)
            row = self._store.get("ids", (self._slot, accept.message))
            if row is not None:
                return _same(accept, row.record)
        return self._take_in(accept)

    def _recorded(self, message: Any) -> Any:
        """A predecessor committed this act and died before it answered."""
        if not isinstance(message, CloseGap):
            return None
        return tuple(read_boundary(self._store, self._slot, message.turn, message.round))

    def _join(self, earlier: _Act, accept: Accept) -> Any:
        """The same id is on its way: one message, two callers."""
        if earlier.message.body_crc != accept.body_crc:
            raise _conflict(accept)
        reply = self.later()
        first = earlier.reply
        earlier.reply = _Both(first, reply)  # type: ignore[assignment]
        return LATER

    def _take_in(self, message: Any) -> Any:
        if self._lost is not None:
            raise self._lost
        act = _Act(message, self.later())
        self._plan(act)
        return LATER

    # -- planning ----------------------------------------------------------------------------

    def _plan(self, act: _Act) -> None:
        message = act.message
        lease = self._book.lease
        if isinstance(message, StartTurn) and lease.agent not in (None, message.agent):
            self._starts.append(act)
            return
        try:
            requests = self._requests(act)
        except Exception as error:  # noqa: BLE001 - the asker learns it; the slot goes on.
            act.reply.set_exception(error)
            return
        self._send_all(act, requests)

    def _requests(self, act: _Act) -> list[Request]:
        book, chain, message = self._book, self._chain, act.message
        match message:
            case Accept():
                request, entry, stored = book.accept(message, chain)
                act.answer = Receipt(message.message, entry, "stored" if stored else "accepted")
                if message.known:
                    self._ids[message.message] = act
                return [request]
            case StartTurn():
                requests, act.answer = plan_start(book, message, chain)
                return requests
            case RecordRound():
                return plan_round(book, message, chain)
            case CloseGap():
                inject = self.kept.injects.get(message.agent, False)
                request, act.answer = plan_boundary(book, message, chain, inject=inject)
                return [request]
            case HoldTurn():
                return plan_hold(book, message, chain)
            case EndTurn():
                return plan_end(book, message, chain)
        raise AssertionError(message)

    def _send_all(self, act: _Act | None, requests: list[Request]) -> None:
        if act is not None:
            act.out = len(requests)
            if not requests:
                act.reply.set(act.answer)
                return
            self._acts.append(act)
        self._planned += [(request, act) for request in requests]
        if requests:
            self._has_planned.set()
        if not self._book.is_leased and self._starts:
            self._plan(self._starts.popleft())

    async def _hand_over(self) -> None:
        """Hand what was planned to the journal: all that one drain of the mailbox planned."""
        while True:
            await self._has_planned.wait()
            self._has_planned = trio.Event()
            planned, self._planned = self._planned, []
            for at in range(0, len(planned), HAND_OVER_MAX):
                part = planned[at : at + HAND_OVER_MAX]
                acts = [act for _, act in part]
                requests = Requests(request for request, _ in part)
                self.ask(self._journal, requests, tag=(self._chain.epoch, acts))

    # -- outcomes ----------------------------------------------------------------------------

    def on_answer(self, answer: Answer) -> None:
        epoch, acts = answer.tag
        outcomes: tuple[Outcome, ...] = answer.unwrap()
        for act, outcome in zip(acts, outcomes, strict=True):
            if epoch != self._chain.epoch:
                # Planned on a state that is no more; its act was planned again already.
                return
            if not isinstance(outcome, Committed):
                self._plan_anew(act, outcome)
            elif act is not None:
                act.out -= 1
                if act.out == 0:
                    self._acts.popleft()
                    self._committed(act)

    def _plan_anew(self, failed: _Act | None, outcome: Refused | NotStored) -> None:
        """Read the book again, and plan every act that is not answered again, in order."""
        acts, self._acts = self._acts, deque()
        starts, self._starts = self._starts, deque()
        self._planned = []
        self._read_book()
        for act in (*acts, *starts):
            if self._lost is not None:
                act.reply.set_exception(self._lost)
            elif act is failed and isinstance(outcome, NotStored):
                self._ids.pop(getattr(act.message, "message", ""), None)
                act.reply.set_exception(not_stored(outcome))
            elif act is failed and isinstance(act.message, Accept) and self._answer_known(act):
                continue
            else:
                self._plan(act)
        if self._lost is None:
            self._send_all(None, self._book.drain_idle(self._chain))

    def _answer_known(self, act: _Act) -> bool:
        row = self._store.get("ids", (self._slot, act.message.message))
        if row is None:
            return False
        try:
            act.reply.set(_same(act.message, row.record))
        except MessageConflictError as error:
            act.reply.set_exception(error)
        return True

    def _committed(self, act: _Act) -> None:
        message, answer = act.message, act.answer
        if isinstance(message, Accept):
            self._ids.pop(message.message, None)
            if message.wake:
                self._tell_woken(message.agent, answer.seq)
        elif isinstance(message, CloseGap):
            answer = tuple(read_placed(self._store, self._slot, *answer))
        act.reply.set(answer)

    def _tell_woken(self, agent: str, entry: int) -> None:
        """Tell an agent of a wake before the receipt is given, so that whoever holds the receipt
        and asks the agent whether it is idle asks behind it. Once, until it asks for a turn."""
        ref = self.kept.agents.get(agent)
        if ref is not None and agent not in self._told:
            self._told.add(agent)
            ref.tell_internal(Woken(entry))


class _Both:
    """Two callers of one act."""

    def __init__(self, first: Reply, second: Reply) -> None:
        self._replies = (first, second)

    def set(self, value: Any) -> None:
        for reply in self._replies:
            reply.set(value)

    def set_exception(self, error: BaseException) -> None:
        for reply in self._replies:
            reply.set_exception(error)


def _same(accept: Accept, known: MessageId) -> Receipt:
    if known.body_crc != accept.body_crc:
        raise _conflict(accept)
    state: Any = {"inbox": "accepted", "slot": "stored", "dead": "dead"}[known.state]
    return Receipt(accept.message, known.entry, state)


def _conflict(accept: Accept) -> MessageConflictError:
    return MessageConflictError(
        f"the message id {accept.message!r} is used for other content; nothing was stored, the "
        "earlier message stands; send this one under another id",
        id=accept.message,
    )
