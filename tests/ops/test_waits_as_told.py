"""What every door says of a wait that is not stored yet, and of a release that finds nothing."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from abeyance.actors import AgentSpec, Runtime, open_runtime
from abeyance.actors.domain.errors import UnknownAgentError
from abeyance.actors.domain.protocol import RecordWait
from abeyance.actors.ops import render
from abeyance.actors.ops.reports import WaitReport
from abeyance.actors.ops.stopped import StoppedStore
from abeyance.actors.testing import ScriptedProvider, WallClock, fail
from abeyance.storage.errors import DiskFullError
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import NotStored

from .test_cli import run
from .test_control import asked, in_thread, request
from .test_surfaces import DOORS, HOUR_MS, Door, Http, Socket, opened

ACCOUNT = "account:" + "ab" * 16


class Full:
    """A disk that takes no commit while it is full."""

    is_full = False


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Full:
    disk, submit = Full(), LmdbStore.submit

    def submit_or_refuse(store: LmdbStore, batch: Any, done: Any) -> None:
        if disk.is_full and any(each.ops for each in batch):
            error = DiskFullError("no room; nothing is stored; make room", path="memory")
            done([NotStored(error)] * len(batch))
        else:
            submit(store, batch, done)

    monkeypatch.setattr(LmdbStore, "submit", submit_or_refuse)
    return disk


async def told(way: Door, verb: str) -> dict[tuple[str, str], bool]:
    """Which of the waits that a door tells are not stored yet."""
    runtime = way.runtime
    if isinstance(way, Http):
        waits = (await way._ask("GET", verb)).json()["waits"]
    elif isinstance(way, Socket):
        (answer,) = await in_thread(asked, way.state, request(verb))
        waits = answer["result"]["waits"]
    else:
        listed = runtime.provider_waits() if verb == "waits" else runtime.status().waits
        waits = [wait._asdict() for wait in listed]
    return {(wait["agent"], wait["model"]): wait["pending"] for wait in waits}


@pytest.mark.behaviour("W-024", "W-119", "W-121")
@pytest.mark.parametrize("verb", ["waits", "status"])
@pytest.mark.parametrize("door", DOORS)
async def test_a_wait_that_is_not_stored_yet_is_marked_at_every_door_until_it_is(
    state: Path, disk: Full, door: type[Door], verb: str
) -> None:
    async with opened(state, door) as way:
        stored = {("ana", "m1"), ("ana", "m2"), ("bo", "m1"), ("gone", "m1")}
        assert await told(way, verb) == dict.fromkeys(stored, False)
        disk.is_full = True
        later_ms = way.runtime.clock.now_ms() + 2 * HOUR_MS
        # A longer one of a key that has one, a shorter one, and one of a new key.
        for key, deadline_ms in (
            (("ana", "m1"), later_ms),
            (("ana", "m2"), later_ms - 3 * HOUR_MS // 2),
            (("ana", "m3"), None),
        ):
            await way.runtime._ledger.ask(RecordWait(*key, deadline_ms, "slow down"))
        expected = dict.fromkeys(stored, False) | {("ana", "m1"): True, ("ana", "m3"): True}
        assert await told(way, verb) == expected
        (ana,) = [each for each in way.runtime.status().agents if each.name == "ana"]
        assert [wait.pending for wait in ana.admission.waits] == [True, False, True]
        disk.is_full = False
        await way.runtime._ledger.ask(RecordWait("bo", "m2", later_ms, "another act"))
        assert await told(way, verb) == dict.fromkeys(expected | {("bo", "m2"): False}, False)


@pytest.mark.parametrize("columns", [120, 40], ids=["a table", "blocks"])
def test_a_wait_that_is_not_stored_yet_is_marked_in_what_is_printed(columns: int) -> None:
    waits = tuple(
        WaitReport(
            agent=agent, model="m", deadline_ms=None, reason="slow", set_ms=0, pending=pending
        )
        for agent, pending in (("ana", True), ("bo", False))
    )
    out = io.StringIO()
    render.print_waits(Console(file=out, width=columns), waits, 0)
    first, second = out.getvalue().split("bo")
    assert "not stored yet" in " ".join(first.split())
    assert "stored" not in second


# -- a release that finds nothing ----------------------------------------------------------------


@pytest.mark.behaviour("W-108", "W-110")
@pytest.mark.parametrize("door", DOORS)
async def test_a_second_release_of_an_agent_that_is_gone_lifts_nothing_and_is_no_error(
    state: Path, door: type[Door]
) -> None:
    async with opened(state, door) as way:
        assert await way.release("gone", "m1") == ["m1"]
        assert await way.release("gone", "m1") == []
        assert await way.release("gone", "*") == []
        assert await way.release("never", "m1") == "unknown_agent"


@pytest.mark.behaviour("W-108")
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_closed_conversations_wait_is_released_twice_without_an_error(
    state: Path, restarted: bool
) -> None:
    clock = WallClock()
    async with open_runtime(state, clock=clock) as runtime:
        name = await _closed_while_held(runtime)
        assert [item.model for item in await _release(runtime, name)] == ["m1"]
        if not restarted:
            assert await _release(runtime, name) == ()
    if restarted:
        async with open_runtime(state, clock=clock) as runtime:
            assert await _release(runtime, name) == ()
            with pytest.raises(UnknownAgentError):
                await _release(runtime, "nobody")
    store = StoppedStore(state, writing=True)
    assert store.release(name).released == ()
    with pytest.raises(UnknownAgentError):
        store.release("nobody")
    store.close()


async def _closed_while_held(runtime: Runtime) -> str:
    provider = ScriptedProvider([fail(429, retry_after=7_200)])
    await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m1"))
    fork = await runtime.open_conversation("ana", channel="c1")
    await fork.send("go")
    await fork.wait_idle()
    await fork.close()
    return str(fork.name)


async def _release(runtime: Runtime, agent: str) -> tuple[Any, ...]:
    released = (await runtime.release_provider_wait(agent, requester="ops")).released
    return tuple(released)


@pytest.mark.behaviour("W-108")
async def test_an_ended_wait_leaves_its_agent_known_and_a_credential_that_never_was_is_not(
    state: Path,
) -> None:
    clock = WallClock()
    async with open_runtime(state, clock=clock) as runtime:
        await runtime._ledger.ask(RecordWait("gone", "m1", clock.now_ms() + 1_000, "slow down"))
        clock.advance(2_000)
        assert runtime.provider_waits() == ()
        assert await _release(runtime, "gone") == ()
        with pytest.raises(UnknownAgentError):
            await _release(runtime, ACCOUNT)
    store = StoppedStore(state, writing=True)
    assert store.release("gone").released == ()
    store.close()


@pytest.mark.behaviour("W-104", "W-110")
@pytest.mark.parametrize("stopped", [False, True], ids=["by its host", "on a stopped store"])
async def test_a_release_that_lifts_nothing_says_so_in_words_and_in_json(
    state: Path, capsys: pytest.CaptureFixture[str], stopped: bool
) -> None:
    expected = (
        "No wait of ana was binding in that scope; nothing to release. What binds it is on m1, m2."
    )
    way = opened(state, Socket)
    await way.__aenter__()
    if stopped:
        await way.__aexit__(None, None, None)
    try:
        assert await run("release", str(state), "ana", "--model", "m9", "--json") == 0
        report = json.loads(capsys.readouterr().out)
        assert report == {"released": [], "nothing": expected}
        assert await run("release", str(state), "ana", "--model", "m9") == 0
        assert " ".join(capsys.readouterr().out.split()) == expected
        assert await run("release", str(state), "ana", "--json") == 0
        lifted = json.loads(capsys.readouterr().out)
        assert [item["model"] for item in lifted["released"]] == ["m1", "m2"]
        assert lifted["nothing"] is None
        assert await run("release", str(state), "ana", "--json") == 0
        assert json.loads(capsys.readouterr().out)["nothing"] == expected.partition(" What")[0]
    finally:
        if not stopped:
            await way.__aexit__(None, None, None)
