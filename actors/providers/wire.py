"""What readers of every wire share: strict JSON, fields, texts in pieces, blocks to keep. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from abeyance.storage.tables.blocks import Block, Blocks

_INTEGER_BITS = 64


class UnreadableReplyError(ValueError):
    """A reply breaks its own wire, or holds what cannot be kept."""


class StatedError(Exception):
    """An event within a stream says that the call failed.

    Attributes: `message` (the provider's own words, or nothing); `retryable` (None leaves it to
    what the event states).
    """

    def __init__(self, message: str, *, retryable: bool | None) -> None:
        super().__init__(message)
        self.message = message
        self.retryable = retryable


def read_json(text: str) -> dict[str, Any]:
    """Read one JSON object of the wire.

    Integers past 64 bits become floats, as in any reader of JavaScript's numbers: no record holds
    them otherwise. NaN and infinities are refused.

    Raises:
        UnreadableReplyError: It is no JSON object.
    """
    try:
        value = json.loads(text, parse_int=_integer, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        raise UnreadableReplyError(f"an event holds no JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnreadableReplyError("an event's JSON is no object")
    return value


def error_of(data: dict[str, Any]) -> tuple[str, str]:
    """The type and the words of an error object, each "" where it has none."""
    error = data.get("error")
    error = error if isinstance(error, dict) else {}
    kind, message = error.get("type"), error.get("message")
    return (
        kind if isinstance(kind, str) else "",
        message if isinstance(message, str) else "",
    )


def kept(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """Blocks as the schema of records passes them.

    Raises:
        UnreadableReplyError: It does not.
    """
    try:
        return msgspec.convert(msgspec.to_builtins(tuple(blocks)), Blocks)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UnreadableReplyError(f"the reply cannot be kept: {error}") from error


class Pieces:
    """Texts that arrive in pieces, by name.

    They are joined once, at the end: adding strings is quadratic in a long reply.
    """

    def __init__(self) -> None:
        self._of: dict[str, list[str]] = {}

    def add(self, name: str, piece: str) -> None:
        self._of.setdefault(name, []).append(piece)

    def joined(self, name: str) -> str:
        return "".join(self._of.get(name, ()))


def count_of(usage: Any, *path: str) -> int:
    """A counted figure at a path of objects; 0 where there is none."""
    value = usage
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    usable = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if usable else 0


def object_at(event: dict[str, Any], field: str) -> dict[str, Any]:
    """An object in a field.

    Raises:
        UnreadableReplyError: It is something else. So for the other two.
    """
    value = event.get(field)
    if not isinstance(value, dict):
        raise UnreadableReplyError(f"{field} is no object")
    return value


def integer_at(event: dict[str, Any], field: str) -> int:
    value = event.get(field)
    if not isinstance(value, int) or isinstance(value, bool):
        raise UnreadableReplyError(f"{field} is no integer")
    return value


def text_at(event: dict[str, Any], field: str) -> str:
    value = event.get(field)
    if not isinstance(value, str):
        raise UnreadableReplyError(f"{field} is no text")
    return value


def _integer(digits: str) -> int | float:
    value = int(digits)  # Past 4,300 digits a ValueError, as for any other text that is no JSON.
    if -(2 ** (_INTEGER_BITS - 1)) <= value < 2**_INTEGER_BITS:
        return value
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError("a number past every float")
    return number


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")
