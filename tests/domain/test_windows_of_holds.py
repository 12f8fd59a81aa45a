"""The usage window that is used up, where its provider named it: told with the hold of a turn, by
events, cards, alerts and every door, and there again behind a restart."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from abeyance.actors import wait_card
from abeyance.actors.domain.auxiliary import CallDeferredError
from abeyance.actors.domain.events import HoldBegan
from abeyance.actors.ops.answers import report_status
from abeyance.actors.ops.stopped import StoppedStore
from abeyance.actors.testing import fail, reply
from abeyance.storage.codec import encode
from abeyance.storage.tables.slots import Held

from .test_alerts import settled
from .test_auxiliary import ask
from .test_run_windows import five_hours
from .world import World

UNIFIED = "anthropic-ratelimit-unified"


def endless() -> Any:
    """Five hours are used up, and nobody said until when."""
    headers = {
        f"{UNIFIED}-status": "rejected",
        f"{UNIFIED}-representative-claim": "five_hour",
        f"{UNIFIED}-5h-status": "rejected",
    }
    return fail(429, headers=headers, provider="anthropic")


@pytest.mark.behaviour("S-065")
@pytest.mark.parametrize("how", ["with an end", "without one"])
async def test_the_window_of_a_hold_is_told_by_its_event_its_card_its_alert_and_its_report(
    world: World, virtual_time: MockClock, how: str
) -> None:
    async with world.open() as runtime:
        step = endless() if how == "without one" else five_hours(world)
        with runtime.events(kinds={"hold_began"}) as events:
            ana = await world.add([step])
            await ana.send("go")
            event = await anext(aiter(events))
        assert isinstance(event, HoldBegan)
        assert (event.window, event.of_quota) == ("five_hour", True)
        assert (event.deadline_ms is None) is (how == "without one")
        card = wait_card(event)
        assert card is not None
        assert card.title == "Waiting for m capacity (five_hour)"
        await ana.wait_idle()
        (alert,) = await settled(world)
        assert "The window that is used up: five_hour." in alert.text
        (agent,) = report_status(runtime.status()).agents
        assert agent.held is not None
        assert (agent.held.window, agent.held.of_quota) == ("five_hour", True)


async def test_the_window_of_a_quota_without_an_end_is_there_behind_a_restart(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([endless()])
        await ana.send("go")
        await ana.wait_idle()
    store = StoppedStore(world.directory)
    (agent,) = store.status().agents
    store.close()
    assert agent.held is not None
    assert (agent.held.cause, agent.held.window, agent.held.of_quota) == (
        "quota",
        "five_hour",
        True,
    )
    async with world.open() as runtime:
        with runtime.events(kinds={"hold_began"}) as events:
            ana = await world.add([reply("paid")])
            event = await anext(aiter(events))
        assert isinstance(event, HoldBegan)
        assert (event.cause, event.window, event.of_quota) == ("quota", "five_hour", True)
        await ana.wait_idle()
        held = world.state().held
        assert (held.window, held.of_quota) == ("five_hour", True)
        with pytest.raises(CallDeferredError) as refused:
            await ana.auxiliary_call(ask())
        assert (refused.value.window, refused.value.of_quota) == ("five_hour", True)


async def test_a_hold_without_a_window_is_stored_as_before_there_were_any(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([fail(402)])
        await ana.send("go")
        await ana.wait_idle()
        (turn,) = world.turns()
    assert turn.held == Held(agent="ana", model="m", cause="quota")
    assert b"window" not in encode(turn).body
