"""A slot's rows: accepted messages, the transcript, and who may write it.

Every message, reply and result of a slot has an entry number: the slot actor allots it, it is
never reused, and gaps are allowed. The transcript's own order is the slot's sequence.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from ..store import Record
from .blocks import Blocks
from .fields import Instant, Name, Reason, Seq


class Body(Record, frozen=True, kw_only=True):
    """The content of one entry, written once at acceptance. Moving a message moves references."""

    KIND = "body"
    blocks: Blocks


class MessageId(Record, frozen=True, kw_only=True):
    """Where a message is; what makes `send(id=...)` the same message twice."""

    KIND = "message_id"
    entry: Seq
    state: Literal["inbox", "slot", "dead", "rewound", "removed", "replaced", "retracted"]
    """`rewound`: a rewind took it out of the slot, and its content is gone. `removed`: an edit took
    it out. `replaced`: a newer message of its subject has its number, and its place. `retracted`:
    it was taken back."""
    seq: Seq | None = None
    """Its place in the slot, when it is there."""
    body_crc: Seq
    """Tells a retry from another message under the same id."""
    cause: Reason | None = None
    """Why it is `dead`."""
    by: Name | None = None
    """The message that replaced it."""


class Inboxed(Record, frozen=True, kw_only=True):
    """An accepted message that is not in the slot yet."""

    KIND = "inboxed"
    message: Name
    author: Name
    agent: Name
    channel: Name | None = None
    subject: Name | None = None
    """A newer message of this author, channel and subject takes its place until it is read."""
    wake: bool
    injectable: bool
    """False: carries tool blocks, is named as the agent, or was sent so; it waits for the turn's
    end."""
    joins: bool = True
    """False: whoever sent it said that it may not join a live turn."""
    own: bool
    """Named as the agent itself: it renders as the agent's words."""
    body_crc: Seq
    body_bytes: Seq
    accepted_ms: Instant


class Entry(Record, frozen=True, kw_only=True):
    """One row of the transcript that requests are compiled from."""

    KIND = "entry"
    entry: Seq
    message: Name
    author: Name
    agent: Name | None = None
    """Whom it was sent to, where that is not the agent whose slot it is."""
    role: Literal["user", "assistant", "results", "marker"]
    """`results` are tool results; a `marker` is for readers and is never sent to a provider."""
    channel: Name | None = None
    """Where a message was sent; of a reply, where it belongs."""
    subject: Name | None = None
    turn: Seq | None = None
    round: Seq | None = None
    at_ms: Instant
    origin: Name | None = None
    """The slot whose body `entry` names, where the row was taken over by a fork."""
    edited: Seq | None = None
    """The number of the edit whose words it has, under which their body is in this row's slot."""
    recast: bool = False
    """Taken over by a fork: it was written behind other words than stand before it there."""


def body_key(slot: str, entry: Entry) -> tuple[str, int]:
    """Where the content of a slot's row is."""
    if entry.edited is not None:
        return slot, entry.edited
    return entry.origin or slot, entry.entry


class Cut(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rewind of a slot: rows that are part of the transcript no more, and are deleted later.

    Cuts may overlap: a later one reaches back over an earlier one. Until it is pruned it can be
    undone, the last one first.
    """

    first: Seq
    last: Seq
    rows: tuple[tuple[Seq, Seq], ...]
    """Which rows in it a request would have carried, as inclusive ranges."""
    answerable: bool
    """Whether what is left ends in something to answer: not in the agent's own words."""
    pruned: Seq | None = None
    """Its rows up to this place are deleted."""
    act: Name
    by: Annotated[str, Meta(max_length=300)]
    at_ms: Instant


class Lease(Record, frozen=True, kw_only=True):
    """The head of a slot: its live turn, its open tool gap, its next numbers. Never deleted.

    `entry_next` and `seq_next` bind together with the last rows of inbox and slot: the next number
    is the larger. So an acceptance need not write this row, and whatever deletes rows does.
    """

    KIND = "lease"
    token: Seq
    """Rises with each grant; what an old holder sends is refused by it."""
    agent: Name | None = None
    turn: Seq | None = None
    gap: Seq | None = None
    """The round whose tool gap is open: only that turn's results may enter the slot."""
    entry_next: Seq
    seq_next: Seq
    request_next: Seq
    read: tuple[tuple[Seq, Seq], ...] = ()
    """What requests carried that were sent, or may have been, as inclusive ranges in order. They
    may span markers, which no request carries, and places whose rows are gone."""
    cuts: tuple[Cut, ...] = ()
    """The rewinds whose rows are not all deleted, or may be in the last `carried`; oldest first."""


class Carried(Record, frozen=True, kw_only=True):
    """Exactly which rows of the slot one request carries, as inclusive ranges of its sequence.

    A range may span markers, which no request carries, and places whose rows are gone: so the
    ranges are few, however long the slot is.
    """

    KIND = "carried"
    agent: Name
    turn: Seq
    round: Seq
    rows: tuple[tuple[Seq, Seq], ...]
    context: Seq | None = None
    """Those up to this place are carried by what stands for them (table `contexts`)."""
    sent: bool | None
    """False: written before the call; true once the call was settled as sent. None: who made it
    died before it said, and it may have been."""


class Wake(Record, frozen=True, kw_only=True):
    """A durable request for a turn. Deleted by the commit that answers it."""

    KIND = "wake"
    reason: Literal["message", "operator", "stopped"]
    """`stopped`: a turn that a stop ended gave its wakes back as one."""
    author: Name
    message: Name | None = None
    channel: Name | None = None
    at_ms: Instant


class Held(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What stops a held turn. The instant is read from the wait it names, never copied.

    Of `cooldown` and `host` nothing else is stored: they are over with their process. So it is of
    `context`: its request was too long, and it waits until the older part is summed up. Of
    `approval` the rows of the calls that wait say until when; its tool gap is open, and it keeps
    the lease.
    """

    agent: Name
    model: Name
    cause: Literal["wait", "quota", "cooldown", "host", "approval", "context"]
    window: Name | None = None
    """Of `quota`, which has no wait of its own: the account's usage window that is used up, where
    the provider named it. Left out where it is None, as it was before there was one."""


class Head(Record, frozen=True, kw_only=True):
    """Where an agent's turns stand; one row an agent, never deleted."""

    KIND = "head"
    last_turn: Seq
    open_turn: Seq | None = None
    open_pair: Seq | None = None
    """An operator's tool pair that has its call and not its result."""


class Arrival(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages in a row, of one channel, that a turn answers."""

    channel: Name | None
    first: Seq
    last: Seq
    """Entries; those between them are of this channel where the turn answers them."""


class Turn(Record, frozen=True, kw_only=True):
    """One turn: from its wakes to its last reply."""

    KIND = "turn"
    slot: Name
    state: Literal["running", "held", "done", "failed", "cancelled"]
    round: Seq
    """Rounds recorded so far."""
    attempts: Annotated[int, Meta(ge=1)]
    """Lives of this turn's task; raised before each resume after a crash."""
    failures: Seq = 0
    """Provider calls of this turn that failed."""
    held: Held | None = None
    provider: Name
    model: Name
    injects: bool | None = None
    """Whether its adapter carries messages into the live turn."""
    pair: Name | None = None
    """No turn but an operator's tool pair: the id of its call's row. It asks no model."""
    answers: tuple[Seq, ...] = ()
    """Entries of the wakes this turn answers."""
    arrivals: tuple[Arrival, ...] = ()
    """Where they came from, in the order of `answers`: the latest channel is the reply's."""
    context: Seq | None = None
    """Up to which place its requests carry what stands for the rows; None: they carry all rows.
    The same for all requests of one compile."""
    compiled_round: Seq = 0
    """The round that this compile began behind; those up to it may be of another."""
    prompt: Seq | None = None
    """The number of the system prompt (table `prompts`) that the requests of this compile carry.
    0: they carry none. None: it was not decided before a call could be made."""
    outgrown: bool = False
    """A request of its was too long for the model, and it was compiled anew for that once."""
    started_ms: Instant
    ended_ms: Instant | None = None
    given_back: bool = False
    """It was ended early, and the next turn answers what it was to answer."""
    cancelled_by: Annotated[str, Meta(max_length=300)] | None = None
    """Who asked for its end. Written before it is ended; whoever takes it up ends it."""
    error: Annotated[str, Meta(max_length=2_000)] | None = None
    failure: Name | None = None
    """The code of the error that a provider's call failed with: `provider_stalled`, say."""
    trace: Annotated[str, Meta(max_length=64)] | None = None
    """Where the span of its latest life is, as a W3C traceparent; None where nobody traced it."""


class ToolCall(Record, frozen=True, kw_only=True):
    """One tool call: started, then done. Started and not done after a death is in doubt."""

    KIND = "tool_call"
    id: Name
    name: Name
    state: Literal["started", "done", "unknown"]
    is_error: bool = False
    result: Blocks | None = None
    late: Blocks | None = None
    """What came back after the turn had stopped waiting; recorded, never sent."""
    started_ms: Instant
    ended_ms: Instant | None = None
