"""Which view a turn that starts is compiled with, planned: frozen for as long as it must be.

Invariants:
    I1  Once a round of a turn is recorded its view stays, whatever was kept since and however often
        the turn is taken up; it is another one only where what it stands on is gone, or where its
        request was too long for the model, once.
    I2  A view that is granted stands on a row that is part of the transcript then.

No actor, no await.
"""

from __future__ import annotations

from msgspec.structs import replace

from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.tables.slots import Turn

from .context_rows import is_outdated
from .slot_book import SlotBook
from .slot_messages import StartTurn


def fresh_view(book: SlotBook, start: StartTurn) -> int | None:
    """The view that was chosen for a fresh compile; None where a rewind or an edit was faster."""
    last = start.context
    if last is None or book.is_cut(last):
        return None
    recast = book.edits.recast
    if recast:
        try:
            row = book.store.get("contexts", (book.slot, start.agent, last))
        except UnreadableRecordError:
            return None
        if row is None or is_outdated(recast, last, row.record.revision):
            return None
    return last


def in_view(book: SlotBook, turn: Turn, start: StartTurn) -> tuple[Turn, int | None]:
    """An open turn in the view that it goes on with, and the summary that cannot be read."""
    last, unreadable = turn.context, None
    # A live turn asked for a call before its first reply, too; a held one asks anew.
    frozen = turn.round > 0 or turn.state == "running"
    if turn.held is not None and turn.held.cause == "context":
        frozen = False
    if frozen and last is None:
        return turn, None
    if frozen and last is not None and not book.is_cut(last):
        try:
            row = book.store.get("contexts", (book.slot, start.agent, last))
            if row is not None and not is_outdated(book.edits.recast, last, row.record.revision):
                return turn, None
        except UnreadableRecordError:
            unreadable = last
    found = fresh_view(book, start)
    if found == last:
        return turn, None
    return replace(turn, context=found, compiled_round=turn.round), unreadable
