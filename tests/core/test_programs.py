"""Generated programs over the core, on a virtual clock, each beside a model that says what follows.

The model knows one actor as a queue, a message in flight and an incarnation. After each step the
system is let come to rest, and then what the actors did, in order, is what the model says. In the
end, so is what became of every message and of every ask, and what watchers heard.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors.core import (
    LATER,
    ActorDeadError,
    ActorSystem,
    Backoff,
    ChildSpec,
    OutcomeUnknownError,
    SupervisorSpec,
    TrioActor,
)

NAMES = ("a", "b", "c")


def takes_s(kind: str, number: int) -> float:
    """How long what a message starts takes. No two are over at one instant: their order then would
    be trio's choice."""
    whole, part = {"slow": (3, 0.001), "timer": (5, 0.0011), "pipe": (2, 0.0012)}[kind]
    return whole + part * (number + 1)


class Subject(TrioActor):
    """Does what a message (number, kind) says, and keeps what it did."""

    @classmethod
    def make_kept(cls) -> dict[str, Any]:
        return {"log": [], "owed": deque(), "running": 0}

    def on_start(self) -> None:
        self.kept["log"].append(("start", self.incarnation))

    async def on_receive(self, message: Any) -> Any:
        number, kind = message
        assert self.kept["running"] == 0, "two handlers of one actor at a time"
        self.kept["running"] = 1
        try:
            return await self._do(number, kind)
        finally:
            self.kept["running"] = 0

    async def _do(self, number: int, kind: str) -> Any:
        if kind == "boom":
            raise ValueError(number)
        if kind == "slow":
            await trio.sleep(takes_s(kind, number))
        if kind == "timer":
            self.after(takes_s(kind, number), (number, "fired"))
        if kind == "pipe":
            self.pipe(self._pipe, number, tag=number)
        if kind == "owe":
            self.kept["owed"].append((number, self.later()))
            return LATER
        if kind == "pay":
            while self.kept["owed"]:
                owed, reply = self.kept["owed"].popleft()
                if reply.set(owed):
                    self.kept["log"].append(("paid", owed))
        self.kept["log"].append((kind, number))
        return number

    async def _pipe(self, number: int) -> int:
        await trio.sleep(takes_s("pipe", number))
        return number

    def on_answer(self, answer: Any) -> None:
        self.kept["log"].append(("answer", answer.unwrap()))


class Watcher(TrioActor):
    """Watches an actor by its name, and keeps what it hears."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.heard: list[tuple[int, bool]] = []

    def on_start(self) -> None:
        self.watch(self._cell.system.find(self.name))

    def on_ended(self, ended: Any) -> None:
        self.heard.append((ended.incarnation, ended.final))

    def on_receive(self, message: Any) -> Any:
        return list(self.heard)


class Twice(Subject):
    max_deliveries = 2


class Model:
    """One permanent actor whose restarts do not wait."""

    def __init__(self, deliveries: int, account: dict[int, str]) -> None:
        self.deliveries = deliveries
        self.account = account
        self.log: list[Any] = [("start", 1)]
        self.incarnation = 1
        self.queue: deque[tuple[int, str, bool]] = deque()
        self.counts: dict[int, int] = {}
        self.owed: list[tuple[int, str, bool]] = []
        self.handles: list[tuple[int, str, bool]] = []
        self.current: tuple[tuple[int, str, bool], float] | None = None
        self.internal: deque[Any] = deque()
        self.due: list[tuple[float, Any]] = []

    def send(self, number: int, kind: str, asked: bool, now: float) -> None:
        self.account[number] = "queued"
        self.queue.append((number, kind, asked))
        self.pump(now)

    def stop(self, now: float) -> None:
        self.queue.append((-1, "stop", False))
        self.pump(now)

    def owes(self) -> bool:
        """Whether a reply is owed, or may be by the time a stop pill that is sent now is taken."""
        return bool(self.owed) or any(kind == "owe" for _, kind, _ in self.queue)

    def kill(self, now: float) -> None:
        self._fall(None if self.current is None else self.current[0])
        self.pump(now)

    def advance(self, until: float) -> None:
        """Let every timer, pipe and slow handler that is over by then have its effect, in order."""
        while True:
            ends = [self.current[1]] if self.current else []
            times = [*ends, *(at for at, _ in self.due)]
            if not times or min(times) > until:
                return
            now = min(times)
            # What is due at the instant at which a handler ends was put into the lane before it.
            for at, what in sorted(self.due, key=lambda each: each[0]):
                if at <= now:
                    self.internal.append(what)
            self.due = [(at, what) for at, what in self.due if at > now]
            if self.current and self.current[1] <= now:
                message, _ = self.current
                self.current = None
                self._handled(message)
            self.pump(now)

    def pump(self, now: float) -> None:
        while self.current is None:
            if self.internal:
                self.log.append(self.internal.popleft())
            elif self.queue:
                self._take(self.queue.popleft(), now)
            else:
                return

    def _take(self, message: tuple[int, str, bool], now: float) -> None:
        number, kind, asked = message
        if kind == "stop":
            self._end()
        elif kind == "boom":
            if asked:
                self.account[number] = "handled"
            else:
                self._fall(message)
        elif kind == "slow":
            self.current = (message, now + takes_s(kind, number))
        elif kind == "owe":
            self.owed.append(message)
            self.handles.append(message)
        else:
            if kind == "timer":
                self.due.append((now + takes_s(kind, number), ("fired", number)))
            elif kind == "pipe":
                self.due.append((now + takes_s(kind, number), ("answer", number)))
            elif kind == "pay":
                for owed in self.handles:
                    if owed in self.owed:
                        self.owed.remove(owed)
                    elif owed in self.queue:
                        self.queue.remove(owed)
                    else:
                        continue
                    self.account[owed[0]] = "handled"
                    self.log.append(("paid", owed[0]))
                self.handles = []
            self._handled(message)

    def _handled(self, message: tuple[int, str, bool]) -> None:
        number, kind, _ = message
        self.account[number] = "handled"
        self.log.append((kind, number))

    def _fall(self, flying: tuple[int, str, bool] | None) -> None:
        """A crash: owed messages come back first, then the one in flight, or none of them does."""
        back: list[tuple[int, str, bool]] = []
        for message in self.owed:
            if self.deliveries > 1:
                back.append(message)
            else:
                self.account[message[0]] = "dead"
        if flying is not None:
            count = self.counts[flying[0]] = self.counts.get(flying[0], 0) + 1
            if count < self.deliveries:
                back.append(flying)
            else:
                self.account[flying[0]] = "quarantined"
        self.queue.extendleft(reversed(back))
        self._renew()

    def _end(self) -> None:
        assert not self.owed
        self._renew()

    def _renew(self) -> None:
        self.owed = []
        self.current = None
        self.internal.clear()
        self.due = []
        self.incarnation += 1
        self.log.append(("start", self.incarnation))


async def run(program: list[tuple[Any, ...]], kind: type[Subject]) -> None:
    account: dict[int, str] = {}
    ends: dict[int, list[str]] = {}
    asked: dict[int, Any] = {}

    def ended(how: str) -> Any:
        return lambda entry: ends.setdefault(entry.message[0], []).append(how)

    async with ActorSystem(
        ask_timeout_s=None, on_dead_letter=ended("dead"), on_quarantine=ended("quarantined")
    ) as system:
        group = await system.start_supervisor(
            SupervisorSpec(
                "group",
                tuple(ChildSpec(name, kind, name=name, shutdown_s=0.5) for name in NAMES),
                intensity=10_000,
                backoff=Backoff(0.0, 0.0),
            )
        )
        watchers = {name: system.start(Watcher, name) for name in NAMES}
        await wait_all_tasks_blocked()
        models = {name: Model(kind.max_deliveries, account) for name in NAMES}
        for number, (what, name, argument) in enumerate(program):
            ref, model, now = group.refs[name], models[name], trio.current_time()
            match what:
                case "tell":
                    ref.tell((number, argument))
                    model.send(number, argument, False, now)
                case "ask":
                    asked[number] = ref.ask((number, argument))
                    model.send(number, argument, True, now)
                case "kill":
                    ref.kill()
                    model.kill(now)
                case "stop" if not model.owes():
                    # With a reply owed it would wait for that; test_delivery.py is about it.
                    ref.stop(block=False)
                    model.stop(now)
                case "advance":
                    await trio.sleep(argument)
                    for each in models.values():
                        each.advance(now + argument)
            await wait_all_tasks_blocked()
            _compare(group, models)
        until = trio.current_time() + 1_000
        await trio.sleep(1_000)
        for model in models.values():
            model.advance(until)
            # What is owed for ever ends with its actor.
            for message in model.owed:
                account[message[0]] = "dead"
        await wait_all_tasks_blocked()
        _compare(group, models)
        for name, watcher in watchers.items():
            ended_by_now = [(n, False) for n in range(1, models[name].incarnation)]
            assert await watcher.ask("heard") == ended_by_now
        for name, ref in group.refs.items():
            statistics = ref.statistics()
            assert statistics.queued == 0
            assert statistics.owed == len(models[name].owed)
    for number, how in account.items():
        if how != "handled":
            assert ends.pop(number) == [how], number
    assert ends == {}, "what the model calls handled ended nowhere else"
    for number, future in asked.items():
        assert future.settled
        if account[number] == "handled":
            try:
                assert future.get() == number
            except ValueError as error:
                assert error.args == (number,)  # noqa: PT017 - the answer is the handler's error.
        else:
            with pytest.raises((OutcomeUnknownError, ActorDeadError, ValueError)):
                future.get()


def _compare(group: Any, models: dict[str, Model]) -> None:
    for name, model in models.items():
        assert group.refs[name]._cell.kept["log"] == model.log, name
        assert group.refs[name].statistics().incarnation == model.incarnation


KINDS = st.sampled_from(["plain", "slow", "boom", "timer", "pipe", "owe", "pay"])
STEPS = st.one_of(
    st.tuples(st.sampled_from(["tell", "ask"]), st.sampled_from(NAMES), KINDS),
    st.tuples(st.just("advance"), st.just("a"), st.sampled_from([0.5, 1, 2.5, 7])),
    st.tuples(st.sampled_from(["kill", "stop"]), st.sampled_from(NAMES), st.none()),
)


@pytest.mark.parametrize("kind", [Subject, Twice], ids=["at most once", "at least once"])
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(program=st.lists(STEPS, max_size=30))
@example(program=[("tell", "a", "slow"), ("tell", "a", "plain"), ("kill", "a", None)])
@example(program=[("ask", "a", "owe"), ("tell", "a", "boom"), ("tell", "a", "pay")])
@example(program=[("tell", "a", "timer"), ("tell", "a", "slow"), ("advance", "a", 7)])
def test_program_does_what_its_model_says_and_every_message_ends_once(
    program: list[tuple[Any, ...]], kind: type[Subject]
) -> None:
    trio.run(run, program, kind, clock=MockClock(autojump_threshold=0))
