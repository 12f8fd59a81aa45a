"""The table of asks: no ring in it, and nothing outside it."""

from __future__ import annotations

import itertools

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import CompactingContext
from abeyance.actors.core import AskTable, UndeclaredAskError, in_role
from abeyance.actors.domain.asks import ASKS
from abeyance.actors.domain.gate import Peek
from abeyance.actors.domain.slot_messages import ReadOpenTurn

from .world import World


def test_the_table_has_no_cycle() -> None:
    assert AskTable(ASKS).find_cycle() is None


@pytest.mark.parametrize("role", sorted(ASKS))
def test_a_cycle_in_the_table_would_be_found_at_every_role(role: str) -> None:
    closed = {**ASKS, "journal": ASKS["journal"] | {role}}
    if role == "alarm":
        # It asks nobody, so a ring needs the way back too.
        closed["alarm"] = frozenset({"journal"})
    ring = AskTable(closed).find_cycle()
    assert ring is not None
    assert ring[0] == ring[-1]
    assert "journal" in ring


def test_whoever_is_asked_is_in_the_table() -> None:
    assert {asked for allowed in ASKS.values() for asked in allowed} <= set(ASKS)


async def test_an_ask_that_the_table_does_not_hold_raises_when_it_is_sent(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        await world.add([], context=CompactingContext())
        for asker, asked in itertools.product(sorted(ASKS), sorted(set(ASKS) - {"runtime"})):
            ref = world.ref(asked)
            with in_role(asker):
                if asked in ASKS[asker]:
                    ref.ask(Peek("m"), block=False)  # Its actor may refuse it: it was sent.
                    continue
                with pytest.raises(UndeclaredAskError, match=f"{asker} may not ask {asked}"):
                    ref.ask(Peek("m"), block=False)


async def test_each_actor_of_a_runtime_has_the_role_the_table_knows(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await world.add([], context=CompactingContext())
        roles = {cell.key: cell.role for cell in runtime._system.cells}
        assert roles == {
            "journal": "journal",
            "archive": "archive",
            "ledger": "ledger",
            "reminders": "reminders",
            "runs": "runs",
            "schedules": "schedules",
            "alerts": "alerts",
            "alarm": "alarm",
            "slot:ana": "slot",
            "gate:ana": "gate",
            "agent:ana": "agent",
            "context:ana": "context",
        }
        with trio.fail_after(5):
            assert await world.ref("slot").ask(ReadOpenTurn("ana")) is None
