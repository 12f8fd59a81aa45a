"""The command line: what an operator asks of running hosts or of a stopped store.

Exit codes: 0 done; 1 refused, failed, a host without whose answer what is printed may lack
something (what the others said is printed, or what the store holds where none answers), a check
with findings, or a demo line that does not hold; 2 a state directory that cannot be used, or a
usage mistake; 130 Ctrl-C. Each failure is one line on stderr; with `--json` also an object
`{"error": {"code", "text", "field"}}` on stdout.

The commands stand by what they are about: `agent_commands`, `record_commands`, `store_commands`,
`run_commands`, `serve_command`, `demo_command`. What they share is in `shell`, whom they ask in
`targets`.

Invariants:
    I1  What an operator changed exits with 0, whatever becomes of its output.

Runs in a process of its own. Blocking.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from abeyance.actors._version import __version__
from abeyance.actors.core.errors import AbeyanceError
from abeyance.actors.domain.ingress import clean_text
from abeyance.storage.errors import (
    AlreadyOpenError,
    DamagedStoreError,
    DiskFullError,
    ForeignDirectoryError,
    MissingStoreError,
    NewerFormatError,
    NoFileLocksError,
    ReaderSlotsFullError,
    ReadOnlyStoreError,
    StorageError,
    StoreInUseError,
    StoreIOError,
)

from . import shell
from .connection import HostForbiddenError
from .errors import InvalidConfigError, StateUnusableError
from .render import json_text

# In the order in which the help lists their commands.
from . import agent_commands, approval_commands, record_commands, run_commands, schedule_commands  # isort: skip  # noqa: F401
from . import store_commands, migrate_command, usage_commands, outbox_commands  # isort: skip  # noqa: F401
from . import serve_command, demo_command  # isort: skip  # noqa: F401

TRACEBACK: Final = "ABEYANCE_TRACEBACK"
"""Set in the environment, it lets an unexpected error through with its traceback."""

_USAGE: Final[type[Exception]] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)
"""The base of what typer raises for wrong arguments, whichever parser it carries inside."""


_UNUSABLE: Final = (
    AlreadyOpenError,
    DamagedStoreError,
    DiskFullError,
    ForeignDirectoryError,
    HostForbiddenError,
    InvalidConfigError,
    MissingStoreError,
    NewerFormatError,
    NoFileLocksError,
    ReaderSlotsFullError,
    ReadOnlyStoreError,
    StateUnusableError,
    StoreInUseError,
    StoreIOError,
)


@shell.app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"abeyance {__version__}")
        raise typer.Exit(shell.OK)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(shell.UNUSABLE)


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
        outcome = shell.app(args=given, prog_name="abeyance", standalone_mode=False)
    except BrokenPipeError:
        # The reader of our output went away, as `head` does. Nothing is left to tell it.
        shell.drop_output()
        return shell.FAILED
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", "interrupted", shell.INTERRUPTED, given)
    except _USAGE as error:
        usage: Any = error
        text = f"{usage.format_message()} (see abeyance --help)"
        return _fail("usage", text, shell.UNUSABLE, given)
    except (AbeyanceError, StorageError) as error:
        exit_code = shell.UNUSABLE if isinstance(error, _UNUSABLE) else shell.FAILED
        code = getattr(error, "remote_code", error.code)  # Of a host's refusal, the host's own.
        return _fail(code, str(error), exit_code, given, getattr(error, "field", None))
    except OSError as error:
        if error.filename is None:  # Not a path's: of the streams that were written to.
            text = f"the output cannot be written ({error.strerror or error}); nothing was changed"
            return _fail("system", text, shell.FAILED, given)
        text = f"{os.fsdecode(error.filename)}: {error.strerror}"
        return _fail("system", text, shell.UNUSABLE, given)
    except Exception as error:  # A fault of ours: a line, too.
        if os.environ.get(TRACEBACK):
            raise
        text = f"internal error: {error!r}; run it again with {TRACEBACK}=1 to see where"
        return _fail("internal", text, shell.FAILED, given)
    if outcome == shell.INTERRUPTED:  # How newer parsers report Ctrl-C.
        return _fail("interrupted", "interrupted", shell.INTERRUPTED, given)
    return outcome if isinstance(outcome, int) else shell.OK


def _fail(code: str, text: str, exit_code: int, given: list[str], field: str | None = None) -> int:
    line = clean_text(" ".join(text.split()), 2_000)
    if "--json" in given:
        try:
            typer.echo(json_text({"error": {"code": code, "text": line, "field": field}}))
        except OSError:
            shell.drop_output()
    else:
        # What a failed write left in the buffer would fail again at the exit, with a traceback.
        try:
            sys.stdout.flush()
        except (OSError, AttributeError):
            shell.drop_output()
    shell.say(line)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
