"""Reads every row of a store and says what is wrong with it, as data. Repairs nothing.

Invariants:
    I1  A finding names its table and key; a row that can't be read hides no other.

Runs in: the reading thread, or another process that opened the store to look. A page a transaction,
so that a running store is not held up; in one that is being written, a reference that was made or
dropped between two pages may show as dangling: look again before acting on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from .codec import has_come_later
from .errors import UnreadableRecordError
from .seals import raw_key
from .store import Key, Store
from .tables import TABLES
from .tables.attachments import Attachment
from .tables.blocks import attachments_in
from .tables.slots import body_key


class Finding(NamedTuple):
    """One thing that is wrong."""

    problem: Literal["unreadable", "dangling", "sequence", "digest"]
    table: str
    key: Key | bytes
    text: str
    names: tuple[str, Key] | None = None
    """Of `dangling`: table and key of what is not there."""
    home: Key | None = None
    """Of an `unreadable` wait: the key it was written under, where it stands under another."""


class Report(NamedTuple):
    """What was read, and what was found."""

    rows: dict[str, int]
    """Rows read, by table."""
    findings: tuple[Finding, ...]

    @property
    def is_sound(self) -> bool:
        return not self.findings


def check(store: Store) -> Report:
    """Read everything; blocks for as long as that takes."""
    rows: dict[str, int] = {}
    findings: list[Finding] = []
    for table in TABLES:
        rows[table] = 0
        for key, row in store.scan(table):
            rows[table] += 1
            if isinstance(row, Exception):
                named = row.key if isinstance(row, UnreadableRecordError) else key
                home = _home(store, table, row)
                text = str(row) if home is None else f"{row}; it was written under {home!r}"
                findings.append(Finding("unreadable", table, named, text, home=home))
            else:
                findings += _references(store, table, key, row.record)
                if table == "attachments":
                    findings += _bytes(store, key, row.record)
    findings += _sequences(store)
    return Report(rows, tuple(findings))


def _home(store: Store, table: str, error: Exception) -> Key | None:
    """Whose a wait is that stands under a damaged key, where a bit of that has flipped; None for a
    copy of what its key still has, which took the place of another row."""
    if table not in ("waits", "account_waits") or not isinstance(error, UnreadableRecordError):
        return None
    home = None if error.seal is None else error.seal.home(raw_key(error))
    if error.seal is None or home is None or tuple(map(type, home)) != TABLES[table].key:
        return None
    try:
        return None if has_come_later(store.get(table, home), error.seal) else home
    except UnreadableRecordError:
        return home


def _references(store: Store, table: str, key: Key, record: Any) -> Iterator[Finding]:
    """What a row points at and must be there."""
    wanted: list[tuple[str, Key]] = []
    if table == "ids":
        slot = key[0]
        if record.state == "inbox":
            wanted.append(("bodies", (slot, record.entry)))
            wanted.append(("inbox", (slot, record.entry)))
        elif record.state == "slot" and record.seq is not None:
            wanted.append(("slots", (slot, record.seq)))
    elif table == "inbox":
        wanted.append(("bodies", key))
    elif table == "slots":
        wanted.append(("bodies", body_key(str(key[0]), record)))
    elif table == "edits" and record.undone_ms is None:
        wanted.append(("bodies", body_key(str(key[0]), record.row)))
    elif table == "heads" and record.open_turn is not None:
        wanted.append(("turns", (key[0], record.open_turn)))
    elif table == "turns":
        wanted.append(("heads", (key[0],)))  # It has their next number.
    elif table == "carried":
        wanted.append(("leases", (key[0],)))
    elif table == "bodies":
        for digest in sorted({block.digest for _, block in attachments_in(record.blocks)}):
            wanted.append(("attachments", (digest,)))
            wanted.append(("attachment_uses", (digest, "entry", *key)))
    elif table == "attachments" and record.state != "writing":
        wanted += [("attachment_pieces", (*key, number)) for number in range(record.pieces)]
    for other, target in wanted:
        if not _is_there(store, other, target):
            yield Finding(
                "dangling",
                table,
                key,
                f"{table} {key!r} names {other} {target!r}, which is not there",
                (other, target),
            )


def _bytes(store: Store, key: Key, record: Attachment) -> Iterator[Finding]:
    """Whether the pieces of an attachment are the bytes that it stands for."""
    if record.state == "writing":
        return
    found, size = hashlib.sha256(), 0
    for number in range(record.pieces):
        try:
            row = store.get("attachment_pieces", (*key, number))
        except UnreadableRecordError:
            return  # It has a finding of its own; so has one that is not there.
        if row is None:
            return
        found.update(row.record.data)
        size += len(row.record.data)
    if (found.hexdigest(), size) != (key[0], record.size_bytes):
        text = f"attachments {key!r} has pieces of other bytes: {size} of {found.hexdigest()}"
        yield Finding("digest", "attachments", key, text)


def _is_there(store: Store, table: str, key: Key) -> bool:
    try:
        return store.get(table, key) is not None
    except UnreadableRecordError:
        return True  # It is there, and has a finding of its own.


def _sequences(store: Store) -> Iterator[Finding]:
    """Keys that the store would allot again."""
    for table in TABLES.values():
        if not table.append and table.name != "changes":
            continue
        last = next(iter(store.scan(table.name, limit=1, reverse=True)), None)
        if last is None:
            continue
        number = last[0][0]
        try:
            row = store.get("sequences", (table.name,))
        except UnreadableRecordError:
            continue  # It has a finding of its own.
        following = 1 if row is None else row.record.next
        if not isinstance(number, int) or number >= following:
            yield Finding(
                "sequence", table.name, last[0], f"{table.name} {last[0]!r} is past its sequence"
            )
