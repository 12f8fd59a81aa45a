"""Cancelling an agent's open turn, planned. No actor, no await.

Which turn is meant is found out first, and by its number it is cancelled, so that whoever asks
again, or dies and asks again, never ends the turn behind it. A turn that lives is marked in its
row, and its task ends it; a held one is a row, and ends in one commit.

Invariants:
    I1  A turn that is marked ends as cancelled, whichever life of its task takes it up, unless it
        had come to its end before.
    I2  Nothing is given back: what the turn was to answer stays in the transcript, and the next
        turn reads it. What waits in the inbox lands, and its wakes stand.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from msgspec.structs import replace

from abeyance.storage.codec import encode
from abeyance.storage.store import Append, Chain, Request
from abeyance.storage.tables.blocks import TextBlock
from abeyance.storage.tables.slots import Turn
from abeyance.storage.tables.waits import LogLine

from .errors import InvalidInputError
from .slot_book import SlotBook
from .slot_draft import Draft
from .slot_turns import Plan, free

CANCELLED: Literal["turn_cancelled"] = "turn_cancelled"
"""The code with which a run is told that the turn it waits for was cancelled."""


class FindTurn(NamedTuple):
    """Ask: the number of the agent's open turn, as planned so far; None: it has none."""

    agent: str


class CancelTurn(NamedTuple):
    """Ask: end a turn for good. Answers a `CancelReceipt`, or `TurnLives` once that is marked."""

    agent: str
    turn: int
    by: str
    at_ms: int


class CancelReceipt(NamedTuple):
    """How the turn stands that was to be cancelled. Durable."""

    turn: int | None
    """Its number; None: no turn was open."""
    state: Literal["cancelled", "done", "failed", "none"]
    """`cancelled`: by this request or before. `done`, `failed`: it had ended by itself. `none`: no
    turn was open."""


class TurnLives(NamedTuple):
    """The turn has the lease; its row says that it is cancelled, and its task is to end it."""

    turn: int
    by: str


def marker_of(by: str) -> str:
    """What a reader of the transcript is told."""
    return f"this turn was cancelled by {by}"


def plan_cancel(book: SlotBook, cancel: CancelTurn, chain: Chain) -> Plan:
    """Plan a turn's cancellation.

    Returns:
        The plan; its answer is None where it is to be planned again once this is in.
    Raises:
        InvalidInputError: The agent has had no turn of that number; nothing is planned.
    """
    agent = cancel.agent
    book.attach(agent)
    if book.open_number(agent) != cancel.turn:
        return _over(book, cancel, chain)
    row, lease = book.turns[agent], book.lease
    turn: Turn = row.record
    lives = lease.agent == agent and lease.turn == cancel.turn
    if lives and turn.cancelled_by is not None:
        # Its mark may be on its way; a barrier comes in behind it.
        return Plan([Request(chain=chain)], 1, TurnLives(cancel.turn, turn.cancelled_by))
    draft = Draft()
    text = f"by {cancel.by}"
    line = LogLine(
        event="turn_cancelled", agent=agent, turn=cancel.turn, text=text, at_ms=cancel.at_ms
    )
    draft.appends.append(Append("log", encode(line)))
    key = (agent, cancel.turn)
    if lives:
        draft.put_counted("turns", key, row, replace(turn, cancelled_by=cancel.by))
        return Plan([book.request(draft, chain)], 1, TurnLives(cancel.turn, cancel.by))
    return _end_held(book, draft, cancel, chain)


def _over(book: SlotBook, cancel: CancelTurn, chain: Chain) -> Plan:
    """It is no open turn: what became of it, or a refusal because it never was one."""
    row = book.store.get("turns", (cancel.agent, cancel.turn))
    if row is None or row.record.pair is not None:
        raise InvalidInputError(
            "turn", f"agent {cancel.agent!r} has had no turn of the number {cancel.turn}"
        )
    state = row.record.state
    if state in ("running", "held"):
        # Its end is on its way.
        return Plan([Request(chain=chain)], 1)
    return Plan([], 0, CancelReceipt(cancel.turn, state))


def _end_held(book: SlotBook, draft: Draft, cancel: CancelTurn, chain: Chain) -> Plan:
    agent, marker = cancel.agent, marker_of(cancel.by)
    content = book.encode_content((TextBlock(text=marker),))
    row, head = book.turns[agent], book.heads[agent]
    ended = replace(
        row.record,
        state="cancelled",
        held=None,
        ended_ms=cancel.at_ms,
        cancelled_by=row.record.cancelled_by or cancel.by,
        error=marker,
        failure=CANCELLED,
    )
    draft.put_counted("turns", (agent, cancel.turn), row, ended)
    draft.put_counted("heads", (agent,), head, replace(head.record, open_turn=None))
    del book.turns[agent]
    receipt = CancelReceipt(cancel.turn, "cancelled")
    if book.is_leased or book.is_deferring:
        # Nothing may enter the slot now; the turn's row says how it ended.
        return Plan([book.request(draft, chain)], 1, receipt)
    book.write_lease(draft, token=book.lease.token + 1, agent=agent, turn=cancel.turn)
    message = f"marker-{cancel.turn}-{book.lease.token}"
    book.place(draft, message, agent, "marker", content, at_ms=cancel.at_ms)
    return replace(free(book, draft, chain), answer=receipt)
