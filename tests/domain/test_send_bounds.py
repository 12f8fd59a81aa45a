"""What `send` takes at its bounds: the longest text, and text that says nothing."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from abeyance.actors.domain.errors import InvalidMessageError
from abeyance.storage.tables.blocks import TEXT_CHARS_MAX

from .world import World, shown

NOTHING = {
    "nothing": "",
    "blanks": " \t\r\n\u3000",
    "a NUL": "\0",
    "control characters among blanks": " \x00\n\x1b\x7f ",
    "a byte order mark": "\ufeff",
    "what has no width": "\u200b\u200d",
    "blocks of such": [{"type": "text", "text": "\0"}, {"type": "text", "text": " "}],
}
SOMETHING = {"a letter behind a NUL": "\0a", "a letter behind blanks": " a", "an emoji": "🙂"}


@pytest.mark.parametrize("content", NOTHING.values(), ids=NOTHING)
async def test_text_that_says_nothing_is_refused_and_nothing_is_stored(
    world: World, virtual_time: MockClock, content: Any
) -> None:
    async with world.open():
        ana = await world.add([])
        with pytest.raises(InvalidMessageError, match="must hold text that is not blank"):
            await ana.send(content)
        assert await shown(ana) == []


@pytest.mark.parametrize("content", SOMETHING.values(), ids=SOMETHING)
async def test_text_that_says_something_is_stored_as_it_is(
    world: World, virtual_time: MockClock, content: str
) -> None:
    async with world.open():
        ana = await world.add([])
        await ana.send(content, wake=False)
        assert await shown(ana) == [f"user: {content}"]


@pytest.mark.parametrize("as_blocks", [False, True], ids=["text", "a second block"])
async def test_text_past_its_bound_is_refused_naming_the_field_and_the_bound(
    world: World, virtual_time: MockClock, as_blocks: bool
) -> None:
    long = "x" * (TEXT_CHARS_MAX + 1)
    content: Any = [{"type": "text", "text": "a"}, {"type": "text", "text": long}]
    async with world.open():
        ana = await world.add([])
        with pytest.raises(InvalidMessageError) as caught:
            await ana.send(content if as_blocks else long)
        field = f"message[{int(as_blocks)}].text"
        assert caught.value.field == field
        assert str(caught.value).startswith(f"{field}: must be at most 4,000,000 characters")
        await ana.send("x" * TEXT_CHARS_MAX, wake=False)
