"""The hold for an exhausted quota that states no instant: it stands in its turn's row alone.

A release of it is an override with the hold's fingerprint, so that it outlives the process and does
not end the next hold of the kind: that one comes of another failed call.

Pure reading; any process.
"""

from __future__ import annotations

from typing import NamedTuple

from abeyance.storage.errors import StorageError, StoreClosedError
from abeyance.storage.store import Store
from abeyance.storage.tables.slots import Turn


class QuotaHold(NamedTuple):
    model: str
    fingerprint: str
    window: str | None = None


def fingerprint_of(number: int, turn: Turn) -> str:
    """What tells this hold from the next: the turn, and how many of its calls have failed."""
    return f"{number}:{turn.failures}"


def read_quota_hold(store: Store, agent: str) -> QuotaHold | None:
    """The quota's hold of an agent's open turn, as it is stored; None where there is none, or where
    its rows cannot be read."""
    try:
        head = store.get("heads", (agent,))
        if head is None or head.record.open_turn is None:
            return None
        row = store.get("turns", (agent, head.record.open_turn))
    except StoreClosedError:
        raise
    except StorageError:
        return None
    turn: Turn | None = None if row is None else row.record
    if turn is None or turn.state != "held" or turn.held is None or turn.held.cause != "quota":
        return None
    fingerprint = fingerprint_of(head.record.open_turn, turn)
    return QuotaHold(turn.held.model, fingerprint, turn.held.window)
