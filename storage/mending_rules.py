"""The rule of each table; those of waits, runs, schedules and the store itself. See `mending`."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from . import codec, mending_agents, mending_slots
from .check import Finding
from .errors import InvalidRecordError
from .keys import decode_key
from .mending import (
    BY,
    GAP,
    Answer,
    Change,
    Look,
    Mending,
    Rule,
    Stays,
    taken_out,
)
from .store import Key
from .tables import TABLES
from .tables.attachments import AttachmentUse
from .tables.blocks import attachments_in
from .tables.outboxes import Cursor
from .tables.ownership import Changes, Mode, Sequence
from .tables.runs import Run, RunIndexed, RunKey
from .tables.schedules import Schedule, ScheduleIndexed
from .tables.waits import Wait

HISTORY: Final = "it is history; nothing is decided by it"
OUT: Final = {
    "processes": "it is of a process that is dead",
    "carried": "which messages a request had is in it; they are carried again by the next one",
    "contexts": "a summary; turns carry the rows that it stood for until the next one is made",
    "prompts": "a system prompt; a turn that carries it fails, the next one has the host's",
    "edits": "that edit cannot be undone; the transcript is as it stands",
    "overrides": "the release in it lifts nothing; release again",
    "usage": "the reading of usage is gone until the next one",
    "spent": "the sums of what calls used have it all the same",
    "spent_quarters": "what those calls used counts in no report and no budget any more",
    "budgets": "releases of that budget count no more; it is used up again where it was",
    "run_transitions": HISTORY,
    "occurrences": HISTORY,
    "conversations": "the next conversation on that channel is begun anew",
    "outboxes": "that outbox is no more; begun anew, it goes on with what is said from then on",
    "reminders": "that actor is not reminded of it",
    "deliveries": "that message may crash its actor once more before it is quarantined",
    "alerts": HISTORY,
    "alerted": "that alert may be raised once more",
    "alerts_owed": "a sink may not be given that alert",
    "dead_letters": "a message that was not handled cannot be sent again",
    "quarantine": "a message that was not handled cannot be sent again",
    "log": HISTORY,
    "set_aside": "what an earlier repair took out there cannot be put back",
    "attachment_pieces": "the attachment has no such bytes any more; what names it says so",
}
"""Tables whose rows are taken out, and what that means."""

_NO_KEY: Final = "its key says nothing, so that nobody knows what it was of"


_REASON: Final = "its record could not be read and was set aside by a repair"
_ENDED: Final = ("completed", "failed", "cancelled")
_BUCKETS: Final = {
    "running": "live",
    "resuming": "live",
    "waiting_for_capacity": "waiting",
    "waiting_for_capacity_unknown": "unknown",
    "recovery_required": "recovery",
}


def _wait(table: str) -> Rule:
    def rule(look: Look, key: Key) -> Answer:
        act = f"repair.{look.now_ms}"
        wait = Wait(
            deadline_ms=None,
            reason=_REASON,
            set_ms=look.now_ms,
            act=act,
            hold=act,
            since_ms=look.now_ms,
        )
        then = "a wait without an end holds there until it is released"
        return Mending((Change(table, key, wait),), then)

    return rule


def _meta(look: Look, key: Key) -> Answer:
    if key != ("store",):
        return Mending((Change("meta", key, None),), "nothing is kept there")
    then = (
        "it is what store.json says; see that the data file is of that store, and was not swapped"
    )
    return Mending((Change("meta", key, look.own),), then)


def _mode(look: Look, key: Key) -> Answer:
    record = Mode(state="quiesced", reason=_REASON, by=BY, at_ms=look.now_ms, act="check.repair")
    then = "no turn starts until `abeyance quiesce DIR --end`"
    return Mending((Change("modes", key, record),), then)


def _sequence(look: Look, key: Key) -> Answer:
    name = str(key[0])
    if name == "changes":
        last = next((int(at[0]) for at, _ in look.rows("changes", reverse=True)), 0)
        record = Sequence(next=last + GAP)
    elif name in TABLES and TABLES[name].append:
        record = Sequence(next=max(look.last(name), _named(look, name)) + GAP)
    else:
        return Mending((Change("sequences", key, None),), "nothing is counted by it")
    then = f"numbers go on at {record.next:,}, behind all that anything names"
    return Mending((Change("sequences", key, record),), then)


def _named(look: Look, table: str) -> int:
    """The largest number of a row of the table, deleted or not, that `changes` still lists."""
    largest = 0
    for _, row in look.rows("changes"):
        for raw in row.keys.get(table, ()):
            number = decode_key(raw)[0]
            largest = max(largest, number if isinstance(number, int) else 0)
    return largest


def _changes(look: Look, key: Key) -> Answer:
    then = "history; nobody follows what changed in a stopped store"
    return Mending((Change("changes", key, Changes(keys={})),), then)


def _attachment(look: Look, key: Key) -> Answer:
    """Its pieces go, too, so that the same bytes can be attached again."""
    pieces = [
        Change("attachment_pieces", at, None) for at, _ in look.rows("attachment_pieces", key)
    ]
    then = "words take its place in what names it; the same bytes can be attached again"
    return Mending((Change("attachments", key, None), *pieces), then)


def _use(look: Look, key: Key) -> Answer:
    record = AttachmentUse(at_ms=look.now_ms)
    return Mending((Change("attachment_uses", key, record),), "as its key says")


def _of_body(look: Look, key: Key) -> Answer:
    """Content that names an attachment without a row of use."""
    body = look.get("bodies", key)
    digests = {each.digest for _, each in attachments_in(body.blocks)}
    changes = [
        Change("attachment_uses", (digest, "entry", *key), AttachmentUse(at_ms=look.now_ms))
        for digest in sorted(digests)
        if not look.is_there("attachment_uses", (digest, "entry", *key))
    ]
    return Mending(tuple(changes), "as the content says that names it")


def _run_key(look: Look, key: Key) -> Answer:
    name = str(key[0])
    numbers = [int(at[3]) for at, _ in look.rows("run_index") if at[2] == name]
    number = max(look.last("runs", key), *numbers, 0)
    if not number:
        return Mending((Change("run_keys", key, None),), "no run of that key is left")
    run = look.get("runs", (name, number))
    record = RunKey(generation=number, is_open=run is None or run.state not in _ENDED)
    return Mending((Change("run_keys", key, record),), "as the runs of that key say")


def _run(look: Look, key: Key) -> Answer:
    """What it was to do is in its row alone: it is failed, and an operator may start another."""
    name, number = str(key[0]), int(key[1])
    places = [(at, row) for at, row in look.rows("run_index") if (at[2], at[3]) == key]
    workflow = places[0][1].workflow if places else "unknown"
    record = Run(
        workflow=workflow,
        version=1,
        state="failed",
        params=codec.pack(None),
        reason=_REASON,
        started_ms=look.now_ms,
        changed_ms=look.now_ms,
    )
    changes = [Change("runs", key, record), *(Change("run_index", at, None) for at, _ in places)]
    there = ("failed", look.now_ms, name, number)
    changes.append(Change("run_index", there, RunIndexed(workflow=workflow)))
    stands = look.get("run_keys", (name,))
    if stands is not None and stands.generation == number and stands.is_open:
        changes.append(Change("run_keys", (name,), replace(stands, is_open=False)))
    then = "that run counts as failed and does nothing more; see what it had done, and start anew"
    return Mending(tuple(changes), then)


def _run_item(look: Look, key: Key) -> Answer:
    name, number = str(key[0]), int(key[1])
    run = look.get("runs", (name, number))
    if look.is_there("runs", (name, number)) and (run is None or run.state not in _ENDED):
        return Stays(
            f"whether that step was done is in it alone, and its run waits for an operator: "
            f"`abeyance cancel DIR {name}@{number}`, then repair again"
        )
    return Mending((Change("run_items", key, None),), "history of a run that has ended")


def _run_index(look: Look, key: Key) -> Answer:
    bucket, _, name, number = key
    run = look.get("runs", (str(name), int(number)))
    stands = None if run is None else _BUCKETS.get(run.state, run.state)
    if run is None or (stands != bucket and (stands, bucket) != ("waiting", "joined")):
        return Mending((Change("run_index", key, None),), "no run is in that state there")
    record = RunIndexed(workflow=run.workflow)
    return Mending((Change("run_index", key, record),), "as its run says")


def _schedule(look: Look, key: Key) -> Answer:
    """As one that was removed: its occurrences go on with their numbers when it is added again."""
    name = str(key[0])
    record = Schedule(
        workflow="unknown",
        run_key=name[:100],
        params=codec.pack(None),
        every_ms=1_000,
        anchor_ms=look.now_ms,
        state="removed",
        number=look.last("occurrences", key),
        by=BY,
        added_ms=look.now_ms,
        changed_ms=look.now_ms,
    )
    due = [Change("schedule_index", at, None) for at, _ in look.rows("schedule_index")]
    mine = [change for change in due if change.key[1] == name]
    then = "that schedule counts as removed: add it again"
    return Mending((Change("schedules", key, record), *mine), then)


def _schedule_index(look: Look, key: Key) -> Answer:
    schedule = look.get("schedules", (key[1],))
    if schedule is None or schedule.state != "active" or schedule.next_ms != key[0]:
        return Mending((Change("schedule_index", key, None),), "nothing is due there")
    return Mending((Change("schedule_index", key, ScheduleIndexed()),), "as its schedule says")


def _cursor(look: Look, key: Key) -> Answer:
    """At the end of what was said: nothing is posted twice."""
    last = look.last("slots", (key[1],))
    record = Cursor(seq=last, at_ms=look.now_ms)
    then = f"that outbox goes on behind place {last}; see which replies up to there were not posted"
    return Mending((Change("cursors", key, record),), then)


def _open_turn(look: Look, key: Key) -> Answer:
    head: Any = look.get("heads", key)
    return mending_agents.turn(look, (*key, head.open_turn))


RULES: Final[dict[str, Rule]] = {
    **{table: taken_out(table, then) for table, then in OUT.items()},
    "meta": _meta,
    "owners": mending_agents.owner,
    "modes": _mode,
    "sequences": _sequence,
    "agents": mending_agents.agent,
    "sharers": mending_agents.sharer,
    "ephemerals": mending_agents.ephemeral,
    "ids": mending_slots.message_id,
    "bodies": mending_slots.body,
    "attachments": _attachment,
    "attachment_uses": _use,
    "inbox": mending_slots.inboxed,
    "slots": mending_slots.row,
    "leases": mending_slots.lease,
    "revisions": mending_slots.revision,
    "wakes": mending_agents.wake,
    "heads": mending_agents.head,
    "turns": mending_agents.turn,
    "tool_calls": mending_agents.tool_call,
    "approvals": mending_agents.approval,
    "waits": _wait("waits"),
    "account_waits": _wait("account_waits"),
    "run_keys": _run_key,
    "runs": _run,
    "run_items": _run_item,
    "run_index": _run_index,
    "schedules": _schedule,
    "schedule_index": _schedule_index,
    "cursors": _cursor,
    "changes": _changes,
}
"""What is done about an unreadable row, by table: of every table there is."""

DANGLING: Final[dict[tuple[str, str], Rule]] = {
    ("ids", "bodies"): mending_slots.message_id,
    ("ids", "inbox"): mending_slots.message_id,
    ("ids", "slots"): mending_slots.message_id,
    ("inbox", "bodies"): mending_slots.inboxed,
    ("slots", "bodies"): mending_slots.words,
    ("edits", "bodies"): taken_out("edits", OUT["edits"]),
    ("heads", "turns"): _open_turn,
    ("turns", "heads"): lambda look, key: mending_agents.head(look, key[:1]),
    ("carried", "leases"): lambda look, key: mending_slots.lease(look, key[:1]),
    ("bodies", "attachments"): mending_slots.attached,
    ("bodies", "attachment_uses"): _of_body,
    ("attachments", "attachment_pieces"): _attachment,
}
"""What is done about a row of one table that names one of another which is not there."""


def mend(look: Look, finding: Finding) -> Answer:
    """What a repair does about a finding."""
    answer = _answer(look, finding)
    if isinstance(answer, Mending):
        try:
            for change in answer.changes:
                if change.record is not None:
                    codec.pack_record(change.record)
        except InvalidRecordError as error:
            # Numbers that leave no room behind them, in rows that were made by hand.
            return Stays(f"what would stand in its place is no sound record ({error})")
    return answer


def _answer(look: Look, finding: Finding) -> Answer:
    table, key = finding.table, finding.key
    if finding.home is not None:
        there = RULES[table](look, finding.home)
        if isinstance(there, Mending):
            changes = (Change(table, key, None), *there.changes)
            return Mending(changes, f"it was written under {finding.home!r}: {there.then}")
    if not isinstance(key, tuple) or tuple(map(type, key)) != TABLES[table].key:
        return Mending((Change(table, key, None),), _NO_KEY)
    if finding.problem == "unreadable":
        return RULES[table](look, key)
    if finding.problem == "sequence":
        return RULES["sequences"](look, (table,))
    if finding.problem == "digest":
        return RULES["attachments"](look, key)
    assert finding.names is not None
    return DANGLING[table, finding.names[0]](look, key)
