"""Calls that wait for a person, on their slot: asked for, and decided. No actor, no await.

The slot's gap stays open, and its lease stands, for as long as one waits: nothing may come between
a call and its result.

Invariants:
    I1  A call is decided once; whoever decides the same again is told of it, and whoever decides
        otherwise is refused.
    I2  Nothing is decided of a turn that has ended.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from abeyance.storage.codec import encode
from abeyance.storage.store import Append, Chain, Guard
from abeyance.storage.tables.approvals import Approval
from abeyance.storage.tables.waits import LogLine

from .approvals import DEADLINE, ApprovalKey, ApprovalReceipt, name_of
from .errors import ApprovalDecidedError, UnknownApprovalError
from .slot_book import OPS_RESERVE, SlotBook
from .slot_draft import Draft
from .slot_long import Planned, guarded
from .slot_turns import Plan, held_by


class AskApprovals(NamedTuple):
    """Ask: the rows of calls that wait for a person. Answers None."""

    agent: str
    turn: int
    token: int
    round: int
    asked: tuple[tuple[int, Approval], ...]
    """Each with the place of its call in the reply."""


class Decide(NamedTuple):
    """Ask: what becomes of a call that waits. Answers an `ApprovalReceipt`."""

    key: ApprovalKey
    verdict: Literal["approved", "denied"]
    by: str
    note: str
    at_ms: int

    @property
    def agent(self) -> str:
        return self.key[0]


class ApprovalDecided(NamedTuple):
    """Told to an agent when one of its calls was decided."""

    key: ApprovalKey


def plan_ask(book: SlotBook, ask: AskApprovals, chain: Chain) -> Plan:
    """Plan the rows of calls that wait; those that are there stay as they are."""
    held_by(book, ask)
    rows: list[tuple[ApprovalKey, Approval]] = []
    for place, record in ask.asked:
        key = (ask.agent, ask.turn, ask.round, place)
        if book.store.get("approvals", key) is None:
            rows.append((key, record))
    requests: list[Planned] = []
    room = max(1, book.store.limits.ops_max - OPS_RESERVE)
    for at in range(0, len(rows), room):
        draft, part = Draft(), rows[at : at + room]
        for key, record in part:
            draft.put("approvals", key, record)
        request = book.request(draft, chain)
        for key, _ in part:
            request = guarded(request, Guard("approvals", key, 0))
        requests.append(request)
    return Plan(requests, len(requests))


def plan_decision(book: SlotBook, decide: Decide, chain: Chain) -> Plan:
    """Plan a decision.

    Raises:
        UnknownApprovalError: No such call waits, or ever did; nothing is planned.
        ApprovalDecidedError: It was decided otherwise, or its turn has ended; nothing is planned.
    """
    key = decide.key
    agent, turn, round_, _ = key
    row = book.store.get("approvals", key)
    if row is None:
        raise unknown(key)
    book.attach(agent)
    record: Approval = row.record
    open_turn = book.open_turn(agent)
    is_open = open_turn is not None and book.open_number(agent) == turn
    if record.state != "waiting":
        if decide.by != DEADLINE and record.state != decide.verdict:
            raise decided(key, record)
        # Of the same request before it died unanswered, or of somebody else.
        return Plan([], 0, receipt_of(key, record))
    if not is_open or open_turn is None or open_turn.round != round_ or book.lease.gap != round_:
        raise over(key)
    ended = decision(record, decide.verdict, decide.by, decide.note, decide.at_ms)
    draft = Draft()
    draft.put("approvals", key, ended)
    draft.appends.append(Append("log", encode(line_of(key, ended))))
    request = guarded(book.request(draft, chain), Guard("approvals", key, row.counter))
    return Plan([request], 1, receipt_of(key, ended))


def decision(
    record: Approval, verdict: Literal["approved", "denied"], by: str, note: str, at_ms: int
) -> Approval:
    """A row once it is decided."""
    return replace(record, state=verdict, by=by, note=note, decided_ms=at_ms)


def line_of(key: ApprovalKey, record: Approval) -> LogLine:
    """What the log says of a decision."""
    assert record.decided_ms is not None
    return LogLine(
        event=f"tool_{record.state}",
        agent=key[0],
        turn=key[1],
        text=f"{record.tool} ({name_of(key)}) by {record.by}",
        at_ms=record.decided_ms,
    )


def receipt_of(key: ApprovalKey, record: Approval) -> ApprovalReceipt:
    """What whoever decided is told."""
    state: Any = record.state
    return ApprovalReceipt(name_of(key), state, record.by or "", record.decided_ms or 0)


def unknown(key: ApprovalKey) -> UnknownApprovalError:
    return UnknownApprovalError(
        f"no call {name_of(key)!r} waits for a person, or ever did; nothing was done; list the "
        "approvals for what there is",
        id=name_of(key),
    )


def decided(key: ApprovalKey, record: Approval) -> ApprovalDecidedError:
    return ApprovalDecidedError(
        f"call {name_of(key)!r} was {record.state} by {record.by} before; nothing was changed",
        id=name_of(key),
        state=record.state,
        by=record.by,
    )


def over(key: ApprovalKey) -> ApprovalDecidedError:
    return ApprovalDecidedError(
        f"turn {key[1]} of agent {key[0]!r} has ended, and call {name_of(key)!r} with it; it was "
        "not made, and nothing was changed",
        id=name_of(key),
        state="over",
        by=None,
    )
