"""What survives an incarnation, and the one task that runs incarnations in it.

A cell owns its ref, mailbox, in-flight slot, replies owed, counters, watchers and `kept` object.
An incarnation is an instance of the actor class, a cancel scope and the tasks it started; a crash
throws exactly that away.

Invariants:
    I1. One task runs the cell, and it alone takes from the mailbox while the cell is not ended.
    I2. `inflight` is the envelope whose handler runs, from before the handler is called until it
        returned and its target was settled; nothing destructive is raced or timed out.
    I3. `owed` holds, in the order they came, the envelopes whose handlers returned `LATER`.
    I4. Of two incarnations nothing runs at the same time: the tasks of the first have ended.
    I5. accepted = handled + dead letters + quarantined + queued + owed + in flight.

Runs on the loop thread. `bury`, `drop` and the counters they touch are also safe elsewhere.
"""

from __future__ import annotations

import itertools
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

import pykka
import trio
from pykka.messages import ProxyCall, ProxyGetAttr, ProxySetAttr
from trio.lowlevel import checkpoint, current_task, wait_task_rescheduled

from .asks import STANCE, Stance
from .deadletters import DeadLetter, Quarantined
from .envelope import (
    ANSWER,
    ENDED,
    LATER,
    SETTLED,
    STOP_PILL,
    TELL,
    TIMER,
    Ended,
    Envelope,
    Internal,
    StopPill,
)
from .errors import (
    ActorCrash,
    ActorDeadError,
    ActorKilledError,
    MailboxFullError,
    OutcomeUnknownError,
)
from .future import Target, TrioFuture, Unasked
from .mailbox import HALT, KILL, STOP_NOW, Mailbox
from .ref import TrioActorRef
from .watchdog import one_checkpoint

if TYPE_CHECKING:
    from .actor import TrioActor
    from .supervisor import Supervisor
    from .system import ActorSystem

logger = logging.getLogger("abeyance.core")

BATCH_S: Final = 0.001
"""How long a batch may hold the loop before other tasks run."""

_LOOK_EVERY: Final = 8  # Messages between two looks at the time: a look costs a tenth of a message.
_SPECIAL: Final = frozenset({StopPill, ProxyCall, ProxyGetAttr, ProxySetAttr})
_serials = itertools.count(1)

BIRTH: Final[ContextVar[Cell]] = ContextVar("abeyance_birth")
"""The cell an instance is being made for: pykka's constructor leaves no room for an argument."""

# What ended an incarnation.
STOPPED: Final = "stopped"
STOPPED_NOW: Final = "stopped_now"
HALTED: Final = "halted"
CRASHED: Final = "crashed"


@dataclass(frozen=True, slots=True)
class Exit:
    """How an incarnation ended.

    Attributes:
        kind: `stopped`, `stopped_now`, `halted` (by its supervisor, to run again) or `crashed`.
        error: What it crashed with.
        counts: Whether the crash counts towards the intensity: one of a redelivered message does
            not, as it is bounded by max_deliveries already.
        poison: Whether a message went past max_deliveries in an actor that parks on it.
        unstarted: Whether it ended before `on_start` returned.
    """

    kind: str
    error: BaseException | None = None
    counts: bool = True
    poison: bool = False
    unstarted: bool = False


@dataclass(frozen=True, slots=True)
class ActorStatistics:
    """A snapshot of one actor.

    Attributes:
        name: Its key.
        state: `new`, `running`, `held`, `waiting` (for a restart), `stopping` or `ended`.
        incarnation: Which incarnation, from 1.
        queued: Envelopes in the user lane and to be redelivered.
        internal: Items in the internal lane.
        owed: Replies owed.
        in_flight: Whether a handler runs.
        handled: Envelopes handled.
        dead: Dead letters.
        quarantined: Messages quarantined.
        late: Replies that came after their ask had ended.
        dropped: Answers and timers of incarnations that had ended.
        last_error: What the last crash was.
    """

    name: str
    state: str
    incarnation: int
    queued: int
    internal: int
    owed: int
    in_flight: bool
    handled: int
    dead: int
    quarantined: int
    late: int
    dropped: int
    last_error: BaseException | None


class Cell:
    """One actor, over all its incarnations."""

    __slots__ = (
        "__weakref__",
        "_args",
        "_halt_deadline_s",
        "_idle",
        "_kwargs",
        "_nudge",
        "_pills",
        "_quiet",
        "_started",
        "_stopped_future",
        "_tasks",
        "_urn",
        "actor",
        "actor_class",
        "base",
        "box",
        "child_id",
        "dead",
        "dropped",
        "ending",
        "failure",
        "fresh",
        "handled",
        "held",
        "incarnation",
        "inflight",
        "inflight_internal",
        "kept",
        "key",
        "kill_reason",
        "last_error",
        "late",
        "name",
        "owed",
        "quarantined",
        "ref",
        "registered",
        "role",
        "scope",
        "shutdown_s",
        "state",
        "stopping",
        "supervisor",
        "system",
        "watchers",
    )

    def __init__(
        self,
        system: ActorSystem,
        supervisor: Supervisor,
        actor_class: type[TrioActor],
        args: Any,
        kwargs: dict[str, Any],
        *,
        child_id: str | None = None,
        name: str | None = None,
        shutdown_s: float = 5.0,
    ) -> None:
        self.system = system
        self.supervisor = supervisor
        self.actor_class = actor_class
        self._args = args
        self._kwargs = kwargs
        self.name = name
        self.key = name or f"{actor_class.__name__}-{next(_serials)}"
        self.child_id = child_id or self.key
        self.role = actor_class.role
        self.base: Stance = ((self.key,), self.role)
        self.shutdown_s = shutdown_s
        self.box = Mailbox(
            self, actor_class.mailbox_capacity, actor_class.overflow, system.ident, system.token
        )
        self.ref: TrioActorRef[Any] = TrioActorRef._of(self)
        self.kept = actor_class.make_kept()
        # Strong: pykka's ref holds the instance weakly, and nothing else does.
        self.actor: TrioActor | None = None
        self.fresh = False  # Whether `actor` was made and has not started.
        self.incarnation = 0
        self.scope: trio.CancelScope | None = None
        self.failure: BaseException | None = None
        self.kill_reason: str | None = None
        self.inflight: Envelope | None = None
        self.inflight_internal: Internal | None = None
        self.owed: dict[Target, Envelope] = {}
        self.watchers: dict[Cell, int] | None = None
        self.state = "new"
        self.held = False
        self.ending = False
        self.stopping = False
        self.registered = False
        self.handled = 0
        self.dead = 0
        self.quarantined = 0
        self.late = 0
        self.dropped = 0
        self.last_error: BaseException | None = None
        self._urn: str | None = None
        self._tasks: dict[trio.CancelScope, None] | None = None
        self._quiet: trio.Event | None = None
        self._nudge: trio.Event | None = None
        self._started: TrioFuture[None] | None = None
        self._stopped_future: TrioFuture[None] | None = None
        self._idle: TrioFuture[None] | None = None
        self._pills: list[Target] | None = None
        self._halt_deadline_s: float | None = None

    def __str__(self) -> str:
        return self.key

    @property
    def urn(self) -> str:
        """The universally unique name pykka knows it by. Made when first asked for."""
        if self._urn is None:
            with self.system.lock:
                self._urn = self._urn or uuid.uuid4().urn
        return self._urn

    # -- birth

    def make(self) -> TrioActor:
        """Make an instance, on the calling thread. What its constructor raises is raised."""
        args = self._args
        if callable(args):
            args = args(self.supervisor.refs)
        token = BIRTH.set(self)
        try:
            actor = self.actor_class(*args, **self._kwargs)
        finally:
            BIRTH.reset(token)
        self.actor = actor
        self.fresh = True
        return actor

    # -- the task

    async def run(self) -> None:
        """Run incarnations until the cell ends. The one task of the cell."""
        reason: BaseException | None = None
        try:
            while True:
                await self._wait_while_held()
                if self.ending:
                    break
                outcome = await self._live()
                reason = outcome.error
                delay_s = self.supervisor._child_exited(self, outcome)
                self.ending = self.ending or delay_s is None
                self._tell_watchers(reason, final=self.ending)
                if self.ending:
                    break
                self.settle_pills()
                if delay_s:
                    await self._pause(delay_s)
        except BaseException as exc:
            reason = reason or exc
            raise
        finally:
            self._end(reason)

    async def _wait_while_held(self) -> None:
        while self.held and not self.ending:
            self.state = "held"
            self._settle_idle()
            self._nudge = trio.Event()
            await self._nudge.wait()

    async def _pause(self, delay_s: float) -> None:
        self.state = "waiting"
        self._settle_idle()
        self._nudge = trio.Event()
        with trio.move_on_after(delay_s):
            await self._nudge.wait()

    def nudge(self) -> None:
        """End a pause, or look again at `held` and `ending`."""
        if self._nudge is not None:
            self._nudge.set()

    # -- one incarnation

    async def _live(self) -> Exit:
        STANCE.set(self.base)
        self.incarnation += 1
        self.failure = None
        scope = self.scope = trio.CancelScope()
        how: str | None = None
        left = False
        error: BaseException | None = None
        actor: TrioActor | None = None
        started = False
        try:
            # Errors are caught outside the scope: a handler's nursery that is killed while a child
            # raises gives a BaseExceptionGroup inside and an ExceptionGroup outside.
            with scope:
                actor = self.actor if self.fresh and self.actor is not None else self.make()
                self.fresh = False
                self.state = "running"
                result: Any = actor.on_start()
                if result.__class__ is CoroutineType:
                    await result
                started = True
                self._settle_started(None)
                self._announce()
                how = await self._serve(actor)
                await self._leave(actor, how)
                left = True
        except Exception as exc:  # noqa: BLE001 - it is the incarnation's end, and handed on.
            error = exc
        except BaseException as exc:
            if _cancels(exc) or not self.system.stop_all_on_base_exception:
                self._abandon(exc)
                raise
            error = exc
            self.system.stop_everything()
        if error is None and not left:
            error = self.failure or ActorKilledError(
                f"an incarnation of {self} was killed; its supervisor decides whether another "
                "starts",
                actor=self.key,
                reason=self.kill_reason,
            )
        else:
            error = self._with_failure(error)
        await self._end_tasks()
        self.box.control &= ~(KILL | HALT)
        self.kill_reason = None
        outcome = self._settle_exit(how, error, started)
        if outcome.kind == CRASHED:
            await self._report_crash(actor, outcome)
        elif error is not None and not isinstance(error, ActorKilledError):
            logger.error("%s failed while it stopped", self, exc_info=error)
        self._settle_started(outcome.error)
        self.scope = None
        return outcome

    def _with_failure(self, error: BaseException | None) -> BaseException | None:
        """Join what a task of the incarnation crashed with to the handler's own error."""
        failure = self.failure
        if error is None or failure is None or failure is error:
            return error
        return BaseExceptionGroup(f"{self} crashed", [error, failure])

    def _announce(self) -> None:
        kind = "started" if self.incarnation == 1 else "restarted"
        if self.system.on_event is not None:
            self.system.emit(kind, self.key, self.incarnation)

    async def _serve(self, actor: TrioActor) -> str:
        """Handle messages until the incarnation is to stop; return how.

        The one hot loop of the kernel: what it does for every message is looked at in nanoseconds.
        """
        box = self.box
        user = box.user
        owed = self.owed
        receive: Any = actor.on_receive
        clock = time.perf_counter
        crash_on_ask = actor.crash_on_ask_error
        watched = self.system.debug and self.role is not None
        special = _SPECIAL
        task = current_task()
        abort = box.abort
        box.urgent = True  # The incarnation before may have left something in the lanes.
        while True:
            source = box.returned or user
            handled = 0
            look = 0
            until = clock() + BATCH_S
            try:
                while True:
                    if box.urgent:
                        self.inflight = None
                        self.handled += handled
                        handled = 0
                        how = await self._serve_urgent(actor)
                        if how is not None:
                            return how
                    try:
                        envelope = source.popleft()
                    except IndexError:
                        if source is user:
                            break
                        source = user
                        continue
                    message, target, _ = envelope
                    self.inflight = envelope
                    if target is None:
                        result = (
                            self._special(actor, message)
                            if message.__class__ in special
                            else receive(message)
                        )
                        if result is not None:
                            if result.__class__ is CoroutineType:
                                self.handled += handled
                                handled = 0
                                if box.waiting:
                                    box.give_room()
                                result = await (one_checkpoint(result, self) if watched else result)
                            if result is LATER:
                                self.inflight = None
                                continue
                        if self.inflight is not envelope:
                            self._forget_owed()
                        handled += 1
                    else:
                        if target._outcome is not None:
                            self.inflight = None
                            self._bury_one(envelope, "expired")
                            continue
                        if message.__class__ is StopPill:
                            self.inflight = None
                            self._take_pill(target)
                            return STOPPED
                        if target._chain:
                            STANCE.set(((*target._chain, self.key), self.role))
                        try:
                            result = (
                                self._special(actor, message)
                                if message.__class__ in special
                                else receive(message)
                            )
                            if result.__class__ is CoroutineType:
                                self.handled += handled
                                handled = 0
                                if box.waiting:
                                    box.give_room()
                                result = await (one_checkpoint(result, self) if watched else result)
                        except ActorCrash:
                            raise
                        except Exception as exc:
                            if crash_on_ask:
                                raise
                            self._answer(target, None, exc)
                        else:
                            if result is not LATER:
                                self._answer(target, result, None)
                            elif target not in owed and self.inflight is envelope:
                                self._answer(target, None, _not_later(self))
                        if target._chain:
                            STANCE.set(self.base)
                    look += 1
                    if look == _LOOK_EVERY:
                        look = 0
                        if box.waiting:
                            box.give_room()
                        if clock() > until:
                            break
            finally:
                self.handled += handled
            self.inflight = None
            if box.waiting:
                box.give_room()
            if self._idle is not None and not user and not box.urgent:
                self._settle_idle()
            box.attention = True
            if user or box.urgent or box.returned:
                box.attention = False
                await checkpoint()
            else:
                box.parked = task
                await wait_task_rescheduled(abort)

    def _answer(self, target: Target, value: Any, error: BaseException | None) -> None:
        """Settle the in-flight envelope's target and count it."""
        inflight = self.inflight
        if inflight is None or inflight[2] == SETTLED:
            return  # Its reply handle settled it while the handler ran.
        self.owed.pop(target, None)
        self.handled += 1
        if not (target._answer(value) if error is None else target._fail(error)):
            self.late += 1

    def _forget_owed(self) -> None:
        """Forget the reply handle of a tell whose handler did not return LATER: it is handled."""
        inflight = self.inflight
        if inflight is not None and inflight[1] is not None:
            if self.owed.pop(inflight[1], None) is None:
                self.handled -= 1  # Its handle was settled, and counted it.
            inflight[1]._answer(None)

    def _special(self, actor: TrioActor, message: Any) -> Any:
        kind = message.__class__
        if kind is ProxyCall:
            return _attribute(actor, message.attr_path)(*message.args, **message.kwargs)
        if kind is ProxyGetAttr:
            return _attribute(actor, message.attr_path)
        if kind is ProxySetAttr:
            parent = _attribute(actor, message.attr_path[:-1])
            return setattr(parent, message.attr_path[-1], message.value)
        raise TypeError("a stop pill is always an ask")

    # -- control and internal lanes

    async def _serve_urgent(self, actor: TrioActor) -> str | None:
        """Serve control flags and what the internal lane held on entry, for a batch's time.

        Only that: what arrives meanwhile waits for one user message, so that the internal lane
        cannot starve the user lane.
        """
        box = self.box
        box.urgent = False
        control = box.control
        if control:
            if control & KILL and self.scope is not None:
                self.scope.cancel(reason="killed")
                await checkpoint()
            if control & HALT:
                return HALTED
            if control & STOP_NOW:
                box.control &= ~STOP_NOW
                return STOPPED_NOW
        lane = box.internal
        if lane:
            until = time.perf_counter() + BATCH_S
            for count in range(1, len(lane) + 1):
                await self._serve_internal(actor, lane.popleft())
                if box.control or (count % _LOOK_EVERY == 0 and time.perf_counter() > until):
                    break
            if lane or box.control:
                box.urgent = True
        return None

    async def _serve_internal(self, actor: TrioActor, item: Internal) -> None:
        kind, payload, incarnation, _ = item
        if incarnation and incarnation != self.incarnation:
            self.dropped += 1
            return
        self.inflight_internal = item
        if kind == ANSWER:
            names, answer = payload
            if names:
                STANCE.set(((*names, self.key), self.role))
            result = actor.on_answer(answer)
        elif kind == ENDED:
            names = ()
            result = actor.on_ended(payload)
        else:
            names = ()
            result = actor.on_receive(payload)
        if result.__class__ is CoroutineType:
            watched = self.system.debug and self.role is not None
            await (one_checkpoint(result, self) if watched else result)
        if names:
            STANCE.set(self.base)
        self.inflight_internal = None
        if kind == TELL:
            self.handled += 1

    # -- leaving

    def is_pill(self, envelope: Envelope) -> bool:
        """Whether the envelope is a stop pill, which no overflow drops."""
        return envelope[0].__class__ is StopPill

    def _take_pill(self, target: Target) -> None:
        if self._pills is None:
            self._pills = []
        self._pills.append(target)

    async def _leave(self, actor: TrioActor, how: str) -> None:
        """Serve what is owed, end the tasks, run `on_stop`. Only for a stop, not for a crash."""
        self.state = "stopping"
        if how != HALTED and self.supervisor._ends_with(self):
            self.stopping = True
            self.box.room = -1
            self.box.give_room()
        if how != HALTED:
            with trio.move_on_after(self.shutdown_s):
                await self._serve_owed(actor)
        await self._end_tasks()
        result: Any = actor.on_stop()
        if result.__class__ is CoroutineType:
            await result

    async def _serve_owed(self, actor: TrioActor) -> None:
        """Serve the internal lane until no reply is owed, or a stop now comes."""
        box = self.box
        while any(target._outcome is None for target in self.owed):
            if box.urgent:
                if await self._serve_urgent(actor) is not None:
                    return
            else:
                await self._wait_internal()

    async def _wait_internal(self) -> None:
        """Sleep until the internal lane or a reply handle stirs."""
        box = self.box
        box.attention = True
        if box.urgent:
            box.attention = False
            await checkpoint()
        else:
            box.parked = current_task()
            await wait_task_rescheduled(box.abort)

    async def _end_tasks(self) -> None:
        """Cancel the incarnation's tasks and wait until they have ended."""
        while self._tasks:
            for scope in list(self._tasks):
                scope.cancel(reason="the incarnation ended")
            self._quiet = trio.Event()
            await self._quiet.wait()
        self._quiet = None

    def _settle_exit(self, how: str | None, error: BaseException | None, started: bool) -> Exit:
        """Settle the in-flight envelope and what is owed, and say how the incarnation ended."""
        if error is not None:
            self.last_error = error
        if how is None:
            assert error is not None
            counts, poison = self._settle_inflight(error)
            return Exit(CRASHED, error, counts, poison, unstarted=not started)
        # It was to end, so whatever happened on the way out is no crash to its supervisor.
        if error is not None and self.inflight_internal is not None:
            self._settle_inflight(error)
        elif how == HALTED:
            self._return_owed(None)
        else:
            self._bury_owed()
        return Exit(how)

    def _settle_inflight(self, error: BaseException) -> tuple[bool, bool]:
        item, self.inflight_internal = self.inflight_internal, None
        envelope, self.inflight = self.inflight, None
        counts, poison = True, False
        if item is not None:
            counts, poison = self._settle_inflight_internal(item, error)
        redelivered: Envelope | None = None
        if envelope is not None and envelope[2] != SETTLED:
            message, target, deliveries = envelope
            if target is not None:
                self.owed.pop(target, None)
            counts = deliveries == 0
            deliveries += 1
            if deliveries < self.actor_class.max_deliveries:
                redelivered = (message, target, deliveries)
            elif self.actor_class.max_deliveries > 1 and self.actor_class.past_deliveries == "park":
                redelivered, poison = (message, target, 0), True
            else:
                self._quarantine(message, target, deliveries, error)
        self._return_owed(redelivered)
        return counts, poison

    def _settle_inflight_internal(self, item: Internal, error: BaseException) -> tuple[bool, bool]:
        kind, payload, incarnation, deliveries = item
        if kind == TIMER or (kind != TELL and incarnation):
            return True, False  # It dies with the incarnation.
        counts = deliveries == 0
        deliveries += 1
        parks = self.actor_class.max_deliveries > 1 and self.actor_class.past_deliveries == "park"
        if deliveries < self.actor_class.max_deliveries or parks:
            poison = deliveries >= self.actor_class.max_deliveries
            assert self.box.internal is not None
            self.box.internal.appendleft((kind, payload, incarnation, 0 if poison else deliveries))
            self.box.urgent = True
            return counts, poison
        message = payload if kind == TELL else payload[1] if kind == ANSWER else payload
        self._quarantine(message, None, deliveries, error)
        return counts, False

    def _return_owed(self, redelivered: Envelope | None) -> None:
        """Bring owed envelopes back first, in order and uncounted, then the redelivered one."""
        front: list[Envelope] = []
        owed, self.owed = list(self.owed.items()), {}
        for target, envelope in owed:
            if self.actor_class.max_deliveries > 1:
                front.append(envelope)
                continue
            self.dead += 1
            self.system.dead_letters.record(self._letter(envelope[0], "outcome_unknown"))
            target._fail(self._outcome_unknown(envelope[0]))
        if redelivered is not None:
            front.append(redelivered)
        if front:
            if self.box.returned is None:
                self.box.returned = deque()
            self.box.returned.extendleft(reversed(front))

    def _bury_owed(self) -> None:
        owed, self.owed = list(self.owed.values()), {}
        for envelope in owed:
            self._bury_one(envelope, "stopped")

    async def _report_crash(self, actor: TrioActor | None, outcome: Exit) -> None:
        """Log the crash and run `on_failure`, for at most `shutdown_s`."""
        error = outcome.error
        assert error is not None
        info = (type(error), error, error.__traceback__)
        killed = isinstance(error, ActorKilledError)
        if not killed:
            logger.error("unhandled exception in %s", self, exc_info=info)
        if self.system.on_event is not None:
            self.system.emit("crashed", self.key, self.incarnation, error)
        if actor is None:
            return
        try:
            with trio.move_on_after(self.shutdown_s):
                # Pykka's rule: what is no Exception stops the actor, it does not fail it.
                fails = isinstance(error, Exception | BaseExceptionGroup)
                result: Any = actor.on_failure(*info) if fails else actor.on_stop()
                if result.__class__ is CoroutineType:
                    await result
        except Exception:
            logger.exception(
                "on_failure of %s failed; the incarnation has ended all the same", self
            )

    def _abandon(self, exc: BaseException) -> None:
        """Settle what can be settled when the run itself is cancelled or ends with `exc`."""
        self.last_error = exc
        envelope, self.inflight = self.inflight, None
        if envelope is not None and envelope[2] != SETTLED:
            message, target, deliveries = envelope
            if target is not None:
                self.owed.pop(target, None)
            if _cancels(exc):
                self.dead += 1
                self.system.dead_letters.record(self._letter(message, "system_ended"))
                if target is not None:
                    target._fail(self._outcome_unknown(message))
            else:
                self._quarantine(message, target, deliveries + 1, exc)
        self._settle_started(exc)

    # -- the end

    def _end(self, reason: BaseException | None) -> None:
        """Close the mailbox, bury what is left, and tell everyone who waits. Does not raise."""
        if self.state == "ended":
            return
        self.state = "ended"
        self.stopping = True
        self.ending = True
        self.scope = None
        self.box.close()
        self._bury_owed()
        self.bury()
        self.supervisor._child_ended(self)
        if self.name is not None:
            self.system.names.release(self.name, self)
        self.system.forget(self)
        if self.registered:
            pykka.ActorRegistry.unregister(self.ref)
        if self.watchers:
            self._tell_watchers(reason, final=True)
        self._settle_idle()
        self._settle_started(reason)
        self.settle_pills()
        with self.system.lock:
            stopped = self._stopped_future
        if stopped is not None:
            stopped._answer(None)
        if self.system.on_event is not None:
            self.system.emit("stopped", self.key, self.incarnation, reason)

    def settle_pills(self) -> None:
        """Tell those who sent stop pills that the incarnation ended. Another may start."""
        pills, self._pills = self._pills, None
        for pill in pills or ():
            pill._answer(None)

    def ended_future(self) -> TrioFuture[None]:
        """Return a future that is settled when the cell has ended. Any thread."""
        with self.system.lock:
            if self._stopped_future is None:
                self._stopped_future = TrioFuture()
            future = self._stopped_future
        if self.box.closed and self.state == "ended":
            future._answer(None)
        return future

    def bury(self) -> None:
        """Empty the lanes of a closed mailbox. Any thread: each pop is taken by one."""
        box = self.box
        for lane in (box.returned, box.user):
            while lane:
                try:
                    envelope = lane.popleft()
                except IndexError:
                    break
                self._bury_one(envelope, "stopped")
        while box.internal:
            try:
                kind, payload, incarnation, _ = box.internal.popleft()
            except IndexError:
                break
            if kind == TELL:
                self._bury_one((payload, None, 0), "stopped")
            else:
                self.drop_internal(kind, payload, incarnation)

    def drop_internal(self, kind: int, payload: Any, incarnation: int) -> None:
        """Count an item that nobody will handle; a fact becomes a dead letter. Any thread."""
        with self.system.lock:
            self.dropped += 1
        if kind == ANSWER and not incarnation:
            self.system.dead_letters.record(self._letter(payload[1], "fact_undelivered"))

    def drop(self, envelope: Envelope) -> None:
        """Make a dead letter of an envelope that an overflow policy drops. Any thread."""
        with self.system.lock:
            self.dead += 1
        self.system.dead_letters.record(self._letter(envelope[0], "overflow"))
        if envelope[1] is not None:
            envelope[1]._fail(
                MailboxFullError(
                    f"the mailbox of {self} overflowed; the message was dropped; send slower",
                    actor=self.key,
                    message=envelope[0],
                    capacity=self.box.capacity,
                )
            )

    def _bury_one(self, envelope: Envelope, reason: str) -> None:
        message, target, _ = envelope
        if message.__class__ is StopPill:
            assert target is not None
            target._answer(None)
            return
        with self.system.lock:
            self.dead += 1
        self.system.dead_letters.record(self._letter(message, reason))
        if target is not None:
            target._fail(
                ActorDeadError(
                    f"{self} stopped before it handled the message; send it elsewhere",
                    actor=self.key,
                    message=message,
                )
            )

    def _letter(self, message: Any, reason: str) -> DeadLetter:
        return DeadLetter(self.key, message, reason, self.system.clock.now_ms())

    def _quarantine(
        self, message: Any, target: Target | None, deliveries: int, error: BaseException
    ) -> None:
        self.quarantined += 1
        self.system.quarantine.record(
            Quarantined(
                self.key,
                message,
                error,
                self.incarnation,
                deliveries,
                self.system.clock.now_ms(),
            )
        )
        if target is not None:
            if isinstance(error, ActorKilledError):
                target._fail(self._outcome_unknown(message))
            else:
                target._fail(error)

    def _outcome_unknown(self, message: Any) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"an incarnation of {self} ended before it replied; whether the message took effect "
            "is unknown; ask again only what may happen twice",
            actor=self.key,
            message=message,
        )

    # -- reply handles

    def owe(self) -> tuple[Target, bool]:
        """Register the in-flight envelope as owed; return its target and whether it was settled.

        Raises:
            RuntimeError: No handler of a message runs.
        """
        envelope = self.inflight
        if envelope is None:
            raise RuntimeError("later() belongs in a handler of a message, before it returns")
        message, target, deliveries = envelope
        if target is None:
            target = Unasked()
            self.inflight = envelope = (message, target, deliveries)
        if deliveries != SETTLED:
            self.owed[target] = envelope
        return target, deliveries == SETTLED

    def release(self, target: Target) -> bool:
        """Take an owed, queued-again or in-flight envelope as handled. False if it has ended."""
        found = self.owed.pop(target, None) is not None
        returned = self.box.returned
        if not found and returned:
            for place, envelope in enumerate(returned):
                if envelope[1] is target:
                    del returned[place]
                    found = True
                    break
        inflight = self.inflight
        if inflight is not None and inflight[1] is target and inflight[2] != SETTLED:
            self.inflight = (inflight[0], target, SETTLED)
            found = True
        if found:
            self.handled += 1
            if self.state == "stopping" and not self.owed:
                self.box.wake()
            if self._idle is not None:
                self._settle_idle()
        return found

    # -- tasks of the incarnation

    def start_task(
        self,
        afn: Callable[..., Coroutine[Any, Any, Any]],
        args: tuple[Any, ...],
        name: str | None,
        finish: Callable[[Any, BaseException | None], None] | None,
    ) -> trio.CancelScope:
        """Start a task that ends with the incarnation.

        Tasks run in the system's nursery under a scope each, and the incarnation keeps the scopes:
        a nursery for every incarnation would double what an idle actor costs.
        """
        if self.scope is None:
            raise RuntimeError(f"no incarnation of {self} runs; a task belongs to one")
        scope = trio.CancelScope()
        if self._tasks is None:
            self._tasks = {}
        self._tasks[scope] = None
        # A task is awaited by nobody but those who are owed a reply through it.
        names, role = STANCE.get()
        target = self.inflight[1] if self.inflight is not None else None
        waiting = names[:-1] if finish is not None and target in self.owed else ()
        self.system.nursery.start_soon(
            self._run_task,
            scope,
            (waiting, role),
            afn,
            args,
            finish,
            name=name or f"{self.key}: {_name_of(afn)}",
        )
        return scope

    async def _run_task(
        self,
        scope: trio.CancelScope,
        stance: Stance,
        afn: Callable[..., Coroutine[Any, Any, Any]],
        args: tuple[Any, ...],
        finish: Callable[[Any, BaseException | None], None] | None,
    ) -> None:
        STANCE.set(stance)
        value: Any = None
        error: BaseException | None = OutcomeUnknownError(
            f"a task of {self} was cancelled; whether it took effect is unknown",
            actor=self.key,
            message=None,
        )
        try:
            with scope:
                value = await afn(*args)
                error = None
        except Exception as exc:  # noqa: BLE001 - the incarnation's, or the answer's.
            error = exc
            if finish is None:
                self.fail(exc)
        finally:
            tasks = self._tasks
            if tasks is not None:
                tasks.pop(scope, None)
            if finish is not None:
                finish(value, error)
            if not tasks and self._quiet is not None:
                self._quiet.set()

    def fail(self, error: BaseException) -> None:
        """Crash the incarnation with what one of its tasks raised."""
        if self.failure is None:
            self.failure = error
        elif self.failure is not error:
            self.failure = BaseExceptionGroup(f"tasks of {self} failed", [self.failure, error])
        if self.scope is not None:
            self.box.signal(0)
            self.scope.cancel(reason="a task of the incarnation crashed")

    # -- what others do to the cell, loop thread

    def kill(self, reason: str | None) -> None:
        """Cancel the incarnation at its next checkpoint. Nothing happens where none runs."""
        if self.scope is None and self.state != "new":
            return
        self.kill_reason = reason
        self.box.signal(KILL)
        if self.scope is not None:
            self.scope.cancel(reason=reason or "killed")

    def stop_now(self, done: TrioFuture[None] | None = None) -> None:
        """Stop after the current message; what is queued becomes dead letters."""
        if done is not None:
            if self._pills is None:
                self._pills = []
            self._pills.append(done)
        if self.state in ("held", "waiting", "ended"):
            if self.supervisor._ends_with(self):
                self.ending = True
                self.nudge()
            else:
                self.settle_pills()
            if self.state == "ended":
                self.settle_pills()
            return
        self.box.signal(STOP_NOW)

    async def halt(self) -> None:
        """End the incarnation, if one runs, and start no other until released. A checkpoint."""
        self.held = True
        self.nudge()
        await self._finish(HALT, lambda: self.state in ("held", "ended"))

    def release_hold(self) -> TrioFuture[None]:
        """Let incarnations start again. The future is settled when `on_start` returned."""
        started: TrioFuture[None] = TrioFuture()
        self._started = started
        self.held = False
        self.nudge()
        return started

    async def end(self) -> None:
        """Stop for good: gracefully within `shutdown_s`, then by a kill. A checkpoint."""
        self.ending = True
        self.nudge()
        await self._finish(STOP_NOW, lambda: self.state == "ended")

    async def _finish(self, flag: int, done: Callable[[], bool]) -> None:
        if self.state == "new" and self.system.ended:
            return
        if self.scope is not None or self.state == "new":
            self.box.signal(flag)
        with trio.move_on_after(self.shutdown_s):
            await self._until(done)
        while not done():
            self.kill("its stop took longer than its shutdown time")
            await self._until(done)

    async def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            self._idle = self._idle if self._idle is not None else TrioFuture()
            await self._idle

    # -- waiting for it

    def _settle_started(self, error: BaseException | None) -> None:
        started, self._started = self._started, None
        if started is not None:
            if error is None:
                started._answer(None)
            else:
                started._fail(error)

    def _settle_idle(self) -> None:
        idle, self._idle = self._idle, None
        if idle is not None:
            idle._answer(None)

    @property
    def busy(self) -> bool:
        """Whether it runs and has something to handle."""
        if self.state not in ("running", "new"):
            return False
        box = self.box
        return bool(
            box.user or box.urgent or box.returned or self.inflight or self.inflight_internal
        )

    async def wait_change(self) -> None:
        """Wait until it idles, is held or ends, or a reply was settled. A checkpoint."""
        if self._idle is None:
            self._idle = TrioFuture()
        await self._idle

    # -- watchers

    def watch(self, watcher: Cell) -> None:
        """Send `Ended` to the watcher's present incarnation from now on."""
        if self.state == "ended":
            item = Ended(self.ref, self.incarnation, self.last_error, True)
            watcher.box.put_internal((ENDED, item, watcher.incarnation, 0))
            return
        if self.watchers is None:
            self.watchers = {}
        self.watchers[watcher] = watcher.incarnation

    def _tell_watchers(self, reason: BaseException | None, *, final: bool) -> None:
        watchers = self.watchers
        if not watchers:
            return
        ended = Ended(self.ref, self.incarnation, reason, final)
        for watcher, incarnation in list(watchers.items()):
            if incarnation != watcher.incarnation or watcher.state == "ended":
                del watchers[watcher]
            else:
                watcher.box.put_internal((ENDED, ended, incarnation, 0))
        if final:
            self.watchers = None

    def statistics(self) -> ActorStatistics:
        """Return a snapshot."""
        box = self.box
        return ActorStatistics(
            name=self.key,
            state=self.state,
            incarnation=self.incarnation,
            queued=box.depth,
            internal=len(box.internal) if box.internal else 0,
            owed=len(self.owed),
            in_flight=self.inflight is not None or self.inflight_internal is not None,
            handled=self.handled,
            dead=self.dead,
            quarantined=self.quarantined,
            late=self.late,
            dropped=self.dropped,
            last_error=self.last_error,
        )


def _attribute(root: Any, path: Any) -> Any:
    for name in path:
        root = getattr(root, name)
    return root


def _cancels(exc: BaseException) -> bool:
    """Whether the run is being cancelled, rather than ended by a handler's own exception."""
    return isinstance(exc, trio.Cancelled) or (
        isinstance(exc, BaseExceptionGroup) and exc.subgroup(trio.Cancelled) is not None
    )


def _name_of(afn: Any) -> str:
    return str(getattr(afn, "__qualname__", afn))


def _not_later(cell: Cell) -> RuntimeError:
    return RuntimeError(f"{cell} returned LATER without taking a reply handle by later()")


__all__ = ["STOP_PILL", "ActorStatistics", "Cell", "Exit"]
