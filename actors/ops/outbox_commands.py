"""The command of outboxes: how far each bridge is behind what agents said."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from abeyance.actors.domain.ingress import escaped_text
from abeyance.actors.domain.outbox_rows import LAG_MAX

from . import shell, targets
from .instants import local_text
from .outbox_reports import OutboxBehindReport, OutboxesReport, OutboxReport
from .render import json_text
from .shell import AsJson, StateDir


@shell.app.command()
def outbox(directory: StateDir, as_json: AsJson = False) -> None:
    """List the outboxes that bridges read, and how far behind each is."""
    target = targets.open_reading(directory)
    try:
        report = target.outboxes()
    finally:
        target.close()
    if as_json:
        typer.echo(json_text(report))
    else:
        print_outboxes(shell.console(), report)
    shell.end_beside(target.silent_pids)


def print_outboxes(console: Console, report: OutboxesReport) -> None:
    """Print a line each, and below it the agents that have something left."""
    if not report.outboxes:
        console.print("No outbox was begun.")
    for each in report.outboxes:
        console.print(Text(_line(each)))
        oldest = [] if each.oldest_ms is None else [f"the oldest of {local_text(each.oldest_ms)}"]
        for line in (*oldest, *map(_behind, each.behind)):
            console.print(Padding(Text(line), (0, 0, 0, 4)))


def _line(each: OutboxReport) -> str:
    whose = "all agents" if each.agent is None else escaped_text(each.agent)
    if each.pid is None:
        reader = "nobody has it"
    elif each.is_read is None:
        reader = f"process {each.pid} has it"
    else:
        reader = f"process {each.pid} {'reads' if each.is_read else 'has'} it"
    left = (
        f"{each.lag:,} or more"
        if each.lag == LAG_MAX
        else f"{each.lag:,}"
        if each.lag
        else "nothing"
    )
    return f"{escaped_text(each.name)} (of {whose}): {left} to post; {reader}"


def _behind(behind: OutboxBehindReport) -> str:
    agent, slot = escaped_text(behind.agent), escaped_text(behind.slot)
    whose = agent if agent == slot else f"{agent} in {slot}"
    if behind.seq is None:
        return f"{whose}: a row cannot be read, and it is not gone on with: see abeyance check"
    return f"{whose}: {behind.lag:,} behind place {behind.seq}"
