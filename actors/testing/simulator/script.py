"""What a provider simulator answers, as data: rules, or a function of the request.

A script is JSON when the simulator runs as a process, and these same structures in Python:

    [{"when": {"marker": "You are Ana", "nth": 2},
      "then": {"status": 429, "headers": {"retry-after": "7200"}}},
     {"when": {"last_text": "weather", "after_tool": false},
      "then": {"tools": [{"name": "look", "input": {"at": "sky"}}], "hold_in_stream": "mid"}}]

The first rule that matches and is not used up answers. Where none does, the simulator says
`you said: <the last user text>`.

Invariants:
    I1  Unknown fields and wrong types are refused when the script is read, naming the field.
    I2  Counting is by request, from 1, in order of arrival: the same script gives the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

Millis: TypeAlias = Annotated[int, Meta(ge=0)]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Nth: TypeAlias = Annotated[int, Meta(ge=1)]


class SimulatedTool(Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call of a simulated reply. `id` is by default unique for the request and its place."""

    name: str
    input: dict[str, Any] = {}
    id: str | None = None


class Answer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one request comes to.

    A status of 200 makes a message of `thinking`, `text` and `tools`, in that order; any other
    sends `body` (by default an error of the type that the status has on the request's wire). Points
    within a stream are counted in events of that wire: 0 is before the first. `stop_reason`,
    `usage` and `error` are said in the words of Anthropic's wire, and put into those of others.
    """

    text: str | None = None
    thinking: str | None = None
    tools: tuple[SimulatedTool, ...] = ()
    stop_reason: str | None = None
    """By default `tool_use` where there are tools, else `end_turn`."""
    usage: dict[str, int] = {}
    """Laid over counted words; the cache figures come from here."""

    status: Annotated[int, Meta(ge=200, le=599)] = 200
    headers: dict[str, str | list[str]] = {}
    body: dict[str, Any] | str | None = None

    delay_ms: Millis = 0
    """Before the response's head."""
    hold: str | None = None
    """Before the response's head, until this name is released."""
    hold_until: str | None = None
    """Before the response's head, until this file exists."""
    hold_in_stream: str | None = None
    """After the first piece of content, until this name is released."""

    chunk_chars: Annotated[int, Meta(ge=1)] = 16
    chunk_delay_ms: Millis = 0
    pings: Count = 0
    """Ping events behind the first event."""
    keep_alive_ms: Millis = 0
    """While waiting within a stream, a sign of life this often; 0 sends none."""
    keep_alive: Literal["comment", "ping"] = "comment"
    """A wire that has no ping sends a comment."""

    stall_after: Count | None = None
    """Send this many events, then nothing but signs of life, until the client leaves."""
    cut_after: Count | None = None
    """Send this many events, then close the socket."""
    end_after: Count | None = None
    """Send this many events, then end the response as if the message were whole."""
    error_after: Count | None = None
    """Send this many events, then `error` as an SSE error event, and end."""
    error: dict[str, Any] = msgspec.field(
        default_factory=lambda: {"type": "overloaded_error", "message": "Overloaded"}
    )
    linger: bool = False
    """After the message's end, keep the response open until the client leaves."""


class When(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a rule applies. Every condition that is given must hold."""

    marker: str | None = None
    """A text in the system prompt. It tells agents apart: name the agent in its prompt."""
    nth: Nth | None = None
    """The n-th request, counted among those with the marker, or among all without one."""
    model: str | None = None
    last_text: str | None = None
    """A text in the text blocks of the last user message."""
    after_tool: bool | None = None
    """Whether the last user message holds tool results."""


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """An answer and when it is given."""

    then: Answer
    when: When = When()
    times: Nth | None = None
    """How often; by default for ever."""


@dataclass(frozen=True, slots=True)
class WireRequest:
    """A model request as a script sees it, whatever the wire."""

    number: int
    """From 1, in order of arrival."""
    model: str
    system: str
    last_text: str
    after_tool: bool
    json: dict[str, Any]


Script: TypeAlias = Sequence[Rule] | Callable[[WireRequest], Answer]


def read_script(data: bytes | str) -> tuple[Rule, ...]:
    """Read a script's JSON.

    Raises:
        ValueError: It is no JSON or no script; the text names the field.
    """
    return msgspec.json.decode(data, type=tuple[Rule, ...])


class Player:
    """Chooses answers, and counts. One for each simulator."""

    def __init__(self, script: Script) -> None:
        self._choose = script if callable(script) else None
        self._rules = () if callable(script) else tuple(script)
        self._left = [rule.times for rule in self._rules]
        self._seen: dict[str, int] = {}
        self._markers = {rule.when.marker or "" for rule in self._rules}

    def answer(self, request: WireRequest) -> Answer:
        """Return the answer to a request. Call it once a request, in order of arrival."""
        if self._choose is not None:
            return self._choose(request)
        for marker in self._markers:
            if marker in request.system:
                self._seen[marker] = self._seen.get(marker, 0) + 1
        for index, rule in enumerate(self._rules):
            if self._left[index] != 0 and self._matches(rule.when, request):
                left = self._left[index]
                self._left[index] = None if left is None else left - 1
                return rule.then
        return Answer(text=f"you said: {request.last_text}")

    def _matches(self, when: When, request: WireRequest) -> bool:
        marker = when.marker or ""
        return (
            marker in request.system
            and (when.nth is None or when.nth == self._seen.get(marker))
            and (when.model is None or when.model == request.model)
            and (when.last_text is None or when.last_text in request.last_text)
            and (when.after_tool is None or when.after_tool == request.after_tool)
        )
