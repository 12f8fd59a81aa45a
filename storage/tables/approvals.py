"""Tool calls that wait for a person's word."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from ..store import Record
from .fields import Instant, Name

INPUT_CHARS_MAX = 2_000
NOTE_CHARS_MAX = 500


class Approval(Record, frozen=True, kw_only=True):
    """One tool call that was not begun, because a person decides whether it is.

    It is asked for as long as its turn is open and it is `waiting`. The row stays, as its call's
    does.
    """

    KIND = "approval"
    id: Name
    """The call's id in the reply."""
    tool: Name
    input: Annotated[str, Meta(max_length=INPUT_CHARS_MAX)]
    """What the tool is called with, as JSON, for whoever decides; cut off where it is longer."""
    state: Literal["waiting", "approved", "denied"] = "waiting"
    otherwise: Literal["approve", "deny"]
    """What counts as decided once the deadline has passed."""
    asked_ms: Instant
    deadline_ms: Instant | None = None
    """None: it waits for as long as nobody decides."""
    by: Annotated[str, Meta(max_length=300)] | None = None
    """Who decided; `deadline`: nobody did in time."""
    note: Annotated[str, Meta(max_length=NOTE_CHARS_MAX)] = ""
    decided_ms: Instant | None = None
