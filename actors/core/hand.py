"""What a cell has in hand: the envelope that is handled, replies it owes, what was stashed.

An envelope that was taken from the user lane is in flight, owed, stashed or returned until it has
ended; here it goes from one to the other.

Invariants:
    I1. None is lost or doubled on the way: what `_in_hand` counts is the same before and after.
    I2. An envelope is owed or stashed, never both.

Runs on the loop thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .envelope import SETTLED, STASHED, TELL, Aged, Envelope
from .future import Target, Unasked

if TYPE_CHECKING:
    from .cell import Cell

NOTHING_OWED: Final[dict[Target, Envelope]] = {}
"""What cells share that never owed anything, as most never do. Only `owe` puts into `cell.owed`."""


def owe(cell: Cell) -> tuple[Target, bool]:
    """Register the in-flight envelope as owed; return its target and whether it was settled.

    Raises:
        RuntimeError: Not on the loop thread, or no handler of a message runs.
    """
    cell.system.check_loop()
    envelope = cell.inflight
    if envelope is None:
        raise RuntimeError("later() belongs in a handler of a message, before it returns")
    message, target, deliveries = envelope
    if deliveries == STASHED:
        raise RuntimeError("the message was stashed; its reply is for the next handler of it")
    if target is None:
        target = Unasked()
    # Another one, as by every change: where it is still the one that was taken, the hot loop has
    # nothing to look into.
    cell.inflight = envelope = (message, target, deliveries)
    if deliveries != SETTLED:
        note_owed(cell, target, envelope)
    return target, deliveries == SETTLED


def note_owed(cell: Cell, target: Target, envelope: Envelope) -> None:
    """Register an envelope that was taken as owed."""
    if cell.owed is NOTHING_OWED:
        cell.owed = {}
    if not cell.owed:
        cell.owed_since = taken_since(cell, envelope)
    elif envelope[2].__class__ is Aged:
        cell.owed_since = min(cell.owed_since, taken_since(cell, envelope))
    cell.owed[target] = envelope


def taken_since(cell: Cell, envelope: Envelope) -> float:
    """After which instant an envelope came that is in flight."""
    deliveries = envelope[2]
    return deliveries.since if isinstance(deliveries, Aged) else cell.box.since


def release(cell: Cell, target: Target) -> bool:
    """Take an owed, queued-again or in-flight envelope as handled. False if it has ended."""
    found = cell.owed.pop(target, None) is not None or _unqueue(cell, target)
    inflight = cell.inflight
    if inflight is not None and inflight[1] is target and inflight[2] != SETTLED:
        cell.inflight = (inflight[0], target, SETTLED)
        found = True
    if found:
        cell.handled += 1
        # Those that have expired are owed to nobody who waits.
        if cell.state == "stopping" and all(each.settled for each in cell.owed):
            cell.box.wake()
        if cell.idle is not None:
            cell.settle_idle()
    return found


def _unqueue(cell: Cell, target: Target) -> bool:
    """Take the envelope of an ask out of the lane where it waits to be handled again, if it is."""
    for lane in (cell.box.returned, cell.box.stashed):
        if not lane:
            continue
        for place, envelope in enumerate(lane):
            if envelope[1] is target:
                del lane[place]
                cell.box.set_room()
                if cell.box.watched:
                    cell.box.shrank()
                return True
    return False


def stash(cell: Cell) -> None:
    """Put the in-flight envelope aside.

    Raises:
        RuntimeError: Not on the loop thread; or no handler of a message runs, or its reply handle
            was taken.
    """
    cell.system.check_loop()
    envelope = cell.inflight
    if envelope is None:
        raise RuntimeError("stash() belongs in a handler of a message, before it returns")
    message, target, deliveries = envelope
    if deliveries < 0 or target in cell.owed:
        raise RuntimeError("the message was stashed already, or its reply handle was taken")
    if cell.box.closed:
        raise RuntimeError(f"{cell} has ended; nothing is handled again")
    before = _in_hand(cell)
    cell.box.put_aside(envelope)
    cell.inflight = (message, target, STASHED)
    assert _in_hand(cell) == before  # I1


def unstash(cell: Cell) -> int:
    """Put back first in line what was stashed, but for what its running handler stashed.

    Raises:
        RuntimeError: Not on the loop thread.
    """
    cell.system.check_loop()
    inflight = cell.inflight
    before = _in_hand(cell)
    count = cell.box.put_back(int(inflight is not None and inflight[2] == STASHED))
    assert _in_hand(cell) == before  # I1
    return count


def take_back(cell: Cell) -> None:
    """Take the in-flight envelope out of the stash where its handler, which failed, put it."""
    inflight = cell.inflight
    if inflight is None or inflight[2] != STASHED:
        return
    stashed = cell.box.stashed
    if stashed:
        assert stashed[-1][0] is inflight[0]
        cell.inflight = stashed.pop()
        cell.box.set_room()
    else:  # The cell ended while the handler was shielded: it is a dead letter.
        cell.inflight = (inflight[0], inflight[1], SETTLED)


def _in_hand(cell: Cell) -> int:
    """How many envelopes are where only the loop thread moves them (I1)."""
    box, inflight = cell.box, cell.inflight
    return (
        len(box.returned or ())
        + len(box.stashed or ())
        + len(cell.owed)
        + int(inflight is not None and inflight[2] >= 0 and inflight[1] not in cell.owed)
    )


def in_hand(cell: Cell) -> int:
    """How many accepted envelopes it has, each once, whatever its handler does with it. Any thread.

    Timers and answers are none: nobody accepted them.
    """
    item = cell.inflight_internal
    internal = int(item is not None and item[0] == TELL)
    return cell.box.queued + _in_hand(cell) + internal


def accounted(cell: Cell) -> int:
    """How many envelopes have ended or are held: the right side of I5, between two handlers."""
    return cell.handled + cell.dead + cell.quarantined + cell.box.queued + _in_hand(cell)
