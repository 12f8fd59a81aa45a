"""Auxiliary calls: the same gate, one call at a time, and what either states binds the other."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from abeyance.actors import AgentHandle, AgentSpec
from abeyance.actors.domain.errors import (
    AdmissionClosedError,
    CallDeferredError,
    InvalidInputError,
    InvalidNameError,
    UnknownAgentError,
)
from abeyance.actors.providers.port import ModelRequest, ProviderError, ProviderMessage
from abeyance.actors.testing import Gate, ScriptedProvider, call_tool, fail, reply
from abeyance.storage.tables.blocks import TextBlock

from .test_conversations import resident
from .test_holds import slow_hold
from .world import Stop, World, shown, until


def ask(model: str = "m", text: str = "sum up") -> ModelRequest:
    said = ProviderMessage("user", (TextBlock(text=text),))
    return ModelRequest(model=model, messages=(said,))


def models(provider: ScriptedProvider) -> list[str]:
    return [request.model for request in provider.requests]


async def test_an_auxiliary_call_is_answered_and_leaves_the_slot_alone(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await resident(world, [reply("in short")])
        answer = await runtime.agent("ana").auxiliary_call(ask())
        assert answer.blocks == (TextBlock(text="in short"),)
        assert not world.rows("slots")
        await wait_all_tasks_blocked()
        assert not world.permits_out()


@pytest.mark.behaviour("W-090", "W-091", "W-092")
async def test_a_call_to_a_held_model_is_refused_unmade_and_says_for_how_long(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        provider = await resident(world, [fail(429, retry_after=60)])
        ana = runtime.agent("ana")
        await ana.send("go")
        await ana.wait_idle()
        await trio.sleep(5)
        with pytest.raises(CallDeferredError) as caught:
            await ana.auxiliary_call(ask())
        assert len(provider.requests) == 1, "nothing reached the provider"
        error = caught.value
        assert isinstance(error, ProviderError)
        assert error.retryable
        assert error.status == 429
        assert error.deferred is True
        assert not error.sent
        assert error.retry_after_ms is not None
        assert 50_000 < error.retry_after_ms <= 55_000
        assert error.deadline_ms == runtime.provider_waits()[0].deadline_ms
        assert "no call was made" in str(error)
        assert "for another" in str(error)
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.retry_after_ms) == (str(error), error.retry_after_ms)


@pytest.mark.behaviour("W-091")
async def test_a_refusal_by_a_wait_without_end_names_no_duration(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await resident(world, [fail(429, retry_after=1e18)])
        ana = runtime.agent("ana")
        await ana.send("go")
        await ana.wait_idle()
        with pytest.raises(CallDeferredError) as caught:
            await ana.auxiliary_call(ask())
        assert (caught.value.retry_after_ms, caught.value.deadline_ms) == (None, None)
        assert "until it is released" in str(caught.value)


@pytest.mark.behaviour("W-093")
async def test_a_call_to_another_model_goes_through_while_one_is_held(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        provider = await resident(world, [fail(429, retry_after=60), reply("in short")])
        ana = runtime.agent("ana")
        await ana.send("go")
        await ana.wait_idle()
        await ana.auxiliary_call(ask("m2"))
        assert models(provider) == ["m", "m2"]


@pytest.mark.behaviour("W-094")
async def test_what_an_auxiliary_call_states_binds_that_model_and_no_other(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        provider = await resident(world, [fail(429, retry_after=60), reply("hello")])
        ana = runtime.agent("ana")
        with pytest.raises(ProviderError) as caught:
            await ana.auxiliary_call(ask("m2"))
        assert not isinstance(caught.value, CallDeferredError)
        (wait,) = runtime.provider_waits()
        assert (wait.agent, wait.model) == ("ana", "m2")
        await ana.send("go")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: hello"
        with pytest.raises(CallDeferredError):
            await ana.auxiliary_call(ask("m2"))
        assert models(provider) == ["m2", "m"]


@pytest.mark.behaviour("W-094")
async def test_what_an_auxiliary_call_states_of_the_turns_model_holds_the_turn(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        provider = await resident(world, [fail(429, retry_after=60), reply("later")])
        ana = runtime.agent("ana")
        with pytest.raises(ProviderError):
            await ana.auxiliary_call(ask())
        await ana.send("go")
        await ana.wait_idle()
        assert world.state().state == "held"
        await trio.sleep(61)
        await ana.wait_idle()
        assert len(provider.requests) == 2


@pytest.mark.behaviour("W-095")
async def test_a_call_parked_behind_a_turns_that_fails_is_refused(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(fail(429, retry_after=60))
    async with world.open() as runtime:
        provider = await resident(world, [gate])
        ana = runtime.agent("ana")
        await ana.send("go")
        await gate.wait_entered()
        refused: list[CallDeferredError] = []

        async def compact() -> None:
            with pytest.raises(CallDeferredError) as caught:
                await ana.auxiliary_call(ask())
            refused.append(caught.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(compact)
            await wait_all_tasks_blocked()
            assert not refused
            assert len(provider.requests) == 1, "one call of an agent at a time"
            gate.release()
        assert refused[0].retry_after_ms == 60_000
        assert len(provider.requests) == 1


@pytest.mark.behaviour("W-095")
async def test_a_call_to_a_held_model_is_refused_though_another_is_out(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(reply("slow"))
    async with world.open() as runtime:
        await resident(world, [fail(429, retry_after=60), gate])
        ana = runtime.agent("ana")
        with pytest.raises(ProviderError):
            await ana.auxiliary_call(ask("m2"))
        await ana.send("go")
        await gate.wait_entered()
        with pytest.raises(CallDeferredError):
            await ana.auxiliary_call(ask("m2"))
        gate.release()


@pytest.mark.behaviour("W-069", "W-070")
async def test_a_turn_parked_behind_an_auxiliary_call_is_held_by_what_it_states(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(fail(429, headers={"retry-after-ms": "400"}))
    async with world.open() as runtime:
        provider = await resident(world, [gate, reply("later")])
        ana = runtime.agent("ana")
        async with trio.open_nursery() as nursery:

            async def compact() -> None:
                with pytest.raises(ProviderError):
                    await ana.auxiliary_call(ask())

            nursery.start_soon(compact)
            await gate.wait_entered()
            await ana.send("go")
            await until(lambda: world.state().state == "running")
            await wait_all_tasks_blocked()
            assert len(provider.requests) == 1
            gate.release()
        await ana.wait_idle()
        assert world.state().state == "held"
        assert len(provider.requests) == 1
        await trio.sleep(0.5)
        await ana.wait_idle()
        assert (len(provider.requests), world.state().state) == (2, "idle")


async def test_a_parked_call_is_made_when_the_one_before_it_is_over(
    world: World, virtual_time: MockClock
) -> None:
    gates = [Gate(reply("one")), Gate(reply("two")), Gate(reply("three"))]
    async with world.open() as runtime:
        provider = await resident(world, gates)
        ana, answers = runtime.agent("ana"), []

        async def compact(text: str) -> None:
            answers.append((await ana.auxiliary_call(ask(text=text))).blocks[0])

        async with trio.open_nursery() as nursery:
            for number in range(len(gates)):
                nursery.start_soon(compact, str(number))
                await wait_all_tasks_blocked()
            for made, gate in enumerate(gates, 1):
                await gate.wait_entered()
                assert len(provider.requests) == made
                gate.release()
        said = [request.messages[0].blocks[0].text for request in provider.requests]  # type: ignore[union-attr]
        assert said == ["0", "1", "2"], "in the order they asked"


async def test_a_call_whose_caller_gives_up_while_it_is_parked_is_not_made(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(reply("hello"))
    async with world.open() as runtime:
        provider = await resident(world, [gate])
        ana = runtime.agent("ana")
        await ana.send("go")
        await gate.wait_entered()
        with trio.move_on_after(1) as gives_up:
            await ana.auxiliary_call(ask())
        assert gives_up.cancelled_caught
        gate.release()
        await ana.wait_idle()
        await wait_all_tasks_blocked()
        assert len(provider.requests) == 1
        assert not world.permits_out()


async def test_a_call_that_is_cancelled_returns_its_permit(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await resident(world, [Gate(reply("never")), reply("hello")])
        ana = runtime.agent("ana")
        with trio.move_on_after(1):
            await ana.auxiliary_call(ask())
        await ana.send("go")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: hello"


async def test_an_agent_that_crashes_leaves_an_auxiliary_call_its_permit(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(reply("in short"))
    async with world.open() as runtime:
        provider = await resident(world, [gate, reply("hello")])
        ana = runtime.agent("ana")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ana.auxiliary_call, ask())
            await gate.wait_entered()
            world.ref("agent").kill("by a test")
            await until(lambda: world.ref("agent").statistics().incarnation == 2)
            await ana.send("go")
            await wait_all_tasks_blocked()
            assert len(provider.requests) == 1, "one call at a time, whoever died"
            gate.release()
        await ana.wait_idle()
        assert len(provider.requests) == 2


async def test_a_gate_that_crashes_keeps_calls_apart_and_parks_who_waits_again(
    world: World, virtual_time: MockClock
) -> None:
    first, second = Gate(reply("one")), Gate(reply("two"))
    async with world.open() as runtime:
        provider = await resident(world, [first, second])
        ana = runtime.agent("ana")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ana.auxiliary_call, ask())
            await first.wait_entered()
            nursery.start_soon(ana.auxiliary_call, ask())
            await wait_all_tasks_blocked()
            world.ref("gate").kill("by a test")
            await until(lambda: world.ref("gate").statistics().incarnation == 2)
            await wait_all_tasks_blocked()
            assert len(provider.requests) == 1
            first.release()
            await second.wait_entered()
            second.release()


@pytest.mark.behaviour("W-125")
async def test_calls_parked_when_the_runtime_stops_are_refused_unmade(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(reply("never"))
    refused: list[Exception] = []
    async with trio.open_nursery() as nursery:
        async with world.open() as runtime:
            provider = await resident(world, [gate])
            ana = runtime.agent("ana")
            await ana.send("go")
            await gate.wait_entered()

            async def compact() -> None:
                with pytest.raises(AdmissionClosedError) as caught:
                    await ana.auxiliary_call(ask("m2"))
                refused.append(caught.value)

            nursery.start_soon(compact)
            await wait_all_tasks_blocked()
        assert len(provider.requests) == 1
    assert "no call was made" in str(refused[0])


@pytest.mark.parametrize(
    ("request_", "error", "field"),
    [
        ("sum up", InvalidInputError, "request"),
        (ask(""), InvalidNameError, "request.model"),
        (ask("*"), InvalidNameError, "request.model"),
    ],
    ids=["no request", "no model", "every model"],
)
async def test_what_is_no_request_is_refused(
    world: World, virtual_time: MockClock, request_: Any, error: type[Exception], field: str
) -> None:
    async with world.open() as runtime:
        provider = await resident(world, [])
        with pytest.raises(error) as caught:
            await runtime.agent("ana").auxiliary_call(request_)
        assert getattr(caught.value, "field") == field  # noqa: B009
        assert not provider.requests


async def test_a_removed_agent_makes_no_auxiliary_call(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    async with world.open() as runtime:
        provider = await resident(world, [call_tool("wait")], tools=[stop.tool()])
        ana = runtime.agent("ana")
        await runtime.remove_agent("ana")
        with pytest.raises(UnknownAgentError):
            await ana.auxiliary_call(ask())
        assert not provider.requests


@pytest.mark.behaviour("W-082")
async def test_a_conversations_waits_bind_its_own_auxiliary_calls_and_not_its_residents(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        script = [fail(429, retry_after=60), fail(429, retry_after=60), reply("free")]
        provider = await resident(world, script)
        fork = await runtime.open_conversation("ana", channel="c1")
        await fork.send("go")
        await fork.wait_idle()
        with pytest.raises(CallDeferredError):
            await fork.auxiliary_call(ask())
        assert len(provider.requests) == 1
        with pytest.raises(ProviderError):
            await fork.auxiliary_call(ask("m2"))
        waits = [(wait.agent, wait.model) for wait in runtime.provider_waits()]
        assert waits == [(fork.name, "m"), (fork.name, "m2")]
        await runtime.agent("ana").auxiliary_call(ask())


@pytest.mark.behaviour("W-083", "W-084")
async def test_a_conversations_turn_that_compiled_during_an_auxiliary_call_is_held_unsent(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(fail(429, retry_after=10))
    async with world.open() as runtime:
        provider = await resident(world, [gate, reply("later")])
        fork = await runtime.open_conversation("ana", channel="c1")
        async with trio.open_nursery() as nursery:

            async def compact() -> None:
                with pytest.raises(ProviderError):
                    await fork.auxiliary_call(ask())

            nursery.start_soon(compact)
            await gate.wait_entered()
            await fork.send("go")
            await until(lambda: world.state(fork.name).state == "running")
            await wait_all_tasks_blocked()
            assert world.rows("carried", fork.name), "it is compiled"
            gate.release()
        await fork.wait_idle()
        assert world.state(fork.name).state == "held"
        assert len(provider.requests) == 1, "nothing was sent of what was compiled"
        await trio.sleep(11)
        await fork.wait_idle()
        assert (await shown(fork))[-1] == "assistant: later"


# -- a quota that states no end ------------------------------------------------------------------


async def refused(agent: AgentHandle, model: str = "m") -> CallDeferredError:
    with pytest.raises(CallDeferredError) as caught:
        await agent.auxiliary_call(ask(model))
    return caught.value


async def test_a_quota_without_an_instant_refuses_auxiliary_calls_to_its_model_until_a_release(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        provider = await resident(world, [fail(402), reply("two"), reply("paid"), reply("three")])
        ana = runtime.agent("ana")
        await ana.send("go")
        await ana.wait_idle()
        error = await refused(ana)
        assert (error.cause, error.retry_after_ms, error.deadline_ms) == ("quota", None, None)
        assert "until it is released" in str(error)
        await ana.auxiliary_call(ask("m2"))
        await runtime.release_provider_wait("ana", model="m2", requester="ops")
        assert (await refused(ana)).cause == "quota"
        await runtime.release_provider_wait("ana", model="m", requester="ops")
        await ana.wait_idle()
        assert (await ana.auxiliary_call(ask())).blocks == (TextBlock(text="three"),)
        assert models(provider) == ["m", "m2", "m", "m"]


async def test_a_call_parked_behind_a_turns_that_exhausts_a_quota_is_refused(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(fail(402))
    causes: list[str] = []
    async with world.open() as runtime, trio.open_nursery() as nursery:
        provider = await resident(world, [gate])
        ana = runtime.agent("ana")
        await ana.send("go")
        await gate.wait_entered()

        async def compact() -> None:
            causes.append((await refused(ana)).cause)

        nursery.start_soon(compact)
        await wait_all_tasks_blocked()
        gate.release()
        await ana.wait_idle()
        await until(lambda: bool(causes))
        assert (causes, len(provider.requests)) == (["quota"], 1)


@pytest.mark.parametrize("dies", ["process", "gate", "agent"])
async def test_a_quota_without_an_instant_refuses_auxiliary_calls_whatever_died_since(
    world: World, virtual_time: MockClock, dies: str
) -> None:
    async with world.open() as runtime:
        await resident(world, [fail(402)])
        ana = runtime.agent("ana")
        await ana.send("go")
        await ana.wait_idle()
        if dies != "process":
            world.ref(dies).kill("a test")
            await until(lambda: world.ref(dies).statistics().incarnation == 2)
            assert (await refused(ana)).cause == "quota"
            return
    async with world.open() as runtime:
        # At once: nothing of this agent has run yet but what adding it waits for.
        provider = await resident(world, [reply("paid"), reply("in short")])
        ana = runtime.agent("ana")
        assert (await refused(ana)).cause == "quota"
        await ana.wait_idle()
        assert (await refused(ana)).cause == "quota"
        await runtime.release_provider_wait("ana", requester="ops")
        await ana.wait_idle()
        await ana.auxiliary_call(ask())
        assert len(provider.requests) == 2
    async with world.open() as runtime:
        await resident(world, [reply("in short")])
        await runtime.agent("ana").auxiliary_call(ask())


async def test_another_model_after_a_restart_ends_a_quotas_refusal_of_the_old_one(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open() as runtime:
        await resident(world, [fail(402)])
        await runtime.agent("ana").send("go")
        await runtime.agent("ana").wait_idle()
    async with world.open() as runtime:
        provider = await resident(world, [reply("hello"), reply("in short")], model="m2")
        ana = runtime.agent("ana")
        await ana.wait_idle()
        await ana.auxiliary_call(ask("m"))
        assert models(provider) == ["m2", "m"]


async def test_a_rewind_on_the_way_to_a_quotas_hold_leaves_auxiliary_calls_free(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go = slow_hold(monkeypatch)
    async with world.open() as runtime, trio.open_nursery() as nursery:
        await resident(world, [fail(402), reply("in short")])
        ana = runtime.agent("ana")
        await ana.send("go")
        await entered.wait()
        assert (await refused(ana)).cause == "quota"

        async def rewind() -> None:
            await ana.rewind(to=0, requester="ops")

        nursery.start_soon(rewind)
        await ana.wait_idle()
        assert world.state().state == "idle"
        await ana.auxiliary_call(ask())
        go.set()


# -- what is stated when the agent has ended ------------------------------------------------------


@pytest.mark.behaviour("W-094", "W-132")
@pytest.mark.parametrize("walls", [False, True], ids=["alone", "with account walls"])
async def test_what_a_call_states_whose_agent_was_removed_meanwhile_is_recorded(
    world: World, virtual_time: MockClock, walls: bool
) -> None:
    gate = Gate(fail(429, retry_after=3_600))
    async with world.open(account_waits=walls) as runtime, trio.open_nursery() as nursery:
        provider = ScriptedProvider([gate, reply("hello")], clock=world.clock, key="k")
        await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        ana, failed = runtime.agent("ana"), trio.Event()

        async def compact() -> None:
            with pytest.raises(ProviderError):
                await ana.auxiliary_call(ask())
            # Behind the record: whoever learns of the failure finds the wait.
            listed = [
                (wait.agent.partition(":")[0], wait.model) for wait in runtime.provider_waits()
            ]
            assert listed == [("ana", "m"), *([("account", "m")] if walls else [])]
            failed.set()

        nursery.start_soon(compact)
        await gate.wait_entered()
        await runtime.remove_agent("ana", requester="ops")
        gate.release()
        await failed.wait()
    # And durably: it holds the agent of that name that comes after a restart.
    async with world.open():
        ana_again = await world.add([reply("hello")])
        await ana_again.send("go")
        await ana_again.wait_idle()
        assert world.state().state == "held"


async def test_what_a_call_states_when_its_runtime_has_ended_is_the_callers_alone(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(fail(429, retry_after=3_600))
    async with trio.open_nursery() as nursery:
        async with world.open() as runtime:
            await resident(world, [gate])
            ana = runtime.agent("ana")

            async def compact() -> None:
                with pytest.raises(ProviderError) as caught:
                    await ana.auxiliary_call(ask())
                stated = caught.value.stated
                assert stated is not None
                assert stated.deadline_ms is not None

            nursery.start_soon(compact)
            await gate.wait_entered()
        gate.release()
