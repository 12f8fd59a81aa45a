"""What becomes of conversation agents whose resident is removed: they are agents of their own."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors.core.errors import ActorDeadError
from abeyance.actors.domain.errors import UnknownAgentError
from abeyance.actors.testing import fail, reply

from .world import World, shown, until


@pytest.mark.behaviour("W-079", "W-132")
@pytest.mark.parametrize("ends", ["by its instant", "by a release"])
async def test_a_held_fork_of_a_removed_resident_is_held_on_and_goes_on_when_its_wait_ends(
    world: World, virtual_time: MockClock, ends: str
) -> None:
    async with world.open() as runtime:
        provider = world.provider([fail(429, retry_after=60), reply("later"), reply("more")])
        await world.add(provider)
        fork = await runtime.open_conversation("ana", channel="c1")
        await fork.send("go")
        await fork.wait_idle()
        await runtime.remove_agent("ana", requester="ops")
        assert world.state(fork.name).state == "held"
        (wait,) = runtime.provider_waits()
        assert wait.agent == fork.name
        assert not runtime.dead_letters(), "its wakes are its own"
        with pytest.raises(UnknownAgentError):
            await runtime.open_conversation("ana", channel="c2")
        if ends == "by a release":
            await runtime.release_provider_wait(fork.name, requester="ops")
        else:
            await trio.sleep(61)
        await until(lambda: len(provider.requests) == 2)
        await fork.wait_idle()
        await fork.send("and")
        await fork.wait_idle()
        assert await shown(fork) == ["user: go", "assistant: later", "user: and", "assistant: more"]


@pytest.mark.behaviour("W-081", "W-132")
async def test_a_held_fork_of_a_removed_resident_stays_behind_a_restart_until_it_is_opened_again(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await world.add([fail(429, retry_after=60)])
        fork = await runtime.open_conversation("ana", channel="c1")
        await fork.send("go")
        await fork.wait_idle()
        await runtime.remove_agent("ana", requester="ops")
    async with world.open() as runtime:
        (wait,) = runtime.provider_waits()
        assert wait.agent == fork.name
        with pytest.raises(UnknownAgentError):
            await runtime.open_conversation("ana", channel="c1")
        await trio.sleep(100)
        assert not runtime.provider_waits()
        assert not runtime.dead_letters()
        provider = world.provider([reply("at last")])
        await world.add(provider)
        again = await runtime.open_conversation("ana", channel="c1")
        assert again.name == fork.name
        await until(lambda: len(provider.requests) == 1)
        await again.wait_idle()
        assert await shown(again) == ["user: go", "assistant: at last"]


@pytest.mark.behaviour("W-081")
async def test_a_held_fork_that_is_closed_behind_its_resident_drops_its_wakes_for_it(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await world.add([fail(429, retry_after=60)])
        fork = await runtime.open_conversation("ana", channel="c1")
        await fork.send("go")
        await fork.wait_idle()
        await runtime.remove_agent("ana", requester="ops")
        await fork.close()
        (letter,) = runtime.dead_letters()
        with pytest.raises(ActorDeadError):
            await runtime.replay_dead_letter(letter.id, requester="ops")
        back = world.provider([reply("here")])
        await world.add(back)
        await runtime.replay_dead_letter(letter.id, requester="ops")
        await until(lambda: len(back.requests) == 1)
        await runtime.agent("ana").wait_idle()
        assert await shown(runtime.agent("ana")) == ["user: go", "assistant: here"]
