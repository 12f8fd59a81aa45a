"""Retention: what is old history goes, in small commits, and nothing that is still needed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentSpec, NeedsApproval, Retention, open_runtime
from abeyance.actors.domain.errors import InvalidSpecError
from abeyance.actors.domain.retention import DAY_MS, FIRST_S
from abeyance.actors.domain.run_errors import UnknownRunError
from abeyance.actors.testing import Gate, call_tool, fail, reply
from abeyance.storage.check import check
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.tables import TABLES

from ..lives import KILLED, lived
from .children import pruning
from .damage import damage
from .test_alerts import Sink
from .test_spending import counted, used
from .world import World, shown, tool, until

SHORT = Retention(
    log_days=1,
    alerts_days=1,
    calls_days=1,
    requests_days=1,
    tools_days=1,
    runs_days=1,
    ephemerals_days=1,
    attachments_days=1,
)
LOOK = {"tools": [tool("look", lambda: "seen")]}


def later(world: World, days: float = 2) -> None:
    world.clock.advance(int(days * DAY_MS))


def left(world: World, table: str, *prefix: Any) -> int:
    return len(list(world.runtime._store.scan(table, prefix)))


async def test_sums_of_calls_outlive_their_rows(world: World, virtual_time: MockClock) -> None:
    async with world.open(retention=SHORT) as runtime:
        ana = await world.add([used(), used()])
        await ana.send("go")
        await ana.wait_idle()
        before = await runtime.usage("ana")
        assert await runtime.prune() == {}
        later(world)
        await ana.send("more")
        await ana.wait_idle()
        deleted = await runtime.prune()
        assert deleted["spent"] == 1
        assert [key for key, *_ in counted(world)] == [(2, 1, 1)]
        assert (await runtime.usage("ana")).calls == before.calls + 1
        assert check(runtime._store).findings == ()


async def test_what_is_old_goes_by_itself_within_an_hour(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open(retention=SHORT):
        ana = await world.add([used()])
        await ana.send("go")
        await ana.wait_idle()
        later(world)
        assert FIRST_S < 3_600
        await trio.sleep(FIRST_S)
        await until(lambda: left(world, "spent") == 0)


async def test_requests_and_tool_calls_of_turns_that_ended_long_ago_go_and_the_agent_goes_on(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate()
    script = [call_tool("look"), reply("x"), call_tool("look"), gate, reply("z")]
    async with world.open(retention=SHORT) as runtime:
        ana = await world.add(script, **LOOK)
        await ana.send("go")
        await ana.wait_idle()
        await ana.send("more")
        await gate.wait_entered()
        later(world)
        # The second turn is older than a day by now, and has not ended.
        deleted = await runtime.prune()
        assert (deleted["carried"], deleted["tool_calls"]) == (2, 1)
        assert [key[1] for key, _ in runtime._store.scan("tool_calls")] == [2]
        gate.release()
        await ana.wait_idle()
        later(world)
        # The last request of a slot is what the next one is told from.
        await runtime.prune()
        assert left(world, "carried") == 1
        assert check(runtime._store).findings == ()
    async with world.open(retention=SHORT):
        ana = await world.add([reply("on")], **LOOK)
        await ana.send("and on")
        await ana.wait_idle()
        assert (await shown(ana))[-2:] == ["user: and on", "assistant: on"]
        assert len(world.providers[-1].requests[0].messages) == 9


async def test_call_that_waits_for_a_person_is_not_deleted_however_old(
    world: World, virtual_time: MockClock
) -> None:
    pay = tool("pay", lambda: "paid", approve=NeedsApproval(within_s=None))
    async with world.open(retention=SHORT) as runtime:
        ana = await world.add([call_tool("pay"), reply("x")], tools=[pay])
        await ana.send("go")
        await ana.wait_idle()
        later(world, 40)
        assert "approvals" not in await runtime.prune()
        (row,) = runtime.approvals()
        await runtime.approve(row.id, requester="ops")
        await ana.wait_idle()
        later(world)
        assert (await runtime.prune())["approvals"] == 1
        assert (await shown(ana))[-1] == "assistant: x"


async def test_alerts_that_are_owed_or_the_newest_of_their_key_stay(
    world: World, virtual_time: MockClock
) -> None:
    sink = Sink()
    async with world.open(retention=SHORT, alert_sinks=[sink]) as runtime:
        script = [fail(429, retry_after=7_200) for _ in range(2)]
        ana = await world.add([*script, reply("x")])
        await ana.send("go")
        for number in (1, 2):
            await until(lambda number=number: left(world, "alerts") == number)  # type: ignore[misc]
            await until(lambda: left(world, "alerts_owed") == 0)
            later(world, 1.5)
            await until(lambda: world.state().state != "held" or left(world, "alerts") == 2)
        await ana.wait_idle()
        later(world)
        assert (await runtime.prune())["alerts"] == 1
        ((key, _),) = runtime._store.scan("alerts")
        assert key == (2,)


async def test_runs_that_ended_long_ago_go_and_their_keys_go_on(
    world: World, virtual_time: MockClock
) -> None:
    async def work(run: Any, given: Any) -> str:
        for number in range(10):
            await run.do(f"i{number}", lambda: "done")
        return str(given)

    async with world.open(retention=SHORT) as runtime:
        runtime._pruner._room = 4
        runtime.add_workflow("w", work)
        for _ in range(2):
            await (await runtime.start_run("nightly", "w", "x")).wait()
        later(world)
        deleted = await runtime.prune()
        assert (deleted["runs"], deleted["run_items"], deleted["run_index"]) == (2, 20, 2)
        assert left(world, "run_transitions") == 0
        with pytest.raises(UnknownRunError):
            runtime.run("nightly")
        assert runtime.runs() == ()
        run = await runtime.start_run("nightly", "w", "y")
        assert run.id == "nightly@3"
        await run.wait()
        assert check(runtime._store).findings == ()


async def test_ephemeral_run_that_ended_long_ago_leaves_nothing_but_its_owners(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate()
    async with world.open(retention=SHORT) as runtime:

        def spec(*script: Any) -> AgentSpec:
            return AgentSpec(name="sum", provider=world.provider(script), model="m", **LOOK)

        await runtime.run_ephemeral(spec(call_tool("look"), used()), "go")
        (agent,) = [key for key, _ in runtime._store.scan("agents")]
        later(world)
        ana = await world.add([gate])
        await ana.send("go")
        await gate.wait_entered()
        deleted = await runtime.prune()
        assert (deleted["slots"], deleted["bodies"], deleted["agents"]) == (4, 4, 1)
        named = [table for table in TABLES.values() if table.key[0] is str]
        rest = {table.name for table in named if left(world, table.name, *agent)}
        # Those of an owner are of a kind and a name.
        assert rest == {"leases", "spent_quarters"}
        assert (await runtime.usage("sum")).calls == 2
        assert left(world, "slots", "ana") == 1
        assert check(runtime._store).findings == ()
        gate.release()
        await ana.wait_idle()


async def test_nothing_goes_that_is_kept_for_good(world: World, virtual_time: MockClock) -> None:
    for_good = Retention(**dict.fromkeys(Retention.__dataclass_fields__))
    async with world.open(retention=for_good) as runtime:
        ana = await world.add([call_tool("look"), used()], **LOOK)
        await ana.send("go")
        await ana.wait_idle()
        later(world, 30_000)
        assert await runtime.prune() == {}


async def test_row_that_cannot_be_read_is_not_deleted(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([used(), used()])
        for text in ("a", "b"):
            await ana.send(text)
            await ana.wait_idle()
    damage(world.directory, world.clock, "spent", ("ana", 1, 1, 1), "a flipped bit")
    later(world)
    async with world.open(retention=SHORT) as runtime:
        assert (await runtime.prune())["spent"] == 1
        assert [key[1] for key, _ in runtime._store.scan("spent")] == [1]


async def test_same_id_is_the_same_message_whatever_was_deleted(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open(retention=SHORT) as runtime:
        ana = await world.add([used()])
        first = await ana.send("go", id="once")
        await ana.wait_idle()
        later(world, 4_000)
        await runtime.prune()
        again = await ana.send("go", id="once")
        assert again.seq == first.seq
        assert len(await shown(ana)) == 2


async def test_death_between_two_commits_leaves_a_sound_store_and_the_rest_for_the_next_pass(
    world: World, virtual_time: MockClock
) -> None:
    deaths = 0
    # Each life goes on behind the one before, and gets a little further.
    while lived(pruning.live, world.directory, f"retention.between:{deaths + 1}").status == KILLED:
        deaths += 1
        store = LmdbStore.open(world.directory, clock_ms=world.clock.now_ms, read_only=True)
        assert check(store).findings == ()
        store.close()
    assert deaths > 4
    async with world.open(retention=SHORT) as runtime:
        later(world, 10_000)
        await runtime.prune()
        for table in ("runs", "run_items", "spent", "slots", "agents", "tool_calls", "log"):
            assert left(world, table) == 0, table


@pytest.mark.parametrize("days", [0, -1, True, 1.5, "7", 36_501])
async def test_retention_is_refused_by_the_field_that_is_wrong(tmp_path: Path, days: Any) -> None:
    with pytest.raises(InvalidSpecError) as error:
        async with open_runtime(tmp_path / "state", retention=Retention(runs_days=days)):
            pass
    assert error.value.field == "retention.runs_days"
    assert not (tmp_path / "state").exists()


def test_every_table_is_on_the_page_of_what_is_kept() -> None:
    page = (Path(__file__).parents[2] / "docs" / "retention.md").read_text("utf-8")
    told = set(re.findall(r"`(\w+)`", page))
    assert set(TABLES) <= told
