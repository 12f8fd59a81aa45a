"""What providers stated, by (agent, model). Outside anything a rewind of a slot can touch."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ..store import Record
from .fields import Instant, Name, Reason, Seq


class Wait(Record, frozen=True, kw_only=True):
    """A provider's stated wait."""

    KIND = "wait"
    deadline_ms: Instant | None
    """None: has no end of its own; an operator releases it."""
    reason: Reason
    set_ms: Instant
    act: Name


class WaitReleased(Record, frozen=True, kw_only=True):
    """A wait that an operator ended. The row stays, so that its counter never comes round."""

    KIND = "wait_released"
    by: Annotated[str, Meta(max_length=300)]
    at_ms: Instant
    act: Name


class Alert(Record, frozen=True, kw_only=True):
    """Something an operator should know: raised once a hold or an episode."""

    KIND = "alert"
    kind: Name
    agent: Name
    model: Name
    text: Annotated[str, Meta(max_length=2_000)]
    at_ms: Instant


class LogLine(Record, frozen=True, kw_only=True):
    """One act, for history. A boot never replays it."""

    KIND = "log_line"
    event: Name
    agent: Name | None = None
    model: Name | None = None
    turn: Seq | None = None
    text: Annotated[str, Meta(max_length=2_000)] = ""
    at_ms: Instant
