"""What a reading sees of a response, and the parts a reading is made of.

A reading is two tables (see `table`): rows that say what kind of refusal a response is, and rows
that say until when.

Invariants:
    I1  A response is data that was checked once, here: readings never raise on what they look at.
    I2  A signal states nothing where its header or field is absent, empty or malformed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, tzinfo

from abeyance.storage.tables.fields import INSTANT_MS_MAX

from ..grammar import Milliseconds, printable
from ..instants import deadline_ms
from ..stated import WaitScope
from ..windows import UsageWindow
from .documents import Document, documents_of
from .faults import Fault, faults_of

BODY_CHARS_MAX = 1_000_000
"""What is read of a body. No refusal is as long; a reply that was taken for one may be."""

_WORDS_CHARS_MAX = 65_536
"""Of words, so much of the head and as much of the tail: a terminal's last lines are the news."""
_COLOURS = re.compile(r"\x1b\[[0-9;?]{0,40}[ -/]{0,4}[@-~]")
_QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u02bc": "'", "\u00a0": " ", "\u202f": " "})


@dataclass(frozen=True, slots=True)
class Response:
    """One response, normalised."""

    status: int | None
    headers: Mapping[str, tuple[str, ...]]
    """Lower-case names; each line's value, in order, stripped, the empty ones left out."""
    text: str
    documents: tuple[Document, ...]
    faults: tuple[Fault, ...]
    names: frozenset[str]
    """Everything that the errors call themselves, in lower case."""
    words: str
    """Everything that the errors say; typographic quotes and blanks are plain ones."""
    received_ms: int | None
    transport: str
    zone: tzinfo | None = UTC
    """Of clock times that name none; None where the caller named one that does not exist."""

    @property
    def failing(self) -> int | None:
        """The HTTP status that the call failed with: the response's, or the one its error names."""
        if self.status is not None and 400 <= self.status < 600:
            return self.status
        return next((fault.status for fault in self.faults if fault.status is not None), None)

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
    unstated: bool = False
    """A window that is used up and does not say until when. It is longer than one that is over."""


def usage_window(
    name: object,
    used_percent: float | None,
    resets_ms: Milliseconds | None,
    scope: WaitScope | None = None,
) -> Iterator[UsageWindow]:
    """One usage window, where it has a name and tells anything; bounded."""
    cleaned = printable(name, chars_max=64).strip() if isinstance(name, str) else ""
    if resets_ms is not None and not 0 <= resets_ms <= INSTANT_MS_MAX:
        resets_ms = None
    if cleaned and (used_percent is not None or resets_ms is not None):
        yield UsageWindow(
            name=cleaned,
            used_percent=used_percent,
            resets_ms=None if resets_ms is None else int(resets_ms),
            scope=scope,
        )


Signal = Callable[[Response], Iterable[Statement]]


def after(
    response: Response,
    wait_ms: Milliseconds,
    source: str,
    raw: str,
    *,
    window: str | None = None,
    scope: WaitScope | None = None,
) -> Statement:
    """A statement of a duration, counted from the response's arrival.

    Without a usable clock a duration names no instant, so it holds until released.
    """
    if wait_ms <= 0:
        return Statement(response.received_ms or 0, source, raw, True, window, scope)
    ends_ms = None if response.received_ms is None else deadline_ms(response.received_ms, wait_ms)
    return Statement(
        math.inf if ends_ms is None else ends_ms, source, raw, window=window, scope=scope
    )


def normalised(
    *,
    status: object,
    headers: object,
    body: object,
    received_ms: int | None,
    transport: object,
    zone: tzinfo | None = UTC,
) -> Response:
    """Build a response out of whatever a caller has. Never raises on data, whatever its types."""
    raw = bytes(body[:BODY_CHARS_MAX]) if isinstance(body, bytes | bytearray | memoryview) else b""
    text = raw.decode("utf-8", errors="replace") if raw else _text(body)
    usable = isinstance(status, int) and not isinstance(status, bool)
    code = int(status) if usable else None  # type: ignore[call-overload]
    served = code is not None and 200 <= code < 300
    carrier = transport if isinstance(transport, str) else "http"
    documents = tuple(documents_of(text, raw, quoted=carrier == "text" or not served))
    faults = tuple(faults_of(documents, text, served=served))
    said = [fault.message for fault in faults if fault.message]
    if carrier == "text" and documents and not served:
        said.append(text)
    return Response(
        status=code,
        headers=_headers(headers),
        text=text,
        documents=documents,
        faults=faults,
        names=frozenset().union(*(fault.names for fault in faults)),
        words=_words(said),
        received_ms=received_ms,
        transport=carrier,
        zone=zone,
    )


def _words(said: list[str]) -> str:
    words = "\n".join(said)
    if len(words) > 2 * _WORDS_CHARS_MAX:
        words = f"{words[:_WORDS_CHARS_MAX]}\n{words[-_WORDS_CHARS_MAX:]}"
    return _COLOURS.sub("", words).translate(_QUOTES)


def _text(body: object) -> str:
    return body[:BODY_CHARS_MAX] if isinstance(body, str) else ""


def _headers(headers: object) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    try:
        pairs = list(_pairs(headers))
    except Exception:  # noqa: BLE001 - an error's headers may be anything.
        return found
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            continue
        name = _header_text(pair[0]).strip().lower()
        values = pair[1] if isinstance(pair[1], list | tuple) else (pair[1],)
        stripped = tuple(filter(None, (_header_text(value).strip(" \t") for value in values)))
        if name and stripped:
            found[name] = found.get(name, ()) + stripped
    return found


def _pairs(headers: object) -> Iterable[object]:
    # A client's header class joins repeated lines with commas in `items()`, and `30, 60` states
    # nothing where two lines state 60 seconds. So its own list of lines is preferred; that of the
    # standard library's clients is no mapping at all.
    lines = getattr(headers, "multi_items", None) or getattr(headers, "raw_items", None)
    if callable(lines):
        return lines()  # type: ignore[no-any-return]
    if isinstance(headers, Mapping):
        return headers.items()
    return headers if isinstance(headers, list | tuple) else ()


def _header_text(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("latin-1")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    return value if isinstance(value, str) else ""
