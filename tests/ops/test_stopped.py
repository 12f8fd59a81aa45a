"""A state directory without its host: looked at without a trace, released for the next start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import pytest
import trio

from abeyance.actors import AgentSpec, open_runtime
from abeyance.actors.domain.errors import AgentOwnedElsewhereError, UnknownAgentError
from abeyance.actors.ops import cli
from abeyance.actors.ops.client import ControlClient
from abeyance.actors.ops.stopped import NeedsHostError, StoppedStore
from abeyance.actors.providers.port import ModelRequest, ProviderError
from abeyance.actors.testing import ScriptedProvider
from abeyance.actors.testing.scripted import fail, reply
from abeyance.storage.codec import encode
from abeyance.storage.errors import ReadOnlyStoreError
from abeyance.storage.keys import encode_key
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Committed, Guard, Put, Request
from abeyance.storage.tables.slots import Held
from abeyance.storage.tables.waits import LogLine, WaitReleased


def spec(provider: ScriptedProvider, name: str = "ana") -> AgentSpec:
    return AgentSpec(name=name, provider=provider, model="m1")


async def hold(state: Path, *, retry_after: float = 7_200) -> None:
    """Leave a store behind in which ana's turn is held, and bo is idle."""
    async with open_runtime(state, control=False) as runtime:
        ana = await runtime.add_agent(spec(ScriptedProvider([fail(429, retry_after=retry_after)])))
        await runtime.add_agent(spec(ScriptedProvider([]), "bo"))
        await ana.send("hello")
        await ana.wait_idle()


def listing(state: Path) -> list[tuple[str, str, Any]]:
    """Every file of a directory with its size and its last change."""
    return sorted(
        (str(path), str(path.stat().st_mtime_ns), path.stat().st_size)
        for path in state.rglob("*")
        if path.name != "lock.mdb"  # The engine's table of readers is not part of the data.
    )


async def test_status_of_a_stopped_store_shows_the_held_turn_and_changes_nothing(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await hold(state)
    before = listing(state)
    assert cli.main(["status", str(state), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["pid"], report["started_ms"]) == (None, None)
    ana, bo = report["agents"]
    assert (ana["name"], ana["state"], ana["turn"], ana["attempts"]) == ("ana", "held", 1, 1)
    assert (ana["held"]["model"], ana["held"]["cause"]) == ("m1", "wait")
    left_ms = ana["held"]["deadline_ms"] - time.time() * 1_000
    assert 7_000_000 < left_ms <= 7_200_000
    assert (bo["state"], bo["turn"], bo["held"]) == ("idle", None, None)
    assert [(wait["agent"], wait["model"]) for wait in report["waits"]] == [("ana", "m1")]
    assert cli.main(["status", str(state)]) == 0
    assert "No host is running" in capsys.readouterr().out
    assert listing(state) == before


async def test_directory_is_told_as_an_absolute_path(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await hold(state)
    monkeypatch.chdir(state.parent)
    store = StoppedStore(Path(state.name))
    reports = [store.status(), store.check()]
    store.close()
    assert [report.directory for report in reports] == [str(state)] * 2
    async with open_runtime(state.name, control=False) as runtime:
        monkeypatch.chdir("/")
        assert runtime.status().directory == str(state)


async def test_looking_never_writes(state: Path) -> None:
    await hold(state)
    store = StoppedStore(state)
    with pytest.raises(ReadOnlyStoreError):
        store.release("ana")
    store.close()


@pytest.mark.behaviour("W-114", "W-117")
async def test_release_on_a_stopped_store_is_found_by_the_next_start(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await hold(state)
    assert cli.main(["release", str(state), "ana"]) == 0
    assert capsys.readouterr().out == "Released ana on m1: recorded.\n"
    assert cli.main(["waits", str(state)]) == 0
    assert capsys.readouterr().out == "No waits.\n"
    assert cli.main(["status", str(state), "--json"]) == 0
    [ana, _] = json.loads(capsys.readouterr().out)["agents"]
    assert ana["held"]["reason"].startswith("its wait is over or released")

    provider = ScriptedProvider([reply("here I am")])
    async with open_runtime(state, control=False) as runtime:
        ana = await runtime.add_agent(spec(provider))
        await ana.wait_idle()
        texts = [message.text async for message in ana.transcript()]
    assert texts == ["hello", "here I am"]
    assert len(provider.requests) == 1


def spoil_key(state: Path, other: bytes | None) -> None:
    """Cut ana's row of the waits off its key on disk, or put another key there."""
    with lmdb.open(str(state / "store"), max_dbs=64, map_size=2**30) as environment:
        table = environment.open_db(b"waits", create=False)
        with environment.begin(write=True, db=table) as transaction:
            key = encode_key((str, str), ("ana", "m1"))
            transaction.put(other or key[:-1], transaction.pop(key))


@pytest.mark.behaviour("W-046")
@pytest.mark.parametrize("other", [None, b"\xff\xff"], ids=["its agent's", "nobody's"])
async def test_damaged_key_is_listed_on_a_stopped_store_at_once(
    state: Path, other: bytes | None
) -> None:
    await hold(state)
    spoil_key(state, other)
    for look in (StoppedStore.waits, lambda store: store.status().waits):
        store = StoppedStore(state)
        shown = [(wait.agent, wait.model) for wait in look(store)]
        assert shown == [("*" if other else "ana", "*")]
        store.close()


@pytest.mark.behaviour("W-114")
@pytest.mark.parametrize("model", ["*", "m1"], ids=["every model", "one model"])
async def test_a_wait_whose_key_lost_a_bit_is_released_on_a_stopped_store(
    state: Path, model: str
) -> None:
    await hold(state)
    spoil_key(state, b"\2anc\0\2m1\0")
    store = StoppedStore(state, writing=True)
    assert [(wait.agent, wait.model) for wait in store.waits()] == [("ana", "m1")]
    assert [wait.model for wait in store.release("ana", model).released] == ["m1"]
    assert store.waits() == ()
    store.close()
    provider = ScriptedProvider([reply("here I am")])
    async with open_runtime(state, control=False) as runtime:
        ana = await runtime.add_agent(spec(provider))
        await ana.wait_idle()
        assert runtime.provider_waits() == ()
    assert len(provider.requests) == 1


@pytest.mark.behaviour("W-114")
@pytest.mark.parametrize("model", ["*", "m1"], ids=["every model", "one model"])
@pytest.mark.parametrize("other", [None, b"\xff\xff"], ids=["its agent's", "nobody's"])
async def test_release_of_what_has_a_damaged_key_is_refused_on_a_stopped_store(
    state: Path, other: bytes | None, model: str
) -> None:
    await hold(state)
    spoil_key(state, other)
    store = StoppedStore(state, writing=True)
    with pytest.raises(NeedsHostError, match="nothing was released; start its host"):
        store.release("ana", model)
    assert [(wait.agent, wait.model) for wait in store.waits("ana")] == [("ana", "*")]
    assert not [line for line in rows_of(store, "log") if line.event == "wait_released"]
    store.close()


@pytest.mark.behaviour("W-114")
async def test_release_of_a_credential_on_a_stopped_store_is_refused(state: Path) -> None:
    async with open_runtime(state, control=False, account_waits=True) as runtime:
        provider = ScriptedProvider([fail(429, retry_after=7_200)], key="k")
        ana = await runtime.add_agent(spec(provider))
        await ana.send("hello")
        await ana.wait_idle()
    store = StoppedStore(state, writing=True)
    before = store.waits()
    account = next(wait.agent for wait in before if wait.agent.startswith("account:"))
    with pytest.raises(NeedsHostError, match="is a credential"):
        store.release(account)
    assert store.waits() == before
    assert not [line for line in rows_of(store, "log") if line.event == "wait_released"]
    store.close()


def rows_of(store: StoppedStore, table: str) -> list[Any]:
    return [row.record for _, row in store._store.scan(table)]  # type: ignore[union-attr]


async def test_release_on_a_stopped_store_writes_what_a_ledger_writes(state: Path) -> None:
    await hold(state)
    store = StoppedStore(state, writing=True)
    [lifted] = store.release("ana", "m1").released
    assert (lifted.agent, lifted.model, lifted.reach) == ("ana", "m1", "recorded")
    assert store.release("ana", "m1").released == ()
    store.close()
    looked = LmdbStore.open(state, clock_ms=lambda: 0, read_only=True)
    row = looked.get("waits", ("ana", "m1"))
    assert row is not None
    assert isinstance(row.record, WaitReleased)
    assert row.record.by.startswith("cli:")
    lines = [line.record for _, line in looked.scan("log") if not isinstance(line, Exception)]
    released = [line for line in lines if line.event == "wait_released"]
    assert [(line.agent, line.model) for line in released] == [("ana", "m1")]
    assert isinstance(released[0], LogLine)
    looked.close()


async def test_release_of_another_model_leaves_the_wait(state: Path) -> None:
    await hold(state)
    store = StoppedStore(state, writing=True)
    assert store.release("ana", "m2").released == ()
    assert [wait.model for wait in store.waits("ana")] == ["m1"]
    store.close()


@pytest.mark.behaviour("W-108")
async def test_release_of_an_unknown_agent_is_refused_on_a_stopped_store(state: Path) -> None:
    await hold(state)
    store = StoppedStore(state, writing=True)
    with pytest.raises(UnknownAgentError):
        store.release("cy")
    assert store.release("bo").released == ()
    store.close()


NO_QUOTA = '{"error": {"type": "insufficient_quota", "code": "insufficient_quota"}}'


@pytest.mark.behaviour("W-114", "W-121")
@pytest.mark.parametrize("spoilt", [False, True], ids=["new", "over a damaged release"])
async def test_quota_hold_that_is_released_on_a_stopped_store_goes_on_at_the_next_start(
    state: Path, capsys: pytest.CaptureFixture[str], spoilt: bool
) -> None:
    def empty() -> Any:
        return fail(429, body=NO_QUOTA, provider="openai")

    async with open_runtime(state, control=False) as runtime:
        ana = await runtime.add_agent(spec(ScriptedProvider([empty()])))
        await ana.send("hello")
        await ana.wait_idle()
    assert cli.main(["status", str(state)]) == 0
    assert "ana on m1: quota, until released" in capsys.readouterr().out
    assert cli.main(["release", str(state), "ana", "--model", "m2"]) == 0
    assert capsys.readouterr().out.startswith("No wait of ana")
    if spoilt:
        store = StoppedStore(state, writing=True)
        assert store.release("ana").released
        store.close()
        damage(state, "overrides", "ana", "m1", "quota")
    assert cli.main(["release", str(state), "ana"]) == 0
    assert capsys.readouterr().out == "Released ana on m1: recorded.\n"
    assert cli.main(["release", str(state), "ana"]) == 0
    assert capsys.readouterr().out.startswith("No wait of ana"), "it was released"
    assert cli.main(["status", str(state), "--json"]) == 0
    [report] = json.loads(capsys.readouterr().out)["agents"]
    assert report["held"]["reason"].startswith("its wait is over or released")
    provider = ScriptedProvider([empty()])
    async with open_runtime(state, control=False) as runtime:
        ana = await runtime.add_agent(spec(provider))
        await ana.wait_idle()
        assert len(provider.requests) == 1
    assert cli.main(["status", str(state)]) == 0
    assert "ana on m1: quota, until released" in capsys.readouterr().out, "another hold"


async def test_release_of_every_model_ends_a_quota_hold_beside_a_wait_on_a_stopped_store(
    state: Path,
) -> None:
    steps = [fail(429, retry_after=7_200), fail(429, body=NO_QUOTA, provider="openai")]
    async with open_runtime(state, control=False) as runtime:
        ana = await runtime.add_agent(spec(ScriptedProvider(steps)))
        with pytest.raises(ProviderError):
            await ana.auxiliary_call(ModelRequest(model="m2", messages=()))
        await ana.send("hello")
        await ana.wait_idle()
    stopped = StoppedStore(state, writing=True)
    released = stopped.release("ana").released
    stopped.close()
    assert [(each.model, each.reach) for each in released] == [
        ("m2", "recorded"),
        ("m1", "recorded"),
    ]


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        ("cooldown", "its pause was over with its process; it goes on at the next start"),
        ("host", "its pause was over with its process; it goes on at the next start"),
        ("wait", "its wait is over or released; it goes on at the next start"),
    ],
)
async def test_stopped_store_says_of_a_held_turn_what_holds_it_still(
    state: Path, cause: Any, reason: str
) -> None:
    await hold(state)
    store = LmdbStore.open(state, clock_ms=lambda: 0)
    turn = store.get("turns", ("ana", 1))
    assert turn is not None
    record = msgspec.structs.replace(turn.record, held=Held(agent="ana", model="m1", cause=cause))
    released = WaitReleased(by="test", at_ms=1, act="a")
    [outcome] = store.commit(
        Request(
            guards=(Guard("turns", ("ana", 1), turn.counter),),
            puts=(
                Put("turns", ("ana", 1), encode(record)),
                Put("waits", ("ana", "m1"), encode(released)),
            ),
        )
    )
    assert isinstance(outcome, Committed)
    store.close()
    stopped = StoppedStore(state)
    held = stopped.status().agents[0].held
    stopped.close()
    assert held is not None
    assert held.reason == reason


HOST_WITHOUT_A_SOCKET = """
import sys, trio
from abeyance.actors import AgentSpec, open_runtime
from abeyance.actors.testing import ScriptedProvider

async def main():
    async with open_runtime(sys.argv[1], control=False) as runtime:
        await runtime.add_agent(AgentSpec(name="ana", provider=ScriptedProvider([]), model="m1"))
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)

trio.run(main)
"""


async def test_release_is_refused_by_pid_where_a_live_process_owns_the_agent(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await hold(state)
    host = subprocess.Popen(  # noqa: ASYNC220 - a real process is what owns.
        [sys.executable, "-c", HOST_WITHOUT_A_SOCKET, str(state)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with host:
        assert host.stdout is not None
        assert host.stdin is not None
        assert await trio.to_thread.run_sync(host.stdout.readline) == b"ready\n"
        assert cli.main(["status", str(state)]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert "No host is running" not in printed
        assert f"a process has (pid {host.pid}) the store open" in printed
        store = StoppedStore(state, writing=True)
        assert store.status().open_pids == (host.pid,)
        with pytest.raises(AgentOwnedElsewhereError) as caught:
            store.release("ana")
        assert caught.value.pid == host.pid
        assert len(store.waits("ana")) == 1
        assert store.release("bo").released == ()
        host.kill()
        host.wait()
        assert len(store.release("ana").released) == 1
        store.close()


async def test_release_is_refused_where_a_host_claims_the_agent_just_before_the_commit(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await hold(state)
    hosts: list[subprocess.Popen[bytes]] = []
    judged = StoppedStore._requests

    def boot_a_host_first(self: StoppedStore, *arguments: Any) -> Any:
        if not hosts:
            host = subprocess.Popen(
                [sys.executable, "-c", HOST_WITHOUT_A_SOCKET, str(state)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            hosts.append(host)
            assert host.stdout is not None
            assert host.stdout.readline() == b"ready\n"
        return judged(self, *arguments)

    monkeypatch.setattr(StoppedStore, "_requests", boot_a_host_first)
    store = StoppedStore(state, writing=True)
    try:
        with pytest.raises(AgentOwnedElsewhereError) as caught:
            await trio.to_thread.run_sync(store.release, "ana")
        assert caught.value.pid == hosts[0].pid
        assert [wait.model for wait in store.waits("ana")] == ["m1"]
    finally:
        store.close()
        for host in hosts:
            with host:
                host.kill()


# -- what cannot be read -------------------------------------------------------------------------


def damage(state: Path, table: str, *key: Any) -> None:
    """Flip one bit of a row's body on disk, as a bad cable would."""
    with lmdb.open(str(state / "store"), max_dbs=128, map_size=2**30) as environment:
        rows = environment.open_db(table.encode(), create=False)
        with environment.begin(write=True, db=rows) as transaction:
            raw_key = encode_key(tuple(map(type, key)), key)
            raw = bytearray(transaction.get(raw_key))
            raw[-1] ^= 1
            transaction.put(raw_key, bytes(raw))


@pytest.mark.parametrize(
    ("row", "model"),
    [(("heads", "ana"), "m1"), (("turns", "ana", 1), "m1"), (("agents", "ana"), "")],
    ids=["its head", "its turn", "itself"],
)
async def test_one_unreadable_row_shows_its_agent_as_unreadable_and_hides_no_other(
    state: Path, row: tuple[Any, ...], model: str
) -> None:
    await hold(state)
    damage(state, *row)
    store = StoppedStore(state)
    ana, bo = store.status().agents
    store.close()
    assert (ana.name, ana.state, ana.model, ana.turn) == ("ana", "unreadable", model, None)
    assert (bo.name, bo.state) == ("bo", "idle")


async def test_an_unreadable_wait_is_listed_and_can_be_released_on_a_stopped_store(
    state: Path,
) -> None:
    await hold(state)
    damage(state, "waits", "ana", "m1")
    store = StoppedStore(state, writing=True)
    assert [(wait.model, wait.deadline_ms) for wait in store.waits("ana")] == [("m1", None)]
    assert [wait.model for wait in store.release("ana").released] == ["m1"]
    assert store.waits("ana") == ()
    store.close()
    looked = LmdbStore.open(state, clock_ms=lambda: 0, read_only=True)
    row = looked.get("waits", ("ana", "m1"))
    looked.close()
    assert row is not None
    assert isinstance(row.record, WaitReleased)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("verb", [("status",), ("release", "ana")], ids=["status", "release"])
async def test_a_garbled_page_of_a_cleanly_closed_store_is_refused_by_name(
    state: Path, verb: tuple[str, ...]
) -> None:
    await hold(state)
    closed = (state / "store" / "closed.json").read_bytes()
    data = state / "store" / "data.mdb"
    content = bytearray(data.read_bytes())
    for at in range(2 * 4096, len(content), 4096):
        content[at + 16 : at + 4096] = b"\xa5" * 4080
    data.write_bytes(content)
    # In a process of its own, since the engine would end this one if it were given the file.
    done = await trio.run_process(
        [sys.executable, "-m", "abeyance.actors.ops.cli", verb[0], str(state), *verb[1:]],
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b" is damaged: " in done.stderr
    assert data.read_bytes() == content
    assert (state / "store" / "closed.json").read_bytes() == closed


# -- a real runtime behind the socket ------------------------------------------------------------


@pytest.mark.behaviour("W-109", "W-117", "W-119")
async def test_real_runtime_is_looked_at_and_released_through_its_socket(state: Path) -> None:
    provider = ScriptedProvider([fail(429, retry_after=7_200), reply("here I am")])
    async with open_runtime(state) as runtime:
        ana = await runtime.add_agent(spec(provider))
        await ana.send("hello")
        await ana.wait_idle()
        report, waits = await trio.to_thread.run_sync(_look, state)
        assert report.directory == str(state)
        assert [(agent.name, agent.state) for agent in report.agents] == [("ana", "held")]
        assert report.agents[0].held.deadline_ms == waits[0].deadline_ms
        assert report.waits == waits
        receipt = await trio.to_thread.run_sync(_release, state)
        assert [(item.model, item.reach) for item in receipt.released] == [("m1", "recorded")]
        await ana.wait_idle()
        assert [message.text async for message in ana.transcript()] == ["hello", "here I am"]
    assert os.listdir(state / "control") == []


def _look(state: Path) -> Any:
    with ControlClient(state) as client:
        return client.status(), client.waits("ana")


def _release(state: Path) -> Any:
    with ControlClient(state) as client:
        return client.release("ana", "m1")
