"""The command that serves a host out of a file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import trio
import typer

from . import shell


@shell.app.command()
def serve(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="What declares the host.")],
    check: Annotated[
        bool, typer.Option("--check", help="Check the file, and serve nothing.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print an object a line for what agents say.")
    ] = False,
) -> None:
    """Run the agents of a file, each asked by lines of input: `NAME: what to say`.

    Ends with its input, or at Ctrl-C or SIGTERM, when the live turns have ended; a second signal
    stops them at once. What is held goes on with the next start.
    """
    from .serve import read_config  # Reads providers in: no other command needs them.
    from .serve.host import Output
    from .serve.host import serve as run

    sys.path.insert(0, os.getcwd())  # Where the tools that the file names may be.
    host = read_config(config)
    if check:
        names = ", ".join(spec.name for spec in host.agents)
        typer.echo(f"{config}: declares {names}")
        return

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    output = Output(write, shell.say)
    if not trio.run(lambda: run(host, output, json_lines=as_json)):
        raise typer.Exit(shell.INTERRUPTED)
