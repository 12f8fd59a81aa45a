"""Specs that cannot be started are refused when they are made, by the name of the field."""

from __future__ import annotations

from typing import Any

import pytest

from abeyance.actors.core import ActorSystem, Backoff, ChildSpec, SupervisorSpec, TrioActor


class Plain(TrioActor):
    def __init__(self, *args: Any) -> None:
        self.args = args

    def on_receive(self, message: Any) -> Any:
        return self.args


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"id": 1}, "id"),
        ({"id": None}, "id"),
        ({"actor_class": int}, "actor_class"),
        ({"actor_class": "Plain"}, "actor_class"),
        ({"actor_class": lambda: Plain}, "actor_class"),
        ({"args": [1]}, "args"),
        ({"args": "ab"}, "args"),
        ({"kwargs": (1,)}, "kwargs"),
        ({"name": 3}, "name"),
        ({"name": ""}, "name"),
        ({"name": "a\n"}, "name"),
        ({"id": ""}, "id"),
        ({"id": "a\x00"}, "id"),
        ({"shutdown_s": "x"}, "shutdown_s"),
        ({"directives": "x"}, "directives"),
        ({"restart": "always"}, "restart"),
        ({"shutdown_s": -1}, "shutdown_s"),
        ({"shutdown_s": True}, "shutdown_s"),
        ({"shutdown_s": float("nan")}, "shutdown_s"),
        ({"directives": ((int, "stop"),)}, "directives"),
        ({"significant": True}, "significant"),
    ],
)
def test_child_that_cannot_be_started_is_refused_by_its_field_when_its_spec_is_made(fields, named):
    with pytest.raises((TypeError, ValueError), match=f"^{named} "):
        ChildSpec(**({"id": "a", "actor_class": Plain} | fields))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"id": 7}, "id"),
        ({"id": "\t"}, "id"),
        ({"children": [ChildSpec("a", Plain)]}, "children"),
        ({"children": (Plain,)}, "children"),
        ({"children": (ChildSpec("a", Plain), ChildSpec("a", Plain))}, "children"),
        ({"children": (ChildSpec("a", Plain, name="n"), ChildSpec("b", Plain, name="n"))}, "child"),
        ({"strategy": "all"}, "strategy"),
        ({"intensity": True}, "intensity"),
        ({"intensity": 1.5}, "intensity"),
        ({"intensity": -1}, "intensity"),
        ({"period_s": 0}, "intensity .* period_s"),
        ({"backoff": 1.0}, "backoff"),
        ({"on_exhausted": "stop"}, "on_exhausted"),
        ({"on_parked": "log"}, "on_parked"),
        ({"auto_shutdown": True}, "auto_shutdown"),
    ],
)
def test_group_that_cannot_be_started_is_refused_by_its_field_when_its_spec_is_made(fields, named):
    with pytest.raises((TypeError, ValueError), match=f"^{named}"):
        SupervisorSpec(**({"id": "g"} | fields))


@pytest.mark.parametrize("name", ["", "a\n", "\x1b[31m", 3])
async def test_name_that_is_no_text_of_one_line_is_refused_before_an_actor_starts(name):
    async with ActorSystem() as system:
        with pytest.raises((TypeError, ValueError), match=r"^name "):
            system.start(Plain, name=name)
        assert system.actors() == ()


async def test_specs_that_can_be_started_are():
    made = SupervisorSpec(
        "g",
        (
            ChildSpec("a", Plain, (1, 2), name="a"),
            ChildSpec("b", Plain, lambda refs: (refs["a"],)),
            ChildSpec("c", Plain),
        ),
        backoff=Backoff(),
        on_parked=lambda group, error: None,
    )
    async with ActorSystem() as system:
        refs = (await system.start_supervisor(made)).refs
        assert await refs["a"].ask("x") == (1, 2)
        assert await refs["b"].ask("x") == (refs["a"],)
        assert await refs["c"].ask("x") == ()
