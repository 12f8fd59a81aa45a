"""Serving a mailbox: the loop that takes envelopes and calls handlers.

Control flags come before the internal lane, it before redelivered envelopes, they before the user
lane. The loop holds the event loop for a batch's time, then lets other tasks run.

Invariants:
    I1. Nothing is awaited between taking an envelope and setting `cell.inflight`.
    I2. `cell.inflight` is None wherever the loop awaits anything but the handler of an envelope.
    I3. Each pass serves at most what the internal lane held when it began, and control flags are
        as many as there are bits, so neither can starve the user lane.
    I4. While the mailbox is suspended, nothing is taken from the returned and the user lane.
    I5. No loop here goes on past a batch's time without a checkpoint, whatever the handlers return.

Runs in the cell's task.
"""

from __future__ import annotations

import math
import time
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

import trio
from pykka.messages import ProxyCall, ProxyGetAttr, ProxySetAttr
from trio.lowlevel import checkpoint, current_task, wait_task_rescheduled

from .asks import STANCE
from .carried import Traced
from .deliveries import counted, deliver_reminder
from .envelope import (
    ANSWER,
    ENDED,
    LATER,
    NEVER,
    REMIND,
    SETTLED,
    STASHED,
    TELL,
    Answer,
    Internal,
    Replayed,
    StopPill,
)
from .errors import ActorCrashError
from .expiry import until_expired
from .future import PENDING, Target, Unasked
from .hand import take_back
from .logs import Log
from .mailbox import HALT, KILL, STOP_NOW
from .reporting import log_returned
from .settling import HALTED, STOPPED, STOPPED_NOW, bury_one
from .watchdog import one_checkpoint
from .wheel import TICKS_PER_S

if TYPE_CHECKING:
    from .actor import TrioActor
    from .cell import Cell

logger = Log("abeyance.core")

BATCH_S: Final = 0.001
"""How long a batch may hold the loop before other tasks run."""

_LOOK_EVERY: Final = 8  # Messages between two looks at the time: a look costs a tenth of a message.
SPECIAL: Final = frozenset({StopPill, ProxyCall, ProxyGetAttr, ProxySetAttr, Replayed})


async def serve(cell: Cell, actor: TrioActor) -> str:
    """Handle messages until the incarnation is to stop; return how.

    The one hot loop of the kernel: what it does for every message is looked at in nanoseconds.
    """
    box = cell.box
    user = box.user
    receive: Any = counted(cell, actor.on_receive)
    clock = cell.system.stopwatch
    never = NEVER
    pending = PENDING
    crash_on_ask = actor.crash_on_ask_error
    watched = cell.system.debug and cell.role is not None
    # With faults installed, what stands in for the actor takes proxy calls too.
    special = SPECIAL if cell.system.faults is None else frozenset[type]((StopPill,))
    plain: type | None = None  # The class of the last message that was none of these.
    divert: Any = proxied
    if cell.system.tracing is not None:
        divert = cell.system.tracing.diverting(receive, special)
        special |= {Traced}
    task = current_task()
    # The incarnation before may have left something in the lanes. Not only where they hold
    # something: what another thread put between such a look and this would be slept over.
    box.urgent = True
    # What the lane held at `mark` is taken when `ahead` more messages are: the rest came after it.
    # Not every message is counted, so that `since` may lag, and never leads.
    mark = clock()
    ahead = len(user)
    while True:
        source = box.returned or user
        # Together the messages handled since the batch began or `cell.handled` was brought up to
        # date: `look` counts each, `handled` the full rounds of it, less what was no such message.
        handled = 0
        look = 0
        began = box.looked = clock()
        until = began + BATCH_S
        if box.since is never:
            box.since = mark = began
            ahead = len(user)
        if len(user) > box.peak:
            box.peak = len(user)
        try:
            while True:
                if box.urgent:
                    box.urgent = False  # Before the lanes are looked at, so that none is missed.
                    cell.inflight = None
                    if box.control or box.internal or box.suspended:
                        cell.handled += handled + look
                        handled = -look
                        how = await _serve_urgent(cell, actor)
                        if how is None and box.suspended:
                            how = await _serve_suspended(cell, actor)
                        if how is not None:
                            return how
                        if clock() > until:  # The lane took the batch's time, or more.
                            await checkpoint()
                            until = clock() + BATCH_S
                            if box.control or box.suspended:
                                box.urgent = True
                                continue
                    source = box.returned or user  # Something may have been unstashed.
                # Looking first spares an exception a batch, whose traceback would keep a frame
                # object of this coroutine alive: 400 bytes of an idle actor.
                if not source:
                    if source is user:
                        break
                    source = user
                    ahead = len(user) + look  # None of those so far was of this lane.
                    continue
                try:
                    envelope = source.popleft()
                except IndexError:  # A host thread dropped the oldest meanwhile.
                    continue
                message, target, _ = envelope
                cell.inflight = envelope
                if target is None:
                    if message.__class__ is plain:
                        result = receive(message)
                    elif message.__class__ in special:
                        result = divert(actor, message)
                    else:
                        plain = message.__class__
                        result = receive(message)
                    if result is not None:
                        if result.__class__ is CoroutineType:
                            cell.handled += handled + look
                            handled = -look
                            if box.watched:
                                box.shrank()
                            result = await (one_checkpoint(result, cell) if watched else result)
                            if len(user) > box.peak:
                                box.peak = len(user)
                        if result is LATER:
                            if cell.inflight is not envelope:
                                handled -= 1  # It is owed, put aside or kept out.
                            cell.inflight = None
                    if cell.inflight is not envelope:
                        _forget_owed(cell)
                else:
                    if target._outcome is not pending:
                        cell.inflight = None
                        bury_one(cell, envelope, "expired")
                        if clock() > until:
                            handled += look
                            look = 0
                            break
                        continue
                    names = target._chain
                    if names:
                        STANCE.set(((*names, cell), cell.role))
                    try:
                        if message.__class__ is plain:
                            result = receive(message)
                        elif message.__class__ not in special:
                            plain = message.__class__
                            result = receive(message)
                        elif message.__class__ is StopPill:
                            cell.inflight = None
                            _take_pill(cell, target)
                            return STOPPED
                        else:
                            result = divert(actor, message)
                        if result.__class__ is CoroutineType:
                            cell.handled += handled + look
                            handled = -look
                            if box.watched:
                                box.shrank()
                            if watched:
                                result = one_checkpoint(result, cell)
                            if target._cancels:
                                result = until_expired(cell, target, result)
                            result = await result
                            if len(user) > box.peak:
                                box.peak = len(user)
                    except ActorCrashError:
                        raise
                    except Exception as exc:
                        if crash_on_ask or target.__class__ is Unasked:
                            raise
                        handled -= 1  # `_answer` counts it.
                        log_returned(logger, cell.ref, exc)
                        _answer(cell, None, exc)
                    else:
                        if result is not LATER:
                            if cell.inflight is not envelope:
                                handled -= 1
                                _answer(cell, result, None)
                            else:
                                # As `target._settle`, without the call.
                                try:
                                    del target._claim
                                except AttributeError:
                                    cell.late += 1
                                else:
                                    target._outcome = result
                                    if target._watched:
                                        target._settled()
                        else:
                            handled -= 1
                            if _unowed(cell):
                                _answer(cell, None, _not_later(cell))
                    if names:
                        STANCE.set(cell.base)
                look += 1
                if look == _LOOK_EVERY:
                    handled += _LOOK_EVERY
                    look = 0
                    if len(user) > box.peak:
                        box.peak = len(user)
                    if box.watched:
                        box.shrank()
                    now = box.looked = clock()
                    if source is user:
                        ahead -= _LOOK_EVERY
                        if ahead <= 0:
                            box.since = mark
                            mark = now
                            ahead = len(user)
                    if now > until:
                        break
        finally:
            cell.handled += handled + look
        took, cell.inflight = cell.inflight is not None, None
        if box.watched:
            box.shrank()
        if cell.idle is not None and not user and not box.urgent:
            cell.settle_idle()
        if box.spin:
            # A host thread feeds it. Waking costs that thread more than the message, so the loop
            # goes round until a batch was empty.
            box.spin = took
            if took:
                if look:  # It ended on an empty lane, not by its time.
                    box.since = mark = began
                    ahead = 0
                await checkpoint()
                continue
        box.attention = True
        if user or box.urgent or box.returned:
            box.attention = False
            await checkpoint()
        else:
            box.since = never
            box.parked = task
            await wait_task_rescheduled(box)


def _unowed(cell: Cell) -> bool:
    """Whether the in-flight ask is neither owed, nor settled by its handle, nor put aside."""
    inflight = cell.inflight
    return inflight is not None and inflight[2] >= 0 and inflight[1] not in cell.owed


def _answer(cell: Cell, value: Any, error: BaseException | None) -> None:
    """Settle the in-flight envelope's target and count it.

    Its, and not the one of the message that the handler was called with: it may have taken another
    since, and what it raises or returns is then the outcome of that.
    """
    inflight = cell.inflight
    if inflight is None or inflight[2] == SETTLED:
        return  # Its reply handle settled it while the handler ran.
    if inflight[2] == STASHED:
        if error is None:
            return  # It is to be handled again.
        take_back(cell)
        if cell.inflight is None or cell.inflight[2] == SETTLED:
            return
    target = inflight[1]
    assert target is not None
    cell.owed.pop(target, None)
    cell.handled += 1
    if not (target._answer(value) if error is None else target._fail(error)):
        cell.late += 1


def _forget_owed(cell: Cell) -> None:
    """Forget the reply handle of a tell whose handler did not return LATER: it is handled."""
    inflight = cell.inflight
    if inflight is not None and inflight[2] == STASHED:
        cell.handled -= 1  # It is to be handled again.
    elif inflight is not None and inflight[1] is not None:
        if cell.owed.pop(inflight[1], None) is None:
            cell.handled -= 1  # Its handle was settled, and counted it.
        inflight[1]._answer(None)


def proxied(actor: TrioActor, message: Any) -> Any:
    """Do what a proxy of the actor asked for, or handle what was sent again."""
    kind = message.__class__
    if kind is ProxyCall:
        return _attribute(actor, message.attr_path)(*message.args, **message.kwargs)
    if kind is ProxyGetAttr:
        return _attribute(actor, message.attr_path)
    if kind is ProxySetAttr:
        parent = _attribute(actor, message.attr_path[:-1])
        return setattr(parent, message.attr_path[-1], message.value)
    if kind is Replayed:
        inner = message.message
        if inner.__class__ is Answer:
            return actor.on_answer(inner)
        return proxied(actor, inner) if inner.__class__ in SPECIAL else actor.on_receive(inner)
    raise TypeError("a stop pill is always an ask")


async def _serve_urgent(cell: Cell, actor: TrioActor) -> str | None:
    """Serve control flags and what the internal lane held on entry, for a batch's time.

    Only that: what arrives meanwhile waits for one user message, so that the internal lane
    cannot starve the user lane.
    """
    box = cell.box
    box.urgent = False
    control = box.control
    if control:
        if control & KILL and cell.scope is not None:
            cell.scope.cancel(reason="killed")
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
            await _serve_internal(cell, actor, lane.popleft())
            if box.control or (count % _LOOK_EVERY == 0 and time.perf_counter() > until):
                break
        if lane or box.control:
            box.urgent = True
    return None


async def _serve_suspended(cell: Cell, actor: TrioActor) -> str | None:
    """Serve control flags and the internal lane until the user lane is resumed."""
    box = cell.box
    looked_at = 0
    while box.suspended:
        # A stop pill in the lane is not taken any more. One that comes from now on is looked for
        # by its sender, who looks at `suspended` after appending it. Resumed and suspended again
        # between two looks at the lanes, it is another suspension, and has pills of its own.
        if looked_at != box.suspended:
            looked_at = box.suspended
            cell.take_pills()
        if box.urgent:
            how = await _serve_urgent(cell, actor)
            if how is not None:
                return how
            await checkpoint()
            continue
        if box.watched:
            box.shrank()
        cell.settle_idle()
        if not box.urgent:
            # What a host thread puts from here on is told by run_sync_soon, which comes later.
            box.parked = current_task()
            await wait_task_rescheduled(box)
    return None


async def _serve_internal(cell: Cell, actor: TrioActor, item: Internal) -> None:
    kind, payload, incarnation, _ = item
    if incarnation and incarnation != cell.incarnation:
        cell.dropped += 1
        return
    if payload.__class__ is Traced:
        leave = cell.system.tracing.entered(payload.context)
        try:
            await _serve_internal(cell, actor, (kind, payload.message, incarnation, item[3]))
        except BaseException:
            if cell.inflight_internal is not None:
                cell.inflight_internal = item  # It is delivered again as it was sent.
            raise
        finally:
            leave()
        return
    cell.inflight_internal = item
    if kind == ANSWER:
        names, answer = payload
        if names:
            STANCE.set(((*names, cell), cell.role))
        result = actor.on_answer(answer)
    elif kind == ENDED:
        names = ()
        result = actor.on_ended(payload)
    elif kind == REMIND:
        names = ()
        result = deliver_reminder(cell, actor, payload, item[3])
    else:
        names = ()
        result = actor.on_receive(payload)
    if result.__class__ is CoroutineType:
        watched = cell.system.debug and cell.role is not None
        await (one_checkpoint(result, cell) if watched else result)
    if names:
        STANCE.set(cell.base)
    if kind == REMIND and cell.inflight_internal is not None:
        cell.system.reminders.handled(payload)
    cell.inflight_internal = None
    if kind == TELL:
        cell.handled += 1


def _take_pill(cell: Cell, target: Target) -> None:
    if cell.pills is None:
        cell.pills = []
    cell.pills.append(target)
    cell.box.count_pill(-1)


async def serve_owed(cell: Cell, actor: TrioActor) -> None:
    """Serve the internal lane until no reply is owed, or a stop now comes."""
    box = cell.box
    # A stop now is seen before the lane is, so that an answer may wait there that nobody tells of
    # any more: slept over, what it pays for would be a dead letter after the whole shutdown time.
    box.urgent = True
    expires_at = -math.inf
    while any(not target.settled for target in cell.owed):
        if box.urgent:
            if await _serve_urgent(cell, actor) is not None:
                return
            await checkpoint()  # A lane that feeds itself must not hold the loop.
            continue
        if expires_at <= trio.current_time():
            expires_at = _expires_at(cell)
        with trio.move_on_at(expires_at):
            await _wait_internal(cell)


def _expires_at(cell: Cell) -> float:
    """When the first ask that is owed a reply has expired, of which nobody tells the actor."""
    waiting = (target._deadline for target in cell.owed if not target.settled)
    first = min(waiting, default=math.inf)
    left_s = max(0.0, first - cell.system.wheel.now())
    return trio.current_time() + left_s + 1.5 / TICKS_PER_S


async def _wait_internal(cell: Cell) -> None:
    """Sleep until the internal lane or a reply handle stirs."""
    box = cell.box
    box.attention = True
    if box.urgent:
        box.attention = False
        await checkpoint()
    else:
        box.parked = current_task()
        await wait_task_rescheduled(box)


def _attribute(root: Any, path: Any) -> Any:
    for name in path:
        root = getattr(root, name)
    return root


def _not_later(cell: Cell) -> RuntimeError:
    return RuntimeError(f"{cell} returned LATER without taking a reply handle by later()")
