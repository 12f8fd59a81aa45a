"""The ledger of provider waits: the one actor that writes them.

Invariants:
    I1  The binding deadline is the maximum; no deadline outlasts every deadline. A statement that
        binds nothing changes nothing and is not recorded.
    I2  Acts are offered to storage in order, as many at a time as one request holds: of those, all
        land or none. A failed offer leaves them pending; they are offered again at every later act,
        by a timer at the pauses of any commit that must land, and when asked for, as at a stop. So
        a hold that is stored after a refusal is not there for long without its wait.
    I3  A receipt says `recorded` only for what is committed. Nobody waits for longer than the offer
        that is out takes.
    I4  A key whose row cannot be read is changed by a release only, and keeps no other key's acts
        from storage.

Runs in: the loop thread. Pending acts are in the book, which outlives a crash of this actor.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final, NamedTuple

from abeyance.actors.core import LATER, ActorDeadError, Answer, Reply, Timer, TrioActor
from abeyance.actors.core.clock import Clock
from abeyance.actors.core.errors import OutcomeUnknownError
from abeyance.storage.codec import encode
from abeyance.storage.errors import StorageError
from abeyance.storage.store import (
    Append,
    Committed,
    Outcome,
    Refused,
    Request,
    Store,
)
from abeyance.storage.tables.waits import Override, Wait

from . import events
from .accounts import Accounts
from .errors import NotStoredError
from .ingress import clean_text
from .overrides import EVERY, LAPSED
from .persistence import PAUSE_INITIAL_S, PAUSE_MAX_S
from .protocol import (
    AttachToWaits,
    CheckWait,
    OfferPending,
    Reach,
    RecordWait,
    ReleasedWait,
    ReleaseReceipt,
    ReleaseWaits,
    WaitBound,
    WaitLifted,
    WaitReceipt,
)
from .quota_hold import read_quota_hold
from .redelivery import Redelivered
from .wait_book import (
    ACCOUNT,
    ACCOUNT_TABLE,
    RECHECK_MS,
    WaitAct,
    WaitBook,
    listed,
)
from .wait_offer import line_of, line_of_place, plan_offer
from .wait_releases import Stamp, acts_of_account_release, acts_of_release
from .wait_statements import acts_of_statement

REQUESTER_CHARS_MAX: Final = 300


class _Waiting:
    """Who waits to hear how far some acts got."""

    def __init__(self, message: Any, reply: Reply, acts: tuple[WaitAct, ...], receipt: Any) -> None:
        self.message = message
        self.reply = reply
        self.acts = acts
        self.receipt = receipt

    @property
    def is_durable(self) -> bool:
        return all(act.durable for act in self.acts)

    def answer(self) -> None:
        receipt = self.receipt
        if isinstance(receipt, ReleaseReceipt):
            # Behind those that have an act stand those that have none.
            count = len(self.acts)
            recorded, others = receipt.released[:count], receipt.released[count:]
            released = zip(recorded, self.acts, strict=True)
            lifted = tuple(wait._replace(reach=_reach_of(act)) for wait, act in released)
            self.reply.set(ReleaseReceipt(lifted + others))
        else:
            self.reply.set(receipt._replace(reach=_reach_of(self.acts[0])))


class LedgerKept:
    """Who waits for which acts, and whom to tell of releases."""

    def __init__(self) -> None:
        self.waiting: list[_Waiting] = []
        self.agents: dict[str, Any] = {}


class _OfferAgain(NamedTuple):
    """To itself: offer what is still pending."""


class _OfferNow(NamedTuple):
    """To itself: something is pending that nobody waits for."""


class _LookAgain(NamedTuple):
    """To itself: look again for damaged keys."""


class Ledger(TrioActor):
    """Records statements and releases; see the module's invariants."""

    role: ClassVar[str] = "ledger"
    max_deliveries: ClassVar[int] = 5
    kept: LedgerKept

    def __init__(
        self,
        book: WaitBook,
        store: Store,
        journal: Any,
        clock: Clock,
        accounts: Accounts | None = None,
    ) -> None:
        super().__init__()
        self._book = book
        self._store = store
        self._journal = journal
        self._clock = clock
        self._accounts = accounts
        self._offer: tuple[WaitAct, ...] = ()
        self._timer: Timer | None = None
        self._pause_s = PAUSE_INITIAL_S
        self._offering: list[Reply] = []
        """Who asked for an offer, and waits to hear that it is over."""
        self._ids = itertools.count()

    @classmethod
    def make_kept(cls) -> LedgerKept:
        return LedgerKept()

    async def on_start(self) -> None:  # type: ignore[override]
        # What a predecessor handed over is in, or refused, before this one reads; that holds of a
        # barrier that was not stored, too.
        with suppress(NotStoredError, OutcomeUnknownError):
            await self._journal.ask(Request())
        self._back = Redelivered((each.message, each.reply) for each in self.kept.waiting)
        self._book.on_lapsed = self._offer_soon
        self._land_what_is_in()
        self._offer_pending()
        self.pipe(self._book.unreadable.look_over, tag="looked over")

    def on_receive(self, message: Any) -> Any:
        match message:
            case CheckWait(agent, model, exempt):
                return self._book.deferral(agent, model, exempt=exempt)
            case OfferPending():
                self._offering.append(self.later())
                self._offer_pending()
                return LATER
            case _OfferAgain():
                self._timer = None
                self._offer_pending()
                return None
            case _OfferNow():
                self._offer_pending()
                return None
            case RecordWait() | ReleaseWaits() if self._back.claims(message):
                # Its acts are pending, and the handle kept beside them names this same envelope.
                self.later()
                return LATER
            case RecordWait():
                return self._record(message)
            case ReleaseWaits():
                return self._release(message)
            case AttachToWaits(agent, ref):
                self._attach(agent, ref)
                return None
            case _LookAgain():
                self.pipe(self._book.unreadable.look_over, tag="looked over")
                return None
            case _:
                raise TypeError(f"the ledger takes no {type(message).__name__}")

    # -- acts --------------------------------------------------------------------------------

    def _record(self, stated: RecordWait) -> Any:
        now = self._clock.now_ms()
        key = (stated.agent, stated.model)
        found = self._book.binding(key) if stated.own else None
        binding = found if isinstance(found, Wait) else None
        reach = self._reach(key, binding)
        acts = acts_of_statement(self._book, stated, binding, now, lambda: self._act_id(now))
        own = acts[0].record if acts and acts[0].table == "waits" else None
        if isinstance(own, Wait):
            binding, reach = own, "pending"
        receipt = WaitReceipt(
            own is not None, None if binding is None else listed(*key, binding), reach
        )
        answer = self._act(stated, acts, receipt)
        if isinstance(own, Wait):
            self._tell_agent(stated.agent, WaitBound(stated.model, own.deadline_ms, own.reason))
        if self._book.episodes.watcher is not None:
            for act in acts:
                self._book.episodes.watcher.bound(_shown_as(act), act.record)  # type: ignore[arg-type]
        return answer

    def _reach(self, key: tuple[str, str], binding: Wait | None) -> Reach:
        if binding is None:
            return "unbound"
        return "pending" if self._book.pending_of(key) else "recorded"

    def _release(self, release: ReleaseWaits) -> Any:
        agent_name = release.agent
        now, by = self._clock.now_ms(), clean_text(release.by, REQUESTER_CHARS_MAX)
        model = None if release.model == EVERY else release.model
        if agent_name.startswith(ACCOUNT):
            return self._release_account(release, model, now, by)
        stamp = Stamp(by, now, lambda: self._act_id(now))
        acts = acts_of_release(self._store, self._book, agent_name, model, stamp)
        receipt = ReleaseReceipt(
            (
                *(ReleasedWait(act.key[0], act.key[1], "pending") for act in acts),
                *self._let_go(agent_name, model, by),
            )
        )
        answer = self._act(release, acts, receipt)
        self._tell_agent(agent_name, WaitLifted(model))
        return answer

    def _release_account(self, release: ReleaseWaits, model: str | None, now: int, by: str) -> Any:
        account = release.agent.removeprefix(ACCOUNT)
        # Of walls that are over already; who waited for one that is in force goes one by one.
        let_go = self._let_go(release.agent, model, by)
        stamp = Stamp(by, now, lambda: self._act_id(now))
        acts = acts_of_account_release(self._book, release.agent, release.model, stamp)
        receipt = ReleaseReceipt(
            (*(ReleasedWait(release.agent, act.key[1], "pending") for act in acts), *let_go)
        )
        answer = self._act(release, acts, receipt)
        if self._accounts is not None:
            self._accounts.lifted(account, model)
        return answer

    def _let_go(self, name: str, model: str | None, by: str) -> list[ReleasedWait]:
        """Let go who stands in line after a wall of an account: there is no record of a place."""
        if self._accounts is None:
            return []
        gone = self._accounts.let_go(name, model)
        for wait in gone:
            self.emit(events.WaitReleased, agent=wait.agent, model=wait.model, by=by)
        # History only: who was let go has gone whether or not this is stored.
        now = self._clock.now_ms()
        lines = [Append("log", encode(line_of_place(wait, by, now))) for wait in gone]
        room = self._store.limits.ops_max
        for first in range(0, len(lines), room):
            told = Request(appends=tuple(lines[first : first + room]))
            self.ask(self._journal, told, tag="told")
        return [ReleasedWait(wait.agent, wait.model, "in_process") for wait in gone]

    def _tell_agent(self, name: str, told: WaitBound | WaitLifted) -> None:
        agent = self.kept.agents.get(name)
        if agent is not None:
            try:
                agent.tell_internal(told)
            except ActorDeadError:
                # Whose agent has ended holds no turn; the release stands.
                del self.kept.agents[name]

    def _attach(self, agent: str, ref: Any) -> None:
        self.kept.agents[agent] = ref
        self._book.forget(agent)
        hold = read_quota_hold(self._store, agent)
        if hold and self._book.overrides.quota(agent, hold.model) == hold.fingerprint:
            # It was released before the agent's last life could act on it.
            self._tell_agent(agent, WaitLifted(hold.model))

    def _act(self, message: Any, acts: list[WaitAct], receipt: Any) -> Any:
        """Bind the acts here at once, offer them, and answer once it is known how far they got."""
        if not acts:
            self._offer_pending()
            return receipt
        for act in acts:
            # What cannot be stored is refused before it binds; it would stay pending for ever, and
            # what is behind it.
            encode(act.record)
            encode(line_of(act))
        self._book.add(acts)
        self.kept.waiting.append(_Waiting(message, self.later(), tuple(acts), receipt))
        self._offer_pending()
        return LATER

    def _act_id(self, now_ms: int) -> str:
        return f"{now_ms:x}-{self.actor_urn[-12:]}-{self.incarnation}-{next(self._ids)}"

    # -- storage -----------------------------------------------------------------------------

    def _offer_pending(self) -> None:
        """Offer what is pending, unless an offer is out. Whoever waits for what cannot be offered
        now is told that it is pending."""
        if self._offer:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._book.pending:
            self._offer, requests = plan_offer(self._store, self._book)
            if self._offer:
                self.ask(self._journal, requests, tag="offer")
                return
        self._rest()

    def _rest(self) -> None:
        """Answer who waits; what could not be offered, or was not stored, is tried again later."""
        if self._book.pending and self._timer is None:
            self._timer = self.after(self._pause_s, _OfferAgain())
            self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)
        self._answer_waiting()
        for reply in self._offering:
            reply.set(None)
        self._offering.clear()

    def on_answer(self, answer: Answer) -> None:
        if answer.tag == "told":
            return
        if answer.tag == "looked over":
            if answer.unwrap():
                self.after(RECHECK_MS / 1_000, _LookAgain())
            if not self._book.unreadable.holds_everyone:
                self._book.lapse_stale()
            return
        offered, self._offer = self._offer, ()
        outcome: Outcome | None = None if answer.error is not None else answer.value[-1]
        if isinstance(outcome, Committed):
            self._pause_s = PAUSE_INITIAL_S
            self._landed(offered)
            self._offer_pending()
        elif isinstance(outcome, Refused):
            # Another process wrote a row since it was read: fold again on what is there now.
            self._offer_pending()
        else:
            # Not stored: the acts bind here and stay pending; who waits learns exactly that.
            self._rest()

    def _offer_soon(self) -> None:
        with suppress(ActorDeadError):
            self.actor_ref.tell_internal(_OfferNow())

    def _landed(self, acts: Sequence[WaitAct]) -> None:
        for act in acts:
            act.durable = True
        for act in acts:
            if act.table == "waits":
                # Whatever was released before reads again; it would lift this, once it is a row.
                self._book.unreadable.read_again((act.key[0], act.key[1]))
        for act in self._book.drop_durable():
            self._announce(act)
        self._answer_waiting(still=[each for each in self.kept.waiting if not each.is_durable])

    def _announce(self, act: WaitAct) -> None:
        (agent, model, *_), record = act.key, act.record
        if isinstance(record, Override) and record.fingerprint == LAPSED:
            return  # Nobody released anything.
        if act.table == ACCOUNT_TABLE:
            agent = ACCOUNT + agent
        if isinstance(record, Wait):
            self.emit(
                events.WaitRecorded,
                agent=agent,
                model=model,
                deadline_ms=record.deadline_ms,
                reason=record.reason,
            )
        else:
            self.emit(events.WaitReleased, agent=agent, model=model, by=record.by)

    def _answer_waiting(self, still: Sequence[_Waiting] = ()) -> None:
        """Answer everyone who waits, but for those who wait on."""
        waiting, self.kept.waiting = self.kept.waiting, list(still)
        keep = set(map(id, still))
        for each in waiting:
            if id(each) not in keep:
                self._back.forget(each.message)
                each.answer()

    def _land_what_is_in(self) -> None:
        """Look up what a predecessor offered: its acts may be in though nobody heard of it."""
        for place, act in enumerate(self._book.pending):
            with suppress(StorageError):
                row = self._store.get(act.table, act.key)
                if row is not None and row.record.act == act.record.act:
                    for earlier in self._book.pending[: place + 1]:
                        if (earlier.table, earlier.key) == (act.table, act.key):
                            earlier.durable = True
        self._landed(())


def _shown_as(act: WaitAct) -> tuple[str, str]:
    """Agent and model as they are listed; of a credential, under its name."""
    agent, model, *_ = act.key
    return (ACCOUNT + agent if act.table == ACCOUNT_TABLE else agent, model)


def _reach_of(act: WaitAct) -> Reach:
    return "recorded" if act.durable else "pending"
