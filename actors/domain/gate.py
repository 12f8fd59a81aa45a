"""The model gate: one an agent; admits each provider call, and settles it with what came of it.

It reads the wait book itself, where everything that binds stands from the moment it is made; only
what is on its way there through the ledger's mailbox, a statement of this gate's own, is asked for.

Invariants:
    I1  A permit is given only where no wait binds (agent, model) and no pause the agent then, and
        is for one call.
    I2  A permit given is settled by its holder or returned by death watch; none is lost.
    I3  A settlement that states a wait is answered after the ledger took it: the wait first, then
        whatever the holder does about it.
    I4  At most one permit is out: a turn's call and an auxiliary one never run at once. Who has to
        wait is parked, and asked again what binds before it is let in.
    I5  After `CloseAdmission` no permit is given, and nobody is parked.
    I6  While a quota that states no end holds the agent's turn, from the settlement that leads to
        the hold on, no auxiliary call to its model is admitted. A turn that asks is held no more.

Runs in: the loop thread. Permits live in the cell; a settlement that arrives after a crash of
this actor still counts.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any, ClassVar

from abeyance.actors.core import LATER, Answer, Ended, Reply, TrioActor
from abeyance.actors.core.clock import Clock
from abeyance.actors.providers.port import Permit

from .accounts import Account
from .chosen_model import UseAccount
from .errors import AdmissionClosedError
from .overrides import EVERY
from .pauses import Pauses, longest
from .preflight import refusal
from .protocol import (
    Admit,
    BeginPause,
    CheckWait,
    CloseAdmission,
    HoldByQuota,
    LiftPauses,
    Peek,
    Settle,
    WatchHolder,
)
from .redelivery import Redelivered
from .statements import statement_of
from .usage_book import AccountUsage
from .wait_book import Deferral, WaitBook


class GateKept:
    """Permits that are out, by id, and what pauses the agent."""

    def __init__(self) -> None:
        self.permits: dict[int, Permit] = {}
        self.pauses = Pauses()
        self.holder: Any = None
        self.quota: HoldByQuota | None = None
        self.has_looked = False
        """Whether the rows were read for what holds from the start: a new process must before its
        first admission."""
        self.settling: dict[int, tuple[Settle, Reply]] = {}
        """Settlements whose waits the ledger was asked to record, by permit: asked once."""
        self.uses: UseAccount | None = None
        """Whose calls they are, once another provider was chosen."""
        self.ids = itertools.count(1)
        self.closed = False
        self.admitted = 0
        self.deferred = 0
        self.returned = 0


class Gate(TrioActor):
    """Admission for one agent."""

    role: ClassVar[str] = "gate"
    max_deliveries: ClassVar[int] = 5
    kept: GateKept

    def __init__(
        self,
        agent: str,
        ledger: Any,
        book: WaitBook,
        clock: Clock,
        account: Account | None = None,
        usage: AccountUsage | None = None,
    ) -> None:
        super().__init__()
        self._agent = agent
        self._ledger = ledger
        self._book = book
        self._clock = clock
        self._account = account
        self._usage = usage
        if self.kept.uses is not None:
            self._account, self._usage = self.kept.uses

    @classmethod
    def make_kept(cls) -> GateKept:
        return GateKept()

    def on_start(self) -> None:
        # Admissions are owed: after a crash they are delivered again, and parked again.
        self._parked: deque[tuple[Admit, Reply]] = deque()
        self._back = Redelivered(self.kept.settling.values())
        if self.kept.holder is not None:
            self.watch(self.kept.holder)
        if not self.kept.has_looked:
            self.kept.has_looked = True
            self.kept.quota = self._stored_quota()
            if self._account is not None:
                self._account.book.look(self._account.name)

    def _stored_quota(self) -> HoldByQuota | None:
        hold = self._book.quota_hold(self._agent)
        why = "an exhausted quota, of which nobody said when it ends, holds the agent's turn"
        return None if hold is None else HoldByQuota(hold.model, why, hold.window)

    def on_receive(self, message: Any) -> Any:
        match message:
            case Admit() | Peek():
                if isinstance(message, Admit) and message.purpose == "turn":
                    self.kept.quota = None
                self._look(message, self.later())
                return LATER
            case CloseAdmission():
                self.kept.closed = True
                parked, self._parked = self._parked, deque()
                for admit, reply in parked:
                    self._admit(admit, None, reply)
                return None
            case Settle():
                if self._back.claims(message):
                    # It came back after a crash of this actor, and its record is on its way.
                    self.later()
                    return LATER
                return self._settle(message)
            case BeginPause(pause):
                self.kept.pauses.begin(pause)
                return None
            case LiftPauses(model):
                self.kept.pauses.release(model)
                if self.kept.quota is not None and model in (None, self.kept.quota.model):
                    self.kept.quota = None
                return None
            case UseAccount():
                self.kept.uses = message
                self._change_account()
                return None
            case HoldByQuota(model):
                self.kept.quota = None if model is None else message
                return None
            case WatchHolder(ref):
                # A new life of the holder: if the last one died while this actor was dead too,
                # nobody told of it, and what is out belongs to nobody.
                self._take_back()
                if self.kept.holder is None:
                    self.kept.holder = ref
                    self.watch(ref)
                return None
            case _:
                raise TypeError(f"a gate takes no {type(message).__name__}")

    def _change_account(self) -> None:
        """Go by another credential; not while a call of the one before is out, for what comes of
        that is of its own account."""
        uses, kept = self.kept.uses, self.kept
        if uses is None or kept.permits or kept.settling:
            return
        if uses.account is not None and self._account is not uses.account:
            uses.account.book.look(uses.account.name)
        self._account, self._usage = uses

    def _look(self, message: Admit | Peek, reply: Reply) -> None:
        """Answer with what binds now; or, where nothing does, go on to the permit."""
        exempt = message.purpose == "ephemeral"
        if self.kept.settling:
            # A statement of this agent is on its way to the book: the ledger answers behind it.
            check = CheckWait(self._agent, message.model, exempt)
            self.ask(self._ledger, check, tag=(message, reply))
            return
        self._looked(message, self._book.deferral(self._agent, message.model, exempt=exempt), reply)

    def _looked(self, message: Admit | Peek, wait: Deferral | None, reply: Reply) -> None:
        deferral = self._held(message, wait)
        if isinstance(message, Peek):
            reply.set(deferral)
        else:
            if deferral is None and message.careful and self._usage and message.model:
                deferral = refusal(self._usage, self._agent, message.model)
            # Settled here, with the permit: a crash behind this leaves both or neither.
            self._admit(message, deferral, reply)

    def _settle(self, settlement: Settle) -> Any:
        self.kept.permits.pop(settlement.permit.id, None)
        for pause in settlement.pauses:
            self.kept.pauses.begin(pause)
        if settlement.quota is not None:
            # Ahead of whoever is parked behind this call: the turn's hold is a row only later.
            model, window = settlement.permit.model, settlement.window
            self.kept.quota = HoldByQuota(model, settlement.quota, window)
        statement = statement_of(self._agent, settlement, self._account)
        if statement is None:
            self._settle_account(settlement)
            self._let_in()
            return None
        reply = self.later()
        self.kept.settling[settlement.permit.id] = (settlement, reply)
        self.ask(self._ledger, statement, tag=(settlement, reply), fact=True)
        self._let_in()
        return LATER

    def on_answer(self, answer: Answer) -> None:
        message, reply = answer.tag
        reply_: Reply = reply
        if isinstance(message, Settle):
            self.kept.settling.pop(message.permit.id, None)
            self._back.forget(message)
            self._settle_account(message)
        if answer.error is not None:
            reply_.set_exception(answer.error)
        elif isinstance(message, Admit | Peek):
            self._looked(message, answer.value, reply_)
        else:
            reply_.set(answer.value)
        self._let_in()

    def _held(self, message: Admit | Peek, wait: Deferral | None) -> Deferral | None:
        """What holds a call to a model: its wait, its account's, what pauses the agent, or what
        holds its turn."""
        model, account = message.model, self._account
        # A turn of an agent that stays is told when it is next; of any other nobody knows whom.
        stands = message.purpose == "turn"
        if wait is None and account is not None and model is not None:
            holder = self.kept.holder
            wall = account.book.check(account.name, self._agent, model, holder, stands=stands)
            if wall is not None:
                ends_ms, why = wall.deadline_ms, wall.reason
                window, of_quota = wall.window, wall.of_quota
                wait = Deferral(self._agent, model, ends_ms, why, "account", window, of_quota)
        pause = self.kept.pauses.binding(self._clock.now_ms())
        held, quota = longest(self._agent, model or EVERY, wait, pause), self.kept.quota
        if message.purpose != "auxiliary" or quota is None or quota.model != model:
            return held
        # What has no end outlasts what has one, and is what a release must name.
        if held is not None and held.deadline_ms is None:
            return held
        held_as, why = model or EVERY, quota.reason
        return Deferral(self._agent, held_as, None, why, "quota", quota.window, True)

    def _admit(self, message: Admit, deferral: Deferral | None, reply: Reply) -> None:
        """Give a permit, or say why not. Whoever gave up asking takes none."""
        kept = self.kept
        if kept.closed:
            reply.set_exception(
                AdmissionClosedError(
                    f"agent {self._agent!r} starts no more calls; no call was made; call again "
                    "after the next start",
                    agent=self._agent,
                )
            )
            return
        if deferral is not None:
            kept.deferred += 1
            reply.set(deferral)
            return
        if kept.permits:
            self._parked.append((message, reply))
            return
        permit = Permit(next(kept.ids), self._agent, message.model or EVERY, message.purpose)
        if reply.set(permit):
            kept.permits[permit.id] = permit
            kept.admitted += 1
            if self._account is not None:
                name = self._account.name
                self._account.book.taken(name, self._agent, permit.model, permit.id, self.actor_ref)

    def _let_in(self) -> None:
        """The way is free: look again at who was parked first, and at the next if that is held."""
        self._change_account()
        while self._parked and not self.kept.permits:
            self._look(*self._parked.popleft())

    def _settle_account(self, settlement: Settle) -> None:
        """Let the next one of the account's line try, once what the call stated binds."""
        if self._account is not None:
            succeeded = settlement.outcome == "succeeded"
            name, permit = self._account.name, settlement.permit
            self._account.book.settled(
                name, self._agent, permit.model, permit.id, succeeded=succeeded
            )

    def on_ended(self, ended: Ended) -> None:
        # The holder died with calls out: what became of them is unknown, the permits come back.
        self._take_back()

    def _take_back(self) -> None:
        """Return the permits of turns; an auxiliary call settles its own, in whichever task."""
        kept = self.kept
        left = {id_: permit for id_, permit in kept.permits.items() if permit.purpose != "turn"}
        kept.returned += len(kept.permits) - len(left)
        for id_ in kept.permits.keys() - left.keys():
            self._settle_account(Settle(kept.permits[id_], "unknown"))
        kept.permits = left
        self._let_in()
