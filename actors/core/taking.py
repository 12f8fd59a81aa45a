"""Taking many small messages in one handler: what each costs is then little more than its own.

Invariants:
    I1. Each message that is taken is one of its own: its envelope is owed, its reply settles it
        alone, and a crash counts for the one that was taken last.
    I2. A run passes its batch's time by less than `LOOK_EVERY` messages.

Runs on the loop thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from .carried import bare
from .future import PENDING, Unasked
from .hand import note_owed, owe
from .replies import Reply
from .urgent import LOOK_EVERY

if TYPE_CHECKING:
    from .cell import Cell

APPENDING: Final = frozenset({"reject", "block", "drop_newest"})
"""The overflow policies by which host threads do nothing to an open user lane but append to it."""


def take_run(cell: Cell, most: int) -> Iterator[tuple[Any, Reply]]:
    """Yield the message in flight and its reply's handle, then those of its kind right behind it.

    One is taken from the user lane when it is asked for: from then on it is in flight, and owed.

    The run ends where the loop that serves the mailbox is to look at it: at what is no ask of just
    this kind, or one that has expired, is part of a chain of asks, or is counted past the end of
    the process; or where something comes before the user lane, or a test's faults between the two;
    where another thread may take from that lane, too: it might take what is looked at here; and
    where the batch's time is over. It is of one message where others would share its handler's end
    with what is not like them: with a tell, whose error is a crash, or with an ask whose deadline
    ends the handler.

    Raises:
        RuntimeError: As `owe`.
    """
    first, over = owe(cell)
    assert cell.inflight is not None
    sent = cell.inflight[0]
    message = bare(sent)
    yield message, Reply(cell, first, over)
    box, kind = cell.box, message.__class__
    if first.__class__ is Unasked or first._cancels or cell.system.faults is not None:
        return
    if message is not sent:  # Those behind it are of other traces, or of none.
        return
    if box.terms.overflow not in APPENDING:
        return
    user, clock = box.user, cell.system.stopwatch
    for count in range(most - 1):
        if not count % LOOK_EVERY and clock() > box.until:
            return
        if not user or box.urgent or box.returned or box.watched or box.closed:
            return
        envelope = user[0]
        message, target, _ = envelope
        if (
            message.__class__ is not kind
            or target is None
            or target._outcome is not PENDING
            or target._chain
            or target._cancels
            or getattr(message, "act_id", None) is not None
        ):
            return
        user.popleft()
        cell.inflight = envelope
        note_owed(cell, target, envelope)
        yield message, Reply(cell, target, False)
