"""Records are checked on the way in and on the way out, and a damaged value never reads as data."""

from __future__ import annotations

import datetime
import enum
import random
import zlib
from typing import Any

import msgpack
import msgspec
import pytest

from abeyance.storage import codec
from abeyance.storage.batch import decide, prepare
from abeyance.storage.errors import InvalidRecordError, UnreadableRecordError
from abeyance.storage.keys import encode_key
from abeyance.storage.store import Limits, Record, Value
from abeyance.storage.tables.blocks import TextBlock, ToolResultBlock, ToolUseBlock
from abeyance.storage.tables.slots import Body, Carried, Inboxed, Turn, Wake
from abeyance.storage.tables.waits import Override, Wait, WaitReleased

KEY = encode_key((str, int), ("ana", 7))
WAKE = Wake(reason="message", author="ana", at_ms=1)
INBOXED = Inboxed(
    message="m",
    author="a",
    agent="g",
    wake=True,
    injectable=True,
    own=False,
    body_crc=1,
    body_bytes=2,
    accepted_ms=3,
)
TURN = Turn(slot="s", state="running", round=0, attempts=1, provider="p", model="m", started_ms=1)


class _Text(enum.StrEnum):
    ANA = "ana"


class _Number(enum.IntEnum):
    ONE = 1


def _tool(**given: Any) -> Body:
    return Body(blocks=(ToolUseBlock(id="c", name="look", input=given),))


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (msgspec.structs.replace(INBOXED, message=5), "message"),
        (msgspec.structs.replace(INBOXED, message=""), "message"),
        (msgspec.structs.replace(INBOXED, message="x" * 129), "message"),
        (msgspec.structs.replace(INBOXED, message=None), "message"),
        (msgspec.structs.replace(INBOXED, message=b"m"), "message"),
        (msgspec.structs.replace(INBOXED, message="\ud800"), "message"),
        (msgspec.structs.replace(INBOXED, wake=1), "wake"),
        (msgspec.structs.replace(INBOXED, accepted_ms=True), "accepted_ms"),
        (_tool(who=_Text.ANA), "blocks"),
        (_tool(how_many=_Number.ONE), "blocks"),
        (msgspec.structs.replace(INBOXED, message=object()), "message"),
        (msgspec.structs.replace(INBOXED, accepted_ms=1.0), "accepted_ms"),
        (msgspec.structs.replace(INBOXED, accepted_ms=-1), "accepted_ms"),
        (msgspec.structs.replace(INBOXED, accepted_ms=8_640_000_000_000_001), "accepted_ms"),
        (msgspec.structs.replace(INBOXED, accepted_ms=2**64), "accepted_ms"),
        (msgspec.structs.replace(WAKE, reason="other"), "reason"),
        (msgspec.structs.replace(TURN, answers=(1, -1)), "answers[1]"),
        (msgspec.structs.replace(TURN, answers=5), "answers"),
        (Carried(agent="a", turn=1, round=1, rows=((1, 2, 3),), sent=True), "rows[0]"),
        (Body(blocks=()), "blocks"),
        (Body(blocks=(TextBlock(text="ok"), TextBlock(text=5))), "blocks[1].text"),
        (Body(blocks=("text",)), "blocks[0]"),
        (Body(blocks=(ToolUseBlock(id="c", name="no good", input={}),)), "blocks[0].name"),
        (
            Body(
                blocks=(
                    ToolResultBlock(
                        tool_use_id="c", content=(ToolUseBlock(id="c", name="n", input={}),)
                    ),
                )
            ),
            "blocks[0].content[0].type",
        ),
        (_tool(when=datetime.datetime(2026, 1, 1)), "blocks"),  # noqa: DTZ001
        (_tool(when=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)), "blocks"),
        (_tool(these={1, 2}), "blocks"),
        (_tool(big=2**64), "blocks"),
        (_tool(that=object()), "blocks"),
        (Override(fingerprint="f", by="x" * 301, at_ms=1, act="a"), "by"),
    ],
)
def test_a_record_that_its_schema_refuses_is_not_encoded_and_the_field_is_named(
    record: Record, field: str
) -> None:
    with pytest.raises(InvalidRecordError) as caught:
        codec.encode(record)
    assert (caught.value.kind, caught.value.field) == (record.KIND, field)


def test_a_member_of_an_enum_is_stored_as_the_plain_value_that_a_field_asks_for() -> None:
    enums = msgspec.structs.replace(INBOXED, message=_Text.ANA, accepted_ms=_Number.ONE)
    plain = msgspec.structs.replace(INBOXED, message="ana", accepted_ms=1)
    assert codec.encode(enums) == codec.encode(plain)


def test_a_tool_input_nested_past_what_can_be_read_is_not_encoded() -> None:
    deep: Any = []
    for _ in range(2_000):
        deep = [deep]
    with pytest.raises(InvalidRecordError):
        codec.encode(_tool(deep=deep))


def test_only_records_of_a_table_are_encoded() -> None:
    class Other(Record, frozen=True, kw_only=True):
        KIND = "other"

    with pytest.raises(InvalidRecordError):
        codec.encode(Other())


def test_a_value_on_disk_is_the_documented_map() -> None:
    """Byte by byte, so that docs/format.md can't drift from what is written."""
    value = codec.encode(WAKE)
    allotted = encode_key((int,), (5,))
    for extra, fields in ((b"", "cskvb"), (allotted, "cskvab")):
        raw = codec.frame("wakes", KEY, 3, value, extra)
        found = msgpack.unpackb(raw)
        assert list(found) == list(fields)
        assert (found["c"], found["k"], found["v"], found["b"]) == (3, "wake", 1, value.body)
        assert found.get("a", b"") == extra
        start = zlib.crc32(b"wakes\0" + b"\xa1k\xa4wake" + b"\xa1v\x01")
        message = (3).to_bytes(8, "big") + zlib.crc32(value.body).to_bytes(4, "big") + KEY + extra
        assert found["s"] == zlib.crc32(message, start)
    assert msgpack.unpackb(value.body) == msgspec.to_builtins(WAKE)


@pytest.mark.parametrize("size", [0, 100, 300, 70_000])
@pytest.mark.parametrize("allotted", [None, (9,)])
def test_values_of_every_size_are_read_back(size: int, allotted: Any) -> None:
    record = Body(blocks=(TextBlock(text="x" * size),))
    extra = b"" if allotted is None else encode_key((int,), allotted)
    raw = codec.frame("bodies", KEY, 2**64 - 1, codec.encode(record), extra)
    assert codec.decode("bodies", KEY, raw) == (2**64 - 1, record, allotted)
    assert codec.read_counter("bodies", KEY, raw) == 2**64 - 1


def test_every_single_bit_flip_in_a_value_is_found(seed: int) -> None:
    draw = random.Random(seed)
    values = [
        ("wakes", codec.frame("wakes", KEY, 1, codec.encode(WAKE))),
        ("wakes", codec.frame("wakes", KEY, 1, codec.encode(WAKE), encode_key((int,), (3,)))),
        ("inbox", codec.frame("inbox", KEY, 9, codec.encode(INBOXED))),
        ("turns", codec.frame("turns", KEY, 2**40, codec.encode(TURN))),
        ("bodies", codec.frame("bodies", KEY, 1, codec.encode(_tool(text="y" * 400, n=[1.5])))),
    ]
    for _ in range(2_000):
        table, raw = draw.choice(values)
        bit = draw.randrange(len(raw) * 8)
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(UnreadableRecordError):
            codec.decode(table, KEY, bytes(flipped))
        with pytest.raises(UnreadableRecordError):
            codec.read_counter(table, KEY, bytes(flipped))


@pytest.mark.parametrize("allotted", [b"", encode_key((int,), (3,))], ids=["plain", "allotted"])
def test_a_value_that_is_cut_short_anywhere_is_not_read(allotted: bytes) -> None:
    for table, record in (("wakes", WAKE), ("bodies", _tool(text="y" * 400, n=[1.5]))):
        raw = codec.frame(table, KEY, 1, codec.encode(record), allotted)
        for size in range(len(raw)):
            with pytest.raises(UnreadableRecordError):
                codec.decode(table, KEY, raw[:size])
            with pytest.raises(UnreadableRecordError):
                codec.read_counter(table, KEY, raw[:size])


def test_a_value_under_another_key_or_in_another_table_is_not_read() -> None:
    raw = codec.frame("wakes", KEY, 1, codec.encode(WAKE))
    other = encode_key((str, int), ("ana", 8))
    with pytest.raises(UnreadableRecordError) as caught:
        codec.decode("wakes", other, raw)
    assert (caught.value.table, caught.value.key, caught.value.cause) == (
        "wakes",
        ("ana", 8),
        "checksum",
    )
    with pytest.raises(UnreadableRecordError):
        codec.decode("inbox", KEY, raw)


@pytest.mark.parametrize("cut", range(0, 60, 3))
def test_a_value_cut_short_or_lengthened_is_not_read(cut: int) -> None:
    raw = codec.frame("wakes", KEY, 1, codec.encode(WAKE))
    for damaged in (raw[:cut], raw + b"\xc0" * (cut + 1), b"\x81" * cut, b"\x91" * 10_000):
        with pytest.raises(UnreadableRecordError):
            codec.decode("wakes", KEY, damaged)


def _framed(kind: str, version: int, body: Any, table: str = "waits") -> bytes:
    packed = msgpack.packb(body)
    value = Value(kind, version, packed, codec.checksum(packed))
    return codec.frame(table, KEY, 1, value)


@pytest.mark.parametrize(
    ("raw", "cause"),
    [
        (_framed("wait", 2, {}), "version 2"),
        (_framed("wait", 0, {}), "header"),
        (_framed("pause", 1, {}), "unknown kind"),
        (_framed("wake", 1, {}), "unknown kind"),
        (_framed("wait", 1, {}), "deadline_ms"),
        (
            _framed("wait", 1, {"deadline_ms": 1, "reason": "r", "set_ms": 1, "act": "a", "x": 1}),
            "x",
        ),
        (_framed("wait", 1, {"deadline_ms": "1", "reason": "r", "set_ms": 1, "act": "a"}), "int"),
        (_framed("wait", 1, {"deadline_ms": True, "reason": "r", "set_ms": 1, "act": "a"}), "int"),
        (_framed("wait", 1, [1, "r", 1, "a"]), "object"),
        (_framed("wait", 1, None), "object"),
        (_framed("wait", 1, msgpack.ExtType(5, b"")), "extension"),
    ],
)
def test_a_row_that_this_version_can_t_vouch_for_is_unreadable_and_says_why(
    raw: bytes, cause: str
) -> None:
    with pytest.raises(UnreadableRecordError, match=cause) as caught:
        codec.decode("waits", KEY, raw)
    assert caught.value.table == "waits"


@pytest.mark.behaviour("W-041")
@pytest.mark.parametrize(
    "odd",
    [{"by": 42}, {"by": None}, {"by": "x" * 5_000}, {"by": ...}, {"at_ms": "x"}, {"at_ms": 2**63}],
    ids=["a number", "nil", "too long", "missing", "no instant", "past every instant"],
)
def test_a_release_reads_whatever_it_says_of_who_and_when(odd: dict[str, Any]) -> None:
    value = codec.encode(WaitReleased(by="ops", at_ms=1, act="a"))
    told = msgspec.msgpack.decode(value.body)
    told.update(odd)
    body = msgspec.msgpack.encode({name: each for name, each in told.items() if each is not ...})
    raw = codec.frame("waits", KEY, 1, type(value)(value.kind, 1, body, codec.checksum(body)))
    record = codec.decode("waits", KEY, raw).record
    assert isinstance(record, WaitReleased)
    assert record.act == "a"


def test_each_kind_of_a_table_is_told_apart() -> None:
    wait = Wait(deadline_ms=None, reason="r", set_ms=1, act="a")
    released = WaitReleased(by="ops", at_ms=2, act="a")
    for record in (wait, released):
        raw = codec.frame("waits", KEY, 1, codec.encode(record))
        assert codec.decode("waits", KEY, raw).record == record


def test_a_batch_can_be_decided_again(rows: Any) -> None:
    """A batch that met a full map is decided anew; nothing of the first time may stick to it."""
    ready = prepare([rows.cas(("a", 1), 0), rows.cas(("a", 1), 1)], Limits(10, 10_000))
    assert set(ready.reads) == {"wakes"}
    first = decide(ready, {"wakes": {}}, {}, {})
    second = decide(ready, {"wakes": {}}, {}, {})
    assert first.outcomes == second.outcomes == [(), ()]
    assert first.rows == second.rows
