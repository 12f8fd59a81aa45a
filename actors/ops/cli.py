"""The command line: what an operator asks of a running host or of a stopped store.

Exit codes: 0 done; 1 refused, failed, or a demo line that does not hold; 2 a state directory that
cannot be used, or a usage mistake; 130 Ctrl-C. Each failure is one line on stderr; with `--json`
also an object `{"error": {"code", "text", "field"}}` on stdout.

Invariants:
    I1  A running host is asked through its control socket; only where none answers is the store
        opened, and then read-only unless the verb changes something.

Runs in a process of its own. Blocking.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Protocol

import typer
from rich.console import Console

from abeyance.actors._version import __version__
from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.domain.ingress import check_name, clean_text
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

from .client import ControlClient, HostForbiddenError, NoHostError
from .protocol import (
    EVERY_MODEL,
    ReleaseReport,
    StateUnusableError,
    StatusReport,
    WaitReport,
    WaitsReport,
)
from .render import json_text, print_release, print_status, print_waits
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

StateDir = Annotated[Path, typer.Argument(metavar="DIR", help="The host's state directory.")]
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
    """A running host or a stopped store."""

    def status(self) -> StatusReport: ...
    def waits(self, agent: str | None = None) -> tuple[WaitReport, ...]: ...
    def release(self, agent: str, model: str | None = None) -> ReleaseReport: ...
    def close(self) -> None: ...


def open_target(directory: Path, *, writing: bool = False) -> Target:
    """Reach the host of a state directory, or open its store where no host runs.

    Raises:
        StorageError: There is no store there, or it cannot be opened; each kind says why.
        HostSilentError: A host is there and does not answer.
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
    scope = None if model == EVERY_MODEL else model
    if scope is not None:
        check_name(scope, "model", reserved=False)
    target = open_target(directory, writing=True)
    try:
        report = target.release(agent, scope)
    finally:
        target.close()
    if as_json:
        typer.echo(json_text(report))
    else:
        print_release(_console(), agent, report)


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
        Path | None, typer.Option(metavar="DIR", help="Keep the host's state here; must be empty.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the state directory behind.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch two agents work, a host killed in a hold, and a release from outside."""
    from .demo import DemoOptions, run_demo  # Needs the anthropic extra.

    if provider not in ("simulator", "anthropic"):
        raise typer.BadParameter("--provider is simulator or anthropic")
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
    try:
        outcome = app(args=given, prog_name="abeyance", standalone_mode=False)
    except BrokenPipeError:
        # The reader of our output went away, as `head` does. Nothing is left to tell it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", "interrupted", INTERRUPTED, given)
    except _USAGE as error:
        usage: Any = error
        return _fail("usage", f"{usage.format_message()} (see abeyance --help)", UNUSABLE, given)
    except (AbeyanceError, StorageError) as error:
        exit_code = UNUSABLE if isinstance(error, _BAD_STATE) else FAILED
        return _fail(error.code, str(error), exit_code, given, getattr(error, "field", None))
    except OSError as error:
        return _fail("system", f"{error.filename}: {error.strerror}", UNUSABLE, given)
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
        typer.echo(json_text({"error": {"code": code, "text": line, "field": field}}))
    typer.echo(f"abeyance: {line}", err=True)
    return exit_code


def _console() -> Console:
    return Console(highlight=False)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    sys.exit(main())
