"""The command of schedules: when each is due, and what became of its occurrences."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from abeyance.actors.domain.ingress import escaped_text

from . import shell, targets
from .instants import local_text
from .render import json_text
from .schedule_reports import OccurrenceReport, ScheduleReport, SchedulesReport
from .shell import AsJson, Limit, StateDir


@shell.app.command()
def schedules(
    directory: StateDir,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="One: with what became of its occurrences."),
    ] = None,
    before: Annotated[
        int | None, typer.Option(metavar="N", help="Occurrences before this one, the next page.")
    ] = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List schedules and when each is due; or show one with its occurrences."""
    if name is None and before is not None:
        raise typer.BadParameter("--before goes with a schedule's name")
    target = targets.open_target(directory)
    try:
        report = target.schedules(name, before=before, limit=limit)
    finally:
        target.close()
    if as_json:
        typer.echo(json_text(report))
    else:
        print_schedules(shell.console(), report)


def print_schedules(console: Console, report: SchedulesReport) -> None:
    """Print schedules, a block each, and the occurrences of one, for a person at 80 columns."""
    if not report.schedules:
        console.print("No schedules.")
    for each in report.schedules:
        _print_schedule(console, each)
    if report.occurrences is None:
        return
    console.print("Occurrences" if report.occurrences else "Nothing was due yet.")
    for occurrence in report.occurrences:
        _say(console, f"{occurrence.number}  {_occurrence_text(occurrence)}")


def _print_schedule(console: Console, schedule: ScheduleReport) -> None:
    head = f"{schedule.name}  {schedule.workflow}, {_timetable_text(schedule)}"
    console.print(Text(escaped_text(head), style="bold"))
    if schedule.state == "paused":
        _say(console, f"paused since {local_text(schedule.changed_ms)}", style="yellow")
    elif schedule.next_ms is None:
        _say(console, "never due again")
    else:
        _say(console, f"due {local_text(schedule.next_ms)}")
    if schedule.last is not None:
        _say(console, f"last: {_occurrence_text(schedule.last)}")


def _timetable_text(schedule: ScheduleReport) -> str:
    if schedule.every_s is not None:
        return f"every {schedule.every_s:g} s"
    return f"{schedule.cron} in {schedule.zone}"


def _occurrence_text(each: OccurrenceReport) -> str:
    due = local_text(each.due_ms)
    if each.outcome == "started":
        return f"{due}: started {each.run}"
    if each.outcome == "missed":
        until = "" if each.until_ms is None else f" to before {local_text(each.until_ms)}"
        return f"{due}{until}: missed"
    behind = f" ({each.run})" if each.run else ""
    return f"{due}: skipped, {each.reason}{behind}"


def _say(console: Console, text: str, *, style: str = "") -> None:
    console.print(Padding(Text(escaped_text(text), style=style), (0, 0, 0, 2)))
