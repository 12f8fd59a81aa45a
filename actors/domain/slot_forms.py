"""The forms that a message takes: accepted, in the inbox, in the slot, by its id. No actor.

Runs in: any thread; nothing here reads or changes a slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from abeyance.storage.codec import encode
from abeyance.storage.store import Delete, Guard, Put
from abeyance.storage.tables.slots import Entry, Inboxed, MessageId, Wake

from .slot_messages import Accept


class Moved(NamedTuple):
    """A message on its way from the inbox into the slot."""

    entry: int
    seq: int
    row: Inboxed
    words: int = 1
    """The counter of its content's row."""


def inboxed(accept: Accept) -> Inboxed:
    """An accepted message as the inbox has it."""
    return Inboxed(
        message=accept.message,
        author=accept.author,
        agent=accept.agent,
        channel=accept.channel,
        subject=accept.subject,
        wake=accept.wake,
        injectable=accept.joins and not accept.own,
        joins=accept.joins,
        own=accept.own,
        body_crc=accept.body_crc,
        body_bytes=len(accept.body.body),
        accepted_ms=accept.at_ms,
    )


def wake_of(accept: Accept) -> Wake | None:
    """The request for a turn that an accepted message is."""
    if not accept.wake:
        return None
    return Wake(
        reason="message",
        author=accept.author,
        message=accept.message,
        channel=accept.channel,
        at_ms=accept.at_ms,
    )


def placed(slot: str, entry: int, row: Inboxed) -> Entry:
    """A row of the inbox as the slot has it."""
    return Entry(
        entry=entry,
        message=row.message,
        author=row.author,
        agent=None if row.agent == slot else row.agent,
        role="assistant" if row.own else "user",
        channel=row.channel,
        subject=row.subject,
        at_ms=row.accepted_ms,
    )


def accepted_rows(
    slot: str, accept: Accept, row: Inboxed, entry: int, seq: int | None, wake: Wake | None
) -> tuple[Put, ...]:
    """What an accepted message is stored as; without a place in the slot it waits in the inbox."""
    place = (slot, entry)
    if seq is not None:
        landed = Put("slots", (slot, seq), encode(placed(slot, entry, row)))
    else:
        landed = Put("inbox", place, encode(row))
    known = MessageId(
        entry=entry,
        state="inbox" if seq is None else "slot",
        seq=seq,
        body_crc=accept.body_crc,
    )
    # Rows of one key side by side: the store encodes a key once where it follows itself.
    puts: tuple[Put, ...] = (
        Put("ids", (slot, accept.message), encode(known)),
        Put("bodies", place, accept.body),
        landed,
    )
    if wake is None:
        return puts
    agent = accept.agent
    return (*puts, Put("wakes", place if agent == slot else (agent, entry), encode(wake)))


def moving_rows(slot: str, moved: Iterable[Moved]) -> Iterator[Guard | Put | Delete]:
    """What moves messages into the slot, if their content is there and can be read."""
    for entry, seq, row, words in moved:
        yield Guard("bodies", (slot, entry), words)
        yield Delete("inbox", (slot, entry))
        yield Put("slots", (slot, seq), encode(placed(slot, entry, row)))
        known = MessageId(entry=entry, state="slot", seq=seq, body_crc=row.body_crc)
        yield Put("ids", (slot, row.message), encode(known))
