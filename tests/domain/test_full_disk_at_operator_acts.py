"""A disk that refuses an operator's act, then heals: what is true meanwhile; it is done once.

Each act either says that it was not stored and changed nothing, or holds in this process and is
stored when the disk takes it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors import Runtime, TrioActor
from abeyance.actors.domain.errors import NotStoredError
from abeyance.actors.domain.protocol import ReleaseWaits
from abeyance.actors.testing import Gate, fail, reply

from .test_alerts import Sink, settled
from .test_faults import Disk, disk, full
from .test_holds import quota
from .world import World, shown, until

__all__ = ["disk"]


async def spoken(world: World) -> Any:
    """An agent with two answered messages."""
    ana = await world.add([reply("one"), reply("two")])
    for words in ("a", "b"):
        await ana.send(words)
        await ana.wait_idle()
    return ana


SAID = ["user: a", "assistant: one", "user: b", "assistant: two"]


class Taker(TrioActor):
    """Takes whatever it is told; crashes on text for as long as it is not mended."""

    mended = False
    seen: list[Any] = []

    def on_receive(self, message: Any) -> None:
        if not self.mended:
            raise ValueError("not yet")
        self.seen.append(message)


class Act(NamedTuple):
    """An act that is refused while the disk is full."""

    act: Callable[[Runtime], Awaitable[Any]]
    after: list[str] | None
    """The transcript once it was done; None: the agent is gone."""


ACTS = {
    "rewind": Act(lambda runtime: runtime.agent("ana").rewind(to=2, requester="ops"), SAID[:2]),
    "edit": Act(
        lambda runtime: runtime.agent("ana").edit(1, "x", requester="ops"),
        ["user: x", *SAID[1:]],
    ),
    "remove": Act(lambda runtime: runtime.remove_agent("ana", requester="ops"), None),
}


@pytest.mark.parametrize("name", ACTS)
async def test_an_act_that_the_disk_refuses_changes_nothing_and_is_done_once_it_takes_it(
    world: World, virtual_time: MockClock, disk: Disk, name: str
) -> None:
    act, after = ACTS[name]
    async with world.open() as runtime:
        ana = await spoken(world)
        with full(disk):
            for _ in range(2):
                with pytest.raises(NotStoredError):
                    await act(runtime)
                assert disk.refused
                assert await shown(ana) == SAID
        await act(runtime)
        if after is None:
            assert runtime.status().agents == ()
        else:
            assert await shown(ana) == after
    async with world.open():
        ana = await world.add([reply("three")])
        assert await shown(ana) == (SAID if after is None else after)
        await ana.send("c")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: three"


async def test_an_undo_that_the_disk_refuses_leaves_the_rewind_and_is_done_later(
    world: World, virtual_time: MockClock, disk: Disk
) -> None:
    async with world.open():
        ana = await spoken(world)
        await ana.rewind(to=2, requester="ops")
        with full(disk), pytest.raises(NotStoredError):
            await ana.undo_rewind(requester="ops")
        assert await shown(ana) == SAID[:2]
        await ana.undo_rewind(requester="ops")
        assert await shown(ana) == SAID
    async with world.open():
        assert await shown(await world.add([])) == SAID


@pytest.mark.parametrize("outage_s", [0.05, 600.0])
async def test_a_rewind_of_a_live_turn_waits_for_the_disk_and_is_done_once(
    world: World, virtual_time: MockClock, disk: Disk, outage_s: float
) -> None:
    gate = Gate(reply("never"))
    async with world.open():
        ana = await world.add([reply("one"), gate, reply("three")])
        await ana.send("a")
        await ana.wait_idle()
        await ana.send("b")
        await gate.wait_entered()
        done: list[Any] = []

        async def rewind() -> None:
            done.append(await ana.rewind(to=2, requester="ops"))

        async with trio.open_nursery() as nursery:
            with full(disk):
                nursery.start_soon(rewind)
                await trio.sleep(outage_s)
                assert not done
        assert [(receipt.first, receipt.last) for receipt in done] == [(3, 4)]
        assert await shown(ana) == SAID[:2]
        await ana.send("c")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: three"
        events = [line.event for line in world.rows("log") if line.event == "slot_rewound"]
        assert events == ["slot_rewound"]


@pytest.mark.behaviour("W-025", "W-109")
@pytest.mark.parametrize("hold", ["a wait", "a quota"])
@pytest.mark.parametrize("ends", ["heals", "heals as the runtime ends", "stays full"])
async def test_a_release_that_the_disk_refuses_binds_here_and_is_recorded_when_it_heals(
    world: World, virtual_time: MockClock, disk: Disk, hold: str, ends: str
) -> None:
    limit = fail(429, retry_after=7_200) if hold == "a wait" else quota()
    async with world.open():
        bo = await world.add([limit], "bo")
        await bo.send("go")
        await bo.wait_idle()
    # The agent is not here when it is released, so that nothing but the record tells it.
    async with world.open() as runtime:
        disk.full = True
        receipt = await _release(runtime, "bo", hold)
        assert [each.reach for each in receipt.released] == ["pending"]
        assert runtime.provider_waits() == ()
        assert not world.rows("overrides")
        if ends == "heals":
            disk.full = False
            await trio.sleep(31)
            await until(lambda: not runtime._waits.pending)
        elif ends == "heals as the runtime ends":
            disk.full = False
    disk.full = False
    async with world.open():
        bo = await world.add([reply("bo")], "bo")
        await bo.wait_idle()
        if ends == "stays full":
            assert world.state("bo").state == "held", "pending says so: it dies with its process"
        else:
            assert (await shown(bo))[-1] == "assistant: bo"


async def _release(runtime: Runtime, agent: str, hold: str) -> Any:
    if hold == "a quota":
        # Nothing is listed of it, and its agent is not here: its hold is a row of its turn.
        return await runtime._ledger.ask(ReleaseWaits(agent, None, "ops"))
    return await runtime.release_provider_wait(agent, requester="ops")


async def test_a_replay_that_the_disk_refuses_sends_nothing_and_is_sent_once_it_takes_it(
    world: World, virtual_time: MockClock, disk: Disk
) -> None:
    Taker.mended, Taker.seen = False, []
    async with world.open() as runtime:
        ref = runtime._system.start(Taker, name="taker")
        ref.tell("message")
        await until(lambda: bool(runtime.quarantine()))
        await until(lambda: not ref.is_alive())
        Taker.mended = True
        runtime._system.start(Taker, name="taker")
        (entry,) = runtime.quarantine()
        with full(disk), trio.fail_after(60), pytest.raises(NotStoredError):
            await runtime.replay_quarantined(entry.id, requester="ops")
        await wait_all_tasks_blocked()
        assert Taker.seen == []
        assert runtime.quarantine()[0].replays == 0
        await runtime.replay_quarantined(entry.id, requester="ops")
        await wait_all_tasks_blocked()
        assert Taker.seen == ["message"]
        assert runtime.quarantine()[0].replays == 1


async def test_a_sink_is_not_given_again_what_it_took_while_the_disk_was_full(
    world: World, virtual_time: MockClock, disk: Disk
) -> None:
    took = trio.Event()

    class Slow(Sink):
        async def deliver(self, alert: Any) -> None:
            await took.wait()
            await super().deliver(alert)

    sink = Slow()
    async with world.open(alert_sinks=[sink]):
        for name in ("ana", "bo"):
            agent = await world.add([fail(429, retry_after=7_200)], name)
            await agent.send("go")
            await agent.wait_idle()
            if name == "ana":
                await until(lambda: len(world.runtime.alerts()) == 1)
                with full(disk):
                    took.set()
                    await until(lambda: len(sink.got) == 1 and bool(disk.refused))
        await settled(world)
        assert [alert.agent for alert in sink.got] == ["ana", "bo"]
    later = Sink()
    async with world.open(alert_sinks=[later]):
        await settled(world)
        assert later.got == []
