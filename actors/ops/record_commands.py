"""The commands of what a store keeps: archive, alerts, inboxes and imports."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from abeyance.actors.domain.alert_book import check_after
from abeyance.actors.domain.archive_book import Kind, check_number, check_page
from abeyance.actors.domain.ingress import check_name
from abeyance.actors.domain.slot_inbox import check_listing

from . import shell, targets
from .render import (
    json_text,
    print_alerts,
    print_entries,
    print_import,
    print_inbox,
    print_replay,
)
from .reports import AlertsReport, EntriesReport, InboxReport
from .shell import AsJson, Before, Limit, StateDir

Replay = Annotated[
    int | None,
    typer.Option(metavar="ID", help="Have the host send this one to its actor again, once."),
]


@shell.app.command("dead-letters")
def dead_letters(
    directory: StateDir,
    before: Before = None,
    limit: Limit = 100,
    replay: Replay = None,
    as_json: AsJson = False,
) -> None:
    """List messages that were accepted and not handled, the newest first, or replay one."""
    _entries(directory, "dead_letter", before, limit, replay, as_json=as_json)


@shell.app.command("quarantine")
def quarantine(
    directory: StateDir,
    before: Before = None,
    limit: Limit = 100,
    replay: Replay = None,
    tracebacks: Annotated[
        bool, typer.Option("--tracebacks", help="Print each one's traceback.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List messages whose handlers crashed too often, the newest first, or replay one."""
    _entries(directory, "quarantine", before, limit, replay, as_json=as_json, tracebacks=tracebacks)


def _entries(
    directory: Path,
    kind: Kind,
    before: int | None,
    limit: int,
    replay: int | None,
    *,
    as_json: bool,
    tracebacks: bool = False,
) -> None:
    check_page(before, limit)
    if replay is not None:
        check_number(replay, "id")
    opened = targets.open_target if replay is not None else targets.open_reading
    target = opened(directory)
    try:
        if replay is not None:
            report = target.replay(kind, replay)
        else:
            found = target.entries(kind, before=before, limit=limit)
    finally:
        target.close()
    if replay is not None:
        if as_json:
            typer.echo(json_text(report))
        else:
            print_replay(shell.console(), report.replayed)
    elif as_json:
        typer.echo(json_text(EntriesReport(entries=found)))
    else:
        print_entries(shell.console(), kind, found, tracebacks=tracebacks)
    shell.end_beside(target.silent_pids)


@shell.app.command()
def alerts(
    directory: StateDir,
    after: Annotated[
        int | None,
        typer.Option(metavar="ID", help="Only those with a greater number, not the newest."),
    ] = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List what operators were told of, oldest first: long holds, unreadable records, parking."""
    check_after(after, limit)
    target = targets.open_reading(directory)
    try:
        found = target.alerts(after=after, limit=limit)
    finally:
        target.close()
    if as_json:
        typer.echo(json_text(AlertsReport(alerts=found)))
    else:
        print_alerts(shell.console(), found)
    shell.end_beside(target.silent_pids)


@shell.app.command()
def inbox(
    directory: StateDir,
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this agent's messages.")
    ] = None,
    after: Annotated[
        int | None,
        typer.Option(metavar="SEQ", help="Only those of a greater number: the next page."),
    ] = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List messages that were accepted and are in no transcript yet, and why they wait."""
    check_listing(agent, after, limit)
    target = targets.open_reading(directory)
    try:
        found = target.inbox(agent, after=after, limit=limit)
    finally:
        target.close()
    if as_json:
        typer.echo(json_text(InboxReport(inbox=found)))
    else:
        print_inbox(shell.console(), found)
    shell.end_beside(target.silent_pids)


@shell.app.command("import")
def import_deferred(
    directory: StateDir,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The older queue (docs/import.md).")],
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="For whom entries without a target are.")
    ] = None,
    wake: Annotated[
        bool, typer.Option("--wake", help="Entries that do not say ask for a turn.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Accept the deferred messages of an older queue, and say what was mended of each."""
    if agent is not None:
        check_name(agent, "agent")
    target = targets.open_target(directory)
    try:
        report = target.import_deferred(
            os.fspath(file.absolute()), agent=agent, wake=wake, dry_run=dry_run
        )
    finally:
        target.close()
    if as_json:
        typer.echo(json_text(report))
    else:
        print_import(shell.console(), report)
    if any(repair.kind == "refused" for repair in report.repairs):
        raise typer.Exit(shell.FAILED)
