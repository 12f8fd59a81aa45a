"""Planning a slot's acts on its book, in order, and again where one was not stored. No actor.

Invariants:
    I1  Acts are planned in the order they came, each on what those before it will have left; those
        that need the lease while a turn has it wait in the line.
    I2  What refuses to be planned is its asker's error and leaves the mirror as it was; any other
        failure spoils the mirror, and the incarnation ends.
    I3  After a refusal or a failed commit every act that is not answered is planned again on what
        is stored, in its order; only what that commit says of an act itself is its error.

Runs in: the loop thread; one slot actor's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from abeyance.actors.core import AbeyanceError, ActorCrashError
from abeyance.actors.core.clock import Clock
from abeyance.storage.errors import InvalidRequestError, StorageError, UnreadableRecordError
from abeyance.storage.store import Chain, NotStored, Outcome, Refused, Request

from .errors import OwnershipLostError, not_stored
from .slot_acts import Act, SlotKept
from .slot_batches import plan_accepts
from .slot_book import SlotBook
from .slot_chores import Chores
from .slot_ids import Ids
from .slot_line import Line, must_wait
from .slot_messages import Accept, AcceptMany, Dispose, Receipt, Retract, TurnStart, taken
from .slot_outgoing import Outgoing, Part, Together
from .slot_plans import plan
from .slot_poison import blame, cause_of
from .slot_subjects import plan_accept, plan_retract
from .slot_turns import Plan


class _SpoiledMirrorError(ActorCrashError):
    """Planning failed half way; the mirror is not to be trusted any more."""

    code = "spoiled_mirror"


class Planning:
    """One slot's, of this incarnation. See the module's invariants.

    Args:
        reborn: Whether a predecessor may have stored what it did not live to answer.
    """

    def __init__(
        self,
        slot: str,
        kept: SlotKept,
        ids: Ids,
        line: Line,
        out: Outgoing,
        chores: Chores,
        clock: Clock,
        *,
        reborn: bool,
    ) -> None:
        self._slot = slot
        self._kept = kept
        self._ids = ids
        self._line = line
        self._out = out
        self._chores = chores
        self._clock = clock
        self._reborn = reborn
        self.acts: deque[Act] = deque()
        """What is planned and not answered, in order."""
        self._book: SlotBook
        self._chain: Chain

    def stand_on(self, book: SlotBook, chain: Chain) -> None:
        """Plan on this from now on."""
        self._book, self._chain = book, chain

    def plan(self, act: Act) -> None:
        message, book = act.message, self._book
        if book.answered:
            # Before whatever may end the turn that answered them.
            self._out.plan(book.forget_answered(self._chain))
        try:
            if message.__class__ is Accept:
                planned = self._plan_accept(act)
                if planned is None:
                    return
            elif must_wait(book, message):
                self._line.join(act)
                self._chores.look_later()
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
            self._kept.granted[message.agent] = planned.answer
        self.acts.append(act)
        self._out.plan(planned.requests, (act,), due=act.due)

    def _plan_of(self, act: Act) -> Plan:
        book, chain, message = self._book, self._chain, act.message
        match message:
            case AcceptMany():
                return self._plan_batch(message, act)
            case Retract():
                return plan_retract(book, message, self._ids.of(message.message), chain)
        return plan(book, self._kept, message, chain)

    def _plan_accept(self, act: Act) -> Plan | None:
        """Plan a message's acceptance. None: it shares a request, which is planned."""
        book, accept = self._book, act.message
        if accept.known:
            earlier = self._ids.in_flight(accept)
            if earlier is not None:
                # Of a batch: a barrier comes in behind it.
                return Plan([Request(chain=self._chain)], 1, earlier)
        together = opened = self._out.open
        if together is None or act.alone or not together.accepts.has_room(accept):
            together = Together(book.accepts(accept.agent), [])
        if accept.subject is None:
            entry, seq = book.accept(accept, together.accepts)
            receipt = taken(accept.message, entry, seq)
        else:
            request, receipt = plan_accept(book, accept, self._chain, together.accepts)
            if request is not None:
                if accept.known:
                    self._ids.acts[accept.message] = act
                return Plan([request], 1, receipt)
        if accept.known:
            self._ids.acts[accept.message] = act
        act.due, act.answer = 1, receipt
        self.acts.append(act)
        together.acts.append(act)
        if together is not opened:
            self._out.begin(together, alone=act.alone)
        return None

    def _plan_batch(self, many: AcceptMany, act: Act) -> Plan:
        # What was planned before, and what nobody looked at, is looked up. Of any other nothing was
        # stored when it was asked for; what came since is refused by its guards, once.
        book, ids, looks = self._book, self._ids, act.answer is not None or not many.looked
        if self._reborn and not looks:
            # A predecessor may have stored it and not lived to say so: all of it, or none. Left to
            # the guards, it would be told of as not stored where the disk is full by now, or as one
            # too many where it fills the inbox.
            looks = ids.stored(many.accepts[0], book) is not None

        def known(accept: Accept) -> Receipt | None:
            look = accept.known or self._reborn or act.answer is not None
            return ids.stored(accept, book) if look else None

        planned, fresh = plan_accepts(
            book, many, self._chain, known if looks else None, in_flight=ids.in_flight
        )
        ids.take(act, fresh)
        return planned

    def grant_waiting(self) -> None:
        """Start whoever waits, in order, for as long as the lease is free."""
        while self._line and not self._book.is_leased:
            self.plan(self._line.next())

    def plan_anew(
        self,
        outcome: Refused | NotStored,
        behind: Part,
        outcomes: tuple[Outcome, ...],
        read: Callable[[], OwnershipLostError | None],
    ) -> None:
        """Plan every act that is not answered again, in order, on a book that is read again.

        Args:
            outcome: The first that was none; `behind` and `outcomes` begin with it.
            read: Has this stand on what is stored; says so where the slot is another process's.
        """
        acts, self.acts = self.acts, deque()
        starts = self._line.leave_all()
        self._out.drop()
        self._ids.acts = {}
        for act in acts:
            if isinstance(act.message, Dispose):
                self._kept.ended.discard(act.message.agent)  # Unless it is planned again below.
        lost = read()  # At once: what is handled next is planned on it.
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
        cause = cause_of(outcome) if lost is None else None
        if cause is not None and self._blame(first, cause):
            # Not the act's fault, nor that of those that were not tried for it.
            failed, tidied = {}, True
        for act in (*acts, *starts):
            if lost is not None:
                act.set_exception(lost)
            elif act in failed:
                act.set_exception(not_stored(failed[act]))
            elif (
                act in refused
                and isinstance(act.message, Accept)
                and self._ids.answers(act, self._book)
            ):
                continue
            else:
                self.plan(act)
        if lost is not None:
            return
        self.grant_waiting()
        if tidied:
            self._chores.tidy(self._book, self._chain)
        else:
            self._chores.tidy_later()

    def _blame(self, request: Request, error: Exception) -> bool:
        """Whether a request was refused for a message that it was to move; one that was refused so
        often leaves for the dead letters, before anything is planned again."""
        now_ms = self._clock.now_ms()
        blamed = blame(self._book, request, error, self._kept.refusals, self._chain, now_ms)
        self._out.plan(blamed or [])
        return blamed is not None


def _part(acts: Sequence[Act]) -> None:
    """Have each act of a shared request be planned in one of its own."""
    for act in acts:
        act.alone = True
