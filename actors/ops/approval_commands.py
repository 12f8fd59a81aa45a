"""The command of approvals: which tool calls wait for a person, and what is decided of one.

It may be given twice: the second changes nothing, says what was decided, and exits with 0.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from abeyance.actors.domain.approvals import read_id, read_note
from abeyance.actors.domain.ingress import check_name, escaped_text

from . import shell, targets
from .approval_reports import ApprovalReport, ApprovalsReport
from .instants import local_text
from .render import json_text
from .shell import AsJson, StateDir


@shell.app.command()
def approve(
    directory: StateDir,
    approval: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="The call that is decided on; else all are listed."),
    ] = None,
    deny: Annotated[bool, typer.Option("--deny", help="Have it not made.")] = False,
    note: Annotated[
        str, typer.Option(metavar="TEXT", help="For whoever looks later; told where it is denied.")
    ] = "",
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="List only this agent's calls.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the tool calls that wait for a person, or let one be made, or deny it."""
    if approval is None and (deny or note):
        raise typer.BadParameter("--deny and --note go with the id of a call")
    if approval is not None and agent is not None:
        raise typer.BadParameter("--agent lists, and goes with no id")
    if approval is not None:
        _decide(directory, approval, deny=deny, note=note, as_json=as_json)
        return
    if agent is not None:
        check_name(agent, "agent")
    target = targets.open_reading(directory)
    try:
        found = target.approvals(agent)
    finally:
        target.close()
    if as_json:
        typer.echo(json_text(ApprovalsReport(approvals=found)))
    else:
        print_approvals(shell.console(), found)
    shell.end_beside(target.silent_pids)


def _decide(directory: StateDir, approval: str, *, deny: bool, note: str, as_json: bool) -> None:
    read_id(approval)
    read_note(note)
    target = targets.open_target(directory, writing=True)
    try:
        report = target.decide(approval, "deny" if deny else "approve", note)
    finally:
        target.close()
    with shell.done_anyway("it was decided; what was recorded"):
        if as_json:
            typer.echo(json_text(report))
        else:
            at, by = local_text(report.decided_ms), escaped_text(report.by)
            typer.echo(f"{escaped_text(report.id)}: {report.state} by {by}, {at}")


def print_approvals(console: Console, found: tuple[ApprovalReport, ...]) -> None:
    """Print calls that wait, a block each, for a person at 80 columns."""
    if not found:
        console.print("Nothing waits for a person.")
    for each in found:
        console.print(Text(escaped_text(f"{each.id}  {each.tool}"), style="bold"))
        console.print(Padding(Text(escaped_text(each.input)), (0, 0, 0, 2)))
        verdict = "approved" if each.otherwise == "approve" else "denied"
        end = "until somebody decides"
        if each.deadline_ms is not None:
            end = f"until {local_text(each.deadline_ms)}, then it counts as {verdict}"
        console.print(Padding(Text(f"since {local_text(each.asked_ms)}; {end}"), (0, 0, 0, 2)))
