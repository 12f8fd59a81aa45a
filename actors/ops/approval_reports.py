"""What the answers about approvals carry: plain data. Instants are epoch milliseconds.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec


class ApprovalReport(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that waits for a person. Mirrors `domain.approvals.ApprovalRow`."""

    id: str
    agent: str
    turn: int
    round: int
    call: int
    tool: str
    input: str
    asked_ms: int
    deadline_ms: int | None
    otherwise: str


class ApprovalsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `approvals`."""

    approvals: tuple[ApprovalReport, ...]


class DecisionReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided of a call. Mirrors `domain.approvals.ApprovalReceipt`."""

    id: str
    state: str
    by: str
    decided_ms: int


def report_approvals(rows: Iterable[Any]) -> ApprovalsReport:
    """Copy rows into the shape that travels."""
    names = ApprovalReport.__struct_fields__
    return ApprovalsReport(
        approvals=tuple(
            ApprovalReport(**{name: getattr(row, name) for name in names}) for row in rows
        )
    )
