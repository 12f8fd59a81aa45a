"""Reading what stands for the older rows of a slot, and what may: no actor, nothing is written.

Invariants:
    I1  A summary stands exactly as long as its last row is in the transcript, and none of its rows
        was edited since they were read. A rewind cuts off the end of a slot, so whichever of its
        rows is cut off, the last one is, too.
    I2  What cannot be read stands for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.store import Key, Store
from abeyance.storage.tables.blocks import ToolUseBlock
from abeyance.storage.tables.contexts import Context
from abeyance.storage.tables.slots import Cut, Entry

from .context import Summary
from .errors import InvalidInputError
from .slot_edit_book import Recast, read_recast
from .slot_rows import read_content, read_cuts

SUMMARIES_KEPT: Final = 4
"""Of each agent and slot: the newest, and those that a rewind may fall back to."""
PAGE: Final = 64

Unreadable = Callable[[int, UnreadableRecordError], None]


def summary_of(last: int, record: Context) -> Summary:
    return Summary(last, record.first, record.text, record.strategy, record.made_ms)


def record_of(summary: Summary, revision: int) -> Context:
    return Context(
        first=summary.first,
        text=summary.text,
        strategy=summary.strategy,
        made_ms=summary.made_ms,
        revision=revision,
    )


def read_summary(store: Store, slot: str, agent: str, last: int) -> Summary | None:
    """The summary that ends at a place, whether or not it still stands.

    Raises:
        UnreadableRecordError: It cannot be read.
    """
    row = store.get("contexts", (slot, agent, last))
    return None if row is None else summary_of(last, row.record)


def read_summaries(
    store: Store, slot: str, agent: str, unreadable: Unreadable
) -> Iterator[Summary]:
    """The summaries that stand, the newest first, each read when it is asked for."""
    after: Key | None = None
    while True:
        page = list(store.scan("contexts", (slot, agent), after=after, limit=1, reverse=True))
        if not page:
            return
        ((key, row),) = page
        after, last = key, int(key[-1])
        if isinstance(row, UnreadableRecordError):
            unreadable(last, row)
        elif isinstance(row, Exception):
            raise row
        elif stands(store, slot, last, read_cuts(store, slot)) and not is_outdated(
            read_recast(store, slot), last, row.record.revision
        ):
            yield summary_of(last, row.record)


def stands(store: Store, slot: str, last: int, cuts: Sequence[Cut]) -> bool:
    """Whether a row is part of the transcript, and with it what stands up to it (I1)."""
    if any(cut.first <= last <= cut.last for cut in cuts):
        return False
    try:
        return store.get("slots", (slot, last)) is not None
    except UnreadableRecordError:
        return True  # It is there.


def is_outdated(recast: Recast, last: int, revision: int) -> bool:
    """Whether a row of those up to a place was edited since a revision."""
    return any(place <= last and number > revision for place, number in recast)


def revision_of(recast: Recast) -> int:
    """The number of the last edit."""
    return max((number for _, number in recast), default=0)


def coverable(store: Store, slot: str) -> int:
    """The last place a summary may stand for: that of the newest reply of a turn.

    What is in front of a reply was in the request that it answers; what is behind it was not read
    yet, or may still be replaced or taken back by whoever sent it.
    """
    cuts, after = read_cuts(store, slot), None
    while True:
        at: Key | None = None
        for key, row in store.scan("slots", (slot,), after=after, limit=PAGE, reverse=True):
            at, seq = key, int(key[-1])
            if any(cut.first <= seq <= cut.last for cut in cuts):
                continue
            if isinstance(row, Exception):
                raise row
            entry: Entry = row.record
            if entry.role == "assistant" and entry.turn is not None:
                return seq if not _calls(store, slot, entry) else seq - 1
        if at is None:
            return 0
        after = at


def check_cover(store: Store, slot: str, last: object) -> int:
    """The place up to which a summary is to stand, or a refusal of it.

    Raises:
        InvalidInputError: It is none, or none may stand up to there.
    """
    if isinstance(last, bool) or not isinstance(last, int) or last < 1:
        raise InvalidInputError("last", f"must be a place from 1, not {last!r:.40}")
    bound = coverable(store, slot)
    if last > bound:
        raise InvalidInputError(
            "last", f"must be at most {bound}, the newest place that the model answered behind"
        )
    row = store.get("slots", (slot, last))
    if row is None or not stands(store, slot, last, read_cuts(store, slot)):
        raise InvalidInputError("last", f"the transcript has no row at place {last}")
    if row.record.role == "assistant" and _calls(store, slot, row.record):
        raise InvalidInputError("last", f"the row at place {last} calls tools, and results follow")
    return last


def first_place(store: Store, slot: str) -> int:
    """The place of the transcript's first row."""
    cuts = read_cuts(store, slot)
    after: Key | None = None
    while True:
        at: Key | None = None
        for key, _ in store.scan("slots", (slot,), after=after, limit=PAGE):
            at, seq = key, int(key[-1])
            if not any(cut.first <= seq <= cut.last for cut in cuts):
                return seq
        if at is None:
            return 1
        after = at


def open_context(store: Store, agent: str) -> int | None:
    """Up to which place the agent's open turn has a summary in its requests."""
    head = store.get("heads", (agent,))
    if head is None or head.record.open_turn is None:
        return None
    turn = store.get("turns", (agent, head.record.open_turn))
    found: int | None = None if turn is None else turn.record.context
    return found


def _calls(store: Store, slot: str, entry: object) -> bool:
    content = read_content(store, slot, entry)  # type: ignore[arg-type]
    return any(isinstance(block, ToolUseBlock) for block in content)


def kept_places(store: Store, slot: str, agent: str) -> list[int]:
    """The places of all that is kept, the newest first, whether or not it stands."""
    found = store.scan("contexts", (slot, agent), reverse=True)
    return [place for key, _ in found if isinstance(place := key[-1], int)]
