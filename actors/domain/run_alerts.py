"""What an operator is told of a run: that it waits for long, or for somebody. Pure.

A run that waits for an agent's held turn raises none: the hold has its own.

Invariants:
    I1  The same wait, or the same need of an operator, is one episode, whoever tells of it again.
"""

from __future__ import annotations

import shlex

from abeyance.actors.providers.instants import render_instant
from abeyance.storage.tables.runs import Run

from .alert_book import EVERY, RaiseAlert
from .ingress import clean_text
from .limits import ALERT_PAST_MS
from .run_rows import RunId

CAUSE = "run"


def alert_of_run(run: RunId, record: Run) -> RaiseAlert | None:
    """The alert that a run's row calls for; None where it calls for none."""
    waits = record.suspension
    if record.state == "recovery_required":
        return _raised("run_recovery", run, record.changed_ms, record.reason, None)
    if waits is None or waits.turn is not None:
        return None
    if record.state == "waiting_for_capacity_unknown":
        return _raised("run_waiting", run, waits.since_ms, waits.failure, None)
    at_ms = waits.resume_after_ms
    if record.state != "waiting_for_capacity" or at_ms is None:
        return None
    # As a hold's: strictly more than an hour.
    is_long = at_ms - waits.since_ms > ALERT_PAST_MS
    return _raised("run_waiting", run, waits.since_ms, waits.failure, at_ms) if is_long else None


def run_alert_text(raised: RaiseAlert, where: str) -> str:
    """What an operator reads of a run. Not bounded."""
    _, _, run = raised.episode.split(":", 2)
    reason, named = clean_text(raised.reason, 400), shlex.quote(run)
    if raised.kind == "run_recovery":
        return (
            f"Run {run} needs an operator: {reason}. Nothing of it is executed until then. Take it "
            f"up with a decision (abeyance resume {where} {named}), or end it (abeyance cancel "
            f"{where} {named})."
        )
    if raised.deadline_ms is None:
        return (
            f"Run {run} waits for capacity, and nobody said until when: {reason}. This does not "
            f"end by itself: abeyance resume {where} {named}, or abeyance cancel {where} {named}."
        )
    return (
        f"Run {run} waits for capacity until {render_instant(raised.deadline_ms)}: {reason}. It "
        f"goes on by itself then. To have it tried at once: abeyance resume {where} {named}."
    )


def _raised(
    kind: str, run: RunId, since_ms: int, reason: str, deadline_ms: int | None
) -> RaiseAlert:
    # By the key, so that what is noted of alerts grows with keys and not with runs.
    return RaiseAlert(kind, run.key, EVERY, CAUSE, reason, deadline_ms, f"run:{since_ms}:{run}")
