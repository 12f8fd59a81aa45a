"""What provider calls used: a row a call, in the commit of its round, and what is read of them."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentSpec, Price, Prices
from abeyance.actors.domain.errors import InvalidInputError, UnknownAgentError
from abeyance.actors.domain.spent_rows import SpentCall, plan_spent, summed, without
from abeyance.actors.providers.port import ProviderError, Usage, note_tokens
from abeyance.actors.testing import Gate, call_tool, fail, reply
from abeyance.storage.check import check
from abeyance.storage.store import Row
from abeyance.storage.tables.spent import SPENT_PARTS_MAX, Spent

from ..lives import KILLED, lived
from .children import spending
from .damage import DAMAGES, damage
from .test_auxiliary import ask
from .world import Stop, World, tool, until

PRICES = Prices(
    "EUR",
    {
        ("ScriptedProvider", "m"): Price(
            input=Decimal("3"),
            output=Decimal("15"),
            cache_read=Decimal("0.3"),
            cache_write=Decimal("3.75"),
        )
    },
)
USED = Usage(input_tokens=1_000, output_tokens=100, cache_read_tokens=50, cache_write_tokens=20)
COST = 3_000_000 + 1_500_000 + 15_000 + 75_000


def used(**options: Any) -> Any:
    return reply("x", usage=USED, **options)


class Tells:
    """A step that tells of tokens and then plays another."""

    def __init__(self, then: Any, usage: Usage = USED) -> None:
        self.then, self.usage = then, usage

    async def play(self, call: Any) -> Any:
        note_tokens(self.usage)
        return await self.then.play(call)


def counted(world: World, agent: str = "ana") -> list[tuple[Any, ...]]:
    return [
        (key[1:], row.record.outcome, row.record.input_tokens)
        for key, row in world.runtime._store.scan("spent", (agent,))
    ]


async def test_rows_of_a_turn_name_round_call_tokens_and_cost_in_the_commit_of_the_round(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    async with world.open(prices=PRICES) as runtime:
        script = [call_tool("wait"), used()]
        ana = await world.add(script, tools=[stop.tool()])
        await ana.send("go")
        await stop.entered.wait()
        # The first round is recorded, and what its call used is there.
        assert [key for key, *_ in counted(world)] == [(1, 1, 1)]
        stop.go.set()
        await ana.wait_idle()
        _, row = world.rows("spent", "ana")
        assert (row.purpose, row.provider, row.model) == ("turn", "ScriptedProvider", "m")
        assert (row.outcome, row.input_tokens, row.output_tokens) == ("replied", 1_000, 100)
        assert (row.cache_read_tokens, row.cache_write_tokens) == (50, 20)
        assert (row.cost, row.currency) == (COST, "EUR")
        report = await runtime.usage("ana")
        (line,) = report.lines
        assert (line.calls, line.unknown_calls, line.unpriced_calls) == (2, 0, 0)
        assert line.cost == Decimal(COST + 3_000).scaleb(-9)
        assert report.cost == {"EUR": line.cost}
        assert report.tokens == 1_170 + 1


@pytest.mark.parametrize(
    ("step", "rows"),
    [
        pytest.param(fail(429, retry_after=5), [], id="refused-by-a-status"),
        pytest.param(Tells(fail(None, retryable=True)), [("failed", 1_000)], id="cut-mid-stream"),
        pytest.param(fail(None, retryable=True), [("failed", None)], id="nothing-told"),
    ],
)
async def test_failed_call_counts_what_was_told_of_it_and_as_unknown_where_nothing_was(
    world: World, virtual_time: MockClock, step: Any, rows: list[Any]
) -> None:
    async with world.open() as runtime:
        ana = await world.add([step, used()])
        await ana.send("go")
        # A hold is one of its own; what failed there goes with its commit.
        await until(lambda: world.providers[0].steps_left == 0 or world.state().state == "held")
        if world.state().state == "held":
            assert counted(world) == []
            await runtime.release_provider_wait("ana", requester="o")
        await ana.wait_idle()
        last = ("replied", 1_000)
        assert [each[1:] for each in counted(world)] == [*rows, last]
        assert [each[0] for each in counted(world)] == [(1, 1, n) for n in range(1, len(rows) + 2)]
        (line,) = (await runtime.usage("ana")).lines
        unknown = sum(tokens is None for _, tokens in rows)
        assert (line.calls, line.unknown_calls) == (len(rows) + 1, unknown)


async def test_call_that_a_stop_cuts_off_is_counted_with_the_turns_end(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate()
    async with world.open():
        ana = await world.add([Tells(gate)])
        await ana.send("go")
        await gate.wait_entered()
    async with world.open():
        assert counted(world) == [((1, 1, 1), "cut_off", 1_000)]


async def test_superseded_attempts_of_a_turn_whose_task_died_are_all_counted(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate()
    async with world.open():
        ana = await world.add([Tells(gate), used()])
        await ana.send("go")
        await gate.wait_entered()
        world.ref("agent").kill()
        await ana.wait_idle()
        assert counted(world) == [
            ((1, 1, 1), "cut_off", 1_000),
            ((1, 1, 2), "replied", 1_000),
        ]


async def test_auxiliary_call_is_a_row_by_the_time_its_caller_has_the_reply(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open(prices=PRICES) as runtime:
        ana = await world.add([used(), fail(None, retryable=True), used()])
        await ana.auxiliary_call(ask())
        assert counted(world) == [((0, 0, 1), "replied", 1_000)]
        with pytest.raises(ProviderError):
            await ana.auxiliary_call(ask())
        await ana.send("go")
        await ana.wait_idle()
        (auxiliary, turn) = (await runtime.usage(by="agent")).lines
        assert (auxiliary.purpose, auxiliary.calls, auxiliary.unknown_calls) == ("auxiliary", 2, 1)
        assert (turn.purpose, turn.calls) == ("turn", 1)
    async with world.open():
        ana = await world.add([used()])
        await ana.auxiliary_call(ask())
        assert [key for key, *_ in counted(world)] == [(0, 0, 1), (0, 0, 2), (0, 0, 3), (1, 1, 1)]


async def test_ephemeral_runs_are_found_by_the_name_of_their_specification(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open(prices=PRICES) as runtime:
        for _ in range(2):
            spec = AgentSpec(name="sum", provider=world.provider([used()]), model="m")
            await runtime.run_ephemeral(spec, "go")
        report = await runtime.usage("sum", by="agent")
        (line,) = report.lines
        assert (line.agent, line.purpose, line.calls) == ("sum", "ephemeral", 2)


async def test_call_of_a_runs_item_names_the_run(world: World, virtual_time: MockClock) -> None:
    async with world.open() as runtime:
        ana = await world.add([used()])

        async def work(run: Any, _given: Any) -> None:
            await run.do("ask", summed_up)

        async def summed_up() -> None:
            await ana.auxiliary_call(ask())

        runtime.add_workflow("w", work, version=1)
        await runtime.start_run("nightly", "w")
        await runtime.wait_run("nightly")
        (row,) = world.rows("spent", "ana")
        assert row.run is not None
        assert row.run.startswith("nightly")


@pytest.mark.parametrize("how", DAMAGES)
async def test_sum_that_cannot_be_read_is_told_and_keeps_no_round_from_being_recorded(
    world: World, virtual_time: MockClock, how: str
) -> None:
    async with world.open() as runtime:
        ana = await world.add([used()])
        await ana.send("go")
        await ana.wait_idle()
        ((key, _),) = runtime._store.scan("spent_quarters", ("ana",))
    damage(world.directory, world.clock, "spent_quarters", key, how)
    async with world.open() as runtime:
        ana = await world.add([used()])
        await ana.send("more")
        await ana.wait_idle()
        assert len(counted(world)) == 2
        report = await runtime.usage("ana")
        assert report.unread == 1


@pytest.mark.parametrize("how", DAMAGES)
async def test_row_of_a_call_that_cannot_be_read_changes_no_sum_and_its_number_is_not_used_again(
    world: World, virtual_time: MockClock, how: str
) -> None:
    async with world.open():
        ana = await world.add([used()])
        await ana.auxiliary_call(ask())
    damage(world.directory, world.clock, "spent", ("ana", 0, 0, 1), how)
    async with world.open() as runtime:
        ana = await world.add([used()])
        await ana.auxiliary_call(ask())
        keys = [key for key, _ in runtime._store.scan("spent", ("ana",))]
        assert keys == [("ana", 0, 0, 1), ("ana", 0, 0, 2)]
        report = await runtime.usage("ana")
        assert (report.calls, report.unread) == (2, 0)


async def test_calls_without_a_price_have_no_cost_and_are_counted_as_unpriced(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open(prices=PRICES) as runtime:
        ana = await world.add([used(), used()], model="m2")
        await ana.send("go")
        await ana.wait_idle()
        (line,) = (await runtime.usage("ana")).lines
        assert (line.calls, line.unpriced_calls, line.cost) == (1, 1, None)


async def test_report_by_day_goes_by_the_zone_and_begins_with_its_quarter(
    world: World, virtual_time: MockClock
) -> None:
    # Half an hour before midnight in Kathmandu, which is a quarter off the half.
    world.clock.set(int(datetime(2026, 12, 1, 17, 45, tzinfo=UTC).timestamp() * 1_000))
    async with world.open() as runtime:
        ana = await world.add([used(), used()])
        await ana.send("go")
        await ana.wait_idle()
        world.clock.advance(3_600_000)
        between = world.clock.now_ms()
        await ana.send("more")
        await ana.wait_idle()
        days = [
            (line.day, line.calls)
            for line in (await runtime.usage(by="day", zone="Asia/Kathmandu")).lines
        ]
        assert days == [("2026-12-01", 1), ("2026-12-02", 1)]
        (one,) = (await runtime.usage(by="day")).lines
        assert (one.day, one.calls) == ("2026-12-01", 2)
        assert (await runtime.usage("ana", between)).calls == 1
        since = datetime.fromtimestamp(between / 1_000, UTC)
        assert (await runtime.usage("ana", since)).calls == 1
        with pytest.raises(UnknownAgentError, match="nobody"):
            await runtime.usage("nobody")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"since": -1}, "since"),
        ({"since": 1.5}, "since"),
        ({"since": datetime(2026, 1, 1)}, "since"),  # noqa: DTZ001 - what is refused.
        ({"by": "week"}, "by"),
        ({"zone": "Nowhere/At/All"}, "zone"),
        ({"agent": ""}, "agent"),
    ],
)
async def test_usage_names_the_argument_that_is_wrong(
    world: World, virtual_time: MockClock, given: dict[str, Any], field: str
) -> None:
    async with world.open() as runtime:
        with pytest.raises(InvalidInputError) as error:
            await runtime.usage(**given)
        assert error.value.field == field


PRICE = Price(input=Decimal(1), output=Decimal(1))


@pytest.mark.parametrize(
    ("currency", "table", "field"),
    [
        ("", {}, "currency"),
        ("x" * 17, {}, "currency"),
        ("EUR", [], "table"),
        ("EUR", {"m": PRICE}, "table['m']"),
        ("EUR", {("p", "*"): PRICE}, "table[('p', '*')]"),
        ("EUR", {("p", "m"): 3}, "table[('p', 'm')]"),
    ],
)
def test_prices_are_refused_by_the_field_that_is_wrong(
    currency: str, table: Any, field: str
) -> None:
    with pytest.raises(InvalidInputError) as error:
        Prices(currency, table)
    assert error.value.field == field


@pytest.mark.parametrize(
    ("amounts", "field"),
    [
        ({"input": 1.5}, "input"),
        ({"output": Decimal(-1)}, "output"),
        ({"cache_read": Decimal("NaN")}, "cache_read"),
    ],
)
def test_price_is_refused_by_the_field_that_is_wrong(amounts: Any, field: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        Price(**{"input": Decimal(1), "output": Decimal(1)} | amounts)
    assert error.value.field == field


def test_prices_stay_as_they_were_made_whatever_becomes_of_the_mapping() -> None:
    table = {("p", "m"): PRICE}
    prices = Prices("EUR", table)
    table.clear()
    assert prices.cost("p", "m", Usage(input_tokens=1)) == 1_000


def test_quarter_with_more_models_than_it_holds_sums_the_rest_as_one() -> None:
    calls = [
        Spent(
            purpose="auxiliary",
            provider="p",
            model=f"m{number}",
            outcome="replied",
            input_tokens=1,
            at_ms=0,
        )
        for number in range(SPENT_PARTS_MAX + 5)
    ]
    parts = summed((), calls).parts
    assert len(parts) == SPENT_PARTS_MAX + 1
    assert (parts[-1].model, parts[-1].input_tokens) == ("*", 5)


async def test_many_failed_calls_of_one_round_are_all_stored(
    world: World, virtual_time: MockClock
) -> None:
    class Always:
        def decide(self, failure: Any) -> Any:
            from abeyance.actors import Retry

            return Retry(after_s=0)

    async with world.open() as runtime:
        left = [Tells(fail(None, retryable=True)) for _ in range(40)]
        ana = await world.add([*left, used()], error_policy=Always())
        await ana.send("go")
        await ana.wait_idle()
        await until(lambda: len(counted(world)) == 41)
        assert (await runtime.usage("ana")).calls == 41


@pytest.mark.parametrize(
    ("point", "first"),
    [
        pytest.param("turn.after_reply", [("unknown", None)], id="reply-not-recorded"),
        pytest.param("turn.after_round", [("replied", 1_000)], id="reply-recorded"),
    ],
)
async def test_call_of_a_host_that_is_killed_counts_once_or_as_unknown(
    world: World, virtual_time: MockClock, point: str, first: list[Any]
) -> None:
    ended = lived(spending.live, world.directory, point)
    assert ended.status == KILLED
    for _ in range(2):  # A second recovery changes nothing.
        async with world.open(prices=PRICES) as runtime:
            ana = await world.add([used()], tools=[tool("look", lambda: "seen")])
            await ana.wait_idle()
            rows = [each[1:] for each in counted(world)]
            assert rows == [*first, ("replied", 1_000)]
            (line,) = (await runtime.usage("ana", by="agent")).lines[-1:]
            assert (await runtime.usage("ana")).calls == 2
            assert sum(each.unknown_calls for each in (await runtime.usage("ana")).lines) == len(
                [each for each in first if each[1] is None]
            )
            assert line.purpose == "turn"
            assert check(runtime._store).findings == ()


@pytest.mark.parametrize(
    ("point", "outcomes"),
    [
        ("usage.begun", ["replied", "unknown"]),
        ("in the call", ["replied", "unknown"]),
        ("usage.made", ["replied", "unknown"]),
        ("writer.before_commit:2", ["replied", "unknown"]),
        ("writer.after_commit:2", ["replied", "replied"]),
    ],
)
async def test_auxiliary_call_of_a_host_that_is_killed_counts_once_or_as_unknown(
    world: World, virtual_time: MockClock, point: str, outcomes: list[str]
) -> None:
    assert lived(spending.ask_beside, world.directory, point).status == KILLED
    for _ in range(2):
        async with world.open() as runtime:
            # Also where its agent is never added again.
            report = await runtime.usage("ana")
            assert (report.calls, report.tokens) == (2, 1_100 * outcomes.count("replied"))
            unknown = sum(line.unknown_calls for line in report.lines)
            assert unknown == outcomes.count("unknown")
            assert [outcome for _, outcome, _ in counted(world)] == outcomes
            assert check(runtime._store).findings == ()
    async with world.open() as runtime:
        ana = await world.add([used()])
        await ana.auxiliary_call(ask())
        assert (await runtime.usage("ana")).calls == 3


async def test_auxiliary_call_is_unknown_while_it_is_out_and_what_was_refused_is_none(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(used())
    async with world.open(prices=PRICES) as runtime:
        refused = [fail(400), fail(429, retry_after=1)]
        ana = await world.add([gate, *refused, Tells(fail(None, retryable=True)), Gate(used())])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ana.auxiliary_call, ask())
            await gate.wait_entered()
            assert counted(world) == [((0, 0, 1), "unknown", None)]
            assert [line.unknown_calls for line in (await runtime.usage()).lines] == [1]
            gate.release()
        (line,) = (await runtime.usage()).lines
        assert (line.calls, line.unknown_calls, line.input_tokens) == (1, 0, 1_000)
        for _ in refused:
            with pytest.raises(ProviderError):
                await ana.auxiliary_call(ask())
            await trio.sleep(2)
        assert (await runtime.usage()).lines == (line,)
        with pytest.raises(ProviderError):
            await ana.auxiliary_call(ask())
        # One that is cut off may have been answered.
        with trio.move_on_after(5) as cut:
            await ana.auxiliary_call(ask())
        assert cut.cancelled_caught
        assert [each[1:] for each in counted(world)] == [
            ("replied", 1_000),
            ("failed", 1_000),
            ("cut_off", None),
        ]
        report = await runtime.usage()
        assert (report.calls, sum(each.unknown_calls for each in report.lines)) == (3, 1)
        assert check(runtime._store).findings == ()


async def test_auxiliary_call_that_is_cancelled_before_it_is_made_leaves_nothing(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([used()])
        ask_, scope = runtime._journal.ask, trio.CancelScope()

        def cancelling(request: Any) -> Any:
            if any(put.table == "spent" for put in request.puts):
                scope.cancel()
            return ask_(request)

        runtime._spending.journal = type("J", (), {"ask": staticmethod(cancelling)})()
        with scope:
            await ana.auxiliary_call(ask())
        assert scope.cancelled_caught
        assert world.providers[0].requests == []
        assert counted(world) == []
        assert (await runtime.usage()).calls == 0


def test_calls_that_were_begun_are_taken_off_where_they_were_counted() -> None:
    def call(model: str) -> Spent:
        return Spent(purpose="auxiliary", provider="p", model=model, outcome="unknown", at_ms=0)

    models = [f"m{number}" for number in range(SPENT_PARTS_MAX + 2)]
    parts = summed((), [call(model) for model in (*models, "m0")]).parts
    left = without(parts, [call("m0"), call("m1"), call(models[-1])])
    assert len(left) == len(parts) - 1
    by = {part.model: (part.calls, part.unknown) for part in left}
    assert (by["m0"], by["*"], "m1" in by) == ((1, 1), (1, 1), False)
    # What is counted nowhere is taken off nowhere.
    assert without(left, [call("m1"), call("m1"), call("m1")])[0].calls == 1
    assert without((), [call("m0")]) == ()


async def test_what_is_stored_already_is_planned_once(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([used()])
        await ana.send("go")
        await ana.wait_idle()
        ((key, row),) = runtime._store.scan("spent", ("ana",))
        assert isinstance(row, Row)
        assert plan_spent(runtime._store, [SpentCall(key, row.record)]) == ([], [], [])
        # One that was on its way is refused by its guard, as a whole.
        guards, *_ = plan_spent(runtime._store, [SpentCall((*key[:3], 9), row.record)])
        assert guards[0].counter == 0
