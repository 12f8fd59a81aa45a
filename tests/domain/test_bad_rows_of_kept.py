"""A row that cannot be read among what is kept for later: what was not handled, reminders, counts
of deliveries, and the host's mode. It costs what it says, and nothing beside it."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors.core.errors import MessageNotKeptError
from abeyance.actors.domain.mode import MODE_KEY
from abeyance.actors.testing import reply
from abeyance.storage.check import check
from abeyance.storage.tables.kept import Delivery

from .damage import DAMAGES, damage
from .test_bad_rows_beside import put
from .test_kept import Host, crashed, start, stored
from .world import World, shown, until

each_damage = pytest.mark.parametrize("how", DAMAGES)


@each_damage
async def test_a_bad_row_of_the_quarantine_is_listed_as_such_and_hides_no_other(
    world: World, virtual_time: MockClock, how: str
) -> None:
    async with world.open():
        host = await start(world)
        for number in range(3):
            await crashed(world, host, {"crash": number})
    damage(world.directory, world.clock, "quarantine", (2,), how)
    async with world.open() as runtime:
        host = await start(world)
        host._cell.kept["mended"] = True
        listed = [(row.id, row.reason) for row in runtime.quarantine()]
        assert listed == [(3, "ValueError"), (2, "unreadable"), (1, "ValueError")]
        with pytest.raises(MessageNotKeptError):
            await runtime.replay_quarantined(2, requester="ops")
        await runtime.replay_quarantined(3, requester="ops")
        await host.ask("sync")
        assert host._cell.kept["seen"] == [{"crash": 2}, "sync"]


@each_damage
async def test_a_bad_row_of_the_dead_letters_is_listed_as_such_and_hides_no_other(
    world: World, virtual_time: MockClock, how: str
) -> None:
    async with world.open() as runtime:
        for number in range(2):
            gone = runtime._system.start(Host, name="gone")
            gone.tell(f"left {number}")
            gone.stop(now=True)
            await gone.stopped()
            await stored(world)
    damage(world.directory, world.clock, "dead_letters", (1,), how)
    async with world.open() as runtime:
        heir = runtime._system.start(Host, name="gone")
        assert [(row.id, row.reason) for row in runtime.dead_letters()] == [
            (2, "stopped"),
            (1, "unreadable"),
        ]
        with pytest.raises(MessageNotKeptError):
            await runtime.replay_dead_letter(1, requester="ops")
        await runtime.replay_dead_letter(2, requester="ops")
        await heir.ask("sync")
        assert heir._cell.kept["seen"] == ["left 1", "sync"]


@each_damage
async def test_a_bad_row_of_a_reminder_costs_that_one_and_can_be_set_again(
    world: World, virtual_time: MockClock, how: str
) -> None:
    due_ms = world.clock.now_ms() + 60_000
    async with world.open():
        host = await start(world)
        for name in ("a", "b"):
            await host.ask({"remind": {"name": name, "at_ms": due_ms}})
        await stored(world)
    damage(world.directory, world.clock, "reminders", ("host", "a"), how)
    async with world.open() as runtime:
        host = await start(world)
        await trio.sleep(61)
        await host.ask("sync")
        assert host._cell.kept["reminders"] == [("b", None, due_ms)]
        assert [(each.table, each.key) for each in check(runtime._store).findings] == [
            ("reminders", ("host", "a"))
        ], "it stays, and is named"
        due_ms = world.clock.now_ms() + 60_000
        await host.ask({"remind": {"name": "a", "at_ms": due_ms}})
        await until(lambda: check(runtime._store).findings == ())
        (row,) = world.rows("reminders")
        assert row.due_ms == due_ms
        await trio.sleep(61)
        await host.ask("sync")
        assert host._cell.kept["reminders"][1:] == [("a", None, due_ms)]
        assert world.rows("reminders") == []


@each_damage
async def test_a_bad_count_of_deliveries_counts_nothing_and_costs_no_other(
    world: World, virtual_time: MockClock, how: str
) -> None:
    async with world.open():
        pass
    for act in ("bad", "good"):
        count = Delivery(deliveries=2, process="p", at_ms=world.clock.now_ms())
        put(world, ("deliveries", ("host", act), count))
    damage(world.directory, world.clock, "deliveries", ("host", "bad"), how)
    async with world.open() as runtime:
        counts: Any = runtime._counts
        assert [counts.begin("host", act, 0) for act in ("bad", "good")] == [0, 2]
        for act in ("bad", "good"):
            counts.end("host", act, handled=True)


@each_damage
async def test_a_bad_row_of_the_mode_starts_nothing_until_an_operator_says_that_it_serves(
    world: World, virtual_time: MockClock, how: str
) -> None:
    async with world.open() as runtime:
        await runtime.quiesce("upgrade")
    damage(world.directory, world.clock, "modes", MODE_KEY, how)
    async with world.open() as runtime:
        ana = await world.add([reply("served")])
        await ana.send("go")
        await ana.wait_idle()
        assert "cannot be read" in runtime.status().mode.reason
        assert world.providers[-1].requests == []
        await runtime.resume(requester="ops")
        await ana.wait_idle()
        assert await shown(ana) == ["user: go", "assistant: served"]
        assert check(runtime._store).findings == ()
