"""A row that cannot be read, in each table of an agent: what then holds, and that the rest goes on.

The damage is done to the file of a store that nobody has open: a flipped bit, a value cut short,
and a value of the wrong shape whose checksum is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentHandle, Runtime
from abeyance.actors.core.errors import OutcomeUnknownError
from abeyance.actors.domain.errors import AgentParkedError
from abeyance.actors.domain.slot import Slot
from abeyance.actors.testing import call_tool, fail, reply
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.tables import TABLES

from .damage import DAMAGES, damage
from .world import World, shown, tool


async def held(world: World) -> None:
    """An answered turn with a tool, a held one, and a message that came meanwhile."""
    for name in ("ana", "bo"):
        script = [call_tool("look"), reply("one"), fail(429, retry_after=7_200)]
        agent = await world.add(script, name, tools=[tool("look", lambda: "x")])
        for words in "abc":
            await agent.send(words, id=f"id-{words}")
            await agent.wait_idle()


async def again(world: World, name: str) -> AgentHandle:
    return await world.add(lambda request: reply("again"), name, tools=[tool("look", lambda: "x")])


Holds = Callable[[World, Runtime, MockClock], Any]


def refuses_to_add(table: str) -> Holds:
    """The agent is not added, and the error names the row; nothing of it was started."""

    async def holds(world: World, runtime: Runtime, time: MockClock) -> None:
        for _ in range(2):
            with pytest.raises(UnreadableRecordError) as caught:
                await again(world, "ana")
            assert caught.value.table == table
        assert [agent.name for agent in runtime.status().agents] in ([], ["bo"])

    return holds


async def refuses_the_id(world: World, runtime: Runtime, time: MockClock) -> None:
    """Only a message under that very id is refused: whether it is the same cannot be known."""
    ana = await again(world, "ana")
    with pytest.raises(UnreadableRecordError) as caught:
        await ana.send("a", id="id-a")
    assert caught.value.table == "ids"
    assert (await ana.send("b", id="id-b")).state == "stored"
    assert (await ana.send("d")).state == "stored"


async def fails_the_turn(world: World, runtime: Runtime, time: MockClock) -> None:
    """No request is compiled from it: the turn fails and says why. A rewind gets past it."""
    ana = await again(world, "ana")
    with pytest.raises(UnreadableRecordError):
        await shown(ana)
    await runtime.release_provider_wait("ana", requester="ops")
    await ana.wait_idle()
    assert world.turns("ana")[-1].state == "failed"
    assert "can't be trusted" in (world.turns("ana")[-1].error or "")
    assert world.providers[-1].requests == []
    await ana.rewind(to=0, requester="ops")
    await ana.send("d")
    await ana.wait_idle()
    assert await shown(ana) == ["user: d", "assistant: again"]


async def holds_the_key(world: World, runtime: Runtime, time: MockClock) -> None:
    """Whether a wait binds is unknown: no call to that model, until it is released."""
    ana = await again(world, "ana")
    await ana.send("d")
    await ana.wait_idle()
    assert world.state("ana").held.cause == "unreadable"
    assert world.providers[-1].requests == []
    assert not runtime.health()["ana"].can_call
    await runtime.release_provider_wait("ana", "m", requester="ops")
    await ana.wait_idle()
    assert (await shown(ana))[-1] == "assistant: again"


async def changes_nothing(world: World, runtime: Runtime, time: MockClock) -> None:
    """History: nothing is decided by it."""
    ana = await again(world, "ana")
    await runtime.release_provider_wait("ana", requester="ops")
    await ana.wait_idle()
    assert (await shown(ana))[-1] == "assistant: again"


TABLE: dict[str, tuple[tuple[Any, ...] | int, Holds]] = {
    "owners": (("slot", "ana"), refuses_to_add("owners")),
    "agents": (("ana",), refuses_to_add("agents")),
    "leases": (("ana",), refuses_to_add("leases")),
    "heads": (("ana",), refuses_to_add("heads")),
    "turns": (("ana", 2), refuses_to_add("turns")),
    "wakes": (-1, refuses_to_add("wakes")),
    "carried": (("ana", 3), refuses_to_add("carried")),
    "ids": (("ana", "id-a"), refuses_the_id),
    "bodies": (("ana", 1), fails_the_turn),
    "slots": (("ana", 1), fails_the_turn),
    "waits": (("ana", "m"), holds_the_key),
    "tool_calls": (("ana", 1, 1, 0), changes_nothing),
    "log": (-1, changes_nothing),
    "alerts": (-1, changes_nothing),
}


@pytest.mark.drawn(20)
@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("table", TABLE)
async def test_a_row_that_cannot_be_read_fails_exactly_what_depends_on_it_and_the_rest_goes_on(
    world: World, virtual_time: MockClock, table: str, how: str
) -> None:
    key, holds = TABLE[table]
    async with world.open() as runtime:
        await held(world)
        if key == -1:
            prefix = ("ana",) if TABLES[table].key[0] is str else ()
            key = list(runtime._store.scan(table, prefix))[-1][0]
    damage(world.directory, world.clock, table, key, how)  # type: ignore[arg-type]
    async with world.open() as runtime:
        with trio.fail_after(600):
            await holds(world, runtime, virtual_time)
        # Whoever does not depend on it runs as ever; and looking goes on.
        bo = await again(world, "bo")
        await bo.wait_idle()
        assert world.state("bo").held.cause == "wait"
        await runtime.release_provider_wait("bo", requester="ops")
        await bo.wait_idle()
        assert (await shown(bo))[-1] == "assistant: again"
        assert runtime.status().agents
        assert isinstance(runtime.provider_waits(), tuple)


async def test_a_sender_that_waits_while_its_slot_is_parked_is_answered(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that goes bad under a running agent ends its slot for good; nobody waits for ever."""
    async with world.open() as runtime:
        ana = await again(world, "ana")
        await ana.send("a")
        await ana.wait_idle()

        def crashes(slot: Slot) -> None:
            raise UnreadableRecordError("bad", table="leases", key=("ana",), cause="checksum")

        monkeypatch.setattr(Slot, "_read_book", crashes)
        world.ref("slot").kill("a test")
        handed = ana.hand_over("b")
        came: list[Exception] = []

        async def send() -> None:
            try:
                await ana.send("c")
            except OutcomeUnknownError as error:
                came.append(error)

        with trio.fail_after(600):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                with pytest.raises(OutcomeUnknownError):
                    await handed
        assert len(came) == 1
        assert runtime._members["ana"].is_parked
        with pytest.raises(AgentParkedError):
            await ana.send("d")
