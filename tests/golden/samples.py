"""Records of every table, made of their schemas: each kind with each choice that a field has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import inspect

from abeyance.storage.store import Key, Record
from abeyance.storage.tables import TABLES

SAMPLES_MIN: Final = 3
"""Of a kind whose fields leave no choice: as little as may be, as much as may be, and between."""
LONG: Final = 6_000
"""Longer than a page of the engine, so that its long values are read, too."""
PATTERNED: Final = ("look_up", "0123456789abcdef" * 4, "image/png")
"""One of these fits any text that is bound to a pattern."""
WORDS: Final = ("ana", "Zoë \N{SNOWMAN} \N{GRINNING FACE}", 'a "b"\\\n\t\x00\x01', "x" * 40)


def samples(kind: type[Record]) -> Iterator[Record]:
    """The records of one kind; texts and bytes of the last one are long where they may be."""
    described = inspect.type_info(kind)
    count = max(SAMPLES_MIN, _choices(described))
    for number in range(count):
        yield _value(described, number, number == count - 1)


def key_of(table: str, number: int) -> Key:
    """The key of a table's n-th record, also with what keys escape and with their last integer."""
    parts: list[Any] = []
    for place, part in enumerate(TABLES[table].key):
        if part is str:
            parts.append(f"{WORDS[number % 3]} {number}.{place}")
        else:
            parts.append(2**64 - 1 if number == 1 else number)
    return tuple(parts)


def _choices(kind: inspect.Type) -> int:
    match kind:
        case inspect.LiteralType(values=values):
            return len(values)
        case inspect.UnionType(types=kinds):
            return len(kinds) * max(map(_choices, kinds))
        case inspect.StructType(fields=fields):
            return max([1, *(_choices(field.type) for field in fields)])
        case inspect.VarTupleType(item_type=item):
            return _choices(item)
        case inspect.DictType(value_type=item):
            return _choices(item)
        case _:
            return 1


def _value(kind: inspect.Type, number: int, long: bool) -> Any:
    match kind:
        case inspect.StructType(cls=cls, fields=fields):
            return cls(**{each.name: _value(each.type, number, long) for each in fields})
        case inspect.UnionType(types=kinds):
            # What is left of the number chooses within it, so that each choice of each kind comes.
            return _value(kinds[number % len(kinds)], number // len(kinds), long)
        case inspect.LiteralType(values=values):
            return values[number % len(values)]
        case inspect.VarTupleType(item_type=item, min_length=least):
            return tuple(_value(item, number + each, long) for each in range(max(least or 0, 2)))
        case inspect.TupleType(item_types=kinds):
            return tuple(_value(each, number, long) for each in kinds)
        case inspect.DictType(key_type=key, value_type=value):
            return {_value(key, number, False): _value(value, number, long)}
        case inspect.StrType():
            return _text(kind, number, long)
        case inspect.BytesType(min_length=least, max_length=most):
            short = bytes(range(max(number, least or 0)))
            raw = bytes(range(256)) * (LONG // 256) if long else short
            return raw[:most]
        case inspect.IntType(ge=least, le=most):
            first, last = least or 0, 2**63 - 1 if most is None else most
            return (first, last, min(1_700_000_000_000, last))[number % 3]
        case inspect.FloatType():
            return (0.0, 99.5, 1e300)[number % 3]
        case inspect.BoolType():
            return number % 2 == 0
        case inspect.NoneType():
            return None
        case inspect.AnyType():
            return ("Zoë", 2**63, [1.5, {"a": None}], True)[number % 4]
        case _:
            raise TypeError(f"no sample of {kind}")


def _text(kind: inspect.StrType, number: int, long: bool) -> str:
    most = LONG if kind.max_length is None else min(kind.max_length, LONG)
    if kind.pattern is not None:
        return next(each for each in PATTERNED if re.search(kind.pattern, each))
    if long:
        return ("Zoë" * LONG)[:most]
    return (WORDS[number % len(WORDS)])[:most]


def plain(value: Any) -> Any:
    """A record as JSON has it; bytes are shown as `{"hex": ...}`."""
    match value:
        case msgspec.Struct():
            tag = value.__struct_config__.tag
            fields = {} if tag is None else {value.__struct_config__.tag_field: tag}
            return fields | {each: plain(getattr(value, each)) for each in value.__struct_fields__}
        case bytes():
            return {"hex": value.hex()}
        case dict():
            return {key: plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case _:
            return value
