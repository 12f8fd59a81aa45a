"""Keys sort as their tuples do, prefixes are whole parts, and what is no key is refused by part."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abeyance.storage.errors import InvalidRequestError
from abeyance.storage.keys import (
    KEY_BYTES_MAX,
    decode_key,
    encode_key,
    encode_prefix,
    encoder,
)
from abeyance.storage.tables import TABLES

# Few letters, so that parts share beginnings; the control characters are what the encoding escapes.
_TEXT = st.text(st.sampled_from("\0\1\2ab\x7fé\U0010ffff"), max_size=6)
_BYTES = st.binary(max_size=6)
_INT = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
_PARTS = {str: _TEXT, bytes: _BYTES, int: _INT}


def _keys(shape: tuple[type, ...]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(*(_PARTS[kind] for kind in shape))


_SHAPE = st.lists(st.sampled_from([str, int, bytes]), min_size=1, max_size=4).map(tuple)
_PAIRS = _SHAPE.flatmap(lambda shape: st.tuples(st.just(shape), _keys(shape), _keys(shape)))


def _sortable(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(part.encode() if isinstance(part, str) else part for part in key)


@given(_PAIRS)
def test_encoded_keys_sort_as_their_tuples(pair: Any) -> None:
    shape, one, two = pair
    a, b = encode_key(shape, one), encode_key(shape, two)
    assert (a < b, a == b) == (_sortable(one) < _sortable(two), one == two)


@given(_PAIRS)
def test_a_key_is_decoded_as_it_was_encoded(pair: Any) -> None:
    shape, key, _ = pair
    assert decode_key(encode_key(shape, key)) == key


@given(_PAIRS, st.integers(0, 4))
def test_an_encoded_prefix_is_one_of_whole_parts_only(pair: Any, length: int) -> None:
    shape, one, two = pair
    prefix = two[:length]
    raw = encode_prefix(shape, prefix)
    assert encode_key(shape, one).startswith(raw) == (one[: len(prefix)] == prefix)
    # The bound that a reversed scan starts from is past every key of the prefix, and no other.
    key = encode_key(shape, one)
    assert (raw <= key < raw + b"\xff") == (one[: len(prefix)] == prefix)


@given(_PAIRS)
def test_the_fast_encoders_agree_with_the_general_one(pair: Any) -> None:
    shape, key, _ = pair
    assert encoder(shape)(key) == encode_prefix(shape, key)


@pytest.mark.parametrize("shape", sorted({table.key for table in TABLES.values()}, key=repr))
@pytest.mark.parametrize("bad", [None, 1.0, True, -1, 2**64, "\ud800", b"", "x" * 512, (), ["x"]])
def test_a_part_that_is_none_is_refused_by_its_index(shape: Any, bad: Any) -> None:
    good = tuple({str: "x", int: 1}[kind] for kind in shape)
    for index in range(len(shape)):
        if isinstance(bad, shape[index]) and bad not in (True, -1, 2**64, "\ud800", "x" * 512):
            continue
        key = (*good[:index], bad, *good[index + 1 :])
        with pytest.raises(InvalidRequestError) as caught:
            encode_key(shape, key)
        assert caught.value.field == f"key[{index}]"


@pytest.mark.parametrize("key", [(), ("a",), ("a", 1, 2), ["a", 1], "ab", None, {"a": 1, "b": 2}])
def test_what_has_another_shape_is_refused(key: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        encode_key((str, int), key)
    assert caught.value.field in ("key", "key[0]")


def test_a_key_may_be_as_long_as_the_engine_takes_and_no_longer() -> None:
    assert len(encode_key((str,), ("x" * (KEY_BYTES_MAX - 2),))) == KEY_BYTES_MAX
    for text in ("x" * (KEY_BYTES_MAX - 1), "\0" * 255, "é" * 255):
        with pytest.raises(InvalidRequestError, match="longer than 511"):
            encode_key((str,), (text,))


@pytest.mark.parametrize("raw", [b"\2abc", b"\3\0\0", b"\7", b"\2\xff\0", b"\0"])
def test_bytes_that_are_no_key_are_not_decoded(raw: bytes) -> None:
    with pytest.raises(ValueError):
        decode_key(raw)
