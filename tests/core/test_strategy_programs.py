"""Generated programs of falls and stops against a model of which incarnations a strategy starts.

The model is the paragraph on restart types and strategies of docs/semantics.md, in code: a list of
children in their order, each with its incarnation or gone. What the group does is compared with it
after each step, starts and ends in their order included.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors.core import (
    ActorDeadError,
    ActorSystem,
    Backoff,
    ChildSpec,
    SupervisorSpec,
    TrioActor,
)

NAMES = ("a", "b", "c", "d")


@dataclass
class Model:
    """Who lives in which incarnation, and what started and ended, as it has to be."""

    strategy: str
    types: dict[str, str]
    lives: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(NAMES, 1))
    log: list[tuple[str, str]] = field(default_factory=lambda: [("start", name) for name in NAMES])

    def fall(self, name: str, how: str) -> None:
        if self.lives[name] is None:
            return
        if how == "stop":
            self.log.append(("stop", name))
        kind = self.types[name]
        if kind == "temporary" or (kind == "transient" and how == "stop") or how == "shrug":
            self.lives[name] = None
            return
        place = NAMES.index(name)
        others = {
            "one_for_one": [],
            "rest_for_one": NAMES[place + 1 :],
            "one_for_all": [other for other in NAMES if other != name],
        }[self.strategy]
        for other in reversed(others):
            if self.lives[other] is not None:
                self.log.append(("stop", other))
                if self.types[other] == "temporary":
                    self.lives[other] = None
        for each in NAMES:
            if (each == name or each in others) and self.lives[each] is not None:
                self.lives[each] += 1  # type: ignore[operator]
                self.log.append(("start", each))


class Child(TrioActor):
    def __init__(self, name: str, log: list[tuple[str, str]]) -> None:
        self.name = name
        self.log = log

    def on_start(self) -> None:
        self.log.append(("start", self.name))

    def on_stop(self) -> None:
        self.log.append(("stop", self.name))

    def on_receive(self, message: Any) -> None:
        raise {"boom": ValueError, "shrug": KeyError}[message](self.name)


async def run(strategy: Any, types: dict[str, Any], program: list[tuple[str, str]]) -> None:
    model = Model(strategy, types)
    log: list[tuple[str, str]] = []
    async with ActorSystem(on_dead_letter=lambda _: None, on_quarantine=lambda _: None) as system:
        children = tuple(
            ChildSpec(name, Child, args=(name, log), name=name, restart=types[name])
            for name in NAMES
        )
        group = await system.start_supervisor(
            SupervisorSpec(
                "group",
                children,
                strategy=strategy,
                intensity=10_000,
                backoff=Backoff(0.0, 0.0),
                directives=((KeyError, "stop"),),
            )
        )
        refs = dict(group.refs)
        for how, name in program:
            try:
                match how:
                    case "boom" | "shrug":
                        refs[name].tell(how)
                    case "kill":
                        refs[name].kill()
                    case "stop":
                        refs[name].stop()
            except ActorDeadError:
                assert model.lives[name] is None
            await trio.sleep(1)
            await wait_all_tasks_blocked()
            model.fall(name, how)
            lives = {
                name: ref._cell.incarnation if ref.is_alive() else None
                for name, ref in refs.items()
            }
            assert lives == model.lives, (how, name)
            assert log == model.log, (how, name)


STEPS = st.tuples(st.sampled_from(["boom", "shrug", "kill", "stop"]), st.sampled_from(NAMES))
TYPES = st.fixed_dictionaries(
    {name: st.sampled_from(["permanent", "transient", "temporary"]) for name in NAMES}
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    strategy=st.sampled_from(["one_for_one", "one_for_all", "rest_for_one"]),
    types=TYPES,
    program=st.lists(STEPS, max_size=8),
)
@example("one_for_all", dict.fromkeys(NAMES, "transient"), [("stop", "b"), ("boom", "c")])
@example("rest_for_one", dict.fromkeys(NAMES, "permanent"), [("kill", "b"), ("stop", "a")])
@example("one_for_all", {**dict.fromkeys(NAMES, "permanent"), "b": "temporary"}, [("boom", "d")])
def test_group_starts_and_ends_whom_its_strategy_and_their_restart_types_say(
    strategy: str, types: dict[str, str], program: list[tuple[str, str]]
) -> None:
    trio.run(run, strategy, types, program, clock=MockClock(autojump_threshold=0))
