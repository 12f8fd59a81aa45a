"""Outboxes: how far what agents said was posted to where it belongs."""

from __future__ import annotations

from ..store import Record
from .fields import Instant, Name, Seq


class Outbox(Record, frozen=True, kw_only=True):
    """An outbox that was begun. Only whoever holds its owner row writes it and its cursors."""

    KIND = "outbox"
    agent: Name | None = None
    """Whose replies it has; None: those of all agents."""
    begun_ms: Instant


class Cursor(Record, frozen=True, kw_only=True):
    """How far one agent's replies in one slot were acknowledged.

    No row is place 0: an agent that came after its outbox was begun is read from its start.
    """

    KIND = "cursor"
    seq: Seq
    """The place in the slot up to which nothing is given again."""
    message: Name | None = None
    """The reply that was acknowledged last; None: where the outbox began."""
    at_ms: Instant
