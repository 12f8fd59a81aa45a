"""What must hold after a host was killed: nothing acknowledged is lost, repeated or reordered.

Evidence comes from outside the host: the receipts that the harness synced, the simulator's wire
log, the effects file, and the store's rows as they were right after each kill. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from abeyance.actors.ops.demo import play
from abeyance.actors.ops.demo.audit import prefixes
from abeyance.actors.ops.demo.play import ANA, MODELS, NOTE
from abeyance.actors.ops.demo.wire import WireCall, canonical

from .rows import Snapshot

AGENTS = {model: agent for agent, model in MODELS.items()}
Row = Mapping[str, Any]


@dataclass(slots=True)
class Observed:
    """One trial's evidence."""

    acks: Sequence[Row] = ()
    """Receipts, in order: `id`, `agent`, `seq`, `wake`."""
    told: Sequence[Row] = ()
    """Receipts that a tool printed: `id`, `agent`, `to`."""
    effects: Sequence[str] = ()
    """Call ids, one a time a booking was made."""
    transcripts: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    calls: Sequence[WireCall] = ()
    snapshots: Sequence[tuple[Snapshot, Sequence[str]]] = ()
    """The rows right after each kill, and the ids with a receipt by then."""
    final: Snapshot | None = None
    kills: int = 0
    released_ms: int = 0


@dataclass(slots=True)
class Verdict:
    """What did not hold, and what is listed without being a fault."""

    violations: list[str] = field(default_factory=list)
    unrecorded: list[str] = field(default_factory=list)
    """Calls that were on the wire and are recorded nowhere: their host died before it could."""


def judge(observed: Observed) -> Verdict:
    """Hold one trial against every promise."""
    verdict = Verdict()
    verdict.unrecorded = list(_unrecorded(observed))
    for check in CHECKS:
        verdict.violations += check(observed)
    allowed = 2 * observed.kills  # One live call an agent, and there are two.
    if len(verdict.unrecorded) > allowed:
        verdict.violations.append(
            f"{len(verdict.unrecorded)} calls are not recorded after {observed.kills} kills"
        )
    return verdict


# -- messages ------------------------------------------------------------------------------------


def acknowledged_once(observed: Observed) -> Iterator[str]:
    """Each receipt's message is in its agent's transcript, once."""
    for agent, name in _promised(observed):
        count = sum(row["id"] == name for row in observed.transcripts[agent])
        if count != 1:
            yield f"message {name} to {agent} has a receipt and is there {count} times"


def _promised(observed: Observed) -> Iterator[tuple[str, str]]:
    for ack in observed.acks:
        yield ack["agent"], ack["id"]
    for told in observed.told:
        yield told["to"], told["id"]


def no_row_twice(observed: Observed) -> Iterator[str]:
    """No message, reply or result stands in a transcript twice."""
    for agent, rows in observed.transcripts.items():
        for name, count in Counter(row["id"] for row in rows).items():
            if count > 1:
                yield f"{agent}'s transcript holds {name} {count} times"
        uses = Counter(
            block["id"] for row in rows for block in row["blocks"] if block["type"] == "tool_use"
        )
        results = Counter(
            block["tool_use_id"]
            for row in rows
            for block in row["blocks"]
            if block["type"] == "tool_result"
        )
        if uses != results or any(count > 1 for count in uses.values()):
            yield f"{agent}'s tool calls {dict(uses)} have the results {dict(results)}"


def in_order(observed: Observed) -> Iterator[str]:
    """Messages stand in the order of their receipts' numbers, and receipts rise as they came."""
    for agent, rows in observed.transcripts.items():
        acks = [ack for ack in observed.acks if ack["agent"] == agent]
        numbers = [ack["seq"] for ack in acks]
        if numbers != sorted(set(numbers)):
            yield f"the receipts of {agent} have the numbers {numbers}"
        number = {ack["id"]: ack["seq"] for ack in acks}
        number |= {told["id"]: told["seq"] for told in observed.told if told["to"] == agent}
        placed = [number[row["id"]] for row in rows if row["id"] in number]
        if placed != sorted(placed):
            yield f"{agent}'s messages stand in the order {placed}"


def committed_stays(observed: Observed) -> Iterator[str]:
    """What was on disk right after a kill is there in the end, unchanged and at its place."""
    final = observed.final
    assert final is not None
    for snapshot, acked in observed.snapshots:
        known = {key[1] for key in snapshot.rows("ids")}
        for name in acked:
            if name not in known:
                yield f"message {name} had a receipt and was not on disk after the kill"
        for table in ("slots", "bodies", "log", "alerts"):
            for key, record in snapshot.rows(table).items():
                if final.rows(table).get(key) != record:
                    yield f"{table} {key} was {record} and is {final.rows(table).get(key)}"
        yield from _states_stay(snapshot, final)
    if final.unreadable:
        yield f"rows cannot be read: {final.unreadable}"


def _states_stay(snapshot: Snapshot, final: Snapshot) -> Iterator[str]:
    for key, record in snapshot.rows("tool_calls").items():
        if record.state == "done" and final.rows("tool_calls").get(key) != record:
            yield f"tool call {key} was done and is {final.rows('tool_calls').get(key)}"
    for key, record in snapshot.rows("turns").items():
        if record.state in ("done", "failed") and final.rows("turns").get(key) != record:
            yield f"turn {key} had ended and is {final.rows('turns').get(key)}"
    for key, record in snapshot.rows("ids").items():
        later = final.rows("ids").get(key)
        if later is None or (later.entry, later.body_crc) != (record.entry, record.body_crc):
            yield f"message {key} was {record} and is {later}"


# -- turns ---------------------------------------------------------------------------------------


def every_wake_answered(observed: Observed) -> Iterator[str]:
    """A message that asked for a turn was in an answered call, and a last reply follows it."""
    wakes = [(ack["agent"], ack["id"]) for ack in observed.acks if ack["wake"]]
    wakes += [(told["to"], told["id"]) for told in observed.told]
    for agent, name in wakes:
        rows = observed.transcripts[agent]
        place = next((i for i, row in enumerate(rows) if row["id"] == name), None)
        if place is None:
            continue  # Said by `acknowledged_once`.
        if not any(_ends_turn(agent, row) for row in rows[place + 1 :]):
            yield f"message {name} to {agent} asked for a turn and no reply follows it"
        text = rows[place]["text"]
        if not any(
            AGENTS[call.model] == agent and call.answered and text in call.texts
            for call in observed.calls
        ):
            yield f"message {name} to {agent} was in no answered call"


def _ends_turn(agent: str, row: Row) -> bool:
    uses = any(block["type"] == "tool_use" for block in row["blocks"])
    return row["role"] == "assistant" and row["id"] != NOTE.id and not uses


def nothing_left(observed: Observed) -> Iterator[str]:
    """At rest there is no wake, no inbox row, no open turn, no failed turn and no dead letter."""
    final = observed.final
    assert final is not None
    for table in ("wakes", "inbox", "dead_letters", "quarantine"):
        if final.rows(table):
            yield f"{table} holds {final.rows(table)}"
    for key, turn in final.rows("turns").items():
        if turn.state != "done":
            yield f"turn {key} ended as {turn.state}: {turn.error}"
    for key, head in final.rows("heads").items():
        if head.open_turn is not None:
            yield f"{key} has the open turn {head.open_turn}"


# -- effects -------------------------------------------------------------------------------------


def effects_once(observed: Observed) -> Iterator[str]:
    """No effect happened twice; one that is recorded as done happened."""
    final = observed.final
    assert final is not None
    made = Counter(observed.effects)
    for call, count in made.items():
        if count > 1:
            yield f"the booking of call {call} was made {count} times"
    for (agent, turn, round_, position), record in final.rows("tool_calls").items():
        call = f"{agent}/{turn}/{round_}/{position}"
        if record.name == play.BOOK and record.state == "done" and made[call] != 1:
            yield f"the booking of call {call} is recorded as done and was made {made[call]} times"
        if record.name == play.TELL and record.state == "done":
            others = [key for key in final.rows("ids") if key[1] == call]
            if len(others) != 1:
                yield f"call {call} told somebody, and its message is there {len(others)} times"


# -- the wire ------------------------------------------------------------------------------------


def same_prefix(observed: Observed) -> Iterator[str]:
    """Each request carries what the one before it carried, unchanged, and more behind it."""
    _, broken = prefixes(observed.calls)
    for earlier, later in broken:
        yield f"call {later} does not carry on from call {earlier}"


def accepted_by_the_service(observed: Observed) -> Iterator[str]:
    """The service refused nothing as malformed; what it limited, it limited for its own reason."""
    for call in observed.calls:
        if call.status not in (None, 0, 200, 429):
            yield f"call {call.number} was refused with {call.status}: {call.reply}"


def nothing_in_a_recorded_wait(observed: Observed) -> Iterator[str]:
    """Once a wait was on disk, its model was not called before the release."""
    for snapshot, _ in observed.snapshots:
        if any(
            key[0] == ANA and type(record).__name__ == "Wait"
            for key, record in snapshot.rows("waits").items()
        ):
            for call in observed.calls:
                if AGENTS[call.model] == ANA and snapshot.at_ms < call.at_ms < observed.released_ms:
                    yield f"call {call.number} was made in a recorded wait"


def transcripts_are_the_wires(observed: Observed) -> Iterator[str]:
    """No reply stands in a transcript more often than it was sent."""
    for agent, rows in observed.transcripts.items():
        sent = Counter(
            tuple(call.replied)
            for call in observed.calls
            if AGENTS[call.model] == agent and call.answered
        )
        for row in rows:
            if row["role"] == "assistant" and row["id"] != NOTE.id:
                blocks = tuple(("assistant", canonical(dict(block))) for block in row["blocks"])
                sent[blocks] -= 1
                if sent[blocks] < 0:
                    yield f"{agent}'s reply {row['id']} was not sent that often"


def _unrecorded(observed: Observed) -> Iterator[str]:
    """Calls without a recorded outcome: replies that no transcript holds, limits said again."""
    for agent, rows in observed.transcripts.items():
        recorded = Counter(
            tuple(("assistant", canonical(dict(block))) for block in row["blocks"])
            for row in rows
            if row["role"] == "assistant"
        )
        # A reply that was sent twice and recorded once: the first is the one that was lost.
        for call in reversed([c for c in observed.calls if AGENTS[c.model] == agent]):
            reply = tuple(call.replied)
            if call.answered and recorded[reply] > 0:
                recorded[reply] -= 1
            elif call.status != 429:
                yield f"call {call.number} of {agent}: {_outcome(call)}"
    for call in [call for call in observed.calls if call.status == 429][:-1]:
        yield f"call {call.number} of {AGENTS[call.model]}: limited, and its host died"


def _outcome(call: WireCall) -> str:
    if call.answered:
        return "answered, and its host died before it was recorded"
    return "cut off by its host's death"


Check = Callable[[Observed], Iterator[str]]
CHECKS: tuple[Check, ...] = (
    acknowledged_once,
    no_row_twice,
    in_order,
    committed_stays,
    every_wake_answered,
    nothing_left,
    effects_once,
    same_prefix,
    accepted_by_the_service,
    nothing_in_a_recorded_wait,
    transcripts_are_the_wires,
)
