"""How much one agent may take of its host: what is refused and handed back, and what waits."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentHandle, AgentSpec, Draft
from abeyance.actors.domain.agent_limits import BOUNDS
from abeyance.actors.domain.errors import (
    AbeyanceError,
    InboxFullError,
    InvalidSpecError,
    MessageTooLargeError,
)
from abeyance.actors.testing import Gate, ScriptedProvider, call_tool, fail, reply
from abeyance.storage.tables.blocks import ToolUseBlock

from .test_import import entry, stream
from .world import World, shown, tool, until

SMALL = 200
"""Bytes that a short text fits in, with what is stored around it."""
LONG = "x" * SMALL


async def through(agent: AgentHandle, door: str, drafts: tuple[Draft, ...]) -> None:
    """Hand drafts in by one of the doors; those that take one get the last."""
    one = drafts[-1]
    if door == "send_many":
        await agent.send_many(drafts)
    elif door == "hand_over_many":
        await agent.hand_over_many(drafts)
    elif door == "send":
        await agent.send(one.content, one.author, id=one.id, wake=one.wake)
    else:
        await agent.hand_over(one.content, one.author, id=one.id, wake=one.wake)


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("wrong", ["zero", "past its bound", "a bool", "a float", "text"])
async def test_a_limit_out_of_its_bounds_is_refused_by_name(
    world: World, virtual_time: MockClock, name: str, wrong: str
) -> None:
    values = {"zero": 0, "past its bound": BOUNDS[name] + 1, "a bool": True, "a float": 1.0}
    async with world.open() as runtime:
        with pytest.raises(InvalidSpecError) as caught:
            await world.add([], **{name: values.get(wrong, "1")})
        assert caught.value.field == name
        assert runtime.status().agents == ()
        await world.add([], **{name: BOUNDS[name]})


# -- bytes of a message ----------------------------------------------------------------------------


@pytest.mark.parametrize("content", [LONG, [{"type": "text", "text": LONG}]], ids=["text", "block"])
@pytest.mark.parametrize("door", ["send", "send_many", "hand_over", "hand_over_many"])
async def test_a_message_past_its_agents_bytes_is_handed_back_at_every_door(
    world: World, virtual_time: MockClock, door: str, content: Any
) -> None:
    async with world.open():
        ana = await world.add([], message_bytes_max=SMALL)
        drafts = (Draft("a", "bo", "id-0", wake=False), Draft(content, "bo", "id-1", wake=False))
        with pytest.raises(MessageTooLargeError) as caught:
            await through(ana, door, drafts if "many" in door else drafts[1:])
        error = caught.value
        assert error.messages == (drafts if "many" in door else drafts[1:])
        assert error.field == ("drafts[1].message" if "many" in door else "message")
        assert error.size > error.limit == SMALL
        copy = pickle.loads(pickle.dumps(error))
        assert (copy.messages, copy.size, str(copy)) == (error.messages, error.size, str(error))
        assert await shown(ana) == []
        await ana.send("short", wake=False)


async def test_a_conversation_has_its_residents_limits(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await world.add([], message_bytes_max=SMALL)
        fork = await runtime.open_conversation("ana", channel="c")
        with pytest.raises(MessageTooLargeError):
            await fork.send(LONG)


async def test_an_ephemeral_run_past_its_bytes_is_refused_before_anything_is_recorded(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        spec = AgentSpec(
            name="once", provider=ScriptedProvider([]), model="m", message_bytes_max=SMALL
        )
        with pytest.raises(MessageTooLargeError) as caught:
            await runtime.run_ephemeral(spec, LONG)
        assert caught.value.messages[0].content == LONG
        assert (world.rows("ephemerals"), world.rows("owners")) == ([], [])


async def test_an_import_refuses_what_has_more_bytes_than_the_agent_takes(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([], message_bytes_max=SMALL)
        report = await runtime.import_deferred(stream(entry(LONG), entry("short")), agent="ana")
        (refused,) = (repair for repair in report.repairs if repair.kind == "refused")
        assert (refused.place, f"the agent takes {SMALL} a message" in refused.text) == (0, True)
        assert await shown(ana) == ["user: short"]


async def test_a_tool_that_sends_is_told_what_another_agent_does_not_take(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        bo = await world.add([], "bo", message_bytes_max=SMALL)
        told: list[AbeyanceError] = []

        async def pass_on() -> str:
            try:
                await bo.send(LONG)
            except MessageTooLargeError as error:
                told.append(error)
            return "passed on"

        ana = await world.add([call_tool("pass_on"), reply("ok")], tools=[tool("pass_on", pass_on)])
        await ana.send("go")
        await ana.wait_idle()
        assert len(told) == 1
        assert await shown(bo) == []


# -- the inbox -------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["messages", "bytes"])
@pytest.mark.parametrize("door", ["send", "send_many", "hand_over"])
async def test_an_inbox_at_its_agents_bound_hands_messages_back(
    world: World, virtual_time: MockClock, door: str, limit: str
) -> None:
    gate = Gate(reply("done"))
    limits = {"inbox_messages_max": 2} if limit == "messages" else {"inbox_bytes_max": SMALL}
    async with world.open():
        ana = await world.add([gate, reply("more")], **limits)
        await ana.send(LONG)  # It is in the slot at once, and in no inbox.
        await gate.wait_entered()
        await ana.send_many([Draft("b1"), Draft("b2")])
        draft = Draft("b3" if limit == "messages" else LONG, id="third")
        with pytest.raises(InboxFullError) as caught:
            await through(ana, door, (draft,))
        error = caught.value
        assert (error.agent, error.rows, error.messages) == ("ana", 2, (draft,))
        assert (error.rows_max, error.bytes_max)[limit == "bytes"] == next(iter(limits.values()))
        assert world.state().limits.inbox_bytes == error.bytes
        gate.release()
        await ana.wait_idle()
        assert len(await shown(ana)) == 5
        assert not any("b3" in line for line in await shown(ana))


async def test_an_agents_bound_stands_after_its_slot_crashed(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(reply("done"))
    async with world.open():
        ana = await world.add([gate], inbox_messages_max=1)
        await ana.send("a")
        await gate.wait_entered()
        await ana.send("b", wake=False)
        world.ref("slot").kill()
        with pytest.raises(InboxFullError):
            await ana.send("c", id="c", wake=False)
        gate.release()
        await ana.wait_idle()


async def test_an_agents_bound_leaves_those_who_share_its_slot_theirs(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(reply("done"))
    async with world.open():
        ana = await world.add([gate], inbox_messages_max=2, slot="room")
        bo = await world.add([], "bo", slot="room")
        await ana.send("go")
        await gate.wait_entered()
        for _ in range(3):
            await bo.send("b", wake=False)
        await ana.send("a1", wake=False)
        await ana.send("a2", wake=False)
        with pytest.raises(InboxFullError) as caught:
            await ana.send("a3", wake=False)
        assert (caught.value.rows, caught.value.rows_max) == (2, 2)
        await bo.send("b", wake=False)
        gate.release()
        await ana.wait_idle()


async def test_a_newer_message_takes_an_unread_ones_place_in_a_full_inbox_unless_it_is_longer(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(reply("done"))
    async with world.open():
        ana = await world.add([gate], inbox_messages_max=1, inbox_bytes_max=SMALL)
        await ana.send("go")
        await gate.wait_entered()
        first = await ana.send("21 degrees", subject="weather", wake=False)
        newer = await ana.send("22 degrees", subject="weather", wake=False)
        assert newer.replaces == first.id
        with pytest.raises(InboxFullError):
            await ana.send(LONG, subject="weather", wake=False)
        gate.release()
        await ana.wait_idle()
        assert "user: 22 degrees" in await shown(ana)


async def test_messages_of_a_quiesced_host_are_bounded_by_their_agents_limit(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([], inbox_messages_max=1)
        await runtime.quiesce(reason="night")
        await ana.send("a", wake=False)
        with pytest.raises(InboxFullError):
            await ana.send("b", wake=False)
        await runtime.resume()
        assert await shown(ana) == ["user: a"]


# -- turns -----------------------------------------------------------------------------------------


async def test_turns_past_the_limit_wait_for_one_to_end_in_their_order(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(reply("done"))
    async with world.open() as runtime:
        ana = await world.add([gate, reply("two"), reply("three")], turns_max=1)
        fork = await runtime.open_conversation("ana", channel="c")
        await ana.send("a")
        await gate.wait_entered()
        await fork.send("b")
        await until(lambda: world.state().limits.turns_waiting == 1)
        limits = world.state().limits
        assert (limits.turns, limits.turns_waiting, limits.turns_max) == (1, 1, 1)
        assert len(world.providers[0].requests) == 1
        gate.release()
        await ana.wait_idle()
        await fork.wait_idle()
        assert len(world.providers[0].requests) == 2
        limits = world.state().limits
        assert (limits.turns, limits.turns_waiting) == (0, 0)


async def test_a_held_turn_has_no_place_among_those_that_go_on(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([fail(429, retry_after=100), reply("two")], turns_max=1)
        fork = await runtime.open_conversation("ana", channel="c")
        await ana.send("a")
        await ana.wait_idle()
        assert world.state().state == "held"
        await fork.send("b")
        await fork.wait_idle()
        assert (await shown(fork))[-1] == "assistant: two"


async def test_ephemeral_runs_take_turns_with_the_agent_whose_name_they_have(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(reply("done"))
    async with world.open() as runtime:
        ana = await world.add([gate, reply("late")], turns_max=1)
        await ana.send("a")
        await gate.wait_entered()
        said: list[str] = []

        async def run() -> None:
            once = AgentSpec(name="ana", provider=world.providers[0], model="m", turns_max=1)
            said.append(await runtime.run_ephemeral(once, "now?"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await until(lambda: world.state().limits.turns_waiting == 1)
            assert len(world.providers[0].requests) == 1
            gate.release()
        assert said == ["late"]


@pytest.mark.parametrize("how", ["cancel", "stop"])
async def test_a_turn_that_waits_for_its_place_ends_like_any_other(
    world: World, virtual_time: MockClock, how: str
) -> None:
    gate = Gate(reply("done"))
    async with world.open() as runtime:
        ana = await world.add([gate, reply("again")], turns_max=1)
        fork = await runtime.open_conversation("ana", channel="c")
        await ana.send("a")
        await gate.wait_entered()
        await fork.send("b")
        await until(lambda: world.state().limits.turns_waiting == 1)
        if how == "cancel":
            assert (await fork.cancel_turn(requester="cy")).state == "cancelled"
            gate.release()
            await ana.wait_idle()
            assert "assistant: again" not in await shown(fork)
            return
    async with world.open() as runtime:
        ana = await world.add([reply("one"), reply("two")], turns_max=1)
        fork = await runtime.open_conversation("ana", channel="c")
        await ana.wait_idle()
        await fork.wait_idle()
        # The stop gave both turns' messages back; each is answered once.
        answers = [
            line for each in (ana, fork) for line in await shown(each) if "assistant" in line
        ]
        assert sorted(answers) == ["assistant: one", "assistant: two"]


# -- threads ---------------------------------------------------------------------------------------


async def test_an_agent_at_its_threads_keeps_no_other_from_one(
    world: World, virtual_time: MockClock
) -> None:
    go, running = threading.Event(), []

    def slow() -> str:
        running.append("ana")
        go.wait(30)
        return "slow"

    calls = [ToolUseBlock(id=f"c{place}", name="slow", input={}) for place in range(2)]
    async with world.open():
        ana = await world.add(
            [reply(*calls), reply("ok")], tools=[tool("slow", slow)], tool_threads_max=1
        )
        bo = await world.add(
            [call_tool("quick"), reply("ok")], "bo", tools=[tool("quick", lambda: "quick")]
        )
        await ana.send("go")
        while not running:
            await trio.lowlevel.checkpoint()
        await bo.send("go")
        await bo.wait_idle()
        assert running == ["ana"]
        limits = world.state().limits
        assert (limits.tool_threads, limits.tool_threads_max) == (1, 1)
        go.set()
        await ana.wait_idle()
        assert running == ["ana", "ana"]
        assert world.state().limits.tool_threads == 0
