"""A turn's life on its slot, planned: start, reply, boundary, hold, end. No actor, no await.

Invariants:
    I1  lease.gap is open => only that turn's results may be placed; between a row with tool calls
        and its results there is nothing.
    I2  A turn's creation consumes the wakes it answers, a boundary those of what it injects, in
        the same request.
    I3  `carried` is written with the request that makes a call possible, before the call.
    I4  Only the turn that holds the lease, by its token, may write.
"""

from __future__ import annotations

from msgspec.structs import replace

from abeyance.storage.store import Chain, Delete, Request
from abeyance.storage.tables.blocks import TextBlock, ToolResultBlock
from abeyance.storage.tables.slots import Carried, Head, Turn, Wake

from .errors import LeaseLostError
from .slot_book import OPS_RESERVE, Counted, Draft, SlotBook
from .slot_messages import (
    CloseGap,
    EndTurn,
    HoldTurn,
    NothingToDo,
    RecordRound,
    StartTurn,
    TurnStart,
)


def plan_start(
    book: SlotBook, start: StartTurn, chain: Chain
) -> tuple[list[Request], TurnStart | NothingToDo]:
    """Plan a turn's start: the open turn taken up again, or a fresh one for the wakes.

    The caller has seen that the lease is free, or this agent's own.
    """
    book.attach(start.agent)
    if book.is_leased:
        return _take_up_live(book, start, chain)
    agent, wakes = start.agent, book.wakes[start.agent]
    if agent not in book.turns and not wakes:
        return [], NothingToDo()
    requests = book.drain_until_rest_fits(chain)
    draft, answers = Draft(), tuple(wakes)
    book.move(draft, book.prefix())
    row, turn = _open(book, draft, start, answers)
    number = book.open_number(agent)
    draft.put_counted("turns", (agent, number), row, turn)
    book.write_lease(draft, token=book.lease.token + 1, agent=agent, turn=number)
    _carry(book, draft, turn.round + 1)
    # The turn's row answers these wakes from this commit on. What does not fit beside it goes in
    # requests behind it; a death in between costs at most one turn too many.
    room = max(0, book.store.limits.ops_max - OPS_RESERVE - len(draft.puts) - len(draft.deletes))
    draft.deletes += [Delete("wakes", (agent, entry)) for entry in answers[:room]]
    wakes.clear()
    requests.append(book.request(draft, chain))
    requests += _forget_wakes(book, agent, answers[room:], chain)
    return requests, _granted(book, agent, turn)


def _take_up_live(
    book: SlotBook, start: StartTurn, chain: Chain
) -> tuple[list[Request], TurnStart | NothingToDo]:
    """The lease is this agent's own: its turn's task died. Nothing is drained mid-turn."""
    agent, row, draft = start.agent, book.turns[start.agent], Draft()
    turn = replace(
        row.record,
        attempts=row.record.attempts + 1,
        provider=start.provider,
        model=start.model,
    )
    draft.put_counted("turns", (agent, book.lease.turn), row, turn)
    book.write_lease(draft, token=book.lease.token + 1)
    if book.lease.gap is None:
        _carry(book, draft, turn.round + 1)
    return [book.request(draft, chain)], _granted(book, agent, turn)


def _open(
    book: SlotBook, draft: Draft, start: StartTurn, answers: tuple[int, ...]
) -> tuple[Counted, Turn]:
    """A held turn runs again, with what joined it; otherwise a fresh one begins."""
    agent, row = start.agent, book.turns.get(start.agent)
    if row is not None:
        held: Turn = row.record
        return row, replace(
            held,
            state="running",
            held=None,
            attempts=1,
            provider=start.provider,
            model=start.model,
            answers=held.answers + answers,
        )
    head = book.heads[agent]
    number = head.record.last_turn + 1
    draft.put_counted("heads", (agent,), head, Head(last_turn=number, open_turn=number))
    row = book.turns[agent] = Counted(None, 0)
    return row, Turn(
        slot=book.slot,
        state="running",
        round=0,
        attempts=1,
        provider=start.provider,
        model=start.model,
        answers=answers,
        started_ms=start.at_ms,
    )


def _granted(book: SlotBook, agent: str, turn: Turn) -> TurnStart:
    lease = book.lease
    assert lease.turn is not None
    return TurnStart(
        agent=agent,
        turn=lease.turn,
        token=lease.token,
        round=turn.round,
        attempts=turn.attempts,
        failures=turn.failures,
        gap=lease.gap,
    )


def _forget_wakes(
    book: SlotBook, agent: str, entries: tuple[int, ...], chain: Chain
) -> list[Request]:
    room = book.store.limits.ops_max - OPS_RESERVE
    return [
        Request(
            guards=(book.owner,),
            deletes=tuple(Delete("wakes", (agent, entry)) for entry in entries[at : at + room]),
            chain=chain,
        )
        for at in range(0, len(entries), room)
    ]


def plan_round(book: SlotBook, round_: RecordRound, chain: Chain) -> list[Request]:
    """Plan a reply's row; with tool calls it opens the gap, without it ends the turn."""
    turn, draft = _held_by(book, round_), Draft()
    book.place(
        draft,
        round_.message,
        round_.agent,
        "assistant",
        round_.blocks,
        at_ms=round_.at_ms,
        round_=round_.round,
    )
    _sent(book, draft)
    if round_.final:
        done = replace(turn.record, round=round_.round, state="done", ended_ms=round_.at_ms)
        return _finish(book, draft, round_.agent, turn, done, chain)
    key = (round_.agent, round_.turn)
    draft.put_counted("turns", key, turn, replace(turn.record, round=round_.round))
    book.write_lease(draft, gap=round_.round)
    return [book.request(draft, chain)]


def plan_boundary(
    book: SlotBook, close: CloseGap, chain: Chain, *, inject: bool
) -> tuple[Request, tuple[int, int]]:
    """Plan the boundary: results, then the injectable prefix that fits, in one request.

    Returns the request and the first and last place of what it puts into the slot.
    """
    turn = _held_by(book, close)
    if book.lease.gap != close.round:
        raise LeaseLostError(
            f"round {close.round} of {close.agent!r} has no open tool gap; nothing was stored; "
            "read the slot again",
            turn=close.turn,
        )
    draft, first = Draft(), book.seq_next
    _place_results(book, draft, close.agent, close.message, close.results, close.at_ms)
    moved = book.prefix(injectable=True) if inject else []
    wakes = book.wakes[close.agent]
    answered = [entry for entry in moved if entry in wakes]
    book.move(draft, moved)
    for entry in answered:
        draft.deletes.append(Delete("wakes", (close.agent, entry)))
        del wakes[entry]
    record = replace(turn.record, answers=turn.record.answers + tuple(answered))
    draft.put_counted("turns", (close.agent, close.turn), turn, record)
    book.write_lease(draft, gap=None)
    _carry(book, draft, close.round + 1)
    return book.request(draft, chain), (first, book.seq_next - 1)


def plan_hold(book: SlotBook, hold: HoldTurn, chain: Chain) -> list[Request]:
    """Plan a hold: the turn keeps its row, the lease is free, the inbox lands in the slot."""
    turn, draft = _held_by(book, hold), Draft()
    if hold.sent:
        _sent(book, draft)
    record = replace(turn.record, state="held", held=hold.held, failures=hold.failures)
    draft.put_counted("turns", (hold.agent, hold.turn), turn, record)
    return _free(book, draft, chain)


def plan_end(book: SlotBook, end: EndTurn, chain: Chain) -> list[Request]:
    """Plan an end without a last reply: an open gap is closed first, then the inbox lands."""
    turn, draft = _held_by(book, end), Draft()
    if end.sent:
        _sent(book, draft)
    if book.lease.gap is not None:
        message = f"results-{end.agent}-{end.turn}-{book.lease.gap}"[:128]
        _place_results(book, draft, end.agent, message, end.results, end.at_ms)
    if end.marker:
        message = f"marker-{end.turn}-{end.token}"
        book.place(
            draft, message, end.agent, "marker", (TextBlock(text=end.marker),), at_ms=end.at_ms
        )
    if end.give_back:
        entry = book.take_entry()
        wake = Wake(reason="stopped", author=end.agent, at_ms=end.at_ms)
        book.wakes[end.agent][entry] = wake
        draft.put("wakes", (end.agent, entry), wake)
    record = replace(
        turn.record,
        state=end.state,
        ended_ms=end.at_ms,
        failures=end.failures,
        error=end.marker[:2_000] or None,
    )
    return _finish(book, draft, end.agent, turn, record, chain)


def has_done(book: SlotBook, message: RecordRound | CloseGap | HoldTurn | EndTurn) -> bool:
    """Whether the store already holds what this message asks for: its asker died unanswered."""
    row = book.store.get("turns", (message.agent, message.turn))
    if row is None:
        return False
    turn: Turn = row.record
    match message:
        case RecordRound():
            return turn.round >= message.round
        case CloseGap():
            return turn.round >= message.round and book.lease.gap != message.round
        case HoldTurn():
            return turn.state == "held"
        case EndTurn():
            return turn.state == message.state


# -- parts -----------------------------------------------------------------------------------


def _finish(
    book: SlotBook, draft: Draft, agent: str, turn: Counted, record: Turn, chain: Chain
) -> list[Request]:
    head = book.heads[agent]
    draft.put_counted("turns", (agent, book.lease.turn), turn, record)
    draft.put_counted("heads", (agent,), head, replace(head.record, open_turn=None))
    del book.turns[agent]
    return _free(book, draft, chain)


def _free(book: SlotBook, draft: Draft, chain: Chain) -> list[Request]:
    """Give the lease back; what waits in the inbox lands behind the turn's last row."""
    book.write_lease(draft, agent=None, turn=None, gap=None)
    book.move(draft, book.prefix(reserve=len(draft.puts)))
    return [book.request(draft, chain), *book.drain_all(chain)]


def _held_by(book: SlotBook, message: RecordRound | CloseGap | HoldTurn | EndTurn) -> Counted:
    lease, turn = book.lease, book.turns.get(message.agent)
    if lease.agent != message.agent or lease.token != message.token or turn is None:
        raise LeaseLostError(
            f"turn {message.turn} of {message.agent!r} no longer holds the slot {book.slot!r} "
            f"(its token is {message.token}, the lease's {lease.token}); nothing was stored; the "
            "turn is over or goes on elsewhere",
            turn=message.turn,
        )
    return turn


def _place_results(
    book: SlotBook,
    draft: Draft,
    agent: str,
    message: str,
    results: tuple[ToolResultBlock, ...],
    at_ms: int,
) -> None:
    gap = book.lease.gap
    book.place(draft, message, agent, "results", results, at_ms=at_ms, round_=gap)


def _carry(book: SlotBook, draft: Draft, round_: int) -> None:
    """Record, before the call, exactly which rows the next request carries."""
    lease = book.lease
    assert lease.agent is not None
    assert lease.turn is not None
    carried = Carried(
        agent=lease.agent,
        turn=lease.turn,
        round=round_,
        rows=tuple((first, last) for first, last in book.ranges),
        sent=False,
    )
    draft.put("carried", (book.slot, lease.request_next), carried)
    book.write_lease(draft, request_next=lease.request_next + 1)


def _sent(book: SlotBook, draft: Draft) -> None:
    """The call that `carried` was written for was made."""
    key = (book.slot, book.lease.request_next - 1)
    row = book.store.get("carried", key)
    if row is not None and not row.record.sent:
        draft.put("carried", key, replace(row.record, sent=True))
