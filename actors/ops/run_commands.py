"""The commands of runs: how they stand, and what an operator may do with one.

Each act may be given twice: the second changes nothing, says how the run stands, and exits with 0.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from abeyance.actors.domain.ingress import check_model, check_name
from abeyance.actors.domain.run_acts import check_reason, read_decision
from abeyance.actors.run_reading import OPEN, check_run_listing

from . import shell, targets
from .render import json_text
from .render_runs import print_act, print_run, print_runs
from .run_reports import RunActReport
from .shell import AsJson, Limit, StateDir

RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="Its id (KEY@N), or a key: that key's newest run.")
]


@shell.app.command()
def runs(
    directory: StateDir,
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="One run: its items and the states it went through."),
    ] = None,
    state: Annotated[
        str | None, typer.Option(metavar="STATE", help="Only those in this state.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Those that have ended, too.")] = False,
    workflow: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this workflow's.")
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="With --all or --state: those behind it, the next page."),
    ] = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List runs that have not ended, first what needs a decision; or show one."""
    if every and state is not None:
        raise typer.BadParameter("--all and --state exclude each other")
    if run is not None and (every or state or workflow or after):
        raise typer.BadParameter("a run is shown by itself, without options of the list")
    which = state if state is not None or every else OPEN
    check_run_listing(which, workflow, limit, after)
    target = targets.open_reading(directory)
    try:
        if run is not None:
            detail = target.run(run)
        else:
            found = target.runs(state=which, workflow=workflow, after=after, limit=limit)
    finally:
        target.close()
    if run is not None:
        if as_json:
            typer.echo(json_text(detail))
        else:
            print_run(shell.console(), detail)
    elif as_json:
        typer.echo(json_text(found))
    else:
        filtered = every or state is not None or workflow is not None
        print_runs(shell.console(), found, filtered=filtered)
    shell.end_beside(target.silent_pids)


def _decided(value: str | None, result: str | None) -> Any:
    if value not in (None, "retry", "done"):
        raise typer.BadParameter("--in-doubt is 'retry' or 'done'")
    if result is None:
        return None
    if value != "done":
        raise typer.BadParameter("--result goes with --in-doubt done")
    try:
        return json.loads(result, parse_constant=_no_number)
    except ValueError as error:
        raise typer.BadParameter(f"--result is not JSON ({error})") from None


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number there")


@shell.app.command()
def resume(
    directory: StateDir,
    run: RunName,
    in_doubt: Annotated[
        str | None,
        typer.Option(
            "--in-doubt",
            metavar="retry|done",
            help="The item whose end is not recorded: run it again, or it happened.",
        ),
    ] = None,
    result: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="What that item returned, with --in-doubt done."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Take a waiting run up now, whatever it waits for. (Turns: see quiesce --end.)"""
    value = _decided(in_doubt, result)
    read_decision(in_doubt, value)
    target = targets.open_target(directory, writing=True)
    try:
        report = target.resume_run(run, in_doubt=in_doubt, result=value)  # type: ignore[arg-type]
    finally:
        target.close()
    _tell("resume", report, as_json=as_json)


@shell.app.command()
def fallback(
    directory: StateDir,
    run: RunName,
    provider: Annotated[str, typer.Option(metavar="NAME", help="Whose model.")],
    model: Annotated[str, typer.Option(metavar="MODEL", help="Which.")],
    as_json: AsJson = False,
) -> None:
    """Go on with a waiting run at once, on another model."""
    check_name(provider, "provider")
    check_model(model, "model")
    target = targets.open_target(directory, writing=True)
    try:
        report = target.use_fallback(run, provider=provider, model=model)
    finally:
        target.close()
    _tell("fallback", report, as_json=as_json)


@shell.app.command("take-over")
def take_over(directory: StateDir, run: RunName, as_json: AsJson = False) -> None:
    """Take a run from a live process that owns it, as one that hangs; a host goes on with it."""
    target = targets.open_target(directory)
    try:
        report = target.take_over_run(run)
    finally:
        target.close()
    _tell("take-over", report, as_json=as_json)


@shell.app.command()
def cancel(
    directory: StateDir,
    run: RunName,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, for whoever looks.")] = "",
    as_json: AsJson = False,
) -> None:
    """End a run for good: nothing takes it up any more, and no finaliser of it runs."""
    check_reason(reason)
    target = targets.open_target(directory, writing=True)
    try:
        report = target.cancel_run(run, reason=reason)
    finally:
        target.close()
    _tell("cancel", report, as_json=as_json)


def _tell(verb: str, report: RunActReport, *, as_json: bool) -> None:
    with shell.done_anyway(f"the {verb} was done; what it came to"):
        if as_json:
            typer.echo(json_text(report))
        else:
            print_act(shell.console(), verb, report)
