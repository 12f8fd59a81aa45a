"""The rows of runs: reading them, and planning each change of state as one request. Pure.

Invariants:
    I1  A run's state and what it waits for are one row, put in one request with the transition,
        the index and, where it ends, its key: there is no half state.
    I2  Every request guards the run's row; every one of a life guards its owner row too. So of two
        who change a run at once one is refused, and so is a life that was taken over.
    I3  Nothing leaves a state in which a run has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from abeyance.storage import codec
from abeyance.storage.errors import StorageError
from abeyance.storage.store import Append, Delete, Guard, Put, Request, Row, Store, Value
from abeyance.storage.tables.fields import INSTANT_MS_MAX
from abeyance.storage.tables.ownership import Owner
from abeyance.storage.tables.runs import (
    PATH_CHARS_MAX,
    RUN_KEY_BYTES_MAX,
    TEXT_CHARS_MAX,
    VALUE_BYTES_MAX,
    Bucket,
    Run,
    RunIndexed,
    RunItem,
    RunKey,
    RunState,
    RunTransition,
    Suspension,
)
from abeyance.storage.tables.waits import LogLine

from .ingress import check_name, clean_text
from .run_errors import InvalidRunError, UnknownRunError

WAITING: Final[frozenset[RunState]] = frozenset(
    ("waiting_for_capacity", "waiting_for_capacity_unknown")
)
LIVE: Final[frozenset[RunState]] = frozenset(("running", "resuming"))
NOBODY: Final = "nobody"
"""In place of a nonce: the owner of a run that a process gave up for another one to execute."""
ENDED: Final[frozenset[RunState]] = frozenset(("completed", "failed", "cancelled"))


class RunId(NamedTuple):
    """A run: its key, and the how manieth of that key it is."""

    key: str
    generation: int

    def __str__(self) -> str:
        return f"{self.key}@{self.generation}"

    @property
    def row(self) -> tuple[str, int]:
        """The key of its row."""
        return self.key, self.generation

    @property
    def owned(self) -> tuple[str, str]:
        """The key of its owner row."""
        return "run", str(self)


def read_run_id(store: Store, text: object) -> RunId:
    """Read `KEY@N`, or a key alone, which is its newest run.

    Raises:
        InvalidRunError: It is neither; nothing was done.
        UnknownRunError: No run has that key.
    """
    found = parse_run_id(text, "run")
    if found is not None:
        return found
    assert isinstance(text, str)
    row = store.get("run_keys", (check_key(text, "run"),))
    if row is None:
        raise UnknownRunError(
            f"no run of key {text!r} was ever started here; nothing was done; list the runs",
            run=text,
        )
    return RunId(text, row.record.generation)


def parse_run_id(text: object, field: str) -> RunId | None:
    """Parse `KEY@N`; None where it names no number.

    Raises:
        InvalidRunError, InvalidNameError: It is no text, or what it says is no key.
    """
    if not isinstance(text, str):
        raise InvalidRunError(field, f"must be text, not {type(text).__name__}")
    key, at, number = text.rpartition("@")
    if at and number.isascii() and number.isdigit() and len(number) < 16 and int(number) >= 1:
        return RunId(check_key(key, field), int(number))
    return None


def check_key(value: object, field: str) -> str:
    """Return a run's key.

    Raises:
        InvalidNameError, InvalidRunError: It is malformed, longer than 100 bytes, or has an `@`.
    """
    key = check_name(value, field)
    if "@" in key:
        raise InvalidRunError(field, "must have no '@': the number of the run stands behind one")
    if len(key.encode()) > RUN_KEY_BYTES_MAX:
        raise InvalidRunError(field, f"must have at most {RUN_KEY_BYTES_MAX} bytes")
    return key


def check_step_id(value: object, field: str = "id") -> str:
    """Return the id of a step or an item.

    Raises:
        InvalidNameError, InvalidRunError: It is malformed, or has a slash.
    """
    name = check_name(value, field, reserved=False)
    if "/" in name:
        raise InvalidRunError(field, "must have no '/': it stands between a step and its items")
    return name


def check_path(path: str, field: str = "id") -> str:
    if len(path) > PATH_CHARS_MAX:
        raise InvalidRunError(field, f"with its steps' ids must have at most {PATH_CHARS_MAX}")
    return path


def pack_plain(value: object, field: str) -> bytes:
    """Pack a value as plain data: dates, data classes, sets and tuples become text, maps and lists.

    Raises:
        InvalidRunError: It is or holds what is no data, as a map whose keys are no text, or takes
            more than 262,144 bytes.
    """
    try:
        packed = codec.pack(msgspec.to_builtins(value, builtin_types=(bytes,)))
    except (TypeError, ValueError, OverflowError, RecursionError, StorageError) as problem:
        raise InvalidRunError(field, f"must be plain data ({problem})") from None
    if len(packed) > VALUE_BYTES_MAX:
        raise InvalidRunError(
            field, f"takes {len(packed):,} bytes; at most {VALUE_BYTES_MAX:,} are kept: store a "
            "reference"
        )  # fmt: skip
    try:
        # More is packed than is read: one row that does not read would hide every run of the store.
        codec.unpack(packed)
    except ValueError as problem:
        raise InvalidRunError(
            field, f"must be plain data, with text as the keys of its maps ({problem})"
        ) from None
    return packed


def not_kept(refusal: InvalidRunError) -> ValueError:
    """What a call that was made failed with when what it returned was refused as no plain data."""
    return ValueError(f"it was done, but what it returned cannot be recorded: it {refusal.problem}")


def bounded(text: str) -> str:
    """A text in one line, as a row holds it."""
    return clean_text(text, TEXT_CHARS_MAX)


# -- changes ---------------------------------------------------------------------------------


def first_request(
    run: RunId,
    record: Run,
    key_counter: int,
    owner: tuple[Guard, Put],
    by: str,
    mode: Guard,
) -> Request:
    """Start a run: refused where its key was started by somebody else meanwhile."""
    guard, put = owner
    return Request(
        guards=(
            Guard("run_keys", (run.key,), key_counter),
            Guard("runs", run.row, 0),
            guard,
            mode,
        ),
        puts=(
            put,
            Put(
                "run_keys",
                (run.key,),
                codec.encode(RunKey(generation=run.generation, is_open=True)),
            ),
            *_puts(run, None, record, 1, by),
        ),
        appends=(_line(run, None, record, by),),
    )


def change(
    run: RunId,
    row: Row,
    record: Run,
    by: str,
    *,
    owner: Guard | None = None,
    guards: tuple[Guard, ...] = (),
    puts: tuple[Put, ...] = (),
) -> Request:
    """Plan a change of a run's row, with everything that belongs to it.

    Args:
        row: As it was read.
        record: What it is to be.
        owner: The owner row of the life that changes it.
        guards, puts: What else is to be true and to happen: the item it stands at, a take-over.
    """
    before: Run = row.record
    assert before.state not in ENDED, "nothing leaves a state in which a run has ended"
    counter = row.counter + 1
    moved = before.state != record.state or _place(before) != _place(record)
    old, new = _place(before), _place(record)
    ends: tuple[Put, ...] = ()
    if record.state in ENDED:
        closed = codec.encode(RunKey(generation=run.generation, is_open=False))
        ends = (Put("run_keys", (run.key,), closed),)
    return Request(
        guards=(
            *(() if owner is None else (owner,)),
            Guard("runs", run.row, row.counter),
            *guards,
        ),
        puts=(
            *(
                _puts(run, before, record, counter, by)
                if moved
                else (Put("runs", run.row, codec.encode(record)),)
            ),
            *ends,
            *puts,
        ),
        deletes=() if old == new else (Delete("run_index", (*old, *run)),),
        appends=(_line(run, before, record, by),) if moved else (),
    )


def _puts(run: RunId, before: Run | None, record: Run, counter: int, by: str) -> tuple[Put, ...]:
    step = RunTransition(
        before=None if before is None else before.state,
        after=record.state,
        by=by,
        at_ms=record.changed_ms,
    )
    place = _place(record)
    index: tuple[Put, ...] = ()
    if before is None or _place(before) != place:
        index = (
            Put("run_index", (*place, *run), codec.encode(RunIndexed(workflow=record.workflow))),
        )
    return (
        Put("runs", run.row, codec.encode(record)),
        Put("run_transitions", (*run, counter), codec.encode(step)),
        *index,
    )


def _line(run: RunId, before: Run | None, record: Run, by: str) -> Append:
    was = "started" if before is None else f"{before.state} to {record.state}"
    return Append(
        "log",
        codec.encode(
            LogLine(event="run", text=bounded(f"{run}: {was} by {by}"), at_ms=record.changed_ms)
        ),
    )


def _place(record: Run) -> tuple[Bucket, int]:
    """Where the index has a run: by what it waits for and until when, or how it ended and when."""
    waits = record.suspension
    if record.state in WAITING and waits is not None and waits.turn is not None:
        return "joined", 0
    match record.state:
        case "running" | "resuming":
            return "live", 0
        case "waiting_for_capacity":
            assert record.suspension is not None
            assert record.suspension.resume_after_ms is not None
            return "waiting", record.suspension.resume_after_ms
        case "waiting_for_capacity_unknown":
            return "unknown", 0
        case "recovery_required":
            return "recovery", 0
        case "completed" | "failed" | "cancelled":
            return record.state, record.changed_ms


def is_owned(record: Run) -> bool:
    """Whether the process of the run's owner row keeps others from it, as long as it lives.

    It does while it executes the run, and while a thread that it cannot end may still do so.
    """
    return record.state in LIVE or (record.state not in ENDED and record.threads > 0)


def put_down(record: Run, threads: int) -> Run:
    """A run's record as this process puts it, with so many functions of it in threads here."""
    rests = record.state not in LIVE and record.state not in ENDED
    return replace(record, threads=threads if rests else 0)


def given_up(owner: Row | None) -> Value:
    """The owner row of a live run that nobody executes: whoever has its workflow may take it."""
    fence = 0 if owner is None else owner.record.fence
    return codec.encode(Owner(nonce=NOBODY, fence=fence + 1))


def suspended(record: Run, suspension: Suspension, now_ms: int) -> Run:
    """The record of a run that waits for capacity."""
    known = suspension.resume_after_ms is not None
    return replace(
        record,
        state="waiting_for_capacity" if known else "waiting_for_capacity_unknown",
        suspension=suspension,
        walls=suspension.attempt,
        reason=suspension.failure,
        changed_ms=now_ms,
    )


def resume_after(retry_at_ms: int | None, buffer_ms: int) -> int | None:
    """The instant to resume after: the reset and a buffer, so as not to land on its boundary."""
    return None if retry_at_ms is None else min(retry_at_ms + buffer_ms, INSTANT_MS_MAX)


# -- looking ---------------------------------------------------------------------------------


def due(store: Store, now_ms: int, limit: int) -> list[RunId]:
    """The runs whose time has come, the longest overdue first."""
    found: list[RunId] = []
    for key, _row in store.scan("run_index", ("waiting",), limit=limit):
        _bucket, at_ms, name, generation = key
        if int(at_ms) > now_ms:
            break
        found.append(RunId(str(name), int(generation)))
    return found


def earliest(store: Store, after_ms: int) -> int | None:
    """The first instant behind `after_ms` at which a run is due; None where none waits for one."""
    start = ("waiting", max(0, after_ms), "\U0010ffff", 2**64 - 1)
    for key, _row in store.scan("run_index", ("waiting",), after=start, limit=1):
        return int(key[1])
    return None


def in_bucket(
    store: Store,
    bucket: Bucket,
    *,
    newest: bool = False,
    after: tuple[RunId, int] | None = None,
) -> Iterator[tuple[RunId, str | None]]:
    """Each run of a bucket, and its workflow; None where the index cannot be read.

    Args:
        newest: The latest instant first.
        after: Only those behind this run, which has that instant.
    """
    start = None if after is None else (bucket, after[1], *after[0])
    for key, row in store.scan("run_index", (bucket,), after=start, reverse=newest):
        workflow = row.record.workflow if isinstance(row, Row) else None
        yield RunId(str(key[2]), int(key[3])), workflow


def item_of(store: Store, run: RunId, ordinal: int) -> Row | None:
    return store.get("run_items", (*run, ordinal))


def item_put(run: RunId, ordinal: int, item: RunItem) -> Put:
    return Put("run_items", (*run, ordinal), codec.encode(item))


def item_guard(run: RunId, ordinal: int, row: Row | None) -> Guard:
    return Guard("run_items", (*run, ordinal), 0 if row is None else row.counter)


def unpacked(packed: bytes | None) -> Any:
    return None if packed is None else codec.unpack(packed)
