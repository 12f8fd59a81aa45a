"""What stands in place of a working indicator where a turn is held or a run waits."""

from __future__ import annotations

from datetime import UTC, timedelta, timezone
from typing import Any

import pytest
from trio.testing import MockClock

from abeyance.actors import WaitCard, wait_card
from abeyance.actors.domain.events import HoldBegan
from abeyance.actors.testing import fail

from .test_runs import HOUR, Effects, waiting
from .world import World, until

CAUSES = ("wait", "unreadable", "quota", "cooldown", "host", "account")


@pytest.mark.behaviour("S-065")
async def test_card_of_a_refusal_offers_the_instant_that_was_stated_and_a_retry(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        with runtime.events(kinds={"hold_began"}) as events:
            ana = await world.add([fail(429, retry_after=7_200)])
            await ana.send("hi")
            event = await anext(aiter(events))
        assert isinstance(event, HoldBegan)
        (wait,) = runtime.provider_waits("ana")
        card = wait_card(event)
    assert card is not None
    assert (card.agent, card.run) == ("ana", None)
    assert card.resume_after_ms == wait.deadline_ms == event.deadline_ms
    assert card.actions == ("release_provider_wait",)
    assert card.text(UTC).startswith("Waiting for m capacity \u00b7 goes on after 2026-10-07 ")


@pytest.mark.behaviour("S-065")
@pytest.mark.parametrize("cause", CAUSES)
def test_card_without_an_instant_shows_no_time(cause: str) -> None:
    event = HoldBegan(
        agent="ana", turn=1, model="m", cause=cause, deadline_ms=None, reason="used up", at_ms=1
    )
    card = wait_card(event)
    assert card is not None
    assert card.resume_after_ms is None
    assert not any(letter.isdigit() for letter in card.text())
    assert "after 1" not in card.text()
    assert card.reason == "used up"


@pytest.mark.behaviour("S-065")
@pytest.mark.parametrize("known", [True, False], ids=["an instant", "no instant"])
async def test_card_of_a_run_says_what_it_waits_for_and_what_can_be_done(
    world: World, virtual_time: MockClock, known: bool
) -> None:
    async with world.open():
        run = await waiting(world, Effects(), world.clock.now_ms() + HOUR if known else None)
        status = run.status()
        card = wait_card(status)
        assert card == WaitCard(
            agent=None,
            run=run.id,
            title="Waiting for anthropic capacity (five_hour)",
            resume_after_ms=status.resume_after_ms,
            reason=status.reason,
            actions=("resume_run", "use_fallback", "cancel_run"),
        )
        assert (" \u00b7 resumes after " in card.text()) is known
        await world.runtime.cancel_run(run.id, requester="ops")
        await until(lambda: run.status().ended)
        assert wait_card(run.status()) is None


def test_time_that_is_read_is_never_before_the_one_that_binds() -> None:
    card = WaitCard(
        agent=None, run="k@1", title="Waiting", resume_after_ms=59_001, reason="", actions=()
    )
    east = timezone(timedelta(hours=2))
    assert card.text(UTC) == "Waiting \u00b7 resumes after 1970-01-01 00:01 UTC"
    assert card.text(east) == "Waiting \u00b7 resumes after 1970-01-01 02:01 UTC+02:00"
    far: Any = WaitCard(
        agent=None, run="k@1", title="W", resume_after_ms=8_640_000_000_000_000, reason="",
        actions=(),
    )  # fmt: skip
    assert "275760" in far.text(UTC)
