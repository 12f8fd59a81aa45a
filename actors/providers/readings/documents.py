"""The JSON objects of a body, whatever carries them: whole, in a stream's events, in lines, in
binary frames, or quoted within a text. Pure.

Invariants:
    I1  Nothing raises, and the time is bounded by the size of the body: a nesting deeper than the
        stack, a number of a million digits and half a frame are all read as nothing.
    I2  A number that does not fit is read as infinite, never as absent.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

from ..grammar import number

_DIGITS_MAX = 400
_OF_A_WAIT = re.compile(r"retry|reset|delay|seconds|nanos", re.IGNORECASE)
_QUOTED_MAX = 8
_EVENTS_MAX = 4_000
"""Of a stream's events, so many of the first and as many of the last: an error ends a stream."""
_FRAME = struct.Struct(">II")
_T = TypeVar("_T")


class Document(NamedTuple):
    """One JSON object, and the name of the event it came in, or an empty text."""

    event: str
    data: dict[str, Any]


def documents_of(text: str, raw: bytes, *, quoted: bool) -> Iterator[Document]:
    """Yield the objects of a body.

    Args:
        text: The body as text.
        raw: The body as it arrived where it arrived as bytes; for binary frames.
        quoted: Whether objects that stand within other text are looked for.
    """
    frames = list(_frames(raw))
    if frames:
        yield from frames
        return
    whole = json_value(text)
    if whole is not None:
        each = whole if isinstance(whole, list) else [whole]
        yield from (Document("", one) for one in each if isinstance(one, dict))
        return
    found = False
    for document in _events(text):
        found = True
        yield document
    if not found and quoted:
        yield from _quoted(text)


def json_value(text: str) -> Any:
    """Return what a JSON text says, or None where it is none."""
    try:
        return json.loads(text, parse_int=_integer, object_pairs_hook=_object)
    except (ValueError, RecursionError):  # A deep nesting exhausts the stack, not the parser.
        return None


def _integer(digits: str) -> int | float:
    # `int()` refuses more than 4,300 digits, and what is as long is beyond any instant anyway.
    if len(digits) <= _DIGITS_MAX:
        return int(digits)
    return -math.inf if digits.startswith("-") else math.inf


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. JSON leaves open which of two values of one key holds, and the last may be the
    shorter of two waits: of numbers the larger is kept, and objects are put together. What else a
    key that speaks of a wait holds is dropped where it differs; of other keys the last value is
    kept."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        found[key] = _either(key, found[key], value) if key in found else value
    return found


def _either(key: str, one: Any, other: Any) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        return _object([*one.items(), *other.items()])
    lengths = [number(each, unit_ms=1_000) for each in (one, other)]
    if lengths[0] is not None and lengths[1] is not None:
        return one if lengths[0] > lengths[1] else other
    return None if _OF_A_WAIT.search(key) is not None and one != other else other


def _kept(found: list[_T]) -> list[_T]:
    few = len(found) <= 2 * _EVENTS_MAX
    return found if few else found[:_EVENTS_MAX] + found[-_EVENTS_MAX:]


def _events(text: str) -> Iterator[Document]:
    """Of a server-sent stream, and of lines that are objects each."""
    found: list[tuple[str, list[str]]] = []
    event, data = "", list[str]()
    # Not `splitlines`: it also splits at separators that JSON may hold as they are.
    for line in (*text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), ""):
        if line.startswith("data:"):
            data.append(line[5:])
        elif line.startswith("event:"):
            event = line[6:].strip()
        elif line.startswith("{"):
            found.append(("", [line]))
        elif not line and data:
            found.append((event, data))
            event, data = "", []
    for event, data in _kept(found):
        joined = json_value("\n".join(data))
        # A sender may leave out the blank line between events: then each line is a document.
        for value in [joined] if joined is not None else map(json_value, _kept(data)):
            if isinstance(value, dict):
                yield Document(event, value)


def _quoted(text: str) -> Iterator[Document]:
    """`API Error: 429 {"type":"error", ...}`: objects that stand within a text."""
    decoder = json.JSONDecoder(parse_int=_integer, object_pairs_hook=_object)
    position = 0
    for _ in range(_QUOTED_MAX):
        position = text.find("{", position)
        if position < 0:
            return
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            position += 1
            continue
        if isinstance(value, dict):
            yield Document("", value)


def _frames(raw: bytes) -> Iterator[Document]:
    """`application/vnd.amazon.eventstream`: length-prefixed frames with headers and a payload.

    A checksum is not looked at: what a damaged frame can do is to state nothing.
    """
    places: list[tuple[int, int, int]] = []
    position = 0
    while position + 16 <= len(raw):
        total, headers = _FRAME.unpack_from(raw, position)
        if not 16 <= total <= len(raw) - position or headers > total - 16:
            break
        places.append((position, total, headers))
        position += total
    for position, total, headers in _kept(places):
        names = _frame_headers(raw[position + 12 : position + 12 + headers])
        payload = raw[position + 12 + headers : position + total - 4]
        value = json_value(payload.decode("utf-8", errors="replace"))
        kind = names.get(":exception-type") or names.get(":error-code") or ""
        if isinstance(value, dict):
            yield Document(names.get(":event-type", ""), {kind: value} if kind else value)
        elif kind:
            yield Document("", {kind: {"message": names.get(":error-message", "")}})


def _frame_headers(raw: bytes) -> dict[str, str]:
    """Text headers only (type 7): the names of what a frame holds are text."""
    found: dict[str, str] = {}
    position = 0
    while position < len(raw):
        name_end = position + 1 + raw[position]
        if raw[name_end : name_end + 1] != b"\x07" or name_end + 3 > len(raw):
            break
        value_end = name_end + 3 + int.from_bytes(raw[name_end + 1 : name_end + 3], "big")
        name = raw[position + 1 : name_end].decode("latin-1")
        found[name] = raw[name_end + 3 : value_end].decode("utf-8", errors="replace")
        position = value_end
    return found
