"""Exhausted capacity, as a run meets it: what a failure says of it, and the record that waits.

Invariants:
    I1  A wait is recorded with where the run stands before its workflow unwinds; where that cannot
        be recorded, the run has failed.
    I2  An instant that has passed is no instant to go on at: it is unknown when. One that was to
        come when the item was begun has passed since: the run goes on soon, and each time later.

Runs in: the task of the run's life.
"""

from __future__ import annotations

import math
from typing import Any, Final, Literal, NamedTuple

import trio
from msgspec.structs import replace

from abeyance.actors.providers.capacity import (
    CapacityExhaustedError,
    exhaustion_of,
    explained,
    still_to_come,
)
from abeyance.actors.providers.failures import understood_alone
from abeyance.actors.providers.port import HeldError, ProviderError
from abeyance.actors.providers.stated import StatedWait, WaitEnds
from abeyance.storage.crashpoints import crashpoint, declare
from abeyance.storage.store import Guard, Put
from abeyance.storage.tables.fields import INSTANT_MS_MAX
from abeyance.storage.tables.runs import Run, Suspension

from .foreign import told
from .ingress import kept_name
from .run_life import Life
from .run_rows import bounded, resume_after, suspended
from .run_turns import Holds

declare("run.after_suspended", "a run is recorded as suspended and its workflow still runs")

PASSED_PAUSE_S: Final = 1.0
PASSED_PAUSE_S_MAX: Final = 300.0
"""The pause ahead of an item whose wall was over as it came to light: twice as long each time."""
SUSPEND_MAX_S: Final = 60.0
"""How long a suspension is offered to a store that refuses it; then the run has failed."""


class Where(NamedTuple):
    """Where a run stands: which of its items, and which of its step's."""

    path: str
    ordinal: int
    place: int | None = None
    total: int | None = None
    phase: Literal["item", "session", "between", "final"] = "item"


class Begun(NamedTuple):
    """An item that met a wall: when it was begun, and how often it has been."""

    at_ms: int
    attempts: int

    def pause_ms(self) -> int:
        """How long what it met is waited for where that was over as it came to light."""
        doubled = PASSED_PAUSE_S * 2.0 ** min(self.attempts - 1, 20)
        return int(min(doubled, PASSED_PAUSE_S_MAX) * 1_000)


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
    elif (
        moved is None and (row := life.store.get("runs", life.run.row)) and _is(row.record, record)
    ):
        # The last of the asks was stored as the time ran out.
        life.end(record.state)
    elif moved is None:
        life.fail(
            f"it met exhausted capacity ({suspension.failure}), and that could not be recorded "
            f"within {SUSPEND_MAX_S:.0f} s"
        )
    else:
        life.end("lost")


def _is(stored: Run, record: Run) -> bool:
    return replace(stored, threads=record.threads) == record


def held_by(held: Holds, life: Life, where: Where) -> Suspension:
    """The record of a run that waits for an agent's held turn. It is due when that turn is over;
    the instant is the hold's, for whoever looks."""
    deferral = held.deferral
    what = f"turn {held.turn} of agent {deferral.agent!r} is held ({deferral.cause})"
    return Suspension(
        provider=kept_name(held.provider),
        model=kept_name(deferral.model),
        window=kept_name(deferral.window),
        retry_at_ms=deferral.deadline_ms,
        resume_after_ms=deferral.deadline_ms,
        told_by=None if deferral.deadline_ms is None else "wait",
        agent=deferral.agent,
        turn=held.turn,
        code=HeldError.code,
        failure=bounded(f"{what}: {deferral.reason}"),
        **_stands(life, where),
    )


def _stands(life: Life, where: Where) -> dict[str, Any]:
    """Where a run stands, and the provider's session that it does so inside, with whether that can
    be gone on with."""
    inside = life.sessions
    return {
        **where._asdict(),
        "folder": life.folders.known(life.run, life.record),
        "session": inside[-1] if inside else None,
        "exact": None not in inside,
        "attempt": life.record.walls + 1,
        "since_ms": life.clock.now_ms(),
    }


def wall_of(
    error: BaseException, life: Life, where: Where, begun: Begun | None = None
) -> Suspension | None:
    """What a failure says about capacity, as the record of a suspension; None where it is another.

    Understood are a chain that is out, a provider's quota, the wait that ended an ephemeral run or
    refused a call unmade, and the wait that a refused call stated; itself, as the cause it was
    raised from, or in every member of a group.
    """
    common = {"failure": bounded(told(error)), **_stands(life, where)}
    now_ms = life.clock.now_ms()

    def alone(each: BaseException) -> Suspension | None:
        wall = _wall(each, life, now_ms, common)
        if begun is None or (wall is not None and wall.retry_at_ms is not None):
            return wall
        # What it states may have been over before it left the item: it is read as of its beginning.
        then = _wall(each, life, begun.at_ms, common)
        if then is None or then.retry_at_ms is None or then.retry_at_ms > now_ms:
            return wall
        due_ms = max(then.resume_after_ms or 0, now_ms + begun.pause_ms())
        return replace(then, resume_after_ms=due_ms)

    return explained(error, alone, _later)


def _later(one: Suspension, other: Suspension) -> Suspension:
    """Of two that an item needs both of, the one that it waits for longer."""
    if one.resume_after_ms is None or other.resume_after_ms is None:
        return one if one.resume_after_ms is None else other
    return other if other.resume_after_ms > one.resume_after_ms else one


def _wall(
    error: BaseException, life: Life, now_ms: int, common: dict[str, Any]
) -> Suspension | None:
    """What one error says, by itself, to whoever reads it at an instant."""
    if isinstance(error, CapacityExhaustedError):
        first = error.next(now_ms)
        at_ms, common = _until(first.retry_at_ms, now_ms, common)
        return Suspension(
            provider=kept_name(first.provider),
            model=kept_name(first.model),
            window=kept_name(first.window),
            retry_at_ms=at_ms,
            resume_after_ms=resume_after(at_ms, life.buffer_ms),
            told_by=None if at_ms is None else first.told_by,
            code=error.code,
            **common,
        )
    if isinstance(error, HeldError):
        return _held(error, life, now_ms, common)
    refused = understood_alone(error, received_at=now_ms / 1_000)
    return None if refused is None else _refused(refused, life, now_ms, common)


def _held(error: HeldError, life: Life, now_ms: int, common: dict[str, Any]) -> Suspension:
    """What the hold of a model says; of a quota without an end what the account's windows say."""
    at_ms, common = _until(error.deadline_ms, now_ms, common)
    # Of any other hold it is stated to the millisecond, and the gate asks again: no boundary to
    # stay clear of.
    buffer_ms = life.buffer_ms if error.cause == "quota" or error.of_quota else 0
    waits = Suspension(
        provider=kept_name(error.provider),
        model=kept_name(error.model),
        window=kept_name(error.window),
        retry_at_ms=at_ms,
        resume_after_ms=resume_after(at_ms, buffer_ms),
        told_by=None if at_ms is None else "wait",
        code=error.code,
        **common,
    )
    fact = exhaustion_of(error, provider="provider", model=error.model, now_ms=now_ms)
    if at_ms is not None or fact is None or fact.retry_at_ms is None:
        return waits
    return replace(
        waits,
        window=kept_name(fact.window),
        retry_at_ms=fact.retry_at_ms,
        resume_after_ms=resume_after(fact.retry_at_ms, buffer_ms),
        told_by=fact.told_by,
    )


def _until(
    stated_ms: float | None, now_ms: int, common: dict[str, Any]
) -> tuple[int | None, dict[str, Any]]:
    """An instant to go on at, and the record's words: what a failure states to no avail is said to
    be so in front of it."""
    at_ms = still_to_come(stated_ms, now_ms)
    if stated_ms is None or at_ms is not None:
        return at_ms, common
    why = "what it states of when had passed, or is no instant, so nobody knows until when"
    return None, {**common, "failure": bounded(f"{why}: {common['failure']}")}


def _refused(
    refused: ProviderError, life: Life, now_ms: int, common: dict[str, Any]
) -> Suspension | None:
    """What a call that its provider refused says."""
    common = {
        **common,
        "provider": kept_name(refused.provider),
        "model": kept_name(refused.model),
        "code": kept_name(refused.code),
    }
    model = refused.model or "model"
    fact = exhaustion_of(refused, provider="provider", model=model, now_ms=now_ms)
    if fact is None:
        return _stated(refused, now_ms, common)
    if fact.missing:
        return None
    stated_ms = None if refused.stated is None else refused.stated.deadline_ms
    if fact.retry_at_ms is None:
        _none, common = _until(stated_ms, now_ms, common)
    return Suspension(
        window=kept_name(fact.window),
        retry_at_ms=fact.retry_at_ms,
        resume_after_ms=resume_after(fact.retry_at_ms, life.buffer_ms),
        told_by=fact.told_by,
        **common,
    )


def _stated(refused: ProviderError, now_ms: int, common: dict[str, Any]) -> Suspension | None:
    """The wait that a refused call stated, where the same call may go through behind it.

    A limit that states nothing, or a wait that is over, is the item's failure: when to try again is
    a guess, and guesses are the workflow's.
    """
    stated = refused.stated
    if not refused.retryable or not isinstance(stated, StatedWait):
        return None
    match stated.ends:
        case WaitEnds.UNTIL if stated.deadline_ms is not None and stated.deadline_ms > now_ms:
            # To the millisecond, as an agent's turn is held: no window whose edge is to be avoided.
            at_ms = min(math.ceil(stated.deadline_ms), INSTANT_MS_MAX)
            return Suspension(retry_at_ms=at_ms, resume_after_ms=at_ms, told_by="error", **common)
        case WaitEnds.UNTIL_RELEASED:
            return Suspension(**common)
    return None
