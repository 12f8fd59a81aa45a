"""What an operator decides of a run, on its rows: for a host and a stopped store alike. Pure.

Invariants:
    I1  Pressed twice, an act changes something once: the second finds a run that it is not for.
    I2  An item in doubt is never decided by silence: a run whose author's policy left one to an
        operator is taken up only with a decision. One that needs recovery for another reason is
        taken up without: the policy was not asked yet, and is then.
    I3  What was decided stands, whoever executes the run then and whatever dies before that.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from msgspec.structs import replace

from abeyance.storage.store import Guard, Put, Row, Store
from abeyance.storage.tables.runs import Run, RunItem, RunState

from .errors import InvalidInputError
from .ingress import check_line
from .run_errors import InvalidRunError, RunStateError
from .run_rows import ENDED, WAITING, RunId, item_guard, item_put, pack_plain

Decision: TypeAlias = Literal["retry", "done"]
"""Of an item whose end is not recorded: run it again, or take it as done."""
RESUMABLE: Final[frozenset[RunState]] = frozenset((*WAITING, "recovery_required"))
REASON_CHARS_MAX: Final = 1_000


def read_decision(in_doubt: object, result: Any) -> bytes | None:
    """Check a decision on an item in doubt; the packed result where it is taken as done.

    Raises:
        InvalidRunError: Names the field; nothing was done.
    """
    if in_doubt not in (None, "retry", "done"):
        raise InvalidRunError("in_doubt", "must be 'retry' or 'done'")
    return pack_plain(result, "result") if in_doubt == "done" else None


def check_reason(reason: object) -> None:
    """Refuse what is no reason for a cancel.

    Raises:
        InvalidRunError: Names the field; nothing was done.
    """
    if not isinstance(reason, str) or len(reason) > REASON_CHARS_MAX:
        raise InvalidRunError("reason", f"must be text of at most {REASON_CHARS_MAX:,} characters")
    try:
        check_line(reason, "reason")
    except InvalidInputError as error:
        raise InvalidRunError("reason", error.problem) from None


def cancelled(record: Run, reason: str, by: str, now_ms: int) -> Run | None:
    """The record of a run that ends now; None where it has ended already."""
    if record.state in ENDED:
        return None
    return replace(
        record,
        state="cancelled",
        suspension=None,
        reason=reason or f"cancelled by {by}",
        changed_ms=now_ms,
    )


def check_decided(store: Store, run: RunId, record: Run, in_doubt: Decision | None) -> None:
    """Refuse a run whose item in doubt nobody has decided, and to decide one that is none.

    Raises:
        RunStateError: It needs a decision, or there is nothing to take as done; nothing was done.
    """
    if in_doubt == "done" and doubtful(store, run) is None:
        raise RunStateError(
            f"no item of run {str(run)!r} is in doubt, so there is none to take as done; nothing "
            "was done; resume it without a decision",
            run=str(run),
            state=record.state,
        )
    if record.state == "recovery_required" and in_doubt is None and record.doubt is not None:
        raise RunStateError(
            f"run {str(run)!r} needs a decision: {record.reason}; nothing was done; say "
            "whether that is to be run again ('retry') or has happened ('done')",
            run=str(run),
            state=record.state,
        )


def decided(record: Run, in_doubt: Decision | None) -> Run:
    """A run's record once an operator took it up: nobody asks again for what was decided."""
    waits = record.suspension
    if in_doubt is not None and waits is not None:
        waits = replace(waits, exact=True)
    return replace(record, doubt=None, suspension=waits)


def doubtful(store: Store, run: RunId) -> tuple[int, Row] | None:
    """The first item whose end is not known; a life cannot go past it.

    It is the last one where a process died; one that the workflow itself cut off, by a time limit
    of its own, has others behind it.
    """
    for key, row in store.scan("run_items", run.row):
        # A turn of an agent is in no doubt: it is joined where it stands.
        # A session that was being opened is opened again.
        if (
            isinstance(row, Row)
            and row.record.state in ("started", "cut_off")
            and row.record.agent is None
            and row.record.session != "opening"
        ):
            return int(key[2]), row
    return None


def settle_doubt(
    store: Store, run: RunId, in_doubt: Decision | None, packed: bytes | None, now_ms: int
) -> tuple[tuple[Guard, ...], tuple[Put, ...]]:
    """What a request needs to settle the run's item in doubt as it was decided."""
    found = doubtful(store, run)
    if found is None or in_doubt is None:
        return (), ()
    ordinal, row = found
    item: RunItem = row.record
    settled = (
        replace(item, state="blocked")
        if in_doubt == "retry"
        else replace(item, state="done", result=packed, ended_ms=now_ms)
    )
    return (item_guard(run, ordinal, row),), (item_put(run, ordinal, settled),)
