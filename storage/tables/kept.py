"""What the actor kernel's ports keep: messages that were not handled, reminders, deliveries."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from ..store import Record
from .fields import Instant, Name, Reason, Seq

ACTOR_CHARS_MAX: Final = 300
MESSAGE_CHARS_MAX: Final = 4_000
TRACEBACK_CHARS_MAX: Final = 8_000
MESSAGE_BYTES_MAX: Final = 262_144
"""A message that takes more is kept as text only."""
REQUESTER_CHARS_MAX: Final = 300

Actor = Annotated[str, Meta(min_length=1, max_length=ACTOR_CHARS_MAX)]
Packed = Annotated[bytes, Meta(max_length=MESSAGE_BYTES_MAX)]
"""A message as one packed value of plain data."""


class EntryOrigin(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The row that a message was replayed from."""

    kind: Literal["dead_letter", "quarantine"]
    seq: Seq


class DeadLetter(Record, frozen=True, kw_only=True):
    """A message that was accepted and will not be handled, with its cause."""

    KIND = "dead_letter"
    actor: Actor
    reason: Reason
    message: Annotated[str, Meta(max_length=MESSAGE_CHARS_MAX)]
    """For a person: what the message prints as, cut off where it is long."""
    body: Packed | None = None
    """None: it could not be stored; only the process that recorded it had it."""
    origin: EntryOrigin | None = None
    replays: Seq = 0
    replayed_by: Annotated[str, Meta(max_length=REQUESTER_CHARS_MAX)] | None = None
    replayed_ms: Instant | None = None
    at_ms: Instant


class Quarantined(Record, frozen=True, kw_only=True):
    """A message that crashed its actor, or ended the process, in its last delivery."""

    KIND = "quarantined"
    actor: Actor
    incarnation: Seq
    deliveries: Seq = 1
    reason: Reason = ""
    """The class of the error."""
    message: Annotated[str, Meta(max_length=MESSAGE_CHARS_MAX)]
    """For a person: what the message prints as, cut off where it is long."""
    body: Packed | None = None
    """None: it could not be stored; only the process that recorded it had it."""
    error: Annotated[str, Meta(max_length=TRACEBACK_CHARS_MAX)]
    """The traceback, its middle left out where it is long."""
    origin: EntryOrigin | None = None
    replays: Seq = 0
    replayed_by: Annotated[str, Meta(max_length=REQUESTER_CHARS_MAX)] | None = None
    replayed_ms: Instant | None = None
    at_ms: Instant


class Reminder(Record, frozen=True, kw_only=True):
    """What an actor is to be told at an instant. Deleted, or moved on, when it was handled."""

    KIND = "reminder"
    due_ms: Instant
    every_ms: Annotated[int, Meta(ge=1)] | None = None
    body: Packed
    set_ms: Instant


class Delivery(Record, frozen=True, kw_only=True):
    """How often an act was delivered in processes that died of it, or with it in flight."""

    KIND = "delivery"
    deliveries: Annotated[int, Meta(ge=1)]
    process: Name
    """The nonce of the opening that died last."""
    at_ms: Instant
