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
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import trio

from abeyance.actors.core import (
    LATER,
    AbeyanceError,
    ActorCrashError,
    Answer,
    TrioActor,
)
from abeyance.actors.core.errors import OutcomeUnknownError
from abeyance.actors.core.logs import Log
from abeyance.storage.errors import InvalidRequestError, StorageError, UnreadableRecordError
from abeyance.storage.store import (
    Chain,
    Committed,
    NotStored,
    Outcome,
    Refused,
    Request,
    Store,
)

from . import events
from .errors import (
    AgentEndedError,
    InboxFullError,
    NotStoredError,
    OwnershipLostError,
    not_stored,
)
from .mode import DeferWrites
from .protocol import Requests
from .slot_absent import ABSENT_S, plan_absent_end
from .slot_accepts import Accepts
from .slot_acts import Act, SlotKept
from .slot_again import read_again
from .slot_approvals import ApprovalDecided, AskApprovals, Decide
from .slot_batches import plan_accepts
from .slot_book import SlotBook
from .slot_cancel import CancelReceipt, CancelTurn, FindTurn
from .slot_edits import next_forget_ms, plan_forget
from .slot_ids import Ids, check_same
from .slot_line import Line, must_wait
from .slot_listeners import Listeners
from .slot_long import LongRequest, Planned
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
    Receipt,
    RecordRound,
    Retract,
    Rewake,
    RewindReceipt,
    RewindSlot,
    StartPair,
    StartTurn,
    TurnStart,
    TurnWithdrawn,
    UndoEdit,
    UndoRewind,
    WithdrawPair,
    WithdrawStart,
    taken,
)
from .slot_pairs import ended_pair, open_pair
from .slot_plans import plan
from .slot_poison import blame
from .slot_recall import recall
from .slot_rewind import check_rewind, next_prune_ms, plan_prune
from .slot_rows import read_owner
from .slot_subjects import Retraction, plan_accept, plan_retract
from .slot_turns import Plan
from .slot_view import SlotView

_logger = Log(__name__)

HAND_OVER_MAX: Final = 32
"""Requests handed to the journal in one message: as many as it answers before the loop gets a
turn, for they are answered in one."""
PRUNE_EVERY_S: Final = 3_600.0
"""How often, at least, the wall clock is looked at while rewound rows wait to be deleted."""
PRUNE_PAUSE_S: Final = 0.1
"""Between two parts that are deleted, so that nobody waits for many of them."""
MORE_MAX: Final = 3
"""Messages that are accepted in the handling of one. The time is looked at with every eighth of
those, so that it is overrun by less than half a millisecond."""
TIDY_AGAIN_S: Final = 5.0
"""Until what only tidies up is tried again where the store refused it."""


class _Tidy:
    """Told to itself, later: land what waits in an idle slot, delete what is answered."""


class _LookAtHolder:
    """Told to itself, later: whether the agent for whose turn others wait is here."""


class _Prune:
    """Told to itself, later: delete a part of what was rewound long ago."""


class _SpoiledMirrorError(ActorCrashError):
    """Planning failed half way; the mirror is not to be trusted any more."""

    code = "spoiled_mirror"


_Planned: TypeAlias = tuple[Planned | Accepts, Sequence[Act]]
"""What the journal is to be handed, and the acts that it decides."""
_Part: TypeAlias = list[tuple[Request, Sequence[Act]]]
"""What it is handed in one message."""


class _Together(NamedTuple):
    """Messages whose acceptance is one request."""

    accepts: Accepts
    acts: list[Act]


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
        self._acts: deque[Act] = deque()
        self._line = Line()
        self._ids = Ids(store, slot)
        self._listeners: Listeners
        self._planned: list[_Planned] = []
        self._open: _Together | None = None
        """The last that is planned, if more messages may join it."""
        self._has_planned = trio.Event()
        self._lost: OwnershipLostError | None = None
        self._reborn = False
        self._looks_later = False
        self._tidies_later = False
        self._prunes_later = False
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
        for _ in self._read_book():
            await trio.lowlevel.checkpoint()
        self.spawn(self._hand_over, name=f"{self._slot}: hand over")
        if self._lost is not None:
            return
        self._tidy()
        self._prune_later()
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
        self._view.book = self._book = book
        self._book.forked = max(self._book.forked, self.kept.forked)
        for agent in self.kept.agents.keys() - self.kept.ended:
            self._book.attach(agent)

    # -- messages ----------------------------------------------------------------------------

    def on_receive(self, message: Any) -> Any:
        match message:
            case Accept():
                accepted = self._accept(message)
                if accepted is LATER:
                    self._accept_more()
                return accepted
            case AcceptMany():
                self._check_not_ended(message.accepts[0].agent)
                return self._take_in(message)
            case StartTurn():
                return self._start_turn(message)
            case RecordRound() | CloseGap() | HoldTurn() | EndTurn() | EndPair() | RewindSlot():
                done = recall(self._book, message) if self._reborn else None
                return self._take_in(message) if done is None else done.answer
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
                return self._accept(again) if isinstance(again, Accept) else self._take_in(again)
            case AttachAgent(agent, ref):
                self._listeners.attach(agent, ref)
                self._line.withdraw_pairs(agent)
                self._book.attach(agent)
                return None
            case ReadOpenTurn(agent):
                self._book.attach(agent)
                return self._book.open_turn(agent)
            case _LookAtHolder():
                self._looks_later = False
                self._look_at_holder()
                return None
            case _Prune():
                self._prune()
                return None
            case _Tidy():
                self._tidies_later = False
                if self._lost is None:
                    self._tidy()
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

    def _accept(self, accept: Accept) -> Any:
        if self.kept.ended:
            self._check_not_ended(accept.agent)
        if accept.known or self._reborn:
            earlier = self._ids.acts.get(accept.message)
            if earlier is not None and isinstance(earlier.message, Accept):
                return self._join(earlier, accept)
            receipt = None if earlier is not None else self._ids.stored(accept, self._book)
            if receipt is not None:
                return receipt
        if self._lost is not None:
            raise self._lost
        self._plan(Act(accept, self.later()))
        return LATER

    def _accept_more(self) -> None:
        """Accept some of what is behind a message: that costs less than to be handed each."""
        for _ in range(MORE_MAX):
            accept = self.take_next(Accept)
            if accept is None:
                return
            try:
                accepted = self._accept(accept)
            except ActorCrashError:
                raise
            except Exception as error:  # noqa: BLE001 - its sender's, as of any message.
                self.later().set_exception(error)
            else:
                if accepted is not LATER:
                    self.later().set(accepted)

    def _check_not_ended(self, agent: str) -> None:
        if agent in self.kept.ended:
            raise AgentEndedError(
                f"agent {agent!r} has ended; nothing was accepted; send to an agent that is there",
                agent=agent,
            )

    def _join(self, earlier: Act, accept: Accept) -> Any:
        """The same id is on its way: one message, two callers."""
        check_same(accept, earlier.message.body_crc)
        earlier.replies.append(self.later())
        return LATER

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
        self._plan(act)
        if self._line:
            self._grant_waiting()
        return LATER

    # -- planning ----------------------------------------------------------------------------

    def _plan(self, act: Act) -> None:
        message, book = act.message, self._book
        if book.answered:
            # Before whatever may end the turn that answered them.
            self._plan_requests(book.forget_answered(self._chain))
        try:
            if message.__class__ is Accept:
                planned = self._plan_accept(act)
                if planned is None:
                    return
            elif must_wait(book, message):
                self._line.join(act)
                self._look_later()
                return
            else:
                planned = self._plan_of(act)
        except (AbeyanceError, StorageError) as error:
            act.set_exception(error)
            return
        except Exception as error:
            raise _SpoiledMirrorError(
                f"planning {type(message).__name__} for slot {self._slot!r} failed ({error!r}); "
                "nothing of it was stored; the slot is read anew"
            ) from error
        act.due, act.answer = planned.decides, planned.answer
        if not act.due:
            act.set(act.answer)
            return
        if isinstance(planned.answer, TurnStart):
            self.kept.granted[message.agent] = planned.answer
        self._acts.append(act)
        self._plan_requests(planned.requests, (act,), due=act.due)

    def _plan_of(self, act: Act) -> Plan:
        book, chain, message = self._book, self._chain, act.message
        match message:
            case AcceptMany():
                return self._plan_batch(message, act)
            case Retract():
                return plan_retract(book, message, self._ids.of(message.message), chain)
        return plan(book, self.kept, message, chain)

    def _plan_accept(self, act: Act) -> Plan | None:
        """Plan a message's acceptance. None: it shares a request, which is planned."""
        book, chain, accept = self._book, self._chain, act.message
        if accept.known:
            earlier = self._ids.in_flight(accept)
            if earlier is not None:
                # Of a batch: a barrier comes in behind it.
                return Plan([Request(chain=chain)], 1, earlier)
        together = self._open
        if together is None or act.alone or not together.accepts.has_room(accept):
            together = _Together(book.accepts(accept.agent), [])
        if accept.subject is None:
            entry, seq = book.accept(accept, together.accepts)
            receipt = taken(accept.message, entry, seq)
        else:
            request, receipt = plan_accept(book, accept, chain, together.accepts)
            if request is not None:
                if accept.known:
                    self._ids.acts[accept.message] = act
                return Plan([request], 1, receipt)
        if accept.known:
            self._ids.acts[accept.message] = act
        act.due, act.answer = 1, receipt
        self._acts.append(act)
        together.acts.append(act)
        if together is not self._open:
            self._plan_requests([together.accepts], together.acts)
            self._open = None if act.alone else together
        return None

    def _plan_batch(self, many: AcceptMany, act: Act) -> Plan:
        # What was planned before, and what nobody looked at, is looked up. Of any other nothing was
        # stored when it was asked for; what came since is refused by its guards, once.
        book, ids, looks = self._book, self._ids, act.answer is not None or not many.looked
        if self._reborn and not looks:
            # A predecessor may have stored it and not lived to say so: all of it, or none. Left to
            # the guards, a disk that is full by now would have it told of as not stored.
            looks = ids.stored(many.accepts[0], book) is not None

        def known(accept: Accept) -> Receipt | None:
            look = accept.known or self._reborn or act.answer is not None
            return ids.stored(accept, book) if look else None

        try:
            planned, fresh = plan_accepts(
                book, many, self._chain, known if looks else None, in_flight=ids.in_flight
            )
        except InboxFullError:
            # It may be what fills the inbox: a predecessor stored it and did not live to say so.
            planned, fresh = plan_accepts(book, many, self._chain, known, in_flight=ids.in_flight)
        ids.take(act, fresh)
        return planned

    def _plan_requests(
        self, requests: Sequence[Planned | Accepts], acts: Sequence[Act] = (), *, due: int = 1
    ) -> None:
        """Plan requests for the journal; the first of them, as many as are due, decide the acts."""
        if requests:
            if not self._planned:
                self._has_planned.set()
            self._open = None
            self._planned += [
                (request, acts if place < due else ()) for place, request in enumerate(requests)
            ]

    def _tidy(self) -> None:
        self._plan_requests(self._book.forget_answered(self._chain))
        self._plan_requests(self._book.drain_idle(self._chain))

    def _prune(self) -> None:
        """Delete a part of what was rewound long ago, and look again later."""
        self._prunes_later = False
        if self._lost is None:
            now_ms = self._cell.system.clock.now_ms()
            self._plan_requests(plan_prune(self._book, self._chain, now_ms))
            self._plan_requests(plan_forget(self._book, self._chain, now_ms))
            self._prune_later()

    def _prune_later(self) -> None:
        due = [next_prune_ms(self._book), next_forget_ms(self._book)]
        due_ms = min((at_ms for at_ms in due if at_ms is not None), default=None)
        if due_ms is None or self._prunes_later:
            return
        left_s = (due_ms - self._cell.system.clock.now_ms()) / 1_000
        self._prunes_later = True
        self.after(min(max(left_s, PRUNE_PAUSE_S), PRUNE_EVERY_S), _Prune())

    def _look_later(self) -> None:
        if not self._looks_later:
            self._looks_later = True
            self.after(ABSENT_S, _LookAtHolder())

    def _look_at_holder(self) -> None:
        """End the turn that others wait for where its agent is not here to go on with it."""
        holder = self._book.lease.agent
        if not self._line or holder is None or self._lost is not None:
            return
        if self._listeners.is_here(holder) or self._book.is_deferring:
            self._look_later()
            return
        _logger.warning(
            "a turn of agent %r is ended: the agent is not here, and another waits for slot %r",
            holder,
            self._slot,
            agent=holder,
        )
        now_ms = self._cell.system.clock.now_ms()
        self._plan_requests(plan_absent_end(self._book, now_ms, self._chain).requests)
        self._grant_waiting()

    def _grant_waiting(self) -> None:
        """Start whoever waits, in order, for as long as the lease is free."""
        while self._line and not self._book.is_leased:
            self._plan(self._line.next())

    async def _hand_over(self) -> None:
        """Hand what was planned to the journal: all that one drain of the mailbox planned."""
        while True:
            await self._has_planned.wait()
            self._has_planned = trio.Event()
            planned, self._planned, self._open = self._planned, [], None
            part: _Part = []
            weight = 0
            for request, acts in planned:
                if isinstance(request, LongRequest):
                    # What is ahead of it does not wait for it; what is behind does.
                    self._ask_journal(part, weight)
                    encoded = await self._encoded(request)
                    if encoded is None:
                        part = []
                        break
                    part, weight = [(encoded, acts)], 1
                    continue
                weighs = request.count if isinstance(request, Accepts) else 1
                if part and weight + weighs > HAND_OVER_MAX:
                    self._ask_journal(part, weight)
                    part, weight = [], 0
                if isinstance(request, Accepts):
                    request = request.request(self._book.owner, self._chain)
                part.append((request, acts))
                weight += weighs
            self._ask_journal(part, weight)

    def _ask_journal(self, part: _Part, weight: int) -> None:
        if part:
            requests = Requests([request for request, _ in part])
            requests.weight = weight
            self.ask(self._journal, requests, tag=(self._chain.epoch, part))

    async def _encoded(self, request: LongRequest) -> Request | None:
        """Make the rows of a request, in steps; None where what it was planned on is no more, and
        it and all that is behind it were planned again meanwhile."""
        epoch, steps = self._chain.epoch, request.encoded()
        while True:
            try:
                next(steps)
            except StopIteration as done:
                encoded: Request = done.value
                return encoded
            await trio.lowlevel.checkpoint()
            if self._chain.epoch != epoch:
                return None

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
                self._plan_anew(outcome, part[place:], outcomes[place:])
                return
            for act in acts:
                act.due -= 1
                if act.due == 0:
                    self._acts.popleft()
                    if act.message.__class__ is Accept:
                        self._accepted_one(act)
                    else:
                        self._committed(act)

    def _plan_anew(
        self,
        outcome: Refused | NotStored,
        behind: _Part,
        outcomes: tuple[Outcome, ...],
    ) -> None:
        """Read the book again, and plan every act that is not answered again, in order."""
        acts, self._acts = self._acts, deque()
        starts = self._line.leave_all()
        self._planned, self._open, self._ids.acts = [], None, {}
        for act in acts:
            if isinstance(act.message, Dispose):
                self.kept.ended.discard(act.message.agent)  # Unless it is planned again below.
        for _ in self._read_book():
            pass  # At once: what is handled next is planned on it.
        failed: dict[Act, NotStored] = {}
        tidied = True
        for (_, of), error in zip(behind, outcomes, strict=True):
            if not isinstance(error, NotStored):
                continue
            tidied = tidied and bool(of)
            if len(of) > 1 and isinstance(error.error, UnreadableRecordError | InvalidRequestError):
                # One of them is refused by name. Which, shows when each has a request of its own.
                _part(of)
            else:
                failed.update(dict.fromkeys(of, error))
        first, refused = behind[0]
        if len(refused) > 1 and isinstance(outcome, Refused):
            _part(refused)
        if isinstance(outcome, NotStored) and self._blame(first, outcome.error):
            # Not the act's fault, nor that of those that were not tried for it.
            failed, tidied = {}, True
        for act in (*acts, *starts):
            if self._lost is not None:
                act.set_exception(self._lost)
            elif act in failed:
                act.set_exception(not_stored(failed[act]))
            elif (
                act in refused
                and isinstance(act.message, Accept)
                and self._ids.answers(act, self._book)
            ):
                continue
            else:
                self._plan(act)
        if self._lost is not None:
            return
        self._grant_waiting()
        if tidied:
            self._tidy()
        elif not self._tidies_later:
            # At once again would be as often as the disk can refuse.
            self._tidies_later = True
            self.after(TIDY_AGAIN_S, _Tidy())

    def _blame(self, request: Request, error: Exception) -> bool:
        """Whether a request was refused for a message that it was to move; one that was refused so
        often leaves for the dead letters, before anything is planned again."""
        if self._lost is not None:
            return False
        now_ms = self._cell.system.clock.now_ms()
        blamed = blame(self._book, request, error, self.kept.refusals, self._chain, now_ms)
        self._plan_requests(blamed or [])
        return blamed is not None

    def _committed(self, act: Act) -> None:
        message, answer = act.message, act.answer
        if isinstance(message, AcceptMany):
            self._accepted(message, answer)
        elif isinstance(message, Retract | EditSlot | UndoEdit | CancelTurn) and answer is None:
            self._plan(act)
            return
        elif isinstance(message, Decide):
            self._listeners.tell(message.agent, ApprovalDecided(message.key))
        elif isinstance(answer, CancelReceipt):
            assert answer.turn is not None
            self._listeners.tell_withdrawn(message.agent, TurnWithdrawn(answer.turn))
        elif isinstance(answer, Retraction):
            answer = self._retracted(answer)
        elif isinstance(message, Rewake):
            self._listeners.tell_woken(
                message.agent, next(reversed(self._book.wakes[message.agent]))
            )
        elif isinstance(message, StartTurn):
            self.kept.granted.pop(message.agent, None)
        elif isinstance(answer, RewindReceipt):
            self._rewound(message, answer)
        elif isinstance(answer, EditReceipt):
            self._edited(message, answer)
        act.set(answer)

    def _accepted_one(self, act: Act) -> None:
        accept, receipt = act.message, act.answer
        if accept.known:
            self._ids.acts.pop(accept.message, None)
        if accept.wake:
            self._listeners.tell_woken(accept.agent, receipt.seq)
        if receipt.replaces is not None:
            self._replaced(accept.agent, receipt)
        for reply in act.replies:
            reply.set(receipt)

    def _accepted(self, many: AcceptMany, receipts: tuple[Receipt, ...]) -> None:
        self._ids.settle(many)
        for accept, receipt in zip(many.accepts, receipts, strict=True):
            if accept.wake:
                self._listeners.tell_woken(accept.agent, receipt.seq)
                break
        for receipt in receipts:
            if receipt.replaces is not None:
                self._replaced(many.accepts[0].agent, receipt)

    def _replaced(self, agent: str, receipt: Receipt) -> None:
        assert receipt.replaces is not None
        self._book.gone.pop(receipt.replaces, None)
        self.emit(events.MessageReplaced, agent=agent, id=receipt.replaces, by=receipt.id)

    def _retracted(self, done: Retraction) -> Receipt:
        self._book.gone.pop(done.receipt.id, None)
        self.emit(events.MessageRetracted, agent=done.agent, id=done.receipt.id)
        if done.withdrawn is not None:
            self._listeners.tell_withdrawn(done.agent, done.withdrawn)
        return done.receipt

    def _edited(self, message: EditSlot | UndoEdit, receipt: EditReceipt) -> None:
        self._book.edits.settle(receipt.edit)
        self._prune_later()
        kind = events.EditUndone if isinstance(message, UndoEdit) else events.MessageEdited
        number, id_, seq = receipt
        self.emit(kind, agent=self._slot, id=id_, edit=number, seq=seq, by=message.by)

    def _rewound(self, message: Any, receipt: RewindReceipt) -> None:
        self._prune_later()
        act = message.rewind if isinstance(message, EndTurn) else message
        if act is not None and receipt.first is not None:
            kind = events.RewindUndone if isinstance(act, UndoRewind) else events.SlotRewound
            first, last = receipt
            self.emit(kind, agent=self._slot, first=first, last=last, by=act.by)


def _part(acts: Sequence[Act]) -> None:
    """Have each act of a shared request be planned in one of its own."""
    for act in acts:
        act.alone = True
