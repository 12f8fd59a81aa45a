"""One batch in one write transaction: reads what is guarded, decides, writes what is left.

Reads and writes go table by table in key order, one engine call a table and direction, because that
halves their cost.

Invariants:
    I1  Everything is read before anything is written. Only that a row which is made is not there
        yet is seen to while it is put.
    I2  A commit that writes anything takes the next revision, and lists what it wrote in `changes`.

Runs in: the writer thread, or the opening thread while it makes the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Final

from . import codec
from .batch import (
    Batch,
    Counters,
    Decision,
    Failed,
    Written,
    decide,
)
from .environment import Database, Transaction
from .errors import DamagedStoreError, UnreadableRecordError
from .keys import encode_key
from .plain import Plain
from .store import Committed, NotStored, Outcome, Record, Refusal, Refused, Row, Value
from .tables import TABLES
from .tables.ownership import Changes
from .tables.ownership import Sequence as SequenceRow

CHANGES: Final = "changes"
CHANGES_BYTES_MAX: Final = 1_600
"""Rows of `changes` stay under half a page, so that none needs pages of its own."""
PRUNE_EVERY: Final = 64
PRUNED_ROWS_MAX: Final = 4_096
_KEY_OF: Final = itemgetter(0)


class BatchTransaction:
    """A write transaction and what it has read."""

    def __init__(self, transaction: Transaction, tables: Mapping[str, Database], path: str) -> None:
        self._transaction = transaction
        self._tables = tables
        self._path = path
        self._raws: dict[str, dict[bytes, bytes]] = {}
        self._sequences: dict[str, tuple[int, int]] = {}
        """Counter and next key, by table."""

    def decide(self, batch: Batch, refused: Mapping[str, int]) -> Decision:
        """Read what the batch guards and puts, and decide it."""
        counters: Counters = {}
        for table, keys in batch.reads.items():
            with self._transaction.cursor(self._tables[table]) as cursor:
                found = cursor.getmulti(sorted(set(keys)))
            self._raws[table] = dict(found)
            counters[table] = {key: _counter_of(table, key, raw) for key, raw in found}
        next_keys = {table: self._sequence(table)[1] for table in batch.appended}
        return decide(batch, counters, next_keys, refused)

    def revision(self) -> int:
        """The revision before this transaction."""
        return self._sequence(CHANGES)[1] - 1

    def write(self, decision: Decision, changes_kept: int) -> int:
        """Write what was decided; the revision it gets."""
        changed: dict[str, list[bytes]] = {}
        for table, appended in decision.appended.items():
            self._put_all(table, appended, append=True)
            changed[table] = [key for key, _ in appended]
        for table, rows in decision.rows.items():
            puts: list[tuple[bytes, Written]] = []
            for key, row in sorted(rows.items()):
                if row is None:
                    self._transaction.delete(key, db=self._tables[table])
                else:
                    puts.append((key, row))
            if puts:
                self._put_all(table, puts, append=False)
            changed.setdefault(table, []).extend(rows)
        for table, number in decision.next.items():
            self._put_sequence(table, number)
        return self._revise(changed, changes_kept)

    def _revise(self, changed: dict[str, list[bytes]], changes_kept: int) -> int:
        """Give what was written a revision, and note what it changed."""
        revision = self._sequence(CHANGES)[1]
        self._note_changes(revision, changed)
        self._put_sequence(CHANGES, revision + 1)
        if revision % PRUNE_EVERY == 0:
            self._prune(revision - changes_kept)
        return revision

    def make(
        self, plain: Plain, refused: Mapping[str, int], changes_kept: int
    ) -> list[Outcome] | None:
        """Write a batch that only makes rows; an outcome a request.

        None: a guard does not hold, or a row is there already. The transaction is then to be
        aborted, and the batch decided as any other.
        """
        if plain.is_behind(refused):
            return None
        for table, key, counter in plain.guards:
            raw = self._transaction.get(key, db=self._tables[table])
            if (0 if raw is None else _counter_of(table, key, raw)) != counter:
                return None
        changed: dict[str, list[bytes]] = {}
        for table, (kind, version, keys, bodies) in plain.rows.items():
            # Messages come in the order of their keys, mostly: then there is little to sort.
            framed = sorted(codec.frame_made(table, kind, version, keys, bodies), key=_KEY_OF)
            with self._transaction.cursor(self._tables[table]) as cursor:
                made, added = cursor.putmulti(framed, overwrite=False)
            if added != made:
                return None
            changed[table] = keys
        return [Committed(self._revise(changed, changes_kept))] * len(plain.requests)

    def put_own(self, table: str, key: bytes, record: Record) -> None:
        """Write a row that the store keeps for itself, without a change of its own."""
        raw = self._transaction.get(key, db=self._tables[table])
        counter = 0 if raw is None else codec.read_counter(table, key, raw)
        framed = codec.frame(table, key, counter + 1, codec.encode(record))
        self._transaction.put(key, framed, db=self._tables[table])

    def get_own(self, table: str, key: bytes) -> Row | None:
        """Read a row that the store keeps for itself."""
        raw = self._transaction.get(key, db=self._tables[table])
        return None if raw is None else codec.decode(table, key, raw)

    def outcomes(self, decision: Decision, revision: int) -> list[Outcome]:
        """An outcome a request, as it holds once this transaction is committed."""
        plain = Committed(revision)
        outcomes: list[Outcome] = []
        for result in decision.outcomes:
            if not result:
                # It holds, and was allotted nothing, as nearly all do.
                outcomes.append(plain)
            elif isinstance(result, Failed):
                outcomes.append(self._explain(result))
            elif isinstance(result, Refused | NotStored):
                outcomes.append(result)
            else:
                outcomes.append(Committed(revision, result))
        return outcomes

    def _explain(self, failed: Failed) -> Outcome:
        refusals = []
        try:
            for table, key, guard, written, touched in failed.guards:
                raw = self._raws[table].get(key)
                row = None
                if written is not None:
                    row = codec.row_of(table, *written)
                elif not touched and raw is not None:
                    row = codec.decode(table, key, raw)
                refusals.append(Refusal(guard, row))
        except UnreadableRecordError as error:
            return NotStored(error)
        return Refused(tuple(refusals))

    def _put_all(self, table: str, rows: list[tuple[bytes, Written]], *, append: bool) -> None:
        framed = codec.frame_all(table, rows)
        with self._transaction.cursor(self._tables[table]) as cursor:
            consumed, added = cursor.putmulti(framed, append=append)
        if append and added != consumed:
            # The engine writes nothing there and does not raise.
            raise DamagedStoreError(
                f"table {table} holds keys past its sequence; nothing was written; see "
                "'abeyance check'",
                path=self._path,
                findings=(f"{table}: a key past the sequence",),
            )

    def _sequence(self, table: str) -> tuple[int, int]:
        known = self._sequences.get(table)
        if known is None:
            row = self.get_own("sequences", encode_key((str,), (table,)))
            known = (0, 1) if row is None else (row.counter, row.record.next)
            self._sequences[table] = known
        return known

    def _put_sequence(self, table: str, number: int) -> None:
        key = encode_key((str,), (table,))
        value = codec.encode(SequenceRow(next=number))
        framed = codec.frame("sequences", key, self._sequence(table)[0] + 1, value)
        self._transaction.put(key, framed, db=self._tables["sequences"])

    def _note_changes(self, revision: int, changed: dict[str, list[bytes]]) -> None:
        rows: list[tuple[bytes, Written]] = []
        part: dict[str, list[bytes]] = {}
        left = CHANGES_BYTES_MAX
        for table, keys in changed.items():
            each = max(map(len, keys)) + 3
            at = 0
            while at < len(keys):
                fit = (left - len(table)) // each
                if fit < 1:
                    rows.append(_change_row(revision, len(rows), part))
                    part, left = {}, CHANGES_BYTES_MAX
                    continue
                part[table] = keys[at : at + fit]
                left -= len(table) + len(part[table]) * each
                at += fit
        rows.append(_change_row(revision, len(rows), part))
        self._put_all(CHANGES, rows, append=True)

    def _prune(self, last: int) -> None:
        """Delete the changes up to a revision, a bounded number of rows at a time."""
        if last < 1:
            return
        end = encode_key(TABLES[CHANGES].key, (last + 1, 0))
        with self._transaction.cursor(self._tables[CHANGES]) as cursor:
            left = PRUNED_ROWS_MAX if cursor.first() else 0
            # Deleting moves the cursor to the next row.
            while left and cursor.key() and cursor.key() < end:
                cursor.delete()
                left -= 1


def _change_row(revision: int, ordinal: int, part: dict[str, list[bytes]]) -> tuple[bytes, Written]:
    body = codec.pack({"keys": part})
    value = Value(Changes.KIND, Changes.VERSION, body, codec.checksum(body))
    return encode_key(TABLES[CHANGES].key, (revision, ordinal)), (1, value, b"")


def _counter_of(table: str, key: bytes, raw: bytes) -> int | UnreadableRecordError:
    try:
        return codec.read_counter(table, key, raw)
    except UnreadableRecordError as error:
        return error
