"""An agent's own pauses: cooldowns after a refusal for growing too fast, and its host's holds."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentSpec, CallFailure, Pacing
from abeyance.actors.domain.protocol import Admit, Peek, RecordWait, Settle
from abeyance.actors.domain.wait_book import Deferral
from abeyance.actors.providers.port import ModelRequest, Permit, ProviderError
from abeyance.actors.testing import ScriptedProvider, fail, raise_, reply
from abeyance.actors.testing.scripted import Step

from .world import World, shown, until

GREW = "This request would exceed your organization's maximum usage increase rate"


class Dice(random.Random):
    """Draws the same share of every range."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def uniform(self, a: float, b: float) -> float:
        return a + (b - a) * self.share


def pacing(default_s: float = 60.0, jitter_s: float = 5.0, share: float = 0.0) -> Pacing:
    return Pacing(default_s=default_s, jitter_s=jitter_s, source=Dice(share))


def grew_too_fast(retry_after: float | None = None, **options: Any) -> Step:
    """A refusal for the growth of an organisation's usage."""
    return fail(429, retry_after=retry_after, body=GREW, **options)


def typed(retry_after_ms: float, *, retryable: bool = True) -> Step:
    """The same as an error of a library, which states its wait in an attribute."""
    error: Any = type("RateLimitError", (Exception,), {})(GREW)
    error.retryable, error.retry_after_ms, error.status_code = retryable, retry_after_ms, 429
    return raise_(error)


async def held_for_s(world: World) -> float:
    """For how long the agent is held from now; infinity without an end."""
    held = world.state().held
    assert held is not None
    if held.deadline_ms is None:
        return math.inf
    return float(held.deadline_ms - world.clock.now_ms()) / 1_000


@pytest.mark.behaviour("W-012", "W-096")
async def test_a_refusal_for_growing_too_fast_that_states_nothing_pauses_for_the_agents_own_time(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([grew_too_fast(), reply("slower")], pacing=pacing())
        await ana.send("go")
        await ana.wait_idle()
        held = world.state().held
        assert (held.cause, held.reason) == ("cooldown", GREW)
        assert 59 < await held_for_s(world) <= 60
        assert not world.rows("waits"), "a guess is not a provider's wait"
        (turn,) = world.turns()
        assert (turn.state, turn.held.cause, turn.failures) == ("held", "cooldown", 1)
        await trio.sleep(58)
        await ana.wait_idle()
        assert len(world.providers[0].requests) == 1
        await trio.sleep(3)
        await ana.wait_idle()
        assert await shown(ana) == ["user: go", "assistant: slower"]


@pytest.mark.behaviour("W-096", "W-067")
async def test_a_guessed_cooldown_is_capped_at_ten_minutes_and_a_stated_wait_in_its_place_is_not(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([grew_too_fast()], pacing=pacing(3_600, 60, 1))
        await ana.send("go")
        await ana.wait_idle()
        assert 599 < await held_for_s(world) <= 600
        bo = await world.add([grew_too_fast(1_200)], "bo", pacing=pacing(1))
        await bo.send("go")
        await bo.wait_idle()
        whole = await world.ref("gate", "bo").ask(Peek("another"))
        assert whole.cause == "cooldown"
        assert 1_199_000 < whole.deadline_ms - world.clock.now_ms() <= 1_200_000
        (wait,) = world.rows("waits")
        assert 1_199_000 < wait.deadline_ms - world.clock.now_ms() <= 1_200_000


@pytest.mark.behaviour("W-097")
@pytest.mark.parametrize("wait_ms", [-1_000, 0, -0.4, -math.inf])
async def test_a_stated_wait_that_is_over_gives_the_floor_of_a_second_and_not_the_guess(
    world: World, virtual_time: MockClock, wait_ms: float
) -> None:
    async with world.open():
        ana = await world.add([typed(wait_ms), reply("now")], pacing=pacing(60, 5, 0.1))
        await ana.send("go")
        await ana.wait_idle()
        assert world.state().held.cause == "cooldown"
        assert 1 < await held_for_s(world) <= 1.5
        assert not world.rows("waits")
        await trio.sleep(2)
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: now"


@pytest.mark.behaviour("W-098")
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
async def test_jitter_lengthens_a_stated_wait_and_never_shortens_it(
    world: World, virtual_time: MockClock, share: float
) -> None:
    async with world.open():
        ana = await world.add([grew_too_fast(30)], pacing=pacing(1, 5, share))
        stated_ms = world.clock.now_ms()
        await ana.send("go")
        await ana.wait_idle()
        ends_ms = world.state().held.deadline_ms
        assert 0 <= ends_ms - (stated_ms + 30_000 + 5_000 * share) < 100


@pytest.mark.behaviour("W-099")
async def test_a_refusal_so_worded_that_is_not_worth_retrying_stays_final(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([grew_too_fast(retryable=False), reply("next")], pacing=pacing())
        await ana.send("go")
        await ana.wait_idle()
        assert world.turns()[0].state == "failed"
        assert (await shown(ana))[-1].startswith("marker: this turn failed")
        assert world.state().state == "idle"
        await ana.send("again")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: next", "nothing pauses the agent"


async def test_the_same_words_where_nothing_is_limited_pause_nothing(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([fail(500, body=GREW), reply("again")], pacing=pacing())
        await ana.send("go")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: again"


@pytest.mark.behaviour("W-078")
async def test_a_cooldown_that_ends_before_a_recorded_wait_leaves_the_turn_to_that(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([grew_too_fast(), reply("late")], pacing=pacing(1))
        await ana.send("go")
        await ana.wait_idle()
        assert world.state().held.cause == "cooldown"
        wait_ms = world.clock.now_ms() + 5_000
        await world.ref("ledger").ask(RecordWait("ana", "m", wait_ms, "stated elsewhere"))
        await trio.sleep(1.5)
        await ana.wait_idle()
        held = world.state().held
        assert (held.cause, held.deadline_ms) == ("wait", wait_ms)
        assert len(world.providers[0].requests) == 1
        await trio.sleep(4)
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: late"


async def test_a_cooldown_parks_every_model_and_purpose_of_its_agent_and_no_other_agent(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([grew_too_fast()], pacing=pacing())
        bo = await world.add([reply("mine")], "bo")
        await ana.send("go")
        await ana.wait_idle()
        for purpose in ("turn", "auxiliary"):
            refused = await world.ref("gate").ask(Admit("another", purpose))  # type: ignore[arg-type]
            assert isinstance(refused, Deferral)
            assert (refused.model, refused.cause) == ("another", "cooldown")
        await bo.send("go")
        await bo.wait_idle()
        assert (await shown(bo))[-1] == "assistant: mine"


async def test_a_failed_auxiliary_call_pauses_its_agents_turns_too(
    world: World, virtual_time: MockClock
) -> None:
    request = ModelRequest(model="small", messages=())
    hook = HostHold(None, 120)
    async with world.open():
        provider = ScriptedProvider([grew_too_fast(), fail(500), reply("late")], clock=world.clock)
        spec = AgentSpec(
            name="ana", provider=provider, model="m", pacing=pacing(60), provider_hold=hook
        )
        ana = await world.runtime.add_agent(spec)
        with pytest.raises(ProviderError):
            await ana.auxiliary_call(request)
        await ana.send("go")
        await ana.wait_idle()
        held = world.state().held
        assert (held.model, held.cause) == ("m", "cooldown")
        await trio.sleep(61)
        await until(lambda: len(hook.asked) == 2)
        await ana.wait_idle()
        assert world.state().held.cause == "host"
        assert [(each.purpose, each.attempt) for each in hook.asked] == [
            ("auxiliary", 1),
            ("turn", 1),
        ]
        await trio.sleep(121)
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: late"


@pytest.mark.behaviour("W-100")
async def test_a_release_of_the_stated_wait_leaves_the_agents_own_pacing(
    world: World, virtual_time: MockClock
) -> None:
    called_ms: list[int] = []

    def script(request: object) -> Step:
        called_ms.append(world.clock.now_ms())
        return grew_too_fast(1_200) if len(called_ms) == 1 else reply("released")

    async with world.open() as runtime:
        ana = await world.add(script, pacing=pacing(2))
        await ana.send("go")
        await ana.wait_idle()
        assert await held_for_s(world) > 1_190
        await runtime.release_provider_wait("ana", model="m", requester="ops")
        await ana.wait_idle()
        assert world.state().held.cause == "cooldown"
        assert 1.5 < await held_for_s(world) <= 2
        await trio.sleep(2.5)
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: released"
        assert 2_000 <= called_ms[1] - called_ms[0] < 2_100


@pytest.mark.behaviour("W-100", "W-096")
async def test_the_pacing_that_a_release_leaves_is_capped_too(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([grew_too_fast(7_200)], pacing=pacing(3_600))
        await ana.send("go")
        await ana.wait_idle()
        await runtime.release_provider_wait("ana", requester="ops")
        await ana.wait_idle()
        assert 590 < await held_for_s(world) <= 600


async def test_a_release_ends_a_cooldown_that_was_stated_without_an_end(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([typed(math.inf), reply("free")], pacing=pacing(2))
        await ana.send("go")
        await ana.wait_idle()
        assert await held_for_s(world) == math.inf
        await runtime.release_provider_wait("ana", requester="ops")
        await trio.sleep(3)
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: free"


@pytest.mark.behaviour("W-101")
async def test_a_release_of_another_model_leaves_a_cooldown(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([grew_too_fast(1_200)], pacing=pacing(1))
        await ana.send("go")
        await ana.wait_idle()
        before = world.state().held
        whole = await world.ref("gate").ask(Peek("m3"))
        await world.ref("ledger").ask(RecordWait("ana", "m2", before.deadline_ms, "another's"))
        await runtime.release_provider_wait("ana", model="m2", requester="ops")
        await ana.wait_idle()
        assert world.state().held == before
        assert await world.ref("gate").ask(Peek("m3")) == whole, "nor is any other model free"


@pytest.mark.behaviour("W-102")
async def test_a_release_moves_no_cooldowns_end_later(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([grew_too_fast(2), reply("soon")], pacing=pacing(60))
        await ana.send("go")
        await ana.wait_idle()
        await trio.sleep(1.5)
        before = world.state().held
        await runtime.release_provider_wait("ana", requester="ops")
        await ana.wait_idle()
        assert world.state().held.deadline_ms <= before.deadline_ms
        await trio.sleep(0.6)
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: soon"


async def test_a_cooldown_is_over_after_a_restart(world: World, virtual_time: MockClock) -> None:
    async with world.open():
        ana = await world.add([grew_too_fast()], pacing=pacing())
        await ana.send("go")
        await ana.wait_idle()
    async with world.open():
        ana = await world.add([reply("after")])
        await ana.wait_idle()
        assert await shown(ana) == ["user: go", "assistant: after"]
        assert len(world.turns()) == 1


@pytest.mark.parametrize("actor", ["gate", "agent"])
async def test_a_cooldown_outlives_a_crash_of_its_actors(
    world: World, virtual_time: MockClock, actor: str
) -> None:
    async with world.open():
        ana = await world.add([grew_too_fast(), reply("after")], pacing=pacing())
        await ana.send("go")
        await ana.wait_idle()
        before = world.state().held
        world.ref(actor).kill()
        await until(lambda: world.ref(actor).statistics().incarnation == 2)
        await ana.wait_idle()
        assert world.state().held == before
        await trio.sleep(61)
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: after"


@pytest.mark.parametrize("day_ms", [-86_400_000, 86_400_000], ids=["back", "forward"])
async def test_a_clock_that_steps_a_day_makes_no_cooldown_longer_than_it_was_meant_to_be(
    world: World, virtual_time: MockClock, day_ms: int
) -> None:
    async with world.open():
        ana = await world.add([grew_too_fast(), reply("after")], pacing=pacing(60))
        await ana.send("go")
        await ana.wait_idle()
        await trio.sleep(10)
        world.clock.advance(day_ms)
        # The cadence notices a step within 30 s; from then on it lasts as long as it was meant to.
        await trio.sleep(91)
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: after"


# -- what the host says ----------------------------------------------------------------------


class HostHold:
    """A host's hook that answers from a list and keeps what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[CallFailure] = []

    def __call__(self, failure: CallFailure) -> float | None:
        self.asked.append(failure)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]


@pytest.mark.behaviour("W-103", "W-110")
async def test_a_hosts_hold_keeps_its_length_through_a_release_of_the_wait_beside_it(
    world: World, virtual_time: MockClock
) -> None:
    hook = HostHold(60)
    async with world.open() as runtime:
        ana = await world.add([fail(429, retry_after=1_200), reply("free")], provider_hold=hook)
        began_ms = world.clock.now_ms()
        await ana.send("go")
        await ana.wait_idle()
        assert world.state().held.cause == "wait", "the longer of the two is shown"
        await runtime.release_provider_wait("ana", requester="ops")
        await ana.wait_idle()
        assert runtime.provider_waits("ana") == ()
        held = world.state().held
        assert held.cause == "host"
        assert 60_000 <= held.deadline_ms - began_ms < 60_100
        # What pauses the agent is no wait of the runtime's, and no receipt's.
        assert (await runtime.release_provider_wait("ana", requester="ops")).released == ()
        await ana.wait_idle()
        assert world.state().held == held
        await trio.sleep(61)
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: free"
        (asked,) = hook.asked
        assert (asked.agent, asked.model, asked.purpose, asked.attempt) == ("ana", "m", "turn", 1)
        assert asked.error.status == 429


async def test_a_hosts_hold_parks_the_whole_agent_and_is_no_wait(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([fail(500), reply("after")], provider_hold=HostHold(60))
        await ana.send("go")
        await ana.wait_idle()
        assert world.turns()[0].held.cause == "host"
        assert isinstance(await world.ref("gate").ask(Peek("another")), Deferral)
        assert runtime.provider_waits() == ()
        await trio.sleep(61)
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: after"


async def test_a_hosts_hold_after_a_final_failure_holds_the_calls_after_it(
    world: World, virtual_time: MockClock
) -> None:
    script = [fail(400, retryable=False), reply("later")]
    async with world.open():
        ana = await world.add(script, provider_hold=HostHold(60))
        await ana.send("go")
        await ana.wait_idle()
        assert world.turns()[0].state == "failed"
        await ana.send("again")
        await ana.wait_idle()
        assert world.state().held.cause == "host"
        await trio.sleep(61)
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: later"


@pytest.mark.parametrize(
    "answer",
    [ZeroDivisionError("boom"), "60", True, math.nan, -1, object()],
    ids=["raises", "text", "truth", "nan", "negative", "object"],
)
async def test_a_hosts_hook_that_raises_or_answers_nonsense_pauses_nothing_and_is_logged(
    world: World, virtual_time: MockClock, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.open():
        ana = await world.add([fail(500), reply("after")], provider_hold=HostHold(answer))
        await ana.send("go")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: after"
        assert world.ref("agent")._cell.kept.streak.hook_failures == 1
    assert [
        record.getMessage()
        for record in caplog.records
        if record.getMessage().startswith("the provider hold of 'ana'")
    ]


@pytest.mark.parametrize("pause_s", [math.inf, 1e300, 10**400], ids=["inf", "huge", "no float"])
async def test_a_hosts_hold_without_an_end_lasts_as_long_as_the_process(
    world: World, virtual_time: MockClock, pause_s: float
) -> None:
    async with world.open() as runtime:
        ana = await world.add([fail(500)], provider_hold=HostHold(pause_s))
        await ana.send("go")
        await ana.wait_idle()
        await trio.sleep(3_000)
        await runtime.release_provider_wait("ana", requester="ops")
        await ana.wait_idle()
        assert world.state().held.deadline_ms is None
    async with world.open():
        ana = await world.add([reply("after")])
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: after"


async def test_a_settlement_that_comes_again_begins_its_pauses_once(
    world: World, virtual_time: MockClock
) -> None:
    from abeyance.actors.domain.pauses import pause_of

    async with world.open():
        await world.add([])
        pause = pause_of("host", "m", world.clock.now_ms(), 60_000, "held")
        settle = Settle(Permit(99, "ana", "m", "turn"), "failed", None, (pause,))
        for _ in range(2):
            await world.ref("gate").ask(settle)
        deferral = await world.ref("gate").ask(Peek("m"))
        assert deferral.deadline_ms == pause.ends_ms


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"default_s": -1}, ValueError),
        ({"default_s": math.inf}, ValueError),
        ({"jitter_s": math.nan}, ValueError),
        ({"jitter_s": "5"}, TypeError),
        ({"default_s": True}, TypeError),
        ({"jitter_s": 10**400}, ValueError),
    ],
)
def test_a_pacing_that_is_no_length_of_time_is_refused(
    fields: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match=next(iter(fields))):
        Pacing(**fields)
