"""The rows of schedules: planning each change as one request, and finding what is due. Pure.

Invariants:
    I1  Every change guards the schedule's row. So of two processes that find an occurrence due one
        records what becomes of it, and a schedule that was removed starts nothing.
    I2  An occurrence, the run it starts and when the schedule is due next are one request.
    I3  A removed schedule keeps its row, and added again goes on with the numbers of its
        occurrences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from abeyance.storage import codec
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.store import Append, Delete, Guard, Put, Request, Row, Store
from abeyance.storage.tables.schedules import KEPT_MAX, Occurrence, Schedule, ScheduleIndexed
from abeyance.storage.tables.waits import LogLine

from .timetable import timetable_of

AHEAD_MS = 86_400_000
"""A schedule that was last due this far in the future was so by a clock that has been set back."""


def change(
    name: str,
    row: Row | None,
    record: Schedule,
    *,
    occurrences: Sequence[Occurrence] = (),
    start: Request | None = None,
    guards: tuple[Guard, ...] = (),
    line: LogLine | None = None,
) -> Request:
    """Plan a change of a schedule's row, with everything that belongs to it.

    Args:
        row: As it was read; None where there was none.
        record: What it is to be, but for its number.
        occurrences: What became of occurrences, oldest first.
        start: What starts a run.
        guards: What else is to be true.
        line: What the log says of it.
    """
    before: Schedule | None = None if row is None else row.record
    start = start or Request()
    number = record.number
    record = replace(record, number=number + len(occurrences))
    old, new = None if before is None else _place(before), _place(record)
    puts = [Put("schedules", (name,), codec.encode(record))]
    deletes = []
    if new is not None and new != old:
        puts.append(Put("schedule_index", (new, name), codec.encode(ScheduleIndexed())))
    if old is not None and new != old:
        deletes.append(Delete("schedule_index", (old, name)))
    for ordinal, occurrence in enumerate(occurrences, number + 1):
        puts.append(Put("occurrences", (name, ordinal), codec.encode(occurrence)))
        if ordinal > KEPT_MAX:
            deletes.append(Delete("occurrences", (name, ordinal - KEPT_MAX)))
    return Request(
        guards=(
            Guard("schedules", (name,), 0 if row is None else row.counter),
            *start.guards,
            *guards,
        ),
        puts=(*puts, *start.puts),
        deletes=(*deletes, *start.deletes),
        appends=(
            *start.appends,
            *(() if line is None else (Append("log", codec.encode(line)),)),
        ),
    )


def _place(record: Schedule) -> int | None:
    """Where the index has a schedule: by the instant it is due."""
    return record.next_ms if record.state == "active" else None


def stray(name: str, due_ms: int, counter: int) -> Request:
    """Delete an entry of the index that its schedule knows nothing of."""
    return Request(
        guards=(Guard("schedules", (name,), counter),),
        deletes=(Delete("schedule_index", (due_ms, name)),),
    )


def mended(record: Schedule, now_ms: int) -> Schedule | None:
    """A schedule whose next instant comes of a clock that has been set back since by more than a
    day, as it is to be; None where it is none.

    Less than that is waited out, so that nothing that was due is due again.
    """
    if record.state != "active" or (record.last_ms or record.added_ms) <= now_ms + AHEAD_MS:
        return None
    anchored = replace(record, anchor_ms=min(record.anchor_ms, now_ms))
    next_ms = timetable_of(anchored).after(now_ms)
    return replace(
        anchored, next_ms=next_ms, last_ms=None, added_ms=min(record.added_ms, now_ms),
        changed_ms=now_ms,
    )  # fmt: skip


# -- looking ---------------------------------------------------------------------------------


def read_schedule(store: Store, name: str) -> Row | None:
    """The row of a schedule; None where there is none, or it was removed.

    Raises:
        UnreadableRecordError: It is there and cannot be trusted.
    """
    row = store.get("schedules", (name,))
    return None if row is None or row.record.state == "removed" else row


def due(
    store: Store, now_ms: int, after: tuple[int, str] | None, limit: int
) -> list[tuple[int, str]]:
    """Entries of the index up to an instant, the longest overdue first. A bad one hides nothing."""
    found: list[tuple[int, str]] = []
    for key, _row in store.scan("schedule_index", after=after, limit=limit):
        if int(key[0]) > now_ms:
            break
        found.append((int(key[0]), str(key[1])))
    return found


def earliest(store: Store, after_ms: int) -> int | None:
    """The first instant behind `after_ms` at which a schedule is due."""
    start = (max(0, after_ms), "\U0010ffff")
    for key, _row in store.scan("schedule_index", after=start, limit=1):
        return int(key[0])
    return None


def known(store: Store) -> Iterator[tuple[str, Row | UnreadableRecordError]]:
    """Every schedule's row, the removed ones' too."""
    for key, row in store.scan("schedules"):
        if isinstance(row, Row | UnreadableRecordError):
            yield str(key[0]), row
