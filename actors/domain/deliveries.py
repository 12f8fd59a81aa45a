"""Counts of deliveries that outlive the process: notes in a file, rows for what died with one.

Nothing is committed while a message is handled. It is noted in this opening's flight file before
its handler runs (`storage.flights`), and the note is taken back afterwards; so a kill leaves
exactly what was being handled. The next opening makes rows of that.

Invariants:
    I1  A dead opening's file is deleted only after what it says is committed.
    I2  A row says the greatest number of deliveries that any dead process noted for the act.

`take_over` runs before a loop does; the rest is called by the kernel, `end` on any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from abeyance.actors.core.clock import Clock
from abeyance.actors.core.logs import Log
from abeyance.storage.codec import encode
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.flights import Flight, Flights, dead_flights
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Committed, Delete, Guard, NotStored, Put, Request
from abeyance.storage.tables.kept import Delivery

KEPT_MS: Final = 30 * 86_400_000
"""How long a row is kept that nobody asks for again."""
KNOWN_MAX: Final = 10_000
"""Rows that are read at the start; each is of a message that a process died with."""
ATTEMPTS_MAX: Final = 10

_logger = Log(__name__)


class DurableCounts:
    """The kernel's `DeliveryCounts` over a store.

    Args:
        store: The open store.
        clock: The wall clock.
        forget: Has the row of an act deleted that was handled.
    Raises:
        OSError: The flight file can't be made.
    """

    def __init__(
        self, store: LmdbStore, clock: Clock, forget: Callable[[str, str], object]
    ) -> None:
        self._store = store
        self._clock = clock
        self._forget = forget
        self._flights = Flights(store.directory, store.nonce)
        self._earlier: dict[tuple[str, str], int] = {}
        self.unnoted = 0
        """Deliveries that could not be noted: they are counted in this process only."""

    def take_over(self, is_alive: Callable[[str], bool]) -> None:
        """Make rows of what dead processes had in flight, and read what there is. Blocks.

        Raises:
            StorageError: It could not be stored; the files stay, and the next opening tries again.
        """
        for path, flights in dead_flights(self._store.directory, is_alive):
            for flight in flights:
                self._record(flight, path.name)
            path.unlink(missing_ok=True)
        oldest_ms = self._clock.now_ms() - KEPT_MS
        old = []
        for key, row in self._store.scan("deliveries", limit=KNOWN_MAX):
            if isinstance(row, Exception):
                continue  # It counts nothing, and `check` names it.
            if row.record.at_ms < oldest_ms:
                old.append(Delete("deliveries", key))
            else:
                self._earlier[str(key[0]), str(key[1])] = row.record.deliveries
        if old:
            self._store.commit(*(Request(deletes=(delete,)) for delete in old[:256]))

    def _record(self, flight: Flight, nonce: str) -> None:
        key = (flight.actor, flight.act)
        for _ in range(ATTEMPTS_MAX):
            try:
                row = self._store.get("deliveries", key)
            except UnreadableRecordError:
                self._store.commit(Request(deletes=(Delete("deliveries", key),)))
                continue
            if row is not None and row.record.deliveries >= flight.deliveries:
                return
            record = Delivery(
                deliveries=flight.deliveries, process=nonce, at_ms=max(0, self._clock.now_ms())
            )
            guard = Guard("deliveries", key, 0 if row is None else row.counter)
            request = Request(guards=(guard,), puts=(Put("deliveries", key, encode(record)),))
            (outcome,) = self._store.commit(request)
            if isinstance(outcome, NotStored):
                raise outcome.error
            if isinstance(outcome, Committed):
                _logger.warning(
                    "process %s died while %s handled %r, its delivery %d",
                    nonce,
                    flight.actor,
                    flight.act,
                    flight.deliveries,
                    actor=flight.actor,
                )
                return

    # -- the kernel's port

    def begin(self, actor: str, act_id: str, deliveries: int) -> int:
        earlier = self._earlier.get((actor, act_id), 0) + deliveries
        if not self._flights.note(actor, act_id, earlier + 1):
            if not self.unnoted:
                _logger.error(
                    "a delivery to %s cannot be noted; a death would not count", actor, actor=actor
                )
            self.unnoted += 1
        return earlier

    def end(self, actor: str, act_id: str, *, handled: bool) -> None:
        self._flights.clear(actor, act_id)
        if handled and self._earlier.pop((actor, act_id), None) is not None:
            self._forget(actor, act_id)

    def close(self) -> None:
        """Nothing is handled any more: delete this opening's notes."""
        self._flights.close()
