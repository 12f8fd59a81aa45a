"""What a library's error may state, from the error through the ledger to a later process."""

from __future__ import annotations

import math
import sys

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentSpec
from abeyance.actors.domain.protocol import RecordWait
from abeyance.actors.ops.instants import ends_text
from abeyance.actors.testing import fail, raise_, reply
from abeyance.actors.testing.scripted import Step
from abeyance.storage.tables.fields import INSTANT_MS_MAX

from .test_conversations import provider_of, resident
from .test_ephemeral import StatedError
from .test_error_policy import Policy, Retry
from .world import World, shown, until

YEAR_MS = 365 * 86_400 * 1_000
OVER = [-1, -1_000, -0.4, -0.0, -1e20, -sys.float_info.max, -math.inf]


def states(wait_ms: float) -> Step:
    return raise_(StatedError(wait_ms))


@pytest.mark.behaviour("W-004", "W-005", "W-008")
@pytest.mark.parametrize("wait_ms", OVER, ids=repr)
async def test_a_wait_that_was_over_binds_and_records_nothing_also_a_year_and_a_restart_later(
    world: World, virtual_time: MockClock, wait_ms: float
) -> None:
    async with world.open() as runtime:
        # Were it a wait, the turn would be held; the ordinary policy tries again in the turn.
        ana = await world.add([states(wait_ms), reply("again")])
        await ana.send("go")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: again"
        assert runtime.provider_waits() == ()
        assert world.rows("waits") == []
        assert not any("wait" in line.event for line in world.rows("log"))
    world.clock.advance(YEAR_MS)
    async with world.open() as runtime:
        assert runtime.provider_waits() == ()
        ana = await world.add([reply("a year later")])
        await ana.send("go")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: a year later"


@pytest.mark.behaviour("W-006", "W-007")
@pytest.mark.parametrize("wait_ms", [math.nan, math.inf], ids=["nan", "inf"])
async def test_a_wait_that_is_no_instant_has_no_end_through_70_others_a_restart_and_ten_years(
    world: World, virtual_time: MockClock, wait_ms: float
) -> None:
    async with world.open() as runtime:
        ana = await world.add([states(wait_ms)])
        await ana.send("go")
        await ana.wait_idle()
        held = world.state().held
        assert (held.cause, held.deadline_ms) == ("wait", None)
        for number in range(70):
            deadline_ms = world.clock.now_ms() + 60_000
            await runtime._ledger.ask(RecordWait("bo", f"m{number}", deadline_ms, "w"))
        assert len(world.rows("waits")) == 71
    world.clock.advance(10 * YEAR_MS)
    async with world.open() as runtime:
        (wait,) = runtime.provider_waits()
        assert (wait.agent, wait.model, wait.deadline_ms) == ("ana", "m", None)
        ana = await world.add([reply("released")])
        await ana.wait_idle()
        assert world.state().state == "held"
        assert not world.providers[-1].requests
        await runtime.release_provider_wait("ana", requester="ops")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: released"


@pytest.mark.behaviour("W-010")
async def test_a_wait_of_30_thousand_years_is_kept_to_the_millisecond_and_told_of_and_shown(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([states(1e15)])
        stated_ms = world.clock.now_ms()
        await ana.send("go")
        await ana.wait_idle()
        (wait,) = runtime.provider_waits()
        assert wait.deadline_ms == stated_ms + 10**15
        assert wait.deadline_ms < INSTANT_MS_MAX
        await until(lambda: len(world.rows("alerts")) == 1)
        (alert,) = world.rows("alerts")
        assert (alert.kind, alert.deadline_ms) == ("provider_wait", wait.deadline_ms)
        for text in (alert.text, ends_text(wait.deadline_ms)):
            assert "33715-" in text
    world.clock.advance(10 * YEAR_MS)
    async with world.open() as runtime:
        assert runtime.provider_waits() == (wait,)


@pytest.mark.behaviour("W-012")
@pytest.mark.parametrize("status", [429, 529, 503, 500])
async def test_a_refusal_that_states_nothing_leaves_the_ledger_as_it_was_on_disk(
    world: World, virtual_time: MockClock, status: int
) -> None:
    async with world.open() as runtime:
        deadline_ms = world.clock.now_ms() + 3_600_000
        await runtime._ledger.ask(RecordWait("ana", "m2", deadline_ms, "before"))
        before = (world.rows("waits"), world.rows("log"), runtime.provider_waits())
        ana = await world.add([fail(status), reply("again")])
        await ana.send("go")
        await until(lambda: len(world.providers[0].requests) == 1 and not world.permits_out())
        assert (world.rows("waits"), world.rows("log"), runtime.provider_waits()) == before
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: again"
        assert (world.rows("waits"), world.rows("log"), runtime.provider_waits()) == before


@pytest.mark.behaviour("W-126")
async def test_an_error_of_another_copy_of_the_library_holds_a_conversations_turn(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        provider = await resident(world, [states(7_200_000), reply("later")])
        fork = await runtime.open_conversation("ana", channel="c1")
        stated_ms = world.clock.now_ms()
        await fork.send("go")
        await fork.wait_idle()
        (wait,) = runtime.provider_waits()
        assert (wait.agent, wait.deadline_ms) == (fork.name, stated_ms + 7_200_000)
        assert world.state(fork.name).held.cause == "wait"
        await trio.sleep(7_199)
        assert len(provider.requests) == 1, "it was slept or tried, not held"
        await trio.sleep(2)
        await fork.wait_idle()
        assert (await shown(fork))[-1] == "assistant: later"


@pytest.mark.behaviour("W-073")
@pytest.mark.parametrize(
    ("after_s", "calls"), [(50.0, 2), (7_200.0, 1)], ids=["in the turn", "in a hold"]
)
async def test_a_conversation_that_is_closed_during_its_delay_is_not_held_afterwards(
    world: World, virtual_time: MockClock, after_s: float, calls: int
) -> None:
    async with world.open() as runtime:
        # A turn that waits in its task ends before its conversation does, and meets a wait.
        script = [fail(500), fail(429, retry_after=7_200), reply("never")]
        provider = provider_of(world, script)
        policy = Policy(Retry(after_s))
        spec = AgentSpec(name="ana", provider=provider, model="m", error_policy=policy)
        ana = await runtime.add_agent(spec)
        fork = await runtime.open_conversation("ana", channel="c1")
        await fork.send("go")
        await until(lambda: len(provider.requests) == 1 and not world.permits_out(fork.name))
        await fork.close()
        await trio.sleep(8_000)
        await ana.wait_idle()
        assert len(provider.requests) == calls
        assert [agent.name for agent in runtime.status().agents] == ["ana"]
        assert world.state().held is None
        assert [turn.held for turn in world.turns(fork.name)] == [None]
        assert world.turns(fork.name)[0].state in ("cancelled", "failed")
    async with world.open() as runtime:
        await world.add([reply("free")])
        await trio.sleep(8_000)
        assert [agent.name for agent in runtime.status().agents] == ["ana"]
        assert not world.providers[-1].requests
