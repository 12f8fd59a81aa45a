"""Reading how runs stand from their rows: for a host and for a stopped store alike.

A row that cannot be read hides nothing but what it says: a listing has it as `unreadable`, and who
asks for it by name is told.

Pure but for the store and the state directory that are handed in.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.store import Row, Store
from abeyance.storage.tables.runs import Bucket, Run, RunItem, RunTransition

from .domain.ingress import check_name
from .domain.mode import read_mode
from .domain.run_errors import InvalidRunError, UnknownRunError
from .domain.run_folders import RunFolders
from .domain.run_rows import ENDED, LIVE, WAITING, RunId, in_bucket, parse_run_id, unpacked
from .run_status import RunStatus, RunStep, RunStepped

PAGE_MAX: Final = 1_000
OPEN: Final = "open"
"""As a filter of states: whatever has not ended."""
_BUCKETS: Final[dict[str, tuple[Bucket, ...]]] = {
    OPEN: ("recovery", "unknown", "waiting", "joined", "live"),
    "recovery_required": ("recovery",),
    "waiting_for_capacity_unknown": ("unknown", "joined"),
    "waiting_for_capacity": ("waiting", "joined"),
    "resuming": ("live",),
    "running": ("live",),
}
"""Where the index has the open runs of a state; first what only an operator moves."""
LOOKED_AT_MAX: Final = 10_000
"""Runs that one listing goes through, so that a filter that few of them pass stalls no loop."""


def check_run_listing(state: object, workflow: object, limit: object, after: object = None) -> None:
    """Refuse a malformed filter or bound of a listing.

    Raises:
        InvalidRunError, InvalidNameError: Names the field.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PAGE_MAX:
        raise InvalidRunError("limit", f"must be a whole number from 1 to {PAGE_MAX:,}")
    if state is not None and state not in (OPEN, *LIVE, *WAITING, *ENDED, "recovery_required"):
        raise InvalidRunError("state", "is no state of a run, nor 'open'")
    if workflow is not None:
        check_name(workflow, "workflow")
    if after is not None and state in _BUCKETS:
        raise InvalidRunError("after", "goes with all runs, or those that have ended in one way")
    if after is not None and parse_run_id(after, "after") is None:
        raise InvalidRunError("after", "must be the id of a run: its key, an '@', its number")


def run_record(store: Store, run: RunId) -> Run:
    """The row of a run.

    Raises:
        UnknownRunError: There is none.
    """
    row = store.get("runs", run.row)
    if row is None:
        raise unknown_run(run)
    record: Run = row.record
    return record


def unknown_run(run: RunId) -> UnknownRunError:
    return UnknownRunError(
        f"there is no run {str(run)!r}; nothing was done; list those there are", run=str(run)
    )


def status_of(store: Store, folders: RunFolders, run: RunId, record: Run) -> RunStatus:
    """How a run stands, by its row, its last item, and whether it made a directory."""
    waits = record.suspension
    pid, host = _owner(store, run) if record.state in LIVE else (None, None)
    last = next(iter(store.scan("run_items", run.row, reverse=True, limit=1)), None)
    item: RunItem | None = last[1].record if last is not None and isinstance(last[1], Row) else None
    done = 0
    if last is not None:
        done = int(last[0][2]) + (item is not None and item.state in ("done", "failed"))
    stands = item if waits is None else waits
    result, unreadable = _read_result(record.result)
    return RunStatus(
        id=str(run),
        key=run.key,
        workflow=record.workflow,
        version=record.version,
        state=record.state,
        reason=record.reason,
        step=None if stands is None else stands.path,
        steps_done=done,
        place=None if stands is None else stands.place,
        total=None if stands is None else stands.total,
        phase=None if waits is None else waits.phase,
        folder=folders.known(run, record),
        needs_decision=record.state == "recovery_required" and record.doubt is not None,
        quiesced=record.state not in ENDED and read_mode(store).is_quiesced,
        code=None if waits is None else waits.code,
        provider=None if waits is None else waits.provider,
        model=None if waits is None else waits.model,
        window=None if waits is None else waits.window,
        retry_at_ms=None if waits is None else waits.retry_at_ms,
        resume_after_ms=None if waits is None else waits.resume_after_ms,
        agent=None if waits is None else waits.agent,
        walls=record.walls,
        lives=record.lives,
        fallback=None if record.choice is None else (record.choice.provider, record.choice.model),
        started_ms=record.started_ms,
        changed_ms=record.changed_ms,
        result=result,
        unreadable=unreadable,
        schedule=record.schedule,
        due_ms=record.due_ms,
        session=None if waits is None else waits.session,
        owner_pid=pid,
        owner_host=host,
    )


def _read_result(packed: bytes | None) -> tuple[Any, str | None]:
    """A result, and why it cannot be read where it cannot."""
    try:
        return unpacked(packed), None
    except ValueError as error:
        return None, f"its result cannot be read: {error}"


def unreadable_status(run: RunId, workflow: str | None, why: str) -> RunStatus:
    """What can be said of a run whose row cannot be read."""
    return RunStatus(
        id=str(run),
        key=run.key,
        workflow=workflow or "",
        version=0,
        state="unreadable",
        reason=why,
        step=None,
        steps_done=0,
        place=None,
        total=None,
        provider=None,
        model=None,
        window=None,
        retry_at_ms=None,
        resume_after_ms=None,
        agent=None,
        walls=0,
        lives=0,
        fallback=None,
        started_ms=0,
        changed_ms=0,
        result=None,
        unreadable=why,
    )


def _owner(store: Store, run: RunId) -> tuple[int | None, str | None]:
    """The process that owns a run, by its pid and host; None where that cannot be told."""
    try:
        owner = store.get("owners", run.owned)
        process = None if owner is None else store.get("processes", (owner.record.nonce,))
    except UnreadableRecordError:
        return None, None
    return (None, None) if process is None else (process.record.pid, process.record.host)


def list_runs(
    store: Store,
    folders: RunFolders,
    state: str | None,
    workflow: str | None,
    limit: int,
    after: str | None = None,
) -> tuple[RunStatus, ...]:
    """The runs of a store in one state or of one workflow, at most so many.

    Those of a state are found by the index, however many others there are: what only an operator
    moves first, then what waits by its instant, then what is executed; of what has ended the newest
    first. All runs come by key. One listing goes through `LOOKED_AT_MAX` at most.

    Raises:
        InvalidRunError, UnknownRunError: `after` is no run, or one in another state.
    """
    found: list[RunStatus] = []
    for run, named in islice(_candidates(store, state, after), LOOKED_AT_MAX):
        if len(found) == limit:
            break
        if None not in (workflow, named) and workflow != named:
            continue
        try:
            row = store.get("runs", run.row)
        except UnreadableRecordError as error:
            if workflow in (None, named):
                found.append(unreadable_status(run, named, str(error)))
            continue
        if row is None or workflow not in (None, row.record.workflow):
            continue
        if state in (None, OPEN, row.record.state):
            found.append(status_of(store, folders, run, row.record))
    return tuple(found)


def _candidates(
    store: Store, state: str | None, after: str | None
) -> Iterator[tuple[RunId, str | None]]:
    """The runs that may be in a state, and their workflows where the index has them."""
    if state is None:
        for run in _all_runs(store, after):
            yield run, None
    elif state in ENDED:
        yield from in_bucket(store, state, newest=True, after=_ended(store, state, after))  # type: ignore[arg-type]
    else:
        for bucket in _BUCKETS[state]:
            yield from in_bucket(store, bucket)


def _ended(store: Store, state: str, after: str | None) -> tuple[RunId, int] | None:
    """Where the index has the run that a page begins behind."""
    run = None if after is None else parse_run_id(after, "after")
    if run is None:
        return None
    record = run_record(store, run)
    if record.state != state:
        raise InvalidRunError("after", f"must be a run that is {state}")
    return run, record.changed_ms


def _all_runs(store: Store, after: str | None) -> Iterator[RunId]:
    behind = None if after is None else parse_run_id(after, "after")
    for key, _row in store.scan("runs", after=None if behind is None else behind.row):
        yield RunId(str(key[0]), int(key[1]))


def read_steps(store: Store, run: RunId) -> tuple[RunStep, ...]:
    """A run's recorded items, in order.

    Raises:
        UnknownRunError: There is no such run.
    """
    run_record(store, run)
    return tuple(
        RunStep(
            path=item.path,
            state=item.state,
            attempts=item.attempts,
            result=_read_result(item.result)[0],
            error=item.error or _read_result(item.result)[1] or "",
            agent=item.agent,
            started_ms=item.started_ms,
            ended_ms=item.ended_ms,
        )
        for _key, row in store.scan("run_items", run.row)
        if isinstance(row, Row)
        for item in (row.record,)
    )


def read_history(store: Store, run: RunId) -> tuple[RunStepped, ...]:
    """The states a run went through, in order.

    Raises:
        UnknownRunError: There is no such run.
    """
    run_record(store, run)
    found: list[RunTransition] = [
        row.record for _key, row in store.scan("run_transitions", run.row) if isinstance(row, Row)
    ]
    return tuple(
        RunStepped(before=each.before, after=each.after, by=each.by, at_ms=each.at_ms)
        for each in found
    )
