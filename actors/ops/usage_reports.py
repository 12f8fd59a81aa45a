"""What the answer about usage carries: plain data. Costs are text, so that none of it is lost.

Pure.
"""

from __future__ import annotations

from typing import Any

import msgspec


class UsageLineReport(msgspec.Struct, frozen=True, kw_only=True):
    """Some of what was used. Mirrors `domain.spent_reading.UsageLine`."""

    agent: str | None
    purpose: str | None
    provider: str | None
    model: str | None
    day: str | None
    currency: str | None
    calls: int
    unknown_calls: int
    unpriced_calls: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost: str | None


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `usage`."""

    since_ms: int
    lines: tuple[UsageLineReport, ...]
    calls: int
    tokens: int
    cost: dict[str, str]
    """By currency."""
    unread: int


def report_usage(report: Any) -> UsageReport:
    """Copy a report into the shape that travels."""
    names = [name for name in UsageLineReport.__struct_fields__ if name != "cost"]
    return UsageReport(
        since_ms=report.since_ms,
        lines=tuple(
            UsageLineReport(
                **{name: getattr(line, name) for name in names},
                cost=None if line.cost is None else f"{line.cost:f}",
            )
            for line in report.lines
        ),
        calls=report.calls,
        tokens=report.tokens,
        cost={currency: f"{cost:f}" for currency, cost in report.cost.items()},
        unread=report.unread,
    )
