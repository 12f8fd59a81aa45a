"""The commands of what a store keeps: archive, alerts, inboxes, imports, and its check."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from abeyance.actors.domain.alert_book import check_after
from abeyance.actors.domain.archive_book import Kind, check_number, check_page
from abeyance.actors.domain.ingress import check_name
from abeyance.actors.domain.slot_inbox import check_listing
from abeyance.storage.backup import backup
from abeyance.storage.compact import compact
from abeyance.storage.errors import StoreInUseError

from . import shell, targets
from .connection import NoHostError
from .render import (
    json_text,
    print_alerts,
    print_check,
    print_entries,
    print_import,
    print_inbox,
    print_replay,
)
from .reports import AlertsReport, EntriesReport, InboxReport
from .shell import AsJson, Before, Limit, StateDir
from .stopped import StoppedStore

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


@shell.app.command("compact")
def compact_store(directory: StateDir, as_json: AsJson = False) -> None:
    """Rewrite the file of a stopped store without the room that deleted rows left."""
    try:
        targets.reach_hosts(directory).close()
    except NoHostError:
        found = compact(directory, clock_ms=shell.now_ms)
    else:
        raise StoreInUseError(
            f"a host runs on {directory}; its store was not compacted and is as it was; stop the "
            "host, and compact again",
            path=str(directory),
        )
    with shell.done_anyway("it was compacted; what it came to"):
        if as_json:
            typer.echo(json_text(found._asdict()))
        else:
            before, after = found.bytes_before / 2**20, found.bytes_after / 2**20
            typer.echo(f"{found.rows:,} rows: {before:,.1f} MiB before, {after:,.1f} MiB now.")


@shell.app.command("backup")
def backup_store(
    directory: StateDir,
    destination: Annotated[
        Path, typer.Argument(metavar="DEST", help="A new directory; a host can be started on it.")
    ],
    as_json: AsJson = False,
) -> None:
    """Copy the store of a running or a stopped host, as of one commit, into a new directory."""
    with shell.progress("copied") as progress:
        made = backup(directory, destination, clock_ms=shell.now_ms, progress=progress)
    with shell.done_anyway("the backup was made; what it came to"):
        if as_json:
            typer.echo(json_text({**made._asdict(), "destination": os.fspath(destination)}))
        else:
            size = made.bytes / 2**20
            typer.echo(f"{destination}: {made.rows:,} rows, {size:,.1f} MiB.")
    if made.findings:
        shell.say(
            f"{made.findings} of its rows are damaged or refer to none, as in the original; "
            "abeyance check names them"
        )
        raise typer.Exit(shell.FAILED)


@shell.app.command("check")
def check_store(directory: StateDir, as_json: AsJson = False) -> None:
    """Read every row of a store and list what is wrong. Changes nothing."""
    store = StoppedStore(directory)
    try:
        report = store.check()
    finally:
        store.close()
    if as_json:
        typer.echo(json_text(report))
    else:
        print_check(shell.console(), report)
    if report.findings:
        raise typer.Exit(shell.FAILED)
