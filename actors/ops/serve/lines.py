"""Who a line of standard input is for, and how what an agent says is printed. Pure.

    ana: hello            to ana
    hello                 to whom the line before went; at first, to the only agent

Invariants:
    I1  A line goes to nobody but who is named, or was named last: a misspelled name is refused,
        and a text that begins like one needs its addressee before it (`ana: note: ...`).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import asdict
from typing import Any, NamedTuple

from abeyance.actors.domain.ingress import clean_text
from abeyance.actors.domain.streaming import (
    StreamDelta,
    StreamItem,
    StreamSkipped,
    StreamStored,
    StreamSuperseded,
)

_ADDRESSED = re.compile(r"\s*(?P<name>[^\s:]+):(?:\s+|$)(?P<text>.*)", re.DOTALL)


class Line(NamedTuple):
    """A line, and whom it is for."""

    agent: str
    text: str


class UnaddressedError(ValueError):
    """Nobody is named. The text says who there is."""


class Addresses:
    """Tells whom lines are for, one after the other."""

    def __init__(self, agents: Collection[str]) -> None:
        self._agents = agents
        self._last = next(iter(agents)) if len(agents) == 1 else None

    def read(self, line: str) -> Line | None:
        """Return whom a line is for; None for a blank one.

        Raises:
            UnaddressedError: Nobody, or somebody who is not there.
        """
        if not line.strip():
            return None
        match = _ADDRESSED.match(line)
        if match is not None and match["name"] in self._agents:
            self._last = match["name"]
            text = match["text"].strip()
            return Line(self._last, text) if text else None
        if match is not None or self._last is None:
            said = f"no agent {match['name']!r} here" if match else "for whom is it?"
            known = ", ".join(self._agents)
            raise UnaddressedError(
                f"{said}; nothing was sent; begin a line with a name and a colon: {known}"
            )
        return Line(self._last, line.strip())


class Printer:
    """What streams come to on a terminal. Pieces of several agents never share a line."""

    def __init__(self) -> None:
        self._open: str | None = None
        """Whose reply stands at the cursor."""
        self._streamed: dict[tuple[str, int, int], str] = {}

    def shown(self, agent: str, item: StreamItem) -> str:
        """The text that an item adds to what was printed; often nothing."""
        match item:
            case StreamDelta(turn, round_, _, "text", _, text):
                key = (agent, turn, round_)
                self._streamed[key] = self._streamed.get(key, "") + text
                head = "" if self._open == agent else f"{self._break()}{agent}> "
                self._open = agent
                return head + _clean(text)
            case StreamSuperseded(turn, round_):
                if self._streamed.pop((agent, turn, round_), None) is None:
                    return ""
                return f"{self._break()}{agent}: what was said last does not count\n"
            case StreamSkipped():
                return ""  # What counts comes whole.
            case StreamStored():
                return self._stored(agent, item)
        return ""  # Of reasoning and of tools nothing is shown.

    def note(self, text: str) -> str:
        """A line of its own."""
        return f"{self._break()}{text}\n"

    def _stored(self, agent: str, item: StreamStored) -> str:
        message = item.message
        if message.role == "marker":
            return self.note(f"{agent}: {_clean(message.text)}")
        if message.role != "assistant" or message.turn is None or message.round is None:
            return ""
        streamed = self._streamed.pop((agent, message.turn, message.round), "")
        if streamed == message.text:
            return self._break()
        return f"{self._break()}{agent}> {_clean(message.text)}\n"

    def _break(self) -> str:
        was, self._open = self._open, None
        return "" if was is None else "\n"


def as_json(agent: str, item: StreamItem) -> dict[str, Any]:
    """An item as one line of JSON."""
    match item:
        case StreamStored(message):
            return {
                "kind": "stored",
                "agent": agent,
                "id": message.id,
                "author": message.author,
                "role": message.role,
                "turn": message.turn,
                "round": message.round,
                "text": message.text,
            }
        case StreamDelta() | StreamSuperseded():
            kind = "delta" if isinstance(item, StreamDelta) else "superseded"
            fields = asdict(item)
            fields["of"] = fields.pop("kind", None)
            return {"kind": kind, "agent": agent, **fields, "attempt": list(item.attempt)}
        case StreamSkipped(count):
            return {"kind": "skipped", "agent": agent, "count": count}


def _clean(text: str) -> str:
    """A text without what steers a terminal, its line ends kept."""
    return "\n".join(clean_text(line, len(line) + 1) for line in text.split("\n"))
