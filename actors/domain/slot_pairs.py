"""An operator's tool pair on its slot, planned: a call and its result, side by side. No actor.

A pair holds the lease from its call's row to its result's, as a turn does, and has a row in `turns`
beside the agent's own turn, which may be held meanwhile. No request is compiled for it.

Invariants:
    I1  The call's row and the lease are one commit, the result's row and the end of the lease
        another; between them nothing enters the slot.
    I2  A pair is told by the id of its call's row, so that it is begun once, however often it is
        asked for.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec.structs import replace

from abeyance.storage.codec import encode
from abeyance.storage.store import Append, Chain
from abeyance.storage.tables.blocks import TextBlock, ToolResultBlock, ToolUseBlock
from abeyance.storage.tables.slots import Turn
from abeyance.storage.tables.waits import LogLine

from .errors import LeaseLostError
from .mode import Quiesced, read_mode
from .slot_book import SlotBook
from .slot_draft import Counted, Draft
from .slot_long import guarded
from .slot_messages import EndPair, PairStart, StartPair
from .slot_rows import read_last
from .slot_turns import UNKNOWN, Plan, free, place_results

OPERATOR: Final = "operator"

Begun: TypeAlias = dict[str, tuple[int, ToolUseBlock]]
"""The numbers and calls of pairs that were planned to begin, by the ids of their calls' rows."""


def plan_pair(book: SlotBook, start: StartPair, chain: Chain, begun: Begun) -> Plan:
    """Plan a pair's start, or its being taken up again. The caller has seen that nobody else holds
    the lease."""
    agent = start.agent
    book.attach(agent)
    done = ended_pair(book, start, begun)
    if done is not None:
        return Plan([], 0, done)
    if agent in book.pairs:
        return _take_up(book, start, chain)
    mode = read_mode(book.store)
    if mode.is_quiesced or book.is_deferring:
        return Plan([], 0, Quiesced())
    content = book.encode_content((start.call,))
    requests = book.drain_until_rest_fits(chain)
    draft, head = Draft(), book.heads[agent]
    book.move(draft, book.prefix())
    number = head.record.last_turn + 1
    draft.put_counted(
        "heads", (agent,), head, replace(head.record, last_turn=number, open_pair=number)
    )
    row = book.pairs[agent] = Counted(None, 0)
    turn = Turn(
        slot=book.slot,
        state="running",
        round=1,
        attempts=1,
        provider=OPERATOR,
        model=start.model,
        pair=start.message,
        started_ms=start.at_ms,
    )
    draft.put_counted("turns", (agent, number), row, turn)
    book.write_lease(draft, token=book.lease.token + 1, agent=agent, turn=number)
    book.place(draft, start.message, agent, "assistant", content, at_ms=start.at_ms, round_=1)
    book.write_lease(draft, gap=1)
    text = f"{start.call.name} by {start.by}"
    line = LogLine(event="tool_run", agent=agent, turn=number, text=text, at_ms=start.at_ms)
    draft.appends.append(Append("log", encode(line)))
    requests.append(guarded(book.request(draft, chain), mode.guard))
    granted = PairStart(agent, number, book.lease.token, start.call, 1)
    return Plan(requests, len(requests), granted)


def _take_up(book: SlotBook, start: StartPair, chain: Chain) -> Plan:
    """Its task died; what becomes of the call its tool's policy decides."""
    agent, row, draft = start.agent, book.pairs[start.agent], Draft()
    number = book.lease.turn
    assert number is not None
    turn = replace(row.record, attempts=row.record.attempts + 1)
    draft.put_counted("turns", (agent, number), row, turn)
    book.write_lease(draft, token=book.lease.token + 1)
    granted = PairStart(agent, number, book.lease.token, start.call, turn.attempts)
    return Plan([book.request(draft, chain)], 1, granted)


def ended_pair(book: SlotBook, start: StartPair, begun: Begun) -> PairStart | None:
    """The pair that was asked for, where it ended before its asker was told."""
    book.attach(start.agent)
    number, _ = begun.get(start.message, (book.heads[start.agent].record.last_turn, None))
    row = book.store.get("turns", (start.agent, number)) if number else None
    if row is None or row.record.pair != start.message or row.record.state == "running":
        return None
    return PairStart(start.agent, number, 0, start.call, row.record.attempts, is_over=True)


def plan_pair_end(book: SlotBook, end: EndPair, chain: Chain) -> Plan:
    """Plan a pair's end: its result lands beside its call, then what waited behind."""
    book.attach(end.agent)
    lease, row = book.lease, book.pairs.get(end.agent)
    if lease.agent != end.agent or lease.token != end.token or row is None:
        raise LeaseLostError(
            f"the tool pair {end.turn} of {end.agent!r} no longer holds the slot {book.slot!r}; "
            "nothing was stored; it is over or goes on elsewhere",
            turn=end.turn,
        )
    known = {result.tool_use_id for result in end.results}
    missing = tuple(
        ToolResultBlock(tool_use_id=block.id, content=(TextBlock(text=UNKNOWN),), is_error=True)
        for block in read_last(book.store, book.slot)
        if isinstance(block, ToolUseBlock) and block.id not in known
    )
    blocks = (*end.results, *missing)
    content, uses = book.encode_content(blocks), book.content_uses(blocks, end.at_ms)
    draft, head = Draft(), book.heads[end.agent]
    draft.use(uses)
    place_results(book, draft, end.agent, f"results-{end.turn}-{end.token}", content, end.at_ms)
    ended = replace(row.record, state=end.state, ended_ms=end.at_ms)
    draft.put_counted("turns", (end.agent, lease.turn), row, ended)
    draft.put_counted("heads", (end.agent,), head, replace(head.record, open_pair=None))
    del book.pairs[end.agent]
    return free(book, draft, chain)


def pair_is_done(book: SlotBook, end: EndPair) -> bool:
    """Whether the store already holds this end: its asker died unanswered."""
    row = book.store.get("turns", (end.agent, end.turn))
    return row is not None and row.record.state == end.state


def open_pair(book: SlotBook, agent: str, begun: Begun) -> tuple[str, ToolUseBlock] | None:
    """The id of an open pair's call and the call itself; None where none is open."""
    book.attach(agent)
    row = book.pairs.get(agent)
    if row is None:
        return None
    if row.record.pair in begun:
        # Its commit may be on its way, and the call in no slot yet.
        return row.record.pair, begun[row.record.pair][1]
    for block in read_last(book.store, book.slot):
        if isinstance(block, ToolUseBlock):
            return row.record.pair, block
    return None
