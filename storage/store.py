"""The `Store` port: what the domain asks of durable storage, and nothing of how it is kept.

A request is data. It names what it believes (guards) and what it changes (puts, deletes,
appends); the store applies it whole or refuses it whole. Requests are committed in batches; a
batch is one durable commit.

Invariants:
    I1  A request's guards are checked against the state before that request, with the earlier
        requests of its batch applied, and before anything of it is written.
    I2  A refused request leaves no trace, does not fail its batch, and returns the rows it was
        refused by.
    I3  A row counter is 0 where there is no row and grows by one with each put. A requester can
        predict it, so a request may be sent before the one it builds on is committed.
    I4  After a refusal, every later request of the same chain and epoch is refused too (`behind`),
        so nothing that was planned on a refused prediction is applied.
    I5  A key allotted to an append is never allotted again, also after deletes.
    I6  `Committed` is reported only for what is on disk.

Runs in: `submit` and the reads belong to one thread (the loop thread of a runtime); `done` is
called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

KeyPart: TypeAlias = str | int | bytes
"""One part of a key. Integers are 0..2**64-1 and sort as numbers; text sorts by its UTF-8 bytes."""
Key: TypeAlias = tuple[KeyPart, ...]
"""Parts of a key, from the widest to the narrowest. Tuples sort part by part."""


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Base of every stored record. Subclasses are listed in `abeyance.storage.tables`.

    Class attributes `KIND` (stable text) and `VERSION` (int, raised when the meaning of a field
    changes) travel with each value. Construction does not validate; encoding and decoding do.
    """

    KIND = ""
    VERSION = 1


class _Data(msgspec.Struct, frozen=True, gc=False):
    """Base of what requests are made of: immutable, and nothing in it can be part of a cycle.

    Not tracked by the garbage collector: a thousand requests in flight are ten thousand such
    objects, and named tuples of them brought on a full collection, with its pause, every second.
    """


class Value(_Data, frozen=True, gc=False):
    """A record made ready for writing by the requester, so that the writer only frames it."""

    kind: str
    version: int
    body: bytes
    body_crc: int
    allotted: int | None = None
    """Index into the request's appends; the store writes that append's key into the header."""


class Row(NamedTuple):
    """A row as read: its counter and the record, checked and decoded."""

    counter: int
    record: Any
    allotted: Key | None = None


class Guard(_Data, frozen=True, gc=False):
    table: str
    key: Key
    counter: int
    """What the row's counter must be; 0 means that there must be no row."""


class Put(_Data, frozen=True, gc=False):
    table: str
    key: Key
    value: Value


class Delete(_Data, frozen=True, gc=False):
    table: str
    key: Key


class Append(_Data, frozen=True, gc=False):
    table: str
    value: Value


class Rows(_Data, frozen=True, gc=False):
    """Many puts of one table and kind, in columns: what would be an object a row is two list items.

    A key occurs at most once.
    """

    table: str
    kind: str
    version: int
    prefix: Key
    """All parts of their keys but the last."""
    lasts: list[KeyPart]
    """The last parts; like `bodies` not changed any more. Tables of one shape and prefix may share
    the list, whose keys are then encoded once."""
    bodies: list[bytes]
    """A record each, as `codec.pack_record` packs it."""
    fresh: bool = False
    """Whether the request is refused where one of the rows is there: a guard of each with 0."""

    @property
    def keys(self) -> list[Key]:
        return [(*self.prefix, last) for last in self.lasts]


class Chain(_Data, frozen=True, gc=False):
    """The sender whose requests build on one another, and its count of refusals learnt so far.

    A `Refused` that is not `behind` and a `NotStored` each raise the epoch by one; a `behind` does
    not, or a request planned between the two would slip through.
    """

    sender: str
    epoch: int


class Request(_Data, frozen=True, gc=False):
    """Guards, puts, deletes and appends that happen together or not at all.

    A key occurs at most once among puts and deletes. An empty request is a barrier: its answer
    means that everything handed over before it is in, or refused.
    """

    guards: tuple[Guard, ...] = ()
    puts: tuple[Put, ...] = ()
    deletes: tuple[Delete, ...] = ()
    appends: tuple[Append, ...] = ()
    chain: Chain | None = None
    rows: tuple[Rows, ...] = ()
    """Puts, and guards where they are `fresh`, besides those above."""

    @property
    def ops(self) -> int:
        ops = len(self.guards) + len(self.puts) + len(self.deletes) + len(self.appends)
        return ops + sum(len(rows.lasts) * (1 + rows.fresh) for rows in self.rows)


class Committed(_Data, frozen=True, gc=False):
    """The request is durable."""

    revision: int
    allotted: tuple[Key, ...] = ()


class Refusal(NamedTuple):
    """One guard that did not hold, and the row that stood there (None: no row)."""

    guard: Guard
    row: Row | None


class Refused(NamedTuple):
    """Nothing of the request was written. Plan anew from `rows`; do not send it again as it was."""

    refusals: tuple[Refusal, ...] = ()
    behind: bool = False
    """True: an earlier request of the same chain was refused; this one was not looked at."""


class NotStored(NamedTuple):
    """The batch could not be committed and nothing of it is stored. `error` says why."""

    error: Exception


Outcome: TypeAlias = Committed | Refused | NotStored


class Limits(NamedTuple):
    """What one request may hold. A mover cuts its work to fit, each part a valid prefix."""

    ops_max: int
    payload_bytes_max: int


class NeedsService(NamedTuple):
    """The batch waits for `Store.service` on the reading thread (a resize or a reopening)."""

    reason: str


Done: TypeAlias = "Callable[[Sequence[Outcome] | NeedsService], None]"


class Store(Protocol):
    """Durable tables with compare-and-set requests. See the module's invariants."""

    @property
    def limits(self) -> Limits:
        """The largest request this store takes."""

    @property
    def nonce(self) -> str:
        """The name of this opening: the key of its row in `processes`. Never used twice."""

    def submit(self, batch: Sequence[Request], done: Done) -> None:
        """Hand over one batch; at most one is out at a time.

        Not blocking. `done` is called once with an outcome a request, in order, from any thread;
        before that it may be called with `NeedsService`, after which the caller runs `service()`
        on the reading thread and waits on.

        Raises:
            StoreClosedError: The store is closed; nothing was taken.
            RequestTooLargeError: A request exceeds `limits`; nothing of the batch was taken.
            InvalidRequestError: A request names an unknown table, a malformed key, or a key twice.
            StoreBusyError: A batch is already out.
        """

    def service(self) -> None:
        """Do what a batch waits for, on the reading thread. Blocks that thread for its length."""

    def commit(self, *requests: Request) -> list[Outcome]:
        """Submit and wait, servicing as needed. Blocks until a batch that is out has its outcomes.

        For where no event loop is, or none goes on.
        """

    def get(self, table: str, key: Key) -> Row | None:
        """Read one row, copied out.

        Raises:
            UnreadableRecordError: The row is there and cannot be trusted; it names table and key.
        """

    def scan(
        self,
        table: str,
        prefix: Key = (),
        *,
        after: Key | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Iterator[tuple[Key, Row | Exception]]:
        """Read the rows whose key begins with `prefix`, in key order, copied out.

        An unreadable row is yielded as its `UnreadableRecordError`, so that one bad row does not
        hide the others. The rows are of one state of the store as far as one transaction reaches:
        always for a `limit` of up to 1,000; a longer scan may be continued in a later state.
        """

    def count(self, table: str) -> int:
        """How many rows a table holds, unreadable ones included; at a cost that does not grow."""

    def revision(self) -> int:
        """The revision of the last commit that is visible here."""

    def changes(self, after: int, limit: int = 1000) -> Sequence[tuple[int, str, Key]]:
        """(revision, table, key) of what changed after a revision, oldest first.

        A revision is never cut: the answer ends with the revision that reaches `limit`. Tables that
        the store keeps for itself (meta, processes, sequences) are left out.

        Raises:
            RevisionPrunedError: Changes that old are no longer kept; read the tables again.
        """

    def close(self) -> None:
        """Wait for the batch that is out, mark a clean close, release everything. Idempotent."""
