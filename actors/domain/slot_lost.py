"""Messages that wait and whose own row cannot be read: what is known of them still, and their end.

That row alone says by whom a message is, for whom, and how it may join. Where it cannot be read
nothing of it is guessed: the message lands nowhere and leaves for the dead letters as its slot is
read, with its wake, so that its agent goes on with the others in their order. Other rows may tell
of it: its id's, its wake's (author, agent and channel, with which it can be sent again), its
content's. A row that another version of this program wrote is no damage, and is not given up.

Invariants:
    I1  Nothing is read or written for it that could be refused because it cannot be read.
    I2  No turn is begun for a wake of it, whoever is attached before its end is stored.

No actor, no await.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from abeyance.actors.core.logs import Log
from abeyance.storage.codec import encode
from abeyance.storage.errors import StorageError, UnreadableRecordError
from abeyance.storage.store import Append, Chain, Delete, Request, Row, Store
from abeyance.storage.tables.blocks import Block, TextBlock
from abeyance.storage.tables.fields import REASON_CHARS_MAX
from abeyance.storage.tables.kept import MESSAGE_CHARS_MAX, DeadLetter
from abeyance.storage.tables.slots import MessageId, Wake

from .archive_book import pack_message
from .ingress import clean_text
from .slot_again import again_message
from .slot_draft import Draft
from .slot_long import whole
from .slot_rows import find_body

if TYPE_CHECKING:
    from .slot_book import SlotBook

_logger = Log(__name__)

_STEP_ROWS: Final = 128


class Lost(NamedTuple):
    """A message whose waiting row cannot be read, and what other rows say of it."""

    entry: int
    why: UnreadableRecordError
    id: str | None = None
    body_crc: int = 0
    agents: tuple[str, ...] = ()
    """Who has a wake of it."""
    wake: Wake | None = None


def lost_at(entry: int, error: Exception) -> Lost:
    """What a waiting row that cannot be read comes to.

    Raises:
        UnreadableRecordError: Another version wrote it, which can read it.
    """
    if not isinstance(error, UnreadableRecordError) or error.other_version:
        raise error
    return Lost(entry, error)


def find_lost(store: Store, slot: str, lost: dict[int, Lost]) -> Iterator[None]:
    """Look for what else is known of lost messages, a part a step; `lost` is changed in place."""
    for place, (key, row) in enumerate(store.scan("ids", (slot,)), 1):
        if isinstance(row, Row) and row.record.state == "inbox" and row.record.entry in lost:
            entry = row.record.entry
            found = lost[entry]._replace(id=str(key[-1]), body_crc=row.record.body_crc)
            lost[entry] = found
        if place % _STEP_ROWS == 0:
            yield
    for agent in _speakers(store, slot):
        for place, (key, row) in enumerate(store.scan("wakes", (agent,)), 1):
            entry = int(key[-1])
            if entry in lost:
                wake = row.record if isinstance(row, Row) else None
                lost[entry] = lost[entry]._replace(agents=(*lost[entry].agents, agent), wake=wake)
            if place % _STEP_ROWS == 0:
                yield
        yield


def _speakers(store: Store, slot: str) -> list[str]:
    """Who may have been woken in a slot; a slot has its agent's name where nothing says other."""
    rows = store.scan("agents")
    named = [str(key[0]) for key, row in rows if isinstance(row, Row) and row.record.slot == slot]
    return named if slot in named else [*named, slot]


def plan_lost(book: SlotBook, chain: Chain, now_ms: int) -> list[Request]:
    """Plan the end of every message whose waiting row cannot be read, each in a commit."""
    lost, book.lost = book.lost, {}
    return [_end(book, each, chain, now_ms) for each in lost.values()]


def _end(book: SlotBook, lost: Lost, chain: Chain, now_ms: int) -> Request:
    draft = Draft()
    draft.deletes.append(Delete("inbox", (book.slot, lost.entry)))
    draft.deletes += [Delete("wakes", (agent, lost.entry)) for agent in lost.agents]
    reason = clean_text(f"its waiting row cannot be read: {lost.why}", REASON_CHARS_MAX)
    if lost.id is not None:
        dead = MessageId(entry=lost.entry, state="dead", body_crc=lost.body_crc, cause=reason)
        draft.put("ids", (book.slot, lost.id), dead)
    said = find_body(book.store, book.slot, lost.entry)
    words = None if isinstance(said, StorageError) else said
    text = _named(lost, words)
    letter = DeadLetter(
        actor=f"slot:{book.slot}",
        reason=reason,
        message=clean_text(text, MESSAGE_CHARS_MAX),
        body=_packed(lost, words, now_ms),
        at_ms=now_ms,
    )
    draft.appends.append(Append("dead_letters", encode(letter)))
    book.write_lease(draft)
    named = clean_text(_named(lost, None), MESSAGE_CHARS_MAX)
    _logger.warning(
        "%s does not land in slot %r: %s",
        named,
        book.slot,
        reason,
        agent=lost.agents[0] if lost.agents else book.slot,
    )
    return whole(book.request(draft, chain))


def _named(lost: Lost, words: tuple[Block, ...] | None) -> str:
    """The message as a log line and a dead letter name it; where it can't be sent again the letter
    has its words."""
    name = f"message number {lost.entry}" if lost.id is None else f"message {lost.id!r}"
    if lost.wake is not None:
        return f"{name} by {lost.wake.author!r}"
    text = f"{name}, of which nothing says by whom"
    said = [block.text for block in words or () if isinstance(block, TextBlock)]
    return f"{text}: {' '.join(said)!r}" if said else text


def _packed(lost: Lost, words: tuple[Block, ...] | None, now_ms: int) -> bytes | None:
    wake = lost.wake
    if wake is None or words is None or len(lost.agents) != 1:
        return None
    return pack_message(
        again_message(lost.agents[0], wake.author, wake.channel, words, now_ms, wake=True)
    )


def check_kept(lost: Mapping[int, Lost], entry: int) -> None:
    """Refuse what would be done to a message whose end the store has not taken yet.

    Raises:
        UnreadableRecordError: Its waiting row cannot be read.
    """
    if entry in lost:
        raise lost[entry].why
