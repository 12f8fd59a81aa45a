"""A batch, decided in memory: which requests hold, and the rows they leave.

`prepare` checks and encodes on the requester's side; `decide` weighs the guards of prepared
requests against counters that were read for all of them at once. Nothing is written here, so a
refused request has nothing to undo, and a row that several requests put is written once.

Invariants:
    I1  `decide` changes nothing but its own `Decision`: a batch can be decided again.
    I2  A guard sees what earlier requests of the batch put, never its own request's puts.

Runs in: `prepare` in the submitting thread, `decide` in the writer thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

import msgspec

from . import codec
from .errors import InvalidRequestError, RequestTooLargeError, UnreadableRecordError
from .keys import encode_key, encoder
from .store import Append, Chain, Delete, Guard, Key, Limits, NotStored, Refused, Request, Value
from .tables import TABLES, Table

KEPT_BY_THE_STORE: Final = frozenset({"meta", "sequences", "changes"})
"""Tables that only the store itself writes; of `processes` a request may delete rows."""


class _Shape(NamedTuple):
    """What a table asks of the requests that name it."""

    encode: Callable[[Key], bytes]
    kinds: frozenset[str]
    free: frozenset[str]
    """Kinds that any request may put: none, where the store has a word in what is put."""
    appending: bool


def _shape_of(table: Table) -> _Shape:
    kinds = frozenset(kind.KIND for kind in table.kinds)
    owned = table.append or table.name == "processes" or table.name in KEPT_BY_THE_STORE
    return _Shape(encoder(table.key), kinds, frozenset() if owned else kinds, table.append)


_SHAPES: Final = {name: _shape_of(table) for name, table in TABLES.items()}


def shape_of(table: str) -> tuple[Callable[[Key], bytes], frozenset[str]]:
    """How a table's keys are encoded, and the kinds that any request may put into it."""
    shape = _SHAPES[table]
    return shape.encode, shape.free


Counter: TypeAlias = int | UnreadableRecordError
"""A row's counter (0: no row), or why it can't be told."""
Counters: TypeAlias = dict[str, dict[bytes, Counter]]
Written: TypeAlias = tuple[int, Value, bytes]
"""Counter, value and the allotted key for its header."""


class Prepared(msgspec.Struct, frozen=True, gc=False):
    """A request whose keys are encoded and whose shape is checked."""

    guards: list[tuple[str, bytes, int, Guard]]
    puts: list[tuple[str, bytes, Value]]
    deletes: list[tuple[str, bytes]]
    appends: Sequence[Append]
    chain: Chain | None


_NOTHING: Final[Mapping[str, list[bytes]]] = MappingProxyType({})


class Ready(Request, frozen=True, gc=False):
    """A request that was checked and encoded before it was handed over; made by `make_ready`."""

    prepared: Prepared | None = None
    reads: Mapping[str, list[bytes]] = _NOTHING
    """As a batch's."""
    limits: Limits | None = None
    """What it was checked against."""


Checked: TypeAlias = dict[int, tuple[str, bytes, int, Guard]]
"""Guards that were looked at, by identity."""


class Batch(NamedTuple):
    """Prepared requests, and what has to be read to decide them."""

    requests: list[Prepared]
    reads: dict[str, list[bytes]]
    """Keys whose counters are needed, by table; a key may be there twice."""
    appended: set[str]
    """Tables in which keys may be allotted."""


class Failed(NamedTuple):
    """Guards that did not hold, each with what the batch wrote there and whether it did."""

    guards: list[tuple[str, bytes, Guard, Written | None, bool]]


class Decision:
    """What a batch comes to: an outcome a request, and the rows to write."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[Key, ...] | Refused | NotStored | Failed] = []
        """Allotted keys: it holds. `Failed`: to be answered with the rows that stood there."""
        self.rows: dict[str, dict[bytes, Written | None]] = defaultdict(dict)
        """By table and key; None deletes."""
        self.appended: dict[str, list[tuple[bytes, Written]]] = {}
        self.next: dict[str, int] = {}
        """The next key of each table that was appended to."""
        self.refused: dict[str, int] = {}
        """Sender: the last epoch it was refused in, by this batch."""

    @property
    def writes(self) -> bool:
        return bool(self.rows or self.appended)


def prepare(batch: Sequence[Request], limits: Limits) -> Batch:
    """Check and encode requests; nothing is read or written.

    Raises:
        InvalidRequestError: An unknown table, a malformed key, a key twice, a kind that the table
            does not hold, a table that is the store's own; `field` names the place.
        RequestTooLargeError: A request exceeds `limits`.
    """
    ready: list[Prepared] = []
    reads: dict[str, list[bytes]] = defaultdict(list)
    appended: set[str] = set()
    # By identity: requests of one sender share the guard of their owner row, and it is checked
    # once. The batch holds them all, so that no identity is given to another meanwhile.
    known: Checked = {}
    for index, request in enumerate(batch):
        if isinstance(request, Ready) and request.prepared is not None and request.limits == limits:
            ready.append(request.prepared)
            for table, keys in request.reads.items():
                reads[table] += keys
            continue
        try:
            if request.rows:
                request = codec.spread(request)
            ready.append(check_one(request, limits, reads, appended, known))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _explain(index, request, error) from error
    return Batch(ready, reads, appended)


def decide(
    batch: Batch,
    counters: Counters,
    next_keys: Mapping[str, int],
    refused: Mapping[str, int],
) -> Decision:
    """Decide every request in order.

    Args:
        counters: Of every key in `batch.reads`; a key that is missing has no row. Changed in place.
        next_keys: The next key of every table in `batch.appended`.
        refused: The last epoch each sender was refused in, by earlier batches.
    """
    decision = Decision()
    outcomes, rows = decision.outcomes, decision.rows
    # Rows that can't be read are rare; only a batch that met one looks at each row's kind.
    suspect = any(
        counter.__class__ is not int for known in counters.values() for counter in known.values()
    )
    for request in batch.requests:
        chain = request.chain
        if chain is not None and _is_behind(chain, refused, decision.refused):
            outcomes.append(Refused(behind=True))
            continue
        for table, key, counter, _ in request.guards:
            if counters[table].get(key, 0) != counter:
                outcomes.append(_refuse(request.guards, counters, rows))
                break
        else:
            puts, appends = request.puts, request.appends
            unreadable = _unreadable(puts, counters) if suspect else None
            if unreadable is None:
                _put(puts, counters, rows)
                for table, key in request.deletes:
                    counters.setdefault(table, {})[key] = 0
                    rows[table][key] = None
                outcomes.append(
                    _append(decision, puts, appends, next_keys, counters) if appends else ()
                )
                continue
            outcomes.append(NotStored(unreadable))
        if chain is not None:
            decision.refused[chain.sender] = max(
                chain.epoch, decision.refused.get(chain.sender, chain.epoch)
            )
    return decision


def check_one(
    request: Request,
    limits: Limits,
    reads: dict[str, list[bytes]],
    appended: set[str],
    known: Checked,
) -> Prepared:
    """Check and encode one request, or a part of one; what has to be read for it is noted."""
    guards, puts, deletes = request.guards, request.puts, request.deletes
    appends = request.appends
    ops = len(guards) + len(puts) + len(deletes) + len(appends)
    if ops > limits.ops_max:
        raise _too_large("ops", ops, limits.ops_max)
    size = 0
    guarded = []
    for guard in guards:
        checked = known.get(id(guard))
        if checked is None:
            table = guard.table
            raw = _SHAPES[table][0](guard.key)
            reads[table].append(raw)
            checked = known[id(guard)] = (table, raw, guard.counter, guard)
        guarded.append(checked)
    # Rows of several tables go by one key, or by that of a guard: it is encoded once.
    last, last_encode = (
        (guards[-1].key, _SHAPES[guards[-1].table].encode) if guards else (None, None)
    )
    raw = guarded[-1][1] if guarded else b""
    written = []
    for put in puts:
        table, key, value = put.table, put.key, put.value
        encode, _, free, _ = _SHAPES[table]
        if value.kind not in free:
            _check_put(request, table, key, value)
        if key is not last or encode is not last_encode:
            raw, last, last_encode = encode(key), key, encode
        reads[table].append(raw)
        size += len(value.body) + len(raw)
        if value.allotted is not None and not 0 <= value.allotted < len(appends):
            raise ValueError("puts: allotted names no append")
        written.append((table, raw, value))
    deleted = [_prepare_delete(delete) for delete in deletes] if deletes else []
    if appends:
        size += _check_appends(appends, appended)
    if size > limits.payload_bytes_max:
        raise _too_large("payload", size, limits.payload_bytes_max)
    # Rows of different tables are different rows, and most requests put one a table.
    if deleted or len({table for table, _, _ in written}) != len(written):
        _check_once(written, deleted)
    return Prepared(guarded, written, deleted, appends, request.chain)


def _prepare_delete(delete: Delete) -> tuple[str, bytes]:
    table, key = delete.table, delete.key
    if table in KEPT_BY_THE_STORE:
        raise ValueError(f"deletes: {table} is the store's own")
    return table, _SHAPES[table].encode(key)


def _check_appends(appends: Sequence[Append], appended: set[str]) -> int:
    """Check a request's appends, and note their tables; the bytes they take."""
    size = 0
    for place, append in enumerate(appends):
        table, value = append.table, append.value
        shape = _SHAPES[table]
        if not shape.appending or value.kind not in shape.kinds or value.allotted is not None:
            raise ValueError(f"appends[{place}]")
        appended.add(table)
        size += len(value.body)
    return size


def _check_put(request: Request, table: str, key: Key, value: Value) -> None:
    _, kinds, _, appending = _SHAPES[table]
    if value.kind not in kinds:
        raise ValueError(f"puts: table {table} holds no {value.kind!r}")
    if not appending:
        raise ValueError(f"puts: {table} is the store's own")
    # A row of a table that the store allots keys in may be changed, never made, by a put.
    for guard in request.guards:
        if guard.table == table and guard.key == key and guard.counter > 0:
            return
    raise ValueError(f"puts: a row of {table} is made by an append, and put only under its guard")


def _check_once(written: list[tuple[str, bytes, Value]], deleted: list[tuple[str, bytes]]) -> None:
    seen = {(table, key) for table, key, _ in written}
    seen.update(deleted)
    if len(seen) != len(written) + len(deleted):
        raise ValueError("puts and deletes name a key twice")


def _too_large(what: str, size: int, limit: int) -> RequestTooLargeError:
    return RequestTooLargeError(
        f"a request of {size} {what} exceeds the store's {limit}; nothing of its batch was taken; "
        "cut the work into several requests",
        field=what,
        size=size,
        limit=limit,
    )


def _explain(index: int, request: Request, error: Exception) -> InvalidRequestError:
    if isinstance(error, RequestTooLargeError):
        error.field = f"batch[{index}].{error.field}"
        return error
    field = f"batch[{index}]"
    named = (
        [(f"guards[{n}]", op) for n, op in enumerate(request.guards)]
        + [(f"puts[{n}]", op) for n, op in enumerate(request.puts)]
        + [(f"deletes[{n}]", op) for n, op in enumerate(request.deletes)]
        + [(f"appends[{n}]", op) for n, op in enumerate(request.appends)]
        if isinstance(request, Request)
        else []
    )
    why = str(error)
    for name, op in named:
        if op.table not in TABLES:
            field, why = f"{field}.{name}.table", f"there is no table {op.table!r}"
            break
        if isinstance(op, Append):
            continue
        try:
            encode_key(TABLES[op.table].key, op.key)
        except InvalidRequestError as refused:
            field, why = f"{field}.{name}.{refused.field}", str(refused)
            break
    return InvalidRequestError(
        f"{field} is not valid: {why}; nothing of the batch was taken; correct it", field=field
    )


def _is_behind(chain: Chain, refused: Mapping[str, int], lately: Mapping[str, int]) -> bool:
    sender = chain.sender
    return chain.epoch <= max(lately.get(sender, -1), refused.get(sender, -1))


def _refuse(
    guards: list[tuple[str, bytes, int, Guard]],
    counters: Counters,
    rows: dict[str, dict[bytes, Written | None]],
) -> Failed | NotStored:
    failed = []
    for table, key, counter, guard in guards:
        found = counters[table].get(key, 0)
        if isinstance(found, UnreadableRecordError):
            return NotStored(found)
        if found != counter:
            touched = rows.get(table, {})
            failed.append((table, key, guard, touched.get(key), key in touched))
    return Failed(failed)


def _put(
    puts: list[tuple[str, bytes, Value]],
    counters: Counters,
    rows: dict[str, dict[bytes, Written | None]],
) -> None:
    for table, key, value in puts:
        known = counters[table]
        counter = known[key] = known.get(key, 0) + 1  # type: ignore[operator]
        rows[table][key] = (counter, value, b"")


def _unreadable(
    puts: list[tuple[str, bytes, Value]], counters: Counters
) -> UnreadableRecordError | None:
    for table, key, _ in puts:
        found = counters[table].get(key, 0)
        if isinstance(found, UnreadableRecordError):
            return found
    return None


def _append(
    decision: Decision,
    puts: list[tuple[str, bytes, Value]],
    appends: Sequence[Append],
    next_keys: Mapping[str, int],
    counters: Counters,
) -> tuple[Key, ...]:
    allotted: list[Key] = []
    encoded: list[bytes] = []
    for append in appends:
        table = append.table
        number = decision.next.get(table) or next_keys[table]
        decision.next[table] = number + 1
        key: Key = (number,)
        raw = encode_key((int,), key)
        decision.appended.setdefault(table, []).append((raw, (1, append.value, b"")))
        if table in counters:
            counters[table][raw] = 1
        allotted.append(key)
        encoded.append(raw)
    for table, key_of, value in puts:
        if value.allotted is not None:
            written = decision.rows[table][key_of]
            assert written is not None
            decision.rows[table][key_of] = (written[0], value, encoded[value.allotted])
    return tuple(allotted)
