"""Contexts under faults: a SIGKILL around a commit, damaged rows, and cancellation anywhere."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors.domain.context_desk import AgentContextDesk
from abeyance.actors.providers.port import ModelRequest
from abeyance.actors.testing import call_tool, fail, reply
from abeyance.actors.testing.scripted import Step, rounds_made
from abeyance.storage.check import check
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Row

from .damage import DAMAGES, damage
from .talk import SUMMED, ByHand, Talk, add, compacted, kept, say, small, summing, turns
from .test_kinds_killed import KILLED, Lives, play
from .world import Stop, World, until

assert KILLED == -signal.SIGKILL


@pytest.mark.parametrize("point", ["context.before_keep", "context.after_keep"])
def test_a_summary_is_there_whole_or_not_at_all_whenever_its_process_dies(
    tmp_path: Path, point: str
) -> None:
    lives = Lives(tmp_path / "state")
    statuses = lives.play(("summed_up", point))
    assert statuses == [KILLED]
    is_kept = point == "context.after_keep"
    assert len(lives.rows("contexts")) == int(is_kept)
    assert lives.play("talk_on") == [0]
    rows = lives.rows("contexts")
    assert len(rows) >= 1, "it is made again"
    assert [turn.context for turn in lives.rows("turns")] == [None] * 4 + [4 if is_kept else None]
    said = lives.rows("bodies")[-1].blocks[0].text
    assert ("A summary of the conversation" in said) == is_kept
    assert all(lease.turn is None for lease in lives.rows("leases"))


@pytest.mark.slow
def test_a_death_at_any_commit_of_a_compaction_loses_no_row_of_the_slot(tmp_path: Path) -> None:
    # The first commits are of the start; the last ones are around the summary.
    deaths = [(tmp_path / str(n), "summed_up", f"writer.before_commit:{n}") for n in range(9, 21)]
    again = [(directory, "talk_on", "") for directory, _, _ in deaths]
    statuses = play([*deaths, *again])
    assert statuses.count(KILLED) >= 6
    assert 0 in statuses[: len(deaths)], "past the last commit nothing dies"
    assert statuses[len(deaths) :] == [0] * len(again)
    for directory, _, point in deaths:
        store = LmdbStore.open(directory, clock_ms=lambda: 0, read_only=True)
        try:
            assert check(store).findings == (), point
        finally:
            store.close()
        assert all(lease.turn is None for lease in Lives(directory).rows("leases")), point


# -- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("older", [False, True], ids=["the only one", "an older one is kept"])
@pytest.mark.parametrize("how", DAMAGES)
async def test_a_damaged_summary_is_never_sent_and_an_operator_learns_of_it(
    world: World, virtual_time: MockClock, how: str, older: bool
) -> None:
    async with world.open():
        strategy = ByHand()
        ana, _ = await add(world, lambda _request: reply("so"), context=strategy)
        await say(world, ana, "a", "b", "c")
        if older:
            await strategy.desk.keep("older", last=2)
        await strategy.desk.keep("in short", last=4)
    damage(world.directory, world.clock, "contexts", ("ana", "ana", 4), how)
    async with world.open() as runtime:
        strategy = ByHand()
        ana, provider = await add(world, lambda _request: reply("so"), context=strategy)
        await say(world, ana, "d", "e")
        first = "user: older" if older else "user: a"
        assert [request[0] for request in turns(provider)] == [first, first]
        assert [each.last for each in ana.summaries()] == ([2] if older else [])
        await until(lambda: runtime.alerts() != ())
        (alert,) = runtime.alerts()
        assert (alert.kind, alert.agent) == ("context_unreadable", "ana")
        assert "table contexts" in alert.text
        assert "No message is lost" in alert.text
        await strategy.desk.keep("made again", last=4)
        await say(world, ana, "f")
        assert turns(provider)[-1][0] == "user: made again"
        assert check(runtime._store).findings == ()
        assert len(runtime.alerts()) == 1


@pytest.mark.parametrize("how", DAMAGES)
async def test_a_turn_that_was_compiled_behind_a_summary_that_is_damaged_goes_on_with_the_whole(
    world: World, virtual_time: MockClock, how: str
) -> None:
    stop = Stop()
    stop.go.set()

    def script(request: ModelRequest) -> Step:
        if rounds_made(request) == 0 and len(request.messages) == 2:
            return call_tool("look")
        return fail(429, retry_after=60) if rounds_made(request) else reply("so")

    async with world.open():
        strategy = ByHand()
        ana, provider = await add(world, script, context=strategy, tools=[stop.tool("look")])
        await say(world, ana, "a", "b")
        await strategy.desk.keep("in short", last=4)
        await say(world, ana, "c")
        assert world.state().state == "held"
        assert world.turns()[-1].context == 4
    damage(world.directory, world.clock, "contexts", ("ana", "ana", 4), how)
    async with world.open() as runtime:
        ana, provider = await add(
            world, lambda _request: reply("so"), context=ByHand(), tools=[stop.tool("look")]
        )
        await trio.sleep(61)
        await ana.wait_idle()
        assert turns(provider)[-1][0] == "user: a"
        assert turns(provider)[-1][-1] == "user: =done"
        assert (world.turns()[-1].context, world.turns()[-1].compiled_round) == (None, 1)
        await until(lambda: runtime.alerts() != ())
        assert [alert.kind for alert in runtime.alerts()] == ["context_unreadable"]


# -- cancellation --------------------------------------------------------------------------------


class CancelAt(trio.abc.Instrument):
    """Cancels a scope when its task waits for the n-th time."""

    def __init__(self, nth: int, scope: trio.CancelScope) -> None:
        self._task = trio.lowlevel.current_task()
        self._left = nth
        self._scope = scope

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._left -= 1
            if self._left == 0:
                self._scope.cancel()


async def test_a_compaction_that_is_cancelled_at_any_checkpoint_leaves_a_summary_or_none(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        strategy = ByHand()
        ana, provider = await add(world, Talk(), context=strategy)
        await say(world, ana, "a", "b", "c", "d")
        desk: AgentContextDesk = strategy.desk
        for nth in range(1, 100):
            with trio.CancelScope() as scope:
                instrument = CancelAt(nth, scope)
                trio.lowlevel.add_instrument(instrument)
                try:
                    await small().compact(desk)
                finally:
                    trio.lowlevel.remove_instrument(instrument)
            await until(lambda: not world.permits_out())
            await compacted(world)
            if kept(world):
                break
        assert nth >= 5
        assert kept(world) == [4]
        (row,) = [row for _, row in runtime._store.scan("contexts", ())]
        assert isinstance(row, Row)
        assert row.record.text.endswith("in short")
        assert len(summing(provider)) >= 2, "it was cancelled in and behind its call, too"
        await say(world, ana, "e")
        assert turns(provider)[-1][0] == SUMMED
