"""A long text in several pieces is one message: stored all or none, and told as it is stored.

A message's blocks are one row, written in the request that accepts it; so no fault leaves a part of
them, and nothing has to be put together again.
"""

from __future__ import annotations

import io
import json
import random
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors import Draft
from abeyance.actors.domain.errors import InvalidMessageError, NotStoredError
from abeyance.actors.domain.ingress import MESSAGE_BYTES_MAX, encode_body, read_blocks
from abeyance.actors.domain.render import render
from abeyance.actors.domain.slot_messages import PlacedRow
from abeyance.actors.domain.slot_rows import read_placed
from abeyance.actors.testing import call_tool, reply
from abeyance.storage.errors import RequestTooLargeError
from abeyance.storage.tables.blocks import BLOCKS_MAX, TEXT_CHARS_MAX, Block, TextBlock
from abeyance.storage.tables.slots import Entry

from .desk import rows
from .slots import SLOT, accept, check, close, joined_by, record, shown, start
from .test_ingress import nearly, trees
from .test_poison import PickyStore
from .test_slot_actor import open_room
from .world import Stop, World

PIECES = tuple(TextBlock(text=letter * 3_000) for letter in "abc")


def long(known: str = "long") -> Any:
    body = encode_body(PIECES)
    return msgspec.structs.replace(accept("x", known=known), body=body, body_crc=body.body_crc)


def pieces(store: Any, message: str = "long") -> list[int]:
    """How many pieces each stored copy of a message has."""
    return [len(row.blocks) for row in read_placed(store, SLOT, 1) if row.entry.message == message]


@pytest.mark.behaviour("D-055", "D-058")
@pytest.mark.parametrize("table", ["ids", "bodies", "slots", "wakes"])
async def test_a_store_that_refuses_any_row_of_a_long_message_has_none_of_it(table: str) -> None:
    store = PickyStore()
    store.own(SLOT)
    async with open_room(store, "ana") as room:
        await room.slot.ask(accept("go"))
        keys: dict[str, Any] = {
            "ids": (SLOT, "long"), "bodies": (SLOT, 2), "slots": (SLOT, 2), "wakes": ("ana", 2),
        }  # fmt: skip
        store.refuse(table, keys[table])
        with pytest.raises(NotStoredError):
            await room.slot.ask(long())
        for of in ("ids", "bodies", "slots", "inbox", "wakes"):
            assert not [key for key in rows(store, of) if key[-1] in ("long", 2)]
        # Sent again, to a store that takes it, it is there once and whole; and so it stays.
        store.refuses.clear()
        await room.slot.ask(long())
        assert (await room.slot.ask(long())).state == "stored"
        room.slot.kill("a test")
        assert (await room.slot.ask(long())).seq == 2
        assert pieces(store) == [3]
        check(store)


@pytest.mark.behaviour("D-052", "D-054", "D-056")
@pytest.mark.parametrize("refusals", range(3))
async def test_what_joins_a_turn_is_what_later_requests_carry_also_after_refusals(
    refusals: int,
) -> None:
    store = PickyStore()
    store.own(SLOT)
    async with open_room(store, "ana") as room:
        await room.slot.ask(accept("go"))
        turn = await room.slot.ask(start())
        await room.slot.ask(record(turn, 1, "look", "call"))
        await room.slot.ask(long())
        await room.slot.ask(accept("behind"))
        store.refuse("ids", (SLOT, "long"), refusals)
        with trio.fail_after(5):
            joined = joined_by(store, await room.slot.ask(close(turn, 1, "call")))
        compiled = read_placed(store, SLOT, joined[0].seq)
        assert list(joined) == compiled
        assert [render(row) for row in joined] == [render(row) for row in compiled]
        assert joined[1].blocks == PIECES
        assert pieces(store) == [3]
        assert shown(store)[-1] == "user: behind"


@pytest.mark.behaviour("D-055")
async def test_a_slot_that_dies_while_a_long_message_is_out_has_it_once_and_whole() -> None:
    for hold in (False, True):
        store = PickyStore()
        store.own(SLOT)
        async with open_room(store, "ana") as room:
            await room.slot.ask(accept("go"))
            store.hold = hold
            future = room.slot.ask(long())
            await wait_all_tasks_blocked()
            room.slot.kill("a test")
            store.hold = False
            store.release()
            with trio.fail_after(5):
                assert (await future).state == "stored"
            assert pieces(store) == [3]
            check(store)


def placed(blocks: tuple[Block, ...], role: Any) -> PlacedRow:
    entry = Entry(entry=1, message="m", author="bo", role=role, at_ms=1)
    return PlacedRow(1, entry, blocks)


@pytest.mark.behaviour("D-092", "R-15")
@settings(max_examples=300, deadline=None)
@example([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "user")
@given(
    st.one_of(trees, nearly, st.lists(st.one_of(nearly, trees), max_size=4)),
    st.sampled_from(["user", "assistant", "results"]),
)
def test_whatever_is_accepted_is_rendered_in_its_own_order_and_shape(
    content: Any, role: str
) -> None:
    try:
        blocks = read_blocks(content)
    except InvalidMessageError:
        return
    message = render(placed(blocks, role))
    assert message is not None
    assert message.blocks == blocks
    # Read from its row again, it is told in the same bytes.
    stored = msgspec.msgpack.decode(encode_body(blocks).body)["blocks"]
    again = render(placed(msgspec.convert(stored, tuple[Block, ...]), role))
    assert again == message
    assert msgspec.json.encode(again.blocks) == msgspec.json.encode(message.blocks)


@pytest.mark.behaviour("D-092", "D-090", "R-15")
async def test_whatever_a_surface_accepts_never_fails_a_compile(
    world: World, virtual_time: MockClock, seed: int
) -> None:
    """Every surface is offered the same junk; what one accepts must be told to a provider."""
    draw = random.Random(seed)
    leaf: list[Any] = [None, 7, "x", "", "\ud800", b"x", float("nan"), [], {}, True, "y" * 5_000]
    texts: list[Any] = ["said", *leaf]

    def block() -> Any:
        shape = {"type": draw.choice(["text", "text", "image", "tool_result", "tool_use"])}
        for field in ("text", "id", "name", "input", "tool_use_id", "content", "colour"):
            if draw.random() < (0.8 if field == "text" else 0.15):
                shape[field] = draw.choice(texts)
        return shape if draw.random() < 0.8 else draw.choice(leaf)

    stop, accepted = Stop(), 0
    async with world.open() as runtime:
        script = [call_tool("wait"), *[reply("ok")] * 400]
        ana = await world.add(script, tools=[stop.tool()])
        await ana.send("go")
        await stop.entered.wait()
        for number in range(150):
            content = draw.choice([block(), [block() for _ in range(draw.randint(0, 3))], "said"])
            how = draw.randint(0, 2)
            try:
                if how == 0:
                    await ana.send(content)
                elif how == 1:
                    await ana.send_many([Draft("said", wake=False), Draft(content)])
                else:
                    entry = {"id": str(number), "participant": "bo", "content": content}
                    document = {"format": "abeyance-deferred", "version": 1, "entries": [entry]}
                    report = await runtime.import_deferred(_stream(document), agent="ana")
                    accepted += len(report.messages)
                    continue
            except InvalidMessageError as error:
                assert error.field.startswith(("message", "drafts[1].message"))  # noqa: PT017
            else:
                accepted += 1
        stop.go.set()
        await ana.wait_idle()
        assert accepted > 20
        assert {turn.state for turn in world.turns()} == {"done"}
        assert world.state().state == "idle"


def _stream(document: Any) -> Any:
    return io.StringIO(json.dumps(document, default=lambda value: "?"))


async def test_the_bounds_of_a_message_are_told_by_the_field_and_the_bound(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([])
        text = TextBlock(text="x" * TEXT_CHARS_MAX)
        whole = await ana.send([text] * 4, wake=False)
        assert (await ana.receipt(whole.id)).state == "stored"
        for content, bound in (
            ([text] * 5, f"{MESSAGE_BYTES_MAX} bytes"),
            ([TextBlock(text="x")] * (BLOCKS_MAX + 1), str(BLOCKS_MAX)),
            ("x" * (TEXT_CHARS_MAX + 1), f"{TEXT_CHARS_MAX:,} characters"),
        ):
            with pytest.raises(InvalidMessageError, match=bound):
                await ana.send(content, wake=False)


async def test_a_store_of_small_requests_says_how_much_it_takes() -> None:
    store = PickyStore()
    store.own(SLOT)
    async with open_room(store) as room:
        with pytest.raises(RequestTooLargeError) as caught:
            await room.slot.ask(accept("x" * 1_400_000))
        assert caught.value.limit == store.limits.payload_bytes_max - 256 * 1_024
        assert caught.value.size > caught.value.limit
        assert await room.slot.ask(accept("x" * 1_300_000))
