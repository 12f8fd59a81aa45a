"""Alerts: which holds raise one, how often, what it says, and that nothing else notices."""

from __future__ import annotations

import json
import math
import os
import shlex
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors import AgentSpec, Alert, AlertNotDeliveredError, open_runtime
from abeyance.actors.domain import alerts as alerts_module
from abeyance.actors.domain.alert_book import RaiseAlert, alert_text
from abeyance.actors.domain.alert_posts import ATTEMPT_S_MAX, PAUSES_S, Deliveries
from abeyance.actors.domain.errors import InvalidInputError, InvalidSpecError
from abeyance.actors.domain.limits import ALERT_PAST_MS
from abeyance.actors.domain.protocol import Admit, RecordWait
from abeyance.actors.domain.wait_book import Deferral
from abeyance.actors.events import AlertRaised
from abeyance.actors.ops.failures_log import FILE_NAME
from abeyance.actors.testing import ScriptedProvider, fail, reply
from abeyance.storage.errors import DiskFullError, StoreIOError, UnreadableRecordError
from abeyance.storage.lmdb_store import LmdbStore
from abeyance.storage.ownership import Ownership
from abeyance.storage.store import Delete, NotStored, Request

from .test_holds import Unreadable, quota, state_wait
from .test_unreadable_holds import Broken, cut_key
from .world import World, until

HOUR = 3_600_000
SECRETS = "token=s3cret"


class Sink:
    """Keeps what it is given; raises, or hangs, as long as it is told to."""

    name = "kept"

    def __init__(self, *, fails: Callable[[], BaseException] | None = None) -> None:
        self.got: list[Alert] = []
        self.tries = 0
        self.fails = fails
        self.hangs = False

    async def deliver(self, alert: Alert) -> None:
        self.tries += 1
        if self.hangs:
            await trio.sleep_forever()
        if self.fails is not None:
            raise self.fails()
        self.got.append(alert)


async def state(world: World, wait_ms: float | None, model: str = "m", agent: str = "ana") -> None:
    """Record a statement, as the gate does."""
    ends = None if wait_ms is None else world.clock.now_ms() + math.ceil(wait_ms)
    await world.ref("ledger").ask(RecordWait(agent, model, ends, "slow down"))


async def settled(world: World) -> tuple[Alert, ...]:
    """Let every alert that is on its way arrive at its row and at its sinks; list them."""
    actor = world.ref("alerts")
    kept = actor._cell.kept
    await until(lambda: not actor.statistics().queued and not kept.queue and kept.out is None)
    await until(lambda: not world.rows("alerts_owed"))
    return world.runtime.alerts()


def log_lines(world: World) -> list[dict[str, Any]]:
    path = world.directory / FILE_NAME
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# -- which holds ---------------------------------------------------------------------------------


@pytest.mark.behaviour("W-059")
@pytest.mark.parametrize(
    ("wait_ms", "count"),
    [
        pytest.param(60_000, 0, id="60 s"),
        pytest.param(ALERT_PAST_MS, 0, id="exactly 1 h"),
        pytest.param(-1_000, 0, id="over"),
        pytest.param(ALERT_PAST_MS + 1, 1, id="1 h and 1 ms"),
        pytest.param(24 * HOUR, 1, id="24 h"),
        pytest.param(1e20, 1, id="1e20"),
        pytest.param(None, 1, id="nan"),
    ],
)
async def test_only_a_wait_of_more_than_an_hour_raises_an_alert(
    world: World, virtual_time: MockClock, wait_ms: float | None, count: int
) -> None:
    async with world.open():
        await world.add([])
        await state(world, wait_ms)
        assert len(await settled(world)) == count


@pytest.mark.behaviour("W-056", "W-058")
async def test_long_hold_raises_one_alert_that_names_model_end_and_command(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([fail(429, retry_after=86_400)], model="m1")
        await ana.send("go")
        await ana.wait_idle()
        (alert,) = await settled(world)
        (wait,) = world.runtime.provider_waits()
    assert (alert.kind, alert.agent, alert.model) == ("provider_wait", "ana", "m1")
    assert alert.deadline_ms == wait.deadline_ms
    assert "model m1 until 20" in alert.text
    command = f"abeyance release --model=m1 {shlex.quote(str(world.directory))} ana"
    assert "release-provider-wait" in alert.text
    assert alert.text.endswith(command)


@pytest.mark.behaviour("W-058")
async def test_alert_of_an_endless_hold_says_that_it_does_not_end_by_itself(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        await world.add([])
        await state(world, None, "m1")
        (alert,) = await settled(world)
    assert alert.deadline_ms is None
    assert "model m1 until released: this does not end by itself" in alert.text
    assert "(release-provider-wait): abeyance release --model=m1 " in alert.text


def test_command_of_an_alert_is_one_that_a_shell_runs() -> None:
    def text(agent: str, model: str, directory: str) -> str:
        raised = RaiseAlert("provider_wait", agent, model, "wait", "x", None, "e")
        return alert_text(raised, directory)

    said = text("-a b", "m;rm", "/st ate")
    assert shlex.split(said.partition("wait): ")[2]) == [
        "abeyance", "release", "--model=m;rm", "/st ate", "--", "-a b",
    ]  # fmt: skip
    assert "STATE ana" in text("ana", "m", "/" + "d" * 3_000)
    assert len(text("ana", "m", "/x" * 100)) < 2_000


@pytest.mark.behaviour("W-062")
async def test_conversation_agents_long_hold_raises_an_alert_that_names_it(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        provider = ScriptedProvider([fail(429, retry_after=7_200)], clock=world.clock)
        await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        fork = await runtime.open_conversation("ana", channel="c1")
        await fork.send("go")
        await fork.wait_idle()
        (alert,) = await settled(world)
        assert fork.name != "ana"
        assert (alert.agent, alert.model) == (fork.name, "m")
        assert alert.text.endswith(f" {shlex.quote(fork.name)}")
        receipt = await runtime.release_provider_wait(alert.agent, requester="ops")
        assert len(receipt.released) == 1


@pytest.mark.behaviour("W-060")
async def test_calls_that_a_hold_turns_away_raise_no_further_alert(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        await world.add([])
        await state(world, 24 * HOUR)
        for _ in range(10):
            refused = await world.ref("gate").ask(Admit("m", "auxiliary"))
            assert isinstance(refused, Deferral)
        assert len(await settled(world)) == 1
        assert not world.providers[0].requests


@pytest.mark.behaviour("W-060")
async def test_hold_that_is_extended_raises_its_alert_when_it_first_passes_an_hour(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await world.add([])
        await state(world, 50 * 60_000)
        await trio.sleep(40 * 60)
        assert await settled(world) == ()
        await state(world, 30 * 60_000)  # No long statement, and a hold of 70 minutes.
        assert len(await settled(world)) == 1
        await state(world, 5 * HOUR)
        await state(world, None)
        assert len(await settled(world)) == 1
        await runtime.release_provider_wait("ana", requester="ops")
        await state(world, 2 * HOUR)
        assert len(await settled(world)) == 2
        await state(world, 2 * HOUR, "m2")
        assert [alert.model for alert in await settled(world)] == ["m", "m", "m2"]
    async with world.open():
        await world.add([])
        assert len(await settled(world)) == 3


async def test_alert_that_died_with_its_process_is_raised_when_the_agent_is_added(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.open() as runtime:
        ana = await world.add([quota()])
        await ana.send("go")
        await ana.wait_idle()
        await state(world, 2 * HOUR, "m2")
        await state(world, 60_000, "m3")
        assert len(await settled(world)) == 2
        forget = [Request(deletes=tuple(_deletes(world, runtime._store)))]
        await runtime._journal.ask(forget[0])
    async with world.open():
        await world.add([])
        raised = await settled(world)
        assert [alert.model for alert in raised[2:]] == ["m2", "m"]


def _deletes(world: World, store: LmdbStore) -> list[Any]:
    return [Delete("alerted", key) for key, _ in store.scan("alerted")]


async def test_quota_that_states_no_end_raises_one_alert_a_hold(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        ana = await world.add([quota(), quota()])
        await ana.send("go")
        await ana.wait_idle()
        await ana.send("more")
        (alert,) = await settled(world)
        assert (alert.agent, alert.model, alert.deadline_ms) == ("ana", "m", None)
        assert "exhausted quota of model m" in alert.text
        await trio.sleep(1)
        await runtime.release_provider_wait("ana", requester="ops")
        await ana.wait_idle()
        assert len(await settled(world)) == 2
    async with world.open():
        await world.add([])
        assert len(await settled(world)) == 2


@pytest.mark.behaviour("W-049")
async def test_unreadable_wait_raises_one_alert_an_episode_and_one_after_a_restart(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.open():
        await world.add([])
        await state(world, 60_000)
    damaged = Unreadable(monkeypatch, "ana")
    async with world.open():
        ana = await world.add([])
        await world.add([reply("fine")], "bo")
        await ana.send("go")
        await ana.wait_idle()
        await trio.sleep(10 * 31)  # Ten times it is read again.
        (alert,) = await settled(world)
        assert (alert.kind, alert.agent, alert.model) == ("provider_wait", "ana", "m")
        assert "cannot be read" in alert.text
        assert "release-provider-wait" in alert.text
    async with world.open():
        ana = await world.add([reply("healed")])
        await ana.wait_idle()
        assert len(await settled(world)) == 2
        damaged.on = False
        await trio.sleep(31)
        await ana.wait_idle()
        damaged.on = True
        await world.ref("gate").ask(Admit("m", "auxiliary"))
        assert len(await settled(world)) == 3


@pytest.mark.behaviour("W-049")
@pytest.mark.parametrize("damage", ["a key", "a key that names nobody", "the table"])
async def test_waits_that_cannot_be_read_at_a_start_raise_one_alert_each_start(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    async with world.open():
        await state_wait(world, world.clock.now_ms() + 60_000)
    if damage == "the table":
        Broken(monkeypatch)
    else:
        lost = b"\xff\xff" if damage == "a key that names nobody" else None
        cut_key(world.directory / "store", ("ana", "m"), lost)
    whose = "ana" if damage == "a key" else "framework"
    for times in (1, 2):
        async with world.open():
            await world.add([])
            await trio.sleep(3_600)
            raised = await settled(world)
            assert [(each.agent, each.model) for each in raised] == [(whose, "*")] * times


@pytest.mark.behaviour("W-049")
async def test_unreadable_table_raises_one_alert_for_all_agents_also_at_a_start(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    get, scan, broken = LmdbStore.get, LmdbStore.scan, False

    def refuse(table: str) -> None:
        if broken and table == "waits":
            raise StoreIOError("input/output error; nothing was read", path="x", errno=5)

    def bad_get(store: LmdbStore, table: str, key: Any) -> Any:
        refuse(table)
        return get(store, table, key)

    def bad_scan(store: LmdbStore, table: str, *args: Any, **options: Any) -> Any:
        refuse(table)
        return scan(store, table, *args, **options)

    monkeypatch.setattr(LmdbStore, "get", bad_get)
    monkeypatch.setattr(LmdbStore, "scan", bad_scan)
    for times in (1, 2):
        async with world.open():
            broken = True
            await world.add([])
            await world.add([], "bo")
            raised = await settled(world)
            await trio.sleep(10 * 31)
            for name in ("ana", "bo"):
                refused = await world.ref("gate", name).ask(Admit("m", "auxiliary"))
                assert isinstance(refused, Deferral)
            assert await settled(world) == raised
            assert [(each.agent, each.model) for each in raised] == [("framework", "*")] * times
            assert "No agent calls any model: " in raised[-1].text
            assert raised[-1].text.endswith(f"{world.directory} AGENT")
            broken = False


@pytest.mark.parametrize("released", [False, True])
async def test_wait_that_was_released_while_it_could_not_be_read_raises_no_alert_later(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch, released: bool
) -> None:
    async with world.open() as runtime:
        await world.add([])
        await state(world, 24 * HOUR)
        await settled(world)
        deletes = tuple(_deletes(world, runtime._store))
        await runtime._journal.ask(Request(deletes=deletes))
    damaged = Unreadable(monkeypatch, "ana")
    async with world.open() as runtime:
        await world.add([])
        await settled(world)
        if released:
            await runtime.release_provider_wait("ana", requester="ops")
    damaged.on = False
    async with world.open():
        await world.add([])
        told = [alert for alert in await settled(world) if "stated wait" in alert.text]
        assert len(told) == (1 if released else 2)


async def test_parked_agent_raises_one_alert(world: World, virtual_time: MockClock) -> None:
    async with world.open() as runtime:
        await world.add([])
        for parked in (1, 2):
            incarnation = -1
            while world.state().state != "parked":
                found = world.ref("agent").statistics()
                if found.state == "running" and found.incarnation != incarnation:
                    incarnation = found.incarnation
                    world.ref("agent").kill("by a test")
                await trio.sleep(0.1)
            raised = await settled(world)
            assert len(raised) == parked
            assert (raised[-1].kind, raised[-1].agent) == ("agent_parked", "ana")
            assert "resume_agent('ana')" in raised[-1].text
            await runtime.resume_agent("ana")
            await until(lambda: world.state().state != "parked")


# -- where they go -------------------------------------------------------------------------------


@pytest.mark.behaviour("W-057")
async def test_alert_is_a_line_of_the_log_and_an_event_without_a_webhook(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        looking = runtime.events(kinds=["alert_raised"])
        ana = await world.add([fail(429, retry_after=86_400)])
        await ana.send("go")
        await ana.wait_idle()
        (alert,) = await settled(world)
    (event,) = [event async for event in looking]
    assert isinstance(event, AlertRaised)
    assert (event.alert, event.agent, event.model) == (alert.id, "ana", "m")
    assert (event.about, event.text, event.deadline_ms) == (
        "provider_wait",
        alert.text,
        alert.deadline_ms,
    )
    assert log_lines(world) == [alert.as_json()]
    assert stat.S_IMODE((world.directory / FILE_NAME).stat().st_mode) == 0o600


async def test_hostile_reason_forges_no_line_of_the_failures_log(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        await world.add([])
        hostile = 'x\n{"kind":"forged"}\r\u2028\x1b[31m\ud800'
        await world.ref("ledger").ask(RecordWait("ana", "m", None, hostile))
        await settled(world)
    raw = (world.directory / FILE_NAME).read_bytes()
    assert raw.count(b"\n") == 1
    assert raw.isascii()
    assert b"\\n" not in raw
    assert b"\x1b" not in raw


@pytest.mark.slow
@pytest.mark.behaviour("W-050", "W-061")
async def test_sink_that_raises_changes_neither_the_hold_nor_its_end(
    world: World, virtual_time: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Sink(fails=lambda: RuntimeError(SECRETS))
    async with world.open(alert_sinks=[sink]) as runtime:
        ana = await world.add([fail(429, retry_after=48 * 3_600), reply("after")])
        before = world.clock.now_ms()
        await ana.send("go")
        await ana.wait_idle()
        await trio.sleep(4 * 3_600)
        (wait,) = runtime.provider_waits()
        assert wait.deadline_ms is not None
        assert 48 * HOUR <= wait.deadline_ms - before < 48 * HOUR + 1_000
        assert world.state().state == "held"
        figures = {each.name: each for each in runtime.statistics().alert_sinks}
        assert (figures["kept"].failures, figures["kept"].given_up) == (len(PAUSES_S) + 1, 1)
        assert figures["failures-log"].delivered == 1
        assert world.ref("alerts").statistics().incarnation == 1
        assert len(world.providers[0].requests) == 1
        await trio.sleep(45 * 3_600)
        await ana.wait_idle()
        assert len(world.providers[0].requests) == 2
    assert "RuntimeError" in caplog.text
    assert SECRETS not in caplog.text


@pytest.mark.behaviour("W-050")
async def test_unreadable_wait_holds_although_every_sink_raises(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    Unreadable(monkeypatch, "ana")
    async with world.open(alert_sinks=[Sink(fails=ZeroDivisionError)]):
        ana = await world.add([])
        await ana.send("go")
        await ana.wait_idle()
        await trio.sleep(60)
        assert (world.state().state, world.state().held.cause) == ("held", "unreadable")
        assert not world.providers[0].requests


async def test_sink_that_hangs_or_refuses_for_good_is_given_up_and_the_next_alert_is_offered(
    world: World, virtual_time: MockClock
) -> None:
    sink = Sink()
    sink.hangs = True
    async with world.open(alert_sinks=[sink]) as runtime:
        await world.add([])
        began = trio.current_time()
        await state(world, 2 * HOUR)
        await state(world, 2 * HOUR, "m2")
        await until(lambda: runtime.statistics().alert_sinks[0].delivered == 2)
        await until(lambda: runtime.statistics().alert_sinks[1].given_up == 1)
        sink.hangs, sink.fails = False, lambda: AlertNotDeliveredError("no", final=True)
        await trio.sleep(ATTEMPT_S_MAX + PAUSES_S[-1])
        await settled(world)
        assert runtime.statistics().alert_sinks[1].given_up == 2
        sink.fails = None
        await state(world, 2 * HOUR, "m3")
        await settled(world)
        assert [alert.model for alert in sink.got] == ["m3"]
        assert trio.current_time() - began < 2_000


async def test_alert_that_a_sink_hangs_on_delays_each_other_one_by_one_attempt(
    world: World, virtual_time: MockClock
) -> None:
    class Picky(Sink):
        async def deliver(self, alert: Alert) -> None:
            self.hangs = alert.model == "m0"
            await super().deliver(alert)

    sink = Picky()
    async with world.open(alert_sinks=[sink]) as runtime:
        await world.add([])
        began = trio.current_time()
        for number in range(20):
            await state(world, 2 * HOUR, f"m{number}")
        await until(lambda: len(sink.got) == 19)
        assert trio.current_time() - began < 3 * ATTEMPT_S_MAX
        assert [alert.model for alert in sink.got] == [f"m{number}" for number in range(1, 20)]
        await until(lambda: runtime.statistics().alert_sinks[1].given_up == 1)
        assert runtime.statistics().alert_sinks[1].failures == len(PAUSES_S) + 1
        await settled(world)


async def test_alert_that_a_sink_was_not_given_is_delivered_after_a_restart_and_once(
    world: World, virtual_time: MockClock
) -> None:
    sink = Sink()
    sink.hangs = True
    async with world.open(alert_sinks=[sink]) as runtime:
        await world.add([])
        await state(world, 2 * HOUR)
        await until(lambda: sink.tries == 1)
        # A line that is being written at the end of a process may be written once more by the next.
        await until(lambda: not world.rows("alerts_owed", "failures-log"))
        raised = runtime.alerts()
    sink.hangs = False
    async with world.open(alert_sinks=[sink]):
        await settled(world)
        assert sink.got == list(raised)
    async with world.open(alert_sinks=[sink]):
        await world.add([])
        await settled(world)
    assert len(sink.got) == 1
    assert len(log_lines(world)) == 1


async def test_alert_that_was_delivered_and_not_noted_before_a_stop_is_not_delivered_again(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Sink()

    async def never(*_: Any) -> None:
        await trio.sleep_forever()

    with monkeypatch.context() as patched:
        patched.setattr(Deliveries, "_forget", never)
        async with world.open(alert_sinks=[sink]):
            await world.add([])
            await state(world, 2 * HOUR)
            await until(lambda: len(sink.got) == 1 and len(log_lines(world)) == 1)
    async with world.open(alert_sinks=[sink]):
        await world.add([])
        await settled(world)
    assert len(sink.got) == len(log_lines(world)) == 1


async def test_what_a_living_process_owes_is_left_to_it(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Sink()
    sink.hangs = True
    alive = True
    monkeypatch.setattr(Ownership, "is_alive", lambda _self, _nonce: alive)
    async with world.open(alert_sinks=[sink]):
        await world.add([])
        await state(world, 2 * HOUR)
        await until(lambda: sink.tries == 1)
    sink.hangs = False
    async with world.open(alert_sinks=[sink]):
        await wait_all_tasks_blocked()
        assert (sink.tries, sink.got) == (1, [])
        assert world.rows("alerts_owed")
    alive = False
    async with world.open(alert_sinks=[sink]):
        await settled(world)
        assert [alert.id for alert in sink.got] == [1]


@pytest.mark.parametrize("ticks", range(0, 40, 2))
async def test_kill_of_the_alerts_actor_loses_no_alert_and_raises_none_twice(
    world: World, virtual_time: MockClock, ticks: int
) -> None:
    sink = Sink()
    async with world.open(alert_sinks=[sink]):
        await world.add([])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(state, world, 2 * HOUR)
            for _ in range(ticks):
                await trio.lowlevel.checkpoint()
            world.ref("alerts").kill("by a test")
        await until(lambda: world.ref("alerts").statistics().state == "running")
        assert len(await settled(world)) == 1
        assert {alert.id for alert in sink.got} == {1}


async def test_alert_that_the_store_cannot_take_is_shown_at_once_and_stored_later(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, submit, is_full = Sink(), LmdbStore.submit, True

    def full(store: LmdbStore, batch: Any, done: Any) -> None:
        if is_full and any(request.ops for request in batch):
            error = DiskFullError("no room; nothing is stored; make room", path="x")
            done([NotStored(error)] * len(batch))
        else:
            submit(store, batch, done)

    async with world.open(alert_sinks=[sink]) as runtime:
        looking = runtime.events(kinds=["alert_raised"])
        await world.add([])
        monkeypatch.setattr(LmdbStore, "submit", full)
        await state(world, 24 * HOUR)
        await until(lambda: len(sink.got) == 1)
        event = await anext(looking)
        assert isinstance(event, AlertRaised)
        assert (event.alert, sink.got[0].id, runtime.alerts()) == (None, None, ())
        assert runtime.provider_waits()
        await trio.sleep(60)
        is_full = False
        await until(lambda: len(runtime.alerts()) == 1)
        await trio.sleep(60)
        assert len(sink.got) == 1
        assert len(log_lines(world)) == 1
        assert len(runtime.alerts()) == 1


async def test_sink_is_offered_no_more_than_its_bound(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts_module, "OWED_MAX", 2)
    sink = Sink()
    sink.hangs = True
    async with world.open(alert_sinks=[sink]) as runtime:
        await world.add([])
        for model in ("m1", "m2", "m3", "m4"):
            await state(world, 2 * HOUR, model)
            await until(lambda: log_lines(world)[-1:] and log_lines(world)[-1]["model"] == model)  # noqa: B023
        figures = runtime.statistics().alert_sinks[1]
        assert figures.unread == 2
        assert len(runtime.alerts()) == 4


# -- looking -------------------------------------------------------------------------------------


async def test_alerts_are_listed_in_order_by_page(world: World, virtual_time: MockClock) -> None:
    async with world.open() as runtime:
        await world.add([])
        for model in ("m1", "m2", "m3"):
            await state(world, 2 * HOUR, model)
            await settled(world)
        assert [alert.id for alert in runtime.alerts()] == [1, 2, 3]
        assert [alert.id for alert in runtime.alerts(limit=2)] == [2, 3]
        assert [alert.id for alert in runtime.alerts(after=0, limit=2)] == [1, 2]
        assert [alert.id for alert in runtime.alerts(after=2)] == [3]
        for bad in ({"after": -1}, {"after": "1"}, {"limit": 0}, {"limit": 1_001}, {"after": True}):
            with pytest.raises(InvalidInputError):
                runtime.alerts(**bad)  # type: ignore[arg-type]


async def test_alert_whose_row_cannot_be_read_is_listed_as_such_and_owed_to_nobody(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Sink()
    sink.hangs = True
    async with world.open(alert_sinks=[sink]):
        await world.add([])
        await state(world, 2 * HOUR)
        await until(lambda: sink.tries == 1)
    get, scan = LmdbStore.get, LmdbStore.scan

    def unreadable(key: Any) -> UnreadableRecordError:
        return UnreadableRecordError("bad\nsum", table="alerts", key=key, cause="checksum")

    def bad_get(store: LmdbStore, table: str, key: Any) -> Any:
        if table == "alerts":
            raise unreadable(key)
        return get(store, table, key)

    def bad_scan(store: LmdbStore, table: str, *args: Any, **options: Any) -> Any:
        for key, row in scan(store, table, *args, **options):
            yield key, unreadable(key) if table == "alerts" else row

    monkeypatch.setattr(LmdbStore, "get", bad_get)
    monkeypatch.setattr(LmdbStore, "scan", bad_scan)
    sink.hangs = False
    async with world.open(alert_sinks=[sink]) as runtime:
        (alert,) = await settled(world)
        assert (alert.id, alert.kind) == (1, "unreadable")
        assert "\n" not in alert.text
        assert sink.got == []
        assert runtime.statistics().alert_sinks[1].given_up == 0


@pytest.mark.parametrize("name", ["webhook", "failures-log", "", "A", "x" * 65, None, "kept"])
async def test_sink_without_a_name_of_its_own_is_refused(tmp_path: Path, name: Any) -> None:
    sink = Sink()
    sink.name = name
    with pytest.raises(InvalidSpecError, match=r"alert_sinks\[1\]\.name"):
        async with open_runtime(tmp_path / "state", alert_sinks=[Sink(), sink]):
            pass
    assert os.listdir(tmp_path) == []
