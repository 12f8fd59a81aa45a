"""Turns: rounds, boundaries, what joins a live turn and what waits for its end."""

from __future__ import annotations

import time
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from abeyance.actors.domain.errors import InvalidMessageError, InvalidNameError
from abeyance.actors.domain.gate import Gate as GateActor
from abeyance.actors.providers.port import ProviderError, ProviderStalledError
from abeyance.actors.testing import Gate, call_tool, fail, raise_, reply, stall
from abeyance.storage.tables.blocks import TextBlock, ToolResultBlock, ToolUseBlock

from .world import Stop, World, shown, texts, tool, until, wait_all_tasks_blocked


async def test_a_turn_answers_a_message(world: World, virtual_time: MockClock) -> None:
    async with world.open():
        ana = await world.add([reply("hello")])
        await ana.send("hi")
        await ana.wait_idle()
        assert await shown(ana) == ["user: hi", "assistant: hello"]
        assert not world.permits_out()
        (turn,) = world.turns()
        assert (turn.state, turn.round, turn.attempts, turn.failures) == ("done", 1, 1, 0)


@pytest.mark.behaviour("D-001", "D-011")
async def test_each_request_of_a_turn_is_the_last_with_reply_results_and_injected_behind_it(
    world: World, virtual_time: MockClock
) -> None:
    first, second = Stop("one"), Stop("two")
    async with world.open():
        ana = await world.add(
            [call_tool("first", text="Moving"), call_tool("second"), reply("Done")],
            tools=[first.tool("first"), second.tool("second")],
        )
        await ana.send("go")
        await first.entered.wait()
        await ana.send("a")
        await ana.send("b", author="bo")
        first.go.set()
        await second.entered.wait()
        second.go.set()
        await ana.wait_idle()
        (provider,) = world.providers
        assert [texts(request) for request in provider.requests] == [
            ["user: go"],
            ["user: go", "agent: Moving <first>", "user: =one", "user: a", "user: b"],
            [
                *("user: go", "agent: Moving <first>", "user: =one", "user: a", "user: b"),
                *("agent: <second>", "user: =two"),
            ],
        ]
        for earlier, later in zip(provider.requests, provider.requests[1:], strict=False):
            assert later.messages[: len(earlier.messages)] == earlier.messages


@pytest.mark.behaviour("D-006", "D-008")
async def test_a_boundary_injects_the_prefix_before_the_first_message_named_as_the_agent(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    async with world.open():
        ana = await world.add(
            [call_tool("wait"), reply("Done"), reply("b heard")], tools=[stop.tool()]
        )
        await ana.send("go")
        await stop.entered.wait()
        await ana.send("a")
        await ana.send("own", author="Ana")
        await ana.send("b")
        stop.go.set()
        await ana.wait_idle()
        assert await shown(ana) == [
            *("user: go", "assistant: <wait>", "results: =done", "user: a", "assistant: Done"),
            *("assistant: own", "user: b", "assistant: b heard"),
        ]
        assert texts(world.providers[0].requests[1])[-1] == "user: a"


@pytest.mark.behaviour("D-016")
@pytest.mark.parametrize("again", ["its task dies", "its call fails", "its slot dies"])
async def test_a_held_message_waits_through_what_starts_its_turn_again_and_lands_once(
    world: World, virtual_time: MockClock, again: str
) -> None:
    stop, gate, anew = Stop("moved"), Gate(reply("Done")), Gate(reply("Done"))
    script = [call_tool("move", text="Moving"), *([fail(503)] if "call" in again else []), gate]
    async with world.open():
        ana = await world.add([*script, anew], tools=[stop.tool("move")])
        await ana.send("go")
        await stop.entered.wait()
        await ana.send("held", author="ana")
        stop.go.set()
        await gate.wait_entered()
        assert len(world.rows("inbox", "ana")) == 1
        if again == "its task dies":
            world.ref("agent").kill("a test")
            await anew.wait_entered()
        elif again == "its slot dies":
            world.ref("slot").kill("a test")
            await wait_all_tasks_blocked()
        assert len(world.rows("inbox", "ana")) == 1, "who starts again drains nothing"
        for held in (gate, anew):
            held.release()
        await ana.wait_idle()
        assert await shown(ana) == [
            "user: go",
            "assistant: Moving <move>",
            "results: =moved",
            "assistant: Done",
            "assistant: held",
        ]
        assert len(world.turns()) == 1


@pytest.mark.behaviour("D-007", "D-018")
async def test_a_boundary_injects_nothing_that_stands_behind_a_message_named_as_the_agent(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    async with world.open():
        ana = await world.add(
            [call_tool("wait"), reply("Done"), reply("heard")], tools=[stop.tool()]
        )
        await ana.send("go")
        await stop.entered.wait()
        await ana.send("own", author="ana")
        await ana.send("b")
        stop.go.set()
        await ana.wait_idle()
        assert texts(world.providers[0].requests[1]) == ["user: go", "agent: <wait>", "user: =done"]
        assert texts(world.providers[0].requests[2])[-2:] == ["agent: own", "user: b"]


@pytest.mark.behaviour("D-002", "D-009")
async def test_a_message_named_as_the_agent_lands_behind_the_last_reply(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop("moved")
    async with world.open():
        ana = await world.add(
            [call_tool("move", text="Moving"), reply("Done")], tools=[stop.tool("move")]
        )
        await ana.send("go")
        await stop.entered.wait()
        receipt = await ana.send("held", author="ana")
        assert receipt.state == "accepted"
        stop.go.set()
        await ana.wait_idle()
        assert await shown(ana) == [
            "user: go",
            "assistant: Moving <move>",
            "results: =moved",
            "assistant: Done",
            "assistant: held",
        ]
        assert len(world.turns()) == 1, "a message named as the agent wakes nobody"


@pytest.mark.behaviour("D-004")
@pytest.mark.parametrize("spelt", ["Ada", "aDA", "\uff21da"])
async def test_a_message_named_as_the_agent_in_any_spelling_does_not_join_at_a_boundary(
    world: World, virtual_time: MockClock, spelt: str
) -> None:
    stop = Stop()
    async with world.open():
        ada = await world.add([call_tool("wait"), reply("Done")], "Ada", tools=[stop.tool()])
        await ada.send("go")
        await stop.entered.wait()
        with pytest.raises(InvalidNameError, match="blanks"):
            await ada.send("own", author=f"{spelt} ")
        assert (await ada.send("own", author=spelt, id="own")).state == "accepted"
        assert (await ada.receipt("own")).cause == "own"
        stop.go.set()
        await ada.wait_idle()
        assert len(world.providers[0].requests[1].messages) == 3
        assert [row.message for row in world.rows("slots", "Ada")][-1] == "own"


@pytest.mark.behaviour("D-003")
async def test_neither_tool_blocks_nor_the_agents_own_words_join_or_are_stored_mid_turn(
    world: World, virtual_time: MockClock
) -> None:
    stop, call = Stop(), Gate(reply("Done"))
    use = ToolUseBlock(id="x", name="wait", input={})
    result = ToolResultBlock(tool_use_id="x")
    async with world.open():
        ana = await world.add([call_tool("wait"), call], tools=[stop.tool()])
        await ana.send("go")
        await stop.entered.wait()
        for block in (use, result):
            with pytest.raises(InvalidMessageError, match=r"message\[0\]\.type"):
                await ana.send([block, TextBlock(text="and words")])
        await ana.send("own", author="ANA")
        stop.go.set()
        await call.wait_entered()
        assert await shown(ana) == ["user: go", "assistant: <wait>", "results: =done"]
        assert texts(world.providers[0].requests[1]) == ["user: go", "agent: <wait>", "user: =done"]
        call.release()
        await ana.wait_idle()
        assert (await shown(ana))[3:] == ["assistant: Done", "assistant: own"]


@pytest.mark.behaviour("D-012")
async def test_a_provider_that_carries_no_injections_gets_none_and_a_turn_of_its_own_answers_them(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    async with world.open():
        ana = await world.add(
            [call_tool("wait"), reply("Done"), reply("a heard")],
            tools=[stop.tool()],
            carries_injections=False,
        )
        await ana.send("go")
        await stop.entered.wait()
        await ana.send("a")
        stop.go.set()
        await ana.wait_idle()
        assert texts(world.providers[0].requests[1]) == ["user: go", "agent: <wait>", "user: =done"]
        assert (await shown(ana))[-3:] == ["assistant: Done", "user: a", "assistant: a heard"]
        assert [turn.answers for turn in world.turns()] == [(1,), (3,)]


async def test_an_injected_message_gets_no_turn_of_its_own(
    world: World, virtual_time: MockClock
) -> None:
    stop = Stop()
    async with world.open():
        ana = await world.add([call_tool("wait"), reply("Done")], tools=[stop.tool()])
        first = await ana.send("go")
        await stop.entered.wait()
        second = await ana.send("a")
        stop.go.set()
        await ana.wait_idle()
        (turn,) = world.turns()
        assert turn.answers == (first.seq, second.seq)
        assert not world.rows("wakes", "ana")


async def test_messages_of_one_successor_turn_are_answered_together_in_their_order(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate(then=reply("one"))
    async with world.open():
        ana = await world.add([gate, reply("two")])
        await ana.send("go")
        await gate.wait_entered()
        receipts = [await ana.send(word) for word in ("a", "b", "c")]
        gate.release()
        await ana.wait_idle()
        assert await shown(ana) == [
            *("user: go", "assistant: one", "user: a", "user: b", "user: c", "assistant: two"),
        ]
        assert world.turns()[1].answers == tuple(receipt.seq for receipt in receipts)


async def test_a_message_without_a_wake_is_carried_by_the_next_turn_and_starts_none(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([reply("both")])
        await ana.send("quiet", wake=False)
        await ana.wait_idle()
        assert not world.providers[0].requests
        await ana.send("loud")
        await ana.wait_idle()
        assert texts(world.providers[0].requests[0]) == ["user: quiet", "user: loud"]


async def test_a_turn_fails_with_a_marker_at_its_bound_of_rounds_and_the_next_goes_on(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add(
            [call_tool("t"), call_tool("t"), reply("again")],
            tools=[tool("t", lambda: "x")],
            rounds_max=2,
        )
        await ana.send("go")
        await ana.wait_idle()
        assert world.turns()[0].state == "failed"
        lines = await shown(ana)
        assert lines[-2] == "results: =x", "the gap of the last round is closed"
        assert lines[-1] == "marker: this turn failed: it had 2 rounds, its bound"
        await ana.send("more")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: again"
        assert "this turn failed" not in " ".join(texts(world.providers[0].requests[-1]))


async def test_an_adapter_that_raises_what_no_port_names_fails_the_turn_once_and_the_agent_goes_on(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([raise_(ZeroDivisionError("boom\nboom")), reply("fine")])
        await ana.send("go")
        await ana.wait_idle()
        assert len(world.providers[0].requests) == 1
        assert (await shown(ana))[1:] == ["marker: this turn failed: ZeroDivisionError: boom boom"]
        assert world.ref("agent").statistics().incarnation == 1
        await ana.send("more")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: fine"
        assert not world.permits_out()


async def test_a_provider_that_uses_a_permit_twice_fails_the_turn_and_sends_one_request(
    world: World, virtual_time: MockClock
) -> None:
    class Twice:
        carries_injections = True

        def __init__(self) -> None:
            self.inner = world.provider([reply("one"), reply("two")])

        async def call(self, request, on_delta):  # type: ignore[no-untyped-def]
            await self.inner.call(request, on_delta)
            return await self.inner.call(request, on_delta)

    from abeyance.actors import AgentSpec

    async with world.open() as runtime:
        provider = Twice()
        ana = await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))  # type: ignore[arg-type]
        await ana.send("go")
        await ana.wait_idle()
        assert len(provider.inner.requests) == 1
        assert "PermitError" in (await shown(ana))[-1]
        assert not world.permits_out()


async def test_a_fault_that_states_nothing_is_retried_with_a_permit_for_each_attempt(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([fail(500), fail(502), reply("at last")])
        before = trio.current_time()
        await ana.send("go")
        await ana.wait_idle()
        (provider,) = world.providers
        assert len({permit.id for permit in provider.permits}) == 3
        assert await shown(ana) == ["user: go", "assistant: at last"]
        assert 0 < trio.current_time() - before < 60
        assert not world.permits_out()


async def test_a_fault_that_states_nothing_fails_the_turn_after_four_attempts(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([fail(500)] * 9)
        await ana.send("go")
        await ana.wait_idle()
        assert len(world.providers[0].requests) == 4
        assert (await shown(ana))[-1].startswith("marker: this turn failed: generic refused")
        assert world.turns()[0].failures == 4


async def test_a_stall_of_two_minutes_is_retried(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The retry library measures by this clock.
    monkeypatch.setattr(time, "monotonic", virtual_time.current_time)
    async with world.open():
        ana = await world.add([stall(120.0), stall(120.0), reply("at last")])
        await ana.send("go")
        await ana.wait_idle()
        assert await shown(ana) == ["user: go", "assistant: at last"]


@pytest.mark.behaviour("W-076")
async def test_a_wait_that_is_over_already_is_retried_by_policy_and_not_recorded(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([fail(429, retry_after="-1"), reply("fine")])
        await ana.send("go")
        await ana.wait_idle()
        assert len(world.providers[0].requests) == 2
        assert not world.rows("waits")
        assert world.turns()[0].state == "done"


async def test_a_reply_that_cannot_be_stored_fails_the_turn_once_with_a_marker(
    world: World, virtual_time: MockClock
) -> None:
    call = ToolUseBlock(id="x" * 5_000, name="look", input={})
    async with world.open():
        ana = await world.add([reply(call), reply("fine")])
        await ana.send("go")
        await ana.wait_idle()
        assert len(world.providers[0].requests) == 1
        assert (await shown(ana))[-1].startswith("marker: this turn failed: the reply")
        await ana.send("more")
        await ana.wait_idle()
        assert (await shown(ana))[-1] == "assistant: fine"


async def test_an_empty_reply_is_a_row_with_an_empty_text(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([reply(), reply("two")])
        await ana.send("go")
        await ana.wait_idle()
        await ana.send("more")
        await ana.wait_idle()
        assert await shown(ana) == ["user: go", "assistant: ", "user: more", "assistant: two"]


async def test_a_long_slot_is_compiled_in_slices_that_let_the_loop_run(
    world: World, virtual_time: MockClock
) -> None:
    async with world.open():
        ana = await world.add([reply("done")])
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(lambda n: ana.send(str(n), wake=False), number)
        await ana.send("go")
        await ana.wait_idle()
        assert len(world.providers[0].requests[0].messages) == 201


async def test_wait_idle_does_not_return_while_a_turn_lives(
    world: World, virtual_time: MockClock
) -> None:
    gate = Gate()
    async with world.open():
        ana = await world.add([gate])
        await ana.send("go")
        await gate.wait_entered()
        with trio.move_on_after(1_000) as waited:
            await ana.wait_idle()
        assert waited.cancelled_caught
        gate.release()
        await ana.wait_idle()


async def test_a_provider_error_marks_its_call_as_sent_only_where_it_was(
    world: World, virtual_time: MockClock
) -> None:
    unsent = ProviderError("no route", retryable=False, sent=False)
    sent = ProviderStalledError("stalled", retryable=False)
    async with world.open():
        provider = world.provider([raise_(unsent), raise_(sent), raise_(KeyError("late"))])
        ana = await world.add(provider)
        for word in ("one", "two", "three"):
            await ana.send(word)
            await ana.wait_idle()

        async def early(request: object, on_delta: object) -> None:
            raise KeyError("before the permit was used")

        provider.call = early  # type: ignore[assignment, method-assign]
        await ana.send("four")
        await ana.wait_idle()
        assert [row.sent for row in world.rows("carried", "ana")] == [False, True, True, False]


async def test_a_turn_that_was_told_to_end_while_it_was_admitted_makes_no_call(
    world: World, virtual_time: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    admit = GateActor._admit

    def admit_and_end(gate: GateActor, *asked: Any) -> None:
        admit(gate, *asked)
        # The turn has its permit and has not run since; now it is told to end.
        agent = world.ref("agent")._cell.actor
        agent.kept.stopping = True
        agent._life.cut()

    async with world.open():
        monkeypatch.setattr(GateActor, "_admit", admit_and_end)
        ana = await world.add([reply("never")])
        await ana.send("go")
        await until(lambda: bool(world.turns()) and world.turns()[0].state == "cancelled")
        await until(lambda: not world.permits_out())
        assert not world.providers[0].requests


async def test_an_agent_with_the_longest_name_runs_stops_and_goes_on(
    world: World, virtual_time: MockClock
) -> None:
    name, stop = "é" * 64, Stop()
    async with world.open():
        agent = await world.add([call_tool("wait")], name, tools=[stop.tool()])
        await agent.send("go")
        await stop.entered.wait()
    async with world.open():
        agent = await world.add([reply("fresh")], name)
        await agent.wait_idle()
        assert (await shown(agent))[-1] == "assistant: fresh"


async def test_status_shows_a_turn_in_its_round(world: World, virtual_time: MockClock) -> None:
    gate = Gate(then=reply("end"))
    async with world.open():
        ana = await world.add([call_tool("t"), gate], tools=[tool("t", lambda: 1)])
        await ana.send("go")
        await gate.wait_entered()
        state = world.state()
        assert (state.state, state.turn, state.round, state.attempts) == ("running", 1, 1, 1)
        gate.release()
        await ana.wait_idle()
        assert (world.state().state, world.state().turn) == ("idle", None)
        await until(lambda: not world.permits_out())
