"""Whose a run is: its process's while it is live, and nobody's while it waits.

Another process that lives is one whose proof of life is locked; what it does is not looked at.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import (
    AgentSpec,
    RunContext,
    RunOwnedElsewhereError,
    open_runtime,
)
from abeyance.actors.domain.run_taking import HANDED_S
from abeyance.actors.domain.step_threads import StepThreads
from abeyance.actors.ops.stopped import StoppedStore
from abeyance.actors.testing import ScriptedProvider, reply
from abeyance.storage import codec
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.locks import FileLock
from abeyance.storage.store import Committed, Put, Request
from abeyance.storage.tables.ownership import Owner

from .test_runs import BUFFER, HOUR, Effects, RefusingStore, five, states, waiting, wall
from .test_step_threads import Body, out_of_its_thread
from .world import World, until


@contextmanager
def owned_elsewhere(directory: Path, *owned: tuple[str, str]) -> Iterator[str]:
    """Within the block an opening that lives and answers nothing owns these; its nonce."""
    store = LmdbStore.open(directory, clock_ms=lambda: 1)
    for name in owned:
        row = store.get("owners", name)
        fence = 1 if row is None else row.record.fence + 1
        put = Put("owners", name, codec.encode(Owner(nonce=store.nonce, fence=fence)))
        assert isinstance(store.commit(Request(puts=(put,)))[0], Committed)
    proof = FileLock(store.directory / "owners" / store.nonce)
    store.close()
    assert proof.acquire_nowait()
    try:
        yield store.nonce
    finally:
        proof.close()


async def suspended(world: World, effects: Effects, ends_ms: int | None) -> None:
    async with world.open():
        await waiting(world, effects, ends_ms)


@pytest.mark.behaviour("S-035")
async def test_waiting_run_of_a_process_that_hangs_is_resumed_by_another_when_it_is_due(
    world: World, virtual_time: MockClock
) -> None:
    effects, ends = Effects(), world.clock.now_ms() + HOUR
    await suspended(world, effects, ends)
    with owned_elsewhere(world.directory, ("run", "report:1@1")):
        async with world.open() as runtime:
            runtime.add_workflow("report", five(effects))
            world.clock.advance(HOUR + BUFFER - 60_000)
            await trio.sleep(30)
            assert runtime.run("report:1").state == "waiting_for_capacity"
            await trio.sleep(60)
            with trio.fail_after(60):
                await until(lambda: runtime.run("report:1").state == "completed")
            assert world.rows("owners", "run", "report:1@1")[0].fence == 3
            assert states(world, "report:1").count("resuming") == 1


@pytest.mark.parametrize("act", ["resume", "cancel", "stopped resume", "stopped cancel"])
async def test_waiting_run_of_a_process_that_hangs_is_an_operators_to_move(
    world: World, virtual_time: MockClock, act: str
) -> None:
    effects = Effects()
    await suspended(world, effects, None)
    with owned_elsewhere(world.directory, ("run", "report:1@1")):
        if act.startswith("stopped"):
            store = StoppedStore(world.directory, writing=True)
            done = store.resume_run if act == "stopped resume" else store.cancel_run
            assert done("report:1").changed
            store.close()
        async with world.open() as runtime:
            runtime.add_workflow("report", five(effects))
            if act == "resume":
                assert (await runtime.resume_run("report:1", requester="ops")).changed
            if act == "cancel":
                assert (await runtime.cancel_run("report:1", requester="ops")).changed
            with trio.fail_after(60):
                ended = (await runtime.wait_run("report:1")).state
            assert ended == ("completed" if "resume" in act else "cancelled")


@pytest.mark.parametrize("act", ["look", "resume", "cancel", "stopped"])
async def test_run_that_a_live_process_executes_is_left_to_it(
    world: World, virtual_time: MockClock, act: str
) -> None:
    effects = Effects()
    effects.gates["b"] = trio.Event()
    async with world.open() as runtime:
        runtime.add_workflow("report", five(effects))
        await runtime.start_run("report:1", "report")
        await until(lambda: len(effects.keys) == 3)
    with owned_elsewhere(world.directory, ("run", "report:1@1")):
        if act == "stopped":
            store = StoppedStore(world.directory, writing=True)
            with pytest.raises(RunOwnedElsewhereError):
                store.cancel_run("report:1")
            store.close()
        async with world.open() as runtime:
            runtime.add_workflow("report", five(effects))
            await trio.sleep(300)
            if act == "resume":
                assert not (await runtime.resume_run("report:1", requester="ops")).changed
            if act == "cancel":
                with pytest.raises(RunOwnedElsewhereError):
                    await runtime.cancel_run("report:1", requester="ops")
            assert runtime.run("report:1").state == "running"
            assert len(effects.keys) == 3


@pytest.mark.parametrize("rests", ["waiting_for_capacity", "recovery_required"])
async def test_run_that_rests_with_a_thread_left_in_a_live_process_is_that_ones(
    world: World, virtual_time: MockClock, rests: str
) -> None:
    """Its item would be run beside itself; an operator who knows better takes it over."""
    slow, walls = Body(), [world.clock.now_ms() + HOUR]
    gives_up = trio.CancelScope()

    async def act() -> None:
        if walls:
            raise wall(walls.pop())

    async def body(run: RunContext, _params: Any) -> None:
        with gives_up if walls else trio.CancelScope():
            await run.do("slow", slow, in_doubt="retry")
        if rests == "recovery_required":
            await run.ask("draft", "ana", "hello")
        await run.do("act", act)

    async with world.open() as runtime:
        runtime.add_workflow("w", body)
        await runtime.start_run("k", "w")
        await until(lambda: slow.entered == 1)
        gives_up.cancel()
        await until(lambda: runtime.run("k").state == rests)
        assert world.rows("runs")[0].threads == 1
    with owned_elsewhere(world.directory, ("run", "k@1")):
        store = StoppedStore(world.directory, writing=True)
        with pytest.raises(RunOwnedElsewhereError):
            store.resume_run("k")
        store.close()
        await out_of_its_thread(slow)
        async with world.open() as runtime:
            runtime.add_workflow("w", body)
            await trio.sleep(2 * HOUR / 1_000)
            assert runtime.run("k").state == rests
            with pytest.raises(RunOwnedElsewhereError):
                await runtime.resume_run("k", requester="ops")
            assert (await runtime.take_over_run("k", requester="ops")).changed
            if rests == "recovery_required":
                walls.clear()
                await world.add([reply("hi")])
                assert runtime.run("k").state == rests
                assert (await runtime.resume_run("k", requester="ops")).changed
            with trio.fail_after(120):
                assert (await runtime.wait_run("k")).state == "completed"
    assert slow.entered == 1


# -- agents that are in another process


def asking(effects: Effects) -> Any:
    async def ask(run: RunContext, _params: Any) -> str:
        await run.do("first", effects, "first")
        return await run.ask("draft", "ana", "hello")

    return ask


async def test_run_that_asks_an_agent_of_another_process_is_left_to_that_one(
    world: World, virtual_time: MockClock
) -> None:
    effects = Effects()
    async with world.open():
        await world.add([])
    with owned_elsewhere(world.directory, ("agent", "ana"), ("slot", "ana")):
        async with world.open() as runtime:
            runtime.add_workflow("asks", asking(effects))
            await runtime.start_run("k", "asks")
            with trio.fail_after(10):
                await until(lambda: runtime.run("k").state == "resuming")
            await trio.sleep(HANDED_S - 60)
            status = runtime.run("k")
            assert (status.state, status.executed) == ("resuming", False)
            assert f"agent 'ana' is in process {os.getpid()}" in status.reason
            assert not world.ref("runs")._cell.kept.lives
    async with world.open() as runtime:
        runtime.add_workflow("asks", asking(effects))
        await world.add([reply("hi")])
        assert (await runtime.wait_run("k")).result == "hi"
    assert effects.log == ["first"]


async def test_run_with_a_thread_left_is_given_up_for_another_process_when_that_has_ended(
    world: World, virtual_time: MockClock
) -> None:
    """Nobody could join it there: its item would be run beside itself."""
    slow, gives_up = Body(), trio.CancelScope()

    async def body(run: RunContext, _params: Any) -> None:
        with gives_up:
            await run.do("slow", slow, in_doubt="retry")
        await run.ask("draft", "ana", "hello")

    async with world.open():
        await world.add([])
    with owned_elsewhere(world.directory, ("agent", "ana"), ("slot", "ana")):
        async with world.open() as runtime:
            runtime.add_workflow("w", body)
            await runtime.start_run("k", "w")
            await until(lambda: slow.entered == 1)
            gives_up.cancel()
            await until(lambda: len(runtime.run_steps("k")) == 2)
            threads = StepThreads._known
            await until(
                lambda: (
                    any(each._waiting for each in threads.values())
                    or runtime.run("k").state == "resuming"
                )
            )
            assert (runtime.run("k").state, runtime.run("k").executed) == ("running", True)
            await out_of_its_thread(slow)
            await until(lambda: runtime.run("k").state == "resuming")
            assert not runtime.run("k").executed
    async with world.open() as runtime:
        gives_up = trio.CancelScope()
        runtime.add_workflow("w", body)
        await world.add([reply("hi")])
        with trio.fail_after(120):
            assert (await runtime.wait_run("k")).state == "completed"
    assert slow.entered == 1


async def test_run_whose_agent_comes_to_the_process_that_gave_it_up_goes_on_there(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    effects = Effects()
    async with world.open():
        await world.add([])
    with owned_elsewhere(world.directory, ("agent", "ana"), ("slot", "ana")):
        async with world.open() as runtime:
            runtime.add_workflow("asks", asking(effects))
            await runtime.start_run("k", "asks")
            await until(lambda: runtime.run("k").state == "resuming")
            mine = runtime._ownership.nonce
            monkeypatch.setattr(runtime._ownership, "is_alive", lambda nonce: nonce == mine)
            await world.add([reply("hi")])
            assert (await runtime.wait_run("k")).result == "hi"


async def test_refused_commit_has_a_run_that_was_given_up_waited_for_no_longer(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    effects, refusing, refused = Effects(), RefusingStore(monkeypatch), list[float]()

    def refuses(request: Request) -> bool:
        if len(refused) == 3 or not any(put.table == "runs" for put in request.puts):
            return False
        refused.append(trio.current_time())
        return True

    async with world.open():
        await world.add([])
    with owned_elsewhere(world.directory, ("agent", "ana"), ("slot", "ana")):
        async with world.open() as runtime:
            runtime.add_workflow("asks", asking(effects))
            await runtime.start_run("k", "asks")
            await until(lambda: runtime.run("k").state == "resuming")
            given_up_s = trio.current_time()
            refusing.refuses = refuses
            with trio.fail_after(HANDED_S + 90):
                await until(lambda: runtime.run("k").state == "recovery_required")
            assert refused[0] >= given_up_s + HANDED_S
            assert len(refused) == 3
            assert states(world, "k") == ["running", "resuming", "recovery_required"]


@pytest.mark.parametrize("taken", ["by nobody", "and given back"])
async def test_run_that_no_process_can_execute_waits_for_an_operator(
    world: World, virtual_time: MockClock, taken: str
) -> None:
    effects = Effects()
    async with world.open():
        await world.add([])
    with owned_elsewhere(world.directory, ("agent", "ana"), ("slot", "ana")):
        async with world.open() as runtime:
            runtime.add_workflow("asks", asking(effects))
            await runtime.start_run("k", "asks")
            if taken == "and given back":
                # It starts again: what it knows of the run is gone, and it gives it up once more.
                await until(lambda: runtime.run("k").state == "resuming")
                world.ref("runs")._cell.kept.handed.clear()
            await trio.sleep(HANDED_S + 90)
            await until(lambda: runtime.run("k").state == "recovery_required")
            assert "have one process add both" in runtime.run("k").reason
            assert not world.ref("runs")._cell.kept.handed
    assert effects.log == ["first"]


WITHOUT_THE_AGENT = """
import sys, trio
from abeyance.actors import open_runtime

async def first():
    return "theirs"

async def ask(run, params):
    return [await run.do("first", first), await run.ask("draft", "ana", "hello")]

async def main():
    async with open_runtime(sys.argv[1], control=False) as runtime:
        runtime.add_workflow("asks", ask)
        await runtime.start_run("k", "asks")
        print("started", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)

trio.run(main)
"""


async def test_of_two_hosts_the_one_that_has_the_agent_executes_the_run_that_asks_it(
    tmp_path: Path,
) -> None:
    async def first() -> str:
        raise AssertionError("it was done by the other one")

    async def ask(run: RunContext, _params: Any) -> list[str]:
        return [await run.do("first", first), await run.ask("draft", "ana", "hello")]

    provider = ScriptedProvider([reply("hi")])
    async with open_runtime(tmp_path / "state", control=False) as runtime:
        await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        runtime.add_workflow("asks", ask)
        host = await trio.to_thread.run_sync(
            lambda: subprocess.Popen(
                [sys.executable, "-c", WITHOUT_THE_AGENT, str(tmp_path / "state")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )
        with host:
            async with trio.open_nursery() as nursery:

                async def look() -> None:
                    while True:
                        runtime._workflows.look()
                        await trio.sleep(0.05)

                nursery.start_soon(look)
                assert host.stdout is not None
                assert await trio.to_thread.run_sync(host.stdout.readline) == b"started\n"
                status = await runtime.wait_run("k")
                nursery.cancel_scope.cancel()
            assert host.stdin is not None
            host.stdin.close()
        assert status.result == ["theirs", "hi"]
        assert [step.after for step in runtime.run_history("k")] == [
            "running",
            "resuming",
            "running",
            "completed",
        ]
    assert len(provider.requests) == 1
