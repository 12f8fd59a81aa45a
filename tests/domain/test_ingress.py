"""The door for names and messages: what is malformed is refused by name, before any effect."""

from __future__ import annotations

import enum
import math
import pickle
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from abeyance.actors.domain.errors import InvalidInputError, InvalidMessageError, InvalidNameError
from abeyance.actors.domain.ingress import (
    DEPTH_MAX,
    MESSAGE_BYTES_MAX,
    body_crc,
    check_name,
    clean_text,
    encode_body,
    identity,
    new_message_id,
    read_blocks,
)
from abeyance.storage import codec
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.keys import encode_key
from abeyance.storage.tables.blocks import (
    BLOCKS_MAX,
    RESULT_BLOCKS_MAX,
    Block,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from abeyance.storage.tables.slots import Body


def use(**fields: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": "call", "name": "look", "input": {}} | fields


def result(**fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "call", "content": []} | fields


def stored_and_read(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """What a store gives back, through the bytes that are on disk."""
    key = encode_key((str, int), ("ana", 1))
    raw = codec.frame("bodies", key, 1, encode_body(blocks))
    read: tuple[Block, ...] = codec.decode("bodies", key, raw).record.blocks
    return read


# -- blocks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "blocks"),
    [
        ("hi", (TextBlock(text="hi"),)),
        ("", (TextBlock(text=""),)),
        (TextBlock(text="hi"), (TextBlock(text="hi"),)),
        ({"type": "text", "text": "hi"}, (TextBlock(text="hi"),)),
        (MappingProxyType({"type": "text", "text": "hi"}), (TextBlock(text="hi"),)),
        ([{"type": "text", "text": "a"}, TextBlock(text="b")], (
            TextBlock(text="a"), TextBlock(text="b"),
        )),
        (ThinkingBlock(thinking="so"), (ThinkingBlock(thinking="so"),)),
        (use(input={"a": [1, None, {"b": -0.5}]}), (
            ToolUseBlock(id="call", name="look", input={"a": [1, None, {"b": -0.5}]}),
        )),
        (result(content=[{"type": "text", "text": "x"}], is_error=True), (
            ToolResultBlock(tool_use_id="call", content=(TextBlock(text="x"),), is_error=True),
        )),
    ],
)  # fmt: skip
def test_text_structs_and_mappings_become_blocks(content: Any, blocks: Any) -> None:
    read = read_blocks(content)
    assert read == blocks
    assert stored_and_read(read) == read


class Shout(str):
    """A text of a class of its own."""


class Number(enum.IntEnum):
    ONE = 1


def test_subclasses_of_plain_data_become_plain_data() -> None:
    inner = OrderedDict({Shout("k"): Number.ONE, "t": (1, Shout("x"))})
    read = read_blocks(use(input=inner))
    assert stored_and_read(read) == read
    assert read == (ToolUseBlock(id="call", name="look", input={"k": 1, "t": [1, "x"]}),)
    assert read_blocks(Shout("hi")) == (TextBlock(text="hi"),)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def looped() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


class NoBlock(msgspec.Struct):
    text: str


MALFORMED: dict[str, tuple[Any, str]] = {
    "none": (None, "message"),
    "a number": (7, "message"),
    "bytes": (b"hi", "message"),
    "a bytearray": (bytearray(b"hi"), "message"),
    "a set": ({"hi"}, "message"),
    "no blocks": ([], "message"),
    "too many blocks": ([TextBlock(text="")] * (BLOCKS_MAX + 1), "message"),
    "a null block": ([None], "message[0]"),
    "a string block": (["hi"], "message[0]"),
    "a number block": ([TextBlock(text="a"), 3], "message[1]"),
    "a list as a block": ([[]], "message[0]"),
    "no type": ({"text": "hi"}, "message[0]"),
    "an unknown type": ({"type": "video"}, "message[0].type"),
    "a type that is no text": ({"type": 3}, "message[0].type"),
    "a type with a lone surrogate": ({"type": "\ud800"}, "message[0].type"),
    "a missing field": ({"type": "text"}, "message[0]"),
    "an unknown field": ({"type": "text", "text": "", "colour": 1}, "message[0]"),
    "a field name with a lone surrogate": ({"type": "text", "\ud800": ""}, "message[0]"),
    "a field name that is no text": ({"type": "text", 1: ""}, "message[0]"),
    "text that is null": ({"type": "text", "text": None}, "message[0].text"),
    "text that is a number": ({"type": "text", "text": 1}, "message[0].text"),
    "text that is bytes": ({"type": "text", "text": b"x"}, "message[0].text"),
    "text with a lone surrogate": ("a\udfffb", "message[0].text"),
    "a struct's text that is null": (TextBlock(text=None), "message[0].text"),  # type: ignore[arg-type]
    "a struct that is no block": (NoBlock(text="x"), "message[0]"),
    "thinking with a lone surrogate": (ThinkingBlock(thinking="\ud83d"), "message[0].thinking"),
    "a tool's name with a blank": (use(name="look up"), "message[0].name"),
    "a tool's name with a newline behind": (use(name="look\n"), "message[0].name"),
    "a tool's empty name": (use(name=""), "message[0].name"),
    "a call id that is empty": (use(id=""), "message[0].id"),
    "a call id that is long": (use(id="x" * 129), "message[0].id"),
    "input that is a list": (use(input=[]), "message[0].input"),
    "input with a number as a key": (use(input={1: 2}), "message[0].input"),
    "input with one deep inside": (use(input={"a": [{2: 3}]}), "message[0].input.a[0]"),
    "input with bytes": (use(input={"a": {"b": b"x"}}), "message[0].input.a.b"),
    "input with a set": (use(input={"a": {1}}), "message[0].input.a"),
    "input with NaN": (use(input={"a": math.nan}), "message[0].input.a"),
    "input with infinity": (use(input={"a": [math.inf]}), "message[0].input.a[0]"),
    "input with a huge number": (use(input={"a": 2**64}), "message[0].input.a"),
    "input with a hugely negative one": (use(input={"a": -(2**63) - 1}), "message[0].input.a"),
    "input with a lone surrogate": (use(input={"a": ["\ud800"]}), "message[0].input.a[0]"),
    "input with one as a key": (use(input={"a": {"\ud800": 1}}), "message[0].input.a"),
    "input with an object": (use(input={"a": object()}), "message[0].input.a"),
    "input too deep": (use(input={"a": nested(DEPTH_MAX)}), "message[0].input.a" + "[0]" * 62),
    "input that holds itself": (use(input={"a": looped()}), "message[0].input.a" + "[0]" * 62),
    "a result of a string": (result(content="done"), "message[0].content"),
    "a result that holds a string": (result(content=["done"]), "message[0].content[0]"),
    "a result that holds null": (result(content=[None]), "message[0].content[0]"),
    "a result that holds a call": (result(content=[use()]), "message[0].content[0].type"),
    "a result with a surrogate": (
        result(content=[{"type": "text", "text": "\ud800"}]), "message[0].content[0].text"),
    "a result of too many blocks": (
        result(content=[{"type": "text", "text": ""}] * (RESULT_BLOCKS_MAX + 1)),
        "message[0].content",
    ),
    "a result's error flag that is no flag": (result(is_error=1), "message[0].is_error"),
}  # fmt: skip


@pytest.mark.behaviour("D-090", "R-15")
@pytest.mark.parametrize(("content", "field"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_message_is_refused_and_the_field_is_named(content: Any, field: str) -> None:
    with pytest.raises(InvalidMessageError) as caught:
        read_blocks(content)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")
    assert pickle.loads(pickle.dumps(caught.value)).field == field


def test_a_message_is_as_deep_as_the_bound_and_no_deeper() -> None:
    fits = use(input={"a": nested(DEPTH_MAX - 2)})
    assert stored_and_read(read_blocks(fits)) == read_blocks(fits)
    with pytest.raises(InvalidMessageError, match="levels deep"):
        read_blocks(use(input={"a": nested(DEPTH_MAX - 1)}))


any_text = st.text(st.characters(codec=None), max_size=6)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    any_text,
    st.binary(max_size=3),
    st.sampled_from([2**63, -(2**63), 2**64 - 1, 2**64, -(2**63) - 1, TextBlock(text="x")]),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner),
        st.dictionaries(st.one_of(any_text, st.integers()), inner, max_size=3),
        st.dictionaries(st.sampled_from(["type", "text", "id", "input", "content"]), inner),
    ),
    max_leaves=8,
)
plain_trees = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=4),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
nearly = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": trees}),
    st.fixed_dictionaries(
        {
            "type": st.just("tool_use"),
            "id": st.one_of(st.just("c"), any_text),
            "name": st.one_of(st.just("look"), any_text),
            "input": st.one_of(trees, st.dictionaries(any_text, trees, max_size=3)),
        },
        optional={"more": trees},
    ),
    st.fixed_dictionaries(
        {"type": st.just("tool_result"), "tool_use_id": st.just("c"), "content": trees},
        optional={"is_error": trees},
    ),
    st.fixed_dictionaries({"type": st.just("thinking"), "thinking": trees, "signature": any_text}),
)


@pytest.mark.behaviour("D-090")
@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(trees, nearly, st.lists(st.one_of(nearly, trees), max_size=3)))
@example(use(input={"a": -0.0}))
def test_whatever_is_sent_is_refused_as_a_message_or_is_stored_and_read_equal(content: Any) -> None:
    try:
        blocks = read_blocks(content)
    except InvalidMessageError as error:
        assert error.field.startswith("message")  # noqa: PT017 - one of two good outcomes.
        return
    assert stored_and_read(blocks) == blocks
    assert msgspec.json.decode(msgspec.json.encode(blocks), type=tuple[Block, ...]) == blocks


@given(st.dictionaries(st.text(max_size=3), plain_trees, max_size=4))
def test_plain_data_is_accepted_as_a_tools_input_as_it_is(value: dict[str, Any]) -> None:
    (block,) = read_blocks(use(input=value))
    assert block == ToolUseBlock(id="call", name="look", input=value)


def test_a_body_over_its_bound_is_refused_with_its_size() -> None:
    eighth = TextBlock(text="x" * (MESSAGE_BYTES_MAX // 8))
    with pytest.raises(InvalidMessageError, match=str(MESSAGE_BYTES_MAX)):
        encode_body((eighth,) * 8)
    assert len(encode_body((eighth,) * 7).body) <= MESSAGE_BYTES_MAX


def test_equal_content_has_an_equal_fingerprint_and_other_content_another() -> None:
    first = encode_body(read_blocks("hi"))
    assert body_crc(first) == body_crc(encode_body(read_blocks({"type": "text", "text": "hi"})))
    assert body_crc(first) != body_crc(encode_body(read_blocks("ho")))


# -- names -------------------------------------------------------------------------------------

BAD_NAMES: dict[str, Any] = {
    "none": None,
    "a number": 42,
    "bytes": b"ana",
    "a list": ["ana"],
    "empty": "",
    "129 bytes": "x" * 129,
    "129 bytes in 65 characters": "é" * 64 + "x",
    "a newline": "a\nb",
    "NUL": "a\0b",
    "DEL": "a\x7f",
    "C1": "a\x85b",
    "a line separator": "a\u2028b",
    "a paragraph separator": "a\u2029b",
    "a lone surrogate": "a\ud800",
    "an override of direction": "a\u202eb",
    "an isolate of direction": "a\u2066b",
    "a blank of no width": "a\u200bb",
    "a byte order mark": "a\ufeffb",
    "blanks before": " ana",
    "blanks behind": "ana\u3000",
    "the star": "*",
    "the wide star": "\uff0a",
    "framework": "framework",
    "FrameWork": "FrameWork",
    "framework in wide letters": "\uff26\uff32\uff21\uff2d\uff25\uff37\uff2f\uff32\uff2b",
    "framework with a kelvin sign": "framewor\u212a",
}


@pytest.mark.behaviour("W-116")
@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES)
def test_a_malformed_or_reserved_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidNameError) as caught:
        check_name(name, "agent")
    assert caught.value.field == "agent"
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, InvalidInputError)


@pytest.mark.parametrize(
    "name", ["ana", "a b", "é" * 64, "x" * 128, "фёдор", "नर्\u200dमदा", "framework 2", "**"]
)
def test_a_proper_name_is_returned_as_it_is(name: str) -> None:
    assert check_name(name, "agent") == name


def test_a_reserved_name_is_allowed_where_the_caller_says_so() -> None:
    assert check_name("*", "model", reserved=False) == "*"
    assert type(check_name(Shout("ana"), "agent")) is str


@settings(max_examples=200)
@given(st.text(st.characters(codec=None), max_size=140))
def test_a_name_that_passes_is_a_key_and_one_line(name: str) -> None:
    try:
        check_name(name, "agent")
    except InvalidNameError:
        return
    assert len(encode_key((str, str), (name, name))) < 511
    assert name.splitlines() == [name]
    assert identity(name) not in ("*", "framework")


@pytest.mark.behaviour("D-004")
@pytest.mark.parametrize("form", ["Ada", "ADA", "ada", "\uff21da", " ada "])
def test_one_participant_has_one_identity_in_every_form(form: str) -> None:
    assert identity(form) == identity("ada")
    assert identity(form) != identity("adam")


# -- ids and text --------------------------------------------------------------------------------


def test_message_ids_sort_by_their_instant_and_are_never_equal() -> None:
    ids = [new_message_id(now_ms) for now_ms in (5, 5, 6, 8_640_000_000_000_000)]
    assert len(set(ids)) == 4
    assert sorted(ids) == ids
    assert all(check_name(each, "id") == each for each in ids)


@pytest.mark.behaviour("W-116", "W-127")
def test_cleaned_text_is_one_bounded_line() -> None:
    assert clean_text("stop\n[ops] released\x9b\u2028!\ud800", 300) == "stop [ops] released  ! "
    long = clean_text("x" * 1_000_000, 300)
    assert (len(long), long[-1]) == (300, "…")
    assert clean_text("x" * 300, 300) == "x" * 300


def test_the_schema_of_what_is_sent_is_the_schema_of_what_is_stored() -> None:
    assert msgspec.structs.fields(Body)[0].name == "blocks"
    assert msgspec.convert({"blocks": [use()]}, Body).blocks == read_blocks(use())


AT_REST: dict[str, Any] = {
    "a number for a text": {"type": "text", "text": 7},
    "a flag for an error's": result(is_error=1),
    "a text for a result's content": result(content="done"),
    "a call inside a result": result(content=[use()]),
    "a list for an input": use(input=[]),
    "a field that no block has": {"type": "text", "text": "", "colour": 1},
    "a kind that no block is": {"type": "video"},
}


@pytest.mark.behaviour("R-15")
@pytest.mark.parametrize("block", AT_REST.values(), ids=AT_REST)
def test_a_row_is_read_again_by_the_schema_that_it_was_accepted_by(block: Any) -> None:
    with pytest.raises(InvalidMessageError):
        read_blocks(block)
    sound, body = codec.encode(Body(blocks=read_blocks("hi"))), codec.pack({"blocks": [block]})
    stored = codec.Value(sound.kind, sound.version, body, codec.checksum(body))
    key = encode_key((str, int), ("ana", 1))
    with pytest.raises(UnreadableRecordError) as caught:
        codec.decode("bodies", key, codec.frame("bodies", key, 1, stored))
    assert (caught.value.table, caught.value.key) == ("bodies", ("ana", 1))
