"""The command that plays the demo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from . import shell
from .render import json_text
from .shell import AsJson

if TYPE_CHECKING:
    from .demo import DemoReport


@shell.app.command()
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
            metavar="DIR",
            help="Keep the host's state here; must be empty.",
            parser=shell.read_directory,
        ),
    ] = None,
    runs: Annotated[
        bool,
        typer.Option("--runs", help="Play a run of a workflow that outlives three hosts instead."),
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the state directory behind.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch two agents work, a host killed in a hold, and a release from outside."""
    if runs:
        if provider != "simulator" or model is not None:
            raise typer.BadParameter("--runs is played with the simulator")
        _play_runs(state, keep=keep, as_json=as_json)
        return
    from .demo import DemoOptions, run_demo  # Needs the anthropic extra.

    if provider not in ("simulator", "anthropic"):
        raise typer.BadParameter("--provider is simulator or anthropic")
    if model is not None and provider == "simulator":
        raise typer.BadParameter("--model goes with --provider anthropic")
    options = DemoOptions(
        provider=provider, model=model, state=state, keep=keep or state is not None
    )
    _tell(run_demo(options, console=_audience(as_json=as_json)), as_json=as_json)


def _play_runs(state: Path | None, *, keep: bool, as_json: bool) -> None:
    from .demo.runs import RunsDemoOptions, run_runs_demo

    options = RunsDemoOptions(state=state, keep=keep or state is not None)
    _tell(run_runs_demo(options, console=_audience(as_json=as_json)), as_json=as_json)


def _audience(*, as_json: bool) -> Console | None:
    return None if as_json else Console(highlight=False)


def _tell(report: DemoReport, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json_text(report))
    if not report.holds:
        raise typer.Exit(shell.FAILED)
