"""Reading a slot's rows: what the slot actor, a turn's compile and a transcript share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from abeyance.storage.store import Store
from abeyance.storage.tables.blocks import Block
from abeyance.storage.tables.ownership import Owner

from .slot_messages import PlacedRow


def read_owner(store: Store, slot: str) -> tuple[Owner | None, int]:
    """The slot's owner row and its counter, as stored."""
    row = store.get("owners", ("slot", slot))
    return (None, 0) if row is None else (row.record, row.counter)


def read_placed(
    store: Store, slot: str, first: int, last: int | None = None, *, limit: int | None = None
) -> list[PlacedRow]:
    """The slot's rows from a sequence on, with their content."""
    placed = []
    after = (slot, first - 1) if first > 0 else None
    for key, entry in read_rows(store, "slots", (slot,), after=after, limit=limit):
        if last is not None and int(key[-1]) > last:
            break
        placed.append(PlacedRow(int(key[-1]), entry, read_body(store, slot, entry.entry)))
    return placed


def read_boundary(store: Store, slot: str, agent: str, turn: int, round_: int) -> list[PlacedRow]:
    """What a boundary placed last: the round's results and what was injected behind them."""
    for key, entry in read_rows(store, "slots", (slot,), reverse=True):
        if (entry.author, entry.turn, entry.round, entry.role) == (agent, turn, round_, "results"):
            return read_placed(store, slot, int(key[-1]))
    return []


def read_last(store: Store, slot: str) -> tuple[Block, ...]:
    """The content of the slot's last row."""
    for _, entry in read_rows(store, "slots", (slot,), reverse=True, limit=1):
        return read_body(store, slot, entry.entry)
    return ()


def read_body(store: Store, slot: str, entry: int) -> tuple[Block, ...]:
    row = store.get("bodies", (slot, entry))
    if row is None:
        raise LookupError(f"slot {slot!r} names entry {entry}, which has no body")
    blocks: tuple[Block, ...] = row.record.blocks
    return blocks


def read_rows(
    store: Store, table: str, prefix: Any, **how: Any
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Keys and records; an unreadable row raises its error here."""
    for key, row in store.scan(table, prefix, **how):
        if isinstance(row, Exception):
            raise row
        if row is not None:
            yield key, row.record
