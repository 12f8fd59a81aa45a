"""What became of a message, and what waits in an inbox and why: read from rows, for whoever looks.

Invariants:
    I1  What is told is committed; nothing is asked of an actor.
    I2  A message is held if it, or one before it, cannot join a live turn; else it is accepted and
        joins at the next tool boundary. Both land at the turn's end, in order. While the host is
        quiesced every message is held.

Runs in: the loop thread, or a process that looks at a stopped store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import trio

from abeyance.storage.store import Store
from abeyance.storage.tables.slots import Inboxed, MessageId, Turn

from .errors import InvalidInputError, UnknownMessageError, unknown_agent
from .ingress import check_name
from .mode import read_mode
from .slot_messages import Receipt
from .slot_reading import read_reading
from .slot_rows import may_join, read_cuts

LISTED_MAX: Final = 1_000
UNKNOWN: Final = "?"
"""In place of what a row that cannot be read would say."""
READ_SLICE: Final = 64
"""Rows that are read before the loop gets a turn."""
FINAL_STATES: Final = frozenset({"stored", "dead", "rewound", "removed", "replaced", "retracted"})
"""States that `follow` ends with."""
_STATES: Final = {"inbox": "accepted", "slot": "stored"}
"""What senders are told where a message is; whatever else became of it is told as it is stored."""


@dataclass(frozen=True, slots=True)
class InboxRow:
    """A message that is accepted and not in its transcript yet.

    Attributes:
        id: Its id, as in its receipt.
        seq: Its number, as in its receipt; the listing is in this order, and so it lands.
        author: Who said it.
        agent: Whom it is for.
        channel: Where an answer belongs, or None.
        state: `accepted`, or `held`: then it cannot join the live turn, and waits for its end.
        cause: Why it waits. `turn`: a turn lives, and it joins at the next tool boundary.
            `own`: it is named as the agent itself, or as the one whose turn lives. `tools`: it
            carries tool blocks. `kept`: it was sent so as not to join. `behind`: it stands behind
            one of these. `no_injections`: the
            provider's adapter carries nothing into a live turn. `quiesced`: the host is, and it
            lands when that ends. `start`: no turn lives, and it lands as the agent starts or goes
            on. `unreadable`: its row cannot be read, and says nothing else; it becomes a dead
            letter as its slot is read.
        behind: The id of the message it stands behind, where that is the cause; else None.
        wake: Whether it asks for a turn.
        size: The bytes its content takes.
        at_ms: When it was accepted, in epoch milliseconds.
    """

    id: str
    seq: int
    author: str
    agent: str
    channel: str | None
    state: Literal["accepted", "held"]
    cause: str
    behind: str | None
    wake: bool
    size: int
    at_ms: int


def scan_inbox(store: Store, slot: str) -> Iterator[InboxRow | None]:
    """Yield a slot's inbox in its order; None stands where the loop may get a turn."""
    held: Inboxed | None = None
    after: tuple[str, int] | None = None
    while True:
        live, quiesced = _live_turn(store, slot), read_mode(store).is_quiesced
        last: tuple[Any, ...] | None = None
        for last, row in store.scan("inbox", (slot,), after=after, limit=READ_SLICE):
            seq = int(last[-1])
            if isinstance(row, Exception):
                yield _unreadable(seq)
                continue
            inboxed: Inboxed = row.record
            yield _told(seq, inboxed, held, live, quiesced=quiesced)
            if held is None and not may_join(inboxed, None if live is None else live.agent):
                held = inboxed
        if last is None:
            return
        after = (slot, int(last[-1]))
        yield None


def _unreadable(seq: int) -> InboxRow:
    return InboxRow(UNKNOWN, seq, UNKNOWN, UNKNOWN, None, "held", "unreadable", None, False, 0, 0)


class _Live(NamedTuple):
    """The turn that lives in a slot, and whose it is."""

    agent: str
    turn: Turn


def _live_turn(store: Store, slot: str) -> _Live | None:
    lease = store.get("leases", (slot,))
    if lease is None or lease.record.turn is None:
        return None
    row = store.get("turns", (lease.record.agent, lease.record.turn))
    return None if row is None else _Live(lease.record.agent, row.record)


def _told(
    seq: int, row: Inboxed, held: Inboxed | None, live: _Live | None, *, quiesced: bool
) -> InboxRow:
    state: Literal["accepted", "held"] = "held"
    behind = None
    if quiesced:
        cause = "quiesced"
    elif live is None:
        state, cause = "accepted", "start"
    elif not row.injectable:
        cause = "own" if row.own else "tools" if row.joins else "kept"
    elif not may_join(row, live.agent):
        cause = "own"
    elif held is not None:
        cause, behind = "behind", held.message
    elif live.turn.injects is False:
        cause = "no_injections"
    else:
        state, cause = "accepted", "turn"
    return InboxRow(
        id=row.message,
        seq=seq,
        author=row.author,
        agent=row.agent,
        channel=row.channel,
        state=state,
        cause=cause,
        behind=behind,
        wake=row.wake,
        size=row.body_bytes,
        at_ms=row.accepted_ms,
    )


async def read_receipt(store: Store, slot: str, message: str) -> Receipt:
    """What became of a message, as rows say it now. A checkpoint.

    Raises:
        UnknownMessageError: No message was accepted under that id, or it is forgotten.
        UnreadableRecordError: A row cannot be read; it names the row.
    """
    while True:
        await trio.lowlevel.checkpoint()
        known = store.get("ids", (slot, message))
        if known is None:
            raise UnknownMessageError(
                f"no message {message!r} was accepted for {slot!r}; nothing was done; look at its "
                "transcript, or send it",
                slot=slot,
            )
        receipt = receipt_of(message, known.record, lambda seq: _is_cut(store, slot, seq))
        if receipt.state == "stored":
            reading = read_reading(store, slot, known.record.seq)
            return receipt._replace(read=reading == "read")
        if receipt.state != "accepted":
            return receipt
        for row in scan_inbox(store, slot):
            if row is None:
                await trio.lowlevel.checkpoint()
            elif row.seq == known.record.entry:
                # By its number: a row that cannot be read says nothing of its id.
                return receipt._replace(state=row.state, cause=row.cause)
        # It landed while the rows before it were read.


async def read_inbox(
    store: Store, agent: str | None, *, after: int | None, limit: int
) -> tuple[InboxRow, ...]:
    """What waits for an agent, or for any; see `listed`. A checkpoint a slice."""
    await trio.lowlevel.checkpoint()
    found: list[InboxRow] = []
    for row in listed(store, agent, after=after):
        if row is None:
            await trio.lowlevel.checkpoint()
            continue
        found.append(row)
        if len(found) == limit:
            break
    return tuple(found)


def listed(
    store: Store, agent: str | None, *, after: int | None = None
) -> Iterator[InboxRow | None]:
    """Yield what waits for an agent, or slot by slot, each in the order it lands; None where the
    loop may get a turn.

    Args:
        after: Only rows behind this number; with an agent.
    Raises:
        UnknownAgentError: The store has no such agent.
    """
    agents = list(store.scan("agents", () if agent is None else (agent,)))
    if agent is not None and not agents:
        raise unknown_agent(agent)
    seen: set[str] = set()
    for key, found in agents:
        # A slot has its agent's name wherever nothing says otherwise.
        name = str(key[0])
        slot = name if isinstance(found, Exception) else found.record.slot
        yield None
        if slot in seen:
            # Of agents that share a slot all is told at once: it lands in one order.
            continue
        seen.add(slot)
        for row in scan_inbox(store, slot):
            if row is None or agent is None or _is_for(row, name, after):
                yield row


def _is_for(row: InboxRow, agent: str, after: int | None) -> bool:
    return row.agent in (agent, UNKNOWN) and (after is None or row.seq > after)


def receipt_of(message: str, known: MessageId, is_cut: Callable[[int], bool]) -> Receipt:
    """A stored message's receipt as it is now."""
    state: Any = _STATES.get(known.state, known.state)
    if known.seq is not None and is_cut(known.seq):
        state = "rewound"
    return Receipt(message, known.entry, state, known.cause, by=known.by)


def _is_cut(store: Store, slot: str, seq: int) -> bool:
    return any(cut.first <= seq <= cut.last for cut in read_cuts(store, slot))


def check_listing(agent: object, after: object, limit: object) -> None:
    """Refuse what is no page of an inbox.

    Raises:
        InvalidInputError, InvalidNameError: Names the argument.
    """
    if agent is not None:
        check_name(agent, "agent")
    elif after is not None:
        raise InvalidInputError("after", "goes with an agent: numbers are of one slot")
    if after is not None and (type(after) is not int or not 0 <= after < 2**63):
        raise InvalidInputError("after", f"must be a message's number, not {after!r:.40}")
    if type(limit) is not int or not 1 <= limit <= LISTED_MAX:
        raise InvalidInputError("limit", f"must be 1 to {LISTED_MAX}, not {limit!r:.40}")
