"""The system prompts that an agent's turns carry.

A text is written once, and named by the row of each turn that carries it.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from ..store import Record
from .fields import Instant

PROMPT_BYTES_MAX: Final = 1_000_000


class Prompt(Record, frozen=True, kw_only=True):
    """A system prompt, by the agent's number of it. Never written again; the newest are kept."""

    KIND = "prompt"
    text: Annotated[str, Meta(max_length=PROMPT_BYTES_MAX)]
    made_ms: Instant
