"""Batches that only make rows: what nearly every batch of accepted messages is.

Their requests name what they make by `Request.rows`. Such a batch is not weighed request by
request. Its guards are of two kinds: those that several requests share (of an owner's row), which
are read once, and those that say that a row which the request itself makes is not there yet, which
the engine sees to while it puts the row. Where one of either does not hold, or a row is there that
might be put over, the batch is decided as any other, anew and in another transaction.

Invariants:
    I1  A plain batch that was written is what `decide` would have made of it: every request holds.
    I2  What is not plainly such a batch is none, whatever is wrong with it: `prepare` can say.

Runs in: `plain_of` in the submitting thread; the rest in the writer thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from .batch import Batch, prepare, shape_of
from .errors import InvalidRequestError
from .keys import encode_column
from .store import Chain, Key, KeyPart, Limits, Request
from .tables import TABLES

MADE: Final = ("ids", "bodies", "inbox", "slots", "wakes")
"""Tables whose rows are made far more often than changed, each of one kind, in the order in which a
request names them: each once, so that it names no key twice."""

Made: TypeAlias = tuple[str, int, list[bytes], list[bytes]]
"""Kind and version of a table's rows, their keys, and the bodies beside them. Lists of these, not
of pairs: a thousand requests in flight were four thousand of them, all the collector's."""
_Shape: TypeAlias = tuple[int, str, int, tuple[type, ...]]


def _shape_of(place: int, table: str) -> _Shape:
    (record,) = TABLES[table].kinds
    return place, record.KIND, record.VERSION, TABLES[table].key


_SHAPES: Final = {table: _shape_of(place, table) for place, table in enumerate(MADE)}


class Plain:
    """A batch that only makes rows."""

    __slots__ = ("_limits", "chains", "guards", "requests", "rows")

    def __init__(
        self,
        requests: Sequence[Request],
        limits: Limits,
        guards: list[tuple[str, bytes, int]],
        chains: list[Chain],
        rows: dict[str, Made],
    ) -> None:
        self.requests = requests
        self._limits = limits
        self.guards = guards
        """Table, key and counter of those of rows that the batch does not make."""
        self.chains = chains
        self.rows = rows
        """By table, what is made."""

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
    made: dict[str, Made] = {}
    # By identity: requests of one sender share the guard of their owner row and their chain, which
    # are looked at once. The batch holds them all, so that no identity is given away meanwhile.
    guards: dict[int, tuple[str, bytes, int]] = {}
    chains: dict[int, Chain] = {}
    for request in batch:
        if request.puts or request.deletes or request.appends or request.ops > limits.ops_max:
            return None
        chain = request.chain
        if chain is not None:
            chains[id(chain)] = chain
        size = _make(request, made)
        if size is None or size > limits.payload_bytes_max:
            return None
        for guard in request.guards:
            if id(guard) not in guards:
                if guard.table in _SHAPES:
                    return None
                raw = shape_of(guard.table)[0](guard.key)
                guards[id(guard)] = (guard.table, raw, guard.counter)
    if not made:
        return None
    return Plain(batch, limits, list(guards.values()), list(chains.values()), made)


def _make(request: Request, made: dict[str, Made]) -> int | None:
    """Add a request's rows to the batch's; how many bytes they are, or None: they are not plain."""
    size, before = 0, -1
    # Tables of one shape may share the last parts of their keys: those are encoded once.
    last: tuple[tuple[type, ...], Key] | None = None
    lasts: list[KeyPart] = []
    raws: list[bytes] = []
    for rows in request.rows:
        place, kind, version, shape = _SHAPES[rows.table]
        if place <= before or rows.kind != kind or rows.version != version:
            return None
        before = place
        if rows.lasts is not lasts or last != (shape, rows.prefix):
            last, lasts = (shape, rows.prefix), rows.lasts
            raws = encode_column(shape, rows.prefix, lasts)
            if len(set(raws)) != len(raws):
                return None
        bodies = rows.bodies
        if len(bodies) != len(raws):
            return None
        # Joined only to be measured: that is a fifth of the cost of asking each.
        size += len(b"".join(raws)) + len(b"".join(bodies))
        if raws:
            _, _, all_keys, all_bodies = made.setdefault(rows.table, (kind, version, [], []))
            all_keys += raws
            all_bodies += bodies
    return size
