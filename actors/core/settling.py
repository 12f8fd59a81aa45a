"""Settling: what becomes of envelopes when an incarnation, a cell or the run ends.

| the envelope was | at most once | at least once | the actor stopped |
|---|---|---|---|
| in flight | quarantined | back, first, counted | – |
| in flight, past its last delivery | – | quarantined, or stays in a parked group | – |
| owed a reply | dead letter, outcome unknown | back, before all others, uncounted | dead letter |
| stashed | back, behind those owed, uncounted | the same | dead letter |
| queued | stays | stays | dead letter |
| back after a crash | – | stays | quarantined, with what its handler crashed with |

Where a directive resumes, the message in flight is quarantined, and all others stay as they were.

An asker gets the error that crashed its handler; `OutcomeUnknownError` where the handler was killed
or the reply was owed; `ActorDeadError` with a dead letter of an actor that stopped.

Invariants:
    I1. Every path takes the envelope out of where it was before it settles its target.
    I2. A target that is settled already changes nothing here but the count.
    I3. What a message's handler crashed with is not lost: it is handled, or quarantined with that.

`bury`, `bury_one`, `drop`, `drop_internal` and `quarantine` run on any thread, the rest on the loop
thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from .carried import bare
from .deadletters import DeadLetter, Quarantined
from .envelope import (
    ANSWER,
    NEVER,
    REMIND,
    SETTLED,
    TELL,
    TIMER,
    Cause,
    Envelope,
    Internal,
    Reminder,
    StopPill,
    aged,
    cause_of,
    opened,
)
from .errors import (
    ActorDeadError,
    ActorKilledError,
    DeliveriesSpentError,
    MailboxFullError,
    MessageCoalescedError,
    OutcomeUnknownError,
)
from .future import Target
from .hand import take_back, taken_since

if TYPE_CHECKING:
    from .cell import Cell

# What ended an incarnation.
STOPPED: Final = "stopped"
STOPPED_NOW: Final = "stopped_now"
HALTED: Final = "halted"
CRASHED: Final = "crashed"


class Exit(NamedTuple):
    """How an incarnation ended.

    Attributes:
        kind: `stopped`, `stopped_now`, `halted` (by its supervisor, to run again) or `crashed`.
        error: What it crashed with.
        counts: Whether the crash counts towards the intensity: one of a redelivered message does
            not, as it is bounded by max_deliveries already.
        poison: Whether a message went past max_deliveries in an actor that parks on it.
    """

    kind: str
    error: BaseException | None = None
    counts: bool = True
    poison: bool = False


@trio.lowlevel.enable_ki_protection  # Cut off half way, it would lose what it moves.
def settle_exit(cell: Cell, how: str | None, error: BaseException | None) -> Exit:
    """Settle the in-flight envelope and what is owed, and say how the incarnation ended."""
    if error is not None:
        cell.last_error = error
        cell.failed_ms = cell.system.clock.now_ms()
    if how is None:
        assert error is not None
        counts, poison = _settle_inflight(cell, error)
        return Exit(CRASHED, error, counts, poison)
    # It was to end, so whatever happened on the way out is no crash to its supervisor.
    if error is not None and cell.inflight_internal is not None:
        _settle_inflight(cell, error)
    elif how == HALTED:
        _bring_back(cell, None)
    else:
        bury_owed(cell)
        _bring_back(cell, None)
    return Exit(how)


def _settle_inflight(cell: Cell, error: BaseException) -> tuple[bool, bool]:
    take_back(cell)
    item, cell.inflight_internal = cell.inflight_internal, None
    envelope, cell.inflight = cell.inflight, None
    counts, poison = True, False
    if item is not None:
        counts, poison = _settle_inflight_internal(cell, item, error)
    redelivered: Envelope | None = None
    if envelope is not None and envelope[2] != SETTLED:
        message, target, deliveries = envelope
        if target is not None:
            cell.owed.pop(target, None)
        since = taken_since(cell, envelope)
        counts = deliveries == 0
        deliveries = error.deliveries if isinstance(error, DeliveriesSpentError) else deliveries + 1
        cause = Cause(error, cell.incarnation, deliveries)
        if deliveries < cell.actor_class.max_deliveries:
            redelivered = aged((message, target, deliveries), since, cause)
        elif cell.actor_class.max_deliveries > 1 and cell.actor_class.past_deliveries == "park":
            redelivered, poison = aged((message, target, 0), since, cause), True
        else:
            quarantine(cell, message, target, deliveries, error)
    _bring_back(cell, redelivered)
    return counts, poison


def _settle_inflight_internal(
    cell: Cell, item: Internal, error: BaseException
) -> tuple[bool, bool]:
    kind, payload, incarnation, deliveries = item
    if kind == TIMER or (kind != TELL and incarnation):
        return True, False  # It dies with the incarnation.
    counts = deliveries == 0
    deliveries = error.deliveries if isinstance(error, DeliveriesSpentError) else deliveries + 1
    parks = cell.actor_class.max_deliveries > 1 and cell.actor_class.past_deliveries == "park"
    if deliveries < cell.actor_class.max_deliveries or parks:
        poison = deliveries >= cell.actor_class.max_deliveries
        assert cell.box.internal is not None
        cause = Cause(error, cell.incarnation, deliveries)
        again = aged((payload, None, 0 if poison else deliveries), NEVER, cause)[2]
        cell.box.internal.appendleft((kind, payload, incarnation, again))
        cell.box.urgent = True
        return counts, poison
    payload = bare(payload)
    message = payload if kind == TELL else payload[1] if kind == ANSWER else payload
    quarantine(cell, message, None, deliveries, error)
    if kind == REMIND:
        cell.system.reminders.handled(payload)
    return counts, False


@trio.lowlevel.enable_ki_protection
def settle_resumed(cell: Cell, error: BaseException) -> None:
    """Settle the message whose handler raised, in an incarnation that goes on.

    It is quarantined however often it might be delivered: to the same state it would fail again.
    What is owed stays owed.
    """
    cell.last_error = error
    cell.failed_ms = cell.system.clock.now_ms()
    take_back(cell)
    item, cell.inflight_internal = cell.inflight_internal, None
    envelope, cell.inflight = cell.inflight, None
    if item is not None:
        kind, payload, incarnation, deliveries = item
        payload = bare(payload)
        if kind in (TELL, REMIND) or (kind == ANSWER and not incarnation):
            message = payload[1] if kind == ANSWER else payload
            quarantine(cell, message, None, deliveries + 1, error)
        if kind == REMIND:
            cell.system.reminders.handled(payload)
    if envelope is not None and envelope[2] != SETTLED:
        message, target, deliveries = envelope
        if target is not None:
            cell.owed.pop(target, None)
        quarantine(cell, message, target, deliveries + 1, error)


def _bring_back(cell: Cell, redelivered: Envelope | None) -> None:
    """Bring back first what is owed, then what was stashed, in order and uncounted, then one."""
    if redelivered is None and not cell.owed and not cell.box.stashed:
        return
    front: list[Envelope] = []
    owed = list(cell.owed.items())
    cell.owed.clear()
    for target, envelope in owed:
        if cell.actor_class.max_deliveries > 1:
            front.append(aged(envelope, cell.owed_since))
            continue
        count_dead(cell, envelope[0], "outcome_unknown")
        target._fail(outcome_unknown(cell, envelope[0]))
    box = cell.box
    stashed, box.stashed = box.stashed, None
    front.extend(stashed or ())
    if redelivered is not None:
        front.append(redelivered)
    if front:
        box.bring_back(front, unstashed=len(stashed or ()))


def bury_owed(cell: Cell) -> None:
    owed = list(cell.owed.values())
    cell.owed.clear()
    for envelope in owed:
        inflight = cell.inflight
        if inflight is not None and inflight[1] is envelope[1]:
            # Its handler is shielded, and what comes of it is no other end of this message.
            cell.inflight = (envelope[0], envelope[1], SETTLED)
        bury_one(cell, envelope, "stopped")


def give_up(cell: Cell) -> None:
    """Make a dead letter of the envelope whose handler ended with its ask's deadline."""
    take_back(cell)
    envelope, cell.inflight = cell.inflight, None
    if envelope is None or envelope[2] == SETTLED:
        return  # Its reply handle was settled before, and counted it.
    if envelope[1] is not None:
        cell.owed.pop(envelope[1], None)
    count_dead(cell, envelope[0], "cancelled")


@trio.lowlevel.enable_ki_protection
def abandon(cell: Cell, exc: BaseException) -> None:
    """Settle what can be settled when the run itself is cancelled or ends with `exc`."""
    cell.last_error = exc
    cell.failed_ms = cell.system.clock.now_ms()
    take_back(cell)
    envelope, cell.inflight = cell.inflight, None
    if envelope is not None and envelope[2] != SETTLED:
        message, target, deliveries = envelope
        if target is not None:
            cell.owed.pop(target, None)
        if cancels(exc):
            count_dead(cell, message, "system_ended")
            if target is not None:
                target._fail(outcome_unknown(cell, message))
        else:
            quarantine(cell, message, target, deliveries + 1, exc)
    cell.settle_started(exc)


def bury(cell: Cell) -> None:
    """Empty the lanes of a closed mailbox. Any thread: each pop is taken by one."""
    box = cell.box
    for lane in (box.returned, box.stashed, box.user):
        while lane:
            try:
                envelope = lane.popleft()
            except IndexError:
                break
            bury_one(cell, envelope, "stopped")
    while box.internal:
        try:
            kind, payload, incarnation, deliveries = box.internal.popleft()
        except IndexError:
            break
        if kind == TELL:
            bury_one(cell, (payload, None, deliveries), "stopped")
        else:
            drop_internal(cell, kind, payload, incarnation, cause_of(deliveries))


def drop(cell: Cell, envelope: Envelope, reason: str) -> None:
    """Make a dead letter of an envelope that an overflow policy drops. Any thread.

    Args:
        cell: Whose it was.
        envelope: Which.
        reason: `overflow` or `coalesced`.
    """
    message, target, _ = envelope
    count_dead(cell, message, reason)
    if target is None:
        return
    if reason == "coalesced":
        target._fail(
            MessageCoalescedError(
                f"a newer message of the same key took this one's place in the mailbox of {cell}; "
                "this one was not handled; ask again if its own reply is needed",
                actor=cell.key,
                message=message,
            )
        )
    else:
        target._fail(
            MailboxFullError(
                f"the mailbox of {cell} overflowed; the message was dropped; send slower",
                actor=cell.key,
                message=message,
                capacity=cell.box.capacity,
            )
        )


def drop_internal(
    cell: Cell, kind: int, payload: Any, incarnation: int, cause: Cause | None = None
) -> None:
    """Count an item that nobody will handle; a fact becomes a dead letter. Any thread.

    Of a fact that crashed its handler the cause is kept, in the quarantine.
    """
    payload = bare(payload)
    with cell.system.lock:
        cell.dropped += 1
    if kind == REMIND:
        cell.system.reminders.undelivered(payload)
    elif kind == ANSWER and not incarnation:
        if cause is None:
            cell.system.dead_letters.record(_letter(cell, payload[1], "fact_undelivered"))
        else:
            _quarantine(cell, payload[1], cause)


def bury_one(cell: Cell, envelope: Envelope, reason: str) -> None:
    message, target, _ = envelope
    if message.__class__ is StopPill:
        assert target is not None
        cell.box.count_pill(-1)
        target._answer(None)
        return
    cause = cause_of(envelope[2])
    if cause is not None:
        quarantine(cell, message, target, cause.deliveries, cause.error, cause.incarnation)
        return
    count_dead(cell, message, reason)
    if target is not None:
        target._fail(
            ActorDeadError(
                f"{cell} stopped before it handled the message; send it elsewhere",
                actor=cell.key,
                message=message,
            )
        )


def count_dead(cell: Cell, message: Any, reason: str) -> None:
    """Count an envelope as a dead letter, and record it. Any thread."""
    box = cell.box
    with cell.system.lock:
        cell.dead += 1
        if box.dead is None:
            box.dead = {}
        box.dead[reason] = box.dead.get(reason, 0) + 1
    cell.system.dead_letters.record(_letter(cell, message, reason))


def _letter(cell: Cell, message: Any, reason: str) -> DeadLetter:
    message, origin = opened(message)
    _forget_act(cell, message)
    return DeadLetter(cell.key, message, reason, cell.system.clock.now_ms(), origin=origin)


def _forget_act(cell: Cell, message: Any) -> None:
    """Take the mark back of a message that is not delivered again."""
    if message.__class__ is Reminder:
        return  # Its port does, once this firing is over for good.
    counts = cell.system.deliveries
    act_id = None if counts is None else getattr(message, "act_id", None)
    if counts is not None and act_id is not None:
        counts.end(cell.key, act_id, handled=False)


def quarantine(
    cell: Cell,
    message: Any,
    target: Target | None,
    deliveries: int,
    error: BaseException,
    incarnation: int | None = None,
) -> None:
    """Keep a message out of its mailbox; its asker gets the error. Any thread.

    Args:
        cell: Whose it was.
        message: Which.
        target: Its asker, if any.
        deliveries: How often a handler was started with it.
        error: What ended the incarnation.
        incarnation: Which; None is the one that ends now.
    """
    _quarantine(cell, message, Cause(error, incarnation or cell.incarnation, deliveries))
    if target is not None:
        if isinstance(error, ActorKilledError):
            target._fail(outcome_unknown(cell, message))
        else:
            target._fail(error)


def _quarantine(cell: Cell, message: Any, cause: Cause) -> None:
    message, origin = opened(message)
    with cell.system.lock:
        cell.quarantined += 1
    _forget_act(cell, message)
    at_ms = cell.system.clock.now_ms()
    error, incarnation, deliveries = cause
    cell.system.quarantine.record(
        Quarantined(cell.key, message, error, incarnation, deliveries, at_ms, origin=origin)
    )


def outcome_unknown(cell: Cell, message: Any) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"an incarnation of {cell} ended before it replied; whether the message took effect "
        "is unknown; ask again only what may happen twice",
        actor=cell.key,
        message=message,
    )


def cancels(exc: BaseException) -> bool:
    """Whether the run is being cancelled, rather than ended by a handler's own exception."""
    return isinstance(exc, trio.Cancelled) or (
        isinstance(exc, BaseExceptionGroup) and exc.subgroup(trio.Cancelled) is not None
    )
