"""What the command line prints of runs, for a person at 80 columns.

Each run is a head, its line for people, where it stands, and, where only an operator moves it, what
there is to decide. Texts from records are printed as text, as `render` has it.

Pure but for the console that is handed in.
"""

from __future__ import annotations

import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from abeyance.actors.domain.ingress import escaped_text

from .instants import local_text
from .run_reports import RunActReport, RunDetailReport, RunReport, RunsReport

_OPEN = ("running", "resuming")
_ENDED = ("completed", "failed", "cancelled")
_DECIDE = {
    "waiting_for_capacity": "sooner: resume, fallback or cancel",
    "waiting_for_capacity_unknown": "nobody said until when: resume, fallback or cancel",
    "recovery_required": "once that is seen to: resume (as it is, without a decision), or cancel",
}
_HANGS = "where it hangs, a host that answers can take the run over (take-over)"
_DOUBT = "decide: resume (--in-doubt retry, or done), or cancel"


def print_runs(console: Console, report: RunsReport, *, filtered: bool) -> None:
    """Print runs, a block each."""
    if not report.runs:
        console.print("No such runs." if filtered else "No runs that have not ended.")
    for run in report.runs:
        _print_run(console, run, report)


def _print_run(console: Console, run: RunReport, report: RunsReport | RunDetailReport) -> None:
    stopped = report.pid is None
    head = f"{run.id}  {run.workflow} v{run.version}"
    console.print(Text(escaped_text(head), style="bold"))
    style = "yellow" if run.state in _DECIDE or run.unrecorded is not None else ""
    _say(console, run.text, style=style)
    _say(console, _stands(run))
    if not stopped and run.owner_pid is not None:
        owner = f"owned by process {run.owner_pid} on {run.owner_host}"
        if run.owner_pid in report.silent_pids:
            owner += f", which did not answer here; {_HANGS}"
        _say(console, owner)
    if stopped and run.state in _OPEN and run.executed:
        _say(
            console,
            f"executed by process {run.owner_pid} on {run.owner_host}, which lives and did not "
            f"answer here; {_HANGS}",
        )
    if stopped and run.state == "waiting_for_capacity":
        _say(console, "resumed by a host that has its workflow, then or as it starts")
    if run.state in _DECIDE:
        _say(console, _DOUBT if run.needs_decision else _DECIDE[run.state])


def _say(console: Console, text: str, *, indent: int = 2, style: str = "") -> None:
    """Print a text that stays behind its indent where it is folded."""
    console.print(Padding(Text(escaped_text(text), style=style), (0, 0, 0, indent)))


def _stands(run: RunReport) -> str:
    done = f"{run.steps_done} item{'s' * (run.steps_done != 1)} done"
    facts = [done if run.step is None else f"at {run.step}, {done}"]
    if run.total is not None:
        facts.append(f"{run.place} of {run.total} in its step")
    if run.walls:
        facts.append(f"walls {run.walls}")
    if run.lives > 1:
        facts.append(f"lives {run.lives}")
    if run.fallback is not None:
        facts.append(f"on {run.fallback[0]}/{run.fallback[1]}")
    return "; ".join([*facts, f"since {local_text(run.changed_ms)}"])


def print_run(console: Console, report: RunDetailReport) -> None:
    """Print one run: its block, what it met, its items, and the states it went through."""
    _print_run(console, report.run, report)
    if report.run.folder is not None:
        _say(console, f"its directory: {report.run.folder}")
    if report.run.reason and report.run.reason not in report.run.text:
        _say(console, f"it met: {report.run.reason}")
    if report.result is not None:
        said = msgspec.json.encode(report.result).decode()
        _say(console, f"result {said}")
    if report.steps:
        console.print("Items")
    for number, step in enumerate(report.steps):
        tries = f", tried {step.attempts} times" if step.attempts > 1 else ""
        at = local_text(step.started_ms if step.ended_ms is None else step.ended_ms)
        _say(console, f"{number}  {step.path}: {step.state}{tries}  {at}")
        if step.error:
            _say(console, step.error, indent=5)
    console.print("History")
    for each in report.history:
        _say(console, f"{local_text(each.at_ms)}  {each.after} by {each.by}")


def print_act(console: Console, verb: str, report: RunActReport) -> None:
    """Print what an act came to."""
    state = report.state.replace("_", " ")
    if not report.changed and verb == "take-over" and report.state not in _ENDED:
        line = f"{report.id} is {state}; no other live process owns it, so nothing was taken."
    elif not report.changed:
        line = f"{report.id} is {state}; nothing was changed."
    elif verb == "cancel":
        line = f"{report.id} is cancelled; nothing takes it up any more."
    elif report.pid is None:
        line = f"{report.id} is {state}; the next host that has its workflow goes on with it."
        if verb == "fallback":
            line += " Whether it may use that model could not be checked here: the host does."
    else:
        line = f"{report.id} is {state}, in process {report.pid}."
    console.print(Text(escaped_text(line)))
    if report.threads:
        console.print(
            f"  threads of its functions that run on, recording nothing: {report.threads}"
        )
