"""Agents as the store knows them."""

from __future__ import annotations

from typing import Literal

from ..store import Record
from .fields import Instant, Name


class Agent(Record, frozen=True, kw_only=True):
    """An agent's durable settings; what an operator set wins over the host's `AgentSpec`."""

    KIND = "agent"
    kind: Literal["resident"]
    slot: Name
    provider: Name
    model: Name
    created_ms: Instant
