"""A turn's life on its slot, planned: start, reply, boundary, hold, end. No actor, no await.

Invariants:
    I1  lease.gap is open => only that turn's results may be placed; between a row with tool calls
        and its results there is nothing.
    I2  A turn's creation consumes the wakes it answers, a boundary those of what it injects, in
        the same request.
    I3  `carried` is written with the request that makes a call possible, before the call.
    I4  Only the turn that holds the lease, by its token, may write, and only what comes next in it.
    I5  What may refuse is asked before anything is planned.
    I6  No turn starts while the mode says `quiesced`; one that lives is taken up again all the
        same, for it is to come to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from abeyance.storage.store import Chain, Delete, Value
from abeyance.storage.tables.blocks import TextBlock, ToolResultBlock, ToolUseBlock
from abeyance.storage.tables.fields import NAME_BYTES_MAX
from abeyance.storage.tables.slots import Carried, Turn, Wake

from .approvals import known_of
from .attachment_rows import NO_USES
from .errors import LeaseLostError
from .ingress import clean_text
from .mode import Quiesced, read_mode
from .slot_arrivals import arrived, reply_channel
from .slot_book import OPS_RESERVE, SlotBook
from .slot_context import fresh_view, in_view
from .slot_draft import Counted, Draft
from .slot_long import Planned, guarded
from .slot_messages import (
    CloseGap,
    EndTurn,
    HoldTurn,
    NothingToDo,
    Places,
    RecordRound,
    SetPrompt,
    StartTurn,
    TurnStart,
)
from .slot_prompt import prompted, write_prompt
from .slot_rewind import check_rewind, leaves_answerable, mark
from .slot_rows import read_last
from .spent_rows import join_spent, join_unknown

UNKNOWN: Final = "The outcome of this call is unknown: the turn ended before it was told."


class Plan(msgspec.Struct, frozen=True):
    """What an act comes to: requests in order, and the answer."""

    requests: Sequence[Planned]
    decides: int
    """So many of them must be in for the answer to be true; the rest only tidies up behind it, and
    is planned again from the store if it is not stored."""
    answer: Any = None


def plan_start(book: SlotBook, start: StartTurn, chain: Chain) -> Plan:
    """Plan a turn's start: the open turn taken up again, or a fresh one for the wakes.

    The caller has seen that the lease is free or this agent's own, or that it has no work.
    """
    if not book.has_work(start.agent):
        return Plan([], 0, NothingToDo())
    mode = read_mode(book.store)
    if book.is_leased and not _waits_on(book, start.agent):
        return _take_up_live(book, start, chain)
    if mode.is_quiesced or book.is_deferring:
        return Plan([], 0, Quiesced())
    if book.is_leased:
        taken_up = _take_up_live(book, start, chain)
        return replace(taken_up, requests=[guarded(taken_up.requests[0], mode.guard)])
    agent, wakes = start.agent, book.wakes[start.agent]
    requests = book.drain_until_rest_fits(chain)
    draft, answers = Draft(), tuple(sorted(wakes))
    came = [(entry, wakes[entry].channel) for entry in answers]
    book.move(draft, book.prefix())
    held = book.open_turn(agent)
    row, opened, unreadable = _open(book, draft, start, answers)
    turn = replace(opened, arrivals=arrived(opened.arrivals, came))
    turn = prompted(book, draft, turn, start)
    number = book.open_number(agent)
    draft.put_counted("turns", (agent, number), row, turn)
    book.write_lease(draft, token=book.lease.token + 1, agent=agent, turn=number)
    _carry(book, draft, turn.round + 1, turn.context)
    # The turn's row answers these wakes from this commit on. The rows that do not fit beside it go
    # in requests behind it.
    room = max(0, book.store.limits.ops_max - OPS_RESERVE - draft.ops)
    draft.deletes += [Delete("wakes", (agent, entry)) for entry in answers[:room]]
    book.answered += [(agent, entry) for entry in answers[room:]]
    wakes.clear()
    # Of a start and a quiesce that race, in whichever processes, one is first.
    requests.append(guarded(book.request(draft, chain), mode.guard))
    decides = len(requests)
    granted = _granted(book, agent, turn, unreadable, None if held is None else held.trace)
    return Plan([*requests, *book.forget_answered(chain)], decides, granted)


def _take_up_live(book: SlotBook, start: StartTurn, chain: Chain) -> Plan:
    """The lease is this agent's own: its turn's task died. Nothing is drained mid-turn."""
    agent, row, draft = start.agent, book.turns[start.agent], Draft()
    # Of what its task was doing nothing is known but what it recorded: the call may have been made.
    if row.record.held is None and start.seen != book.lease.turn:
        join_unknown(draft, book.store, book.carried, row.record, start.at_ms)
    book.sent(draft, None)
    viewed, unreadable = in_view(book, row.record, start)
    turn = replace(
        viewed,
        state="running",
        held=None,
        # One that waited for a person did not die.
        attempts=1 if row.record.held is not None else row.record.attempts + 1,
        provider=start.provider,
        model=start.model,
        injects=start.carries_injections,
        trace=start.trace,
    )
    draft.put_counted("turns", (agent, book.lease.turn), row, turn)
    book.write_lease(draft, token=book.lease.token + 1)
    if book.lease.gap is None:
        _carry(book, draft, turn.round + 1, turn.context)
    granted = _granted(book, agent, turn, unreadable, viewed.trace)
    return Plan([book.request(draft, chain)], 1, granted)


def _waits_on(book: SlotBook, agent: str) -> bool:
    """Whether the turn with the lease was put down for a person, and is not to end."""
    turn = book.open_turn(agent)
    return turn is not None and turn.state == "held" and turn.cancelled_by is None


def _open(
    book: SlotBook, draft: Draft, start: StartTurn, answers: tuple[int, ...]
) -> tuple[Counted, Turn, int | None]:
    """A held turn runs again, with what joined it; otherwise a fresh one begins."""
    agent, row = start.agent, book.turns.get(start.agent)
    if row is not None:
        held, unreadable = in_view(book, row.record, start)
        running = replace(
            held,
            state="running",
            held=None,
            attempts=1,
            provider=start.provider,
            model=start.model,
            injects=start.carries_injections,
            answers=held.answers + answers,
            trace=start.trace,
        )
        return row, running, unreadable
    head = book.heads[agent]
    number = head.record.last_turn + 1
    draft.put_counted(
        "heads", (agent,), head, replace(head.record, last_turn=number, open_turn=number)
    )
    row = book.turns[agent] = Counted(None, 0)
    fresh = Turn(
        slot=book.slot,
        state="running",
        round=0,
        attempts=1,
        provider=start.provider,
        model=start.model,
        injects=start.carries_injections,
        answers=answers,
        context=fresh_view(book, start),
        started_ms=start.at_ms,
        trace=start.trace,
    )
    return row, fresh, None


def _granted(
    book: SlotBook, agent: str, turn: Turn, unreadable: int | None, before: str | None
) -> TurnStart:
    lease = book.lease
    assert lease.turn is not None
    cut = lease.cuts[-1] if lease.cuts else None
    return TurnStart(
        agent=agent,
        turn=lease.turn,
        token=lease.token,
        round=turn.round,
        attempts=turn.attempts,
        failures=turn.failures,
        gap=lease.gap,
        rewound=cut is not None
        and not cut.answerable
        and cut.last == book.seq_next - 1
        and not leaves_answerable(book, cut.first - 1, agent),
        context=turn.context,
        compiled_round=turn.compiled_round,
        unreadable=unreadable,
        cancelled_by=turn.cancelled_by,
        prompt=turn.prompt,
        channel=reply_channel(turn),
        outgrown=turn.outgrown,
        trace=before,
    )


def plan_prompt(book: SlotBook, asked: SetPrompt, chain: Chain) -> Plan:
    """Plan what a turn's row says of its system prompt. Answers the prompt's number."""
    row, draft, number = held_by(book, asked), Draft(), 0
    if asked.text is not None:
        number = write_prompt(book, draft, asked.agent, asked.text, asked.at_ms)
    draft.put_counted("turns", (asked.agent, asked.turn), row, replace(row.record, prompt=number))
    return Plan([book.request(draft, chain)], 1, number)


def plan_round(book: SlotBook, round_: RecordRound, chain: Chain) -> Plan:
    """Plan a reply's row; with tool calls it opens the gap, without it ends the turn."""
    turn = held_by(book, round_)
    if book.lease.gap is not None or turn.record.round != round_.round - 1:
        raise _out_of_turn(round_, f"round {round_.round} does not come next")
    content, draft = book.encode_content(round_.blocks), Draft()
    book.sent(draft, True)
    book.place(
        draft,
        round_.message,
        round_.agent,
        "assistant",
        content,
        at_ms=round_.at_ms,
        round_=round_.round,
        channel=reply_channel(turn.record),
    )
    _join_usage(draft, round_)
    join_spent(draft, book.store, round_.spent)
    failures = max(turn.record.failures, round_.failures)
    recorded = replace(turn.record, round=round_.round, failures=failures)
    if round_.final:
        done = replace(recorded, state="done", ended_ms=round_.at_ms)
        return _finish(book, draft, round_.agent, turn, done, chain)
    key = (round_.agent, round_.turn)
    # A recorded round is progress: what is counted are lives in a row that recorded none.
    draft.put_counted("turns", key, turn, replace(recorded, attempts=1))
    book.write_lease(draft, gap=round_.round)
    return Plan([book.request(draft, chain)], 1)


def _join_usage(draft: Draft, round_: RecordRound) -> None:
    """Write what the reply told of its account's usage in the round's own commit."""
    written = None if round_.usage is None else round_.usage.join(round_.message)
    if written is not None:
        guard, put = written
        draft.guards = (*draft.guards, guard)
        draft.puts[put.table, put.key] = put


def plan_boundary(book: SlotBook, close: CloseGap, chain: Chain, *, inject: bool) -> Plan:
    """Plan the boundary: results, then the injectable prefix that fits, in one request.

    The answer is where it puts them.
    """
    turn = held_by(book, close)
    if book.lease.gap != close.round:
        raise _out_of_turn(close, f"round {close.round} has no open tool gap")
    content = book.encode_content(close.results)
    uses = book.content_uses(close.results, close.at_ms)
    draft, first = Draft(), book.seq_next
    draft.use(uses)
    place_results(book, draft, close.agent, close.message, content, close.at_ms)
    moved = book.prefix(injectable=True) if inject else []
    wakes = book.wakes[close.agent]
    answered = [entry for entry in moved if entry in wakes]
    came = [(entry, wakes[entry].channel) for entry in answered]
    book.move(draft, moved)
    for entry in answered:
        draft.deletes.append(Delete("wakes", (close.agent, entry)))
        del wakes[entry]
    record = replace(
        turn.record,
        answers=turn.record.answers + tuple(answered),
        arrivals=arrived(turn.record.arrivals, came),
    )
    draft.put_counted("turns", (close.agent, close.turn), turn, record)
    book.write_lease(draft, gap=None)
    _carry(book, draft, close.round + 1, record.context)
    return Plan([book.request(draft, chain)], 1, Places(first, book.seq_next - 1))


def plan_hold(book: SlotBook, hold: HoldTurn, chain: Chain) -> Plan:
    """Plan a hold: the turn keeps its row, the lease is free, the inbox lands in the slot.

    Where it waits for a person its gap is open: then it keeps the lease, too, for nothing may come
    between its calls and their results.
    """
    turn = held_by(book, hold)
    waits_on = book.lease.gap is not None and hold.held.cause == "approval"
    if book.lease.gap is not None and not waits_on:
        raise _out_of_turn(hold, f"the tool gap of round {book.lease.gap} is open")
    draft = Draft()
    join_spent(draft, book.store, hold.spent)
    book.sent(draft, hold.sent)
    record = replace(
        turn.record,
        state="held",
        held=hold.held,
        failures=hold.failures,
        outgrown=turn.record.outgrown or hold.held.cause == "context",
    )
    draft.put_counted("turns", (hold.agent, hold.turn), turn, record)
    if waits_on:
        return Plan([book.request(draft, chain)], 1)
    return free(book, draft, chain)


def plan_end(book: SlotBook, end: EndTurn, chain: Chain) -> Plan:
    """Plan an end without a last reply: an open gap is closed first, then the inbox lands."""
    turn = held_by(book, end)
    is_answerable = end.rewind is not None and check_rewind(book, end.rewind)
    results, marker, uses = None, None, NO_USES
    if book.lease.gap is not None:
        blocks = _all_results(book, end)
        results = book.encode_content(blocks)
        uses = book.content_uses(blocks, end.at_ms)
    if end.marker:
        marker = book.encode_content((TextBlock(text=end.marker),))
    draft = Draft()
    draft.use(uses)
    join_spent(draft, book.store, end.spent)
    if end.sent is None and turn.record.held is None:
        join_unknown(draft, book.store, book.carried, turn.record, end.at_ms)
    book.sent(draft, end.sent)
    if results is not None:
        message = f"results-{end.turn}-{end.token}"
        place_results(book, draft, end.agent, message, results, end.at_ms)
    if marker is not None:
        message = f"marker-{end.turn}-{end.token}"
        book.place(draft, message, end.agent, "marker", marker, at_ms=end.at_ms)
    receipt = None
    if end.rewind is not None:
        # Before the inbox lands: what came meanwhile is behind it, and stays.
        receipt = mark(book, draft, end.rewind, is_answerable=is_answerable)
    if end.give_back:
        entry = book.take_entry()
        channel = reply_channel(turn.record)
        wake = Wake(reason="stopped", author=end.agent, channel=channel, at_ms=end.at_ms)
        book.wakes[end.agent][entry] = wake
        draft.put("wakes", (end.agent, entry), wake)
    record = replace(
        turn.record,
        state=end.state,
        ended_ms=end.at_ms,
        failures=end.failures,
        given_back=end.give_back,
        failure=None if end.failure is None else clean_text(end.failure, NAME_BYTES_MAX) or None,
        error=end.marker[:2_000] or None,
    )
    return replace(_finish(book, draft, end.agent, turn, record, chain), answer=receipt)


def has_done(book: SlotBook, message: RecordRound | CloseGap | HoldTurn | EndTurn) -> bool:
    """Whether the store already holds what this message asks for: its asker died unanswered."""
    row = book.store.get("turns", (message.agent, message.turn))
    if row is None:
        return False
    turn: Turn = row.record
    # What keeps the lease is its holder's. Behind what gives it back it may be granted already.
    holds = book.lease.token == message.token
    match message:
        case RecordRound():
            return turn.round >= message.round and (holds or message.final)
        case CloseGap():
            return turn.round >= message.round and book.lease.gap != message.round and holds
        case HoldTurn():
            return turn.state == "held"
        case EndTurn():
            return turn.state == message.state


# -- parts -----------------------------------------------------------------------------------


def _finish(
    book: SlotBook, draft: Draft, agent: str, turn: Counted, record: Turn, chain: Chain
) -> Plan:
    head = book.heads[agent]
    draft.put_counted("turns", (agent, book.lease.turn), turn, record)
    draft.put_counted("heads", (agent,), head, replace(head.record, open_turn=None))
    del book.turns[agent]
    return free(book, draft, chain)


def free(book: SlotBook, draft: Draft, chain: Chain) -> Plan:
    """Give the lease back; what waits in the inbox lands behind the turn's last row."""
    book.write_lease(draft, agent=None, turn=None, gap=None)
    book.move(draft, book.prefix(reserve=len(draft.puts)))
    return Plan([book.request(draft, chain), *book.drain_all(chain)], 1)


def held_by(book: SlotBook, message: Any) -> Counted:
    """The row of the turn that holds the lease, which a message of its task names.

    Raises:
        LeaseLostError: It is another's by now; nothing is planned.
    """
    book.attach(message.agent)
    lease, turn = book.lease, book.turns.get(message.agent)
    if lease.agent != message.agent or lease.token != message.token or turn is None:
        raise LeaseLostError(
            f"turn {message.turn} of {message.agent!r} no longer holds the slot {book.slot!r} "
            f"(its token is {message.token}, the lease's {lease.token}); nothing was stored; the "
            "turn is over or goes on elsewhere",
            turn=message.turn,
        )
    return turn


def _out_of_turn(message: RecordRound | CloseGap | HoldTurn, why: str) -> LeaseLostError:
    return LeaseLostError(
        f"turn {message.turn} of {message.agent!r}: {why}; nothing was stored; read the slot again",
        turn=message.turn,
    )


def place_results(
    book: SlotBook, draft: Draft, agent: str, message: str, content: Value, at_ms: int
) -> None:
    gap = book.lease.gap
    book.place(draft, message, agent, "results", content, at_ms=at_ms, round_=gap)


def _all_results(book: SlotBook, end: EndTurn) -> tuple[ToolResultBlock, ...]:
    """The results of the gap's calls; one that its turn does not know is said to be unknown, for a
    call without a result would make every later request of this slot refused."""
    known = {result.tool_use_id for result in end.results}
    calls = [block for block in read_last(book.store, book.slot) if isinstance(block, ToolUseBlock)]
    missing = [
        known_of(book.store, (end.agent, end.turn, book.lease.gap or 0, place), call)
        or ToolResultBlock(tool_use_id=call.id, content=(TextBlock(text=UNKNOWN),), is_error=True)
        for place, call in enumerate(calls)
        if call.id not in known
    ]
    return (*end.results, *missing)


def _carry(book: SlotBook, draft: Draft, round_: int, context: int | None) -> None:
    """Record, before the call, exactly which rows the next request carries."""
    lease = book.lease
    assert lease.agent is not None
    assert lease.turn is not None
    carried = Carried(
        agent=lease.agent,
        turn=lease.turn,
        round=round_,
        rows=tuple((first, last) for first, last in book.ranges),
        context=context,
        sent=False,
    )
    draft.put("carried", (book.slot, lease.request_next), carried)
    book.carried = carried
    # What is deleted whole was in none of the rows above; nobody asks for it any more.
    cuts = tuple(
        cut for cut in lease.cuts if cut.pruned != cut.last or cut.last == book.seq_next - 1
    )
    book.write_lease(draft, request_next=lease.request_next + 1, cuts=cuts)
