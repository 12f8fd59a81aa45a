"""Rows that a repair took out of their tables, each kept whole."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from ..store import Record
from .fields import Instant, Name

KEY_BYTES_MAX = 511
"""What the engine takes for a key."""


class SetAside(Record, frozen=True, kw_only=True):
    """One row as it was before a repair changed it, and what the repair put in its place.

    The bytes are the engine's own: of keys and values that nobody can read, too.
    """

    KIND = "set_aside"
    repair: Name
    """Which repair; its rows are put back together."""
    table: Name
    key: Annotated[bytes, Meta(max_length=KEY_BYTES_MAX)]
    raw: bytes | None
    """The value as it was. None: there was no row."""
    placed: bytes | None
    """The value that was put there. None: the row was taken out."""
    problem: Literal["unreadable", "dangling", "sequence", "digest"]
    reason: Annotated[str, Meta(max_length=2_000)]
    """What was wrong."""
    then: Annotated[str, Meta(max_length=1_000)]
    """What its mending means for whatever depends on it."""
    at_ms: Instant
