"""An agent's end on its slot, planned: what lands, what becomes a dead letter. No actor, no await.

Invariants:
    I1  The commit that marks the agent as ended ends its held turn and takes its wakes, or as many
        of them as one request holds; planned again, an end that a death cut off goes on behind it.
    I2  Whatever was accepted is in the slot or a dead letter, and never neither.
    I3  Waits are not touched: they stay listed, and hold nobody else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from abeyance.storage.codec import encode
from abeyance.storage.errors import StorageError
from abeyance.storage.store import Append, Chain, Delete, Guard, Put, Request, Value
from abeyance.storage.tables.blocks import Block
from abeyance.storage.tables.fields import REASON_CHARS_MAX
from abeyance.storage.tables.kept import MESSAGE_CHARS_MAX, DeadLetter
from abeyance.storage.tables.slots import MessageId, body_key
from abeyance.storage.tables.waits import LogLine

from .archive_book import pack_message
from .context_rows import kept_places
from .ingress import clean_text
from .slot_again import again_message, again_wake
from .slot_book import OPS_RESERVE, SlotBook
from .slot_draft import Draft
from .slot_long import Planned, whole
from .slot_messages import Dispose, Disposed, EndPair, EndTurn
from .slot_pairs import plan_pair_end
from .slot_rows import find_body, read_rows
from .slot_turns import Plan, plan_end

OPS_A_LETTER: Final = 4
"""One dead letter: its row, its wake, and out of the inbox with its id row."""
PAYLOAD_A_REQUEST: Final = 512 * 1024


class _Letter(NamedTuple):
    text: str
    body: bytes | None
    wake: int | None = None
    inboxed: int | None = None


def plan_dispose(book: SlotBook, dispose: Dispose, chain: Chain, *, goes_on: bool = False) -> Plan:
    """Plan an agent's end, in as many requests as it takes; the first that writes marks it.

    Args:
        goes_on: Other agents share the slot.
    """
    agent = dispose.agent
    book.attach(agent)
    # Who leaves flushes first, also while a host is quiesced. Where others share the slot, what it
    # leaves stays in the inbox with theirs, in order.
    book.is_deferring, defers = book.is_deferring and goes_on, book.is_deferring
    try:
        return _plan_dispose(book, dispose, chain)
    finally:
        book.is_deferring = defers


def _plan_dispose(book: SlotBook, dispose: Dispose, chain: Chain) -> Plan:
    agent = dispose.agent
    requests: list[Planned] = []
    number = book.open_number(agent)
    is_cut_off = book.is_leased and book.lease.agent == agent
    lands = dispose.land or is_cut_off
    letters = [*_unanswered(book, dispose), *_wakes(book, dispose, lands=lands)]
    if is_cut_off and agent in book.pairs:
        requests += plan_pair_end(book, _pair_cut_off(book, dispose), chain).requests
    elif is_cut_off:
        # Its task is gone without an end: its group was parked.
        requests += plan_end(book, _cut_off(book, dispose), chain).requests
    elif dispose.land:
        requests += book.drain_idle(chain)
    letters += _inboxed(book, dispose)
    draft = Draft()
    if dispose.kind == "ephemeral":
        # Nobody could be given them, and what was said is in the slot: its wakes are over with it.
        letters = [letter for letter in letters if letter.inboxed is not None]
        room = book.store.limits.ops_max - 2 * OPS_RESERVE
        for entry in list(book.wakes[agent])[:room]:
            draft.deletes.append(Delete("wakes", (agent, entry)))
            del book.wakes[agent][entry]
    marks, appends = _mark(book, dispose, letters)
    if dispose.kind == "ephemeral":
        draft.deletes.append(Delete("ephemerals", (agent,)))
    _end_held(book, draft, dispose)
    if dispose.kind == "conversation":
        # Its name is used once: nobody compiles this slot again. A resident may be added again.
        for place in kept_places(book.store, book.slot, agent):
            draft.deletes.append(Delete("contexts", (book.slot, agent, place)))
    if appends is None and not draft.puts and not draft.deletes and not letters:
        return Plan(requests, len(requests), Disposed(None, ()))
    requests += _requests(book, dispose, draft, marks, appends or (), letters, chain)
    dropped = tuple(letter.text for letter in letters)
    return Plan(requests, len(requests), Disposed(number, dropped))


def _cut_off(book: SlotBook, dispose: Dispose) -> EndTurn:
    lease = book.lease
    assert lease.turn is not None
    return EndTurn(
        agent=dispose.agent,
        turn=lease.turn,
        token=lease.token,
        state="cancelled",
        marker=_marker(dispose),
        results=(),
        failures=book.turns[dispose.agent].record.failures,
        sent=None,
        at_ms=dispose.at_ms,
        give_back=False,
    )


def _pair_cut_off(book: SlotBook, dispose: Dispose) -> EndPair:
    lease = book.lease
    assert lease.turn is not None
    return EndPair(dispose.agent, lease.turn, lease.token, "cancelled", (), dispose.at_ms)


def _marker(dispose: Dispose) -> str:
    return f"this turn was ended when its agent was disposed of by {dispose.by}"


def _end_held(book: SlotBook, draft: Draft, dispose: Dispose) -> None:
    """A held turn is a row and nothing else: that row says how it ended."""
    agent, row, number = dispose.agent, book.turns.get(dispose.agent), None
    number = book.open_number(agent)
    if row is None or number is None:
        return
    ended = replace(
        row.record,
        state="cancelled",
        held=None,
        ended_ms=dispose.at_ms,
        error=clean_text(_marker(dispose), 2_000),
    )
    head = book.heads[agent]
    draft.put_counted("turns", (agent, number), row, ended)
    draft.put_counted("heads", (agent,), head, replace(head.record, open_turn=None))
    del book.turns[agent]


def _mark(
    book: SlotBook, dispose: Dispose, letters: list[_Letter]
) -> tuple[list[tuple[Guard, Put]], tuple[Append, ...] | None]:
    """The rows that say that it ended; None in place of the log line where they say so already."""
    marks: list[tuple[Guard, Put]] = []
    row = book.store.get("agents", (dispose.agent,))
    if row is not None and row.record.ended_ms is None:
        ended = replace(row.record, ended_ms=dispose.at_ms)
        marks.append(_marked("agents", (dispose.agent,), row, ended))
    if dispose.parent is not None and dispose.channel is not None:
        key = (dispose.parent, dispose.channel)
        row = book.store.get("conversations", key)
        if row is not None and row.record.agent == dispose.agent and row.record.state != "closed":
            closed = replace(row.record, state="closed")
            marks.append(_marked("conversations", key, row, closed))
    if not marks:
        return [], None
    line = LogLine(
        event="agent_disposed",
        agent=dispose.agent,
        text=f"by {dispose.by}; {len(letters)} became dead letters",
        at_ms=dispose.at_ms,
    )
    return marks, (Append("log", encode(line)),)


def _marked(table: str, key: Any, row: Any, record: Any) -> tuple[Guard, Put]:
    return Guard(table, key, row.counter), Put(table, key, encode(record))


def _requests(
    book: SlotBook,
    dispose: Dispose,
    draft: Draft,
    marks: list[tuple[Guard, Put]],
    appends: tuple[Append, ...],
    letters: list[_Letter],
    chain: Chain,
) -> Iterator[Request]:
    """Cut what is to be written: the marks first, then letters as far as a request holds them."""
    guards: tuple[Guard, ...] = tuple(guard for guard, _ in marks)
    for _, put in marks:
        draft.puts[put.table, put.key] = put
    room = max(1, (book.store.limits.ops_max - OPS_RESERVE) // OPS_A_LETTER)
    size, taken, written = 0, 0, list(appends)
    for letter in letters:
        size += len(letter.body or b"") + len(letter.text)
        if taken and (taken >= room or size > PAYLOAD_A_REQUEST):
            yield _finished(book, draft, guards, written, chain)
            draft, guards, written = Draft(), (), []
            size, taken = len(letter.body or b"") + len(letter.text), 0
        written.append(Append("dead_letters", _dead_letter(book, dispose, letter)))
        _take_out(book, draft, dispose, letter)
        taken += 1
    yield _finished(book, draft, guards, written, chain)


def _finished(
    book: SlotBook,
    draft: Draft,
    guards: tuple[Guard, ...],
    appends: list[Append],
    chain: Chain,
) -> Request:
    request = whole(book.request(draft, chain))
    return replace(request, guards=(*request.guards, *guards), appends=tuple(appends))


def _take_out(book: SlotBook, draft: Draft, dispose: Dispose, letter: _Letter) -> None:
    if letter.wake is not None:
        draft.deletes.append(Delete("wakes", (dispose.agent, letter.wake)))
        del book.wakes[dispose.agent][letter.wake]
    if letter.inboxed is not None:
        row = book.inbox.pop(letter.inboxed)
        book.inbox_bytes -= row.body_bytes
        draft.deletes.append(Delete("inbox", (book.slot, letter.inboxed)))
        dead = MessageId(
            entry=letter.inboxed, state="dead", body_crc=row.body_crc, cause=_reason(dispose)
        )
        draft.put("ids", (book.slot, row.message), dead)


def _dead_letter(book: SlotBook, dispose: Dispose, letter: _Letter) -> Value:
    return encode(
        DeadLetter(
            actor=f"slot:{dispose.parent_slot or book.slot}",
            reason=_reason(dispose),
            message=clean_text(letter.text, MESSAGE_CHARS_MAX) or "?",
            body=letter.body,
            at_ms=dispose.at_ms,
        )
    )


def _reason(dispose: Dispose) -> str:
    return clean_text(f"agent {dispose.agent!r} was disposed of by {dispose.by}", REASON_CHARS_MAX)


# -- what nobody answers ---------------------------------------------------------------------


def _unanswered(book: SlotBook, dispose: Dispose) -> Iterator[_Letter]:
    """The messages that the open turn was to answer; their wakes are its own by now."""
    turn = book.open_turn(dispose.agent)
    if turn is not None:
        yield from _placed(book, dispose, set(turn.answers))


def _wakes(book: SlotBook, dispose: Dispose, *, lands: bool) -> Iterator[_Letter]:
    for entry, wake in book.wakes[dispose.agent].items():
        if wake.reason == "stopped":
            # A stop gave the wakes of its last turn back as one.
            last = book.store.get(
                "turns", (dispose.agent, book.heads[dispose.agent].record.last_turn)
            )
            named = [] if last is None else list(_placed(book, dispose, set(last.record.answers)))
            if named:
                yield named[0]._replace(wake=entry)
                yield from named[1:]
                continue
        text = f"wake of {dispose.agent!r} by {wake.author!r}"
        blocks = None
        if wake.message is not None:
            text += f" for message {wake.message!r}"
            if entry not in book.inbox:
                blocks = _content(book, entry)
        elif wake.channel is not None:
            text += f" on channel {wake.channel!r}"
        if entry in book.inbox and not lands:
            continue  # Its message becomes a dead letter, and takes the wake along.
        body = _again(dispose, wake.author, wake.message, wake.channel, blocks)
        yield _Letter(text, body, wake=entry)


def _inboxed(book: SlotBook, dispose: Dispose) -> Iterator[_Letter]:
    wakes = book.wakes[dispose.agent]
    for entry, row in list(book.inbox.items()):
        if row.agent != dispose.agent or (dispose.land and (book.is_leased or book.is_deferring)):
            # Another's, or one that lands with another's: the slot goes on.
            continue
        blocks = _words(book, (book.slot, entry))
        yield _Letter(
            f"message {row.message!r} by {row.author!r}",
            None
            if blocks is None
            else _packed(dispose, row.author, row.channel, blocks, wake=row.wake),
            wake=entry if entry in wakes else None,
            inboxed=entry,
        )


def _placed(book: SlotBook, dispose: Dispose, entries: set[int]) -> Iterator[_Letter]:
    """The slot's rows of these entries, oldest first."""
    found = []
    for _, row in read_rows(book.store, "slots", (book.slot,), reverse=True):
        if not entries:
            break
        if row.origin is None and row.entry in entries:
            entries.discard(row.entry)
            found.append(row)
    for row in reversed(found):
        blocks = _words(book, body_key(book.slot, row))
        text = f"wake of {dispose.agent!r} by {row.author!r} for message {row.message!r}"
        yield _Letter(text, _again(dispose, row.author, row.message, row.channel, blocks))


def _content(book: SlotBook, entry: int) -> tuple[Block, ...] | None:
    return _words(book, (book.slot, book.edits.last_words(entry)))


def _words(book: SlotBook, key: tuple[str, int]) -> tuple[Block, ...] | None:
    """What a row says, or None: what cannot be read keeps nobody from leaving."""
    found = find_body(book.store, *key)
    return None if isinstance(found, StorageError) else found


def _again(
    dispose: Dispose,
    author: str,
    message: str | None,
    channel: str | None,
    blocks: tuple[Block, ...] | None,
) -> bytes | None:
    """What a replay sends: the wake where the message stays in reach, else the message."""
    if dispose.parent is not None and blocks is not None:
        return _packed(dispose, author, channel or dispose.channel, blocks, wake=True)
    return pack_message(again_wake(_whose(dispose), author, message, channel, dispose.at_ms))


def _whose(dispose: Dispose) -> str:
    """Who takes what is replayed."""
    return dispose.parent or dispose.agent


def _packed(
    dispose: Dispose, author: str, channel: str | None, blocks: tuple[Block, ...], *, wake: bool
) -> bytes | None:
    whose, at_ms = _whose(dispose), dispose.at_ms
    return pack_message(again_message(whose, author, channel, blocks, at_ms, wake=wake))
