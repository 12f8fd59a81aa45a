"""What the simulator asks of a wire, and which wire is spoken at which path.

A wire is a module of pure functions: requests in, messages and events out. Requests are checked as
the real service checks them, as far as an agent's transcript can break its rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from . import anthropic_wire, openai_chat_wire, openai_responses_wire
from .script import Answer, WireRequest

Event: TypeAlias = tuple[str, Any]
"""An event's name ("" where the wire names none) and its data: JSON, or a text sent as it is."""


class Wire(Protocol):
    """A provider's wire."""

    PING: Event | None
    """An event that says nothing; None where the wire has none."""

    def parse(self, number: int, body: dict[str, Any], /) -> WireRequest:
        """What a script matches on, out of a request that was checked."""

    def refusal(self, body: dict[str, Any], /) -> str | None:
        """What the service would refuse a request for, or None."""

    def message(self, number: int, request: WireRequest, answer: Answer, /) -> dict[str, Any]:
        """The complete message that an answer comes to."""

    def events(self, whole: dict[str, Any], answer: Answer, /) -> Iterator[Event]:
        """The events of a message, its texts cut into pieces of `chunk_chars`."""

    def is_content(self, event: Event, /) -> bool:
        """Whether an event carries a piece of content."""

    def error_event(self, error: dict[str, Any], /) -> Event:
        """An error within a stream."""

    def folded(self, sent: Sequence[Event], /) -> dict[str, Any]:
        """The message that a client can know after these events."""

    def error_body(self, status: int, text: str, /) -> dict[str, Any]:
        """An error as a whole response."""


WIRES: Mapping[str, Wire] = {
    "/v1/messages": anthropic_wire,
    "/v1/messages/count_tokens": anthropic_wire,
    "/v1/chat/completions": openai_chat_wire,
    "/v1/responses": openai_responses_wire,
}


def sse(event: Event) -> bytes:
    """An event as server-sent events have it."""
    name, data = event
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()
