"""What a check of a stopped store found, and what a repair of it did, as reports. See `stopped`."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Final

from abeyance.storage.check import Finding, check
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.repair import Kept, Planned, Undone, listed

from .reports import (
    CheckReport,
    FindingReport,
    SetAsideReport,
    StayingReport,
    UndoRepairReport,
)

LISTED_MAX: Final = 1_000


def report_check(directory: Path, store: LmdbStore, open_pids: tuple[int, ...]) -> CheckReport:
    """Read every row and say what is wrong. Blocks for as long as that takes."""
    report = check(store)
    kept: deque[Kept] = deque(maxlen=LISTED_MAX)
    count = 0
    for each in listed(store):
        kept.append(each)
        count += 1
    return CheckReport(
        directory=os.fspath(directory.absolute()),
        rows=sum(report.rows.values()),
        findings=tuple(map(report_finding, report.findings)),
        open_pids=open_pids,
        set_aside=tuple(map(report_kept, kept)),
        set_aside_rows=count,
    )


def report_finding(finding: Finding) -> FindingReport:
    return FindingReport(
        problem=finding.problem, table=finding.table, key=repr(finding.key), text=finding.text
    )


def report_kept(kept: Kept) -> SetAsideReport:
    return SetAsideReport(
        id=kept.number,
        repair=kept.repair,
        table=kept.table,
        key=repr(kept.key),
        replaced=kept.replaced,
        reason=kept.reason,
        then=kept.then,
        at_ms=kept.at_ms,
    )


def report_staying(planned: Planned, why: str) -> StayingReport:
    finding = planned.finding
    return StayingReport(table=finding.table, key=repr(finding.key), text=finding.text, why=why)


def report_undone(directory: Path, undone: Undone) -> UndoRepairReport:
    return UndoRepairReport(
        directory=os.fspath(directory.absolute()),
        repair=undone.repair,
        rows=undone.rows,
        stays=tuple(map(report_kept, undone.stays)),
    )
