"""Retention: what is history is deleted once it is old enough, in small commits.

Nothing is deleted that a promise or an open row needs. What each table keeps, and for how long, is
in docs/retention.md.

Invariants:
    I1  A commit deletes at most `ROWS_A_COMMIT` rows, and guards each row whose contents said that
        it is old: one that was written since stays.
    I2  Between any two commits the store is sound: a row goes with what names it, or behind it. A
        death there leaves a rest that the next pass finds.
    I3  A row that cannot be read is not deleted.

Runs in: the loop thread; a task of the runtime.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

import trio

from abeyance.actors.core.clock import Clock
from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.core.logs import Log
from abeyance.storage.crashpoints import crashpoint, declare
from abeyance.storage.errors import StorageError
from abeyance.storage.store import Committed, Delete, Guard, Key, Refused, Request, Row, Store
from abeyance.storage.tables.slots import body_key

from .attachment_pruning import AttachmentPruner
from .errors import InvalidSpecError
from .id_pruning import Ids
from .run_rows import ENDED

DAY_MS: Final = 86_400_000
DAYS_MAX: Final = 36_500
FIRST_S: Final = 300.0
"""From the opening to the first pass: a start has other things to do."""
EVERY_S: Final = 3_600.0
ROWS_A_COMMIT: Final = 64
ROWS_A_SLICE: Final = 64
IDS_A_SLICE: Final = 16
"""For each of which the row of its message is read, too."""
_CONTENTS: Final = ("bodies", "ids", "carried", "contexts", "tool_calls", "approvals", "turns")
"""Tables whose rows an ephemeral run leaves under its own name, beside those of its slot."""
_logger = Log(__name__)

declare("retention.between", "some old rows are deleted, and others are not yet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """For how many days what is history is kept; None: for good.

    Args:
        log_days: Lines of the log.
        alerts_days: Alerts that every sink was given, but the newest of each agent and model.
        calls_days: Provider calls one by one. Their sums stay.
        requests_days: Which messages each request carried, of turns that have ended.
        tools_days: Tool calls and decisions on them, of turns that have ended. What they came to is
            in the transcript.
        runs_days: Runs of workflows that have ended, with their items.
        ephemerals_days: Ephemeral runs that have ended, with their transcripts.
        attachments_days: Attachments that nothing names, from when they were attached.
        ids_days: Ids of messages that were read, from when they were accepted. A message that is
            sent again under an id that is forgotten is a new one.
    Raises:
        InvalidSpecError: Names the field that is no whole number of days from 1 to 36,500.
    """

    log_days: int | None = 365
    alerts_days: int | None = 365
    calls_days: int | None = 365
    requests_days: int | None = 90
    tools_days: int | None = 90
    runs_days: int | None = 90
    ephemerals_days: int | None = 30
    attachments_days: int | None = 30
    ids_days: int | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            days = getattr(self, each.name)
            is_count = isinstance(days, int) and not isinstance(days, bool)
            if days is not None and not (is_count and 1 <= days <= DAYS_MAX):
                bound = f"must be a whole number of days from 1 to {DAYS_MAX:,}, or None"
                raise InvalidSpecError(each.name, bound)


def check_retention(retention: object) -> Retention:
    """Return what is kept, or refuse it.

    Raises:
        InvalidSpecError: It is none.
    """
    if retention is None:
        return Retention()
    if not isinstance(retention, Retention):
        kind = type(retention).__name__
        raise InvalidSpecError("retention", f"must be a Retention or None, not {kind}")
    return retention


class _Old(NamedTuple):
    """A row that may go. With a counter it is guarded."""

    table: str
    key: Key
    counter: int | None = None


class _NotNow(Exception):
    """Nothing can be deleted now: the disk is in trouble, or the runtime ends."""


class _Walk:
    """The rows of a table, a slice a step. No generator: one that is left early needs an end."""

    def __init__(self, store: Store, table: str, prefix: Key, size: int) -> None:
        self._store = store
        self._size = size
        self._place = table, prefix
        self._slice: deque[tuple[Key, Any]] = deque()
        self._after: Key | None = None
        self._is_last = False

    def __aiter__(self) -> _Walk:
        return self

    async def __anext__(self) -> tuple[Key, Any]:
        if not self._slice and not self._is_last:
            await trio.lowlevel.checkpoint()
            rows = self._store.scan(*self._place, after=self._after, limit=self._size)
            self._slice.extend(rows)
            self._is_last = len(self._slice) < self._size
        if not self._slice:
            raise StopAsyncIteration
        found = self._slice.popleft()
        self._after = found[0]
        return found


class Pruner:
    """Deletes what is old, of one store."""

    def __init__(self, store: Store, clock: Clock, retention: Retention) -> None:
        self.journal: Any = None
        self._store = store
        self._clock = clock
        self._retention = retention
        self._deleted: Counter[str] = Counter()
        self._lock = trio.Lock()
        self._room = min(ROWS_A_COMMIT, store.limits.ops_max // 2)

    async def watch(self) -> None:
        """Delete what has become old, every hour, for as long as the runtime is open."""
        await trio.sleep(FIRST_S)
        while True:
            await self.run()
            await trio.sleep(EVERY_S)

    async def run(self) -> dict[str, int]:
        """Delete what is old by now; how many rows of which table. A checkpoint a slice of rows.

        Cancelled: what was deleted is, the rest is at the next pass.
        """
        async with self._lock:
            self._deleted = Counter()
            keeps = self._retention
            try:
                await self._each("log", keeps.log_days, _at_ms, in_order=True)
                await self._alerts(keeps.alerts_days)
                await self._each("spent", keeps.calls_days, _at_ms)
                await self._of_turns("carried", keeps.requests_days)
                await self._of_turns("tool_calls", keeps.tools_days)
                await self._of_turns("approvals", keeps.tools_days)
                await self._runs(keeps.runs_days)
                await self._ephemerals(keeps.ephemerals_days)
                await self._ids(keeps.ids_days)
                # Behind what names them.
                await self._attachments(keeps.attachments_days)
            except _NotNow:
                pass
            if self._deleted:
                _logger.info("deleted what was old: %s", dict(self._deleted))
            return dict(self._deleted)

    # -- what is old ---------------------------------------------------------------------------

    async def _each(
        self,
        table: str,
        days: int | None,
        age: Callable[[Any], int | None],
        *,
        in_order: bool = False,
        but: Callable[[Key], bool] = lambda _: False,
    ) -> None:
        """Delete the rows of a table that are old by themselves."""
        before_ms = self._before(days)
        old: list[_Old] = []
        async for key, row in self._rows(table):
            if not isinstance(row, Row):
                continue
            at_ms = age(row.record)
            if at_ms is None or at_ms >= before_ms:
                if in_order:
                    break
            elif not but(key):
                old.append(_Old(table, key, row.counter))
            if len(old) >= self._room:
                await self._delete(old)
                old = []
        await self._delete(old)

    async def _alerts(self, days: int | None) -> None:
        """One that a sink is owed, or that tells an episode from the next, is named by its key."""
        named = {
            row.allotted
            for table in ("alerted", "alerts_owed")
            for _, row in self._store.scan(table)
            if isinstance(row, Row)
        }
        await self._each("alerts", days, _at_ms, in_order=True, but=lambda key: key in named)

    async def _of_turns(self, table: str, days: int | None) -> None:
        """Rows of turns that ended long ago. Of requests the last of its slot stays."""
        before_ms = self._before(days)
        old: list[_Old] = []
        held: _Old | None = None
        async for key, row in self._rows(table):
            if held is not None and held.key[0] == key[0]:
                old.append(held)
            held = None
            if isinstance(row, Row) and self._ended_before(table, key, row.record, before_ms):
                each = _Old(table, key, row.counter)
                if table == "carried":
                    held = each
                else:
                    old.append(each)
            if len(old) >= self._room:
                await self._delete(old)
                old = []
        await self._delete(old)

    def _ended_before(self, table: str, key: Key, record: Any, before_ms: int) -> bool:
        named = (record.agent, record.turn) if table == "carried" else key[:2]
        try:
            turn = self._store.get("turns", named)
        except StorageError:
            return False
        ended_ms = None if turn is None else turn.record.ended_ms
        return ended_ms is not None and ended_ms < before_ms

    async def _runs(self, days: int | None) -> None:
        """Runs that ended long ago. The row of the key stays, and with it the numbers used."""
        before_ms = self._before(days)
        for bucket in sorted(ENDED):
            async for key, row in self._rows("run_index", (bucket,)):
                if int(key[1]) >= before_ms:
                    break
                if isinstance(row, Row):
                    await self._forget_run(key, row.counter)

    async def _forget_run(self, place: Key, counter: int) -> None:
        run = place[2:]
        try:
            row = self._store.get("runs", run)
        except StorageError:
            return
        if row is not None and row.record.state not in ENDED:
            return
        for table in ("run_items", "run_transitions"):
            if not await self._delete_below(table, run):
                return
        # Last: by its place the rest is found again.
        ends = [] if row is None else [_Old("runs", run, row.counter)]
        await self._delete([*ends, _Old("run_index", place, counter)])

    async def _ephemerals(self, days: int | None) -> None:
        """Ephemeral runs that ended long ago, whose names are never used again."""
        before_ms = self._before(days)
        async for key, row in self._rows("agents"):
            if not isinstance(row, Row) or row.record.kind != "ephemeral":
                continue
            ended_ms = row.record.ended_ms
            if ended_ms is not None and ended_ms < before_ms:
                await self._forget_ephemeral(str(key[0]), row.counter)

    async def _forget_ephemeral(self, name: str, counter: int) -> None:
        store = self._store
        for table in ("ephemerals", "inbox", "wakes"):
            if next(iter(store.scan(table, (name,), limit=1)), None) is not None:
                return  # It has not ended, whatever its row says.
        async for key, row in self._rows("slots", (name,)):
            if not isinstance(row, Row):
                return
            entry = row.record
            # With what it names, and what names it.
            parts = (
                _Old("slots", key, row.counter),
                _Old("bodies", body_key(name, entry)),
                _Old("ids", (name, entry.message)),
            )
            if not await self._delete(parts):
                return
        for table in _CONTENTS:
            if not await self._delete_below(table, (name,)):
                return
        await self._delete([_Old("heads", (name,)), _Old("agents", (name,), counter)])

    async def _ids(self, days: int | None) -> None:
        """Ids of messages that were accepted long ago. They are many: none is looked at in vain."""
        if days is None:
            return
        ids, old = Ids(self._store, self._before(days)), list[_Old]()
        async for key, row in self._rows("ids", size=IDS_A_SLICE):
            if isinstance(row, Row) and ids.is_old(key, row.record):
                old.append(_Old("ids", key, row.counter))
            if len(old) >= self._room:
                await self._delete(old)
                old = []
        await self._delete(old)

    async def _attachments(self, days: int | None) -> None:
        pruner = AttachmentPruner(self._store, self._rows, self._commit, self._room)
        await pruner.run(self._clock.now_ms(), self._before(days))

    # -- deleting ------------------------------------------------------------------------------

    async def _delete_below(self, table: str, prefix: Key) -> bool:
        """Delete every row below a prefix; whether all of them are gone."""
        while True:
            rows = list(self._store.scan(table, prefix, limit=self._room))
            if any(not isinstance(row, Row) for _, row in rows):
                return False
            if not rows:
                return True
            if not await self._delete([_Old(table, key) for key, _ in rows]):
                return False

    async def _delete(self, old: Sequence[_Old]) -> bool:
        """Delete some rows together; whether they are gone. Where one was written since, none is.

        Raises:
            _NotNow: Nothing can be deleted now.
        """
        if not old:
            return True
        request = Request(
            guards=tuple(
                Guard(each.table, each.key, each.counter)
                for each in old
                if each.counter is not None
            ),
            deletes=tuple(Delete(each.table, each.key) for each in old),
        )
        return await self._commit(request)

    async def _commit(self, request: Request) -> bool:
        """Store a request, and count what it deletes; whether its guards held.

        Raises:
            _NotNow: Nothing can be deleted now.
        """
        try:
            outcome = await self.journal.ask(request)
        except (AbeyanceError, StorageError) as error:
            raise _NotNow from error
        if isinstance(outcome, Refused):
            return False
        if not isinstance(outcome, Committed):
            raise _NotNow
        self._deleted.update(each.table for each in request.deletes)
        crashpoint("retention.between")
        return True

    def _rows(self, table: str, prefix: Key = (), size: int = ROWS_A_SLICE) -> _Walk:
        return _Walk(self._store, table, prefix, size)

    def _before(self, days: int | None) -> int:
        """Before which instant what was is old; with None, nothing is."""
        return 0 if days is None else max(0, self._clock.now_ms() - days * DAY_MS)


def _at_ms(record: Any) -> int | None:
    at_ms: int | None = record.at_ms
    return at_ms
