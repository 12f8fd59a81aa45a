"""The demo's audit: what was promised, and what was counted on the wire and in the transcripts.

Each line stands by itself: it counts from the simulator's wire log, the receipts, the effects and
the transcripts that were read back, never from what the host says of itself. Where a provider
cannot be told to play its part, the line reads 'not run'.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from . import play
from .play import ANA, ASIDE, BO, LIMITED, LINES, MEANWHILE, MODELS, NOTE, PLAN
from .wire import WireCall

Row = Mapping[str, Any]


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. `holds` is None where it was not run."""

    promised: str
    counted: str
    holds: bool | None


class DemoReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the demo came to."""

    provider: str
    seconds: float
    state: str | None
    """The state directory, where it was kept."""
    promises: tuple[Promise, ...]

    @property
    def holds(self) -> bool:
        return all(promise.holds is not False for promise in self.promises)


@dataclass(slots=True)
class Evidence:
    """What the director collected. Instants are epoch milliseconds; None: it never happened."""

    acks: Sequence[Mapping[str, Any]]
    """Receipts of `LINES`, in the order they came."""
    told: Sequence[Mapping[str, Any]]
    """Receipts of the messages that tools sent: `id`, `agent`, `to`, `text`."""
    effects: Sequence[str]
    """Call ids, one a booking that was made."""
    transcripts: Mapping[str, Sequence[Row]]
    calls: Sequence[WireCall] | None = None
    """The wire log, or None with a real provider."""
    killed_status: int | None = None
    killed_ms: int | None = None
    restarted_ms: int | None = None
    held_after_restart: bool = False
    released_ms: int | None = None
    release_exit: int | None = None
    before_kill: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    """The transcripts as they were read before the kill."""


def audit(evidence: Evidence) -> tuple[Promise, ...]:
    """Hold every promise against what was counted."""
    wire = evidence.calls is not None
    lines = [
        _stored_once(evidence),
        _answered(evidence),
        _injected(evidence) if wire else _not_run("a message sent mid-turn joins the next round"),
        _own_message_waits(evidence),
        _told_once(evidence),
        _effects_once(evidence),
        _same_prefix(evidence) if wire else _not_run("each request carries on from the last one"),
        _limit(evidence) if wire else _not_run("a 429 that states two hours holds the turn"),
        _killed(evidence),
        _quiet(evidence) if wire else _not_run("no call until the release"),
        _released(evidence) if wire else _not_run("one call after the release ends the turn"),
        _read_back(evidence),
    ]
    return tuple(lines)


def _times(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _not_run(promised: str) -> Promise:
    return Promise(promised=promised, counted="not run", holds=None)


def _rows(evidence: Evidence) -> Iterable[Row]:
    return (row for rows in evidence.transcripts.values() for row in rows)


def _ana_calls(evidence: Evidence) -> list[WireCall]:
    return [call for call in evidence.calls or () if call.model == MODELS[ANA]]


def _stored_once(evidence: Evidence) -> Promise:
    counts = Counter(row["id"] for row in evidence.transcripts[ANA])
    acked = [ack["id"] for ack in evidence.acks]
    once = sum(counts[name] == 1 for name in acked)
    return Promise(
        promised="each message with a receipt is in the transcript, once",
        counted=f"{len(acked)} receipts, {once} once",
        holds=once == len(acked) > 0,
    )


def _answered(evidence: Evidence) -> Promise:
    """After each message that asked for a turn there is a reply that ends one."""
    asked = [line for line in LINES if line.wake and _acked(evidence, line.id)]
    heard = 0
    for line in asked:
        rows = evidence.transcripts[ANA]
        places = [place for place, row in enumerate(rows) if row["id"] == line.id]
        heard += bool(places) and any(_is_final(row) for row in rows[places[0] + 1 :])
    return Promise(
        promised="each message that asked for a turn got one",
        counted=f"{heard} of {len(asked)}",
        holds=heard == len(asked) > 0,
    )


def _acked(evidence: Evidence, name: str) -> bool:
    return any(ack["id"] == name for ack in evidence.acks)


def _is_final(row: Row) -> bool:
    uses = any(block["type"] == "tool_use" for block in row["blocks"])
    return row["role"] == "assistant" and row["id"] != NOTE.id and not uses


def _injected(evidence: Evidence) -> Promise:
    """The aside is in the turn's second request, behind the tool's result, and not in the first."""
    first, second = ([*_ana_calls(evidence), None, None])[:2]
    behind = (
        first is not None
        and second is not None
        and ASIDE.text not in first.texts
        and second.texts[-1:] == [ASIDE.text]
    )
    results = second is not None and any('"tool_result"' in block for _, block in second.carried)
    return Promise(
        promised="a message sent mid-turn joins the next round",
        counted="in round 2, behind the tool's result" if behind and results else "not there",
        holds=behind and results,
    )


def _own_message_waits(evidence: Evidence) -> Promise:
    """The note authored as the agent stands behind the turn's last reply, in no request before."""
    rows = evidence.transcripts[ANA]
    ids = [row["id"] for row in rows]
    place = ids.index(NOTE.id) if NOTE.id in ids else -1
    plan = ids.index(PLAN.id) if PLAN.id in ids else -1
    finals = sum(_is_final(row) for row in rows[plan:place]) if place > plan >= 0 else 0
    early = sum(
        any(NOTE.text in block for _, block in call.carried) for call in _plan_calls(evidence)
    )
    return Promise(
        promised="a message authored as the agent waits for the turn's end",
        counted=f"behind the last reply, in {_times(early, 'request')} of the turn"
        if finals
        else "not behind the last reply",
        holds=finals >= 1 and early == 0,
    )


def _plan_calls(evidence: Evidence) -> list[WireCall]:
    """The requests of the first turn: up to the one that was answered without a tool call."""
    calls = []
    for call in _ana_calls(evidence):
        calls.append(call)
        if call.answered and not any('"tool_use"' in block for _, block in call.replied):
            break
    return calls


def _told_once(evidence: Evidence) -> Promise:
    counts = {
        name: Counter(row["id"] for row in rows) for name, rows in evidence.transcripts.items()
    }
    ids = {(told["to"], told["id"]) for told in evidence.told}
    once = sum(counts[to][name] == 1 for to, name in ids)
    pairs = {(told["agent"], told["to"]) for told in evidence.told}
    both = {(ANA, BO), (BO, ANA)} <= pairs
    return Promise(
        promised="what one agent told the other arrived, once",
        counted=f"{len(ids)} told, {once} once, {'both ways' if both else 'one way'}",
        holds=once == len(ids) and both,
    )


def _effects_once(evidence: Evidence) -> Promise:
    counts = Counter(evidence.effects)
    return Promise(
        promised="a tool's effect happened once",
        counted=f"{_times(len(counts), 'booking')}, made {_times(sum(counts.values()), 'time')}",
        holds=len(counts) == 1 and set(counts.values()) == {1},
    )


def _same_prefix(evidence: Evidence) -> Promise:
    checked, broken = prefixes(evidence.calls or ())
    return Promise(
        promised="each request carries on from the last one, unchanged",
        counted=f"{checked} pairs, {len(broken)} that differ",
        holds=not broken and checked > 0,
    )


def prefixes(calls: Sequence[WireCall]) -> tuple[int, list[tuple[int, int]]]:
    """Compare each request with the one before it of the same model.

    Returns:
        How many pairs were compared, and the numbers of those where the earlier one's content is
        no prefix of the later one's.
    """
    checked, broken = 0, []
    last: dict[str, WireCall] = {}
    for call in calls:
        earlier = last.get(call.model)
        last[call.model] = call
        if earlier is None:
            continue
        checked += 1
        if call.carried[: len(earlier.carried)] != earlier.carried:
            broken.append((earlier.number, call.number))
    return checked, broken


def _limits(evidence: Evidence) -> list[WireCall]:
    return [call for call in evidence.calls or () if call.status == 429]


def _limit(evidence: Evidence) -> Promise:
    limits, behind = len(_limits(evidence)), _between(evidence)
    return Promise(
        promised=f"a 429 that states {play.WAIT_S:,} s holds the turn",
        counted=f"{_times(limits, 'such answer')}, {_times(behind, 'call')} after it",
        holds=limits == 1 and behind == 0,
    )


def _between(evidence: Evidence) -> int:
    """Calls to the limited model after the limit and before the release."""
    limits = _limits(evidence)
    if not limits:
        return 0
    end_ms = evidence.released_ms
    return sum(
        call.number > limits[0].number and (end_ms is None or call.at_ms < end_ms)
        for call in _ana_calls(evidence)
    )


def _killed(evidence: Evidence) -> Promise:
    died = evidence.killed_status == -9
    held = evidence.held_after_restart or evidence.calls is None
    return Promise(
        promised="the host dies by SIGKILL and is found where it was",
        counted=f"exit {evidence.killed_status}, "
        + ("its transcript read back" if evidence.calls is None else _held_text(held)),
        holds=died and held and evidence.restarted_ms is not None,
    )


def _held_text(held: bool) -> str:
    return "held again after the restart" if held else "not held after the restart"


def _quiet(evidence: Evidence) -> Promise:
    started, ended = evidence.restarted_ms, evidence.released_ms
    if started is None or ended is None:
        return Promise(promised="no call until the release", counted="no release", holds=False)
    made = sum(started <= call.at_ms < ended for call in evidence.calls or ())
    return Promise(
        promised="no call until the release",
        counted=f"{_times(made, 'call')} in {(ended - started) / 1_000:.1f} s",
        holds=made == 0 and evidence.release_exit == 0,
    )


def _released(evidence: Evidence) -> Promise:
    after = [
        call
        for call in _ana_calls(evidence)
        if evidence.released_ms is not None and call.at_ms >= evidence.released_ms
    ]
    carries = bool(after) and {LIMITED.text, MEANWHILE.text} <= set(after[-1].texts)
    return Promise(
        promised="after the release the turn runs to its end",
        counted=f"{_times(len(after), 'call')}, carrying "
        + ("both messages" if carries else "not both messages"),
        holds=1 <= len(after) <= 2 and carries and all(call.answered for call in after),
    )


def _read_back(evidence: Evidence) -> Promise:
    """Every id once, and what was there before the kill stands at the same place."""
    doubled = 0
    kept = True
    rows = 0
    for agent, transcript in evidence.transcripts.items():
        rows += len(transcript)
        doubled += sum(n > 1 for n in Counter(row["id"] for row in transcript).values())
        before = evidence.before_kill.get(agent, ())
        kept = kept and list(transcript[: len(before)]) == list(before)
    return Promise(
        promised="the transcripts read back: every message once, in order",
        counted=f"{rows} rows, {doubled} twice, "
        + ("order kept over the kill" if kept else "changed by the kill"),
        holds=rows > 0 and doubled == 0 and kept,
    )
