"""The door for everything a host hands in: names, messages, blocks. Refuses before any effect.

One schema, the stored one, decides what a block is; what passes here can be stored and rendered.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import secrets
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from abeyance.storage import codec
from abeyance.storage.errors import InvalidRecordError
from abeyance.storage.store import Value
from abeyance.storage.tables.blocks import Block, TextBlock
from abeyance.storage.tables.fields import NAME_BYTES_MAX
from abeyance.storage.tables.slots import Body

from .errors import (
    InvalidInputError,
    InvalidMessageError,
    InvalidNameError,
    MessageTooLargeError,
)

Content: TypeAlias = str | Block | Mapping[str, Any] | Sequence[Block | Mapping[str, Any]]
"""What `send` takes: text, a block, or blocks (as structs or as plain mappings)."""

RESERVED_NAMES: Final = frozenset({"*", "framework"})
"""Of agents: each has a meaning in listings and releases. Of models only `*` has one."""
ACCOUNT_PREFIX: Final = "account:"
"""What waits of accounts are listed and released under; no agent's name begins so."""
MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
DEPTH_MAX: Final = 64
"""Levels of a block, from the block itself; well inside what the packer and JSON readers take."""
INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**64 - 1


def check_name(value: object, field: str, *, reserved: bool = True) -> str:
    """Return the name, or refuse it.

    Raises:
        InvalidNameError: Not text, empty, over 128 bytes of UTF-8, with control, line-breaking or
            invisible characters or outer blanks, or reserved (`*`, `framework`).
    """
    if type(value) is str and is_plain(value) and not (reserved and value in RESERVED_NAMES):
        return value
    if not isinstance(value, str):
        raise InvalidNameError(field, f"must be text, not {type(value).__name__}")
    if not value:
        raise InvalidNameError(field, "must not be empty")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidNameError(field, "must be valid Unicode (it holds a lone surrogate)") from None
    if size > NAME_BYTES_MAX:
        raise InvalidNameError(
            field, f"must be at most {NAME_BYTES_MAX} bytes of UTF-8, not {size}"
        )
    if any(_is_unprintable(char) for char in value):
        raise InvalidNameError(
            field, "must not hold control, line-breaking or invisible characters"
        )
    if value != value.strip():
        raise InvalidNameError(field, "must not begin or end with blanks")
    if reserved and identity(value) in RESERVED_NAMES:
        raise InvalidNameError(field, f"{value!r} is reserved")
    return value if type(value) is str else str.__str__(value)


def check_model(value: object, field: str) -> str:
    """Return the name of a model, or refuse it. `*` stands for every model, and names none.

    Raises:
        InvalidNameError: As `check_name`; of the reserved names only `*`.
    """
    name = check_name(value, field, reserved=False)
    if identity(name) == "*":
        raise InvalidNameError(field, f"{name!r} is reserved")
    return name


def check_agent_name(value: object, field: str) -> str:
    """Return the name of an agent that is to be, or refuse it.

    Raises:
        InvalidNameError: As `check_name`; or it begins like the place under which waits of
            accounts are listed and released.
    """
    name = check_name(value, field)
    if identity(name).startswith(ACCOUNT_PREFIX):
        raise InvalidNameError(field, f"must not begin with {ACCOUNT_PREFIX!r}, which is reserved")
    return name


@functools.lru_cache(4096)
def is_plain(name: str) -> bool:
    """Letters, digits, `-` and `_`, in lower case: nearly every name there is, told in a step."""
    return _PLAIN_NAME.fullmatch(name) is not None


_PLAIN_NAME: Final = re.compile(f"[a-z0-9_-]{{1,{NAME_BYTES_MAX}}}")
_UNPRINTABLE: Final = frozenset({"Cc", "Zl", "Zp"})
_MISLEADING: Final = frozenset(
    "\u00ad\u061c\u180e\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"
)
"""Characters nobody sees, which turn the text around them or make two names look alike. The joiners
U+200C and U+200D are none of them: Persian and Hindi are spelt with them."""


def _is_unprintable(char: str) -> bool:
    return unicodedata.category(char) in _UNPRINTABLE or char in _MISLEADING


@functools.lru_cache(4096)
def identity(name: str) -> str:
    """The participant a name stands for: case and compatibility forms do not matter."""
    if name.isascii():
        return name.strip().lower()
    return unicodedata.normalize("NFKC", name).strip().casefold()


@functools.lru_cache(4096)
def is_same(name: str, other: str) -> bool:
    """Whether two names stand for one participant."""
    return identity(name) == identity(other)


def read_blocks(content: Content, field: str = "message") -> tuple[Block, ...]:
    """Turn what a host sends into blocks that fit the stored schema.

    What is returned can be stored and told to a provider: it is plain data of JSON's kinds, all the
    way down, and valid Unicode.

    Raises:
        InvalidMessageError: Names the block and field that do not fit, at any depth.
    """
    items = _items(content, field)
    plain = [_plain(item, f"{field}[{place}]", DEPTH_MAX) for place, item in enumerate(items)]
    try:
        body = msgspec.convert({"blocks": plain}, Body, strict=True)
    except msgspec.ValidationError as problem:
        raise InvalidMessageError(_path(field, str(problem)), _problem(str(problem))) from None
    return body.blocks


def _items(content: object, field: str) -> list[Any]:
    if isinstance(content, str):
        return [TextBlock(text=content)]
    if isinstance(content, (Mapping, msgspec.Struct)):
        return [content]
    if isinstance(content, Sequence) and not isinstance(content, (bytes, bytearray, memoryview)):
        return list(content)
    raise InvalidMessageError(field, f"must be text or blocks, not {type(content).__name__}")


def _plain(value: object, field: str, depth: int) -> Any:
    """Copy a value as plain data, or refuse the place in it that is none.

    The schema leaves a tool's input open, and the packer takes more than a provider's JSON can say
    and less than Python can build; so what may be inside is decided here, by name.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, field)
    if isinstance(value, int):
        if not INT_MIN <= value <= INT_MAX:
            raise InvalidMessageError(field, f"must be between {INT_MIN} and {INT_MAX}")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidMessageError(field, f"must be a finite number, not {value}")
        return float(value)
    if depth == 0:
        raise InvalidMessageError(field, f"must be at most {DEPTH_MAX} levels deep")
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value) | _tag(value)
    if isinstance(value, Mapping):
        return {
            _key(key, field): _plain(item, f"{field}.{key[:60]}", depth - 1)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{field}[{place}]", depth - 1) for place, item in enumerate(value)]
    raise InvalidMessageError(field, f"must be plain data, not {type(value).__name__}")


def _tag(value: msgspec.Struct) -> dict[str, Any]:
    config = value.__struct_config__
    return {} if config.tag is None or config.tag_field is None else {config.tag_field: config.tag}


def _key(key: object, field: str) -> str:
    if not isinstance(key, str):
        raise InvalidMessageError(field, f"must have text keys, not {type(key).__name__}")
    return _text(key, field)


def _text(text: str, field: str) -> str:
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError:
        raise InvalidMessageError(field, "must be valid Unicode (it holds a lone surrogate)") from (
            None
        )
    return text if type(text) is str else str.__str__(text)


def _path(field: str, text: str) -> str:
    """msgspec says "... - at `$.blocks[0].text`"; a caller knows the value as `message[0].text`."""
    _, found, path = text.rpartition(" - at `$.blocks")
    return field + path.rstrip("`") if found else field


def _problem(text: str) -> str:
    head, found, _ = text.rpartition(" - at `$")
    problem = head if found else text
    too_long = _TOO_LONG.fullmatch(problem)
    return problem if too_long is None else f"must be at most {int(too_long[1]):,} characters"


_TOO_LONG: Final = re.compile("Expected `str` of length <= ([0-9]+)")


def is_blank(text: str) -> bool:
    """Whether a text says nothing: blanks, control characters and what has no width."""
    rest = text.lstrip()
    return not rest or (not rest[0].isprintable() and all(map(_says_nothing, rest)))


def _says_nothing(char: str) -> bool:
    return char.isspace() or unicodedata.category(char) in ("Cc", "Cf")


def encode_body(
    blocks: tuple[Block, ...], field: str = "message", bytes_max: int = MESSAGE_BYTES_MAX
) -> Value:
    """Make the body row of a message ready for writing.

    Args:
        bytes_max: Of its content as it is stored; at most 16 MiB.
    Raises:
        InvalidMessageError: It cannot be stored as it is.
        MessageTooLargeError: It has more bytes.
    """
    try:
        value = codec.encode(Body(blocks=blocks))
    except (ValueError, InvalidRecordError) as problem:
        raise InvalidMessageError(field, str(problem)) from None
    check_bytes(value, field, bytes_max)
    return value


def check_bytes(value: Value, field: str, bytes_max: int) -> None:
    """Refuse content that has more bytes than may be.

    Raises:
        MessageTooLargeError: Names the size and the limit.
    """
    if len(value.body) > bytes_max:
        raise MessageTooLargeError(field, len(value.body), bytes_max)


def encode_text(text: str, field: str = "message") -> Value:
    """As `read_blocks` and `encode_body`, of one text within its bound: nearly every message.

    Args:
        text: Text, no subclass of it, of at most `TEXT_CHARS_MAX` characters.
    Raises:
        InvalidMessageError: It is no Unicode, or says nothing.
    """
    if not text.isascii():
        _text(text, f"{field}[0].text")
    if is_blank(text):
        raise says_nothing(field)
    body = codec.pack_text_body(text)
    return Value(Body.KIND, Body.VERSION, body, codec.checksum(body))


def says_nothing(field: str = "message") -> InvalidMessageError:
    """No provider takes a message that says nothing."""
    return InvalidMessageError(field, "must hold text that is not blank")


def body_crc(value: Value) -> int:
    """A fingerprint of the content, for telling a retry from a conflict."""
    return value.body_crc


_counter = itertools.count()
_PROCESS: Final = f"-{secrets.token_hex(4)}"
_LAST_TWO: Final = tuple(f"{number:02x}" for number in range(256))


def new_message_id(now_ms: int) -> str:
    """An id that sorts by the time it was made, so that fresh rows land side by side on disk."""
    number = next(_counter)
    return _first_part(now_ms, number >> 8) + _LAST_TWO[number & 0xFF] + _PROCESS


@functools.lru_cache(1)
def _first_part(now_ms: int, number: int) -> str:
    """Many ids are made in one millisecond."""
    return f"{now_ms:011x}-{number & 0xFFFFFF:06x}"


def clean_text(text: str, chars_max: int) -> str:
    """One line of bounded text: control and line-breaking characters become blanks."""
    cleaned = "".join(
        " " if _is_unprintable(char) or "\ud800" <= char <= "\udfff" else char
        for char in text[: chars_max * 2]
    )
    return cleaned if len(cleaned) <= chars_max else cleaned[: chars_max - 1] + "…"


def check_line(text: str, field: str) -> str:
    """Return what a person says in one line, or refuse it.

    Raises:
        InvalidInputError: It holds what nobody sees or what would break the line: it is refused,
            and not kept as something else than was said.
    """
    if text.isascii() and text.isprintable():
        return text
    if any(_is_unprintable(char) or "\ud800" <= char <= "\udfff" for char in text):
        raise InvalidInputError(
            field, "must not hold control, line-breaking or invisible characters"
        )
    return text


def kept_name(text: str | None) -> str | None:
    """What somebody else called something, as a row holds a name; None where that is nothing."""
    return clean_text(text, NAME_BYTES_MAX) or None if text else None


def escaped_text(text: str, form: str = "\\u{:04x}") -> str:
    """The text with every character that is not seen, or that turns what is around it, spelt out.

    For what is on disk already: new names with such characters are refused.

    Args:
        form: How a character is spelt, by its code point.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(form.format(ord(char)) if _is_unprintable(char) else char for char in text)


__all__ = [
    "Content",
    "InvalidInputError",
    "body_crc",
    "check_bytes",
    "check_name",
    "clean_text",
    "encode_body",
    "escaped_text",
    "identity",
    "new_message_id",
    "read_blocks",
]
