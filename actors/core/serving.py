"""Serving a mailbox: the loop that takes envelopes and calls handlers.

Control flags and the internal lane come first (`urgent`), then redelivered envelopes, then the user
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

from types import CoroutineType
from typing import TYPE_CHECKING, Any

from trio.lowlevel import checkpoint, current_task, wait_task_rescheduled

from .asks import STANCE
from .carried import Traced
from .deliveries import counted
from .envelope import (
    LATER,
    NEVER,
    SETTLED,
    STASHED,
    StopPill,
)
from .errors import ActorCrashError
from .expiry import until_expired
from .future import PENDING, Target, Unasked
from .hand import take_back
from .logs import Log
from .proxies import SPECIAL, proxied
from .reporting import log_returned
from .settling import STOPPED, bury_one
from .urgent import BATCH_S, LOOK_EVERY, serve_suspended, serve_urgent
from .watchdog import one_checkpoint

if TYPE_CHECKING:
    from .actor import TrioActor
    from .cell import Cell

logger = Log("abeyance.core")


async def serve(cell: Cell, actor: TrioActor) -> str:
    """Handle messages until the incarnation is to stop; return how.

    The one hot loop of the kernel: what it does for every message is looked at in nanoseconds.
    """
    box = cell.box
    user = box.user
    receive: Any = counted(cell, actor.on_receive)
    clock = cell.system.stopwatch
    ages = cell.system.ages
    apart = ages is not clock  # A batch's time is the machine's, whatever trio's clock is.
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
    mark = ages()
    ahead = len(user)
    while True:
        source = box.returned or user
        # Together the messages handled since the batch began or `cell.handled` was brought up to
        # date: `look` counts each, `handled` the full rounds of it, less what was no such message.
        handled = 0
        look = 0
        began = clock()
        box.until = until = began + BATCH_S
        if apart:
            began = ages()
        box.looked = began
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
                        how = await serve_urgent(cell, actor)
                        if how is None and box.suspended:
                            how = await serve_suspended(cell, actor)
                        if how is not None:
                            return how
                        if clock() > until:  # The lane took the batch's time, or more.
                            await checkpoint()
                            box.until = until = clock() + BATCH_S
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
                if look == LOOK_EVERY:
                    handled += LOOK_EVERY
                    look = 0
                    if len(user) > box.peak:
                        box.peak = len(user)
                    if box.watched:
                        box.shrank()
                    now = looked = clock()
                    if apart:
                        looked = ages()
                    box.looked = looked
                    if source is user:
                        ahead -= LOOK_EVERY
                        if ahead <= 0:
                            box.since = mark
                            mark = looked
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


def _take_pill(cell: Cell, target: Target) -> None:
    if cell.pills is None:
        cell.pills = []
    cell.pills.append(target)
    cell.box.count_pill(-1)


def _not_later(cell: Cell) -> RuntimeError:
    return RuntimeError(f"{cell} returned LATER without taking a reply handle by later()")
