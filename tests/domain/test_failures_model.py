"""Random failures, policies and hooks against a model: no call before what holds it has ended.

The model knows nothing of gates and holds. It keeps one instant: before it no call may be made.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import CallFailure, GiveUp, Pacing, Retry
from abeyance.actors.events import TurnEnded, TurnStarted
from abeyance.actors.providers.port import ModelReply, ProviderError
from abeyance.actors.testing import fail, reply
from abeyance.actors.testing.scripted import ScriptedCall, Step

from .test_cooldowns import GREW
from .world import World, until

CALLS = 40
LATE_MS = 31_000
"""A step of the clock is noticed within 30 s; nothing else makes a call late."""


class Model:
    """One agent's failures, drawn; and when the next call may be made."""

    def __init__(self, world: World, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = world
        self.calls = 0
        self.retries = 0
        self.wrong: list[str] = []
        self.stated_ms = 0
        self.own_ms = 0
        """The end that no release moves: the agent's own pacing, its host's hold, its policy's."""
        self.lengthened_ms = 0
        self.stepped_ms = 0

    @property
    def earliest_ms(self) -> int:
        return max(self.stated_ms, self.own_ms, self.lengthened_ms)

    def script(self, request: object) -> Step:
        now_ms, draw = self.world.clock.now_ms(), self.random
        self.calls += 1
        if now_ms < self.earliest_ms:
            self.wrong.append(f"call {self.calls} came {self.earliest_ms - now_ms} ms early")
        self.stated_ms = self.own_ms = self.lengthened_ms = 0
        if self.calls >= CALLS or draw.random() < 0.2:
            return reply("fine")
        wait_s = draw.choice([None, 0, 1, 7, 59, 61, 700, 5_000])
        grew = draw.random() < 0.3
        if wait_s is not None:
            self.stated_ms = now_ms + wait_s * 1_000
        if grew:
            # Without jitter: its own pacing of 90 s, or a second at least where a wait is stated.
            self.lengthened_ms = now_ms + (90_000 if wait_s is None else max(1, wait_s) * 1_000)
        self.own_ms = min(self.lengthened_ms, now_ms + 90_000) if grew else 0
        status = draw.choice([429, 503]) if not grew else 429
        return fail(status, retry_after=wait_s, body=GREW if grew else "busy")

    def decide(self, failure: CallFailure) -> Retry | GiveUp:
        if self.random.random() < 0.1:
            return GiveUp()
        after_s = self.random.choice([0, 0.5, 3, 60, 60.5, 600, 90_000])
        self.own_ms = max(self.own_ms, failure.at_ms + int(after_s * 1_000))
        return Retry(after_s)

    def hold(self, failure: CallFailure) -> float | None:
        if self.random.random() < 0.7:
            return None
        pause_s = self.random.choice([2, 45, 400])
        self.own_ms = max(self.own_ms, failure.at_ms + pause_s * 1_000)
        return pause_s

    def release(self) -> None:
        self.stated_ms = self.lengthened_ms = 0


@pytest.mark.behaviour("W-063", "W-096", "W-103")
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow if seed > 2 else ()) for seed in range(12)]
)
async def test_no_call_is_made_before_what_holds_it_ends_and_none_much_later(
    world: World, virtual_time: MockClock, seed: int
) -> None:
    model, pairs = Model(world, seed), list[str]()
    async with world.open() as runtime, trio.open_nursery() as nursery:
        looking = runtime.events(kinds=["turn_started", "turn_ended"])

        async def watch() -> None:
            async for event in looking:
                if isinstance(event, TurnStarted):
                    pairs.append("(")
                elif isinstance(event, TurnEnded):
                    pairs.append(")")

        nursery.start_soon(watch)
        ana = await world.add(
            model.script,
            error_policy=model,
            provider_hold=model.hold,
            pacing=Pacing(default_s=90, jitter_s=0),
        )
        for number in range(200):
            if model.calls >= CALLS:
                break
            await ana.send(f"message {number}")
            await ana.wait_idle()
            if world.state().state != "held":
                continue
            what = model.random.random()
            if what < 0.25:
                await runtime.release_provider_wait("ana", requester="ops")
                model.release()
            elif what < 0.4:
                world.clock.advance(model.random.choice([20_000, 3_600_000]))
            remaining_ms = model.earliest_ms - world.clock.now_ms()
            calls = model.calls
            await trio.sleep(max(0, remaining_ms) / 1_000 + LATE_MS / 1_000)
            await ana.wait_idle()
            assert model.calls > calls, f"nothing was called {LATE_MS} ms after all had ended"
        assert model.calls >= CALLS
        assert not model.wrong
        assert not world.permits_out()
        await until(lambda: pairs.count("(") == pairs.count(")"))
        assert "".join(pairs) == "()" * (len(pairs) // 2)
        nursery.cancel_scope.cancel()


class Raises:
    """A step that raises what an adapter of a host's may raise, after some of the reply."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    async def play(self, call: ScriptedCall) -> ModelReply:
        await trio.sleep(0.1)
        raise self._error


class Mute(Exception):
    """Cannot be told in words."""

    def __str__(self) -> str:
        raise KeyError("no words")


def odd(**fields: Any) -> ProviderError:
    error = ProviderError("odd", retryable=True)
    for name, value in fields.items():
        object.__setattr__(error, name, value)
    return error


async def test_an_error_that_cannot_be_told_in_words_fails_its_turn_and_no_actor(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([Raises(Mute()), reply("next")])
        await ana.send("go")
        await ana.wait_idle()
        assert world.turns()[0].state == "failed"
        await ana.send("again")
        await ana.wait_idle()
        assert world.turns()[1].state == "done"
        assert world.ref("agent").statistics().incarnation == 1


@pytest.mark.parametrize(
    "error",
    [
        odd(acceleration="yes"),
        odd(acceleration=None),
        odd(stated="60"),
        odd(said=None),
        odd(said=b"bytes"),
    ],
    ids=["acceleration is text", "no acceleration", "stated is text", "said nothing", "bytes"],
)
async def test_what_an_adapter_puts_into_an_errors_attributes_breaks_no_turn(
    world: World, virtual_time: MockClock, error: ProviderError
) -> None:
    async with world.open():
        ana = await world.add([Raises(error), reply("again")])
        await ana.send("go")
        await ana.wait_idle()
        assert world.turns()[0].state == "done"
        assert world.ref("agent").statistics().incarnation == 1
