"""The command of schedules: when each is due, what became of its occurrences, and acts on one.

Each act may be given twice: the second changes nothing, says how the schedule stands, and exits
with 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from abeyance.actors.domain.ingress import escaped_text
from abeyance.actors.domain.run_rows import check_key
from abeyance.actors.domain.schedule_acts import ScheduleVerb

from . import shell, targets
from .instants import local_text
from .render import json_text
from .schedule_reports import OccurrenceReport, ScheduleActReport, ScheduleReport, SchedulesReport
from .shell import AsJson, Limit, StateDir

_ACTED: Final = {
    "paused": "paused; it starts no run until it is resumed.",
    "active": "active; it is due again from now on.",
    "removed": "removed; a host that adds it at its start has it again.",
}


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
    pause: Annotated[
        bool, typer.Option("--pause", help="Start no more runs of it until it is resumed.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Have it due again, from now on.")
    ] = False,
    remove: Annotated[bool, typer.Option("--remove", help="End it.")] = False,
    as_json: AsJson = False,
) -> None:
    """List schedules and when each is due; or show one with its occurrences; or act on one."""
    if name is None and before is not None:
        raise typer.BadParameter("--before goes with a schedule's name")
    acts: dict[ScheduleVerb, bool] = {"pause": pause, "resume": resume, "remove": remove}
    asked = [verb for verb, given in acts.items() if given]
    if asked:
        if name is None or len(asked) > 1 or before is not None:
            raise typer.BadParameter(
                "one of --pause, --resume and --remove goes with a schedule's name, alone"
            )
        _act(directory, name, asked[0], as_json=as_json)
        return
    target = targets.open_reading(directory)
    try:
        report = target.schedules(name, before=before, limit=limit)
    finally:
        target.close()
    if as_json:
        typer.echo(json_text(report))
    else:
        print_schedules(shell.console(), report)
    shell.end_beside(target.silent_pids)


def _act(directory: Path, name: str, act: ScheduleVerb, *, as_json: bool) -> None:
    check_key(name, "name")
    target = targets.open_target(directory, writing=True)
    try:
        report = target.act_on_schedule(name, act)
    finally:
        target.close()
    with shell.done_anyway(f"the {act} was done; what it came to"):
        if as_json:
            typer.echo(json_text(report))
        else:
            print_act(shell.console(), report)


def print_act(console: Console, report: ScheduleActReport) -> None:
    """Print what an act on a schedule came to."""
    line = f"{report.name} is {report.state}; nothing was changed."
    if report.changed:
        line = f"{report.name} is {_ACTED[report.state]}"
    console.print(Text(escaped_text(line)))


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
