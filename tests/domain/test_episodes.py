"""A transcript that cannot be read fails every turn: who operates the host is told of it once."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from abeyance.actors.testing import reply

from .damage import DAMAGES, damage
from .world import World, until


@pytest.mark.parametrize("how", DAMAGES)
async def test_transcript_that_cannot_be_read_is_told_of_once_until_a_turn_has_read_it(
    world: World, virtual_time: MockClock, how: str
) -> None:
    async with world.open():
        ana = await world.add([reply("one"), reply("two")])
        for words in ("a", "b"):
            await ana.send(words, id=words)
            await ana.wait_idle()
        (body,) = [row.entry for row in world.rows("slots", "ana") if row.message == "b"]
    damage(world.directory, world.clock, "bodies", ("ana", body), how)
    for _ in range(2):
        async with world.open() as runtime:
            ana = await world.add(lambda request: reply("again"))
            await ana.send("c")
            await ana.wait_idle()
            await ana.send("d")
            await ana.wait_idle()
            await until(lambda: bool(runtime.alerts()))
            (alert,) = runtime.alerts()
            assert alert.kind == "transcript_unreadable"
            assert (alert.agent, alert.deadline_ms) == ("ana", None)
            assert "bodies" in alert.text
            assert "abeyance rewind" in alert.text
            turns = [turn for turn in world.turns() if turn.state == "failed"]
            assert {turn.failure for turn in turns} == {"unreadable_record"}
    async with world.open() as runtime:
        ana = await world.add(lambda request: reply("again"))
        await ana.rewind(2, requester="ops")
        await ana.send("e")
        await ana.wait_idle()
        assert world.turns()[-1].state == "done"
        assert len(runtime.alerts()) == 1
