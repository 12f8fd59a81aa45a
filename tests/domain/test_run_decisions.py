"""What an operator may decide of a run, and what its author's policy decides before that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors import (
    Happened,
    ModelChoice,
    RunContext,
    RunStateError,
)
from abeyance.actors.domain.errors import UnknownProviderError
from abeyance.actors.domain.run_errors import InvalidRunError
from abeyance.actors.ops.errors import NeedsHostError
from abeyance.actors.ops.stopped import StoppedStore
from abeyance.actors.testing import fail, reply

from .test_runs import HOUR, wall
from .world import World, until

GPT = ModelChoice("openai", "gpt")


class Post:
    """An item that a stop cuts off the first time."""

    def __init__(self, in_doubt: Any = "recover") -> None:
        self.in_doubt = in_doubt
        self.entered = 0

    async def body(self, run: RunContext, _params: Any) -> Any:
        return await run.do("post", self.act, in_doubt=self.in_doubt)

    async def act(self) -> str:
        self.entered += 1
        if self.entered == 1:
            await trio.sleep_forever()
        return "posted"


async def cut_off(world: World, post: Post) -> None:
    async with world.open() as runtime:
        runtime.add_workflow("w", post.body)
        await runtime.start_run("k", "w")
        await until(lambda: post.entered == 1)


async def recovery(world: World, function: Callable[..., Any], version: int = 1) -> str:
    """Open a host with this workflow and stay until the run waits for an operator; why it does."""
    async with world.open() as runtime:
        runtime.add_workflow("w", function, version)
        with trio.fail_after(120):
            await until(lambda: runtime.run("k").state == "recovery_required")
        return runtime.run("k").reason


# -- an author's policy


@pytest.mark.parametrize(
    ("in_doubt", "came_to"),
    [("retry", "posted"), (lambda _context: Happened("found"), "found")],
    ids=["retry", "reconcile"],
)
@pytest.mark.parametrize("door", ["host", "stopped"])
async def test_policy_of_an_item_decides_after_a_detour_over_another_version(
    world: World, virtual_time: MockClock, in_doubt: Any, came_to: str, door: str
) -> None:
    post = Post(in_doubt)
    await cut_off(world, post)
    assert "version 2" in await recovery(world, post.body, 2)
    if door == "stopped":
        store = StoppedStore(world.directory, writing=True)
        assert store.resume_run("k").changed
        store.close()
    async with world.open() as runtime:
        runtime.add_workflow("w", post.body)
        if door == "host":
            assert (await runtime.resume_run("k", requester="ops")).changed
        with trio.fail_after(120):
            status = await runtime.wait_run("k")
        assert (status.state, status.result) == ("completed", came_to)


@pytest.mark.parametrize("door", ["host", "stopped"])
async def test_item_that_its_policy_leaves_to_an_operator_is_decided_by_nobody_else(
    world: World, virtual_time: MockClock, door: str
) -> None:
    """Also after the detour, on which its policy was not asked."""
    post = Post()
    await cut_off(world, post)
    await recovery(world, post.body, 2)
    async with world.open() as runtime:
        runtime.add_workflow("w", post.body)
        await runtime.resume_run("k", requester="ops")
        with trio.fail_after(120):
            await until(lambda: runtime.run("k").state == "recovery_required")
        why = "'post' was begun and its end is not recorded: it may have had its effect"
        assert runtime.run("k").reason == why
        if door == "host":
            with pytest.raises(RunStateError):
                await runtime.resume_run("k", requester="ops")
            await runtime.resume_run("k", requester="ops", in_doubt="done", result="mine")
            assert (await runtime.wait_run("k")).result == "mine"
    if door == "stopped":
        store = StoppedStore(world.directory, writing=True)
        with pytest.raises(RunStateError):
            store.resume_run("k")
        assert store.resume_run("k", in_doubt="done", result="mine").changed
        store.close()
        async with world.open() as runtime:
            runtime.add_workflow("w", post.body)
            assert (await runtime.wait_run("k")).result == "mine"
    assert post.entered == 1


@pytest.mark.parametrize("policy", ["recover", "retry"])
async def test_finaliser_in_doubt_is_settled_by_the_policy_it_was_added_with(
    world: World, virtual_time: MockClock, policy: Any
) -> None:
    entered = [0]

    async def body(_run: RunContext, _params: Any) -> str:
        await trio.lowlevel.checkpoint()
        return "made"

    async def notify(_result: Any) -> None:
        entered[0] += 1
        if entered[0] == 1:
            await trio.sleep_forever()

    async with world.open() as runtime:
        runtime.add_workflow("w", body, finalisers=[("notify", notify, policy)])
        await runtime.start_run("k", "w")
        await until(lambda: entered == [1])
    async with world.open() as runtime:
        runtime.add_workflow("w", body, finalisers=[("notify", notify, policy)])
        expected = "recovery_required" if policy == "recover" else "completed"
        with trio.fail_after(120):
            await until(lambda: runtime.run("k").state == expected)
    assert entered == [1 if policy == "recover" else 2]


@pytest.mark.parametrize("door", ["host", "stopped"])
async def test_run_without_an_item_in_doubt_has_none_that_is_taken_as_done(
    world: World, virtual_time: MockClock, door: str
) -> None:
    entered = list[int]()

    async def act() -> None:
        entered.append(1)
        raise wall(None)

    async def body(run: RunContext, _params: Any) -> None:
        await run.do("act", act)

    async with world.open() as runtime:
        runtime.add_workflow("w", body)
        await runtime.start_run("k", "w")
        await until(lambda: runtime.run("k").state == "waiting_for_capacity_unknown")
        if door == "host":
            with pytest.raises(RunStateError):
                await runtime.resume_run("k", requester="ops", in_doubt="done", result="by hand")
            assert runtime.run("k").state == "waiting_for_capacity_unknown"
    if door == "stopped":
        store = StoppedStore(world.directory, writing=True)
        with pytest.raises(RunStateError):
            store.resume_run("k", in_doubt="done", result="by hand")
        store.close()
    assert entered == [1]


# -- which model stands in for another


class Choosy:
    """A workflow whose first call meets a wall, until an operator names another model."""

    def __init__(self) -> None:
        self.called: list[ModelChoice | None] = []

    async def body(self, run: RunContext, _params: Any) -> Any:
        return await run.do("call", self.act, run.choice)

    async def act(self, choice: ModelChoice | None) -> str:
        self.called.append(choice)
        if choice is None:
            raise wall(None)
        return choice.model


@pytest.mark.behaviour("S-052")
@pytest.mark.parametrize(
    ("fallbacks", "added", "asked", "field"),
    [
        ([GPT], [], GPT, None),
        ([GPT], ["openai"], ModelChoice("openai", "other"), "model"),
        ([GPT], ["x"], ModelChoice("x", "gpt"), "provider"),
        ([], ["openai"], GPT, None),
        ([], [], GPT, "provider"),
    ],
    ids=["named", "another model", "another provider", "added by the host", "nobody knows it"],
)
async def test_fallback_is_one_that_the_run_may_use(
    world: World,
    virtual_time: MockClock,
    fallbacks: list[ModelChoice],
    added: list[str],
    asked: ModelChoice,
    field: str | None,
) -> None:
    choosy = Choosy()
    async with world.open() as runtime:
        for name in added:
            runtime.add_provider(name, world.provider([]))
        runtime.add_workflow("w", choosy.body, fallbacks=fallbacks)
        await runtime.start_run("k", "w")
        await until(lambda: runtime.run("k").state == "waiting_for_capacity_unknown")
        if field is not None:
            with pytest.raises(InvalidRunError) as caught:
                await runtime.use_fallback(
                    "k", provider=asked.provider, model=asked.model, requester="ops"
                )
            assert caught.value.field == field
            assert runtime.run("k").state == "waiting_for_capacity_unknown"
            assert choosy.called == [None]
            return
        await runtime.use_fallback("k", provider="openai", model="gpt", requester="ops")
        assert (await runtime.wait_run("k")).result == "gpt"


async def test_fallback_named_in_a_stopped_store_that_the_run_may_not_use_is_not_gone_on_with(
    world: World, virtual_time: MockClock
) -> None:
    choosy = Choosy()
    async with world.open() as runtime:
        runtime.add_workflow("w", choosy.body, fallbacks=[GPT])
        await runtime.start_run("k", "w")
        await until(lambda: runtime.run("k").state == "waiting_for_capacity_unknown")
    store = StoppedStore(world.directory, writing=True)
    assert store.use_fallback("k", provider="x", model="y").changed
    store.close()
    async with world.open() as runtime:
        runtime.add_workflow("w", choosy.body, fallbacks=[GPT])
        with trio.fail_after(120):
            await until(lambda: runtime.run("k").state == "recovery_required")
        assert runtime.run("k").reason == (
            "x/y, which was chosen for it, is none of the fallbacks of 'w' (openai/gpt): resume it "
            "to go on without, or choose another (fallback)"
        )
        assert not runtime.run("k").needs_decision
        assert choosy.called == [None]
        await runtime.resume_run("k", requester="ops")
        await until(lambda: runtime.run("k").state == "waiting_for_capacity_unknown")
    assert choosy.called == [None, None]


async def left_with_a_choice(world: World, choosy: Choosy) -> None:
    """A run that met its wall, whose provider an operator named while no host was there."""
    async with world.open() as runtime:
        runtime.add_workflow("w", choosy.body)
        await runtime.start_run("k", "w")
        await until(lambda: runtime.run("k").state == "waiting_for_capacity_unknown")
    store = StoppedStore(world.directory, writing=True)
    assert store.use_fallback("k", provider="openai", model="gpt").changed
    store.close()


@pytest.mark.behaviour("S-052")
async def test_fallback_of_a_provider_that_no_host_added_is_not_gone_on_with(
    world: World, virtual_time: MockClock
) -> None:
    choosy = Choosy()
    await left_with_a_choice(world, choosy)
    async with world.open() as runtime:
        runtime.add_workflow("w", choosy.body)
        await trio.sleep(25)
        assert runtime.run("k").state == "resuming", "a start may still be adding it"
        with trio.fail_after(120):
            await until(lambda: runtime.run("k").state == "recovery_required")
        assert "openai/gpt, which was chosen for it, is of no provider" in runtime.run("k").reason
        runtime.add_provider("openai", world.provider([]))
        await runtime.use_fallback("k", provider="openai", model="gpt", requester="ops")
        assert (await runtime.wait_run("k")).result == "gpt"
    assert choosy.called == [None, GPT]


@pytest.mark.behaviour("S-052")
async def test_fallback_of_a_provider_that_is_added_behind_its_workflow_is_gone_on_with(
    world: World, virtual_time: MockClock
) -> None:
    choosy = Choosy()
    await left_with_a_choice(world, choosy)
    async with world.open() as runtime:
        runtime.add_workflow("w", choosy.body)
        await trio.sleep(10)
        runtime.add_provider("openai", world.provider([]))
        with trio.fail_after(60):
            assert (await runtime.wait_run("k")).result == "gpt"
    assert choosy.called == [None, GPT]


@pytest.mark.behaviour("S-052")
async def test_fallback_that_a_host_checked_is_gone_on_with_by_one_that_has_no_such_provider(
    world: World, virtual_time: MockClock
) -> None:
    """What a workflow calls is its own: another process of the store may have it all the same."""
    called = list[ModelChoice | None]()

    async def act(choice: ModelChoice | None) -> str:
        called.append(choice)
        if len(called) < 3:
            raise wall(None if choice is None else world.clock.now_ms() + HOUR)
        return "done"

    async def body(run: RunContext, _params: Any) -> Any:
        return await run.do("call", act, run.choice)

    async with world.open() as runtime:
        runtime.add_provider("openai", world.provider([]))
        runtime.add_workflow("w", body)
        await runtime.start_run("k", "w")
        await until(lambda: runtime.run("k").state == "waiting_for_capacity_unknown")
        await runtime.use_fallback("k", provider="openai", model="gpt", requester="ops")
        await until(lambda: runtime.run("k").state == "waiting_for_capacity")
    async with world.open() as runtime:
        runtime.add_workflow("w", body)
        assert (await runtime.wait_run("k")).state == "completed"
    assert called == [None, GPT, GPT]


async def asking(world: World) -> Any:
    """A run that waits for the held turn of `ana`."""

    async def body(run: RunContext, _params: Any) -> str:
        return await run.ask("q", "ana", "hi")

    await world.add([fail(429, retry_after=7_200), reply("the first")])
    world.runtime.add_workflow("w", body)
    await world.runtime.start_run("k", "w")
    await until(lambda: world.runtime.run("k").state == "waiting_for_capacity")
    return body


@pytest.mark.behaviour("S-052")
async def test_fallback_of_a_run_that_waits_for_a_held_turn_is_its_agents(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        other = world.provider([reply("the other")])
        runtime.add_provider("openai", other)
        await asking(world)
        with pytest.raises(UnknownProviderError):
            await runtime.use_fallback("k", provider="x", model="gpt", requester="ops")
        began = world.clock.now_ms()
        receipt = await runtime.use_fallback("k", provider="openai", model="gpt", requester="ops")
        assert receipt.changed
        with trio.fail_after(120):
            assert (await runtime.wait_run("k")).result == "the other"
        assert world.clock.now_ms() - began < HOUR
        assert [each.model for each in other.requests] == ["gpt"]
        again = await runtime.use_fallback("k", provider="openai", model="gpt", requester="ops")
        assert (again.state, again.changed) == ("completed", False)


async def test_fallback_of_a_held_turn_is_pressed_twice_and_chosen_once(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        runtime.add_provider("openai", world.provider([fail(429, retry_after=7_200)] * 2))
        await asking(world)
        found = [
            await runtime.use_fallback("k", provider="openai", model="gpt", requester="ops")
            for _ in range(2)
        ]
        assert [each.changed for each in found] == [True, False]


async def test_fallback_of_a_held_turn_is_refused_where_its_agent_is_not(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        body = await asking(world)
    store = StoppedStore(world.directory, writing=True)
    with pytest.raises(NeedsHostError):
        store.use_fallback("k", provider="openai", model="gpt")
    store.close()
    async with world.open() as runtime:
        runtime.add_workflow("w", body)
        with pytest.raises(RunStateError, match="which is not in this runtime"):
            await runtime.use_fallback("k", provider="openai", model="gpt", requester="ops")
        assert runtime.run("k").state == "waiting_for_capacity"
