"""Exhausted capacity, as a run meets it: what a failure says of it, and the record that waits.

Invariants:
    I1  A wait is recorded with where the run stands before its workflow unwinds; where that cannot
        be recorded, the run has failed.

Runs in: the task of the run's life.
"""

from __future__ import annotations

import math
from typing import Any, Final

import trio

from abeyance.actors.providers.capacity import (
    capacity_error_of,
    errors_within,
    exhaustion_of,
)
from abeyance.actors.providers.failures import understood
from abeyance.actors.providers.stated import StatedWait, WaitEnds
from abeyance.storage.crashpoints import crashpoint, declare
from abeyance.storage.store import Guard, Put
from abeyance.storage.tables.fields import INSTANT_MS_MAX, NAME_BYTES_MAX
from abeyance.storage.tables.runs import Suspension

from .errors import CallDeferredError, RunExhaustedError
from .foreign import told
from .ingress import clean_text
from .run_life import Life
from .run_rows import bounded, resume_after, suspended
from .wait_book import Deferral

declare("run.after_suspended", "a run is recorded as suspended and its workflow still runs")

SUSPEND_MAX_S: Final = 60.0
"""How long a suspension is offered to a store that refuses it; then the run has failed."""


async def suspend(
    life: Life,
    suspension: Suspension,
    guards: tuple[Guard, ...] = (),
    puts: tuple[Put, ...] = (),
) -> None:
    """Record that a run waits for capacity, and end its life. One that cannot be recorded failed.

    A checkpoint. Durable: on return, where the life's outcome is the waiting state.
    """
    now_ms = life.clock.now_ms()
    record = suspended(life.record, suspension, now_ms)
    moved = None
    with trio.move_on_after(SUSPEND_MAX_S):
        moved = await life.move(record, "runtime", guards=guards, puts=puts)
    if moved:
        crashpoint("run.after_suspended")
        life.end(record.state)
    elif moved is None and (row := life.store.get("runs", life.run.row)) and row.record == record:
        # The last of the asks was stored as the time ran out.
        life.end(record.state)
    elif moved is None:
        life.fail(
            f"it met exhausted capacity ({suspension.failure}), and that could not be recorded "
            f"within {SUSPEND_MAX_S:.0f} s"
        )
    else:
        life.end("lost")


def held_by(
    deferral: Deferral, turn: int, life: Life, path: str, ordinal: int, total: int | None
) -> Suspension:
    """The record of a run that waits for an agent's held turn. It is due when that turn is over;
    the instant is the hold's, for whoever looks."""
    held = f"turn {turn} of agent {deferral.agent!r} is held ({deferral.cause})"
    return Suspension(
        model=named(deferral.model),
        retry_at_ms=deferral.deadline_ms,
        resume_after_ms=deferral.deadline_ms,
        told_by=None if deferral.deadline_ms is None else "wait",
        path=path,
        ordinal=ordinal,
        total=total,
        agent=deferral.agent,
        turn=turn,
        **_stands_in(life),
        attempt=life.record.walls + 1,
        failure=bounded(f"{held}: {deferral.reason}"),
        since_ms=life.clock.now_ms(),
    )


def _stands_in(life: Life) -> dict[str, Any]:
    """The provider's session that a run stands inside, and whether it can be gone on with."""
    inside = life.sessions
    return {"session": inside[-1] if inside else None, "exact": None not in inside}


def named(text: str | None) -> str | None:
    """A name as a row holds it: a host makes the fact, and nothing has looked at it yet."""
    return clean_text(text, NAME_BYTES_MAX) or None if text else None


def wall_of(
    error: BaseException, life: Life, path: str, ordinal: int, total: int | None
) -> Suspension | None:
    """What a failure says about capacity, as the record of a suspension; None where it is another.

    Understood are a chain that is out, a provider's quota, the wait that ended an ephemeral run or
    refused a call unmade, and the wait that a refused call stated; alone, in groups and behind
    causes.
    """
    now_ms = life.clock.now_ms()
    common: dict[str, Any] = {
        "path": path,
        "ordinal": ordinal,
        "total": total,
        "attempt": life.record.walls + 1,
        "since_ms": now_ms,
        "failure": bounded(told(error)),
        **_stands_in(life),
    }
    exhausted = capacity_error_of(error)
    if exhausted is not None:
        first, at_ms = exhausted.first, exhausted.retry_at_ms
        if at_ms is not None and at_ms <= now_ms:
            # Whoever raised it may have kept it: to go on at once would meet it again, and again.
            at_ms = None
        return Suspension(
            provider=named(first.provider),
            model=named(first.model),
            window=named(first.window),
            retry_at_ms=at_ms,
            resume_after_ms=resume_after(at_ms, life.buffer_ms),
            told_by=None if at_ms is None else first.told_by,
            **common,
        )
    # A call that was refused unmade has the same instant, from the record that refused it.
    ended = next(
        (e for e in errors_within(error) if isinstance(e, RunExhaustedError | CallDeferredError)),
        None,
    )
    if ended is not None:
        # Stated to the millisecond, and the gate asks again: no boundary to stay clear of.
        quota = ended.cause == "quota"
        return Suspension(
            model=named(ended.model),
            retry_at_ms=ended.deadline_ms,
            resume_after_ms=resume_after(ended.deadline_ms, life.buffer_ms if quota else 0),
            told_by=None if ended.deadline_ms is None else "wait",
            **common,
        )
    fact = exhaustion_of(error, provider="provider", model="model", now_ms=now_ms)
    if fact is None:
        return _stated(error, now_ms, common)
    if fact.missing:
        return None
    return Suspension(
        window=named(fact.window),
        retry_at_ms=fact.retry_at_ms,
        resume_after_ms=resume_after(fact.retry_at_ms, life.buffer_ms),
        told_by=fact.told_by,
        **common,
    )


def _stated(error: BaseException, now_ms: int, common: dict[str, Any]) -> Suspension | None:
    """The wait that a refused call stated, where the same call may go through behind it.

    A limit that states nothing, or a wait that is over, is the item's failure: when to try again is
    a guess, and guesses are the workflow's.
    """
    refused = understood(error, received_at=now_ms / 1_000)
    stated = None if refused is None else refused.stated
    if refused is None or not refused.retryable or not isinstance(stated, StatedWait):
        return None
    match stated.ends:
        case WaitEnds.UNTIL if stated.deadline_ms is not None and stated.deadline_ms > now_ms:
            # To the millisecond, as an agent's turn is held: no window whose edge is to be avoided.
            at_ms = min(math.ceil(stated.deadline_ms), INSTANT_MS_MAX)
            return Suspension(retry_at_ms=at_ms, resume_after_ms=at_ms, told_by="error", **common)
        case WaitEnds.UNTIL_RELEASED:
            return Suspension(**common)
    return None
