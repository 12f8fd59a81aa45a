"""The ledger of provider waits: the one actor that writes them.

Invariants:
    I1  The binding deadline is the maximum; no deadline outlasts every deadline. A statement that
        binds nothing changes nothing and is not recorded.
    I2  Acts are offered to storage together and in order: all land, or none. A failed offer leaves
        them pending; they are offered again at every later act and at admission checks, at most
        every 30 s.
    I3  A receipt says `recorded` only for what is committed.

Runs in: the loop thread. Pending acts are in the book, which outlives a crash of this actor.
"""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

from abeyance.actors.core import LATER, Answer, Reply, TrioActor
from abeyance.actors.core.clock import Clock
from abeyance.storage.codec import encode
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.store import Append, Committed, Guard, Put, Refused, Request, Store
from abeyance.storage.tables.waits import LogLine, Wait, WaitReleased

from .protocol import (
    AttachToWaits,
    CheckWait,
    Reach,
    RecordWait,
    ReleasedWait,
    ReleaseReceipt,
    ReleaseWaits,
    WaitLifted,
    WaitReceipt,
)
from .wait_book import RECHECK_MS, ProviderWait, WaitAct, WaitBook, outlasts


class LedgerKept:
    """Who waits for which acts, and whom to tell of releases."""

    def __init__(self) -> None:
        self.waiting: list[tuple[tuple[WaitAct, ...], Reply, Any]] = []
        self.agents: dict[str, Any] = {}
        self.tried_ms = 0


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
        self._ids = itertools.count()

    @classmethod
    def make_kept(cls) -> LedgerKept:
        return LedgerKept()

    async def on_start(self) -> None:  # type: ignore[override]
        # What a predecessor handed over is in, or refused, before this one reads.
        await self._journal.ask(Request())
        self._offer_pending()

    def on_receive(self, message: Any) -> Any:
        match message:
            case CheckWait(agent, model):
                if self._clock.now_ms() - self.kept.tried_ms >= RECHECK_MS:
                    self._offer_pending()
                return self._book.deferral(agent, model)
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
        over = stated.deadline_ms is not None and stated.deadline_ms <= now
        try:
            binding = self._book.binding(key)
        except UnreadableRecordError:
            binding = None
        if over or (binding is not None and not outlasts(stated.deadline_ms, binding.deadline_ms)):
            self._offer_pending()
            return WaitReceipt(False, _listed(key, binding), self._reach(key, binding))
        wait = Wait(
            deadline_ms=stated.deadline_ms,
            reason=stated.reason,
            set_ms=now,
            act=self._act_id(now),
        )
        return self._act([WaitAct(key, wait)], WaitReceipt(True, _listed(key, wait), "pending"))

    def _reach(self, key: tuple[str, str], binding: Wait | None) -> Reach:
        if binding is None:
            return "unbound"
        return "pending" if any(act.key == key for act in self._book.pending) else "recorded"

    def _release(self, release: ReleaseWaits) -> Any:
        now = self._clock.now_ms()
        acts = [
            WaitAct(
                (wait.agent, wait.model),
                WaitReleased(by=release.by, at_ms=now, act=self._act_id(now)),
            )
            for wait in self._book.listing(release.agent)
            if release.model in (None, wait.model)
        ]
        receipt = ReleaseReceipt(tuple(ReleasedWait(*act.key, "pending") for act in acts))
        answer = self._act(acts, receipt)
        agent = self.kept.agents.get(release.agent)
        if agent is not None:
            agent.tell(WaitLifted(release.model))
        return answer

    def _act(self, acts: list[WaitAct], receipt: Any) -> Any:
        """Bind the acts here at once, offer them, and answer once it is known how far they got."""
        if not acts:
            self._offer_pending()
            return receipt
        self._book.pending.extend(acts)
        self.kept.waiting.append((tuple(acts), self.later(), receipt))
        self._offer_pending()
        return LATER

    def _act_id(self, now_ms: int) -> str:
        return f"{now_ms:x}-{self.actor_urn[-12:]}-{self.incarnation}-{next(self._ids)}"

    # -- storage -----------------------------------------------------------------------------

    def _offer_pending(self) -> None:
        if self._offer or not self._book.pending:
            return
        self.kept.tried_ms = self._clock.now_ms()
        self._offer = tuple(self._book.pending)
        last = {act.key: act for act in self._offer}
        request = Request(
            guards=tuple(guard for key in last for guard in self._guards(key)),
            puts=tuple(Put("waits", key, encode(act.record)) for key, act in last.items()),
            appends=tuple(Append("log", encode(_line(act))) for act in self._offer),
        )
        self.ask(self._journal, request, tag="offer")

    def _guards(self, key: tuple[str, str]) -> tuple[Guard, ...]:
        try:
            row = self._store.get("waits", key)
        except UnreadableRecordError:
            # An operator's release replaces what cannot be read; there is no counter to believe.
            return ()
        return (Guard("waits", key, 0 if row is None else row.counter),)

    def on_answer(self, answer: Answer) -> None:
        offered, self._offer = self._offer, ()
        if answer.error is not None:
            # Not stored: the acts bind here and stay pending; who waits learns exactly that.
            self._settle(offered, "pending")
        elif isinstance(answer.value, Committed):
            self._landed(offered)
            self._offer_pending()
        elif isinstance(answer.value, Refused):
            # Another process wrote the row since it was read: fold again on what is there now.
            self._landed(tuple(act for act in offered if self._is_outlasted(act)))
            self._offer_pending()

    def _is_outlasted(self, act: WaitAct) -> bool:
        stored = self._book.stored(act.key)
        return (
            isinstance(act.record, Wait)
            and stored is not None
            and not outlasts(act.record.deadline_ms, stored.deadline_ms)
        )

    def _landed(self, acts: tuple[WaitAct, ...]) -> None:
        for act in acts:
            act.durable = True
        self._book.pending[:] = [act for act in self._book.pending if not act.durable]
        self._settle(acts, "recorded")

    def _settle(self, acts: tuple[WaitAct, ...], reach: Reach) -> None:
        settled, still = set(map(id, acts)), []
        for waiting in self.kept.waiting:
            mine, reply, receipt = waiting
            if all(id(act) in settled for act in mine):
                reply.set(_reached(receipt, reach))
            else:
                still.append(waiting)
        self.kept.waiting = still


def _listed(key: tuple[str, str], wait: Wait | None) -> ProviderWait | None:
    return None if wait is None else ProviderWait(*key, wait.deadline_ms, wait.reason, wait.set_ms)


def _reached(receipt: Any, reach: Reach) -> Any:
    if isinstance(receipt, ReleaseReceipt):
        return ReleaseReceipt(tuple(wait._replace(reach=reach) for wait in receipt.released))
    return receipt._replace(reach=reach)


def _line(act: WaitAct) -> LogLine:
    agent, model = act.key
    record = act.record
    if isinstance(record, Wait):
        ends = "released" if record.deadline_ms is None else str(record.deadline_ms)
        text, event, at_ms = f"until {ends}: {record.reason}", "wait_recorded", record.set_ms
    else:
        text, event, at_ms = f"by {record.by}", "wait_released", record.at_ms
    return LogLine(event=event, agent=agent, model=model, text=text, at_ms=at_ms)
