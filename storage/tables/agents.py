"""Agents as the store knows them: residents, and the two kinds that end."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from ..store import Record
from .fields import Instant, Name, Seq


class Chosen(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model that an operator chose for an agent."""

    model: Name
    provider: Name | None = None
    """The name under which a host adds the provider; None: the specification's."""
    by: Annotated[str, Meta(max_length=300)]
    at_ms: Instant


class Agent(Record, frozen=True, kw_only=True):
    """An agent's durable settings; what an operator set wins over the host's `AgentSpec`."""

    KIND = "agent"
    kind: Literal["resident", "conversation", "ephemeral"]
    slot: Name
    provider: Name
    model: Name
    parent: Name | None = None
    """Of a conversation agent: whose slot its own was forked from."""
    created_ms: Instant
    chosen: Chosen | None = None
    """Wins over what the host says, `provider` and `model`, until it is taken back."""
    ended_ms: Instant | None = None
    """When it was disposed of. Its slot and its waits stay; nothing of it runs."""


class Conversation(Record, frozen=True, kw_only=True):
    """The conversation agent of one agent and channel. The row stays when it is closed."""

    KIND = "conversation"
    agent: Name
    """The conversation agent's own name; the next one of this channel has another."""
    base_seq: Seq
    """The last row of the parent's slot that its own begins with."""
    state: Literal["forking", "open", "closed"]
    """`forking`: rows are being taken over; it is not started until all are."""
    opened_ms: Instant


class Sharer(Record, frozen=True, kw_only=True):
    """An agent that speaks in a slot of another name. Never deleted: its rows may be there."""

    KIND = "sharer"
    since_ms: Instant


class Ephemeral(Record, frozen=True, kw_only=True):
    """An ephemeral run that has not ended; what a boot finds here, a death ended."""

    KIND = "ephemeral"
    started_ms: Instant
