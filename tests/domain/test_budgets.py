"""Budgets: what is used up holds, as a provider's stated wait does, until the period ends."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from trio.testing import MockClock

from abeyance.actors import AgentSpec, Budget, open_runtime
from abeyance.actors.domain.errors import (
    CallDeferredError,
    InvalidInputError,
    InvalidSpecError,
    RunExhaustedError,
)
from abeyance.actors.domain.periods import period_of
from abeyance.actors.providers.port import Usage
from abeyance.actors.testing import call_tool, reply
from abeyance.storage.check import check
from abeyance.storage.codec import encode
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Put, Request
from abeyance.storage.tables.waits import WaitReleased

from ..lives import KILLED, lived
from .children import spending
from .damage import DAMAGES, damage
from .test_auxiliary import ask
from .test_spending import PRICES, counted
from .world import World, tool, until

HUNDRED = Usage(input_tokens=90, output_tokens=10)
DAY = Budget(per="day", tokens=150)
NOON_MS = int(datetime(2026, 12, 1, 12, tzinfo=UTC).timestamp() * 1_000)
MIDNIGHT_MS = NOON_MS + 12 * 3_600_000


def uses(count: int = 1, usage: Usage = HUNDRED) -> list[Any]:
    return [reply("x", usage=usage) for _ in range(count)]


def at_noon(world: World) -> None:
    world.clock.set(NOON_MS)


async def say(agent: Any, times: int = 1) -> None:
    for _ in range(times):
        await agent.send("go")
        await agent.wait_idle()


async def held(world: World, agent: str = "ana") -> bool:
    """Wait until what was sent is held, or answered."""
    await world.runtime.agent(agent).wait_idle()
    return is_held(world, agent)


def is_held(world: World, agent: str = "ana") -> bool:
    return bool(world.state(agent).state == "held")


def calls_made(world: World) -> int:
    return sum(len(provider.requests) for provider in world.providers)


async def test_budget_that_a_call_uses_up_is_a_wait_until_the_period_ends(
    world: World, virtual_time: MockClock
) -> None:
    at_noon(world)
    async with world.open() as runtime:
        ana = await world.add(uses(3), budgets=[DAY])
        await say(ana)
        assert runtime.provider_waits() == ()
        await say(ana)
        # The turn that used it up has ended; what comes next is held.
        await until(lambda: bool(runtime.provider_waits("ana")))
        (wait,) = runtime.provider_waits("ana")
        assert (wait.model, wait.deadline_ms) == ("m", MIDNIGHT_MS)
        assert wait.reason == "the budget 'day' of 150 tokens a day is used up (200)"
        await until(lambda: len(runtime.alerts()) == 1)
        await ana.send("more")
        assert await held(world)
        assert calls_made(world) == 2
        world.clock.set(MIDNIGHT_MS)
        await until(lambda: calls_made(world) == 3)
        await ana.wait_idle()
        assert runtime.provider_waits() == ()


async def test_release_is_one_more_allowance_of_the_whole_amount(
    world: World, virtual_time: MockClock
) -> None:
    at_noon(world)
    async with world.open() as runtime:
        ana = await world.add(uses(5), budgets=[Budget(per="day", tokens=100)])
        await say(ana)
        await ana.send("more")
        assert await held(world)
        await runtime.release_provider_wait("ana", requester="ops")
        await until(lambda: calls_made(world) == 2)
        await ana.wait_idle()
        # Which used that up, too.
        await ana.send("and more")
        assert await held(world)
        assert calls_made(world) == 2
        (wait,) = runtime.provider_waits("ana")
        assert wait.reason.endswith("(200)")


async def test_hold_and_release_of_a_budget_stay_through_restarts(
    world: World, virtual_time: MockClock
) -> None:
    at_noon(world)
    budgets = [Budget(per="month", tokens=100, zone="Europe/Vienna")]
    async with world.open():
        ana = await world.add(uses(1), budgets=budgets)
        await say(ana)
        await ana.send("more")
        assert await held(world)
    async with world.open() as runtime:
        await world.add(uses(1, Usage(input_tokens=10)), budgets=budgets)
        assert await held(world)
        world.clock.advance(1)
        await runtime.release_provider_wait("ana", requester="ops")
        await until(lambda: calls_made(world) == 2)
    for _ in range(2):
        # It was released and is so for what is left of the allowance; another provider's wait, in
        # the place of the release, changes nothing about that.
        async with world.open():
            ana = await world.add(uses(1, Usage(input_tokens=10)), budgets=budgets)
            await say(ana)
    assert calls_made(world) == 4


async def test_released_on_a_stopped_store_it_goes_on_at_the_next_start(
    world: World, virtual_time: MockClock
) -> None:
    at_noon(world)
    async with world.open():
        ana = await world.add(uses(2), budgets=[Budget(per="life", tokens=100)])
        await say(ana)
        await ana.send("more")
        assert await held(world)
        assert world.state().held.deadline_ms is None
    world.clock.advance(5)
    store = LmdbStore.open(world.directory, clock_ms=world.clock.now_ms)
    record = WaitReleased(by="ops", at_ms=world.clock.now_ms(), act="x")
    store.commit(Request(puts=(Put("waits", ("ana", "m"), encode(record)),)))
    store.close()
    async with world.open():
        ana = await world.add(uses(1), budgets=[Budget(per="life", tokens=100)])
        await ana.wait_idle()
        assert calls_made(world) == 2


async def test_another_model_and_an_auxiliary_call_do_not_get_round_a_budget(
    world: World, virtual_time: MockClock
) -> None:
    at_noon(world)
    async with world.open() as runtime:
        ana = await world.add(uses(3), budgets=[Budget(per="day", tokens=100)])
        await say(ana)
        with pytest.raises(CallDeferredError) as error:
            await ana.auxiliary_call(ask("m2"))
        assert (error.value.model, error.value.deadline_ms) == ("m2", MIDNIGHT_MS)
        await ana.send("more")
        assert await held(world)
        await ana.set_model("m3")
        await until(lambda: {wait.model for wait in runtime.provider_waits()} == {"m", "m2", "m3"})
        assert await held(world)
        assert calls_made(world) == 1


async def test_auxiliary_call_that_uses_a_budget_up_holds_the_turns(
    world: World, virtual_time: MockClock
) -> None:
    at_noon(world)
    async with world.open() as runtime:
        ana = await world.add(uses(2), budgets=[Budget(per="day", tokens=100)])
        await ana.auxiliary_call(ask())
        await until(lambda: bool(runtime.provider_waits("ana")))
        await ana.send("go")
        assert await held(world)
        assert calls_made(world) == 1


async def test_budget_of_one_agent_holds_nobody_of_its_account(
    world: World, virtual_time: MockClock
) -> None:
    at_noon(world)
    async with world.open(account_waits=True) as runtime:
        provider = world.provider(uses(3), key="k")
        ana = await world.add(provider, budgets=[Budget(per="day", tokens=100)])
        bo = await world.add(provider, "bo")
        await say(ana)
        await until(lambda: bool(runtime.provider_waits()))
        await say(bo, 2)
        assert [wait.agent for wait in runtime.provider_waits()] == ["ana"]


async def test_hosts_budget_holds_every_agent_and_a_release_is_of_the_one_it_names(
    world: World, virtual_time: MockClock
) -> None:
    at_noon(world)
    async with world.open(budgets=[Budget(per="day", tokens=150, name="all")]) as runtime:
        ana = await world.add(uses(3))
        bo = await world.add(uses(3), "bo")
        await say(ana)
        await say(bo)
        assert calls_made(world) == 2
        for agent in (ana, bo):
            await agent.send("more")
        assert await held(world)
        assert await held(world, "bo")
        # Whoever comes now is held from its first call on.
        cy = await world.add(uses(1), "cy")
        await cy.send("go")
        assert await held(world, "cy")
        assert calls_made(world) == 2
        spec = AgentSpec(name="sum", provider=world.provider(uses(1)), model="m")
        with pytest.raises(RunExhaustedError) as error:
            await runtime.run_ephemeral(spec, "go")
        assert error.value.deadline_ms == MIDNIGHT_MS
        assert world.rows("budgets", "sum") == []
        await runtime.release_provider_wait("bo", requester="ops")
        await until(lambda: calls_made(world) == 3)
        assert is_held(world)
        assert is_held(world, "cy")
        reason = runtime.provider_waits("ana")[0].reason
        assert reason == "the host's budget 'all' of 150 tokens a day is used up (200)"


async def test_ephemeral_run_has_a_budget_of_its_own(world: World, virtual_time: MockClock) -> None:
    at_noon(world)
    async with world.open() as runtime:
        script = [call_tool("look"), *uses(1)]
        spec = AgentSpec(
            name="sum",
            provider=world.provider(script),
            model="m",
            tools=[tool("look", lambda: "seen")],
            budgets=[Budget(per="life", tokens=1)],
        )
        with pytest.raises(RunExhaustedError):
            await runtime.run_ephemeral(spec, "go")
        assert calls_made(world) == 1
        assert runtime.provider_waits() == ()


async def test_budget_that_is_given_later_counts_what_was_used_before(
    world: World, virtual_time: MockClock
) -> None:
    at_noon(world)
    async with world.open():
        ana = await world.add(uses(2))
        await say(ana, 2)
    async with world.open(prices=PRICES) as runtime:
        ana = await world.add(uses(1), budgets=[Budget(per="day", tokens=200)])
        await ana.send("go")
        assert await held(world)
        # Which is of the day that it was used in.
        world.clock.set(MIDNIGHT_MS)
        await until(lambda: calls_made(world) == 3)
        await ana.wait_idle()
        assert runtime.provider_waits() == ()


async def test_budget_in_cost_counts_what_the_prices_say(
    world: World, virtual_time: MockClock
) -> None:
    at_noon(world)
    # 90 tokens at 3 and 10 at 15 for a million: 420 millionths a call.
    budget = Budget(per="day", cost=Decimal("0.000840"))
    async with world.open(prices=PRICES) as runtime:
        ana = await world.add(uses(3), budgets=[budget])
        await say(ana, 2)
        await until(lambda: bool(runtime.provider_waits("ana")))
        (wait,) = runtime.provider_waits("ana")
        assert wait.reason.startswith("the budget 'day' of 0.000840 EUR a day is used up")
        assert calls_made(world) == 2


async def test_model_without_a_price_is_refused_where_a_budget_is_in_cost(
    world: World, virtual_time: MockClock
) -> None:
    budget = Budget(per="day", cost=Decimal(1))
    async with world.open(prices=PRICES) as runtime:
        with pytest.raises(InvalidSpecError, match="no price"):
            await world.add(uses(1), model="m2", budgets=[budget])
        ana = await world.add(uses(1), budgets=[budget])
        with pytest.raises(InvalidSpecError, match="no price"):
            await ana.set_model("m2")
        assert world.state().model == "m"
        spec = AgentSpec(name="sum", provider=world.provider(uses(1)), model="m2", budgets=[budget])
        with pytest.raises(InvalidSpecError, match="no price"):
            await runtime.run_ephemeral(spec, "go")
    with pytest.raises(InvalidSpecError) as error:
        async with world.open(budgets=[budget]):
            pass
    assert error.value.field == "budgets[0].cost"


@pytest.mark.parametrize("how", DAMAGES)
async def test_row_of_a_budget_that_cannot_be_read_grants_nothing(
    world: World, virtual_time: MockClock, how: str
) -> None:
    at_noon(world)
    budgets = [Budget(per="day", tokens=100)]
    async with world.open() as runtime:
        ana = await world.add(uses(2), budgets=budgets)
        await say(ana)
        await ana.send("more")
        assert await held(world)
        await runtime.release_provider_wait("ana", requester="ops")
        await until(lambda: calls_made(world) == 2)
        await ana.wait_idle()
    damage(world.directory, world.clock, "budgets", ("ana", "agent", "day"), how)
    async with world.open():
        ana = await world.add(uses(1), budgets=budgets)
        await ana.send("go")
        assert await held(world)
        assert calls_made(world) == 2


@pytest.mark.parametrize("point", ["turn.after_reply", "turn.after_round"])
async def test_budget_that_a_killed_hosts_call_used_up_holds_after_the_restart(
    world: World, virtual_time: MockClock, point: str
) -> None:
    ended = lived(spending.live, world.directory, point, 1_100)
    assert ended.status == KILLED
    # The child's clock is the machine's.
    world.clock.set(int(ended.out))
    async with world.open() as runtime:
        tools = [tool("look", lambda: "seen")]
        budgets = [Budget(per="life", tokens=1_100)]
        await world.add(uses(2), budgets=budgets, tools=tools)
        await until(lambda: is_held(world) or calls_made(world) == 1)
        if point == "turn.after_round":
            assert calls_made(world) == 0
            assert counted(world) == [((1, 1, 1), "replied", 1_000)]
        else:
            # Nobody knows what it used; its wait may be recorded, and holds where it is.
            assert [row[1] for row in counted(world)][:1] == ["unknown"]
        assert check(runtime._store).findings == ()


async def test_hosts_budget_counts_what_another_process_used_within_a_minute(
    world: World, virtual_time: MockClock
) -> None:
    at_noon(world)
    budgets = [Budget(per="day", tokens=200)]
    async with world.open(budgets=budgets) as runtime:
        ana = await world.add(uses(3))
        await say(ana)
        # As a process beside this one writes it, for an agent of its own.
        row = runtime._store.get("spent_quarters", ("ana", NOON_MS, "turn"))
        assert row is not None
        put = Put("spent_quarters", ("bo", NOON_MS, "turn"), encode(row.record))
        await runtime._journal.ask(Request(puts=(put,)))
        before = calls_made(world)
        await until(lambda: runtime._spending.host[0].used == 200)
        await ana.send("more")
        assert await held(world)
        assert calls_made(world) == before


@pytest.mark.parametrize(
    ("budgets", "field"),
    [
        ("day", "budgets"),
        (["day"], "budgets[0]"),
        ([Budget(per="day", tokens=1), Budget(per="day", tokens=2)], "budgets[1].name"),
        ([DAY] * 17, "budgets"),
    ],
)
async def test_budgets_are_refused_by_the_field_that_is_wrong(
    world: World, virtual_time: MockClock, tmp_path: Any, budgets: Any, field: str
) -> None:
    async with world.open():
        with pytest.raises(InvalidInputError) as error:
            await world.add(uses(1), budgets=budgets)
        assert error.value.field == field
    with pytest.raises(InvalidInputError) as error:
        async with open_runtime(tmp_path / "other", budgets=budgets, prices=PRICES):
            pass
    assert error.value.field == field


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"per": "week", "tokens": 1}, "per"),
        ({}, "tokens"),
        ({"tokens": 1, "cost": Decimal(1)}, "tokens"),
        ({"tokens": 0}, "tokens"),
        ({"cost": 1.5}, "cost"),
        ({"cost": Decimal("1e-10")}, "cost"),
        ({"tokens": 1, "zone": "Mars/Base"}, "zone"),
        ({"tokens": 1, "name": ""}, "name"),
    ],
)
def test_budget_is_refused_as_it_is_made_by_the_field_that_is_wrong(
    fields: Any, field: str
) -> None:
    with pytest.raises(InvalidInputError) as error:
        Budget(**{"per": "day"} | fields)
    assert error.value.field == field


def instant(*when: int, zone: str = "UTC", fold: int = 0) -> int:
    at = datetime(*when, tzinfo=ZoneInfo(zone), fold=fold)  # type: ignore[arg-type, misc]
    return int(at.timestamp()) * 1_000


@pytest.mark.parametrize(
    ("per", "zone", "at", "start", "end"),
    [
        ("hour", "Asia/Kolkata", (2026, 12, 1, 9, 59), (2026, 12, 1, 9), (2026, 12, 1, 10)),
        ("day", "Asia/Kathmandu", (2026, 12, 1, 0, 1), (2026, 12, 1), (2026, 12, 2)),
        ("day", "Europe/Vienna", (2026, 3, 29, 12), (2026, 3, 29), (2026, 3, 30)),
        ("day", "Europe/Vienna", (2026, 10, 25, 12), (2026, 10, 25), (2026, 10, 26)),
        ("month", "America/New_York", (2026, 12, 31, 23, 59), (2026, 12, 1), (2027, 1, 1)),
        ("month", "UTC", (2028, 2, 29), (2028, 2, 1), (2028, 3, 1)),
    ],
    ids=lambda value: str(value),
)
def test_period_is_what_its_zones_clock_says(
    per: Any, zone: str, at: Any, start: Any, end: Any
) -> None:
    period = period_of(per, ZoneInfo(zone), instant(*at, zone=zone))
    assert period == (instant(*start, zone=zone), instant(*end, zone=zone))


def test_hour_that_comes_twice_is_two_periods_and_a_life_has_no_end() -> None:
    zone, when = "Europe/Vienna", (2026, 10, 25, 2, 30)
    first = period_of("hour", ZoneInfo(zone), instant(*when, zone=zone))
    second = period_of("hour", ZoneInfo(zone), instant(*when, zone=zone, fold=1))
    assert first.end_ms == second.start_ms
    assert period_of("life", ZoneInfo(zone), 5) == (0, None)
    assert period_of("day", ZoneInfo(zone), 8_640_000_000_000_000) == (0, None)
