"""What a repair puts in the place of rows of slots and their content. See `mending`.

A message keeps its place whatever becomes of its content: a call has a result and a result a call,
or every later request of the slot would be refused.
"""

from __future__ import annotations

import re
from typing import Any, Final

from . import codec
from .mending import BY, GAP, Answer, Change, Look, Mending
from .store import Key
from .tables.blocks import Block, TextBlock, ToolResultBlock, ToolUseBlock, attachments_in
from .tables.edits import Revision
from .tables.slots import (
    Body,
    Cut,
    Entry,
    Lease,
    MessageId,
    ToolCall,
    body_key,
)

GONE: Final = "[This could not be read any more, and was set aside by an operator's repair.]"
NO_BYTES: Final = "[The bytes of {what} could not be read any more.]"
UNKNOWN: Final = "unknown"
_PLACES: Final = re.compile(r"places (\d+) to (\d+) by ")
_DEAD: Final = "its row could not be read and was set aside by a repair"


def message_id(look: Look, key: Key) -> Answer:
    """Where a message is, as the rows of inbox and slot say; else that it is dead."""
    slot, name = str(key[0]), str(key[1])
    for at, row in look.rows("inbox", (slot,)):
        if row.message == name:
            record = MessageId(entry=int(at[1]), state="inbox", body_crc=row.body_crc)
            if look.get("bodies", at) is not None:
                return Mending((Change("ids", key, record),), "as the message that waits says")
    for at, row in look.rows("slots", (slot,)):
        if row.message == name and row.turn is None and row.origin is None:
            body = look.get("bodies", (slot, row.entry))
            crc = 0 if body is None else codec.encode(body).body_crc
            seq = int(at[1])
            record = MessageId(entry=row.entry, state="slot", seq=seq, body_crc=crc)
            return Mending((Change("ids", key, record),), "as the message in the transcript says")
    record = MessageId(entry=0, state="dead", body_crc=0, cause=_DEAD)
    then = "nobody knows where that message is: it counts as dead, and is not accepted twice"
    return Mending((Change("ids", key, record),), then)


def inboxed(look: Look, key: Key) -> Answer:
    """Taken out; whoever asks for the message is told that it is dead."""
    slot, entry = key
    changes = [Change("inbox", key, None)]
    for at, row in look.rows("ids", (slot,)):
        if row.state == "inbox" and row.entry == entry:
            record = MessageId(entry=row.entry, state="dead", body_crc=row.body_crc, cause=_DEAD)
            changes.append(Change("ids", at, record))
    return Mending(tuple(changes), "that message is in no transcript: its id says that it is dead")


def body(look: Look, key: Key) -> Answer:
    """Taken out, with what names it mended at once: a place in a transcript says what became of
    it."""
    for at, row in look.rows("slots"):
        if body_key(str(at[0]), row) == key:
            return words(look, at)
    if look.get("inbox", key) is not None:
        answer = inboxed(look, key)
        assert isinstance(answer, Mending)
        return Mending((Change("bodies", key, None), *answer.changes), answer.then)
    return Mending((Change("bodies", key, None),), "nothing in a transcript names it")


def words(look: Look, key: Key) -> Answer:
    """What stands in the place of content that is gone."""
    slot, entry = str(key[0]), look.get("slots", key)
    record = Body(blocks=_stands_for(look, slot, int(key[1]), entry))
    then = "the transcript says in its place that it could not be read"
    return Mending((Change("bodies", body_key(slot, entry), record),), then)


def row(look: Look, key: Key) -> Answer:
    """A row of a transcript: a message as its id says, a part of a tool pair as the other says, or
    a marker, which no request carries."""
    slot, seq = str(key[0]), int(key[1])
    for at, known in look.rows("ids", (slot,)):
        if known.state == "slot" and known.seq == seq:
            entry = Entry(
                entry=known.entry,
                message=str(at[1]),
                author=UNKNOWN,
                role="user",
                at_ms=look.now_ms,
            )
            then = "the message is there; who sent it, and on which channel, nobody knows"
            return Mending((Change("slots", key, entry),), then)
    before, behind = _beside(look, slot, seq, back=True), _beside(look, slot, seq, back=False)
    role: Any = "marker"
    of = before or behind
    if behind is not None and behind.role == "results":
        role, of = "assistant", behind
    elif before is not None and calls_of(look, slot, before):
        role, of = "results", before
    lease = look.get("leases", (slot,))
    number = max(look.last("bodies", (slot,)) + 1, 1 if lease is None else lease.entry_next)
    entry = Entry(
        entry=number,
        message=f"set-aside.{seq}",
        author=UNKNOWN if of is None else of.author,
        role=role,
        turn=0 if of is None else of.turn or 0,
        round=None if of is None or role == "marker" else of.round,
        at_ms=look.now_ms,
    )
    record = Body(blocks=_stands_for(look, slot, seq, entry))
    then = "the transcript says in its place that it could not be read"
    changes = (Change("slots", key, entry), Change("bodies", (slot, number), record))
    return Mending(changes, then)


def lease(look: Look, key: Key) -> Answer:
    """The head of a slot, from the rows of it; everything there is counts as read."""
    slot = str(key[0])
    known = [row for _, row in look.rows("ids", (slot,))]
    last = look.last("slots", (slot,))
    numbers = [row.entry for row in known]
    numbers += [look.last(table, (slot,)) for table in ("bodies", "edits", "inbox", "wakes")]
    seqs = [last, *(row.seq or 0 for row in known)]
    seqs += [end for _, row in look.rows("carried", (slot,)) for _, end in row.rows]
    holder = _holder(look, slot)
    record = Lease(
        token=GAP,
        agent=None if holder is None else holder[0],
        turn=None if holder is None else holder[1],
        gap=None if holder is None else _gap(look, slot, *holder),
        entry_next=max(numbers) + GAP,
        seq_next=max(seqs) + GAP,
        request_next=look.last("carried", (slot,)) + 1,
        read=((1, last),) if last else (),
        cuts=tuple(_cuts(look, slot)),
    )
    then = (
        "as the slot's rows and the log say; numbers go on behind a gap, and everything in the "
        "transcript counts as read"
    )
    return Mending((Change("leases", key, record),), then)


def revision(look: Look, key: Key) -> Answer:
    slot = str(key[0])
    stands = look.get("leases", (slot,))
    number = max(look.last("bodies", (slot,)) + 1, 0 if stands is None else stands.entry_next)
    record = Revision(recast=((0, number),))
    then = "no reasoning that was said so far is sent again, and no summary made so far counts"
    return Mending((Change("revisions", key, record),), then)


def attached(look: Look, key: Key) -> Answer:
    """Content that names bytes which are not there: words take their place."""
    stands = look.get("bodies", key)
    blocks = tuple(_without_bytes(look, block) for block in stands.blocks)
    then = "words take the place of what it names: attach it again where it is wanted"
    return Mending((Change("bodies", key, Body(blocks=blocks)),), then)


def _without_bytes(look: Look, block: Block) -> Any:
    if isinstance(block, ToolResultBlock):
        content: Any = tuple(_without_bytes(look, part) for part in block.content)
        return ToolResultBlock(
            tool_use_id=block.tool_use_id, content=content, is_error=block.is_error
        )
    for _, named in attachments_in((block,)):
        if not look.is_there("attachments", (named.digest,)):
            kind = named.__struct_config__.tag
            return TextBlock(text=NO_BYTES.format(what=named.name or f"this {kind}"))
    return block


def _stands_for(look: Look, slot: str, seq: int, entry: Entry) -> tuple[Any, ...]:
    """What is said in the place of a row's content, so that calls and results still match."""
    text = TextBlock(text=GONE)
    if entry.role == "assistant":
        behind = _beside(look, slot, seq, back=False)
        if behind is None or behind.role != "results" or behind.turn != entry.turn:
            return (text,)
        stands = look.get("bodies", body_key(slot, behind))
        names = {row.id: row.name for _, row in _called(look, entry)}
        ids = names if stands is None else [each.tool_use_id for each in _results(stands)]
        uses = (ToolUseBlock(id=each, name=names.get(each, UNKNOWN), input={}) for each in ids)
        return (text, *uses)
    if entry.role == "results":
        before = _beside(look, slot, seq, back=True)
        calls = [] if before is None else calls_of(look, slot, before)
        rows = {row.id: row for _, row in _called(look, entry)}
        ids = [call.id for call in calls] or list(rows)
        return tuple(_result(each, rows.get(each), text) for each in ids) or (text,)
    return (text,)


def _result(call: str, row: ToolCall | None, text: TextBlock) -> ToolResultBlock:
    if row is None or row.result is None:
        return ToolResultBlock(tool_use_id=call, content=(text,), is_error=True)
    content: Any = row.result
    return ToolResultBlock(tool_use_id=call, content=content, is_error=row.is_error)


def _called(look: Look, entry: Entry) -> list[tuple[Key, ToolCall]]:
    if entry.turn is None or entry.round is None:
        return []
    return list(look.rows("tool_calls", (entry.author, entry.turn, entry.round)))


def _results(stands: Body) -> list[ToolResultBlock]:
    return [block for block in stands.blocks if isinstance(block, ToolResultBlock)]


def calls_of(look: Look, slot: str, entry: Entry) -> list[ToolUseBlock]:
    stands = look.get("bodies", body_key(slot, entry)) if entry.role == "assistant" else None
    if stands is None:
        return []
    return [block for block in stands.blocks if isinstance(block, ToolUseBlock)]


def _beside(look: Look, slot: str, seq: int, *, back: bool) -> Entry | None:
    """The next row of a transcript, before or behind a place, past markers."""
    for _, entry in look.rows("slots", (slot,), after=(slot, seq), reverse=back):
        if entry.role != "marker":
            found: Entry = entry
            return found
    return None


def _holder(look: Look, slot: str) -> tuple[str, int] | None:
    """The agent and turn that have the slot: one that runs, or waits for a person."""
    names = [slot, *(str(at[1]) for at, _ in look.rows("sharers", (slot,)))]
    for name in names:
        stands = look.get("heads", (name,))
        for number in () if stands is None else (stands.open_turn, stands.open_pair):
            found = None if number is None else look.get("turns", (name, number))
            if found is not None and found.slot == slot and found.state in ("running", "held"):
                waits = found.held is not None and found.held.cause == "approval"
                if found.state == "running" or waits:
                    return name, int(number or 0)
    return None


def _cuts(look: Look, slot: str) -> list[Cut]:
    """The rewinds of a slot whose rows are still there, as their lines in the log tell them."""
    cuts: list[Cut] = []
    for _, line in look.rows("log"):
        found = _PLACES.match(line.text) if line.agent == slot else None
        if found is None or line.event not in ("slot_rewound", "rewind_undone"):
            continue
        first, last = int(found[1]), int(found[2])
        if line.event == "rewind_undone":
            # The last one first: of two alike the newer is undone.
            alike = [
                place for place, cut in enumerate(cuts) if (cut.first, cut.last) == (first, last)
            ]
            if alike:
                del cuts[alike[-1]]
            continue
        rows = ((first, last),)
        cut = Cut(
            first=first, last=last, rows=rows, answerable=False, act=BY, by=BY, at_ms=line.at_ms
        )  # fmt: skip
        cuts.append(cut)
    return [cut for cut in cuts if _any_between(look, slot, cut.first, cut.last)]


def _any_between(look: Look, slot: str, first: int, last: int) -> bool:
    for at, _ in look.rows("slots", (slot,), after=(slot, max(first, 1) - 1)):
        return int(at[1]) <= last
    return False


def _gap(look: Look, slot: str, name: str, number: int) -> int | None:
    """The round of a turn whose calls have no results yet."""
    for _, entry in look.rows("slots", (slot,), reverse=True):
        if entry.turn != number or entry.author != name or entry.role == "results":
            return None
        if entry.role == "assistant":
            return entry.round if calls_of(look, slot, entry) else None
    return None
