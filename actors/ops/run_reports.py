"""What the answers about runs carry: plain data. `reports` has everything else.

A result is in the report of one run only, and no report has the results of items: a listing of a
thousand runs must fit in an answer.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from .reports import UnrecordedReport


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Mirrors `run_status.RunStatus` but for its result; `text` is its line for people.

    Instants are epoch milliseconds; None where nobody said, never 0.
    """

    id: str
    key: str
    workflow: str
    version: int
    state: str
    reason: str
    step: str | None
    steps_done: int
    place: int | None
    total: int | None
    provider: str | None
    model: str | None
    window: str | None
    retry_at_ms: int | None
    resume_after_ms: int | None
    walls: int
    lives: int
    fallback: tuple[str, str] | None
    started_ms: int
    changed_ms: int
    owner_pid: int | None
    owner_host: str | None
    text: str
    folder: str | None = None
    needs_decision: bool = False
    quiesced: bool = False
    executed: bool | None = None
    given_up: str | None = None
    unrecorded: UnrecordedReport | None = None


class RunsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `runs`."""

    runs: tuple[RunReport, ...]
    pid: int | None = None
    """Of the host that answered; None for what a stopped store holds."""
    silent_pids: tuple[int, ...] = ()
    """Hosts that were asked and did not answer."""


class RunStepReport(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded item. Mirrors `run_status.RunStep` but for its result."""

    path: str
    state: str
    attempts: int
    error: str
    started_ms: int
    ended_ms: int | None


class RunSteppedReport(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a run's state. Mirrors `run_status.RunStepped`."""

    before: str | None
    after: str
    by: str
    at_ms: int


class RunDetailReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `run`: one run, its items, and the states it went through.

    A float of the result that JSON has no number for is the text `NaN`, `Infinity` or `-Infinity`.
    """

    run: RunReport
    result: Any
    steps: tuple[RunStepReport, ...]
    history: tuple[RunSteppedReport, ...]
    pid: int | None = None
    silent_pids: tuple[int, ...] = ()
    """As in `RunsReport`."""


class RunActReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an act on a run came to. Mirrors `run_status.RunReceipt`."""

    id: str
    state: str
    changed: bool
    """Whether this act did it: False for a second press, and for a run that it is not for."""
    threads: int = 0
    """Of a cancel: sync functions of the run whose threads still run in the host."""
    pid: int | None = None
    """Of the host that did it; None for a stopped store, whose next host goes on with it."""


def report_run(status: Any) -> RunReport:
    """Copy a run's status into the shape that travels."""
    refused = status.unrecorded
    given: dict[str, Any] = {
        "text": status.text(),
        "unrecorded": refused
        and UnrecordedReport(what=refused.what, reason=refused.reason, since_ms=refused.since_ms),
    }
    names = (name for name in RunReport.__struct_fields__ if name not in given)
    return RunReport(**{name: getattr(status, name) for name in names}, **given)


def report_runs(statuses: Iterable[Any], pid: int | None) -> RunsReport:
    return RunsReport(runs=tuple(map(report_run, statuses)), pid=pid)


def report_detail(
    status: Any, steps: Sequence[Any], history: Sequence[Any], pid: int | None
) -> RunDetailReport:
    return RunDetailReport(
        run=report_run(status),
        result=_in_json(status.result),
        steps=tuple(
            RunStepReport(**{name: getattr(step, name) for name in RunStepReport.__struct_fields__})
            for step in steps
        ),
        history=tuple(
            RunSteppedReport(before=each.before, after=each.after, by=each.by, at_ms=each.at_ms)
            for each in history
        ),
        pid=pid,
    )


def _in_json(value: Any) -> Any:
    """A result whose floats JSON has: one that it has not is text (`NaN`, `Infinity`), not null.

    Changes the value in place, which was unpacked for this. No recursion: it may be deep.
    """
    top = [value]
    left: list[Any] = [top]
    while left:
        holds = left.pop()
        for key, each in list(holds.items() if isinstance(holds, dict) else enumerate(holds)):
            if isinstance(each, dict | list):
                left.append(each)
            elif isinstance(each, float) and not math.isfinite(each):
                holds[key] = "NaN" if each != each else "Infinity" if each > 0 else "-Infinity"
    return top[0]


def report_act(receipt: Any, pid: int | None) -> RunActReport:
    return RunActReport(
        id=receipt.id,
        state=receipt.state,
        changed=receipt.changed,
        threads=receipt.threads,
        pid=pid,
    )
