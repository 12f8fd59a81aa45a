"""A tool's input schema: what is refused, by its place, and what is let through."""

from __future__ import annotations

from typing import Any

import pytest

from abeyance.actors import Tool
from abeyance.actors.domain.errors import InvalidToolError
from abeyance.actors.domain.schema_check import DEPTH_MAX
from abeyance.actors.domain.tools import check_tools


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


def of(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", **keywords}


def prop(schema: Any) -> dict[str, Any]:
    return of(properties={"a": schema})


MALFORMED: dict[str, tuple[dict[str, Any], str, str]] = {
    "properties that are none": (of(properties=5), ".properties", "object of schemas, not 5"),
    "a property that is none": (prop("text"), ".properties.a", "must be a schema"),
    "an unknown type": (prop({"type": "nope"}), ".properties.a.type", "not 'nope'"),
    "an unknown type in a list": (prop({"type": ["string", "x"]}), ".properties.a.type", "one of"),
    "no types": (prop({"type": []}), ".properties.a.type", "one of"),
    "a type twice": (prop({"type": ["null", "null"]}), ".properties.a.type", "distinct"),
    "required that is text": (of(required="x"), ".required", "list of distinct texts, not 'x'"),
    "required with a number": (of(required=["x", 1]), ".required", "list of distinct texts"),
    "required twice": (of(required=["x", "x"]), ".required", "list of distinct texts"),
    "an odd name": (of(properties={"a b": 1}), ".properties['a b']", "must be a schema"),
    "enum that is text": (prop({"enum": "ab"}), ".properties.a.enum", "must be a list"),
    "a negative length": (prop({"minLength": -1}), ".properties.a.minLength", "whole number"),
    "half a length": (prop({"maxItems": 1.5}), ".properties.a.maxItems", "whole number"),
    "a flag as a bound": (prop({"minimum": True}), ".properties.a.minimum", "must be a number"),
    "a multiple of 0": (prop({"multipleOf": 0}), ".properties.a.multipleOf", "above 0"),
    "a flag that is none": (prop({"uniqueItems": 1}), ".properties.a.uniqueItems", "true or false"),
    "a pattern that is none": (prop({"pattern": 1}), ".properties.a.pattern", "must be text"),
    "a description that is none": (of(description=[]), ".description", "must be text"),
    "items that are none": (prop({"items": 3}), ".properties.a.items", "must be a schema"),
    "items' own": (prop({"items": {"type": 1}}), ".properties.a.items.type", "one of"),
    "no alternatives": (prop({"anyOf": []}), ".properties.a.anyOf", "at least one schema"),
    "alternatives that are none": (prop({"oneOf": {}}), ".properties.a.oneOf", "at least one"),
    "an alternative": (prop({"anyOf": [{}, 7]}), ".properties.a.anyOf[1]", "must be a schema"),
    "what else may be there": (of(additionalProperties="no"), ".additionalProperties", "a schema"),
    "definitions": (of(**{"$defs": {"d": {"type": 1}}}), ".$defs.d.type", "one of"),
    "a dependency": (of(dependentRequired={"a": "b"}), ".dependentRequired", "object of lists"),
    "an older dependency": (of(dependencies={"a": [1]}), ".dependencies.a", "distinct texts"),
    "a reference that is none": (prop({"$ref": 1}), ".properties.a.$ref", "must be text"),
    "a reference to nothing": (
        prop({"$ref": "#/$defs/gone"}),
        ".properties.a.$ref",
        "'#/$defs/gone' does not",
    ),
    "a reference to no schema": (
        {"type": "object", "required": ["a"], "not": {"$ref": "#/required/0"}},
        ".not.$ref",
        "must lead to a schema",
    ),
    "a reference to no anchor": (prop({"$ref": "#here"}), ".properties.a.$ref", "does not"),
    "too deep": (of(**nested(DEPTH_MAX + 1)), ".not" * (DEPTH_MAX + 1), "schemas deep"),
}


@pytest.mark.parametrize(("schema", "place", "said"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_schema_is_refused_naming_its_place(
    schema: dict[str, Any], place: str, said: str
) -> None:
    with pytest.raises(InvalidToolError) as caught:
        Tool("t", "t", schema, print)
    assert caught.value.field == f"input_schema{place}"
    assert said in str(caught.value)


@pytest.mark.parametrize(("schema", "place", "said"), MALFORMED.values(), ids=MALFORMED)
def test_schema_that_was_changed_since_its_tool_was_made_is_refused_as_the_agent_is_added(
    schema: dict[str, Any], place: str, said: str
) -> None:
    kept = of()
    tools = [Tool("ok", "fine", of(), print), Tool("t", "t", kept, print)]
    kept.clear()
    kept.update(schema)
    with pytest.raises(InvalidToolError) as caught:
        check_tools(tools)
    assert caught.value.field == f"tools[1].input_schema{place}"
    assert said in str(caught.value)


GOOD: dict[str, dict[str, Any]] = {
    "of everything": of(
        title="t",
        properties={
            "a": {"type": ["string", "null"], "minLength": 0, "pattern": r"^\p{L}+$"},
            "b": {"type": "array", "items": {"$ref": "#/$defs/b"}, "minItems": 1.0},
            "c": True,
            "d": {"enum": ["x", 1, None], "default": object.__name__, "x-own": {"type": 5}},
            "e": {"const": {"type": "nope"}, "examples": [{"properties": 5}]},
            "type": {"type": "string"},
            "required": {"type": "boolean"},
            "$ref": {"type": "string"},
        },
        required=["a", "$ref"],
        additionalProperties=False,
        dependentRequired={"a": ["b"]},
        **{"$defs": {"b": {"anyOf": [{"type": "integer", "minimum": -1.5}, {"$ref": "#"}]}}},
    ),
    "an escaped reference": of(
        properties={"a": {"$ref": "#/$defs/x~1y%20z~0"}}, **{"$defs": {"x/y z~": {}}}
    ),
    "a reference into a list": of(allOf=[{"type": "object"}, {"$ref": "#/allOf/0"}]),
    "an anchor": of(properties={"a": {"$ref": "#here"}}, **{"$defs": {"b": {"$anchor": "here"}}}),
    "a schema of its own inside": of(
        properties={
            "a": {"$id": "urn:b", "$defs": {"c": {}}, "items": {"$ref": "#/$defs/c"}},
        }
    ),
    "a reference out of it": of(properties={"a": {"$ref": "https://example.org/s.json#/x"}}),
    "an older draft's": of(
        properties={"a": {"items": [{"type": "string"}, True], "additionalItems": False}},
        definitions={"d": {}},
        dependencies={"a": ["b"], "b": {"required": ["a"]}},
    ),
    "as deep as may be": of(**nested(DEPTH_MAX)),
    "tuples": {"type": "object", "required": ("a", "b"), "anyOf": ({}, True)},
}


@pytest.mark.parametrize("schema", GOOD.values(), ids=GOOD)
def test_sound_schema_is_let_through(schema: dict[str, Any]) -> None:
    assert set(check_tools([Tool("t", "t", schema, print)])) == {"t"}
