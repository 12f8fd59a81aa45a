"""Generated programs over a group of actors: whatever is done to them, every message ends once.

`test_programs.py` holds one actor against a model, step by step. Here are the operations for which
a model would be the kernel over again: stashes, suspensions, deadlines that cancel, strategies,
directives, stops of both kinds with replies owed, and places by key. What is held is what has to be
true of all of them: the accounts add up after each step, each message ends exactly once, each ask
is settled, one handler of an actor runs at a time, and what a directive resumes is no crash.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors.core import (
    LATER,
    ActorSystem,
    Backoff,
    ChildSpec,
    MailboxClosedError,
    MailboxFullError,
    SupervisorSpec,
    TrioActor,
)
from abeyance.actors.core.events import ActorCrashed

NAMES = ("a", "b", "c")


class Member(TrioActor):
    """Does what a message (number, kind, asked) says, and notes each that is handled."""

    mailbox_capacity = 5

    @classmethod
    def make_kept(cls) -> dict[str, Any]:
        return {"done": [], "owed": [], "aside": set(), "running": False}

    @classmethod
    def coalesce_key(cls, message: Any) -> Any:
        return "plain" if message[1] == "plain" else None

    async def on_receive(self, message: Any) -> Any:
        assert not self.kept["running"], "two handlers of one actor at a time"
        self.kept["running"] = True
        try:
            return await self._do(*message)
        finally:
            self.kept["running"] = False

    async def _do(self, number: int, kind: str, asked: bool) -> Any:
        if kind == "slow":
            await trio.sleep(3)
        if kind in ("boom", "shrug"):
            if asked:  # Its error is its answer.
                self.kept["done"].append(number)
            raise ValueError(number) if kind == "boom" else KeyError(number)
        if kind == "stash" and number not in self.kept["aside"]:
            self.kept["aside"].add(number)
            return self.stash()
        if kind == "unstash":
            self.unstash_all()
        if kind == "owe":
            self.kept["owed"].append((number, self.later()))
            return LATER
        if kind == "pay":
            while self.kept["owed"]:
                owed, reply = self.kept["owed"].pop(0)
                before = self._cell.handled
                reply.set(owed)
                # It may have ended before, and it is handled though its ask has expired.
                self.kept["done"] += [owed] * (self._cell.handled - before)
        self.kept["done"].append(number)
        return number


class Twice(Member):
    max_deliveries = 2


class ByKey(Member):
    overflow = "coalesce"


async def run(program: list[tuple[Any, ...]], kind: type[Member], strategy: Any) -> None:
    accepted: dict[str, list[int]] = {name: [] for name in NAMES}
    ends: list[int] = []
    futures = []
    events: list[Any] = []

    def ended(entry: Any) -> None:
        ends.append(entry.message[0])

    async with ActorSystem(
        ask_timeout_s=None, on_dead_letter=ended, on_quarantine=ended, on_event=events.append
    ) as system:
        group = await system.start_supervisor(
            SupervisorSpec(
                "group",
                tuple(ChildSpec(name, kind, name=name, shutdown_s=0.5) for name in NAMES),
                strategy=strategy,
                intensity=10_000,
                backoff=Backoff(0.0, 0.0),
                directives=((KeyError, "resume"),),
            )
        )
        refs = group.refs

        def at_rest() -> None:
            for name, ref in refs.items():
                cell = ref._cell
                assert cell.accounted() == len(accepted[name])

        for number, (what, name, argument, timeout) in enumerate(program):
            ref = refs[name]
            try:
                match what:
                    case "tell":
                        ref.tell((number, argument, False))
                        accepted[name].append(number)
                    case "ask":
                        future = ref.ask(
                            (number, argument, True),
                            timeout=timeout,
                            cancel_on_timeout=number % 2 == 0,
                        )
                        futures.append(future)
                        refused = future.settled and _is_refusal(future)
                        accepted[name] += [] if refused else [number]
                    case "suspend":
                        ref.suspend()
                    case "resume":
                        ref.resume()
                    case "kill":
                        ref.kill()
                    case "stop":
                        ref.stop()
                    case "stop now":
                        ref.stop(now=True)
                    case "advance":
                        await trio.sleep(argument)
            except (MailboxFullError, MailboxClosedError):
                pass
            await wait_all_tasks_blocked()
            if all(ref._cell.state == "running" for ref in refs.values()):
                at_rest()
        for ref in refs.values():
            ref.resume()
        await trio.sleep(1_000)
        at_rest()
        for ref in refs.values():
            statistics = ref.statistics()
            assert (statistics.queued, statistics.in_flight) == (0, False)
        done = [number for ref in refs.values() for number in ref._cell.kept["done"]]
    assert sorted(done + ends) == sorted(n for each in accepted.values() for n in each)
    assert all(future.settled for future in futures)
    crashes = [event for event in events if isinstance(event, ActorCrashed)]
    assert not any(isinstance(crash.error, KeyError) for crash in crashes)


def _is_refusal(future: Any) -> bool:
    return isinstance(future.error, MailboxFullError | MailboxClosedError)


KINDS = st.sampled_from(["plain", "slow", "boom", "shrug", "stash", "unstash", "owe", "pay"])
TIMEOUTS = st.sampled_from([0.7, 2.0, math.inf])
STEPS = st.one_of(
    st.tuples(st.sampled_from(["tell", "ask"]), st.sampled_from(NAMES), KINDS, TIMEOUTS),
    st.tuples(
        st.sampled_from(["suspend", "resume", "kill", "stop", "stop now"]),
        st.sampled_from(NAMES),
        st.none(),
        st.none(),
    ),
    st.tuples(st.just("advance"), st.just("a"), st.sampled_from([0.3, 1.0, 4.0]), st.none()),
)


@pytest.mark.parametrize("strategy", ["one_for_one", "one_for_all", "rest_for_one"])
@pytest.mark.parametrize("kind", [Member, Twice, ByKey], ids=["once", "twice", "by key"])
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(program=st.lists(STEPS, max_size=25))
@example(program=[("suspend", "a", None, 0), *[("ask", "a", "plain", 2.0)] * 2])
@example(program=[("ask", "a", "owe", 2.0), ("stop", "a", None, None), ("advance", "a", 4.0, None)])
@example(program=[("ask", "b", "slow", 0.7), ("tell", "b", "plain", None), ("kill", "a", None, 0)])
def test_group_program_ends_every_message_once_and_settles_every_ask(
    program: list[tuple[Any, ...]], kind: type[Member], strategy: str
) -> None:
    trio.run(run, program, kind, strategy, clock=MockClock(autojump_threshold=0))
