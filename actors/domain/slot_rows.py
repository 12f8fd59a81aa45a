"""Reading a slot's rows: what the slot actor, a turn's compile and a transcript share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from abeyance.storage.errors import StorageError, UnreadableRecordError
from abeyance.storage.store import Store
from abeyance.storage.tables.blocks import Block
from abeyance.storage.tables.ownership import Owner
from abeyance.storage.tables.slots import Cut, Entry, Inboxed, body_key

from .ingress import identity
from .slot_messages import PlacedRow


def read_owner(store: Store, slot: str) -> tuple[Owner | None, int]:
    """The slot's owner row and its counter, as stored."""
    row = store.get("owners", ("slot", slot))
    return (None, 0) if row is None else (row.record, row.counter)


def check_agent_rows(store: Store, agent: str) -> None:
    """Read what an agent goes on from: its head, its open turn, and its wakes.

    Raises:
        UnreadableRecordError: One of them cannot be read; it names the row.
    """
    head = store.get("heads", (agent,))
    if head is not None and head.record.open_turn is not None:
        store.get("turns", (agent, head.record.open_turn))
    for _ in read_rows(store, "wakes", (agent,)):
        pass


def may_join(row: Inboxed, agent: str | None) -> bool:
    """Whether a message may join an agent's live turn: not in words of the turn's own agent, also
    where it is for another that shares the slot."""
    if row.agent == agent or agent is None or not row.injectable:
        return row.injectable
    return identity(row.author) != identity(agent)


def read_cuts(store: Store, slot: str) -> tuple[Cut, ...]:
    """The rewinds of a slot whose rows may still be there."""
    row = store.get("leases", (slot,))
    cuts: tuple[Cut, ...] = () if row is None else row.record.cuts
    return cuts


def spans(cuts: Iterable[Cut], first: int, last: int | None) -> Iterator[tuple[int, int | None]]:
    """The parts of a slot from a place on that no cut took out; the last may have no end."""
    for begin, end in sorted((cut.first, cut.last) for cut in cuts):
        if last is not None and begin > last:
            break
        if begin > first:
            yield first, begin - 1
        first = max(first, end + 1)
    if last is None or first <= last:
        yield first, last


def read_placed(
    store: Store, slot: str, first: int, last: int | None = None, *, limit: int | None = None
) -> list[PlacedRow]:
    """The slot's rows from a sequence on, with their content; without what was rewound."""
    placed: list[PlacedRow] = []
    for begin, end in spans(read_cuts(store, slot), max(first, 1), last):
        left = None if limit is None else limit - len(placed)
        if left is None or left > 0:
            placed += read_span(store, slot, begin, end, limit=left)
    return placed


def read_span(
    store: Store, slot: str, first: int, last: int | None, *, limit: int | None
) -> list[PlacedRow]:
    """The slot's rows of a span as they are stored, rewound or not."""
    placed = []
    for key, row in store.scan("slots", (slot,), after=(slot, first - 1), limit=limit):
        if last is not None and int(key[-1]) > last:
            # Ahead of a look at it: a rewind gets past a row that cannot be read.
            break
        if isinstance(row, Exception):
            raise row
        entry: Entry = row.record
        placed.append(PlacedRow(int(key[-1]), entry, read_content(store, slot, entry)))
    return placed


def read_standing(
    store: Store, slot: str, cuts: Iterable[Cut], **how: Any
) -> Iterator[tuple[int, Entry]]:
    """Places and rows of a slot that no rewind took out; one of them that is unreadable raises."""
    for key, row in store.scan("slots", (slot,), **how):
        seq = int(key[-1])
        if any(cut.first <= seq <= cut.last for cut in cuts):
            continue
        if isinstance(row, Exception):
            raise row
        yield seq, row.record


def find_results(store: Store, slot: str, agent: str, turn: int, round_: int) -> int | None:
    """The place of a round's results, nearly the last of a turn that runs; None: it has none."""
    for key, entry in read_rows(store, "slots", (slot,), reverse=True):
        if (entry.author, entry.turn, entry.round, entry.role) == (agent, turn, round_, "results"):
            return int(key[-1])
        if entry.author == agent and entry.turn is not None and entry.turn < turn:
            return None
    return None


def speaks(agent: str | None, entry: Entry) -> bool:
    """Whether a reply is of an agent's own; None is every agent. What a fork took over is."""
    return agent is None or entry.origin is not None or identity(entry.author) == identity(agent)


def read_last(store: Store, slot: str) -> tuple[Block, ...]:
    """The content of the slot's last row."""
    for _, entry in read_rows(store, "slots", (slot,), reverse=True, limit=1):
        return read_content(store, slot, entry)
    return ()


def read_content(store: Store, slot: str, entry: Entry) -> tuple[Block, ...]:
    """What a row says: an edit's words, or what a fork took over from where it came from."""
    return read_body(store, *body_key(slot, entry))


def read_body(store: Store, slot: str, entry: int) -> tuple[Block, ...]:
    row = store.get("bodies", (slot, entry))
    if row is None:
        raise LookupError(f"slot {slot!r} names entry {entry}, which has no body")
    blocks: tuple[Block, ...] = row.record.blocks
    return blocks


def find_body(store: Store, slot: str, entry: int) -> tuple[Block, ...] | StorageError:
    """The same; or why it cannot be read."""
    try:
        return read_body(store, slot, entry)
    except LookupError:
        return no_body((slot, entry))
    except StorageError as error:
        return error


def no_body(key: Any) -> UnreadableRecordError:
    """What is said of content whose row is not there."""
    return UnreadableRecordError(
        f"row {key!r} of table bodies is not there; other rows stand; see 'abeyance check', and "
        "restore this row from a copy",
        table="bodies",
        key=key,
        cause="no row",
    )


def read_rows(
    store: Store, table: str, prefix: Any, **how: Any
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Keys and records; an unreadable row raises its error here."""
    for key, row in store.scan(table, prefix, **how):
        if isinstance(row, Exception):
            raise row
        if row is not None:
            yield key, row.record
