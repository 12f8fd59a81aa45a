"""Account-wide walls: whom one agent's limit holds, and how they start again when it ends."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import AgentSpec
from abeyance.actors.domain.accounts import Accounts, Wall
from abeyance.actors.domain.alert_book import AlertDesk
from abeyance.actors.domain.errors import (
    CallDeferredError,
    InvalidNameError,
    RunExhaustedError,
    UnknownAgentError,
)
from abeyance.actors.domain.protocol import Admit, RecordWait, ReleasedWait, Settle
from abeyance.actors.domain.wait_book import ACCOUNT, WaitBook
from abeyance.actors.providers.credentials import fingerprint
from abeyance.actors.providers.port import Permit, ProviderError
from abeyance.actors.providers.stated import StatedWait, WaitEnds, WaitKind, WaitScope
from abeyance.actors.testing import Gate, ScriptedProvider, WallClock, fail, reply
from abeyance.actors.testing.scripted import raise_
from abeyance.storage import codec
from abeyance.storage.errors import StoreIOError, UnreadableRecordError
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.store import Key, Put, Request, Row
from abeyance.storage.tables.waits import Wait, WaitReleased

from .books import SECOND, open_books
from .desk import DeskStore, rows
from .test_alerts import settled
from .test_auxiliary import ask
from .world import World, shown, until

NAMES = ("ana", "bo", "cy", "di")


async def add(world: World, name: str, *steps: Any, key: str | None = "k", **spec: Any) -> Any:
    return await world.add(world.provider(steps, key=key), name, **spec)


async def bare(world: World, name: str, *steps: Any, model: str = "m") -> Any:
    """An agent of the same key for auxiliary calls, whose requests are of no slot."""
    provider = ScriptedProvider(list(steps), clock=world.clock, key="k")
    return await world.runtime.add_agent(AgentSpec(name=name, provider=provider, model=model))


def calls(world: World) -> list[int]:
    return [len(provider.requests) for provider in world.providers]


# -- a runtime -----------------------------------------------------------------------------------


@pytest.mark.behaviour("R-35")
@pytest.mark.parametrize("on", [True, False], ids=["switched on", "by default"])
async def test_a_wall_of_one_agent_holds_the_others_of_its_key_where_the_host_wants_that(
    world: World, virtual_time: MockClock, on: bool
) -> None:
    async with world.open(account_waits=on) as runtime:
        ana = await add(world, "ana", fail(429, retry_after=600), reply("ana"))
        bo = await add(world, "bo", reply("bo"))
        other = await add(world, "other", reply("other"), key="another")
        none = await add(world, "none", reply("none"), key=None)
        await ana.send("go")
        await ana.wait_idle()
        for agent in (bo, other, none):
            await agent.send("go")
            await agent.wait_idle()
        assert world.state("bo").state == ("held" if on else "idle")
        assert (await shown(other))[-1] == "assistant: other"
        assert (await shown(none))[-1] == "assistant: none"
        listed = [(wait.agent.partition(":")[0], wait.model) for wait in runtime.provider_waits()]
        assert listed == [("ana", "m"), *([("account", "m")] if on else [])]
        if on:
            held = world.state("bo").held
            assert held.cause == "account"
            assert held.deadline_ms == world.state("ana").held.deadline_ms
            assert ACCOUNT in held.reason
    # The rows outlast the process; whoever asks first after it is held all the same.
    async with world.open(account_waits=on):
        bo = await add(world, "bo", reply("bo"))
        await bo.send("more")
        await bo.wait_idle()
        assert world.state("bo").state == ("held" if on else "idle")
        await trio.sleep(700)
        await bo.wait_idle()
        assert (await shown(bo))[-1] == "assistant: bo"


@pytest.mark.behaviour("R-35")
async def test_held_turns_start_one_by_one_when_the_wall_ends(
    world: World, virtual_time: MockClock
) -> None:
    gates = {name: Gate(then=reply(name)) for name in NAMES[1:]}
    async with world.open(account_waits=True):
        ana = await add(world, "ana", fail(429, retry_after=600), reply("ana"))
        await ana.send("go")
        await ana.wait_idle()
        others = {}
        for name, gate in gates.items():
            others[name] = await add(world, name, gate)
            await others[name].send("go")
            await others[name].wait_idle()
        assert calls(world) == [1, 0, 0, 0]
        await trio.sleep(599)
        assert calls(world) == [1, 0, 0, 0]
        # The first that was turned away goes first; ana comes when her own wait ends, and is last.
        await gates["bo"].wait_entered()
        await trio.sleep(300)
        assert calls(world) == [1, 1, 0, 0]
        gates["bo"].release()
        await gates["cy"].wait_entered()
        await trio.sleep(300)
        assert calls(world) == [1, 1, 1, 0]
        gates["cy"].release()
        await gates["di"].wait_entered()
        assert calls(world) == [1, 1, 1, 1]
        gates["di"].release()
        await until(lambda: calls(world) == [2, 1, 1, 1])
        for agent in (ana, *others.values()):
            await agent.wait_idle()
            assert (await shown(agent))[-1].startswith("assistant:")


@pytest.mark.parametrize("outcome", ["a fault", "another wall"])
async def test_a_first_call_that_fails_lets_the_next_try_unless_it_states_another_wall(
    world: World, virtual_time: MockClock, outcome: str
) -> None:
    bad = fail(400) if outcome == "a fault" else fail(429, retry_after=600)
    async with world.open(account_waits=True):
        ana = await add(world, "ana", fail(429, retry_after=600))
        await ana.send("go")
        await ana.wait_idle()
        bo, cy = await add(world, "bo", bad, reply("bo")), await add(world, "cy", reply("cy"))
        for agent in (bo, cy):
            await agent.send("go")
            await agent.wait_idle()
        await trio.sleep(100)
        world.providers[0]._steps = [reply("ana")]
        await trio.sleep(502)
        await until(lambda: calls(world)[1] == 1)
        await trio.sleep(100)
        assert calls(world)[2] == (1 if outcome == "a fault" else 0)


@pytest.mark.behaviour("R-35")
async def test_a_window_of_one_model_holds_that_model_and_one_of_the_account_every_model() -> None:
    store = DeskStore()
    async with open_books(store) as books:
        accounts = Accounts(books.book, books.clock)
        far = books.clock.now_ms() + 7 * 86_400 * SECOND
        ask = books.ledger.ask
        await ask(RecordWait("ana", "big", far, "seven days", "k", "big"))
        assert accounts.check("k", "bo", "big", None) is not None
        assert accounts.check("k", "bo", "small", None) is None
        assert accounts.check("other", "bo", "big", None) is None
        await ask(RecordWait("ana", "big", far, "everything", "k", "*"))
        assert accounts.check("k", "cy", "small", None) is not None
        assert set(rows(store, "account_waits")) == {("k", "big"), ("k", "*")}
        assert set(rows(store, "waits")) == {("ana", "big")}


@pytest.mark.behaviour("R-35")
async def test_a_wall_that_its_provider_states_of_the_account_holds_every_model(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open(account_waits=True):
        await add(world, "ana")
        gate = world.ref("gate")
        states = (world.clock.now_ms() + 60_000, "slow down")
        for scope, model, key in (
            ("account", "m1", "*"),
            ("model", "m2", "m2"),
            (None, "m3", "m3"),
        ):
            permit = Permit(1, "ana", model, "turn")
            await gate.ask(Settle(permit, "failed", states, (), scope))
            name = fingerprint("k", world.runtime._store_id)
            assert world.runtime._store.get("account_waits", (name, key)) is not None


def used_up(account_s: int, model_s: int) -> dict[str, str]:
    """Headers of a refusal by a window of the account and, longer, one of a model."""
    now_s = WallClock().now_ms() // SECOND
    unified = "anthropic-ratelimit-unified"
    return {
        f"{unified}-status": "rejected",
        f"{unified}-5h-status": "rejected",
        f"{unified}-5h-reset": str(now_s + account_s),
        f"{unified}-7d_opus-status": "rejected",
        f"{unified}-7d_opus-reset": str(now_s + model_s),
        f"{unified}-representative-claim": "seven_day_opus",
    }


@pytest.mark.behaviour("R-35")
@pytest.mark.parametrize("call", ["turn", "auxiliary", "ephemeral"])
async def test_a_response_that_states_a_wait_of_the_account_and_a_longer_of_a_model_binds_both(
    world: World, virtual_time: MockClock, call: str
) -> None:
    refused = fail(429, headers=used_up(7_200, 500_000), provider="anthropic")
    async with world.open(account_waits=True) as runtime:
        began_ms = world.clock.now_ms()
        if call == "turn":
            ana = await add(world, "ana", refused, model="opus")
            await ana.send("go")
            await ana.wait_idle()
        elif call == "auxiliary":
            ana = await bare(world, "ana", refused, model="opus")
            with pytest.raises(ProviderError):
                await ana.auxiliary_call(ask("opus"))
        else:
            spec = AgentSpec(name="e", provider=world.provider([refused], key="k"), model="opus")
            with pytest.raises(RunExhaustedError):
                await runtime.run_ephemeral(spec, "go")
        walls = {
            wait.model: wait.deadline_ms - began_ms
            for wait in runtime.provider_waits()
            if wait.agent.startswith(ACCOUNT) and wait.deadline_ms is not None
        }
        assert walls == {"*": 7_200 * SECOND, "opus": 500_000 * SECOND}
        haiku = await add(world, "bo", reply("haiku"), model="haiku")
        opus = await add(world, "cy", reply("opus"), model="opus")
        for agent in (haiku, opus):
            await agent.send("go")
            await agent.wait_idle()
        assert world.state("bo").held.deadline_ms - began_ms == 7_200 * SECOND
        assert world.state("cy").held.deadline_ms - began_ms == 500_000 * SECOND
        await trio.sleep(7_200)
        await haiku.wait_idle()
        assert (await shown(haiku))[-1] == "assistant: haiku"
        assert world.state("cy").state == "held"


async def test_two_statements_of_one_response_are_recorded_in_one_commit(
    world: World, virtual_time: MockClock
) -> None:
    refused = fail(429, headers=used_up(7_200, 500_000), provider="anthropic")
    async with world.open(account_waits=True) as runtime:
        ana = await add(world, "ana", refused, model="opus")
        await ana.send("go")
        await ana.wait_idle()
        name = fingerprint("k", runtime._store_id)
        recorded = [
            (revision, table, key)
            for revision, table, key in runtime._store.changes(0)
            if table in ("waits", "account_waits")
        ]
        assert len({revision for revision, _, _ in recorded}) == 1
        assert {(table, key) for _, table, key in recorded} == {
            ("waits", ("ana", "opus")),
            ("account_waits", (name, "opus")),
            ("account_waits", (name, "*")),
        }


@pytest.mark.behaviour("R-35")
@pytest.mark.parametrize("in_line", [1, 4])
async def test_a_model_that_no_wall_holds_is_free_whoever_waits_for_another(
    world: World, virtual_time: MockClock, in_line: int
) -> None:
    async with world.open(account_waits=True):
        first = await add(world, "first", fail(429, retry_after=7 * 86_400), model="big")
        await first.send("go")
        await first.wait_idle()
        for number in range(in_line):
            waiter = await add(world, f"w{number}", reply("x"), model="big")
            await waiter.send("go")
            await waiter.wait_idle()
            assert world.state(f"w{number}").state == "held"
            await trio.sleep(7)
        bo = await add(world, "bo", *[reply("free")] * 3, model="small")
        for count in (1, 2, 3):
            await bo.send("go")
            await bo.wait_idle()
            assert world.state("bo").state == "idle"
            assert calls(world) == [1, *[0] * in_line, count]
            await trio.sleep(3_600)


@pytest.mark.behaviour("R-35")
@pytest.mark.parametrize("scope", ["account", "model"])
async def test_what_an_auxiliary_call_is_told_of_the_account_holds_every_model(
    world: World, virtual_time: MockClock, scope: WaitScope
) -> None:
    async with world.open(account_waits=True) as runtime:
        end = world.clock.now_ms() + 60_000
        stated = StatedWait(
            kind=WaitKind.RATE_LIMITED, ends=WaitEnds.UNTIL, deadline_ms=end, scope=scope
        )
        error = ProviderError("wall", status=429, retryable=True, sent=True, stated=stated)
        ana = await bare(world, "ana", raise_(error), model="big")
        with pytest.raises(ProviderError):
            await ana.auxiliary_call(ask("big"))
        wall = runtime.provider_waits()[-1]
        assert wall.model == ("*" if scope == "account" else "big")
        bo = await add(world, "bo", reply("bo"), model="small")
        await bo.send("go")
        await bo.wait_idle()
        assert world.state("bo").state == ("held" if scope == "account" else "idle")


# -- statements and releases ---------------------------------------------------------------------


@pytest.mark.behaviour("W-012")
async def test_a_quota_without_an_instant_is_no_wall_and_a_sibling_finds_out_by_itself(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open(account_waits=True) as runtime:
        ana = await add(world, "ana", fail(402))
        bo = await add(world, "bo", reply("bo"))
        await ana.send("go")
        await ana.wait_idle()
        assert world.state("ana").held.cause == "quota"
        assert not world.rows("waits")
        assert not world.rows("account_waits")
        assert runtime.provider_waits() == ()
        await bo.send("go")
        await bo.wait_idle()
        assert (await shown(bo))[-1] == "assistant: bo", "its key may be topped up by now"


async def test_a_release_of_an_account_ends_its_walls_and_calls_who_is_first(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open(account_waits=True) as runtime:
        ana = await add(world, "ana", fail(429, retry_after=6_000), reply("ana"))
        await ana.send("go")
        await ana.wait_idle()
        bo = await add(world, "bo", reply("bo"))
        await bo.send("go")
        await bo.wait_idle()
        # To release the agent's own is not to release the account's.
        await runtime.release_provider_wait("ana", requester="ops")
        await trio.sleep(100)
        assert calls(world) == [1, 0]
        (wall,) = runtime.provider_waits()
        receipt = await runtime.release_provider_wait(wall.agent, wall.model, requester="ops")
        assert receipt.released == (ReleasedWait(wall.agent, "m", "recorded"),)
        assert wall.agent == ACCOUNT + fingerprint("k", runtime._store_id)
        for agent in (bo, ana):
            await agent.wait_idle()
            assert (await shown(agent))[-1] == f"assistant: {agent.name}"
        assert runtime.provider_waits() == ()
    assert b"k" not in wall.agent.encode()[len(ACCOUNT) :]


async def test_an_ephemeral_call_is_held_by_an_account_and_records_its_wall_alone(
    world: World, virtual_time: MockClock
) -> None:

    async with world.open(account_waits=True):
        await add(world, "ana")
        gate = world.ref("gate")
        permit = await gate.ask(Admit("m", "ephemeral"))
        states = (world.clock.now_ms() + 60_000, "slow down")
        await gate.ask(Settle(permit, "failed", states))
        assert world.rows("waits") == []
        assert len(world.rows("account_waits")) == 1
        assert (await gate.ask(Admit("m", "ephemeral"))).cause == "account"


@pytest.mark.behaviour("W-044")
async def test_walls_that_cannot_be_read_hold_until_they_read_again_without_an_operator(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = True

    def breaking(read: Any) -> Any:
        def read_or_raise(store: LmdbStore, table: str, *args: Any, **how: Any) -> Any:
            if broken and table == "account_waits":
                raise StoreIOError("gone; nothing was read", path="store", errno=5)
            return read(store, table, *args, **how)

        return read_or_raise

    for name in ("get", "scan"):
        monkeypatch.setattr(LmdbStore, name, breaking(getattr(LmdbStore, name)))
    async with world.open(account_waits=True) as runtime:
        agents = [await add(world, name, reply("healed")) for name in ("ana", "bo")]
        for agent in agents:
            await agent.send("go")
            await agent.wait_idle()
        assert [world.state(name).held.cause for name in ("ana", "bo")] == ["account", "account"]
        assert [(wait.agent, wait.model) for wait in runtime.provider_waits()] == [
            (f"{ACCOUNT}*", "*")
        ]
        await trio.sleep(40)
        assert calls(world) == [0, 0]
        broken = False
        await trio.sleep(65)
        for agent in agents:
            await agent.wait_idle()
            assert (await shown(agent))[-1] == "assistant: healed"
        assert calls(world) == [1, 1]
        assert runtime.provider_waits() == ()


@pytest.mark.behaviour("R-35")
@pytest.mark.parametrize("name", ["account:abc", "account:", "Account:abc", "\uff41ccount:abc"])
async def test_an_agent_is_refused_whose_name_would_shadow_an_account(
    world: World, virtual_time: MockClock, name: str
) -> None:
    async with world.open() as runtime:
        with pytest.raises(InvalidNameError) as caught:
            await add(world, name)
        assert caught.value.field == "name"
        assert runtime.status().agents == ()
        await add(world, "accounts:abc")
        await add(world, "my account:abc")


def test_a_fingerprint_tells_keys_and_stores_apart_and_holds_no_key() -> None:
    marks = {fingerprint(key, salt) for key in ("sk-1", "sk-2") for salt in ("a", "b")}
    assert len(marks) == 4
    assert all(len(mark) == 32 and "sk-" not in mark for mark in marks)
    assert fingerprint("sk-1", "a") == fingerprint("sk-1", "a")


@pytest.mark.behaviour("R-35")
async def test_a_wall_that_cannot_be_read_is_told_of_once_an_episode_until_it_is_released(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    get, damaged = LmdbStore.get, True

    def bad_get(store: LmdbStore, table: str, key: Any) -> Any:
        if damaged and table == "account_waits" and key[-1] == "m":
            cause = "damaged"
            raise UnreadableRecordError("it is damaged", table=table, key=key, cause=cause)
        return get(store, table, key)

    monkeypatch.setattr(LmdbStore, "get", bad_get)
    async with world.open(account_waits=True) as runtime:
        bo = await add(world, "bo", reply("bo"))
        cy = await add(world, "cy", reply("cy"), model="n")
        for agent in (bo, cy):
            await agent.send("go")
            await agent.wait_idle()
        assert [world.state(name).state for name in ("bo", "cy")] == ["held", "idle"]
        await trio.sleep(310)  # Ten times it is looked at again.
        (alert,) = await settled(world)
        account = ACCOUNT + fingerprint("k", runtime._store_id)
        assert (alert.kind, alert.agent, alert.model) == ("provider_wait", account, "m")
        assert f"No agent of {account} calls model m" in alert.text
        assert f"--model=m {world.directory} {account}" in alert.text
        damaged = False
        await trio.sleep(31)
        await bo.wait_idle()
        assert (await shown(bo))[-1] == "assistant: bo"
        damaged = True
        await bo.send("again")
        await bo.wait_idle()
        assert len(await settled(world)) == 2


async def unread(world: World, account: str) -> list[tuple[str, str]]:
    """What alerts tell of a credential of which nobody knows whether a wall holds it."""
    told = [alert for alert in await settled(world) if alert.agent == account]
    return [(a.agent, a.model) for a in told if a.text.startswith("No agent of")]


@pytest.mark.behaviour("R-35", "W-049")
@pytest.mark.parametrize("damage", ["a row", "the table"])
async def test_a_wall_that_cannot_be_read_is_told_of_when_an_agent_of_it_starts(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    async with world.open(account_waits=True) as runtime:
        account = fingerprint("k", runtime._store_id)
        for model in ("m", "n"):
            wait = RecordWait("ana", model, None, "slow down", account, model, own=False)
            await runtime._ledger.ask(wait)
    bad = StoreIOError("gone; nothing was read", path="store", errno=5)

    def breaking(read: Any) -> Any:
        def read_or_raise(store: LmdbStore, table: str, *args: Any, **how: Any) -> Any:
            if table == "account_waits" and (
                damage == "the table" or args[:1] == ((account, "m"),)
            ):
                raise bad
            return read(store, table, *args, **how)

        return read_or_raise

    for name in ("get", "scan"):
        monkeypatch.setattr(LmdbStore, name, breaking(getattr(LmdbStore, name)))
    shown_as = (ACCOUNT + account, "m" if damage == "a row" else "*")
    for opening in (1, 2):
        async with world.open(account_waits=True) as runtime:
            await add(world, "other", key="another", model="n")
            assert len(await unread(world, shown_as[0])) == opening - 1, (
                "none of its agents is here"
            )
            await add(world, "ana", reply("never"), model="n")
            assert await unread(world, shown_as[0]) == [shown_as] * opening, (
                "nobody has made a call"
            )
            await add(world, "bo", reply("never"))
            await runtime.agent("bo").send("go")
            await runtime.agent("bo").wait_idle()
            assert world.state("bo").held.cause == "account"
            assert await unread(world, shown_as[0]) == [shown_as] * opening


@pytest.mark.behaviour("R-35")
async def test_a_wall_of_more_than_an_hour_is_told_of_once_with_the_command_that_ends_it(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def told() -> list[Any]:
        return [alert for alert in await settled(world) if alert.agent.startswith(ACCOUNT)]

    async with world.open(account_waits=True) as runtime:
        ana = await add(world, "ana", fail(429, retry_after=7_200), model="m")
        bo = await add(world, "bo", fail(429, retry_after=60), model="n")
        for agent in (ana, bo):
            await agent.send("go")
            await agent.wait_idle()
        account = ACCOUNT + fingerprint("k", runtime._store_id)
        (alert,) = await told()
        assert (alert.model, alert.deadline_ms) == ("m", world.state("ana").held.deadline_ms)
        assert f"Every agent of {account} is held by a stated wait of model m until" in alert.text
        assert f"abeyance release --model=m {world.directory} {account}" in alert.text
        longer = RecordWait("ana", "m", world.clock.now_ms() + 9_000_000, "more", account[8:], "m")
        await runtime._ledger.ask(longer)
        assert len(await told()) == 1, "the same hold goes on"
    async with world.open(account_waits=True):
        await add(world, "cy", model="m")
        assert len(await told()) == 1
    monkeypatch.setattr(AlertDesk, "bound", lambda *_: None)
    async with world.open(account_waits=True) as runtime:
        wall = RecordWait("ana", "o", None, "for ever", account[8:], "*")
        await runtime._ledger.ask(wall)
        assert len(await told()) == 1
    monkeypatch.undo()
    async with world.open(account_waits=True):
        await add(world, "di", model="n")
        (_, alert) = await told()
        assert f"Every agent of {account} is held by a stated wait of every model" in alert.text


# -- the line ------------------------------------------------------------------------------------


class Lines:
    """An account whose wall has ended, and who stands before it."""

    def __init__(self) -> None:
        self.clock = WallClock()
        self.store = DeskStore()
        self.gate: Any = None
        self.wall(1)
        self.accounts = Accounts(WaitBook(self.store, self.clock), self.clock)

    def wall(self, after_s: float | None) -> None:
        end = None if after_s is None else self.clock.now_ms() + int(after_s * SECOND)
        wait = Wait(deadline_ms=end, reason="w", set_ms=1, act="a")
        self.store.commit(Request(puts=(Put("account_waits", ("k", "m"), codec.encode(wait)),)))

    def held(self, agent: str) -> bool:
        return self.accounts.check("k", agent, "m", None) is not None

    def take(self, agent: str, permit: int = 1) -> None:
        assert not self.held(agent)
        self.accounts.taken("k", agent, "m", permit, self.gate)

    def over(self, agent: str, permit: int = 1, *, succeeded: bool = True) -> None:
        self.accounts.settled("k", agent, "m", permit, succeeded=succeeded)


def test_those_who_were_turned_away_go_in_the_order_they_came() -> None:
    it = Lines()
    assert [it.held(name) for name in "abc"] == [True] * 3
    it.clock.advance(SECOND)
    assert it.held("b")
    assert it.held("c")
    it.take("a")
    assert [it.held(name) for name in "bcd"] == [True] * 3
    it.over("a")
    assert [it.held(name) for name in "cd"] == [True] * 2
    it.take("b")
    it.take("a", 2)
    it.over("b")
    it.take("c")
    it.over("c")
    it.take("d")
    it.over("d")
    assert [it.held(name) for name in "ef"] == [False] * 2, "the line is through"


def test_who_waits_behind_one_models_wall_takes_no_turn_from_another_models() -> None:
    it = Lines()
    far = it.clock.now_ms() + 10**9
    wait = Wait(deadline_ms=far, reason="w", set_ms=1, act="b")
    it.store.commit(Request(puts=(Put("account_waits", ("k", "big"), codec.encode(wait)),)))
    assert it.held("a")
    assert it.held("b")
    it.clock.advance(SECOND)
    it.take("a")
    # Whoever looks at the other wall meanwhile changes nothing about who is next here.
    for name in ("x", "b"):
        assert it.accounts.check("k", name, "big", None) is not None
    assert it.held("b"), "a is out"
    it.over("a")
    assert not it.held("a"), "its turn has come"
    it.take("b")


def test_a_call_stands_in_the_lines_of_its_model_and_of_every_model() -> None:
    it = Lines()
    end = it.clock.now_ms() + SECOND // 2
    wait = Wait(deadline_ms=end, reason="w", set_ms=1, act="b")
    it.store.commit(Request(puts=(Put("account_waits", ("k", "*"), codec.encode(wait)),)))
    assert it.accounts.check("k", "x", "other", None) is not None
    assert it.held("a")
    it.clock.advance(SECOND)
    assert it.held("a"), "x was turned away first"
    assert it.accounts.check("k", "x", "other", None) is None
    it.accounts.taken("k", "x", "other", 7, None)
    assert it.held("a"), "x is out"
    it.accounts.settled("k", "x", "other", 7, succeeded=True)
    it.take("a")
    assert it.held("b")


@pytest.mark.behaviour("R-35")
def test_whom_another_wall_still_holds_keeps_nobody_behind_it_in_line() -> None:
    it = Lines()
    end, far = it.clock.now_ms() + SECOND // 2, it.clock.now_ms() + 10**9
    for scope, until_ms in (("*", end), ("big", far)):
        wait = Wait(deadline_ms=until_ms, reason="w", set_ms=1, act="b")
        it.store.commit(Request(puts=(Put("account_waits", ("k", scope), codec.encode(wait)),)))
    for name in ("x", "y"):
        assert it.accounts.check("k", name, "big", None) is not None
    assert it.held("a")
    it.clock.advance(SECOND)
    for name in ("x", "y"):
        assert it.accounts.check("k", name, "big", None) is not None
    it.take("a")


def test_whoever_does_not_come_loses_its_place_after_30_seconds() -> None:
    it = Lines()
    assert it.held("a")
    assert it.held("b")
    it.clock.advance(SECOND)
    assert it.held("b")
    it.clock.advance(29_999)
    assert it.held("b")
    it.clock.advance(1)
    it.take("b")
    it.over("b")
    it.take("a")


def test_a_call_that_fails_lets_the_next_one_try_and_stands_behind_it() -> None:
    it = Lines()
    assert it.held("a")
    assert it.held("b")
    it.clock.advance(SECOND)
    it.take("a")
    it.over("a", succeeded=False)
    assert it.held("a")
    it.take("b")
    it.over("b")
    it.take("a")


@pytest.mark.behaviour("R-35")
def test_a_call_that_is_out_for_ten_minutes_lets_the_next_one_try() -> None:
    it = Lines()
    assert it.held("a")
    assert it.held("b")
    it.clock.advance(SECOND)
    it.take("a")
    it.clock.advance(599_999)
    assert it.held("b")
    it.clock.advance(1)
    it.take("b", 2)
    it.over("a", succeeded=False)
    assert it.held("c"), "b is out, whatever became of a"
    it.over("b", 2)
    it.take("c")


@pytest.mark.behaviour("R-35")
@pytest.mark.parametrize("end", ["agent removed", "conversation closed"])
async def test_an_auxiliary_call_whose_agent_ends_meanwhile_lets_the_next_one_try(
    world: World, virtual_time: MockClock, end: str
) -> None:
    gate = Gate(then=reply("late"))
    async with world.open(account_waits=True) as runtime, trio.open_nursery() as nursery:
        ana = await add(world, "ana", fail(429, retry_after=600))
        bo: Any = await bare(world, "bo", gate)
        if end == "conversation closed":
            bo = await runtime.open_conversation("bo", channel="c")
        cy = await add(world, "cy", reply("cy"))
        await ana.send("go")
        await ana.wait_idle()
        # The wall is released, so that nobody's own wait ends meanwhile.
        wall = runtime.provider_waits()[-1]
        await runtime.release_provider_wait(wall.agent, requester="ops")
        nursery.start_soon(bo.auxiliary_call, ask())
        await gate.wait_entered()
        await cy.send("go")
        await cy.wait_idle()
        assert world.state("cy").held.cause == "account"
        if end == "conversation closed":
            await bo.close()
        else:
            await runtime.remove_agent("bo")
        gate.release()
        await trio.sleep(31)
        await cy.wait_idle()
        assert (await shown(cy))[-1] == "assistant: cy"


@pytest.mark.behaviour("R-35")
def test_an_auxiliary_call_takes_no_place_in_line() -> None:
    it = Lines()

    def asks(agent: str) -> bool:
        return it.accounts.check("k", agent, "m", None, stands=False) is None

    assert not any(asks(name) for name in "xyz")
    assert it.held("a")
    it.clock.advance(SECOND)
    assert not any(asks(name) for name in "xyz"), "a is before them"
    it.take("a")
    assert not asks("x")
    it.over("a")
    assert asks("x")


@pytest.mark.behaviour("R-35")
def test_an_auxiliary_call_that_comes_first_is_waited_for_as_any_other() -> None:
    it = Lines()
    it.clock.advance(SECOND)
    assert it.accounts.check("k", "x", "m", None, stands=False) is None
    it.accounts.taken("k", "x", "m", 3, None)
    assert it.held("a")
    assert it.accounts.check("k", "y", "m", None, stands=False) is not None
    it.over("x", 3)
    it.take("a")


def test_who_does_not_come_keeps_an_auxiliary_call_for_30_seconds_at_most() -> None:
    it = Lines()
    assert it.held("a")
    it.clock.advance(SECOND)
    assert it.accounts.check("k", "x", "m", None, stands=False) is not None
    it.clock.advance(30 * SECOND)
    assert it.accounts.check("k", "x", "m", None, stands=False) is None


@pytest.mark.behaviour("R-35")
def test_who_has_ended_has_no_place_in_line() -> None:
    it = Lines()
    refs = [Heard() for _ in "abc"]
    for name, ref in zip("abc", refs, strict=True):
        assert it.accounts.check("k", name, "m", ref) is not None
    refs[0].alive = refs[1].alive = False
    it.clock.advance(SECOND)
    it.take("c")
    assert not refs[0].got
    assert not refs[1].got


@pytest.mark.behaviour("R-35")
async def test_refused_auxiliary_calls_and_removed_agents_delay_no_turn_behind_a_wall(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open(account_waits=True) as runtime:
        ana = await add(world, "ana", fail(429, retry_after=600))
        await ana.send("go")
        await ana.wait_idle()
        for number in range(3):
            gone = await add(world, f"gone{number}", reply("never"))
            await gone.send("go")
            await gone.wait_idle()
            aux = await bare(world, f"aux{number}")
            with pytest.raises(CallDeferredError):
                await aux.auxiliary_call(ask())
        bo = await add(world, "bo", reply("bo"))
        await bo.send("go")
        await bo.wait_idle()
        for number in range(3):
            await runtime.remove_agent(f"gone{number}")
        world.providers[0]._steps = [reply("ana")]
        await trio.sleep(602)
        await bo.wait_idle()
        assert (await shown(bo))[-1] == "assistant: bo"


def test_a_new_wall_holds_those_too_whose_turn_had_come() -> None:
    it = Lines()
    assert it.held("a")
    it.clock.advance(SECOND)
    it.take("a")
    it.over("a")
    assert not it.held("a")
    it.wall(60)
    assert it.held("a")
    assert it.held("b")
    it.clock.advance(60 * SECOND)
    assert it.held("b")
    it.take("a")
    assert it.held("b")


def test_after_a_restart_the_first_success_ends_the_caution() -> None:
    it = Lines()
    it.clock.advance(SECOND)
    it.take("a")
    assert it.held("b")
    it.over("a")
    it.take("b")
    it.over("b")
    assert not it.held("c")
    assert not it.held("d")


def test_processes_that_share_a_store_share_the_walls_and_have_a_line_each() -> None:
    here, there = Lines(), Lines()
    there.clock = here.clock
    there.accounts = Accounts(WaitBook(here.store, here.clock), here.clock)
    here.wall(60)
    assert here.held("a")
    assert there.held("b")
    here.clock.advance(60 * SECOND)
    here.take("a")
    there.take("b")
    assert here.held("c"), "a's call is out"
    assert there.held("d"), "b's is"


def test_an_account_that_never_had_a_wall_is_free() -> None:
    it = Lines()
    for name in "abc":
        assert it.accounts.check("other", name, "m", None) is None
        it.accounts.taken("other", name, "m", 1, None)
        it.accounts.settled("other", name, "m", 1, succeeded=False)


def test_a_wall_without_end_and_a_released_one() -> None:
    it = Lines()
    it.wall(None)
    it.clock.advance(10**9)
    assert it.held("a")
    assert it.held("b")
    released = WaitReleased(by="ops", at_ms=1, act="r")
    it.store.commit(Request(puts=(Put("account_waits", ("k", "m"), codec.encode(released)),)))
    it.take("a")
    assert it.held("b")


def test_a_wall_that_cannot_be_read_holds() -> None:
    class Broken(DeskStore):
        def get(self, table: str, key: Key) -> Row | None:
            if table == "account_waits":
                raise StoreIOError("gone; nothing was read", path="memory", errno=5)
            return super().get(table, key)

    clock = WallClock()
    accounts = Accounts(WaitBook(Broken(), clock), clock)
    wall = accounts.check("k", "a", "m", None)
    assert wall is not None
    assert (wall.deadline_ms, "cannot be read" in wall.reason) == (None, True)


class Heard:
    def __init__(self) -> None:
        self.got: list[Any] = []
        self.alive = True

    def is_alive(self) -> bool:
        return self.alive

    def tell_internal(self, message: Any) -> None:
        self.got.append(message)


def test_who_is_next_is_called() -> None:
    it = Lines()
    a, b = Heard(), Heard()
    for name, ref in (("a", a), ("b", b)):
        assert it.accounts.check("k", name, "m", ref) is not None
    it.clock.advance(SECOND)
    it.take("a")
    assert not b.got
    it.over("a")
    assert len(b.got) == 1


def test_who_takes_no_place_in_line_is_told_when_to_ask_again() -> None:
    it = Lines()
    ref = Heard()
    assert it.accounts.check("k", "a", "m", ref) is not None
    it.clock.advance(SECOND)
    for turned_away_by in ("the line", "the call that is out"):
        wall = it.accounts.check("k", "x", "m", None, stands=False)
        assert wall is not None, turned_away_by
        assert wall.deadline_ms == it.clock.now_ms() + 5 * SECOND, turned_away_by
        if turned_away_by == "the line":
            it.take("a")
    behind = it.accounts.check("k", "b", "m", Heard())
    assert behind is not None
    assert behind.deadline_ms is None, "who stands in line is called"


def one_off(world: World, *steps: Any) -> AgentSpec:
    return AgentSpec(name="sum", provider=world.provider(list(steps), key="k"), model="m")


@pytest.mark.behaviour("R-35")
async def test_ephemeral_runs_that_ended_at_a_wall_delay_no_turn_behind_it(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open(account_waits=True) as runtime:
        ana = await add(world, "ana", fail(429, retry_after=3_600), reply("ana"))
        await ana.send("go")
        await ana.wait_idle()
        for _ in range(3):
            with pytest.raises(RunExhaustedError):
                await runtime.run_ephemeral(one_off(world, reply("never")), "go")
        bo = await add(world, "bo", reply("bo"))
        await bo.send("go")
        await bo.wait_idle()
        await trio.sleep(3_602)
        await bo.wait_idle()
        assert (await shown(bo))[-1] == "assistant: bo"


@pytest.mark.behaviour("R-35")
async def test_ephemeral_runs_that_slept_a_wall_go_when_the_first_call_has_succeeded(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(then=reply("ana"))
    said: list[str] = []
    async with world.open(account_waits=True) as runtime, trio.open_nursery() as nursery:
        ana = await add(world, "ana", fail(429, retry_after=300), gate)
        await ana.send("go")
        await ana.wait_idle()

        async def run(text: str) -> None:
            said.append(await runtime.run_ephemeral(one_off(world, reply(text)), "go"))

        for number in range(3):
            nursery.start_soon(run, f"run{number}")
        await gate.wait_entered()
        await trio.sleep(60)
        assert said == []
        assert calls(world)[1:] == [0, 0, 0], "the first call is out"
        gate.release()
        await trio.sleep(6)
        assert sorted(said) == ["run0", "run1", "run2"]


@pytest.mark.behaviour("R-35")
@pytest.mark.parametrize("call", ["auxiliary", "ephemeral"])
async def test_an_item_that_meets_the_first_call_after_a_wall_waits_in_place_and_goes_on_by_itself(
    world: World, virtual_time: MockClock, call: str
) -> None:
    gate = Gate(then=reply("ana"))
    async with world.open(account_waits=True) as runtime:
        ana = await add(world, "ana", fail(429, retry_after=300), gate)
        aux = await bare(world, "aux", reply("asked"))
        await ana.send("go")
        await gate.wait_entered()

        async def asks() -> str:
            if call == "ephemeral":
                return await runtime.run_ephemeral(one_off(world, reply("asked")), "go")
            await aux.auxiliary_call(ask())
            return "asked"

        async def flow(run: Any, params: object) -> object:
            return await run.do("ask", asks)

        runtime.add_workflow("flow", flow)
        await runtime.start_run("one", "flow")
        await trio.sleep(30)
        before = runtime.statistics().requests
        await trio.sleep(500)
        # Nothing is written while it waits for others: no suspension, no alert, no turn.
        assert runtime.statistics().requests == before
        gate.release()
        await trio.sleep(6)
        run = runtime.run("one")
        assert (run.state, run.lives, run.walls) == ("completed", 1, 0)
        assert not await settled(world)


@pytest.mark.behaviour("R-35")
async def test_an_item_that_waits_for_others_in_vain_waits_as_a_row_after_10_minutes(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.open(account_waits=True) as runtime:
        aux = await bare(world, "aux", reply("asked"))
        since = trio.current_time()
        behind = Wall(world.clock.now_ms() + 5 * SECOND, "others go first")

        def behind_others(*args: object, **how: object) -> Wall | None:
            asked_s = trio.current_time() - since
            return None if asked_s > 620 else Wall(world.clock.now_ms() + 5 * SECOND, behind.reason)

        monkeypatch.setattr(Accounts, "check", behind_others)

        async def asks() -> str:
            await aux.auxiliary_call(ask())
            return "asked"

        async def flow(run: Any, params: object) -> object:
            return await run.do("ask", asks)

        runtime.add_workflow("flow", flow)
        await runtime.start_run("one", "flow")
        await trio.sleep(599)
        assert runtime.run("one").state == "running"
        await trio.sleep(4)
        assert runtime.run("one").state == "waiting_for_capacity"
        await trio.sleep(60)
        run = runtime.run("one")
        assert (run.state, run.lives) == ("completed", 2)


# -- who stands in line, for people ----------------------------------------------------------------


async def in_line(world: World) -> tuple[Gate, dict[str, Any], str]:
    """A wall that is over; bo's call is out, behind it stand cy and ana. And the account's name."""
    gate = Gate(then=reply("bo"))
    ana = await add(world, "ana", fail(429, retry_after=600), reply("ana"))
    await ana.send("go")
    await ana.wait_idle()
    agents = {"ana": ana}
    for name, step in (("bo", gate), ("cy", reply("cy"))):
        agents[name] = await add(world, name, step)
        await agents[name].send("go")
        await agents[name].wait_idle()
    await gate.wait_entered()
    await trio.sleep(1)
    return gate, agents, ACCOUNT + fingerprint("k", world.runtime._store_id)


@pytest.mark.behaviour("R-35", "W-119")
async def test_who_stands_in_the_line_of_a_wall_that_is_over_is_listed_with_the_cause(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open(account_waits=True) as runtime:
        gate, agents, account = await in_line(world)
        standing = runtime.provider_waits()
        assert [(wait.agent, wait.model, wait.deadline_ms) for wait in standing] == [
            ("cy", "m", None),
            ("ana", "m", None),
        ]
        assert all("waits for the first call of its account" in wait.reason for wait in standing)
        assert all(f"release {account}" in wait.reason for wait in standing)
        assert all(wait.set_ms < world.clock.now_ms() for wait in standing)
        assert runtime.provider_waits(account) == standing
        assert runtime.provider_waits("cy") == standing[:1]
        assert runtime.provider_waits("bo") == ()
        assert runtime.status().waits == standing
        gate.release()
        await until(lambda: calls(world) == [2, 1, 1])
        for agent in agents.values():
            await agent.wait_idle()
        assert runtime.provider_waits() == ()


@pytest.mark.behaviour("R-35", "W-117")
@pytest.mark.parametrize("whose", ["the account", "an agent", "another model", "another account"])
async def test_a_release_lets_go_who_stands_in_line_and_nobody_else(
    world: World, virtual_time: MockClock, whose: str
) -> None:
    async with world.open(account_waits=True) as runtime:
        gate, agents, account = await in_line(world)
        assert calls(world) == [1, 1, 0]
        match whose:
            case "the account":
                receipt = await runtime.release_provider_wait(account, requester="ops")
                expected = {"ana", "cy"}
            case "an agent":
                receipt = await runtime.release_provider_wait("cy", requester="ops")
                expected = {"cy"}
            case "another model":
                receipt = await runtime.release_provider_wait(account, "n", requester="ops")
                expected = set()
            case _:
                with pytest.raises(UnknownAgentError):
                    await runtime.release_provider_wait(ACCOUNT + "0" * 32, requester="ops")
                return
        assert {each.agent for each in receipt.released} == expected
        assert {(each.model, each.reach) for each in receipt.released} <= {("m", "in_process")}
        for name in expected:
            await agents[name].wait_idle()
            assert (await shown(agents[name]))[-1] == f"assistant: {name}"
        assert {wait.agent for wait in runtime.provider_waits()} == {"ana", "cy"} - expected
        gate.release()
        await until(lambda: calls(world) == [2, 1, 1])
        for agent in agents.values():
            await agent.wait_idle()
            assert (await shown(agent))[-1] == f"assistant: {agent.name}"
        rows = [row for _, row in runtime._store.scan("log") if isinstance(row, Row)]
        lines = [row.record for row in rows if row.record.event == "place_released"]
        assert {(line.agent, line.model, line.text) for line in lines} == {
            (name, "m", "by api:ops") for name in expected
        }


@pytest.mark.behaviour("R-35")
def test_a_release_of_a_wall_in_force_lets_nobody_go_past_the_others() -> None:
    it = Lines()
    heard = [Heard(), Heard()]
    for name, ref in zip("ab", heard, strict=True):
        assert it.accounts.check("k", name, "m", ref) is not None
    assert it.accounts.standing() == []
    assert it.accounts.let_go(ACCOUNT + "k", None) == []
    assert [len(ref.got) for ref in heard] == [0, 0]
