"""The simulator's wire log as the audit reads it: calls, their replies, and what they carried.

Pure but for reading the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .play import blocks_of


@dataclass(slots=True)
class WireCall:
    """One model request and what was sent for it."""

    number: int
    at_ms: int
    request: dict[str, Any]
    status: int | None = None
    """None where the log ends before the response does."""
    reply: dict[str, Any] | None = None
    finished: bool = False
    replied_ms: int | None = None

    @property
    def model(self) -> str:
        return str(self.request["model"])

    @property
    def answered(self) -> bool:
        """Whether a whole reply was sent; whether it was received is the client's to say."""
        return self.status == 200 and self.finished

    @property
    def carried(self) -> list[tuple[str, str]]:
        """What the request carries, flat: (role, block) in order, in a form that compares.

        The boundaries between messages of one role are not the wire's to keep: the service joins
        such messages.
        """
        return [
            (message["role"], canonical(block))
            for message in self.request["messages"]
            for block in blocks_of(message)
        ]

    @property
    def texts(self) -> list[str]:
        """The user texts that the request carries, in order."""
        return [
            block["text"]
            for message in self.request["messages"]
            if message["role"] == "user"
            for block in blocks_of(message)
            if block["type"] == "text"
        ]

    @property
    def replied(self) -> list[tuple[str, str]]:
        """The blocks of the reply, in the form of `carried`."""
        content = (self.reply or {}).get("content", ()) if self.answered else ()
        return [("assistant", canonical(block)) for block in content]


def canonical(block: dict[str, Any]) -> str:
    """A block in a form that compares. Cache marks move with the adapter; they are left out."""
    kept = {name: value for name, value in block.items() if name != "cache_control"}
    if isinstance(kept.get("content"), str):
        kept["content"] = [{"type": "text", "text": kept["content"]}]
    if kept.get("is_error") is False:
        del kept["is_error"]
    return json.dumps(kept, sort_keys=True, ensure_ascii=False)


def read_calls(log: Path) -> list[WireCall]:
    """Read a wire log whole, in order of arrival. A last line that is cut is ignored."""
    calls: dict[int, WireCall] = {}
    for line in Tail(log).lines():
        if line["event"] == "received":
            calls[line["number"]] = WireCall(line["number"], line["at_ms"], line["request"])
        elif line["event"] == "replied":
            call = calls[line["number"]]
            call.status, call.finished = line["status"], line["finished"]
            call.reply = line["reply"] if isinstance(line["reply"], dict) else None
            call.replied_ms = line["at_ms"]
    return list(calls.values())


class Tail:
    """The lines of a JSON-lines file that another process appends to, as they become whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def lines(self) -> Iterator[dict[str, Any]]:
        """The whole lines since the last time. A last line that is cut is left for the next."""
        if not self._path.exists():
            return
        with self._path.open("rb") as stream:
            stream.seek(self._position)
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                self._position += len(line)
                yield json.loads(line)
