"""The command of usage: what agents used, and what it cost."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from abeyance.actors.domain.ingress import escaped_text
from abeyance.actors.domain.spent_reading import Asked, By

from . import shell, targets
from .instants import local_text
from .render import json_text
from .shell import AsJson, StateDir
from .usage_reports import UsageLineReport, UsageReport

_HEADS: Final[dict[str, str]] = {"agent": "agent", "model": "model", "day": "day"}


def read_since(text: str) -> int:
    """`2026-12-01`, or with a time and a zone; without a zone in that of this machine."""
    try:
        since = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            "must be a date or time such as 2026-12-01 or 2026-12-01T08:30+01:00"
        ) from None
    since = since if since.tzinfo is not None else since.astimezone()
    return max(0, int(since.timestamp() * 1_000))


@shell.app.command()
def usage(
    directory: StateDir,
    agent: Annotated[
        str | None,
        typer.Argument(metavar="[AGENT]", help="Whose; of ephemeral runs their common name."),
    ] = None,
    since: Annotated[
        int | None,
        typer.Option(metavar="WHEN", parser=read_since, help="From a date or time on."),
    ] = None,
    by: Annotated[str, typer.Option(metavar="agent|model|day", help="What a line is.")] = "model",
    zone: Annotated[
        str, typer.Option(metavar="ZONE", help="Whose days they are, such as Europe/Vienna.")
    ] = "UTC",
    as_json: AsJson = False,
) -> None:
    """Show what agents used: calls, tokens, and what they cost where the host knows prices."""
    Asked(agent, since, by, zone)
    target = targets.open_reading(directory)
    try:
        report = target.usage(agent, since, by=by, zone=zone)  # type: ignore[arg-type]
    finally:
        target.close()
    if as_json:
        typer.echo(json_text(report))
    else:
        print_usage(shell.console(), report, by)  # type: ignore[arg-type]
    shell.end_beside(target.silent_pids)


def print_usage(console: Console, report: UsageReport, by: By) -> None:
    """Print what was used, a line each, and the sums."""
    if not report.lines:
        console.print("No calls.")
    else:
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column(_HEADS[by], overflow="fold")
        for head in ("calls", "input", "cached", "output", "cost"):
            table.add_column(head, justify="right", no_wrap=head != "cost")
        for line in report.lines:
            cached = line.cache_read_tokens + line.cache_write_tokens
            table.add_row(
                Text(escaped_text(_name(line, by))),
                f"{line.calls:,}",
                f"{line.input_tokens:,}",
                f"{cached:,}",
                f"{line.output_tokens:,}",
                "–" if line.cost is None else _money(line.cost, line.currency),
            )
        console.print(table)
    costs = ", ".join(_money(cost, currency) for currency, cost in sorted(report.cost.items()))
    since = f" since {local_text(report.since_ms)}" if report.since_ms else ""
    total = f"{report.calls:,} calls, {report.tokens:,} tokens{since}"
    console.print(Text(f"{total}: {escaped_text(costs)}." if costs else f"{total}."))
    for count, what in (
        (sum(line.unknown_calls for line in report.lines), "of which nobody knows what they used"),
        (sum(line.unpriced_calls for line in report.lines), "without a price"),
    ):
        if count:
            console.print(Text(f"{count:,} of the calls are ones {what}."))
    if report.unread:
        unread = f"{report.unread:,} quarters of an hour cannot be read and are not counted"
        console.print(Text(f"{unread}: see abeyance check."))


def _name(line: UsageLineReport, by: By) -> str:
    parts = {
        "agent": (line.agent, line.purpose),
        "model": (line.provider or "–", line.model),
        "day": (line.day,),
    }[by]
    return " ".join(part for part in parts if part)


def _money(cost: str, currency: str | None) -> str:
    amount = Decimal(cost)
    exact = f"{amount:,.2f}" if amount >= 1 or not amount else f"{amount:.6f}"
    return f"{exact} {escaped_text(currency or '')}"
