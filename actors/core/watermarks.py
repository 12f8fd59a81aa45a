"""The high and the low mark of a mailbox: one event each time it fills, and empties again.

While the mailbox is below its high mark, `room` ends just under that mark, so that the message that
reaches it takes the slow path and is noticed; above, the consumer looks each time it has taken some
(`watched`). Neither costs a message that reaches no mark anything.

Invariants:
    I1. Events alternate: high, low, high, ..., whatever threads cross the marks.
    I2. Both are emitted on the loop thread. A crossing by a host thread is announced there soon
        after; until it is, the level is CROSSED, and no low is emitted.
    I3. The level of a mailbox without marks is BELOW for ever.

`rose` runs on any thread, the rest on the loop thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .events import MailboxHigh, MailboxLow

if TYPE_CHECKING:
    from .room import Room

BELOW: Final = 0
CROSSED: Final = 1
ABOVE: Final = 2


def rose(box: Room) -> None:
    """Look whether the high mark was reached. Any thread."""
    high = box.terms.high
    if not high or box.level != BELOW or box.load < high:
        return
    system = box.cell.system
    with system.lock:
        if box.level != BELOW:
            return
        box.level = CROSSED
    box.set_room()
    system.on_loop(_announce, box)


def _announce(box: Room) -> None:
    """Emit that the mark was reached. May run under run_sync_soon: it does not raise."""
    box.level = ABOVE
    _emit(box, MailboxHigh)
    # The consumer may have emptied the lane, and gone to sleep, before this could be said.
    box.watched = True
    box.shrank()


def fell(box: Room) -> None:
    """Look whether the low mark was reached, after the high one was."""
    if box.level == ABOVE and box.load <= box.terms.low:
        box.level = BELOW
        box.set_room()
        _emit(box, MailboxLow)


def _emit(box: Room, kind: type[MailboxHigh | MailboxLow]) -> None:
    box.cell.system.emit(
        kind,
        subject=box.cell.key,
        incarnation=box.cell.incarnation,
        depth=box.load,
        capacity=box.capacity,
    )
