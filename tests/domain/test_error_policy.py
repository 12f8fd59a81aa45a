"""What a host's policy says of failed calls, and how its delays are waited out."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentSpec, Backoff, CallFailure, GiveUp, Retry
from abeyance.actors.domain.call import RETRY_IN_TURN_S_MAX
from abeyance.actors.domain.errors import InvalidSpecError
from abeyance.actors.domain.protocol import Peek
from abeyance.actors.domain.spec import check_spec
from abeyance.actors.providers.port import ProviderError
from abeyance.actors.testing import ScriptedProvider, call_tool, fail, reply
from abeyance.actors.testing.scripted import Step

from .world import World, shown, tool, until

HUGE_S = 3_000_000.0
"""Beyond 2^31 - 1 milliseconds, which overflows the timers of other runtimes."""


class Policy:
    """Answers from a list, the last one for ever, and keeps what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[CallFailure] = []

    def decide(self, failure: CallFailure) -> Any:
        self.asked.append(failure)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def timed(world: World, *steps: Step) -> tuple[Callable[[object], Step], list[int]]:
    """A script, and when it was called."""
    left, called_ms = list(steps), []

    def script(request: object) -> Step:
        called_ms.append(world.clock.now_ms())
        return left.pop(0)

    return script, called_ms


async def test_a_policys_delay_is_waited_in_the_turn_and_the_call_is_made_again(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        script, called_ms = timed(world, fail(500), fail(503), reply("third"))
        policy = Policy(Retry(7), Retry(RETRY_IN_TURN_S_MAX))
        ana = await world.add(script, error_policy=policy)
        await ana.send("go")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: third"
        gaps = [b - a for a, b in itertools.pairwise(called_ms)]
        assert 7_000 <= gaps[0] < 7_050
        assert 60_000 <= gaps[1] < 60_050
        assert [(each.attempt, each.failures) for each in policy.asked] == [(1, 1), (2, 2)]
        assert {each.purpose for each in policy.asked} == {"turn"}
        assert [each.error.status for each in policy.asked] == [500, 503]
        assert not any(turn.held for turn in world.turns())


async def test_a_policy_that_gives_up_fails_the_turn_with_a_marker(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([fail(500, body="down")], error_policy=Policy(GiveUp()))
        await ana.send("go")
        await ana.wait_idle()
        assert world.turns()[0].state == "failed"
        assert (await shown(ana))[-1] == "marker: this turn failed: down"


async def test_attempts_begin_again_with_a_reply_and_with_a_turn(
    world: World, virtual_time: MockClock
) -> None:
    policy = Policy(Retry(1), Retry(1), Retry(1), GiveUp(), Retry(1))
    script = [
        *(fail(500), fail(500), call_tool("look"), fail(500), fail(500)),
        *(fail(500), reply("next turn")),
    ]
    async with world.open():
        ana = await world.add(script, error_policy=policy, tools=[tool("look", lambda: "seen")])
        await ana.send("one")
        await ana.wait_idle()
        await ana.send("two")
        await ana.wait_idle()
        assert [(each.attempt, each.failures) for each in policy.asked] == [
            *((1, 1), (2, 2), (1, 3), (2, 4)),
            (1, 1),
        ]
        assert (await shown(ana))[-1] == "assistant: next turn"


async def test_a_long_delay_puts_the_turn_down_and_attempts_go_on_behind_it(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        script, called_ms = timed(world, fail(500), fail(500), reply("third"))
        policy = Policy(Retry(3_600))
        ana = await world.add(script, error_policy=policy)
        await ana.send("go")
        await ana.wait_idle()
        state = world.state()
        assert (state.state, state.held.cause) == ("held", "cooldown")
        assert 3_599_000 < state.held.deadline_ms - world.clock.now_ms() <= 3_600_000
        (lease,) = world.rows("leases", "ana")
        assert lease.turn is None, "whoever else needs the slot has it meanwhile"
        await ana.send("meanwhile")
        await trio.sleep(7_300)
        await ana.wait_idle()
        assert await shown(ana) == ["user: go", "user: meanwhile", "assistant: third"]
        assert [each.attempt for each in policy.asked] == [1, 2]
        gaps = [b - a for a, b in itertools.pairwise(called_ms)]
        assert all(3_600_000 <= gap < 3_600_100 for gap in gaps)


async def test_a_release_of_waits_leaves_a_policys_delay(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([fail(500)], error_policy=Policy(Retry(7_200)))
        await ana.send("go")
        await ana.wait_idle()
        before = world.state().held
        await runtime.release_provider_wait("ana", requester="ops")
        await ana.wait_idle()
        assert world.state().held == before


@pytest.mark.behaviour("W-123")
async def test_a_delay_longer_than_one_timer_is_waited_in_full(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([fail(500), reply("at last")], error_policy=Policy(Retry(HUGE_S)))
        failed_ms = world.clock.now_ms()
        await ana.send("go")
        await ana.wait_idle()
        assert world.state().held.deadline_ms - failed_ms >= HUGE_S * 1_000
        await trio.sleep(300)
        # The machine sleeps, which the clock shows and the loop's time does not.
        world.clock.set(failed_ms + int(HUGE_S * 1_000) - 60_000)
        await trio.sleep(55)
        await ana.wait_idle()
        assert len(world.providers[0].requests) == 1
        await trio.sleep(10)
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: at last"


@pytest.mark.behaviour("W-123")
@pytest.mark.parametrize("day_ms", [-86_400_000, 86_400_000], ids=["back", "forward"])
async def test_a_clock_that_steps_a_day_does_not_shorten_or_lengthen_a_delay_waited_in_the_turn(
    world: World, virtual_time: MockClock, day_ms: int
) -> None:
    async with world.open():
        ana = await world.add([fail(500), reply("again")], error_policy=Policy(Retry(60)))
        await ana.send("go")
        await until(lambda: len(world.providers[0].requests) == 1 and not world.permits_out())
        began_s = trio.current_time()
        world.clock.advance(day_ms)
        await ana.wait_idle()
        assert 59 < trio.current_time() - began_s < 61
        assert (await shown(ana))[-1] == "assistant: again"


@pytest.mark.behaviour("W-124")
@pytest.mark.parametrize("after_s", [math.inf, 10**400], ids=["inf", "no float"])
async def test_an_infinite_delay_is_waited_until_the_runtime_stops(
    world: World, virtual_time: MockClock, after_s: float
) -> None:
    async with world.open():
        ana = await world.add([fail(500)], error_policy=Policy(Retry(after_s)))
        await ana.send("go")
        await ana.wait_idle()
        assert world.state().held.deadline_ms is None
        await trio.sleep(10_000)
        await ana.wait_idle()
        assert len(world.providers[0].requests) == 1
        before = trio.current_time()
    assert trio.current_time() - before < 1
    assert len(world.providers[0].requests) == 1


@pytest.mark.behaviour("W-122", "X-002")
@pytest.mark.parametrize("after_s", [30.0, HUGE_S], ids=["in the turn", "in a hold"])
async def test_a_stop_during_a_policys_delay_makes_no_call_and_stores_what_was_sent(
    world: World, virtual_time: MockClock, after_s: float
) -> None:
    async with world.open():
        ana = await world.add([fail(500), reply("never")], error_policy=Policy(Retry(after_s)))
        await ana.send("go")
        await until(lambda: len(world.providers[0].requests) == 1 and not world.permits_out())
        await ana.send("one")
        await ana.send("two", author="ana")
        before = trio.current_time()
    assert trio.current_time() - before < 5
    assert len(world.providers[0].requests) == 1
    async with world.open():
        assert not world.rows("inbox", "ana")
        ana = await world.add([reply("fresh")])
        await ana.wait_idle()
        lines = [line for line in await shown(ana) if not line.startswith("marker")]
        assert lines == ["user: go", "user: one", "assistant: two", "assistant: fresh"]


@pytest.mark.behaviour("W-073")
async def test_an_agent_that_is_stopped_during_its_delay_is_not_held_afterwards(
    world: World, virtual_time: MockClock
) -> None:
    from abeyance.actors.domain.agent_acts import StopTurns

    async with world.open():
        ana = await world.add([fail(500), reply("never")], error_policy=Policy(Retry(50)))
        await ana.send("go")
        await until(lambda: len(world.providers[0].requests) == 1 and not world.permits_out())
        await world.ref("agent").ask(StopTurns())
        await trio.sleep(100)
        (turn,) = world.turns()
        assert (turn.state, turn.held) == ("cancelled", None)
        assert world.state().held is None
        assert await world.ref("gate").ask(Peek("m")) is None


@pytest.mark.behaviour("X-007")
@pytest.mark.parametrize("status", [429, 402], ids=["limit", "payment"])
async def test_no_policy_shortens_an_exhausted_quota_that_states_its_end(
    world: World, virtual_time: MockClock, status: int
) -> None:
    policy = Policy(Retry(0))
    body = '{"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}}'
    async with world.open():
        script, called_ms = timed(world, fail(status, retry_after=10_800, body=body), reply("paid"))
        ana = await world.add(script, error_policy=policy)
        await ana.send("go")
        await ana.wait_idle()
        await trio.sleep(10_790)
        await ana.wait_idle()
        assert len(called_ms) == 1
        assert world.state().held.cause == "wait"
        await trio.sleep(15)
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: paid"
        assert called_ms[1] - called_ms[0] >= 10_800_000
        assert not policy.asked, "what a provider stated is no policy's to decide"


async def test_a_policy_is_not_asked_about_a_failure_that_is_final(
    world: World, virtual_time: MockClock
) -> None:
    policy = Policy(Retry(0))
    async with world.open():
        ana = await world.add([fail(400)], error_policy=policy)
        await ana.send("go")
        await ana.wait_idle()
        assert world.turns()[0].state == "failed"
        assert not policy.asked


@pytest.mark.parametrize(
    "answer", [ZeroDivisionError("boom"), None, 5], ids=["raises", "none", "number"]
)
async def test_where_a_policy_raises_or_answers_nonsense_the_default_decides_and_it_is_logged(
    world: World, virtual_time: MockClock, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.open():
        ana = await world.add([fail(500), reply("again")], error_policy=Policy(answer))
        await ana.send("go")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: again"
        assert world.ref("agent")._cell.kept.streak.hook_failures == 1
    assert any("the default decides" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("after_s", "error"),
    [(-1, ValueError), (math.nan, ValueError), ("5", TypeError), (True, TypeError)],
)
def test_a_retry_after_no_length_of_time_is_refused(after_s: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="after_s"):
        Retry(after_s)


@pytest.mark.parametrize(
    ("field", "value"),
    [("error_policy", object()), ("provider_hold", 5), ("pacing", 60)],
)
def test_a_specification_with_a_malformed_hook_is_refused(field: str, value: Any) -> None:
    spec: Any = {"name": "ana", "provider": ScriptedProvider([]), "model": "m", field: value}
    with pytest.raises(InvalidSpecError) as refused:
        check_spec(AgentSpec(**spec))
    assert refused.value.field.startswith(field)


def failure(attempt: int) -> CallFailure:
    error = ProviderError("down", retryable=True)
    return CallFailure(
        agent="ana", model="m", purpose="turn", error=error, attempt=attempt, failures=9, at_ms=0
    )


def test_the_default_policy_doubles_its_pauses_up_to_its_bound_and_then_gives_up() -> None:
    backoff = Backoff(attempts_max=9, jitter_s=0)
    decided = [backoff.decide(failure(attempt)) for attempt in range(1, 10)]
    assert decided[:-1] == [Retry(float(s)) for s in (1, 2, 4, 8, 16, 32, 60, 60)]
    assert decided[-1] == GiveUp()


def test_jitter_of_the_default_policy_only_adds_and_never_passes_the_bound() -> None:
    backoff = Backoff(attempts_max=10_000, source=random.Random(5))
    for attempt, least in ((1, 1.0), (2, 2.0), (6, 32.0), (7, 60.0), (9_999, 60.0)):
        for _ in range(100):
            decided = backoff.decide(failure(attempt))
            assert isinstance(decided, Retry)
            assert least <= decided.after_s <= min(60.0, least + 1)


@pytest.mark.behaviour("W-122", "X-002")
@pytest.mark.parametrize("after_s", [50.0, 34 * 86_400.0], ids=["in the turn", "34 days"])
async def test_a_stop_during_a_conversations_delay_makes_no_call_and_its_next_start_one(
    world: World, virtual_time: MockClock, after_s: float
) -> None:
    policy = Policy(Retry(after_s))
    async with world.open() as runtime:
        first = ScriptedProvider([fail(500), reply("never")], clock=world.clock)
        spec = AgentSpec(name="ana", provider=first, model="m", error_policy=policy)
        await runtime.add_agent(spec)
        fork = await runtime.open_conversation("ana", channel="c1")
        await fork.send("go")
        await until(lambda: len(first.requests) == 1 and not world.permits_out(fork.name))
        before = trio.current_time()
    assert trio.current_time() - before < 5
    assert len(first.requests) == 1
    async with world.open() as runtime:
        second = ScriptedProvider([reply("fresh")], clock=world.clock)
        await runtime.add_agent(AgentSpec(name="ana", provider=second, model="m"))
        fork = await runtime.open_conversation("ana", channel="c1")
        await fork.wait_idle()
        assert (await shown(fork))[-1] == "assistant: fresh"
        assert (len(first.requests), len(second.requests)) == (1, 1)
