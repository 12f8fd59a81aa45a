"""Attachments in a request, as a log and a script see them: their digest in place of their bytes.

A log that had the bytes would be as large as all that was sent, and tell no more. What is no base64
stays as it came, for the wire to refuse. Pure.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final

_MARK: Final = ";base64,"


def folded(body: Any) -> Any:
    """A request's JSON with `sha256:DIGEST, N bytes` for what is attached."""
    return _within(body, ("messages", "input"), _message) if isinstance(body, dict) else body


def _message(message: Any) -> Any:
    return _within(message, ("content", "output"), _part)


def _part(part: Any) -> Any:
    kind = part.get("type")
    if kind == "tool_result":
        return _within(part, ("content",), _part)
    for field, inner in _PLACES.get(str(kind), {}).items():
        held = part.get(field)
        if inner is None and isinstance(held, str):
            return {**part, field: _told(held)}
        if inner is not None and isinstance(held, dict) and isinstance(held.get(inner), str):
            is_text = held.get("type") == "text"
            return {**part, field: {**held, inner: _told(held[inner], is_text=is_text)}}
    return part


_PLACES: Final[Mapping[str, Mapping[str, str | None]]] = {
    "image": {"source": "data"},
    "document": {"source": "data"},
    "image_url": {"image_url": "url"},
    "input_image": {"image_url": None},
    "file": {"file": "file_data"},
    "input_file": {"file_data": None},
    "input_audio": {"input_audio": "data"},
}
"""Where each kind of part has its bytes: a field, or one within it."""


def unread(part: Any) -> bool:
    """Whether a part has bytes that nobody can read."""
    for field, inner in _PLACES.get(str(part.get("type")), {}).items():
        held = part.get(field)
        data = held if inner is None else (held or {}).get(inner)
        return not isinstance(data, str) or not data.rpartition(_MARK)[2].startswith("sha256:")
    return False


def _within(value: Any, fields: tuple[str, ...], fold: Callable[[Any], Any]) -> Any:
    if not isinstance(value, dict):
        return value
    found = {
        field: [fold(item) if isinstance(item, dict) else item for item in value[field]]
        for field in fields
        if isinstance(value.get(field), list)
    }
    return {**value, **found}


def _told(data: str, *, is_text: bool = False) -> str:
    head, mark, rest = "", "", data
    if data.startswith("data:"):
        head, mark, rest = data.partition(_MARK)
    try:
        said = rest.encode() if is_text else base64.b64decode(rest, validate=True)
    except (binascii.Error, ValueError):
        return data
    return f"{head}{mark}sha256:{hashlib.sha256(said).hexdigest()}, {len(said)} bytes"


__all__ = ["folded", "unread"]
