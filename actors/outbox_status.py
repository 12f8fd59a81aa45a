"""How far outboxes are, as rows say it: in a host, and of a store that nobody serves.

Runs in: the loop thread, or whichever thread opened the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from abeyance.storage.errors import StorageError
from abeyance.storage.store import Row, Store
from abeyance.storage.tables.outboxes import Outbox as OutboxRecord

from .domain.outbox_rows import Behind


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxBehind:
    """An agent of an outbox with replies that were not acknowledged. Instants are epoch ms.

    Attributes:
        agent: Whose they are.
        slot: The transcript that they are in.
        seq: Its place up to which they were acknowledged, the cursor; 0: none was. None: it, or a
            row behind it, cannot be read, and the outbox does not go on with this agent.
        lag: How many were not, of the 1,000 that are counted of an outbox.
        oldest_ms: When the oldest of them was stored.
    """

    agent: str
    slot: str
    seq: int | None
    lag: int
    oldest_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxStatus:
    """How far an outbox is. Instants are epoch milliseconds.

    Attributes:
        name: Its name.
        agent: Whose replies it has; None: those of all agents.
        begun_ms: When it was begun.
        is_read: Whether somebody in this process reads it now.
        pid: Of the live process that has it; None: nobody has.
        lag: How many replies were not acknowledged, counted up to 1,000.
        oldest_ms: When the oldest of them was stored.
        unreadable: Agents that it cannot go on with, because a row of theirs cannot be read.
        behind: The agents that have replies left to acknowledge, or cannot be read.
    """

    name: str
    agent: str | None
    begun_ms: int
    is_read: bool
    pid: int | None
    lag: int
    oldest_ms: int | None
    unreadable: tuple[str, ...]
    behind: tuple[OutboxBehind, ...]


def begun(store: Store) -> Iterator[tuple[str, OutboxRecord]]:
    """The outboxes of a store, by name. One whose row cannot be read is left out: opening it tells
    of it."""
    for key, row in store.scan("outboxes"):
        if isinstance(row, Row):
            yield str(key[0]), row.record


def status_of(
    name: str, record: OutboxRecord, behind: Sequence[Behind], pid: int | None, is_read: bool
) -> OutboxStatus:
    """How far an outbox is, by who is behind."""
    return OutboxStatus(
        name=name,
        agent=record.agent,
        begun_ms=record.begun_ms,
        is_read=is_read,
        pid=pid,
        lag=sum(each.lag for each in behind),
        oldest_ms=min(
            (each.oldest_ms for each in behind if each.oldest_ms is not None), default=None
        ),
        unreadable=tuple(each.agent for each in behind if each.seq is None),
        behind=tuple(OutboxBehind(**each._asdict()) for each in behind),
    )


def owner_pid(store: Store, name: str, is_alive: Callable[[str], bool]) -> int | None:
    """The live process that has an outbox; None: none has, or which cannot be read."""
    try:
        owner = store.get("owners", ("outbox", name))
        if owner is None or not is_alive(owner.record.nonce):
            return None
        process = store.get("processes", (owner.record.nonce,))
    except StorageError:
        return None
    return None if process is None else int(process.record.pid)
