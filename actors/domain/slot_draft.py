"""A request of a slot in the making, and rows whose counters are predicted. No actor, no await.

Invariants:
    I1  A draft writes each key once: the last put of it.
    I2  A row of a predicted counter is put once a draft, and is from then on as it will be stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from abeyance.storage.codec import encode
from abeyance.storage.store import Append, Delete, Guard, Put, Record, Store, Value

from .attachment_rows import Uses
from .slot_forms import Moved, moving_rows
from .slot_long import Op

OPS_A_MOVE: Final = 4
"""Moving one message without its wake: its content is there; out of the inbox, into the slot, its
id row."""


@dataclass(slots=True)
class Counted:
    """A row with the counter it will have once what is planned is in."""

    record: Any
    counter: int

    @classmethod
    def read(cls, store: Store, table: str, key: Any, absent: Any = None) -> Counted:
        row = store.get(table, key)
        return cls(absent, 0) if row is None else cls(row.record, row.counter)


@dataclass(slots=True)
class Draft:
    """A request under construction. The last put of a key is what is written."""

    puts: dict[tuple[str, Any], Put] = field(default_factory=dict)
    deletes: list[Delete] = field(default_factory=list)
    appends: list[Append] = field(default_factory=list)
    moved: list[Moved] = field(default_factory=list)
    """Messages that are many: their rows are made later."""
    writes_lease: bool = False
    guards: tuple[Guard, ...] = ()
    """Beside those of the slot itself."""

    @property
    def ops(self) -> int:
        """What it guards beside the slot's own rows, puts and deletes."""
        ops = len(self.guards) + len(self.puts) + len(self.deletes)
        return ops + OPS_A_MOVE * len(self.moved)

    def put(self, table: str, key: Any, record: Record) -> None:
        self.put_value(table, key, encode(record))

    def put_value(self, table: str, key: Any, value: Value) -> None:
        self.puts[table, key] = Put(table, key, value)

    def rows(self, slot: str) -> Iterator[Op]:
        """What it puts and deletes, the rows of what moves among them."""
        yield from self.puts.values()
        yield from self.deletes
        yield from moving_rows(slot, self.moved)

    def use(self, uses: Uses) -> None:
        """Stand on the attachments that what it puts names."""
        self.guards = (*self.guards, *uses.guards)
        for put in uses.puts:
            self.puts[put.table, put.key] = put

    def put_counted(self, table: str, key: Any, row: Counted, record: Record) -> None:
        """Put a row whose predicted counter is kept; once a draft."""
        self.put(table, key, record)
        row.record = record
        row.counter += 1
