"""The rows of what calls used: how they join a commit, and how they are read again. No actor.

Invariants:
    I1  A call's row and its part of the sums are put together, guarded by the row's absence: a
        commit that is made again, by whoever, counts nothing twice. One that was begun stands as
        unknown in both, and is replaced there once, guarded by its row as it was read.
    I2  A sum that cannot be read keeps no call's row, and no round, from being stored.

Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from abeyance.storage.codec import encode
from abeyance.storage.errors import StorageError
from abeyance.storage.store import Delete, Guard, Put, Store
from abeyance.storage.tables.slots import Carried, Turn
from abeyance.storage.tables.spent import (
    COST_MAX,
    QUARTER_MS,
    SPENT_PARTS_MAX,
    Spent,
    SpentPart,
    SpentQuarter,
)

from .overrides import EVERY
from .slot_draft import Draft

SpentKey: TypeAlias = tuple[str, int, int, int]
"""Agent, turn, round, call. Of auxiliary calls turn and round are 0."""
_Sums: TypeAlias = dict[tuple[str, int, str], tuple[list[Spent], list[Spent]]]
JOINED_MAX: Final = 16
"""Calls that join one commit; what is more has one of its own."""


class SpentCall(NamedTuple):
    """One call, and the key that its row has or will have."""

    key: SpentKey
    record: Spent | None
    """What it used; None: nothing, for it was not made, or refused."""
    begun: Spent | None = None
    """What was stored of it before it was made."""


def next_call(store: Store, agent: str, turn: int, round_: int) -> int:
    """The number of a round's next call, by what is stored."""
    for key, _ in store.scan("spent", (agent, turn, round_), reverse=True, limit=1):
        return int(key[-1]) + 1
    return 1


def plan_spent(
    store: Store, calls: Iterable[SpentCall]
) -> tuple[list[Guard], list[Put], list[Delete]]:
    """What puts calls that are not stored yet, and adds them to their sums."""
    guards: list[Guard] = []
    puts: list[Put] = []
    deletes: list[Delete] = []
    sums: _Sums = {}
    for call in calls:
        counter = _counter(store, call)
        if counter is None:
            continue
        guards.append(Guard("spent", call.key, counter))
        if call.record is None:
            deletes.append(Delete("spent", call.key))
        else:
            puts.append(Put("spent", call.key, encode(call.record)))
            _sums_of(sums, call.key, call.record)[0].append(call.record)
        if counter:
            assert call.begun is not None
            _sums_of(sums, call.key, call.begun)[1].append(call.begun)
    for key, (records, begun) in sums.items():
        try:
            row = store.get("spent_quarters", key)
        except StorageError:
            continue
        guards.append(Guard("spent_quarters", key, 0 if row is None else row.counter))
        parts = without(() if row is None else row.record.parts, begun)
        puts.append(Put("spent_quarters", key, encode(summed(parts, records))))
    return guards, puts, deletes


def _sums_of(sums: _Sums, key: SpentKey, record: Spent) -> tuple[list[Spent], list[Spent]]:
    """Where a record is summed up: what is added there, and what is taken off."""
    at_ms = record.at_ms
    place = (key[0], at_ms - at_ms % QUARTER_MS, record.purpose)
    return sums.setdefault(place, ([], []))


def _counter(store: Store, call: SpentCall) -> int | None:
    """The counter of a call's row as it must be for what it used to be put: 0 where there must be
    none; None where nothing is to be put."""
    try:
        row = store.get("spent", call.key)
    except StorageError:
        return None  # Something stands there, and putting it would keep the round from it.
    if row is None:
        return None if call.record is None else 0
    is_open = call.begun is not None and row.record.outcome == "unknown"
    return row.counter if is_open else None


def join_spent(draft: Draft, store: Store, calls: Sequence[SpentCall]) -> None:
    """Have a slot's commit put what the calls behind it used."""
    if calls:
        guards, puts, deletes = plan_spent(store, calls)
        draft.guards = (*draft.guards, *guards)
        draft.deletes += deletes
        for put in puts:
            draft.puts[put.table, put.key] = put


def join_unknown(draft: Draft, store: Store, carried: Carried | None, turn: Turn, now: int) -> None:
    """Count a call of which nobody is left to say whether it was made, and what it used."""
    if carried is None or carried.sent is not False:
        return
    run = store.get("ephemerals", (carried.agent,)) is not None
    unknown = Spent(
        purpose="ephemeral" if run else "turn",
        provider=None,
        model=turn.model,
        outcome="unknown",
        at_ms=now,
    )
    number = next_call(store, carried.agent, carried.turn, carried.round)
    key = (carried.agent, carried.turn, carried.round, number)
    join_spent(draft, store, [SpentCall(key, unknown)])


def summed(parts: Sequence[SpentPart], records: Iterable[Spent]) -> SpentQuarter:
    """The sums with further calls in them."""
    by: dict[Any, SpentPart] = {_of(part): part for part in parts}
    for record in records:
        key = _of(record)
        if key not in by and len(by) >= SPENT_PARTS_MAX:
            key = (None, EVERY, record.currency)
        part = by.get(key) or SpentPart(provider=key[0], model=key[1], currency=key[2])
        known = record.input_tokens is not None
        by[key] = replace(
            part,
            calls=part.calls + 1,
            unknown=part.unknown + (not known),
            unpriced=part.unpriced + (known and record.cost is None),
            input_tokens=part.input_tokens + (record.input_tokens or 0),
            output_tokens=part.output_tokens + (record.output_tokens or 0),
            cache_read_tokens=part.cache_read_tokens + (record.cache_read_tokens or 0),
            cache_write_tokens=part.cache_write_tokens + (record.cache_write_tokens or 0),
            cost=min(part.cost + (record.cost or 0), COST_MAX),
        )
    return SpentQuarter(parts=tuple(by.values()))


def without(parts: Sequence[SpentPart], begun: Iterable[Spent]) -> tuple[SpentPart, ...]:
    """The sums without calls that were counted as unknown."""
    left = list(parts)
    for record in begun:
        # In a part of its own, or among those that had no more room.
        for key in (_of(record), (None, EVERY, record.currency)):
            found = next((part for part in left if _of(part) == key and part.unknown), None)
            if found is not None:
                break
        else:
            continue
        rest = replace(found, calls=found.calls - 1, unknown=found.unknown - 1)
        at = left.index(found)
        left[at : at + 1] = [rest] if rest.calls else []
    return tuple(left)


def _of(part: SpentPart | Spent) -> tuple[str | None, str, str | None]:
    return part.provider, part.model, part.currency
