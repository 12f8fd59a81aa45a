"""Retention: what is old history goes, in small commits, and nothing that is still needed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentSpec, NeedsApproval, Retention
from abeyance.actors.domain.errors import InvalidSpecError, UnknownMessageError
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


async def test_id_is_forgotten_once_its_message_was_read_and_is_old(
    world: World, virtual_time: MockClock
) -> None:
    week = Retention(ids_days=7)
    async with world.open(retention=week) as runtime:
        ana = await world.add([reply("x")])
        first = await ana.send("go", id="once")
        await ana.wait_idle()
        later(world, 6.9)
        assert await runtime.prune() == {}
        assert (await ana.send("go", id="once")).seq == first.seq
        later(world, 0.2)
        before = runtime._store.revision()
        assert await runtime.prune() == {"ids": 1}
        with pytest.raises(UnknownMessageError):
            await ana.receipt("once")
        # What is behind it is found all the same.
        assert [each.text async for each in ana.transcript(after="once")] == ["x"]
        assert check(runtime._store).findings == ()
        assert runtime._store.revision() > before
    async with world.open(retention=week) as runtime:
        ana = await world.add([reply("y"), reply("z")])
        again = await ana.send("something else", id="once")
        assert again.seq > first.seq
        await ana.wait_idle()
        assert (await ana.send("something else", id="once")).seq == again.seq
        assert await shown(ana) == [
            "user: go",
            "assistant: x",
            "user: something else",
            "assistant: y",
        ]
        # Of two messages of one id it names the newer, also where that is forgotten, too.
        later(world, 8)
        assert (await runtime.prune())["ids"] == 1
        assert [each.text async for each in ana.transcript(after="once")] == ["y"]
        await ana.rewind(to="once", requester="ops")
        assert len(await shown(ana)) == 3
        await ana.undo_rewind(requester="ops")
        await ana.edit("once", "other words", requester="ops")
        assert (await shown(ana))[2] == "user: other words"
        assert check(runtime._store).findings == ()


async def test_id_of_a_message_that_waits_for_its_answer_is_kept_however_old(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open(retention=Retention(ids_days=1)) as runtime:
        ana = await world.add([fail(429, retry_after=40 * 86_400), reply("x")])
        await ana.send("held", id="held")
        await ana.wait_idle()
        await ana.send("waits", id="waits")
        bo = await world.add([], "bo")
        await bo.send("unread", id="unread", wake=False)
        back = await ana.send("taken back", id="back")
        await ana.retract(back)
        later(world, 10)
        assert "ids" not in await runtime.prune()
        for agent, name in ((bo, "unread"), (ana, "held"), (ana, "waits")):
            assert (await agent.send(name, id=name)).seq == (await agent.receipt(name)).seq
        await runtime.release_provider_wait("ana", requester="ops")
        await ana.wait_idle()
        assert (await runtime.prune())["ids"] == 2
        # What was taken back was never read, and stays taken back.
        assert (await ana.send("taken back", id="back")).state == "retracted"


async def test_id_that_was_replaced_goes_behind_the_one_that_replaced_it(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open(retention=Retention(ids_days=1)) as runtime:
        ana = await world.add([reply("x")])
        for number in (1, 2, 3):
            await ana.send(f"news {number}", id=f"n{number}", subject="news", wake=False)
            later(world, 0.6)
        await ana.send("go")
        await ana.wait_idle()
        # The third is no day old: a retry of the first says what became of it.
        assert await runtime.prune() == {}
        assert (await ana.send("news 1", id="n1")).state == "replaced"
        later(world, 2)
        gone = 0
        for _ in range(3):
            gone += (await runtime.prune()).get("ids", 0)
        assert gone == 4
        assert left(world, "ids") == 0
        assert check(runtime._store).findings == ()


async def test_run_that_waits_sends_no_message_again_whose_id_is_old(
    world: World, virtual_time: MockClock
) -> None:
    async def work(run: Any, _: Any) -> str:
        said: str = await run.ask("draft", "ana", "write")
        return said

    keeps = Retention(ids_days=1, runs_days=1)
    async with world.open(retention=keeps) as runtime:
        gate = Gate()
        await world.add([gate])
        runtime.add_workflow("w", work)
        await runtime.start_run("nightly", "w")
        await gate.wait_entered()
    async with world.open(retention=keeps) as runtime:
        # The turn ends, and nobody has the workflow that waits for it.
        ana = await world.add([reply("done")])
        await ana.wait_idle()
        later(world, 10)
        assert "ids" not in await runtime.prune()
        assert runtime.run("nightly").state != "completed"
    async with world.open(retention=keeps) as runtime:
        ana = await world.add([])
        runtime.add_workflow("w", work)
        await until(lambda: runtime.run("nightly").state == "completed")
        said = [line for line in await shown(ana) if not line.startswith("marker")]
        assert said == ["user: write", "assistant: done"]
        later(world)
        deleted = await runtime.prune()
        assert (deleted["ids"], deleted["runs"]) == (1, 1)


@pytest.mark.parametrize("point", ["retention.between", "retention.between:2"])
async def test_death_while_ids_are_deleted_forgets_some_and_the_rest_at_the_next_pass(
    world: World, virtual_time: MockClock, point: str
) -> None:
    assert lived(pruning.forget, world.directory, point).status == KILLED
    world.clock.set(pruning.START_MS + 3 * DAY_MS)
    async with world.open(retention=Retention(ids_days=1)) as runtime:
        assert check(runtime._store).findings == ()
        gone = 4 if point.endswith("2") else 2
        assert left(world, "ids", "bo") == 6 - gone
        bo = await world.add([], "bo")
        sent = [await bo.send(f"text {n}", id=f"id-{n}", wake=False) for n in range(6)]
        assert [receipt.seq > 6 for receipt in sent].count(True) == gone
        assert (await runtime.prune())["ids"] == 6 - gone
        assert len(await shown(bo)) == 7 + gone
        assert check(runtime._store).findings == ()


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
def test_retention_is_refused_by_the_field_that_is_wrong(days: Any) -> None:
    with pytest.raises(InvalidSpecError) as error:
        Retention(runs_days=days)
    assert error.value.field == "runs_days"


def test_every_table_is_on_the_page_of_what_is_kept() -> None:
    page = (Path(__file__).parents[2] / "docs" / "retention.md").read_text("utf-8")
    told = set(re.findall(r"`(\w+)`", page))
    assert set(TABLES) <= told
