"""Agents that leave flush first, and turns that come to nothing let go of what waited for them."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors import AgentSpec
from abeyance.actors.domain.turn import TurnTask, _Unfit
from abeyance.actors.testing import Faults, Gate, ScriptedProvider, call_tool, fail, reply

from .test_conversations import keep_from_landing, leave_in_inbox, resident
from .world import Stop, World, shown, until


@pytest.mark.behaviour("D-069")
async def test_what_came_during_a_closure_turn_is_in_the_forks_slot_when_it_is_closed(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(reply("bye"))
    async with world.open() as runtime, trio.open_nursery() as nursery:
        provider = ScriptedProvider([gate, reply("more")])
        await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        fork = await runtime.open_conversation("ana", channel="c")
        await fork.send("go", id="go")
        await gate.wait_entered()
        nursery.start_soon(fork.close)
        await wait_all_tasks_blocked()
        await fork.send("own", author=fork.name, id="own")
        await fork.send("note", id="note", wake=False)
        assert len(world.rows("inbox", fork.name)) == 2
        gate.release()
        await until(lambda: fork.name not in runtime._members)
        rows = world.rows("slots", fork.name)
        assert [row.message for row in rows if row.turn is None] == ["go", "own", "note"]
        assert rows[1].role == "assistant", "behind the last reply"
        assert not world.rows("inbox")
        assert not runtime.dead_letters()


@pytest.mark.behaviour("D-070")
@pytest.mark.parametrize("actor", ["agent", "slot"])
async def test_a_closure_turn_that_is_taken_up_again_ends_in_its_fork_before_that_is_closed(
    world: World, virtual_time: MockClock, actor: str
) -> None:
    stop = Stop("found")
    async with world.open() as runtime, trio.open_nursery() as nursery:
        provider = ScriptedProvider([call_tool("wait"), reply("bye")])
        spec = AgentSpec(name="ana", provider=provider, model="m", tools=[stop.tool()])
        await runtime.add_agent(spec)
        fork = await runtime.open_conversation("ana", channel="c")
        await fork.send("go", id="go")
        await stop.entered.wait()
        nursery.start_soon(fork.close)
        await wait_all_tasks_blocked()
        await fork.send("own", author=fork.name, id="own")
        world.ref(actor, fork.name).kill("a test")
        await until(lambda: world.ref(actor, fork.name).statistics().incarnation == 2)
        assert fork.name in runtime._members
        stop.go.set()
        await until(lambda: fork.name not in runtime._members)
        rows = world.rows("slots", fork.name)
        assert [row.role for row in rows] == [
            "user",
            "assistant",
            "results",
            "assistant",
            "assistant",
        ]
        assert rows[-1].message == "own"
        assert [turn.state for turn in world.rows("turns", fork.name)] == ["done"]
        assert not runtime.dead_letters()


@pytest.mark.behaviour("D-072", "D-093")
async def test_what_a_last_flush_cannot_store_leaves_no_orphan_and_is_named_as_a_dead_letter(
    world: World,
    virtual_time: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with world.open() as runtime:
        leave_in_inbox(world, "a note", "n1", 1, wake=False)
        leave_in_inbox(world, "a question", "q1", 2, wake=True)
        keep_from_landing(monkeypatch)
        await resident(world, [])
        await runtime.remove_agent("ana", requester="ops")
        monkeypatch.undo()
        assert not world.rows("inbox"), "nothing is queued under a name that nobody drains"
        letters = runtime.dead_letters()
        assert len(letters) == 2
        assert all(letter.replayable for letter in letters)
        told = [record.getMessage() for record in caplog.records]
        for name in ("n1", "q1"):
            (line,) = [each for each in told if "dead letter" in each and repr(name) in each]
            assert "stays" not in line


@pytest.mark.behaviour("D-082")
async def test_a_start_that_is_aborted_stores_what_waited_whole_or_not_at_all(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never opens its stream; another agent is in its tool all the while."""
    faults, compiling, go, stop = Faults(), trio.Event(), trio.Event(), Stop()
    compile_ = TurnTask._compile

    async def slow(self: TurnTask) -> None:
        if self.start.agent == "ana":
            compiling.set()
            await go.wait()
            raise _Unfit("nothing can be compiled")
        await compile_(self)

    monkeypatch.setattr(TurnTask, "_compile", slow)
    async with world.open(faults=faults):
        bo = await world.add([call_tool("wait"), reply("x")], "bo", tools=[stop.tool()])
        await bo.send("go")
        await stop.entered.wait()
        ana = await world.add([])
        await ana.send("question", id="q")
        await compiling.wait()
        await ana.send("own", author="ana", id="own")
        await ana.send("note", id="note", wake=False)
        refused: list[int] = []

        def ends(requests: Any) -> bool:
            if refused or not any(put.table == "leases" for each in requests for put in each.puts):
                return False
            refused.append(len(requests))
            return True

        faults.at("before_commit", message=ends, times=1).refuse()
        go.set()
        await until(lambda: bool(refused))
        seen: list[int] = []
        with trio.fail_after(60):
            while left := len(world.rows("inbox", "ana")):
                seen.append(left)
                await trio.sleep(0.01)
        assert set(seen) <= {2}, "both, or none"
        await ana.wait_idle()
        rows = [row.message for row in world.rows("slots", "ana") if row.turn is None]
        assert refused, "the first attempt was stored"
        assert rows == ["q", "own", "note"]
        assert not world.providers[1].requests
        assert stop.effects == 1
        assert not stop.go.is_set()
        stop.go.set()
        await bo.wait_idle()


@pytest.mark.behaviour("D-095")
async def test_a_turn_that_is_withdrawn_lets_go_of_what_waited_behind_it(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was to answer was rewound; another agent is in its tool."""
    ending, go, stop = trio.Event(), trio.Event(), Stop()
    end = TurnTask.end

    async def slow(self: TurnTask, *args: Any, **more: Any) -> Any:
        if self.start.agent == "ana":
            ending.set()
            await go.wait()
        return await end(self, *args, **more)

    async with world.open() as runtime:
        bo = await world.add([call_tool("wait"), reply("x")], "bo", tools=[stop.tool()])
        await bo.send("go")
        await stop.entered.wait()
        ana = await world.add([fail(429, retry_after=1_000)])
        await ana.send("question", id="q")
        await ana.wait_idle()
        await ana.rewind(to=0, requester="ops")
        monkeypatch.setattr(TurnTask, "end", slow)
        await runtime.release_provider_wait("ana", requester="ops")
        await ending.wait()
        receipt = await ana.send("behind", id="b", wake=False)
        assert receipt.state == "accepted"
        go.set()
        await ana.wait_idle()
        assert await shown(ana) == [
            "marker: a rewind took out what this turn was to answer; it made no call",
            "user: behind",
        ]
        assert len(world.providers[1].requests) == 1, "but for the one that was held"
        stop.go.set()
        await bo.wait_idle()


@pytest.mark.behaviour("D-084")
async def test_a_turns_own_results_are_stored_before_its_next_round(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(reply("done"))
    stop = Stop("found")
    async with world.open():
        ana = await world.add([call_tool("wait"), gate], tools=[stop.tool()])
        await ana.send("go")
        await stop.entered.wait()
        await ana.send("own", author="ana", id="own")
        stop.go.set()
        await gate.wait_entered()
        assert [row.role for row in world.rows("slots", "ana")] == ["user", "assistant", "results"]
        assert len(world.rows("inbox", "ana")) == 1
        gate.release()
        await ana.wait_idle()


@pytest.mark.behaviour("D-059", "D-060")
async def test_a_resume_lands_in_arrival_order_and_leaves_a_live_turns_own_to_its_end(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(reply("done"))
    async with world.open() as runtime, trio.open_nursery() as nursery:
        shared = ScriptedProvider([])
        for name in ("cy", "di"):
            spec = AgentSpec(name=name, provider=shared, model="m", slot="room")
            await runtime.add_agent(spec)
        ana = await world.add([gate])
        bo = await world.add([], "bo")
        await ana.send("go", id="go")
        await gate.wait_entered()
        scope = trio.CancelScope()

        async def quiesce() -> None:
            with scope:
                await runtime.quiesce("upgrade", within_s=1_000)

        nursery.start_soon(quiesce)
        await until(lambda: runtime.status().mode.state == "draining")
        for name, agent in (("c1", "cy"), ("d1", "di"), ("c2", "cy"), ("d2", "di")):
            await runtime.agent(agent).send(name, id=name, wake=False)
        await ana.send("a1", id="a1", wake=False)
        await bo.send("b1", id="b1", wake=False)
        scope.cancel()
        await runtime.resume()
        assert [row.message for row in world.rows("slots", "room")] == ["c1", "d1", "c2", "d2"]
        assert [row.message for row in world.rows("slots", "bo")] == ["b1"]
        assert [row.message for row in world.rows("inbox", "ana")] == ["a1"]
        gate.release()
        await ana.wait_idle()
        assert [row.message for row in world.rows("slots", "ana")][-1] == "a1"
        assert await ana.receipt("a1") == (await ana.receipt("a1"))._replace(state="stored")
