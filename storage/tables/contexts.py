"""What stands in an agent's requests in place of the older rows of a slot.

Derived from rows that stay where they are: one that is lost or damaged costs a longer request, and
no content.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from ..store import Record
from .fields import Instant, Name, Seq

CONTEXT_CHARS_MAX: Final = 1_000_000


class Context(Record, frozen=True, kw_only=True):
    """What stands for the rows from `first` up to the place in its key. Never written again.

    It holds for as long as the row at that place is part of the transcript: a rewind cuts off the
    end of a slot, so that one which takes out any of the rows takes out the last, too. And for as
    long as none of the rows was edited since they were read.
    """

    KIND = "context"
    first: Seq
    text: Annotated[str, Meta(max_length=CONTEXT_CHARS_MAX)]
    """Sent as one message of a user ahead of the rows behind; where it is empty, nothing is."""
    strategy: Name
    """The class of the strategy that kept it."""
    made_ms: Instant
    revision: Seq = 0
    """The number of the last edit of the slot before its rows were read; 0 before the first."""
