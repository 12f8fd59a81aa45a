"""Batches that only make rows: what nearly every batch of accepted messages is.

Such a batch is not weighed request by request. Its guards are of two kinds: those that several
requests share (of an owner's row), which are read once, and those that say that a row which the
request itself makes is not there yet, which the engine sees to while it puts the row. Where one of
either does not hold, the batch is decided as any other, anew and in another transaction.

Invariants:
    I1  A plain batch that was written is what `decide` would have made of it: every request holds.
    I2  What is not plainly such a batch is none, whatever is wrong with it: `prepare` can say.

Runs in: `plain_of` in the submitting thread; the rest in the writer thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from .batch import Batch, prepare, shape_of
from .errors import InvalidRequestError
from .store import Chain, Key, Limits, Put, Request, Value

MADE: Final = ("ids", "bodies", "inbox", "slots", "wakes")
"""Tables whose rows are made far more often than changed, in the order in which a plain request
puts them: at most one a table, so that it names no key twice."""
_SHAPES: Final = tuple((table, *shape_of(table)) for table in MADE)


class Plain:
    """A batch that only makes rows."""

    __slots__ = ("_limits", "chains", "guards", "requests", "rows")

    def __init__(
        self,
        requests: Sequence[Request],
        limits: Limits,
        guards: list[tuple[str, bytes, int]],
        chains: list[Chain],
        rows: dict[str, tuple[list[bytes], list[Value]]],
    ) -> None:
        self.requests = requests
        self._limits = limits
        self.guards = guards
        """Table, key and counter of those of rows that the batch does not make."""
        self.chains = chains
        self.rows = rows
        """By table: the keys of what is made, and the values beside them. Lists of these, not of
        pairs: a thousand requests in flight were four thousand of them, all the collector's."""

    def weighed(self) -> Batch:
        """The same batch, for being decided request by request."""
        return prepare(self.requests, self._limits)

    def is_behind(self, refused: Mapping[str, int]) -> bool:
        """Whether a request stands behind one that was refused, in an earlier batch."""
        return any(chain.epoch <= refused.get(chain.sender, -1) for chain in self.chains)


def plain_of(batch: Sequence[Request], limits: Limits) -> Plain | None:
    """The batch as one that only makes rows, or None where it is not plainly that."""
    try:
        return _plain_of(batch, limits)
    except (InvalidRequestError, KeyError, TypeError, ValueError, AttributeError):
        return None


def _plain_of(batch: Sequence[Request], limits: Limits) -> Plain | None:
    rows: dict[str, tuple[list[bytes], list[Value]]] = {table: ([], []) for table in MADE}
    shapes = {
        table: (place, encode, kinds, rows[table][0].append, rows[table][1].append)
        for place, (table, encode, kinds) in enumerate(_SHAPES)
    }
    # By identity: requests of one sender share the guard of their owner row and their chain, which
    # are looked at once. The batch holds them all, so that no identity is given away meanwhile.
    guards: dict[int, tuple[str, bytes, int]] = {}
    chains: dict[int, Chain] = {}
    ops_max, size_max = limits
    for request in batch:
        puts = request.puts
        if request.deletes or request.appends or len(puts) + len(request.guards) > ops_max:
            return None
        chain = request.chain
        if chain is not None and id(chain) not in chains:
            chains[id(chain)] = chain
        last: object = None
        encode_last: object = None
        raw, size, before = b"", 0, -1
        for put in puts:
            key, value = put.key, put.value
            place, encode, kinds, add_key, add_value = shapes[put.table]
            if place <= before or value.kind not in kinds or value.allotted is not None:
                return None
            before = place
            if key is not last or encode is not encode_last:
                raw, last, encode_last = encode(key), key, encode
            size += len(value.body) + len(raw)
            add_key(raw)
            add_value(value)
        if size > size_max:
            return None
        for guard in request.guards:
            if id(guard) in guards:
                continue
            table, key = guard.table, guard.key
            if table not in shapes:
                guards[id(guard)] = (table, shape_of(table)[0](key), guard.counter)
            elif guard.counter or not _makes(puts, table, key):
                return None
    if not any(keys for keys, _ in rows.values()):
        return None
    return Plain(batch, limits, list(guards.values()), list(chains.values()), rows)


def _makes(puts: tuple[Put, ...], table: str, key: Key) -> bool:
    for put in puts:
        if put.table == table:
            return put.key is key or put.key == key
    return False
