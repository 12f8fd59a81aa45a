"""The simulator's wire log: what was received and what was sent, kept by neither client nor host.

One JSON object a line. `received` is written and flushed before the first byte of a response
leaves, `replied` when the response is over, so the log stands whatever becomes of the client.

Invariants:
    I1  Lines are whole: each is one `write` and one `flush`.
    I2  No credential is written: headers are those of `HEADERS_KEPT`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from ...core.clock import Clock

HEADERS_KEPT = frozenset(
    {"anthropic-version", "anthropic-beta", "content-type", "user-agent", "x-stainless-retry-count"}
)


@dataclass(slots=True)
class LogEntry:
    """One request and what was sent for it."""

    number: int
    """From 1, in order of arrival; a `replied` line has the number of its `received` line."""
    at_ms: int
    path: str
    headers: dict[str, str]
    request: Any
    """The request's JSON, or None where it was none."""
    status: int | None = None
    """None until the response is over."""
    reply: Any = None
    """The body as sent; of a stream, the message that its events come to."""
    finished: bool = False
    """Whether everything was sent that should be: False for a cut, a stall, a client that left."""
    replied_ms: int | None = None


class WireLog:
    """Entries in memory and, where a path is given, lines on disk. Used in the simulator's task."""

    def __init__(self, clock: Clock, path: Path | None = None) -> None:
        self.entries: list[LogEntry] = []
        self._clock = clock
        self._file = None if path is None else path.open("a", encoding="utf-8")
        self._over: dict[int, trio.Event] = {}

    def received(self, path: str, headers: Iterable[tuple[str, str]], request: Any) -> LogEntry:
        """Record a request before anything is sent for it."""
        entry = LogEntry(
            number=len(self.entries) + 1,
            at_ms=self._clock.now_ms(),
            path=path,
            headers={name: value for name, value in headers if name in HEADERS_KEPT},
            request=request,
        )
        self.entries.append(entry)
        self._write(
            event="received",
            number=entry.number,
            at_ms=entry.at_ms,
            path=path,
            headers=entry.headers,
            request=request,
        )
        return entry

    def replied(self, entry: LogEntry, *, status: int, reply: Any, finished: bool) -> None:
        """Record what was sent, once, when it is over."""
        entry.status, entry.reply, entry.finished = status, reply, finished
        entry.replied_ms = self._clock.now_ms()
        self._write(
            event="replied",
            number=entry.number,
            at_ms=entry.replied_ms,
            status=status,
            reply=reply,
            finished=finished,
        )
        self._over.setdefault(entry.number, trio.Event()).set()

    async def wait_replied(self, number: int) -> LogEntry:
        """Block until the n-th request was received and its response is over. A checkpoint."""
        await self._over.setdefault(number, trio.Event()).wait()
        return self.entries[number - 1]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _write(self, **line: Any) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
