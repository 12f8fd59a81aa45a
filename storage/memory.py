"""A store in memory: the port in its plainest form, for tests and for hosts that keep nothing.

Its limits are etcd's, so that what fits here fits any store. What a disk, a thread or another
writer can do to a requester, this store can be told to do.

Invariants:
    I1  What is in `_Durable` is what a crash leaves; `reopened()` starts from it and nothing else.

Runs in: the submitting thread, or with `done_in_thread` in a thread a batch.
"""

from __future__ import annotations

import copy
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from . import codec
from .batch import Prepared, prepare
from .errors import InvalidRequestError, RevisionPrunedError, StoreBusyError, StoreClosedError
from .keys import decode_key, encode_key, encode_prefix
from .store import (
    Committed,
    Done,
    Guard,
    Key,
    Limits,
    NeedsService,
    NotStored,
    Outcome,
    Refusal,
    Refused,
    Request,
    Row,
    Value,
)
from .tables import TABLES
from .tables.ownership import Process
from .tables.ownership import Sequence as SequenceRow

ETCD_LIMITS: Final = Limits(ops_max=128, payload_bytes_max=3 * 2**19)
CHANGES_KEPT: Final = 10_000


class _Durable:
    """What survives `reopened`."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[bytes, tuple[int, Value, bytes]]] = {name: {} for name in TABLES}
        self.next: dict[str, int] = {}
        self.revision = 0
        self.changes: list[tuple[int, str, Key]] = []
        self.pruned = 0
        """The last revision whose changes are gone."""


class MemoryStore:
    """A `Store` of dictionaries.

    Args:
        limits: What one request may hold; etcd's by default.
        changes_kept: How many changes `changes` remembers.
    """

    def __init__(
        self,
        *,
        limits: Limits = ETCD_LIMITS,
        nonce: str | None = None,
        pid: int = 0,
        host: str = "",
        started_ms: int = 0,
        changes_kept: int = CHANGES_KEPT,
    ) -> None:
        self.done_in_thread = False
        """Decide and answer each batch in a thread of its own."""
        self.hold = False
        """Keep answers until `release`; the batch is out meanwhile."""
        self.refuse_next = 0
        """So many of the next requests are refused, without rows."""
        self.fail_next: Exception | None = None
        """The next batch is answered `NotStored` with this, and nothing of it is stored."""
        self.service_next: str | None = None
        """The next batch asks for service first, for this reason."""
        self._limits = limits
        self._nonce = nonce or secrets.token_hex(8)
        self._process = Process(pid=pid, host=host, started_ms=started_ms, last_batch=0)
        self._changes_kept = changes_kept
        self._durable = _Durable()
        self._behind: dict[str, int] = {}
        self._held: list[Callable[[], None]] = []
        self._waiting: Callable[[], None] | None = None
        self._out = False
        self._idle = threading.Event()
        self._closed = False
        self._record_process()

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def nonce(self) -> str:
        return self._nonce

    def submit(self, batch: Sequence[Request], done: Done) -> None:
        """See `Store.submit`. Answers before it returns, unless told to wait."""
        self._check_open()
        if self._out:
            raise StoreBusyError("a batch is out; nothing was taken; wait for its outcomes")
        ready = prepare(batch, self._limits).requests
        self._out = True
        self._idle.clear()

        def run() -> None:
            if self.done_in_thread:
                threading.Thread(target=self._run, args=(ready, done), daemon=True).start()
            else:
                self._run(ready, done)

        if self.service_next is not None:
            reason, self.service_next = self.service_next, None
            self._waiting = run
            done(NeedsService(reason))
        else:
            run()

    def service(self) -> None:
        """Let the batch that asked for service go on."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting()

    def commit(self, *requests: Request) -> list[Outcome]:
        """See `Store.commit`."""
        answered = threading.Event()
        service = threading.Event()
        outcomes: list[Outcome] = []

        def done(result: Sequence[Outcome] | NeedsService) -> None:
            if isinstance(result, NeedsService):
                service.set()
            else:
                outcomes.extend(result)
                answered.set()

        if self._out:
            self.service()
            self._idle.wait()
        self.submit(requests, done)
        if service.is_set():
            self.service()
        answered.wait()
        return outcomes

    def get(self, table: str, key: Key) -> Row | None:
        """See `Store.get`."""
        self._check_open()
        found = self._rows(table).get(encode_key(TABLES[table].key, key))
        return None if found is None else codec.row_of(table, *found)

    def scan(
        self,
        table: str,
        prefix: Key = (),
        *,
        after: Key | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Iterator[tuple[Key, Row | Exception]]:
        """See `Store.scan`."""
        self._check_open()
        rows, shape = self._rows(table), TABLES[table].key
        start = encode_prefix(shape, prefix)
        bound = None if after is None else encode_key(shape, after)
        keys = sorted((key for key in rows if key.startswith(start)), reverse=reverse)
        if bound is not None:
            keys = [key for key in keys if (key < bound if reverse else key > bound)]
        picked = [(key, rows[key]) for key in keys[:limit]]
        return ((decode_key(key), codec.row_of(table, *row)) for key, row in picked)

    def count(self, table: str) -> int:
        """See `Store.count`."""
        self._check_open()
        return len(self._rows(table))

    def revision(self) -> int:
        """See `Store.revision`."""
        self._check_open()
        return self._durable.revision

    def changes(self, after: int, limit: int = 1000) -> Sequence[tuple[int, str, Key]]:
        """See `Store.changes`."""
        self._check_open()
        durable = self._durable
        if after < durable.pruned:
            raise RevisionPrunedError(
                f"changes up to revision {durable.pruned} are gone; read the tables again",
                after=after,
                oldest=durable.pruned + 1,
            )
        picked: list[tuple[int, str, Key]] = []
        for change in durable.changes:
            if change[0] <= after:
                continue
            if len(picked) >= limit and change[0] != picked[-1][0]:
                break
            picked.append(change)
        return picked

    def close(self) -> None:
        """See `Store.close`."""
        self._closed = True

    def release(self) -> None:
        """Answer the batches that `hold` kept back."""
        held, self._held = self._held, []
        for answer in held:
            answer()

    def reopened(self, *, nonce: str | None = None) -> MemoryStore:
        """A new opening of what a crash at this instant would leave. This one stays as it is."""
        other = MemoryStore(
            limits=self._limits,
            nonce=nonce,
            pid=self._process.pid,
            host=self._process.host,
            started_ms=self._process.started_ms,
            changes_kept=self._changes_kept,
        )
        other._durable = copy.deepcopy(self._durable)
        other._record_process()
        return other

    def _rows(self, table: str) -> dict[bytes, tuple[int, Value, bytes]]:
        rows = self._durable.rows.get(table)
        if rows is None:
            raise InvalidRequestError(
                f"there is no table {table!r}; nothing was read; name one that there is",
                field="table",
            )
        return rows

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the store is closed; nothing was done; open it again")

    def _record_process(self) -> None:
        key = encode_key((str,), (self._nonce,))
        counter = self._durable.rows["processes"].get(key, (0,))[0]
        self._durable.rows["processes"][key] = (counter + 1, codec.encode(self._process), b"")

    def _run(self, batch: list[Prepared], done: Done) -> None:
        outcomes = self._decide(batch)

        def answer() -> None:
            self._out = False
            self._idle.set()
            done(outcomes)

        if self.hold:
            self._held.append(answer)
        else:
            answer()

    def _decide(self, batch: list[Prepared]) -> list[Outcome]:
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            for request in batch:
                self._break_chain(request)
            return [NotStored(error)] * len(batch)
        durable = self._durable
        results: list[Refused | tuple[Key, ...]] = []
        changed: dict[tuple[str, bytes], None] = {}
        for request in batch:
            refused = self._refusal(request)
            if refused is not None:
                if not refused.behind:
                    self._break_chain(request)
                results.append(refused)
            else:
                results.append(self._apply(request, changed))
        if changed:
            durable.revision += 1
            durable.changes += [
                (durable.revision, table, decode_key(key)) for table, key in changed
            ]
            self._prune()
        return [
            result if isinstance(result, Refused) else Committed(durable.revision, result)
            for result in results
        ]

    def _refusal(self, request: Prepared) -> Refused | None:
        chain = request.chain
        if chain is not None and chain.epoch <= self._behind.get(chain.sender, -1):
            return Refused(behind=True)
        if self.refuse_next:
            self.refuse_next -= 1
            return Refused()
        failed = [
            Refusal(guard, self._row_at(guard, key))
            for table, key, counter, guard in request.guards
            if self._durable.rows[table].get(key, (0,))[0] != counter
        ]
        return Refused(tuple(failed)) if failed else None

    def _row_at(self, guard: Guard, key: bytes) -> Row | None:
        found = self._durable.rows[guard.table].get(key)
        return None if found is None else codec.row_of(guard.table, *found)

    def _break_chain(self, request: Prepared) -> None:
        if request.chain is not None:
            sender, epoch = request.chain.sender, request.chain.epoch
            self._behind[sender] = max(epoch, self._behind.get(sender, epoch))

    def _apply(self, request: Prepared, changed: dict[tuple[str, bytes], None]) -> tuple[Key, ...]:
        durable = self._durable
        allotted: list[bytes] = []
        for append in request.appends:
            table, value = append.table, append.value
            key = encode_key((int,), (self._allot(table),))
            durable.rows[table][key] = (1, value, b"")
            changed[table, key] = None
            allotted.append(key)
        for table, key, value in request.puts:
            counter = durable.rows[table].get(key, (0,))[0]
            header = b"" if value.allotted is None else allotted[value.allotted]
            durable.rows[table][key] = (counter + 1, value, header)
            changed[table, key] = None
        for table, key in request.deletes:
            if durable.rows[table].pop(key, None) is not None:
                changed[table, key] = None
        return tuple(decode_key(key) for key in allotted)

    def _allot(self, table: str) -> int:
        durable = self._durable
        number = durable.next.get(table, 1)
        durable.next[table] = number + 1
        value = codec.encode(SequenceRow(next=number + 1))
        durable.rows["sequences"][encode_key((str,), (table,))] = (number, value, b"")
        return number

    def _prune(self) -> None:
        durable = self._durable
        while len(durable.changes) > self._changes_kept:
            durable.pruned = durable.changes[0][0]
            durable.changes = [c for c in durable.changes if c[0] > durable.pruned]
