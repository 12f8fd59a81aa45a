"""Compaction and stated waits: each keeps to what the other was told, in residents and forks."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors import AgentSpec, Conversation
from abeyance.actors.providers.port import ModelRequest
from abeyance.actors.testing import Gate, ScriptedProvider, fail, reply
from abeyance.actors.testing.scripted import Step

from .talk import LONG, SUMMED, Talk, compacted, kept, small, summing, turns
from .world import World, shown, texts, until


async def forked(world: World, talk: Any, **context: Any) -> tuple[Conversation, ScriptedProvider]:
    """A fork of a resident that compacts."""
    provider = ScriptedProvider(talk, clock=world.clock)
    spec = AgentSpec(name="ana", provider=provider, model="m", context=small(**context))
    await world.runtime.add_agent(spec)
    return await world.runtime.open_conversation("ana", channel="c1"), provider


async def say(world: World, agent: Any, *words: str) -> None:
    for word in words:
        await agent.send(word)
        await agent.wait_idle()
    await compacted(world, agent.name)


@pytest.mark.behaviour("W-082", "W-090")
async def test_a_held_conversations_own_compaction_is_refused_without_a_call(
    world: World, virtual_time: MockClock
) -> None:
    held = iter([True])

    def answer(request: ModelRequest) -> Step:
        if texts(request)[-1].startswith("user: d") and next(held, False):
            return fail(429, retry_after=3_600)
        return reply(f"an answer {LONG}")

    async with world.open() as runtime:
        fork, provider = await forked(world, Talk(turns=answer))
        await say(world, fork, "a", "b", "c", f"d {LONG}")
        assert world.state(fork.name).state == "held"
        assert [wait.agent for wait in runtime.provider_waits()] == [fork.name]
        deferral = world.ref("context", fork.name)._cell.kept.deferral
        assert (deferral.agent, deferral.model, deferral.cause) == (fork.name, "m", "wait")
        assert len(provider.requests) == 4
        assert summing(provider) == []
        await trio.sleep(3_601)
        await until(lambda: kept(world, fork.name) != [])
        assert texts(provider.requests[4])[-1].startswith("user: d"), "the turn goes first"
        assert len(summing(provider)) == 1
        assert kept(world) == []


@pytest.mark.behaviour("W-082", "W-094")
async def test_what_a_conversations_compaction_states_is_recorded_for_it_and_not_its_resident(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        fork, provider = await forked(world, Talk(fail(429, retry_after=60)), model="m2")
        await say(world, fork, "a", "b", "c", "d")
        assert [request.model for request in summing(provider)] == ["m2"]
        waits = [(wait.agent, wait.model) for wait in runtime.provider_waits()]
        assert waits == [(fork.name, "m2")]
        await say(world, fork, "e")
        assert (await shown(fork))[-1].startswith("assistant: answer 5"), "its own model is free"
        await say(world, runtime.agent("ana"), "a", "b", "c", "d")
        assert len(summing(provider)) == 2, "and its resident's compaction"


@pytest.mark.behaviour("W-083", "W-084")
async def test_a_conversations_turn_that_compiled_during_its_compaction_is_held_unsent(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        gate = Gate(fail(429, retry_after=10))
        steps = [gate, reply("in short")]
        fork, provider = await forked(world, Talk(*steps))
        for word in "abcd":
            await fork.send(word)
            await fork.wait_idle()
        await gate.wait_entered()
        await fork.send("e")
        await until(lambda: world.state(fork.name).state == "running")
        await wait_all_tasks_blocked()
        assert world.rows("carried", fork.name)[-1].round == 1, "it is compiled"
        made = len(provider.requests)
        gate.release()
        await fork.wait_idle()
        assert world.state(fork.name).state == "held"
        assert len(provider.requests) == made, "nothing was sent of what was compiled"
        await trio.sleep(11)
        await until(lambda: kept(world, fork.name) != [])
        first, second = provider.requests[made:]
        assert texts(first)[-1] == "user: e"
        assert second in summing(provider)
        await say(world, fork, "f")
        assert turns(provider)[-1][0] == SUMMED


async def test_a_compaction_that_is_out_when_a_turn_starts_is_waited_for_and_used_by_the_next(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        gate = Gate(reply("in short"))
        fork, provider = await forked(world, Talk(gate))
        for word in "abcd":
            await fork.send(word)
            await fork.wait_idle()
        await gate.wait_entered()
        await fork.send("e")
        await trio.sleep(20)
        gate.release()
        await fork.wait_idle()
        await compacted(world, fork.name)
        assert turns(provider)[-1][0] == "user: a", "its view was frozen when it started"
        await say(world, fork, "f")
        assert turns(provider)[-1][0] == SUMMED
