"""What a repair does about each kind of finding: which rows it takes out, and what it puts there.

Three answers, by table and problem. A row that nothing stands on is taken out. One whose absence
would be taken for something that never was (a wait that does not bind, a call that was not begun,
a number that is free) gives way to one that holds, or to what other rows say that it said. What
neither is possible for stays, with what a person can do.

Invariants:
    I1  Nothing is called that a wait held, nothing begun that was begun, and no number given twice
        because of what a repair put or took out.
    I2  What is decided here is from rows that can be read; nothing of a damaged one is believed but
        its key, or of a wait the key that its checksum tells.

Pure, but for what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

from .errors import UnreadableRecordError
from .store import Key, Record, Row, Store

BY: Final = "abeyance check --repair"
GAP: Final = 1_000_000
"""How far behind the largest number that anything still names those go on that a damaged row
counted: rows of such numbers may have been deleted."""


class Change(NamedTuple):
    """One row that a repair changes."""

    table: str
    key: Key | bytes
    """Bytes: as it is on disk, where it cannot be decoded."""
    record: Record | None
    """What is put there. None: the row is taken out."""


class Mending(NamedTuple):
    """Changes that happen together, and what they mean for whatever depends on the row."""

    changes: tuple[Change, ...]
    then: str


class Stays(NamedTuple):
    """A repair leaves it as it is; what can be done."""

    why: str


Answer: TypeAlias = Mending | Stays
Rule: TypeAlias = Callable[["Look", Key], Answer]


class Look:
    """A store as far as it can be read.

    Args:
        own: What the store's own row would say, by what lies beside the data.
    """

    def __init__(self, store: Store, now_ms: int, own: Record) -> None:
        self._store = store
        self.now_ms = now_ms
        self.own = own

    def get(self, table: str, key: Key) -> Any:
        """The record of a row; None where there is none, or it cannot be read."""
        try:
            row = self._store.get(table, key)
        except UnreadableRecordError:
            return None
        return None if row is None else row.record

    def is_there(self, table: str, key: Key) -> bool:
        """Whether there is a row, readable or not."""
        try:
            return self._store.get(table, key) is not None
        except UnreadableRecordError:
            return True

    def rows(
        self, table: str, prefix: Key = (), *, after: Key | None = None, reverse: bool = False
    ) -> Iterator[tuple[Key, Any]]:
        """Keys and records of those rows that can be read."""
        for key, row in self._store.scan(table, prefix, after=after, reverse=reverse):
            if isinstance(row, Row):
                yield key, row.record

    def last(self, table: str, prefix: Key = ()) -> int:
        """The last part of the largest key, an integer, also of a row that cannot be read; or 0."""
        for key, _ in self._store.scan(table, prefix, reverse=True):
            if isinstance(key[-1], int):
                return key[-1]
        return 0


def taken_out(table: str, then: str) -> Rule:
    """A rule: the row is taken out, and nothing is put there."""
    return lambda look, key: Mending((Change(table, key, None),), then)
