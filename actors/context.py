"""What a context strategy is told, and what it works with; docs/context.md has the whole."""

from __future__ import annotations

from .domain.compacting import CompactingContext
from .domain.context import (
    CallDeferred,
    ContextDesk,
    ContextEvent,
    ContextStrategy,
    Summary,
    WaitRecorded,
    WaitReleased,
)

__all__ = [
    "CallDeferred",
    "CompactingContext",
    "ContextDesk",
    "ContextEvent",
    "ContextStrategy",
    "Summary",
    "WaitRecorded",
    "WaitReleased",
]
