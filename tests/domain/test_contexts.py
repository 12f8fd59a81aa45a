"""Contexts: what of a long slot a turn's requests carry, and when that changes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentSpec
from abeyance.actors.domain.errors import InvalidInputError
from abeyance.actors.domain.slot_rewind import KEPT_MS
from abeyance.actors.providers.port import ModelRequest
from abeyance.actors.testing import ScriptedProvider, call_tool, fail, reply
from abeyance.actors.testing.scripted import Step, rounds_made
from abeyance.actors.testing.witness import Witness
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.tables.blocks import TextBlock, ThinkingBlock

from .talk import SUMMED, ByHand, Talk, add, compacted, kept, say, small, summing, turns
from .world import Stop, World, shown, texts, until


async def by_hand(world: World, script: Any, **spec: Any) -> tuple[Any, Any, ByHand]:
    strategy = ByHand()
    ana, provider = await add(world, script, context=strategy, **spec)
    return ana, provider, strategy


def echo(request: ModelRequest) -> Step:
    """Answer with how much the request holds."""
    return reply(f"after {len(request.messages)}")


async def test_the_older_part_of_a_long_slot_is_summed_up_and_the_next_turn_carries_that(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana, provider = await add(world, Talk())
        await say(world, ana, "a", "b", "c")
        assert kept(world) == []
        with runtime.events(kinds=["context_kept"]) as events:
            await say(world, ana, "d")
            event = await anext(aiter(events))
        assert (event.agent, event.first, event.last) == ("ana", 1, 4)  # type: ignore[attr-defined]
        (asked,) = summing(provider)
        assert (asked.model, asked.tools) == ("m", ())
        (summary,) = ana.summaries()
        assert (summary.first, summary.last) == (1, 4)
        assert summary.strategy == "CompactingContext"
        await say(world, ana, "e")
        assert turns(provider)[-1] == [
            SUMMED, "user: c", "agent: answer 3", "user: d", "agent: answer 4", "user: e",
        ]  # fmt: skip
        assert len(await shown(ana)) == 10, "the transcript is as it was"


async def test_what_is_kept_during_a_turn_is_carried_by_the_next_one_and_not_by_that_one(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()

    def script(request: ModelRequest) -> Step:
        in_third = len(request.messages) >= 5 and rounds_made(request) < 2
        return call_tool("wait") if in_third else echo(request)

    async with world.open():
        ana, provider, strategy = await by_hand(world, script, tools=[stop.tool()])
        await say(world, ana, "a", "b")
        await ana.send("c")
        await stop.entered.wait()
        await strategy.desk.keep("in short", last=4)
        assert kept(world) == [4]
        stop.go.set()
        await ana.wait_idle()
        carried = turns(provider)[2:]
        assert [len(request) for request in carried] == [5, 7, 9]
        assert all(later[: len(one)] == one for one, later in itertools.pairwise(carried))
        assert carried[-1][0] == "user: a"
        await say(world, ana, "d")
        assert turns(provider)[-1][:2] == ["user: in short", "user: c"]
        rows = world.rows("carried", "ana")
        assert [row.context for row in rows] == [None] * 5 + [4] * 3
        assert rows[-1].rows[0][0] == 1, "what the summary stands for is carried, too"


async def test_a_turn_that_is_taken_up_again_goes_on_behind_the_summary_it_began_with(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()

    def script(request: ModelRequest) -> Step:
        return call_tool("wait") if texts(request)[-1] == "user: d" else echo(request)

    async with world.open():
        ana, provider, strategy = await by_hand(world, script, tools=[stop.tool()])
        await say(world, ana, "a", "b")
        await strategy.desk.keep("one", last=2)
        await say(world, ana, "c")
        await ana.send("d")
        await stop.entered.wait()
        await strategy.desk.keep("two", last=4)
        world.ref("agent").kill("by a test")
        stop.go.set()
        await ana.wait_idle()
        first, second = turns(provider)[-2:]
        assert first[:2] == ["user: one", "user: b"]
        assert second == [*first, "agent: <wait>", "user: =done"]
        await say(world, ana, "e")
        assert turns(provider)[-1][:2] == ["user: two", "user: c"]


@pytest.mark.parametrize("rounds", [0, 1])
async def test_a_held_turn_changes_its_view_only_before_its_first_reply(
    world: World, virtual_time: MockClock, rounds: int
) -> None:
    held = iter([False, True, False])

    def script(request: ModelRequest) -> Step:
        if texts(request)[-1] not in ("user: c", "user: =done"):
            return echo(request)
        if rounds_made(request) < rounds:
            return call_tool("look")
        return fail(429, retry_after=60) if next(held) else echo(request)

    next(held)
    stop = Stop()
    stop.go.set()
    async with world.open():
        ana, provider, strategy = await by_hand(world, script, tools=[stop.tool("look")])
        await say(world, ana, "a", "b", "c")
        assert world.state().state == "held"
        await strategy.desk.keep("in short", last=2)
        await trio.sleep(61)
        await ana.wait_idle()
        failed, after = turns(provider)[-2:]
        if rounds:
            assert after == failed, "a turn under way is not changed"
        else:
            assert after == ["user: in short", "user: b", "agent: after 3", "user: c"]


async def test_a_summary_survives_a_restart(world: World, virtual_time: MockClock) -> None:
    async with world.open():
        ana, _ = await add(world, Talk())
        await say(world, ana, "a", "b", "c", "d")
    async with world.open():
        ana, provider = await add(world, Talk())
        await say(world, ana, "e")
        assert turns(provider)[0][:2] == [SUMMED, "user: c"]
    async with world.open():
        ana, provider = await add(world, Talk(), context=None)
        await say_alone(ana, "f")
        assert turns(provider)[0][0] == "user: a", "without a strategy it is the whole slot"


async def say_alone(ana: Any, word: str) -> None:
    await ana.send(word)
    await ana.wait_idle()


# -- rewinds -----------------------------------------------------------------------------------


async def test_a_rewind_of_what_a_summary_stands_for_ends_it_and_an_undo_puts_it_back(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana, provider, strategy = await by_hand(world, echo)
        await say(world, ana, "a", "b", "c")
        await strategy.desk.keep("one", last=2)
        await strategy.desk.keep("two", last=4)
        await ana.rewind(3, requester="ops")
        assert [each.last for each in ana.summaries()] == [2]
        await ana.undo_rewind(requester="ops")
        assert [each.last for each in ana.summaries()] == [4, 2]
        await ana.rewind(3, requester="ops")
        await say(world, ana, "d")
        assert turns(provider)[-1] == ["user: one", "user: b", "user: d"]
        await ana.rewind(1, requester="ops")
        assert ana.summaries() == ()
        await say(world, ana, "e")
        assert turns(provider)[-1] == ["user: a", "user: e"]


async def test_a_rewind_behind_what_a_summary_stands_for_leaves_it(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana, provider, strategy = await by_hand(world, echo)
        await say(world, ana, "a", "b", "c")
        await strategy.desk.keep("in short", last=2)
        await ana.rewind(2, requester="ops")
        await say(world, ana, "d")
        assert turns(provider)[-1] == ["user: in short", "user: d"]


@pytest.mark.slow
async def test_a_summary_of_what_was_rewound_stays_away_when_the_rows_are_deleted(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana, provider, strategy = await by_hand(world, echo)
        await say(world, ana, "a", "b", "c")
        await strategy.desk.keep("in short", last=4)
        await ana.rewind(2, requester="ops")
        await say(world, ana, "d")
        await trio.sleep(KEPT_MS / 1_000 + 7_200)
        await until(lambda: len(world.rows("slots")) == 4)
        await say(world, ana, "e")
        assert not world.rows("leases")[0].cuts
        assert ana.summaries() == ()
        assert turns(provider)[-1][0] == "user: a"


async def test_a_held_turn_whose_summary_a_rewind_ended_goes_on_without_it(
    world: World, virtual_time: MockClock
) -> None:
    def script(request: ModelRequest) -> Step:
        if texts(request)[-1] == "user: c" and rounds_made(request) == 0:
            return call_tool("look")
        return fail(429, retry_after=60) if "<look>" in " ".join(texts(request)) else echo(request)

    stop = Stop()
    stop.go.set()
    async with world.open():
        ana, provider, strategy = await by_hand(world, script, tools=[stop.tool("look")])
        await say(world, ana, "a", "b")
        await strategy.desk.keep("in short", last=4)
        await say(world, ana, "c")
        assert world.state().state == "held"
        assert turns(provider)[-1][0] == "user: in short"
        await ana.rewind(3, requester="ops")
        await trio.sleep(61)
        await ana.wait_idle()
        assert turns(provider)[-1] == ["user: a", "agent: after 1", "user: b"]


# -- what may be covered -------------------------------------------------------------------------


async def test_a_summary_stands_for_nothing_that_was_not_answered_behind(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana, _, strategy = await by_hand(world, echo)
        await ana.send("note", wake=False)
        await until(lambda: strategy.desk is not None)
        assert strategy.desk.coverable() == 0
        with pytest.raises(InvalidInputError, match="at most 0"):
            await strategy.desk.keep("in short", last=1)
        await say(world, ana, "a")
        await ana.send("unread", wake=False)
        assert strategy.desk.coverable() == 3
        for last in (0, True, "3", 4, 99):
            with pytest.raises(InvalidInputError, match="last"):
                await strategy.desk.keep("in short", last=last)
        for text in (7, "x" * 1_000_001, "\ud800"):
            with pytest.raises(InvalidInputError, match="text"):
                await strategy.desk.keep(text, last=3)
        assert kept(world) == []
        await strategy.desk.keep("", last=3)
        await say(world, ana, "b")
        assert turns_of(world)[-1] == ["user: unread", "user: b"], "an empty one leaves rows out"


def turns_of(world: World) -> list[list[str]]:
    return turns(world.providers[-1])


async def test_a_summary_never_parts_a_call_from_its_results(
    world: World, virtual_time: MockClock
) -> None:
    def script(request: ModelRequest) -> Step:
        return call_tool("look") if rounds_made(request) == 0 else echo(request)

    stop = Stop()
    stop.go.set()
    async with world.open():
        ana, provider, strategy = await by_hand(world, script, tools=[stop.tool("look")])
        await say(world, ana, "a")
        assert (await shown(ana))[1:3] == ["assistant: <look>", "results: =done"]
        with pytest.raises(InvalidInputError, match="results follow"):
            await strategy.desk.keep("in short", last=2)
        await strategy.desk.keep("in short", last=3)
        await say(world, ana, "b")
        assert turns(provider)[-2] == ["user: in short", "agent: after 3", "user: b"]


async def test_a_summary_is_never_written_again_and_old_ones_go(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana, _, strategy = await by_hand(world, echo)
        await say(world, ana, *"abcdefg")
        one = await strategy.desk.keep("one", last=2)
        assert await strategy.desk.keep("another", last=2) == one
        for last in (4, 6, 8, 10):
            await strategy.desk.keep(f"up to {last}", last=last)
        assert kept(world) == [4, 6, 8, 10]


# -- reasoning -----------------------------------------------------------------------------------


def thinks(number: int) -> Step:
    thought = ThinkingBlock(thinking=f"thought {number}", signature="s")
    return reply(thought, TextBlock(text=f"answer {number}"))


def thoughts(request: ModelRequest) -> list[str]:
    return [
        block.thinking
        for message in request.messages
        for block in message.blocks
        if isinstance(block, ThinkingBlock)
    ]


async def test_signed_reasoning_is_carried_only_behind_the_beginning_it_was_produced_behind(
    world: World, virtual_time: MockClock
) -> None:
    count = iter(range(1, 100))
    async with world.open():
        ana, provider, strategy = await by_hand(world, lambda _request: thinks(next(count)))
        await say(world, ana, "a", "b", "c")
        assert thoughts(provider.requests[-1]) == ["thought 1", "thought 2"]
        await strategy.desk.keep("in short", last=4)
        await say(world, ana, "d")
        assert thoughts(provider.requests[-1]) == [], "thought 3 had another beginning"
        assert turns(provider)[-1] == [
            "user: in short", "user: c", "agent: answer 3", "user: d",
        ]  # fmt: skip
        await say(world, ana, "e")
        assert thoughts(provider.requests[-1]) == ["thought 4"]
        await strategy.desk.keep("shorter", last=6)
        await say(world, ana, "f")
        assert thoughts(provider.requests[-1]) == []


@pytest.mark.parametrize("summed", [False, True])
async def test_a_fork_carries_its_residents_reasoning_only_where_no_summary_was_before_it(
    world: World, virtual_time: MockClock, summed: bool
) -> None:
    count = iter(range(1, 100))
    async with world.open() as runtime:
        provider = ScriptedProvider(lambda _request: thinks(next(count)), clock=world.clock)
        strategy = ByHand()
        spec = AgentSpec(name="ana", provider=provider, model="m", context=strategy)
        ana = await runtime.add_agent(spec)
        await say(world, ana, "a", "b", "c")
        if summed:
            await strategy.desk.keep("in short", last=2)
            await say(world, ana, "d")
        fork = await runtime.open_conversation("ana", channel="c1")
        await fork.send("aside")
        await fork.wait_idle()
        carried = [] if summed else ["thought 1", "thought 2", "thought 3"]
        assert thoughts(provider.requests[-1]) == carried


# -- kinds ---------------------------------------------------------------------------------------


async def test_a_fork_begins_with_its_residents_summary_and_goes_its_own_way(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        provider = ScriptedProvider(Talk(), clock=world.clock)
        spec = AgentSpec(name="ana", provider=provider, model="m", context=small())
        ana = await runtime.add_agent(spec)
        await say(world, ana, "a", "b", "c", "d")
        fork = await runtime.open_conversation("ana", channel="c1")
        assert [each.last for each in fork.summaries()] == [4]
        await ana.rewind(2, requester="ops")
        assert ana.summaries() == ()
        await fork.send("aside")
        await fork.wait_idle()
        await compacted(world, fork.name)
        assert turns(provider)[-1] == [
            SUMMED, "user: c", "agent: answer 3", "user: d", "agent: answer 4", "user: aside",
        ]  # fmt: skip
        for word in "ef":
            await fork.send(word)
            await fork.wait_idle()
        await compacted(world, fork.name)
        assert len(fork.summaries()) == 2
        assert ana.summaries() == ()
        await fork.close()
        assert kept(world, fork.name) == [], "nobody compiles a closed fork's slot"
        assert kept(world) == [4]


async def test_a_removed_agents_summary_is_there_when_it_is_added_again(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana, _ = await add(world, Talk())
        await say(world, ana, "a", "b", "c", "d")
        await runtime.remove_agent("ana")
        ana, provider = await add(world, Talk())
        await say(world, ana, "e")
        assert turns(provider)[0][0] == SUMMED


async def test_an_ephemeral_run_is_sent_whole_and_keeps_nothing(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        provider = ScriptedProvider(Talk(), clock=world.clock)
        spec = AgentSpec(name="sum", provider=provider, model="m", context=small())
        await runtime.run_ephemeral(spec, "x" * 5_000)
        assert len(provider.requests) == 1
        assert not world.rows("contexts")


# -- reads ---------------------------------------------------------------------------------------


async def test_a_compile_reads_no_more_of_a_long_slot_than_it_renders(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.open() as runtime:
        strategy = ByHand()
        await add(world, echo, context=strategy)
        ana = runtime.agent("ana")
        for number in range(300):
            await ana.send(f"note {number}", wake=False)
        await say(world, ana, "a", "b")
        await strategy.desk.keep("in short", last=302)
        read: dict[str, list[Any]] = {"slots": [], "bodies": [], "contexts": []}
        get, scan = LmdbStore.get, LmdbStore.scan

        def counted_get(store: Any, table: str, key: Any) -> Any:
            read.get(table, []).append(key[-1])
            return get(store, table, key)

        def counted_scan(store: Any, table: str, *args: Any, **how: Any) -> Any:
            for key, row in scan(store, table, *args, **how):
                read.get(table, []).append(key[-1])
                yield key, row

        provider = world.providers[-1]
        monkeypatch.setattr(Witness, "_look", lambda *_looked: None)
        monkeypatch.setattr(LmdbStore, "get", counted_get)
        monkeypatch.setattr(LmdbStore, "scan", counted_scan)
        await ana.send("c")
        await ana.wait_idle()
        assert turns(provider)[-1] == [
            "user: in short", "user: b", "agent: after 303", "user: c",
        ]  # fmt: skip
        assert read["contexts"] == [302, 302], "and when it is over, lest another is asked for"
        assert set(read["slots"]) <= {302, 303, 304, 305, 306}, "302 to see that it stands"
        assert len(read["slots"]) <= 6
        assert len(read["bodies"]) == 3
