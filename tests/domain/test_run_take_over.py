"""A run whose process is stopped: it keeps its claim, and is refused once it was taken over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from abeyance.actors import RunContext, RunOwnedElsewhereError, RunStateError, open_runtime
from abeyance.actors.ops import cli
from abeyance.actors.providers import CapacityExhaustedError, Exhaustion
from abeyance.storage.lmdb_store import LmdbStore

from ..stopping import stop_between_commits

HOST = """
import json, os, sys, trio
from abeyance.actors import open_runtime
from abeyance.actors.providers import CapacityExhaustedError, Exhaustion

async def act():
    print("entered", flush=True)
    await trio.to_thread.run_sync(sys.stdin.readline)
    return "theirs"

async def wall():
    raise CapacityExhaustedError((Exhaustion(provider="p", model="m"),))

async def body(run, params):
    return [await run.do("a", act, in_doubt="retry"), await run.do("b", act, in_doubt="retry")]

async def waits(run, params):
    await run.do("a", wall)

async def main():
    async with open_runtime(sys.argv[1], control=False) as runtime:
        runtime.add_workflow("acts", body)
        runtime.add_workflow("waits", waits)
        with runtime.events(kinds={"run_changed"}) as events:
            await runtime.start_run("w", "waits")
            while not runtime.run("w").state.startswith("waiting"):
                await anext(aiter(events))
        run = await runtime.start_run("k", "acts")
        status = await run.wait()
        print(json.dumps([status.state, status.result]), flush=True)

trio.run(main)
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is in the middle of an item of run `k`, and executed `w`, which waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOST, str(tmp_path / "state")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"entered\n"
        yield process
        process.kill()


async def act() -> str:
    await trio.lowlevel.checkpoint()
    return "ours"


async def body(run: RunContext, _params: Any) -> list[str]:
    return [await run.do(name, act, in_doubt="retry") for name in ("a", "b")]


async def waits(run: RunContext, _params: Any) -> None:
    await run.do("a", wall)


async def wall() -> None:
    raise CapacityExhaustedError((Exhaustion(provider="p", model="m"),))


def rows(state: Path) -> dict[str, list[Any]]:
    store = LmdbStore.open(state, clock_ms=lambda: 0, read_only=True)
    try:
        return {
            table: [(key, row.record) for key, row in store.scan(table)]  # type: ignore[union-attr]
            for table in ("runs", "run_items", "run_transitions")
        }
    finally:
        store.close()


@pytest.mark.behaviour("S-037")
async def test_stopped_process_keeps_its_runs_and_is_refused_once_they_were_taken_over(
    tmp_path: Path, host: subprocess.Popen[bytes]
) -> None:
    state = tmp_path / "state"
    stop_between_commits(host.pid, state)
    async with open_runtime(state, control=False) as runtime:
        runtime.add_workflow("acts", body)
        runtime.add_workflow("waits", waits)
        assert not (await runtime.resume_run("k", requester="ops")).changed
        with pytest.raises(RunOwnedElsewhereError) as caught:
            await runtime.cancel_run("k", requester="ops")
        assert caught.value.pid == host.pid
        taken = await runtime.take_over_run("k", requester="ops")
        assert (taken.state, taken.changed) == ("resuming", True)
        assert not (await runtime.take_over_run("k", requester="ops")).changed
        status = await runtime.wait_run("k")
        assert (status.state, status.result) == ("completed", ["ours", "ours"])
        assert not (await runtime.take_over_run("k", requester="ops")).changed
        assert [each.by for each in runtime.run_history("k")][1] == "api:ops"
        waiting = await runtime.take_over_run("w", requester="ops")
        assert (waiting.state, waiting.changed) == ("waiting_for_capacity_unknown", False)
        assert (await runtime.cancel_run("w", requester="ops")).changed
    before = rows(state)
    os.kill(host.pid, signal.SIGCONT)
    assert host.stdin is not None
    assert host.stdout is not None
    # Its item returns only now, and what it returned is nobody's.
    host.stdin.write(b"go\ngo\n")
    host.stdin.flush()
    said = await trio.to_thread.run_sync(host.stdout.readline)
    assert json.loads(said) == ["completed", ["ours", "ours"]]
    await trio.to_thread.run_sync(host.wait)
    assert rows(state) == before


async def test_run_is_taken_over_from_the_command_line(
    tmp_path: Path, host: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    arguments = ("take-over", str(state), "k", "--json")
    assert await trio.to_thread.run_sync(cli.main, arguments) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "needs_host"
    async with open_runtime(state) as runtime:
        runtime.add_workflow("acts", body)
        assert await trio.to_thread.run_sync(cli.main, arguments) == 0
        assert json.loads(capsys.readouterr().out)["changed"]
        assert (await runtime.wait_run("k")).result == ["ours", "ours"]
        assert await trio.to_thread.run_sync(cli.main, arguments[:-1]) == 0
        assert capsys.readouterr().out == "k@1 is completed; nothing was changed.\n"


async def test_run_of_another_version_is_not_taken_over(
    tmp_path: Path, host: subprocess.Popen[bytes]
) -> None:
    async with open_runtime(tmp_path / "state", control=False) as runtime:
        runtime.add_workflow("acts", body, version=2)
        with pytest.raises(RunStateError):
            await runtime.take_over_run("k", requester="ops")
        assert runtime.run("k").state == "running"
