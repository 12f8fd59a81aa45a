"""The ledger of provider waits: the one actor that writes them.

Invariants:
    I1  The binding deadline is the maximum; no deadline outlasts every deadline. A statement that
        binds nothing changes nothing and is not recorded.
    I2  Acts are offered to storage in order, as many at a time as one request holds: of those, all
        land or none. A failed offer leaves them pending; they are offered again at every later act
        and by a timer, every 30 s.
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
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.store import (
    Append,
    Committed,
    Delete,
    Guard,
    Outcome,
    Put,
    Refused,
    Request,
    Store,
)
from abeyance.storage.tables.fields import INSTANT_MS_MAX, REASON_CHARS_MAX
from abeyance.storage.tables.waits import LogLine, Wait, WaitReleased

from . import events
from .errors import NotStoredError
from .ingress import clean_text
from .protocol import (
    AttachToWaits,
    CheckWait,
    Reach,
    RecordWait,
    ReleasedWait,
    ReleaseReceipt,
    ReleaseWaits,
    Requests,
    WaitLifted,
    WaitReceipt,
)
from .redelivery import Redelivered
from .wait_book import RECHECK_MS, ProviderWait, WaitAct, WaitBook, apply, outlasts

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
            released = zip(receipt.released, self.acts, strict=True)
            lifted = tuple(wait._replace(reach=_reach_of(act)) for wait, act in released)
            self.reply.set(ReleaseReceipt(lifted))
        else:
            self.reply.set(receipt._replace(reach=_reach_of(self.acts[0])))


class _Fold:
    """One key's row as stored, and what it becomes."""

    def __init__(self, store: Store, key: tuple[str, str]) -> None:
        self.key = key
        self.counter = 0
        self.stored: Wait | WaitReleased | None = None
        self.is_readable = True
        try:
            row = store.get("waits", key)
        except UnreadableRecordError:
            self.is_readable = False
        else:
            if row is not None:
                self.counter, self.stored = row.counter, row.record
        self.record = self.stored

    def takes(self, act: WaitAct) -> bool:
        """Apply an act, unless nobody can tell what it would be applied to."""
        if not self.is_readable and self.record is None and isinstance(act.record, Wait):
            return False
        self.record = apply(self.record, act.record)
        return True


class LedgerKept:
    """Who waits for which acts, and whom to tell of releases."""

    def __init__(self) -> None:
        self.waiting: list[_Waiting] = []
        self.agents: dict[str, Any] = {}


class _OfferAgain(NamedTuple):
    """To itself: offer what is still pending."""


class Ledger(TrioActor):
    """Records statements and releases; see the module's invariants."""

    role: ClassVar[str] = "ledger"
    max_deliveries: ClassVar[int] = 5
    kept: LedgerKept

    def __init__(self, book: WaitBook, store: Store, journal: Any, clock: Clock) -> None:
        super().__init__()
        self._book = book
        self._store = store
        self._journal = journal
        self._clock = clock
        self._offer: tuple[WaitAct, ...] = ()
        self._timer: Timer | None = None
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
        self._land_what_is_in()
        self._offer_pending()

    def on_receive(self, message: Any) -> Any:
        match message:
            case CheckWait(agent, model):
                return self._book.deferral(agent, model)
            case _OfferAgain():
                self._timer = None
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
                self.kept.agents[agent] = ref
                return None
            case _:
                raise TypeError(f"the ledger takes no {type(message).__name__}")

    # -- acts --------------------------------------------------------------------------------

    def _record(self, stated: RecordWait) -> Any:
        now = self._clock.now_ms()
        key = (stated.agent, stated.model)
        deadline_ms = stated.deadline_ms
        if deadline_ms is not None and deadline_ms > INSTANT_MS_MAX:
            deadline_ms = None
        over = deadline_ms is not None and deadline_ms <= now
        try:
            binding = self._book.binding(key)
        except UnreadableRecordError:
            binding = None
        if over or (binding is not None and not outlasts(deadline_ms, binding.deadline_ms)):
            self._offer_pending()
            return WaitReceipt(False, _listed(key, binding), self._reach(key, binding))
        wait = Wait(
            deadline_ms=deadline_ms,
            reason=clean_text(stated.reason, REASON_CHARS_MAX),
            set_ms=now,
            act=self._act_id(now),
            hold=None if binding is None else binding.hold or binding.act,
            since_ms=None if binding is None else _since(binding),
        )
        receipt = WaitReceipt(True, _listed(key, wait), "pending")
        answer = self._act(stated, [WaitAct(key, wait)], receipt)
        if self._book.episodes.watcher is not None:
            self._book.episodes.watcher.bound(key, wait)
        return answer

    def _reach(self, key: tuple[str, str], binding: Wait | None) -> Reach:
        if binding is None:
            return "unbound"
        return "pending" if self._book.pending_of(key) else "recorded"

    def _release(self, release: ReleaseWaits) -> Any:
        now, by = self._clock.now_ms(), clean_text(release.by, REQUESTER_CHARS_MAX)
        acts = [
            WaitAct((wait.agent, wait.model), WaitReleased(by=by, at_ms=now, act=self._act_id(now)))
            for wait in self._book.listing(release.agent)
            # A row whose key cannot be read is listed and has no key to release it by.
            if "*" not in (wait.agent, wait.model) and release.model in (None, wait.model)
        ]
        receipt = ReleaseReceipt(tuple(ReleasedWait(*act.key, "pending") for act in acts))
        answer = self._act(release, acts, receipt)
        agent = self.kept.agents.get(release.agent)
        if agent is not None:
            try:
                agent.tell_internal(WaitLifted(release.model))
            except ActorDeadError:
                # Whose agent has ended holds no turn; the release stands.
                del self.kept.agents[release.agent]
        return answer

    def _act(self, message: Any, acts: list[WaitAct], receipt: Any) -> Any:
        """Bind the acts here at once, offer them, and answer once it is known how far they got."""
        if not acts:
            self._offer_pending()
            return receipt
        for act in acts:
            # What cannot be stored is refused before it binds; it would stay pending for ever, and
            # what is behind it.
            encode(act.record)
            encode(_line(act))
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
            self._offer, requests = self._planned()
            if self._offer:
                self.ask(self._journal, requests, tag="offer")
                return
        self._rest()

    def _rest(self) -> None:
        """Answer who waits; what could not be offered, or was not stored, is tried again later."""
        if self._book.pending and self._timer is None:
            self._timer = self.after(RECHECK_MS / 1_000, _OfferAgain())
        self._answer_waiting()

    def _planned(self) -> tuple[tuple[WaitAct, ...], Requests]:
        """The next acts that one request holds, on the rows as they are stored now."""
        room = self._store.limits.ops_max
        folds: dict[tuple[str, str], _Fold] = {}
        taken: list[WaitAct] = []
        logged: list[WaitAct] = []
        put_off: dict[tuple[str, str], list[WaitAct]] = {}
        for act in self._book.pending:
            # A guard and a put a key, a log line an act.
            if 2 * (len(folds) + (act.key not in folds)) + len(logged) + 1 > room:
                break
            fold = folds.get(act.key) or _Fold(self._store, act.key)
            if not fold.takes(act):
                put_off.setdefault(act.key, []).append(act)
                continue
            folds[act.key] = fold
            logged.append(act)
            # A release of what cannot be read ends the statements put off before it, too.
            taken += [*put_off.pop(act.key, ()), act]
        requests = []
        unreadable = [fold.key for fold in folds.values() if not fold.is_readable]
        if unreadable:
            # Nothing can be put over a row that cannot be read, and it has no counter to guard.
            requests.append(Request(deletes=tuple(Delete("waits", key) for key in unreadable)))
        changed = [fold for fold in folds.values() if fold.record is not fold.stored]
        requests.append(
            Request(
                guards=tuple(Guard("waits", fold.key, fold.counter) for fold in folds.values()),
                puts=tuple(
                    Put("waits", fold.key, encode(fold.record))
                    for fold in changed
                    if fold.record is not None
                ),
                appends=tuple(Append("log", encode(_line(act))) for act in logged),
            )
        )
        return tuple(taken), Requests(requests)

    def on_answer(self, answer: Answer) -> None:
        offered, self._offer = self._offer, ()
        outcome: Outcome | None = None if answer.error is not None else answer.value[-1]
        if isinstance(outcome, Committed):
            self._landed(offered)
            self._offer_pending()
        elif isinstance(outcome, Refused):
            # Another process wrote a row since it was read: fold again on what is there now.
            self._offer_pending()
        else:
            # Not stored: the acts bind here and stay pending; who waits learns exactly that.
            self._rest()

    def _landed(self, acts: Sequence[WaitAct]) -> None:
        for act in acts:
            act.durable = True
        for act in self._book.drop_durable():
            self._announce(act)
        self._answer_waiting(still=[each for each in self.kept.waiting if not each.is_durable])

    def _announce(self, act: WaitAct) -> None:
        (agent, model), record = act.key, act.record
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
            with suppress(UnreadableRecordError):
                row = self._store.get("waits", act.key)
                if row is not None and row.record.act == act.record.act:
                    for earlier in self._book.pending[: place + 1]:
                        earlier.durable = earlier.durable or earlier.key == act.key
        self._landed(())


def _since(wait: Wait) -> int:
    return wait.set_ms if wait.since_ms is None else wait.since_ms


def _listed(key: tuple[str, str], wait: Wait | None) -> ProviderWait | None:
    return None if wait is None else ProviderWait(*key, wait.deadline_ms, wait.reason, wait.set_ms)


def _reach_of(act: WaitAct) -> Reach:
    return "recorded" if act.durable else "pending"


def _line(act: WaitAct) -> LogLine:
    agent, model = act.key
    record = act.record
    if isinstance(record, Wait):
        ends = "released" if record.deadline_ms is None else str(record.deadline_ms)
        text, event, at_ms = f"until {ends}: {record.reason}", "wait_recorded", record.set_ms
    else:
        text, event, at_ms = f"by {record.by}", "wait_released", record.at_ms
    return LogLine(event=event, agent=agent, model=model, text=text, at_ms=at_ms)
