"""The commands of agents: what they do and wait for, releases, rewinds, quiescing, and the tree."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from abeyance.actors.core.tree import DEPTH, DEPTH_MAX, NODES_MAX, WIDTH, format_tree
from abeyance.actors.domain.errors import InvalidInputError, UnknownAgentError
from abeyance.actors.domain.ingress import check_model, check_name, escaped_text, read_blocks
from abeyance.actors.domain.mode import WITHIN_S, read_reason, read_window

from . import shell, targets
from .connection import HostSilentError, NoHostError, RefusedByHostError
from .errors import look_at
from .render import json_text, print_edits, print_quiesce, print_release, print_status, print_waits
from .reports import EditsReport, TreeReport, WaitReport, WaitsReport
from .requests import EVERY_MODEL
from .shell import AsJson, StateDir
from .targets import Target


@shell.app.command()
def status(directory: StateDir, as_json: AsJson = False) -> None:
    """Show a host's agents, what they do, and what they wait for."""
    target = targets.open_reading(directory)
    try:
        report = target.status()
    finally:
        target.close()
    if as_json:
        typer.echo(json_text(report))
    else:
        print_status(shell.console(), report, shell.now_ms())
    shell.end_beside(target.silent_pids)
    shell.say_silent(report.silent_pids)


@shell.app.command()
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
    target = targets.open_reading(directory)
    try:
        found = _waits_of(target, agent)
    finally:
        target.close()
    if as_json:
        typer.echo(json_text(WaitsReport(waits=found)))
    else:
        print_waits(shell.console(), found, shell.now_ms())
    shell.end_beside(target.silent_pids)


@shell.app.command()
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
    target = targets.open_target(directory, writing=True)
    try:
        report = target.release(agent, scope)
    finally:
        target.close()
    with shell.done_anyway("the release was done; what it lifted"):
        if as_json:
            typer.echo(json_text(report))
        else:
            print_release(shell.console(), agent, report)


@shell.app.command()
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
    target = targets.open_target(directory)
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


@shell.app.command("cancel-turn")
def cancel_turn(
    directory: StateDir,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Whose turn.")],
    turn: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Only this turn, by its number in the status."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """End an agent's open turn for good: live, held, or waiting. Messages that wait stay."""
    check_name(agent, "agent")
    target = targets.open_target(directory)
    try:
        report = target.cancel_turn(agent, turn)
    finally:
        target.close()
    if as_json:
        typer.echo(json_text(report))
    elif report.turn is None:
        typer.echo(f"{agent}: no turn was open")
    elif report.state == "cancelled":
        typer.echo(f"{agent}: turn {report.turn} is cancelled")
    else:
        typer.echo(f"{agent}: turn {report.turn} had ended: {report.state}")


@shell.app.command("set-model")
def set_model(
    directory: StateDir,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Which agent.")],
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="The model; else the specification's again."),
    ] = None,
    provider: Annotated[
        str | None, typer.Option(metavar="NAME", help="A provider that the host has added.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Have an agent ask another model from its next turn on; a hold of the old one ends."""
    check_name(agent, "agent")
    if model is not None:
        check_model(model, "model")
    if provider is not None:
        if model is None:
            raise typer.BadParameter("--provider goes with a model")
        check_name(provider, "provider")
    target = targets.open_target(directory)
    try:
        report = target.set_model(agent, model, provider)
    finally:
        target.close()
    if as_json:
        typer.echo(json_text(report))
    else:
        at = "" if report.provider is None else f" at {escaped_text(report.provider)}"
        typer.echo(f"{agent}: {escaped_text(report.model)}{at} from its next turn on")


@shell.app.command()
def edit(
    directory: StateDir,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Whose transcript.")],
    message: Annotated[
        str | None, typer.Option(metavar="ID", help="The message, by its id.")
    ] = None,
    place: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="The same by its place.")
    ] = None,
    text: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What it says from now on.")
    ] = None,
    blocks: Annotated[
        str | None, typer.Option(metavar="JSON", help="The same as a list of blocks.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take it out.")] = False,
    undo: Annotated[
        int | None, typer.Option(metavar="EDIT", min=1, help="Put back what an edit replaced.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give a stored message other words, or take it out, while no turn lives. Kept for 7 days."""
    if (message is not None) + (place is not None) + (undo is not None) != 1:
        raise typer.BadParameter("name one of --message, --place and --undo")
    says = (text is not None) + (blocks is not None) + remove
    if says != (undo is None):
        raise typer.BadParameter("say one of --text, --blocks and --remove; of an undo none")
    check_name(agent, "agent")
    named = message if message is not None else place
    if isinstance(named, str):
        check_name(named, "message", reserved=False)
    words = read_words(blocks) if blocks is not None else text
    if words is not None:
        read_blocks(words, "blocks")
    target = targets.open_target(directory)
    try:
        if undo is not None:
            report = target.undo_edit(agent, undo)
        else:
            assert named is not None
            report = target.edit(agent, named, words)
    finally:
        target.close()
    if as_json:
        typer.echo(json_text(report))
    else:
        done = "undone" if undo is not None else "taken out" if remove else "changed"
        name = escaped_text(report.id)
        typer.echo(f"{agent}: message {name} at place {report.seq} {done} (edit {report.edit})")


def read_words(text: str) -> list[Any]:
    """Blocks as they are given on a command line.

    Raises:
        InvalidInputError: It is no list in JSON; nothing was done.
    """
    try:
        words = json.loads(text)
    except ValueError as error:
        raise InvalidInputError("blocks", f"must be JSON ({error})") from None
    if not isinstance(words, list):
        raise InvalidInputError("blocks", "must be a list of blocks")
    return words


@shell.app.command()
def edits(
    directory: StateDir,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Whose transcript.")],
    as_json: AsJson = False,
) -> None:
    """List the edits of an agent's transcript that are kept, with the words that they replaced."""
    check_name(agent, "agent")
    target = targets.open_reading(directory)
    try:
        found = target.edits(agent)
    finally:
        target.close()
    if as_json:
        typer.echo(json_text(EditsReport(edits=found)))
    else:
        print_edits(shell.console(), found)
    shell.end_beside(target.silent_pids)


@shell.app.command()
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
    target = targets.open_target(directory, writing=True)
    try:
        report = target.resume() if end else target.quiesce(reason, within)
    finally:
        target.close()
    if as_json:
        typer.echo(json_text(report))
    else:
        print_quiesce(shell.console(), report)
    shell.say_silent(report.silent_pids)


@shell.app.command()
def unpark(
    directory: StateDir,
    group: Annotated[
        str | None,
        typer.Argument(metavar="[GROUP]", help="runs, schedules or alerts: the host's own."),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="An agent, in place of a group.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start what crashed too often and was parked again, with everything that it accepted."""
    if (group is None) == (agent is None):
        raise typer.BadParameter("name a group, or an agent by --agent")
    if agent is not None:
        check_name(agent, "agent")
    target = targets.open_target(directory)
    try:
        report = target.unpark(group, agent=agent)
    finally:
        target.close()
    if as_json:
        typer.echo(json_text(report))
    else:
        name = escaped_text(str(group or agent))
        at = ", ".join(map(str, report.pids))
        where = f" in process{'es' * (len(report.pids) > 1)} {at}"
        typer.echo(f"{name} goes on{where}." if at else f"{name} is not parked; nothing was done.")
    shell.say_silent(report.silent_pids)


@shell.app.command()
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
        target = targets.reach_hosts(directory)
    except NoHostError:
        raise NoHostError(
            f"no running host serves {directory}; the tree of actors exists only in a running "
            "host; nothing was done; see the status for what the store holds"
        ) from None
    try:
        found = target.tree(depth=depth, width=width)
    finally:
        target.close()
    typer.echo(json_text(found) if as_json else _trees_text(found))
    shell.say_silent(found.silent_pids)


def _trees_text(found: TreeReport) -> str:
    if not found.others:
        return format_tree(found.tree)
    trees = [(found.pid, found.tree), *((other.pid, other.tree) for other in found.others)]
    return "\n\n".join(f"pid {pid}\n{format_tree(tree)}" for pid, tree in trees)


def _waits_of(target: Target, agent: str | None) -> tuple[WaitReport, ...]:
    found: tuple[WaitReport, ...] = ()
    try:
        found = target.waits(agent)
    except (UnknownAgentError, RefusedByHostError) as error:
        if getattr(error, "remote_code", error.code) != UnknownAgentError.code:
            raise
    if agent is not None and not found:  # A host that gave no answer may know it.
        _check_known(target, agent)
    return found


def _check_known(target: Target, agent: str) -> None:
    report = target.status()
    if any(known.name == agent for known in report.agents):
        return
    if report.silent_pids:
        pids = ", ".join(map(str, report.silent_pids))
        raise HostSilentError(
            f"the hosts that answered know no agent {agent!r} and no wait of one, and host process "
            f"{pids} did not answer; nothing was done; {look_at(*report.silent_pids)}, then ask "
            "again"
        )
    raise UnknownAgentError(
        f"no agent {agent!r} is known there, and no wait of one; nothing was done; see the "
        "status for the names there are",
        agent=agent,
    )
