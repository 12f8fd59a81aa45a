"""Keys as bytes: an encoding of tuples that sorts as the tuples do, part by part.

    text     02, its UTF-8 with 00 written 01 01 and 01 written 01 02, then 00
    bytes    01, the same, then 00
    integer  03, then 8 bytes, big-endian

Invariants:
    I1  a < b as tuples of equal shape, exactly when encode(a) < encode(b) as bytes.
    I2  encode(p) is a prefix of encode(k) exactly when p is a prefix of k, in whole parts.
    I3  No encoded key exceeds `KEY_BYTES_MAX`, which is the engine's own limit.

Runs in: any thread.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NoReturn

from .errors import InvalidRequestError
from .store import Key, KeyPart

KEY_BYTES_MAX: Final = 511
INT_MAX: Final = 2**64 - 1

_BYTES: Final = 1
_TEXT: Final = 2
_INT: Final = 3
_END_AND_INT: Final = struct.Struct(">2sQ").pack
_INT_ALONE: Final = struct.Struct(">Q").pack
_NAMES: Final = {str: "text", int: "an integer", bytes: "bytes"}


def encode_key(shape: tuple[type, ...], key: Key) -> bytes:
    """Encode a whole key.

    Args:
        shape: The types of the table's key parts.
    Raises:
        InvalidRequestError: Not a tuple of that shape, an integer outside 0..2**64-1, text that is
            not Unicode, or too long; `field` names the part.
    """
    return encoder(shape)(key)


def encode_prefix(shape: tuple[type, ...], prefix: Key) -> bytes:
    """Encode the first parts of a key, possibly none of them or all.

    Raises:
        InvalidRequestError: As `encode_key`, and for more parts than the shape has.
    """
    if type(prefix) is not tuple or len(prefix) > len(shape):
        _refuse_shape(shape, prefix)
    return _encode(shape[: len(prefix)], prefix)


def decode_key(raw: bytes) -> Key:
    """Decode an encoded key; it tells the types of its parts itself.

    Raises:
        ValueError: These bytes are no encoded key.
    """
    parts: list[str | int | bytes] = []
    at, end = 0, len(raw)
    while at < end:
        code = raw[at]
        if code == _INT:
            if at + 9 > end:
                raise ValueError("a key's integer part is cut off")
            parts.append(int.from_bytes(raw[at + 1 : at + 9], "big"))
            at += 9
        elif code in (_TEXT, _BYTES):
            stop = raw.find(0, at + 1)
            if stop < 0:
                raise ValueError("a key's text part is cut off")
            body = raw[at + 1 : stop]
            if 1 in body:
                body = body.replace(b"\1\1", b"\0").replace(b"\1\2", b"\1")
            parts.append(body.decode() if code == _TEXT else body)
            at = stop + 1
        else:
            raise ValueError(f"a key part of unknown type {code}")
    return tuple(parts)


def decode_leading(raw: bytes) -> Key:
    """Decode the first parts of a damaged key: those before the damage, possibly none."""
    for end in range(len(raw), 0, -1):
        if raw[end - 1] == 0 or end == len(raw):
            with suppress(ValueError):
                return decode_key(raw[:end])
    return ()


def encoder(shape: tuple[type, ...]) -> Callable[[Key], bytes]:
    """The encoder of one shape; the common shapes have one of their own, for speed."""
    found = _ENCODERS.get(shape)
    if found is None:
        found = _ENCODERS[shape] = lambda key: _encode_whole(shape, key)
    return found


def encode_column(shape: tuple[type, ...], prefix: Key, lasts: list[KeyPart]) -> list[bytes]:
    """Encode many keys that have all parts but the last in common.

    Raises:
        InvalidRequestError: As `encode_key`, of the first that is none.
    """
    if len(prefix) == len(shape) - 1 and set(map(type, lasts)) == {shape[-1]}:
        start, columns = encode_prefix(shape, prefix), _COLUMNS.get(shape[-1])
        raws = None if columns is None else columns(start, lasts)
        if raws is not None and len(max(raws, key=len)) <= KEY_BYTES_MAX:
            return raws
    # Refused here, with the part's name; or it is no usual column.
    return [encode_key(shape, (*prefix, last)) for last in lasts]


def _integers(start: bytes, lasts: list[Any]) -> list[bytes] | None:
    start, pack = start + b"\3", _INT_ALONE
    try:
        return [start + pack(number) for number in lasts]
    except struct.error:
        return None


def _texts(start: bytes, lasts: list[Any]) -> list[bytes] | None:
    if not "".join(lasts).isprintable():
        return None  # It may need escaping; and what is printable holds no line break.
    start += b"\2"
    return [start + raw for raw in ("\0\n".join(lasts) + "\0").encode().split(b"\n")]


# Printable text holds neither 00 nor 01, so it needs no escaping; whatever is not plainly a key of
# the shape takes the long way, which can say what is wrong with it.


def _encode_text(key: Key) -> bytes:
    try:
        (text,) = key
        if text.__class__ is str and key.__class__ is tuple and text.isprintable():
            raw = f"\2{text}\0".encode()
            if len(raw) <= KEY_BYTES_MAX:
                return raw
    except (TypeError, ValueError):
        pass  # Refused below, with the part's name.
    return _encode_whole((str,), key)


def _encode_text_int(key: Key) -> bytes:
    try:
        text, number = key
        if (
            text.__class__ is str
            and number.__class__ is int
            and key.__class__ is tuple
            and text.isprintable()
        ):
            raw = f"\2{text}".encode() + _END_AND_INT(b"\0\3", number)
            if len(raw) <= KEY_BYTES_MAX:
                return raw
    except (TypeError, ValueError, struct.error):
        pass  # Refused below, with the part's name.
    return _encode_whole((str, int), key)


def _encode_text_text(key: Key) -> bytes:
    try:
        first, second = key
        if (
            first.__class__ is str
            and second.__class__ is str
            and key.__class__ is tuple
            and first.isprintable()
            and second.isprintable()
        ):
            raw = f"\2{first}\0\2{second}\0".encode()
            if len(raw) <= KEY_BYTES_MAX:
                return raw
    except (TypeError, ValueError):
        pass  # Refused below, with the part's name.
    return _encode_whole((str, str), key)


def _encode_whole(shape: tuple[type, ...], key: Key) -> bytes:
    if type(key) is not tuple or len(key) != len(shape):
        _refuse_shape(shape, key)
    return _encode(shape, key)


def _encode(shape: tuple[type, ...], key: Key) -> bytes:
    out = bytearray()
    for index, (part, kind) in enumerate(zip(key, shape, strict=True)):
        if type(part) is not kind:
            _refuse(index, f"must be {_NAMES[kind]}, not {type(part).__name__}")
        if isinstance(part, int):
            if not 0 <= part <= INT_MAX:
                _refuse(index, f"must be 0..2**64-1, not {part}")
            out += b"\3" + part.to_bytes(8, "big")
        else:
            try:
                raw = part.encode() if isinstance(part, str) else part
            except UnicodeEncodeError:
                _refuse(index, "is not valid Unicode text")
            escaped = raw.replace(b"\1", b"\1\2").replace(b"\0", b"\1\1")
            out += (b"\2" if kind is str else b"\1") + escaped + b"\0"
        if len(out) > KEY_BYTES_MAX:
            _refuse(index, f"makes the key longer than {KEY_BYTES_MAX} bytes")
    return bytes(out)


def _refuse_shape(shape: tuple[type, ...], key: object) -> NoReturn:
    wanted = ", ".join(_NAMES[kind] for kind in shape)
    raise InvalidRequestError(
        f"a key of this table is a tuple ({wanted}), not {key!r:.200}; nothing was done; "
        "name the row by such a tuple",
        field="key",
    )


def _refuse(index: int, why: str) -> NoReturn:
    raise InvalidRequestError(
        f"part {index} of a key {why}; nothing was done; use another key", field=f"key[{index}]"
    )


_ENCODERS: Final[dict[tuple[type, ...], Callable[[Key], bytes]]] = {
    (str,): _encode_text,
    (str, int): _encode_text_int,
    (str, str): _encode_text_text,
}
_COLUMNS: Final[dict[type, Callable[[bytes, list[Any]], list[bytes] | None]]] = {
    int: _integers,
    str: _texts,
}
