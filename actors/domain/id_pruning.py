"""Which ids of messages may be forgotten: those that only a very late retry would ask for.

Invariants:
    I1  An id that goes is of a message that was read, in a request or by a fork, and that no turn
        is to answer which has not ended. Or it is of one that a newer message of its subject
        replaced whose own id is gone.
    I2  One by which a run that has not ended knows the message of an item stays: without it the run
        would send that message again.

Runs in: the task of `retention`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from abeyance.storage.errors import StorageError
from abeyance.storage.store import Key, Store
from abeyance.storage.tables.slots import MessageId

from .run_rows import ENDED
from .run_turns import run_of
from .slot_reading import Reading, stored_reading

READ: Final = ("read", "forked")


class _Slot(NamedTuple):
    """What the ids of a slot are looked at with, which come one behind the other."""

    name: str
    reading: Callable[[int], Reading]
    """How far a place was read; what was read then stays so."""
    awaited: frozenset[int]
    """Entries that a turn is to answer."""


class Ids:
    """How old the ids of a store are.

    Args:
        before_ms: What was accepted before is old.
    """

    def __init__(self, store: Store, before_ms: int) -> None:
        self._store = store
        self._before_ms = before_ms
        self._slot: _Slot | None = None

    def is_old(self, key: Key, known: MessageId) -> bool:
        """Whether the id of a message may be forgotten. What cannot be read keeps it."""
        slot, message = str(key[0]), str(key[1])
        try:
            if known.state == "replaced":
                return known.by is not None and self._store.get("ids", (slot, known.by)) is None
            return known.state == "slot" and self._is_over(slot, message, known)
        except StorageError:
            return False

    def _is_over(self, slot: str, message: str, known: MessageId) -> bool:
        row = None if known.seq is None else self._store.get("slots", (slot, known.seq))
        if known.seq is None or row is None or row.record.at_ms >= self._before_ms:
            return False
        if self._slot is None or self._slot.name != slot:
            awaited = frozenset(_awaited(self._store, slot))
            self._slot = _Slot(slot, stored_reading(self._store, slot), awaited)
        is_read = self._slot.reading(known.seq) in READ
        return is_read and known.entry not in self._slot.awaited and not self._is_asked(message)

    def _is_asked(self, message: str) -> bool:
        """Whether a run that has not ended knows the message of one of its items by this id."""
        run = run_of(message)
        row = None if run is None else self._store.get("runs", run.row)
        return row is not None and row.record.state not in ENDED


def _awaited(store: Store, slot: str) -> Iterator[int]:
    """The entries of a slot that turns of those who speak in it are to answer.

    Raises:
        UnreadableRecordError: Which, cannot be read.
    """
    for agent in (slot, *(str(key[-1]) for key, _ in store.scan("sharers", (slot,)))):
        for key, _ in store.scan("wakes", (agent,)):
            yield int(key[-1])
        head = store.get("heads", (agent,))
        if head is not None and head.record.open_turn is not None:
            turn = store.get("turns", (agent, head.record.open_turn))
            yield from () if turn is None else turn.record.answers
