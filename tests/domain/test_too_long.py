"""A request that is too long for its model: compiled anew once behind a summary, then a failure."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentSpec, open_runtime
from abeyance.actors.domain.errors import RunFailedError
from abeyance.actors.providers.context_limit import estimated_tokens
from abeyance.actors.providers.port import ContextTooLongError, ModelRequest
from abeyance.actors.testing import Gate, ScriptedProvider, call_tool, fail, raise_, reply
from abeyance.actors.testing.scripted import Step
from abeyance.storage.check import check
from abeyance.storage.crashpoints import arm
from tests.lives import KILLED, begin

from .talk import ByHand, add, is_summing_up, kept, say, small, summing
from .world import World, shown, texts, tool, until

PAD = "x" * 300


def too_long() -> Step:
    return raise_(ContextTooLongError("too long", retryable=False))


class Narrow:
    """A model that takes so many characters a request, and sums up in a few."""

    def __init__(self, chars: int, *sums: Step) -> None:
        self.chars = chars
        self.sums = list(sums)
        self.refused = 0

    def __call__(self, request: ModelRequest) -> Step:
        if is_summing_up(request):
            return self.sums.pop(0) if self.sums else reply("in short")
        if sum(map(len, texts(request))) > self.chars:
            self.refused += 1
            return too_long()
        return reply(f"fine {PAD}")


def wide() -> Any:
    """A strategy whose own measure finds nothing too long."""
    return small(past_chars=1_000_000, keep_chars=400)


async def test_a_request_that_is_too_long_is_sent_once_more_behind_a_summary(
    world: World, virtual_time: MockClock
) -> None:
    model = Narrow(1_200)
    async with world.open() as runtime:
        ana, provider = await add(world, model, context=wide())
        await say(world, ana, "a", "b", "c", "d")
        assert model.refused == 0
        receipt = await ana.send("e")
        await ana.wait_idle()
        assert model.refused == 1
        assert [turn.state for turn in world.turns()] == ["done"] * 5
        assert (world.turns()[-1].outgrown, world.turns()[-1].failures) == (True, 1)
        assert len(summing(provider)) == 1
        assert (await shown(ana))[-1].startswith("assistant: fine")
        assert (await ana.receipt(receipt.id)).state == "stored"
        assert world.permits_out() == {}
        assert check(runtime._store).findings == ()
        # The next one is compiled behind the same summary, and fits.
        await say(world, ana, "f")
        assert model.refused == 1


async def test_a_turn_that_outgrows_its_model_between_two_rounds_goes_on_behind_a_summary(
    world: World, virtual_time: MockClock
) -> None:
    sizes: list[int] = []

    def choose(request: ModelRequest) -> Step:
        if is_summing_up(request):
            return reply("in short")
        sizes.append(sum(map(len, texts(request))))
        if sizes[-1] > 1_500:
            return too_long()
        return call_tool("look") if len(sizes) < 4 else reply("done")

    async with world.open():
        look = tool("look", lambda: "y" * 700)
        ana, _ = await add(world, choose, context=wide(), tools=[look])
        await ana.send("a")
        await ana.wait_idle()
        (turn,) = world.turns()
        assert (turn.state, turn.outgrown) == ("done", True)
        assert turn.context is not None
        assert {call.state for call in world.tool_calls()} == {"done"}


async def test_a_request_that_is_too_long_twice_fails_its_turn_and_keeps_what_was_sent(
    world: World, virtual_time: MockClock
) -> None:
    model = Narrow(100)
    async with world.open() as runtime:
        ana, provider = await add(world, model, context=wide())
        await ana.send("a " + PAD)
        await ana.wait_idle()
        (turn,) = world.turns()
        assert (turn.state, turn.failure, model.refused) == ("failed", "context_too_long", 2)
        assert world.state().state == "idle"
        assert world.rows("wakes", "ana") == []
        assert (await shown(ana))[0].startswith("user: a")
        assert summing(provider) == []
        assert check(runtime._store).findings == ()


async def test_without_a_strategy_a_request_that_is_too_long_fails_its_turn_at_once(
    world: World, virtual_time: MockClock
) -> None:
    model = Narrow(100)
    async with world.open() as runtime:
        ana = await world.add(model)
        await ana.send("a " + PAD)
        await ana.wait_idle()
        (turn,) = world.turns()
        assert (turn.state, turn.failure, model.refused) == ("failed", "context_too_long", 1)
        spec = AgentSpec(name="eph", provider=world.provider(model), model="m")
        with pytest.raises(RunFailedError, match="too long"):
            await runtime.run_ephemeral(spec, PAD)


async def test_a_summary_that_fails_leaves_the_turn_to_its_second_call(
    world: World, virtual_time: MockClock
) -> None:
    model = Narrow(1_200, fail(400))
    async with world.open():
        ana, _ = await add(world, model, context=wide())
        await say(world, ana, "a", "b", "c", "d")
        await ana.send("e")
        await ana.wait_idle()
        turn = world.turns()[-1]
        assert (turn.state, turn.failure, model.refused) == ("failed", "context_too_long", 2)
        await ana.send("f")  # Asked for again at the end of a turn.
        await ana.wait_idle()
        assert world.turns()[-1].state == "done"


async def test_messages_that_come_while_a_summary_is_made_are_kept_and_answered(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(reply("in short"))
    model = Narrow(1_200, gate)
    async with world.open():
        ana, _ = await add(world, model, context=wide())
        await say(world, ana, "a", "b", "c", "d")
        await ana.send("e")
        await gate.wait_entered()
        assert world.state().held.cause == "context"
        receipt = await ana.send("late")
        gate.release()
        await ana.wait_idle()
        assert (await ana.receipt(receipt.id)).state == "stored"
        assert world.turns()[-1].state == "done"
        assert world.rows("wakes", "ana") == []


async def test_a_strategy_that_never_ends_keeps_its_turn_for_an_hour_at_most(
    world: World, virtual_time: MockClock
) -> None:
    called: list[bool] = []

    class Never(ByHand):
        async def compact(self, desk: Any) -> None:
            called.append(desk.too_long)
            await trio.sleep_forever()

    model = Narrow(100)
    async with world.open():
        ana, _ = await add(world, model, context=Never())
        await ana.send("a")
        await until(lambda: called == [False])
        await trio.sleep(1_800)
        await ana.send(PAD)
        await until(lambda: world.state().state == "held")
        assert world.state().held.cause == "context"
        await trio.sleep(3_500)
        assert world.state().state == "held"
        assert called == [False, True], "its own time began behind what was under way"
        held_s = trio.current_time()
        await ana.wait_idle()
        assert world.turns()[-1].failure == "context_too_long"
        assert trio.current_time() - held_s < 101


@pytest.mark.parametrize("actor", ["agent", "context"])
async def test_a_turn_that_waits_for_a_summary_goes_on_past_the_death_of_an_actor(
    world: World, virtual_time: MockClock, actor: str
) -> None:
    gate = Gate(reply("in short"))
    model = Narrow(1_200, gate)
    async with world.open():
        ana, _ = await add(world, model, context=wide())
        await say(world, ana, "a", "b", "c", "d")
        await ana.send("e")
        await gate.wait_entered()
        world.ref(actor).kill()
        gate.release()
        await trio.sleep(100)
        await ana.wait_idle()
        assert world.turns()[-1].state == "done"
        assert len(kept(world)) == 1


async def live(directory: str, point: str) -> None:
    provider = ScriptedProvider(Narrow(1_200))
    async with open_runtime(directory, control=False) as runtime:
        spec = AgentSpec(name="ana", provider=provider, model="m", context=wide())
        ana = await runtime.add_agent(spec)
        for word in "abcd":
            await ana.send(word)
            await ana.wait_idle()
        arm(point)
        await ana.send("e")
        await ana.wait_idle()


@pytest.mark.parametrize(
    "point",
    ["turn.after_too_long", "turn.after_hold", "context.before_keep", "context.after_keep"],
)
async def test_a_turn_that_was_too_long_is_answered_wherever_its_host_is_killed(
    world: World, virtual_time: MockClock, point: str
) -> None:
    ended = await trio.to_thread.run_sync(lambda: begin(live, str(world.directory), point).wait())
    assert ended.status == KILLED
    async with world.open() as runtime:
        ana, provider = await add(world, Narrow(1_200), context=wide())
        await ana.wait_idle()
        assert [turn.state for turn in world.turns()] == ["done"] * 5
        # One that was kept before the death is no reason not to look again.
        assert len(kept(world)) == 1 + int(point == "context.after_keep")
        assert len(summing(provider)) == 1
        assert world.rows("wakes", "ana") == []
        assert check(runtime._store).findings == ()


# -- the estimate ----------------------------------------------------------------------------------


async def test_a_request_past_the_stated_limit_asks_for_no_permit(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        provider = world.provider([reply("one")], context_tokens={"m": 100})
        ana = await world.add(provider)
        await ana.send("x" * 404)
        await ana.wait_idle()
        (turn,) = world.turns()
        assert (turn.state, turn.failure) == ("failed", "context_too_long")
        assert provider.requests == []
        with pytest.raises(ContextTooLongError) as refused:
            await ana.auxiliary_call(provider_request("y" * 500))
        assert not refused.value.sent
        assert provider.requests == []
        assert runtime.provider_waits() == ()


def provider_request(text: str, model: str = "m") -> ModelRequest:
    from abeyance.actors.providers.port import ProviderMessage
    from abeyance.storage.tables.blocks import TextBlock

    return ModelRequest(model, (ProviderMessage("user", (TextBlock(text=text),)),))


class Foreign(ScriptedProvider):
    def __init__(self, says: Any) -> None:
        super().__init__([reply("one")])
        self._says = says

    def context_tokens(self, model: str) -> Any:
        if isinstance(self._says, Exception):
            raise self._says
        return self._says


@pytest.mark.parametrize("says", [None, 0, -1, "100", 1.5, True, ValueError("unknown")], ids=str)
async def test_a_limit_that_is_unknown_blocks_nothing(
    world: World, virtual_time: MockClock, says: Any
) -> None:
    async with world.open():
        ana = await world.add(Foreign(says))
        await ana.send("x" * 10_000)
        await ana.wait_idle()
        assert world.turns()[0].state == "done"


@pytest.mark.parametrize(
    ("text", "tokens"), [("x" * 40, 10), ("é" * 40, 20), ("\u6f22" * 40, 30)], ids=["a", "b", "c"]
)
def test_estimate_is_a_quarter_of_the_bytes(text: str, tokens: int) -> None:
    assert estimated_tokens(provider_request(text)) == tokens
