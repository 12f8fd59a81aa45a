"""`abeyance migrate`: which format a store has, and to bring it to another."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from abeyance.storage.migrate import Format, look, migrate
from abeyance.storage.tables import FORMAT, FORMATS

from . import shell
from .render import json_text
from .reports import FormatReport, MigratedReport
from .shell import AsJson, StateDir
from .stopped import StoppedStore


@shell.app.command("migrate")
def migrate_store(
    directory: StateDir,
    commit: Annotated[
        bool,
        typer.Option("--commit", help="Bring a stopped store to the newest format known here."),
    ] = False,
    back: Annotated[
        bool,
        typer.Option("--back", help="Bring a stopped store back to the format of new stores."),
    ] = False,
    copy: Annotated[
        Path | None,
        typer.Option(
            "--backup", metavar="DEST", help="Where the copy goes; by default beside DIR."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say which format a store has and what a newer one would change. Changes nothing by itself."""
    if commit and back:
        raise typer.BadParameter("--commit and --back exclude each other")
    if (yes or copy is not None) and not (commit or back):
        raise typer.BadParameter("--yes and --backup go with --commit or --back")
    store = StoppedStore(directory)
    try:
        found = look(store.store, store.store.directory)
        if commit or back:
            store.refuse_open("migrated")
    finally:
        store.close()
    to = FORMATS[0] if back else FORMAT
    if not (commit or back):
        if as_json:
            typer.echo(json_text(_report(directory, found)))
        else:
            _say(found, to)
        return
    place = copy or shell.beside(directory, "before-migrate")
    if (found.store, found.data) != (to, to):
        if not as_json:
            _say(found, to)
            typer.echo(f"A copy of the store as it is now is made first: {place}")
        shell.confirm(f"Bring it to format {to}?", yes=yes, as_json=as_json)
    with shell.progress("copied") as progress:
        done = migrate(directory, place, to=to, clock_ms=shell.now_ms, progress=progress)
    with shell.done_anyway("it was migrated; what it came to"):
        if as_json:
            report = MigratedReport(
                directory=os.fspath(directory.absolute()),
                before=done.before,
                after=done.after,
                rows=done.rows,
                backup=None if done.backup is None else os.fspath(place),
            )
            typer.echo(json_text(report))
        elif done.backup is None:
            typer.echo(f"It is of format {to}: nothing is to be migrated.")
        else:
            typer.echo(
                f"It is of format {to} now. Written: {shell.counted(done.rows)}. As it was before: "
                f"{place}"
            )


def _say(found: Format, to: int) -> None:
    if found.data < found.store:
        typer.echo(
            f"A migration between format {found.data} and {found.store} was begun and is not over: "
            "--commit goes on with it, --back takes it back. This version opens it as it is."
        )
    elif found.store == to:
        typer.echo(f"It is of format {found.store}: nothing is to be migrated.")
        return
    else:
        typer.echo(f"It is of format {found.store}; this version reads and writes up to {FORMAT}.")
    if to == FORMAT:
        count = sum(found.rows.values())
        where = " and ".join(found.rows)
        typer.echo(
            f"Format {to} would write {shell.counted(count)}{' of ' + where if where else ''}. "
            f"Versions that know no format {to} refuse the store then, until --back."
        )
    else:
        typer.echo(
            f"Format {to}: no row is written. Versions that know no newer one open it again."
        )
    if found.unreadable:
        typer.echo(
            f"{shell.counted(found.unreadable)} to be written cannot be read: mend them first "
            "(abeyance check --repair)."
        )


def _report(directory: Path, found: Format) -> FormatReport:
    return FormatReport(
        directory=os.fspath(directory.absolute()),
        store=found.store,
        data=found.data,
        newest=found.newest,
        rows=found.rows,
        unreadable=found.unreadable,
    )
