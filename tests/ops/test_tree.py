"""`abeyance tree`: what a running host's actors do, and why a stopped store has none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from abeyance.actors import open_runtime
from abeyance.actors.core import ActorSystem, ChildSpec, SupervisorSpec, TrioActor
from abeyance.actors.ops import cli
from abeyance.actors.ops.client import ControlClient

from .test_control import asked, in_thread


class Worker(TrioActor):
    def on_receive(self, message: Any) -> None:
        raise ValueError(message)


async def run(*arguments: str) -> int:
    return await trio.to_thread.run_sync(cli.main, arguments)


async def test_tree_of_a_host_is_printed_with_control_characters_escaped(
    serving: Any, runtime: Any, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with ActorSystem() as system:
        group = await system.start_supervisor(
            SupervisorSpec("group", (ChildSpec("a", type("A\x1b[2J", (Worker,), {})),))
        )
        number = group.refs["a"].name.rpartition("-")[2]
        group.refs["a"].tell("no\rluck")
        await wait_all_tasks_blocked()
        runtime.tree = system.tree
        async with serving():
            code = await run("tree", str(state))
    printed = capsys.readouterr()
    assert (code, printed.err) == (0, "")
    assert printed.out.splitlines() == [
        "root  one_for_one  running",
        "├── user  one_for_one  running",
        "└── group  one_for_one  running  1 restart (1 recent)",
        rf"    └── A\x1b[2J-{number}  running  1 restart  last failure ValueError: no\rluck",
    ]


async def test_tree_as_json_is_what_a_program_reads_and_bounds_are_passed_on(
    serving: Any, runtime: Any, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with ActorSystem() as system:
        children = tuple(ChildSpec(name, Worker, name=name) for name in "abc")
        await system.start_supervisor(SupervisorSpec("group", children))
        runtime.tree = system.tree
        async with serving():
            code = await run("tree", str(state), "--json", "--depth", "3", "--width", "2")
            with await in_thread(ControlClient, state) as client:
                shallow = await in_thread(lambda: client.tree(depth=1).tree)
    assert code == 0
    tree = json.loads(capsys.readouterr().out)["tree"]
    group = tree["children"][1]
    assert (group["id"], group["strategy"], group["left_out"]) == ("group", "one_for_one", 1)
    assert [child["name"] for child in group["children"]] == ["a", "b"]
    assert group["children"][0]["last_failure"] is None
    assert (shallow.children, shallow.left_out) == ((), 2)


@pytest.mark.parametrize("field", ["depth", "width"])
@pytest.mark.parametrize("value", ["0", "65000000", '"x"', "true"])
async def test_tree_request_with_a_bound_that_is_none_is_refused_by_its_field(
    serving: Any, state: Path, field: str, value: str
) -> None:
    async with serving():
        line = f'{{"verb": "tree", "{field}": {value}}}'.encode()
        (answer,) = await in_thread(asked, state, line)
    assert (answer["error"]["code"], answer["error"]["field"]) == ("invalid_field", field)


async def test_tree_of_a_stopped_store_says_that_only_a_running_host_has_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_runtime(tmp_path / "state", control=False):
        pass
    assert await run("tree", str(tmp_path / "state")) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "exists only in a running host" in printed.err
    assert len(printed.err.splitlines()) == 1


async def test_tree_of_what_is_no_store_is_refused_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run("tree", str(tmp_path / "nothing"), "--json") == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "missing_store"


async def test_tree_of_a_real_host_holds_its_actors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_runtime(tmp_path / "state"):
        assert await run("tree", str(tmp_path / "state")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("    ├── journal  running") for line in lines)
