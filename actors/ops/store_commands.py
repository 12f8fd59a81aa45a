"""The commands of a store as a file: its check and repair, its backup, its compaction."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from abeyance.storage.backup import backup
from abeyance.storage.check import check
from abeyance.storage.compact import compact
from abeyance.storage.errors import StoreInUseError
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.mending import Stays
from abeyance.storage.repair import Planned, Repaired, forget, listed, plan, repair, undo

from . import shell, targets
from .connection import NoHostError
from .render import json_text, print_check, print_plan
from .reports import CheckReport, ForgottenReport, StayingReport, StoreRepairReport
from .shell import AsJson, StateDir
from .stopped import StoppedStore
from .stopped_check import report_finding, report_staying, report_undone


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
            pids=(),
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


Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@shell.app.command("check")
def check_store(
    directory: StateDir,
    repairs: Annotated[
        bool,
        typer.Option("--repair", help="Set aside what cannot be read, in a stopped store."),
    ] = False,
    undo_repair: Annotated[
        bool, typer.Option("--undo-repair", help="Put back what the newest repair set aside.")
    ] = False,
    forget_repairs: Annotated[
        bool,
        typer.Option("--forget-repairs", help="Delete what repairs set aside, behind a copy."),
    ] = False,
    copy: Annotated[
        Path | None,
        typer.Option(
            "--backup", metavar="DEST", help="Where the copy goes; by default beside DIR."
        ),
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Read every row of a store and list what is wrong. Changes nothing, unless it is to repair."""
    if repairs + undo_repair + forget_repairs > 1:
        raise typer.BadParameter("--repair, --undo-repair and --forget-repairs exclude each other")
    if yes and not (repairs or undo_repair or forget_repairs):
        raise typer.BadParameter("--yes goes with --repair, --undo-repair or --forget-repairs")
    if copy is not None and not (repairs or forget_repairs):
        raise typer.BadParameter("--backup goes with --repair or --forget-repairs")
    if repairs:
        _repair(directory, copy, yes=yes, as_json=as_json)
    elif undo_repair:
        _undo(directory, yes=yes, as_json=as_json)
    elif forget_repairs:
        _forget(directory, copy, yes=yes, as_json=as_json)
    else:
        report = _checked(directory)
        if as_json:
            typer.echo(json_text(report))
        else:
            print_check(shell.console(), report)
        if report.findings:
            raise typer.Exit(shell.FAILED)


def _checked(directory: Path) -> CheckReport:
    store = StoppedStore(directory)
    try:
        return store.check()
    finally:
        store.close()


def _repair(directory: Path, copy: Path | None, *, yes: bool, as_json: bool) -> None:
    store = _look(directory, "repaired")
    try:
        planned = plan(store, store.directory, check(store).findings, now_ms=shell.now_ms())
    finally:
        store.close()
    stays = _staying(planned)
    if len(stays) == len(planned):
        if as_json:
            found = tuple(report_finding(each.finding) for each in planned)
            _print(StoreRepairReport(
                directory=os.fspath(directory.absolute()), repair="", rows=0, stays=stays,
                findings=found, backup=None,
            ))  # fmt: skip
        else:
            print_plan(shell.console(), planned)
            typer.echo("Nothing is to be done." if not planned else "Nothing can be done here.")
        raise typer.Exit(shell.FAILED if planned else shell.OK)
    place = copy or shell.beside(directory, "before-repair")
    if not as_json:
        print_plan(shell.console(), planned)
        typer.echo(f"A copy of the store as it is now is made first: {place}")
    shell.confirm("Repair it?", yes=yes, as_json=as_json)
    with shell.progress("copied") as progress:
        done = repair(directory, place, clock_ms=shell.now_ms, progress=progress)
    _tell(directory, place, done, as_json=as_json)


def _tell(directory: Path, place: Path, done: Repaired, *, as_json: bool) -> None:
    report = _checked(directory)
    with shell.done_anyway("it was repaired; what it came to"):
        if as_json:
            _print(StoreRepairReport(
                directory=report.directory, repair=done.repair, rows=done.rows,
                stays=_staying(done.stays), findings=report.findings, backup=os.fspath(place),
            ))  # fmt: skip
        else:
            print_plan(shell.console(), done.stays)
            typer.echo(
                f"Set aside: {shell.counted(done.rows)}. abeyance check lists them, and "
                f"--undo-repair puts them back. As it was before: {place}"
            )
    if report.findings:
        raise typer.Exit(shell.FAILED)


def _undo(directory: Path, *, yes: bool, as_json: bool) -> None:
    store = _look(directory, "changed")
    try:
        kept = list(listed(store))
    finally:
        store.close()
    count = sum(each.repair == kept[-1].repair for each in kept) if kept else 0
    if not count and not as_json:
        typer.echo("nothing is set aside")
        return
    if not as_json:
        at = datetime.fromtimestamp(kept[-1].at_ms / 1_000, UTC)
        typer.echo(
            f"What the repair of {at:%Y-%m-%d %H:%M:%S} UTC set aside is put back, as unreadable "
            f"as it was: {shell.counted(count)}."
        )
    if count:
        shell.confirm("Put them back?", yes=yes, as_json=as_json)
    undone = undo(directory)
    report = report_undone(directory, undone)
    with shell.done_anyway("they were put back; what it came to"):
        if as_json:
            _print(report)
        else:
            for each in report.stays:
                typer.echo(f"stays set aside: {each.table} {each.key}, written anew since")
            typer.echo(f"Put back: {shell.counted(undone.rows)}.")
    if undone.stays:
        raise typer.Exit(shell.FAILED)


def _forget(directory: Path, copy: Path | None, *, yes: bool, as_json: bool) -> None:
    store = _look(directory, "changed")
    try:
        count = sum(1 for _ in listed(store))
    finally:
        store.close()
    if not count:
        if as_json:
            _print(ForgottenReport(directory=os.fspath(directory.absolute()), rows=0, backup=None))
        else:
            typer.echo("nothing is set aside")
        return
    place = copy or shell.beside(directory, "before-forgetting")
    if not as_json:
        typer.echo(
            f"{shell.counted(count)} that repairs set aside will be deleted: none can be put back "
            f"then. A copy of the store as it is now is made first: {place}"
        )
    shell.confirm("Delete them?", yes=yes, as_json=as_json)
    with shell.progress("copied") as progress:
        done = forget(directory, place, clock_ms=shell.now_ms, progress=progress)
    with shell.done_anyway("they were deleted; what it came to"):
        if as_json:
            _print(ForgottenReport(
                directory=os.fspath(directory.absolute()), rows=done.rows, backup=os.fspath(place),
            ))  # fmt: skip
        else:
            typer.echo(f"Deleted: {shell.counted(done.rows)}. As it was before: {place}")


def _look(directory: Path, done: str) -> LmdbStore:
    """Open a stopped store to look.

    Raises:
        StoreInUseError: A process has it open; it is named.
    """
    looked = StoppedStore(directory)
    looked.refuse_open(done)
    return looked.store


def _staying(planned: tuple[Planned, ...]) -> tuple[StayingReport, ...]:
    return tuple(
        report_staying(each, each.answer.why) for each in planned if isinstance(each.answer, Stays)
    )


def _print(report: object) -> None:
    typer.echo(json_text(report))
