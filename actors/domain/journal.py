"""The journal: hands requests to the store in batches, and their outcomes to whoever asked.

Invariants:
    I1  Each sender's requests reach the store in the order they were sent.
    I2  Once a chained request is refused or not stored, every request of that chain and epoch that
        is still here is answered `Refused(behind=True)`; nothing planned on it is applied.
    I3  An outcome is told only after the store reported it; a request that the store took is never
        handed over twice.
    I4  At most one batch is out. The next is sealed after the callers woken by the last have run
        once (sealing earlier halves the batches).
    I5  A request that the store does not take for one fails alone, whoever shares its batch.

Runs in: the loop thread. The batch that is out lives in the cell, so a crash of this actor loses
no outcome: the next incarnation goes on waiting for it.
"""

from __future__ import annotations

import bisect
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

import trio

from abeyance.actors.core import LATER, Reply, TrioActor
from abeyance.storage.errors import InvalidRequestError, StorageError, StoreLostError
from abeyance.storage.store import (
    Committed,
    NeedsService,
    NotStored,
    Outcome,
    Refused,
    Request,
    Store,
)

from . import events
from .errors import not_stored
from .protocol import Requests
from .redelivery import Redelivered

BATCH_REQUESTS_MAX: Final = 256
SETTLE_SLICE: Final = 32
"""Replies resumed before the loop gets a turn; keeps the stall small with thousands of senders. 64
of them made the longest of a hundred passes of the loop take 3.2 ms of processor time with 256
senders, 32 make it 2.5, at no more a message."""
OVERDUE_S: Final = 0.05
"""A commit that is out for longer is an event."""
LATENCY_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
YIELD_EVERY_S: Final = 0.005
YIELD_S: Final = 0.001
"""A saturated loop starves the writer thread of the GIL; while a commit is out and tasks are
runnable, the journal gives it up for this long in each period."""

_BEHIND: Final = Refused(behind=True)
_ALL_COMMITTED: Final = {Committed}


class _Entry:
    """What one message asked for, and who waits for it."""

    __slots__ = ("message", "outcomes", "reply", "requests", "weight")

    def __init__(self, message: Request | Requests, reply: Reply) -> None:
        self.message = message
        self.requests = message if isinstance(message, Requests) else (message,)
        self.weight = len(self.requests)
        if isinstance(message, Requests) and message.weight:
            self.weight = message.weight
        self.reply = reply
        self.outcomes: Sequence[Outcome] = ()


class CommitFigures:
    """How many requests were handed over, and how long each batch took to its outcomes."""

    def __init__(self) -> None:
        self.requests = 0
        self.counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.sum_s = 0.0

    def cumulated(self) -> tuple[tuple[float, int], ...]:
        """How many took at most so long, by the bound."""
        return tuple(
            zip((*LATENCY_BOUNDS_S, math.inf), itertools.accumulate(self.counts), strict=True)
        )

    def add(self, took_s: float) -> None:
        self.counts[bisect.bisect_left(LATENCY_BOUNDS_S, took_s)] += 1
        self.sum_s += took_s


class JournalKept:
    """What outlives an incarnation: the queue, the batch that is out, and refused chains."""

    def __init__(self) -> None:
        self.queue: deque[_Entry] = deque()
        self.out: list[_Entry] | None = None
        self.outcomes: Sequence[Outcome] | None = None
        self.settling: deque[_Entry] = deque()
        self.service: str | None = None
        self.arrived = trio.Event()
        self.answered = trio.Event()
        self.refused: dict[str, int] = {}
        self.singly = 0
        """So many entries at the queue's head go one a batch: one of them is no request."""
        self.lost: Exception | None = None
        self.out_since_s = 0.0  # When the batch that is out was handed over, by trio's clock.
        self.is_overdue = False
        self.figures = CommitFigures()
        self.batches = 0
        self.requests = 0


class Journal(TrioActor):
    """Asked a `Request`, it answers `Committed` or `Refused`, or raises `NotStoredError`; asked
    `Requests`, it answers an outcome each."""

    role: ClassVar[str] = "journal"
    mailbox_capacity: ClassVar[int] = 1_000_000
    max_deliveries: ClassVar[int] = 5
    kept: JournalKept

    def __init__(
        self,
        store: Store,
        on_lost: Callable[[Exception], None],
        figures: CommitFigures | None = None,
    ) -> None:
        super().__init__()
        if figures is not None:
            self.kept.figures = figures
        self._store = store
        self._on_lost = on_lost

    @classmethod
    def make_kept(cls) -> JournalKept:
        return JournalKept()

    def on_start(self) -> None:
        kept = self.kept
        entries = itertools.chain(kept.settling, kept.out or (), kept.queue)
        self._back = Redelivered((entry.message, entry.reply) for entry in entries)
        self.spawn(self._pump, name="journal pump")

    def on_receive(self, message: Any) -> Any:
        kept = self.kept
        if isinstance(message, Requests):
            if len(message) > BATCH_REQUESTS_MAX:
                raise ValueError(
                    f"{len(message)} requests in one message; nothing was handed over; send at "
                    f"most {BATCH_REQUESTS_MAX}"
                )
        elif not isinstance(message, Request):
            raise TypeError(f"the journal takes no {type(message).__name__}")
        reply = self.later()
        if self._back.claims(message):
            # The entry is still queued or out, and the handle it holds names this same envelope.
            return LATER
        kept.queue.append(_Entry(message, reply))
        if not kept.arrived.is_set():
            kept.arrived.set()
        return LATER

    async def _pump(self) -> None:
        kept = self.kept
        while True:
            await self._settle()
            if kept.lost is not None:
                lost, kept.lost = kept.lost, None
                self._on_lost(lost)
            if kept.out is None:
                await kept.arrived.wait()
                # Callers that are runnable now add to this batch.
                await trio.lowlevel.checkpoint()
                self._seal()
                if kept.out is None:
                    continue
            self._learn(await self._outcomes())

    def _seal(self) -> None:
        """Hand the next batch over, if there is one."""
        kept = self.kept
        batch, size = self._take()
        if not kept.queue:
            kept.arrived = trio.Event()
        if not batch:
            return
        kept.answered = trio.Event()
        token = trio.lowlevel.current_trio_token()

        def done(result: Sequence[Outcome] | NeedsService) -> None:
            try:
                token.run_sync_soon(_note, kept, result)
            except trio.RunFinishedError:
                # Nobody is left to be answered; the commit itself stands on its own.
                return

        kept.out = batch
        kept.out_since_s = trio.current_time()
        kept.is_overdue = False
        try:
            self._store.submit([request for entry in batch for request in entry.requests], done)
        except InvalidRequestError as error:
            self._part(batch, size, error)
        except StorageError as error:
            # Nothing of the batch was taken: the store is closed, or lost.
            kept.outcomes = [NotStored(error)] * size
            kept.answered.set()
        else:
            for entry in batch:
                if isinstance(entry.message, Requests):
                    entry.message.taken = True
            kept.batches += 1
            kept.requests += size
            kept.figures.requests += size

    def _take(self) -> tuple[list[_Entry], int]:
        """Take entries from the queue's head, as many as one batch holds."""
        kept, batch, size, weight = self.kept, list[_Entry](), 0, 0
        while kept.queue:
            entry = kept.queue[0]
            if batch and weight + entry.weight > BATCH_REQUESTS_MAX:
                break
            kept.queue.popleft()
            alone = kept.singly > 0
            kept.singly -= alone
            refused = kept.refused and all(map(self._is_behind, entry.requests))
            if refused or not entry.requests:
                entry.outcomes = [_BEHIND] * len(entry.requests)
                self._answer(entry)
                continue
            batch.append(entry)
            size += len(entry.requests)
            weight += entry.weight
            if alone:
                break
        return batch, size

    def _part(self, batch: list[_Entry], size: int, error: StorageError) -> None:
        """One of these is no request, and the store took none: send each alone, in order."""
        kept = self.kept
        if len(batch) == 1:
            kept.outcomes = [NotStored(error)] * size
            kept.answered.set()
            return
        kept.out = None
        kept.queue.extendleft(reversed(batch))
        kept.singly = len(batch)
        kept.arrived.set()

    async def _outcomes(self) -> Sequence[Outcome]:
        kept = self.kept
        while True:
            while not kept.answered.is_set():
                with trio.move_on_after(YIELD_EVERY_S):
                    await kept.answered.wait()
                self._look_at_overdue()
                if not kept.answered.is_set() and _loop_is_busy():
                    time.sleep(YIELD_S)  # noqa: ASYNC251 - gives up the GIL, on purpose and bounded.
            if kept.outcomes is not None:
                kept.figures.add(trio.current_time() - kept.out_since_s)
                return kept.outcomes
            kept.answered = trio.Event()
            kept.service = None
            self._store.service()

    def _look_at_overdue(self) -> None:
        kept = self.kept
        out_s = trio.current_time() - kept.out_since_s
        if out_s > OVERDUE_S and not kept.is_overdue:
            kept.is_overdue = True
            out = sum(len(entry.requests) for entry in kept.out or ())
            self.emit(events.CommitOverdue, requests=out, outstanding_ms=round(out_s * 1_000))

    def _learn(self, outcomes: Sequence[Outcome]) -> None:
        """Take the outcomes in, without an await, so that a crash finds them in the cell."""
        kept = self.kept
        assert kept.out is not None
        # Refusals are noted for the whole batch before anybody is woken, so that what a woken
        # sender's siblings sent meanwhile is judged against them.
        at = 0
        for entry in kept.out:
            entry.outcomes = outcomes[at : at + len(entry.requests)]
            at += len(entry.requests)
            if set(map(type, entry.outcomes)) == _ALL_COMMITTED:
                continue
            for request, outcome in zip(entry.requests, entry.outcomes, strict=True):
                if isinstance(outcome, Committed):
                    continue
                if isinstance(outcome, NotStored) and isinstance(outcome.error, StoreLostError):
                    kept.lost = outcome.error
                if request.chain is not None:
                    sender, epoch = request.chain.sender, request.chain.epoch
                    kept.refused[sender] = max(kept.refused.get(sender, -1), epoch)
        assert at == len(outcomes)
        kept.settling.extend(kept.out)
        kept.out = kept.outcomes = None

    async def _settle(self) -> None:
        settling = self.kept.settling
        settled = 0
        while settling:
            weight = settling[0].weight
            if settled and settled + weight > SETTLE_SLICE:
                # Before the entry that would go past it: two nearly full ones are two slices.
                settled = 0
                await trio.lowlevel.checkpoint()
            self._answer(settling.popleft())
            settled += weight

    def _is_behind(self, request: Request) -> bool:
        chain = request.chain
        return chain is not None and chain.epoch <= self.kept.refused.get(chain.sender, -1)

    def _answer(self, entry: _Entry) -> None:
        self._back.forget(entry.message)
        if isinstance(entry.message, Requests):
            entry.reply.set(tuple(entry.outcomes))
            return
        outcome = entry.outcomes[0]
        if isinstance(outcome, NotStored):
            entry.reply.set_exception(not_stored(outcome))
        else:
            entry.reply.set(outcome)


def _note(kept: JournalKept, result: Sequence[Outcome] | NeedsService) -> None:
    if isinstance(result, NeedsService):
        kept.service = result.reason
    else:
        kept.outcomes = result
    kept.answered.set()


def _loop_is_busy() -> bool:
    return trio.lowlevel.current_statistics().tasks_runnable > 0
