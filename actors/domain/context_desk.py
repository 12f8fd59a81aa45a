"""What a strategy compacts with: reads of its slot, its own calls, and the commit of a summary.

Invariants:
    I1  A call is asked for while no turn is at work, and is abandoned when a turn has waited for it
        for `COMPACTION_YIELD_MS`; so a provider that never answers holds no turn for longer.
    I2  A summary is kept in one commit, which also drops those that nobody needs any more. It
        guards that this process owns the slot and that the agent has not ended.
    I3  What stands for some rows is never changed: a turn may be compiled behind it.

Runs in: the strategy's task, on the loop thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

import trio
from trio_util import AsyncBool

from abeyance.actors.core.clock import Clock
from abeyance.actors.providers.port import ModelReply, ModelRequest, ProviderError
from abeyance.storage.codec import encode
from abeyance.storage.crashpoints import crashpoint, declare
from abeyance.storage.errors import InvalidRecordError, UnreadableRecordError
from abeyance.storage.store import Delete, Guard, NotStored, Put, Refused, Request, Store
from abeyance.storage.tables.contexts import CONTEXT_CHARS_MAX

from .auxiliary import Auxiliary
from .context import Summary
from .context_rows import (
    SUMMARIES_KEPT,
    Unreadable,
    check_cover,
    coverable,
    first_place,
    is_outdated,
    kept_places,
    open_context,
    read_summaries,
    record_of,
    revision_of,
    summary_of,
)
from .errors import (
    AgentEndedError,
    CallDeferredError,
    CompactionAbandonedError,
    InvalidInputError,
    OwnershipLostError,
    not_stored,
)
from .limits import COMPACTION_CALL_MS_MAX, COMPACTION_YIELD_MS
from .protocol import Requests
from .slot_edit_book import read_recast
from .slot_rows import read_owner
from .transcript import TranscriptMessage, read_transcript

STRATEGY_CHARS_MAX: Final = 128

declare("context.before_keep", "a summary was made and is not stored")
declare("context.after_keep", "a summary is stored and no turn was compiled behind it yet")


class AgentContextDesk:
    """The desk of one call of `compact`. See `ContextDesk` for what a strategy sees of it."""

    def __init__(
        self,
        *,
        agent: str,
        slot: str,
        model: str,
        size: int | None,
        too_long: bool,
        strategy: str,
        nonce: str,
        store: Store,
        journal: Any,
        clock: Clock,
        auxiliary: Auxiliary,
        is_free: AsyncBool,
        unreadable: Unreadable,
        kept: Callable[[Summary], None],
        deferred: Callable[[CallDeferredError], None],
    ) -> None:
        self.agent = agent
        self.slot = slot
        self.model = model
        self.size = size
        self.too_long = too_long
        self.failed: tuple[str, ProviderError] | None = None
        """The model that was asked last, and how that failed."""
        self._strategy = strategy[:STRATEGY_CHARS_MAX]
        self._nonce = nonce
        self._store = store
        self._journal = journal
        self._clock = clock
        self._auxiliary = auxiliary
        self._is_free = is_free
        self._unreadable = unreadable
        self._kept = kept
        self._deferred = deferred
        self._out: set[trio.CancelScope] = set()
        self._revision = revision_of(read_recast(store, slot))
        """Edits behind this one may be of rows that the strategy has read already."""

    def summaries(self) -> Iterator[Summary]:
        return read_summaries(self._store, self.slot, self.agent, self._unreadable)

    async def rows(self, *, after: int = 0) -> AsyncIterator[TranscriptMessage]:
        async for message in read_transcript(self._store, self.slot, after=after):
            yield message

    def coverable(self) -> int:
        return coverable(self._store, self.slot)

    async def call(self, request: ModelRequest) -> ModelReply:
        await self._is_free.wait_value(True)
        self.failed = None
        with trio.move_on_after(COMPACTION_CALL_MS_MAX / 1_000) as scope:
            self._out.add(scope)
            if not self._is_free.value:
                self.hurry()  # A turn was faster.
            try:
                return await self._auxiliary.call(request)
            except CallDeferredError as error:
                self._deferred(error)
                raise
            except ProviderError as error:
                self.failed = (request.model, error)
                raise
            finally:
                self._out.discard(scope)
        raise CompactionAbandonedError(
            f"a call of the context strategy of agent {self.agent!r} was not answered in time; it "
            "was abandoned and nothing was kept; it is made again later",
            agent=self.agent,
        )

    def hurry(self) -> None:
        """A turn is at work and waits for what is out."""
        deadline = trio.current_time() + COMPACTION_YIELD_MS / 1_000
        for scope in self._out:
            scope.deadline = min(scope.deadline, deadline)

    async def keep(self, text: str, *, last: int) -> Summary:
        if not isinstance(text, str) or len(text) > CONTEXT_CHARS_MAX:
            raise InvalidInputError("text", f"must be at most {CONTEXT_CHARS_MAX} characters")
        check_cover(self._store, self.slot, last)
        await trio.lowlevel.checkpoint()
        crashpoint("context.before_keep")
        while True:
            known = self._known(last)
            if isinstance(known, Summary):
                return known
            first = min(first_place(self._store, self.slot), last)
            summary = Summary(last, first, text, self._strategy, self._clock.now_ms())
            self._check_unedited(last)
            requests = self._plan(summary, in_the_way=known)
            outcome = (await self._journal.ask(Requests(requests)))[-1]
            if isinstance(outcome, NotStored):
                raise not_stored(outcome)
            if not isinstance(outcome, Refused):
                break
            # A turn, an end or another compaction was faster; what it wrote is read again.
        crashpoint("context.after_keep")
        self._kept(summary)
        return summary

    def _known(self, last: int) -> Summary | bool:
        """What stands for exactly these rows already (I3); True where something is in its place
        that stands for nothing, for it is damaged, or older than an edit of them."""
        try:
            row = self._store.get("contexts", (self.slot, self.agent, last))
        except UnreadableRecordError:
            if open_context(self._store, self.agent) == last:
                raise
            return True
        if row is None:
            return False
        is_old = is_outdated(read_recast(self._store, self.slot), last, row.record.revision)
        return is_old or summary_of(last, row.record)

    def _check_unedited(self, last: int) -> None:
        if is_outdated(read_recast(self._store, self.slot), last, self._revision):
            raise CompactionAbandonedError(
                f"a message that the context strategy of agent {self.agent!r} had read was edited "
                "meanwhile; its summary was not kept, and is made again later",
                agent=self.agent,
            )

    def _plan(self, summary: Summary, *, in_the_way: bool) -> list[Request]:
        last = summary.last
        key = (self.slot, self.agent, last)
        try:
            value = encode(record_of(summary, self._revision))
        except InvalidRecordError as error:
            raise InvalidInputError("text", f"cannot be stored ({error})") from error
        requests = []
        if in_the_way:
            # Nothing can be put over a row that cannot be read.
            requests.append(Request(deletes=(Delete("contexts", key),)))
        others = kept_places(self._store, self.slot, self.agent)
        needed = {last, open_context(self._store, self.agent), *others[: SUMMARIES_KEPT - 1]}
        drops = tuple(
            Delete("contexts", (self.slot, self.agent, place))
            for place in others
            if place not in needed
        )
        guards = (*self._guards(), Guard("contexts", key, 0))
        requests.append(Request(guards, (Put("contexts", key, value),), drops))
        return requests

    def _guards(self) -> tuple[Guard, Guard]:
        owner, fence = read_owner(self._store, self.slot)
        if owner is None or owner.nonce != self._nonce:
            raise OwnershipLostError(
                f"the slot {self.slot!r} is owned by another process now; nothing was kept; stop "
                "this agent here",
                slot=self.slot,
            )
        row = self._store.get("agents", (self.agent,))
        if row is None or row.record.ended_ms is not None:
            raise AgentEndedError(
                f"agent {self.agent!r} has ended; nothing was kept", agent=self.agent
            )
        return (
            Guard("owners", ("slot", self.slot), fence),
            Guard("agents", (self.agent,), row.counter),
        )
