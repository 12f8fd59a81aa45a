"""Turns in a row that failed for the same reason: who is told of one is told once.

Pure.
"""

from __future__ import annotations

from typing import Final

from abeyance.storage.store import Row, Store

EPISODE_TURNS: Final = 100
"""Failed turns in a row that are looked back at."""


def failed_since(store: Store, agent: str, turn: int, failure: str) -> int | None:
    """The first of the turns in a row that failed so, up to this one. None: there are so many that
    whoever is told of the first was told.

    Turns that were cancelled, and operators' tool pairs, tell nothing of it.
    """
    since, left = turn, EPISODE_TURNS
    for key, row in store.scan("turns", (agent,), reverse=True):
        if int(key[-1]) >= turn:
            continue
        if not isinstance(row, Row):
            return since
        if row.record.failure == failure:
            since, left = int(key[-1]), left - 1
        elif row.record.pair is None and row.record.state != "cancelled":
            return since
        if left == 0:
            return None
    return since
