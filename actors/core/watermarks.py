"""The high and the low mark of a mailbox: one event each time it fills, and empties again.

While the mailbox is below its high mark, `room` ends just under that mark, so that the message that
reaches it takes the slow path and is noticed; above, the consumer looks each time it has taken some
(`watched`). Neither costs a message that reaches no mark anything.

Invariants:
    I1. Events alternate: high, low, high, ..., whatever threads cross the marks.
    I2. Both are emitted on the loop thread. A crossing by a host thread is announced there soon
        after; until it is, the level is CROSSED, and no low is emitted.

`rose` runs on any thread, the rest on the loop thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .events import MailboxHigh, MailboxLow

if TYPE_CHECKING:
    from .mailbox import Mailbox

HIGH_MARK: Final = 0.8
LOW_MARK: Final = 0.5
"""Parts of the capacity: the marks of a class that says nothing."""

BELOW: Final = 0
CROSSED: Final = 1
ABOVE: Final = 2


class Watermarks:
    """The marks of one mailbox, and on which side of them it is."""

    __slots__ = ("_box", "high", "level", "low")

    def __init__(self, box: Mailbox, high: int, low: int) -> None:
        self._box = box
        self.high = high
        self.low = low
        self.level = BELOW

    def rose(self) -> None:
        """Look whether the high mark was reached. Any thread."""
        box = self._box
        if self.level != BELOW or box.load < self.high:
            return
        system = box.cell.system
        with system.lock:
            if self.level != BELOW:
                return
            self.level = CROSSED
        box.set_room()
        system.on_loop(self._announce)

    def _announce(self) -> None:
        """Emit that the mark was reached. May run under run_sync_soon: it does not raise."""
        box = self._box
        self.level = ABOVE
        self._emit(MailboxHigh)
        # The consumer may have emptied the lane, and gone to sleep, before this could be said.
        box.watched = True
        box.shrank()

    def fell(self) -> None:
        """Look whether the low mark was reached, after the high one was."""
        box = self._box
        if self.level == ABOVE and box.load <= self.low:
            self.level = BELOW
            box.set_room()
            self._emit(MailboxLow)

    def _emit(self, kind: type[MailboxHigh | MailboxLow]) -> None:
        box = self._box
        box.cell.system.emit(
            kind,
            subject=box.cell.key,
            incarnation=box.cell.incarnation,
            depth=box.load,
            capacity=box.capacity,
        )


def make_marks(box: Mailbox, high: int | None, low: int | None) -> Watermarks | None:
    """Return the marks an actor class asks for; None where its high mark is 0.

    Raises:
        ValueError: They do not lie in order within the capacity.
    """
    if high == 0:
        return None
    if high is None:
        high = max(1, int(box.capacity * HIGH_MARK))
    if not 1 <= high <= box.capacity:
        raise ValueError(f"mailbox_high must be within 0 and the capacity, not {high!r}")
    if low is None:
        low = min(high - 1, int(box.capacity * LOW_MARK))
    if not 0 <= low < high:
        raise ValueError(f"mailbox_low must be at least 0 and below mailbox_high, not {low!r}")
    return Watermarks(box, high, low)
