"""Faults at commits: what was acknowledged is there, once, whatever happens around a commit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import trio

from abeyance.actors import AgentSpec, HostedRuntime, open_runtime
from abeyance.actors.core import ActorSystem
from abeyance.actors.domain.errors import InvalidSpecError, NotStoredError
from abeyance.actors.testing import Faults, HostClock, ScriptedProvider, settled
from abeyance.storage.errors import CommitFailedError


@pytest.fixture
def clock():
    return HostClock()


def echo() -> AgentSpec:
    return AgentSpec(name="ana", provider=ScriptedProvider.echo(), model="m")


async def said(agent) -> list[str]:
    return [message.text async for message in agent.transcript()]


async def test_refused_commit_is_not_stored_and_nothing_of_it_is_there(tmp_path, clock):
    faults = Faults(1)
    with faults:
        async with open_runtime(tmp_path / "state", control=False, faults=faults) as runtime:
            ana = await runtime.add_agent(echo())
            faults.at("before_commit", nth=1).refuse()
            with pytest.raises(NotStoredError) as caught:
                await ana.send("lost", id="1")
            assert isinstance(caught.value.__cause__, CommitFailedError)
            await ana.send("kept", id="2")
            await ana.wait_idle()
            await settled(runtime)
            assert await said(ana) == ["kept", "kept"]


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
async def test_journal_killed_around_a_commit_loses_no_outcome(tmp_path, clock, point):
    faults = Faults(1)
    with faults:
        async with open_runtime(tmp_path / "state", control=False, faults=faults) as runtime:
            ana = await runtime.add_agent(echo())
            faults.at(point, nth=1).kill()
            await ana.send("hello")
            await ana.wait_idle()
            assert await said(ana) == ["hello", "hello"]
            await settled(runtime)
            assert runtime._journal.statistics().incarnation == 2


async def test_predicate_of_a_commit_gets_its_requests(tmp_path, clock):
    faults = Faults(1)
    tables: list[set[str]] = []

    def look(requests) -> bool:
        tables.append({put.table for request in requests for put in request.puts})
        return False

    faults.at("before_commit", message=look).refuse()
    with faults:
        async with open_runtime(tmp_path / "state", control=False, faults=faults) as runtime:
            await runtime.add_agent(echo())
    assert {"owners", "agents"} <= set().union(*tables)


_CHILD = """
import sys
import trio
from abeyance.actors import AgentSpec, open_runtime
from abeyance.actors.testing import Faults, ScriptedProvider

async def main():
    faults = Faults(1)
    async with open_runtime(sys.argv[1], control=False, faults=faults) as runtime:
        ana = await runtime.add_agent(
            AgentSpec(name="ana", provider=ScriptedProvider.echo(), model="m")
        )
        faults.at(sys.argv[2], nth=1).exit(9)
        await ana.send("hello", id="1")

trio.run(main)
"""


@pytest.mark.parametrize(("point", "is_there"), [("before_commit", False), ("after_commit", True)])
async def test_process_that_exits_around_a_commit_left_all_of_it_or_nothing(
    tmp_path: Path, clock, point: str, is_there: bool
):
    state = tmp_path / "state"
    done = await trio.run_process(
        [sys.executable, "-c", _CHILD, str(state), point],
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )
    assert done.returncode == 9, done.stderr
    async with open_runtime(state, control=False) as runtime:
        ana = await runtime.add_agent(echo())
        await ana.wait_idle()
        there = ["hello", "hello"] if is_there else []
        assert await said(ana) == there
        await ana.send("hello", id="1")
        await ana.wait_idle()
        assert await said(ana) == ["hello", "hello"]


@pytest.mark.parametrize("seed", [11, 12, 13])
async def test_turns_end_once_whoever_crashes_by_chance(tmp_path, clock, seed):
    """Every domain actor is at least once and keyed: crashes change how, not what."""
    faults = Faults(seed)
    with faults:
        async with open_runtime(tmp_path / "state", control=False, faults=faults) as runtime:
            ana = await runtime.add_agent(echo())
            for point in ("before_handle", "after_handle_before_ack"):
                for actor in ("slot:ana", "gate:ana", "journal", "ledger"):
                    faults.at(point, actor=actor, probability=0.15, times=2).crash()
            for n in range(6):
                await ana.send(f"message {n}", id=str(n))
                await ana.wait_idle()
            assert len(faults.fired) >= 4
            faults.clear()
            await settled(runtime)
            assert await said(ana) == [
                text for n in range(6) for text in (f"message {n}", f"message {n}")
            ]


def test_hosted_runtime_takes_faults_and_a_clock(tmp_path):
    faults = Faults(1)
    with (
        faults,
        HostedRuntime(
            tmp_path / "state", control=False, faults=faults, trio_clock=HostClock()
        ) as host,
    ):
        faults.at("bridge_call", nth=1).crash(ConnectionError("cut"))
        with pytest.raises(ConnectionError):
            host.add_agent(echo())
        ana = host.add_agent(echo())
        faults.at("before_commit", nth=1).refuse()
        with pytest.raises(NotStoredError):
            ana.send("lost")
        ana.send("kept")
        ana.wait_idle()
        assert [message.text for message in ana.transcript()] == ["kept", "kept"]
    assert [fired.point for fired in faults.fired] == ["bridge_call", "before_commit"]


async def test_system_with_other_faults_than_its_runtime_is_refused(tmp_path):
    async with ActorSystem(ask_timeout_s=None, faults=Faults(1)) as system:
        with pytest.raises(InvalidSpecError, match=r"system\.faults"):
            async with open_runtime(tmp_path / "state", system=system):
                raise AssertionError("opened")
    assert not (tmp_path / "state").exists()
