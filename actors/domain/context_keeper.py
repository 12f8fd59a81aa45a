"""The keeper of an agent's context: runs its strategy beside the turns, and never in their way.

Invariants:
    I1  At most one `compact` of an agent runs. It is called when a turn is over, and again when
        what deferred a call of it has ended; a failure is followed by a growing pause.
    I2  A strategy is told every event, one after the other, in order; what it raises, or takes too
        long for, is logged and keeps nobody.
    I3  Nobody waits for the keeper: it is told, and asks downwards.

Runs in: the loop thread. What is to be told, and what compaction waits for, is in the cell.
"""

from __future__ import annotations

import functools
import inspect
from collections import deque
from contextlib import suppress
from typing import Any, ClassVar, Final, NamedTuple

import trio
from trio_util import AsyncBool, AsyncValue

from abeyance.actors.core import Answer, Timer, TrioActor
from abeyance.actors.core.asks import in_role
from abeyance.actors.core.clock import Clock
from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.core.logs import Log
from abeyance.storage.store import Store

from . import events
from .auxiliary import Auxiliary
from .context import (
    CallDeferred,
    ContextEvent,
    ContextStrategy,
    Summary,
    WaitRecorded,
    WaitReleased,
)
from .context_desk import AgentContextDesk
from .context_post import ContextPost
from .errors import AdmissionClosedError, AgentEndedError, CallDeferredError, OwnershipLostError
from .foreign import failure_of, told
from .ingress import clean_text
from .limits import RECHECK_MS
from .protocol import Due, ForgetInstant, Peek, Shrink, Shrunk, TurnBegan, TurnOver, WatchInstant
from .wait_book import Deferral

EVENT_S_MAX: Final = 10.0
"""How long a strategy may take to be told of one event."""
COMPACTION_S_MAX: Final = 3_600.0
"""How long one call of `compact` may take, whatever it waits for."""
EVENTS_MAX: Final = 1_000
"""Events that wait for a strategy; the oldest beyond are dropped, with a line in the log."""
PAUSE_INITIAL_S: Final = 60.0
PAUSE_MAX_S: Final = 3_600.0
TOLD_CHARS_MAX: Final = 500

_logger = Log(__name__)


class ContextSeams(NamedTuple):
    """What a keeper works with."""

    agent: str
    slot: str
    nonce: str
    strategy: ContextStrategy
    store: Store
    journal: Any
    gate: Any
    alarm: Any
    clock: Clock
    auxiliary: Auxiliary
    post: ContextPost
    activity: Any
    """What the agent is doing (`AgentView`)."""


class ContextKept:
    """Survives a crash of the keeper."""

    def __init__(self) -> None:
        self.events: deque[ContextEvent] = deque()
        self.waiting: AsyncValue[int] = AsyncValue(0)
        self.deferral: Deferral | None = None
        """What held the last call that was asked for."""
        self.wanted = False
        """Something may have to be compacted."""
        self.size: int | None = None
        self.is_free = AsyncBool(value=True)
        """No turn is at work."""
        self.shrink: Any = None
        """Who is to be told when it was compacted for a turn that waits: its agent."""
        self.failures = 0
        self.not_before = 0.0
        """In trio's time: when it may be tried again behind a failure."""


class _LookAgain(NamedTuple):
    """To itself: whether the deferral still stands is asked on a cadence."""


class ContextKeeper(TrioActor):
    """Runs one agent's strategy. See the module's invariants."""

    role: ClassVar[str] = "context"
    max_deliveries: ClassVar[int] = 3
    kept: ContextKept

    def __init__(self, seams: ContextSeams) -> None:
        super().__init__()
        self._seams = seams
        self._name = type(seams.strategy).__name__
        self._desk: AgentContextDesk | None = None
        self._cadence: Timer | None = None
        self._looking = False
        """The gate was asked; until it answers nothing is compacted."""

    @classmethod
    def make_kept(cls) -> ContextKept:
        return ContextKept()

    def on_start(self) -> None:
        self.spawn(self._tell_events, name=f"{self._seams.agent}: tell a strategy")
        if self.kept.deferral is not None:
            self._look()
        elif self.incarnation > 1:
            # The last one may have died of what it was compacting, or beside it.
            self._want()

    def on_receive(self, message: Any) -> None:
        match message:
            case TurnBegan():
                self.kept.is_free.value = False
                if self._desk is not None:
                    self._desk.hurry()
            case TurnOver(size):
                self.kept.is_free.value = True
                if size is not None:
                    self.kept.size = size
                self._want()
            case Shrink(ref):
                self._shrink(ref)
            case WaitRecorded() | CallDeferred():
                self._add(message)
            case WaitReleased(_, model):
                self._add(message)
                deferral = self.kept.deferral
                if deferral is not None and model in (None, deferral.model):
                    self._look()
            case Due() | _LookAgain():
                if self.kept.deferral is not None:
                    self._look()
                else:
                    self._go()
            case _:
                raise TypeError(f"the keeper of a context takes no {type(message).__name__}")

    # -- compaction --------------------------------------------------------------------------

    def _shrink(self, ref: Any) -> None:
        """A turn waits: no pause behind a failure keeps it, and what it is told is the outcome."""
        first, self.kept.shrink = self.kept.shrink is None, ref
        if first:
            self.kept.not_before = 0.0
            self._want()

    def _shrunk(self, desk: AgentContextDesk) -> None:
        """Tell the agent whose turn waits, once its strategy was called for it."""
        ref = self.kept.shrink
        if ref is not None and desk.too_long:
            self.kept.shrink = None
            with suppress(AbeyanceError):  # It has ended, and its turn with it.
                ref.tell(Shrunk())

    def _want(self) -> None:
        self.kept.wanted = True
        self._go()

    def _go(self) -> None:
        """Have the strategy look whether there is something to compact, unless it must wait."""
        kept = self.kept
        is_paused = trio.current_time() < kept.not_before
        is_busy = self._desk is not None or self._looking or kept.deferral is not None
        # Of a host that is quiesced, or stops, nothing is begun; the next turn's end asks again.
        ends = self._seams.activity.activity in ("quiesced", "stopping", "lost")
        if not kept.wanted or is_busy or is_paused or ends:
            return
        kept.wanted = False
        seams = self._seams
        self._desk = AgentContextDesk(
            agent=seams.agent,
            slot=seams.slot,
            model=seams.auxiliary.model,
            size=kept.size,
            too_long=kept.shrink is not None,
            strategy=self._name,
            nonce=seams.nonce,
            store=seams.store,
            journal=seams.journal,
            clock=seams.clock,
            auxiliary=seams.auxiliary,
            is_free=kept.is_free,
            unreadable=seams.post.unreadable,
            kept=self._summarised,
            deferred=self._deferred,
        )
        self.pipe(self._compact, self._desk, tag=self._compacted)

    async def _compact(self, desk: AgentContextDesk) -> BaseException | None:
        """Run the strategy; return what it raised."""
        try:
            with trio.fail_after(COMPACTION_S_MAX), in_role(None):
                done: Any = self._seams.strategy.compact(desk)
                if inspect.isawaitable(done):
                    await done
        except BaseException as error:  # noqa: BLE001 - anybody may have written the strategy.
            return failure_of(error)
        return None

    def on_answer(self, answer: Answer) -> None:
        answer.tag(answer)

    def _compacted(self, answer: Answer) -> None:
        error: BaseException | None = answer.unwrap()
        desk, self._desk = self._desk, None
        assert desk is not None
        kept = self.kept
        if kept.deferral is not None:
            kept.wanted = True
            self._watch()
        elif error is None:
            kept.failures, kept.not_before = 0, 0.0
            self._shrunk(desk)
        elif desk.failed is not None:
            # What the call stated may hold the model: then it is tried again when that is over.
            kept.wanted = True
            self._shrunk(desk)
            self._peek(desk.failed[0], error)
            return
        elif not isinstance(error, AdmissionClosedError | AgentEndedError | OwnershipLostError):
            self._shrunk(desk)
            self._failed(error)
        else:
            self._shrunk(desk)
        self._go()

    def _failed(self, error: BaseException) -> None:
        kept = self.kept
        kept.wanted = True
        kept.failures += 1
        pause_s = min(PAUSE_INITIAL_S * 2 ** min(kept.failures - 1, 10), PAUSE_MAX_S)
        # A turn that waits for its own compaction does not wait for another's pause.
        kept.not_before = trio.current_time() + pause_s if kept.shrink is None else 0.0
        _logger.warning(
            "context strategy %s of agent %r failed: %s; the slot stays as it is, and the strategy "
            "is asked again at the end of a turn, in %s s at the soonest",
            self._name,
            self._seams.agent,
            clean_text(told(error), TOLD_CHARS_MAX),
            f"{pause_s:g}",
            agent=self._seams.agent,
        )

    def _summarised(self, summary: Summary) -> None:
        self.emit(
            events.ContextKept,
            agent=self._seams.agent,
            first=summary.first,
            last=summary.last,
            size=len(summary.text),
        )

    # -- what defers it ----------------------------------------------------------------------

    def _deferred(self, error: CallDeferredError) -> None:
        reason = error.said
        self.kept.deferral = Deferral(
            error.agent,
            error.model,
            error.deadline_ms,
            reason,
            error.cause,  # type: ignore[arg-type]
        )
        self._add(CallDeferred(error.agent, error.model, error.cause, error.deadline_ms, reason))

    def _watch(self) -> None:
        """Look again when the wait ends, and on a cadence: it may heal, or its clock be turned."""
        deferral, key = self.kept.deferral, f"context:{self._seams.agent}"
        if deferral is not None and deferral.deadline_ms is not None:
            self._seams.alarm.tell(WatchInstant(key, deferral.deadline_ms, self.actor_ref))
        else:
            self._seams.alarm.tell(ForgetInstant(key))
        if self._cadence is not None:
            self._cadence.cancel()
        self._cadence = self.after(RECHECK_MS / 1_000, _LookAgain())

    def _look(self) -> None:
        if self.kept.deferral is not None and self._desk is None:
            self._peek(self.kept.deferral.model)

    def _peek(self, model: str, failed: BaseException | None = None) -> None:
        if not self._looking:
            self._looking = True
            then = functools.partial(self._looked, failed)
            self.ask(self._seams.gate, Peek(model, "auxiliary"), tag=then)

    def _looked(self, failed: BaseException | None, answer: Answer) -> None:
        self._looking = False
        if answer.error is not None:
            return  # The gate has ended, and its agent with it.
        kept, still = self.kept, answer.value
        if still is not None:
            kept.deferral = still
            self._watch()
        elif failed is not None:
            self._failed(failed)
            self._go()
        elif kept.deferral is not None:
            kept.deferral, kept.wanted = None, True
            if self._turn_comes_first():
                # It asks for compaction at its end. Should it not come, this is looked at again.
                self._cadence = self.after(RECHECK_MS / 1_000, _LookAgain())
            else:
                self._go()

    def _turn_comes_first(self) -> bool:
        """Whether what held the strategy held a turn, too, which goes on now."""
        view = self._seams.activity
        return view.activity in ("starting", "running") or (
            view.activity == "held"
            and view.held is not None
            and view.held.cause not in ("quota", "approval", "context")
        )

    # -- events ------------------------------------------------------------------------------

    def _add(self, event: ContextEvent) -> None:
        waiting = self.kept.events
        if len(waiting) >= EVENTS_MAX:
            lost = waiting.popleft()
            self._log_event(lost, "too many wait for it")
        waiting.append(event)
        self.kept.waiting.value = len(waiting)

    async def _tell_events(self) -> None:
        waiting = self.kept.events
        while True:
            await self.kept.waiting.wait_value(lambda count: count > 0)
            while waiting:
                event = waiting.popleft()
                await self._tell_event(event)
            self.kept.waiting.value = 0

    async def _tell_event(self, event: ContextEvent) -> None:
        strategy = self._seams.strategy
        match event:
            case WaitRecorded():
                accept: Any = strategy.on_wait_recorded
            case WaitReleased():
                accept = strategy.on_wait_released
            case CallDeferred():
                accept = strategy.on_call_deferred
        try:
            with trio.fail_after(EVENT_S_MAX), in_role(None):
                accepted: Any = accept(event)
                if inspect.isawaitable(accepted):
                    await accepted
        except BaseException as error:  # noqa: BLE001 - anybody may have written the strategy.
            self._log_event(event, told(failure_of(error)))

    def _log_event(self, event: ContextEvent, why: str) -> None:
        _logger.error(
            "context strategy %s of agent %r did not take a %s: %s",
            self._name,
            self._seams.agent,
            type(event).__name__,
            clean_text(why, TOLD_CHARS_MAX),
            agent=self._seams.agent,
        )
