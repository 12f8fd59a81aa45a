"""A context strategy beside its agent: what it is told, what defers it, that it holds nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentSpec
from abeyance.actors.context import (
    CallDeferred,
    CompactingContext,
    ContextStrategy,
    WaitRecorded,
    WaitReleased,
)
from abeyance.actors.domain.context import METHODS
from abeyance.actors.domain.context_keeper import EVENT_S_MAX, EVENTS_MAX, PAUSE_INITIAL_S
from abeyance.actors.domain.errors import (
    CallDeferredError,
    CompactionAbandonedError,
    InvalidSpecError,
)
from abeyance.actors.domain.limits import COMPACTION_CALL_MS_MAX, COMPACTION_YIELD_MS
from abeyance.actors.providers.port import ModelRequest
from abeyance.actors.testing import Gate, ScriptedProvider, fail, reply, stall
from abeyance.actors.testing.scripted import Step

from .talk import LONG, SUMMED, ByHand, Talk, add, compacted, kept, say, small, summing, turns
from .test_auxiliary import ask
from .world import World, shown, texts, until

LOGGERS = ("abeyance.actors.domain.context_keeper", "abeyance.actors.domain.context_post")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name in LOGGERS]


async def told(strategy: ByHand, count: int) -> list[Any]:
    await until(lambda: len(strategy.told) >= count)
    return strategy.told


# -- registration --------------------------------------------------------------------------------


@pytest.mark.behaviour("R-33")
@pytest.mark.parametrize("method", sorted(METHODS))
async def test_a_strategy_that_lacks_a_method_is_refused_by_its_name(
    world: World, virtual_time: MockClock, method: str
) -> None:
    class Lacks(ByHand):
        pass

    setattr(Lacks, method, None)
    async with world.open() as runtime:
        with pytest.raises(InvalidSpecError, match=f"context.{method}"):
            await add(world, [], context=Lacks())
        with pytest.raises(InvalidSpecError, match="the class Lacks"):
            await add(world, [], context=Lacks)
        assert not runtime.status().agents


def test_what_is_built_in_is_a_strategy() -> None:
    assert isinstance(CompactingContext(), ContextStrategy)


# -- events --------------------------------------------------------------------------------------


@pytest.mark.behaviour("R-33")
async def test_a_strategy_is_told_of_waits_releases_and_deferred_calls_in_order(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        strategy = ByHand()
        ana, _ = await add(world, [fail(429, retry_after=60)], context=strategy)
        await ana.send("a")
        await ana.wait_idle()
        (wait,) = runtime.provider_waits("ana")
        (recorded,) = await told(strategy, 1)
        assert recorded == WaitRecorded("ana", "m", wait.deadline_ms, wait.reason)
        with pytest.raises(CallDeferredError):
            await strategy.desk.call(ask())
        await runtime.release_provider_wait("ana", "m", requester="ops")
        found = await told(strategy, 3)
        assert found[1:] == [
            CallDeferred("ana", "m", "wait", wait.deadline_ms, wait.reason),
            WaitReleased("ana", "m"),
        ]


@pytest.mark.behaviour("W-111", "W-110", "R-33")
@pytest.mark.parametrize(("model", "scope"), [("m1", "m1"), ("*", None)])
async def test_a_strategy_is_told_of_every_release_though_no_wait_binds(
    world: World, virtual_time: MockClock, model: str, scope: str | None
) -> None:
    async with world.open() as runtime:
        strategy = ByHand()
        await add(world, [], context=strategy)
        await add(world, [], "bo", context=(other := ByHand()))
        receipt = await runtime.release_provider_wait("ana", model, requester="ops")
        assert receipt.released == ()
        assert await told(strategy, 1) == [WaitReleased("ana", scope)]
        with pytest.raises(Exception, match="requester"):
            await runtime.release_provider_wait("ana", requester="")
        await trio.sleep(60)
        assert len(strategy.told) == 1
        assert other.told == []


class Fails(ByHand):
    """Fails at whatever it is told, in a way of its own."""

    def __init__(self, how: Callable[[], Any]) -> None:
        super().__init__()
        self._how = how

    async def on_wait_recorded(self, event: Any) -> None:
        self.told.append(event)
        await self._how()

    async def on_wait_released(self, event: Any) -> None:
        self.told.append(event)
        await self._how()


async def raises() -> None:
    raise RuntimeError("not today")


async def raises_a_group() -> None:
    raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])


async def exits() -> None:
    raise SystemExit(3)


FAILURES = [raises, raises_a_group, exits, trio.sleep_forever]


@pytest.mark.behaviour("W-112", "R-33")
@pytest.mark.parametrize("how", FAILURES, ids=lambda how: how.__name__)
async def test_a_strategy_that_fails_at_an_event_fails_neither_wait_nor_release_nor_turn(
    world: World, virtual_time: MockClock, caplog: pytest.LogCaptureFixture, how: Any
) -> None:
    async with world.open() as runtime:
        strategy = Fails(how)
        ana, _ = await add(world, [fail(429, retry_after=7_200), reply("b")], context=strategy)
        await ana.send("a")
        await ana.wait_idle()
        await told(strategy, 1)
        with trio.fail_after(1):
            receipt = await runtime.release_provider_wait("ana", requester="ops")
        assert [item.reach for item in receipt.released] == ["recorded"]
        with trio.fail_after(1):
            await ana.wait_idle()
        assert runtime.provider_waits() == ()
        assert (await shown(ana))[-1] == "assistant: b"
        await told(strategy, 2)
        await trio.sleep(EVENT_S_MAX + 1)
        assert [type(event) for event in strategy.told] == [WaitRecorded, WaitReleased]
        said = [line for line in lines(caplog) if "did not take a WaitReleased" in line]
        assert len(said) == 1
        assert "strategy Fails of agent 'ana'" in said[0]


async def test_events_past_their_bound_drop_the_oldest_with_a_line(
    world: World, virtual_time: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.open():
        strategy = Fails(trio.sleep_forever)
        await add(world, [], context=strategy)
        keeper = world.ref("context")
        keeper.tell(WaitReleased("ana", "m"))
        await until(lambda: len(strategy.told) == 1)  # It is out, and waits no more.
        for number in range(EVENTS_MAX + 2):
            keeper.tell(WaitReleased("ana", f"m{number}"))
        await until(lambda: not keeper._cell.box.user)
        assert len(keeper._cell.kept.events) == EVENTS_MAX
        assert sum("too many wait" in line for line in lines(caplog)) == 2


async def test_plain_methods_are_as_good_as_async_ones(
    world: World, virtual_time: MockClock
) -> None:
    class Plain(ByHand):
        def compact(self, desk: Any) -> Any:  # type: ignore[override]
            self.desk = desk

        def on_wait_released(self, event: Any) -> Any:  # type: ignore[override]
            self.told.append(event)

    async with world.open() as runtime:
        strategy = Plain()
        await add(world, [], context=strategy)
        await runtime.release_provider_wait("ana", requester="ops")
        await told(strategy, 1)
        assert strategy.desk is not None


# -- views ---------------------------------------------------------------------------------------


class Odd(ByHand):
    def __init__(self, view: Callable[[Any], Any]) -> None:
        super().__init__()
        self._view = view

    def view(self, summaries: Any) -> Any:
        return self._view(summaries)


def view_raises(_summaries: Any) -> Any:
    raise RuntimeError("no view")


async def async_view(_summaries: Any) -> Any:
    """One that somebody wrote as async by mistake."""


def view_of_another(summaries: Any) -> Any:
    from abeyance.actors.context import Summary

    return Summary(2, 1, "made up", "Odd", 0)


@pytest.mark.parametrize(
    "view", [view_raises, async_view, view_of_another, lambda found: [*found], lambda _found: 2]
)
async def test_a_strategy_that_gives_no_view_has_the_turn_carry_the_whole_slot(
    world: World, virtual_time: MockClock, caplog: pytest.LogCaptureFixture, view: Any
) -> None:
    async with world.open():
        strategy = Odd(view)
        ana, provider = await add(world, lambda _request: reply("so"), context=strategy)
        await say(world, ana, "a", "b")
        await strategy.desk.keep("in short", last=2)
        with trio.fail_after(1):
            await say(world, ana, "c")
        assert turns(provider)[-1][0] == "user: a"
        assert any("gives no view" in line for line in lines(caplog))


# -- deferral ------------------------------------------------------------------------------------


async def held_compaction(world: World, **spec: Any) -> tuple[Any, Any]:
    """An agent whose compaction states a wait of a minute when it is first tried."""
    talk = Talk(fail(429, retry_after=60), reply("in short"))
    ana, provider = await add(world, talk, context=small(model="m2"), **spec)
    await say(world, ana, "a", "b", "c", "d")
    return ana, provider


@pytest.mark.behaviour("W-090", "W-094")
async def test_compaction_that_states_a_wait_is_tried_again_once_when_it_ends(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana, provider = await held_compaction(world)
        assert len(summing(provider)) == 1
        (wait,) = runtime.provider_waits()
        assert (wait.agent, wait.model) == ("ana", "m2")
        await say(world, ana, "e")
        assert len(summing(provider)) == 1, "a turn's end is no reason to ask again"
        assert kept(world) == []
        await trio.sleep(50)
        assert len(summing(provider)) == 1
        await trio.sleep(15)
        await compacted(world)
        assert len(summing(provider)) == 2
        assert kept(world) == [6]
        await trio.sleep(3_600)
        assert len(summing(provider)) == 2


@pytest.mark.parametrize("scope", ["m2", "*"])
async def test_compaction_that_is_deferred_is_tried_again_when_its_wait_is_released(
    world: World, virtual_time: MockClock, scope: str
) -> None:
    async with world.open() as runtime:
        _, provider = await held_compaction(world)
        await runtime.release_provider_wait("ana", "m", requester="ops")
        await trio.sleep(1)
        assert len(summing(provider)) == 1, "another model's release is not its own"
        await runtime.release_provider_wait("ana", scope, requester="ops")
        await until(lambda: kept(world) != [])
        assert len(summing(provider)) == 2


@pytest.mark.behaviour("W-090", "W-092", "R-33")
async def test_compaction_of_a_held_model_reaches_no_wire_and_is_told_as_deferred(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana, provider = await held_compaction(world)
        # A start knows of the deferral by asking the gate.
        await runtime.remove_agent("ana")
        talk = Talk()
        again = ana, provider = await add(world, talk, context=small(model="m2"))
        await say(world, ana, "e")
        assert again
        assert summing(provider) == []
        keeper = world.ref("context")._cell.kept
        assert keeper.deferral.model == "m2"
        assert keeper.failures == 0
        await trio.sleep(61)
        await until(lambda: kept(world) != [])
        assert len(summing(provider)) == 1


async def test_a_turn_that_the_same_wait_held_goes_before_the_compaction_that_it_deferred(
    world: World, virtual_time: MockClock
) -> None:
    def summed(request: ModelRequest) -> Step:
        return reply("in short")

    async with world.open():
        talk = Talk(fail(429, retry_after=60), summed)
        ana, provider = await add(world, talk)
        await say(world, ana, "a", "b", "c", "d")
        await ana.send("e")
        await ana.wait_idle()
        assert world.state().state == "held"
        made = len(provider.requests)
        await trio.sleep(61)
        await until(lambda: len(provider.requests) >= made + 2)
        await compacted(world)
        first, second = provider.requests[made : made + 2]
        assert texts(first)[-1] == "user: e"
        assert second in summing(provider)
        assert len(summing(provider)) == 2


async def test_a_deferral_without_an_end_is_looked_at_on_the_cadence_and_ends_by_a_release(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        talk = Talk(fail(429, retry_after=1e18), reply("in short"))
        ana, provider = await add(world, talk, context=small(model="m2"))
        await say(world, ana, "a", "b", "c", "d")
        await trio.sleep(7_200)
        assert len(summing(provider)) == 1
        await runtime.release_provider_wait("ana", "m2", requester="ops")
        await until(lambda: kept(world) == [4])
        assert len(summing(provider)) == 2


# -- failures ------------------------------------------------------------------------------------


async def test_compaction_that_fails_is_tried_again_after_growing_pauses_at_turns_ends(
    world: World, virtual_time: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.open():
        ana, provider = await add(world, Talk(fail(500)))
        await say(world, ana, "a", "b", "c", "d")
        assert len(summing(provider)) == 1
        await say(world, ana, "e")
        assert len(summing(provider)) == 1, "not in a loop"
        await trio.sleep(PAUSE_INITIAL_S)
        assert len(summing(provider)) == 1
        await say(world, ana, "f")
        assert len(summing(provider)) == 2
        await trio.sleep(PAUSE_INITIAL_S)
        await say(world, ana, "g")
        assert len(summing(provider)) == 2, "the pause has grown"
        await trio.sleep(PAUSE_INITIAL_S)
        await say(world, ana, "h")
        assert len(summing(provider)) == 3
        assert turns(provider)[-1][0] == "user: a"
        assert sum("context strategy CompactingContext" in line for line in lines(caplog)) == 3


class Compacts(ByHand):
    """Compacts in a way of its own."""

    def __init__(self, how: Callable[[], Any]) -> None:
        super().__init__()
        self._how = how

    async def compact(self, desk: Any) -> None:
        await super().compact(desk)
        await self._how()


@pytest.mark.parametrize("how", FAILURES, ids=lambda how: how.__name__)
async def test_a_strategy_whose_compaction_fails_or_never_ends_holds_no_turn(
    world: World, virtual_time: MockClock, how: Any
) -> None:
    async with world.open():
        strategy = Compacts(how)
        ana, provider = await add(world, lambda _request: reply("so"), context=strategy)
        for word in "abc":
            await ana.send(word)
            with trio.fail_after(1):
                await ana.wait_idle()
        assert len(provider.requests) == 3
        assert strategy.asked == 1, "one at a time, and after a pause"
    # And no stop.


async def test_a_provider_that_never_answers_a_compaction_holds_a_turn_for_a_bounded_time(
    world: World, virtual_time: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.open():
        ana, provider = await add(world, Talk(stall(None)))
        for word in "abcd":
            await ana.send(word)
            await ana.wait_idle()
        await until(lambda: len(summing(provider)) == 1)
        began = trio.current_time()
        await ana.send("e")
        await ana.wait_idle()
        took_s = trio.current_time() - began
        assert COMPACTION_YIELD_MS / 1_000 <= took_s < COMPACTION_YIELD_MS / 1_000 + 1
        assert (await shown(ana))[-2] == "user: e"
        await until(lambda: not world.permits_out())
        began = trio.current_time()
        await say(world, ana, "f", "g")
        assert trio.current_time() - began < 1, "it is not made again at once"
        assert any(CompactionAbandonedError.__name__ in line for line in lines(caplog))


async def test_a_call_that_no_turn_waits_for_is_abandoned_after_its_own_time(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana, provider = await add(world, Talk(stall(None)))
        for word in "abcd":
            await ana.send(word)
            await ana.wait_idle()
        await until(lambda: len(summing(provider)) == 1)
        await trio.sleep(COMPACTION_CALL_MS_MAX / 1_000 - 5)
        assert len(world.permits_out()) == 1
        await trio.sleep(10)
        assert not world.permits_out()


async def test_a_quiesced_host_begins_no_compaction_until_a_turn_ends_again(
    world: World, virtual_time: MockClock
) -> None:
    fourth = Gate(reply(f"answer 4 {LONG}"))

    def answer(request: ModelRequest) -> Step:
        return fourth if texts(request)[-1] == "user: d" else reply(f"an answer {LONG}")

    async with world.open() as runtime:
        ana, provider = await add(world, Talk(turns=answer))
        await say(world, ana, "a", "b", "c")
        await ana.send("d")
        await fourth.wait_entered()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.quiesce, "upgrade")
            await until(lambda: runtime.status().mode.state == "draining")
            fourth.release()
        await trio.sleep(3_600)
        assert summing(provider) == []
        await runtime.resume()
        await say(world, ana, "e")
        assert len(summing(provider)) == 1


async def test_compaction_of_a_busy_agent_goes_ahead_of_its_next_turn(
    world: World, virtual_time: MockClock
) -> None:
    fourth = Gate(reply(f"answer 4 {LONG}"))

    def answer(request: ModelRequest) -> Step:
        return fourth if texts(request)[-1] == "user: d" else reply(f"an answer {LONG}")

    async with world.open():
        ana, provider = await add(world, Talk(turns=answer))
        await say(world, ana, "a", "b", "c")
        await ana.send("d")
        await fourth.wait_entered()
        await ana.send("e")
        fourth.release()
        await ana.wait_idle()
        last = provider.requests[-2:]
        assert last[0] in summing(provider), "between the two turns"
        assert texts(last[1])[-1] == "user: e"
        assert texts(last[1])[0] == "user: a", "which began before it was kept"
        await compacted(world)
        await say(world, ana, "f")
        assert turns(provider)[-1][0] == SUMMED


# -- who dies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("actor", ["agent", "slot", "gate", "context", "ledger", "journal"])
async def test_compaction_is_made_good_whoever_dies_in_the_middle_of_it(
    world: World, virtual_time: MockClock, actor: str
) -> None:
    gates = [Gate(reply("in short"))]

    def summed(request: ModelRequest) -> Step:
        return gates.pop() if gates else reply("in short")

    async with world.open():
        first = gates[0]
        ana, provider = await add(world, Talk(summed))
        for word in "abcd":
            await ana.send(word)
            await ana.wait_idle()
        await first.wait_entered()
        world.ref(actor).kill("by a test")
        await until(lambda: world.runtime._system.find("agent:ana") is not None)
        first.release()
        await until(lambda: kept(world) == [4])
        await compacted(world)
        await say(world, ana, "e")
        assert turns(provider)[-1][0] == SUMMED
        assert len(summing(provider)) == (2 if actor == "context" else 1)
        assert not world.permits_out()


async def test_what_a_strategy_is_still_to_be_told_survives_its_keeper(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        strategy = Fails(trio.sleep_forever)
        await add(world, [], context=strategy)
        keeper = world.ref("context")
        for model in ("m1", "m2", "m3"):
            keeper.tell(WaitReleased("ana", model))
        await told(strategy, 1)
        await until(lambda: len(keeper._cell.kept.events) == 2)
        keeper.kill("by a test")
        await trio.sleep(3 * EVENT_S_MAX)
        assert [event.model for event in strategy.told] == ["m1", "m2", "m3"]


async def test_a_keeper_that_crashes_for_ever_is_parked_and_its_agent_goes_on(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana, provider = await add(world, Talk())
        keeper = world.ref("context")
        while keeper._cell.state != "held":
            keeper.kill("by a test")
            await trio.sleep(1)
        await ana.send("a")
        with trio.fail_after(5):
            await ana.wait_idle()
        assert len(turns(provider)) == 1
        receipt = await runtime.release_provider_wait("ana", requester="ops")
        assert receipt.released == ()
        assert world.state().state != "parked"
        for word in "bcd":
            await ana.send(word)
            await ana.wait_idle()
        assert kept(world) == []
        assert await runtime.resume_agent("ana")
        await until(lambda: kept(world) == [4])
        assert not await runtime.resume_agent("ana")


async def test_two_compactions_of_the_same_rows_keep_one_summary(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        strategy = ByHand()
        ana, _ = await add(world, lambda _request: reply("so"), context=strategy)
        await say(world, ana, "a", "b")
        made: list[Any] = []

        async def one(text: str) -> None:
            made.append(await strategy.desk.keep(text, last=2))

        async with trio.open_nursery() as nursery:
            for text in ("one", "two", "three"):
                nursery.start_soon(one, text)
        assert len({each.text for each in made}) == 1
        assert kept(world) == [2]


async def test_a_stop_ends_a_compaction_that_is_out_at_once(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana, provider = await add(world, Talk(stall(None)))
        for word in "abcd":
            await ana.send(word)
            await ana.wait_idle()
        await until(lambda: len(summing(provider)) == 1)
        began = trio.current_time()
    assert trio.current_time() - began < 1
    async with world.open():
        ana, provider = await add(world, Talk())
        await say(world, ana, "e")
        assert kept(world) == [6]


async def test_a_removed_agents_compaction_keeps_nothing_behind_its_end(
    world: World, virtual_time: MockClock
) -> None:
    from abeyance.actors.domain.errors import AgentEndedError

    async with world.open() as runtime:
        provider = ScriptedProvider(lambda _request: reply("so"), clock=world.clock)
        strategy = ByHand()
        spec = AgentSpec(name="ana", provider=provider, model="m", context=strategy)
        await runtime.add_agent(spec)
        fork = await runtime.open_conversation("ana", channel="c1")
        await say(world, fork, "a", "b")
        desk = strategy.desk
        assert desk.agent == fork.name
        await fork.close()
        with pytest.raises(AgentEndedError):
            await desk.keep("late", last=2)
        assert kept(world, fork.name) == []
