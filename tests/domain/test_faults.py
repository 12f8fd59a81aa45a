"""What a full disk, a lost row, a take-over and a release from elsewhere leave running."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors.core import ActorSystem, OutcomeUnknownError
from abeyance.actors.domain.errors import (
    AgentExistsError,
    AgentOwnedElsewhereError,
    InvalidMessageError,
    InvalidSpecError,
    NotStoredError,
    OwnershipLostError,
    not_stored,
)
from abeyance.actors.domain.gate import Gate as GateActor
from abeyance.actors.domain.persistence import until_stored
from abeyance.actors.domain.protocol import Settle
from abeyance.actors.opening import open_runtime
from abeyance.actors.providers.port import ProviderError
from abeyance.actors.providers.stated import StatedWait, WaitEnds, WaitKind
from abeyance.actors.testing import Gate, call_tool, fail, raise_, reply
from abeyance.storage.codec import encode
from abeyance.storage.errors import (
    DiskFullError,
    RequestTooLargeError,
    StoreLostError,
    UnreadableRecordError,
)
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import NotStored, Put, Request
from abeyance.storage.tables.ownership import Owner
from abeyance.storage.tables.waits import WaitReleased

from .test_cooldowns import GREW
from .world import World, shown, tool, until

NO_ROOM = DiskFullError("no room; nothing is stored; make room", path="memory")


class Disk:
    """Refuses commits while it is full, as the writer does."""

    def __init__(self) -> None:
        self.full = False
        self.refused = 0


@pytest.fixture
def disk(world: World, monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk, submit = Disk(), LmdbStore.submit

    def submit_or_refuse(store: LmdbStore, batch: Any, done: Any) -> None:
        if disk.full and any(request.ops for request in batch):
            disk.refused += 1
            done([NotStored(NO_ROOM)] * len(batch))
        else:
            submit(store, batch, done)

    monkeypatch.setattr(LmdbStore, "submit", submit_or_refuse)
    return disk


@contextmanager
def full(disk: Disk) -> Iterator[None]:
    disk.full = True
    try:
        yield
    finally:
        disk.full = False


@pytest.mark.parametrize("outage_s", [0.05, 3.0, 600.0])
async def test_a_turn_waits_out_a_full_disk_with_its_reply_in_hand(
    world: World, virtual_time: MockClock, disk: Disk, outage_s: float
) -> None:
    gate = Gate(reply("said once"))
    async with world.open():
        ana = await world.add([gate, reply("second")])
        await ana.send("one")
        await gate.wait_entered()
        with full(disk):
            gate.release()
            await trio.sleep(outage_s)
            assert disk.refused
            with pytest.raises(NotStoredError):
                await ana.send("not now")
        await ana.wait_idle()
        await ana.send("two")
        await ana.wait_idle()
        assert await shown(ana) == [
            "user: one",
            "assistant: said once",
            "user: two",
            "assistant: second",
        ]
        assert len(world.providers[0].requests) == 2
        assert world.ref("agent").statistics().incarnation == 1


async def test_a_start_that_finds_no_room_is_made_when_there_is_some(
    world: World, virtual_time: MockClock, disk: Disk
) -> None:
    async with world.open():
        ana = await world.add([fail(429, retry_after=60), reply("after")])
        await ana.send("one")
        await ana.wait_idle()
        with full(disk):
            await trio.sleep(90)
            assert disk.refused
            assert world.state().state == "unrecorded"
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: after"
        assert world.ref("agent").statistics().incarnation == 1


@pytest.mark.parametrize("in_doubt", ["report", "retry"])
async def test_a_tools_result_is_kept_until_it_can_be_recorded_and_its_body_runs_once(
    world: World, virtual_time: MockClock, disk: Disk, in_doubt: str
) -> None:
    runs: list[int] = []

    async def pay() -> str:
        runs.append(1)
        disk.full = True
        return "paid"

    async with world.open():
        tools = [tool("pay", pay, in_doubt=in_doubt)]
        ana = await world.add([call_tool("pay"), reply("done")], tools=tools)
        await ana.send("go")
        await until(lambda: disk.refused > 2)
        disk.full = False
        await ana.wait_idle()
        assert await shown(ana) == [
            "user: go",
            "assistant: <pay>",
            "results: =paid",
            "assistant: done",
        ]
        assert len(runs) == 1
        assert [call.state for call in world.tool_calls()] == ["done"]


async def test_a_stop_is_not_kept_by_a_disk_that_stays_full(
    world: World, virtual_time: MockClock, disk: Disk
) -> None:
    gate = Gate(reply("said once"))
    async with world.open():
        ana = await world.add([gate])
        await ana.send("one")
        await gate.wait_entered()
        disk.full = True
        gate.release()
        before = trio.current_time()
    assert trio.current_time() - before < 60
    disk.full = False
    async with world.open():
        ana = await world.add([reply("at the next start")])
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: at the next start"


async def test_what_can_never_be_stored_is_not_asked_for_again() -> None:
    asked = 0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        too_large = RequestTooLargeError("too large", field="payload", size=2, limit=1)
        raise not_stored(NotStored(too_large))

    with pytest.raises(NotStoredError):
        await until_stored(ask)
    assert asked == 1


def test_a_batch_that_a_lost_store_may_hold_is_not_called_unstored() -> None:
    lost = StoreLostError("gone; open again", path="memory")
    assert isinstance(not_stored(NotStored(lost)), OutcomeUnknownError)
    assert isinstance(not_stored(NotStored(NO_ROOM)), NotStoredError)


async def test_a_row_that_cannot_be_read_fails_its_turn_by_name_and_once(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.open() as runtime:
        ana = await world.add([reply("one")])
        await ana.send("first")
        await ana.wait_idle()
        get = LmdbStore.get

        def get_or_fail(store: LmdbStore, table: str, key: Any) -> Any:
            if table == "bodies" and key == ("ana", 1):
                raise UnreadableRecordError(
                    "bodies ('ana', 1) cannot be read", table=table, key=key, cause="checksum"
                )
            return get(store, table, key)

        monkeypatch.setattr(LmdbStore, "get", get_or_fail)
        await ana.send("second")
        await ana.wait_idle()
        assert runtime.status().agents[0].state == "idle"
        assert world.ref("agent").statistics().incarnation == 1
        assert world.turns()[-1].state == "failed"
        assert "bodies ('ana', 1)" in world.turns()[-1].error
        assert len(world.providers[0].requests) == 1


@pytest.mark.behaviour("W-117")
@pytest.mark.parametrize("stated", [7_200, "until released"])
async def test_a_release_that_another_process_recorded_ends_the_hold_at_the_next_look(
    world: World, virtual_time: MockClock, stated: Any
) -> None:
    """Nobody can tell this process of a row that another wrote; so it looks, every 30 s."""
    step = fail(429, retry_after=7_200) if stated == 7_200 else fail(429, retry_after=10**18)
    async with world.open() as runtime:
        ana = await world.add([step, reply("after")])
        await ana.send("one")
        await ana.wait_idle()
        row = runtime._store.get("waits", ("ana", "m"))
        assert row is not None
        released = WaitReleased(by="elsewhere", at_ms=world.clock.now_ms(), act="x")
        await _put_behind_its_back(runtime, "waits", ("ana", "m"), encode(released))
        await trio.sleep(31)
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: after"


async def test_a_release_of_an_agent_that_a_live_process_owns_is_refused_here(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.open() as runtime:
        ana = await world.add([fail(429, retry_after=7_200)])
        await ana.send("one")
        await ana.wait_idle()
        owner = encode(Owner(nonce="other", fence=2))
        await _put_behind_its_back(runtime, "owners", ("agent", "ana"), owner)
        monkeypatch.setattr(runtime._ownership, "is_alive", lambda nonce: True)
        with pytest.raises(AgentOwnedElsewhereError):
            await runtime.release_provider_wait("ana", requester="ops")
        assert len(runtime.provider_waits("ana")) == 1


async def test_an_agent_that_was_taken_over_says_so_to_whoever_waits_and_does_not_crash(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(reply("too late"))
    async with world.open() as runtime:
        ana = await world.add([gate])
        await ana.send("one")
        await gate.wait_entered()
        owner = encode(Owner(nonce="other", fence=2))
        await _put_behind_its_back(runtime, "owners", ("slot", "ana"), owner)
        gate.release()
        with pytest.raises(OwnershipLostError):
            await ana.wait_idle()
        with pytest.raises(OwnershipLostError):
            await ana.wait_idle()
        assert runtime.status().agents[0].state == "lost"
        assert world.ref("agent").statistics().incarnation == 1


async def test_a_gate_that_dies_while_a_wait_is_recorded_does_not_record_it_again(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Settle] = []
    settle = GateActor._settle

    def count(gate: GateActor, settlement: Settle) -> Any:
        if settlement.states is not None:
            asked.append(settlement)
            gate.actor_ref.kill("by a test")
        return settle(gate, settlement)

    monkeypatch.setattr(GateActor, "_settle", count)
    async with world.open() as runtime:
        ana = await world.add([fail(429, retry_after=3_600), reply("after")])
        await ana.send("one")
        await ana.wait_idle()
        assert world.ref("gate").statistics().incarnation == 2
        assert len(asked) == 1
        await runtime.release_provider_wait("ana", requester="ops")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: after"


@pytest.mark.parametrize("kept", [False, True], ids=["another model", "the same model"])
async def test_a_quota_hold_goes_with_its_model_and_ends_by_a_release_of_it(
    world: World, virtual_time: MockClock, kept: bool
) -> None:
    said = {"type": "invalid_request_error", "message": "Your credit balance is too low"}
    body = json.dumps({"type": "error", "error": said})
    quota = fail(400, body=body, provider="anthropic")
    async with world.open():
        ana = await world.add([quota], model="m1")
        await ana.send("one")
        await ana.wait_idle()
        assert world.state().held.cause == "quota"
    async with world.open() as runtime:
        ana = await world.add([reply("after")], model="m1" if kept else "m2")
        await ana.wait_idle()
        if kept:
            assert world.state().held.model == "m1"
            await runtime.release_provider_wait("ana", "m2", requester="ops")
            await ana.wait_idle()
            assert world.state().state == "held"
            await runtime.release_provider_wait("ana", "m1", requester="ops")
            await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: after"


@pytest.mark.behaviour("W-021")
@pytest.mark.parametrize("words", ["slow down", GREW], ids=["wait", "cooldown over a wait"])
async def test_an_agent_that_was_given_another_model_is_not_held_by_the_old_ones_wait(
    world: World, virtual_time: MockClock, words: str
) -> None:
    async with world.open():
        ana = await world.add([fail(429, retry_after=3_600, body=words)], model="m1")
        await ana.send("one")
        await ana.wait_idle()
    async with world.open() as runtime:
        ana = await world.add([reply("by m2")], model="m2")
        began = trio.current_time()
        await ana.wait_idle()
        assert trio.current_time() == began, "it goes on at once, and not at its next look"
        assert (await shown(ana))[-1] == "assistant: by m2"
        assert [wait.model for wait in runtime.provider_waits("ana")] == ["m1"]
    async with world.open():
        ana = await world.add([], model="m1")
        await ana.send("two")
        await ana.wait_idle()
        assert world.state().state == "held"


@pytest.mark.behaviour("W-011")
@pytest.mark.parametrize("stated", ["60", 60, True, "until text", "until none", "until nan"])
async def test_what_a_hosts_adapter_states_without_a_number_states_nothing(
    world: World, virtual_time: MockClock, stated: Any
) -> None:
    instants = {"until text": "60", "until none": None, "until nan": float("nan")}
    if stated in instants:
        instant: Any = instants[stated]
        kind = WaitKind.RATE_LIMITED
        stated = StatedWait(kind=kind, ends=WaitEnds.UNTIL, deadline_ms=instant)
    error = ProviderError("slow down", retryable=True, stated=stated)
    async with world.open() as runtime:
        ana = await world.add([raise_(error), reply("after a pause")])
        await ana.send("one")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: after a pause"
        assert runtime.provider_waits() == ()
        assert world.ref("agent").statistics().incarnation == 1


@pytest.mark.behaviour("D-090")
@pytest.mark.parametrize("blank", ["", "  \n", [{"type": "text", "text": " "}]])
async def test_a_message_that_says_nothing_is_refused(
    world: World, virtual_time: MockClock, blank: Any
) -> None:
    async with world.open():
        ana = await world.add([])
        with pytest.raises(InvalidMessageError, match="blank"):
            await ana.send(blank)
        assert await shown(ana) == []


@pytest.mark.behaviour("D-004")
async def test_two_agents_cannot_be_the_same_participant_by_two_spellings(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        await world.add([], "Ada")
        for name in ("ada", "ADA", "\uff21da"):
            with pytest.raises(AgentExistsError, match="Ada"):
                await world.add([], name)


@pytest.mark.behaviour("W-113")
async def test_a_repeated_release_of_an_agent_that_is_gone_offers_what_is_pending_again(
    world: World, virtual_time: MockClock, disk: Disk
) -> None:
    async with world.open():
        ana = await world.add([fail(429, retry_after=3_600)])
        await ana.send("one")
        await ana.wait_idle()
    async with world.open() as runtime:
        with full(disk):
            receipt = await runtime.release_provider_wait("ana", requester="ops")
        assert [wait.reach for wait in receipt.released] == ["pending"]
        await runtime.release_provider_wait("ana", requester="ops")
        await until(lambda: not runtime._waits.pending)
    async with world.open() as runtime:
        assert runtime.provider_waits() == ()


@pytest.mark.behaviour("W-121")
async def test_health_counts_what_is_not_stored_yet_and_the_calls_that_are_out(
    world: World, virtual_time: MockClock, disk: Disk
) -> None:
    gate = Gate(then=fail(429, retry_after=3_600))
    async with world.open() as runtime:
        ana, bo = await world.add([gate]), await world.add([], "bo")
        await ana.send("one")
        await gate.wait_entered()
        assert [runtime.health()[name].admission.calls for name in ("ana", "bo")] == [1, 0]
        with full(disk):
            gate.release()
            await until(lambda: runtime.health()["ana"].admission.pending == 1)
            ana_now, bo_now = runtime.health()["ana"], runtime.health()["bo"]
            assert [wait.model for wait in ana_now.admission.waits] == ["m"], "it binds already"
            assert (ana_now.can_call, ana_now.admission.calls) == (False, 0)
            assert (bo_now.can_call, bo_now.admission.pending) == (True, 0)
        await trio.sleep(31)
        await bo.wait_idle()
        assert runtime.health()["ana"].admission.pending == 0


async def test_a_parked_agent_runs_again_with_what_was_accepted_for_it(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate()
    async with world.open() as runtime:
        ana = await world.add([gate, reply("one"), reply("two")])
        await ana.send("go")
        await gate.wait_entered()
        for _ in range(6):
            await until(lambda: world.ref("agent").statistics().state == "running")
            lives = world.ref("agent").statistics().incarnation
            world.ref("agent").kill("by a test")
            await until(lambda lives=lives: _has_fallen(world, lives))
        await until(lambda: world.state().state == "parked")
        await ana.send("while parked")
        assert await runtime.resume_agent("ana")
        assert not await runtime.resume_agent("ana")
        await ana.wait_idle()
        assert any("while parked" in line for line in await shown(ana))


async def test_a_system_whose_asks_expire_is_refused_before_anything_is_opened(
    tmp_path: Path,
) -> None:
    async with ActorSystem() as system:
        with pytest.raises(InvalidSpecError, match="ask_timeout_s"):
            async with open_runtime(tmp_path / "state", system=system):
                raise AssertionError("opened")
    assert not (tmp_path / "state").exists()


def _has_fallen(world: World, lives: int) -> bool:
    seen = world.ref("agent").statistics()
    return seen.incarnation > lives or seen.state == "held"


async def _put_behind_its_back(runtime: Any, table: str, key: Any, value: Any) -> None:
    """As another process would: the row changes, and nobody here is told."""
    await runtime._journal.ask(Request(puts=(Put(table, key, value),)))
