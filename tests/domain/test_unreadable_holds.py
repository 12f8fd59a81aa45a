"""Holds for waits that cannot be read, and releases that no wait's record can carry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
import trio
from trio.testing import MockClock

from abeyance.actors.domain.agent_acts import StopTurns
from abeyance.actors.domain.protocol import Admit, ReleasedWait, Settle
from abeyance.actors.providers.port import Permit
from abeyance.actors.testing import fail, reply
from abeyance.storage.errors import StoreIOError
from abeyance.storage.keys import encode_key
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import NotStored

from .desk import disk_full
from .test_holds import quota, state_wait
from .world import World, shown, until


class Broken:
    """Makes the table of waits unreadable, as a disk that fails does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        get, scan = LmdbStore.get, LmdbStore.scan
        self.on = True

        def bad_get(store: LmdbStore, table: str, key: Any) -> Any:
            self._check(table)
            return get(store, table, key)

        def bad_scan(store: LmdbStore, table: str, *args: Any, **how: Any) -> Iterator[Any]:
            self._check(table)
            return scan(store, table, *args, **how)

        monkeypatch.setattr(LmdbStore, "get", bad_get)
        monkeypatch.setattr(LmdbStore, "scan", bad_scan)

    def _check(self, table: str) -> None:
        if self.on and table == "waits":
            raise StoreIOError("input/output error; nothing was read", path="store", errno=5)


@pytest.mark.behaviour("W-038", "W-039", "W-044", "W-047")
async def test_a_table_that_cannot_be_read_holds_everyone_and_ends_by_itself_when_it_heals(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Broken(monkeypatch)
    async with world.open() as runtime:
        agents = [await world.add([reply("healed")], name) for name in ("ana", "bo")]
        for agent in agents:
            await agent.send("go")
            await agent.wait_idle()
        for name in ("ana", "bo"):
            assert (world.state(name).state, world.state(name).held.cause) == ("held", "unreadable")
        assert [(wait.agent, wait.model) for wait in runtime.provider_waits()] == [("*", "*")]
        assert [wait.model for wait in runtime.status().waits] == ["*"]
        await trio.sleep(40)
        broken.on = False
        assert not any(provider.requests for provider in world.providers)
        await trio.sleep(21)
        for agent in agents:
            await agent.wait_idle()
            assert (await shown(agent))[-1] == "assistant: healed"
        assert [len(provider.requests) for provider in world.providers] == [1, 1]
        assert runtime.provider_waits() == ()


@pytest.mark.behaviour("W-045")
async def test_a_table_that_heals_holds_its_waits_to_their_instants(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_ms = world.clock.now_ms() + 90_000
    async with world.open():
        await state_wait(world, ends_ms)
    broken = Broken(monkeypatch)
    async with world.open():
        ana = await world.add([reply("after")])
        await ana.send("go")
        await ana.wait_idle()
        assert world.state().held.deadline_ms is None
        broken.on = False
        await trio.sleep(31)
        await until(lambda: world.state().held.cause == "wait")
        assert world.state().held.deadline_ms == ends_ms
        await trio.sleep((ends_ms - world.clock.now_ms()) / 1_000 - 1)
        await ana.wait_idle()
        assert not world.providers[0].requests, "not before"
        await trio.sleep(2)
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: after"


@pytest.mark.behaviour("W-051", "W-052", "R-18")
async def test_a_release_during_it_runs_its_agents_turn_and_survives_a_restart_that_cannot_read(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.open():
        await state_wait(world, None)
    broken = Broken(monkeypatch)
    async with world.open() as runtime:
        ana, bo = await world.add([reply("let")]), await world.add([], "bo")
        for agent in (ana, bo):
            await agent.send("go")
            await agent.wait_idle()
        receipt = await runtime.release_provider_wait("ana", "*", requester="ops")
        assert receipt.released == (ReleasedWait("ana", "*", "recorded"),)
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: let"
        await bo.wait_idle()
        assert world.state("bo").state == "held"
    async with world.open():
        ana, bo = await world.add([reply("again")]), await world.add([], "bo")
        await ana.send("more")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: again"
        await bo.wait_idle()
        assert world.state("bo").state == "held"
    broken.on = False
    async with world.open() as runtime:
        ana = await world.add([reply("still")])
        assert runtime.provider_waits() == (), "the hidden wait was released with the rest"
        await ana.send("more")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: still"


@pytest.mark.drawn(1)
@pytest.mark.behaviour("R-17", "W-049")
@pytest.mark.parametrize("how", ["a row", "the rows of an agent"])
async def test_a_page_that_cannot_be_read_holds_its_agent_alone_and_is_told_of_once(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    get, scan, bad = LmdbStore.get, LmdbStore.scan, True
    error = StoreIOError("a page is gone; nothing was read", path="store", errno=5)

    def bad_get(store: LmdbStore, table: str, key: Any) -> Any:
        if bad and table == "waits" and key[0] == "ana":
            raise error
        return get(store, table, key)

    def bad_scan(store: LmdbStore, table: str, prefix: Any = (), **options: Any) -> Any:
        if bad and how != "a row" and table == "waits" and prefix[:1] == ("ana",):
            raise error
        return scan(store, table, prefix, **options)

    monkeypatch.setattr(LmdbStore, "get", bad_get)
    monkeypatch.setattr(LmdbStore, "scan", bad_scan)
    async with world.open() as runtime:
        ana, bo = await world.add([reply("healed")]), await world.add([reply("ran")], "bo")
        for agent in (ana, bo):
            await agent.send("go")
            await agent.wait_idle()
        assert (await shown(bo))[-1] == "assistant: ran"
        held = [("ana", "m" if how == "a row" else "*")]
        for _ in range(24):
            await trio.sleep(3_600)
            assert world.state().held.cause == "unreadable"
            assert [(wait.agent, wait.model) for wait in runtime.provider_waits()] == held
            assert [(wait.agent, wait.model) for wait in runtime.provider_waits("ana")] == held
        assert [(alert.agent, alert.model) for alert in runtime.alerts()] == held
        bad = False
        await trio.sleep(61)
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: healed"
        assert runtime.provider_waits() == ()


@pytest.mark.behaviour("R-17")
async def test_a_damaged_key_on_disk_holds_its_agent_until_it_is_released(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        await state_wait(world, None)
        await state_wait(world, None, "bo")
    cut_key(world.directory / "store", ("ana", "m"), value=True)
    async with world.open() as runtime:
        ana, cy = await world.add([reply("free")]), await world.add([reply("fine")], "cy")
        for agent in (ana, cy):
            await agent.send("go")
            await agent.wait_idle()
        assert (world.state().state, world.state().held.cause) == ("held", "unreadable")
        assert (await shown(cy))[-1] == "assistant: fine"
        listed = [(wait.agent, wait.model) for wait in runtime.provider_waits()]
        assert listed == [("ana", "*"), ("bo", "m")]
        await runtime.release_provider_wait("ana", requester="ops")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: free"
    async with world.open():
        ana = await world.add([reply("free")])
        await ana.send("go")
        await ana.wait_idle()
        assert world.state().state == "idle"


@pytest.mark.behaviour("R-17")
@pytest.mark.parametrize("other", [b"\2anc\0\2m\0", b"\2a\xeea\0\2m\0"], ids=["a name", "no text"])
async def test_a_held_turn_whose_waits_key_lost_a_bit_stays_held_and_nobody_else_is(
    world: World, virtual_time: MockClock, other: bytes
) -> None:
    async with world.open():
        ana = await world.add([fail(429, retry_after=7_200)])
        await ana.send("go")
        await ana.wait_idle()
        assert world.state().held.cause == "wait"
    cut_key(world.directory / "store", ("ana", "m"), other)
    async with world.open() as runtime:
        anc, ana = await world.add([reply("mine")], "anc"), await world.add([reply("free")])
        await anc.send("go")
        await trio.sleep(60)
        await anc.wait_idle()
        assert (await shown(anc))[-1] == "assistant: mine"
        assert world.state().state == "held", "no call was made"
        assert [(alert.agent, alert.model) for alert in runtime.alerts()][-1] == ("ana", "m")
        await runtime.release_provider_wait("ana", requester="ops")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: free"


def cut_key(
    directory: Path, key: tuple[str, str], other: bytes | None = None, *, value: bool = False
) -> None:
    """Take the last byte off a row's key on disk, or put another key there; off its value, too."""
    with lmdb.open(str(directory), max_dbs=64, map_size=2**30) as environment:
        table = environment.open_db(b"waits", create=False)
        with environment.begin(write=True, db=table) as transaction:
            raw_key = encode_key((str, str), key)
            raw = transaction.pop(raw_key)
            transaction.put(raw_key[:-1] if other is None else other, raw[:-1] if value else raw)


async def test_a_released_quota_hold_stays_released_when_the_process_ends_at_once(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([quota()])
        await ana.send("go")
        await ana.wait_idle()
        # Nothing acts on the release any more, as when the process dies behind it.
        await world.ref("agent").ask(StopTurns())
        receipt = await runtime.release_provider_wait("ana", "m", requester="ops")
        assert receipt.released == (ReleasedWait("ana", "m", "recorded"),)
        again = await runtime.release_provider_wait("ana", requester="ops")
        assert again.released == ()
    async with world.open() as runtime:
        ana = await world.add([quota(), reply("paid")])
        await ana.wait_idle()
        assert len(world.providers[1].requests) == 1, "it was released"
        assert world.state().held.cause == "quota", "the next one is another hold"
    async with world.open() as runtime:
        ana = await world.add([reply("paid")])
        await ana.wait_idle()
        assert world.state().held.cause == "quota", "and outlives the next start"
        await runtime.release_provider_wait("ana", requester="ops")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: paid"


async def test_a_release_of_another_model_leaves_a_quota_hold(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([quota(), fail(500)])
        await ana.send("go")
        await ana.wait_idle()
        receipt = await runtime.release_provider_wait("ana", "other", requester="ops")
        assert receipt.released == ()
        await ana.wait_idle()
        assert world.state().held.cause == "quota"
        assert world.rows("overrides") == []


async def test_what_could_not_be_recorded_is_offered_a_last_time_when_the_runtime_ends(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, full = LmdbStore.submit, [True]

    def refusing(store: LmdbStore, batch: Any, done: Any) -> None:
        if full[0] and any(put.table == "waits" for request in batch for put in request.puts):
            done([NotStored(disk_full())] * len(batch))
            return
        submit(store, batch, done)

    monkeypatch.setattr(LmdbStore, "submit", refusing)
    async with world.open() as runtime:
        await state_wait(world, None)
        assert len(runtime.provider_waits()) == 1
        assert world.rows("waits") == []
        full[0] = False
    async with world.open() as runtime:
        assert [wait.model for wait in runtime.provider_waits("ana")] == ["m"]


@pytest.mark.behaviour("R-18")
@pytest.mark.parametrize("how", ["a row", "the rows of an agent"])
async def test_a_release_of_a_page_that_cannot_be_read_runs_the_turn_and_outlasts_restarts(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    get, scan = LmdbStore.get, LmdbStore.scan
    error = StoreIOError("a page is gone; nothing was read", path="store", errno=5)

    def bad_get(store: LmdbStore, table: str, key: Any) -> Any:
        if table == "waits" and key[0] == "ana":
            raise error
        return get(store, table, key)

    def bad_scan(store: LmdbStore, table: str, prefix: Any = (), **options: Any) -> Any:
        if how != "a row" and table == "waits" and prefix[:1] == ("ana",):
            raise error
        return scan(store, table, prefix, **options)

    monkeypatch.setattr(LmdbStore, "get", bad_get)
    monkeypatch.setattr(LmdbStore, "scan", bad_scan)
    async with world.open() as runtime:
        ana = await world.add([reply("released")])
        await ana.send("go")
        await ana.wait_idle()
        assert world.state().held.cause == "unreadable"
        (released,) = (await runtime.release_provider_wait("ana", requester="ops")).released
        assert released.reach == "recorded"
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: released"
    for number in range(2):
        async with world.open() as runtime:
            ana = await world.add([reply(f"still {number}")])
            await ana.send("more")
            await ana.wait_idle()
            assert (await shown(ana))[-1] == f"assistant: still {number}"
            assert len(runtime.alerts()) == 1, "of the hold before the release"


@pytest.mark.behaviour("W-054")
async def test_an_auxiliary_call_that_names_no_model_is_refused_while_nothing_can_be_read(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Broken(monkeypatch)
    async with world.open():
        await world.add([])
        refused = await world.ref("gate").ask(Admit(None, "auxiliary"))
        assert (refused.cause, refused.model, refused.deadline_ms) == ("unreadable", "*", None)
        assert not world.permits_out()
        broken.on = False
        await trio.sleep(31)
        permit = await world.ref("gate").ask(Admit(None, "auxiliary"))
        assert isinstance(permit, Permit)
        world.ref("gate").tell(Settle(permit, "unknown"))
