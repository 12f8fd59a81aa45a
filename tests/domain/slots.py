"""What the tests of a slot share: messages to ask it, and what must be true of its rows."""

from __future__ import annotations

import itertools
from typing import Any

from abeyance.actors.domain.ingress import body_crc, encode_body
from abeyance.actors.domain.slot_book import SlotBook
from abeyance.actors.domain.slot_long import whole
from abeyance.actors.domain.slot_messages import (
    Accept,
    CloseGap,
    EndTurn,
    HoldTurn,
    PlacedRow,
    Places,
    Receipt,
    RecordRound,
    Retract,
    StartTurn,
    TurnStart,
)
from abeyance.actors.domain.slot_rows import read_owner, read_placed
from abeyance.actors.domain.slot_subjects import plan_accept, plan_retract
from abeyance.actors.domain.slot_turns import (
    Plan,
    plan_boundary,
    plan_end,
    plan_hold,
    plan_round,
    plan_start,
)
from abeyance.storage.store import Chain, Committed, Request, Store
from abeyance.storage.tables.blocks import Block, TextBlock, ToolResultBlock, ToolUseBlock
from abeyance.storage.tables.slots import Held

from .desk import DeskStore, rows

SLOT = "room"
AT = 1_000
_serial = itertools.count(1)


def text(said: str) -> tuple[Block, ...]:
    return (TextBlock(text=said),)


def said(blocks: tuple[Block, ...]) -> str:
    parts = []
    for block in blocks:
        match block:
            case TextBlock(text=words):
                parts.append(words)
            case ToolUseBlock(id=call):
                parts.append(f"<{call}>")
            case ToolResultBlock(tool_use_id=call):
                parts.append(f"={call}")
    return " ".join(parts)


def accept(
    words: str,
    *,
    agent: str = "ana",
    own: bool = False,
    wake: bool | None = None,
    known: str | None = None,
    subject: str | None = None,
    author: str = "user",
    channel: str | None = None,
    joins: bool = True,
) -> Accept:
    body = encode_body(text(words))
    return Accept(
        message=known if known is not None else f"m{next(_serial)}",
        body=body,
        body_crc=body_crc(body),
        author=agent if own else author,
        agent=agent,
        channel=channel,
        wake=(not own) if wake is None else wake,
        own=own,
        at_ms=AT,
        known=known is not None,
        subject=subject,
        joins=joins,
    )


def start(agent: str = "ana", *, injects: bool = True) -> StartTurn:
    return StartTurn(agent, "scripted", "m", injects, AT)


def record(turn: TurnStart, round_: int, words: str, *calls: str, final: bool | None = None) -> Any:
    return RecordRound(
        agent=turn.agent,
        turn=turn.turn,
        token=turn.token,
        round=round_,
        message=f"r{next(_serial)}",
        blocks=(
            TextBlock(text=words),
            *(ToolUseBlock(id=call, name="look", input={}) for call in calls),
        ),
        at_ms=AT,
        final=not calls if final is None else final,
    )


def joined_by(store: Any, places: Places) -> list[PlacedRow]:
    """The rows that a boundary put into the slot."""
    return read_placed(store, SLOT, *places)


def results(*calls: str) -> tuple[ToolResultBlock, ...]:
    return tuple(
        ToolResultBlock(tool_use_id=call, content=(TextBlock(text="x"),)) for call in calls
    )


def close(turn: TurnStart, round_: int, *calls: str) -> CloseGap:
    message = f"b{next(_serial)}"
    return CloseGap(turn.agent, turn.turn, turn.token, round_, message, results(*calls), AT)


def hold(turn: TurnStart, *, sent: bool = True) -> HoldTurn:
    held = Held(agent=turn.agent, model="m", cause="wait")
    return HoldTurn(turn.agent, turn.turn, turn.token, held, 1, sent)


def end(turn: TurnStart, *calls: str, marker: str = "over", give_back: bool = False) -> EndTurn:
    return EndTurn(
        agent=turn.agent,
        turn=turn.turn,
        token=turn.token,
        state="cancelled",
        marker=marker,
        results=results(*calls),
        failures=0,
        sent=False,
        at_ms=AT,
        give_back=give_back,
    )


def shown(store: Store) -> list[str]:
    """The transcript, a row a line."""
    return [f"{row.entry.role}: {said(row.blocks)}" for row in read_placed(store, SLOT, 1)]


def waiting(store: Store) -> list[str]:
    """What is in the inbox, in order."""
    found = []
    for _, entry in rows(store, "inbox", (SLOT,)):
        found.append(said(rows(store, "bodies", (SLOT, entry))[SLOT, entry].blocks))
    return found


def wakes_of(store: Store, agent: str = "ana") -> set[int]:
    """The wakes that stand: those whose rows are there and that no open turn answers."""
    stand = {entry for _, entry in rows(store, "wakes", (agent,))}
    head = rows(store, "heads", (agent,)).get((agent,))
    if head is not None and head.open_turn is not None:
        stand -= set(rows(store, "turns", (agent,))[agent, head.open_turn].answers)
    return stand


def numbers(ranges: Any) -> list[int]:
    return [number for first, last in ranges for number in range(first, last + 1)]


def places(store: Store, ranges: Any) -> list[int]:
    """The places in the ranges that requests carry: a range may span markers, which none does, and
    places whose rows are gone."""
    carried = {key[1] for key, row in rows(store, "slots", (SLOT,)).items() if row.role != "marker"}
    return [number for number in numbers(ranges) if number in carried]


def load(store: Store, *agents: str) -> SlotBook:
    book = SlotBook(store, SLOT, read_owner(store, SLOT)[1])
    for agent in agents or ("ana",):
        book.attach(agent)
    return book


def check(store: Store) -> None:
    """Every rule that the rows of a slot keep at every commit."""
    placed = read_placed(store, SLOT, 1)
    inbox = rows(store, "inbox", (SLOT,))
    ids = rows(store, "ids", (SLOT,))
    lease = rows(store, "leases").get((SLOT,))
    gap = None if lease is None else lease.gap
    cuts = () if lease is None else lease.cuts

    # What was taken out is a message no more.
    ids = {
        key: identity
        for key, identity in ids.items()
        if identity.state in ("inbox", "slot")
        and not any(cut.first <= (identity.seq or 0) <= cut.last for cut in cuts)
    }
    # A message is in one place, and its id row says which.
    from_hosts = [row for row in placed if (SLOT, row.entry.message) in ids]
    for row in from_hosts:
        identity = ids[SLOT, row.entry.message]
        assert (identity.state, identity.seq, identity.entry) == ("slot", row.seq, row.entry.entry)
    for (_, entry), inboxed in inbox.items():
        identity = ids[SLOT, inboxed.message]
        assert (identity.state, identity.seq, identity.entry) == ("inbox", None, entry)
    assert len(from_hosts) + len(inbox) == len(ids)

    # Order is the order of acceptance, and the inbox is behind the slot.
    order = [row.entry.entry for row in from_hosts] + [entry for _, entry in inbox]
    assert order == sorted(order)
    entries = [row.entry.entry for row in placed]
    assert len(set(entries)) == len(entries)

    # A reply's calls and their results are neighbours.
    for place, row in enumerate(placed):
        calls = [block.id for block in row.blocks if isinstance(block, ToolUseBlock)]
        if not calls:
            continue
        if place + 1 == len(placed):
            assert gap == row.entry.round
            continue
        following = placed[place + 1]
        assert following.entry.role == "results"
        answered = [block.tool_use_id for block in following.blocks]  # type: ignore[union-attr]
        assert sorted(answered) == sorted(calls)

    # Whoever holds the lease has the one running turn.
    running = [
        (agent, turn)
        for (agent, turn), record in rows(store, "turns").items()
        if record.state == "running"
    ]
    holder = [] if lease is None or lease.turn is None else [(lease.agent, lease.turn)]
    assert running == holder
    for (agent,), head in rows(store, "heads").items():
        is_open = rows(store, "turns", (agent, head.last_turn))[agent, head.last_turn].state in (
            "running",
            "held",
        )
        assert head.open_turn == (head.last_turn if is_open else None)

    # What a request carries is every row before it but markers, and a new book says the same.
    sendable = [row.seq for row in placed if row.entry.role != "marker"]
    came_back = any(edit.removes for edit in rows(store, "edits", (SLOT,)).values())
    was_rewound = bool(cuts) or [row.seq for row in placed] != list(range(1, len(placed) + 1))
    for carried in () if was_rewound or came_back else rows(store, "carried", (SLOT,)).values():
        last = numbers(carried.rows)[-1:] or [0]
        assert places(store, carried.rows) == [seq for seq in sendable if seq <= last[0]]
    book = load(store)
    assert places(store, book.ranges) == sendable
    # What was read is what requests carried that were sent, or that nobody lived to say so of.
    sent = [row.rows for row in rows(store, "carried", (SLOT,)).values() if row.sent is not False]
    read = () if lease is None else lease.read
    assert numbers(read) == sorted({number for ranges in sent for number in numbers(ranges)})
    assert list(book.inbox) == [entry for _, entry in inbox]
    bodies = [entry for _, entry in rows(store, "bodies", (SLOT,))]
    assert book.take_entry() > max([0, *bodies])
    assert book.seq_next > max([0, *(row.seq for row in placed)])


class BookDesk:
    """Plans on one book, and commits; each prefix of a plan must be a valid state."""

    def __init__(self, store: DeskStore | None = None, *agents: str) -> None:
        self.store = store or DeskStore()
        self.agents = agents or ("ana",)
        if store is None:
            self.store.own(SLOT)
        self.chain = Chain("test", 1)
        self.book = load(self.store, *self.agents)

    def reload(self) -> None:
        """What a death leaves."""
        self.store = self._copy()
        self.book = load(self.store, *self.agents)

    def _copy(self) -> Any:
        copy = self.store.reopened(nonce=self.store.nonce)
        copy.__class__ = DeskStore
        copy.batches, copy.fate, copy._writes = [], lambda number: None, 0  # type: ignore[attr-defined]
        copy.spoilt = self.store.spoilt  # type: ignore[attr-defined]
        return copy

    def commit(self, requests: list[Request], *, prefixes: bool = True) -> None:
        for length in range(len(requests) if prefixes else 0):
            half = self._copy()
            for request in requests[:length]:
                assert isinstance(half.commit(request)[0], Committed)
            check(half)
        for request in requests:
            assert request.ops <= self.store.limits.ops_max
            (outcome,) = self.store.commit(request)
            assert isinstance(outcome, Committed), outcome
        check(self.store)
        self.same()

    def same(self) -> None:
        """The mirror is what a new book reads."""
        mine, read = self.book, load(self.store, *self.agents, *self.book.wakes)
        assert mine.lease == read.lease
        assert list(mine.inbox.items()) == list(read.inbox.items())
        assert mine.inbox_bytes == read.inbox_bytes
        assert mine.wakes == read.wakes
        assert places(self.store, mine.ranges) == places(self.store, read.ranges)
        assert mine.carried == read.carried
        assert {entry: (seq, row.message) for entry, (seq, row) in mine.unread.items()} == {
            entry: (seq, row.message) for entry, (seq, row) in read.unread.items()
        }
        there = {*read.inbox, *read.unread}
        assert {about: entry for about, entry in mine.subjects.items() if entry in there} == {
            about: entry for about, entry in read.subjects.items() if entry in there
        }
        mine.gone.clear()
        assert {agent: head for agent, head in mine.heads.items() if head.counter} == {
            agent: head for agent, head in read.heads.items() if head.counter
        }
        assert mine.turns == read.turns
        assert mine.answered == read.answered == []

    # Each asks as the slot actor does, and commits.

    def accept(self, words: str, **how: Any) -> tuple[int, bool]:
        said = accept(words, **how)
        into = self.book.accepts(said.agent)
        entry, seq = self.book.accept(said, into)
        self.commit([into.request(self.book.owner, self.chain)], prefixes=False)
        return entry, seq is not None

    def send(self, words: str, **how: Any) -> Receipt:
        """Accept as the slot actor does: in the place of an older message where it may."""
        said = accept(words, **how)
        into = self.book.accepts(said.agent)
        request, receipt = plan_accept(self.book, said, self.chain, into)
        if request is None:
            request = into.request(self.book.owner, self.chain)
        self.commit([request], prefixes=False)
        return receipt

    def retract(self, id_: str) -> Any:
        known = rows(self.store, "ids", (SLOT,)).get((SLOT, id_))
        plan = plan_retract(self.book, Retract(id_, AT), known, self.chain)
        return self.run(plan)

    def fill(self, count: int, **how: Any) -> list[int]:
        """Accept many, without looking at each."""
        found = []
        for number in range(count):
            said = accept(str(number), **how)
            into = self.book.accepts(said.agent)
            entry, _ = self.book.accept(said, into)
            request = into.request(self.book.owner, self.chain)
            assert isinstance(self.store.commit(request)[0], Committed)
            found.append(entry)
        return found

    def run(self, plan: Plan, **how: Any) -> Any:
        self.commit([whole(request) for request in plan.requests], **how)
        return plan.answer

    def start(self, agent: str = "ana", **how: Any) -> Any:
        return self.run(plan_start(self.book, start(agent), self.chain), **how)

    def record(self, turn: TurnStart, round_: int, words: str, *calls: str, **how: Any) -> Any:
        return self.run(
            plan_round(self.book, record(turn, round_, words, *calls), self.chain), **how
        )

    def boundary(self, turn: TurnStart, round_: int, *calls: str, inject: bool = True) -> Any:
        return self.run(
            plan_boundary(self.book, close(turn, round_, *calls), self.chain, inject=inject)
        )

    def hold(self, turn: TurnStart, **how: Any) -> Any:
        return self.run(plan_hold(self.book, hold(turn), self.chain), **how)

    def end(self, turn: TurnStart, *calls: str, **how: Any) -> Any:
        return self.run(plan_end(self.book, end(turn, *calls, **how), self.chain))
