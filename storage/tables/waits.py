"""What providers stated, by (agent, model). Outside anything a rewind of a slot can touch."""

from __future__ import annotations

from typing import Annotated, Any

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
    hold: Name | None = None
    """The act that began the hold: of waits that took over from one another the first's. None, in
    format 1: this one's own."""
    since_ms: Instant | None = None
    """When that was stated. None, in format 1: `set_ms`."""
    window: Name | None = None
    """The account's usage window that is used up, where the provider named it."""
    of_quota: bool = False
    """Whether a quota is used up: no limit of so many calls a minute."""


class WaitReleased(Record, frozen=True, kw_only=True):
    """A wait that an operator ended. The row stays, so that its counter never comes round.

    Who and when is for people: nothing is decided by it, so whatever stands there, or nothing, is
    no reason to hold the key. Writers put a text of at most 300 characters and an instant.
    """

    KIND = "wait_released"
    by: Any = ""
    at_ms: Any = 0
    act: Name


class Override(Record, frozen=True, kw_only=True):
    """An operator's release of what has no record to release: one that cannot be read, or a hold
    for an exhausted quota. It lapses when the fingerprint of what it names is another. Of what
    could not be read it also lapses once that was read again: its own is `over` then."""

    KIND = "override"
    fingerprint: Name
    by: Annotated[str, Meta(max_length=300)]
    at_ms: Instant
    act: Name


ALERT_CHARS_MAX = 2_000
Episode = Annotated[str, Meta(min_length=1, max_length=200)]
"""What tells one hold, or one time that something could not be read, from the next."""


class Alert(Record, frozen=True, kw_only=True):
    """Something an operator should know: raised once a hold or an episode."""

    KIND = "alert"
    kind: Name
    agent: Name
    model: Name
    text: Annotated[str, Meta(max_length=ALERT_CHARS_MAX)]
    deadline_ms: Instant | None = None
    """When what it tells of ends by itself; None: not at all."""
    episode: Episode
    at_ms: Instant


class Alerted(Record, frozen=True, kw_only=True):
    """The newest episode of a key that an alert was raised for. Its row carries the alert's key."""

    KIND = "alerted"
    episode: Episode


class AlertOwed(Record, frozen=True, kw_only=True):
    """An alert that a sink has not been given yet. Its row carries the alert's key."""

    KIND = "alert_owed"
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
