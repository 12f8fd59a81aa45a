"""A message with the trace context it was sent in. Only the kernel sees the pair.

Knows no tracing library: what a context is, is the business of `tracing`.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Traced(NamedTuple):
    """A message, or an item of the internal lane, and the context of its sender."""

    message: Any
    context: Any


def bare(message: Any) -> Any:
    """What was sent, without the context."""
    return message.message if message.__class__ is Traced else message
