"""Ephemeral runs: what they sleep, what ends them, and what they leave."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors import AgentSpec
from abeyance.actors.domain.errors import (
    InvalidMessageError,
    InvalidNameError,
    InvalidSpecError,
    RunExhaustedError,
    RunFailedError,
    RunInterruptedError,
    RuntimeClosedError,
)
from abeyance.actors.domain.ingress import body_crc, encode_body
from abeyance.actors.domain.slot_messages import Accept
from abeyance.actors.groups import Groups
from abeyance.actors.testing import Gate, ScriptedProvider, call_tool, fail, raise_, reply
from abeyance.storage.codec import encode
from abeyance.storage.store import Put, Request
from abeyance.storage.tables.agents import Ephemeral
from abeyance.storage.tables.blocks import TextBlock

from .test_conversations import Midstream
from .test_unreadable_holds import Broken
from .world import Stop, World, tool, until

BOUND_S = 600


def spec(world: World, *script: Any, name: str = "sum", **more: Any) -> AgentSpec:
    provider = ScriptedProvider(list(script), clock=world.clock)
    return AgentSpec(name=name, provider=provider, model="m", **more)


def calls(spec_: AgentSpec) -> int:
    provider = spec_.provider
    assert isinstance(provider, ScriptedProvider)
    return len(provider.requests)


def run_name(world: World) -> str:
    (name,) = world.runtime._runs.runs
    return name


async def test_a_run_answers_with_its_last_words_and_keeps_its_transcript(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    stop.go.set()
    async with world.open() as runtime:
        used = spec(world, call_tool("wait"), reply("in short"), tools=[stop.tool()])
        assert await runtime.run_ephemeral(used, "summarise this") == "in short"
        (agent,) = world.rows("agents")
        assert (agent.kind, agent.ended_ms is not None) == ("ephemeral", True)
        assert [entry.role for entry in world.rows("slots", agent.slot)] == [
            "user",
            "assistant",
            "results",
            "assistant",
        ]
        for table in ("ephemerals", "wakes", "dead_letters", "waits"):
            assert not world.rows(table), table
        assert not runtime.status().agents


async def test_runs_of_one_specification_do_not_meet(world: World, virtual_time: MockClock) -> None:
    async with world.open() as runtime:
        used = spec(world, reply("one"), reply("two"))
        assert await runtime.run_ephemeral(used, "a") == "one"
        assert await runtime.run_ephemeral(used, "b") == "two"
        assert len(world.rows("agents")) == 2


@pytest.mark.behaviour("W-085", "W-089")
@pytest.mark.parametrize("stated_s", [0.3, BOUND_S], ids=["short", "ten minutes"])
async def test_a_stated_wait_up_to_ten_minutes_is_slept_in_full_and_recorded_nowhere(
    world: World, virtual_time: MockClock, stated_s: float
) -> None:
    async with world.open() as runtime:
        limited = fail(429, headers={"retry-after-ms": str(int(stated_s * 1_000))})
        used = spec(world, limited, reply("in short"))
        began = world.clock.now_ms()
        assert await runtime.run_ephemeral(used, "go") == "in short"
        assert world.clock.now_ms() - began >= stated_s * 1_000
        assert calls(used) == 2
        assert not world.rows("waits")
        assert not runtime.provider_waits()


@pytest.mark.behaviour("W-086", "W-088", "W-089", "R-34", "X-005")
@pytest.mark.parametrize(
    ("limited", "stated_s"),
    [(fail(429, retry_after=7_200), 7_200), (Midstream(), 1_200)],
    ids=["before the stream", "out of the stream"],
)
async def test_a_longer_wait_ends_the_run_at_once_with_the_instant(
    world: World, virtual_time: MockClock, limited: Any, stated_s: int
) -> None:
    async with world.open() as runtime:
        used = spec(world, limited, reply("too early"))
        began = world.clock.now_ms()
        with pytest.raises(RunExhaustedError) as caught:
            await runtime.run_ephemeral(used, "go")
        error = caught.value
        assert world.clock.now_ms() - began < 5_000
        assert error.deadline_ms is not None
        assert abs(error.deadline_ms - began - stated_s * 1_000) < 5_000
        assert error.sleep_max_ms == 600_000
        assert "600" in str(error)
        assert f"{stated_s} s" in str(error), "as it was stated, though a moment has passed"
        assert pickle.loads(pickle.dumps(error)).deadline_ms == error.deadline_ms
        await trio.sleep(10_000)
        assert calls(used) == 1, "no second call"
        assert not world.rows("waits")
        (turn,) = world.rows("turns")
        assert turn.state == "cancelled"


class StatedError(Exception):
    """What another copy of a provider's library raises."""

    def __init__(self, retry_after_ms: float) -> None:
        super().__init__("slow down")
        self.type = "rate_limited"
        self.retryable = True
        self.retry_after_ms = retry_after_ms


@pytest.mark.behaviour("W-087")
async def test_a_wait_without_end_ends_the_run_in_words_of_its_own(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        used = spec(world, raise_(StatedError(math.nan)), reply("never"))
        began = trio.current_time()
        with pytest.raises(RunExhaustedError, match="until released") as caught:
            await runtime.run_ephemeral(used, "go")
        assert (caught.value.deadline_ms, caught.value.stated_ms) == (None, None)
        assert trio.current_time() - began < 5
        assert calls(used) == 1


@pytest.mark.behaviour("W-126")
async def test_an_error_of_another_copy_of_the_library_ends_a_run_by_its_wait(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        used = spec(world, raise_(StatedError(7_200_000)))
        with pytest.raises(RunExhaustedError):
            await runtime.run_ephemeral(used, "go")
        assert calls(used) == 1


@pytest.mark.behaviour("W-055")
async def test_waits_that_cannot_be_read_do_not_hold_a_run(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    Broken(monkeypatch)
    async with world.open() as runtime:
        ana = await world.add([reply("never")])
        await ana.send("go")
        await ana.wait_idle()
        assert (world.state().held.cause, len(world.providers[0].requests)) == ("unreadable", 0)
        used = spec(world, call_tool("look"), reply("in short"), tools=[tool("look", lambda: "x")])
        with trio.fail_after(20):
            assert await runtime.run_ephemeral(used, "go") == "in short"
        assert calls(used) == 2
        assert not world.providers[0].requests


@pytest.mark.parametrize("wall_s", [300, 7_200], ids=["slept", "too long"])
async def test_a_run_obeys_the_walls_of_its_credential(
    world: World, virtual_time: MockClock, wall_s: int
) -> None:
    async with world.open(account_waits=True) as runtime:
        wall = ScriptedProvider([fail(429, retry_after=wall_s)], clock=world.clock)
        run = ScriptedProvider([reply("in short")], clock=world.clock)
        for provider in (wall, run):
            provider.credential = lambda _salt: "k"  # type: ignore[attr-defined]
        await runtime.add_agent(AgentSpec(name="ana", provider=wall, model="m"))
        await runtime.agent("ana").send("go")
        await runtime.agent("ana").wait_idle()
        used = AgentSpec(name="sum", provider=run, model="m")
        began = world.clock.now_ms()
        if wall_s > BOUND_S:
            with pytest.raises(RunExhaustedError) as caught:
                await runtime.run_ephemeral(used, "go")
            assert caught.value.cause == "account"
            assert calls(used) == 0
        else:
            # The wall's own agent tries first when it ends; that call has no step, and fails.
            assert await runtime.run_ephemeral(used, "go") == "in short"
            assert world.clock.now_ms() - began >= wall_s * 1_000 - 5_000


async def test_a_run_whose_turn_fails_says_why(world: World, virtual_time: MockClock) -> None:
    async with world.open() as runtime:
        used = spec(world, fail(401, body="bad key"))
        with pytest.raises(RunFailedError, match="bad key"):
            await runtime.run_ephemeral(used, "go")


async def queue(world: World, *texts_: str) -> None:
    run = world.runtime._runs.runs[run_name(world)]
    for text in texts_:
        body = encode_body((TextBlock(text=text),))
        await run.slot.ask(
            Accept(
                message=text,
                body=body,
                body_crc=body_crc(body),
                author="user",
                agent=run.name,
                channel=None,
                wake=True,
                own=False,
                at_ms=1,
                known=True,
            )
        )


@pytest.mark.behaviour("X-004", "D-071")
@pytest.mark.parametrize("long_wait", [True, False], ids=["ended by a wait", "answered"])
async def test_what_was_queued_for_a_run_is_in_its_slot_when_it_ends(
    world: World, virtual_time: MockClock, long_wait: bool
) -> None:
    gate = Gate(fail(429, retry_after=7_200) if long_wait else reply("in short"))
    async with world.open() as runtime:
        used = spec(world, gate)
        names: list[str] = []

        async def run() -> None:
            if long_wait:
                with pytest.raises(RunExhaustedError):
                    await runtime.run_ephemeral(used, "go")
            else:
                await runtime.run_ephemeral(used, "go")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await gate.wait_entered()
            names.append(run_name(world))
            await queue(world, "one", "two")
            gate.release()
        rows = [entry.message for entry in world.rows("slots", names[0])]
        assert rows[-2:] == ["one", "two"]
        assert not world.rows("inbox")
        assert not world.rows("wakes")


@pytest.mark.parametrize("state", ["calling", "sleeping"])
async def test_a_stop_answers_who_waits_for_a_run_at_once(
    world: World, virtual_time: MockClock, state: str
) -> None:
    gate = Gate(reply("never"))
    ended: list[RunInterruptedError] = []
    async with trio.open_nursery() as nursery:
        async with world.open() as runtime:
            used = spec(world, gate if state == "calling" else fail(429, retry_after=500))

            async def run() -> None:
                with pytest.raises(RunInterruptedError) as caught:
                    await runtime.run_ephemeral(used, "go")
                ended.append(caught.value)

            nursery.start_soon(run)
            await until(lambda: calls(used) == 1)
            await wait_all_tasks_blocked()
            began = trio.current_time()
        assert trio.current_time() - began < 1
    assert "the runtime stops" in str(ended[0])
    assert calls(used) == 1
    async with world.open():
        (turn,) = world.rows("turns")
        assert turn.state == "cancelled"
        assert not world.rows("ephemerals")
    with pytest.raises(RuntimeClosedError):
        await runtime.run_ephemeral(used, "again")


async def test_one_run_that_cannot_be_closed_keeps_neither_the_others_nor_the_runtime(
    world: World,
    virtual_time: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with world.open() as runtime:
        await wait_all_tasks_blocked()  # This opening has looked for runs that are left.
        left = tuple(
            Put("ephemerals", (name,), encode(Ephemeral(started_ms=1))) for name in ("a.1", "b.2")
        )
        runtime._store.commit(Request(puts=left))
    own = Groups.own

    async def refusing(groups: Groups, name: str) -> None:
        if name == "a.1":
            raise OSError("no such luck")
        await own(groups, name)

    monkeypatch.setattr(Groups, "own", refusing)
    async with world.open() as runtime:
        await until(lambda: len(world.rows("ephemerals")) == 1)
        assert "'a.1' is closed by a later start" in caplog.text
        used = spec(world, reply("in short"))
        assert await runtime.run_ephemeral(used, "go") == "in short"
    monkeypatch.undo()
    async with world.open():
        await until(lambda: not world.rows("ephemerals"))


async def test_a_run_whose_caller_gives_up_is_ended(world: World, virtual_time: MockClock) -> None:
    async with world.open() as runtime:
        used = spec(world, fail(429, retry_after=500), reply("never"))
        with trio.move_on_after(10) as gives_up:
            await runtime.run_ephemeral(used, "go")
        assert gives_up.cancelled_caught
        await trio.sleep(1_000)
        assert calls(used) == 1
        assert world.rows("turns")[0].state == "cancelled"
        assert not runtime._runs.runs


@pytest.mark.parametrize(
    ("make", "content", "error", "field"),
    [
        (lambda _: "ana", "go", InvalidSpecError, "spec"),
        (lambda world: spec(world, name="n" * 115), "go", InvalidNameError, "name"),
        (lambda world: spec(world, name="*"), "go", InvalidNameError, "name"),
        (lambda world: spec(world), " ", InvalidMessageError, "message"),
        (lambda world: spec(world), None, InvalidMessageError, None),
    ],
    ids=["no specification", "long name", "reserved name", "blank", "nothing"],
)
async def test_bad_input_is_refused_before_anything_is_recorded(
    world: World,
    virtual_time: MockClock,
    make: Any,
    content: Any,
    error: type[Exception],
    field: str | None,
) -> None:
    async with world.open() as runtime:
        with pytest.raises(error) as caught:
            await runtime.run_ephemeral(make(world), content)
        if field is not None:
            assert getattr(caught.value, "field") == field  # noqa: B009
        assert not world.rows("agents")
        assert not world.rows("ephemerals")
