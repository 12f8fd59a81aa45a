"""Programs of actors that ask, stop and kill one another at random, without any deadline.

Rings are closed from one side and from two, by replies and by ends. Nothing but the refusal of
rings ends them, and the time of a hook: a ring that was overlooked would hang.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors.core import (
    LATER,
    AbeyanceError,
    ActorSystem,
    Backoff,
    ChildSpec,
    SupervisorSpec,
    TrioActor,
)

ACTORS = 6
LONGEST_S = 60.0
"""More than all hooks, and all waits that a program makes by itself, take one after the other."""


class Program:
    """One that its seed says all of."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.outcomes: Counter[str] = Counter()

    def any_ref(self) -> Any:
        return self.refs[self.random.randrange(ACTORS)]

    async def run(self) -> None:
        program, draw = self, self.random

        class Member(TrioActor):
            async def on_receive(self, depth: int) -> Any:
                return await program.act(self, depth) if depth > 0 else "x"

            async def on_stop(self) -> None:
                if draw.random() < 0.3:
                    with suppress(AbeyanceError, KeyError):
                        await program.any_ref().ask(2)

        children = tuple(
            ChildSpec(
                f"member {number}",
                Member,
                restart=draw.choice(["permanent", "transient"]),
                shutdown_s=draw.choice([1, 5]),
            )
            for number in range(ACTORS)
        )
        spec = SupervisorSpec("g", children, intensity=10**6, backoff=Backoff(0, 0))
        async with ActorSystem(ask_timeout_s=None) as system:
            self.group = await system.start_supervisor(spec)
            self.refs = list(self.group.refs.values())
            futures = []
            for _ in range(60):
                futures.append(self.any_ref().ask(draw.randrange(6), block=False))
                if draw.random() < 0.3:
                    await trio.sleep(draw.random())
                if draw.random() < 0.1:
                    self.any_ref().kill()
            with trio.fail_after(LONGEST_S):
                for future in futures:
                    try:
                        self.outcomes[type(await future).__name__] += 1
                    except (AbeyanceError, KeyError) as error:
                        self.outcomes[type(error).__name__] += 1
        seen = system.statistics()
        ended = seen.handled + sum(seen.dead_letters.values()) + sum(seen.quarantined.values())
        assert seen.accepted == ended

    async def act(self, me: Any, depth: int) -> Any:
        """Wait for another in some way, or for its end."""
        other, draw = self.any_ref(), self.random
        match draw.randrange(10):
            case 0 | 1 | 2 | 3:
                return await other.ask(depth - 1)
            case 4:
                return await other.ask(depth - 1, block=False)
            case 5:
                with trio.move_on_after(draw.random()):
                    return await other.ask(depth - 1)
                return "gave up"
            case 6:
                await trio.sleep(draw.random())
                return await other.ask(depth - 1, timeout=draw.random())
            case 7:
                return await other.stop()
            case 8:
                reply = me.later()

                async def work() -> None:
                    try:
                        reply.set(await other.ask(depth - 1))
                    except (AbeyanceError, KeyError) as error:
                        reply.set_exception(error)

                me.spawn(work)
                return LATER
            case _:
                await self.group.stop_child(other._cell.child_id)
                return "ended"


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_program_whose_actors_wait_for_one_another_at_random_hangs_nowhere(first):
    outcomes: Counter[str] = Counter()
    for seed in range(first, first + 10):
        program = Program(seed)
        trio.run(program.run, clock=MockClock(autojump_threshold=0))
        outcomes += program.outcomes
    assert {"str", "bool", "AskCycleError", "StopCycleError"} <= set(outcomes)
