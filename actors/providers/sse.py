"""Server-sent events out of bytes, as they arrive. Pure; no I/O.

Own code rather than an SDK's decoder: those swallow comments and pings, which feed deadlines, and
raise on an error event from inside generators that nobody then closes.

WHATWG HTML, 9.2.6. Fields other than `event` and `data` are skipped.
"""

from __future__ import annotations

import codecs
import io
from dataclasses import dataclass

EVENT_CHARS_MAX = 32_000_000
"""An event that is longer is refused, so that a stream without line ends cannot fill memory."""


class EventTooLongError(ValueError):
    """A stream sent more than `EVENT_CHARS_MAX` characters without an event's end."""


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event. `name` is empty where the stream gave none."""

    name: str
    data: str


class SseDecoder:
    """Feed it bytes; it returns the events that are complete.

    An event that the stream ends in the middle of is never returned, as the standard has it.
    """

    def __init__(self) -> None:
        utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._text = io.IncrementalNewlineDecoder(utf8, translate=True)
        self._rest = ""
        self._name = ""
        self._data: list[str] = []
        self._chars = 0

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Return the events that these bytes complete.

        Raises:
            EventTooLongError: The event in progress is past its bound; the stream is unusable.
        """
        *lines, self._rest = (self._rest + self._text.decode(data)).split("\n")
        found: list[ServerSentEvent] = []
        for line in lines:
            self._line(line, found)
        if self._chars + len(self._rest) > EVENT_CHARS_MAX:
            raise EventTooLongError(f"an event of more than {EVENT_CHARS_MAX} characters")
        return found

    def _line(self, line: str, found: list[ServerSentEvent]) -> None:
        if not line:
            if self._data:
                found.append(ServerSentEvent(self._name, "\n".join(self._data)))
            self._name, self._data, self._chars = "", [], 0
            return
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            self._name = value
        elif field == "data":
            self._data.append(value)
            self._chars += len(line) + 1  # An empty line of data takes memory too.
