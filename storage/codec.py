"""Records as bytes and back: the one door to msgpack.

A value on disk is a msgpack map, its fields always in this order:

    c  uint64  the row's counter
    s  uint32  the checksum
    k  str     the record's kind
    v  int     the record's version
    a  bin     the encoded key that was allotted (only where there is one)
    b  bin     the body: a msgpack map of the record's fields

    s = crc32(c as 8 bytes, crc32(b) as 4 bytes, key, a;
              started from crc32(table, 00, the bytes of k and v))

Invariants:
    I1  A body was checked against its record's strict schema, as packed, before it is written. The
        rows of an accepted message are made of what was checked where it came in, and are not
        looked at again (`pack_sound`).
    I2  A row is handed out only after checksum, kind, version and schema were checked.
    I3  Equal records have equal bodies: fields are packed in the schema's order.

Runs in: `encode` in the requester's thread; the rest in the reading and the writer thread.
"""

from __future__ import annotations

import functools
import struct
import threading
import zlib
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, NoReturn

import msgpack  # type: ignore[import-untyped]
import msgspec
import msgspec.inspect
from msgspec.structs import asdict

from .errors import InvalidRecordError, StorageError, UnreadableRecordError
from .keys import decode_key
from .seals import Seal
from .store import Guard, Key, Put, Record, Request, Row, Value
from .tables import TABLES
from .tables.blocks import TextBlock
from .tables.slots import Body

IGNORABLE: Final = "~"
"""A kind that begins so may be taken for no row by a version that does not know it. Whoever adds a
kind decides: one that must hold back who does not understand it does not begin so."""
_HEAD: Final = struct.Struct(">4sQ3sI")
_SUM: Final = struct.Struct(">QI")
_CRC: Final = struct.Struct(">I")
_PLAIN: Final = b"\x85\xa1c\xcf"
_ALLOTTED: Final = b"\x86\xa1c\xcf"
_SUM_FIELD: Final = b"\xa1s\xce"
_ONE: Final = (1).to_bytes(8, "big")
_MADE: Final = _PLAIN + _ONE + _SUM_FIELD
"""How a row begins that was put once: all that stands before its checksum."""
_BIN8: Final = tuple(b"\xa1b\xc4" + bytes([size]) for size in range(256))
_FIELDS: Final = (["c", "s", "k", "v", "b"], ["c", "s", "k", "v", "a", "b"])


class _Kind(NamedTuple):
    kind: str
    version: int
    record: type[Record]
    check: msgspec.msgpack.Decoder[Any]
    pack: Callable[[Any], bytes]


class _Header(NamedTuple):
    counter: int
    known: _Kind
    allotted: bytes
    body: bytes


def _expand(value: Any) -> Any:
    """What strict packing does not know by itself: tuples and nested structs, nothing else."""
    if type(value) is tuple:
        return list(value)
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        fields = asdict(value)
        return fields if tag is None else {value.__struct_config__.tag_field: tag, **fields}
    raise TypeError(f"{type(value).__name__} can't be stored")


class _Packers(threading.local):
    """A packer a thread: it is not safe across threads, and making one costs as much as packing."""

    def __init__(self) -> None:
        self.pack = msgpack.Packer(default=_expand, strict_types=True).pack


_packers: Final = _Packers()


def pack(value: Any) -> bytes:
    """Pack plain data strictly: no subclasses, no silent conversions."""
    return _packers.pack(value)  # type: ignore[no-any-return]


def _pack_any(record: Record) -> bytes:
    if type(record) is Body:
        for block in record.blocks:
            if type(block) is not TextBlock:
                break
        else:
            # Nearly every message: the only block that may hold anything is a tool's call.
            return _pack_typed(record)
    return pack(asdict(record))


def _refuse_type(value: Any) -> NoReturn:
    raise TypeError(f"{type(value).__name__} can't be stored")


_pack_typed: Final = msgspec.msgpack.Encoder(enc_hook=_refuse_type).encode
"""Packs the same bytes as `_pack_any` at a tenth of its cost, but takes more types than are read
back. For records whose schema names every type, so that its check refuses the others."""


def _holds_anything(kind: msgspec.inspect.Type) -> bool:
    """Whether values of this type may hold some whose type no schema names."""
    match kind:
        case msgspec.inspect.AnyType():
            return True
        case msgspec.inspect.StructType(fields=fields):
            return any(_holds_anything(field.type) for field in fields)
        case msgspec.inspect.UnionType(types=kinds) | msgspec.inspect.TupleType(item_types=kinds):
            return any(map(_holds_anything, kinds))
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return _holds_anything(key) or _holds_anything(value)
        case msgspec.inspect.CollectionType(item_type=item):
            return _holds_anything(item)
        case _:
            return False


_KINDS: Final[dict[type[Record], _Kind]] = {
    record: _Kind(
        record.KIND,
        record.VERSION,
        record,
        msgspec.msgpack.Decoder(record),
        _pack_any if _holds_anything(msgspec.inspect.type_info(record)) else _pack_typed,
    )
    for table in TABLES.values()
    for record in table.kinds
}
_ENCODED: Final = {record: (known.pack, known.check.decode) for record, known in _KINDS.items()}
"""What packing a record takes, in a plain tuple: each part of a named one is a look-up."""
_BY_TABLE: Final[dict[str, dict[str, _Kind]]] = {
    table.name: {record.KIND: _KINDS[record] for record in table.kinds} for table in TABLES.values()
}
_crc32: Final = zlib.crc32


def unpack(raw: bytes) -> Any:
    """Unpack plain data strictly.

    Raises:
        ValueError: Not one whole msgpack value, or one too deeply nested.
    """
    try:
        return msgpack.unpackb(raw, ext_hook=_refuse_extension)
    except (msgpack.UnpackException, RecursionError) as error:
        raise ValueError(str(error) or type(error).__name__) from error


def encode(record: Record, *, allotted: int | None = None) -> Value:
    """Check a record against its schema and pack it.

    Not durable: a `Value` is put by a request.

    Args:
        allotted: Index of the request's append whose key goes into the header.
    Raises:
        InvalidRecordError: A field is not what the schema asks for; `kind` and `field` name it.
    """
    body = pack_record(record)
    return Value(record.KIND, record.VERSION, body, _crc32(body), allotted)


def pack_record(record: Record) -> bytes:
    """Check a record against its schema and pack it: the body of a row.

    Raises:
        InvalidRecordError: As `encode`.
    """
    known = _ENCODED.get(record.__class__)
    if known is None:
        raise InvalidRecordError(
            f"{type(record).__name__} is no record of any table; nothing was encoded; "
            "use a record of abeyance.storage.tables",
            kind=type(record).__name__,
            field="",
        )
    try:
        body = known[0](record)
        known[1](body)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        _refuse_record(_KINDS[type(record)], record, error)
    return body


pack_sound: Final = _pack_typed
"""Pack a record as `pack_record` does, unchecked: for one whose every field was checked where it
came from. A record that holds what no schema names, a tool's input, is never packed so."""


_TEXT_BODY: Final = _pack_typed(Body(blocks=(TextBlock(text=""),)))[:-1]
"""The body of one text, up to the text."""
_SHORT: Final = tuple(
    _TEXT_BODY + (bytes([0xA0 | size]) if size < 32 else b"\xd9" + bytes([size]))
    for size in range(256)
)


def pack_text_body(text: str) -> bytes:
    """Pack the body of a message of one text, as `pack_record` does; nearly every message is one.

    Raises:
        UnicodeEncodeError: It is no Unicode.
    """
    raw = text.encode()
    size = len(raw)
    if size < 256:
        return _SHORT[size] + raw
    return _pack_typed(Body(blocks=(TextBlock(text=text),)))


def spread(request: Request) -> Request:
    """The same request, with each of its `rows` as a put, and as a guard where it is fresh."""
    guards, puts = list(request.guards), list(request.puts)
    for rows in request.rows:
        if rows.fresh:
            guards += [Guard(rows.table, key, 0) for key in rows.keys]
        puts += [
            Put(rows.table, key, Value(rows.kind, rows.version, body, _crc32(body)))
            for key, body in zip(rows.keys, rows.bodies, strict=True)
        ]
    return Request(tuple(guards), tuple(puts), request.deletes, request.appends, request.chain)


def checksum(body: bytes) -> int:
    """The part of a value's checksum that depends on its body alone."""
    return _crc32(body)


def frame_all(
    table: str, entries: Iterable[tuple[bytes, tuple[int, Value, bytes]]]
) -> list[tuple[bytes, bytes]]:
    """Frame rows of one table: (key, (counter, value, allotted key)) to (key, bytes on disk)."""
    framed: list[tuple[bytes, bytes]] = []
    add, head, sum_of, crc32 = framed.append, _HEAD.pack, _SUM.pack, _crc32
    known: tuple[str, int] | None = None
    for key, (counter, value, allotted) in entries:
        kind, version, body = value.kind, value.version, value.body
        if known is None or kind != known[0] or version != known[1]:
            # Most tables hold one kind, so that this is done once.
            known, (start, start_crc) = (kind, version), _start(table, kind, version)
        size = len(body)
        tail = _BIN8[size] if size < 256 else b"\xa1b" + _bin_head(size)
        if allotted:
            crc = crc32(sum_of(counter, value.body_crc) + key + allotted, start_crc)
            first, middle = _ALLOTTED, start + b"\xa1a\xc4" + bytes([len(allotted)]) + allotted
        else:
            crc = crc32(sum_of(counter, value.body_crc) + key, start_crc)
            first, middle = _PLAIN, start
        add((key, head(first, counter, _SUM_FIELD, crc) + middle + tail + body))
    return framed


def frame_made(
    table: str, kind: str, version: int, keys: list[bytes], bodies: list[bytes]
) -> list[tuple[bytes, bytes]]:
    """Frame rows of one table and kind that are made, so that each has the counter 1 and no
    allotted key.

    As `frame_all`, at a part of its cost: what such rows have in common is packed once.
    """
    start_crc, long, short = _made(table, kind, version)
    framed: list[tuple[bytes, bytes]] = []
    add, crc32, pack_crc, join, made = framed.append, _crc32, _CRC.pack, b"".join, _MADE
    for key, body in zip(keys, bodies, strict=True):
        crc = pack_crc(crc32(pack_crc(crc32(body)) + key, start_crc))
        size = len(body)
        add((key, join((made, crc, short[size] if size < 256 else long + _bin_head(size), body))))
    return framed


@functools.lru_cache(64)
def _made(table: str, kind: str, version: int) -> tuple[int, bytes, tuple[bytes, ...]]:
    """Of rows that are made: how their checksums start, and what stands before their bodies, up to
    the size of a long one, or with the size of a short one."""
    middle, start_crc = _start(table, kind, version)
    return _crc32(_ONE, start_crc), middle + b"\xa1b", tuple(middle + head for head in _BIN8)


def frame(table: str, key: bytes, counter: int, value: Value, allotted: bytes = b"") -> bytes:
    """Frame one row."""
    return frame_all(table, [(key, (counter, value, allotted))])[0][1]


def read_counter(table: str, key: bytes, raw: bytes) -> int:
    """The counter of a row as it is on disk, once it was checked as `decode` checks it.

    Raises:
        UnreadableRecordError: The row can't be trusted.
    """
    counter, known, _, body = _open(table, key, raw)
    try:
        known.check.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        _refuse_row(table, key, f"schema of {known.kind}: {error}")
    return counter


def decode(table: str, key: bytes, raw: bytes) -> Row:
    """The row in these bytes, checked against its record's schema.

    Raises:
        UnreadableRecordError: The row can't be trusted; it names table and key.
    """
    counter, known, allotted, body = _open(table, key, raw)
    try:
        record = msgspec.convert(unpack(body), known.record, strict=True)
        return Row(counter, record, decode_key(allotted) if allotted else None)
    except (msgspec.MsgspecError, ValueError) as error:
        _refuse_row(table, key, f"schema of {known.kind}: {error}")


def row_of(table: str, counter: int, value: Value, allotted: bytes = b"") -> Row:
    """The row that writing this value makes, without going through the disk."""
    known = _BY_TABLE[table][value.kind]
    record = msgspec.convert(unpack(value.body), known.record, strict=True)
    return Row(counter, record, decode_key(allotted) if allotted else None)


def _start(table: str, kind: str, version: int) -> tuple[bytes, int]:
    middle = b"\xa1k" + pack(kind) + b"\xa1v" + pack(version)
    return middle, _crc32(table.encode() + b"\0" + middle)


_WRITTEN: Final[dict[str, list[tuple[bytes, int, _Kind]]]] = {
    table: [(*_start(table, kind, known.version), known) for kind, known in kinds.items()]
    for table, kinds in _BY_TABLE.items()
}


def _bin_head(size: int) -> bytes:
    if size < 2**16:
        return b"\xc5" + size.to_bytes(2, "big")
    return b"\xc6" + size.to_bytes(4, "big")


def _open(table: str, key: bytes, raw: bytes) -> _Header:
    # What this version writes is recognised by its bytes; whatever is not exactly that takes the
    # long way, which can say what is wrong with it.
    for middle, crc, known in _WRITTEN[table]:
        if raw.startswith(middle, _HEAD.size):
            at = _HEAD.size + len(middle)
            first, counter, field, checksum = _HEAD.unpack_from(raw)
            if (
                first == _PLAIN
                and field == _SUM_FIELD
                and raw[at : at + 3] == b"\xa1b\xc4"
                and len(raw) > at + 3  # It may be cut short right here.
                and raw[at + 3] == len(raw) - at - 4
            ):
                body = raw[at + 4 :]
                if _crc32(_SUM.pack(counter, _crc32(body)) + key, crc) == checksum and counter:
                    return _Header(counter, known, b"", body)
    return _open_slowly(table, key, raw)


def seal_of(table: str, raw: bytes) -> Seal | None:
    """What tells under which key these bytes were written; None where they are no value."""
    try:
        return _parted(table, raw)[0]
    except ValueError:
        return None


def has_come_later(row: Row | None, seal: Seal) -> bool:
    """Whether a key has the row that this seal is of, or one that was written over it since."""
    if row is None or row.counter < seal.counter:
        return False
    return row.counter > seal.counter or _crc32(pack_record(row.record)) == seal.body_crc


def _parted(table: str, raw: bytes) -> tuple[Seal, str, int, bytes]:
    """The seal, kind, version and body of a value.

    Raises:
        ValueError: It is none.
    """
    try:
        fields = msgpack.unpackb(raw, ext_hook=_refuse_extension)
    except (msgpack.UnpackException, ValueError, RecursionError) as error:
        raise ValueError(f"not a value: {str(error) or type(error).__name__}") from None
    if type(fields) is not dict or list(fields) not in _FIELDS:
        raise ValueError("not a value: other fields than c, s, k, v, a, b")
    counter, checksum, kind, version = fields["c"], fields["s"], fields["k"], fields["v"]
    body, allotted = fields["b"], fields.get("a", b"")
    if (
        type(counter) is not int
        or type(checksum) is not int
        or type(kind) is not str
        or type(version) is not int
        or type(body) is not bytes
        or type(allotted) is not bytes
        or not 0 < counter < 2**64
        or not 0 < version < 2**32
    ):
        raise ValueError("not a value: a header field of another type")
    seal = Seal(checksum, _start(table, kind, version)[1], counter, _crc32(body), allotted)
    return seal, kind, version, body


def _open_slowly(table: str, key: bytes, raw: bytes) -> _Header:
    try:
        seal, kind, version, body = _parted(table, raw)
    except ValueError as error:
        _refuse_row(table, key, str(error))
    if not seal.fits(key):
        _refuse_row(table, key, "checksum", seal=seal)
    known = _BY_TABLE[table].get(kind)
    if known is None:
        safe = kind.startswith(IGNORABLE)
        _refuse_row(table, key, f"unknown kind {kind!r:.80}", ignorable=safe, other=True)
    if version != known.version:
        reads = f"version {version} of {kind}; this program reads {known.version}"
        _refuse_row(table, key, reads, other=True)
    return _Header(seal.counter, known, seal.allotted, body)


def _refuse_extension(code: int, data: bytes) -> NoReturn:
    raise ValueError(f"extension type {code}")


def _refuse_row(
    table: str,
    key: bytes,
    cause: str,
    *,
    ignorable: bool = False,
    other: bool = False,
    seal: Seal | None = None,
) -> NoReturn:
    try:
        named: Key | bytes = decode_key(key)
    except ValueError:
        named = key
    raise UnreadableRecordError(
        f"row {named!r} of table {table} can't be trusted ({cause}); the row was not changed and "
        "other rows stand; see 'abeyance check', and restore this row from a copy",
        table=table,
        key=named,
        cause=cause,
        ignorable=ignorable,
        other_version=other,
        seal=seal,
    ) from None


def _refuse_record(known: _Kind, record: Record, error: Exception) -> NoReturn:
    field, why = "", str(error)
    if isinstance(error, msgspec.ValidationError):
        why, _, path = why.partition(" - at `$")
        field = path.rstrip("`").removeprefix(".")
    else:
        for name, value in asdict(record).items():
            try:
                pack(value)
            except (StorageError, TypeError, ValueError, OverflowError, RecursionError):
                field = name
                break
    raise InvalidRecordError(
        f"field {field or '(whole)'} of a {known.kind} record is not valid: {why}; "
        "nothing was encoded; correct the field",
        kind=known.kind,
        field=field,
    ) from error
