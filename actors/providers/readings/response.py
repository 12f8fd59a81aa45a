"""What a reading sees of a response, and the parts a reading is made of.

A reading is a table of signals and a function from a response to a verdict. The verdict says what
kind of refusal it is; the signals say until when; the reader joins the two.

Invariants:
    I1  A response is data that was checked once, here: readings never raise on what they look at.
    I2  A signal states nothing where its header or field is absent, empty or malformed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..grammar import Milliseconds
from ..stated import WaitKind, WaitScope

BODY_CHARS_MAX = 1_000_000
"""What is read of a body. No refusal is as long; a reply that was taken for one may be."""

_LINE_END = re.compile(r"[\r\n]+")


@dataclass(frozen=True, slots=True)
class Response:
    """One response, normalised."""

    status: int | None
    headers: Mapping[str, tuple[str, ...]]
    """Lower-case names; each line's value, in order, stripped, the empty ones left out."""
    text: str
    documents: tuple[dict[str, Any], ...]
    """The JSON objects of the body: the whole of it, or the data of each event of a stream."""
    received_ms: int | None
    transport: str

    @property
    def served(self) -> bool:
        """Whether the status says that the call went through; an error may still follow it."""
        return self.status is not None and 200 <= self.status < 300

    def values(self, name: str) -> tuple[str, ...]:
        return self.headers.get(name, ())

    def value(self, name: str) -> str:
        """The last line of a header, or an empty text."""
        values = self.headers.get(name)
        return values[-1] if values else ""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a response: an instant, rounded up, or `math.inf` (until released)."""

    at_ms: Milliseconds
    source: str
    raw: str
    over: bool = False
    """Stated as already past, whatever the clock says."""
    window: str | None = None
    scope: WaitScope | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What kind of refusal a response is. `kind` OTHER: none, but what it states is kept."""

    kind: WaitKind
    scope: WaitScope | None = None
    window: str | None = None
    statements: tuple[Statement, ...] = field(default=())

    @property
    def limited(self) -> bool:
        return self.kind is not WaitKind.OTHER


Signal = Callable[[Response], Iterable[Statement]]


@dataclass(frozen=True, slots=True)
class Reading:
    """How one provider's responses are read."""

    name: str
    judge: Callable[[Response], Verdict]
    recognises: Callable[[Response], bool] = lambda _response: False
    """Whether a response is this provider's beyond doubt, where the caller did not say."""


def normalised(
    *,
    status: object,
    headers: object,
    body: object,
    received_ms: int | None,
    transport: object,
) -> Response:
    """Build a response out of whatever a caller has. Never raises on data, whatever its types."""
    text = _text(body)
    usable = isinstance(status, int) and not isinstance(status, bool)
    return Response(
        status=int(status) if usable else None,  # type: ignore[call-overload]
        headers=_headers(headers),
        text=text,
        documents=tuple(_documents(text)),
        received_ms=received_ms,
        transport=transport if isinstance(transport, str) else "http",
    )


def _text(body: object) -> str:
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body[:BODY_CHARS_MAX]).decode("utf-8", errors="replace")
    return body[:BODY_CHARS_MAX] if isinstance(body, str) else ""


def _headers(headers: object) -> dict[str, tuple[str, ...]]:
    # A client's header class joins repeated lines with commas in `items()`, and `30, 60` states
    # nothing where two lines state 60 seconds. So its own list of lines is preferred.
    lines = getattr(headers, "multi_items", None)
    pairs: Iterable[object]
    if callable(lines):
        pairs = lines()
    elif isinstance(headers, Mapping):
        pairs = headers.items()
    elif isinstance(headers, list | tuple):
        pairs = headers
    else:
        return {}
    found: dict[str, tuple[str, ...]] = {}
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            continue
        name = _header_text(pair[0]).strip().lower()
        values = pair[1] if isinstance(pair[1], list | tuple) else (pair[1],)
        stripped = tuple(filter(None, (_header_text(value).strip(" \t") for value in values)))
        if name and stripped:
            found[name] = found.get(name, ()) + stripped
    return found


def _header_text(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("latin-1")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    return value if isinstance(value, str) else ""


def _documents(text: str) -> Iterable[dict[str, Any]]:
    whole = _json_object(text)
    if whole is not None:
        yield whole
        return
    data: list[str] = []
    # Not `splitlines`: it also splits at separators that JSON may hold as they are.
    for line in (*_LINE_END.split(text), ""):
        if line.startswith("data:"):
            data.append(line[5:])
        elif not line and data:
            # An event's data may stand on several lines; a sender may also leave out the blank
            # line between events, and then each line is a document.
            event = _json_object("\n".join(data))
            found = [_json_object(each) for each in data] if event is None else [event]
            yield from (each for each in found if each is not None)
            data = []


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # A deep nesting exhausts the stack, not the parser.
        return None
    return value if isinstance(value, dict) else None
