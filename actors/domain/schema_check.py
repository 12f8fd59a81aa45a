"""The check of a tool's input schema: JSON Schema 2020-12's meta-schema, as far as tools use it.

Of older drafts what providers take is let through: `definitions`, `dependencies`, and `items` as a
list. Keywords that are not listed are annotations, as the standard says. References that lead out
of the schema are nobody's here to resolve and pass.

Pure; any thread.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

DEPTH_MAX: Final = 100
TYPES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")

Problem = tuple[str, str]
"""Where, as a path behind the schema's own, and what is wrong there."""


def problem_of(schema: Mapping[str, Any]) -> Problem | None:
    """The first problem of a schema that is plain JSON, or None. Breadth within, in its order."""
    return next(_problems(schema, _Place("", schema, 0)), None)


class _Place(NamedTuple):
    """Where a schema stands: its path, the resource its references start from, its depth."""

    path: str
    resource: Mapping[str, Any]
    depth: int

    def below(self, *steps: str | int) -> _Place:
        path = self.path
        for step in steps:
            plain = isinstance(step, str) and _PLAIN.fullmatch(step)
            path += f".{step}" if plain else f"[{step!r:.60}]"
        return _Place(path, self.resource, self.depth + 1)


_PLAIN: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]{0,59}")


def _problems(schema: object, at: _Place) -> Iterator[Problem]:
    if isinstance(schema, bool):  # True fits everything, False nothing.
        return
    if not isinstance(schema, Mapping):
        yield at.path, f"must be a schema (an object or a truth value), not {_kind(schema)}"
        return
    if at.depth > DEPTH_MAX:
        yield at.path, f"must be at most {DEPTH_MAX} schemas deep"
        return
    if "$id" in schema:
        at = at._replace(resource=schema)
    for keyword, value in schema.items():
        place = at.below(keyword)
        if keyword in _VALUES:
            fits, wanted = _VALUES[keyword]
            if not fits(value):
                yield place.path, f"must be {wanted}, not {_kind(value)}"
        elif keyword in _REFERENCES:
            yield from _reference(value, place)
        elif keyword in _SCHEMAS:
            yield from _problems(value, place)
        elif keyword in _LISTS or (keyword == "items" and isinstance(value, list)):
            yield from _list(value, place)
        elif keyword == "items":
            yield from _problems(value, place)
        elif keyword in _MAPS:
            yield from _map(keyword, value, place)


def _list(value: object, at: _Place) -> Iterator[Problem]:
    if not isinstance(value, list | tuple) or not value:
        yield at.path, f"must be a list of at least one schema, not {_kind(value)}"
        return
    for position, schema in enumerate(value):
        yield from _problems(schema, at.below(position))


def _map(keyword: str, value: object, at: _Place) -> Iterator[Problem]:
    if not isinstance(value, Mapping):
        yield at.path, f"must be an object of schemas, not {_kind(value)}"
        return
    for name, schema in value.items():
        below = at.below(name)
        if keyword == "dependencies" and isinstance(schema, list):
            if not _is_names(schema):
                yield below.path, "must be a list of distinct texts, or a schema"
        else:
            yield from _problems(schema, below)


def _reference(value: object, at: _Place) -> Iterator[Problem]:
    if not isinstance(value, str):
        yield at.path, f"must be text, not {_kind(value)}"
    elif value.startswith("#") and not _leads_to_a_schema(unquote(value[1:]), at.resource):
        yield at.path, f"must lead to a schema in this one, and {value[:100]!r} does not"


def _leads_to_a_schema(fragment: str, resource: Mapping[str, Any]) -> bool:
    if not fragment:
        return True
    if not fragment.startswith("/"):
        return any(
            schema.get(name) == fragment
            for schema in _mappings(resource)
            for name in ("$anchor", "$dynamicAnchor")
        )
    found: Any = resource
    for part in fragment[1:].split("/"):
        step = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and step in found:
            found = found[step]
        elif isinstance(found, list | tuple) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        else:
            return False
    return isinstance(found, Mapping | bool)


def _mappings(value: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        yield value
    if isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _mappings(inner)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_positive(value: object) -> bool:
    return _is_number(value) and value > 0  # type: ignore[operator]


def _is_count(value: object) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)  # type: ignore[operator, call-overload]


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _is_names(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and all(isinstance(name, str) for name in value)
        and len(set(value)) == len(value)
    )


def _is_type(value: object) -> bool:
    if isinstance(value, str):
        return value in TYPES
    return _is_names(value) and bool(value) and all(name in TYPES for name in value)  # type: ignore[attr-defined]


def _is_name_lists(value: object) -> bool:
    return isinstance(value, Mapping) and all(map(_is_names, value.values()))


def _kind(value: object) -> str:
    if value is None or isinstance(value, bool | int | float | str):
        return f"{value!r:.60}"
    return "an object" if isinstance(value, Mapping) else "this list"


_Fits = Callable[[object], bool]
_COUNT: Final[tuple[_Fits, str]] = (_is_count, "a whole number from 0")
_NUMBER: Final[tuple[_Fits, str]] = (_is_number, "a number")
_TEXT: Final[tuple[_Fits, str]] = (_is_text, "text")
_FLAG: Final[tuple[_Fits, str]] = (_is_flag, "true or false")
_VALUES: Final[dict[str, tuple[_Fits, str]]] = {
    "type": (_is_type, f"one of {', '.join(TYPES)}, or a list of distinct ones"),
    "enum": (_is_list, "a list"),
    "required": (_is_names, "a list of distinct texts"),
    "dependentRequired": (_is_name_lists, "an object of lists of distinct texts"),
    "multipleOf": (_is_positive, "a number above 0"),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"), _NUMBER),
    **dict.fromkeys(
        (
            *("maxLength", "minLength", "maxItems", "minItems", "maxContains", "minContains"),
            *("maxProperties", "minProperties"),
        ),
        _COUNT,
    ),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), _FLAG),
    **dict.fromkeys(
        (
            *("title", "description", "format", "pattern", "$comment", "contentEncoding"),
            *("contentMediaType", "$schema", "$id", "$anchor", "$dynamicAnchor"),
        ),
        _TEXT,
    ),
    "examples": (_is_list, "a list"),
}
_REFERENCES: Final = frozenset({"$ref", "$dynamicRef"})
_SCHEMAS: Final = frozenset({
    "not", "if", "then", "else", "contains", "propertyNames", "additionalProperties",
    "additionalItems", "unevaluatedProperties", "unevaluatedItems", "contentSchema",
})  # fmt: skip
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAPS: Final = frozenset({
    "properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions",
})  # fmt: skip
