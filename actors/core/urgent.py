"""What comes before the user lane: control flags, and the internal lane.

They are served between two messages, and alone while the user lane is not served: of an actor that
is suspended, and of one that stops and still owes replies.

Invariants:
    I1. A pass serves at most what the internal lane held when it began, for a batch's time, and
        control flags are as many as there are bits: neither can starve who comes after.
    I2. Where the user lane is not served, other tasks run between two passes.

Runs in the cell's task.
"""

from __future__ import annotations

import math
from types import CoroutineType
from typing import TYPE_CHECKING, Final

import trio
from trio.lowlevel import checkpoint, current_task, wait_task_rescheduled

from .asks import STANCE
from .carried import Traced
from .deliveries import deliver_reminder, reminder_returned
from .envelope import ANSWER, ENDED, REMIND, TELL, Internal
from .mailbox import HALT, KILL, STOP_NOW
from .settling import HALTED, STOPPED_NOW
from .watchdog import one_checkpoint
from .wheel import TICKS_PER_S

if TYPE_CHECKING:
    from .actor import TrioActor
    from .cell import Cell

BATCH_S: Final = 0.001
"""How long a batch may hold the loop before other tasks run."""

LOOK_EVERY: Final = 8
"""Messages between two looks at the time: a look costs a tenth of a message."""


async def serve_urgent(cell: Cell, actor: TrioActor) -> str | None:
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
        clock = cell.system.stopwatch
        until = clock() + BATCH_S
        for count in range(1, len(lane) + 1):
            await _serve_internal(cell, actor, lane.popleft())
            if box.control or (count % LOOK_EVERY == 0 and clock() > until):
                break
        if lane or box.control:
            box.urgent = True
    return None


async def serve_suspended(cell: Cell, actor: TrioActor) -> str | None:
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
            how = await serve_urgent(cell, actor)
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
        reminder_returned(cell, payload)
    cell.inflight_internal = None
    if kind == TELL:
        cell.handled += 1


async def serve_owed(cell: Cell, actor: TrioActor) -> None:
    """Serve the internal lane until no reply is owed, or a stop now comes."""
    box = cell.box
    # A stop now is seen before the lane is, so that an answer may wait there that nobody tells of
    # any more: slept over, what it pays for would be a dead letter after the whole shutdown time.
    box.urgent = True
    expires_at = -math.inf
    while any(not target.settled for target in cell.owed):
        if box.urgent:
            if await serve_urgent(cell, actor) is not None:
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
