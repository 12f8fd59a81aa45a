"""A row that cannot be read in each table beside those of a slot and its turns.

Exactly what depends on it is held or refused, nothing else is lost, and it is told of as its
table's rules say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from abeyance.actors import Runtime
from abeyance.actors.domain.alert_book import AlertNotDeliveredError
from abeyance.actors.domain.errors import EditRefusedError, NotStoredError
from abeyance.actors.domain.protocol import ReleasedWait
from abeyance.actors.domain.wait_book import ACCOUNT
from abeyance.actors.providers.credentials import fingerprint
from abeyance.actors.testing import fail, reply
from abeyance.storage import codec
from abeyance.storage.errors import UnreadableRecordError
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Key, Put, Request
from abeyance.storage.tables import TABLES
from abeyance.storage.tables.agents import Ephemeral
from abeyance.storage.tables.blocks import TextBlock, ThinkingBlock
from abeyance.storage.tables.waits import Override

from . import test_bad_rows
from .damage import DAMAGES, damage
from .test_accounts import add
from .test_alerts import Sink, settled
from .test_holds import quota
from .world import World, shown, until

HERE = {
    *("account_waits", "overrides", "alerted", "alerts_owed", "conversations"),
    *("sharers", "edits", "revisions"),
    *("ephemerals", "meta", "processes", "sequences", "changes"),
}
ELSEWHERE = {
    "test_bad_rows_of_kept": ("dead_letters", "quarantine", "reminders", "deliveries", "modes"),
    "test_bad_rows_of_runs": ("runs", "run_items", "run_keys", "run_index", "run_transitions"),
    "test_bad_rows_of_schedules": ("schedules", "schedule_index", "occurrences"),
    "test_unreadable_inbox": ("inbox",),
    "test_approvals": ("approvals",),
    "test_outbox": ("outboxes", "cursors"),
    "test_context_faults": ("contexts",),
    "test_system_prompt": ("prompts",),
    "test_usage_book": ("usage",),
    "test_spending": ("spent", "spent_quarters"),
    "test_budgets": ("budgets",),
    "test_repair": ("set_aside",),
    "test_attachments": ("attachments", "attachment_pieces", "attachment_uses"),
}


def test_every_table_has_its_bad_row() -> None:
    beside = {table for tables in ELSEWHERE.values() for table in tables}
    assert {*test_bad_rows.TABLE, *HERE, *beside} >= set(TABLES)
    for module, tables in ELSEWHERE.items():
        source = Path(__file__).with_name(f"{module}.py").read_text("utf-8")
        for table in tables:
            call = rf'damage\(world\.directory, world\.clock, "{table}", .*, how\)'
            assert re.search(call, source), (module, table)


each_damage = pytest.mark.parametrize("how", DAMAGES)


@contextmanager
def store_of(world: World) -> Iterator[LmdbStore]:
    store = LmdbStore.open(world.directory, clock_ms=world.clock.now_ms)
    try:
        yield store
    finally:
        store.close()


def put(world: World, *puts: tuple[str, Key, Any]) -> None:
    """Put rows into the stopped store, as a process that died in the middle left them."""
    with store_of(world) as store:
        store.commit(Request(puts=tuple(Put(t, k, codec.encode(record)) for t, k, record in puts)))


async def runs(agent: Any, says: str) -> None:
    await agent.send("go")
    await agent.wait_idle()
    assert (await shown(agent))[-1] == f"assistant: {says}"


@pytest.mark.behaviour("R-17", "R-35", "W-040")
@each_damage
async def test_a_bad_wall_holds_its_credential_alone_until_it_is_released(
    world: World, virtual_time: MockClock, how: str
) -> None:
    async with world.open(account_waits=True) as runtime:
        for name, key in (("ana", "k"), ("bo", "another")):
            agent = await add(world, name, fail(429, retry_after=7_200), key=key)
            await agent.send("go")
            await agent.wait_idle()
        account = fingerprint("k", runtime._store_id)
        told = len(await settled(world))
    damage(world.directory, world.clock, "account_waits", (account, "m"), how)
    async with world.open(account_waits=True) as runtime:
        cy = await add(world, "cy", reply("cy"))
        await cy.send("go")
        await cy.wait_idle()
        held = world.state("cy").held
        assert (held.cause, held.deadline_ms) == ("account", None)
        di = await add(world, "di", reply("di"), key="another")
        await di.send("go")
        await di.wait_idle()
        assert world.state("di").held.deadline_ms is not None, "its own wall reads"
        await runs(await add(world, "ed", reply("ed"), model="n"), "ed")
        listed = [
            (w.model, w.deadline_ms is None) for w in runtime.provider_waits(ACCOUNT + account)
        ]
        assert listed == [("m", True)]
        *_, alert = await settled(world)
        assert (alert.agent, alert.model) == (ACCOUNT + account, "m")
        assert len(runtime.alerts()) == told + 1
        receipt = await runtime.release_provider_wait(ACCOUNT + account, requester="ops")
        assert receipt.released == (ReleasedWait(ACCOUNT + account, "m", "recorded"),)
        await cy.wait_idle()
        assert (await shown(cy))[-1] == "assistant: cy"
        assert world.state("di").state == "held"


@pytest.mark.behaviour("R-17", "R-18")
@each_damage
async def test_a_bad_override_lifts_nothing_and_is_replaced_by_the_next_release(
    world: World, virtual_time: MockClock, how: str
) -> None:
    async with world.open():
        for name in ("ana", "bo"):
            agent = await world.add([quota()], name)
            await agent.send("go")
            await agent.wait_idle()
    # Released as their process died, so that no agent has learned of it.
    override = Override(fingerprint="1:1", by="ops", at_ms=world.clock.now_ms(), act="a")
    put(world, *(("overrides", (name, "m", "quota"), override) for name in ("ana", "bo")))
    damage(world.directory, world.clock, "overrides", ("ana", "m", "quota"), how)
    async with world.open() as runtime:
        bo = await world.add([reply("bo")], "bo")
        await bo.wait_idle()
        assert (await shown(bo))[-1] == "assistant: bo"
        ana = await world.add([reply("ana")])
        await ana.wait_idle()
        assert world.state("ana").held.cause == "quota"
        receipt = await runtime.release_provider_wait("ana", requester="ops")
        assert receipt.released == (ReleasedWait("ana", "m", "recorded"),)
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: ana"
        assert len(world.rows("overrides")) == 2


@pytest.mark.behaviour("W-060")
@each_damage
async def test_a_bad_note_of_an_episode_raises_no_alert_a_second_time_and_costs_none(
    world: World, virtual_time: MockClock, how: str
) -> None:
    async with world.open():
        for name in ("ana", "bo"):
            agent = await world.add([fail(429, retry_after=7_200)], name)
            await agent.send("go")
            await agent.wait_idle()
        assert sorted(alert.agent for alert in await settled(world)) == ["ana", "bo"]
    damage(world.directory, world.clock, "alerted", ("wait", "ana", "m"), how)
    for _ in range(2):
        async with world.open():
            for name in ("ana", "bo"):
                await (await world.add([], name)).wait_idle()
            assert sorted(a.agent for a in await settled(world)) == ["ana", "bo"]
            assert [world.state(name).state for name in ("ana", "bo")] == ["held", "held"]
    async with world.open() as runtime:
        ana = await world.add([fail(429, retry_after=7_200)], "ana")
        await runtime.release_provider_wait("ana", requester="ops")
        await ana.wait_idle()
        assert sorted(a.agent for a in await settled(world)) == ["ana", "ana", "bo"], "another hold"


@each_damage
async def test_a_bad_row_of_what_a_sink_is_owed_costs_no_sink_its_alert(
    world: World, virtual_time: MockClock, how: str
) -> None:
    def busy() -> BaseException:
        return AlertNotDeliveredError("busy")

    async with world.open(alert_sinks=[Sink(fails=busy)]):
        for name in ("ana", "bo"):
            agent = await world.add([fail(429, retry_after=7_200)], name)
            await agent.send("go")
            await agent.wait_idle()
        await until(lambda: len(world.runtime.alerts()) == 2)
    with store_of(world) as store:
        keys = [key for key, _ in store.scan("alerts_owed", ("kept",))]
        alerts = {row.record.episode: row.record.agent for _, row in store.scan("alerts")}  # type: ignore[union-attr]
        key = next(key for key in keys if alerts[str(key[2])] == "ana")
        assert len(keys) == 2
    damage(world.directory, world.clock, "alerts_owed", key, how)
    sink = Sink()
    async with world.open(alert_sinks=[sink]) as runtime:
        await until(lambda: not list(runtime._store.scan("alerts_owed")))
        assert sorted(alert.agent for alert in sink.got) == ["ana", "bo"]
        assert len(await settled(world)) == 2
        ana = await world.add([reply("ana")])
        await runtime.release_provider_wait("ana", requester="ops")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: ana"


@each_damage
async def test_a_bad_row_of_a_conversation_refuses_its_channel_alone(
    world: World, virtual_time: MockClock, how: str
) -> None:
    async def open_all(runtime: Runtime, *channels: str) -> list[Any]:
        await runtime.add_agent(spec())
        return [await runtime.open_conversation("ana", channel=name) for name in channels]

    def spec() -> Any:
        from abeyance.actors import AgentSpec
        from abeyance.actors.testing import ScriptedProvider

        provider = ScriptedProvider(lambda request: reply("here"), clock=world.clock)
        return AgentSpec(name="ana", provider=provider, model="m")

    async with world.open() as runtime:
        for fork in await open_all(runtime, "c1", "c2"):
            await runs(fork, "here")
    damage(world.directory, world.clock, "conversations", ("ana", "c1"), how)
    async with world.open() as runtime:
        (fork,) = await open_all(runtime, "c2")
        for _ in range(2):
            with pytest.raises(UnreadableRecordError) as caught:
                await runtime.open_conversation("ana", channel="c1")
            assert (caught.value.table, caught.value.key) == ("conversations", ("ana", "c1"))
        await runs(fork, "here")
        await runs(runtime.agent("ana"), "here")
        await runs(await runtime.open_conversation("ana", channel="c3"), "here")


@each_damage
async def test_a_bad_row_of_a_run_that_a_death_cut_off_is_closed_all_the_same(
    world: World, virtual_time: MockClock, how: str
) -> None:
    async with world.open():
        pass
    run = Ephemeral(started_ms=world.clock.now_ms())
    put(world, ("ephemerals", ("sum.1",), run), ("ephemerals", ("sum.2",), run))
    damage(world.directory, world.clock, "ephemerals", ("sum.1",), how)
    async with world.open():
        await until(lambda: not list(world.runtime._store.scan("ephemerals")))
        await runs(await world.add([reply("one")]), "one")


@each_damage
async def test_a_bad_row_of_who_shares_a_slot_keeps_nobody_from_it(
    world: World, virtual_time: MockClock, how: str
) -> None:
    async def both(*said: str) -> list[Any]:
        return [
            await world.add([reply(text)], name, slot="room")
            for name, text in zip(("ana", "bo"), said, strict=True)
        ]

    async with world.open():
        for agent, says in zip(await both("one", "two"), ("one", "two"), strict=True):
            await runs(agent, says)
    damage(world.directory, world.clock, "sharers", ("room", "ana"), how)
    async with world.open():
        for agent, says in zip(await both("three", "four"), ("three", "four"), strict=True):
            await runs(agent, says)


@each_damage
async def test_a_bad_edit_costs_its_undo_and_nothing_else(
    world: World, virtual_time: MockClock, how: str
) -> None:
    async with world.open():
        ana = await world.add([reply("one")])
        await runs(ana, "one")
        edit = await ana.edit(1, "other", requester="ops")
        kept = await ana.edit(2, "two", requester="ops")
    damage(world.directory, world.clock, "edits", ("ana", edit.edit), how)
    async with world.open():
        ana = await world.add([reply("three")])
        assert [row.edit for row in ana.edits()] == [kept.edit]
        with pytest.raises(EditRefusedError) as refused:
            await ana.undo_edit(edit.edit, requester="ops")
        assert refused.value.reason == "unknown"
        await ana.undo_edit(kept.edit, requester="ops")
        await runs(ana, "three")
        assert (await shown(ana))[:2] == ["user: other", "assistant: one"]


@each_damage
async def test_a_bad_row_of_what_was_edited_leaves_reasoning_out_and_refuses_an_edit(
    world: World, virtual_time: MockClock, how: str
) -> None:
    async with world.open():
        thought = ThinkingBlock(thinking="so", signature="s")
        ana = await world.add([reply(thought, TextBlock(text="one")), reply("two")])
        await runs(ana, "one")
        await runs(ana, "two")
        await ana.edit(3, "other", requester="ops")
    damage(world.directory, world.clock, "revisions", ("ana",), how)
    async with world.open():
        ana = await world.add([reply("three")])
        await runs(ana, "three")
        request = world.providers[-1].requests[-1]
        assert not any(
            isinstance(block, ThinkingBlock)
            for message in request.messages
            for block in message.blocks
        )
        with pytest.raises(UnreadableRecordError) as caught:
            await ana.edit(1, "x", requester="ops")
        assert caught.value.table == "revisions"
        assert (await shown(ana))[0] != "user: x"


@pytest.mark.parametrize("table", ["processes", "changes"])
@each_damage
async def test_a_bad_row_of_what_is_history_of_the_store_costs_nothing(
    world: World, virtual_time: MockClock, how: str, table: str
) -> None:
    async with world.open():
        await runs(await world.add([reply("one")]), "one")
    damage(world.directory, world.clock, table, first_key(world, table), how)
    async with world.open() as runtime:
        ana = await world.add([reply("two")])
        await runs(ana, "two")
        assert runtime.status().agents


@each_damage
async def test_a_store_whose_own_row_is_bad_is_refused_by_its_name(
    world: World, virtual_time: MockClock, how: str
) -> None:
    async with world.open():
        pass
    damage(world.directory, world.clock, "meta", ("store",), how)
    for _ in range(2):
        with pytest.raises(UnreadableRecordError) as caught:
            async with world.open():
                raise AssertionError("it opened")
        assert (caught.value.table, caught.value.key) == ("meta", ("store",))


@pytest.mark.parametrize("sequence", ["changes", "alerts", "log"])
@each_damage
async def test_a_bad_counter_refuses_what_it_counts_by_name_and_readers_go_on(
    world: World, virtual_time: MockClock, how: str, sequence: str
) -> None:
    """Every commit takes a revision; a number that was given once is never given again."""
    async with world.open():
        ana = await world.add([fail(429, retry_after=7_200)])
        await ana.send("go")
        await ana.wait_idle()
        await settled(world)
    damage(world.directory, world.clock, "sequences", (sequence,), how)
    async with world.open() as runtime:
        assert len(runtime.alerts()) == 1
        assert [wait.model for wait in runtime.provider_waits()] == ["m"]
        if sequence == "changes":
            with pytest.raises(NotStoredError, match="sequences"):
                await world.add([])
            return
        ana = await world.add([reply("ana")])
        await ana.wait_idle()
        assert world.state().state == "held"
        receipt = await runtime.release_provider_wait("ana", requester="ops")
        # A release has a line in the log, which has no number; it binds here all the same.
        reach = "pending" if sequence == "log" else "recorded"
        assert [each.reach for each in receipt.released] == [reach]
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: ana"


def first_key(world: World, table: str) -> Key:
    with store_of(world) as store:
        return next(iter(store.scan(table)))[0]
