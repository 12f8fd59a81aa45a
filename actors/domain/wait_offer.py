"""An offer: what of the pending acts one request carries to storage, on the rows as they are now.

Invariants:
    I1  The acts of a key land in their order, or none does. Of those that one request holds, all
        land or none.
    I2  A key whose row cannot be read is changed by a release only, and keeps no other key's acts
        from storage.

Pure planning; reads the store, on the loop thread.
"""

from __future__ import annotations

from typing import Any

from abeyance.storage.codec import encode
from abeyance.storage.errors import StorageError, StoreClosedError, UnreadableRecordError
from abeyance.storage.store import Append, Delete, Guard, Put, Request, Store
from abeyance.storage.tables.waits import LogLine, Wait, WaitReleased

from .overrides import LAPSED
from .protocol import Requests
from .wait_book import ACCOUNT, ACCOUNT_TABLE, ActRecord, ProviderWait, WaitAct, WaitBook, apply


def plan_offer(store: Store, book: WaitBook) -> tuple[tuple[WaitAct, ...], Requests]:
    """The next acts that one request holds, on the rows as they are stored now."""
    room = store.limits.ops_max
    folds: dict[tuple[str, tuple[Any, ...]], _Fold] = {}
    taken: list[WaitAct] = []
    logged: list[WaitAct] = []
    put_off: dict[tuple[str, tuple[Any, ...]], list[WaitAct]] = {}
    for act in book.pending:
        place = (act.table, act.key)
        # A guard and a put a key, a log line an act.
        if 2 * (len(folds) + (place not in folds)) + len(logged) + 1 > room:
            break
        fold = folds.get(place) or _Fold(store, book, act)
        if not fold.takes(act):
            put_off.setdefault(place, []).append(act)
            continue
        folds[place] = fold
        logged.append(act)
        # A release of what cannot be read ends the statements put off before it, too.
        taken += [*put_off.pop(place, ()), act]
    requests = []
    unreadable = [fold for fold in folds.values() if not fold.is_readable]
    if unreadable:
        # Nothing can be put over a row that cannot be read, and it has no counter to guard.
        deletes = tuple(Delete(fold.table, fold.key) for fold in unreadable)
        requests.append(Request(deletes=deletes))
    changed = [fold for fold in folds.values() if fold.record is not fold.stored]
    requests.append(
        Request(
            guards=tuple(Guard(fold.table, fold.key, fold.counter) for fold in folds.values()),
            puts=tuple(
                Put(fold.table, fold.key, encode(fold.record))
                for fold in changed
                if fold.record is not None
            ),
            appends=tuple(Append("log", encode(line_of(act))) for act in logged),
        )
    )
    return tuple(taken), Requests(requests)


def line_of(act: WaitAct) -> LogLine:
    """What the log says of an act."""
    agent, model, *_ = act.key
    if act.table == ACCOUNT_TABLE:
        agent = ACCOUNT + agent
    record = act.record
    if isinstance(record, Wait):
        ends = "released" if record.deadline_ms is None else str(record.deadline_ms)
        text, event, at_ms = f"until {ends}: {record.reason}", "wait_recorded", record.set_ms
    elif isinstance(record, WaitReleased):
        text, event, at_ms = f"by {record.by}", "wait_released", record.at_ms
    else:
        text = f"{act.key[2]}, by {record.by}, of {record.fingerprint}"
        is_over = record.fingerprint == LAPSED
        event, at_ms = "override_lapsed" if is_over else "wait_overridden", record.at_ms
    return LogLine(event=event, agent=agent, model=model, text=text, at_ms=at_ms)


def line_of_place(place: ProviderWait, by: str, at_ms: int) -> LogLine:
    """What the log says of a place in an account's line that was given up by a release."""
    return LogLine(
        event="place_released", agent=place.agent, model=place.model, text=f"by {by}", at_ms=at_ms
    )


class _Fold:
    """One row as stored, and what it becomes."""

    def __init__(self, store: Store, book: WaitBook, act: WaitAct) -> None:
        self.table = act.table
        self.key = act.key
        self.counter = 0
        self.stored: ActRecord | None = None
        self.is_readable = True
        self.takes_waits = True
        """Whether it can be told what a statement would be applied to."""
        self.takes_releases = True
        try:
            row = store.get(self.table, self.key)
        except UnreadableRecordError as error:
            self.is_readable, self.takes_waits = False, error.ignorable
        except StoreClosedError:
            raise
        except StorageError:
            self.takes_waits = self.takes_releases = False
        else:
            if row is not None:
                self.counter, self.stored = row.counter, row.record
        self.record = self.stored
        if self.table == "waits" and isinstance(self.stored, Wait):
            agent, model = self.key
            if self.stored.set_ms <= book.overrides.released_ms(agent, model):
                self.record = None

    def takes(self, act: WaitAct) -> bool:
        """Apply an act, unless nobody can tell what it would be applied to."""
        is_wait = isinstance(act.record, Wait)
        if not (self.takes_waits if is_wait else self.takes_releases):
            return False
        self.takes_waits = True  # What was released is known.
        self.record = apply(self.record, act.record)
        return True
