"""What the commands of the command line share: the application, arguments, and the terminal.

Runs in a process of its own. Blocking.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from .errors import look_at

OK: Final = 0
FAILED: Final = 1
UNUSABLE: Final = 2
INTERRUPTED: Final = 130

app = typer.Typer(
    name="abeyance",
    help="Look at and steer a host of LLM agents, running or stopped.",
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

COLUMNS_MIN: Final = 20
"""A terminal that says it is narrower does not know its width."""


def read_directory(text: str) -> Path:
    if not text:
        # As a path it would be the working directory, which a script whose variable is unset
        # did not mean.
        raise typer.BadParameter("the directory's name is empty")
    return Path(text)


StateDir = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="The host's state directory.", parser=read_directory),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Before = Annotated[
    int | None, typer.Option(metavar="ID", help="Only those with a smaller number: the next page.")
]
Limit = Annotated[int, typer.Option(metavar="N", help="At most so many, 1 to 1,000.")]


def say_silent(pids: tuple[int, ...]) -> None:
    """Name the hosts that gave no answer, and end with the exit code that says so."""
    for pid in pids:
        say(
            f"host process {pid} did not answer; what it does at this moment is not shown; "
            f"{look_at(pid)}, then ask again"
        )
    if pids:
        raise typer.Exit(FAILED)


def end_beside(pids: tuple[int, ...]) -> None:
    """End a command that read a store beside hosts that gave no answer, with the code of that.

    What it read is printed by then, and who did not answer was said as the store was opened.
    """
    if pids:
        raise typer.Exit(FAILED)


def say(line: str) -> None:
    with suppress(OSError):  # Nowhere is left to say it.
        typer.echo(f"abeyance: {line}", err=True)


@contextmanager
def done_anyway(what: str) -> Iterator[None]:
    """Print what was done; where it cannot be printed, say so. It was done, and exits with 0."""
    try:
        yield
    except (OSError, SystemExit) as error:  # The console ends the program where nobody reads.
        drop_output()
        cause = error.strerror if isinstance(error, OSError) else "nobody reads it"
        say(f"{what} cannot be printed ({cause})")


def counted(rows: int) -> str:
    """So many rows, in words."""
    return "1 row" if rows == 1 else f"{rows:,} rows"


def confirm(question: str, *, yes: bool, as_json: bool) -> None:
    """Ask on a terminal before something is changed; end the command where it is not wanted."""
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise typer.BadParameter("it asks on a terminal; say --yes where there is none")
    if not typer.confirm(question):
        say("nothing was changed")
        raise typer.Exit(FAILED)


def beside(directory: Path, what: str) -> Path:
    """A place for a copy of a state directory, beside it, that names the instant."""
    state = directory.absolute()
    return state.with_name(f"{state.name}.{what}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")


def drop_output() -> None:
    """Send what is buffered for stdout, and what may follow, nowhere."""
    with suppress(OSError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextmanager
def progress(verb: str) -> Iterator[Callable[[int, int], object]]:
    """A line on a terminal's stderr about how far something is, in bytes; nowhere else."""
    if not sys.stderr.isatty():
        yield lambda _done, _whole: None
        return
    shown = False

    def tell(done: int, whole: int) -> None:
        nonlocal shown
        shown = True
        line = f"{done / 2**20:,.1f} of at most {whole / 2**20:,.1f} MiB {verb}"
        with suppress(OSError):
            typer.echo(f"\r{line:<60}", err=True, nl=False)

    try:
        yield tell
    finally:
        if shown:
            with suppress(OSError):
                typer.echo(f"\r{'':<60}\r", err=True, nl=False)


def console() -> Console:
    console = Console(highlight=False)
    return console if console.width >= COLUMNS_MIN else Console(highlight=False, width=80)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
