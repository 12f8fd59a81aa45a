"""What the answer about outboxes carries: plain data.

Pure.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import msgspec

from abeyance.actors.outbox_status import OutboxStatus


class OutboxBehindReport(msgspec.Struct, frozen=True, kw_only=True):
    """Mirrors `outbox_status.OutboxBehind`."""

    agent: str
    slot: str
    seq: int | None
    lag: int
    oldest_ms: int | None


class OutboxReport(msgspec.Struct, frozen=True, kw_only=True):
    """Mirrors `outbox_status.OutboxStatus`."""

    name: str
    agent: str | None
    begun_ms: int
    is_read: bool | None
    """None: another process has it, and only that one knows whether somebody reads it now."""
    pid: int | None
    lag: int
    oldest_ms: int | None
    unreadable: tuple[str, ...]
    behind: tuple[OutboxBehindReport, ...]


class OutboxesReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `outbox`."""

    outboxes: tuple[OutboxReport, ...]


def report_outboxes(found: Iterable[OutboxStatus]) -> OutboxesReport:
    """Copy what was found into the shape that travels."""
    return OutboxesReport(outboxes=tuple(map(_report, found)))


def _report(status: OutboxStatus) -> OutboxReport:
    names = [name for name in OutboxReport.__struct_fields__ if name not in ("behind", "is_read")]
    return OutboxReport(
        **{name: getattr(status, name) for name in names},
        is_read=status.is_read if status.pid in (None, os.getpid()) else None,
        behind=tuple(
            OutboxBehindReport(
                **{name: getattr(each, name) for name in OutboxBehindReport.__struct_fields__}
            )
            for each in status.behind
        ),
    )
