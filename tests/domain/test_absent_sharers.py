"""A sharer that died in its turn: it goes on, or, where nobody adds it again, holds up nobody."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors import AgentSpec
from abeyance.actors.domain.slot_absent import ABSENT_MARKER, ABSENT_S
from abeyance.actors.domain.slot_turns import UNKNOWN
from abeyance.actors.testing import Gate, ScriptedProvider, reply

from ..lives import KILLED, lived
from .children import sharing
from .world import Stop, World, shown, until

CUT_OFF = ["in a tool", "in a call", "in an operator's pair"]
LEFT = {
    "in a tool": ["user: go", "assistant: <wait>", f"results: =!{UNKNOWN}"],
    "in a call": ["user: go"],
    "in an operator's pair": ["assistant: <wait>", f"results: =!{UNKNOWN}"],
}


async def add(world: World, name: str, *script: Any, **more: Any) -> Any:
    provider = ScriptedProvider(list(script), clock=world.clock)
    world.providers.append(provider)
    return await world.runtime.add_agent(
        AgentSpec(name=name, provider=provider, model="m", slot="room", **more)
    )


def leave(world: World, where: str) -> None:
    """The directory as a SIGKILL in the middle of ana's turn leaves it."""
    assert lived(sharing.live, world.directory, where).status == KILLED


def holder(world: World) -> str | None:
    (lease,) = world.rows("leases", "room")
    name: str | None = lease.agent
    return name


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.behaviour("R-8")
@pytest.mark.parametrize("where", CUT_OFF)
async def test_a_sharer_that_nobody_adds_again_keeps_the_others_out_of_no_slot(
    world: World, virtual_time: MockClock, where: str
) -> None:
    leave(world, where)
    async with world.open():
        bo = await add(world, "bo", reply("I am here"))
        assert holder(world) == "ana"
        began = trio.current_time()
        await bo.send("bo?")
        await bo.wait_idle()
        assert ABSENT_S <= trio.current_time() - began < 2 * ABSENT_S
        said = [line for line in await shown(bo) if line != f"marker: {ABSENT_MARKER}"]
        assert said == [*LEFT[where], "user: bo?", "assistant: I am here"]
        assert holder(world) is None
        # Its wakes are given back as one, for when it comes.
        again = where != "in an operator's pair"
        assert len(world.rows("wakes", "ana")) == again
        ana = await add(world, "ana", reply("back"), tools=[Stop().tool()])
        await ana.wait_idle()
        assert ((await shown(ana))[-1] == "assistant: back") == again


@pytest.mark.parametrize("where", CUT_OFF)
async def test_a_sharer_that_is_added_again_goes_on_with_its_turn_ahead_of_who_waits(
    world: World, virtual_time: MockClock, where: str
) -> None:
    leave(world, where)
    async with world.open():
        bo = await add(world, "bo", reply("I am here"))
        await bo.send("bo?")
        await trio.sleep(ABSENT_S / 2)
        ana = await add(world, "ana", reply("done"), reply("again"), tools=[Stop().tool()])
        await bo.wait_idle()
        await ana.wait_idle()
        said = await shown(ana)
        assert f"marker: {ABSENT_MARKER}" not in said
        if where != "in an operator's pair":
            assert said.index("assistant: done") < said.index("assistant: I am here")
            assert world.turns()[0].attempts == 2


async def test_a_sharer_that_is_here_is_waited_for_however_long_its_turn_takes(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(reply("at last"))
    async with world.open():
        ana = await add(world, "ana", gate, gate)
        bo = await add(world, "bo", reply("I am here"))
        await ana.send("go")
        await gate.wait_entered()
        await bo.send("bo?")
        await trio.sleep(10 * ABSENT_S)
        # Nor does its actor's death end it: it is started again, and goes on.
        world.ref("agent").kill("a test")
        await trio.sleep(10 * ABSENT_S)
        assert holder(world) == "ana"
        gate.release()
        await bo.wait_idle()
        assert [turn.state for turn in world.turns()] == ["done"]


async def test_a_turn_of_a_sharer_that_is_not_here_stays_open_in_a_quiesced_host(
    world: World, virtual_time: MockClock
) -> None:
    leave(world, "in a tool")
    async with world.open() as runtime, trio.open_nursery() as nursery:
        bo = await add(world, "bo", reply("I am here"))
        await bo.send("bo?")
        await wait_all_tasks_blocked()
        nursery.start_soon(runtime.quiesce, "maintenance", 5 * ABSENT_S)
        await trio.sleep(3 * ABSENT_S)
        assert holder(world) == "ana"
        await trio.sleep(3 * ABSENT_S)
        await runtime.resume()
        await until(lambda: holder(world) != "ana")
        await bo.wait_idle()
        assert (await shown(bo))[-1] == "assistant: I am here"
