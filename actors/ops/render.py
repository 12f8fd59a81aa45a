"""What the command line prints: tables for a person at 80 columns, JSON for a program.

On a console too narrow for a table's columns, each of its rows is printed as a block.

Every text that came from a host's records is printed as text, never as markup, and a character in
it that nobody sees, or that turns the text around it, as its escape: an older store may hold names
that are refused today.

Pure but for the console that is handed in.
"""

from __future__ import annotations

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from abeyance.actors.domain.ingress import clean_text, escaped_text
from abeyance.storage.mending import Stays
from abeyance.storage.repair import Planned

from .instants import duration_text, ends_text, local_text
from .render_ends import RELEASE, ways_out
from .reports import (
    AgentReport,
    AlertReport,
    CheckReport,
    EditRowReport,
    EntryReport,
    ImportReport,
    InboxRowReport,
    ModeReport,
    QuiesceReport,
    ReleaseReport,
    StatusReport,
    WaitReport,
    nothing_lifted,
)

NOTHING = "–"
ENTRY_CHARS_MAX = 5_000
"""Of one line of an entry."""
TABLE_NAME_CHARS_MAX = 32
"""A longer name, as a credential's is, stands below the table where it fits a line: in the table
it would be broken up, and could not be copied for a release."""
TABLE_COLUMNS_MIN = 60
"""A console narrower than this has no room for a table beside an agent's name."""


def json_text(report: object) -> str:
    """A report as indented JSON: instants as integers of epoch milliseconds, null for no end.

    What a terminal would not show is escaped, and reads as what it is.
    """
    text = msgspec.json.format(msgspec.json.encode(report), indent=2).decode()
    # Outside strings JSON has no such character but line ends. All of them are below U+10000.
    return "\n".join(map(escaped_text, text.split("\n")))


def print_status(console: Console, report: StatusReport, now_ms: int) -> None:
    """Print a host or a stopped store: one line about it, its agents, its waits."""
    console.print(_headline(report, now_ms))
    console.print(
        Text(f"state {clean_text(report.directory, 4096)}  store {report.store_id}", style="dim")
    )
    if report.mode is not None and report.mode.state != "serving":
        console.print(_mode_line(report.mode, now_ms))
    console.print()
    if report.agents and console.width < TABLE_COLUMNS_MIN:
        for agent in report.agents:
            console.print(_agent_block(agent, pid=len(report.hosts) > 1))
    elif report.agents:
        # Of one host the headline has the pid already.
        console.print(_agents_table(report.agents, pids=len(report.hosts) > 1))
    else:
        console.print("No agents.")
    console.print()
    _print_limits(console, report.agents)
    _print_unrecorded(console, report.agents, now_ms)
    _print_holds(console, report, now_ms)
    print_waits(console, report.waits, now_ms)
    ways = ways_out(report)
    if ways:
        console.print()
    for line in ways:
        console.print(_shown(line), soft_wrap=True)
    if report.dead_letters or report.quarantine:
        console.print()
        console.print(f"{report.dead_letters} dead letters, {report.quarantine} in quarantine.")


def _print_limits(console: Console, agents: tuple[AgentReport, ...]) -> None:
    """Print who is at a limit of its own: what it takes next is refused, or waits."""
    full = [(agent, reached) for agent in agents if (reached := _reached(agent))]
    for agent, reached in full:
        console.print(_shown(f"{agent.name} is at its limits: {reached}"), soft_wrap=True)
    if full:
        console.print()


def _print_unrecorded(console: Console, agents: tuple[AgentReport, ...], now_ms: int) -> None:
    """Print whose store refuses what, since when, and why."""
    refused = [(agent, agent.unrecorded) for agent in agents if agent.unrecorded is not None]
    for agent, unrecorded in refused:
        waited = duration_text(now_ms - unrecorded.since_ms)
        problem = f"{unrecorded.what} cannot be recorded; {unrecorded.reason}"
        line = f"{agent.name} waits for the store, for {waited}: {problem}"
        console.print(_shown(line), soft_wrap=True)
    if refused:
        console.print()


def _reached(agent: AgentReport) -> str:
    limits = agent.limits
    if limits is None:
        return ""
    said = []
    if agent.inbox >= limits.inbox_messages_max:
        said.append(f"inbox {agent.inbox} of {limits.inbox_messages_max} messages")
    # The last bytes are seldom used up: messages do not fit long before.
    if limits.inbox_bytes > limits.inbox_bytes_max * 7 // 8:
        said.append(f"inbox {limits.inbox_bytes:,} of {limits.inbox_bytes_max:,} bytes")
    if limits.turns_max is not None and limits.turns_waiting:
        waiting = f"{limits.turns_waiting} waiting"
        said.append(f"turns {limits.turns} of {limits.turns_max}, {waiting}")
    if limits.tool_threads >= limits.tool_threads_max:
        said.append(f"tool threads {limits.tool_threads} of {limits.tool_threads_max}")
    return "; ".join(said)


def _print_holds(console: Console, report: StatusReport, now_ms: int) -> None:
    """Print what holds a turn and is no wait in the list: a quota, a pause, a credential, a
    person."""
    listed = {(wait.agent, wait.model) for wait in report.waits}
    holds = [
        (agent, agent.held)
        for agent in report.agents
        if agent.held is not None
        and (
            agent.held.cause in ("approval", "context")
            or (agent.name, agent.held.model) not in listed
        )
    ]
    for agent, held in holds:
        end = ends_text(held.deadline_ms)
        if held.deadline_ms is not None:
            end = f"until {end}, {duration_text(held.deadline_ms - now_ms)} left"
        line = f"{agent.name} on {held.model}: {held.cause}, {end}; {held.reason}"
        console.print(_shown(line), soft_wrap=True)
    if holds:
        console.print()


def _mode_line(mode: ModeReport, now_ms: int) -> Text:
    since = "" if mode.since_ms is None else f" for {duration_text(now_ms - mode.since_ms)}"
    by = f" by {escaped_text(mode.by)}" if mode.by else ""
    said = f"{mode.state}{since}{by}: {escaped_text(mode.reason)}; no turn starts"
    return Text(said.capitalize(), style="yellow")


def print_quiesce(console: Console, report: QuiesceReport) -> None:
    """Print what a quiesce, or its end, came to: a line, and what needs a look."""
    if report.state == "serving":
        if report.was == "serving":
            console.print("It was not quiesced.")
        else:
            console.print(f"Turns start again; {report.landed} messages that had waited landed.")
        return
    console.print(Text(f"Quiesced: {escaped_text(report.reason)}. No turn lives."))
    for title, names in (
        ("ended, and run anew when it ends:", report.abandoned),
        ("held:", report.held),
        ("runs that were ended:", report.runs_ended),
    ):
        if names:
            console.print(Text(f"  {title} {', '.join(map(escaped_text, names))}"))
    if report.bodies_running:
        console.print(f"  tool bodies that run on: {report.bodies_running}")


def _shown(text: str, style: str = "") -> Text:
    return Text(escaped_text(text), style=style)


def _headline(report: StatusReport, now_ms: int) -> Text:
    if report.open_pids:
        return Text(
            f"No host answers at a control socket here, but {_processes(report.open_pids)} the "
            "store open; this is what the store holds.",
            style="bold",
        )
    if report.pid is None:
        return Text("No host is running; this is what the store holds.", style="bold")
    if len(report.hosts) > 1:
        named = (f"pid {host.pid}{_up(host.started_ms, now_ms)}" for host in report.hosts)
        return Text(f"{len(report.hosts)} hosts running: {'; '.join(named)}", style="bold")
    line = Text(f"Host running: pid {report.pid}", style="bold")
    return line.append(_up(report.started_ms, now_ms), style="not bold")


def _up(started_ms: int | None, now_ms: int) -> str:
    return "" if started_ms is None else f", up {duration_text(now_ms - started_ms)}"


def _processes(pids: tuple[int, ...]) -> str:
    named = ", ".join(f"pid {pid}" if pid else "one whose pid cannot be read" for pid in pids)
    return f"a process has ({named})" if len(pids) == 1 else f"processes have ({named})"


def _agent_block(agent: AgentReport, *, pid: bool) -> Text:
    whose = f", pid {_count(agent.pid)}" if pid else ""
    return Text(
        f"{escaped_text(agent.name)}\n"
        f"  state {agent.state}, model {escaped_text(agent.model)}{whose}\n"
        f"  turn {_count(agent.turn)}, round {_count(agent.round)}, inbox {agent.inbox}, "
        f"wakes {agent.wakes}"
    )


def _agents_table(agents: tuple[AgentReport, ...], *, pids: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("agent", overflow="fold", min_width=8)
    table.add_column("state", no_wrap=True)
    table.add_column("model", overflow="fold", min_width=8)
    for name in ("turn", "round", "inbox", "wakes", *(["pid"] if pids else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for agent in agents:
        table.add_row(
            _shown(agent.name),
            Text(agent.state, style="yellow" if agent.held or agent.unrecorded else ""),
            _shown(agent.model),
            _count(agent.turn),
            _count(agent.round),
            str(agent.inbox),
            str(agent.wakes),
            *([_count(agent.pid)] if pids else []),
        )
    return table


def _count(value: int | None) -> str:
    return NOTHING if value is None else str(value)


def print_waits(console: Console, waits: tuple[WaitReport, ...], now_ms: int) -> None:
    """Print the waits that bind, each with its local end and what is left of it."""
    if not waits:
        console.print("No waits.")
        return
    narrow = console.width < TABLE_COLUMNS_MIN
    blocks = [
        wait
        for wait in waits
        if narrow
        or (len(wait.agent) > TABLE_NAME_CHARS_MAX and _shown(_key(wait)).cell_len <= console.width)
    ]
    rows = [wait for wait in waits if wait not in blocks]
    if rows:
        console.print(_waits_table(rows, now_ms))
    for wait in blocks:
        end = ends_text(wait.deadline_ms)
        if wait.deadline_ms is not None:
            end = f"until {end}, {_left(wait, now_ms)} left"
        console.print(Text(f"{escaped_text(_key(wait))}\n  {end}\n  {escaped_text(_why(wait))}"))
    console.print(Text(f"\n{RELEASE}"))


def _key(wait: WaitReport) -> str:
    return f"{wait.agent} on {wait.model}"


def _why(wait: WaitReport) -> str:
    return f"(not stored yet) {wait.reason}" if wait.pending else wait.reason


def _waits_table(waits: list[WaitReport], now_ms: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("agent", overflow="fold", min_width=6)
    table.add_column("model", overflow="fold", min_width=6)
    table.add_column("waits until", no_wrap=True)
    table.add_column("left", justify="right", no_wrap=True)
    table.add_column("reason", overflow="fold", min_width=12)
    for wait in waits:
        table.add_row(
            _shown(wait.agent),
            _shown(wait.model),
            ends_text(wait.deadline_ms),
            _left(wait, now_ms),
            _shown(_why(wait)),
        )
    return table


def _left(wait: WaitReport, now_ms: int) -> str:
    return NOTHING if wait.deadline_ms is None else duration_text(wait.deadline_ms - now_ms)


def print_check(console: Console, report: CheckReport) -> None:
    """Print what is wrong with a store, a line each, and how much was read."""
    for finding in report.findings:
        console.print(Text(f"{finding.problem}: {finding.text}"))
    count = len(report.findings)
    found = f"{count} finding{'s' * (count > 1)}" if count else "nothing is wrong"
    for kept in report.set_aside:
        there = "replaced" if kept.replaced else "taken out"
        at = local_text(kept.at_ms)
        console.print(_shown(f"set aside: {kept.table} {kept.key}, {there} {at}: {kept.then}"))
    console.print(Text(f"Read {report.rows} rows: {found}."))
    if report.set_aside_rows:
        count = report.set_aside_rows
        console.print(
            Text(
                f"{count} row{'s are' if count > 1 else ' is'} set aside by repairs; "
                "--undo-repair puts those of the newest back, --forget-repairs deletes them."
            )
        )
    if report.findings and report.open_pids:
        console.print(
            Text(
                f"While it was read, {_processes(report.open_pids)} the store open: check again "
                "before you act on a dangling row."
            )
        )


def print_plan(console: Console, planned: tuple[Planned, ...]) -> None:
    """Print what a repair does about each finding, and what that means."""
    for finding, answer in planned:
        console.print(_shown(f"{finding.problem}: {finding.text}"))
        if isinstance(answer, Stays):
            console.print(_shown(f"  stays as it is: {answer.why}"))
        else:
            replaced = any(change.record is not None for change in answer.changes)
            act = "is set aside and replaced" if replaced else "is set aside"
            console.print(_shown(f"  {act}: {answer.then}"))


def print_alerts(console: Console, alerts: tuple[AlertReport, ...]) -> None:
    """Print alerts, each as a head and the text, whose command can be copied from one line."""
    if not alerts:
        console.print("No alerts.")
    for alert in alerts:
        at = "at a time that cannot be read" if alert.at_ms is None else local_text(alert.at_ms)
        head = f"{alert.id}  {at}  {alert.kind}  {alert.agent} on {alert.model}"
        console.print(_shown(head, "bold"))
        console.print(_shown(f"  {alert.text}"), soft_wrap=True)


_CAUSES = {
    "turn": "joins the live turn at its next tool boundary",
    "own": "is named as the agent: lands at the turn's end",
    "tools": "carries tool blocks: lands at the turn's end",
    "kept": "was sent so as not to join: lands at the turn's end",
    "behind": "stands behind {behind}, which lands at the turn's end",
    "no_injections": "the provider carries nothing into a live turn: lands at its end",
    "quiesced": "the host is quiesced: lands when that ends",
    "start": "lands when the agent starts or goes on",
    "unreadable": "its row cannot be read: see abeyance check",
}


def print_inbox(console: Console, rows: tuple[InboxRowReport, ...]) -> None:
    """Print messages that wait, each as a head and the reason."""
    if not rows:
        console.print("No messages wait.")
    for row in rows:
        since = f"  {local_text(row.at_ms)}" if row.at_ms else ""
        head = f"{row.seq}  {row.state}  {row.agent}  {row.id} by {row.author}{since}"
        why = _CAUSES.get(row.cause, row.cause).format(behind=row.behind)
        facts = [why, f"{row.size} bytes"]
        if row.channel is not None:
            facts.append(f"channel {row.channel}")
        if row.wake:
            facts.append("asks for a turn")
        console.print(_shown(head, "bold"), soft_wrap=True)
        console.print(_shown(f"  {'; '.join(facts)}"), soft_wrap=True)


def print_edits(console: Console, rows: tuple[EditRowReport, ...]) -> None:
    """Print edits that are kept, each as a head and the words that it replaced."""
    if not rows:
        console.print("No edits are kept.")
    for row in rows:
        head = f"{row.edit}  place {row.seq}  {row.does}  {row.id}  by {row.by}"
        console.print(_shown(f"{head}  {local_text(row.at_ms)}", "bold"), soft_wrap=True)
        if row.undone_ms is not None:
            undone = f"  undone by {row.undone_by}  {local_text(row.undone_ms)}"
            console.print(_shown(undone), soft_wrap=True)
        was = "which cannot be read" if row.was is None else row.was
        console.print(_shown(f"  it said: {was}"), soft_wrap=True)


def print_import(console: Console, report: ImportReport) -> None:
    """Print what was done about entries that are not sound, a line each, and the sums."""
    for repair in report.repairs:
        place = "all entries" if repair.place is None else f"entries[{repair.place}]"
        named = [repair.id or "no id", f"by {repair.participant or 'nobody'}"]
        if repair.place is None:
            named = []
        head = " ".join([place, *named])
        console.print(_shown(f"{head}: {repair.kind}: {repair.text}"), soft_wrap=True)
    kinds = [repair.kind for repair in report.repairs]
    verb = "would be accepted" if report.dry_run else "accepted"
    console.print(
        Text(
            f"{report.total} entries: {len(report.messages)} {verb}, "
            f"{kinds.count('dropped')} dropped, {kinds.count('refused')} refused."
        )
    )


_REACHES = {
    "recorded": "recorded",
    "in_process": "it stands in its account's line no more",
    "pending": "in force; its record is not in yet (release again to offer it again)",
}


def print_release(console: Console, agent: str, report: ReleaseReport) -> None:
    """Print what a release lifted, and how far each record reached; where that is nothing, what
    binds the agent all the same."""
    if not report.released:
        console.print(_shown(report.nothing or nothing_lifted(agent, ())))
    for lifted in report.released:
        reach = _REACHES.get(lifted.reach, _REACHES["pending"])
        console.print(_shown(f"Released {lifted.agent} on {lifted.model}: {reach}."))


def print_entries(
    console: Console, kind: str, entries: tuple[EntryReport, ...], *, tracebacks: bool
) -> None:
    """Print rows of the dead letters or of the quarantine, a block each."""
    if not entries:
        console.print(f"No {_ENTRIES[kind]}.")
        return
    for entry in entries:
        console.print(_entry_block(entry, tracebacks=tracebacks))


_ENTRIES = {"dead_letter": "dead letters", "quarantine": "messages in quarantine"}


def _entry_block(entry: EntryReport, *, tracebacks: bool) -> Text:
    head = f"{entry.id}  {local_text(entry.at_ms)}  {entry.actor}  {entry.reason}"
    facts = []
    if entry.deliveries is not None:
        facts.append(f"delivered {_times(entry.deliveries)}, incarnation {entry.incarnation}")
    if entry.origin is not None:
        facts.append(f"replayed from {entry.origin_kind} {entry.origin}")
    if entry.replays:
        facts.append(f"replayed {_times(entry.replays)}")
    if not entry.replayable:
        facts.append("cannot be replayed: the message itself is not there")
    lines = [head, *(f"  {line}" for line in (entry.message, "; ".join(facts)) if line)]
    if tracebacks or entry.reason == "unreadable":
        lines += [f"  {line}" for line in entry.error.splitlines()]
    # Each line by itself, once more: a store may be of a host that cleaned nothing.
    return Text("\n".join(clean_text(line, ENTRY_CHARS_MAX) for line in lines))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def print_replay(console: Console, entry: EntryReport) -> None:
    """Print what a replay sent, and to whom."""
    name = "Dead letter" if entry.kind == "dead_letter" else "Quarantined message"
    line = f"{name} {entry.id} was sent to {entry.actor} again: {entry.message}"
    console.print(Text(clean_text(line, ENTRY_CHARS_MAX)))


__all__ = [
    "json_text",
    "print_check",
    "print_edits",
    "print_entries",
    "print_import",
    "print_inbox",
    "print_plan",
    "print_quiesce",
    "print_release",
    "print_replay",
    "print_status",
    "print_waits",
]
