"""Choosing another model for an agent: durably, from the next turn on, past a hold of the old."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import ModelReceipt
from abeyance.actors.domain.errors import (
    InvalidInputError,
    InvalidNameError,
    UnknownProviderError,
)
from abeyance.actors.providers.port import ModelRequest
from abeyance.actors.testing import Gate, ScriptedProvider, call_tool, fail, reply
from abeyance.storage.check import check
from abeyance.storage.tables.blocks import TextBlock

from ..lives import KILLED, lived
from .children import choosing
from .test_holds import quota
from .world import Stop, World, shown, until, wait_all_tasks_blocked


def asked(world: World, at: int = 0) -> list[str]:
    return [request.model for request in world.providers[at].requests]


async def test_the_next_turn_asks_the_model_that_was_chosen(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([reply("one"), reply("two"), reply("three")])
        await ana.send("a")
        await ana.wait_idle()
        assert await ana.set_model("m2") == ModelReceipt("m2", None, "m")
        assert world.state().model == "m2"
        await ana.send("b")
        await ana.wait_idle()
        assert asked(world) == ["m", "m2"]
        assert [turn.model for turn in world.turns()] == ["m", "m2"]
        # Taken back, the specification has its say again.
        assert await ana.set_model(None) == ModelReceipt("m", None, "m2")
        await ana.send("c")
        await ana.wait_idle()
        assert asked(world) == ["m", "m2", "m"]
        lines = [line for line in world.rows("log") if line.event == "model_chosen"]
        assert [(line.model, line.text) for line in lines] == [
            ("m2", "by api:host"),
            ("m", "by api:host"),
        ]
        assert check(runtime._store).findings == ()


async def test_what_was_chosen_wins_over_the_specification_after_a_restart(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([])
        await ana.set_model("m2", requester="ops")
    for _ in range(2):
        async with world.open():
            ana = await world.add([reply("one")])
            await ana.send("a")
            await ana.wait_idle()
            assert asked(world, -1) == ["m2"]
    async with world.open():
        ana = await world.add([reply("one")])
        await ana.set_model(None)
    async with world.open():
        ana = await world.add([reply("one")], model="m3")
        await ana.send("a")
        await ana.wait_idle()
        assert asked(world, -1) == ["m3"]


@pytest.mark.parametrize("cause", ["wait", "quota"])
async def test_a_hold_of_the_model_before_ends_and_its_wait_stays_recorded(
    world: World, virtual_time: MockClock, cause: str
) -> None:
    limit = fail(429, retry_after=7_200) if cause == "wait" else quota()
    async with world.open() as runtime:
        ana = await world.add([limit, reply("two"), reply("three")])
        await ana.send("a")
        await ana.wait_idle()
        waits = runtime.provider_waits("ana")
        assert world.state().state == "held"
        await ana.set_model("m2")
        await ana.wait_idle()
        assert await shown(ana) == ["user: a", "assistant: two"]
        assert asked(world) == ["m", "m2"]
        assert [turn.state for turn in world.turns()] == ["done"]
        assert runtime.provider_waits("ana") == waits
        if cause == "wait":
            # Whoever asks the old one again is held by it.
            await ana.set_model(None)
            await ana.send("b")
            await ana.wait_idle()
            assert world.state().held.model == "m"
            assert asked(world) == ["m", "m2"]


async def test_a_pause_of_the_whole_agent_holds_whatever_it_asks(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([fail(500), reply("two")], provider_hold=lambda failure: 300.0)
        await ana.send("a")
        await ana.wait_idle()
        assert world.state().held.cause == "host"
        before = world.rows("leases", "ana")
        await ana.set_model("m2")
        await wait_all_tasks_blocked()
        await ana.wait_idle()
        assert world.rows("leases", "ana") == before, "no start of its turn was asked for"
        assert world.state().held.cause == "host"
        await trio.sleep(400)
        await ana.wait_idle()
        assert asked(world) == ["m", "m2"]


async def test_a_turn_that_lives_keeps_its_model_and_is_not_held_by_it_for_long(
    world: World, virtual_time: MockClock
) -> None:
    stop, gate = Stop(), Gate(fail(429, retry_after=7_200))
    async with world.open():
        ana = await world.add([call_tool("wait"), gate, reply("on")], tools=[stop.tool()])
        await ana.send("a")
        await stop.entered.wait()
        await ana.set_model("m2")
        stop.go.set()
        await gate.wait_entered()
        assert asked(world) == ["m", "m"]
        gate.release()
        await ana.wait_idle()
        # What was to hold it is of a model that is not asked any more.
        assert asked(world) == ["m", "m", "m2"]
        assert (await shown(ana))[-1] == "assistant: on"


async def test_another_provider_is_asked_once_it_was_added_and_named(
    world: World, virtual_time: MockClock
) -> None:
    other = ScriptedProvider([reply("other"), reply("again")], clock=world.clock)
    async with world.open() as runtime:
        ana = await world.add([reply("one")])
        with pytest.raises(UnknownProviderError) as caught:
            await ana.set_model("m2", provider="other")
        assert caught.value.provider == "other"
        assert world.state().model == "m"
        runtime.add_provider("other", other)
        assert await ana.set_model("m2", provider="other") == ModelReceipt("m2", "other", "m")
        await ana.send("a")
        await ana.wait_idle()
        assert (world.providers[0].requests, [each.model for each in other.requests]) == (
            [],
            ["m2"],
        )
        said = await ana.auxiliary_call(ModelRequest("m2", (), None, (), 10))
        assert said.blocks == (TextBlock(text="again"),)
    async with world.open() as runtime:
        with pytest.raises(UnknownProviderError):
            await world.add([reply("one")])
        assert runtime.status().agents == ()
        runtime.add_provider("other", other)
        await world.add([reply("one")])


async def test_an_agent_that_is_removed_takes_what_was_chosen_with_it(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([])
        await ana.set_model("m2")
        await runtime.remove_agent("ana", requester="ops")
        ana = await world.add([reply("one")])
        await ana.send("a")
        await ana.wait_idle()
        assert asked(world, -1) == ["m"]


async def test_a_fork_asks_what_its_resident_asks_and_what_was_chosen_for_it(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([reply("one"), reply("two")])
        await ana.set_model("m2")
        fork = await runtime.open_conversation("ana", channel="c")
        await fork.send("a")
        await fork.wait_idle()
        await fork.set_model("m3")
        await fork.send("b")
        await fork.wait_idle()
        assert asked(world) == ["m2", "m3"]
    async with world.open() as runtime:
        await world.add([reply("three")])
        fork = await runtime.open_conversation("ana", channel="c")
        await fork.send("c")
        await fork.wait_idle()
        assert asked(world, -1) == ["m3"]


async def test_a_turn_that_lives_goes_on_under_the_account_it_began_with(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    other = ScriptedProvider([], clock=world.clock)
    async with world.open(account_waits=True) as runtime:
        ana = await world.add([call_tool("wait"), reply("on")], tools=[stop.tool()])
        runtime.add_provider("other", other)
        before = world.ref("gate")._cell.actor._usage
        await ana.send("a")
        await stop.entered.wait()
        await ana.set_model("m2", provider="other")
        await wait_all_tasks_blocked()
        assert world.ref("gate")._cell.actor._usage is before
        stop.go.set()
        await ana.wait_idle()
        assert asked(world) == ["m", "m"]
        assert other.requests == []


async def test_a_hold_of_the_chosen_model_is_found_again_by_an_agent_that_died(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([fail(429, retry_after=7_200)])
        await ana.set_model("m2")
        await ana.send("a")
        await ana.wait_idle()
        before = world.rows("leases", "ana")
        world.ref("agent").kill("a test")
        await wait_all_tasks_blocked()
        await until(lambda: world.state().state == "held")
        assert world.state().held.model == "m2"
        assert world.rows("leases", "ana") == before, "no start of its turn was asked for"


@pytest.mark.parametrize("wrong", ["", "*", "a\nb", "x" * 200, 7, ["m"]], ids=repr)
async def test_a_malformed_choice_changes_nothing(
    world: World, virtual_time: MockClock, wrong: Any
) -> None:
    async with world.open() as runtime:
        ana = await world.add([])
        with pytest.raises(InvalidNameError) as caught:
            await ana.set_model(wrong)
        assert caught.value.field == "model"
        with pytest.raises(InvalidNameError) as caught:
            await ana.set_model("m2", provider=wrong)
        assert caught.value.field == "provider"
        with pytest.raises(InvalidInputError, match="provider"):
            await ana.set_model(None, provider="other")
        with pytest.raises(InvalidInputError, match="requester"):
            await ana.set_model("m2", requester="")
        with pytest.raises(InvalidNameError):
            runtime.add_provider(wrong, ScriptedProvider([]))
        named: Any = ScriptedProvider([])
        named.credential = "sk-a-key"
        for bad in (None, object(), 7, named):
            with pytest.raises(InvalidInputError, match="provider"):
                runtime.add_provider("other", bad)  # type: ignore[arg-type]
        assert world.rows("agents", "ana")[0].chosen is None


@pytest.mark.drawn(10)
@pytest.mark.parametrize("victim", ["agent", "gate", "slot", "journal"])
@pytest.mark.parametrize("after", range(0, 24, 3))
async def test_what_was_chosen_stands_when_an_actor_dies_under_it(
    world: World, virtual_time: MockClock, victim: str, after: int
) -> None:
    async with world.open():
        ana = await world.add([fail(429, retry_after=7_200), reply("two"), reply("three")])
        await ana.send("a")
        await ana.wait_idle()

        async def kill() -> None:
            for _ in range(after):
                await trio.lowlevel.checkpoint()
            world.ref(victim).kill("a test")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill)
            await ana.set_model("m2")
        await wait_all_tasks_blocked()
        await ana.wait_idle()
        await until(lambda: world.state().state == "idle")
        assert (await shown(ana))[-1] == "assistant: two"
        assert asked(world) == ["m", "m2"]
        world.ref("agent").kill("a test")
        world.ref("gate").kill("a test")
        await ana.send("b")
        await ana.wait_idle()
        assert asked(world) == ["m", "m2", "m2"]


async def test_a_gate_changes_its_account_once_no_call_of_the_one_before_is_out(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate()
    other = ScriptedProvider([reply("other")], clock=world.clock)
    async with world.open(account_waits=True) as runtime:
        ana = await world.add([gate])
        runtime.add_provider("other", other)
        before = world.ref("gate")._cell.actor._usage
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ana.auxiliary_call, ModelRequest("m", (), None, (), 10))
            await gate.wait_entered()
            await ana.set_model("m2", provider="other")
            await wait_all_tasks_blocked()
            assert world.ref("gate")._cell.actor._usage is before
            await ana.send("a")
            await wait_all_tasks_blocked()
            assert other.requests == []
            gate.release()
        await ana.wait_idle()
        assert world.ref("gate")._cell.actor._usage is not before
        assert [request.model for request in other.requests] == ["m2"]


@pytest.mark.parametrize(
    "point",
    ["writer.before_commit:1", "writer.after_commit:1", "model.after_chosen:1"],
)
async def test_a_choice_is_whole_or_not_made_wherever_its_host_is_killed(
    world: World, virtual_time: MockClock, point: str
) -> None:
    ended = lived(choosing.live, world.directory, point)
    assert (ended.status, ended.out) == (KILLED, "")
    made = point != "writer.before_commit:1"
    async with world.open() as runtime:
        ana = await world.add([reply("two")])
        await ana.wait_idle()
        assert world.state().state == ("idle" if made else "held")
        assert asked(world) == (["m2"] if made else [])
        assert [wait.model for wait in runtime.provider_waits("ana")] == ["m"]
        assert check(runtime._store).findings == ()
