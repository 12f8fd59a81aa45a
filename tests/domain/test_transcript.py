"""Reading a transcript on from a message: what names it, and what does not."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from abeyance.actors import AgentHandle
from abeyance.actors.domain.errors import InvalidInputError, InvalidNameError, UnknownMessageError
from abeyance.actors.testing import Gate, reply

from .world import World


async def behind(ana: AgentHandle, after: Any) -> list[str]:
    return [row.text async for row in ana.transcript(after=after)]


@pytest.mark.parametrize("by", ["the message", "its place", "its id", "its receipt"])
async def test_transcript_is_read_on_from_a_message_by_whatever_names_it(
    world: World, virtual_time: MockClock, by: str
) -> None:
    gate = Gate(reply("one"))
    async with world.open():
        ana = await world.add([gate, reply("two")])
        await ana.send("first")
        await gate.wait_entered()
        receipt = await ana.send("second")
        gate.release()
        await ana.wait_idle()
        await ana.send("kept", wake=False)
        (message,) = [row async for row in ana.transcript() if row.id == receipt.id]
        # The trap: it was numbered before the reply that stands in front of it.
        assert message.entry == receipt.seq == 2
        assert message.seq == 3
        names: dict[str, Any] = {
            "the message": message,
            "its place": message.seq,
            "its id": receipt.id,
            "its receipt": receipt,
        }
        assert await behind(ana, names[by]) == ["two", "kept"]


async def test_transcript_is_read_on_from_a_reply_by_its_id(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([reply("one")])
        await ana.send("first")
        await ana.wait_idle()
        await ana.send("kept", wake=False)
        rows = [row async for row in ana.transcript()]
        assert await behind(ana, rows[1].id) == ["kept"]


async def test_transcript_behind_a_message_that_waits_in_the_inbox_is_refused(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(reply("one"))
    async with world.open():
        ana = await world.add([gate, reply("two")])
        await ana.send("first")
        await gate.wait_entered()
        receipt = await ana.send("second")
        assert receipt.state == "accepted"
        with pytest.raises(UnknownMessageError):
            await behind(ana, receipt)
        gate.release()
        await ana.wait_idle()
        assert await behind(ana, receipt) == ["two"]


@pytest.mark.parametrize(
    ("after", "error"),
    [
        (-1, InvalidInputError),
        (True, InvalidInputError),
        (2.0, InvalidInputError),
        (object(), InvalidInputError),
        ("", InvalidNameError),
        ("nobody's", UnknownMessageError),
    ],
    ids=["negative", "truth value", "float", "object", "empty", "unknown"],
)
async def test_transcript_behind_what_names_no_message_is_refused(
    world: World, virtual_time: MockClock, after: Any, error: type[Exception]
) -> None:
    async with world.open():
        ana = await world.add([])
        with pytest.raises(error, match="after" if error is not UnknownMessageError else "nobody"):
            await behind(ana, after)


@pytest.mark.parametrize("limit", ["1", True, 1.0])
async def test_transcript_with_a_limit_that_is_no_number_is_refused(
    world: World, virtual_time: MockClock, limit: Any
) -> None:
    async with world.open():
        ana = await world.add([])
        with pytest.raises(InvalidInputError, match="limit"):
            await anext(ana.transcript(limit=limit))
