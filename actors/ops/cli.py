"""The command line: what an operator asks of running hosts or of a stopped store.

Exit codes: 0 done; 1 refused, failed, a host that did not answer (what the others said is printed),
a check with findings, or a demo line that does not hold; 2 a
state directory that cannot be used, or a usage mistake; 130 Ctrl-C. Each failure is one line on
stderr; with `--json` also an object `{"error": {"code", "text", "field"}}` on stdout.

Invariants:
    I1  Running hosts are asked through their control sockets; only where none runs is the store
        opened, and then read-only unless the verb changes something.
    I2  A release that was done exits with 0, whatever becomes of its output.

Runs in a process of its own. Blocking.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, Protocol

import typer
from rich.console import Console

from abeyance.actors._version import __version__
from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.core.tree import DEPTH, DEPTH_MAX, NODES_MAX, WIDTH, format_tree
from abeyance.actors.domain.alert_book import check_after
from abeyance.actors.domain.archive_book import Kind, check_number, check_page
from abeyance.actors.domain.errors import UnknownAgentError
from abeyance.actors.domain.ingress import check_name, clean_text
from abeyance.actors.domain.mode import WITHIN_S, read_reason, read_window
from abeyance.actors.domain.slot_inbox import check_listing
from abeyance.storage.errors import (
    AlreadyOpenError,
    DamagedStoreError,
    DiskFullError,
    ForeignDirectoryError,
    MissingStoreError,
    NewerFormatError,
    NoFileLocksError,
    ReadOnlyStoreError,
    StorageError,
    StoreIOError,
)

from .client import ControlClient, HostForbiddenError, HostSilentError, NoHostError
from .protocol import (
    EVERY_MODEL,
    AlertReport,
    AlertsReport,
    EntriesReport,
    EntryReport,
    ImportReport,
    InboxReport,
    InboxRowReport,
    QuiesceReport,
    ReleaseReport,
    ReplayReport,
    RewindReport,
    StateUnusableError,
    StatusReport,
    TreeReport,
    WaitReport,
    WaitsReport,
)
from .render import (
    json_text,
    print_alerts,
    print_check,
    print_entries,
    print_import,
    print_inbox,
    print_quiesce,
    print_release,
    print_replay,
    print_status,
    print_waits,
)
from .stopped import StoppedStore

OK: Final = 0
FAILED: Final = 1
UNUSABLE: Final = 2
INTERRUPTED: Final = 130
TRACEBACK: Final = "ABEYANCE_TRACEBACK"
"""Set in the environment, it lets an unexpected error through with its traceback."""

app = typer.Typer(
    name="abeyance",
    help="Look at and steer a host of LLM agents, running or stopped.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

COLUMNS_MIN: Final = 20
"""A terminal that says it is narrower does not know its width."""


def _directory(text: str) -> Path:
    if not text:
        # As a path it would be the working directory, which a script whose variable is unset
        # did not mean.
        raise typer.BadParameter("the directory's name is empty")
    return Path(text)


StateDir = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="The host's state directory.", parser=_directory),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


_USAGE: Final[type[Exception]] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)
"""The base of what typer raises for wrong arguments, whichever parser it carries inside."""


_BAD_STATE: Final = (
    AlreadyOpenError,
    DamagedStoreError,
    DiskFullError,
    ForeignDirectoryError,
    HostForbiddenError,
    MissingStoreError,
    NewerFormatError,
    NoFileLocksError,
    ReadOnlyStoreError,
    StateUnusableError,
    StoreIOError,
)


class Target(Protocol):
    """Running hosts or a stopped store."""

    def status(self) -> StatusReport: ...
    def waits(self, agent: str | None = None) -> tuple[WaitReport, ...]: ...
    def release(self, agent: str, model: str = EVERY_MODEL) -> ReleaseReport: ...
    def rewind(self, agent: str, to: str | int | None) -> RewindReport: ...
    def quiesce(self, reason: str, within_s: float) -> QuiesceReport: ...
    def resume(self) -> QuiesceReport: ...
    def entries(
        self, kind: Kind, *, before: int | None = None, limit: int = 100
    ) -> tuple[EntryReport, ...]: ...
    def replay(self, kind: Kind, number: int, /) -> ReplayReport: ...
    def alerts(self, *, after: int | None = None, limit: int = 100) -> tuple[AlertReport, ...]: ...
    def inbox(
        self, agent: str | None = None, *, after: int | None = None, limit: int = 100
    ) -> tuple[InboxRowReport, ...]: ...
    def import_deferred(
        self, path: str, *, agent: str | None = None, wake: bool = False, dry_run: bool = False
    ) -> ImportReport: ...
    def close(self) -> None: ...


def open_target(directory: Path, *, writing: bool = False) -> Target:
    """Reach the hosts of a state directory, or open its store where no host runs.

    Raises:
        StorageError: There is no store there, or it cannot be opened; each kind says why.
        HostSilentError: Hosts are there and none answers.
    """
    try:
        return ControlClient(directory)
    except NoHostError:
        return StoppedStore(directory, writing=writing)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"abeyance {__version__}")
        raise typer.Exit(OK)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(UNUSABLE)


@app.command()
def status(directory: StateDir, as_json: AsJson = False) -> None:
    """Show a host's agents, what they do, and what they wait for."""
    target = open_target(directory)
    try:
        report = target.status()
    finally:
        target.close()
    if as_json:
        typer.echo(json_text(report))
    else:
        print_status(_console(), report, _now_ms())
    _say_silent(report.silent_pids)


@app.command()
def waits(
    directory: StateDir,
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this agent's waits.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the provider waits in force, with their ends."""
    if agent is not None:
        check_name(agent, "agent")
    target = open_target(directory)
    try:
        found = target.waits(agent)
        if agent is not None and not found:
            _check_known(target, agent)
    finally:
        target.close()
    if as_json:
        typer.echo(json_text(WaitsReport(waits=found)))
    else:
        print_waits(_console(), found, _now_ms())


@app.command()
def release(
    directory: StateDir,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Whose waits.")],
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Only this model's wait.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every model's waits, as when no model is named.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """End provider waits by hand: a held turn goes on at once."""
    if every and model is not None:
        raise typer.BadParameter("--model and --all exclude each other")
    check_name(agent, "agent")
    scope = EVERY_MODEL if model is None else model
    if scope != EVERY_MODEL:
        check_name(scope, "model", reserved=False)
    target = open_target(directory, writing=True)
    try:
        report = target.release(agent, scope)
    finally:
        target.close()
    try:
        if as_json:
            typer.echo(json_text(report))
        else:
            print_release(_console(), agent, report)
    except (OSError, SystemExit) as error:  # The console ends the program where nobody reads.
        _drop_output()
        cause = error.strerror if isinstance(error, OSError) else "nobody reads it"
        _say(f"the release was done; what it lifted cannot be printed ({cause})")


@app.command()
def rewind(
    directory: StateDir,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Whose transcript.")],
    to: Annotated[
        str | None, typer.Option(metavar="ID", help="The last message that stays, by its id.")
    ] = None,
    place: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="The same by its place; 0: none stays."),
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Put back what the last took out.")] = False,
    as_json: AsJson = False,
) -> None:
    """Take everything behind a message out of an agent's transcript. Waits and inbox stay."""
    if (to is not None) + (place is not None) + undo != 1:
        raise typer.BadParameter("name one of --to, --place and --undo")
    check_name(agent, "agent")
    if to is not None:
        check_name(to, "to", reserved=False)
    target = open_target(directory)
    try:
        report = target.rewind(agent, to if to is not None else place)
    finally:
        target.close()
    if as_json:
        typer.echo(json_text(report))
    elif report.first is None:
        typer.echo(f"{agent}: nothing was behind it")
    else:
        done = "put back" if undo else "taken out, and kept for 7 days"
        typer.echo(f"{agent}: places {report.first} to {report.last} {done}")


@app.command()
def quiesce(
    directory: StateDir,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why, for whoever looks.")
    ] = "an operator's",
    within: Annotated[
        float, typer.Option(metavar="S", help="How long live turns may run on.")
    ] = WITHIN_S,
    end: Annotated[bool, typer.Option("--end", help="Start turns again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start no more turns and wait until none lives, or with --end start them again. Durable."""
    if not end:
        read_reason(reason)
        read_window(within)
    target = open_target(directory, writing=True)
    try:
        report = target.resume() if end else target.quiesce(reason, within)
    finally:
        target.close()
    if as_json:
        typer.echo(json_text(report))
    else:
        print_quiesce(_console(), report)
    _say_silent(report.silent_pids)


@app.command()
def tree(
    directory: StateDir,
    depth: Annotated[
        int, typer.Option(metavar="N", min=1, max=DEPTH_MAX, help="How many levels.")
    ] = DEPTH,
    width: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=NODES_MAX, help="Children of one supervisor."),
    ] = WIDTH,
    as_json: AsJson = False,
) -> None:
    """Show a running host's supervisors and actors, what waits for them and how they failed."""
    try:
        target = ControlClient(directory)
    except NoHostError:
        StoppedStore(directory).close()  # What is no store at all is refused as such.
        raise NoHostError(
            f"no running host serves {directory}; the tree of actors exists only in a running "
            "host; nothing was done; see the status for what the store holds"
        ) from None
    try:
        found = target.tree(depth=depth, width=width)
    finally:
        target.close()
    typer.echo(json_text(found) if as_json else _trees_text(found))
    _say_silent(found.silent_pids)


Before = Annotated[
    int | None, typer.Option(metavar="ID", help="Only those with a smaller number: the next page.")
]
Limit = Annotated[int, typer.Option(metavar="N", help="At most so many, 1 to 1,000.")]
Replay = Annotated[
    int | None,
    typer.Option(metavar="ID", help="Have the host send this one to its actor again, once."),
]


@app.command("dead-letters")
def dead_letters(
    directory: StateDir,
    before: Before = None,
    limit: Limit = 100,
    replay: Replay = None,
    as_json: AsJson = False,
) -> None:
    """List messages that were accepted and not handled, the newest first, or replay one."""
    _entries(directory, "dead_letter", before, limit, replay, as_json=as_json)


@app.command("quarantine")
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
    target = open_target(directory)
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
            print_replay(_console(), report.replayed)
    elif as_json:
        typer.echo(json_text(EntriesReport(entries=found)))
    else:
        print_entries(_console(), kind, found, tracebacks=tracebacks)


@app.command()
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
    target = open_target(directory)
    try:
        found = target.alerts(after=after, limit=limit)
    finally:
        target.close()
    if as_json:
        typer.echo(json_text(AlertsReport(alerts=found)))
    else:
        print_alerts(_console(), found)


@app.command()
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
    target = open_target(directory)
    try:
        found = target.inbox(agent, after=after, limit=limit)
    finally:
        target.close()
    if as_json:
        typer.echo(json_text(InboxReport(inbox=found)))
    else:
        print_inbox(_console(), found)


@app.command("import")
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
    target = open_target(directory)
    try:
        report = target.import_deferred(
            os.fspath(file.absolute()), agent=agent, wake=wake, dry_run=dry_run
        )
    finally:
        target.close()
    if as_json:
        typer.echo(json_text(report))
    else:
        print_import(_console(), report)
    if any(repair.kind == "refused" for repair in report.repairs):
        raise typer.Exit(FAILED)


@app.command("check")
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
        print_check(_console(), report)
    if report.findings:
        raise typer.Exit(FAILED)


@app.command()
def demo(
    provider: Annotated[
        str, typer.Option(metavar="NAME", help="simulator (default) or anthropic.")
    ] = "simulator",
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="The model to ask, with --provider anthropic."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Keep the host's state here; must be empty.", parser=_directory
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the state directory behind.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch two agents work, a host killed in a hold, and a release from outside."""
    from .demo import DemoOptions, run_demo  # Needs the anthropic extra.

    if provider not in ("simulator", "anthropic"):
        raise typer.BadParameter("--provider is simulator or anthropic")
    if model is not None and provider == "simulator":
        raise typer.BadParameter("--model goes with --provider anthropic")
    options = DemoOptions(
        provider=provider, model=model, state=state, keep=keep or state is not None
    )
    report = run_demo(options, console=None if as_json else Console(highlight=False))
    if as_json:
        typer.echo(json_text(report))
    if not report.holds:
        raise typer.Exit(FAILED)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. The console script's entry point.

    Args:
        arguments: Without the program's name; by default the process's.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that lacks a character of a report gets its escape, not a failed command.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        outcome = app(args=given, prog_name="abeyance", standalone_mode=False)
    except BrokenPipeError:
        # The reader of our output went away, as `head` does. Nothing is left to tell it.
        _drop_output()
        return FAILED
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", "interrupted", INTERRUPTED, given)
    except _USAGE as error:
        usage: Any = error
        return _fail("usage", f"{usage.format_message()} (see abeyance --help)", UNUSABLE, given)
    except (AbeyanceError, StorageError) as error:
        exit_code = UNUSABLE if isinstance(error, _BAD_STATE) else FAILED
        code = getattr(error, "remote_code", error.code)  # Of a host's refusal, the host's own.
        return _fail(code, str(error), exit_code, given, getattr(error, "field", None))
    except OSError as error:
        if error.filename is None:  # Not a path's: of the streams that were written to.
            text = f"the output cannot be written ({error.strerror or error}); nothing was changed"
            return _fail("system", text, FAILED, given)
        text = f"{os.fsdecode(error.filename)}: {error.strerror}"
        return _fail("system", text, UNUSABLE, given)
    except Exception as error:  # A fault of ours: a line, too.
        if os.environ.get(TRACEBACK):
            raise
        text = f"internal error: {error!r}; run it again with {TRACEBACK}=1 to see where"
        return _fail("internal", text, FAILED, given)
    if outcome == INTERRUPTED:  # How newer parsers report Ctrl-C.
        return _fail("interrupted", "interrupted", INTERRUPTED, given)
    return outcome if isinstance(outcome, int) else OK


def _fail(code: str, text: str, exit_code: int, given: list[str], field: str | None = None) -> int:
    line = clean_text(" ".join(text.split()), 2_000)
    if "--json" in given:
        try:
            typer.echo(json_text({"error": {"code": code, "text": line, "field": field}}))
        except OSError:
            _drop_output()
    else:
        # What a failed write left in the buffer would fail again at the exit, with a traceback.
        try:
            sys.stdout.flush()
        except (OSError, AttributeError):
            _drop_output()
    _say(line)
    return exit_code


def _trees_text(found: TreeReport) -> str:
    if not found.others:
        return format_tree(found.tree)
    trees = [(found.pid, found.tree), *((other.pid, other.tree) for other in found.others)]
    return "\n\n".join(f"pid {pid}\n{format_tree(tree)}" for pid, tree in trees)


def _say_silent(pids: tuple[int, ...]) -> None:
    """Name the hosts that gave no answer, and end with the exit code that says so."""
    for pid in pids:
        _say(
            f"host process {pid} did not answer; what it runs is not shown; look at that process, "
            "then ask again"
        )
    if pids:
        raise typer.Exit(FAILED)


def _say(line: str) -> None:
    with suppress(OSError):  # Nowhere is left to say it.
        typer.echo(f"abeyance: {line}", err=True)


def _drop_output() -> None:
    """Send what is buffered for stdout, and what may follow, nowhere."""
    with suppress(OSError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _check_known(target: Target, agent: str) -> None:
    report = target.status()
    if any(known.name == agent for known in report.agents):
        return
    if report.silent_pids:
        pids = ", ".join(map(str, report.silent_pids))
        raise HostSilentError(
            f"the hosts that answered know no agent {agent!r} and no wait of one, and host process "
            f"{pids} did not answer; nothing was done; look at that process, then ask again"
        )
    raise UnknownAgentError(
        f"no agent {agent!r} is known there, and no wait of one; nothing was done; see the "
        "status for the names there are",
        agent=agent,
    )


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.width >= COLUMNS_MIN else Console(highlight=False, width=80)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    sys.exit(main())
