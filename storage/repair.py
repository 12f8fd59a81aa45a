"""Repair: what cannot be read is taken out of the way, each row whole, so that it can be put back.

Every row that is changed is kept in the table `set_aside`: its bytes as they were, and what was put
in its place. What that is, `mending` says.

Invariants:
    I1  Nobody has the store open meanwhile; a copy of it, made first, stands beside.
    I2  A row is changed by the commit that keeps what it was. So a death leaves a store that is
        repaired as far as it got, and the next repair goes on from there.
    I3  What is put back stands exactly as it was, byte by byte, and only where what the repair put
        there still stands.

Blocks the thread that calls.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from . import codec
from .alone_writing import Writing, writing_alone
from .backup import BackedUp, backup
from .check import Finding, check
from .crashpoints import crashpoint
from .directory import read_identity
from .errors import UnreadableRecordError
from .keys import decode_key, encode_key
from .lmdb_store import LOCK_TIMEOUT_S
from .mending import GAP, Answer, Change, Look, Mending, Stays
from .mending_rules import mend
from .store import Key, Row, Store
from .tables import FORMATS
from .tables.ownership import StoreMeta
from .tables.repairs import SetAside

FINDINGS_A_COMMIT: Final = 64
BYTES_A_COMMIT: Final = 16 * 2**20
ROUNDS_MAX: Final = 20
"""Of looks at all rows: what is taken out may leave others that name it."""


class Planned(NamedTuple):
    """A finding, and what a repair does about it."""

    finding: Finding
    answer: Answer


class Repaired(NamedTuple):
    """What a repair came to."""

    repair: str
    """Its name, by which it is put back. Empty where nothing was changed."""
    rows: int
    """How many rows were changed."""
    stays: tuple[Planned, ...]
    """What it left as it was, and why."""
    backup: BackedUp


class Kept(NamedTuple):
    """A row that a repair took out or replaced."""

    number: int
    repair: str
    table: str
    key: Key | bytes
    replaced: bool
    """Whether something stands in its place."""
    reason: str
    then: str
    at_ms: int


class Undone(NamedTuple):
    """What putting a repair back came to."""

    repair: str
    rows: int
    stays: tuple[Kept, ...]
    """Rows in whose place something else stands since; they are kept."""


class Forgotten(NamedTuple):
    """What forgetting came to."""

    rows: int
    backup: BackedUp


def plan(
    store: Store, directory: Path, findings: tuple[Finding, ...], *, now_ms: int
) -> tuple[Planned, ...]:
    """What a repair would do about each finding. What it leaves may bring more of them.

    Args:
        directory: The store's own, with `store.json`.
    """
    look = Look(store, now_ms, _own(directory))
    return tuple(Planned(finding, mend(look, finding)) for finding in findings)


def _own(directory: Path) -> StoreMeta:
    """The store's own row as `store.json` has it.

    Of a newer format the data may be a mixture, where a migration was begun: it counts as of the
    first, so that a migration goes through all rows again.
    """
    identity = read_identity(directory)
    return StoreMeta(
        format=FORMATS[0],
        store_id=identity.store_id,
        created_ms=identity.created_ms,
        boots=GAP,
        clean=False,
    )


def repair(
    path: str | os.PathLike[str],
    copy: str | os.PathLike[str],
    *,
    clock_ms: Callable[[], int],
    progress: Callable[[int, int], object] = lambda _done, _whole: None,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> Repaired:
    """Copy a stopped store, then set aside what cannot be read in it.

    Blocks for the copy, and for looks at all rows.
    Durable: on return, and after each commit on the way. Run again, it goes on from there.

    Args:
        copy: Where the copy is made, as by `backup`: a directory that is not there, or is empty.
    Raises:
        StoreInUseError: A process has the store open; nothing was changed.
        StorageError: The copy could not be made, and nothing was changed; or a commit failed, and
            what was committed before stands.
    """
    state = Path(path).absolute()
    with writing_alone(state, "repaired", lock_timeout_s) as begin:
        made = backup(state, copy, clock_ms=clock_ms, progress=progress)
        with begin() as writing:
            return _repair(writing, made, clock_ms)


def _repair(writing: Writing, made: BackedUp, clock_ms: Callable[[], int]) -> Repaired:
    name, rows, now_ms = secrets.token_hex(8), 0, clock_ms()
    stays: tuple[Planned, ...] = ()
    for _ in range(ROUNDS_MAX):
        planned = plan(
            writing.store, writing.directory, check(writing.store).findings, now_ms=now_ms
        )
        stays = tuple(each for each in planned if isinstance(each.answer, Stays))
        before = rows
        left = [each.finding for each in planned if isinstance(each.answer, Mending)]
        while left:
            batch, left = left[:FINDINGS_A_COMMIT], left[FINDINGS_A_COMMIT:]
            rows += _set_aside(writing, batch, name, now_ms)
            crashpoint("repair.between_commits")
        if rows == before:
            break
    return Repaired(name if rows else "", rows, stays, made)


def _set_aside(writing: Writing, findings: list[Finding], name: str, now_ms: int) -> int:
    """Mend some findings in one commit; how many rows were changed. A finding whose rows another
    of the batch changed is left to the next look."""
    look = Look(writing.store, now_ms, _own(writing.directory))
    mended: list[tuple[Finding, Mending]] = []
    touched: set[tuple[str, bytes]] = set()
    size = 0
    for finding in findings:
        answer = mend(look, finding)
        if not isinstance(answer, Mending):
            continue
        keys = {(each.table, raw_key(each.key)) for each in answer.changes}
        if keys & touched or size > BYTES_A_COMMIT:
            continue
        touched |= keys
        size += sum(len(writing.get(*key) or b"") for key in keys)
        mended.append((finding, answer))

    def write() -> int:
        number = _next_number(writing)
        rows = 0
        with writing.transaction() as transaction:
            for finding, answer in mended:
                for change in answer.changes:
                    key = raw_key(change.key)
                    raw = transaction.get(change.table, key)
                    placed = _framed(change, key, raw)
                    if raw == placed:
                        continue
                    kept = SetAside(
                        repair=name,
                        table=change.table,
                        key=key,
                        raw=raw,
                        placed=placed,
                        problem=finding.problem,
                        reason=finding.text[:2_000],
                        then=answer.then[:1_000],
                        at_ms=now_ms,
                    )
                    transaction.put_new("set_aside", (number + rows,), kept)
                    transaction.put(change.table, key, placed)
                    rows += 1
            if rows:
                transaction.count("set_aside", number + rows)
        return rows

    return writing.run(write)


def _framed(change: Change, key: bytes, raw: bytes | None) -> bytes | None:
    if change.record is None:
        return None
    counter = 0
    if raw is not None:
        try:
            counter = codec.read_counter(change.table, key, raw)
        except UnreadableRecordError:
            counter = GAP  # What it was, nobody knows; it must not come round.
    return codec.frame(change.table, key, counter + 1, codec.encode(change.record))


def raw_key(key: Key | bytes) -> bytes:
    """A key as it is on disk, whatever its table's shape."""
    return key if isinstance(key, bytes) else encode_key(tuple(map(type, key)), key)


def _next_number(writing: Writing) -> int:
    """The number after all that were given: the sequence may be what is damaged."""
    last = next((key[0] for key, _ in writing.store.scan("set_aside", reverse=True)), 0)
    try:
        row = writing.store.get("sequences", ("set_aside",))
    except UnreadableRecordError:
        row = None
    return max(int(last) + 1, 1 if row is None else row.record.next)


def listed(store: Store) -> Iterator[Kept]:
    """What repairs set aside in this store and nobody put back, oldest first."""
    for key, row in store.scan("set_aside"):
        if isinstance(row, Row):
            yield _kept(int(key[0]), row.record)


def _kept(number: int, record: SetAside) -> Kept:
    named: Key | bytes = record.key
    with suppress(ValueError):
        named = decode_key(record.key)
    return Kept(
        number,
        record.repair,
        record.table,
        named,
        record.placed is not None,
        record.reason,
        record.then,
        record.at_ms,
    )


def undo(
    path: str | os.PathLike[str],
    *,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> Undone:
    """Put back what the newest repair of a stopped store set aside, byte by byte.

    A row in whose place something else stands than the repair put there stays as it is now.
    Durable: on return, and after each commit on the way. Run again, it goes on from there.

    Raises:
        StoreInUseError: A process has the store open; nothing was changed.
        StorageError: A commit failed; what was committed before stands.
    """
    state = Path(path).absolute()
    with writing_alone(state, "changed", lock_timeout_s) as begin, begin() as writing:
        return _undo(writing)


def _apart(found: list[tuple[int, SetAside]]) -> Iterator[tuple[int, SetAside]]:
    """The first of them, up to a second one of the same row. The engine keeps the pages of a long
    value that is put over by a shorter one in the same commit; who looks at the file afterwards
    takes that for damage."""
    seen: set[tuple[str, bytes]] = set()
    size = 0
    for number, record in found[:FINDINGS_A_COMMIT]:
        row = (record.table, record.key)
        if row in seen or size > BYTES_A_COMMIT:
            return
        seen.add(row)
        size += len(record.raw or b"")
        yield number, record


def _undo(writing: Writing) -> Undone:
    newest = next((each.repair for each in reversed(list(listed(writing.store)))), None)
    if newest is None:
        return Undone("", 0, ())
    rows, stays = 0, []
    found = [
        (int(key[0]), row.record)
        for key, row in writing.store.scan("set_aside")
        if isinstance(row, Row) and row.record.repair == newest
    ]
    found.reverse()  # The last change of a row first.
    while found:
        batch = list(_apart(found))
        found = found[len(batch) :]

        def write(batch: list[tuple[int, SetAside]] = batch) -> list[Kept]:
            left = []
            with writing.transaction() as transaction:
                for number, record in batch:
                    if transaction.get(record.table, record.key) != record.placed:
                        left.append(_kept(number, record))
                        continue
                    transaction.put(record.table, record.key, record.raw)
                    transaction.put("set_aside", encode_key((int,), (number,)), None)
            return left

        left = writing.run(write)
        stays += left
        rows += len(batch) - len(left)
        crashpoint("repair.between_commits")
    return Undone(newest, rows, tuple(stays))


def forget(
    path: str | os.PathLike[str],
    copy: str | os.PathLike[str],
    *,
    clock_ms: Callable[[], int],
    progress: Callable[[int, int], object] = lambda _done, _whole: None,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> Forgotten:
    """Copy a stopped store, then delete what repairs set aside in it: no repair can be undone.

    Blocks for the copy.
    Durable: on return, and after each commit on the way. Run again, it goes on from there.

    Args:
        copy: Where the copy is made, as by `backup`. It still has the rows.
    Raises:
        StoreInUseError: A process has the store open; nothing was changed.
        StorageError: The copy could not be made, and nothing was changed; or a commit failed, and
            what was committed before stands.
    """
    state = Path(path).absolute()
    with writing_alone(state, "changed", lock_timeout_s) as begin:
        made = backup(state, copy, clock_ms=clock_ms, progress=progress)
        with begin() as writing:
            numbers = [each.number for each in listed(writing.store)]
            for start in range(0, len(numbers), FINDINGS_A_COMMIT):
                part = numbers[start : start + FINDINGS_A_COMMIT]

                def write(part: list[int] = part) -> None:
                    with writing.transaction() as transaction:
                        for number in part:
                            transaction.put("set_aside", encode_key((int,), (number,)), None)

                writing.run(write)
                crashpoint("repair.between_commits")
            return Forgotten(len(numbers), made)
